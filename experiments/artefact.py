"""The figures and tables there are: one file each in a folder of its paper, found by looking."""

import importlib
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from analysis.study import Study
from analysis.tables import Table, write_table
from analysis.verdict import Claim, Look
from eval.shell.spec import EvalSpec
from experiments.recipes import Recipe
from experiments.scales import Scale

PAPERS = ("fox", "acp", "stick_breaking")
FOLDERS = (*PAPERS, "beyond")
"""Of the papers, and of what none of them has."""


@dataclass(frozen=True)
class Artefact:
    """A figure or table as its file, experiments/PAPER/STEM.py, declares it: TITLE, PAPER, SHOWS, runs, evals, summary and,
    where there are such, draw, CLAIMS and LOOKS.

    `runs(scale, seeds)`: the recipes it needs; `evals(scale)`: how each run is evaluated; `summary(study)`: its numbers as a
    table, which is what is drawn where there is no `draw(study)`.
    """

    stem: str
    folder: str
    title: str
    paper: str
    shows: str
    runs: Callable[[Scale, tuple[int, ...]], Iterable[Recipe]]
    evals: Callable[[Scale], tuple[EvalSpec, ...]]
    summary: Callable[[Study], Table]
    draw: Callable[[Study], list[Path]]
    claims: tuple[Claim, ...]
    looks: Mapping[str, Look]

    @property
    def main(self) -> bool:
        return self.stem in MAIN


MAIN = ("fig2_per_token_loss", "fig3_forget_gates", "fig4_needle", "table1_lm_eval", "table2_longbench", "table6_throughput")
"""What `run` makes when no artefact is named: the paper's main experiments, whose runs are shared."""


@cache
def artefacts() -> dict[str, Artefact]:
    """All artefacts by stem: folder by folder, figures first, in the paper's order."""
    return {stem: _read(folder, stem) for folder in FOLDERS for stem in sorted(_stems(folder), key=_order)}


def _read(folder: str, stem: str) -> Artefact:
    module = importlib.import_module(f"experiments.{folder}.{stem}")

    def as_table(study: Study) -> list[Path]:
        return write_table(module.summary(study), study.folder / "tables" / study.stem)

    return Artefact(
        stem, folder, module.TITLE, module.PAPER, module.SHOWS, module.runs, module.evals, module.summary,
        getattr(module, "draw", as_table), getattr(module, "CLAIMS", ()), getattr(module, "LOOKS", {}),
    )  # fmt: skip


def claims() -> dict[str, Claim]:
    """All claims of the papers that are judged, by id. ValueError for an id that two have."""
    found: dict[str, Claim] = {}
    for artefact in artefacts().values():
        for claim in artefact.claims:
            if claim.id in found:
                raise ValueError(f"claim {claim.id} of {artefact.stem} is declared twice; give it an id of its own.")
            found[claim.id] = claim
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
