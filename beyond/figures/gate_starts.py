"""Beyond the papers: Language models, by how the gates start.

FoX with gates that start near one half, as in the paper, and with decay times of up to as many tokens as the training context
has. With the paper's start small models of FoX (Pro) do not learn to recall many keys, with the others they do
(`mqar_gates`). Does the start change the loss on text, too, or how often a word is found again? Trained on the tokens of the
ablations. Not in the papers."""

from dataclasses import dataclass
from itertools import product

from analysis.curves import LossCurve, difference, loss_curves
from analysis.names import style_of
from analysis.statistics import Estimate
from analysis.study import Study
from analysis.style import about, tokens
from analysis.tables import Cell, Column, Table, over_seeds
from beyond.figures import last_words
from beyond.figures.mqar_gates import STARTS, starts_for
from experiments import evaluations
from experiments.recipes import recipes
from experiments.scales import for_ablations

MODELS = ("fox_pro", "fox_llama")
AXES = {"start": tuple(STARTS)}
Key = tuple[str, str | None]
"""A model and the start of its gates, None for the paper's."""


def runs(scale, seeds):
    at = for_ablations(scale)
    for model in MODELS:
        yield from recipes(at, model, seeds)
        for start, changes in starts_for(at.seq_len).items():
            yield from recipes(at, model, seeds, axes=dict(start=start), label=f"{model}, {STARTS[start]}", model=changes)


def evals(scale):
    """Losses, and the words at the end of passages that hold them."""
    return evaluations.loss(scale) + last_words.evals(scale)


def _key(each: LossCurve | last_words.Words) -> Key:
    return each.model, each.axes.get("start")


@dataclass(frozen=True)
class Started:
    """One model with one start of its gates: its losses and, where these were evaluated, its last words; `paper` is the same
    model with the paper's start, None for that itself and if it is not stored."""

    name: str
    curve: LossCurve
    words: last_words.Words | None
    paper: "Started | None" = None

    def above(self, first: int = 1, last: int | None = None) -> Estimate | None:
        """Return the mean loss at these positions above that with the paper's start (nats)."""
        return difference(self.curve, self.paper.curve, first, last) if self.paper else None

    @property
    def more_right(self) -> Estimate | None:
        """Words found more often than with the paper's start (percentage points)."""
        if self.paper is None or self.words is None or self.paper.words is None:
            return None
        return last_words.compare("right", (1.0, self.words), (-1.0, self.paper.words))


def by_start(study: Study) -> dict[Key, Started]:
    """Return what is stored by model and start, the paper's start first."""
    curves = {_key(curve): curve for curve in loss_curves(study)}
    words = {_key(each): each for each in last_words.by_line(study)}
    found: dict[Key, Started] = {}
    for model, start in product(MODELS, STARTS):
        if (model, start) in curves:
            name, paper = f"{style_of(model).label}, {STARTS[start]}", found.get((model, None))
            found[model, start] = Started(name, curves[model, start], words.get((model, start)), paper)
    return found


def summary(study: Study) -> Table:
    """Tabulate losses and last words by model and start, each also relative to the paper's start."""
    context = tokens(study.train_len)
    columns = [
        Column("loss", f"mean loss, first {context} (nats)", 3, "lower"),
        Column("above", "above the paper's start", 3, style="signed"),
        Column("above_beyond", f"beyond {context}, above the paper's start", 3, style="signed"),
        Column("right", "last words right (%)", 1, "higher"),
        Column("more_right", "more than with the paper's start (points)", 1, style="signed"),
    ]
    cells: dict[str, list[Cell]] = {}
    for each in by_start(study).values():
        right = last_words.compare("right", (1.0, each.words)) if each.words else None
        curve, beyond = each.curve, each.above(each.curve.train_len + 1, each.curve.length)
        cells[each.name] = [curve.log_p(curve.train_len), each.above(), beyond, right, each.more_right]
    note = f"{about(study)} In square brackets: 95% intervals over documents by source, or passages, and seeds."
    return over_seeds("Language models by how their gates start", columns, cells, note)
