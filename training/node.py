"""A quick check of a node's GPUs before training loads anything onto them. A GPU that is missing, computes wrongly, is far too
slow or does not answer ends this start with EXIT_BROKEN_NODE, so that launchers blame the node. CPUs are not checked."""

import os
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

import torch

from training.distributed import World
from training.hardware import peak_flops
from training.signals import EXIT_BROKEN_NODE

SIZE, PRODUCTS = 4096, 20  # 3 TFLOP: a hundredth of a second on a healthy GPU
SLOWEST = 0.1
"""Share of the datasheet's rate below which a GPU counts as broken."""
SHARED = 2 * 2**30
"""Bytes in use before training loads anything: from here on the GPU counts as shared, and its speed is not judged."""
SILENT_S = 60.0
"""Seconds without an answer after which a GPU counts as hung; the first product also loads libraries."""
PEERS_S = 180.0
"""Seconds after which the sum over all processes counts as hung. Longer, so that the process of a hung GPU exits first."""


def look(world: World) -> None:
    """Multiply matrices on this process's GPU and sum over all processes. Exits if that shows a broken node."""
    if world.device.type != "cuda":
        return
    try:
        with _answer_within(SILENT_S):
            problem = wrong_alone(world.device)
        with _answer_within(PEERS_S):
            problem = problem or _wrong_together(world)
    except torch.OutOfMemoryError:  # other programs hold it: training reports that itself
        raise
    except RuntimeError as error:  # of CUDA or NCCL
        problem = str(error).partition("\n")[0]
    if problem:
        _leave(f"{world.device}: {problem}")
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats(world.device)


@contextmanager
def _answer_within(seconds: float) -> Iterator[None]:
    timer = threading.Timer(seconds, _leave, [f"no answer for {seconds:.0f} s"])
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


def wrong_alone(device: torch.device) -> str:
    """Return what is wrong with one GPU, or an empty string."""
    right, rate = multiply(device)
    if not right:
        return "a product of matrices is wrong"
    free, total = torch.cuda.mem_get_info(device)
    peak = peak_flops(device)  # of a whole GPU; a MIG slice has its name and a suffix
    if total - free >= SHARED or peak is None or "MIG" in torch.cuda.get_device_name(device) or rate >= SLOWEST * peak:
        return ""
    return f"{rate / 1e12:.0f} TFLOP/s, where its datasheet says {peak / 1e12:.0f}"


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


def _wrong_together(world: World) -> str:
    total = world.sum(torch.full((2**22,), float(world.rank + 1), device=world.device))
    wanted = world.size * (world.size + 1) / 2
    return "" if bool((total == wanted).all()) else "a sum over all processes is wrong"


def _leave(problem: str) -> None:
    """Exit at once, as peers may wait in a collective."""
    print(f"error: this node: {problem}", file=sys.stderr, flush=True)
    os._exit(EXIT_BROKEN_NODE)
