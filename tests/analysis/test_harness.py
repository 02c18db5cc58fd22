"""Scores of the harness in tables and as differences, worked out by hand."""

import math
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest

from analysis import harness
from analysis.harness import ACCURACIES, KNOWN, SIX, Line, ahead, scores


def rows_of(task: str, metric: str, *values: float, label: str = "fox_pro", stderr: float = 1.0, examples: int = 9):
    """A row for every seed."""
    return [{"label": label, "model": label, "run_id": f"{label}{seed}", "task": task, "metric": metric, "value": value,
             "stderr": stderr, "num_examples": examples} for seed, value in enumerate(values)]  # fmt: skip


def every(columns, label: str = "fox_pro", first: float = 10.0, seeds: int = 1, stderr: float = 1.0):
    """Rows of columns: `first`, one more in the next, and so on, and a hundred more in every next seed."""
    found = []
    for place, column in enumerate(columns):
        values = [first + place + 100 * seed for seed in range(seeds)]
        found += rows_of(*KNOWN[column][:2], *values, label=label, stderr=stderr)
    return found


def study_of(rows, include: str = "harness"):
    frame = pd.DataFrame(rows)
    metas = {"lm_eval": [{"spec": {"include": include}}], "longbench": [{"spec": {"dataset": "hub"}}]}
    return SimpleNamespace(
        stored=lambda kind, what: frame, metas=metas.get, scale="tiny", scales=["tiny"], corpora="c", lines=[]
    )


@pytest.mark.parametrize(("columns", "average"), [(ACCURACIES, 14.5), (SIX, 12.5), (SIX[1:], None), ([*SIX, "copa_acc"], None)])
def test_averages_are_of_the_papers_sets(columns, average):
    table = scores(pd.DataFrame(every(columns, seeds=2)))["fox_pro"]
    assert table["piqa_acc"].tolist() == [10.0 + list(columns).index("piqa_acc"), 110.0 + list(columns).index("piqa_acc")]
    assert ("avg_acc" in table) is (average is not None)
    if average is not None:
        assert table["avg_acc"].tolist() == [average, average + 100]
    assert "avg_acc" not in scores(pd.DataFrame(every(["wikitext_ppl"])))["fox_pro"]


def test_errors_of_accuracies_and_their_average():
    """The mean over seeds; the harness gives none for word perplexity. Printed numbers have none at all."""
    rows = pd.DataFrame(every([*KNOWN], stderr=3.0) + every([*KNOWN], label="b", stderr=1.0))
    rows.loc[rows["metric"] == "word_perplexity", "stderr"] = np.nan
    errors = harness._errors(rows)
    assert errors["piqa_acc"] == errors["lambada_ppl"] == 2.0 and errors["wikitext_ppl"] == 0.15
    assert errors["avg_acc"] == pytest.approx(math.sqrt(10 * 4) / 10)
    rows.loc[rows["metric"] == "word_perplexity", "stderr"] = 0.5
    assert harness._errors(rows)["wikitext_ppl"] == 0.5
    assert harness._errors(rows.assign(stderr=np.nan)) == dict.fromkeys([*KNOWN, "avg_acc"])
    assert harness._errors(rows[rows["task"] == "piqa"])["copa_acc"] == 0.0


def test_being_ahead_is_lower_perplexity_and_higher_accuracy():
    one, other = (Line({"wikitext_ppl": np.array(ppl), "piqa_acc": np.array(acc)}, {"wikitext_ppl": 0.5, "piqa_acc": error})
                  for ppl, acc, error in (([20.0, 22.0], [60.0, 61.0], 3.0), ([25.0], [50.0], 4.0)))  # fmt: skip
    assert (ahead(one, other, "wikitext_ppl").effect, ahead(one, other, "piqa_acc").effect) == (4.0, 10.5)
    alone = ahead(other, other, "piqa_acc")
    assert (alone.effect, alone.error, alone.df, alone.seeds, alone.seeds_known) == (
        0.0,
        pytest.approx(32**0.5),
        math.inf,
        1,
        False,
    )
    own = [Line({"piqa_acc": np.array(values)}, {"piqa_acc": error})
           for values, error in (([1.0, 3.0, 5.0], 3.0), ([1.0, 1.0, 4.0, 2.0], 4.0))]  # fmt: skip
    found = ahead(*own, "piqa_acc")
    assert found.effect == 1.0 and found.error**2 == pytest.approx(9 + 16 + 4 / 3 + 2 / 4)
    assert (found.seeds, found.seeds_known) == (3, True)
    assert [(part.what, part.variance) for part in found.parts] == [
        ("times the examples", 9.0), ("times the examples", 16.0), ("seeds", 4 / 3), ("seeds", 0.5)]  # fmt: skip
    printed = ahead(*(Line({"piqa_acc": np.array([value])}, {"piqa_acc": None}) for value in (2.0, 1.0)), "piqa_acc")
    assert (printed.effect, printed.error, printed.seeds_known) == (1.0, None, True)


def test_lines_need_all_columns_and_an_average():
    study = study_of(every(KNOWN) + every([*KNOWN][1:], label="mamba2") + every(["wikitext_ppl", *SIX], label="hgrn2"))
    assert set(harness.lines_of(study)) == {"fox_pro"} and set(harness.lines_of(study, harness.BOTH)) == {"fox_pro", "hgrn2"}
    assert harness.lines_of(study)["fox_pro"].errors["piqa_acc"] == 1.0
    assert set(harness.lines_of(study, SIX)) == {"fox_pro", "hgrn2", "mamba2"}
