"""The GPU kernels on a machine without a GPU: interpreted for their results, compiled for Hopper to see that they build.

Each in a process of its own: Triton wants to know before it is imported."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent
ATTENTION = HERE / "forgetting_attention" / "interpreted.py"


def run(*module: str | Path, **variables: str) -> None:
    environment = {**os.environ, "CUDA_VISIBLE_DEVICES": "", **variables}
    command = [sys.executable, "-m", *module]
    done = subprocess.run(command, cwd=HERE.parents[1], env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, (done.stdout + done.stderr)[-3000:]


def interpret(*arguments: str | Path) -> None:
    run("pytest", *arguments, "-q", "-p", "no:cacheprovider", TRITON_INTERPRET="1")


def test_kernels_under_the_interpreter() -> None:
    interpret(HERE / "interpreted.py", HERE / "stick_breaking" / "interpreted.py")


def test_forgetting_attention_under_the_interpreters() -> None:
    interpret(ATTENTION)


@pytest.mark.long
def test_forgetting_attention_in_every_regime_under_the_interpreters() -> None:
    interpret(ATTENTION, "-m", "long")


@pytest.mark.long
def test_kernels_compile_for_hopper(tmp_path: Path) -> None:
    run("tests.kernels.compiled", TRITON_CACHE_DIR=str(tmp_path))
