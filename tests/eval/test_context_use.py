"""Use of context: against per-token loss and a plain computation, resumed midway, and on documents that do not fit."""

from dataclasses import replace

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from transformers import LlamaConfig, LlamaForCausalLM

from eval.context_use import measure
from eval.context_use.spec import Spec
from eval.kinds import eval_id
from eval.per_token_loss import measure as per_token_loss
from eval.shell.context import Context
from eval.shell.partial import Partial
from eval.shell.sources import Sources
from models.build import build_model

SPEC = Spec(contexts=(8, 32, 88, 184), places=(200, 120), targets=16, num_documents=3)


def llama() -> torch.nn.Module:
    torch.manual_seed(0)
    return LlamaForCausalLM(
        LlamaConfig(vocab_size=512, hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=2)
    ).eval()


@pytest.mark.parametrize("name", ["llama", "fox"])
def test_equals_plain_computation_and_at_the_full_context_per_token_loss(name, tiny_fox, in_memory, bind, corpus, context):
    torch.manual_seed(0)
    model = llama() if name == "llama" else build_model(tiny_fox()).eval()
    loaded, spec = in_memory(model), bind(SPEC)
    rows = SPEC.SCHEMA.validate(measure.evaluate(loaded, spec, context))
    places = rows[rows["document"] == 0].groupby("context")["place"].agg(set).to_dict()
    assert places == {8: {120, 200}, 32: {120, 200}, 88: {120, 200}, 184: {200}}, (
        "what does not fit in front of 120 is left out"
    )
    for row in rows.itertuples():
        document = corpus.heldout.read(slice(row.document, row.document + 1), 0, 200)[0].astype(np.int64)
        window = document[row.place - 16 - row.context : row.place]
        with torch.no_grad():
            logits = model(input_ids=torch.tensor([corpus.spec.bos_id, *window[:-1]])[None]).logits[0].double()
        losses = F.cross_entropy(logits, torch.tensor(window), reduction="none")
        assert row.loss == pytest.approx(float(losses[-16:].mean()), abs=2e-5)
        if row.context == 184:
            whole = per_token_loss.document_losses(model, document, corpus.spec.bos_id, context.compute("fp32"), row.document)
            assert row.loss == pytest.approx(whole[184:].mean(), abs=2e-5)
    assert context.extras["sources"] == corpus.heldout_sources[:3]
    whole = rows[rows["place"] == 200].groupby("context")["loss"].mean()
    assert SPEC.summary(rows)[-1] == f"  given 184 tokens: loss {whole[184]:.4f} nats per token (0 is perfect)"


def test_batches_of_any_size_give_the_same_rows(in_memory, bind, corpus):
    loaded, spec = in_memory(llama()), bind(SPEC)
    alone, together = (
        measure.evaluate(loaded, spec, Context(corpus=corpus, sources=Sources(batch_tokens=size))) for size in (1, 4096)
    )
    assert alone["loss"].to_numpy() == pytest.approx(together["loss"].to_numpy(), abs=1e-5)


def test_resumed_midway_gives_identical_rows(in_memory, bind, corpus, tmp_path):
    loaded, spec, path = in_memory(llama()), bind(SPEC), tmp_path / "x.partial.jsonl"
    whole = measure.evaluate(loaded, spec, Context(corpus=corpus, partial=Partial(path, "id")))
    lines = path.read_text().splitlines()
    path.write_text("\n".join(lines[:8]) + "\n" + lines[8][:9])
    rows = measure.evaluate(loaded, spec, Context(corpus=corpus, partial=Partial(path, "id")))
    assert rows["loss"].to_numpy() == pytest.approx(whole["loss"].to_numpy(), abs=1e-5)


def test_a_loss_that_is_not_finite_names_its_place(in_memory, bind, corpus, context, monkeypatch):
    monkeypatch.setattr(measure, "token_losses", lambda model, inputs, targets: torch.full(inputs.shape, torch.nan))
    with pytest.raises(
        ValueError, match="held-out document 0: the mean loss of the targets before 200, given 184 tokens, is nan"
    ):
        measure.evaluate(in_memory(llama()), bind(SPEC), context)


def test_every_field_is_part_of_the_identity(bind):
    bound = bind(SPEC)
    others = (
        dict(contexts=(8, 32)), dict(places=(200,)), dict(targets=8), dict(num_documents=2), dict(precision="bf16"),
        dict(corpus="0123"),
    )  # fmt: skip
    assert len({eval_id(bound), *(eval_id(replace(bound, **other)) for other in others)}) == 1 + len(others)


def test_what_does_not_fit_is_refused(make_spec, bind, corpus):
    for changes, message in (
        (dict(contexts=()), "at least one context and one place"),
        (dict(places=(200, 20)), "need all places at 24 or beyond, and one at 200 or beyond"),
        (dict(places=(190,)), "one at 200 or beyond"),
    ):
        with pytest.raises(ValueError, match=message):
            replace(SPEC, **changes)
    with pytest.raises(ValueError, match="99 documents exceed"):
        bind(replace(SPEC, num_documents=99)).check(make_spec(), corpus.counts)
    with pytest.raises(ValueError, match="9999 tokens exceed"):
        bind(replace(SPEC, places=(200, 9999))).check(make_spec(), corpus.counts)


def test_costs_follow_the_work(tiny_fox):
    model = tiny_fox()
    lengths = [24, 24, 48, 48, 104, 104, 200]
    assert SPEC.flops(model) == 3 * sum(length * model.flops_per_token(length) for length in lengths)
