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


ROOMS = ("analysis", "data", "eval", "experiments", "kernels", "models", "results", "slurm", "training")
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


@pytest.mark.parametrize(
    ("code", "lines"),
    [
        ("import transformers", [1]),
        ("from lm_eval.api import model\nimport kernels.hf_guard", [1]),
        ("import kernels.hf_guard\nimport fla.ops as ops", []),
        ("def f():\n  import datasets\nimport kernels.hf_guard", []),
        ("def f():\n  import kernels.hf_guard\ndef g():\n  try:\n    import peft\n  except ImportError:\n    pass", [5]),
        ("class A:\n  def f(self):\n    from data.hf_tokenizer import CorpusTokenizer", [3]),
        ("if TYPE_CHECKING:\n  import transformers\nelse:\n  import accelerate", [4]),
        ("import flax, datasets_of_mine", []),
    ],
)
def test_an_import_without_the_guard_is_found(code, lines):
    assert list(unguarded(ast.parse(code).body)) == lines


def test_every_import_that_needs_the_guard_comes_after_it():
    """data/hf_tokenizer.py is saved beside models and runs where the suite is not; so its import is guarded instead. So does
    the backend for fla, which nothing in the suite imports."""
    files = {str(file.relative_to(ROOT)): file for room in ROOMS for file in (ROOT / room).rglob("*.py")}
    del files["data/hf_tokenizer.py"], files["kernels/hf_guard.py"], files["kernels/forgetting_attention/fla.py"]
    assert len(files) > 100
    found = {name: list(unguarded(ast.parse(file.read_text()).body)) for name, file in files.items()}
    assert {name: lines for name, lines in found.items() if lines} == {}
    assert f"import {GUARD}" in (ROOT / "tests" / "conftest.py").read_text(), "the tests import after it"


def test_specs_and_counts_need_no_torch():
    code = "import models.spec, models.authors, models.weight_files, sys; "
    done = run(code + "print([m for m in ('torch', 'transformers') if m in sys.modules])")
    assert done.stdout.strip() == "[]", done.stderr


def test_fox_loads_neither_fla_nor_scipy_and_no_model_is_noisy():
    code = (
        "import sys, torch\n"
        "from models.build import build_model\n"
        "from models.spec import *\n"
        "common = dict(vocab_size=64, hidden_size=64, num_layers=1)\n"
        "ids = torch.zeros(1, 4, dtype=torch.long)\n"
        "build_model(ForgettingTransformerSpec(**common, num_heads=2))(ids)\n"
        "print([m for m in ('fla', 'scipy') if m in sys.modules])\n"
        "for spec in (Mamba2Spec(**common), HGRN2Spec(**common, expand_ratio=32), DeltaNetSpec(**common, head_dim=32)):\n"
        "    build_model(spec).generate(ids, max_new_tokens=2, pad_token_id=0)\n"
    )
    done = run(code)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == "[]"
    assert done.stderr == ""
