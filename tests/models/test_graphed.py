"""A cache with room, and a step over it that is recorded once and replayed. On a CPU a stand-in records: it runs the same
operations on the same memory again, as a CUDA graph does, so whatever a step took from the host stays as it was."""

import pickle
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from models import graphed
from models.build import build_model
from models.cache import DecodingCache
from models.graphed import PLAIN_STEPS, GraphedStep
from tests.models.conftest import SPECS, generate, pad_left, spread
from tests.models.test_gpu import CASES, WIDE


class Recorder(TorchDispatchMode):
    """Stand-in for a CUDA graph: what ran while it was recorded runs again, on the same memory."""

    def __init__(self, kept: list[Tensor]) -> None:
        super().__init__()
        self.kept, self.calls = kept, list[tuple[Any, Any, Any, Any]]()

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        assert func is not torch.ops.aten._local_scalar_dense.default, "a number is read by the host, which stops a capture"
        out = func(*args, **(kwargs or {}))
        self.calls.append((func, args, kwargs or {}, out))
        return out

    def replay(self) -> None:
        for func, args, kwargs, out in self.calls:
            for place, value in zip(tree_leaves(out), tree_leaves(func(*args, **kwargs)), strict=True):
                if isinstance(place, Tensor) and place.numel() and place.data_ptr() != value.data_ptr():
                    place.copy_(value)


@contextmanager
def recording(graph: Recorder, **_: Any) -> Iterator[None]:
    """Record as CUDA does: nothing that lasts is run meanwhile."""
    before = [(x, x.clone()) for x in graph.kept]
    with graph:
        yield
    for place, value in before:
        place.copy_(value)


def states(cache: DecodingCache) -> list[Tensor]:
    return [x for x in tree_leaves(list(cache.layers.values())) if isinstance(x, Tensor)]


def test_a_cache_with_room_gives_the_same_logits(model, spec, tokens):
    """At fixed addresses; with padding, which stays in its place when rows are reordered."""
    if not spec.has_places:
        with torch.no_grad(), pytest.raises(ValueError, match="cannot be replayed"):
            model(tokens[:, :60], past_key_values=DecodingCache(room=90))
        return
    mask, order = pad_left(tokens[:, :70], [70, 31, 3]), torch.tensor([1, 2, 0])
    plain, cache = DecodingCache(), DecodingCache(room=110)
    with torch.no_grad():
        first = [model(tokens[:, :70], mask, past_key_values=each).logits[:, -3:] for each in (plain, cache)]
        addresses = [x.data_ptr() for x in (*states(cache), cache.seq_start)]
        for each in (plain, cache):
            each.reorder_cache(order)
        assert cache.seq_start.tolist() == [39, 67, 0]
        steps, found = (1, 1, 7, 1, 28, 1, 1), {plain: [], cache: []}
        for step in steps:
            mask = F.pad(mask, (0, step), value=1)
            for each in (plain, cache):
                ids = tokens[order, each.seq_len : each.seq_len + step]
                given = mask[order] if step > 1 else None
                found[each].append(model(ids, given, past_key_values=each).logits)
        with pytest.raises(ValueError, match="token 111 is beyond room=110"):
            model(tokens[:, :1], past_key_values=cache)
    torch.testing.assert_close(*first, rtol=0, atol=5e-5)
    torch.testing.assert_close(torch.cat(found[plain], 1), torch.cat(found[cache], 1), rtol=0, atol=5e-5)
    assert cache.get_seq_length() == int(cache.position) == 110
    assert [x.data_ptr() for x in (*states(cache), cache.seq_start)] == addresses


def test_rows_that_have_not_begun_read_their_mask(tokens):
    """In a cache with room, where a step of one token reads none from when each row has begun on."""
    model, mask = spread(SPECS["fox_pro"]), pad_left(tokens[:, :80], [80, 20, 13])
    cache, found = DecodingCache(room=80), []
    with torch.no_grad():
        for a, b in ((0, 59), *((at, at + 1) for at in range(59, 80))):
            found.append(model(tokens[:, a:b], mask[:, :b], past_key_values=cache).logits)
        expected = model(tokens[:, :80], mask).logits
    found = torch.cat(found, 1)
    torch.testing.assert_close(found[mask.bool()], expected[mask.bool()], rtol=0, atol=5e-5)


@pytest.mark.parametrize("tightly", [False, True])
@pytest.mark.parametrize("key", ["fox_pro", "fox_llama"])
def test_pruning_over_a_cache_with_room(key, tightly, tokens):
    """Pruning leaves out next to nothing, by QK-norm's bound and by the largest norm, which stays in its place."""
    model = spread(replace(SPECS[key], prune_log_tolerance=-10.0, prune_tightly=tightly))
    caches = [DecodingCache(), DecodingCache(room=100)]
    with torch.no_grad():
        for a, b in ((0, 60), *((at, at + 1) for at in range(60, 100))):
            one, other = (model(tokens[:, a:b], past_key_values=cache).logits for cache in caches)
            torch.testing.assert_close(one, other, rtol=0, atol=2e-4)


def test_a_recorded_step_goes_on(model, spec, tokens, monkeypatch):
    """Over 30 tokens, with padding, the step that was recorded at the first of them gives what an ordinary cache gives."""
    if not spec.has_places:
        return
    mask, plain, cache = pad_left(tokens[:, :70], [70, 31, 3]), DecodingCache(), DecodingCache(room=100)
    monkeypatch.setattr(graphed.torch.cuda, "graph", recording)
    monkeypatch.setattr("kernels.forgetting_attention.validation._may_look", lambda _: False)  # as on a GPU
    monkeypatch.setattr("kernels.forgetting_attention.cached._check_length_value", lambda *_: None)
    step, logits = GraphedStep(lambda ids, cache: model(ids, past_key_values=cache).logits), []
    with torch.no_grad():
        for each in (plain, cache):
            model(tokens[:, :70], mask, past_key_values=each)
        kept = [*states(cache), cache.position]
        monkeypatch.setattr(graphed.torch.cuda, "CUDAGraph", lambda: Recorder(kept))
        for position in range(70, 100):
            ids = tokens[:, position : position + 1]
            logits.append((step(ids, cache), model(ids, past_key_values=plain).logits))
            assert cache.seq_len == int(cache.position) == position + 1
    for found, expected in logits:  # a later step writes over none of an earlier one
        torch.testing.assert_close(found, expected, rtol=0, atol=5e-5)
    assert step.taken == 30 and isinstance(step.graph, Recorder) and PLAIN_STEPS < 30


def test_generation_over_a_cache_with_room(model, spec, tokens):
    if not spec.has_places:
        return
    mask = pad_left(tokens[:, :80], [80, 40, 3])
    expected = generate(model, tokens[:, :80], attention_mask=mask)
    given = dict(attention_mask=mask, past_key_values=DecodingCache(room=92))
    assert torch.equal(generate(model, tokens[:, :80], **given), expected)
    beams = dict(num_beams=3, max_new_tokens=6)
    expected = generate(model, tokens[:, :70], **beams)
    assert torch.equal(generate(model, tokens[:, :70], past_key_values=DecodingCache(room=76), **beams), expected)


def test_a_copy_of_a_cache_has_no_graph_of_the_other(tokens):
    """It would write to the other's states; and its step would carry the model along."""
    model, cache = spread(SPECS["fox_pro"]), DecodingCache(room=20)
    cache.graphed = step = GraphedStep(model)
    with torch.no_grad():
        model(tokens[:, :9], past_key_values=cache)
        copy = pickle.loads(pickle.dumps(cache))
        one, other = (model(tokens[:, 9:10], past_key_values=each).logits for each in (copy, cache))
    assert torch.equal(one, other) and cache.graphed is step and copy.graphed is None


def test_what_cannot_stay_in_its_place_is_refused(tokens):
    fox, begun = spread(SPECS["fox_pro"]), DecodingCache(room=90)
    with torch.no_grad():
        fox(tokens[:, :60], past_key_values=begun)
        with pytest.raises(ValueError, match="their number is fixed"):
            begun.reorder_cache(torch.tensor([0, 0, 1, 2]))
    with torch.inference_mode():
        fox(tokens[:, :9], past_key_values=(made := DecodingCache(room=20)))
    with torch.no_grad(), pytest.raises(ValueError, match="inference mode"):
        fox(tokens[:, 9:10], past_key_values=made)


@pytest.mark.gpu
@pytest.mark.parametrize(("key", "dtype"), [case for case in CASES if SPECS[case[0]].has_places])
def test_a_cuda_graph_goes_on(key, dtype, tokens):
    """Also when autocast was left and entered again in between, whose rounded weights are gone by then."""
    torch.manual_seed(0)
    model, tokens = build_model(WIDE[key]).eval().cuda(), tokens.cuda()
    mask = pad_left(tokens[:, :70].cpu(), [70, 31, 3]).cuda()
    plain, cache, worst = DecodingCache(), DecodingCache(room=120), 0.0
    for position in range(70, 100):
        with torch.inference_mode(), torch.autocast("cuda", dtype=torch.bfloat16, enabled=dtype == "bf16"):
            if position == 70:
                for each in (plain, cache):
                    model(tokens[:, :70], mask, past_key_values=each)
            ids, mask = tokens[:, position : position + 1], F.pad(mask, (0, 1), value=1)
            expected, found = (model(ids, mask, past_key_values=each).logits.float() for each in (plain, cache))
        worst = max(worst, float((found - expected).norm() / expected.norm()))
    assert cache.graphed.graph is not None and cache.seq_len == int(cache.position) == 100
    assert worst < (1e-3 if dtype == "fp32" else 2e-2)
