"""The largest norm of each head's rows, in one pass over memory: for the "auto" pruning threshold."""

import torch
import triton
import triton.language as tl
from torch import Tensor


@triton.jit(do_not_specialize=["T", "H"])
def _largest_norm_kernel(
    x_ptr, out_ptr, stride_b, stride_t, stride_h, T, H, BLOCK: tl.constexpr, ROUNDS: tl.constexpr, D: tl.constexpr
):  # fmt: skip
    row = tl.program_id(1).to(tl.int64)
    x_ptr += row // H * stride_b + row % H * stride_h
    d = tl.arange(0, D)
    largest = 0.0
    for part in range(ROUNDS):
        t = (tl.program_id(0) * ROUNDS + part) * BLOCK + tl.arange(0, BLOCK)
        x = tl.load(x_ptr + t.to(tl.int64)[:, None] * stride_t + d[None, :], mask=(t < T)[:, None], other=0.0)
        x = x.to(tl.float32)
        largest = tl.maximum(largest, tl.max(tl.sum(x * x, 1), 0))
    tl.atomic_max(out_ptr + row, largest, sem="relaxed")


def largest_norms(x_BTHD: Tensor) -> Tensor:
    """max over t of |x_t|, (B, H) float32."""
    if x_BTHD.stride(-1) != 1:
        x_BTHD = x_BTHD.contiguous()
    B, T, H, D = x_BTHD.shape
    out = torch.zeros(B, H, device=x_BTHD.device, dtype=torch.float32)
    block, rounds = 8192 // D, 8
    _largest_norm_kernel[(triton.cdiv(T, block * rounds), B * H)](
        x_BTHD, out, *x_BTHD.stride()[:3], T, H, BLOCK=block, ROUNDS=rounds, D=D
    )
    return out.sqrt_()


@torch.library.custom_op("forgetting_attention::triton_logit_bound", mutates_args=())
def triton_logit_bound(q: Tensor, k: Tensor, scale: float) -> Tensor:
    """scale * max |q| * max |k| per head (B, H)."""
    largest_k = largest_norms(k).repeat_interleave(q.shape[2] // k.shape[2], dim=1)
    return largest_norms(q) * largest_k * abs(scale)


@triton_logit_bound.register_fake
def _(q, k, scale):  # type: ignore[no-untyped-def]
    return q.new_empty(q.shape[0], q.shape[2], dtype=torch.float32)
