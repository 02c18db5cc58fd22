"""Tile sizes and launch settings, measured once per GPU and shipped as a table: no search at run time."""

import functools
import json
from pathlib import Path
from typing import NamedTuple

import torch

from kernels.forgetting_attention.tiles import Tiles

GRAIN = 32
"""Queries per entry of `oldest`; the forward kernel's block_m is a multiple of it."""


class Plan(NamedTuple):
    """Settings of the three kernels, which walk over the same tiles of keys: one block_n. dQ's block_m divides the
    forward's, all of whose queries stop at the same key."""

    forward: Tiles
    dq: Tiles
    dkdv: Tiles


@functools.cache
def table() -> dict[str, dict[int, Plan]]:
    """Plans by GPU ("sm_90", "default") or "float32", then by head dimension."""
    entries = json.loads((Path(__file__).parent / "tiles.json").read_text())
    sizes = (16, 32, 64, 128)
    return {
        gpu: {D: Plan(*(Tiles(**tiles[f"{kernel}_{D}"]) for kernel in Plan._fields)) for D in sizes}
        for gpu, tiles in entries.items()
    }


@functools.cache
def plan_for(head_dim: int, dtype: torch.dtype, device: torch.device) -> Plan:
    """Compute capability 9.0 has measured settings, others a modest default."""
    gpu = "float32"
    if dtype != torch.float32:
        major, minor = torch.cuda.get_device_capability(device) if device.type == "cuda" else (0, 0)
        gpu = f"sm_{major}{minor}" if f"sm_{major}{minor}" in table() else "default"
    plan = table()[gpu][head_dim]
    assert plan.forward.block_n == plan.dq.block_n == plan.dkdv.block_n
    assert plan.forward.block_m % plan.dq.block_m == 0 and plan.forward.block_m % GRAIN == 0
    return plan


def launch_options(tiles: Tiles) -> dict[str, int | None]:
    """How Triton schedules the kernel."""
    return dict(num_warps=tiles.num_warps, num_stages=tiles.num_stages, maxnreg=tiles.maxnreg)
