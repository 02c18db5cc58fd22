"""Use of context: against a plain computation of each window."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from eval.context_use import measure
from eval.context_use.spec import Spec
from models.build import build_model
from tests.eval.oracles import llama, token_logps

SPEC = Spec(contexts=(8, 32, 110, 184), places=(200, 120), targets=16, num_documents=3)


@pytest.mark.parametrize("name", ["llama", "fox"])
def test_equals_plain_computation(name, tiny_fox, in_memory, bind, corpus, context):
    torch.manual_seed(0)
    model = llama() if name == "llama" else build_model(tiny_fox()).eval()
    rows = SPEC.SCHEMA.validate(measure.evaluate(in_memory(model), bind(SPEC), context))
    places = rows[rows["document"] == 0].groupby("context")["place"].agg(set).to_dict()
    assert places == {8: {120, 200}, 32: {120, 200}, 110: {200}, 184: {200}}, "what does not fit before 120 is left out"
    tokens = corpus.heldout.read(slice(0, 3), 0, 200).astype(np.int64)
    for row in rows.itertuples():
        window = tokens[row.document, row.place - 16 - row.context : row.place]
        expected = -token_logps(model, [corpus.spec.bos_id, *window])[-16:].mean()
        assert row.loss == pytest.approx(float(expected), abs=2e-5)
    assert context.extras["sources"] == corpus.heldout_sources[:3]
    whole = rows[rows["place"] == 200].groupby("context")["loss"].mean()
    assert f"given 184 tokens: loss {whole[184]:.4f} " in SPEC.summary(rows)[-1]


def test_places_hold_their_contexts(in_memory, bind, context):
    for changes in (dict(contexts=()), dict(places=()), dict(places=(200, 20)), dict(places=(190,))):
        with pytest.raises(ValueError, match=r"place|name at least one"):
            replace(SPEC, **changes)
    broken = llama()
    broken.lm_head.weight.data[3] = torch.nan
    with pytest.raises(ValueError, match="nan"):
        measure.evaluate(in_memory(broken), bind(SPEC), context)
