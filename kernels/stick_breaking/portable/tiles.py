"""Tile sizes and launch settings, measured once per GPU and shipped as a table: no search at run time."""

import functools
from pathlib import Path
from typing import NamedTuple

import torch

from ...attention_shared.tiles import Tiles, tiles_for

TILES = str(Path(__file__).parent / "tiles.json")
GRAIN = 32
"""Queries per entry of `oldest`; the forward kernel's block_m is a multiple of it."""


class Plan(NamedTuple):
    """Settings of the three kernels, which use the same key tiles: one block_n. dQ's block_m divides that of the forward
    kernel, in whose tiles all queries stop at the same key."""

    forward: Tiles
    dq: Tiles
    dkdv: Tiles


@functools.cache
def plan_for(head_dim: int, dtype: torch.dtype, device: torch.device) -> Plan:
    """Return the settings for this GPU: tuned for compute capability 9.0, a conservative default for others."""
    plan = Plan(*(tiles_for(TILES, kernel, head_dim, dtype, device) for kernel in Plan._fields))
    assert plan.forward.block_n == plan.dq.block_n == plan.dkdv.block_n
    assert plan.forward.block_m % plan.dq.block_m == 0 and plan.forward.block_m % GRAIN == 0
    return plan
