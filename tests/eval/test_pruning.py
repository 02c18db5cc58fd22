"""Pruning: counted against the definition, tile by tile; nothing is lost; and a tolerance that drops too much is noticed."""

import math

import numpy as np
import pytest
import torch

from eval.attention_speed.spec import Spec as AttentionSpeed
from eval.pruning import measure
from eval.pruning.spec import Spec
from eval.shell.context import Context
from kernels.forgetting_attention import pruning_threshold
from models.build import build_model
from models.forgetting_transformer import module

SMALL = {"context_len": 256, "num_documents": 2, "decoded_tokens": 8}


@pytest.fixture
def model(tiny_fox):
    """Decay times 2 and 64 tokens on the two heads of each layer."""
    torch.manual_seed(0)
    return build_model(tiny_fox(forget_gate="fixed", decay_time_min=2.0, decay_time_max=64.0)).eval()


def by_definition(decay_time: float, length: int, tile: int, threshold: float) -> np.ndarray:
    """First key tile that each query tile computes: D of (first query, last key) is at least the threshold."""
    first = []
    for block in range(length // tile):
        keep = [j for j in range(block) if -(block * tile - (j * tile + tile - 1)) / decay_time >= threshold]
        first.append(min([*keep, block]))
    return np.array(first)


@pytest.mark.parametrize("tile", [16, 128])
def test_counts_are_those_of_the_definition(model, in_memory, bind, context, tile):
    rows = measure.evaluate(in_memory(model), bind(Spec(**SMALL, tile=tile)), context)
    threshold = pruning_threshold(math.sqrt(32), 256)
    skipped = []
    for layer in (0, 1):
        for head, time in ((0, 2.0), (1, 64.0)):
            own = rows[(rows["layer"] == layer) & (rows["head"] == head)]
            first = own[own["quantity"] == "first_tile"].sort_values("position")["value"].to_numpy()
            assert first.tolist() == by_definition(time, 256, tile, threshold).tolist()
            shares = own.loc[own["quantity"] == "tiles_pruned", "value"]
            assert shares.tolist() == pytest.approx([first.sum() / np.arange(1, len(first) + 1).sum()] * 2)
            keys = own.loc[own["quantity"] == "keys_read", "value"]
            # after 249 to 256 keys the threshold is that of so many, a hair's breadth from that of 256
            assert keys.iloc[0] == pytest.approx(min(252.5, 2 * 26.5 + tile / 2 if time == 2.0 else 252.5), abs=tile / 2 + 8)
            skipped.append(float(first.sum()))
    assert skipped[0] > 0 or tile == 128
    assert skipped[1] == 0  # e^(-256 / 64) is far from the threshold
    assert len(rows[rows["quantity"] == "keys_read"]) == 2 * 2 * 2
    assert context.extras["tile"] == tile


def test_the_tight_rule_skips_more_and_keeps_the_promise(tiny_fox, in_memory, bind, context):
    """Try both rules on the same weights; single tokens are decoded by the paper's rule. A model that was trained without
    pruning is pruned by either, and left as it was."""
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


def test_nothing_is_lost_in_a_pass_or_in_decoding(model, in_memory, bind, context, monkeypatch):
    rows = measure.evaluate(in_memory(model), bind(Spec(**SMALL, tile=16)), context)
    losses = rows[rows["layer"] < 0].pivot(index="document", columns="quantity", values="value")
    assert losses["loss_pruned"].to_numpy() == pytest.approx(losses["loss"].to_numpy(), abs=3e-6)
    assert losses["decoded_loss_pruned"].to_numpy() == pytest.approx(losses["decoded_loss"].to_numpy(), abs=3e-6)
    dropped = rows[rows["quantity"] == "dropped"]["value"]
    assert 0 < dropped.max() < math.exp(-10)
    # A threshold that gives away nearly all is seen in every number.
    monkeypatch.setattr(module, "pruning_threshold", lambda *given: pruning_threshold(*given) + 25.0)
    rows = measure.evaluate(in_memory(model), bind(Spec(**SMALL, tile=16)), context)
    losses = rows[rows["layer"] < 0].pivot(index="document", columns="quantity", values="value")
    assert (abs(losses["loss_pruned"] - losses["loss"]) > 3e-5).all()
    assert (abs(losses["decoded_loss_pruned"] - losses["decoded_loss"]) > 3e-5).all()
    assert rows[rows["quantity"] == "dropped"]["value"].max() > 0.01


def test_decoding_ends_where_the_whole_pass_does(model, in_memory, bind, context, corpus):
    target = corpus.heldout.read(slice(0, 1), 0, 64)[0].astype(np.int64)
    compute = context.compute("fp32")
    with measure.attending({}, measure.attend_whole):
        whole = measure.document_losses(model, target, corpus.spec.bos_id, compute, 0)
    assert measure._decoded(model, target, corpus.spec.bos_id, 5, compute) == pytest.approx(whole[-5:].mean(), abs=1e-5)


def test_what_cannot_be_pruned_is_refused(tiny_fox, in_memory, bind, context, make_spec):
    ungated = tiny_fox(forget_gate="none")
    with pytest.raises(ValueError, match="forget gates"):
        measure.evaluate(in_memory(build_model(ungated)), bind(Spec(**SMALL)), context)
    for spec in (Spec(**SMALL), AttentionSpeed(seq_len=64)):
        with pytest.raises(ValueError, match="fox_pro has no forget gates: choose a FoX"):
            spec.check(make_spec(ungated), None)
    with pytest.raises(ValueError, match="decoded_tokens 64 must be below"):
        Spec(context_len=64, decoded_tokens=64)
    with pytest.raises(ValueError, match="--corpus"):
        measure.evaluate(in_memory(build_model(tiny_fox())), bind(Spec(**SMALL)), Context())


def test_the_most_that_any_query_loses_is_told_of_each_head(model, corpus, context, monkeypatch):
    """The first of two heads loses a half at its third query, the second a tenth at its last."""
    left = torch.zeros(1, 2, 64, dtype=torch.float64)
    left[0, 0, 2], left[0, 0, 5], left[0, 1, -1], left[0, 1, 7] = math.log(0.5), math.log(0.75), math.log(0.9), 0.25

    def played(q, k, v, log_fgate, count=None, tile=None):
        assert q.dtype == torch.float64 and (count is None) == (tile is None)
        return v, torch.zeros_like(left) if count is None else left

    monkeypatch.setattr(measure, "attention_without_tiles", played)
    layers, tokens = measure.gated_layers(model), corpus.heldout.read(slice(0, 1), 0, 64)[0]
    given = (corpus.spec.bos_id, context.compute("fp32"), lambda *_: torch.ones(1, 2, 4), 16)
    found = measure.most_dropped(model, layers, tokens, *given)
    assert found == pytest.approx({(layer, head): lost for layer in layers for head, lost in ((0, 0.5), (1, 0.1))})
