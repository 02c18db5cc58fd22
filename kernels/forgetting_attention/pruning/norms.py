"""Bounds on the logits from the largest row norms of q and k per head, in one pass over memory, for the "auto" threshold."""

import torch
import triton
import triton.language as tl
from torch import Tensor

from ...attention_shared.launch import ceil_div, launch, power_of_two
from ..options import NAMESPACE

ROUNDS = 8


@triton.jit
def _largest_square(x_ptr, stride_t, length, part, BLOCK: tl.constexpr, ROUNDS: tl.constexpr, D: tl.constexpr):
    """Compute max |x|^2 over the rows of a part."""
    d = tl.arange(0, D)
    largest = 0.0
    for step in range(ROUNDS):
        t = (part * ROUNDS + step) * BLOCK + tl.arange(0, BLOCK)
        x = tl.load(x_ptr + t.to(tl.int64)[:, None] * stride_t + d[None, :], mask=(t < length)[:, None], other=0.0)
        x = x.to(tl.float32)
        largest = tl.maximum(largest, tl.max(tl.sum(x * x, 1), 0))
    return largest


@triton.jit(do_not_specialize=["Q", "T", "H", "key_heads"])
def _short_bound_kernel(
    q_ptr, k_ptr, out_ptr, factor, offset, q_stride_b, q_stride_t, q_stride_h, k_stride_b, k_stride_t, k_stride_h,
    Q, T, H, key_heads, BLOCK: tl.constexpr, ROUNDS: tl.constexpr, D: tl.constexpr,
):  # fmt: skip
    """Fuse the two kernels below, for heads whose rows are one part."""
    row = tl.program_id(0).to(tl.int64)
    batch, head = row // H, row % H
    q_ptr += batch * q_stride_b + head * q_stride_h
    k_ptr += batch * k_stride_b + head // (H // key_heads) * k_stride_h
    largest_q = _largest_square(q_ptr, q_stride_t, Q, 0, BLOCK, ROUNDS, D)
    largest_k = _largest_square(k_ptr, k_stride_t, T, 0, BLOCK, ROUNDS, D)
    tl.store(out_ptr + row, factor * tl.sqrt(largest_q) * tl.sqrt(largest_k) + offset)


@triton.jit(do_not_specialize=["Q", "T", "q_rows", "H", "key_heads"])
def _largest_squares_kernel(
    q_ptr, k_ptr, out_ptr, q_stride_b, q_stride_t, q_stride_h, k_stride_b, k_stride_t, k_stride_h,
    Q, T, q_rows, H, key_heads, BLOCK: tl.constexpr, ROUNDS: tl.constexpr, D: tl.constexpr,
):  # fmt: skip
    """Compute max |x|^2 over a part of one head's rows: the grid has q's heads, then k's."""
    row, part = tl.program_id(0).to(tl.int64), tl.program_id(1)
    if row < q_rows:
        x_ptr, stride_t, length = q_ptr + row // H * q_stride_b + row % H * q_stride_h, q_stride_t, Q
    else:
        of_k = row - q_rows
        x_ptr, stride_t, length = k_ptr + of_k // key_heads * k_stride_b + of_k % key_heads * k_stride_h, k_stride_t, T
    largest = _largest_square(x_ptr, stride_t, length, part, BLOCK, ROUNDS, D)
    tl.store(out_ptr + row * tl.num_programs(1) + part, largest)


@triton.jit(do_not_specialize=["parts", "q_rows", "H", "key_heads"])
def _bound_kernel(squares_ptr, out_ptr, factor, offset, parts, q_rows, H, key_heads, PARTS: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    part = tl.arange(0, PARTS)
    of_k = q_rows + row // H * key_heads + row % H // (H // key_heads)
    largest_q = tl.max(tl.load(squares_ptr + row * parts + part, mask=part < parts, other=0.0), 0)
    largest_k = tl.max(tl.load(squares_ptr + of_k * parts + part, mask=part < parts, other=0.0), 0)
    tl.store(out_ptr + row, factor * tl.sqrt(largest_q) * tl.sqrt(largest_k) + offset)


def largest_product(q: Tensor, k: Tensor, factor: float, offset: float) -> Tensor:
    """Compute factor * max |q| * max |k| + offset per head, (B, H) float32."""
    q, k = (x if x.stride(-1) == 1 else x.contiguous() for x in (q, k))
    B, Q, H, D = q.shape
    T, key_heads = k.shape[1:3]
    block = 8192 // D
    parts = ceil_div(T, block * ROUNDS)  # Q <= T
    bound = torch.empty(B, H, device=q.device, dtype=torch.float32)
    strides = (*q.stride()[:3], *k.stride()[:3])
    if parts == 1:
        launch(
            _short_bound_kernel, (B * H,), (), (q, k, bound), (factor, offset, *strides, Q, T, H, key_heads),
            BLOCK=block, ROUNDS=ROUNDS, D=D,
        )  # fmt: skip
        return bound
    squares = torch.empty(B * (H + key_heads), parts, device=q.device, dtype=torch.float32)
    launch(
        _largest_squares_kernel, (B * (H + key_heads), parts), (), (q, k, squares),  # only grid dimension x can be this large
        (*strides, Q, T, B * H, H, key_heads), BLOCK=block, ROUNDS=ROUNDS, D=D,
    )  # fmt: skip
    launch(
        _bound_kernel, (B * H,), (), (squares, bound), (factor, offset, parts, B * H, H, key_heads),
        PARTS=power_of_two(parts), num_warps=1,
    )  # fmt: skip
    return bound


@torch.library.custom_op(f"{NAMESPACE}::logit_bound", mutates_args=())
def triton_logit_bound(q: Tensor, k: Tensor, scale: float) -> Tensor:
    """Compute scale * max |q| * max |k| per head (B, H)."""
    return largest_product(q, k, abs(scale), 0.0)


triton_logit_bound.register_fake(lambda q, *_: q.new_empty(q.shape[0], q.shape[2], dtype=torch.float32))
