"""Requirements, pinned and locked, agree."""

import re
from importlib.metadata import PackageNotFoundError, requires
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parent.parent
PINNED, LOCKED = ROOT / "requirements.txt", ROOT / "requirements.lock"


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
