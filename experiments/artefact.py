"""What an experiment file declares, and where the files are found."""

import importlib
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from eval.sources import Sources
from eval.spec import EvalSpec
from experiments.scales import Scale


@dataclass(frozen=True)
class Options:
    """What a user may bring to the evaluations: texts, data sets, a judge."""

    sources: Sources = field(default_factory=Sources)
    judge_model: str | None = None


@dataclass(frozen=True)
class Artefact:
    """One figure or table: which models are trained, how each is evaluated, which claims it bears on.

    It is drawn by `render` of the file with the same stem in analysis/; `evals(scale, options)` are of one kind.
    """

    title: str
    paper: str
    models: tuple[str, ...]
    evals: Callable[[Scale, Options], tuple[EvalSpec, ...]]
    claims: tuple[str, ...] = ()


def artefact_names() -> list[str]:
    """Stems of the experiment files, figures first, in the paper's order."""
    stems = [path.stem for path in Path(__file__).parent.glob("*.py") if re.match(r"(fig|table)\d", path.stem)]
    return sorted(stems, key=lambda stem: (stem.startswith("table"), int(re.findall(r"\d+", stem)[0]), stem))


def load_artefact(name: str) -> Artefact:
    if name not in artefact_names():
        raise ValueError(f"{name}: no such figure or table; choose from {', '.join(artefact_names())}.")
    return importlib.import_module(f"experiments.{name}").ARTEFACT
