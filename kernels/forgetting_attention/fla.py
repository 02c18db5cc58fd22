"""Backend for flash-linear-attention (fla 0.6): after `import forgetting_attention.fla`, its `parallel_forgetting_attn`, layer
and model use this package for the calls that it supports, and fla's kernels for others.

fla dispatches to its own backends below `parallel_attn`, when the gates have already been summed in float32. This one is
dispatched above it and sums them in float64: over 64k tokens the sum of a local head is so large that float32's spacing moves
the logits by up to 7e-3 and the output by 1e-3. FLA_FORGETTING_ATTENTION=0 disables it; fla logs (INFO) which backend it takes,
and why."""

from fla.backends import BaseBackend, dispatch, register
from fla.ops.forgetting_attn import parallel
from torch import Tensor

from ..attention_shared.arguments import as_autocast, check_limits, check_tensors
from .interface import forgetting_attention


class Backend(BaseBackend):
    backend_type = "forgetting_attention"
    env_var = "FLA_FORGETTING_ATTENTION"
    priority = 0


def _applies(
    q: Tensor, k: Tensor, v: Tensor, g: Tensor, scale: float, window_size: int | None = None, cu_seqlens: Tensor | None = None
) -> tuple[bool, str | None]:
    """Tell whether this backend supports the call; fla treats a ValueError as no, with its message as the reason."""
    q, k, v = as_autocast(q, k, v)
    check_tensors(q, k, v)
    check_limits(q, k, None, cu_seqlens, window_size)
    return True, None


# `parallel_forgetting_attn` looks this name up at every call, so that the order of imports does not matter.
parallel.parallel_attn = dispatch(parallel.parallel_attn)


@register(parallel.parallel_attn, backend=Backend, verifier=_applies)
def _attend(
    q: Tensor, k: Tensor, v: Tensor, g: Tensor, scale: float, window_size: int | None = None, cu_seqlens: Tensor | None = None
) -> Tensor:
    return forgetting_attention(q, k, v, g.float(), scale=scale, window_size=window_size, cu_seqlens=cu_seqlens)
