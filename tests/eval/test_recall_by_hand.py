"""RULER, recall and the smallest evaluations, with models played: what they write, ask and keep."""

import json
import math
from types import SimpleNamespace

import pytest
import torch
from torch import nn

from data.recall import RecallTask
from eval.equal_logits import measure as equal_logits
from eval.kinds import KINDS
from eval.recall import measure as recall
from eval.ruler import measure as ruler
from eval.shell.context import Context
from eval.training_curve import measure as training_curve
from tests.eval.played import LOADED, of


def test_examples_of_ruler_are_written_as_tasks_and_scored(opened, monkeypatch, tmp_path):
    """By the metric of the way of asking; only versions of this maker are made."""
    written, seen = [], []
    monkeypatch.setattr(ruler, "haystack_texts", lambda name, context: seen.append(name) or iter(["text"]))
    made = SimpleNamespace(make=lambda *place: place)
    monkeypatch.setattr(ruler, "Examples", lambda spec, codec, texts: made)
    monkeypatch.setattr(
        ruler, "write_task", lambda folder, name, rows, split, lines: written.append((name, rows, split, lines))
    )
    monkeypatch.setattr(ruler, "load_tasks", lambda names, folder: names)
    results = {
        "results": {f"niah_single_1_{n}": {"acc,none": 0.25, "score,none": 0.5, "score_stderr,none": 0.125} for n in (64, 96)}
    }
    monkeypatch.setattr(ruler, "results_of", lambda tasks, loaded, spec, *given: seen.append((tasks, spec)) or results)
    given = dict(
        tasks=("niah_single_1",), lengths=(96, 64), samples=2, text="heldout:aa", version=2, precision="bf16", max_new_tokens=9
    )
    for answers, value in (("generate", 50.0), ("choose", 25.0)):
        written.clear()
        rows = ruler.evaluate(LOADED, KINDS["ruler"](**given, answers=answers), Context())
        assert [(row.task, row.length, row.value, row.num_examples) for row in rows.itertuples()] == [
            ("niah_single_1", 96, value, 2), ("niah_single_1", 64, value, 2)
        ]  # fmt: skip
        assert [each[:3] for each in written] == [
            (f"niah_single_1_{length}", [("niah_single_1", length, 0), ("niah_single_1", length, 1)], "test")
            for length in (96, 64)
        ]  # fmt: skip
        include, *rest = written[0][3]
        assert include.endswith(f'/{answers}.yaml"')
        limits = {"do_sample": False, "max_gen_toks": 9, "until": []}
        assert rest == ([f"generation_kwargs: {json.dumps(limits)}"] if answers == "generate" else [])
        tasks, spec = seen[-1]
        assert (tasks, spec.max_length, spec.precision) == (("niah_single_1_96", "niah_single_1_64"), 96, "bf16")
    for version in (1, 3):
        with pytest.raises(ValueError, match=f"version {version}: this suite makes examples of version 2"):
            ruler.evaluate(LOADED, KINDS["ruler"](**given | {"version": version}), Context())


def test_ruler_reads_text_where_a_task_hides_in_it(monkeypatch):
    asked = []
    monkeypatch.setattr(ruler, "haystack_ids", lambda codec, texts, count: asked.append((list(texts), count)) or [1])
    for tasks, read in (((0,), 0), ((1,), 1), ((0, 2), 1)):
        spec = KINDS["ruler"](tasks=tuple(ruler.TASKS[number] for number in tasks), lengths=(64, 128, 96))
        assert ruler.Examples(spec, None, iter([" a\n\n b ", "c"])).hay == [1] * read
    assert asked == [(["a b ", "c "], 128)] * 2


def test_recall_is_asked_in_batches_and_of_runs_of_the_task(opened, monkeypatch):
    """No logit may be other than finite."""
    task = RecallTask(num_keys=2, num_assignments=1, num_queries=1, num_symbols=4)
    data = SimpleNamespace(recall=task, fingerprint="aa")
    sizes, odd = [], [None]

    def model(input_ids, use_cache):
        sizes.append(len(input_ids))
        logits = torch.nn.functional.one_hot(input_ids.roll(-1, 1), 9).float()
        if odd[0] is not None:
            logits[0, 1, 3] = odd[0]
        return SimpleNamespace(logits=logits)

    loaded = SimpleNamespace(model=model, subject=SimpleNamespace(run=SimpleNamespace(data=data), model="m"))
    monkeypatch.setattr(recall, "BATCH_TOKENS", 20)
    rows = recall.evaluate(loaded, of("recall", num_sequences=5), Context())
    assert sizes == [3, 2] or (sizes == [2, 2, 1] and len(rows) == 5)
    assert opened == [("recall", 5), *sizes] and rows["num_queries"].tolist() == [2] * 5
    for odd[0] in (math.nan, math.inf):
        with pytest.raises(ValueError, match="a logit of m is not finite"):
            recall.evaluate(loaded, of("recall", num_sequences=5), Context())
    for run in (None, SimpleNamespace(data=SimpleNamespace(recall=None, fingerprint="aa")),
                SimpleNamespace(data=SimpleNamespace(recall=task, fingerprint="bb"))):  # fmt: skip
        loaded.subject.run = run
        with pytest.raises(ValueError, match="the evaluation is of recall task aa, which m was not trained on"):
            recall.evaluate(loaded, of("recall", num_sequences=5), Context())


def test_equal_logits_are_of_attention():
    loaded = SimpleNamespace(fresh=lambda: nn.Linear(1, 1), subject=SimpleNamespace(model="mamba"))
    with pytest.raises(ValueError, match="mamba is not an attention model"):
        equal_logits.evaluate(loaded, KINDS["equal_logits"](), Context())


def test_a_training_curve_is_of_a_finished_run_of_ours():
    row = dict.fromkeys(KINDS["training_curve"].SCHEMA.columns, 1) | {"mfu": None, "mfu_dense": None, "pruned_share": None}
    folder = SimpleNamespace(finished=True, path="p", read_metrics=lambda: [row | {"wall_s": 3}])
    loaded = SimpleNamespace(subject=SimpleNamespace(run_folder=folder))
    found = training_curve.evaluate(loaded, KINDS["training_curve"](), None)
    assert list(found) == list(row) and all(found[name].dtype == float for name in ("mfu", "mfu_dense", "pruned_share"))
    folder.read_metrics = list
    with pytest.raises(ValueError, match="the run was trained elsewhere"):
        training_curve.evaluate(loaded, KINDS["training_curve"](), None)
    folder.finished = False
    with pytest.raises(ValueError, match="the run is not finished"):
        training_curve.evaluate(loaded, KINDS["training_curve"](), None)
