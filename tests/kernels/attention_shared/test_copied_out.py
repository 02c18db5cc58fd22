"""The operators work where their folders were copied beside that of the shared parts, under any name, without this project."""

import ast
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

KERNELS = Path(__file__).parents[3] / "kernels"
ALLOWED = {"torch", "triton", *sys.stdlib_module_names}
FOR_OTHERS = {"packaging.py": {"setuptools"}, "fla.py": {"fla"}}
"""Files that only those import who ask for them."""

RUN = """
import sys
import torch
from {parent}.{operator} import {function} as attention

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
theirs = [name for name in sys.modules if name.split(".")[0] in ("kernels", "models", "results", "training", "eval")]
assert not theirs, theirs
if {gated}:  # a second copy in one process
    import shutil
    shutil.copytree("{place}", "another")
    from another.{operator} import {function} as copied
    torch.testing.assert_close(copied(*inputs), results[0][0])
"""


@pytest.mark.parametrize("operator", ["forgetting_attention", "stick_breaking"])
@pytest.mark.parametrize("parent", ["some.place"])
def test_a_copy_under_another_name_equals_its_reference(tmp_path, operator, parent):
    for folder in (operator, "attention_shared"):
        copy = tmp_path.joinpath(*parent.split("."), folder)
        shutil.copytree(KERNELS / folder, copy, ignore=shutil.ignore_patterns("__pycache__"))
    gated = operator == "forgetting_attention"
    function = operator if gated else "stick_breaking_attention"
    code = RUN.format(parent=parent, place=parent.replace(".", "/"), operator=operator, function=function, gated=gated)
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]


@pytest.mark.parametrize("operator", ["forgetting_attention", "stick_breaking"])
def test_what_a_folder_needs_beside_it_stands_on_its_page(tmp_path, operator):
    shutil.copytree(KERNELS / operator, tmp_path / operator, ignore=shutil.ignore_patterns("__pycache__"))
    alone = subprocess.run([sys.executable, "-c", f"import {operator}"], cwd=tmp_path, capture_output=True, check=False)
    page = " ".join((tmp_path / operator / "README.md").read_text().split())
    assert alone.returncode != 0 and "without `attention_shared` this folder neither imports nor installs" in page
    assert f"side by side into a package of your own (`from package.{operator} import ...`)" in page


@pytest.mark.parametrize("folder", ["forgetting_attention", "stick_breaking", "attention_shared"])
def test_a_folder_takes_nothing_from_outside(folder):
    """Also where no machine without a GPU looks: relative imports stay inside the folder and the shared one."""
    for path in (KERNELS / folder).rglob("*.py"):
        allowed = ALLOWED | FOR_OTHERS.get(path.name, set())
        depth = len(path.relative_to(KERNELS).parts)
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Import):
                taken = {alias.name.split(".")[0] for alias in node.names}
            elif isinstance(node, ast.ImportFrom) and node.level == 0:
                taken = {node.module.split(".")[0]}
            elif isinstance(node, ast.ImportFrom) and node.level >= depth:
                beside = node.module.split(".")[0] if node.module else "nothing"
                assert node.level == depth and beside == "attention_shared", f"{path} imports {beside}"
                continue
            else:
                continue
            assert taken <= allowed, f"{path} imports {taken - allowed}"
