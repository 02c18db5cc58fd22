"""Times of forgetting and stick-breaking attention beside softmax attention, of long inputs and of one short call.

Forgetting attention: q and k are RMS-normalised per head. Gate logits are linspace(0, 9) over the heads plus N(0, 1) per token
("local to global": heads range from very local to global), or 30 ("open": nothing decays, nothing can be pruned).

Stick-breaking attention: logits are N(0, 1) ("short": a row's stick is used up after some fifty keys and the rest is skipped),
or N(-9, 1) ("long": every key of 16,384 counts and nothing can be skipped). Softmax attention gets a rotary embedding, and
its time, which no logits change, is measured once ("any").

Effective TFLOP/s include skipped work: 4 B H T^2 D / 2 forward, and 3.5 times that forward + backward."""

import functools
import math
import os
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from datetime import UTC, datetime
from functools import partial

import torch
import triton
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import logsigmoid, rms_norm, scaled_dot_product_attention

from kernels import forgetting_attention as forgetting
from kernels import stick_breaking as stick
from kernels.benchmark.rows import BASELINE, PASSES, ROPE_BASELINE
from kernels.benchmark.timing import DTYPE, Attention, Row, Shape, largest_error, timed

REGIMES = {"forgetting_attention": ("local to global", "open"), "stick_breaking": ("long", "short")}
SHAPES: dict[str, tuple[Shape, ...]] = {
    "forgetting_attention": ((2, 16_384, 24, 64), (2, 16_384, 12, 128), (8, 4096, 24, 64), (1, 65_536, 12, 64)),
    "stick_breaking": ((4, 4096, 12, 128), (4, 8192, 12, 128), (4, 16_384, 12, 128), (2, 16_384, 24, 64)),
    "calls": ((1, 1024, 12, 64),),
    "decoding": (
        (1, 8192, 12, 64),
        (1, 65_536, 12, 64),
        (1, 262_144, 24, 64),
        (16, 8192, 24, 64),
        (64, 4096, 24, 64),
    ),
}
CALLS = 200
QUANTILES = (0.2, 0.5, 0.8)
Clock = Callable[[Attention], list[float]]


def make_inputs(shape: Shape, regime: str, device: str = "cuda") -> list[Tensor]:
    """Draw q, k, v (B, T, H, D), for forgetting attention also log_fgate (B, T, H), with gradient, and dO."""
    B, T, H, D = shape
    generator = torch.Generator(device).manual_seed(0)
    q, k, v, do = (torch.randn(shape, device=device, generator=generator) for _ in range(4))
    q, k = rms_norm(q, (D,)), rms_norm(k, (D,))
    if regime == "long":
        q[..., 0], k[..., 0] = 1.0, -9.0 * D**0.5
    inputs = [x.to(DTYPE) for x in (q, k, v)]
    if regime in REGIMES["forgetting_attention"]:
        logit = torch.linspace(0, 9, H, device=device) + torch.randn(B, T, H, device=device, generator=generator)
        inputs.append(logsigmoid(logit if regime == "local to global" else torch.full_like(logit, 30.0)))
    return [*(x.requires_grad_() for x in inputs), do.to(DTYPE)]


def first(attention: Attention) -> Attention:
    """Return only the first output of an operator."""

    def output(*inputs: Tensor) -> Tensor:
        result = attention(*inputs)
        return result if isinstance(result, Tensor) else result[0]

    return output


def softmax(backend: SDPBackend, q: Tensor, k: Tensor, v: Tensor, *_: Tensor) -> Tensor:
    """Causal softmax attention of (B, T, H, D); one query is that of the last key."""
    with sdpa_kernel(backend):
        q, k, v = (x.transpose(1, 2) for x in (q, k, v))
        return scaled_dot_product_attention(q, k, v, is_causal=q.shape[2] > 1).transpose(1, 2)


def with_rope(backend: SDPBackend, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Causal softmax attention after a rotary embedding in one pass over memory."""
    rotated, angles = _compiled(), _angles(q.shape[1], q.shape[-1], q.device)
    return softmax(backend, rotated(q, *angles), rotated(k, *angles), v)


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotate the halves of each head's channels."""
    a, b = x.float().chunk(2, -1)
    return torch.cat([a * cos - b * sin, b * cos + a * sin], -1).to(x.dtype)


@functools.cache
def _compiled() -> Attention:
    return torch.compile(rotate, dynamic=False)


@functools.cache
def _angles(T: int, D: int, device: torch.device) -> tuple[Tensor, Tensor]:
    angles = torch.arange(T, device=device)[:, None, None] * 5e5 ** (-torch.arange(D // 2, device=device) / (D // 2))
    return angles.cos(), angles.sin()


def _pruned(attention: Attention) -> Attention:
    def pruned(q: Tensor, k: Tensor, v: Tensor, log_fgate: Tensor) -> Tensor:
        B, T, H, D = q.shape
        threshold = float(forgetting.pruning_threshold(math.sqrt(D), T))  # q, k are normalised with scale one
        return attention(q, k, v, log_fgate, adaptive_threshold=torch.full((B, H), threshold, device=q.device))

    return pruned


def providers(kind: str = "forgetting_attention") -> dict[str, Attention]:
    """Return the providers that are installed, by name; those that tune themselves for minutes come last."""
    import kernels.hf_guard  # noqa: F401  # isort: skip  (before fla)
    import fla.ops.forgetting_attn.parallel as fla_forgetting
    import fla.ops.stickbreaking_attn as fla_stick

    os.environ["FLA_TILELANG"] = "0"  # fla's path in Triton, also beside TileLang
    if kind == "stick_breaking":
        return {
            "ours": first(stick.stick_breaking_attention),
            ROPE_BASELINE: partial(with_rope, SDPBackend.CUDNN_ATTENTION),
            "softmax flash-2 + RoPE": partial(with_rope, SDPBackend.FLASH_ATTENTION),
            "fla": first(fla_stick.parallel_stickbreaking_attn),
        }
    attention = forgetting.forgetting_attention
    found: dict[str, Attention] = {
        "ours": partial(attention, deterministic=False),
        BASELINE: partial(softmax, SDPBackend.CUDNN_ATTENTION),
        "ours, pruned": _pruned(attention),
        "ours, tightly pruned": partial(attention, adaptive_threshold="tight"),
        "ours, deterministic": attention,
    }
    with suppress(ImportError):  # FlashAttention-4
        from flash_attn.cute import flash_attn_func  # type: ignore[import-not-found]

        found["softmax flash-4"] = first(lambda q, k, v, _: flash_attn_func(q, k, v, causal=True))
    with suppress(ImportError):  # the authors' package
        from forgetting_transformer import forgetting_attention as authors  # type: ignore[import-not-found]

        found |= {"authors": authors, "authors, pruned": _pruned(authors)}
    return {**found, "fla": first(fla_forgetting.parallel_forgetting_attn)}


def outputs(attention: Attention, inputs: list[Tensor], count: int, do: Tensor) -> list[Tensor]:
    """Return the output and the gradients of the first `count` inputs."""
    o = attention(*inputs)
    return [o, *torch.autograd.grad(o, inputs[:count], do)]


def check(kind: str, name: str, attention: Attention, head_dim: int, regime: str, device: str = "cuda") -> float:
    """Compute the largest error of o against float64 at 1,024 tokens; NaN for softmax attention beside stick-breaking. Raises
    RuntimeError if an output or gradient is wrong."""
    is_softmax = name.startswith("softmax")
    if kind == "stick_breaking" and is_softmax:
        return math.nan
    *inputs, do = make_inputs((1, 1024, 4, head_dim), regime, device)
    doubles = [x.detach().double().requires_grad_() for x in inputs]
    if is_softmax:
        doubles[3] = 0.0 * doubles[3]
    reference = first(stick.reference_attention if kind == "stick_breaking" else forgetting.reference_attention)
    return largest_error(outputs(attention, inputs, 3, do), outputs(reference, doubles, 3, do.double()))


def on_the_gpu(run: Attention) -> list[float]:
    """Time a call on the GPU; quantiles in milliseconds."""
    return triton.testing.do_bench(run, warmup=50, rep=200, quantiles=list(QUANTILES))


def from_the_host(run: Attention) -> list[float]:
    """Time CALLS calls from the host, each to the end of its work on the GPU, as in a model without a graph of its step."""
    times = []
    for _ in range(2 * CALLS):  # the first half warms up
        torch.cuda.synchronize()
        begin = time.perf_counter()
        run()
        torch.cuda.synchronize()
        times.append(1e3 * (time.perf_counter() - begin))
    return torch.tensor(times[CALLS:]).quantile(torch.tensor(QUANTILES)).tolist()


def measure(
    kind: str, shape: Shape, only: tuple[str, ...], clock: Clock = on_the_gpu, passes: tuple[str, str] = PASSES
) -> Iterator[Row]:
    """Time forward and forward + backward of every provider (those in `only` and cuDNN's, or all) at one shape, in one run."""
    date = datetime.now(UTC).isoformat(timespec="seconds")  # common to rows that are compared with each other
    B, T, H, D = shape
    for regime in REGIMES[kind]:
        *inputs, do = make_inputs(shape, regime)
        for name, attention in providers(kind).items():
            is_softmax, ours = name.startswith("softmax"), name.startswith("ours")
            if (only and name not in (*only, BASELINE, ROPE_BASELINE)) or not (ours or regime in ("local to global", "long")):
                continue
            forward = partial(attention, *(x.detach() for x in inputs))
            both = partial(outputs, attention, inputs, 3 if is_softmax else len(inputs), do)
            runs = {passes[0]: partial(clock, forward), passes[1]: partial(clock, both)}
            gates = "any" if is_softmax and kind == "stick_breaking" else regime
            error = partial(check, kind, name, attention, D, regime)
            yield from timed(name, gates, shape, date, error, runs, 2.0 * B * H * T * T * D)
