"""Steps as CUDA graphs. A pass of few tokens through a model is hundreds of kernels of a few microseconds each: the host takes
far longer to launch them one by one than the GPU to run them. Captured once, they are launched together."""

from collections.abc import Callable
from typing import TypeVar

import torch
from torch import Tensor

from models.cache import DecodingCache

PLAIN_STEPS = 2
"""Eager steps before the capture: they compile and tune the graph's kernels."""

Output = TypeVar("Output")


def capture(run: Callable[[], Output]) -> tuple[torch.cuda.CUDAGraph, Output]:
    """Capture `run` without executing it. Returns the graph, and the output that each replay writes anew. Autocast's weight
    cache is disabled, so that weights are cast within the graph: cached copies live only as long as the autocast context in
    which they were made. Other threads may use the GPU (one pins batches). RuntimeError if `run` waits for the GPU."""
    graph, dtype = torch.cuda.CUDAGraph(), torch.get_autocast_dtype("cuda")
    with (
        torch.autocast("cuda", dtype=dtype, enabled=torch.is_autocast_enabled("cuda"), cache_enabled=False),
        torch.cuda.graph(graph, capture_error_mode="thread_local"),
    ):
        output = run()
    return graph, output


class GraphedStep:
    """Steps of one token after a prompt, over one cache with room: the first few eager, then as a CUDA graph, which
    reads the token, and updates the states and the number of cached tokens in place."""

    def __init__(self, step: Callable[[Tensor, DecodingCache], Tensor]) -> None:
        """`step`: the pass from ids (B, 1) to logits (B, 1, V), which counts its token in the cache."""
        self.step = step
        self.taken = 0
        self.graph: torch.cuda.CUDAGraph | None = None
        self.ids_B1: Tensor
        self.logits_B1V: Tensor

    def __call__(self, input_ids: Tensor, cache: DecodingCache) -> Tensor:
        """Return the logits (B, 1, V) after one more token of each sequence, ids (B, 1) on a GPU; always with one cache."""
        with torch.cuda.device_of(input_ids):  # where a graph is captured and replayed
            return self._next(input_ids, cache)

    def _next(self, input_ids: Tensor, cache: DecodingCache) -> Tensor:
        self.taken += 1
        if self.taken <= PLAIN_STEPS:
            return self.step(input_ids, cache)
        if self.graph is None:
            self._capture(input_ids, cache)
        else:
            cache.begin(len(input_ids), 1, input_ids.device, None)
            self.ids_B1.copy_(input_ids)
            cache.count(1)  # the graph counts on the GPU, and not here
        assert self.graph is not None
        self.graph.replay()
        return self.logits_B1V.clone()

    def _capture(self, input_ids: Tensor, cache: DecodingCache) -> None:
        self.ids_B1 = input_ids.clone()
        self.graph, self.logits_B1V = capture(lambda: self.step(self.ids_B1, cache))
