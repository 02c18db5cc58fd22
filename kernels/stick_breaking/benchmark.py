"""Measure stick-breaking attention against softmax attention with rotary embedding: `python -m
kernels.stick_breaking.benchmark`.

Two kinds of logits. "short": N(0, 1), as of fresh weights, where a row's stick is used up after some fifty keys and the rest
is skipped. "long": N(-9, 1), where every key of 16,384 counts and nothing can be skipped. Effective TFLOP/s are those of the
dense causal computation, 4 B H T^2 D / 2 forward and 3.5 times that forward + backward: skipped work counts as done.
"""

import math
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import torch
import triton
import triton.language as tl
import tyro
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import rms_norm, scaled_dot_product_attention
from tyro.conf import UseAppendAction

from kernels.benchmark.keep import Row, keep
from kernels.benchmark.measure import now, timed
from kernels.benchmark.rows import LIMIT_S, PICTURES, ROPE_BASELINE, draw, table
from kernels.stick_breaking import reference_attention, stick_breaking_attention
from results.measured import FOLDER, read

Attention = Callable[[Tensor, Tensor, Tensor], Tensor]
SHAPES = ((4, 4096, 12, 128), (4, 8192, 12, 128), (4, 16_384, 12, 128), (2, 16_384, 24, 64))
SHIFT = {"short": 0.0, "long": -9.0}


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


def _softmax(backend: SDPBackend, table: Tensor) -> Attention:
    def attention(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        q, k, v = (x.transpose(1, 2) for x in (Rotate.apply(q, table), Rotate.apply(k, table), v))
        with sdpa_kernel(backend):
            return scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2)

    return attention


def _first(attention: Callable[..., tuple[Tensor, Tensor]]) -> Attention:
    return lambda q, k, v: attention(q, k, v)[0]


def _providers(seq_len: int, head_dim: int) -> dict[str, Attention]:
    """What can be measured here, by name; last what tunes itself for minutes."""
    frequencies = 5e5 ** (-torch.arange(head_dim // 2, device="cuda") / (head_dim // 2))
    angles = torch.arange(seq_len, device="cuda")[:, None] * frequencies
    table = torch.cat([angles.cos(), angles.sin()], -1)
    found = {
        "ours": _first(stick_breaking_attention),
        ROPE_BASELINE: _softmax(SDPBackend.CUDNN_ATTENTION, table),
        "softmax flash-2 + RoPE": _softmax(SDPBackend.FLASH_ATTENTION, table),
    }
    try:
        import kernels.hf_guard  # noqa: F401  # isort: skip  (before fla)
        from fla.ops.stickbreaking_attn import parallel_stickbreaking_attn

        found["fla"] = _first(parallel_stickbreaking_attn)
    except ImportError as error:
        print(f"not measured: fla ({error})")
    return found


def _inputs(shape: tuple[int, int, int, int], logits: str) -> list[Tensor]:
    """q, k, v (B, T, H, D) with gradient, and dO; bfloat16."""
    generator = torch.Generator("cuda").manual_seed(0)
    q, k, v, do = (torch.randn(shape, device="cuda", generator=generator) for _ in range(4))
    q, k = rms_norm(q, shape[-1:]), rms_norm(k, shape[-1:])
    if SHIFT[logits]:
        q[..., 0], k[..., 0] = 1.0, SHIFT[logits] * shape[-1] ** 0.5
    return [*(x.bfloat16().requires_grad_() for x in (q, k, v)), do.bfloat16()]


def _error(name: str, attention: Attention, head_dim: int, logits: str) -> float:
    """Largest error of o against float64 at 1,024 tokens; raises if o or a gradient is off by more than a few bf16 ulp of
    its norm."""
    *inputs, do = _inputs((1, 1024, 4, head_dim), logits)
    doubles = [x.detach().double().requires_grad_() for x in inputs]
    exact = _first(reference_attention)(*doubles)
    expected = (exact, *torch.autograd.grad(exact, doubles, do.double()))
    o = attention(*inputs)
    found = (o, *torch.autograd.grad(o, inputs, do))
    for what, x, y in zip(("o", "dq", "dk", "dv"), found, expected, strict=True):
        error = ((x.double() - y).norm() / y.norm()).item()
        print(f"  {name}, {logits}, D = {head_dim}: {what} is off by {error:.1e} of its norm")
        if not error < 2e-2:
            raise RuntimeError(f"{what} is off by {error:.1e} of its norm")
    return (o.double() - exact).abs().max().item()


def measure(
    shape: tuple[int, int, int, int], name: str, attention: Attention, logits: str, date: str, limit_s: int
) -> Iterator[Row]:
    """Forward and forward + backward of one provider."""
    is_softmax = name.startswith("softmax")
    *inputs, do = _inputs(shape, logits)
    runs: dict[str, Callable[[], object]] = {
        "forward": partial(attention, *(x.detach() for x in inputs)),
        "forward+backward": lambda: torch.autograd.grad(attention(*inputs), inputs, do),
    }
    check = (lambda: math.nan) if is_softmax else partial(_error, name, attention, shape[3], logits)
    yield from timed(name, "any" if is_softmax else logits, shape, runs, check, date, limit_s)


@dataclass(frozen=True)
class Options:
    """Measure stick-breaking attention against softmax attention with rotary embedding."""

    show: bool = False
    """Print and draw the stored rows; needs no GPU."""
    rows: Path = FOLDER
    """Folder that the rows are added to or read from."""
    only: tuple[str, ...] = ()
    """Providers to measure besides cuDNN's softmax; all by default."""
    shape: UseAppendAction[tuple[tuple[int, int, int, int], ...]] = ()
    """B T H D (repeatable); the usual four by default."""
    limit_s: int = LIMIT_S
    """Seconds after which a provider is left where it compiles, tunes and runs: the times that it lacks are stored as NaN."""
    code: str = ""
    """Which code is measured, where no checkout tells (a commit, a word)."""


def main() -> int:
    options = tyro.cli(Options, prog="python -m kernels.stick_breaking.benchmark", description=__doc__)
    try:
        for shape in () if options.show else options.shape or SHAPES:
            date = now()
            for name, attention in _providers(shape[1], shape[3]).items():
                # How long softmax takes does not depend on its logits.
                for logits in ("long",) if name.startswith("softmax") else SHIFT:
                    if not options.only or name in (*options.only, ROPE_BASELINE):
                        rows = measure(shape, name, attention, logits, date, options.limit_s)
                        keep("stick_breaking", rows, f"{shape} {name} {logits}", options.code, options.rows)
        stored = read("stick_breaking", options.rows)
    except ValueError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    print(table(stored))
    folder = PICTURES if options.rows == FOLDER else options.rows
    draw(stored, folder / "stick_breaking.png", "long", "logits N(-9, 1): nothing can be skipped")
    return 0


if __name__ == "__main__":
    sys.exit(main())
