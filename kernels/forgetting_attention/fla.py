"""Backend for flash-linear-attention (fla 0.6): after `import forgetting_attention.fla`, its `parallel_forgetting_attn`, layer
and model compute with this package where it applies, and as before where it does not.

fla's own backends are asked below `parallel_attn`, when the gates are a float32 sum already. This one is asked above it and
sums them in float64: over 64k tokens the sum of a local head is so large that its float32 steps move the logits by up to 7e-3
and the output by 1e-3. FLA_FORGETTING_ATTENTION=0 turns it off; fla's logger says (INFO) which backend it takes, and why."""

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
    """Tell whether the call is taken; a ValueError, which says why not, counts as no."""
    q, k, v = as_autocast(q, k, v)
    check_tensors(q, k, v)
    check_limits(q, k, None, cu_seqlens, window_size)
    return True, None


# `parallel_forgetting_attn` looks this name up at every call, so that it does not matter who imported it when.
parallel.parallel_attn = dispatch(parallel.parallel_attn)


@register(parallel.parallel_attn, backend=Backend, verifier=_applies)
def _attend(
    q: Tensor, k: Tensor, v: Tensor, g: Tensor, scale: float, window_size: int | None = None, cu_seqlens: Tensor | None = None
) -> Tensor:
    return forgetting_attention(q, k, v, g.float(), scale=scale, window_size=window_size, cu_seqlens=cu_seqlens)
