"""Options of one call, as every backend takes them."""

from collections.abc import Callable
from typing import NamedTuple

from torch import Tensor

NAMESPACE = __name__.rpartition(".")[0].replace(".", "_")
"""Where this package's custom operators are registered: copies under other names do not meet."""


class Options(NamedTuple):
    """See `stick_breaking_attention`. A tuple, because a custom operator takes its arguments one by one."""

    seq_start: Tensor | None
    cu_seqlens: Tensor | None
    scale: float
    attend_current: bool
    backend: str
    """Either "triton" or "chunked"."""


class Backend(NamedTuple):
    """Computation of the operator in one way, on the first visible key of each query, (B, Q), or None."""

    forward: Callable[[Tensor, Tensor, Tensor, Tensor | None, Options], tuple[Tensor, Tensor, list[Tensor]]]
    """(q, k, v, first_key, options) -> o, remainder and what backward needs besides the inputs."""
    backward: Callable[..., tuple[Tensor, Tensor, Tensor]]
    """(do, dremainder, q, k, v, remainder, kept, first_key, options) -> gradients of q, k and v."""
    kept_like: Callable[[Tensor], list[Tensor]]
    """q -> empty tensors like those that forward keeps."""
