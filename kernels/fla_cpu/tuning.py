"""Limits on the autotuning of fla's kernels at their first call, which otherwise takes minutes: up to 60 candidates each."""

import itertools
import sys
from collections.abc import Callable
from functools import partial

import torch
from triton.runtime.autotuner import Autotuner, Config

CANDIDATES = 4
MISCOMPILED = "prepare_wy_repr_bwd_kernel"
"""Kernel of the delta rules that Triton, up to 3.7.1 at least, miscompiles on Hopper with four warps: its gradients are wrong.
fla 0.6.0 avoids that for DeltaNet (github.com/fla-org/flash-linear-attention/pull/988); the kernel of the gated delta rules has
the same matrix products."""
_limited: set[Autotuner] = set()


def limit_tuning(candidates: int = CANDIDATES) -> None:
    """Let every autotuned kernel of the loaded fla modules try at most `candidates` of the configurations that it allows for a
    shape: for some shapes a kernel rejects most, such as blocks as wide as the tensor or those that Triton miscompiles.

    Different block sizes are tried first, then other numbers of warps and stages; among equal blocks, 4 warps and 3 stages,
    which suit most kernels, come first."""
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
    """Make every autotuned kernel take the first candidate that runs (others may need too much shared memory), so that the
    choice does not depend on timings and is the same in every process."""
    limit_tuning(sys.maxsize)
    for tuner in _limited:
        tuner.do_bench = _FirstThatRuns()  # type: ignore[assignment]


class _FirstThatRuns:
    """Replaces Triton's timing of candidates: returns 0 for the first one that runs, infinity for those after it."""

    def __init__(self) -> None:
        self.found = False

    def __call__(self, call: Callable[[], None], quantiles: tuple[float, ...]) -> list[float]:
        if self.found:
            return [float("inf")] * len(quantiles)
        call()  # raises if the candidate does not fit, and Triton tries the next one
        self.found = True
        return [0.0] * len(quantiles)


def lift_limit() -> None:
    """Let every kernel try all its candidates again, to time these kernels at their best; clears earlier tuning results."""
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
    # Largest blocks first: they reuse data most; the small ones are meant for other shapes.
    largest_first = sorted(by_blocks.values(), key=lambda same: -sum(v for v in same[0].kwargs.values() if isinstance(v, int)))
    in_turn = itertools.chain.from_iterable(itertools.zip_longest(*largest_first))
    return [config for config in in_turn if config is not None]
