"""Scores of the harness in tables and as differences, worked out by hand."""

import math
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest

from analysis import harness
from analysis.harness import ACCURACIES, DOWN, KNOWN, SIX, UP, Line, ahead, column_title, scores, unranked
from analysis.tables import Column
from analysis.verdict import Status


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


def test_columns_are_the_papers_and_then_the_others():
    """Tasks that the paper does not have give normed accuracy where there is one, else accuracy, and perplexities."""
    rows = rows_of("own", "acc", 1.0) + rows_of("own", "acc_norm", 2.0) + rows_of("b", "acc", 3.0) + rows_of("b", "f1", 9.0)
    rows += rows_of("c", "byte_perplexity", 4.0) + rows_of("piqa", "acc", 5.0) + rows_of("wikitext", "word_perplexity", 6.0)
    rows += rows_of("arc_challenge", "acc_norm", 7.0) + rows_of("piqa", "acc_norm", 8.0)
    assert harness._columns(pd.DataFrame(rows)) == {
        ("wikitext", "word_perplexity"): Column("wikitext_ppl", f"Wiki. ppl{DOWN}", 2, "lower"),
        ("piqa", "acc"): Column("piqa_acc", f"PIQA acc{UP}", 2, "higher"),
        ("arc_challenge", "acc_norm"): Column("arc_challenge_acc_norm", f"ARC-c acc-n{UP}", 2, "higher"),
        ("b", "acc"): Column("b_acc", f"b acc{UP}", 2, "higher"),
        ("c", "byte_perplexity"): Column("c_byte_perplexity", f"c byte_perplexity{DOWN}", 2, "lower"),
        ("own", "acc_norm"): Column("own_acc_norm", f"own acc_norm{UP}", 2, "higher"),
    }
    assert list(harness._columns(pd.DataFrame(rows)))[:2] == [("wikitext", "word_perplexity"), ("piqa", "acc")]
    assert [column.better for column in unranked([Column("a", "a", 2, "higher"), Column("b", "b", 1)])] == ["", ""]


@pytest.mark.parametrize(("columns", "average"), [(ACCURACIES, 14.5), (SIX, 12.5), (SIX[1:], None), ([*SIX, "copa_acc"], None)])
def test_averages_are_of_the_papers_sets(columns, average):
    table = scores(pd.DataFrame(every(columns, seeds=2)))["fox_pro"]
    assert table["piqa_acc"].tolist() == [10.0 + list(columns).index("piqa_acc"), 110.0 + list(columns).index("piqa_acc")]
    assert ("avg_acc" in table) is (average is not None)
    if average is not None:
        assert table["avg_acc"].tolist() == [average, average + 100]
    assert "avg_acc" not in scores(pd.DataFrame(every(["wikitext_ppl"])))["fox_pro"]


def test_what_a_seed_lacks_is_left_out():
    rows = pd.DataFrame(every(SIX, seeds=2)[:-1])
    table = scores(rows)["fox_pro"]
    assert set(table) == set(SIX[:-1]) and scores(rows.assign(label="x"), by="model").keys() == {"fox_pro"}


def test_the_table(monkeypatch):
    both = every([*KNOWN], seeds=2) + every(["wikitext_ppl", "piqa_acc"], label="mamba2", first=50.0)
    columns, values, note = harness.content(study_of(both))
    assert [column.key for column in columns] == [*KNOWN, "avg_acc"] and columns[-1] == Column(
        "avg_acc", f"Avg{UP}", 2, "higher"
    )
    assert values["fox_pro"][0].tolist() == [10, 110] and values["fox_pro"][-1].tolist() == [16.5, 116.5]
    assert values["mamba2"] == [50.0, None, None, 51.0, *[None] * 9] and note.endswith(" 9 examples per task.")
    assert "No average" not in note and "Corpus" not in note and "stand-ins" not in note
    few = every(["piqa_acc"]) + rows_of("copa", "acc", 1.0, examples=20)
    columns, _, note = harness.content(study_of(few, "local-v1:aa"))
    assert [column.better for column in columns] == ["", ""] and harness.STOOD_IN in note
    assert note.endswith(" No average: it needs all accuracies of the paper. 9 to 20 examples per task.")


@pytest.mark.parametrize(("include", "dataset", "local"), [
    ("harness", "hub", False), ("local-v1:aa", "hub", True), (None, "local-v1:aa", True), (None, "hub", False),
    (None, "0123", False),
])  # fmt: skip
def test_stand_ins_are_known_by_their_spec(include, dataset, local):
    kinds = {
        "lm_eval": [] if include is None else [{"spec": {"include": include}}],
        "longbench": [{"spec": {"dataset": dataset}}],
    }
    assert harness.made_locally(SimpleNamespace(metas=kinds.get)) is local


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


def test_claims_of_leads():
    rows = every(KNOWN, first=100.0) + every(KNOWN, label="mamba2", first=50.0)
    leads = [("fox_pro", "mamba2", "piqa_acc"), ("fox_pro", "hgrn2", "piqa_acc"), ("fox_pro", "delta_net", "avg_acc")]
    verdict = harness.ahead_on(study_of(rows), leads)
    (comparison,) = verdict.comparisons
    assert comparison.name == "PIQA accuracy, lead of FoX (Pro) over Mamba-2" and comparison.estimate.effect == 50.0
    assert verdict.sentence.startswith("Not measured: HGRN2, DeltaNet. PIQA accuracy, lead of FoX (Pro) over Mamba-2 +50.00.")
    assert harness.ahead_on(study_of(rows, "local-v1:aa"), leads).status is Status.NOT_APPLICABLE
    assert [column_title(column) for column in ("avg_acc", "wikitext_ppl", "copa_acc")] == [
        "average accuracy", "Wiki. perplexity", "COPA accuracy"]  # fmt: skip
