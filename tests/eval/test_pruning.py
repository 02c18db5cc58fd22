"""Pruning: counted against the definition, tile by tile; nothing is lost; and a tolerance that drops too much is noticed."""

import math

import numpy as np
import pytest
import torch

from eval.pruning import measure
from eval.pruning.spec import Spec
from kernels.forgetting_attention import pruning_threshold
from models.build import build_model
from models.forgetting_transformer import module
from tests.eval.oracles import token_logps

SMALL = {"context_len": 256, "num_documents": 2, "decoded_tokens": 8}


@pytest.fixture
def model(tiny_fox):
    """Decay times 2 and 64 tokens on the two heads of each layer."""
    torch.manual_seed(0)
    return build_model(tiny_fox(forget_gate="fixed", decay_time_min=2.0, decay_time_max=64.0)).eval()


def by_definition(decay_time: float, queries: range, keys: int, tile: int, threshold: float) -> int:
    """First key tile that a tile of queries computes: D of (first query, last key) is at least the threshold."""
    kept = [j for j in range(queries.start // tile) if -(queries.start - (j * tile + tile - 1)) / decay_time >= threshold]
    return min([*kept, queries.start // tile])


@pytest.mark.parametrize("tile", [16, 128])
def test_counts_are_those_of_the_definition(model, in_memory, bind, context, tile):
    rows = measure.evaluate(in_memory(model), bind(Spec(**SMALL, tile=tile)), context)
    threshold, skipped = pruning_threshold(math.sqrt(32), 256), []
    for layer, (head, time) in ((layer, each) for layer in (0, 1) for each in enumerate((2.0, 64.0))):
        own = rows[(rows["layer"] == layer) & (rows["head"] == head)].sort_values("position").groupby("quantity")["value"]
        first = [by_definition(time, range(start, start + tile), 256, tile, threshold) for start in range(0, 256, tile)]
        assert own.get_group("first_tile").tolist() == first
        share = sum(first) / np.arange(1, len(first) + 1).sum()
        assert own.get_group("tiles_pruned").tolist() == pytest.approx([share] * 2)
        read = []
        for keys in range(249, 257):  # a query alone is a tile of its own
            limit = pruning_threshold(math.sqrt(32), keys)
            gone = sum(-(keys - 1 - (j * tile + tile - 1)) / time < limit for j in range((keys - 1) // tile))
            read.append(keys - tile * gone)
        assert own.get_group("keys_read").tolist() == pytest.approx([np.mean(read)] * 2)
        skipped.append(sum(first))
    assert (skipped[0] > 0 or tile == 128) and skipped[1] == 0  # e^(-256 / 64) is far from the threshold


def test_the_tight_rule_skips_more_and_keeps_the_promise(tiny_fox, in_memory, bind, context):
    """Both rules on the same weights; single tokens are decoded by the paper's rule. A model that was trained without pruning
    is pruned by either, and left as it was."""
    share, keys = {}, {}
    for tightly, how in ((False, {}), (True, {}), ("asked", dict(rule="tight"))):
        torch.manual_seed(0)
        gates = dict(forget_gate="fixed", decay_time_min=2.0, decay_time_max=24.0)
        own = {} if how else dict(prune_log_tolerance=-10.0, prune_tightly=tightly)
        model = build_model(tiny_fox(**gates, **own)).eval()
        rows = measure.evaluate(in_memory(model), bind(Spec(**SMALL, tile=16, **how)), context)
        assert {layer.attn.spec.prune_tightly for layer in model.base_model.layers} == {tightly is True}
        of = rows.groupby("quantity")["value"]
        share[tightly], keys[tightly] = of.mean()["tiles_pruned"], of.mean()["keys_read"]
        assert of.mean()["loss_pruned"] == pytest.approx(of.mean()["loss"], abs=3e-5)
        assert of.max()["dropped"] < math.exp(-10)
    assert share[True] > share[False] + 0.05
    assert keys[True] == keys[False] == keys["asked"] and share["asked"] == share[True]


def test_losses_are_plain_ones_and_a_broken_promise_is_seen(model, in_memory, bind, corpus, context, monkeypatch):
    def evaluated():
        rows = measure.evaluate(in_memory(model), bind(Spec(**SMALL, tile=16)), context)
        losses = rows[rows["layer"] < 0].pivot(index="document", columns="quantity", values="value")
        return losses, rows[rows["quantity"] == "dropped"]["value"].max()

    losses, dropped = evaluated()
    documents = corpus.heldout.read(slice(0, 2), 0, 256).astype(np.int64)
    plain = [-token_logps(model, [corpus.spec.bos_id, *document]) for document in documents]
    for ending in ("", "_pruned"):
        assert losses[f"loss{ending}"].tolist() == pytest.approx([float(loss.mean()) for loss in plain], abs=1e-5)
        assert losses[f"decoded_loss{ending}"].tolist() == pytest.approx([float(loss[-8:].mean()) for loss in plain], abs=1e-5)
    assert 0 < dropped < math.exp(-10)
    # A threshold that gives away nearly all is seen in every number.
    monkeypatch.setattr(module, "pruning_threshold", lambda *given: pruning_threshold(*given) + 25.0)
    losses, dropped = evaluated()
    for name in ("loss", "decoded_loss"):
        assert (abs(losses[f"{name}_pruned"] - losses[name]) > 3e-5).all()
    assert dropped > 0.01


def test_the_most_that_any_query_loses_is_told_of_each_head(model, corpus, context):
    """Of all keys but the last 16 of each query's tile, against probabilities from whole matrices."""
    layers, target = measure.gated_layers(model), corpus.heldout.read(slice(0, 1), 0, 64)[0].astype(np.int64)
    inputs, seen = [corpus.spec.bos_id, *target[:-1]], {}

    def skip(layer, q, k, log_fgate):
        decay = log_fgate[0].double().T.cumsum(-1)
        logits = torch.einsum("qhd,khd->hqk", q[0].double(), k[0].double()) / math.sqrt(q.shape[-1])
        logits += decay[:, :, None] - decay[:, None, :]
        share = logits.masked_fill(~torch.ones(64, 64).tril().bool(), -math.inf).softmax(-1)
        before = torch.arange(64)[None, :] < torch.arange(64)[:, None] // 16 * 16
        seen.update({(layer.layer_idx, head): float((each * before).sum(-1).max()) for head, each in enumerate(share)})
        return torch.arange(4, dtype=torch.int32).expand(1, 2, 4)

    found = measure.most_dropped(model, layers, target, corpus.spec.bos_id, context.compute("fp32"), skip, 16)
    assert len(inputs) == 64 and found == pytest.approx(seen) and len(found) == 4
