"""What all kinds of evaluation have in common: the interface, identities, specs as JSON, costs."""

import hashlib
from dataclasses import fields, replace
from pathlib import Path
from typing import get_args

import pytest

import eval as room
from eval import (
    attention_speed,
    equal_logits,
    gate_maps,
    lm_eval,
    longbench,
    needle,
    needle_recall,
    parameters,
    per_token_loss,
    pruning,
    recall,
    ruler,
    throughput,
    training_curve,
)
from eval.job import Job
from eval.kinds import EVAL_SPEC, KINDS, eval_id, kind_of, unread
from eval.shell.kind import Kind, Needs, unbound
from eval.shell.sources import Sources
from training.command_line import arguments_of, parse

SMALLEST = (
    per_token_loss.Spec(context_len=128, num_documents=2),
    needle.Spec(),
    needle_recall.Spec(),
    recall.Spec(),
    equal_logits.Spec(),
    longbench.Spec(dataset="local"),
    lm_eval.Spec(include="local"),
    gate_maps.Spec(),
    throughput.Spec(),
    training_curve.Spec(),
    parameters.Spec(),
    pruning.Spec(context_len=128),
    attention_speed.Spec(seq_len=128),
    ruler.Spec(lengths=(512,)),
)


def test_every_kind_is_found_by_name_and_offers_the_interface():
    """`ls eval` shows an evaluation a name, besides the shell and the commands."""
    folder = Path(room.__path__[0])
    names = {path.stem for path in folder.iterdir() if path.suffix in ("", ".py") and not path.name.startswith("__")}
    assert names - {"shell", "kinds", "job"} == set(KINDS)
    for name, kind in KINDS.items():
        for member in (*Kind.__annotations__, *(m for m in vars(Kind) if not m.startswith("_"))):
            assert hasattr(kind, member) or member == "fetch", (name, member)
        assert (folder / name / "measure.py").is_file() or callable(kind.evaluate)
        assert kind.NEEDS in get_args(Needs)
        assert kind.Spec.kind == name
        assert set(kind.SCHEMA.key) <= set(kind.SCHEMA.columns)
    assert [kind_of(spec).Spec for spec in SMALLEST] == [kind.Spec for kind in KINDS.values()]


@pytest.mark.parametrize("spec", SMALLEST, ids=lambda spec: spec.kind)
def test_an_identity_holds_what_is_read(spec, bind, corpus):
    whole = bind(spec)
    assert EVAL_SPEC.validate_json(EVAL_SPEC.dump_json(whole)) == whole
    assert unbound(whole) == []
    missing = unbound(spec)
    if missing:
        with pytest.raises(AssertionError, match=missing[0]):
            eval_id(spec)
    held = [field.name for field in fields(whole) if field.name in ("corpus", "text", "dataset", "include")]
    for name in held:
        assert corpus.spec.fingerprint in getattr(whole, name)
    ids = {eval_id(whole)}
    for name in (*held, *(n for n in ("wording", "machine", "precision") if n in missing)):
        changed = "bf16" if name == "precision" else "0123"
        ids.add(eval_id(replace(whole, **{name: changed})))
    assert len(ids) == 1 + len(held) + len({"wording", "machine", "precision"} & set(missing))


def test_fields_at_their_default_do_not_count():
    """A switch that is added later must not rename what was computed."""
    timing = throughput.Spec(machine="m", precision="fp32", seq_len=64)
    text = '{"kind": "throughput", "machine": "m", "precision": "fp32", "seq_len": 64}'
    assert eval_id(timing) == f"throughput-{hashlib.sha256(text.encode()).hexdigest()[:8]}"
    assert eval_id(timing) != eval_id(replace(timing, warmup=3))


@pytest.mark.parametrize(
    "spec",
    [
        needle.Spec(wording="w", precision="fp32"),
        longbench.Spec(dataset="local", precision="fp32"),
        lm_eval.Spec(include="local", precision="fp32"),
    ],
    ids=lambda spec: spec.kind,
)
def test_a_text_without_its_corpus_is_no_identity(spec):
    with pytest.raises(AssertionError, match="has no identity"):
        eval_id(spec)


def test_costs_follow_the_work(tiny_fox):
    """In FLOPs: twice the documents, twice the cost; a training step three forward passes; metrics nothing."""
    model = tiny_fox()
    loss, two = per_token_loss.Spec(context_len=128, num_documents=2), per_token_loss.Spec(context_len=128, num_documents=4)
    assert per_token_loss.flops(two, model) == 2 * per_token_loss.flops(loss, model) == 4 * 128 * model_flops(model, 128)
    timing = throughput.Spec(seq_len=128, batch_size=3, warmup=1, repeats=4)
    assert throughput.flops(timing, model) == 3 * 3 * 5 * 128 * model_flops(model, 128)
    grid = needle.Spec(lengths=(400, 500), depths=(0.0, 50.0), max_new_tokens=20)
    assert needle.flops(grid, model) == 2 * (420 * model_flops(model, 400) + 520 * model_flops(model, 500))
    recall = needle_recall.Spec(lengths=(400,), depths=(0.0, 50.0), samples_per_cell=5)
    assert needle_recall.flops(recall, model) == 5 * 3 * 400 * model_flops(model, 400)
    assert training_curve.flops(training_curve.Spec(), model) == 0
    assert gate_maps.flops(gate_maps.Spec(), model) == 2 * 16384 * model_flops(model, 16384)
    few, all_of_it = longbench.Spec(tasks=("trec",), max_examples=7, max_prompt_tokens=300), longbench.Spec(tasks=("trec",))
    assert longbench.flops(few, model) == 7 * (300 + 64) * model_flops(model, 300)
    assert longbench.flops(all_of_it, model) == 200 * (15500 + 64) * model_flops(model, 15500)
    assert lm_eval.flops(lm_eval.Spec(tasks=("copa",), limit=10), model) == 10 * 40 * model_flops(model, 512)


def model_flops(model, seq_len: int) -> int:
    return model.flops_per_token(seq_len)


def test_options_that_nothing_reads_are_found(bind, tmp_path, texts_folder):
    file = tmp_path / "x"
    local = [bind(spec) for spec in SMALLEST]
    given = Sources(longbench=file, include_path=file, haystack=file, judge_url="u", prompts=file, corpus=file)
    assert unread(local, given) == ["--haystack", "--longbench", "--include-path", "--judge-url"]
    others = bind(needle.Spec(judge="m"), haystack=texts_folder)
    assert unread([*local, others], given) == ["--longbench", "--include-path"]
    assert unread([], Sources(corpus=file, batch_tokens=3)) == []


def test_sources_as_arguments_give_the_same_sources(tmp_path):
    sources = Sources(haystack=tmp_path, haystack_unsorted=True, tokenizer="bytes", batch_tokens=7, judge_key_env="KEY")
    job = parse(Job, ["run", "--spec", "a.json", *arguments_of(sources)], "test", "")
    assert job.sources == sources
    assert arguments_of(Sources()) == []
