"""Compile the GPU kernels for a Hopper GPU on a machine without one; run in a process of its own by
`test_without_gpu`. Triton keeps what it compiled by content, and what ptxas said is kept beside it."""

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
from kernels.forgetting_attention.gpu import TILES
from kernels.forgetting_attention.hopper import backward as hopper_backward
from kernels.forgetting_attention.hopper import forward as hopper_forward
from kernels.forgetting_attention.portable import backward as triton_backward
from kernels.forgetting_attention.portable import forward as triton_forward
from kernels.forgetting_attention.portable.decode import decode
from kernels.forgetting_attention.portable.decode_sums import decode_sums
from kernels.forgetting_attention.portable.prepare import Prepared, prepare
from kernels.forgetting_attention.portable.tight import tighten
from kernels.forgetting_attention.pruning.norms import largest_product
from tests.kernels.sass import idle_barriers, strays

TOOLS = Path(triton.__file__).parent / "backends" / "nvidia" / "bin"
ONE_BY_ONE = "wgmma.mma_async instructions are serialized"
"""Words of ptxas where it waits after each product, because it can't follow which registers are still being written."""


class _Hopper:
    """The little of a driver that compiling asks for."""

    def get_current_target(self) -> GPUTarget:
        return GPUTarget("cuda", 90, 32)

    def get_current_device(self) -> int:
        return 0

    def get_current_stream(self, device: int = 0) -> int:
        return 0


def report(compiled, tool: str, option: str) -> str:  # type: ignore[no-untyped-def]
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(compiled.asm["cubin"])
        file.flush()
        return subprocess.run([TOOLS / tool, option, file.name], capture_output=True, text=True, check=True).stdout


def words_of_ptxas(compiled, said: str) -> str:  # type: ignore[no-untyped-def]
    """Return what ptxas says of a kernel, or said when it was compiled."""
    kept = Path(knobs.cache.dir, f"{compiled.hash}.ptxas")
    if "ptxas info" in said:
        kept.write_text(said)
    return kept.read_text() if kept.is_file() else ""


@cache
def examined(compiled) -> int:  # type: ignore[no-untyped-def]
    """Bytes of stack per thread, where registers are spilled; fails where machine code is not whole. Once per kernel: the tools
    take long."""
    idle = idle_barriers(compiled.asm["ttgir"])
    assert not idle, f"{compiled.name} begins barriers that nobody waits for, in places given to others: {idle}"
    astray = strays(report(compiled, "nvdisasm", "-c")) if "wgmma" in compiled.asm["ptx"] else []
    assert not astray, f"{compiled.name} reads what may be anything: {astray[:4]}"
    return int(re.search(r"STACK:(\d+)", report(compiled, "cuobjdump", "-res-usage")).group(1))  # type: ignore[union-attr]


def main() -> None:
    """Launch everything through the launchers, with compiling in the place of running."""
    seen: dict[str, int] = {}
    heard: set[str] = set()

    def launcher(self: JITFunction, grid: object) -> Callable[..., None]:
        def compile_only(*arguments: object, **options: object) -> None:
            with redirect_stdout(StringIO()) as said:
                compiled = self.warmup(*arguments, grid=grid, **options)
            name = f"{self.fn.__module__.split('.', 1)[1]}.{self.fn.__name__}"
            seen[name] = examined(compiled)
            words = words_of_ptxas(compiled, said.getvalue())
            heard.update([name] if words else [])
            assert not (isinstance(self, GluonJITFunction) and ONE_BY_ONE in words), (
                f"the products of {name} wait for each other"
            )

        return compile_only

    driver.set_active(_Hopper())
    knobs.nvidia.dump_ptxas_log = True
    JITFunction.__getitem__ = launcher  # type: ignore[method-assign]
    gates = torch.zeros(2, 300, 3)
    options = {"threshold": torch.zeros(2, 3), "seq_start": torch.zeros(2, dtype=torch.int32), "window_size": 9}
    prepare(gates, 300, **options, cu_seqlens=None, exact=False)
    prepare(gates, 200, **options, cu_seqlens=None, exact=False)
    prepare(gates[:1], 300, **(options | {"threshold": None}), cu_seqlens=torch.tensor([0, 9, 300]), exact=True)
    q, k = torch.zeros(2, 300, 3, 64, dtype=torch.bfloat16), torch.zeros(2, 300, 1, 64, dtype=torch.bfloat16)
    largest_product(q, k, 1.0, 0.0)
    largest_product(*(torch.zeros(1, 1025, 1, 64, dtype=torch.bfloat16) for _ in range(2)), 1.0, 0.0)
    decode(q[:, :1], k, k, gates, options["threshold"], options["seq_start"], 9, 0.125)
    for rows, T, D, dtype in (
        (3, 300, 64, torch.bfloat16),
        (3, 80_000, 64, torch.bfloat16),  # long: what is pruned has blocks of another size
        (192, 300, 128, torch.float16),
        (3, 300, 16, torch.float32),
        (192, 300, 128, torch.float32),
    ):
        q, k = torch.zeros(1, 1, rows, D, dtype=dtype), torch.zeros(1, T, rows // 3, D, dtype=dtype)
        sums = torch.zeros(1, rows, T, dtype=torch.float64).transpose(1, 2)
        for length in (None, torch.ones(1, dtype=torch.int32)):
            decode_sums(q, k, k, sums, torch.zeros(1, rows), options["seq_start"][:1], length, 9, 0.125)
            assert seen["forgetting_attention.portable.decode_sums._chunk_kernel"] == 0, "registers spill"
        own, listed = q[0, 0, :, None, None], [x.expand(rows, -1, 1, -1) for x in (k[:, :, :1], k[:, :, :1])]
        first = torch.zeros(rows, dtype=torch.int32)
        where = dict(first=first, most=200)
        decode_sums(own, *listed, sums[0, :, :1].expand(rows, -1, 1), torch.zeros(rows), None, first + 1, None, 0.125, **where)
        assert seen["forgetting_attention.portable.decode_sums._chunk_kernel"] == 0, "registers spill"
    for D, dtype in ((64, torch.bfloat16), (128, torch.bfloat16), (64, torch.float16), (16, torch.float32)):
        q, k, v, do, o = (torch.zeros(1, 256, 2, D, dtype=dtype) for _ in range(5))
        exact = torch.float64 if dtype == torch.float32 else torch.float32
        local, base = torch.zeros(1, 2, 256, dtype=exact), torch.zeros(1, 2, 3, dtype=torch.float64)
        counts = torch.zeros(1, 2, 256, dtype=torch.int32)
        prepared = Prepared(local, base, counts, counts[..., :2].contiguous(), counts[0, 0, :1])
        tighten(q, k, prepared, 0.125, -10.0)
        lse = torch.zeros(1, 2, 256)
        if dtype != torch.float32:
            if dtype == torch.bfloat16:
                hopper_forward.hopper_forward(q, k, v, prepared, 0.125)
            triton_forward.forward(q, k, v, prepared, 0.125, Tiles(64, 64, 4, 3), redo=(o, lse, counts))
            for ordered in (True, False):
                hopper_backward.hopper_backward(do, q, k, v, o, lse, prepared, 0.125, ordered)
            spilled = {name: n for name, n in seen.items() if ".hopper." in name and n > 128}
            assert not spilled, f"bytes of stack per thread at D = {D}: {spilled}"
        else:
            tiles = table(TILES)["float32"]
            triton_forward.forward(q, k, v, prepared, 0.125, tiles[f"forward_{D}"])
            dkdv, dq = tiles[f"dkdv_{D}"], tiles[f"dq_{D}"]
            triton_backward.backward(do, q, k, v, o, lse, prepared, 0.125, dkdv, dq)
    x, q, step = (
        torch.zeros(2, 300, 4, 64, dtype=torch.bfloat16),
        torch.zeros(2, 300, 128, dtype=torch.bfloat16),
        gates[..., :1],
    )
    step = step.expand(2, 300, 4).contiguous()
    ssd_triton.forward(q, q, x, step, step, torch.ones(4), None)
    sums = torch.zeros(2, 4, 3, 128)
    ssd_triton.backward(x, torch.zeros(2, 128, 4, 64), q, q, x, step, torch.ones(4), x.new_zeros(2, 3, 128, 4, 64), sums, sums)
    ssd_chunks.scan_kernel(
        *(torch.zeros(2, 3, *shape) for shape in ((16, 4, 64), (4,), (16, 4, 64))), torch.zeros(2, 16, 4, 64), True
    )
    for dtype, T, N in ((torch.bfloat16, 300, 16), (torch.float32, 1, 5)):
        x, into = torch.zeros(2, T, 1024, dtype=dtype), torch.zeros(2, T, 3 * N, dtype=dtype)[..., N : 2 * N]
        step, A, skip = torch.zeros(2, T, 1024), torch.zeros(1024, N), torch.zeros(1024)
        _, last, _ = selective_scan_triton.forward(x, step, A, into, into, skip, None, keep=False)
        _, last, starts = selective_scan_triton.forward(x, step, A, into, into, skip, last, keep=True)
        selective_scan_triton.backward(x, last, x, step, A, into, into, skip, starts)
        spilled = {name: n for name, n in seen.items() if name.startswith("selective") and n > 64}
        assert not spilled, f"bytes of stack per thread with {N} states: {spilled}"
    for dtype in (torch.bfloat16, torch.float32):
        logits, targets = torch.zeros(4, 50304, dtype=dtype), torch.zeros(4, dtype=torch.long)
        linear_cross_entropy_triton.cross_entropy_(logits, targets, 50257, gradient=True)
        assert seen["linear_cross_entropy_triton._cross_entropy_kernel"] == 0, "registers spill"
    x, weight = torch.zeros(2, 300, 6400, dtype=torch.bfloat16)[..., 3072:], torch.zeros(3328, 4)
    causal_conv_triton.triton_causal_conv_silu(x, weight, weight[:, 0].contiguous())
    causal_conv_triton._backward(x, x, weight, None)
    assert seen["causal_conv_triton._conv_forward_kernel"] == seen["causal_conv_triton._conv_backward_kernel"] == 0, "spills"
    x = torch.zeros(3, 2560, dtype=torch.bfloat16)
    swiglu_triton.triton_swiglu(x)
    swiglu_triton._swiglu_backward(x[:, :1280], x)
    assert seen["swiglu_triton._swiglu_kernel"] == 0, "registers spill"
    assert heard == seen.keys(), "a kernel was compiled without a word of ptxas; `pytest --cache-clear` compiles all again"
    print(seen)


if __name__ == "__main__":
    main()
