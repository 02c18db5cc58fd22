"""One tiny model through every kind of evaluation: rows follow the schema, batches and restarts do not change them, a plan's
cost is that of the tokens that are read, and what enters an identity is all that may change the rows."""

from dataclasses import fields, replace

import pandas as pd
import pytest
import torch

from eval.job import main as job_main
from eval.kinds import EVAL_SPEC, FOLDERS, KINDS, eval_id, measure_of, unbound, unread
from eval.lm_eval.tasks import TABLE as HARNESS
from eval.longbench.spec import TABLE as LONGBENCH
from eval.runner.context import Context
from eval.runner.partial import Partial
from eval.runner.sources import Sources
from eval.runner.text import TextCodec
from models.build import build_model
from results.lines import to_lines
from results.store import read_rows

GRID = dict(lengths=(330, 260), depths=(0.0, 50.0, 100.0), samples_per_cell=2, reserve=80)
EXAMPLES = {
    "per_token_loss": dict(context_len=48, num_documents=3),
    "context_use": dict(contexts=(8, 32, 88), places=(120, 60), targets=16, num_documents=4),
    "needle": GRID | dict(mode="easy", reserve=150, lengths=(420, 330), max_new_tokens=3),
    "needle_recall": GRID | dict(depths=(50.0,)),
    "needle_choice": GRID,
    "longbench": dict(dataset="local", tasks=("hotpotqa", "trec"), max_prompt_tokens=200, max_new_tokens=4),
    "lm_eval": dict(include="local", tasks=("copa", "wikitext"), limit=3, max_length=1024, batch_size=4),
    "gate_maps": dict(seq_len=64, distance=8, grid=8),
    "pruning": dict(context_len=64, num_documents=2, decoded_tokens=4, tile=16),
    "attention_speed": dict(seq_len=64, warmup=0, repeats=1),
    "throughput": dict(seq_len=32, warmup=0, repeats=1),
    "training_curve": {},
    "parameters": {},
    "equal_logits": {},
    "recall": dict(num_sequences=5),
}  # fmt: skip
"""Fields of a spec of each kind that the small corpus is enough for; recall has a corpus of its own (test_recall.py)."""
EXACT = ("per_token_loss", "context_use", "needle", "needle_recall", "needle_choice", "gate_maps", "pruning")
RESUMED = ("context_use", "needle", "needle_recall", "needle_choice", "longbench", "lm_eval")


@pytest.fixture(scope="module")
def model(tiny_fox):
    torch.manual_seed(0)
    model = build_model(tiny_fox()).eval()
    with torch.no_grad():  # sharper logits: near ties would be decided by rounding
        model.get_output_embeddings().weight.mul_(8.0)
    return model


@pytest.fixture
def loaded(model, in_memory, corpus):
    return in_memory(model, TextCodec(corpus.tokenizer))


def evaluate(loaded, spec, context) -> pd.DataFrame:
    return measure_of(spec).evaluate(loaded, spec, context)


def test_a_folder_is_a_kind():
    made = {folder.name for folder in FOLDERS if folder.parent.parent.name != "beyond"}
    assert made == set(EXAMPLES), "give EXAMPLES one of the new kind"
    assert all(spec.kind == name for name, spec in KINDS.items())


def test_every_kind_runs_as_a_job_and_writes_rows_of_its_schema(make_run, corpus, bind, tmp_path, capsys):
    run = make_run()
    steps = (dict(step=s, tokens=2048 * s, loss=7.0, grad_norm=1.0, lr=1e-3, tokens_per_s=5e3) for s in range(1, 11))
    (run / "metrics.jsonl").write_text(to_lines({**row, "mfu": None, "mfu_dense": None} for row in steps))
    specs = [bind(KINDS[kind](**given)) for kind, given in EXAMPLES.items() if kind != "recall"]
    for spec in specs:
        (tmp_path / spec.kind).write_bytes(EVAL_SPEC.dump_json(spec))
    paths = [str(tmp_path / spec.kind) for spec in specs]
    assert job_main([str(run), "--spec", *paths, "--corpus", str(corpus.folder)]) == 0, capsys.readouterr().err
    for spec in specs:
        rows, meta = read_rows(run / "evals" / f"{eval_id(spec)}.parquet")
        assert len(spec.SCHEMA.validate(rows)) and meta["spec"] == EVAL_SPEC.dump_python(spec, mode="json")
        assert spec.summary(rows)


@pytest.mark.parametrize("kind", RESUMED)
def test_neither_batches_nor_restarts_change_the_rows(kind, loaded, model, bind, corpus, tmp_path):
    """One prompt at a time, and with half of the samples from a file whose last line was cut off."""
    spec, read = bind(KINDS[kind](**EXAMPLES[kind])), []
    hook = model.get_input_embeddings().register_forward_pre_hook(lambda module, given: read.append(given[0].numel()))
    path = tmp_path / "x.partial.jsonl"
    single = Context(corpus=corpus, sources=Sources(batch_tokens=1), partial=Partial(path, "x"))
    whole, alone = evaluate(loaded, spec, Context(corpus=corpus)), evaluate(loaded, spec, single)
    lines, first = path.read_text().splitlines(keepends=True), sum(read)
    path.write_text("".join(lines[: len(lines) // 2]) + lines[-1][:9])
    read.clear()
    resumed = evaluate(loaded, spec, Context(corpus=corpus, partial=Partial(path, "x")))
    hook.remove()
    assert 0 < sum(read) < first
    for rows in (alone, resumed):
        pd.testing.assert_frame_equal(rows, whole, rtol=1e-4)


@pytest.mark.parametrize("kind", EXACT)
def test_costs_are_of_the_tokens_that_are_read(kind, loaded, model, bind, corpus):
    spec, read = bind(KINDS[kind](**EXAMPLES[kind])), []
    hook = model.get_input_embeddings().register_forward_pre_hook(lambda module, given: read.append(given[0].numel()))
    evaluate(loaded, spec, Context(corpus=corpus, sources=Sources(batch_tokens=1)))
    hook.remove()
    told = spec.tokens_read()
    assert sum(tokens for tokens, _ in told) == pytest.approx(sum(read), rel=0.3)
    assert spec.flops(model.config.to_spec()) == sum(n * model.config.to_spec().flops_per_token(length) for n, length in told)


def test_costs_of_what_is_timed_or_of_others_tasks(tiny_fox):
    """A training step is three passes, of both models where there are two; generation reads the prompt, then the rest."""
    fox, small = tiny_fox(), tiny_fox(num_layers=1)
    given = dict(seq_len=128, batch_size=3, warmup=1, repeats=4)
    flops = fox.flops_per_token(128)
    assert KINDS["throughput"](**given, beside=small).flops(fox) == 3 * 5 * 384 * (flops + small.flops_per_token(128))
    assert KINDS["throughput"](**given, mode="generate", new_tokens=10).flops(fox) == 5 * (384 + 30) * flops
    assert KINDS["attention_speed"](seq_len=128, warmup=1, repeats=4).flops(fox) == 2 * 5 * 3 * 128 * flops
    trec, copa = int(LONGBENCH["trec"]["num_examples"]), HARNESS["copa"]
    few, all_of_it = (KINDS["longbench"](tasks=("trec",), max_examples=count) for count in (7, None))
    assert [few.tokens_read(), all_of_it.tokens_read()] == [[(count * (15500 + 64), 15500)] for count in (7, trec)]
    assert KINDS["lm_eval"](tasks=("copa",)).tokens_read() == [(int(copa["examples"]) * int(copa["tokens"]), 512)]
    assert KINDS["recall"](num_sequences=5, seq_len=64).tokens_read() == [(320, 64)]
    assert KINDS["training_curve"]().flops(fox) == 0


@pytest.mark.parametrize("kind", EXAMPLES)
def test_a_spec_is_its_json_and_names_the_corpus_that_it_reads(kind, bind, corpus):
    spec = bind(KINDS[kind](**EXAMPLES[kind]))
    assert EVAL_SPEC.validate_json(EVAL_SPEC.dump_json(spec)) == spec
    assert set(EVAL_SPEC.dump_python(spec)) == {field.name for field in fields(spec)}
    read = [getattr(spec, name, None) for name in ("corpus", "text", "dataset", "include")]
    assert all(corpus.spec.fingerprint in each for each in filter(None, read))


@pytest.mark.parametrize("kind", EXAMPLES)
def test_a_spec_that_does_not_say_what_it_reads_has_no_identity(kind, bind):
    spec = KINDS[kind](**EXAMPLES[kind])
    whole, missing = bind(spec), unbound(spec)
    assert unbound(whole) == []
    for name in missing:
        with pytest.raises(AssertionError, match=name):
            eval_id(replace(whole, **{name: getattr(spec, name)}))
    needed = {"corpus", "text", "dataset", "include", "wording", "precision", "machine"}
    assert set(missing) == needed & {field.name for field in fields(spec)}


def test_stored_identities_stay(bind):
    """Of fields at their default, which a later version may add; and of rows that were measured in an earlier way."""
    stored = KINDS["throughput"](seq_len=32, machine="NVIDIA H200", precision="bf16")
    assert eval_id(stored) == "throughput-3eec709d" != eval_id(replace(stored, step="stepper"))
    assert [bind(KINDS["throughput"](mode=mode)).step for mode in ("train", "generate")] == ["stepper", "token"]


def test_options_that_nothing_reads_are_found(bind, tmp_path, texts_folder):
    file = tmp_path / "x"
    local = [bind(KINDS[kind](**given)) for kind, given in EXAMPLES.items()]
    given = Sources(longbench=file, include_path=file, haystack=file, judge_url="u", prompts=file, corpus=file)
    assert unread(local, given) == ["--haystack", "--longbench", "--include-path", "--judge-url"]
    judged = bind(KINDS["needle"](judge="m"), haystack=texts_folder, judge_url="u")
    assert unread([*local, judged], given) == ["--longbench", "--include-path"]
