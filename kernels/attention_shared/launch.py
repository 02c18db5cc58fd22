"""Fast relaunch of a Triton kernel, without the 10 to 40 us of Python that Triton runs at every call, more than short inputs
take on the GPU.

Triton specialises a kernel on dtypes, on pointers aligned to 16 bytes, and on integers that are 1 or multiples of 16; a TMA
descriptor depends on address, shape and strides. Neither this nor how a compiled kernel is launched is part of Triton's public
interface, so in versions not listed in TRIED Triton launches by itself. Every Python object counts: autograd's thread, on
another core, takes some four times as long for the same lines."""

import functools
import inspect
import operator
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, NamedTuple

import torch
import triton
from torch import Tensor
from triton import knobs
from triton.runtime import driver

TRIED = ("3.6.0", "3.7.1")
_VERSION = triton.__version__.partition("+")[0]
# On AMD's GPUs Triton also specialises on the sizes of tensors.
RELAUNCH = _VERSION in TRIED and torch.version.hip is None
_GATHERED = _VERSION != "3.6.0"  # Triton's C function takes the kernel's arguments as one list

Descriptor = tuple[Callable[..., Any], Tensor, tuple[int, ...], tuple[int, ...], tuple[int, ...]]
"""(make, tensor, shape, strides, block) of tiles to load; make(tensor, shape, strides, block), called with lists, returns
Triton's descriptor."""


class _Known(NamedTuple):
    """Compiled kernel with the arguments of Triton's C launch function."""

    run: Callable[..., None]
    head: tuple[Any, ...]
    constants: tuple[Any, ...]
    encoded: Callable[..., tuple[Any, ...]]


_compiled: dict[tuple[Any, ...], _Known] = {}


def launch(
    kernel: Any,
    grid: tuple[int, ...],
    descriptors: tuple[Descriptor, ...],
    tensors: tuple[Tensor | None, ...],
    scalars: tuple[int | float, ...],
    **options: Any,
) -> None:
    """Run kernel[grid](*descriptors, *tensors, *scalars, **options).

    `options` are the kernel's constexprs, which are its last parameters, and Triton's launch options."""
    device = torch._C._cuda_getDevice() if torch.cuda.is_initialized() else None  # None: under an interpreter
    # Tensors are passed as addresses: Triton would ask each tensor for its address, and the driver to validate it.
    addresses = [0 if x is None else x.data_ptr() for x in tensors]
    key = (
        id(kernel), device, *[None if x is None else x.dtype for x in tensors], _kinds(*scalars), *options.values(),
        *[(make, x.dtype, block) for make, x, _, _, block in descriptors],
    )  # fmt: skip
    if functools.reduce(operator.or_, addresses) % 16:
        key += tuple([address % 16 for address in addresses])
    known = _compiled.get(key)
    if known is None or not RELAUNCH or knobs.runtime.launch_enter_hook.calls or knobs.runtime.launch_exit_hook.calls:
        made = [make(x, list(shape), list(strides), list(block)) for make, x, shape, strides, block in descriptors]
        compiled = kernel[grid](*made, *tensors, *scalars, **options)
        if RELAUNCH and hasattr(compiled, "packed_metadata"):  # an interpreter returns nothing
            count = len(descriptors) + len(tensors) + len(scalars)
            _remember(key, compiled, tuple(options[name] for name in kernel.arg_names[count:]))
        return
    run, head, constants, encoded = known
    arguments: list[Any] = []
    for place, (_, x, shape, strides, _) in enumerate(descriptors):
        arguments += encoded(place, x.data_ptr(), shape, strides)
    arguments += addresses
    arguments += scalars
    arguments += constants
    columns, rows, layers = (*grid, 1, 1)[:3]
    stream = driver.active.get_current_stream(device)
    if _GATHERED:
        run(columns, rows, layers, stream, *head, arguments)
    else:
        run(columns, rows, layers, stream, *head, *arguments)


@functools.lru_cache(4096, typed=True)
def _kinds(*scalars: int | float) -> tuple[Any, ...]:
    """Classify numbers as Triton does, which compiles a kernel for each class."""
    return tuple((-1 if n == 1 else 2 * (n >= 2**31) + (n % 16 == 0)) if isinstance(n, int) else n.__class__ for n in scalars)


def _remember(key: tuple[Any, ...], compiled: Any, constants: tuple[Any, ...]) -> None:
    """Cache the arguments that Triton's `CudaLauncher` passes on, unless the kernel needs scratch memory to be allocated."""
    own = compiled.run
    if own.global_scratch_size or own.profile_scratch_size:
        return
    run, metadata, describe = own.launch, (), None
    if inspect.isfunction(run):  # a wrapper of the C function that encodes descriptors
        around = inspect.getclosurevars(run)
        run, metadata = around.nonlocals["launcher"], around.nonlocals["tensordesc_meta"]
        describe = around.globals["make_tensordesc_arg"]

    @functools.lru_cache(1024)
    def encoded(place: int, address: int, shape: tuple[int, ...], strides: tuple[int, ...]) -> tuple[Any, ...]:
        descriptor = SimpleNamespace(
            base=_Address(address), shape=list(shape), strides=list(strides), padding="zero", round_f32_to_tf32=False
        )
        return tuple(describe(descriptor, metadata[place]))  # type: ignore[misc]

    head: tuple[Any, ...] = compiled.function, own.launch_cooperative_grid, own.launch_pdl
    called = compiled.packed_metadata, None, None, None  # no hooks
    if _GATHERED:
        head += (*called, None, None, own.arg_annotations, own.kernel_signature)
    else:
        head += (None, None, *called)
    _compiled[key] = _Known(run, head, constants, encoded)


class _Address(int):
    """Stand-in for a tensor, which the cache must not keep alive."""

    data_ptr = int.__int__


@functools.cache
def multiprocessors(device: torch.device) -> int:
    """Count the multiprocessors: programs that fill one run at once. Under an interpreter, a few."""
    return torch.cuda.get_device_properties(device).multi_processor_count if device.type == "cuda" else 2


def ceil_div(a: int, b: int) -> int:
    """Divide, rounding up: triton.cdiv without its overhead of also working in kernels."""
    return -(-a // b)


def power_of_two(n: int) -> int:
    """Return the smallest power of two that is at least n."""
    return 1 << (n - 1).bit_length()
