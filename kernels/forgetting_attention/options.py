"""Options of one call as passed to every backend: validated, with the pruning threshold resolved."""

from collections.abc import Callable
from typing import NamedTuple

from torch import Tensor

NAMESPACE = __name__.rpartition(".")[0].replace(".", "_")
"""Namespace of this package's custom operators: copies of the package under other names do not collide."""


class Options(NamedTuple):
    """See `forgetting_attention`. A tuple, because a custom operator takes its arguments one by one."""

    threshold: Tensor | None
    """(B, H) float32: tiles in which every D is below it are skipped."""
    tolerance: float | None
    """log_tolerance of tight pruning; None without it."""
    seq_start: Tensor | None
    cu_seqlens: Tensor | None
    window_size: int | None
    scale: float
    deterministic: bool
    backend: str
    """Either "triton" or "chunked"."""


class Backend(NamedTuple):
    """One implementation of the operator."""

    forward: Callable[[Tensor, Tensor, Tensor, Tensor, Options], tuple[Tensor, list[Tensor]]]
    """(q, k, v, log_fgate, options) -> o and the tensors that backward needs besides the inputs."""
    backward: Callable[..., tuple[Tensor, Tensor, Tensor, Tensor]]
    """(do, q, k, v, o, kept, scale, deterministic) -> gradients of q, k, v and log_fgate, contiguous."""
    kept_like: Callable[[Tensor, Tensor], list[Tensor]]
    """(q, k) -> empty tensors like those that forward saves."""
