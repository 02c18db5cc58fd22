"""Launching a Triton kernel again, without what Triton does at every call: 10 to 40 us of Python, more than short inputs take.

`kernel[grid](...)` specialises and hashes its arguments and compares the globals that the kernel uses; a descriptor checks
itself. What was compiled depends on less: dtypes, starts at multiples of 16 bytes, integers that are 1 or multiples of 16.
That, and how a compiled kernel is run, is not part of Triton's interface: versions that were not looked at are left to it.
"""

import functools
from collections.abc import Callable
from typing import Any

import torch
import triton
from torch import Tensor
from triton import knobs
from triton.runtime import driver

# On AMD's GPUs what is compiled depends on the sizes of tensors too.
RELAUNCH = triton.__version__.startswith(("3.6.", "3.7.")) and torch.version.hip is None
_compiled: dict[tuple, tuple[Any, tuple]] = {}


def launch(kernel: Any, grid: tuple[int, ...], *args: Any, **options: Any) -> None:
    """kernel[grid](*args, **options). `args` are the parameters that are no constexpr; the kernel has them first."""
    if not RELAUNCH:
        kernel[grid](*args, **options)
        return
    device = torch.cuda.current_device() if torch.cuda.is_initialized() else None  # None: under an interpreter
    key: list[Any] = [id(kernel), device, *options.values()]
    passed: list[Any] = []  # tensors as addresses: Triton would ask each for its own, and the driver whether it knows it
    for arg in args:
        if isinstance(arg, int):
            key.append(-1 if arg == 1 else 2 * (arg >= 2**31) + (arg % 16 == 0))
            passed.append(arg)
        elif isinstance(arg, Tensor):
            address = arg.data_ptr()
            key += (arg.dtype, address % 16)
            passed.append(address)
        else:
            key.append(getattr(arg, "kind", arg.__class__))
            passed.append(arg)
    known = _compiled.get(tuple(key))
    if known is None or knobs.runtime.launch_enter_hook.calls or knobs.runtime.launch_exit_hook.calls:
        compiled = kernel[grid](*args, **options)
        if hasattr(compiled, "packed_metadata"):  # an interpreter gives nothing back
            _compiled[tuple(key)] = compiled, tuple(options[name] for name in kernel.arg_names[len(args) :])
        return
    compiled, constants = known
    stream = driver.active.get_current_stream(device)
    compiled.run(
        *(*grid, 1, 1)[:3], stream, compiled.function, compiled.packed_metadata, None, None, None, *passed, *constants
    )  # fmt: skip


@functools.cache
def multiprocessors(device: torch.device) -> int:
    """How many programs that fill a multiprocessor run at once; under an interpreter, a few."""
    return torch.cuda.get_device_properties(device).multi_processor_count if device.type == "cuda" else 2


def ceil_div(a: int, b: int) -> int:
    """triton.cdiv, without what it does to serve kernels too."""
    return -(-a // b)


def power_of_two(n: int) -> int:
    """The next, n itself included."""
    return 1 << (n - 1).bit_length()


def described(make: Callable[..., Any], x: Tensor, *how: Any) -> Any:
    """make(x, *how), a descriptor that was checked once for all tensors like x."""
    checked = _checked(make, x.dtype, *how)
    made = object.__new__(checked.__class__)
    made.__dict__.update(checked.__dict__, base=x)
    return made


@functools.lru_cache(4096)
def _checked(make: Callable[..., Any], dtype: torch.dtype, *how: Any) -> Any:
    descriptor = make(torch.empty(0, dtype=dtype, device="meta"), *how)
    descriptor.kind = (dtype, *descriptor.block_shape)
    return descriptor
