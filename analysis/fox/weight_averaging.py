"""Averaging the last weights: held-out loss inside the training context, and by how much the mean of weights changes it."""

from pathlib import Path

from analysis.curves import LossCurve, compare, loss_curves
from analysis.names import title
from analysis.statistics import Estimate
from analysis.study import Study
from analysis.style import scale_note, tokens
from analysis.tables import Column, Table, write_table

LAST = "last weights"


def summary(study: Study) -> Table:
    """A line per model and weights; the change is the mean's loss minus that of the last weights of the same model, with its
    95% interval. ValueError: no run is stored."""
    curves = loss_curves(study)
    if not curves:
        raise ValueError(f"{study.stem}: no runs are stored; run its experiment first")
    last = {curve.model: curve for curve in curves if curve.label == LAST}
    models = list(dict.fromkeys(curve.model for curve in curves))
    rows: dict[str, list[float | None]] = {}
    ranges: dict[str, list[tuple[float, float] | None]] = {}
    for curve in sorted(curves, key=lambda curve: models.index(curve.model)):
        change = _change(curve, last.get(curve.model))
        label = f"{title(curve.model)}, {curve.label}"
        rows[label] = [float(curve.mean_N[: curve.train_len].mean()), change.effect if change else None, len(curve.seeds)]
        ranges[label] = [None, change.interval if change else None, None]
    columns = [Column("loss", "mean loss (nats)", 4), Column("change", "change (nats)", 4, style="signed")]
    note = f"{scale_note(study).capitalize()}. Corpus: {study.corpora}."
    note += " In square brackets: 95% intervals, of one seed over documents."
    caption = f"Held-out loss over {tokens(study.train_len)} tokens, by the weights that are evaluated"
    return Table(caption, [*columns, Column("seeds", "seeds", 0)], rows, note, ranges=ranges)


def _change(curve: LossCurve, last: LossCurve | None) -> Estimate | None:
    if last is None or last is curve:
        return None
    whole = 1, curve.train_len
    return compare((1.0, curve, *whole), (-1.0, last, *whole))


def draw(study: Study) -> list[Path]:
    """Write tables/STEM.{md,tex,csv}."""
    return write_table(summary(study), study.folder / "tables" / study.stem)
