"""Tests of what all kinds of evaluation have in common: the interface, identities, specs as JSON, costs."""

import hashlib
from dataclasses import fields, replace
from pathlib import Path
from typing import get_args

import pytest

import eval as room
from eval.attention_speed import spec as attention_speed
from eval.cache_eviction import spec as cache_eviction
from eval.context_use import spec as context_use
from eval.decoding import spec as decoding
from eval.equal_logits import spec as equal_logits
from eval.gate_maps import spec as gate_maps
from eval.job import Job, read_spec
from eval.kinds import EVAL_SPEC, KINDS, eval_id, unbound, unread
from eval.last_words import spec as last_words
from eval.lm_eval import spec as lm_eval
from eval.longbench import spec as longbench
from eval.needle import spec as needle
from eval.needle_choice import spec as needle_choice
from eval.needle_recall import spec as needle_recall
from eval.parameters import spec as parameters
from eval.per_token_loss import spec as per_token_loss
from eval.pruning import spec as pruning
from eval.recall import spec as recall
from eval.ruler import spec as ruler
from eval.shell.sources import Sources
from eval.shell.spec import EvalSpec, Needs
from eval.throughput import spec as throughput
from eval.training_curve import spec as training_curve
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
    context_use.Spec(contexts=(32,), places=(128,), targets=16, num_documents=2),
    needle_choice.Spec(),
    last_words.Spec(num_documents=2),
    cache_eviction.Spec(context_len=128),
    decoding.Spec(lengths=(128,)),
)


def test_every_kind_is_a_folder_with_a_spec_and_a_measure():
    """`ls eval` shows an evaluation a name, besides the shell and the commands."""
    folder = Path(room.__path__[0])
    names = {path.stem for path in folder.iterdir() if path.suffix in ("", ".py") and not path.name.startswith("__")}
    assert names - {"shell", "kinds", "job"} == set(KINDS)
    for name, spec in KINDS.items():
        assert (folder / name / "__init__.py").read_text() == ""
        assert (folder / name / "measure.py").is_file()
        assert issubclass(spec, EvalSpec) and spec.kind == name
        assert spec.NEEDS in get_args(Needs)
        assert set(spec.SCHEMA.key) <= set(spec.SCHEMA.columns)
        assert spec.summary is not EvalSpec.summary
    assert [type(spec) for spec in SMALLEST] == list(KINDS.values()), "give SMALLEST of this file a spec of the new kind"


def test_nothing_but_fields_is_part_of_an_identity():
    """Return what a spec owns besides (SCHEMA, NEEDS, methods) may change without renaming what was computed."""
    for spec in SMALLEST:
        assert set(EVAL_SPEC.dump_python(spec)) == {field.name for field in fields(spec)}
        assert not {"SCHEMA", "NEEDS"} & {field.name for field in fields(spec)}


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


@pytest.mark.parametrize("spec", SMALLEST, ids=lambda spec: spec.kind)
def test_a_job_takes_bound_specs_alone(spec, bind, tmp_path):
    """Also where what is missing is no text: a precision, a machine."""
    path, whole = tmp_path / "spec.json", bind(spec)
    path.write_bytes(EVAL_SPEC.dump_json(whole))
    assert read_spec(path) == whole
    for name in unbound(spec):
        path.write_bytes(EVAL_SPEC.dump_json(replace(whole, **{name: getattr(spec, name)})))
        with pytest.raises(ValueError, match=f"must say which {name} it reads"):
            read_spec(path)


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
    assert two.flops(model) == 2 * loss.flops(model) == 4 * 128 * model_flops(model, 128)
    timing = throughput.Spec(seq_len=128, batch_size=3, warmup=1, repeats=4)
    assert timing.flops(model) == 3 * 3 * 5 * 128 * model_flops(model, 128)
    grid = needle.Spec(lengths=(400, 500), depths=(0.0, 50.0), max_new_tokens=20)
    assert grid.flops(model) == 2 * (420 * model_flops(model, 400) + 520 * model_flops(model, 500))
    recall = needle_recall.Spec(lengths=(400,), depths=(0.0, 50.0), samples_per_cell=5)
    assert recall.flops(model) == 5 * 3 * 400 * model_flops(model, 400)
    choice = needle_choice.Spec(lengths=(400,), depths=(0.0, 50.0), samples_per_cell=5)
    assert choice.flops(model) == 5 * 2 * 400 * model_flops(model, 400)
    words = last_words.Spec(num_documents=2, num_items=7, words=100, near=10)
    assert words.flops(model) == 7 * (200 * model_flops(model, 200) + 20 * model_flops(model, 20))
    assert training_curve.Spec().flops(model) == 0
    assert gate_maps.Spec().flops(model) == 2 * 16384 * model_flops(model, 16384)
    few, all_of_it = longbench.Spec(tasks=("trec",), max_examples=7, max_prompt_tokens=300), longbench.Spec(tasks=("trec",))
    assert few.flops(model) == 7 * (300 + 64) * model_flops(model, 300)
    assert all_of_it.flops(model) == 200 * (15500 + 64) * model_flops(model, 15500)
    assert lm_eval.Spec(tasks=("copa",), limit=10).flops(model) == 10 * 40 * model_flops(model, 512)


GRID = dict(lengths=(300, 400), depths=(0.0, 50.0), samples_per_cell=3)
READS = {
    "per_token_loss": (dict(context_len=64, num_documents=3), [(192, 64)]),
    "needle": (GRID | dict(max_new_tokens=20), [(6 * 320, 300), (6 * 420, 400)]),
    "needle_recall": (GRID, [(9 * 300, 300), (9 * 400, 400)]),  # with the needle at every depth, and without
    "needle_choice": (GRID, [(6 * 300, 300), (6 * 400, 400)]),
    "recall": (dict(num_sequences=5, seq_len=64), [(320, 64)]),
    "equal_logits": ({}, [(128, 128)]),
    "longbench": (dict(tasks=("trec",), dataset="local-v1:aa", max_prompt_tokens=99, max_new_tokens=5), [(2 * 104, 99)]),
    "lm_eval": (dict(tasks=("copa", "openbookqa"), include="local-v1:aa", max_length=99), [(20 * (40 + 100), 99)]),
    "gate_maps": (dict(seq_len=64, distance=8), [(128, 64)]),  # once for all heads, and once for those that are drawn
    "throughput": ({}, []), "training_curve": ({}, []), "parameters": ({}, []),
    "pruning": (dict(context_len=64, num_documents=3), [(4 * 192, 64)]),  # whole and pruned, at once and by tokens
    "attention_speed": (dict(seq_len=64, batch_size=2, warmup=1, repeats=3), [(24 * 128, 64)]),  # three passes, both ways
    "ruler": (dict(tasks=("niah_single_1", "niah_single_2"), lengths=(512, 64), samples=9), [(18 * 512, 512), (18 * 64, 64)]),
    "context_use": (dict(contexts=(8, 32), places=(64, 40, 24), targets=16, num_documents=3), [*[(72, 24)] * 3, (144, 48)]),
    "last_words": (dict(num_documents=2, num_items=7, words=100, near=10), [(1400, 200), (140, 20)]),
    "decoding": (dict(lengths=(128, 99), batch_sizes=(1, 3), repeats=4), [(60 * 128, 128), (60 * 99, 99)]),
}  # fmt: skip


@pytest.mark.parametrize("kind", READS)
def test_every_evaluation_says_how_many_tokens_it_reads(kind):
    given, reads = READS[kind]
    assert KINDS[kind](**given).tokens_read() == reads


def test_choices_are_read_four_times_and_pass_keys_answered_in_a_few_tokens():
    ruler = KINDS["ruler"](tasks=("niah_single_1",), lengths=(512,), samples=9, answers="choose")
    assert ruler.tokens_read() == [(4 * 9 * 512, 512)]
    assert KINDS["needle"](**GRID, mode="passkey").tokens_read() == [(6 * 312, 300), (6 * 412, 400)]


def model_flops(model, seq_len: int) -> int:
    return model.flops_per_token(seq_len)


def test_options_that_nothing_reads_are_found(bind, tmp_path, texts_folder):
    file = tmp_path / "x"
    local = [bind(spec) for spec in SMALLEST]
    given = Sources(longbench=file, include_path=file, haystack=file, judge_url="u", prompts=file, corpus=file)
    assert unread(local, given) == ["--haystack", "--longbench", "--include-path", "--judge-url"]
    with pytest.raises(ValueError, match=r"judge 'm' needs .*--judge-url"):
        bind(needle.Spec(judge="m"), haystack=texts_folder)
    others = bind(needle.Spec(judge="m"), haystack=texts_folder, judge_url="u")
    assert unread([*local, others], given) == ["--longbench", "--include-path"]
    assert unread([], Sources(corpus=file, batch_tokens=3)) == []


def test_sources_as_arguments_give_the_same_sources(tmp_path):
    sources = Sources(haystack=tmp_path, haystack_unsorted=True, tokenizer="bytes", batch_tokens=7, judge_key_env="KEY")
    job = parse(Job, ["run", "--spec", "a.json", *arguments_of(sources)], "test", "")
    assert job.sources == sources
    assert arguments_of(Sources()) == []
