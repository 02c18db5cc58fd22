"""Bound how long fla's kernels tune themselves at their first call: minutes over up to 60 candidates each otherwise."""

import itertools
import sys
from collections.abc import Callable
from functools import partial

import torch
from triton.runtime.autotuner import Autotuner, Config

CANDIDATES = 4
MISCOMPILED = "prepare_wy_repr_bwd_kernel"
"""Kernel of delta rules whose gradients are wrong with four warps on Hopper, by Triton up to 3.7.1 at least. fla 0.6.0 knows it
of DeltaNet's (github.com/fla-org/flash-linear-attention/pull/988); that of gated delta rules has the same products."""
_limited: set[Autotuner] = set()


def limit_tuning(candidates: int = CANDIDATES) -> None:
    """Have every tuned kernel of the loaded fla modules try at most so many of the configurations that it allows for a shape:
    of some shapes a kernel refuses most, blocks as wide as the tensor or those that Triton miscompiles.

    Tried are different block sizes first, then other numbers of warps and stages; of equal blocks the one with 4 warps and 3
    stages, which suits most kernels, comes first."""
    for name, module in list(sys.modules.items()):
        if name.startswith("fla."):
            for value in list(vars(module).values()):
                tuner = _tuner(value)
                if tuner is not None and len(tuner.configs) > 1:
                    _limited.add(tuner)
                    tuner.cache.clear()
                    tuner.prune_configs = partial(_few, tuner, candidates)  # type: ignore[method-assign]
                    vars(tuner).pop("do_bench", None)


def fix_tuning() -> None:
    """Have every tuned kernel take the first candidate that fits the GPU's memory, so that timing chooses nothing: the same in
    every process."""
    limit_tuning(sys.maxsize)
    for tuner in _limited:
        tuner.do_bench = _FirstThatRuns()  # type: ignore[assignment]


class _FirstThatRuns:
    """Stands for Triton's timing of candidates one by one: 0 for the first that runs, infinite for those after it."""

    def __init__(self) -> None:
        self.found = False

    def __call__(self, call: Callable[[], None], quantiles: tuple[float, ...]) -> list[float]:
        if self.found:
            return [float("inf")] * len(quantiles)
        call()  # what does not fit raises here, and Triton goes on to the next
        self.found = True
        return [0.0] * len(quantiles)


def lift_limit() -> None:
    """Give every kernel all its candidates back, for timings of these kernels at their best; what was tuned is forgotten."""
    for tuner in _limited:
        del tuner.prune_configs
        vars(tuner).pop("do_bench", None)
        tuner.cache.clear()
    _limited.clear()


def _few(tuner: Autotuner, candidates: int, arguments: dict) -> list[Config]:
    timer = vars(tuner).get("do_bench")
    if isinstance(timer, _FirstThatRuns):
        timer.found = False  # another shape
    allowed = type(tuner).prune_configs(tuner, arguments)
    if tuner.base_fn.__name__ == MISCOMPILED and torch.cuda.is_available() and torch.cuda.get_device_capability()[0] == 9:
        allowed = [config for config in allowed if config.num_warps == 2]
    return _spread(allowed)[:candidates]


def _tuner(value: object) -> Autotuner | None:
    while value is not None and not isinstance(value, Autotuner):
        value = getattr(value, "fn", None)
    return value


def _spread(configs: list[Config]) -> list[Config]:
    by_blocks: dict[tuple, list[Config]] = {}
    for config in sorted(configs, key=lambda c: (abs(c.num_warps - 4), abs(c.num_stages - 3))):
        by_blocks.setdefault(tuple(sorted(config.kwargs.items())), []).append(config)
    # Largest blocks first: they reuse most; the small ones are there for other shapes.
    largest_first = sorted(by_blocks.values(), key=lambda same: -sum(v for v in same[0].kwargs.values() if isinstance(v, int)))
    in_turn = itertools.chain.from_iterable(itertools.zip_longest(*largest_first))
    return [config for config in in_turn if config is not None]
