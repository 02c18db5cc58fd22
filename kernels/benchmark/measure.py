"""Measure attention kernels on this GPU: each provider is held to float64 first, then timed.

q and k are RMS-normalised per head. Gate logits are linspace(0, 9) over the heads plus N(0, 1) per token ("local to
global": heads range from very local to global), or 30 ("open": nothing decays, nothing can be pruned). Effective
TFLOP/s are those of the dense causal computation, 4 B H T^2 D / 2 forward and 3.5 times that forward + backward: pruned
work counts as done.
"""

import functools
import math
import os
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from functools import partial
from importlib.util import find_spec

import torch
import triton
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import logsigmoid, rms_norm, scaled_dot_product_attention

from kernels.benchmark.keep import Row, TooLong, limited
from kernels.benchmark.rows import BASELINE
from kernels.forgetting_attention import forgetting_attention, pruning_threshold, reference_attention
from kernels.fused_norms import gated_output_norm, shift_and_norm

Attention = Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]
SHAPES = ((2, 16_384, 24, 64), (2, 16_384, 12, 128), (8, 4096, 24, 64), (1, 65_536, 12, 64))
DTYPE = torch.bfloat16
FACTORS = {"forward": 1.0, "forward+backward": 3.5}


def make_inputs(shape: tuple[int, int, int, int], gates: str, device: str = "cuda") -> list[Tensor]:
    """q, k, v (B, T, H, D) and log_fgate (B, T, H), with gradient, and dO."""
    B, T, H, D = shape
    generator = torch.Generator(device).manual_seed(0)
    q, k, v, do = (torch.randn(B, T, H, D, device=device, generator=generator) for _ in range(4))
    logit = torch.linspace(0, 9, H, device=device) + torch.randn(B, T, H, device=device, generator=generator)
    log_fgate = logsigmoid(logit if gates == "local to global" else torch.full_like(logit, 30.0))
    inputs = [x.to(DTYPE).requires_grad_() for x in (rms_norm(q, (D,)), rms_norm(k, (D,)), v)]
    return [*inputs, log_fgate.requires_grad_(), do.to(DTYPE)]


def _softmax(backend: SDPBackend) -> Attention:
    def attention(q: Tensor, k: Tensor, v: Tensor, _: Tensor) -> Tensor:
        with sdpa_kernel(backend):
            q, k, v = (x.transpose(1, 2) for x in (q, k, v))
            return scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2)

    return attention


def _pruned(attention: Callable[..., Tensor]) -> Attention:
    def pruned(q: Tensor, k: Tensor, v: Tensor, log_fgate: Tensor) -> Tensor:
        B, T, H, D = q.shape
        threshold = float(pruning_threshold(math.sqrt(D), T))  # q, k are normalised with scale one
        return attention(q, k, v, log_fgate, adaptive_threshold=torch.full((B, H), threshold, device=q.device))

    return pruned


@functools.cache
def providers() -> dict[str, Attention]:
    """What can be measured here, by name; first what is there in any case, last what tunes itself for minutes. `fla` is its
    Triton path, whatever else is there."""
    found: dict[str, Attention] = {
        "ours": forgetting_attention,
        BASELINE: _softmax(SDPBackend.CUDNN_ATTENTION),
        "ours, pruned": _pruned(forgetting_attention),
        "ours, tightly pruned": partial(forgetting_attention, adaptive_threshold="tight"),
        "ours, deterministic": partial(forgetting_attention, deterministic=True),
        "softmax flash-2": _softmax(SDPBackend.FLASH_ATTENTION),
    }
    try:
        from flash_attn.cute import flash_attn_func  # type: ignore[import-not-found]

        found["softmax flash-4"] = lambda q, k, v, _: _first(flash_attn_func(q, k, v, causal=True))
    except ImportError as error:
        print(f"not measured: FlashAttention-4 ({error})")
    try:
        from forgetting_transformer import forgetting_attention as authors  # type: ignore[import-not-found]

        found["authors"] = authors
        found["authors, pruned"] = _pruned(authors)
    except ImportError as error:
        print(f"not measured: the authors' package ({error})")
    try:
        import kernels.hf_guard  # noqa: F401  # isort: skip  (before fla)
        from fla.ops.forgetting_attn.parallel import parallel_forgetting_attn

        def of_fla(tilelang: str, q: Tensor, k: Tensor, v: Tensor, g: Tensor) -> Tensor:
            os.environ["FLA_TILELANG"] = tilelang  # fla reads it in each call, here and in the backward pass that follows
            return _first(parallel_forgetting_attn(q, k, v, g))

        found["fla"] = partial(of_fla, "0")
        if find_spec("tilelang"):
            found["fla, TileLang"] = partial(of_fla, "1")
        else:
            print("not measured: fla's TileLang path (no module named tilelang)")
    except ImportError as error:
        print(f"not measured: fla ({error})")
    return found


def _first(result: Tensor | tuple[Tensor, ...]) -> Tensor:
    return result if isinstance(result, Tensor) else result[0]


def check(name: str, attention: Attention, head_dim: int, gates: str) -> float:
    """Largest error of o against float64 at 1,024 tokens; raises if an output or gradient is more than a few bf16 ulp
    off."""
    *inputs, do = make_inputs((1, 1024, 4, head_dim), gates)
    log_fgate = inputs[3].detach() * (0.0 if name.startswith("softmax") else 1.0)
    exact_inputs = [x.detach().double().requires_grad_() for x in (*inputs[:3], log_fgate)]
    exact = reference_attention(*exact_inputs)
    exact_gradients = torch.autograd.grad(exact, exact_inputs[:3], do.double())
    o = attention(*inputs)
    gradients = torch.autograd.grad(o, inputs[:3], do)
    for what, x, y in zip(("o", "dq", "dk", "dv"), (o, *gradients), (exact, *exact_gradients), strict=True):
        error = ((x.double() - y).norm() / y.norm()).item()
        if not error < 2e-2:
            raise RuntimeError(f"{what} is off by {error:.1e} of its norm")
    return (o.double() - exact).abs().max().item()


def measure(shape: tuple[int, int, int, int], gates: str, names: tuple[str, ...], limit_s: int) -> Iterator[Row]:
    """Forward and forward + backward of every provider (of `names`, and cuDNN's) at one shape, in one run. Times that a
    provider has not after `limit_s` are NaN."""
    D = shape[3]
    date = now()
    *inputs, do = make_inputs(shape, gates)
    detached = [x.detach() for x in inputs]
    for name, attention in providers().items():
        if names and name not in (*names, BASELINE):
            continue
        wanted = inputs[:3] if name.startswith("softmax") else inputs
        runs: dict[str, Callable[[], object]] = {
            "forward": partial(attention, *detached),
            "forward+backward": lambda attention=attention, wanted=wanted: torch.autograd.grad(attention(*inputs), wanted, do),  # type: ignore[misc]
        }
        yield from timed(name, gates, shape, runs, partial(check, name, attention, D, gates), date, limit_s)


def timed(
    provider: str,
    gates: str,
    shape: tuple[int, int, int, int],
    runs: dict[str, Callable[[], object]],
    check: Callable[[], float],
    date: str,
    limit_s: int,
) -> list[Row]:
    """A row of each operation, if `check` gives an error of the output instead of raising one; without times where the limit
    was reached before."""
    B, T, H, D = shape
    times, tflops, error = dict.fromkeys(runs, (math.nan,) * 3), dict.fromkeys(runs, 0.0), math.nan
    try:
        with limited(limit_s):
            error = check()
            for operation, run in runs.items():
                times[operation] = tuple(triton.testing.do_bench(run, warmup=50, rep=200, quantiles=[0.2, 0.5, 0.8]))
                flops = FACTORS[operation] * 4 * B * H * T * T * D / 2
                tflops[operation] = flops / times[operation][1] * 1e-9
                ms = times[operation][1]
                print(f"{shape} {gates} {provider}: {operation} {ms:.3f} ms, {tflops[operation]:.0f} TFLOP/s", flush=True)
    except TooLong as problem:
        print(f"{shape} {gates} {provider}: {problem}", flush=True)
    except Exception as problem:  # compilers of others raise whatever they like
        print(f"{shape} {gates} {provider}: not measured ({type(problem).__name__}: {problem})", flush=True)
        return []
    return [make_row(provider, name, gates, shape, times[name], tflops[name], error, date) for name in runs]


def now() -> str:
    """Of the rows that are compared with each other."""
    return datetime.now(UTC).isoformat(timespec="seconds")


def measure_boundary(shape: tuple[int, int, int, int]) -> Iterator[Row]:
    """What comes before the forward kernel: cumulative gates, with and without the pruning boundary."""
    from kernels.forgetting_attention.portable.prepare import prepare

    B, T, H, D = shape
    date = now()
    log_fgate = make_inputs(shape, "local to global")[3].detach()
    threshold = torch.full((B, H), float(pruning_threshold(math.sqrt(D), T)), device="cuda")
    for name, value in (("cumulative gates", None), ("cumulative gates and boundary", threshold)):

        def run(value: Tensor | None = value) -> object:
            return prepare(log_fgate, T, value, None, None, None, False)

        times = triton.testing.do_bench(run, warmup=50, rep=200, quantiles=[0.2, 0.5, 0.8])
        print(f"{shape} {name}: {times[1]:.4f} ms", flush=True)
        yield make_row("ours", name, "local to global", shape, tuple(times), 0.0, math.nan, date)


def measure_decode(shape: tuple[int, int, int, int]) -> Iterator[Row]:
    """One query per sequence."""
    date = now()
    q, k, v, log_fgate, _ = (x.detach() for x in make_inputs(shape, "local to global"))
    q_heads, k_heads, v_heads = (x.transpose(1, 2) for x in (q[:, -1:], k, v))
    runs: dict[str, Callable[[], Tensor]] = {
        "ours": lambda: forgetting_attention(q[:, -1:], k, v, log_fgate),
        "ours, pruned": lambda: _pruned(forgetting_attention)(q[:, -1:], k, v, log_fgate),
        "softmax SDPA": lambda: scaled_dot_product_attention(q_heads, k_heads, v_heads),
    }
    open_gates = torch.zeros_like(log_fgate)
    exact = {
        softmax: reference_attention(q[:, -1:].double(), k.double(), v.double(), open_gates if softmax else log_fgate)
        for softmax in (False, True)
    }
    for name, run in runs.items():
        o = run() if not name.startswith("softmax") else run().transpose(1, 2)
        error = (o.double() - exact[name.startswith("softmax")]).abs().max().item()
        if not error < 2e-2:
            raise RuntimeError(f"{name}: decoding is off by {error:.1e}; not timed")
        times = triton.testing.do_bench(run, warmup=50, rep=200, quantiles=[0.2, 0.5, 0.8])
        print(f"{shape} decode {name}: {times[1]:.4f} ms", flush=True)
        yield make_row(name, "decode", "local to global", shape, tuple(times), 0.0, error, date)


def measure_norms(shape: tuple[int, int, int, int]) -> Iterator[Row]:
    """Shift with norm, and norm with gate, forward and backward, against the same in plain PyTorch."""
    D = shape[3]
    date = now()
    x, gate, _, log_fgate, dy = make_inputs(shape, "local to global")
    logit = log_fgate.detach().requires_grad_()
    weight = torch.ones(D, device="cuda", requires_grad=True)

    def shifted() -> Tensor:
        alpha = torch.sigmoid(logit)[..., None]
        previous = torch.cat([torch.zeros_like(x[:, :1]), x[:, :-1]], 1)
        mixed = (alpha * previous.float() + (1.0 - alpha) * x.float()).to(x.dtype)
        return (rms_norm(mixed.float(), (D,), eps=1e-5) * weight).to(x.dtype)

    def gated() -> Tensor:
        return (rms_norm(x.float(), (D,), eps=1e-6) * weight).to(x.dtype) * torch.sigmoid(gate)

    runs: dict[tuple[str, str], tuple[Callable[[], Tensor], list[Tensor]]] = {
        ("shift and norm", "ours"): (lambda: shift_and_norm(x, logit, weight), [x, logit, weight]),
        ("shift and norm", "PyTorch"): (shifted, [x, logit, weight]),
        ("gated output norm", "ours"): (lambda: gated_output_norm(x, gate, weight), [x, gate, weight]),
        ("gated output norm", "PyTorch"): (gated, [x, gate, weight]),
    }
    with torch.no_grad():
        exact_outputs = {"shift and norm": _exact_shift(x, logit), "gated output norm": _exact_gated(x, gate)}
    for (operation, name), (run, wanted) in runs.items():

        def both(run: Callable[[], Tensor] = run, wanted: list[Tensor] = wanted) -> object:
            return torch.autograd.grad(run(), wanted, dy)

        exact = exact_outputs[operation]
        error = (run().double() - exact).abs().max().item()
        if not error < 2e-2 * exact.abs().max().item():
            raise RuntimeError(f"{name}: {operation} is off by {error:.1e}; not timed")
        times = triton.testing.do_bench(both, warmup=50, rep=200, quantiles=[0.2, 0.5, 0.8])
        print(f"{shape} {operation} {name}: {times[1]:.4f} ms", flush=True)
        yield make_row(name, operation, "none", shape, tuple(times), 0.0, error, date)


def _exact_shift(x: Tensor, logit: Tensor) -> Tensor:
    alpha = torch.sigmoid(logit.double())[..., None]
    previous = torch.cat([torch.zeros_like(x[:, :1]), x[:, :-1]], 1).double()
    return rms_norm(alpha * previous + (1.0 - alpha) * x.double(), x.shape[-1:], eps=1e-5)


def _exact_gated(x: Tensor, gate: Tensor) -> Tensor:
    return rms_norm(x.double(), x.shape[-1:], eps=1e-6) * torch.sigmoid(gate.double())


def make_row(
    provider: str,
    operation: str,
    gates: str,
    shape: tuple[int, int, int, int],
    times: tuple[float, ...],
    tflops: float,
    error: float,
    date: str,
) -> Row:
    """As results/measured.py keeps it. `times`: quantiles 20/50/80 in milliseconds."""
    names = ("batch", "seq_len", "num_heads", "head_dim", "ms_q20", "ms_q50", "ms_q80")
    return {
        "date": date,
        "provider": provider,
        "operation": operation,
        "gates": gates,
        "dtype": str(DTYPE).removeprefix("torch."),
        **dict(zip(names, (*shape, *(round(t, 5) for t in times)), strict=True)),
        "effective_tflops": round(tflops, 2),
        "max_error": float(f"{error:.3g}"),
    }
