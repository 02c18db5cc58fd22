"""The GPU kernels on a machine without a GPU: interpreted for their results, compiled for Hopper to see that they build.

Each in a process of its own: Triton wants to know before it is imported.
"""

from pathlib import Path

import pytest

from tests.kernels.test_without_gpu import _compiled, _run


def test_kernels_under_the_interpreter() -> None:
    _run("tests.kernels.stick_breaking.interpreted", TRITON_INTERPRET="1")


def test_kernels_compile_for_hopper(pytestconfig: pytest.Config, tmp_path: Path) -> None:
    _run("tests.kernels.stick_breaking.compiled", TRITON_CACHE_DIR=_compiled(pytestconfig, tmp_path))
