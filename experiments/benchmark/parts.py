"""Where the time of a step goes: CUDA kernels by name, from one step under the profiler."""

import re
import sys
from collections import defaultdict
from collections.abc import Callable

import torch

from training.distributed import World

PARTS = (
    ("norms", r"rms_norm|layer_norm|_shift_|gated_norm"),
    ("loss", r"logsumexp|arange_eq_exp|cross_entropy"),
    ("attention", r"^_?(forward|backward|dkdv|dq|before|after|tile|whole|limits|delta|spans|gate)_|flash|attention|cudnn"),
    (
        "recurrence",
        r"^_(sums|states|outputs|pairs|shared|gates|scan)_kernel|selective_scan|"
        r"chunk|gla|delta_rule|fwd_h|bwd_dh|causal_conv|recompute_w|solve_tril|wy|cumsum",
    ),
    ("matmuls", r"gemm|nvjet|cutlass|cublas|matmul|wgmma"),
    ("optimiser", r"multi_tensor|adam|FusedAdam|lpnorm|foreach"),
    ("communication", r"nccl"),
)
"""CUDA kernels by name; the head's matrix products count as matmuls, and what matches none (the activation of the MLP,
casts, sums of gradients) is `other`."""


def time_by_part(step: Callable[[], None], world: World, num_kernels: int = 0) -> dict[str, float]:
    """Milliseconds of one step by what the CUDA kernels do; `idle` is time in which none ran. The `num_kernels` longest
    are printed to stderr."""
    from torch.profiler import ProfilerActivity, profile

    with profile(activities=[ProfilerActivity.CUDA]) as profiler:
        step()
        torch.cuda.synchronize()
    parts: dict[str, float] = defaultdict(float)
    names: dict[str, float] = defaultdict(float)
    intervals = []
    for event in profiler.events():
        if str(event.device_type) != "DeviceType.CUDA":
            continue
        part = next((part for part, pattern in PARTS if re.search(pattern, event.name, re.IGNORECASE)), "other")
        milliseconds = event.time_range.elapsed_us() / 1e3
        parts[part] += milliseconds
        names[f"{part}: {event.name[:100]}"] += milliseconds
        intervals.append((event.time_range.start, event.time_range.end))
    if world.is_main:
        for name, milliseconds in sorted(names.items(), key=lambda item: -item[1])[:num_kernels]:
            print(f"{milliseconds:9.2f} ms  {name}", file=sys.stderr)
    busy, end = 0.0, 0.0
    for start, stop in sorted(intervals):
        busy += max(0.0, stop - max(start, end)) / 1e3
        end = max(end, stop)
    if intervals:
        parts["idle"] = (end - min(start for start, _ in intervals)) / 1e3 - busy
    return parts
