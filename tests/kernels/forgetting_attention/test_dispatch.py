"""Paths that calls take, and what each is handed: scale, pruning, limits, and what backward passes need."""

import math
import sys
from contextlib import nullcontext
from types import SimpleNamespace

import pytest
import torch

from kernels.forgetting_attention import autograd, cached, chunked, forgetting_attention, gpu, interface
from kernels.forgetting_attention.cached import forgetting_attention_cached, gates_of_sums, sum_log_gates
from kernels.forgetting_attention.options import Options
from kernels.forgetting_attention.portable import decode
from kernels.forgetting_attention.pruning.threshold import LOG_TOLERANCE, resolve_threshold

B, T, H, D = 2, 6, 4, 16


def inputs(queries: int = T, key_heads: int = 2, dtype: torch.dtype = torch.float32) -> list[torch.Tensor]:
    make = torch.Generator().manual_seed(0)
    q, k, v = (torch.randn(B, n, h, D, generator=make).to(dtype) for n, h in ((queries, H), (T, key_heads), (T, key_heads)))
    return [q, k, v, torch.nn.functional.logsigmoid(torch.randn(B, T, H, generator=make))]


@pytest.fixture
def taken(monkeypatch) -> list[tuple]:
    """Calls of the operator: its name, inputs and options."""
    calls: list[tuple] = []
    for name in ("DirectAttention", "attend"):
        of = lambda *given, name=name: calls.append((name, given[:4], Options(*given[4:]))) or ("o",)  # noqa: E731
        monkeypatch.setattr(interface, name, SimpleNamespace(apply=of) if name == "DirectAttention" else of)
    return calls


def test_options_are_handed_on(taken):
    given = inputs()
    start, threshold = torch.tensor([0, 2]), torch.full((B, H), -5.0)
    own = dict(scale=2.0, adaptive_threshold=threshold, seq_start=start, window_size=3, deterministic=False, backend="chunked")
    forgetting_attention(*given, **own)
    name, passed, options = taken.pop()
    assert name == "DirectAttention" and all(passed[n] is given[n] for n in (0, 1, 3))
    assert (
        torch.equal(passed[2][0], given[2][0]) and torch.equal(passed[2][1, 2:], given[2][1, 2:]) and not passed[2][1, :2].any()
    )
    assert torch.equal(options.threshold, threshold) and options.seq_start is start
    assert options[1:2] + options[3:] == (None, None, 3, 2.0, False, "chunked")
    forgetting_attention(*given)
    assert tuple(taken.pop()[2]) == (None, None, None, None, None, 0.25, True, "chunked")
    ends = torch.tensor([0, 2, T])
    forgetting_attention(*(x[:1] for x in given), cu_seqlens=ends)
    assert taken.pop()[2].cu_seqlens is ends


def test_limits_are_handed_on_without_strides(taken, monkeypatch):
    """Kernels read them as they lie in memory."""
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    found: list[torch.Tensor] = []
    for name in ("decode", "decode_sums"):
        of = {name: lambda *given: found.append(given[5]), f"triton_{name}": None}
        monkeypatch.setitem(sys.modules, f"kernels.forgetting_attention.portable.{name}", SimpleNamespace(**of))
    for start in (torch.tensor([[9, 0], [9, 2]])[:, 1], torch.tensor([2]).expand(B)):
        for queries in (T, 1):
            q, k, v, log_fgate = inputs(queries)
            forgetting_attention(q, k, v, log_fgate, seq_start=start, backend="triton")
        found.append(taken.pop()[2].seq_start)
        forgetting_attention_cached(q, k, v, sum_log_gates(log_fgate), seq_start=start, backend="triton")
        assert all(x.is_contiguous() and torch.equal(x, start) for x in found) and len(found) == 3
        found.clear()
    ends = torch.tensor([0, 9, 2, 9, T])[::2]
    forgetting_attention(*(x[:1] for x in inputs()), cu_seqlens=ends)
    passed = taken.pop()[2].cu_seqlens
    assert passed.is_contiguous() and torch.equal(passed, ends)


def test_rules_of_pruning_are_resolved(taken):
    """A number is taken for all heads; "auto" is the bound of these queries and keys; "tight" is left to the path, but of one
    query, which has no newer keys, it is "auto"."""
    given = inputs()
    forgetting_attention(*given, adaptive_threshold=-3.0)
    assert taken.pop()[2].threshold.tolist() == [[-3.0] * H] * B
    for tolerance in (LOG_TOLERANCE, -4.0):
        forgetting_attention(*given, adaptive_threshold="auto", log_tolerance=tolerance, scale=0.5)
        options = taken.pop()[2]
        bound = resolve_threshold("auto", given[0], given[1], 0.5, tolerance)
        assert torch.equal(options.threshold, bound) and options.tolerance is None
        forgetting_attention(*given, adaptive_threshold="tight", log_tolerance=tolerance)
        options = taken.pop()[2]
        assert (options.threshold, options.tolerance) == (None, tolerance)
        one = inputs(1)
        forgetting_attention(*one, adaptive_threshold="tight", log_tolerance=tolerance)
        options = taken.pop()[2]
        assert torch.equal(options.threshold, resolve_threshold("auto", one[0], one[1], 0.25, tolerance))
        assert options.tolerance is None
    norms = 0.5 * given[0].norm(dim=-1).amax(1)[0, 0] * given[1].norm(dim=-1).amax(1)[0, 0]
    assert float(bound[0, 0]) == pytest.approx(float(-2 * norms) - math.log(T) - 4.0, rel=0.05)


def test_autocast_rounds_queries_keys_and_values_but_no_gates(taken):
    given = inputs()
    with torch.autocast("cpu", torch.bfloat16):
        forgetting_attention(*given[:3], given[3].double().float())
    assert [x.dtype for x in taken.pop()[1]] == [torch.bfloat16] * 3 + [torch.float32]


def test_a_traced_call_is_an_operator(taken, monkeypatch):
    monkeypatch.setattr(torch.compiler, "is_compiling", lambda: True)
    assert forgetting_attention(*inputs()) == "o" and taken.pop()[0] == "attend"


@pytest.mark.parametrize(("change", "decoded"), [
    ({}, True), ({"grad": True}, False), ({"no_grad": True}, True), ({"queries": 2}, False), ({"packed": True}, False),
    ({"backend": "chunked"}, False),
])  # fmt: skip
def test_one_query_without_gradient_is_decoded(taken, monkeypatch, change, decoded):
    """By the kernel of Triton's path: no other has one."""
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    found = []
    module = SimpleNamespace(decode=lambda *given: found.append(("decode", *given)), triton_decode=None)
    monkeypatch.setitem(sys.modules, "kernels.forgetting_attention.portable.decode", module)
    given = inputs(change.get("queries", 1))
    q, k, v, log_fgate = given if not change.get("packed") else [x[:1, :1] for x in given]
    q = q.requires_grad_(bool({"grad", "no_grad"} & set(change)))
    start = torch.tensor([0, 1])
    limits = {"cu_seqlens": start} if change.get("packed") else {"window_size": 2, "seq_start": start}
    with torch.set_grad_enabled("no_grad" not in change):
        forgetting_attention(q, k, v, log_fgate, backend=change.get("backend", "triton"), scale=0.5, **limits)
    assert (len(found), len(taken)) == ((1, 0) if decoded else (0, 1))
    if decoded:
        assert all(x is y for x, y in zip(found[0][1:5], (q, k, v, log_fgate), strict=True))
        assert found[0][5] is None and found[0][6] is start and found[0][7:] == (2, 0.5)


@pytest.mark.parametrize("traced", [False, True])
def test_values_of_a_decoded_query_are_checked(monkeypatch, traced):
    """A traced call has no values yet: its operator looks at them when it runs."""
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    monkeypatch.setattr(torch.compiler, "is_compiling", lambda: traced)
    monkeypatch.setattr(decode, "decode", lambda q, *given, **how: torch.zeros_like(q))
    q, k, v, log_fgate = inputs(1)
    for gates, start, message in (
        (log_fgate + 9, None, "log_fgate reaches"), (log_fgate * math.nan, None, "log_fgate reaches inf"),
        (log_fgate, [0, T + 1], "seq_start is"), (log_fgate, [0, T], None),
    ):  # fmt: skip
        given = dict(seq_start=None if start is None else torch.tensor(start), backend="triton")
        with pytest.raises(ValueError, match=message) if message else nullcontext():
            forgetting_attention(q, k, v, gates, **given)


@pytest.fixture
def launched(monkeypatch) -> list[tuple]:
    """Calls of the computation on a GPU: the name, and all that it is given."""
    calls: list[tuple] = []
    results = {"prepare": tuple("abcdefgh"), "hopper_forward": ("o", "lse", "marks"), "forward": ("o", "lse")}
    for name in ("check_values", "prepare", "tighten", "hopper_forward", "forward", "hopper_backward", "backward"):
        of = lambda *given, name=name, **more: calls.append((name, *given, *more.values())) or results.get(name, name)  # noqa: E731
        monkeypatch.setattr(gpu, name, of)
    monkeypatch.setattr(gpu, "tiles_for", lambda file, kernel, *given: (kernel, *given))
    monkeypatch.setattr(gpu, "Prepared", lambda *given: given)
    return calls


@pytest.mark.parametrize(("dtype", "hopper", "tolerance"), [
    (torch.bfloat16, True, None), (torch.float16, True, -4.0), (torch.bfloat16, False, None), (torch.float32, False, -4.0),
])  # fmt: skip
def test_kernels_of_a_forward_pass_on_a_gpu(launched, monkeypatch, dtype, hopper, tolerance):
    """Hopper's are of bfloat16, and what they mark is computed again."""
    monkeypatch.setattr(gpu, "_has_hopper_kernels", lambda q: hopper)
    q, k, v, log_fgate = inputs(3, dtype=dtype)
    options = Options("threshold", tolerance, "start", "ends", 5, 0.5, True, "triton")
    assert gpu.BACKEND.forward(q, k, v, log_fgate, options) == ("o", ["lse", *"abcd"])
    given = ("q", "k", "v", tuple("abcdefgh"), 0.5)
    found = [tuple({id(q): "q", id(k): "k", id(v): "v", id(log_fgate): "g"}.get(id(x), x) for x in call) for call in launched]
    assert found[:2] == [("check_values", "g", "start", "ends"),
                         ("prepare", "g", 3, "threshold", "start", "ends", 5, dtype == torch.float32)]  # fmt: skip
    assert found[2:-2 if hopper and dtype == torch.bfloat16 else -1] == [
        ("tighten", *given[:2], *given[3:], -4.0)] * (tolerance is not None)  # fmt: skip
    if hopper and dtype == torch.bfloat16:
        assert found[-2:] == [("hopper_forward", *given), ("forward", *given, gpu._REDO, ("o", "lse", "marks"))]
    else:
        assert found[-1] == ("forward", *given, ("forward", D, dtype, q.device))


@pytest.mark.parametrize(("hopper", "key_heads", "deterministic", "everywhere", "ordered"), [
    (True, H, False, False, False), (True, H, True, False, True), (True, H, False, True, True),
    (True, H // 2, True, False, None), (False, H, True, False, None),
])  # fmt: skip
def test_kernels_of_a_backward_pass_on_a_gpu(launched, monkeypatch, hopper, key_heads, deterministic, everywhere, ordered):
    """Hopper's take no grouped queries, and add up in order where either the call or all of PyTorch is to be deterministic."""
    monkeypatch.setattr(gpu, "_has_hopper_kernels", lambda q: hopper)
    monkeypatch.setattr(torch, "are_deterministic_algorithms_enabled", lambda: everywhere)
    q, k, v, _ = inputs(3, key_heads)
    found = gpu.BACKEND.backward("do", q, k, v, "o", ["lse", *"abcd"], 0.5, deterministic)
    assert found == ("backward" if ordered is None else "hopper_backward")
    [(_, do, *qkv, o, lse, prepared, scale)], last = [call[:9] for call in launched], launched[0][9:]
    assert (do, o, lse, prepared, scale) == ("do", "o", "lse", tuple("abcd"), 0.5)
    assert all(x is y for x, y in zip(qkv, (q, k, v), strict=True))
    tiles = [(kernel, D, q.dtype, q.device) for kernel in ("dkdv", "dq")]
    assert list(last) == (tiles if ordered is None else [ordered])


def test_what_a_backward_pass_keeps():
    q, k, v, log_fgate = inputs(3)
    kept = chunked.BACKEND.kept_like(q, k)
    options = Options(None, None, None, None, None, 0.25, True, "chunked")
    o, own = chunked.BACKEND.forward(q, k, v, log_fgate, options)
    assert [(x.shape, x.dtype) for x in kept] == [(x.shape, x.dtype) for x in own]
    assert [tuple(x.shape) for x in own] == [(B, H, 3), (B, H, T), (B, H, 3)] and o.shape == q.shape
    half = chunked.BACKEND.kept_like(q.bfloat16(), k.bfloat16())
    assert [x.dtype for x in half] == [torch.float32, torch.float64, torch.int32]
    found = chunked.BACKEND.backward(torch.ones_like(o), q, k, v, o, own, 0.25, True)
    assert [x.shape for x in found] == [q.shape, k.shape, v.shape, log_fgate.shape] and not found[3][:, 0].any()
    assert all(x.is_contiguous() for x in found)


def test_gradients_are_of_the_four_inputs():
    """None of the options has one; an output that is not used gives none at all."""
    context = SimpleNamespace(saved_tensors=("q", "k", "v", "o", "x", "y"), options=(0.5, True, "chunked", torch.float32))
    found = autograd._gradients(lambda *given: given[1:5], context, "do")
    assert found == ("q", "k", "v", "o", *[None] * 8)
    assert autograd._gradients(lambda do, q, k, v, o, kept, *options: (kept, *options), context, "do")[:5] == (
        ["x", "y"], 0.5, True, "chunked", torch.float32)  # fmt: skip
    assert autograd._gradients(None, context, None) == (None,) * 12
    saved: dict[str, object] = {}
    own = SimpleNamespace(
        save_for_backward=lambda *given: saved.update(given=given), set_materialize_grads=lambda on: saved.update(on=on)
    )
    gate = torch.zeros(1, dtype=torch.float64)
    autograd._save(own, ("q", "k", "v", gate, "threshold", "tolerance", None, None, 3, 0.5, False, "triton"), ("o", ["a", "b"]))
    assert saved == {"given": ("q", "k", "v", "o", "a", "b"), "on": False} and own.options == (
        0.5,
        False,
        "triton",
        torch.float64,
    )


def test_gates_have_their_own_dtype_back(monkeypatch):
    backend = SimpleNamespace(backward=lambda do, q, k, v, o, kept, scale, deterministic: (q, k, v, torch.ones(1)))
    monkeypatch.setattr(autograd, "_named", lambda name: backend if name == "x" else None)
    found = autograd._backward(1, 2, 3, 4, 5, [], 0.5, True, "x", torch.float64)
    assert found[:3] == (2, 3, 4) and found[3].dtype == torch.float64


def test_the_cache_is_read_as_it_is_asked(monkeypatch):
    """By hand: two keys, of which the older has decayed by log 4, and equal logits."""
    q, k, v = torch.zeros(1, 1, 1, 16), torch.zeros(1, 2, 1, 16), torch.zeros(1, 2, 1, 16)
    v[0, :, 0, 0] = torch.tensor([5.0, 10.0])
    sums = torch.tensor([7.0, 7.0 - math.log(4)], dtype=torch.float64)[None, :, None]
    of = lambda **given: forgetting_attention_cached(q, k, v, sums, **given)[0, 0, 0, 0].item()  # noqa: E731
    assert of() == pytest.approx((0.25 * 5 + 10) / 1.25)
    assert of(adaptive_threshold=-1.3) == of(window_size=1) == of(seq_start=torch.tensor([1])) == 10.0
    assert of(adaptive_threshold=-1.4) == of(window_size=2) == of(seq_start=torch.tensor([0])) == of()
    assert of(seq_start=torch.tensor([2])) == 0.0
    assert of(length=torch.tensor([2], dtype=torch.int32)) == of() and of(length=torch.tensor([1], dtype=torch.int32)) == 5.0
    q[..., 0], k[0, 0, 0, 0] = 1.0, 4 * math.log(4)
    assert of() == pytest.approx(7.5) and of(scale=0.5) == pytest.approx((4 * 5 + 10) / 5)
    cut = torch.tensor([0.0, -2000.5], dtype=torch.float64)[None, :, None]
    assert forgetting_attention_cached(q, k, v, cut)[0, 0, 0, 0] == 10.0
    with torch.autocast("cpu", torch.bfloat16):
        assert forgetting_attention_cached(q, k, v, sums).dtype == torch.bfloat16
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    found = []
    module = SimpleNamespace(decode_sums=lambda *given: found.append(given), triton_decode_sums=None)
    monkeypatch.setitem(sys.modules, "kernels.forgetting_attention.portable.decode_sums", module)
    start = torch.tensor([1])
    forgetting_attention_cached(q, k, v, sums, backend="triton", seq_start=start, window_size=2, adaptive_threshold=-3.0)
    length = torch.tensor([2], dtype=torch.int32)
    forgetting_attention_cached(q, k, v, sums, backend="triton", length=length)
    assert found[1][6] is length and found[1][5] is None and found[1][7] is None
    assert all(torch.equal(x, y) for x, y in zip(found[0][:4], (q, k, v, sums), strict=True))
    assert found[0][4].tolist() == [[-3.0]] and found[0][5] is start and found[0][6:] == (None, 2, 0.25)


def test_sums_by_hand():
    gates = torch.tensor([-1.0, -2.0, -5000.0, -3.0])[None, :, None]
    assert sum_log_gates(gates).flatten().tolist() == [-1, -3, -4003, -4006]
    before = torch.tensor([[[10.0]]], dtype=torch.float64)
    assert sum_log_gates(gates, before).flatten().tolist() == [9, 7, -3993, -3996]
    assert sum_log_gates(gates[:, :1], before).flatten().tolist() == [9] and sum_log_gates(gates[:, :1]).item() == -1
    assert gates_of_sums(sum_log_gates(gates)).flatten().tolist() == [0, -2, -4000, -3]
    assert cached.CUT_LOG_GATE == -2000
    assert sum_log_gates(gates[:, :0]).shape == sum_log_gates(gates[:, :0], before).shape == (1, 0, 1)
    for wrong, worst in ((0.5, "0.5"), (math.nan, "inf")):
        with pytest.raises(ValueError, match=f"log_fgate reaches {worst} .* log gates must be <= 0"):
            sum_log_gates(torch.where(gates == -1, wrong, gates))
