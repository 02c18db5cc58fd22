"""Imports run downwards only, and the rooms that draw results need no torch."""

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
MAY_IMPORT = {
    "results": set(),
    "kernels": {"results"},
    "models": {"kernels"},
    "data": {"models", "kernels", "results"},
    "training": {"data", "models", "kernels", "results"},
    "eval": {"training", "data", "models", "kernels", "results"},
    "analysis": {"results"},
    "experiments": {"eval", "training", "data", "models", "kernels", "results", "analysis", "slurm"},
    "slurm": {"experiments", "training", "results"},
}
"""Each folder and what it may import of the others. kernels takes only results.measured, data only models.spec and
kernels.hf_guard; experiments.__main__ alone takes slurm."""


def imported(path: Path) -> set[str]:
    names = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            names.add(node.module)
    return names


@pytest.mark.parametrize("room", MAY_IMPORT)
def test_imports_run_downwards(room):
    files = list((ROOT / room).rglob("*.py"))
    assert files
    for path in files:
        rooms = {name.split(".")[0] for name in imported(path)} & MAY_IMPORT.keys()
        assert rooms <= MAY_IMPORT[room] | {room}, f"{path.relative_to(ROOT)} imports {rooms - MAY_IMPORT[room] - {room}}"


@pytest.mark.parametrize("room", ["results", "analysis"])
def test_drawing_needs_no_torch(room):
    for path in (ROOT / room).rglob("*.py"):
        heavy = {name.split(".")[0] for name in imported(path)} & {"torch", "transformers", "fla", "lm_eval", "datasets"}
        assert not heavy, f"{path.relative_to(ROOT)} imports {heavy}"


def test_specs_need_no_torch():
    import subprocess
    import sys

    rooms = "models.spec, data.spec, training.spec, eval.kinds, experiments.scales, experiments.drawing, slurm.submit"
    code = f"import sys, {rooms}; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=False).returncode == 0
