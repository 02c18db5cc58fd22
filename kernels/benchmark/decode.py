"""Times of decoding one token over a cache, as in generation: in a CUDA graph, without launch overhead, and cycling over more
caches than the L2 cache can hold, as a model's other layers run in between."""

import itertools
import math
from collections.abc import Iterator
from datetime import UTC, datetime
from functools import partial

import torch
import triton
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention

from kernels import forgetting_attention as forgetting
from kernels.benchmark.operators import Attention, Shape, make_inputs
from kernels.benchmark.rows import BASELINE, MEMORY_LIMIT
from kernels.benchmark.times import Row, timed

GATES = "local to global"
SHAPES: tuple[Shape, ...] = (
    (1, 8192, 12, 64), (1, 65_536, 12, 64), (1, 262_144, 24, 64), (16, 8192, 24, 64), (64, 4096, 24, 64),
)  # fmt: skip
ALL_CACHES = 2**28
"""Bytes of keys and values that are read before the first are read again."""


def make_cache(shape: Shape, device: str = "cuda") -> list[Tensor]:
    """Draw the newest query (B, 1, H, D), k, v (B, T, H, D) and the sums of the gates (B, T, H)."""
    q, k, v, log_fgate, _ = (x.detach() for x in make_inputs(shape, GATES, device))
    return [q[:, -1:].contiguous(), k, v, forgetting.sum_log_gates(log_fgate)]


def decoders(shape: Shape, device: str = "cuda") -> dict[str, Attention]:
    """Return the decoders of a shape by name; all read keys and values in the layout of the models' cache."""
    B, T, H, D = shape
    threshold = torch.full((B, H), float(forgetting.pruning_threshold(math.sqrt(D), T)), device=device)
    return {
        "softmax flash-2": partial(_softmax, SDPBackend.FLASH_ATTENTION),
        BASELINE: partial(_softmax, SDPBackend.CUDNN_ATTENTION),
        "ours": forgetting.forgetting_attention_cached,
        "ours, pruned": partial(forgetting.forgetting_attention_cached, adaptive_threshold=threshold),
    }


def _softmax(backend: SDPBackend, q: Tensor, k: Tensor, v: Tensor, _: Tensor) -> Tensor:
    with sdpa_kernel(backend):
        return scaled_dot_product_attention(q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2)).transpose(1, 2)


def _in_turn(attention: Attention, caches: Iterator[list[Tensor]]) -> Tensor:
    return attention(*next(caches))


def check(provider: str, shape: Shape, device: str = "cuda") -> float:
    """Compute the largest error against float64 over a shorter cache. Raises RuntimeError above a few bf16 ulp."""
    shape = 1, min(shape[1], 8192), 4, shape[3]
    q, k, v, sums = make_cache(shape, device)
    gates = forgetting.gates_of_sums(sums) * (not provider.startswith("softmax"))
    expected = forgetting.reference_attention(q.double(), k.double(), v.double(), gates)
    difference = decoders(shape, device)[provider](q, k, v, sums).double() - expected
    error = float(difference.norm() / expected.norm())
    if not error < 2e-2:
        raise RuntimeError(f"o is off by {error:.1e} of its norm")
    return float(difference.abs().max())


def measure_decoding(shapes: tuple[Shape, ...], only: tuple[str, ...], limit_s: int, device: str = "cuda") -> Iterator[Row]:
    """Yield a row per provider (those in `only`, or all) and shape, and one with the time of reading keys and values."""
    date = datetime.now(UTC).isoformat(timespec="seconds")
    for shape in shapes or SHAPES:
        inputs = make_cache(shape, device)
        size, row = 2 * inputs[1].nbytes, None
        caches = [inputs, *([x.clone() for x in inputs] for _ in range(ALL_CACHES // size))]
        for name, attention in decoders(shape, device).items():
            if only and name not in only:
                continue
            run = partial(_in_turn, attention, itertools.cycle(caches))
            for row in timed(name, GATES, shape, {"decode": run}, partial(check, name, shape, device), date, limit_s):
                yield row
        if row:
            ms = round(size / triton.testing.get_dram_gbps() * 1e-6, 5)
            yield {**row, "provider": MEMORY_LIMIT, "ms_q20": ms, "ms_q50": ms, "ms_q80": ms, "max_error": math.nan}
