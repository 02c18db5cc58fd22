"""Parts shared by both implementations of Mamba-2's recurrence: splitting into chunks, and the scan over their states."""

import torch
import torch.nn.functional as F
import triton
import triton.language as tl
from torch import Tensor


def to_chunks(y: Tensor, size: int) -> Tensor:
    """Split (B, T, ...) -> (B, n, C, ...), padded with zeros: a zero key and a zero log gate do not change the state."""
    missing = -y.shape[1] % size
    if missing:
        y = F.pad(y, (0, 0) * (y.ndim - 2) + (0, missing))
    return y.unflatten(1, (-1, size))


def scan(update: Tensor, decay: Tensor, start_BNHP: Tensor | None, dtype: torch.dtype, reverse: bool) -> tuple[Tensor, Tensor]:
    """Run S <- decay * S + update over chunks, from the last to the first if `reverse`; decay is (B, n, H). Return the states
    (B, n, N, H, P) before each chunk in `dtype`, and the state after the last one in update's dtype."""
    final = torch.zeros_like(update[:, 0]) if start_BNHP is None else start_BNHP.clone(memory_format=torch.contiguous_format)
    states = torch.empty_like(update, dtype=dtype)
    if update.is_cuda:
        scan_kernel(update.contiguous(), decay, states, final, reverse)
    else:
        scan_loop(update, decay, states, final, reverse)
    return states, final


def scan_loop(update: Tensor, decay: Tensor, states: Tensor, final: Tensor, reverse: bool) -> None:
    """Fill `states`; `final` holds the initial state on entry and the final state on return."""
    for chunk in range(update.shape[1])[:: -1 if reverse else 1]:
        states[:, chunk] = final
        final.mul_(decay[:, chunk, None, :, None]).add_(update[:, chunk])


@triton.jit
def _scan_kernel(update, decay, states, final, num_chunks, size, H, P, REVERSE: tl.constexpr, BLOCK: tl.constexpr):
    batch = tl.program_id(1).to(tl.int64)
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = at < size
    head = at // P % H
    state = tl.load(final + batch * size + at, mask, 0.0)
    for step in tl.range(num_chunks, num_stages=4):
        chunk = batch * num_chunks + (num_chunks - 1 - step if REVERSE else step)
        tl.store(states + chunk * size + at, state.to(states.dtype.element_ty), mask)
        factor = tl.load(decay + chunk * H + head, mask, 0.0)
        state = state * factor + tl.load(update + chunk * size + at, mask, 0.0)
    tl.store(final + batch * size + at, state, mask)


def scan_kernel(update: Tensor, decay: Tensor, states: Tensor, final: Tensor, reverse: bool) -> None:
    """Run `scan_loop` in one kernel launch."""
    size, block = final[0].numel(), 512
    grid = (triton.cdiv(size, block), len(update))
    _scan_kernel[grid](update, decay, states, final, update.shape[1], size, *update.shape[-2:], reverse, block, num_warps=2)
