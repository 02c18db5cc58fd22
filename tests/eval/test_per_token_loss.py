"""Per-token loss: against a plain computation, resumed midway, and on models and corpora that do not fit."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from transformers import GPT2Config, GPT2LMHeadModel, LlamaConfig, LlamaForCausalLM

from data.corpus import Corpus
from eval.per_token_loss import measure
from eval.per_token_loss.spec import Spec
from eval.shell.context import Context
from eval.shell.partial import Partial
from models.build import build_model

SPEC = Spec(context_len=300, num_documents=4)


def llama() -> torch.nn.Module:
    torch.manual_seed(0)
    return LlamaForCausalLM(
        LlamaConfig(vocab_size=512, hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=2)
    ).eval()


def plain(model: torch.nn.Module, corpus: Corpus, spec: Spec) -> np.ndarray:
    """Losses (documents, positions) from the whole logits."""
    losses = []
    for document in corpus.heldout.read(slice(0, spec.num_documents), 0, spec.context_len).astype(np.int64):
        inputs = torch.tensor([corpus.spec.bos_id, *document[:-1]])[None]
        with torch.no_grad():
            logits = model(input_ids=inputs).logits[0].double()
        losses.append(F.cross_entropy(logits, torch.tensor(document), reduction="none").numpy())
    return np.array(losses)


@pytest.mark.parametrize("name", ["llama", "fox"])
def test_equals_plain_computation(name, tiny_fox, in_memory, bind, corpus, context):
    torch.manual_seed(0)
    model = llama() if name == "llama" else build_model(tiny_fox()).eval()
    rows = SPEC.SCHEMA.validate(measure.evaluate(in_memory(model), bind(SPEC), context))
    expected = plain(model, corpus, SPEC)
    curve = rows[rows["document"] == -1]
    assert curve["position"].tolist() == list(range(1, 301))
    assert (curve["num_documents"] == 4).all()
    assert (curve["width"] == 1).all()
    np.testing.assert_allclose(curve["loss"], expected.mean(0), rtol=0, atol=2e-5)
    assert len(rows) == 300 + 4 * 16
    for row in rows[rows["document"] >= 0].itertuples():
        band = expected[row.document, row.position - row.width : row.position]
        assert row.loss == pytest.approx(band.mean(), abs=2e-5)
        assert row.num_documents == 1
    bands = rows[rows["document"] == 2]
    assert bands["position"].iloc[-1] == 300
    assert bands["width"].tolist() == bands["position"].diff().fillna(bands["position"].iloc[0]).tolist()
    assert set(bands["width"]) == {18, 19}
    counts = np.bincount(corpus.heldout.read(slice(0, 4), 0, 300).reshape(-1))
    share = counts[counts > 0] / counts.sum()
    assert context.extras["unigram_entropy"] == pytest.approx(-(share * np.log(share)).sum())
    perplexity = np.exp(expected.mean(0)[:128].mean())
    assert SPEC.summary(rows)[0] == f"  perplexity of the first 128 tokens: {perplexity:.3f} (1 is perfect)"


def test_fewer_positions_than_bands(in_memory, bind, context):
    rows = measure.evaluate(in_memory(llama()), bind(Spec(context_len=5, num_documents=1)), context)
    curve, bands = rows[rows["document"] == -1], rows[rows["document"] == 0]
    assert bands["loss"].tolist() == pytest.approx(curve["loss"].tolist())
    assert (bands["width"] == 1).all()


def test_the_first_document_does_not_count_in_the_time_of_one(in_memory, bind, context, monkeypatch):
    ticks = iter([0.0, 100.0, 200.0, 201.0, 300.0, 303.0, 400.0, 405.0])
    monkeypatch.setattr(measure.time, "perf_counter", lambda: next(ticks))
    measure.evaluate(in_memory(llama()), bind(SPEC), context)
    assert context.extras["seconds_per_document"] == 3.0


def test_resumed_midway_gives_identical_rows(in_memory, bind, corpus, tmp_path: Path, monkeypatch):
    loaded, spec = in_memory(llama()), bind(SPEC)
    whole = measure.evaluate(loaded, spec, Context(corpus=corpus))
    real, calls = measure.token_losses, []

    def interrupted(*arguments):
        calls.append(1)
        if len(calls) == 3:
            raise KeyboardInterrupt
        return real(*arguments)

    path = tmp_path / "x.partial.jsonl"
    monkeypatch.setattr(measure, "token_losses", interrupted)
    with pytest.raises(KeyboardInterrupt):
        measure.evaluate(loaded, spec, Context(corpus=corpus, partial=Partial(path, "id")))
    rows = measure.evaluate(loaded, spec, Context(corpus=corpus, partial=Partial(path, "id")))
    assert len(calls) == 3 + 2  # two documents were kept, the interrupted one and the last are computed
    assert rows.equals(whole)
    assert Partial(path, "another model").load_state() is None


def test_nan_names_the_document(in_memory, bind, corpus, context, monkeypatch):
    def broken(model, inputs, targets):
        losses = torch.ones(1, inputs.shape[1])
        document = corpus.heldout.read(slice(2, 3), 0, 300)[0].astype(np.int64)
        if (targets[0].numpy() == document).all():
            losses[0, 7] = float("nan")
        return losses

    monkeypatch.setattr(measure, "token_losses", broken)
    with pytest.raises(ValueError, match="held-out document 2: the loss of token 8 is nan"):
        measure.evaluate(in_memory(llama()), bind(SPEC), context)


def test_bf16_is_autocast(in_memory, bind, tiny_fox, context):
    torch.manual_seed(0)
    loaded, spec = in_memory(build_model(tiny_fox()).eval()), bind(SPEC)
    exact = measure.evaluate(loaded, spec, context)["loss"]
    coarse = measure.evaluate(loaded, replace(spec, precision="bf16"), context)["loss"]
    assert 1e-5 < (exact - coarse).abs().max() < 0.1


def test_what_does_not_fit_is_refused(in_memory, bind, make_spec, corpus, context):
    documents, length = corpus.heldout.shape
    for changes, message in (
        ({"num_documents": documents + 1}, f"{documents + 1} documents exceed the {documents} held-out documents"),
        ({"context_len": length + 1}, f"{length + 1} tokens exceed the {length} tokens"),
    ):
        spec = bind(Spec(**{"context_len": 64, "num_documents": 1, **changes}))
        with pytest.raises(ValueError, match=message):
            measure.evaluate(in_memory(llama()), spec, context)
        with pytest.raises(ValueError, match=message):
            spec.check(make_spec(), corpus.counts)
    bind(SPEC).check(make_spec(), corpus.counts)
    Spec(context_len=64, num_documents=10**6).check(make_spec(), None)  # LongCrawl64 does not say
    short = GPT2LMHeadModel(GPT2Config(vocab_size=512, n_embd=32, n_layer=1, n_head=2, n_positions=64)).eval()
    with pytest.raises(ValueError, match="300 tokens are more than the 64 positions that the model has learned; lower"):
        measure.evaluate(in_memory(short), bind(SPEC), context)
    with pytest.raises(ValueError, match="--corpus"):
        measure.evaluate(in_memory(llama()), bind(SPEC), Context())
    with pytest.raises(ValueError, match="is of corpus 0123, but"):
        measure.evaluate(in_memory(llama()), replace(bind(SPEC), corpus="0123"), context)
