"""Paths that tensors on a GPU take, and what is handed on there, with stand-ins for the kernels: no GPU is needed."""

import importlib
import sys
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor
from torch._subclasses import FakeTensorMode

from kernels import causal_conv, fused_norms, linear_cross_entropy, selective_scan, ssd, swiglu
from kernels.attention_shared.arguments import pick_backend
from kernels.custom_op import differentiable
from kernels.fla_cpu import install
from kernels.forgetting_attention import autograd as forgetting_autograd
from kernels.forgetting_attention import gpu, qk_norm_logit_bound, skipped_tiles
from kernels.forgetting_attention.autograd import DirectAttention
from kernels.forgetting_attention.options import Options
from kernels.forgetting_attention.pruning import norms, threshold
from kernels.stick_breaking import autograd as stick
from kernels.stick_breaking.portable.tiles import Plan

HALF, EXACT = torch.bfloat16, torch.float64


class OnGpu(Tensor):
    """A tensor that says that it is on a GPU."""

    is_cuda = property(lambda self: True)  # type: ignore[assignment]


def there(*shape: int, dtype: torch.dtype = torch.float32, grad: bool = False) -> Tensor:
    return torch.randn(*shape, dtype=dtype).as_subclass(OnGpu).requires_grad_(grad)


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[tuple[Any, ...]]:
    """Calls of Triton's operators by their names."""
    found: list[tuple[Any, ...]] = []
    for name, functions in (
        ("fused_norms", ("triton_shift_and_norm", "triton_gated_norm", "triton_norm_of_gated")),
        ("swiglu", ("triton_swiglu",)), ("causal_conv", ("triton_causal_conv_silu",)),
    ):  # fmt: skip
        own = {each: lambda *given, each=each: found.append((each, *given)) or "y" for each in functions}
        monkeypatch.setitem(sys.modules, f"kernels.{name}_triton", SimpleNamespace(**own))
    return found


def same(one: Any, other: Any) -> bool:
    return torch.equal(one, other) if isinstance(other, Tensor) else one is other if other is None else one == other


def test_small_operations_are_one_pass(calls):
    """Weights flat, what came before without gradient, and the numbers that keep a norm from zero."""
    x, gate, alpha = there(2, 3, 2, 8), there(2, 3, 2, 8), there(2, 3, 2)
    per_head, shared, before = there(2, 8), there(8), there(2, 1, 2, 8, grad=True)
    of = fused_norms.shift_and_norm
    assert of(x, alpha, per_head, before_B1HD=before, eps=0.5) == of(x, None, shared) == of(x, alpha, None) == "y"
    assert fused_norms.gated_output_norm(x, gate, per_head, eps=0.25) == fused_norms.gated_output_norm(x, None, shared) == "y"
    assert fused_norms.gated_output_norm(x, gate, shared, silu=True) == "y"
    y, z, weight = there(2, 3, 6), there(2, 3, 6), there(6)
    assert fused_norms.norm_of_gated(y, z, weight, eps=0.125) == fused_norms.norm_of_gated(y, z, weight) == "y"
    both, taps = there(2, 6, grad=True), there(6, 4)
    assert swiglu.swiglu(both) == "y" and causal_conv.causal_conv_silu(y, taps, weight) == ("y", None)
    assert causal_conv.causal_conv_silu(y, taps, None) == ("y", None)
    wanted = [
        ("triton_shift_and_norm", x, alpha, per_head.reshape(-1), before, 0.5),
        ("triton_shift_and_norm", x, None, shared, None, 1e-5), ("triton_shift_and_norm", x, alpha, None, None, 1e-5),
        ("triton_gated_norm", x, gate, per_head.reshape(-1), 0.25, False),
        ("triton_gated_norm", x, None, shared, 1e-6, False), ("triton_gated_norm", x, gate, shared, 1e-6, True),
        ("triton_norm_of_gated", y, z, weight, 0.125), ("triton_norm_of_gated", y, z, weight, 1e-5),
        ("triton_swiglu", both), ("triton_causal_conv_silu", y, taps, weight), ("triton_causal_conv_silu", y, taps, None),
    ]  # fmt: skip
    assert len(calls) == len(wanted)
    for found, each in zip(calls, wanted, strict=True):
        assert len(found) == len(each) and all(same(a, b) for a, b in zip(found, each, strict=True)), each[0]
    assert not calls[0][4].requires_grad


def test_what_their_kernels_do_not_take_is_computed_plainly(calls, monkeypatch):
    """Float64; heads of no power of two; no gradient; other taps, a state that is given or kept."""
    done = []
    monkeypatch.setattr(causal_conv.ops, "causal_conv1d", lambda **given: done.append(given) or ("plain", "state"))
    for size, dtype in ((8, EXACT), (6, torch.float32)):
        x, weight = there(2, 3, 2, size, dtype=dtype), there(size, dtype=dtype)
        assert fused_norms.shift_and_norm(x, None, weight).shape == x.shape
        assert fused_norms.gated_output_norm(x, None, weight).shape == x.shape
    y, weight = there(2, 3, 6, dtype=EXACT), there(6, dtype=EXACT)
    assert fused_norms.norm_of_gated(y, y, weight).shape == y.shape
    for both in (there(2, 6), there(2, 6, dtype=EXACT, grad=True)):
        assert swiglu.swiglu(both).shape == (2, 3)
    with torch.no_grad():
        assert swiglu.swiglu(there(2, 6, grad=True)).shape == (2, 3)
    plain, state = there(2, 3, 6), there(2, 6, 4)
    for x, taps, given in (
        (y, 4, {}), (plain, 3, {}), (plain, 4, {"state_BDW": state}), (plain, 4, {"keep_state": True}),
        (plain, 4, {"state_BDW": state, "keep_state": True}),
    ):  # fmt: skip
        assert causal_conv.causal_conv_silu(x, there(6, taps), None, **given) == ("plain", "state")
        assert done[-1]["initial_state"] is given.get("state_BDW") and done[-1]["activation"] == "silu"
        assert done[-1]["output_final_state"] is given.get("keep_state", False) and done[-1]["x"] is x
    assert not calls


def test_a_compiled_swiglu_is_one_pass_without_gradients_too(calls, monkeypatch):
    monkeypatch.setattr(torch.compiler, "is_compiling", lambda: True)
    assert swiglu.swiglu(there(2, 6)) == "y" and swiglu.swiglu(torch.zeros(2, 6)).shape == (2, 3)


@pytest.mark.parametrize(("on_gpu", "dtype", "grad", "fused", "chunk", "kept"), [
    (True, HALF, True, True, 4096, 20), (True, HALF, False, True, 4096, 0), (True, torch.float32, True, True, 4096, 0),
    (True, EXACT, True, False, 4096, 0), (False, HALF, True, False, 64, 1335), (False, torch.float32, True, False, 64, 0),
])  # fmt: skip
def test_chunks_of_logits(monkeypatch, on_gpu, dtype, grad, fused, chunk, kept):
    """GPT-2's 50,257 logits a token: 2^28 numbers at a time on a GPU, 2^21 else, and 2^32 of 16 bits kept for gradients."""
    found = []
    of = lambda name: SimpleNamespace(apply=lambda *given: found.append((name, *given[3:])) or torch.ones(2))  # noqa: E731
    monkeypatch.setitem(sys.modules, "kernels.linear_cross_entropy_triton", SimpleNamespace(FusedLinearCrossEntropy=of(True)))
    monkeypatch.setattr(linear_cross_entropy, "LinearCrossEntropy", of(False))
    hidden, weight = there(2, 1, dtype=dtype, grad=grad), torch.empty(50_257, 1)
    hidden = hidden if on_gpu else hidden.detach().as_subclass(Tensor).requires_grad_(grad)
    linear_cross_entropy.linear_cross_entropy(hidden, weight, torch.zeros(2, dtype=torch.long))
    assert found == [(fused, chunk, kept)]


def test_the_weight_of_a_head_may_have_no_gradient():
    hidden, targets = torch.randn(5, 4, requires_grad=True), torch.tensor([0, 1, 2, 0, 1])
    for weight in (torch.randn(3, 4), torch.randn(3, 4, requires_grad=True)):
        loss = linear_cross_entropy.linear_cross_entropy(hidden, weight, targets).sum()
        wanted = torch.nn.functional.cross_entropy(hidden @ weight.T, targets, reduction="sum")
        leaves = [x for x in (hidden, weight) if x.requires_grad]
        torch.testing.assert_close(torch.autograd.grad(loss, leaves), torch.autograd.grad(wanted, leaves))


def test_a_scan_on_a_gpu_keeps_what_gradients_need(monkeypatch):
    asked = []

    def forward(*given: Any, keep: bool) -> tuple[Any, ...]:
        asked.append(keep)
        return given[0] * 2, torch.ones(1), torch.full((1,), 7.0)

    def backward(dy: Tensor, dlast: Tensor, *saved: Tensor) -> tuple[Tensor, ...]:
        asked.append((len(saved), saved[-1].item(), dy.unique().tolist(), dlast.unique().tolist()))
        return tuple(torch.full_like(x, n) for n, x in enumerate((*saved[:-1], torch.ones(1, 6))))

    monkeypatch.setattr(selective_scan, "forward", forward)
    monkeypatch.setattr(selective_scan, "backward", backward)
    inputs = [there(1, 2, 3), there(1, 2, 3), there(3, 2), there(1, 2, 2), there(1, 2, 2), there(3)]
    with torch.no_grad():
        assert len(selective_scan.selective_scan(*inputs)) == 2
    for state in (None, there(1, 6), there(1, 6, grad=True)):
        leaves = [x.clone().detach().requires_grad_() for x in inputs]
        y, last = selective_scan.selective_scan(*leaves, state)
        (2 * y.sum() + 3 * last.sum()).backward()
        assert [x.grad.unique().tolist() for x in leaves] == [[float(n)] for n in range(6)]
        assert state is None or (state.grad is not None) is state.requires_grad
    assert asked == [False, *[True, (7, 7.0, [2.0], [3.0])] * 3]


@pytest.mark.parametrize(("dtype", "sizes", "kernels"), [
    (HALF, (128, 64), True), (torch.float16, (128, 64), True), (torch.float32, (128, 64), False), (HALF, (64, 64), False),
    (HALF, (128, 32), False),
])  # fmt: skip
@pytest.mark.parametrize("tokens", [1, 3])
def test_a_recurrence_takes_its_kernels_where_they_were_found_right(monkeypatch, dtype, sizes, kernels, tokens):
    taken = []
    for name in ("_Kernels", "_Chunks", "_one_token"):
        of = lambda *given, name=name: taken.append((name, given)) or (torch.zeros(()), "final")  # noqa: E731
        monkeypatch.setattr(ssd, name, of if name == "_one_token" else SimpleNamespace(apply=of))
    (N, P), T = sizes, tokens
    given = [there(1, T, N, dtype=dtype), there(1, T, N, dtype=dtype), there(1, T, 2, P, dtype=dtype), there(1, T, 2)]
    given += [-there(1, T, 2).abs(), there(2), there(1, 2, N, P)]
    for grad in (True, False):
        with torch.set_grad_enabled(grad):
            assert ssd.ssd(*given)[1] == "final"
    way = "_Kernels" if kernels else "_Chunks"
    assert [name for name, _ in taken] == [way, "_one_token" if tokens == 1 else way]
    q, k, x, step, decay, _, state = given
    chunks = (q, k, (x * step[..., None]).to(dtype), decay, state)
    for name, found in taken:
        wanted = chunks if name == "_Chunks" else given
        assert len(found) == len(wanted) and [x.dtype for x in found] == [x.dtype for x in wanted]
        assert all(torch.equal(a, b) for a, b in zip(found, wanted, strict=True))


@pytest.mark.parametrize("start", ["none", "fixed", "learnt"])
def test_a_recurrence_hands_its_kernels_what_they_can_read(monkeypatch, start):
    """Rows that lie side by side, states by (B, N, H, P) in fp32; gradients come back in the caller's layout."""
    B, T, H, N, P = 1, 3, 2, 4, 5
    asked: list[Any] = []

    def forward(q, k, x, step, g, skip, initial):  # type: ignore[no-untyped-def]
        asked.append((q.stride(-1), k.stride(-1), x.stride(-1), step.is_contiguous(), initial, q, k, x, step, g, skip))
        return x * 2, torch.arange(B * N * H * P, dtype=torch.float32).view(B, N, H, P), (g, torch.ones(1))

    def backward(do, dfinal, *saved):  # type: ignore[no-untyped-def]
        asked.append((do.stride(-1), dfinal.shape, dfinal.dtype, len(saved), saved[-1]))
        assert all(torch.equal(a, b) for a, b in zip(saved, (q, k, x, step, skip, g), strict=False))
        own = saved[:4] + saved[5:6] + saved[4:5]
        return *(torch.full_like(x, n) for n, x in enumerate(own)), torch.full((B, N, H, P), 9.0)

    monkeypatch.setattr(ssd, "forward", forward)
    monkeypatch.setattr(ssd, "backward", backward)
    turned = lambda *shape: torch.randn(*shape[:-2], shape[-1], shape[-2]).mT.requires_grad_()  # noqa: E731
    q, k, x, step, g = turned(B, T, N), turned(B, T, N), turned(B, T, H, P), turned(B, T, H), turned(B, T, H)
    skip = torch.randn(H, requires_grad=True)
    initial = None if start == "none" else torch.randn(B, H, N, P, dtype=HALF, requires_grad=start == "learnt")
    o, final = ssd._Kernels.apply(q, k, x, step, g, skip, initial)
    assert final.shape == (B, H, N, P) and final.is_contiguous() and final[0, 1, 0, 0] == P and torch.equal(o, x * 2)
    (o.mT.sum() + final.double().sum()).backward()
    assert all(torch.equal(a, b) for a, b in zip(asked[0][5:], (q, k, x, step, g, skip), strict=True))
    assert asked[0][:4] == (1, 1, 1, True) and same(asked[0][4], None if initial is None else initial.transpose(1, 2).float())
    assert asked[1][:4] == (1, (B, N, H, P), torch.float32, 7) and asked[1][4].item() == 1.0
    assert [each.grad.unique().item() for each in (q, k, x, step, g, skip)] == [0, 1, 2, 3, 4, 5]
    assert initial is None or (initial.grad is None) is (start == "fixed")
    if start == "learnt":
        assert initial.grad.shape == (B, H, N, P) and initial.grad.unique().item() == 9


@pytest.mark.parametrize(("limits", "on_gpu", "asked", "looked"), [
    ({}, True, "0", []), ({"seq_start": True}, True, "0", []), ({"seq_start": True}, True, "1", ["start"]),
    ({"seq_start": True}, False, "0", ["start"]), ({"cu_seqlens": True}, False, "0", ["ends"]),
    ({"cu_seqlens": True}, True, "1", ["ends"]), ({"cu_seqlens": True}, True, "0", []),
])  # fmt: skip
def test_stick_breaking_on_a_gpu(monkeypatch, limits, on_gpu, asked, looked):
    """Values of limits are looked at there only on request, as a look costs a synchronisation."""
    B, T, H, D, done, saw = 1, 6, 2, 16, [], []
    monkeypatch.setenv(stick.CHECK_VALUES_VARIABLE, asked)
    make = lambda *numbers: torch.tensor(numbers).as_subclass(OnGpu if on_gpu else Tensor)  # noqa: E731
    start, ends = make(1) if "seq_start" in limits else None, make(0, 2, T) if "cu_seqlens" in limits else None
    monkeypatch.setattr(stick, "check_limit_values", lambda keys, one, two: saw.append(
        (keys, "start" if one is start and one is not None else "ends" if two is ends else None)))  # fmt: skip
    first_key = stick.first_visible_key(B, T, T, start, ends)
    plan = Plan("forward", "dq", "dkdv")
    monkeypatch.setattr("kernels.stick_breaking.portable.tiles.plan_for", lambda *given: done.append(given) or plan)
    monkeypatch.setattr("kernels.stick_breaking.portable.forward.forward", lambda *given: done.append(given) or tuple("orse"))
    monkeypatch.setattr("kernels.stick_breaking.portable.backward.backward", lambda *given: done.append(given) or "grads")
    q, k, v = (torch.randn(B, T, H, D) for _ in range(3))
    options = (start, ends, 0.5, True, "triton")
    assert stick._forward(q, k, v, *options) == ("o", "r", ["s", "e"]) and saw == [(T, each) for each in looked]
    turned = torch.randn(B, H, T).mT
    assert stick._backward("do", turned, q, k, v, "r", ["s", "e"], *options) == "grads"
    (sizes, forward, again, backward) = done
    assert sizes == again == (D, q.dtype, q.device)
    given = (q, k, v, first_key, 0.5, True, "forward")
    assert all(same(a, b) for a, b in zip(forward, given, strict=True))
    given = ("do", turned, q, k, v, "r", "s", "e", first_key, 0.5, True, plan)
    assert all(same(a, b) for a, b in zip(backward, given, strict=True)) and backward[1].is_contiguous()


@pytest.mark.parametrize(("backend", "dtype", "kept"), [
    ("triton", HALF, [((2, 4, 65), EXACT), ((2, 4, 3), torch.int32)]), ("chunked", HALF, None), ("chunked", EXACT, None),
])  # fmt: skip
def test_what_stick_breaking_gives_and_keeps(backend, dtype, kept):
    """As torch.compile is told: 65 queries are three times 32, and one."""
    with FakeTensorMode():
        q, k = torch.empty(2, 65, 4, 16, dtype=dtype), torch.empty(2, 70, 2, 16, dtype=dtype)
        o, remainder, own = stick.attend(q, k, k, None, None, 0.25, False, backend)
    wide = EXACT if dtype == EXACT else torch.float32
    assert (o.shape, o.dtype, remainder.shape, remainder.dtype) == (q.shape, dtype, (2, 65, 4), wide)
    if kept is None:
        real = stick._forward(*(torch.zeros(x.shape, dtype=dtype) for x in (q, k, k)), None, None, 0.25, False, backend)
        kept = [(x.shape, x.dtype) for x in real[2]]
    assert [(tuple(x.shape), x.dtype) for x in own] == [(tuple(shape), dtype) for shape, dtype in kept]


def test_what_a_forward_pass_on_a_gpu_keeps():
    for dtype, local in ((HALF, torch.float32), (torch.float32, EXACT)):
        for Q, T, M, N in ((129, 257, 2, 3), (128, 256, 1, 2), (1, 129, 1, 2)):
            q, k = torch.zeros(2, Q, 4, 16, dtype=dtype), torch.zeros(2, T, 2, 16, dtype=dtype)
            sizes = ((Q, torch.float32), (128 * N, local), (N + 1, EXACT), (Q, torch.int32), (M, torch.int32))
            assert [(x.shape, x.dtype) for x in gpu.BACKEND.kept_like(q, k)] == [((2, 4, n), kind) for n, kind in sizes]


def test_bounds_on_a_gpu(monkeypatch):
    """By one pass over memory: of a threshold that is traced the bound alone, else all of it."""
    found = []
    monkeypatch.setattr(norms, "largest_product", lambda *given: found.append(given) or torch.full((1, 2), 3.0))
    assert norms.triton_logit_bound(*(torch.zeros(1, n, 2, 16) for n in (5, 7)), -0.5).tolist() == [[3.0, 3.0]]
    *tensors, factor, offset = found.pop()
    assert [x.shape[1] for x in tensors] == [5, 7] and (factor, offset) == (0.5, 0.0)
    monkeypatch.setattr(norms, "triton_logit_bound", lambda *given: found.append(given) or torch.full((1, 2), 3.0))
    q, k = there(1, 5, 2, 16, grad=True), there(1, 7, 2, 16)
    assert threshold.norm_logit_bound(q, k, -0.5).tolist() == [[3.0, 3.0]]
    assert torch.equal(found[0][0], q) and not found[0][0].requires_grad and found[0][1:] == (found[0][1], -0.5)
    assert threshold.norm_logit_bound(q.double(), k.double(), 0.5).shape == (1, 2) and len(found) == 1, "float64 is not its"
    traced = threshold.resolve_threshold("auto", q, k, 0.5, -4.0)
    assert len(found) == 2 and traced.flatten().tolist() == pytest.approx([-6 - torch.tensor(7.0).log().item() - 4] * 2)
    monkeypatch.setattr(threshold, "Tensor", OnGpu)
    assert threshold.resolve_threshold("auto", q, k, -0.5, -4.0).tolist() == [[3.0, 3.0]]
    monkeypatch.setattr(torch.compiler, "is_compiling", lambda: True)
    monkeypatch.setattr(norms, "triton_logit_bound", lambda *given: found.append(given) or there(1, 2))
    assert threshold.resolve_threshold("auto", q, k, 0.5, -4.0).shape == (1, 2) and len(found[-1]) == 3, "while it is traced"
    one, other, factor, offset = found[-2]
    assert one is q and other is k and factor == -1.0
    assert offset == pytest.approx(-torch.tensor(7.0).log().item() - 4)


def test_norms_whose_scales_do_not_fit_are_named():
    fits, short = torch.ones(2, 16), torch.ones(8)
    assert qk_norm_logit_bound(fits, fits, 16).tolist() == pytest.approx([4.0] * 2)
    for q, k, shapes in ((fits, short, r"\(2, 16\) and \(8,\)"), (short, fits, r"\(8,\) and \(2, 16\)")):
        with pytest.raises(ValueError, match=rf"q_weight and k_weight have shapes {shapes}; their last size must be 16"):
            qk_norm_logit_bound(q, k, 16)


def test_gradients_of_gradients_are_refused_and_not_wrong():
    inputs = [torch.randn(1, 3, 1, 16, requires_grad=True) for _ in range(3)]
    log_fgate = torch.full((1, 3, 1), -0.5, requires_grad=True)
    options = Options(None, None, None, None, None, 0.25, True, "chunked")
    for loss in (torch.Tensor.square, torch.Tensor.clone):  # whose gradient needs one itself, and does not
        o = DirectAttention.apply(*inputs, log_fgate, *options)
        for of in (*inputs, log_fgate):
            (gradient,) = torch.autograd.grad(loss(o).sum(), of, create_graph=True)
            for only in (None, of):
                with pytest.raises(RuntimeError, match="has no gradient itself"):
                    (o.sum() + gradient.square().sum()).backward(retain_graph=True, inputs=only)


def test_an_operator_of_ones_own_has_gradients_of_its_first_inputs():
    """Not of those that are None, nor of numbers; those after the first `count` have none. Its shapes are known untraced."""

    def forward(x: Tensor, y: Tensor | None, z: Tensor, factor: float) -> Tensor:
        return x * factor + (0 if y is None else y) + 0 * z[:1]

    def backward(dy: Tensor, x: Tensor, y: Tensor | None, z: Tensor, factor: float) -> list[Tensor]:
        return [dy * factor, *([] if y is None else [3 * dy])]

    def wider(x: Tensor, *rest: Any) -> Tensor:
        return x.new_empty(len(x) + 1)

    operator = differentiable("tried_by_a_test", forward, backward, 2)
    own = differentiable("tried_by_a_test_too", forward, backward, 2, wider)
    x, y, z = torch.ones(2, requires_grad=True), torch.full((2,), 5.0, requires_grad=True), torch.ones(3, requires_grad=True)
    found = operator(x, y, z, 2.0)
    assert found.tolist() == [7.0, 7.0]
    found.sum().backward()
    assert (x.grad.tolist(), y.grad.tolist(), z.grad) == ([2.0, 2.0], [3.0, 3.0], None)
    operator(x, None, z, 4.0).sum().backward()
    assert x.grad.tolist() == [6.0, 6.0]
    with FakeTensorMode():
        assert operator(torch.empty(2), None, torch.empty(1), 1.0).shape == (2,)
        assert own(torch.empty(2), None, torch.empty(1), 1.0).shape == (3,)
        gradient = torch.ops.kernels.tried_by_a_test_backward
        for other, shapes in ((None, [(2,)]), (torch.empty(3), [(2,), (3,)])):
            empty = gradient(torch.empty(9), torch.empty(2), other, torch.empty(4), 1.0)
            assert [tuple(each.shape) for each in empty] == shapes


def test_the_hub_and_scipy_are_not_looked_for_at_imports(monkeypatch):
    from transformers.utils import import_utils

    from kernels import hf_guard

    asked, cleared = [], []
    plain: Callable[..., Any] = lambda name, *given, **named: asked.append((name, given, named)) or "answer"  # noqa: E731
    monkeypatch.setattr(import_utils, "_is_package_available", plain)
    for name in ("is_kernels_available", "is_scipy_available"):
        monkeypatch.setattr(import_utils, name, SimpleNamespace(cache_clear=lambda name=name: cleared.append(name)))
    monkeypatch.setattr(hf_guard.importlib.util, "find_spec", lambda name: None)
    hf_guard._answer_no()
    assert import_utils._is_package_available is plain, "without transformers there is nobody to tell"
    monkeypatch.setattr(hf_guard.importlib.util, "find_spec", lambda name: "there" if name == "transformers" else None)
    hf_guard._answer_no()
    guarded = import_utils._is_package_available
    hf_guard._answer_no()
    assert import_utils._is_package_available is guarded is not plain
    assert cleared == ["is_kernels_available", "is_scipy_available"]
    assert guarded("kernels", 1) == guarded("scipy") == guarded("numpy", 2, return_version=True) == "answer"
    assert asked == [("none of this name", (1,), {}), ("none of this name", (), {}), ("numpy", (2,), {"return_version": True})]


@pytest.mark.parametrize("cuda", [True, False])
def test_tuning_is_limited_where_kernels_tune_themselves(monkeypatch, cuda):
    limited = []
    monkeypatch.setattr(torch.cuda, "is_available", lambda: cuda)
    monkeypatch.setattr(install, "limit_tuning", lambda: limited.append(True))
    before = [getattr(importlib.import_module(module), name) for module, name, _ in install._PLACES]
    install.install()
    assert limited == [True] * cuda
    assert before == [getattr(importlib.import_module(module), name) for module, name, _ in install._PLACES]


def test_a_gpu_takes_tritons_path_where_nothing_else_is_asked_for():
    q = there(1, 1, 1, 16)
    names = ("auto", "triton", "chunked", "reference")
    assert [pick_backend(name, q) for name in names] == ["triton", *names[1:]]


def test_tiles_are_counted_with_the_tolerance_that_is_given():
    make = torch.Generator().manual_seed(0)
    q, k = (torch.randn(1, 64, 2, 16, generator=make) for _ in range(2))
    log_fgate = torch.full((1, 64, 2), -0.7)
    counts = {}
    for rule in ("auto", "tight"):
        for tolerance in (-2.0, -20.0):
            found = skipped_tiles(q, k, log_fgate, adaptive_threshold=rule, log_tolerance=tolerance, tile=4)
            assert found.dtype == torch.int32 and found.shape == (1, 2, 16)
            counts[rule, tolerance] = int(found.sum())
    assert counts["auto", -2.0] > counts["auto", -20.0] and counts["tight", -2.0] > counts["tight", -20.0]
    with pytest.raises(ValueError, match="adaptive_threshold is None: nothing is pruned, so there is nothing to count"):
        skipped_tiles(q, k, log_fgate, adaptive_threshold=None)


def test_a_traced_backward_pass_gives_gates_their_dtype():
    with FakeTensorMode():
        q, k = torch.empty(1, 3, 4, 16, dtype=HALF), torch.empty(1, 5, 2, 16, dtype=HALF)
        given = (q, q, k, k, q, [], 0.5, True, "chunked", torch.float32)
        found = forgetting_autograd._differentiated(*given)
    assert [tuple(x.shape) for x in found] == [q.shape, k.shape, k.shape, (1, 5, 4)]
    assert [x.dtype for x in found] == [HALF] * 3 + [torch.float32]
