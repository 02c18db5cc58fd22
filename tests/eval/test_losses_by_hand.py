"""Losses by token, pruned, with a small cache, by context, and maps of gates, with models and texts played."""

import itertools
import math
from contextlib import nullcontext, suppress
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from eval.cache_eviction import measure as cache_eviction
from eval.context_use import measure as context_use
from eval.gate_maps import measure as gate_maps
from eval.per_token_loss import measure as per_token_loss
from eval.pruning import measure as pruning
from eval.shell.context import Compute, Context
from eval.shell.partial import Partial
from tests.eval.played import LOADED, Split, of


@pytest.mark.parametrize(("documents", "done"), [(4, 0), (4, 1), (2, 1), (1, 0)])
def test_losses_are_summed_saved_and_timed(documents, done, opened, monkeypatch, tmp_path):
    """Sums are kept at an interrupt, and every so many seconds since they were kept; the first document's time is no time."""
    spec, checked, saves = of("per_token_loss", context_len=8, num_documents=documents), [], []
    monkeypatch.setattr(per_token_loss, "check_positions", lambda model, *given: checked.append(given))
    monkeypatch.setattr(per_token_loss, "vocab_size", lambda model: 7)
    clock, ticks = iter([0, 21, 21, 30, 42, 42]), itertools.count()
    monkeypatch.setattr(
        per_token_loss, "time", SimpleNamespace(monotonic=lambda: next(clock), perf_counter=lambda: float(next(ticks)))
    )

    def losses(model, target_T, bos_id, compute, document):
        assert (bos_id, compute) == (6, Compute("cuda:1", "bf16"))
        assert target_T.tolist() == Split().read(slice(document, document + 1), 0, 8)[0].tolist()
        if document == 3 and stop:
            raise KeyboardInterrupt
        return np.full(8, float(document))

    monkeypatch.setattr(per_token_loss, "document_losses", losses)
    context = Context(device="cuda:1", train_seq_len=5, partial=Partial(tmp_path / "a.jsonl", "me"))
    save = per_token_loss._Sums.save
    monkeypatch.setattr(per_token_loss._Sums, "save", lambda self: saves.append(self.done) or save(self))
    stop = documents == 4
    if done:
        before = per_token_loss._Sums(spec, context, 7)
        before.add(Split().read(slice(0, 1), 0, 8)[0], np.zeros(8))
        save(before)
    if stop:
        with pytest.raises(KeyboardInterrupt):
            per_token_loss.evaluate(LOADED, spec, context)
        assert saves == ([1, 3, 3] if not done else [2, 3]) and opened[0] == ("per-token loss", 4, done)
        stop, clock = False, iter([0, 0, 0])
    rows = per_token_loss.evaluate(LOADED, spec, context)
    assert rows["loss"][0] == (documents - 1) / 2 and checked[-1] == (8, "lower --context-len")
    assert context.extras.pop("unigram_entropy") > 0
    assert context.extras.pop("seconds_per_document", 1.0) == 1.0
    assert context.extras == dict(train_seq_len=5, context_len=8, sources=[*range(documents)])


def test_the_time_of_a_document_is_the_median_of_the_later_ones(opened, monkeypatch):
    monkeypatch.setattr(per_token_loss, "vocab_size", lambda model: 7)
    ticks = iter([0.0, 9.0, 0.0, 1.0, 0.0, 2.0, 0.0, 7.0])
    monkeypatch.setattr(per_token_loss, "time", SimpleNamespace(monotonic=lambda: 0, perf_counter=lambda: next(ticks)))
    monkeypatch.setattr(per_token_loss, "document_losses", lambda *given: np.ones(8))
    context = Context()
    per_token_loss.evaluate(LOADED, of("per_token_loss", context_len=8, num_documents=4), context)
    assert context.extras["seconds_per_document"] == 2.0


@pytest.mark.parametrize(("losses", "why"), [
    ([1.0, math.inf, math.nan], "document 5: the loss of token 2 is inf"),
    ([1.0, 2.0, -math.inf], "the loss of token 3 is -inf"),
    (torch.OutOfMemoryError, "out of memory on cpu with one document of 3 tokens; lower --context-len"),
])  # fmt: skip
def test_losses_that_are_none_are_refused(losses, why, monkeypatch):
    def given(*_):
        if losses is torch.OutOfMemoryError:
            raise losses
        return torch.tensor([losses])

    monkeypatch.setattr(per_token_loss, "token_losses", given)
    with pytest.raises(ValueError, match=why):
        per_token_loss.document_losses(None, np.array([1, 2, 3]), 0, Compute(), 5)


class Layer:
    """Attention that notes what it is asked for."""

    spec = SimpleNamespace(num_heads=2)

    def __init__(self, place=0):
        self.layer_idx, self.asked = place, []

    def pruned_tiles(self, q, k, log_fgate, tolerance, tile):
        self.asked.append(("tiles", tolerance, tile))
        return torch.ones(1, 2, 2, dtype=torch.int32)

    def pruning(self, q, k, tolerance):
        self.asked.append(("pruning", tolerance))
        return {"adaptive_threshold": "own"}

    def threshold(self, q, k, tolerance):
        self.asked.append(("threshold", tolerance))
        return torch.tensor(-1.0)


TENSORS = (torch.zeros(1, 8, 2, 4), torch.zeros(1, 8, 2, 4), torch.zeros(1, 8, 2, 6, dtype=torch.float16), torch.zeros(1, 8, 2))


@pytest.mark.parametrize("tile", [pruning.TILE, 4])
def test_pruned_attention_is_that_of_the_tolerance_and_the_tile(tile, monkeypatch):
    """The kernels' own where the tile is theirs."""
    seen, layer = [], Layer()
    monkeypatch.setattr(pruning, "forgetting_attention", lambda *tensors, **how: seen.append(how))
    monkeypatch.setattr(pruning, "attention_without_tiles", lambda *given: seen.append(given[4:]) or [None])
    pruning.Pruned(of("pruning", context_len=8, decoded_tokens=2, tile=tile, log_tolerance=-3.0)).attend(layer, *TENSORS)
    if tile == 4:
        assert layer.asked == [("tiles", -3.0, 4)] and seen[0][1] == 4
    else:
        assert layer.asked == [("tiles", -3.0, 128), ("pruning", -3.0)] and seen == [{"adaptive_threshold": "own"}]


def test_layers_attend_as_before_afterwards():
    """Whatever came between."""
    layer = Layer()
    own = dict(vars(layer))
    with suppress(KeyError), pruning.attending({0: layer}, lambda *given: given):
        assert layer.attend(1, 2, 3, 4, 5) == (layer, 1, 2, 3, 4)
        raise KeyError
    assert vars(layer) == own


def test_every_document_is_read_whole_and_pruned(opened, monkeypatch):
    layers, read, asked = {0: Layer(0)}, [], []
    monkeypatch.setattr(pruning, "pruning", lambda found, *how: nullcontext(asked.append((*found, *how))))
    monkeypatch.setattr(pruning, "gated_layers", lambda model: layers)
    monkeypatch.setattr(pruning, "attending", lambda layers, attend: nullcontext())

    def dropped(model, layers, target_T, bos_id, compute, skip, tile):
        read.append((target_T[0], compute, tile, skip(layers[0], *TENSORS[:3]).shape))
        return {(0, 1): 0.5}

    monkeypatch.setattr(pruning, "most_dropped", dropped)
    monkeypatch.setattr(
        pruning, "document_losses", lambda model, target_T, *given: read.append(target_T[0]) or np.ones(8) * target_T[0]
    )
    monkeypatch.setattr(pruning, "_decoded", lambda model, target_T, bos_id, count, compute: 100 * count + target_T[0])
    context = Context()
    spec = of("pruning", context_len=8, num_documents=2, decoded_tokens=3, tile=4, log_tolerance=-3.0)
    rows = pruning.evaluate(LOADED, spec, context)
    assert read == [(0, Compute("cpu", "bf16"), 4, (1, 2, 2)), 0, 0, 3, 3] and layers[0].asked == [("tiles", -3.0, 4)]
    assert asked == [(layers[0], -3.0, None)]
    assert context.extras == dict(context_len=8, tile=4, decoded_tokens=3, log_tolerance=-3.0)
    found = [(row.quantity, row.document, row.layer, row.head, row.value) for row in rows.itertuples()]
    assert found == [("dropped", 0, 0, 1, 0.5), *(
        (f"{name}{ending}", document, -1, -1, value + first)
        for document, first in ((0, 0), (1, 3)) for ending in ("", "_pruned")
        for name, value in (("loss", 0.0), ("decoded_loss", 300.0))
    )]  # fmt: skip


def test_no_loss_is_less_than_none_and_sums_are_in_fp64(monkeypatch):
    """A query that loses nothing may seem to gain by rounding."""
    seen = []

    def attended(q, k, v, log_fgate, *how):
        seen.append([x.dtype for x in (q, k, v)])
        return v, torch.full((1, 2, 8), 1e-3 * len(how))

    monkeypatch.setattr(pruning, "attention_without_tiles", attended)
    monkeypatch.setattr(pruning, "_inputs", lambda *given: None)
    layer = Layer(3)

    def model(**given):
        layer.attend(*TENSORS, None)

    found = pruning.most_dropped(model, {3: layer}, None, 0, Compute(), lambda *given: None, 4)
    assert found == {(3, 0): 0.0, (3, 1): 0.0} and seen == [[torch.float64] * 3] * 2


def test_bytes_of_a_key_are_those_of_key_value_and_gate(monkeypatch):
    """Each in its own width and precision; keys that remain after a position are those that its own query has."""
    evicting = cache_eviction.Evicting(of("cache_eviction", context_len=8, depths=2, log_tolerance=-3.0))
    gone = torch.arange(16).reshape(1, 2, 8) // 3
    monkeypatch.setattr(cache_eviction, "skipped_tiles", lambda q, k, log_fgate, tile, adaptive_threshold: gone)
    monkeypatch.setattr(cache_eviction, "attention_without_tiles", lambda *given, tile: ["o"])
    layer = Layer()
    assert evicting.attend(layer, *TENSORS) == "o" and layer.asked == [("threshold", -3.0)]
    assert (evicting.whole_bytes, evicting.key_bytes) == (4 * 4 + 6 * 2, 4 * 4 + 6 * 2 + 4)
    assert evicting.keys[0].tolist() == [[4 - 1, 8 - 2], [4 - 3, 8 - 5]]


def test_of_eviction_the_first_document_tells_what_is_dropped(opened, monkeypatch):
    monkeypatch.setattr(cache_eviction, "gated_layers", lambda model: {0: Layer()})
    monkeypatch.setattr(cache_eviction, "attending", lambda layers, attend: nullcontext())
    monkeypatch.setattr(cache_eviction, "skipped_tiles", lambda *given, **how: how)
    monkeypatch.setattr(cache_eviction, "_counts", lambda evicting, layers: [])
    read = []

    def dropped(model, layers, target_T, bos_id, compute, skip, tile):
        read.append((target_T[0], tile, skip(layers[0], *TENSORS[:3])))
        return {(0, 1): 0.5}

    monkeypatch.setattr(cache_eviction, "most_dropped", dropped)
    monkeypatch.setattr(cache_eviction, "document_losses", lambda model, target_T, *given: np.ones(8) * given[-1])
    context = Context()
    rows = cache_eviction.evaluate(
        LOADED, of("cache_eviction", context_len=8, num_documents=2, depths=2, log_tolerance=-3.0), context
    )
    assert read == [(0, 1, {"tile": 1, "adaptive_threshold": torch.tensor(-1.0)})]
    assert rows["quantity"].tolist() == ["dropped", *["loss", "loss_evicted"] * 2] and rows["value"].tolist() == [
        0.5,
        0,
        0,
        1,
        1,
    ]
    assert context.extras == dict(context_len=8, log_tolerance=-3.0, sources=[0, 1])


def test_windows_of_a_document_are_told_apart_and_fit_into_the_positions(opened, monkeypatch):
    """Also where two places have the same contexts; a loss that is not finite is none."""
    checked, asked = [], []
    monkeypatch.setattr(context_use, "check_positions", lambda model, *given: checked.append(given))
    monkeypatch.setattr(context_use, "token_losses", lambda model, inputs, targets: targets.float() + added[0])
    spec = of("context_use", contexts=(4, 8), places=(40, 20), targets=2, num_documents=2)

    def recorded(what, lengths, context, compute, run):
        asked.append((what, lengths, compute))
        return {key: run([key])[0] for key in lengths}

    monkeypatch.setattr(context_use, "recorded", recorded)
    added, context = [0.0], Context()
    rows = context_use.evaluate(LOADED, spec, context)
    tokens = Split().read(slice(0, 2), 0, 40)
    assert rows["loss"].tolist() == [tokens[row.document, row.place - 2 : row.place].mean() for row in rows.itertuples()]
    ((what, lengths, compute),) = asked
    assert (what, len(lengths), set(lengths.values()), compute) == ("context use", 8, {6, 10}, Compute("cpu", "bf16"))
    assert checked == [(10, "ask for shorter --contexts")] and context.extras == {"sources": [0, 1]}
    for added[0] in (math.inf, math.nan):
        with pytest.raises(ValueError, match="held-out document 0: the mean loss of the targets before 40, given 4 tokens, is"):
            context_use.evaluate(LOADED, spec, Context())


@pytest.mark.parametrize(("layers", "heads", "count", "shown"), [
    ((), (), 9, [(0, 1), (1, 1), (0, 0), (1, 0)]), ((1, 1), (), 2, [(1, 1), (1, 0)]), ((), (0, 0), 2, [(0, 0), (1, 0)]),
    ((), (), 3, [(0, 1), (1, 1), (1, 0)]), ((), (), 1, [(0, 1)]),
])  # fmt: skip
def test_maps_are_of_the_heads_that_are_asked_for(layers, heads, count, shown, opened, monkeypatch):
    """Each once; of gates that forget within 2 and 8 tokens, the same in both layers."""
    own, passes = {0: Layer(0), 1: Layer(1)}, []
    decay = -torch.log(torch.tensor(2.0)) / torch.tensor([8.0, 2.0])

    def forward(model, chosen, inputs_BT, compute, visit):
        passes.append((list(chosen), inputs_BT[0].tolist(), compute))
        for layer in chosen.values():
            visit(layer, *TENSORS[:3], decay.expand(1, 10, 2))

    monkeypatch.setattr(gate_maps, "_forward", forward)
    monkeypatch.setattr(gate_maps, "gated_layers", lambda model: own)
    monkeypatch.setattr(gate_maps, "pruned_tile_share", lambda log_fgate, threshold: torch.tensor([[0.25, 0.75]]))
    monkeypatch.setattr(gate_maps, "maps", lambda *given: (np.ones((2, 2)), np.ones((2, 2))))
    context = Context()
    spec = of(
        "gate_maps", seq_len=10, document=3, layers=layers, heads=heads, num_maps=count, grid=4, distance=2, log_tolerance=-3.0
    )
    rows = gate_maps.evaluate(LOADED, spec, context)
    document = [6, *Split().read(slice(3, 4), 0, 9)[0].tolist()]
    places = list(dict.fromkeys(layer for layer, _ in shown))
    assert passes == [(chosen, document, Compute("cpu", "bf16")) for chosen in ([0, 1], places)]
    assert own[0].asked == [("threshold", -3.0)]
    drawn = rows[rows["row"] >= 0]
    assert sorted(set(zip(drawn["layer"], drawn["head"], strict=True))) == sorted(shown) and len(drawn) == 6 * len(shown)
    of_layer = rows[(rows["row"] < 0) & (rows["layer"] == 1)].pivot(index="head", columns="quantity", values="value")
    assert of_layer["median_F"].tolist() == pytest.approx([2 ** (-2 / 8), 0.5]) and of_layer["pruned_share"].tolist() == [
        0.25,
        0.75,
    ]
    assert of_layer["half_life_tokens"].tolist() == pytest.approx([8.0, 2.0])
    assert context.extras == dict(seq_len=10, distance=2, document=3, cell=3)
    with pytest.raises(ValueError, match="layer 2 does not exist"):
        gate_maps.evaluate(LOADED, of("gate_maps", seq_len=10, distance=2, layers=(2,)), Context())
