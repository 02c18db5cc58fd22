"""Shared test set-up: one thread per process (results do not depend on the machine), GPU tests only where there is a GPU, long
tests and those of a real SLURM only on request."""

import gc
import os
import signal

from training.hardware import equal_bits

os.environ.update(equal_bits(1, os.environ))
os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # PyTorch asks at the first product, whichever test that is in

import kernels.hf_guard  # noqa: F401  # isort: skip  (before transformers, which many tests import)
import pytest
from hypothesis import settings

gc.disable()  # what is imported stays: looking for waste in it takes a sixth of the time of collecting tests

# A busy machine is no failure, and equal code gives equal results. `--hypothesis-profile default` looks for new examples.
settings.register_profile("suite", deadline=None, derandomize=True)
settings.load_profile("suite")

# Tests send Ctrl-C to what they start. A shell that starts the suite in the background has its children ignore it.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

ON_REQUEST = {"long", "slurm"}
LONG = (
    "test_without_gpu.py", "test_run.py", "test_loop.py", "test_committed.py", "test_models.py",
    "test_imports.py", "test_wheel.py", "test_report.py", "test_run_folder.py", "test_prepare.py", "test_tree.py",
)  # fmt: skip
"""Files that keep a core busy for ten seconds or more, the longest first."""


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    unasked = {marker for marker in ON_REQUEST if marker not in config.option.markexpr}
    rest = {item for item in items if unasked & {marker.name for marker in item.iter_markers()}}
    config.hook.pytest_deselected(items=list(rest))
    items[:] = [item for item in items if item not in rest]
    order = {name: place for place, name in enumerate(LONG)}
    items.sort(key=lambda item: order.get(item.path.name, len(LONG)))  # with --no-loadscope-reorder no core is idle at the end
    if not any("gpu" in item.keywords for item in items):
        return
    import torch

    if not torch.cuda.is_available():
        for item in items:
            if "gpu" in item.keywords:
                item.add_marker(pytest.mark.skip(reason="this machine has no CUDA GPU that torch can use"))


def pytest_collection_finish() -> None:
    gc.freeze()
    gc.enable()
