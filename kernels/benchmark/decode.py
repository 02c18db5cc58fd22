"""Times of decoding one token over a cache, as in generation: in a CUDA graph, without launch overhead, and cycling over more
caches than the L2 cache can hold, as a model's other layers run in between."""

import itertools
import math
from collections.abc import Iterator
from datetime import UTC, datetime
from functools import partial

import torch
import triton
from torch.nn.attention import SDPBackend

from kernels import forgetting_attention as forgetting
from kernels.benchmark.attention import QUANTILES, make_inputs, softmax
from kernels.benchmark.rows import BASELINE, MEMORY_LIMIT
from kernels.benchmark.timing import Attention, Row, Shape, timed

GATES = "local to global"
ALL_CACHES = 2**28
"""Bytes of keys and values that are read before the first are read again."""


def measure_decoding(shape: Shape, only: tuple[str, ...]) -> Iterator[Row]:
    """Yield a row per provider (those in `only`, or all), and one with the time of reading keys and values."""
    date = datetime.now(UTC).isoformat(timespec="seconds")
    q, k, v, log_fgate, _ = (x.detach() for x in make_inputs(shape, GATES))
    inputs = [q[:, -1:].contiguous(), k, v, forgetting.sum_log_gates(log_fgate)]
    size = 2 * inputs[1].nbytes
    caches = itertools.cycle([inputs, *([x.clone() for x in inputs] for _ in range(ALL_CACHES // size))])
    B, T, H, D = shape  # q and k are normalised with scale one
    threshold = torch.full((B, H), float(forgetting.pruning_threshold(math.sqrt(D), T)), device="cuda")
    decoders: dict[str, Attention] = {  # of keys and values in the layout of the models' cache
        "softmax flash-2": partial(softmax, SDPBackend.FLASH_ATTENTION),
        BASELINE: partial(softmax, SDPBackend.CUDNN_ATTENTION),
        "ours": forgetting.forgetting_attention_cached,
        "ours, pruned": partial(forgetting.forgetting_attention_cached, adaptive_threshold=threshold),
    }
    runs: dict[str, Attention] = {
        name: partial(triton.testing.do_bench_cudagraph, lambda of=of: of(*next(caches)), quantiles=list(QUANTILES))
        for name, of in decoders.items()
    }
    runs[MEMORY_LIMIT] = lambda: [size / triton.testing.get_dram_gbps() * 1e-6] * 3
    for name, run in runs.items():
        if not only or name in only:
            yield from timed(name, GATES, shape, date, lambda: math.nan, {"decode": run})
