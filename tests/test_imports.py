"""Imports run downwards only, between rooms and between files, and the rooms that draw results need no torch."""

import ast
import subprocess
import sys
from collections import defaultdict
from collections.abc import Iterator
from fnmatch import fnmatchcase
from pathlib import Path

import pytest

from experiments.artefact import FOLDERS

ROOT = Path(__file__).parent.parent
MAY_IMPORT = {
    "results": set(),
    "kernels": {"results"},
    "models": {"kernels"},
    "data": {"models", "kernels", "results"},
    "training": {"data", "models", "kernels", "results"},
    "eval": {"training", "data", "models", "kernels", "results"},
    "analysis": {"models", "results"},
    "beyond": {"experiments", "eval", "training", "data", "models", "kernels", "results", "analysis", "tests"},
    "experiments": {"eval", "training", "data", "models", "kernels", "results", "analysis"},
    "slurm": {"experiments", "training", "results"},
}
"""Each room and the others that it may import. Nobody imports slurm."""


def named(tree: ast.AST, module: str) -> Iterator[tuple[str, str]]:
    """Names that a file imports, wherever the import stands: (module, one of its names or "").

    For type checking and inside functions count as much as at the top: they only hide a circle. In a name that is made when the
    program runs, `*` stands for the part that is not known before.
    """
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from ((alias.name, "") for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            above = module.split(".")[: -node.level] if node.level else []
            yield from ((".".join([*above, *filter(None, [node.module])]), alias.name) for alias in node.names)
        elif isinstance(node, ast.Call) and ast.unparse(node.func).split(".")[-1] == "import_module":
            asked = node.args[0]
            parts = asked.values if isinstance(asked, ast.JoinedStr) else [asked]
            made = "".join(str(part.value) if isinstance(part, ast.Constant) else "*" for part in parts)
            if not made.startswith("*"):
                yield made, ""


def imports_of(sources: dict[str, str]) -> dict[str, set[str]]:
    """The imports among modules (name: text). A name that is a module of its package is an import of that module alone."""
    by_depth = defaultdict(list)
    for name in sources:
        by_depth[name.count(".")].append(name)
    graph: dict[str, set[str]] = {}
    for module, text in sources.items():
        found: set[str] = set()
        for base, name in named(ast.parse(text), module):
            whole = f"{base}.{name}" if f"{base}.{name}" in sources else base
            found |= {other for other in by_depth[whole.count(".")] if fnmatchcase(other, whole)}
        graph[module] = found - {module}
    return graph


def circles(graph: dict[str, set[str]]) -> set[frozenset[str]]:
    """Groups of modules each of which reaches all the others of its group."""
    reached = {}
    for start in graph:
        seen: set[str] = set()
        rest = [start]
        while rest:
            new = graph[rest.pop()] - seen
            seen |= new
            rest += new
        reached[start] = seen
    groups = {frozenset(other for other in reached[start] if start in reached[other]) for start in graph}
    return groups - {frozenset()}


@pytest.fixture(scope="module")
def graph() -> dict[str, set[str]]:
    """Imports between all files of the rooms. A package is the module of its name: its __init__.py."""
    files = [path for room in MAY_IMPORT for path in (ROOT / room).rglob("*.py")]
    modules = {".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__"): path for path in files}
    assert len(modules) > 150
    return imports_of({module: path.read_text() for module, path in modules.items()})


def test_no_files_import_each_other_in_a_circle(graph):
    found = circles(graph)
    assert not found, f"files import each other: {[sorted(circle) for circle in found]}"


def test_imports_run_downwards(graph):
    found = set()
    for module, others in graph.items():
        room = module.split(".")[0]
        found |= {(module, other) for other in others if other.split(".")[0] not in MAY_IMPORT[room] | {room}}
    assert not found, f"upward imports: {sorted(found)}"


@pytest.mark.parametrize("room", ["results", "analysis", *FOLDERS])
def test_drawing_needs_no_torch(room):
    for path in (ROOT / room).rglob("*.py"):
        heavy = {name.split(".")[0] for name, _ in named(ast.parse(path.read_text()), room)}
        heavy &= {"torch", "transformers", "fla", "lm_eval", "datasets"}
        assert not heavy, f"{path.relative_to(ROOT)} imports {heavy}"


def test_specs_need_no_torch():
    rooms = "models.spec, data.spec, training.spec, eval.kinds, experiments.scales, experiments.render, slurm.submit"
    code = f"import sys, {rooms}; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=False).returncode == 0


@pytest.mark.parametrize("paper", [folder for folder in FOLDERS if folder.startswith("experiments")])
def test_figures_of_a_paper_know_no_others(paper):
    """A paper's figures may draw another of the same paper again; what is beyond the papers may look into them."""
    for path in (ROOT / paper).glob("*.py"):
        names = {f"{base}.{name}" for base, name in named(ast.parse(path.read_text()), paper)}
        rooms = tuple(folder.replace("/", ".") + "." for folder in FOLDERS if folder != paper)
        others = {name for name in names if name.startswith(rooms)}
        assert not others, f"{path.relative_to(ROOT)} imports {others}"
