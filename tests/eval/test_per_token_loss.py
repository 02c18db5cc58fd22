"""Per-token loss: against a plain computation, resumed midway, and on models and corpora that do not fit."""

from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from transformers import GPT2Config, GPT2LMHeadModel, LlamaConfig, LlamaForCausalLM

from data.corpus import Corpus
from eval import per_token_loss
from eval.context import Context
from eval.partial import Partial
from eval.spec import PerTokenLossSpec
from models.build import build_model

SPEC = PerTokenLossSpec(context_len=300, num_documents=4)


def llama() -> torch.nn.Module:
    torch.manual_seed(0)
    return LlamaForCausalLM(
        LlamaConfig(vocab_size=512, hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=2)
    ).eval()


def plain(model: torch.nn.Module, corpus: Corpus, spec: PerTokenLossSpec) -> np.ndarray:
    total = np.zeros(spec.context_len)
    for document in corpus.heldout.read(slice(0, spec.num_documents), 0, spec.context_len).astype(np.int64):
        inputs = torch.tensor([corpus.spec.bos_id, *document[:-1]])[None]
        with torch.no_grad():
            logits = model(input_ids=inputs).logits[0].double()
        total += F.cross_entropy(logits, torch.tensor(document), reduction="none").numpy()
    return total / spec.num_documents


@pytest.mark.parametrize("name", ["llama", "fox"])
def test_equals_plain_computation(name, tiny_fox, corpus, context):
    torch.manual_seed(0)
    model = llama() if name == "llama" else build_model(tiny_fox()).eval()
    rows = per_token_loss.evaluate(model, None, SPEC, context)
    assert rows["position"].tolist() == list(range(1, 301))
    assert (rows["num_documents"] == 4).all()
    np.testing.assert_allclose(rows["loss"], plain(model, corpus, SPEC), rtol=0, atol=2e-5)
    counts = np.bincount(corpus.heldout.read(slice(0, 4), 0, 300).reshape(-1))
    share = counts[counts > 0] / counts.sum()
    assert context.extras["unigram_entropy"] == pytest.approx(-(share * np.log(share)).sum())


def test_the_first_document_does_not_count_in_the_time_of_one(corpus, monkeypatch):
    ticks = iter([0.0, 100.0, 200.0, 201.0, 300.0, 303.0, 400.0, 405.0])
    monkeypatch.setattr(per_token_loss.time, "perf_counter", lambda: next(ticks))
    context = Context(corpus=corpus)
    per_token_loss.evaluate(llama(), None, SPEC, context)
    assert context.extras["seconds_per_document"] == 3.0


def test_resumed_midway_gives_identical_rows(corpus, tmp_path: Path, monkeypatch):
    model = llama()
    whole = per_token_loss.evaluate(model, None, SPEC, Context(corpus=corpus))
    real, calls = per_token_loss.token_losses, []

    def interrupted(*arguments):
        calls.append(1)
        if len(calls) == 3:
            raise KeyboardInterrupt
        return real(*arguments)

    path = tmp_path / "x.partial.jsonl"
    monkeypatch.setattr(per_token_loss, "token_losses", interrupted)
    with pytest.raises(KeyboardInterrupt):
        per_token_loss.evaluate(model, None, SPEC, Context(corpus=corpus, partial=Partial(path, "id")))
    context = Context(corpus=corpus, partial=Partial(path, "id"))
    rows = per_token_loss.evaluate(model, None, SPEC, context)
    assert len(calls) == 3 + 2  # two documents were kept, the interrupted one and the last are computed
    assert rows.equals(whole)
    other = Partial(path, "another model")
    assert other.load_state() is None


def test_nan_names_the_document(corpus, context, monkeypatch):
    model = llama()

    def broken(model, inputs, targets):
        losses = torch.ones(1, inputs.shape[1])
        document = corpus.heldout.read(slice(2, 3), 0, 300)[0].astype(np.int64)
        if (targets[0].numpy() == document).all():
            losses[0, 7] = float("nan")
        return losses

    monkeypatch.setattr(per_token_loss, "token_losses", broken)
    with pytest.raises(ValueError, match="held-out document 2: the loss of token 8 is nan"):
        per_token_loss.evaluate(model, None, SPEC, context)


def test_what_does_not_fit_is_refused(corpus, context):
    documents, length = corpus.heldout.shape
    for changes, message in (
        ({"num_documents": documents + 1}, f"exceeds the {documents} held-out documents"),
        ({"context_len": length + 1}, f"exceeds the {length} tokens"),
    ):
        spec = PerTokenLossSpec(**{"context_len": 64, "num_documents": 1, **changes})
        with pytest.raises(ValueError, match=message):
            per_token_loss.evaluate(llama(), None, spec, context)
    small = LlamaForCausalLM(
        LlamaConfig(vocab_size=100, hidden_size=32, intermediate_size=64, num_hidden_layers=1, num_attention_heads=2)
    )
    with pytest.raises(ValueError, match="vocabulary"):
        per_token_loss.evaluate(small, None, SPEC, context)
    short = GPT2LMHeadModel(GPT2Config(vocab_size=512, n_embd=32, n_layer=1, n_head=2, n_positions=64)).eval()
    with pytest.raises(ValueError, match="--context-len"):
        per_token_loss.evaluate(short, None, SPEC, context)
    with pytest.raises(ValueError, match="--corpus"):
        per_token_loss.evaluate(llama(), None, SPEC, Context())
