"""Beyond the papers: Last losses.

One bar per model: the loss of its last training step.
"""

from pathlib import Path

from analysis.names import title
from analysis.study import Study
from analysis.style import plt, publish
from analysis.tables import Column, Table, over_seeds
from eval.last_loss.spec import Spec
from experiments.recipes import recipes


def runs(scale, seeds):
    yield from recipes(scale, "fox_llama", seeds)


def evals(scale):
    return (Spec(),)


def draw(study: Study) -> list[Path]:
    """Write figures/STEM.{png,pdf,csv}."""
    rows = study.stored("last_loss", "last losses")
    figure, axes = plt.subplots()
    axes.bar([title(label) for label in rows["label"]], rows["loss"])
    axes.set(ylabel="loss (nats)")
    return publish(study, figure, rows)


def summary(study: Study) -> Table:
    """Return the table of the report."""
    rows = study.stored("last_loss", "last losses")
    losses = {title(str(label)): [own["loss"].to_numpy()] for label, own in rows.groupby("label")}
    return over_seeds("Last losses", [Column("loss", "nats", 3, "lower")], losses, "")
