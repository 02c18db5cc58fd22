"""Build of an operator's folder as a separate package that contains this folder. Its pyproject.toml names `Build`.

The copies are the files that the suite runs, except that they import this folder from one level further down."""

import re
from pathlib import Path

from setuptools.command.build_py import build_py

SHARED = Path(__file__).parent
_IMPORT = re.compile(r"^( *from \.+)\.(attention_shared)", re.MULTILINE)


class Build(build_py):
    """Step of setuptools that copies sources."""

    def run(self) -> None:
        """Copy the project's only package, with the shared parts inside."""
        (package,) = self.packages
        target = Path(self.build_lib, package)
        for source, place in ((SHARED.parent / package, target), (SHARED, target / SHARED.name)):
            for path in source.rglob("*"):
                inside = path.relative_to(source)
                if path.suffix in (".py", ".json") and inside.parts[0] != "build" and path != Path(__file__):
                    place.joinpath(inside).parent.mkdir(parents=True, exist_ok=True)
                    place.joinpath(inside).write_text(_IMPORT.sub(r"\1\2", path.read_text()))
