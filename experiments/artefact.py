"""Artefacts, that is figures and tables: one file each in the folder of its paper, found by listing the folders."""

import difflib
import importlib
import re
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field
from functools import cache, lru_cache
from pathlib import Path
from types import UnionType

from analysis.study import Series, Study
from analysis.tables import Table, write_table
from analysis.verdict import Claim, Look
from eval.runner.spec import EvalSpec
from experiments.recipes import Recipe
from experiments.scales import Scale

ROOT = Path(__file__).parents[1]
FOLDERS = {
    "experiments/fox": "Forgetting Transformer", "experiments/acp": "Adaptive computation pruning",
    "experiments/stick_breaking": "Stick-breaking attention", "beyond/figures": "Beyond the papers",
}  # fmt: skip
"""Folders of figures, with their titles: one per paper, and one, if it is there, for figures that are in no paper."""


@dataclass(frozen=True)
class Artefact:
    """A figure or table as declared by its file, STEM.py in one of FOLDERS. The file's docstring has the form `paper`: `title`,
    and below it what the artefact `shows`.

    `runs(scale, seeds)`: the recipes it needs; `evals(scale)`: how each run is evaluated; `summary(study)`: its numbers as a
    table, which is drawn if there is no `draw(study)`. `axes`: the axes that it can draw, each with its known values or their
    type; None is the value for a line without the axis. `more(scale, seeds, models)`: the recipes of `--also`, if its lines are
    not plain models at the scale. `pictured`: it has its own `draw`."""

    stem: str
    folder: str
    title: str
    paper: str
    shows: str
    runs: Callable[[Scale, tuple[int, ...]], Iterable[Recipe]]
    evals: Callable[[Scale], tuple[EvalSpec, ...]]
    summary: Callable[[Study], Table]
    draw: Callable[[Study], list[Path]]
    claims: tuple[Claim, ...] = ()
    looks: Mapping[str, Look] = field(default_factory=dict)
    axes: Mapping[str, Collection[object] | type | UnionType] = field(default_factory=dict)
    more: Callable[[Scale, tuple[int, ...], Collection[str]], Iterable[Recipe]] | None = None
    pictured: bool = False

    def recipes(self, scale: Scale, seeds: tuple[int, ...], also: Collection[str]) -> list[Recipe]:
        """Return the declared recipes and, if lines are models, those of the models in `also`."""
        found = list(self.runs(scale, seeds))
        if self.more:
            more = list(self.more(scale, seeds, also))
        else:
            plain = [recipe for recipe in found if recipe == Recipe(recipe.name, recipe.name, recipe.scale, recipe.seed)]
            places = dict.fromkeys((recipe.scale, recipe.seed) for recipe in plain if len(plain) == len(found))
            more = [Recipe(name, name, *place) for place in places for name in also]
        return found + [recipe for recipe in more if recipe not in found]

    def check(self, recipes: Iterable[Recipe]) -> None:
        """Raise ValueError for a line that this artefact cannot draw, or cannot tell from another."""
        file = f"{self.folder}/{self.stem}.py"
        labels: dict[Series, str] = {}
        for recipe in recipes:
            line = f"{self.stem} cannot draw its line {recipe.label!r} of {recipe.name}"
            for axis in {**self.axes, **recipe.axes}:
                value, known = recipe.axes.get(axis), self.axes.get(axis, ())
                if not (value in known if isinstance(known, Collection) else isinstance(value, known)):
                    has = f"no {axis}" if value is None else f"{axis} = {value!r}"
                    values = ", ".join(map(str, known)) if isinstance(known, Collection) else getattr(known, "__name__", known)
                    remedy = f"Add it to AXES and draw in {file}, or leave the line out of runs there."
                    raise ValueError(f"{line}: it has {has}, but the figure knows {values or 'no such axis'}. {remedy}")
            if labels.setdefault(recipe.series, recipe.label) != recipe.label:
                raise ValueError(f"{line}: {labels[recipe.series]!r} has the same axes. Give it others in runs in {file}.")
        for (label, model, _), count in Counter((label, *series[1:]) for series, label in labels.items()).items():
            if count > 1:
                remedy = f"Name each its own way in runs in {file}."
                raise ValueError(f"{self.stem} has several lines {label!r} of {model}. {remedy}")


DECLARED = ("runs", "evals", "summary")
"""Names that every artefact's file declares."""
OPTIONAL = ("draw", "more", "CLAIMS", "LOOKS", "AXES")
"""Names that it may declare."""
MAIN = ("fig2_per_token_loss", "fig3_forget_gates", "fig4_needle", "table1_lm_eval", "table2_longbench", "table6_throughput")
"""Artefacts that `run` makes when none is named: the paper's main experiments, whose runs are shared."""


@cache
def artefacts() -> dict[str, Artefact]:
    """All artefacts by stem: folder by folder, figures first, in the paper's order. Among those without a number, pictures
    without claims come last."""
    files = ((folder, path.stem) for folder in FOLDERS for path in (ROOT / folder).glob("[!_]*.py"))
    return {each.stem: each for each in sorted((_read(*file) for file in files), key=_order)}


def _read(folder: str, stem: str) -> Artefact:
    module, file = importlib.import_module(f"{folder}.{stem}".replace("/", ".")), f"{folder}/{stem}.py"
    absent = [name for name in DECLARED if not hasattr(module, name)]
    if absent:
        raise ValueError(f"{file} has no {', '.join(absent)}: every figure and table must declare it.")
    heading, _, shows = (module.__doc__ or "").partition("\n\n")
    paper, _, title = heading.removesuffix(".").rpartition(": ")
    if not (paper and shows):
        raise ValueError(f"{file}: its docstring is not `PAPER: TITLE.`, an empty line, and what it shows.")

    def as_table(study: Study) -> list[Path]:
        return write_table(summary(study), study.folder / "tables" / study.stem)

    summary = lru_cache(maxsize=4)(module.summary)  # used by the report, the pages and the drawing
    parts = {name.lower(): getattr(module, name) for name in (*DECLARED, *OPTIONAL) if hasattr(module, name)}
    parts |= {"draw": parts.get("draw", as_table), "summary": summary, "pictured": "draw" in parts}
    return Artefact(stem, folder, title, paper, " ".join(shows.split()), **parts)


def claims() -> dict[str, Claim]:
    """All claims of the papers that are judged, by id. ValueError if two have the same id."""
    found: dict[str, Claim] = {}
    for artefact in artefacts().values():
        for claim in artefact.claims:
            if claim.id in found:
                raise ValueError(f"claim {claim.id} of {artefact.stem} is declared twice; give it an id of its own.")
            found[claim.id] = claim
    return found


def chosen(names: Iterable[str]) -> dict[str, Artefact]:
    """Return the artefacts with these names or unique prefixes of names; "all" means every artefact, no name the main ones.
    ValueError for a name that matches none or several."""
    known = artefacts()
    stems = {stem for name in names for stem in (known if name == "all" else [_meant(name, known)])}
    return {stem: artefact for stem, artefact in known.items() if stem in stems or (not stems and stem in MAIN)}


def _meant(name: str, known: Collection[str]) -> str:
    """Return the name itself, or the only known name that begins with it. ValueError suggests similar names."""
    begin = [stem for stem in known if stem.startswith(name)]
    if name in known or len(begin) == 1:
        return name if name in known else begin[0]
    if begin:
        raise ValueError(f"{name}: several figures and tables begin with it: {', '.join(begin)}.")
    parts = [part for stem in known for part in (stem, *stem.split("_", 1))]
    near = [stem for part in difflib.get_close_matches(name, parts) for stem in known if part in stem]
    choose = f"choose from {', '.join(known)}, or all."
    meant = f"did you mean {' or '.join(list(dict.fromkeys(near))[:3])}?" if near else choose
    raise ValueError(f"{name}: no such figure or table; {meant}")


def _order(artefact: Artefact) -> tuple[int, int, int, bool, str]:
    paper = artefact.paper
    kind = next(place for place, begin in enumerate(("Figure ", "Table ", "Appendix ", "")) if paper.startswith(begin))
    number = re.search(r"\d+", paper) if kind < 3 else None
    bare = number is None and artefact.pictured and not artefact.claims
    return list(FOLDERS).index(artefact.folder), kind, int(number.group()) if number else 0, bare, artefact.stem
