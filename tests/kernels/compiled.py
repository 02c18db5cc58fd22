"""Compile the GPU kernels for a Hopper GPU on a machine without one; run in a process of its own by `test_without_gpu`."""

import re
import subprocess
import tempfile
from collections.abc import Callable
from contextlib import redirect_stdout
from functools import cache
from io import StringIO
from pathlib import Path

import torch
import triton
from torch import Tensor
from triton import knobs
from triton.backends.compiler import GPUTarget
from triton.experimental.gluon._runtime import GluonJITFunction
from triton.runtime import driver
from triton.runtime.jit import JITFunction

from kernels import (
    causal_conv_triton,
    linear_cross_entropy_triton,
    selective_scan_triton,
    ssd_chunks,
    ssd_triton,
    swiglu_triton,
)
from kernels.attention_shared.tiles import Tiles, table
from kernels.forgetting_attention import gpu
from kernels.forgetting_attention.hopper.backward import hopper_backward
from kernels.forgetting_attention.hopper.forward import hopper_forward
from kernels.forgetting_attention.portable import backward, forward
from kernels.forgetting_attention.portable.decode import decode
from kernels.forgetting_attention.portable.decode_sums import decode_sums
from kernels.forgetting_attention.portable.prepare import Prepared, prepare
from kernels.forgetting_attention.portable.tight import tighten
from kernels.forgetting_attention.pruning.norms import largest_product
from kernels.stick_breaking.portable import backward as stick_backward
from kernels.stick_breaking.portable import forward as stick_forward
from kernels.stick_breaking.portable.tiles import TILES, Plan
from tests.kernels.sass import idle_barriers, strays

TOOLS = Path(triton.__file__).parent / "backends" / "nvidia" / "bin"
ONE_BY_ONE = "wgmma.mma_async instructions are serialized"
"""Words of ptxas where it waits after each product, because it can't follow which registers are still being written."""
SHARED_MEMORY = 227 * 1024
"""Bytes per block on compute capability 9.0."""
SPILLED = {
    "hopper.": 128,
    "stick_breaking.": 256,
    "selective_scan_": 64,
    "_chunk_kernel": 0,
    "_cross_": 0,
    "conv_": 0,
    "swiglu": 0,
}
"""Most bytes of stack per thread, by parts of a kernel's name."""
BF16, FP16, FP32, FP64, INT = torch.bfloat16, torch.float16, torch.float32, torch.float64, torch.int32


class _Hopper:
    """The little of a driver that compiling asks for."""

    get_current_target = staticmethod(lambda: GPUTarget("cuda", 90, 32))
    get_current_device = staticmethod(lambda: 0)
    get_current_stream = staticmethod(lambda device=0: 0)


def report(compiled, tool: str, option: str) -> str:  # type: ignore[no-untyped-def]
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(compiled.asm["cubin"])
        file.flush()
        return subprocess.run([TOOLS / tool, option, file.name], capture_output=True, text=True, check=True).stdout


@cache
def examine(compiled, name: str) -> None:  # type: ignore[no-untyped-def]
    """Fail where machine code is not whole, or spills more registers than it may. Once per kernel: the tools take long."""
    idle = idle_barriers(compiled.asm["ttgir"])
    assert not idle, f"{name} begins barriers that nobody waits for, in places given to others: {idle}"
    astray = strays(report(compiled, "nvdisasm", "-c")) if "wgmma" in compiled.asm["ptx"] else []
    assert not astray, f"{name} reads what may be anything: {astray[:4]}"
    assert compiled.metadata.shared <= SHARED_MEMORY, f"{name}: {compiled.metadata.shared} bytes of shared memory"
    stack = int(re.search(r"STACK:(\d+)", report(compiled, "cuobjdump", "-res-usage"))[1])  # type: ignore[index]
    for part, most in SPILLED.items():
        assert part not in name or stack <= most, f"{name} spills {stack} bytes per thread"
    print(name, stack)


def launcher(self: JITFunction, grid: object) -> Callable[..., None]:
    """Stands for the launch of a kernel."""

    def compile_only(*arguments: object, **options: object) -> None:
        with redirect_stdout(StringIO()) as said:
            compiled = self.warmup(*arguments, grid=grid, **options)
        name = f"{self.fn.__module__}.{self.fn.__name__}"
        assert not (isinstance(self, GluonJITFunction) and ONE_BY_ONE in said.getvalue()), f"{name}: products wait"
        examine(compiled, name)

    return compile_only


def empty(*shape: int, dtype: torch.dtype = FP32) -> Tensor:
    return torch.zeros(shape, dtype=dtype)


def preparations() -> None:
    gates, start = empty(2, 300, 3), empty(2, dtype=INT)
    prepare(gates, 300, empty(2, 3), start, None, 9, exact=False)
    prepare(gates, 200, empty(2, 3), start, None, 9, exact=False)
    prepare(gates[:1], 300, None, start[:1], torch.tensor([0, 9, 300]), 9, exact=True)
    q, k = empty(2, 300, 3, 64, dtype=BF16), empty(2, 300, 1, 64, dtype=BF16)
    largest_product(q, k, 1.0, 0.0)
    largest_product(empty(1, 1025, 1, 64, dtype=BF16), empty(1, 1025, 1, 64, dtype=BF16), 1.0, 0.0)
    decode(q[:, :1], k, k, gates, empty(2, 3), start, 9, 0.125)


def decoding(rows: int, T: int, D: int, dtype: torch.dtype) -> None:
    q, k = empty(1, 1, rows, D, dtype=dtype), empty(1, T, rows // 3, D, dtype=dtype)
    sums = empty(1, rows, T, dtype=FP64).transpose(1, 2)
    for length in (None, torch.ones(1, dtype=INT)):
        decode_sums(q, k, k, sums, empty(1, rows), empty(1, dtype=INT), length, 9, 0.125)


def attention(D: int, dtype: torch.dtype) -> None:
    q, k, v, do, o = (empty(1, 256, 2, D, dtype=dtype) for _ in range(5))
    counts, lse = empty(1, 2, 256, dtype=INT), empty(1, 2, 256)
    local = empty(1, 2, 256, dtype=FP64 if dtype == FP32 else FP32)
    prepared = Prepared(local, empty(1, 2, 3, dtype=FP64), counts, counts[..., :2].contiguous(), counts[0, 0, :1])
    tighten(q, k, prepared, 0.125, -10.0)
    if dtype == BF16:
        hopper_forward(q, k, v, prepared, 0.125)
    if dtype != FP32:
        forward.forward(q, k, v, prepared, 0.125, Tiles(64, 64, 4, 3), redo=(o, lse, counts))
        for ordered in (True, False):
            hopper_backward(do, q, k, v, o, lse, prepared, 0.125, ordered)
    else:
        tiles = table(gpu.TILES)["float32"]
        forward.forward(q, k, v, prepared, 0.125, tiles[f"forward_{D}"])
        backward.backward(do, q, k, v, o, lse, prepared, 0.125, tiles[f"dkdv_{D}"], tiles[f"dq_{D}"])


def stick_breaking() -> None:
    q, k, v, do = (empty(1, 256, 2, 128, dtype=BF16) for _ in range(4))
    remainder, spent, oldest = empty(1, 256, 2), empty(1, 2, 256, dtype=FP64), empty(1, 2, 8, dtype=INT)
    plan = Plan(*(table(TILES)["sm_90"][f"{kernel}_128"] for kernel in Plan._fields))
    stick_forward.forward(q, k, v, None, 0.125, False, plan.forward)
    stick_backward.backward(do, remainder, q, k, v, remainder, spent, oldest, None, 0.125, False, plan)


def recurrences() -> None:
    x, q, step = empty(2, 300, 4, 64, dtype=BF16), empty(2, 300, 128, dtype=BF16), empty(2, 300, 4)
    ssd_triton.forward(q, q, x, step, step, empty(4), None)
    sums, states = empty(2, 4, 3, 128), empty(2, 3, 128, 4, 64, dtype=BF16)
    ssd_triton.backward(x, empty(2, 128, 4, 64), q, q, x, step, empty(4), states, sums, sums)
    update = empty(2, 3, 16, 4, 64)
    ssd_chunks.scan_kernel(update, empty(2, 3, 4), update, empty(2, 16, 4, 64), True)
    for dtype, T, N in ((BF16, 300, 16), (FP32, 1, 5)):
        x, into, step = empty(2, T, 1024, dtype=dtype), empty(2, T, 3 * N, dtype=dtype)[..., N : 2 * N], empty(2, T, 1024)
        inputs = x, step, empty(1024, N), into, into, empty(1024)
        _, last, _ = selective_scan_triton.forward(*inputs, None, keep=False)
        _, last, starts = selective_scan_triton.forward(*inputs, last, keep=True)
        selective_scan_triton.backward(x, last, *inputs, starts)


def small() -> None:
    for dtype in (BF16, FP32):
        logits, targets = empty(4, 50304, dtype=dtype), empty(4, dtype=torch.long)
        linear_cross_entropy_triton.cross_entropy_(logits, targets, 50257, gradient=True)
    x, weight = empty(2, 300, 6400, dtype=BF16)[..., 3072:], empty(3328, 4)
    causal_conv_triton.triton_causal_conv_silu(x, weight, empty(3328))
    causal_conv_triton._backward(x, x, weight, None)
    x = empty(3, 2560, dtype=BF16)
    swiglu_triton.triton_swiglu(x)
    swiglu_triton._swiglu_backward(x[:, :1280], x)


def main() -> None:
    """Launch everything through the launchers, with compiling in the place of running."""
    driver.set_active(_Hopper())
    knobs.nvidia.dump_ptxas_log = True
    JITFunction.__getitem__ = launcher  # type: ignore[method-assign]
    preparations()
    for rows, T, D, dtype in ((3, 300, 64, BF16), (3, 80_000, 64, BF16), (192, 300, 128, FP16), (3, 300, 16, FP32),
                              (192, 300, 128, FP32)):  # fmt: skip
        decoding(rows, T, D, dtype)
    for D, dtype in ((64, BF16), (128, BF16), (64, FP16), (16, FP32)):
        attention(D, dtype)
    stick_breaking()
    recurrences()
    small()


if __name__ == "__main__":
    main()
