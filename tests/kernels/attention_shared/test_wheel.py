"""The operators without this project: their folders copied beside the shared parts, and as wheels that are built offline."""

import ast
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from zipfile import ZipFile

import pytest

KERNELS = Path(__file__).parents[3] / "kernels"
OPERATORS = ("forgetting_attention", "stick_breaking")
ALLOWED = {"torch", "triton", *sys.stdlib_module_names}
FOR_OTHERS = {"packaging.py": {"setuptools"}, "fla.py": {"fla"}}
"""Files that only those import who ask for them."""
COMPARE = """
import sys
import torch
from {package} import {function} as attention

torch.manual_seed(0)
inputs = [torch.randn(1, 150, 2, 16).requires_grad_() for _ in range(3)]
if {gated}:
    inputs.append(torch.nn.functional.logsigmoid(torch.randn(1, 150, 2) + 2).requires_grad_())
results = []
for backend in ("auto", "reference"):
    o = attention(*inputs, backend=backend)
    o = o if {gated} else o[0]
    results.append([o, *torch.autograd.grad(o.square().sum(), inputs)])
torch.testing.assert_close(*results)
assert not [name for name in sys.modules if name.split(".")[0] in ("kernels", "models", "results", "training", "eval")]
"""


def run(folder: Path, *command: str | Path) -> None:
    environment = {**os.environ, "PYTHONPATH": str(folder), "CUDA_VISIBLE_DEVICES": ""}
    done = subprocess.run([sys.executable, *command], cwd=folder, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, (done.stdout + done.stderr)[-3000:]


def compare(folder: Path, package: str, operator: str) -> None:
    function = operator if operator == "forgetting_attention" else "stick_breaking_attention"
    run(folder, "-c", COMPARE.format(package=package, function=function, gated=operator == "forgetting_attention"))


def copy(operator: str, place: Path) -> Path:
    for folder in (operator, "attention_shared"):
        shutil.copytree(KERNELS / folder, place / folder, ignore=shutil.ignore_patterns("__pycache__", "build"))
    return place


@pytest.mark.long
@pytest.mark.parametrize("operator", OPERATORS)
def test_a_copy_under_another_name_equals_its_reference(tmp_path, operator):
    copy(operator, tmp_path / "some" / "place")
    compare(tmp_path, f"some.place.{operator}", operator)


@pytest.mark.long
@pytest.mark.parametrize("operator", OPERATORS)
def test_the_wheel_computes_the_same_and_runs_its_example(tmp_path, operator):
    source, site = copy(operator, tmp_path / "source"), tmp_path / "site"
    options = ("--no-index", "--no-deps", "--no-build-isolation", "--disable-pip-version-check", "--quiet")
    run(source, "-m", "pip", "wheel", *options, "--wheel-dir", "wheels", f"./{operator}")
    (wheel,) = (source / "wheels").iterdir()
    ZipFile(wheel).extractall(site)
    compare(site, operator, operator)
    (example,) = re.findall(r"```python\n(.*?)```", (KERNELS / operator / "README.md").read_text(), re.DOTALL)
    run(site, "-c", example)


@pytest.mark.parametrize("folder", [*OPERATORS, "attention_shared"])
def test_a_folder_takes_nothing_from_outside(folder):
    """Also where no machine without a GPU looks: relative imports stay inside the folder and the shared one."""
    for path in (KERNELS / folder).rglob("*.py"):
        allowed = ALLOWED | FOR_OTHERS.get(path.name, set())
        depth = len(path.relative_to(KERNELS).parts)
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Import):
                assert {alias.name.split(".")[0] for alias in node.names} <= allowed, path
            elif isinstance(node, ast.ImportFrom) and node.level == 0:
                assert node.module.split(".")[0] in allowed, path
            elif isinstance(node, ast.ImportFrom) and node.level >= depth:
                assert node.level == depth and (node.module or "").startswith("attention_shared"), path
