"""Beyond the papers: Recall, by how the gates start.

FoX (Pro) on the recall task of `mqar`, compared with Transformer (Pro): with gates that start near one half, as in the paper,
and with gates that start with decay times up to the length of a sequence. A gate of one half leaves a billionth of a key's
weight after thirty tokens: gates must open before the model can learn to recall it. Not in the paper."""

from dataclasses import replace

import pandas as pd

from analysis.names import style_of
from analysis.study import Study
from analysis.style import Files
from analysis.tables import Table
from beyond.figures import mqar
from experiments.evaluations import key_recall as evals  # noqa: F401
from experiments.recipes import Changes, recipes
from experiments.scales import sizes_at
from experiments.stick_breaking import stick_recall

STARTS = {
    None: "gates near 0.5, as in the paper",
    "spread": "decay times from 2 tokens to all",
    "long": "decay times of all tokens",
}
"""Initial values of the gates: their names in AXES and in the figure."""
AXES = stick_recall.AXES | {"start": tuple(STARTS)}


def starts_for(seq_len: int) -> dict[str, Changes]:
    """Return what the starts but the paper's change in a model's spec, by name, for sequences of this length."""
    length = float(seq_len)
    return {
        name: dict(decay_time_min=shortest, decay_time_max=length) for name, shortest in (("spread", 2.0), ("long", length))
    }


def runs(scale, seeds):
    grid = sizes_at(scale, stick_recall.SIZES, stick_recall.__name__)
    for num_keys in sizes_at(scale, mqar.SIZES, mqar.__name__):
        task = mqar.task_of(num_keys, grid)
        for how in grid.trainings(task):
            yield from recipes(scale, ("transformer_pro", "fox_pro"), seeds, model=grid.attention(), **how)
            for start, changes in starts_for(task.seq_len).items():
                own = dict(axes=how["axes"] | dict(start=start), label=f"{how['label']}, {STARTS[start]}")
                yield from recipes(scale, "fox_pro", seeds, model=grid.attention() | changes, **how | own)


def answers(study: Study) -> pd.DataFrame:
    """Return the rows of `mqar`, with the start of the gates as the name of FoX."""
    rows = mqar.answers(study)
    starts = rows["start"] if "start" in rows else pd.Series(None, rows.index)
    names = [STARTS[None if pd.isna(start) else start] for start in starts]
    return rows.assign(model=[name if model == "fox_pro" else model for model, name in zip(rows["model"], names, strict=True)])


def draw(study: Study) -> Files:
    rows, fox = answers(study), style_of("fox_pro")
    styles = {name: replace(fox, label=f"{fox.label}, {name}") for name in STARTS.values()}
    styles = {"transformer_pro": style_of("transformer_pro"), **styles}
    return mqar.draw_bars(study, rows, {name: styles[name] for name in styles if name in set(rows["model"])})


def summary(study: Study) -> Table:
    rows, fox = answers(study), style_of("fox_pro").label
    names = {"transformer_pro": "transformer_pro", **{name: f"{fox}, {name}" for name in STARTS.values()}}
    return mqar.table_of(study, rows, {name: names[name] for name in names if name in set(rows["model"])})
