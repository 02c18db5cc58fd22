"""Requirements, small and locked, agree; a scale is drawn with the small ones."""

import re
import shutil
import subprocess
import sys
from importlib.metadata import PackageNotFoundError, requires
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parent.parent
PINNED, SMALL, LOCKED = (ROOT / f"requirements{name}" for name in (".txt", "-look.txt", ".lock"))


def pins(path: Path) -> dict[str, str]:
    """Name -> line with its version, without hashes and comments."""
    lines = [line.partition(" \\")[0].strip() for line in path.read_text().splitlines() if re.match(r"[A-Za-z]", line)]
    return {canonicalize_name(Requirement(line).name): line for line in lines}


def closure(names: set[str]) -> set[str]:
    """The packages and all that these need here, as the installed ones say."""
    found, rest = set(), [(canonicalize_name(name), frozenset[str]()) for name in names]
    while rest:
        name, extras = rest.pop()
        if (name, extras) in found:
            continue
        found.add((name, extras))
        try:
            needs = [Requirement(each) for each in requires(name) or ()]
        except PackageNotFoundError:
            continue  # one of another machine: CUDA's, where torch is that of a CPU
        for need in needs:
            if need.marker is None or any(need.marker.evaluate({"extra": extra}) for extra in ("", *extras)):
                rest.append((canonicalize_name(need.name), frozenset(need.extras)))
    return {name for name, _ in found}


def test_every_pin_is_locked_at_its_version_and_all_by_hash():
    locked = {name: str(Requirement(line).specifier) for name, line in pins(LOCKED).items()}
    assert {name: locked.get(name) for name in pins(PINNED)} == {
        name: str(Requirement(line).specifier) for name, line in pins(PINNED).items()
    }
    entries = re.split(r"^(?=[A-Za-z])", LOCKED.read_text(), flags=re.MULTILINE)[1:]
    assert len(entries) > 100 and all("--hash=sha256:" in entry for entry in entries)
    assert "://" not in LOCKED.read_text() and "index" not in LOCKED.read_text(), "a host is that machine's alone"


def test_what_the_pinned_packages_need_is_locked():
    assert closure(set(pins(PINNED))) - set(pins(LOCKED)) == set(), "say `uv pip compile` again as the file's head does"


def test_the_small_environment_is_a_part_of_the_large_one():
    assert pins(SMALL).items() <= pins(PINNED).items()
    assert not closure(set(pins(SMALL))) & {"torch", "triton", "transformers", "flash-linear-attention"}


HIDING = """
import sys
from importlib.metadata import packages_distributions
from packaging.utils import canonicalize_name
class Hidden:
    def find_spec(self, name, path=None, target=None):
        owners = OWNERS.get(name.partition(".")[0], ())
        if owners and not {canonicalize_name(each) for each in owners} & SMALL:
            raise ModuleNotFoundError(f"No module named {name!r} in the small environment", name=name)
OWNERS, SMALL = packages_distributions(), set(sys.argv.pop(1).split(","))
sys.meta_path.insert(0, Hidden())
from experiments.__main__ import main
sys.exit(main(sys.argv[1:]))
"""


@pytest.mark.parametrize(("lacking", "code"), [(None, 0), ("matplotlib", 1)])
def test_a_scale_is_drawn_with_what_the_small_environment_has(tmp_path, lacking, code):
    """125m-0.2b, the smallest that is stored; and the test sees a package that is not there."""
    shutil.copytree(ROOT / "results" / "125m-0.2b", tmp_path / "125m-0.2b", ignore=shutil.ignore_patterns("*.html", "*.pdf"))
    there = closure(set(pins(SMALL)) - {lacking}) - {lacking}
    command = [sys.executable, "-c", HIDING, ",".join(sorted(there)), "render", "--scale", "125m-0.2b"]
    done = subprocess.run([*command, "--results-dir", str(tmp_path)], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == code, done.stderr
    assert (tmp_path / "125m-0.2b" / "report.html").is_file() == (code == 0)
    assert "in the small environment" in done.stderr or code == 0
