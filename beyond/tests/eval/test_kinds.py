"""What the kinds of evaluation here share with the core's: rows, restarts, costs, identities, and examples that stay."""

import hashlib
import json
from dataclasses import fields, replace

import numpy as np
import pandas as pd
import pytest
import torch

from beyond.eval.last_words.measure import items
from beyond.eval.ruler.measure import Examples
from beyond.eval.ruler.spec import TASKS, VERSION
from data.tokenizer import parse_tokenizer
from eval.kinds import EVAL_SPEC, FOLDERS, KINDS, eval_id, measure_of, unbound
from eval.runner.context import Context
from eval.runner.partial import Partial
from eval.runner.sources import Sources
from eval.runner.text import TextCodec
from models.build import build_model
from tests.eval.conftest import sentences

EXAMPLES = {
    "cache_eviction": dict(context_len=64, num_documents=2, depths=4),
    "decoding": dict(lengths=(40,), new_tokens=10, repeats=1),
    "last_words": dict(num_documents=3, num_items=12, words=40, near=10, common=5),
    "ruler": dict(lengths=(640,), samples=2, answers="choose", tasks=TASKS[:1]),
}


@pytest.fixture
def loaded(tiny_fox, in_memory, corpus):
    torch.manual_seed(0)
    return in_memory(build_model(tiny_fox()).eval(), TextCodec(corpus.tokenizer))


@pytest.mark.parametrize("kind", [folder.name for folder in FOLDERS if "beyond" in folder.parts])
def test_rows_follow_the_schema_and_costs_the_tokens_that_are_read(kind, loaded, bind, corpus):
    spec, read = bind(KINDS[kind](**EXAMPLES[kind])), []
    loaded.model.get_input_embeddings().register_forward_pre_hook(lambda module, given: read.append(given[0].numel()))
    context = Context(corpus=corpus, sources=Sources(batch_tokens=1))
    rows = spec.SCHEMA.validate(measure_of(spec).evaluate(loaded, spec, context))
    assert spec.summary(rows) and EVAL_SPEC.validate_json(EVAL_SPEC.dump_json(spec)) == spec
    share = {"last_words": 1.5, "ruler": 0.3}.get(kind, 0.1)  # two tokens a word are an estimate; texts of whole lines
    assert sum(tokens for tokens, _ in spec.tokens_read()) == pytest.approx(sum(read), rel=share)


@pytest.mark.parametrize("kind", ["last_words", "ruler"])
def test_neither_batches_nor_restarts_change_the_rows(kind, loaded, bind, corpus, tmp_path):
    spec, path = bind(KINDS[kind](**EXAMPLES[kind])), tmp_path / "x.partial.jsonl"
    single = Context(corpus=corpus, sources=Sources(batch_tokens=1), partial=Partial(path, "x"))
    whole, alone = (measure_of(spec).evaluate(loaded, spec, each) for each in (Context(corpus=corpus), single))
    lines = path.read_text().splitlines(keepends=True)
    path.write_text("".join(lines[: len(lines) // 2]) + lines[-1][:9])
    resumed = measure_of(spec).evaluate(loaded, spec, Context(corpus=corpus, partial=Partial(path, "x")))
    for rows in (alone, resumed):
        pd.testing.assert_frame_equal(rows, whole, rtol=1e-4)


@pytest.mark.parametrize("kind", EXAMPLES)
def test_an_identity_needs_what_is_read(kind, bind, corpus):
    spec = KINDS[kind](**EXAMPLES[kind])
    whole = bind(spec)
    assert unbound(whole) == [] and corpus.spec.fingerprint in (whole.text if kind == "ruler" else whole.corpus)
    for name in unbound(spec):
        with pytest.raises(AssertionError, match=name):
            eval_id(replace(whole, **{name: getattr(spec, name)}))
    needed = {"corpus", "text", "precision", "machine"}
    assert set(unbound(spec)) == needed & {field.name for field in fields(spec)}


@pytest.mark.parametrize(("kind", "given"), [
    ("ruler", dict(tasks=(), lengths=(9,))), ("ruler", dict(lengths=())), ("ruler", dict(lengths=(8, 8))),
    ("cache_eviction", dict(context_len=8, depths=9)), ("cache_eviction", dict(context_len=16, log_tolerance=0.0)),
    ("last_words", dict(num_documents=1, words=20, near=20)), ("decoding", dict(lengths=(128,), new_tokens=9)),
    ("decoding", dict(lengths=(66, 65))), ("decoding", dict(lengths=())), ("decoding", dict(lengths=(99,), batch_sizes=())),
])  # fmt: skip
def test_specs_that_cannot_be_measured(kind, given):
    with pytest.raises(ValueError):  # noqa: PT011
        KINDS[kind](**given)


TEXTS = ["".join(sentences(np.random.default_rng(seed), 12) for _ in range(25)) for seed in range(3)]
WRITTEN = dict(zip(TASKS, ("c4b8440e12b4", "69177d406d62", "320f8d105769"), strict=True)) | {"last_words": "21bc643916c7"}


@pytest.mark.parametrize("name", WRITTEN)
def test_examples_are_what_they_were(name):
    """Where a change is meant, the digests change with VERSION of beyond/eval/ruler/spec.py, or the evaluation is renamed."""
    codec, ruler = TextCodec(parse_tokenizer("bytes").load()), KINDS["ruler"]
    if name == "last_words":
        made = [vars(item) for item in items(TEXTS, KINDS[name](num_documents=3, num_items=9, common=20))]
    else:
        specs = [ruler(lengths=(2000,), tasks=(name,), answers=answers) for answers in ("generate", "choose")]
        made = [Examples(spec, codec, iter(TEXTS)).make(name, 2000, number) for spec in specs for number in range(3)]
    assert hashlib.sha256(json.dumps(made, sort_keys=True).encode()).hexdigest()[:12] == WRITTEN[name] and VERSION == 2
