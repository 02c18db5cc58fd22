"""Compile the GPU kernels for a Hopper GPU on a machine without one; run in a process of its own by
`test_without_gpu`."""

from collections.abc import Callable

import torch
from triton.runtime import driver
from triton.runtime.jit import JITFunction

from kernels.attention_shared.tiles import table
from kernels.stick_breaking.portable.backward import backward
from kernels.stick_breaking.portable.forward import forward
from kernels.stick_breaking.portable.tiles import TILES, Plan
from tests.kernels.compiled import _Hopper, examined

SHARED_MEMORY = 227 * 1024
STACK = 256
"""Bytes per block on compute capability 9.0, and the bytes per thread that may be spilled."""


def main() -> None:
    """Launch everything through the launchers, with compiling in the place of running."""
    seen: dict[str, int] = {}

    def launcher(self: JITFunction, grid: object) -> Callable[..., None]:
        def compile_only(*arguments: object, **options: object) -> None:
            compiled = self.warmup(*arguments, grid=grid, **options)
            assert compiled.metadata.shared <= SHARED_MEMORY, f"{self.fn.__name__}: {compiled.metadata.shared} bytes"
            assert "wgmma" in compiled.asm["ptx"], f"{self.fn.__name__} does not use the tensor cores' asynchronous products"
            seen[self.fn.__name__] = examined(compiled)

        return compile_only

    driver.set_active(_Hopper())
    JITFunction.__getitem__ = launcher  # type: ignore[method-assign]
    q, k, v, do = (torch.zeros(1, 256, 2, 128, dtype=torch.bfloat16) for _ in range(4))
    remainder, spent = torch.zeros(1, 256, 2), torch.zeros(1, 2, 256, dtype=torch.float64)
    oldest = torch.zeros(1, 2, 8, dtype=torch.int32)
    plan = Plan(*(table(TILES)["sm_90"][f"{kernel}_128"] for kernel in Plan._fields))
    forward(q, k, v, None, 0.125, False, plan.forward)
    backward(do, remainder, q, k, v, remainder, spent, oldest, None, 0.125, False, plan)
    assert max(seen.values()) <= STACK, f"bytes of stack per thread: {seen}"
    print(seen)


if __name__ == "__main__":
    main()
