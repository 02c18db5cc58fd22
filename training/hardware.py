"""Peak arithmetic rate of the device, the denominator of model FLOPs utilisation (MFU), and peak use of its memory."""

import os
import resource
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch

DENSE_BF16_PEAK = {
    "H100": 989e12, "H200": 989e12, "H800": 989e12, "A100": 312e12, "L40S": 362e12, "RTX 4090": 165e12, "B200": 2250e12,
}  # fmt: skip
"""Datasheet rates in FLOP/s, by a part of the device name."""


def peak_flops(device: "torch.device") -> float | None:
    """Return FLOP/s: the datasheet's dense bf16 rate of a known GPU; None for others and for the CPU."""
    if device.type != "cuda":
        return None
    import torch

    name = torch.cuda.get_device_name(device)
    return next((rate for part, rate in DENSE_BF16_PEAK.items() if part in name), None)


def peak_memory_bytes(device: "torch.device") -> int:
    """Return the most memory this process had at once: allocated by torch on a GPU, resident on the CPU."""
    if device.type == "cuda":
        import torch

        return torch.cuda.max_memory_allocated(device)
    return 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


def repeat_bits() -> None:
    """Have PyTorch, its compiler and fla's kernels take only what gives equal bits in every process; what cannot, raises.
    To be called before the first product on a GPU, after the model has loaded its kernels."""
    import torch
    import torch._inductor.config

    from kernels.fla_cpu.tuning import limit_tuning

    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # cuBLAS reads it when it starts
    torch.use_deterministic_algorithms(True)
    torch.utils.deterministic.fill_uninitialized_memory = False  # type: ignore[attr-defined]  # nothing reads what it has not written
    torch._inductor.config.deterministic = True
    limit_tuning(1)
