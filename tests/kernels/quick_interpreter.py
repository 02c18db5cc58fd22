"""Triton's interpreter as the tests of GPU kernels use it on a CPU: right in bfloat16, and quick.

It truncates bfloat16 and multiplies its bits as if they were integers. A third of its time goes into putting its functions in
the language's place again at every call, and into a table of dtypes that it makes for every value; a tenth into looking for
integers that overflow, which those of small inputs do not; and a fifth into shapes that it wraps anew for every value."""

from dataclasses import replace
from types import FunctionType, SimpleNamespace
from typing import Any

import torch
from triton.language import core
from triton.runtime import interpreter
from triton.runtime.interpreter import InterpreterBuilder, TensorHandle


def prepare() -> None:
    """Have a process that only interprets keep what the first function of each module has put in place."""
    put, modules = interpreter._patch_lang, set[int]()
    look_up, found = interpreter._get_np_dtype, dict[str, Any]()

    def put_once(function: FunctionType) -> SimpleNamespace:
        if id(function.__globals__) not in modules:
            modules.add(id(function.__globals__))
            put(function)
        return SimpleNamespace(restore=lambda: None)

    def look_up_once(dtype: Any) -> Any:
        name = dtype.scalar.name
        if name not in found:
            found[name] = look_up(dtype)
        return found[name]

    interpreter._patch_lang, interpreter._get_np_dtype = put_once, look_up_once
    builder = interpreter.interpreter_builder
    builder.__class__ = ExactBuilder
    builder.options = replace(builder.options, sanitize_overflow=False)
    _wrap_shapes_once()


class ExactBuilder(InterpreterBuilder):
    """Casts and multiplies bfloat16 as PyTorch does."""

    def cast_impl(self, src: TensorHandle, dst_type: Any) -> TensorHandle:
        if (str(src.dtype.scalar), str(dst_type.scalar)) == ("fp32", "bf16"):
            bits = torch.tensor(src.data).bfloat16().view(torch.uint16).numpy()
            return TensorHandle(bits, dst_type.scalar)
        return super().cast_impl(src, dst_type)

    def create_dot(self, a: TensorHandle, b: TensorHandle, d: TensorHandle, *options: object) -> TensorHandle:
        a, b = (self.cast_impl(x, d.dtype) if str(x.dtype.scalar) == "bf16" else x for x in (a, b))
        return super().create_dot(a, b, d, *options)


def _wrap_shapes_once() -> None:
    make_type, types = core.block_type.__init__, dict[tuple[int, ...], tuple[Any, int, str]]()
    make_value, shapes = core.tensor.__init__, dict[tuple[int, ...], tuple[Any, Any]]()

    def make_type_once(self: Any, element: Any, shape: Any) -> None:
        key = tuple(getattr(size, "value", size) for size in shape)
        if key not in types:
            make_type(self, element, shape)
            types[key] = self.shape, self.numel, str(self.shape)
        self.element_ty = element
        self.shape, self.numel, words = types[key]
        self.name = f"<{words}, {element}>"

    def make_value_once(self: Any, handle: Any, type: Any) -> None:
        key = tuple(type.shape) if type.is_block() else ()
        if key not in shapes:
            make_value(self, handle, type)
            shapes[key] = self.shape, self.numel
        self.handle, self.type, self.dtype = handle, type, type.scalar
        self.shape, self.numel = shapes[key]

    core.block_type.__init__, core.tensor.__init__ = make_type_once, make_value_once
