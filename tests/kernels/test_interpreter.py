"""The Triton kernels' logic on a CPU: Triton's interpreter has to be chosen before Triton is imported."""

import os
import subprocess
import sys
from pathlib import Path


def test_kernels_under_the_interpreter() -> None:
    environment = {**os.environ, "TRITON_INTERPRET": "1", "CUDA_VISIBLE_DEVICES": ""}
    root = Path(__file__).parents[2]
    command = [sys.executable, "-m", "tests.kernels.interpreted"]
    done = subprocess.run(command, cwd=root, env=environment, capture_output=True, text=True, timeout=280, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
