"""A short look at the GPUs of a node before a training loads anything onto them: one that is missing, wrong, slow by far or
silent ends this start with EXIT_BROKEN_NODE, which the launchers take for the node's fault. A CPU is not looked at."""

import os
import sys
import threading
import time

import torch

from training.distributed import World
from training.hardware import peak_flops
from training.signals import EXIT_BROKEN_NODE

SIZE, PRODUCTS = 4096, 20  # 3 TFLOP: a hundredth of a second on a sound GPU
SLOWEST = 0.1
"""Share of the datasheet's rate below which a GPU is taken for broken."""
SHARED = 2 * 2**30
"""Bytes that are taken before a training loads anything: from here on others use the GPU, and its speed says nothing."""
SILENT_S = 60.0
"""Seconds after which a GPU or its peers are taken to have stopped; the first product also loads libraries."""


def look(world: World) -> None:
    """Multiply on this process's GPU and sum over all processes. Exits where that shows a broken node."""
    if world.device.type != "cuda":
        return
    timer = threading.Timer(SILENT_S, _leave, [f"no answer for {SILENT_S:.0f} s"])
    timer.daemon = True
    timer.start()
    try:
        problem = wrong_alone(world.device) or _wrong_together(world)
    except torch.OutOfMemoryError:  # others hold it: told by the training itself
        raise
    except RuntimeError as error:  # of CUDA or NCCL
        problem = str(error).partition("\n")[0]
    finally:
        timer.cancel()
    if problem:
        _leave(f"{world.device}: {problem}")
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats(world.device)


def wrong_alone(device: torch.device) -> str:
    """Say what is wrong with one GPU, or nothing."""
    right, rate = multiply(device)
    if not right:
        return "a product of matrices is wrong"
    free, total = torch.cuda.mem_get_info(device)
    peak = peak_flops(device)  # of a whole GPU; a slice of one (MIG) has the same name and more words
    if total - free >= SHARED or peak is None or "MIG" in torch.cuda.get_device_name(device) or rate >= SLOWEST * peak:
        return ""
    return f"{rate / 1e12:.0f} TFLOP/s, where its datasheet says {peak / 1e12:.0f}"


def multiply(device: torch.device) -> tuple[bool, float]:
    """Return whether products in bf16 are right, and the rate of the fastest in FLOP/s: on a GPU that others use, some
    have to wait. A Hadamard matrix times its transpose is its size on the diagonal and 0 elsewhere, without any rounding."""
    matrix = torch.ones(1, 1, device=device, dtype=torch.bfloat16)
    while len(matrix) < SIZE:
        matrix = torch.cat([torch.cat([matrix, matrix], 1), torch.cat([matrix, -matrix], 1)])
    wanted = SIZE * torch.eye(SIZE, device=device, dtype=torch.bfloat16)
    right, fastest = torch.equal(matrix @ matrix.T, wanted), float("inf")  # which waits for the GPU
    for _ in range(PRODUCTS):
        began = time.perf_counter()
        product = matrix @ matrix.T
        product[0, 0].item()
        fastest = min(fastest, time.perf_counter() - began)
    return right and torch.equal(product, wanted), 2 * SIZE**3 / fastest


def _wrong_together(world: World) -> str:
    total = world.sum(torch.full((2**22,), float(world.rank + 1), device=world.device))
    wanted = world.size * (world.size + 1) / 2
    return "" if bool((total == wanted).all()) else "a sum over all processes is wrong"


def _leave(problem: str) -> None:
    """Exit at once, as peers may wait in a collective."""
    print(f"error: this node: {problem}", file=sys.stderr, flush=True)
    os._exit(EXIT_BROKEN_NODE)
