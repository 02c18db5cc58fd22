"""Eviction: counts and losses against a plain fp64 computation, what is gone stays gone, and the promise is kept."""

import math

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from beyond.eval.cache_eviction import measure
from beyond.eval.cache_eviction.spec import Spec
from data.sampler import bos_roll
from eval.pruning.measure import attending
from models.build import build_model
from models.forgetting_transformer.module import ForgettingAttention, gated_layers

SPEC = Spec(context_len=200, num_documents=3, depths=4)


def fox(spec):
    """Gates that vary from token to token: of each layer one head forgets within some tokens, one within some ten."""
    torch.manual_seed(0)
    model = build_model(spec).eval()
    for layer in gated_layers(model).values():
        with torch.no_grad():
            layer.fgate_proj.weight.normal_(0, 0.1)
            layer.fgate_proj.bias.copy_(torch.tensor([0.0, 2.5]))
    return model


@pytest.fixture(params=["pro", "llama"])
def model(request, tiny_fox):
    plain = dict.fromkeys(("use_k_shift", "use_v_shift", "qk_norm", "use_output_gate", "use_output_norm"), False)
    return fox(tiny_fox(**({} if request.param == "pro" else plain)))


def plainly(model, target_T, bos_id, log_tolerance):
    """Return the loss of one document and the matrices of kept keys (H, Q, T) by layer, in fp64 with whole matrices."""
    kept = {}

    def attend(layer, q, k, v, log_fgate):
        q_HTD, k_HTD, v_HTD = (x[0].transpose(0, 1).double() for x in (q, k, v))
        cum_HT = log_fgate[0].double().T.cumsum(-1)
        decay_HQT = cum_HT[:, :, None] - cum_HT[:, None, :]
        head_dim, length = q.shape[-1], q.shape[1]
        if layer.spec.qk_norm:
            weights = [norm.weight.abs().max().double() for norm in (layer.q_norm, layer.k_norm)]
            bound_H = math.sqrt(head_dim) * weights[0] * weights[1] * torch.ones(len(cum_HT))
        else:
            bound_H = q_HTD.norm(dim=-1).amax(-1) * k_HTD.norm(dim=-1).amax(-1) / math.sqrt(head_dim)
        threshold_H = -2 * bound_H - math.log(length) + log_tolerance
        causal_QT = torch.ones(length, length, dtype=torch.bool).tril()
        kept[layer.layer_idx] = (decay_HQT >= threshold_H[:, None, None]) & causal_QT
        logits_HQT = q_HTD @ k_HTD.transpose(1, 2) / math.sqrt(head_dim) + decay_HQT
        weights_HQT = logits_HQT.masked_fill(~kept[layer.layer_idx], -math.inf).softmax(-1)
        return (weights_HQT @ v_HTD).transpose(0, 1)[None].to(q.dtype)

    inputs_BT, targets_BT = bos_roll(target_T[None], bos_id)
    with torch.no_grad(), attending(gated_layers(model), attend):
        logits_TV = model(input_ids=inputs_BT, use_cache=False).logits[0].double()
    return float(F.cross_entropy(logits_TV, targets_BT[0])), kept


def test_counts_and_losses_are_those_of_a_plain_computation(model, in_memory, bind, corpus, context):
    rows = SPEC.SCHEMA.validate(measure.evaluate(in_memory(model), bind(SPEC), context))
    documents = corpus.heldout.read(slice(0, 3), 0, 200)
    found = [plainly(model, target_T, corpus.spec.bos_id, -10.0) for target_T in documents]
    keys = rows[rows["quantity"] == "keys"].set_index(["layer", "head", "position"])["value"]
    assert sorted(set(keys.index.get_level_values("position"))) == [50, 100, 150, 200]
    for (layer, head, position), value in keys.items():
        assert value == pytest.approx(np.mean([int(kept[layer][head, position - 1].sum()) for _, kept in found]))
    assert keys.min() < 40 and keys.max() > 60, "heads that forget and heads that remember"
    losses = rows[rows["quantity"] == "loss_evicted"].sort_values("document")["value"]
    assert losses.to_numpy() == pytest.approx([loss for loss, _ in found], abs=2e-6)
    sizes = rows[rows["quantity"] == "bytes"].set_index(["document", "position"])["value"]
    for (document, position), value in sizes.items():
        count = sum(int(kept[:, position - 1].sum()) for kept in found[document][1].values())
        assert value == count * (2 * 32 * 4 + 4)
    whole = rows[rows["quantity"] == "bytes_of_all"].set_index("position")["value"]
    assert whole.to_dict() == {position: 2 * 2 * position * 2 * 32 * 4 for position in (50, 100, 150, 200)}
    assert context.extras["sources"] == corpus.heldout_sources[:3]


def test_the_promise_is_kept_and_a_broken_one_is_seen(model, in_memory, bind, context, monkeypatch):
    rows = measure.evaluate(in_memory(model), bind(SPEC), context)
    losses = rows.dropna().pivot_table(index="document", columns="quantity", values="value").loc[0:, ["loss", "loss_evicted"]]
    # a share of e^-10 of each of four heads, with values and logits of this size
    assert losses["loss_evicted"].to_numpy() == pytest.approx(losses["loss"].to_numpy(), abs=math.exp(-10))
    dropped = rows[rows["quantity"] == "dropped"]["value"]
    assert len(dropped) == 4 and 0 < dropped.max() < math.exp(-10)
    threshold = ForgettingAttention.threshold
    monkeypatch.setattr(ForgettingAttention, "threshold", lambda *given: threshold(*given) * 0.1)
    rows = measure.evaluate(in_memory(model), bind(SPEC), context)
    changed = rows[rows["quantity"].isin(["loss", "loss_evicted"])].pivot(index="document", columns="quantity", values="value")
    assert (abs(changed["loss_evicted"] - changed["loss"]) > math.exp(-10)).all()
    assert changed["loss"].tolist() == losses["loss"].tolist()
    assert rows[rows["quantity"] == "dropped"]["value"].max() > 0.01
