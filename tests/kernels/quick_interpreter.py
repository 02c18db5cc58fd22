"""Triton's interpreter, asked for the same once: a third of its time goes into putting its functions in the language's place
again at every call of a function, and into a table of dtypes that it makes for every value. A tenth goes into looking for
integers that overflow, which those of small inputs do not."""

from dataclasses import replace
from types import FunctionType, SimpleNamespace
from typing import Any

from triton.runtime import interpreter


def remember() -> None:
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
    builder.options = replace(builder.options, sanitize_overflow=False)
