"""Shared test set-up: one thread per process (results do not depend on the machine), GPU tests only where there is a GPU, long
tests only on request."""

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("HF_HUB_OFFLINE", "1")

import kernels.hf_guard  # noqa: F401  # isort: skip  (before transformers, which many tests import)
import pytest
from hypothesis import settings

# A busy machine is no failure, and equal code gives equal results. `--hypothesis-profile default` looks for new examples.
settings.register_profile("suite", deadline=None, derandomize=True)
settings.load_profile("suite")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if "long" not in config.option.markexpr:
        config.hook.pytest_deselected(items=[item for item in items if "long" in item.keywords])
        items[:] = [item for item in items if "long" not in item.keywords]
    if not any("gpu" in item.keywords for item in items):
        return
    import torch

    if not torch.cuda.is_available():
        for item in items:
            if "gpu" in item.keywords:
                item.add_marker(pytest.mark.skip(reason="this machine has no CUDA GPU that torch can use"))
