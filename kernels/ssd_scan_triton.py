"""The scan over chunks' states as a kernel."""

import triton
import triton.language as tl
from torch import Tensor


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
    """Do `kernels.ssd_chunks.scan_loop` in one launch."""
    size, block = final[0].numel(), 512
    grid = (triton.cdiv(size, block), len(update))
    _scan_kernel[grid](update, decay, states, final, update.shape[1], size, *update.shape[-2:], reverse, block, num_warps=2)
