"""The figures and tables there are: one file each in a folder of its paper, found by looking."""

import importlib
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from types import ModuleType

from eval.shell.spec import EvalSpec
from experiments.recipes import Recipe
from experiments.scales import Scale

PAPERS = ("fox", "acp", "stick_breaking")


@dataclass(frozen=True)
class Artefact:
    """One figure or table as its file declares it: experiments/PAPER/STEM.py with TITLE, PAPER, SHOWS, CLAIMS, runs, evals.

    `runs(scale, seeds)`: the recipes it needs; `evals(scale)`: how each run is evaluated. It is drawn by `drawing()`, the
    module of the same stem in analysis/.
    """

    stem: str
    folder: str
    title: str
    paper: str
    shows: str
    claims: tuple[str, ...]
    runs: Callable[[Scale, tuple[int, ...]], Iterable[Recipe]]
    evals: Callable[[Scale], tuple[EvalSpec, ...]]
    main: bool

    def drawing(self) -> ModuleType:
        return importlib.import_module(f"analysis.{self.folder}.{self.stem}")


MAIN = ("fig2_per_token_loss", "fig3_forget_gates", "fig4_needle", "table1_lm_eval", "table2_longbench", "table6_throughput")
"""What `run` makes when no artefact is named: the paper's main experiments, whose runs are shared."""


@cache
def artefacts() -> dict[str, Artefact]:
    """All artefacts by stem: paper by paper, figures first, in the paper's order."""
    found = {}
    for folder in PAPERS:
        for stem in sorted(_stems(folder), key=_order):
            module = importlib.import_module(f"experiments.{folder}.{stem}")
            found[stem] = Artefact(
                stem, folder, module.TITLE, module.PAPER, module.SHOWS, module.CLAIMS, module.runs, module.evals, stem in MAIN
            )
    return found


def chosen(names: Iterable[str]) -> dict[str, Artefact]:
    """The artefacts of these names; "all" is every one, no name the main ones. ValueError for a name that does not exist."""
    known = artefacts()
    names = tuple(names)
    for name in names:
        if name not in known and name != "all":
            raise ValueError(f"{name}: no such figure or table; choose from {', '.join(known)}, or all.")
    if not names:
        return {stem: artefact for stem, artefact in known.items() if artefact.main}
    return {stem: artefact for stem, artefact in known.items() if stem in names or "all" in names}


def _stems(folder: str) -> list[str]:
    return [path.stem for path in (Path(__file__).parent / folder).glob("*.py") if path.stem != "__init__"]


def _order(stem: str) -> tuple[int, int, str]:
    number = re.search(r"\d+", stem)
    kind = 0 if stem.startswith("fig") else 1 if stem.startswith("table") else 2
    return kind, int(number.group()) if number else 0, stem
