"""Options of one call, as every path takes them: checked, and with pruning resolved."""

from collections.abc import Callable
from typing import NamedTuple

from torch import Tensor

NAMESPACE = __name__.rpartition(".")[0].replace(".", "_")
"""Namespace of this package's custom operators: copies under other names do not meet."""


class Options(NamedTuple):
    """See `forgetting_attention`. A tuple, because a custom operator takes its arguments one by one."""

    threshold: Tensor | None
    """(B, H) float32: tiles whose every D lies below it are skipped."""
    tolerance: float | None
    """log_tolerance of tight pruning; None for another rule."""
    seq_start: Tensor | None
    cu_seqlens: Tensor | None
    window_size: int | None
    scale: float
    deterministic: bool
    backend: str
    """Either "triton" or "chunked"."""


class Backend(NamedTuple):
    """Computation of the operator in one way."""

    forward: Callable[[Tensor, Tensor, Tensor, Tensor, Options], tuple[Tensor, list[Tensor]]]
    """(q, k, v, log_fgate, options) -> o and what backward needs besides the inputs."""
    backward: Callable[..., tuple[Tensor, Tensor, Tensor, Tensor]]
    """(do, q, k, v, o, kept, scale, deterministic) -> gradients of q, k, v and log_fgate, contiguous."""
    kept_like: Callable[[Tensor, Tensor], list[Tensor]]
    """(q, k) -> empty tensors like those that forward keeps."""
