"""Hardware of a task: its CPU, limited to the instructions that most CPUs have; the peak FLOP/s of its device, the denominator
of model FLOPs utilisation (MFU); and its peak memory. Torch-free until a GPU is asked for."""

import os
import platform
import re
import resource
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch

TOLD = Path("/proc/cpuinfo")
DENSE_BF16_PEAK = {
    "H100": 989e12, "H200": 989e12, "H800": 989e12, "A100": 312e12, "L40S": 362e12, "RTX 4090": 165e12, "B200": 2250e12,
}  # fmt: skip
"""Datasheet rates in FLOP/s, by a part of the device name."""


def equal_bits(threads: int, given: Mapping[str, str]) -> dict[str, str]:
    """Return the environment variables to add to `given`: the number of threads, and no vector instructions beyond AVX2 in
    PyTorch's own operators and in MKL. Wider instructions split sums differently, so rounding differs, and training carries
    the difference on. A processor without AVX2 is left alone."""
    wanted = {"OMP_NUM_THREADS": str(threads)}
    if {"avx2", "fma"} <= set(_found("flags").split()):
        wanted |= {"ATEN_CPU_CAPABILITY": "avx2", "MKL_CBWR": "AVX2"}
    return {name: value for name, value in wanted.items() if name not in given}


def processor() -> str:
    """Return the name of the CPU, such as AMD EPYC, or its architecture if the system does not tell."""
    return _found("model name") or f"{platform.machine()} CPU"


def _found(field: str) -> str:
    try:
        found = re.search(rf"^{field}\s*:\s*(.+)$", TOLD.read_text(), re.MULTILINE)
    except OSError:
        found = None
    return " ".join(found[1].split()) if found else ""


def peak_flops(device: "torch.device") -> float | None:
    """Return the dense bf16 FLOP/s of a known GPU by its datasheet; None for other GPUs and for the CPU."""
    if device.type != "cuda":
        return None
    import torch

    name = torch.cuda.get_device_name(device)
    return next((rate for part, rate in DENSE_BF16_PEAK.items() if part in name), None)


def peak_memory_bytes(device: "torch.device") -> int:
    """Return this process's peak memory: allocated by torch on a GPU, resident on the CPU."""
    if device.type == "cuda":
        import torch

        return torch.cuda.max_memory_allocated(device)
    return 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


def repeat_bits(compiled: bool) -> None:
    """Restrict PyTorch, its compiler and fla's kernels to operations that give equal bits in every process; others raise.
    Call this before the first matrix product on a GPU and after the model has loaded its kernels."""
    import torch

    from kernels.fla_cpu.tuning import fix_tuning

    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # cuBLAS reads it when it starts
    torch.use_deterministic_algorithms(True)
    torch.utils.deterministic.fill_uninitialized_memory = False  # type: ignore[attr-defined]  # never read unwritten
    if compiled:
        import torch._dynamo  # takes a second to load
        import torch._inductor.config

        torch._inductor.config.deterministic = True
        torch._dynamo.config.optimize_ddp = False  # it splits layers at bucket ends: other kernels than one process has
    fix_tuning()
