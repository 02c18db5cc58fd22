"""A quick check of the GPUs before training loads anything onto them: one that computes wrongly, or at a tenth of its
speed, is named at once. CPUs are not checked."""

import time

import torch

from training.distributed import World
from training.hardware import peak_flops

SIZE, PRODUCTS = 4096, 20  # 3 TFLOP: a hundredth of a second on a healthy GPU
SLOWEST = 0.1
"""Share of the datasheet's rate below which a GPU counts as broken."""
SHARED = 2 * 2**30
"""Bytes in use before training loads anything: from here on the GPU counts as shared, and its speed is not judged."""


def check_gpus(world: World) -> None:
    """Multiply matrices on this process's GPU. RuntimeError if it is wrong or far too slow."""
    device = world.device
    if device.type != "cuda":
        return
    right, rate = multiply(device)
    free, total = torch.cuda.mem_get_info(device)
    peak = peak_flops(device)  # of a whole GPU; a MIG slice has its name and a suffix
    alone = total - free < SHARED and "MIG" not in torch.cuda.get_device_name(device)
    if not right or (alone and peak is not None and rate < SLOWEST * peak):
        found = f"computes {rate / 1e12:.0f} TFLOP/s" if right else "multiplies matrices wrongly"
        raise RuntimeError(f"{device} of this node is broken: it {found}; use another")
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats(device)


def multiply(device: torch.device) -> tuple[bool, float]:
    """Return whether bf16 matrix products are right, and the FLOP/s of the fastest (on a shared GPU some have to wait).
    A Hadamard matrix times its transpose is its size times the identity, without any rounding."""
    matrix = torch.ones(1, 1, device=device, dtype=torch.bfloat16)
    while len(matrix) < SIZE:
        matrix = torch.cat([torch.cat([matrix, matrix], 1), torch.cat([matrix, -matrix], 1)])
    wanted = SIZE * torch.eye(SIZE, device=device, dtype=torch.bfloat16)
    right, fastest = torch.equal(matrix @ matrix.T, wanted), float("inf")  # torch.equal waits for the GPU
    for _ in range(PRODUCTS):
        began = time.perf_counter()
        product = matrix @ matrix.T
        product[0, 0].item()
        fastest = min(fastest, time.perf_counter() - began)
    return right and torch.equal(product, wanted), 2 * SIZE**3 / fastest
