"""An operator's folder makes a wheel of its own, offline: it is imported under its own name, passes the operator's tests, runs
the example of its page, and has the layout of Hugging Face's kernel hub."""

import json
import os
import re
import shutil
import subprocess
import sys
import tomllib
from importlib.metadata import PathDistribution
from pathlib import Path
from zipfile import ZipFile

import pytest

TESTS = Path(__file__).parents[1]
KERNELS = TESTS.parents[1] / "kernels"
OPERATORS = ("forgetting_attention", "stick_breaking")
OURS = re.compile(r"(?<!tests\.)\bkernels\.(?=(attention_shared|forgetting_attention|stick_breaking)\b)")
BY_NAME = """
import importlib.util, sys
spec = importlib.util.spec_from_file_location("some_id", "{folder}/__init__.py")
sys.modules["some_id"] = module = importlib.util.module_from_spec(spec)
spec.loader.exec_module(module)
import some_id.{inside}
assert not any(name.split(".")[0] in ("kernels", "{operator}") for name in sys.modules)
"""


def run(folder: Path, *command: str | Path) -> str:
    environment = {**os.environ, "PYTHONPATH": str(folder), "CUDA_VISIBLE_DEVICES": ""}
    done = subprocess.run([sys.executable, *command], cwd=folder, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, (done.stdout + done.stderr)[-3000:]
    return done.stdout


@pytest.fixture(scope="module", params=OPERATORS)
def operator(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture(scope="module")
def site(operator: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folder with nothing but what the wheel installs."""
    source = tmp_path_factory.mktemp("source")
    for folder in (operator, "attention_shared"):
        shutil.copytree(KERNELS / folder, source / folder, ignore=shutil.ignore_patterns("__pycache__", "build"))
    options = ("--no-index", "--no-deps", "--no-build-isolation", "--disable-pip-version-check", "--quiet")
    run(source, "-m", "pip", "wheel", *options, "--wheel-dir", "wheels", f"./{operator}")
    (wheel,) = (source / "wheels").iterdir()
    site = tmp_path_factory.mktemp("site")
    ZipFile(wheel).extractall(site)
    return site


def test_the_wheel_is_the_folder_and_asks_for_torch_and_triton(site, operator):
    (info,) = site.glob("*.dist-info")
    metadata = PathDistribution(info).metadata
    assert metadata["Name"] == operator.replace("_", "-")
    assert [name.split(">")[0] for name in metadata.get_all("Requires-Dist")] == ["torch", "triton"]
    assert metadata.get_payload() == (KERNELS / operator / "README.md").read_text()
    assert {path.name for path in site.iterdir()} == {operator, info.name}
    for folder, place in ((operator, site / operator), ("attention_shared", site / operator / "attention_shared")):
        there = {str(path.relative_to(KERNELS / folder)) for path in (KERNELS / folder).rglob("*.py")} - {"packaging.py"}
        there = {name for name in there if not name.startswith("build/")}
        assert there <= {str(path.relative_to(place)) for path in place.rglob("*.py")}


def test_it_passes_the_operators_tests(site, operator, tmp_path):
    """But those that take long, which say nothing of where a package stands."""
    for path in (TESTS / operator).glob("*.py"):
        text = OURS.sub(lambda found: f"{operator}." if found[1] == "attention_shared" else "", path.read_text())
        copy = tmp_path / "tests" / "kernels" / operator / path.name
        copy.parent.mkdir(parents=True, exist_ok=True)
        copy.write_text(text)
    shutil.copytree(site / operator, tmp_path / operator)
    files = [f"tests/kernels/{operator}/test_{name}.py" for name in (operator, "tight")]
    there = [name for name in files if (tmp_path / name).is_file()]
    quick = "not compile and not gradcheck and not opcheck and not when_long and not chunked_matches and not oracle"
    options = ("-q", "-p", "no:cacheprovider", "--import-mode=importlib", "-k", quick)
    found = run(tmp_path, "-m", "pytest", *options, *there)
    assert int(re.findall(r"(\d+) passed", found)[-1]) > 30, found[-500:]


def test_the_example_of_its_page_runs(site, operator):
    (example,) = re.findall(r"```python\n(.*?)```", (KERNELS / operator / "README.md").read_text(), re.DOTALL)
    run(site, "-c", example)


def test_it_is_laid_out_as_the_kernel_hub_wants(site, operator, tmp_path):
    """A variant is one folder, loaded by its path under any name, with a metadata.json that names it."""
    folder = tmp_path / "build" / "torch-cuda"
    shutil.copytree(site / operator, folder)
    inside = "pruning.threshold" if operator == "forgetting_attention" else "visibility"
    run(tmp_path, "-c", BY_NAME.format(folder=folder, inside=inside, operator=operator))
    metadata = json.loads((folder / "metadata.json").read_text())
    project = tomllib.loads((KERNELS / operator / "pyproject.toml").read_text())["project"]
    assert metadata["name"] == project["name"] and metadata["license"] == project["license"]
    assert metadata["id"] == f"_{operator}_{metadata['backend']['type']}_{metadata['version']}"
