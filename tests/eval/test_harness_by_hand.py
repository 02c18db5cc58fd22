"""lm-eval-harness with models and tasks played: what is asked, scored, bound and refused."""

import json
import logging
import math
import os
import sys
from contextlib import suppress
from types import SimpleNamespace
from typing import ClassVar

import datasets
import pytest
import torch

from eval.kinds import KINDS
from eval.lm_eval import measure as lm_eval
from eval.lm_eval import task_files
from eval.lm_eval.spec import check_names
from eval.lm_eval.tasks import TABLE
from eval.shell.context import Context
from eval.shell.sources import Sources, UserData, digest
from eval.shell.spec import Setting
from tests.eval.played import LOADED


class Harness:
    """The harness's model with everything below it played."""

    def __init__(self, monkeypatch, eos=2, **given):
        self.read, self.asked, self.told = [], [], []
        self.codec = SimpleNamespace(bos_id=1, eos_id=eos, encode=lambda text: [ord(sign) for sign in text],
                                     decode=lambda ids: "".join(map(chr, ids)))  # fmt: skip
        spec = KINDS["lm_eval"](**dict(max_length=8, batch_size=2, precision="fp32") | given)
        bar = SimpleNamespace(
            expect=lambda steps: self.told.append(("expect", steps)), advance=lambda steps=1: self.told.append(steps)
        )
        self.lm = lm_eval.HarnessModel("model", self.codec, spec, Context(), bar)
        monkeypatch.setattr(lm_eval, "at_ends", lambda model, rows, compute: self.read.append(rows) or [None] * len(rows))
        monkeypatch.setattr(lm_eval, "score", lambda row, logits: (-float(len(row[0])), len(row[0]) == 3))
        monkeypatch.setattr(lm_eval, "generate", self.generate)
        monkeypatch.setattr(lm_eval, "check_positions", lambda model, *given: self.asked.append(given))

    def generate(self, model, prompts, compute, **how):
        stop = how.pop("stop")
        self.asked.append((prompts, how, [text for text in ("a", "a.", "a\n") if stop([ord(sign) for sign in text])]))
        return [[ord(sign) for sign in "a.b\nc"]]

    def generated(self, prompt, **options):
        return self.lm.generate_until([SimpleNamespace(args=(prompt, options), task_name="t")])[0]


def test_likelihoods_are_asked_for_once_the_longest_first(monkeypatch):
    """A row has max_length tokens and one more, of which the last is not read; equal requests are one."""
    harness = Harness(monkeypatch)
    asked = [(("a", "b"), [1], [2]), (("c", "d"), [1, 2], [3]), (("a", "b"), [1], [2]), (("e", "f"), [*range(9)], [9, 9])]
    found = harness.lm._loglikelihood_tokens(asked)
    assert harness.read == [[([*range(2, 9), 9, 9], 2), ([1, 2, 3], 1)], [([1, 2], 1)]]
    assert found == [(-2.0, False), (-3.0, True), (-2.0, False), (-9.0, False)] and harness.told == [("expect", 3), 1, 1, 1]
    assert harness.lm._loglikelihood_tokens([(("g", "h"), [], [0] * 8)]) == [(-8.0, False)]
    for continuation, told in (([], "no tokens, and so no score: leave it"), ([0] * 9, "9 tokens, over max_length 8: raise")):
        with pytest.raises(ValueError, match=f"a continuation has {told}"):
            harness.lm._loglikelihood_tokens([(("i", str(continuation)), [1], continuation)])
    assert lm_eval._key("a", ("b", "c")) != lm_eval._key("a", ("bc", "")) != lm_eval._key("ab", ("c", ""))
    assert len(lm_eval._key("a", ("\ud800",))) == 24


@pytest.mark.parametrize(("batch_tokens", "sizes"), [(None, [4, 2, 1, 1, 2, 1]), (6, [2, 1, 1, 2, 1])])
def test_likelihoods_are_asked_for_in_halves_where_memory_is_short(monkeypatch, batch_tokens, sizes):
    """Five rows of three tokens, four at a time at most, of which one more than fits is tried first."""
    harness, asked = Harness(monkeypatch, batch_size=4), []
    harness.lm.context = Context(sources=Sources(batch_tokens=batch_tokens))
    harness.lm._compute = SimpleNamespace(on_cuda=False)

    def at_ends(model, rows, compute):
        asked.append(len(rows))
        if asked in ([4], [4, 2]) or (batch_tokens and len(asked) == 1):
            raise torch.OutOfMemoryError
        return [None] * len(rows)

    monkeypatch.setattr(lm_eval, "at_ends", at_ends)
    found = harness.lm._loglikelihood_tokens([((str(key), "b"), [key, 1], [2]) for key in range(5)])
    assert found == [(-3.0, True)] * 5 and asked == sizes and harness.told == [("expect", 5), *[1] * 5]


@pytest.mark.parametrize("eos", [2, None])
def test_answers_are_generated_up_to_a_stop(eos, monkeypatch):
    """A string or several; none that is empty. What is asked alike is asked once, with other options again."""
    harness = Harness(monkeypatch, eos)
    assert harness.lm.eot_token_id == (eos or 1) and harness.lm.prefix_token_id == 1 and harness.lm.max_length == 8
    assert harness.generated("prompt", max_gen_toks=3, until="\n") == "a.b"
    assert harness.asked[-1] == ([[ord(sign) for sign in "rompt"]], dict(max_new_tokens=3, stop_ids={eos or 1}), ["a\n"])
    assert harness.generated("pro", max_gen_toks=3, until=["", "\n", "."]) == "a"
    assert harness.asked[-1][0] == [[1, *map(ord, "pro")]] and harness.asked[-1][2] == ["a.", "a\n"]
    assert harness.generated("pro", max_gen_toks=3, until="bc") == "a.b\nc", "one string, no two signs"
    assert harness.generated("pro", max_gen_toks=3) == "a.b\nc" and harness.asked[-1][2] == []
    count = len(harness.asked)
    assert harness.generated("pro", max_gen_toks=3) == "a.b\nc" and len(harness.asked) == count
    assert harness.told == [("expect", 1), 1] * 4 + [("expect", 0)]
    for name in ("max_new_tokens", "max_tokens"):
        harness.generated("pro", **{name: 4})
        assert harness.asked[-1][1]["max_new_tokens"] == 4, "by the names that the harness knows"
    with pytest.raises(ValueError, match="task t samples; only greedy generation is offered"):
        harness.generated("x", do_sample=True)
    for limit in (8, 9):
        with pytest.raises(ValueError, match=f"task t writes up to {limit} tokens, and max_length 8 leaves none for a prompt"):
            harness.generated("y", max_gen_toks=limit)
    longer = Harness(monkeypatch, max_length=300)
    longer.generated("x" * 99)
    assert longer.asked[-1][1]["max_new_tokens"] == 256 and len(longer.asked[-1][0][0]) == 44


def test_shares_are_in_percent_and_other_metrics_plain():
    """All that a task of one's own has, in the harness's order; errors alike."""
    names = ("acc", "acc_norm", "exact_match", "f1", "word_perplexity", "brier_score")
    scores = {"alias": "x"} | {name: 0.5 for key in names for name in (f"{key},none", f"{key}_stderr,none")}
    results = {
        "results": {"own": scores | {"f1_stderr,none": "N/A"}},
        "n-samples": {"own": {"effective": 3}},
        "versions": {"own": 2},
    }
    rows = list(lm_eval._rows("own", results, of_harness(add_bos=True, batch_size=5)))
    assert [(row["metric"], row["value"]) for row in rows] == [
        *((name, 50.0) for name in names[:4]),
        *((name, 0.5) for name in names[4:]),
    ]
    assert [row["stderr"] for row in rows if row["metric"] != "f1"] == [50.0] * 3 + [0.5] * 2 and math.isnan(rows[3]["stderr"])
    assert {(row["add_bos"], row["batch_size"], row["num_examples"], row["task_version"]) for row in rows} == {(1, 5, 3, "2")}


def test_scores_in_percent_stay():
    results = {"results": {"squadv2": {"f1,none": 40.5, "exact,none": 40.5}},
               "n-samples": {"squadv2": {"effective": 3}}, "versions": {"squadv2": 4}}  # fmt: skip
    assert [row["value"] for row in lm_eval._rows("squadv2", results, of_harness())] == [40.5, 40.5]


@pytest.mark.parametrize(("changes", "scored"), [({"add_bos": True}, True), ({"add_bos": False}, False)])
def test_whole_texts_have_a_bos_of_their_own_where_contexts_have(changes, scored):
    setting = SimpleNamespace(corpus=None, precision="fp32", sources=SimpleNamespace(include_path=None))
    bound = of_harness(include="harness", precision=None, **changes).bound(setting)
    assert (bound.scores_bos, bound.precision, bound.include) == (scored, "fp32", "harness")


@pytest.mark.parametrize(("limit", "examples"), [(None, None), (7, 7), (10**9, None)])
def test_tokens_of_the_harness_are_those_of_the_examples_that_are_read(limit, examples):
    known = TABLE["piqa"]
    count = int(known["examples"]) if examples is None else examples
    for longest, window in ((511, 511), (2048, 512)):
        spec = of_harness(include="harness", limit=limit, max_length=longest)
        assert spec.tokens_read() == [(count * int(known["tokens"]), window)]


def of_harness(**given):
    return KINDS["lm_eval"](**{"tasks": ("piqa",), "include": "harness", "precision": "bf16"} | given)


def test_whole_texts_are_read_within_the_positions(monkeypatch):
    harness = Harness(monkeypatch)
    monkeypatch.setattr(lm_eval, "token_losses", lambda model, inputs, targets: targets.float())
    assert harness.lm._window([1, 5], [2, 3]) == -5.0
    assert harness.asked == [(3, "lower --max-length")]
    monkeypatch.setattr(lm_eval, "token_losses", lambda model, inputs, targets: targets.float().masked_fill(targets == 3, bad))
    bad = math.nan
    with pytest.raises(ValueError, match="the loss of 2 tokens is NaN: look at the training, or evaluate in fp32"):
        harness.lm._window([1, 5], [2, 3])
    assert harness.lm._window([1, 3], [2, 4]) == -6.0, "of a token that is not scored"
    bad = math.inf
    assert harness.lm._window([1, 5], [2, 3]) == -math.inf


def test_the_harness_is_called_with_the_specs_settings(monkeypatch, tmp_path):
    """It is one process; and what is said of BOS and of errors."""
    called = []
    results = {"results": {"own": {"acc,none": 0.5, "acc_stderr,none": 1, "alias": "x"}},
               "n-samples": {"own": {"effective": 3, "original": 9}},
               "versions": {"own": 2}}  # fmt: skip
    monkeypatch.setattr(lm_eval.evaluator, "evaluate", lambda **how: called.append(how) or results)
    monkeypatch.setattr(lm_eval, "load_tasks", lambda names, folder: called.append((names, folder)) or {"tasks": {"own": 1}})
    monkeypatch.setattr(lm_eval, "check_names", lambda *given: called.append(given))
    monkeypatch.delenv("DISABLE_MULTIPROC", raising=False)
    (tmp_path / "own.yaml").write_text("task: own")
    context = Context(sources=Sources(include_path=tmp_path))
    for bos, scored, said in ((True, True, "one BOS before every context; whole texts begin with a second one, scored"),
                              (True, False, "one BOS before every context"),
                              (False, False, "BOS only where there is no context")):  # fmt: skip
        spec = KINDS["lm_eval"](
            tasks=("own",), include=digest(tmp_path), limit=7, add_bos=bos, scores_bos=scored, precision="bf16"
        )
        (row,) = lm_eval.evaluate(LOADED, spec, context).to_dict("records")
        assert (row["value"], row["stderr"], row["num_examples"], row["task_version"]) == (50.0, 100.0, 3, "2")
        assert context.extras == {"bos_policy": said, "bootstrap_iterations": 1000}
        names, loaded, how = called[-3:]
        assert names == loaded == (("own",), tmp_path) and os.environ["DISABLE_MULTIPROC"] == "1"
        lm = how.pop("lm")
        assert (lm.model, lm._compute.precision) == (LOADED.model, "bf16")
        assert how == dict(task_dict={"tasks": {"own": 1}}, limit=7, bootstrap_iters=1000, log_samples=False)
    with pytest.raises(ValueError, match="the spec asks for include 0123"):
        lm_eval.evaluate(LOADED, KINDS["lm_eval"](tasks=("own",), include="0123"), context)


@pytest.mark.parametrize(("text", "name"), [
    ("task: own", "own"), ("group: own", "own"), ("tag: own", "own"), ('task: "own-1.x"', "own-1.x"), ("task:   'own'", "own"),
    ("include: a.yaml\ntask: own", "own"), ("  task: own", None), ("atask: own", None),
])  # fmt: skip
def test_names_of_task_files(text, name, tmp_path):
    (tmp_path / "below").mkdir()
    (tmp_path / "below" / "x.yaml").write_text(text)
    if name is None:
        with pytest.raises(ValueError, match="holds no lm-eval task file"):
            check_names(("own",), tmp_path)
    else:
        check_names((name,), tmp_path)
        with pytest.raises(ValueError, match=r"has no task file for other$"):
            check_names((name, "other"), tmp_path)


def test_tasks_of_the_harness_that_are_none_of_the_papers(monkeypatch):
    """Only then are all of its files read; what is filled in where they are named."""
    monkeypatch.setattr(task_files, "harness_tasks", lambda: SimpleNamespace(task_index={"mmlu": 1, "gsm8k": 2}))
    check_names(("mmlu", "piqa", "gsm8k"), None)
    with pytest.raises(ValueError, match="task odd is not known to lm-eval"):
        check_names(("mmlu", "piqa", "odd"), None)
    setting = Setting(SimpleNamespace(fingerprint="aa"), UserData(), "bf16", "m")
    with pytest.raises(ValueError, match="task odd is not known"):
        KINDS["lm_eval"](tasks=("odd",)).bound(setting)
    assert KINDS["lm_eval"](tasks=("mmlu",)).bound(setting).include == "harness"


def test_what_a_folder_of_tasks_is_bound_to(tmp_path):
    (tmp_path / "own.yaml").write_text("task: own")
    setting = Setting(SimpleNamespace(fingerprint="aa"), UserData(include_path=tmp_path), "bf16", "m")
    assert KINDS["lm_eval"](tasks=("own",)).bound(setting).include == digest(tmp_path)
    assert KINDS["lm_eval"](tasks=("own",), include="0123").bound(setting).include == "0123", "what is bound stays"
    assert KINDS["lm_eval"](include="local").bound(setting).include == "local-v1:aa"
    with pytest.raises(ValueError, match="no stand-in for task own"):
        KINDS["lm_eval"](tasks=("own",), include="local-v1:aa")
    reads = lambda **given: KINDS["lm_eval"](tasks=("piqa", "copa"), **given).tokens_read()  # noqa: E731
    assert reads(include="local-v1:aa", limit=3) == [(3 * 80 + 3 * 40, 512)] and reads(max_length=99)[0][1] == 99


class Manager:
    """The harness's manager of tasks, which notes how it is made and asked."""

    made: ClassVar[list] = []

    def __init__(self, include_path=None, include_defaults=True):
        self.made.append((include_path, include_defaults))

    def load(self, names):
        self.made.append(names)
        if isinstance(self.fails, Exception):
            raise self.fails
        return {"tasks": {"own": SimpleNamespace(OUTPUT_TYPE="generate_until",
                                                 config=SimpleNamespace(generation_kwargs=self.options),
                                                 set_config=lambda **how: self.made.append(how),
                                                 set_fewshot_seed=lambda **how: self.made.append(how))}}  # fmt: skip


def test_tasks_are_loaded_without_examples_from_where_they_are(monkeypatch, tmp_path):
    monkeypatch.setattr(task_files, "TaskManager", Manager)
    task_files.harness_tasks.cache_clear()
    fewshot = [dict(key="num_fewshot", value=0), dict(seed=0)]
    Manager.fails, Manager.made, Manager.options = None, [], None
    for names, folder, made in (
        (("piqa",), None, [(None, False), [task_files.harness_file("piqa")]]),
        (("piqa", "own"), None, [(None, True), ["piqa", "own"]]),
        (("piqa",), tmp_path, [(tmp_path, False), ["piqa"]]),
    ):  # fmt: skip
        Manager.made.clear()
        task_files.load_tasks(names, folder)
        assert Manager.made == made + fewshot
    for sampling in ({"do_sample": True}, {"temperature": 0.5}):
        Manager.options = sampling
        with pytest.raises(ValueError, match=r"^task own samples; only greedy generation is offered: leave it out$"):
            task_files.load_tasks(("own",), tmp_path)  # before anything is computed
    Manager.fails = ValueError("its own words")
    with pytest.raises(ValueError, match=r"^its own words$"):
        task_files.load_tasks(("piqa",), None)
    Manager.fails = RuntimeError("odd\nand more")
    with pytest.raises(ValueError, match=r"the data of piqa are neither in the local cache nor available: odd\nName local"):
        task_files.load_tasks(("piqa",), None)
    with pytest.raises(ValueError, match=rf"^piqa, own in {tmp_path} cannot be loaded \(odd\): check its task file and data$"):
        task_files.load_tasks(("piqa", "own"), tmp_path)
    task_files.harness_tasks.cache_clear()
    asked = []
    monkeypatch.setattr(task_files, "load_tasks", lambda *given: asked.append(given))
    (tmp_path / "a.yaml").write_text("task: piqa")
    KINDS["lm_eval"](tasks=("piqa",), include=digest(tmp_path)).fetch(UserData(include_path=tmp_path))
    KINDS["lm_eval"](tasks=("piqa",)).fetch(UserData(include_path=tmp_path))
    assert asked == [(("piqa",), tmp_path), (("piqa",), None)]


def test_task_files_and_silence(tmp_path, capsys):
    """Only the split that is scored is named; bars, words and warnings of the harness are not shown meanwhile."""
    made = SimpleNamespace(lm_eval=lambda name: [{"x": "ä"}])
    task_files.write_stand_ins(made, ("piqa", "copa"), tmp_path)
    assert (tmp_path / "copa.jsonl").read_text() == '{"x": "\\u00e4"}\n'
    lines = (tmp_path / "piqa.yaml").read_text().splitlines()
    files = {"cache_dir": str(tmp_path / "cache"), "data_files": {"validation": str(tmp_path / "piqa.jsonl")}}
    assert lines == [
        "task: piqa", "dataset_path: json", f"dataset_kwargs: {json.dumps(files)}",
        f"include: {json.dumps(task_files.harness_file('piqa'))}", "dataset_name: null", "training_split: null",
        "validation_split: validation", "test_split: null", "should_decontaminate: false", "metadata:", "  version: local-1",
    ]  # fmt: skip
    logger = logging.getLogger("lm_eval")
    before = logger.level
    datasets.enable_progress_bars()
    with suppress(KeyError), task_files.quiet():
        print("out")
        print("error", file=sys.stderr)
        assert logger.level == logging.ERROR and datasets.are_progress_bars_disabled()
        raise KeyError
    assert logger.level == before and capsys.readouterr() == ("", "")
