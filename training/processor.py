"""The CPU of a task: its name, and what keeps it to the instructions that most have. To be asked before torch is imported."""

import platform
import re
from collections.abc import Mapping
from pathlib import Path

TOLD = Path("/proc/cpuinfo")


def equal_bits(threads: int, given: Mapping[str, str]) -> dict[str, str]:
    """Return the variables to add to those `given`: so many threads, and of the vector instructions none beyond AVX2, in
    PyTorch's own operators and in MKL's products. With wider ones sums are split otherwise, hence round otherwise, and
    training carries that on. A processor without AVX2 is left as it is."""
    wanted = {"OMP_NUM_THREADS": str(threads)}
    if {"avx2", "fma"} <= set(_found("flags").split()):
        wanted |= {"ATEN_CPU_CAPABILITY": "avx2", "MKL_CBWR": "AVX2"}
    return {name: value for name, value in wanted.items() if name not in given}


def model() -> str:
    """Return the name, say AMD EPYC, or the architecture where the system does not tell."""
    return _found("model name") or f"{platform.machine()} CPU"


def _found(field: str) -> str:
    try:
        found = re.search(rf"^{field}\s*:\s*(.+)$", TOLD.read_text(), re.MULTILINE)
    except OSError:
        found = None
    return " ".join(found[1].split()) if found else ""
