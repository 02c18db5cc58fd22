"""A cache with room, and a step over it that is recorded once and replayed. On a CPU a stand-in records: it runs the same
operations on the same memory again, as a CUDA graph does, so whatever a step took from the host stays as it was."""

import copy
import pickle
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import pairwise
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from eval.shell.context import Compute
from eval.shell.generation import generate as generate_answers
from models import cache as cache_module
from models import graphed
from models.build import build_model
from models.cache import DecodingCache
from models.forgetting_transformer import eviction
from models.forgetting_transformer.module import gated_layers
from models.graphed import PLAIN_STEPS, GraphedStep
from models.spec import ForgettingTransformerSpec
from tests.models.conftest import SPECS
from tests.models.test_gpu import CASES, WIDE
from tests.models.test_models import generate, pad_left

PLACED = [key for key, spec in SPECS.items() if spec.has_places]


def built(key: str, **changes: Any) -> torch.nn.Module:
    torch.manual_seed(0)
    spec = SPECS[key] if not changes else ForgettingTransformerSpec(**(vars(SPECS[key]) | changes))
    model = build_model(spec).eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if parameter.ndim == 2 and "embeddings" not in name:
                parameter.mul_(3.0)
    return model


class Recorder(TorchDispatchMode):
    """Stand-in for a CUDA graph: what ran while it was recorded runs again, on the same memory."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[tuple[Any, Any, Any, Any]] = []

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


@pytest.fixture
def recorded(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have a Recorder in place of CUDA's graph. As that does, it runs nothing that lasts while it records."""

    @contextmanager
    def recording(graph: Recorder, **_: Any) -> Iterator[None]:
        before = [(x, x.clone()) for x in graph.kept]  # type: ignore[attr-defined]
        with graph:
            yield
        for place, value in before:
            place.copy_(value)

    monkeypatch.setattr(graphed.torch.cuda, "graph", recording)
    monkeypatch.setattr("kernels.forgetting_attention.validation._may_look", lambda _: False)  # as on a GPU
    monkeypatch.setattr("kernels.forgetting_attention.cached._check_length_value", lambda *_: None)


def states(cache: DecodingCache) -> list[Tensor]:
    return [x for x in tree_leaves(list(cache.layers.values())) if isinstance(x, Tensor)]


@pytest.mark.parametrize("key", PLACED)
def test_a_cache_with_room_gives_the_same_logits(key, tokens):
    model = built(key)
    with torch.no_grad():
        expected = model(tokens[:, :100]).logits
        cache = DecodingCache(room=100)
        found, position = [model(tokens[:, :60], past_key_values=cache).logits], 60
        addresses = [x.data_ptr() for x in states(cache)]
        for step in (1, 1, 7, 1, 28, 1, 1):
            found.append(model(tokens[:, position : position + step], past_key_values=cache).logits)
            position += step
    assert torch.allclose(torch.cat(found, 1), expected, atol=2e-5)
    assert cache.get_seq_length() == int(cache.position) == 100 and [x.data_ptr() for x in states(cache)] == addresses
    with torch.no_grad(), pytest.raises(ValueError, match="token 101 is beyond room=100"):
        model(tokens[:, :1], past_key_values=cache)


@pytest.mark.parametrize("tightly", [None, False, True])
@pytest.mark.parametrize("normed", [False, True])
def test_pruning_over_a_cache_with_room(tokens, tightly, normed):
    """Pruning leaves out next to nothing, by QK-norm's bound and by the largest norm, which stays in its place."""
    key = "fox_pro" if normed else "fox_llama"
    pruned = {} if tightly is None else dict(prune_log_tolerance=-10.0, prune_tightly=tightly)
    model, caches = built(key, **pruned), [DecodingCache(), DecodingCache(room=100)]
    with torch.no_grad():
        for cache in caches:
            model(tokens[:, :60], past_key_values=cache)
        for position in range(60, 100):
            one, other = (model(tokens[:, position : position + 1], past_key_values=cache).logits for cache in caches)
            assert torch.allclose(one, other, atol=2e-4)
    beams = dict(num_beams=2, max_new_tokens=4)
    expected = generate(model, tokens[:, :50], **beams)
    assert torch.equal(generate(model, tokens[:, :50], past_key_values=DecodingCache(room=54), **beams), expected)


@pytest.mark.parametrize("key", PLACED)
def test_a_recorded_step_goes_on(recorded, key, tokens):
    """Over 30 tokens, with padding, the step that was recorded at the first of them gives what an ordinary cache gives."""
    model = built(key)
    prompt, mask = pad_left(tokens[:, :70], [70, 31, 3])
    with torch.no_grad():
        plain, cache = DecodingCache(), DecodingCache(room=120)
        for each in (plain, cache):
            model(prompt, mask, past_key_values=each)
        step = GraphedStep(lambda ids, cache: model.lm_head(model.model(ids, None, cache).last_hidden_state))
        kept = [*states(cache), cache.position]
        graphed.torch.cuda.CUDAGraph, original = (lambda: _holding(kept)), graphed.torch.cuda.CUDAGraph
        try:
            given, logits = tokens.clone(), []
            for position in range(70, 100):
                ids = given[:, position : position + 1]
                mask = torch.nn.functional.pad(mask, (0, 1), value=1)
                logits.append((step(ids, cache), model(ids, mask, past_key_values=plain).logits))
                assert cache.seq_len == int(cache.position) == position + 1
            for found, expected in logits:  # a later step writes over none of an earlier one
                assert torch.allclose(found, expected, atol=5e-5)
            assert torch.equal(given, tokens)
        finally:
            graphed.torch.cuda.CUDAGraph = original
    assert step.taken == 30 and isinstance(step.graph, Recorder) and PLAIN_STEPS < 30


@pytest.mark.parametrize("spare", [1, 1000])  # laid anew in its own memory, or in other
@pytest.mark.parametrize("key", ["fox_pro", "fox_hybrid"])
def test_a_recorded_step_lets_go_of_keys(recorded, key, spare, tokens, monkeypatch):
    """All is laid anew seven times without the graph, which goes on where all still lies in its place."""
    for name, value in (("PLACES", 7), ("SPARE", spare), ("STRIDE", 500)):
        monkeypatch.setattr(eviction, name, value)
    monkeypatch.setattr(cache_module, "PLACES", 7)
    model = built(key)
    for layer in gated_layers(model).values():
        with torch.no_grad():
            layer.fgate_proj.weight.mul_(0.1)
            layer.fgate_proj.bias.copy_(torch.linspace(-2.0, 9.0, len(layer.fgate_proj.bias)))
    prompt, mask = pad_left(tokens[:, :50], [50, 31, 3])
    plain, cache = DecodingCache(), DecodingCache(longest=120)
    monkeypatch.setattr(graphed.torch.cuda, "CUDAGraph", lambda: _holding([*states(cache), cache.position]))
    steps, lies = list[GraphedStep](), list[list[int]]()
    with torch.no_grad():
        for each in (plain, cache):
            model(prompt, mask, past_key_values=each)
        assert cache.free == 7
        for position in range(50, 100):
            if cache.graphed is None:
                steps.append(GraphedStep(model._step))
                cache.graphed = steps[-1]
            ids, mask = tokens[:, position : position + 1], torch.nn.functional.pad(mask, (0, 1), value=1)
            found, expected = cache.graphed(ids, cache), model(ids, mask, past_key_values=plain).logits
            assert torch.allclose(found, expected, atol=2e-3), position  # it is without what it let go of
            assert cache.seq_len == int(cache.position) == position + 1 and cache.free == 6 - (position - 50) % 7
            lies.append([x.data_ptr() for x in states(cache)])
    moved = [at for at, (before, after) in enumerate(pairwise(lies)) if before != after]
    assert set(moved) <= set(range(6, 49, 7)) and len(moved) in ((1, 2) if spare == 1 else (7,))
    assert len(steps) == len(moved) + (moved[-1] < 48) and all(isinstance(step.graph, Recorder) for step in steps)
    held = sum(int(layer["keys"]["length"].sum()) for layer in cache.layers.values() if "keys" in layer)
    assert held < 0.8 * sum(layer["gate_sum"].shape[2] * 3 * 100 for layer in plain.layers.values() if "gate_sum" in layer)


def _holding(kept: list[Tensor]) -> Recorder:
    recorder = Recorder()
    recorder.kept = kept  # type: ignore[attr-defined]
    return recorder


@pytest.mark.parametrize("key", PLACED)
def test_generation_over_a_cache_with_room(key, tokens):
    model = built(key)
    padded, mask = pad_left(tokens[:, :80], [80, 40, 3])
    expected = generate(model, padded, attention_mask=mask)
    assert torch.equal(generate(model, padded, attention_mask=mask, past_key_values=DecodingCache(room=92)), expected)
    beams = dict(num_beams=3, max_new_tokens=6)
    expected = generate(model, tokens[:, :70], **beams)
    assert torch.equal(generate(model, tokens[:, :70], past_key_values=DecodingCache(room=76), **beams), expected)


@pytest.mark.parametrize("key", PLACED)
def test_reordered_rows_keep_their_padding(key, tokens):
    """In a cache with room, whose step reads where each row begins from the cache."""
    model, order = built(key), torch.tensor([1, 2, 0])
    prompt, mask = pad_left(tokens[:, :70], [70, 31, 3])
    plain, cache = DecodingCache(), DecodingCache(room=80)
    with torch.no_grad():
        for each in (plain, cache):
            model(prompt, mask, past_key_values=each)
        start = cache.seq_start
        for each in (plain, cache):
            each.reorder_cache(order)
        mask = mask[order]
        assert cache.seq_start is start and start.tolist() == [39, 67, 0]
        for position in range(70, 80):
            ids, mask = tokens[order, position : position + 1], torch.nn.functional.pad(mask, (0, 1), value=1)
            expected, found = (model(ids, mask, past_key_values=each).logits for each in (plain, cache))
            assert torch.allclose(found, expected, atol=5e-5)


@pytest.mark.parametrize("key", PLACED)
def test_padding_stays_in_its_place(key, tokens):
    """Through several tokens with a mask, as a graph may read it; and without one it holds."""
    model = built(key)
    text, mask = pad_left(tokens[:, :80], [80, 41, 13])
    for given in (lambda end: mask[:, :end], lambda end: None):
        cache, starts = DecodingCache(room=80), []
        with torch.no_grad():
            expected = model(text, mask).logits
            for start, end in ((0, 70), (70, 71), (71, 79), (79, 80)):
                found = model(text[:, start:end], given(end) if start else mask[:, :70], past_key_values=cache).logits
                starts.append(cache.seq_start)
                last = expected[:, start:end].masked_select(mask[:, start:end, None].bool())
                assert torch.allclose(found.masked_select(mask[:, start:end, None].bool()), last, atol=5e-5)
        assert all(each is starts[0] for each in starts) and starts[0].tolist() == [0, 39, 67]


@pytest.mark.parametrize("how", [{"room": 80}, {"longest": 80}])
def test_a_step_reads_no_mask_until_each_row_has_begun(how, tokens):
    """Without a mask the token is text."""
    model, (text, mask) = built("fox_pro"), pad_left(tokens[:, :80], [80, 41, 13])
    for first in (1, 60):
        plain, cache = DecodingCache(), DecodingCache(**how)
        with torch.no_grad():
            for each in (plain, cache):
                model(text[:, :first], mask[:, :first], past_key_values=each)
            with pytest.raises(ValueError, match=f"a single token after {first}, which in some row may be all padding: .*room"):
                model(text[:, first : first + 1], mask[:, : first + 1], past_key_values=cache)
            if "room" in how and first == 60:
                model(text[:, 60:70], mask[:, :70], past_key_values=cache)
                found = model(text[:, 70:71], mask[:, :71], past_key_values=cache).logits
                assert torch.allclose(found, model(text[:, :71], mask[:, :71]).logits[:, 70:], atol=5e-5)
            else:
                one, other = (model(tokens[:, :1], past_key_values=each).logits for each in (plain, cache))
                assert torch.allclose(one, other, atol=5e-5)
                ones = torch.nn.functional.pad(mask[:, :first], (0, 2), value=1)
                assert model(tokens[:, :1], ones, past_key_values=cache).logits.shape == (3, 1, 97), "each has begun"


def test_a_cache_with_room_goes_on_with_its_own_rows(tokens):
    """A graph, too, which would take one row for all."""
    model, cache, replayed = built("hgrn2"), DecodingCache(room=20), []
    step = GraphedStep(lambda ids, cache: model(ids, past_key_values=cache).logits)
    step.taken, step.graph = PLAIN_STEPS, SimpleNamespace(replay=lambda: replayed.append(1))
    step.ids_B1, step.logits_B1V = tokens[:, :1].clone(), torch.zeros(3, 1, 97)
    with torch.no_grad():
        model(tokens[:, :9], past_key_values=cache)
        for going_on in (step._next, lambda ids, cache: model(ids, past_key_values=cache)):
            with pytest.raises(ValueError, match="1 rows of tokens after a cache of 3: give as many"):
                going_on(tokens[:1, 9:10], cache)
        step._next(tokens[:, 9:10], cache)
    assert replayed == [1] and cache.get_seq_length() == 10
    with pytest.raises(ValueError, match=r"reorder_cache of 4 rows, room=20 and 3 rows: .*without room"):
        cache.reorder_cache(torch.tensor([0, 0, 1, 2]))


def test_a_copy_of_a_cache_has_no_graph_of_the_other(tokens):
    """It would write to the other's states; and its step would carry the model along."""
    model, cache = built("fox_pro"), DecodingCache(room=20)
    cache.graphed = step = GraphedStep(model._step)
    with torch.no_grad():
        expected = model(tokens[:, :12]).logits[:, 9:]
        model(tokens[:, :9], past_key_values=cache)
        copies = [copy.deepcopy(cache), pickle.loads(pickle.dumps(cache))]
        for each in (*copies, cache):
            found = torch.cat([model(tokens[:, place : place + 1], past_key_values=each).logits for place in range(9, 12)], 1)
            assert torch.allclose(found, expected, atol=5e-5)
    assert cache.graphed is step and [each.graphed for each in copies] == [None, None]


@pytest.mark.parametrize("key", [key for key in SPECS if key not in PLACED])
def test_models_without_a_place_say_so(key, tokens):
    with torch.no_grad(), pytest.raises(ValueError, match=r"room=90.*without room"):
        built(key)(tokens[:, :60], past_key_values=DecodingCache(room=90))


def test_a_state_that_grows_has_no_place():
    cache = DecodingCache(room=9)
    cache.update(0, state=(torch.zeros(1, 2), [torch.zeros(3)]))
    cache.update(0, state=(torch.ones(1, 2), [torch.ones(3)]))
    assert cache[0]["state"][0].tolist() == [[1.0, 1.0]] and cache[0]["state"][1][0].tolist() == [1.0] * 3
    with pytest.raises(ValueError, match=r"state of layer 0 was \(1, 2\) torch.float32 and is \(1, 3\) .*without room"):
        cache.update(0, state=(torch.ones(1, 3), [torch.ones(3)]))
    with pytest.raises(ValueError, match=r"and is \(1, 2\) torch.float64"):
        cache.update(0, state=(torch.ones(1, 2, dtype=torch.float64), [torch.ones(3)]))
    with pytest.raises(ValueError, match="longest=4 and room=5"):
        DecodingCache(longest=4, room=5)


def test_a_host_that_reads_a_number_is_found(recorded):
    with pytest.raises(AssertionError, match="read by the host"), _holding([]):
        torch.ones(1).item()


@pytest.mark.gpu
@pytest.mark.parametrize(("key", "dtype"), [case for case in CASES if case[0] in PLACED])
def test_a_cuda_graph_goes_on(key, dtype, tokens):
    """Also when autocast was left and entered again in between, whose rounded weights are gone by then."""
    torch.manual_seed(0)
    model, tokens = build_model(WIDE[key]).eval().cuda(), tokens.cuda()
    prompt, mask = pad_left(tokens[:, :70], [70, 31, 3])
    mask = mask.cuda()
    plain, cache = DecodingCache(), DecodingCache(room=120)
    worst = 0.0
    for position in range(70, 100):
        with torch.inference_mode(), torch.autocast("cuda", dtype=torch.bfloat16, enabled=dtype == "bf16"):
            if position == 70:
                for each in (plain, cache):
                    model(prompt, mask, past_key_values=each)
            ids = tokens[:, position : position + 1]
            mask = torch.nn.functional.pad(mask, (0, 1), value=1)
            expected, found = (model(ids, mask, past_key_values=each).logits.float() for each in (plain, cache))
        worst = max(worst, float((found - expected).norm() / expected.norm()))
    assert cache.graphed.graph is not None and cache.seq_len == int(cache.position) == 100
    assert worst < (1e-3 if dtype == "fp32" else 2e-2)


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", ["fp32", "bf16"])
def test_a_cuda_graph_lets_go_of_keys(dtype, tokens):
    """All is laid anew three times, in its own memory and in other; in between steps are replayed."""
    torch.manual_seed(0)
    model = build_model(WIDE["fox_pro"]).eval()
    for layer in gated_layers(model).values():
        with torch.no_grad():
            layer.fgate_proj.bias.copy_(torch.linspace(-2.0, 9.0, len(layer.fgate_proj.bias)))
    model, tokens = model.cuda(), tokens.repeat(1, 4)[:, :300].cuda()
    plain, cache, graphs, worst = DecodingCache(), DecodingCache(longest=300), set[int](), 0.0
    with torch.inference_mode(), torch.autocast("cuda", dtype=torch.bfloat16, enabled=dtype == "bf16"):
        for position in range(70, 300):
            ids = tokens[:, :70] if position == 70 else tokens[:, position - 1 : position]
            expected, found = (model(ids, past_key_values=each).logits.float() for each in (plain, cache))
            worst = max(worst, float((found - expected).norm() / expected.norm()))
            if cache.graphed is not None and cache.graphed.graph is not None:
                graphs.add(id(cache.graphed))
    assert graphs and cache.seq_len == int(cache.position) == 299
    assert int(cache[0]["keys"]["length"].sum()) < 0.8 * plain[0]["gate_sum"].shape[2] * len(tokens) * 299
    assert worst < (1e-3 if dtype == "fp32" else 2e-2)


@pytest.mark.gpu
@pytest.mark.parametrize("key", ["fox_pro", "transformer_llama", "delta_net"])
def test_answers_on_a_gpu_are_replayed(key, tokens, monkeypatch):
    """The cache that evaluations give has places, and its steps are replayed; the answers are an ordinary cache's."""
    torch.manual_seed(0)
    model, gpu, replayed = build_model(WIDE[key]).eval().cuda(), Compute("cuda", "bf16"), []
    replay = torch.cuda.CUDAGraph.replay
    monkeypatch.setattr(torch.cuda.CUDAGraph, "replay", lambda graph: (replayed.append(1), replay(graph))[1])
    prompts = [row[:length].tolist() for row, length in zip(tokens, (70, 31, 3), strict=True)]
    answers = generate_answers(model, prompts, gpu, max_new_tokens=12)
    assert len(replayed) == 12 - 1 - PLAIN_STEPS
    plain = generate_answers(model, prompts, gpu, max_new_tokens=12, cache=lambda longest: DecodingCache())
    assert answers == plain or key == "transformer_llama"  # near ties: its attention is PyTorch's over an ordinary cache
