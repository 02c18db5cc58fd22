"""Runs the Gluon kernels on a CPU: their own source, executed as plain Python on tensors, with a thread per partition.

Triton's interpreter knows no Gluon. What is tested here is the kernels' arithmetic, their order of steps, masks and tests,
and that their barriers neither deadlock nor let a stage be overwritten. What a layout says (which thread holds what) and
asynchrony below a barrier need a GPU.
"""

import threading
import types
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from triton.experimental.gluon import language as gluon_language
from triton.experimental.gluon._runtime import GluonJITFunction
from triton.experimental.gluon.nvidia.hopper import TensorDescriptor
from triton.runtime.jit import JITFunction

PATIENCE = 10.0  # seconds that a barrier may stay closed
_lock, _moved = threading.Lock(), threading.Condition()
program = threading.local()  # its id, and how many there are


class Block(torch.Tensor):
    """A tensor in registers or in shared memory. `x += y` makes a new one, as names in a kernel are values."""

    __iadd__ = torch.Tensor.__add__  # type: ignore[assignment]
    __imul__ = torch.Tensor.__mul__  # type: ignore[assignment]

    @property
    def type(self) -> Any:  # type: ignore[override]
        return types.SimpleNamespace(layout=None)

    def index(self, i: int) -> "Block":
        return self[int(i)]

    def load(self, _layout: object) -> "Block":
        return self.clone()

    def store(self, x: Tensor) -> None:
        self.copy_(x)

    def slice(self, start: int, length: int, dim: int) -> "Block":
        return self.narrow(dim, start, length)

    def permute(self, order: tuple[int, ...]) -> "Block":  # type: ignore[override]
        return super().permute(*order)

    def to(self, dtype: torch.dtype, bitcast: bool = False) -> "Block":  # type: ignore[override]
        return self.view(dtype) if bitcast else super().to(dtype)


def _block(x: Tensor) -> Block:
    return x.as_subclass(Block)


class Pointer:
    """Elements of a contiguous tensor: `at` counts elements, or bytes after a cast to int64."""

    def __init__(self, data: Tensor, at: Any = 0, unit: int = 1) -> None:
        self.data, self.at, self.unit = data.view(-1), at, unit

    def __add__(self, offset: Any) -> "Pointer":
        return Pointer(self.data, self.at + offset, self.unit)

    def __sub__(self, offset: Any) -> "Pointer":
        return self + -offset

    def to(self, _dtype: torch.dtype, bitcast: bool) -> "Pointer":
        assert bitcast
        return Pointer(self.data, self.at * self.data.element_size(), self.data.element_size())

    def where(self, mask: Any) -> tuple[Tensor, Tensor]:
        """Indices, and which of them count; those must be inside."""
        at = torch.as_tensor(self.at).as_subclass(Tensor) // self.unit
        counts = torch.as_tensor(True if mask is None else mask).as_subclass(Tensor).expand(at.shape)
        assert bool(((at >= 0) & (at < self.data.numel()))[counts].all()), "access outside of a tensor"
        return at, counts


class Barrier:
    """mbarrier: a phase ends when all arrivals and all announced bytes are there."""

    def __init__(self) -> None:
        self.condition, self.phase, self.count, self.arrivals, self.bytes = threading.Condition(), 0, 0, 0, 0

    def change(self, arrivals: int, nbytes: int) -> None:
        with self.condition:
            self.arrivals, self.bytes = self.arrivals + arrivals, self.bytes + nbytes
            assert self.arrivals <= self.count
            if self.arrivals == self.count and self.bytes == 0:
                self.phase, self.arrivals = self.phase ^ 1, 0
                self.condition.notify_all()

    def wait(self, parity: int) -> None:
        with self.condition:
            while self.phase == int(parity):
                opened = self.condition.wait(PATIENCE)
                assert opened or self.phase != int(parity), "a barrier never opened"


class Barriers(list):
    """Barriers in shared memory; one alone stands for itself."""

    def index(self, i: int) -> Barrier:  # type: ignore[override]
        return self[int(i)]


def _one(barrier: Barrier | Barriers) -> Barrier:
    return barrier[0] if isinstance(barrier, Barriers) else barrier


class _Language:
    """The part of `gluon.language` that the kernels use."""

    float32, float64, int64, int32, int16 = torch.float32, torch.float64, torch.int64, torch.int32, torch.int16
    bfloat16, float16 = torch.bfloat16, torch.float16
    static_range = staticmethod(range)

    def __getattr__(self, name: str) -> Any:
        if name.endswith("Layout"):
            return lambda *_, **__: name
        # The rest has the same name and meaning in torch.
        return lambda *args: getattr(torch, name)(*(torch.as_tensor(x) for x in args))

    def program_id(self, _axis: int) -> Block:
        return _block(torch.tensor(program.id))

    def num_programs(self, _axis: int) -> Block:
        return _block(torch.tensor(program.count))

    def zeros(self, shape: tuple[int, ...], dtype: torch.dtype, layout: object) -> Block:
        return _block(torch.zeros(shape, dtype=dtype))

    def full(self, shape: list[int], x: Any, dtype: torch.dtype, layout: object) -> Block:
        return _block(torch.full(shape, int(x), dtype=dtype))

    def arange(self, start: int, stop: int, layout: object) -> Block:
        return _block(torch.arange(start, stop))

    def allocate_shared_memory(self, dtype: torch.dtype, shape: list[int], layout: object) -> Block | Barriers:
        if layout == "MBarrierLayout":
            return Barriers(Barrier() for _ in range(shape[0]))
        return _block(torch.full(shape, float("nan") if dtype.is_floating_point else -999, dtype=dtype))

    def where(self, condition: Tensor, x: Any, y: Any) -> Tensor:
        return torch.where(condition, x, y)

    def sum(self, x: Tensor, axis: int) -> Tensor:
        return x.sum(axis)

    def max(self, x: Tensor, axis: int) -> Tensor:
        return x.amax(axis)

    def convert_layout(self, x: Tensor, _layout: object) -> Tensor:
        return x

    def load(self, pointer: Pointer, mask: Any = None, other: Any = 0) -> Block:
        at, counts = pointer.where(mask)
        return _block(torch.where(counts, pointer.data[torch.where(counts, at, 0)], other))

    def store(self, pointer: Pointer, x: Any, mask: Any = None) -> None:
        at, counts = pointer.where(mask)
        pointer.data[at[counts]] = torch.as_tensor(x, dtype=pointer.data.dtype).as_subclass(Tensor).expand(at.shape)[counts]

    def atomic_add(self, pointer: Pointer, x: Any, sem: str) -> Block:
        at, _ = pointer.where(None)
        with _lock:
            before = _block(pointer.data[at].clone())
            pointer.data.index_add_(0, at.flatten(), torch.as_tensor(x, dtype=before.dtype).as_subclass(Tensor).flatten())
        return before

    def atomic_max(self, pointer: Pointer, x: Any, sem: str) -> None:
        at, _ = pointer.where(None)
        with _moved:
            pointer.data[at] = torch.maximum(pointer.data[at], torch.as_tensor(x, dtype=pointer.data.dtype))
            _moved.notify_all()

    def inline_asm_elementwise(self, asm: str, _: str, args: list, dtype: object, is_pure: bool, pack: int) -> Any:
        if "cvt.rn" in asm:  # a pair rounded, and what it has become
            low = args[0].to(torch.bfloat16 if "bf16x2" in asm else torch.float16)
            return low, low.float()
        if "ld.acquire" in asm:  # a program that waits for others until a count is there
            at, _ = args[0].where(None)
            with _moved:
                there = _moved.wait_for(lambda: args[0].data[at] >= args[1], PATIENCE)
                assert there, "a program waits for one that never comes"
            return None
        assert "red.relaxed.gpu.global.add.v4.f32" in asm
        return self.atomic_add(args[0], args[1], "relaxed")

    def warp_specialize(self, partitions: list[tuple[Callable, tuple]], _warps: list[int], _registers: list[int]) -> None:
        failures: list[BaseException] = []
        own = dict(program.__dict__)

        def run(function: Callable, arguments: tuple) -> None:
            try:
                program.__dict__.update(own)
                torch.set_flush_denormal(True)  # as exp2 and division do on a GPU; each thread has its own switches
                with torch.no_grad():
                    function(*arguments)
            except BaseException as failure:
                failures.append(failure)

        threads = [threading.Thread(target=run, args=part) for part in partitions]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        if failures:
            raise failures[0]


class _Barriers:
    """`hopper.mbarrier`."""

    MBarrierLayout = staticmethod(lambda: "MBarrierLayout")

    def init(self, barrier: Barrier | Barriers, count: int) -> None:
        _one(barrier).count = count

    def expect(self, barrier: Barrier | Barriers, nbytes: int) -> None:
        _one(barrier).change(1, nbytes)

    def arrive(self, barrier: Barrier | Barriers, count: int) -> None:
        _one(barrier).change(count, 0)

    def wait(self, barrier: Barrier | Barriers, parity: int, pred: bool = True) -> None:
        if pred:
            _one(barrier).wait(parity)


class Descriptor:
    """A bulk-copy descriptor as the kernels see it."""

    def __init__(self, host: TensorDescriptor) -> None:
        self.x = torch.as_strided(host.base, host.shape, host.strides)
        self.dtype, self.layout = host.base.dtype, None
        nbytes = torch.Size(host.block_shape).numel() * host.base.element_size()
        self.block_type = types.SimpleNamespace(shape=list(host.block_shape), nbytes=nbytes)

    def async_copy_global_to_shared(self, start: list[int], barrier: Barrier | Barriers, target: Block) -> None:
        target.zero_()  # what lies outside reads as 0
        sizes = self.block_type.shape
        ends = [max(min(int(i) + n, size) - int(i), 0) for i, n, size in zip(start, sizes, self.x.shape, strict=True)]
        source = self.x[tuple(slice(int(i), int(i) + n) for i, n in zip(start, ends, strict=True))]
        target[tuple(slice(0, n) for n in ends)] = source
        _one(barrier).change(0, -self.block_type.nbytes)


def _warpgroup_mma(a: Tensor, b: Tensor, total: Tensor, use_acc: bool = True, is_async: bool = False) -> Tensor:
    product = a.float() @ b.float()
    return total + product if use_acc else product


def _warpgroup_mma_wait(_pending: int, deps: list[Tensor]) -> Tensor | list[Tensor]:
    return deps[0] if len(deps) == 1 else deps


_STAND_INS: dict[str, Any] = {
    "gl": _Language(),
    "mbarrier": _Barriers(),
    "tma": types.SimpleNamespace(async_copy_global_to_shared=Descriptor.async_copy_global_to_shared),
    "warpgroup_mma": _warpgroup_mma,
    "warpgroup_mma_wait": _warpgroup_mma_wait,
    "fence_async_shared": lambda: None,
}


def as_python(kernel: GluonJITFunction) -> Callable:
    """The kernel's function with everything of Gluon that it names replaced."""
    function = kernel.fn
    names: dict[str, Any] = {}
    for name in function.__code__.co_names:
        value = _STAND_INS.get(name, function.__globals__.get(name))
        if isinstance(value, GluonJITFunction):
            value = as_python(value)
        names[name] = value.value if isinstance(value, gluon_language.constexpr) else value
    names = {name: value for name, value in names.items() if value is not None}  # attributes and builtins
    return types.FunctionType(function.__code__, names, function.__name__, function.__defaults__)


def _argument(x: object) -> object:
    if isinstance(x, TensorDescriptor):
        return Descriptor(x)
    return Pointer(x) if isinstance(x, Tensor) else x


@contextmanager
def interpreted_gluon(at_once: int = 1) -> Iterator[None]:
    """Run Gluon kernels launched on CPU tensors within it here: `at_once` programs side by side, started in their order."""
    real = JITFunction.__getitem__

    def launcher(self: JITFunction, grid: tuple[int, ...]) -> Callable[..., None]:
        if not isinstance(self, GluonJITFunction):
            return real(self, grid)

        def launch(*arguments: object, num_warps: int, **constants: object) -> None:
            function = as_python(self)
            given = [_argument(x) for x in arguments]

            def run(number: int) -> None:
                program.id, program.count = number, grid[0]
                torch.set_flush_denormal(True)
                with torch.no_grad():
                    function(*given, **constants)

            with ThreadPoolExecutor(at_once) as slots:
                list(slots.map(run, range(grid[0])))

        return launch

    JITFunction.__getitem__ = launcher  # type: ignore[method-assign]
    try:
        yield
    finally:
        JITFunction.__getitem__ = real  # type: ignore[method-assign]
