"""CPU support for fla's own layers: their entry points dispatch on the device of the first tensor.

CUDA tensors go to the original fla function, CPU tensors to the PyTorch version in this package. Modules, parameter names and
initialisation stay fla's, so a checkpoint works on both."""

import functools
import importlib
import sys
import traceback
import warnings
from collections.abc import Callable
from types import FrameType
from typing import Any

import torch
import torch.nn.functional as F

from kernels.fla_cpu import modules, recurrences
from kernels.fla_cpu.tuning import limit_tuning

# Module in which a layer looks the function up, the function's name there, and its replacement for CPU tensors.
_PLACES: tuple[tuple[str, str, Callable], ...] = (
    ("fla.layers.hgrn2", "chunk_gla", recurrences.chunk_gla),
    ("fla.layers.hgrn2", "fused_recurrent_gla", recurrences.fused_recurrent_gla),
    ("fla.layers.hgrn2", "rms_norm_linear", modules.rms_norm_linear),
    ("fla.layers.hgrn2", "swish", F.silu),
    ("fla.layers.delta_net", "chunk_delta_rule", recurrences.chunk_delta_rule),
    ("fla.layers.delta_net", "fused_recurrent_delta_rule", recurrences.chunk_delta_rule),
    ("fla.layers.gla", "chunk_gla", recurrences.chunk_gla),
    ("fla.layers.gla", "fused_recurrent_gla", recurrences.fused_recurrent_gla),
    ("fla.layers.gated_deltanet", "causal_conv1d", modules.causal_conv1d),
    ("fla.layers.gated_deltanet", "chunk_gated_delta_rule", recurrences.gated_delta_rule),
    ("fla.layers.gated_deltanet", "fused_recurrent_gated_delta_rule", recurrences.gated_delta_rule),
    ("fla.layers.kda", "chunk_kda", recurrences.gated_delta_rule),
    ("fla.layers.kda", "fused_recurrent_kda", recurrences.gated_delta_rule),
    ("fla.modules.norm.fused_norm_gate", "rms_norm_gated", modules.rms_norm_gated),
    ("fla.modules.norm.layernorm", "rms_norm", modules.rms_norm),
    ("fla.modules.norm.layernorm_gated", "rmsnorm_fn", modules.rmsnorm_fn),
    ("fla.modules.causal_conv1d.ops", "causal_conv1d", modules.causal_conv1d),
    ("fla.modules.causal_conv1d.ops", "causal_conv1d_update", modules.causal_conv1d_update),
)


class NoCPUVersion(ValueError, RuntimeError):
    """A layer of fla called a Triton kernel on a machine without a GPU."""


def install() -> None:
    """Install the dispatching functions; a second call changes nothing. Raises ImportError if fla is missing. Without a GPU,
    a call of a function that has no CPU version raises NoCPUVersion."""
    with warnings.catch_warnings():
        # fla warns on import that Triton has no GPU here: that is what this package is for.
        warnings.simplefilter("ignore")
        for module_name, name, cpu_function in _PLACES:
            module = importlib.import_module(module_name)
            function = getattr(module, name)
            if not hasattr(function, "cpu_function"):
                setattr(module, name, _by_device(function, cpu_function))
    driver: Any = sys.modules["triton.runtime.driver"]  # `triton.runtime.driver` is an object of that module
    if not hasattr(driver._create_driver, "__wrapped__"):
        driver._create_driver = _explained(driver._create_driver)
    if torch.cuda.is_available():
        limit_tuning()


def _explained(create_driver: Callable[[], Any]) -> Callable[[], Any]:
    @functools.wraps(create_driver)
    def create() -> Any:
        try:
            return create_driver()
        except RuntimeError as error:
            called = _called()
            if called is None:
                raise
            caller, module, name = called
            here = [home for home in (recurrences, modules) if hasattr(home, name)]
            version = f"{here[0].__name__.split('.')[-1]}.{name}" if here else "your version in PyTorch"
            raise NoCPUVersion(
                f"{caller} calls {module}.{name}, which flash-linear-attention has for GPUs only: use a GPU, or add "
                f'("{caller}", "{name}", {version}) to _PLACES in kernels/fla_cpu/install.py'
            ) from error

    return create


def _called() -> tuple[str, str, str] | None:
    """Find the outermost fla function on the stack: the module that calls it, the module that defines it, its name."""
    found = None
    for frame, _ in traceback.walk_stack(None):  # from here outwards
        module = frame.f_globals.get("__name__", "")
        if module.startswith(("fla.ops.", "fla.modules.")) and (name := _name_of(frame)) is not None:
            found = module, module, name
        elif found and module.startswith("fla.") and found[2] in frame.f_globals:
            found = module, *found[1:]
        if found and module.startswith("fla.layers."):
            break
    return found


def _name_of(frame: FrameType) -> str | None:
    """Return the module-level name of a frame's function: its own, or the one bound to an autograd function's `apply`."""
    owner = frame.f_globals.get(frame.f_code.co_qualname.partition(".")[0])
    if callable(frame.f_globals.get(frame.f_code.co_name)):
        return frame.f_code.co_name
    applied = [name for name, value in frame.f_globals.items() if owner and getattr(value, "__self__", None) is owner]
    return applied[0] if applied else None


def _by_device(fla_function: Callable, cpu_function: Callable) -> Callable:
    @functools.wraps(fla_function)
    def dispatch(*args: Any, **kwargs: Any) -> Any:
        first = next(a for a in (*args, *kwargs.values()) if isinstance(a, torch.Tensor))
        if first.device.type not in ("cpu", "meta"):
            return fla_function(*args, **kwargs)
        # The PyTorch versions compute in fp32; autocast would cast their matmuls back to bf16.
        with torch.autocast("cpu", enabled=False):
            return cpu_function(*args, **kwargs)

    dispatch.cpu_function = cpu_function  # type: ignore[attr-defined]
    dispatch.fla_function = fla_function  # type: ignore[attr-defined]
    return dispatch
