"""Summaries of every evaluation in the terminal, what it opens, and which runs it refuses, worked out by hand."""

import dataclasses
import math
import re
from pathlib import Path
from types import SimpleNamespace

import pandas as pd
import pytest

from data.corpus import Counts
from data.spec import DataSpec
from eval.kinds import KINDS
from eval.last_words import measure as last_words
from eval.parameters.spec import INPUT_EMBEDDING, counted
from eval.shell.heldout import open_heldout
from eval.shell.sources import UserData
from eval.shell.spec import Setting
from models.forgetting_transformer.spec import ForgettingTransformerSpec
from models.mamba2.spec import Mamba2Spec
from training.spec import RunSpec, TrainSpec

E = math.e
GRID = dict(lengths=(300, 400), depths=(0.0, 50.0), samples_per_cell=3)
GIVEN = {
    "per_token_loss": dict(context_len=128, num_documents=2), "pruning": dict(context_len=128), "ruler": dict(lengths=(512,)),
    "attention_speed": dict(seq_len=128), "context_use": dict(contexts=(32,), places=(128,), targets=16, num_documents=2),
    "last_words": dict(num_documents=2, near=7), "cache_eviction": dict(context_len=128), "needle": GRID,
    "decoding": dict(lengths=(128,)),
}  # fmt: skip
SAID = {
    "per_token_loss": (
        {"document": [-1] * 200 + [0, 0], "position": [*range(200, 0, -1), 100, 200],
         "loss": [math.log(8.0)] * 72 + [math.log(2.0)] * 128 + [9.0, 9.0]},
        ["  perplexity of the first 128 tokens: 2.000 (1 is perfect)",
         f"  perplexity of the first 200 tokens: {2 ** (128 / 200) * 8 ** (72 / 200):.3f} (1 is perfect)"],
    ),
    "needle": (
        {"length": [300, 300, 400, 400, 500, 500], "score": [1.0, 1.0, 10.0, 10.0, 2.0, 5.0]},
        ["  length 300: mean score 1.00 (1 to 10), the floor", "  length 400: mean score 10.00 (1 to 10), the ceiling",
         "  length 500: mean score 3.50 (1 to 10)"],
    ),
    "needle_recall": (
        {"length": [300, 300, 400, 400], "recall_nats": [1.0, 2.0, -1.0, 0.5], "logp_without": [-4.0, -5.0, -6.0, -8.0]},
        ["  length 300: mean recall 1.50 nats (0 is none, 4.50 is perfect)",
         "  length 400: mean recall -0.25 nats (0 is none, 7.00 is perfect)"],
    ),
    "needle_choice": (
        {"length": [300, 300, 400, 400], "right": [100.0, 0.0, 100.0, 100.0]},
        ["  length 300: 50% right (guessing: 10%)", "  length 400: 100% right (guessing: 10%)"],
    ),
    "recall": (
        {"num_queries": [600, 600], "num_correct": [300, 150], "num_stale": [60, 0]},
        ["  0.3750 of 1,200 queries answered correctly (1 is perfect), 0.0500 with an earlier value of the key"],
    ),
    "equal_logits": (
        {"head": [0] * 6 + [1] * 6, "distance": [*range(6)] * 2, "weight": [0.5, 0.25, 0.125, 0.1, 0.02, 9.0] + [0.25] * 6},
        [f"  weight at distance {distance}, mean over heads: {weight:.4f} of 1"
         for distance, weight in enumerate((0.375, 0.25, 0.1875, 0.175, 0.135))],
    ),
    "longbench": (
        {"task": ["trec", "hotpotqa", "hotpotqa"], "score": [50.0, 10.0, 20.0]},
        ["  trec: 50.00 of 100", "  hotpotqa: 15.00 of 100", "  mean of tasks: 32.50 of 100"],
    ),
    "lm_eval": (
        {"task": [*"abbc"], "metric": ["word_perplexity", "acc", "exact_match,strict", "bits_per_byte"],
         "value": [12.345, 50.0, 60.0, 1.5], "stderr": [math.nan, 1.25, 2.0, math.nan]},
        ["  a word_perplexity: 12.35 +- nan (1 is perfect)", "  b acc: 50.00 +- 1.25 of 100",
         "  b exact_match,strict: 60.00 +- 2.00 of 100", "  c bits_per_byte: 1.50 +- nan"],
    ),
    "gate_maps": (
        {"quantity": ["half_life_tokens", "median_F", "pruned_share"] * 3 + ["F"], "row": [-1] * 9 + [0],
         "value": [2.0, 0.25, 0.5, 4.0, 0.5, 0.75, 90.0, 0.75, 1.0, 0.1]},
        ["  half_life_tokens: median over heads 4 tokens", "  median_F: median over heads 0.5 (0 to 1)",
         "  pruned_share: median over heads 0.75 (0 to 1)"],
    ),
    "throughput": (
        {"mode": ["train"], "seq_len": [128], "tokens_per_s": [12345.6], "tokens_per_s_low": [9999.4], "mfu": [0.4321],
         "tokens_per_s_high": [20000.0], "peak_memory_gib": [1.234]},
        ["  train at 128: 12,346 tokens/s (9,999 to 20,000), MFU 0.432 of 1, 1.23 GiB"],
    ),
    "training_curve": (
        {"step": [1, 2], "tokens": [512, 1024], "loss": [5.0, 4.25]},
        ["  2 steps, 1,024 tokens; last loss 4.2500 nats per token (0 is perfect)"],
    ),
    "parameters": (
        {"name": [INPUT_EMBEDDING, "layers.0.attn.q_proj.weight", "lm_head.weight"], "count": [5000, 1000, 234]},
        ["  6,234 parameters, 1,234 without the input embedding"],
    ),
    "pruning": (
        {"quantity": ["tiles_pruned", "tiles_pruned", "keys_read", "keys_read", "loss", "loss_pruned", "dropped", "dropped"],
         "value": [0.25, 0.5, 30.0, 31.0, 3.0, 3.000001, 1e-6, 4.5e-6]},
        ["  tiles pruned: 0.375 of 1; keys read per decoded token: 30.5",
         "  loss 3.000000, pruned 3.000001 nats per token; a query loses at most 4.5e-06 of its probability"],
    ),
    "attention_speed": (
        {"quantity": ["attention", "step", "step", "attention"], "pruned": [0, 0, 1, 1], "milliseconds": [4.0, 8.0, 6.0, 3.0]},
        ["  attention: 4.00 ms, pruned 3.00 ms", "  step: 8.00 ms, pruned 6.00 ms"],
    ),
    "ruler": (
        {"task": ["niah_single_1"], "length": [512], "value": [25.04], "stderr": [1.25]},
        ["  niah_single_1 at 512 tokens: 25.0 +- 1.2 of 100"],
    ),
    "context_use": (
        {"place": [64, 128, 128, 128, 128], "context": [32, 32, 32, 64, 64], "loss": [9.0, 3.0, 4.0, 2.5, 3.5]},
        ["  given 32 tokens: loss 3.5000 nats per token (0 is perfect)",
         "  given 64 tokens: loss 3.0000 nats per token (0 is perfect)"],
    ),
    "last_words": (
        {"right": [100.0, 0.0], "logp": [-math.log(2), -math.log(8)], "right_near": [0.0, 0.0],
         "logp_near": [-math.log(3), -math.log(27)]},
        ["  given the passage: 50.0% right, perplexity 4.00 (1 is perfect)",
         "  given its last 7 words: 0.0% right, perplexity 9.00 (1 is perfect)"],
    ),
    "cache_eviction": (
        {"quantity": ["keys", "keys", "bytes", "bytes_of_all", "loss", "loss_evicted", "dropped", "dropped", "keys", "bytes"],
         "position": [128, 128, 128, 128, -1, -1, -1, -1, 64, 64],
         "value": [32.0, 64.0, 3 * 2**19, 2**22, 3.0, 3.25, 1e-6, 2e-6, 9.0, 9.0]},
        ["  after 128 tokens a share of 0.375 of the keys remains, 1.50 MiB; a Transformer keeps 4.00 MiB",
         "  loss 3.000000, evicted 3.250000 nats per token; a query loses at most 2.0e-06 of its probability"],
    ),
    "decoding": (
        {"cache": ["whole", "pruned"], "seq_len": [40, 128], "batch_size": [1, 16], "tokens_per_s": [1234.4, 2.0],
         "tokens_per_s_low": [5.0, 1.0], "tokens_per_s_high": [6000.0, 3.0], "cache_bytes": [3 * 2**20, 2**19]},
        ["  whole, 40 tokens x 1: 1,234 tokens/s (5 to 6,000), cache 3.00 MiB",
         "  pruned, 128 tokens x 16: 2 tokens/s (1 to 3), cache 0.50 MiB"],
    ),
}  # fmt: skip


@pytest.mark.parametrize("kind", KINDS)
def test_every_summary(kind):
    assert kind in SAID, f"give SAID of this file rows of {kind} and its summary of them"
    columns, lines = SAID[kind]
    assert KINDS[kind](**GIVEN.get(kind, {})).summary(pd.DataFrame(columns)) == lines


def test_the_papers_count_leaves_the_input_embedding_out():
    assert counted(pd.DataFrame(SAID["parameters"][0])) == 1234


FOX = ForgettingTransformerSpec(vocab_size=64, hidden_size=64, num_layers=2, num_heads=2)
DATA = DataSpec(source="text", tokenizer="bytes", vocab_size=64, bos_id=63, document_len=256, fingerprint="aa")
TRAIN = TrainSpec(seq_len=64, batch_tokens=256, train_tokens=1280, warmup_tokens=128, peak_lr=1e-3)
RUN = RunSpec(name="mine", scale="tiny", model=FOX, data=DATA, train=TRAIN)
PLAIN = dataclasses.replace(RUN, model=dataclasses.replace(FOX, forget_gate="none"))
MAMBA = dataclasses.replace(RUN, model=Mamba2Spec(vocab_size=64, hidden_size=128, num_layers=2, head_dim=32))
ELSEWHERE = dataclasses.replace(RUN, weights="abc")
COUNTS = Counts(documents=9, train_documents=5, heldout_documents=4, train_rows=9, heldout_rows=3)
REFUSED = [
    ("per_token_loss", dict(context_len=256, num_documents=3), RUN, None),
    ("per_token_loss", dict(context_len=256, num_documents=4), RUN,
     "4 documents exceed the 3 held-out documents of the corpus (of 256 tokens): give about 1.4 times as much text (--data, of "
     "which a share is held out), or hold out files with as many (--heldout PATH)"),
    ("per_token_loss", dict(context_len=257, num_documents=3), RUN, "257 tokens exceed the 256 tokens"),
    ("context_use", dict(contexts=(8,), places=(256, 64), targets=8, num_documents=3), RUN, None),
    ("context_use", dict(contexts=(8,), places=(257, 64), targets=8, num_documents=3), RUN, "257 tokens exceed"),
    ("last_words", dict(num_documents=3, words=256), RUN, None),
    ("last_words", dict(num_documents=3, words=257), RUN, "257 tokens exceed"),
    ("attention_speed", dict(seq_len=256, batch_size=3), RUN, None),
    ("attention_speed", dict(seq_len=256, batch_size=4), RUN, "4 documents exceed"),
    ("cache_eviction", dict(context_len=256, num_documents=3), RUN, None),
    ("cache_eviction", dict(context_len=256, num_documents=4), RUN, "4 documents exceed"),
    ("gate_maps", dict(seq_len=256, distance=8, document=2), RUN, None),
    ("gate_maps", dict(seq_len=256, distance=8, document=3), RUN, "4 documents exceed"),
    ("gate_maps", dict(seq_len=256, distance=8, layers=(2,)), RUN, "layer 2 does not exist: the model has layers 0 to 1"),
    ("gate_maps", dict(seq_len=256, distance=8, heads=(1, 5, 3)), RUN, "head 3 does not exist: the model has heads 0 to 1"),
    *((kind, given, run, "mine has no forget gates")
      for kind, given in (("pruning", dict(context_len=128, num_documents=3)), ("attention_speed", dict(seq_len=128)),
                          ("cache_eviction", dict(context_len=128, num_documents=3)),
                          ("gate_maps", dict(seq_len=128, distance=8)))
      for run in (PLAIN, MAMBA)),
    ("pruning", dict(context_len=128, num_documents=3), RUN, None),
    ("equal_logits", {}, PLAIN, None), ("equal_logits", {}, MAMBA, "mine is not an attention model"),
    ("recall", {}, RUN, "mine was trained on text"),
    ("training_curve", {}, RUN, None), ("training_curve", {}, ELSEWHERE, "was trained elsewhere"),
    ("lm_eval", dict(include="local-v1:aa"), RUN, None), ("longbench", dict(dataset="local-v1:aa"), RUN, None),
]  # fmt: skip


@pytest.mark.parametrize(("kind", "given", "run", "why"), REFUSED)
def test_runs_that_an_evaluation_refuses(kind, given, run, why):
    spec = KINDS[kind](**given)
    if why is None:
        spec.check(run, COUNTS)
        spec.check(run, None)
    else:
        with pytest.raises(ValueError, match=re.escape(why)):
            spec.check(run, COUNTS)


@pytest.mark.parametrize(("kind", "given"), [
    ("lm_eval", dict(tasks=("copa", "copa"))), ("longbench", dict(tasks=("qasper", "trec", "qasper"))),
    ("ruler", dict(lengths=(8, 8))), ("ruler", dict(lengths=(8,), tasks=("niah_single_1",) * 2)),
    ("needle", dict(lengths=(400, 400))), ("needle_choice", dict(depths=(50, 50.0))),
    ("context_use", dict(contexts=(9, 9), places=(999,), num_documents=1)),
    ("context_use", dict(contexts=(9,), places=(999, 999), num_documents=1)),
    ("decoding", dict(lengths=(99, 99), documents=1)), ("decoding", dict(lengths=(99,), batch_sizes=(1, 1), documents=1)),
])  # fmt: skip
def test_what_gives_rows_is_named_once(kind, given):
    """Else all would be measured, and its rows refused since they appear twice."""
    with pytest.raises(ValueError, match="is given twice: name each once"):
        KINDS[kind](**given)


@pytest.mark.parametrize(("kind", "given", "why"), [
    ("lm_eval", dict(tasks=()), "name at least one lm-eval task"),
    ("lm_eval", dict(tasks=("own",), include="local"), "task own;"),
    ("longbench", dict(tasks=()), "name at least one LongBench task"), ("longbench", dict(tasks=("trec", "own")), "task own;"),
    ("ruler", dict(tasks=(), lengths=(9,)), "name at least one task"), ("ruler", dict(lengths=()), "and one length"),
    ("context_use", dict(contexts=(), places=(9,), num_documents=1), "name at least one context"),
    ("context_use", dict(contexts=(9,), places=(), num_documents=1), "and one place"),
    ("needle", dict(mode="easy", num_keys=2), "applies to mode 'passkey' only"),
    ("needle", dict(mode="passkey", judge="j"), "is scored by match"),
    ("cache_eviction", dict(context_len=8, depths=9), "must be at most context_len 8"),
    ("cache_eviction", dict(context_len=16, log_tolerance=0.0), "below 0"),
    ("pruning", dict(context_len=40, log_tolerance=15.0), "log_tolerance 15.0: give the log of a share, below 0"),
    ("attention_speed", dict(seq_len=8, log_tolerance=0.0), "below 0"),
    ("gate_maps", dict(seq_len=8, layers=1, heads=1, log_tolerance=0.0), "below 0"),
    ("throughput", dict(mode="generate", beside=FOX), "use mode 'train'"),
    ("last_words", dict(num_documents=1, words=20, near=20), "near 20: a passage of 20 words has nothing before its last 20"),
    ("needle", dict(mode="passkey", num_keys=27), "num_keys 27 exceeds the 26 names of keys"),
])  # fmt: skip
def test_specs_that_ask_for_nothing_or_for_what_is_not_there(kind, given, why):
    with pytest.raises(ValueError, match=why):
        KINDS[kind](**given)
    for fine, more in (("needle", dict(mode="passkey", num_keys=2)), ("needle", dict(judge="j")),
                       ("throughput", dict(beside=FOX)),
                       ("cache_eviction", dict(context_len=16, depths=16)), ("lm_eval", dict(tasks=("own",)))):  # fmt: skip
        KINDS[fine](**more)


def test_a_corpus_that_is_too_small_is_refused_where_it_is_opened():
    """The corpus of a command may be another than that of the plan; then its token ids are looked at."""
    small, looked = SimpleNamespace(heldout=SimpleNamespace(shape=(3, 256))), []
    context = SimpleNamespace(heldout={"aa": small}.get)
    loaded = SimpleNamespace(check_token_ids=looked.append)
    fits = KINDS["per_token_loss"](context_len=256, num_documents=3, corpus="aa")
    assert open_heldout(fits, loaded, context) is small and looked == [small]
    for given in (dict(context_len=256, num_documents=4), dict(context_len=257, num_documents=3)):
        with pytest.raises(ValueError, match=r"exceed .*: ask for fewer(, or name a corpus that holds out more)?$"):
            open_heldout(dataclasses.replace(fits, **given), loaded, context)
    for given in (dict(num_documents=4, words=256), dict(num_documents=3, words=257)):
        with pytest.raises(ValueError, match="exceed"):
            last_words.evaluate(loaded, KINDS["last_words"](**given, corpus="aa"), context)


@pytest.mark.parametrize(("kind", "given"), [("lm_eval", "include"), ("longbench", "dataset")])
def test_stand_ins_need_two_documents(kind, given):
    one = dataclasses.replace(COUNTS, heldout_rows=1)
    KINDS[kind]().check(RUN, one)  # none of the held-out text
    with pytest.raises(ValueError, match="stand-in"):
        KINDS[kind](**{given: "local-v1:aa"}).check(RUN, one)


def test_what_a_spec_opens(tmp_path):
    """By the content that it names: a corpus, a folder of the user's, or the hub."""
    opened = {
        "lm_eval": [({}, ("hub",)), ({"include": "local-v1:aa"}, ("corpus",)), ({"include": "0123"}, ("include_path", "hub"))],
        "longbench": [({}, ("hub",)), ({"dataset": "local-v1:aa"}, ("corpus",)), ({"dataset": "0123"}, ("longbench",))],
        "ruler": [({"lengths": (9,), "text": "heldout:aa"}, ("corpus",)),
                  ({"lengths": (9,), "text": "0123"}, ("haystack", "haystack_unsorted"))],
        "needle": [({"text": "heldout:aa"}, ("corpus", "prompts")), ({"text": "heldout:aa", "mode": "passkey"}, ("corpus",)),
                   ({"text": "0123", "judge": "j"}, ("haystack", "haystack_unsorted", "prompts", "judge_url"))],
        "per_token_loss": [(GIVEN["per_token_loss"], ("corpus",))], "throughput": [({}, ())], "parameters": [({}, ())],
    }  # fmt: skip
    for kind, cases in opened.items():
        for given, fields in cases:
            assert tuple(KINDS[kind](**given).reads()) == fields, (kind, given)


def test_what_is_filled_in(tmp_path):
    """The corpus, the precision of the run where none is asked for, the machine."""
    setting = Setting(DATA, UserData(), "bf16", "some GPU")
    for kind in ("per_token_loss", "pruning", "attention_speed", "context_use", "last_words", "cache_eviction", "recall"):
        spec = KINDS[kind](**GIVEN.get(kind, {})).bound(setting)
        assert (spec.corpus, spec.precision) == ("aa", "bf16"), kind
        asked = KINDS[kind](**GIVEN.get(kind, {}), precision="fp32").bound(setting)
        assert asked.precision == "fp32", kind
    for kind, field, value in (("lm_eval", "include", "harness"), ("longbench", "dataset", "hub")):
        spec = KINDS[kind]().bound(setting)
        assert (getattr(spec, field), spec.precision) == (value, "bf16")
        assert KINDS[kind](precision="fp32").bound(setting).precision == "fp32"
        assert getattr(KINDS[kind](**{field: "local"}).bound(setting), field).endswith(":aa")
    assert [KINDS["lm_eval"](add_bos=bos).bound(setting).scores_bos for bos in (True, False)] == [True, False]
    assert KINDS["equal_logits"](precision="bf16").bound(setting).precision == "fp32"
    assert KINDS["recall"]().bound(setting).seq_len == 256
    assert KINDS["attention_speed"](seq_len=9).bound(setting).machine == "some GPU"
    timed = KINDS["throughput"](beside=dataclasses.replace(FOX, vocab_size=9)).bound(setting)
    assert (timed.machine, timed.precision, timed.step, timed.beside) == ("some GPU", "bf16", "stepper", FOX)
    assert KINDS["throughput"](mode="generate", precision="fp32").bound(setting) == dataclasses.replace(
        KINDS["throughput"](mode="generate"), machine="some GPU", precision="fp32", step="token")  # fmt: skip
    for unsorted in (False, True):
        (tmp_path / "a.txt").write_text("text")
        own = dataclasses.replace(setting, sources=UserData(haystack=tmp_path, haystack_unsorted=unsorted))
        found = KINDS["ruler"](lengths=(9,)).bound(own).text
        assert len(found.removesuffix("-unsorted")) == 12 and found.endswith("-unsorted") is unsorted
        assert KINDS["ruler"](lengths=(9,)).bound(setting).text == "heldout:aa"
        assert KINDS["ruler"](lengths=(9,), text="0123").bound(own).text == "0123"


def test_costs_of_timing():
    """A training step is three passes, of both models where there are two; generation reads the prompt, then the rest."""
    flops, small = FOX.flops_per_token(128), dataclasses.replace(FOX, num_layers=1)
    given = dict(seq_len=128, batch_size=3, warmup=1, repeats=4)
    assert KINDS["throughput"](**given, beside=small).flops(FOX) == 3 * 5 * 384 * (flops + small.flops_per_token(128))
    assert KINDS["throughput"](**given, mode="generate", new_tokens=10).flops(FOX) == 5 * (384 + 30) * flops


def test_files_of_longbench(tmp_path):
    from eval.longbench.spec import hub_name, task_file

    assert [hub_name(task) for task in ("repobench_p", "trec")] == ["repobench-p", "trec"]
    (tmp_path / "repobench-p.jsonl").write_text("{}")
    assert task_file(tmp_path, "repobench_p") == Path(tmp_path, "repobench-p.jsonl")
    with pytest.raises(ValueError, match=r"has no trec\.jsonl"):
        task_file(tmp_path, "trec")
