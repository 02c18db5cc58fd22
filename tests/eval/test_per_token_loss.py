"""Losses by position and by context: against plain computations, resumed midway, and on what does not fit."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from transformers import GPT2Config, GPT2LMHeadModel

from eval.per_token_loss import measure
from eval.per_token_loss.spec import Spec
from eval.runner.context import Context
from eval.runner.partial import Partial
from models.build import build_model
from tests.eval.oracles import llama, token_logps

SPEC = Spec(context_len=300, num_documents=4)


@pytest.mark.parametrize("name", ["llama", "fox"])
def test_equals_plain_computation(name, tiny_fox, in_memory, bind, corpus, context):
    torch.manual_seed(0)
    model = llama() if name == "llama" else build_model(tiny_fox()).eval()
    rows = SPEC.SCHEMA.validate(measure.evaluate(in_memory(model), bind(SPEC), context))
    tokens = corpus.heldout.read(slice(0, 4), 0, 300).astype(np.int64)
    expected = np.stack([-token_logps(model, [corpus.spec.bos_id, *document]).numpy() for document in tokens])
    curve, bands = rows[rows["document"] == -1], rows[rows["document"] >= 0]
    assert curve["position"].tolist() == list(range(1, 301)) and set(curve["num_documents"]) == {4}
    np.testing.assert_allclose(curve["loss"], expected.mean(0), rtol=0, atol=2e-5)
    assert len(bands) == 4 * 16 and set(bands["width"]) == {18, 19} and bands.groupby("document")["width"].sum().eq(300).all()
    for row in bands.itertuples():
        assert row.loss == pytest.approx(expected[row.document, row.position - row.width : row.position].mean(), abs=2e-5)
    counts = np.bincount(tokens.reshape(-1))
    share = counts[counts > 0] / counts.sum()
    assert context.extras["unigram_entropy"] == pytest.approx(-(share * np.log(share)).sum())
    perplexity = np.exp(expected.mean(0)[:128].mean())
    assert f"first 128 tokens: {perplexity:.3f} " in SPEC.summary(rows)[0]


def test_fewer_positions_than_bands(in_memory, bind, context):
    rows = measure.evaluate(in_memory(llama()), bind(Spec(context_len=5, num_documents=1)), context)
    curve, bands = rows[rows["document"] == -1], rows[rows["document"] == 0]
    assert bands["loss"].tolist() == pytest.approx(curve["loss"].tolist()) and (bands["width"] == 1).all()


def test_resumed_midway_gives_identical_rows(in_memory, bind, corpus, tmp_path, monkeypatch):
    monkeypatch.setattr(measure, "SECONDS_BETWEEN_SAVES", -1.0)
    model, spec, path, read = llama(), bind(SPEC), tmp_path / "x.partial.jsonl", []
    whole = measure.evaluate(in_memory(model), spec, Context(corpus=corpus))

    def interrupt(module, given):
        read.append(1)
        if len(read) == 3:
            raise KeyboardInterrupt

    model.get_input_embeddings().register_forward_pre_hook(interrupt)
    with pytest.raises(KeyboardInterrupt):
        measure.evaluate(in_memory(model), spec, Context(corpus=corpus, partial=Partial(path, "id")))
    rows = measure.evaluate(in_memory(model), spec, Context(corpus=corpus, partial=Partial(path, "id")))
    assert len(read) == 3 + 2 and rows.equals(whole)
    assert Partial(path, "another model").load_state() is None


def test_bf16_is_autocast(in_memory, bind, tiny_fox, context):
    torch.manual_seed(0)
    loaded, spec = in_memory(build_model(tiny_fox()).eval()), bind(SPEC)
    exact, coarse = (measure.evaluate(loaded, replace(spec, precision=each), context)["loss"] for each in ("fp32", "bf16"))
    assert 1e-5 < (exact - coarse).abs().max() < 0.1


def test_what_has_no_loss_is_refused(in_memory, bind, context):
    broken = llama()
    broken.lm_head.weight.data[3] = torch.nan
    short = GPT2LMHeadModel(GPT2Config(vocab_size=512, n_embd=32, n_layer=1, n_head=2, n_positions=64)).eval()
    for model in (broken, short):
        with pytest.raises(ValueError):  # noqa: PT011
            measure.evaluate(in_memory(model), bind(SPEC), context)
