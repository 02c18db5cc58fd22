"""Specs of evaluations: what they are bound to and open, and what a plan refuses before a run is trained."""

from dataclasses import replace

import pytest

from data.corpus import Counts
from data.spec import DataSpec
from eval.kinds import KINDS
from eval.needle.wording import DEFAULT_WORDING
from eval.runner.sources import UserData, digest
from eval.runner.spec import Setting
from models.forgetting_transformer.spec import ForgettingTransformerSpec
from models.mamba2.spec import Mamba2Spec
from training.spec import RunSpec, TrainSpec

FOX = ForgettingTransformerSpec(vocab_size=64, hidden_size=64, num_layers=2, num_heads=2)
DATA = DataSpec(source="text", tokenizer="bytes", vocab_size=64, bos_id=63, document_len=256, fingerprint="aa")
TRAIN = TrainSpec(seq_len=64, batch_tokens=256, train_tokens=1280, warmup_tokens=128, peak_lr=1e-3)
RUN = RunSpec(name="mine", scale="tiny", model=FOX, data=DATA, train=TRAIN)
PLAIN = replace(RUN, model=replace(FOX, forget_gate="none"))
MAMBA = replace(RUN, model=Mamba2Spec(vocab_size=64, hidden_size=128, num_layers=2, head_dim=32))
COUNTS = Counts(documents=9, train_documents=5, heldout_documents=4, train_rows=9, heldout_rows=3)
GATED = {"pruning": dict(context_len=128, num_documents=3), "attention_speed": dict(seq_len=128),
         "gate_maps": dict(seq_len=256, distance=8, document=2)}  # fmt: skip
WINDOWS = dict(contexts=(8,), places=(256, 64), targets=8, num_documents=3)


@pytest.mark.parametrize(("kind", "given", "run", "refused"), [
    ("per_token_loss", dict(context_len=256, num_documents=3), RUN, None),
    ("per_token_loss", dict(context_len=256, num_documents=4), RUN, "about 1.4 times as much text"),
    ("per_token_loss", dict(context_len=257, num_documents=3), RUN, "257 tokens exceed"),
    ("context_use", WINDOWS, RUN, None), ("context_use", WINDOWS | dict(places=(257, 64)), RUN, "257 tokens exceed"),
    ("attention_speed", dict(seq_len=256, batch_size=3), RUN, None),
    ("attention_speed", dict(seq_len=256, batch_size=4), RUN, "4 documents exceed"),
    ("gate_maps", GATED["gate_maps"] | dict(document=3), RUN, "4 documents exceed"),
    ("gate_maps", GATED["gate_maps"] | dict(layers=(2,)), RUN, "layer 2"),
    ("gate_maps", GATED["gate_maps"] | dict(heads=(1, 5, 3)), RUN, "head 3"),
    *((kind, given, run, None if run is RUN else "no forget gates") for kind, given in GATED.items()
      for run in (RUN, PLAIN, MAMBA)),
    ("equal_logits", {}, PLAIN, None), ("equal_logits", {}, MAMBA, "not an attention model"),
    ("recall", {}, RUN, "trained on text"),
    ("training_curve", {}, RUN, None), ("training_curve", {}, replace(RUN, weights="abc"), "trained elsewhere"),
    ("lm_eval", dict(include="local-v1:aa"), RUN, None), ("longbench", dict(dataset="local-v1:aa"), RUN, None),
])  # fmt: skip
def test_runs_that_an_evaluation_refuses(kind, given, run, refused):
    spec = KINDS[kind](**given)
    if refused is None:
        spec.check(run, COUNTS)
        spec.check(run, None)
    else:
        with pytest.raises(ValueError, match=refused):
            spec.check(run, COUNTS)
    if {"include", "dataset"} & set(given):
        with pytest.raises(ValueError, match="two held-out documents"):
            spec.check(run, replace(COUNTS, heldout_rows=1))


@pytest.mark.parametrize(("kind", "given"), [
    ("lm_eval", dict(tasks=())), ("lm_eval", dict(tasks=("own",), include="local")), ("lm_eval", dict(tasks=("copa", "copa"))),
    ("longbench", dict(tasks=())), ("longbench", dict(tasks=("trec", "own"))), ("longbench", dict(tasks=("trec", "trec"))),
    ("needle", dict(lengths=(400, 400))), ("needle_choice", dict(depths=(50, 50.0))), ("needle", dict(lengths=())),
    ("needle", dict(lengths=(200,))), ("pruning", dict(context_len=40, log_tolerance=0.0)),
    ("pruning", dict(context_len=32, decoded_tokens=32)), ("gate_maps", dict(seq_len=64, distance=64)),
    ("throughput", dict(mode="generate", beside=FOX)), ("throughput", dict(mode="generate", new_tokens=9)),
    ("context_use", WINDOWS | dict(contexts=(8, 8))),
])  # fmt: skip
def test_specs_that_cannot_be_measured(kind, given):
    with pytest.raises(ValueError):  # noqa: PT011
        KINDS[kind](**given)


def test_what_a_spec_is_bound_to_and_opens(tmp_path):
    """The corpus, the precision of the run where none is asked for, the machine, and the user's own files by their content."""
    (tmp_path / "texts").mkdir()
    (tmp_path / "texts" / "a.txt").write_text("text")
    own = tmp_path / "own.toml"
    own.write_text(DEFAULT_WORDING.read_text().replace("San Francisco", "Lisbon"))
    text = digest(tmp_path / "texts")

    def bound(kind: str, sources: UserData | None = None, **given: object):
        return KINDS[kind](**given).bound(Setting(DATA, sources or UserData(), "bf16", "some GPU"))

    folder = UserData(haystack=tmp_path / "texts", prompts=own)
    for spec, values, reads in (
        (bound("per_token_loss", context_len=8, num_documents=1), dict(corpus="aa", precision="bf16"), ("corpus",)),
        (bound("per_token_loss", context_len=8, num_documents=1, precision="fp32"), dict(precision="fp32"), ("corpus",)),
        (bound("equal_logits", precision="bf16"), dict(precision="fp32"), ()),
        (bound("recall"), dict(seq_len=256, corpus="aa"), ()),
        (bound("attention_speed", seq_len=9), dict(machine="some GPU"), ("corpus",)),
        (bound("throughput", beside=replace(FOX, vocab_size=9)), dict(machine="some GPU", beside=FOX, step="graph"), ()),
        (bound("throughput", activation_checkpointing=True), dict(step="stepper"), ()),
        (bound("lm_eval"), dict(include="harness", scores_bos=True), ("hub",)),
        (bound("lm_eval", add_bos=False, include="local"), dict(include="local-v1:aa", scores_bos=False), ("corpus",)),
        (bound("lm_eval", include="0123"), dict(include="0123"), ("include_path", "hub")),
        (bound("longbench"), dict(dataset="hub"), ("hub",)),
        (bound("longbench", dataset="local"), dict(dataset="local-v1:aa"), ("corpus",)),
        (bound("longbench", dataset="0123"), dict(dataset="0123"), ("longbench",)),
        (bound("needle"), dict(text="heldout:aa", wording=digest(DEFAULT_WORDING)), ("corpus", "prompts")),
        (bound("needle", folder), dict(text=text, wording=digest(own)), ("haystack", "prompts")),
        (bound("needle_recall", folder), dict(wording=digest(KINDS["needle_recall"].SENTENCES)), None),
    ):  # fmt: skip
        assert {name: getattr(spec, name) for name in values} == values, spec
        assert reads is None or tuple(spec.reads()) == reads, spec
        again = spec.bound(Setting(DATA, UserData(), "fp32", "some GPU"))
        assert all(getattr(again, name) == value for name, value in values.items() if name != "wording"), "it stays"
    for kind, field in (("lm_eval", "include"), ("longbench", "dataset")):
        for typed in ("loacl", "Hub", "", "0123x"):
            with pytest.raises(ValueError, match=f"--{field}"):
                bound(kind, **{field: typed})
