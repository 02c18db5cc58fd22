"""Operators that are measured: their shapes, inputs, providers and references.

Forgetting attention: q and k are RMS-normalised per head. Gate logits are linspace(0, 9) over the heads plus N(0, 1) per token
("local to global": heads range from very local to global), or 30 ("open": nothing decays, nothing can be pruned).

Stick-breaking attention: logits are N(0, 1) ("short": a row's stick is used up after some fifty keys and the rest is skipped),
or N(-9, 1) ("long": every key of 16,384 counts and nothing can be skipped). Softmax attention gets a rotary embedding."""

import functools
import math
import os
from collections.abc import Callable
from functools import partial
from importlib.util import find_spec
from typing import Any, NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.attention.flex_attention import flex_attention
from torch.nn.functional import logsigmoid, rms_norm, scaled_dot_product_attention

from kernels import forgetting_attention as forgetting
from kernels import stick_breaking as stick
from kernels.benchmark.channels import channels_attention
from kernels.benchmark.flash4 import flash4_forgetting_attention, flash4_softmax
from kernels.benchmark.flex import flex_forgetting_attention
from kernels.benchmark.rows import BASELINE, CUDNN_GATE, FLEX, GATE_AS_BIAS, GATE_IN_CHANNELS, ROPE_BASELINE

Attention = Callable[..., Tensor]
Shape = tuple[int, int, int, int]
"""B, T, H, D."""
DTYPE = torch.bfloat16
OPEN = ("ours", "ours, pruned", "ours, tightly pruned")  # with open gates: the cost of looking for something to prune
SHIFT = {"long": -9.0, "short": 0.0}


class Operator(NamedTuple):
    """An operator as it is timed."""

    kind: str
    """Name of its rows in results/measurements."""
    shapes: tuple[Shape, ...]
    regimes: tuple[str, ...]
    inputs: Callable[..., list[Tensor]]
    """(shape, regime, device) -> inputs with gradient, and dO."""
    providers: Callable[[Shape], dict[str, Attention]]
    """Providers by name: first those that are always available, last those that tune themselves for minutes."""
    exact: Callable[[str], Attention | None]
    """Name of a provider -> the readable reference of what it computes, or None."""
    label: Callable[[str, str], str]
    """(provider, regime) -> the regime named in its row; empty if not measured."""
    work: Callable[[Shape], float]
    """FLOPs of a forward pass; 0 if not counted."""


def attention_flops(shape: Shape) -> float:
    """Count causal attention's FLOPs, including skipped ones."""
    B, T, H, D = shape
    return 2.0 * B * H * T * T * D


def make_inputs(shape: Shape, gates: str, device: str = "cuda") -> list[Tensor]:
    """Draw q, k, v (B, T, H, D) and log_fgate (B, T, H), with gradient, and dO."""
    B, T, H, D = shape
    generator = torch.Generator(device).manual_seed(0)
    q, k, v, do = (torch.randn(B, T, H, D, device=device, generator=generator) for _ in range(4))
    logit = torch.linspace(0, 9, H, device=device) + torch.randn(B, T, H, device=device, generator=generator)
    log_fgate = logsigmoid(logit if gates == "local to global" else torch.full_like(logit, 30.0))
    inputs = [x.to(DTYPE).requires_grad_() for x in (rms_norm(q, (D,)), rms_norm(k, (D,)), v)]
    return [*inputs, log_fgate.requires_grad_(), do.to(DTYPE)]


def make_stick_inputs(shape: Shape, logits: str, device: str = "cuda") -> list[Tensor]:
    """Draw q, k, v (B, T, H, D) with gradient, and dO."""
    generator = torch.Generator(device).manual_seed(0)
    q, k, v, do = (torch.randn(shape, device=device, generator=generator) for _ in range(4))
    q, k = rms_norm(q, shape[-1:]), rms_norm(k, shape[-1:])
    if SHIFT[logits]:
        q[..., 0], k[..., 0] = 1.0, SHIFT[logits] * shape[-1] ** 0.5
    return [*(x.to(DTYPE).requires_grad_() for x in (q, k, v)), do.to(DTYPE)]


def _softmax(backend: SDPBackend, rotated: Callable[[Tensor], Tensor] = lambda x: x) -> Attention:
    return lambda q, k, v, *_: _attend(backend, rotated(q), rotated(k), v)


def _attend(backend: SDPBackend, q: Tensor, k: Tensor, v: Tensor, scale: float | None = None) -> Tensor:
    with sdpa_kernel(backend):
        q, k, v = (x.transpose(1, 2) for x in (q, k, v))
        return scaled_dot_product_attention(q, k, v, is_causal=True, scale=scale).transpose(1, 2)


def _pruned(attention: Attention) -> Attention:
    def pruned(q: Tensor, k: Tensor, v: Tensor, log_fgate: Tensor) -> Tensor:
        B, T, H, D = q.shape
        threshold = float(forgetting.pruning_threshold(math.sqrt(D), T))  # q, k are normalised with scale one
        return attention(q, k, v, log_fgate, adaptive_threshold=torch.full((B, H), threshold, device=q.device))

    return pruned


def first(attention: Callable[..., Any]) -> Attention:
    """Return only the first output of an operator."""

    def output(*inputs: Tensor) -> Tensor:
        result = attention(*inputs)
        return result if isinstance(result, Tensor) else result[0]

    return output


@functools.cache
def providers() -> dict[str, Attention]:
    """Return the providers of forgetting attention that are available here. `fla` is its Triton path, even beside TileLang."""
    attention = forgetting.forgetting_attention
    found: dict[str, Attention] = {
        "ours": partial(attention, deterministic=False),
        BASELINE: _softmax(SDPBackend.CUDNN_ATTENTION),
        "ours, pruned": _pruned(attention),
        "ours, tightly pruned": partial(attention, adaptive_threshold="tight"),
        "ours, deterministic": attention,
        "softmax flash-2": _softmax(SDPBackend.FLASH_ATTENTION),
        GATE_IN_CHANNELS: partial(channels_attention, softmax=partial(_attend, SDPBackend.FLASH_ATTENTION)),
        CUDNN_GATE: partial(channels_attention, softmax=partial(_attend, SDPBackend.CUDNN_ATTENTION)),
        FLEX: partial(flex_forgetting_attention, flex=torch.compile(flex_attention)),
    }
    try:
        from flash_attn.cute import flash_attn_func  # type: ignore[import-not-found]

        found["softmax flash-4"] = first(lambda q, k, v, _: flash_attn_func(q, k, v, causal=True))
        found[GATE_AS_BIAS] = lambda q, k, v, gates: flash4_forgetting_attention(q, k, v, gates, flash4_softmax())
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

        def of_fla(tilelang: str, *inputs: Tensor) -> Tensor | tuple[Tensor, ...]:
            os.environ["FLA_TILELANG"] = tilelang  # fla reads it in each call, here and in the backward pass that follows
            return parallel_forgetting_attn(*inputs)

        found["fla"] = first(partial(of_fla, "0"))
        if find_spec("tilelang"):
            found["fla, TileLang"] = first(partial(of_fla, "1"))
        else:
            print("not measured: fla's TileLang path (no module named tilelang)")
    except ImportError as error:
        print(f"not measured: fla ({error})")
    return found


def _stick_providers(shape: Shape) -> dict[str, Attention]:
    """Return the providers of stick-breaking attention that are available here."""
    _, T, _, D = shape
    frequencies = 5e5 ** (-torch.arange(D // 2, device="cuda") / (D // 2))
    angles = torch.arange(T, device="cuda")[:, None] * frequencies
    table = torch.cat([angles.cos(), angles.sin()], -1)
    found = {
        "ours": first(stick.stick_breaking_attention),
        ROPE_BASELINE: _softmax(SDPBackend.CUDNN_ATTENTION, lambda x: Rotate.apply(x, table)),
        "softmax flash-2 + RoPE": _softmax(SDPBackend.FLASH_ATTENTION, lambda x: Rotate.apply(x, table)),
    }
    try:
        import kernels.hf_guard  # noqa: F401  # isort: skip  (before fla)
        from fla.ops.stickbreaking_attn import parallel_stickbreaking_attn

        found["fla"] = first(parallel_stickbreaking_attn)
    except ImportError as error:
        print(f"not measured: fla ({error})")
    return found


@triton.jit
def _rotate_kernel(x_ptr, table_ptr, y_ptr, rows, T, H, sign, HALF: tl.constexpr, ROWS: tl.constexpr):
    row_R = (tl.program_id(0) * ROWS + tl.arange(0, ROWS)).to(tl.int64)[:, None]
    channel = tl.arange(0, HALF)[None, :]
    inside = row_R < rows
    angle = row_R // H % T * (2 * HALF) + channel
    cos, sin = tl.load(table_ptr + angle, mask=inside), tl.load(table_ptr + angle + HALF, mask=inside) * sign
    at = row_R * (2 * HALF) + channel
    first, second = tl.load(x_ptr + at, mask=inside).to(tl.float32), tl.load(x_ptr + at + HALF, mask=inside).to(tl.float32)
    tl.store(y_ptr + at, first * cos - second * sin, mask=inside)
    tl.store(y_ptr + at + HALF, second * cos + first * sin, mask=inside)


class Rotate(torch.autograd.Function):
    """Rotary embedding of contiguous (B, T, H, D) in one pass over memory; the table (T, D) holds cosines, then sines."""

    @staticmethod
    def forward(ctx, x: Tensor, table: Tensor, sign: float = 1.0) -> Tensor:  # type: ignore[no-untyped-def]
        ctx.table = table
        B, T, H, D = x.shape
        y = torch.empty_like(x)
        _rotate_kernel[(triton.cdiv(B * T * H, 64),)](x, table, y, B * T * H, T, H, sign, HALF=D // 2, ROWS=64)
        return y

    @staticmethod
    def backward(ctx, dy: Tensor) -> tuple[Tensor, None, None]:  # type: ignore[no-untyped-def]
        return Rotate.apply(dy.contiguous(), ctx.table, -1.0), None, None


def _exact(provider: str) -> Attention:
    softmax = provider.startswith("softmax")
    return lambda q, k, v, gates: forgetting.reference_attention(q, k, v, 0.0 * gates if softmax else gates)


FORGETTING = Operator(
    kind="forgetting_attention",
    shapes=((2, 16_384, 24, 64), (2, 16_384, 12, 128), (8, 4096, 24, 64), (1, 65_536, 12, 64), (1, 1024, 12, 64)),
    regimes=("local to global", "open"),
    inputs=make_inputs,
    providers=lambda shape: providers(),
    exact=_exact,
    label=lambda provider, gates: gates if gates != "open" or provider in OPEN else "",
    work=attention_flops,
)
STICK_BREAKING = Operator(
    kind="stick_breaking",
    shapes=((4, 4096, 12, 128), (4, 8192, 12, 128), (4, 16_384, 12, 128), (2, 16_384, 24, 64)),
    regimes=("long", "short"),
    inputs=make_stick_inputs,
    providers=_stick_providers,
    exact=lambda provider: None if provider.startswith("softmax") else first(stick.reference_attention),
    # The time of softmax attention does not depend on its logits.
    label=lambda provider, logits: logits if not provider.startswith("softmax") else "any" if logits == "long" else "",
    work=attention_flops,
)


def tiles_left(shape: Shape) -> tuple[float, float]:
    """Compute the share of the causal tiles (0 to 1, mean over the heads) that ACP's rule and the tight rule keep."""
    _, T, H, D = shape
    q, k, _, log_fgate, _ = (x.detach() for x in make_inputs((1, T, H, D), "local to global", "cpu"))

    def left(rule: float | str) -> float:
        skipped = forgetting.skipped_tiles(q, k, log_fgate, adaptive_threshold=rule)
        return 1 - float(forgetting.share_of_tiles(skipped, T, T).mean())

    return left(float(forgetting.pruning_threshold(math.sqrt(D), T))), left("tight")
