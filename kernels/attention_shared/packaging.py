"""Build of an operator's folder as a package of its own, with this one inside. Its pyproject.toml names `Build`.

The copies import this folder from one level further down; else they are the files that the suite runs."""

import re
from pathlib import Path

from setuptools.command.build_py import build_py

SHARED = Path(__file__).parent
_IMPORT = re.compile(r"^( *from \.+)\.(attention_shared)", re.MULTILINE)


class Build(build_py):
    """setuptools' copying of sources."""

    def run(self) -> None:
        """Copy the one package of the project, and the shared parts into it."""
        (package,) = self.packages
        target = Path(self.build_lib, package)
        for source, place in ((SHARED.parent / package, target), (SHARED, target / SHARED.name)):
            for path in source.rglob("*"):
                inside = path.relative_to(source)
                if path.suffix in (".py", ".json") and inside.parts[0] != "build" and path != Path(__file__):
                    place.joinpath(inside).parent.mkdir(parents=True, exist_ok=True)
                    place.joinpath(inside).write_text(_IMPORT.sub(r"\1\2", path.read_text()))
