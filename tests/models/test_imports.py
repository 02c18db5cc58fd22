"""Importing: light where it must be, quiet, and safe from Hugging Face's `kernels` package. Each in a process of its own."""

import ast
import subprocess
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


def run(code: str, *more_paths: Path) -> subprocess.CompletedProcess[str]:
    paths = f"import sys; sys.path[:0] = {[str(ROOT), *map(str, more_paths)]!r}\n"
    return subprocess.run([sys.executable, "-c", paths + code], capture_output=True, text=True, cwd=ROOT, check=False)


def fake_distribution(folder: Path) -> None:
    """Metadata of an installed `kernels`, in the version that transformers wants."""
    from transformers.utils import import_utils

    version = getattr(import_utils, "KERNELS_MIN_VERSION", "0.12.0")
    info = folder / f"kernels-{version}.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: kernels\nVersion: {version}\n")
    (info / "top_level.txt").write_text("kernels\n")
    (info / "RECORD").write_text("kernels/__init__.py,,\n")


@pytest.mark.long
def test_hugging_faces_kernels_package_is_no_trap(tmp_path):
    fake_distribution(tmp_path)
    trapped = run("from transformers import PreTrainedModel", tmp_path)
    assert "cannot import name" in trapped.stderr, "the trap is gone: is the guard still needed?"
    guarded = run(
        "import kernels.hf_guard\n"
        "from transformers import PreTrainedModel, Trainer\n"
        "import accelerate, peft, datasets, lm_eval, fla\n"
        "from transformers.utils import import_utils, is_kernels_available\n"
        "assert not is_kernels_available() and not import_utils.is_kernels_available()\n"
        "assert import_utils._is_package_available('torch', return_version=True)[0]\n"
        "import kernels; print(kernels.__file__)",
        tmp_path,
    )
    assert guarded.returncode == 0, guarded.stderr
    assert guarded.stdout.strip() == str(ROOT / "kernels" / "__init__.py")
    assert (ROOT / "kernels" / "__init__.py").read_text() == ""


GUARD = "kernels.hf_guard"
GUARDED = ("transformers", "fla", "datasets", "accelerate", "lm_eval", "peft", "data.hf_tokenizer")


def unguarded(body: Iterable[ast.AST], guarded: bool = False) -> Iterator[int]:
    """Lines that import a guarded package, in a module's body or a function's, while nothing has imported the guard.

    A function is called after its module has run, so it finds the guard that stands anywhere in the module's own body.
    """
    functions: list[ast.FunctionDef | ast.AsyncFunctionDef] = []
    nodes = list(body)
    while nodes:
        node = nodes.pop(0)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            functions.append(node)
        elif isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING":
            nodes[:0] = node.orelse
        elif isinstance(node, ast.Import | ast.ImportFrom):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else [node.module or ""]
            guarded = guarded or GUARD in names
            if not guarded and any(f"{name}.".startswith(f"{package}.") for name in names for package in GUARDED):
                yield node.lineno
        else:
            nodes[:0] = ast.iter_child_nodes(node)
    for function in functions:
        yield from unguarded(function.body, guarded)


def test_every_import_that_needs_the_guard_comes_after_it():
    """data/hf_tokenizer.py is saved beside models and runs where the suite is not; so its import is guarded instead. So does
    the backend for fla, which nothing in the suite imports."""
    files = {str(file.relative_to(ROOT)): file for file in ROOT.glob("[!.]*/**/*.py") if "tests" not in file.parts}
    del files["data/hf_tokenizer.py"], files["kernels/hf_guard.py"], files["kernels/forgetting_attention/fla.py"]
    assert len(files) > 100 and list(unguarded(ast.parse("def f():\n  import fla.ops").body)) == [2]
    found = {name: list(unguarded(ast.parse(file.read_text()).body)) for name, file in files.items()}
    assert {name: lines for name, lines in found.items() if lines} == {}
    assert f"import {GUARD}" in (ROOT / "tests" / "conftest.py").read_text(), "the tests import after it"


def test_specs_and_counts_need_no_torch():
    code = "import models.spec, models.authors, models.weight_files, sys; print({'torch', 'transformers'} & set(sys.modules))"
    done = run(code)
    assert done.stdout.strip() == "set()", done.stderr


@pytest.mark.long
def test_fox_loads_neither_fla_nor_scipy():
    done = run("import models.build, models.forgetting_transformer.module, sys; print({'fla', 'scipy'} & set(sys.modules))")
    assert done.stdout.strip() == "set()", done.stderr
