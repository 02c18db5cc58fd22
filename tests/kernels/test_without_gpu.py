"""The GPU kernels on a machine without a GPU: interpreted for their results, compiled for Hopper to see that they build.

Each in a process of its own: Triton wants to know before it is imported.
"""

import os
import subprocess
import sys
from pathlib import Path

import pytest


def _run(*module: str, **variables: str) -> None:
    environment = {**os.environ, "CUDA_VISIBLE_DEVICES": "", **variables}
    done = subprocess.run(
        [sys.executable, "-m", *module],
        cwd=Path(__file__).parents[2],
        env=environment,
        capture_output=True,
        text=True,
        timeout=1_500,  # seconds; 60 of one idle core
        check=False,
    )
    assert done.returncode == 0, (done.stdout + done.stderr)[-3000:]


def _compiled(config: pytest.Config, own: Path) -> str:
    """Folder of what Triton compiled, by content: kept from one run of the tests to the next, where pytest keeps something at
    all. Everything is examined each time."""
    cache = getattr(config, "cache", None)  # None with `-p no:cacheprovider`
    return str(own if cache is None else cache.mkdir("triton"))


@pytest.mark.timeout(1_600)
def test_kernels_under_the_interpreter() -> None:
    _run("tests.kernels.interpreted", TRITON_INTERPRET="1")


@pytest.mark.timeout(1_600)
def test_kernels_in_every_regime_under_the_interpreters() -> None:
    _run(
        "pytest",
        "tests/kernels/forgetting_attention/interpreted_regimes.py",
        "tests/kernels/forgetting_attention/interpreted_order.py",
        "-q",
        "-p",
        "no:cacheprovider",
        TRITON_INTERPRET="1",
    )


@pytest.mark.timeout(1_600)
def test_kernels_compile_for_hopper(pytestconfig: pytest.Config, tmp_path: Path) -> None:
    _run("tests.kernels.compiled", TRITON_CACHE_DIR=_compiled(pytestconfig, tmp_path))
