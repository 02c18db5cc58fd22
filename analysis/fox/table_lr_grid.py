"""The learning rates tried for every model: held-out perplexity at the training length, or the final training loss."""

from pathlib import Path

import numpy as np

from analysis.curves import LossCurve, log_perplexity, loss_curves
from analysis.names import ordered, title
from analysis.study import Study
from analysis.style import scale_note, tokens
from analysis.tables import Cell, Column, Table, over_seeds, write_table

Grid = dict[str, dict[float, list[float]]]  # model -> learning rate -> a value per seed


def grid(study: Study) -> tuple[Grid, str]:
    """The values, and what they are: perplexity where every run has been evaluated, else the final training loss."""
    perplexities: Grid = {}
    for curve in loss_curves(study):
        values = np.exp(log_perplexity(curve.losses_SN)[:, min(curve.train_len, curve.length) - 1])
        for run_id, value in zip(curve.run_ids, values, strict=True):
            _put(perplexities, curve.model, _rate(study, run_id), float(value))
    evaluated = {run_id for curve in loss_curves(study) for run_id in curve.run_ids}
    if evaluated == {line.run_id for line in study.lines}:
        return perplexities, f"held-out perplexity P({tokens(study.train_len)})"
    losses: Grid = {}
    for line in study.lines:
        final = study.runs[line.run_id].get("final_loss")
        if final is not None:
            _put(losses, line.model, _rate(study, line.run_id), float(final))
    if not losses:
        raise ValueError(f"{study.stem}: no run has ended; run its experiment first")
    return losses, "final training loss (nats)"


def by_rate(study: Study) -> dict[str, dict[float, LossCurve]]:
    """Held-out losses by model and learning rate."""
    found: dict[str, dict[float, LossCurve]] = {}
    for curve in loss_curves(study):
        found.setdefault(curve.model, {})[_rate(study, curve.run_ids[0])] = curve
    return found


def mean_loss(curve: LossCurve) -> float:
    """Inside the training context, over all seeds."""
    return float(curve.mean_N[: curve.train_len].mean())


def best_of(rates: dict[float, LossCurve]) -> float:
    return min(rates, key=lambda rate: mean_loss(rates[rate]))


def _put(values: Grid, model: str, rate: float, value: float) -> None:
    values.setdefault(model, {}).setdefault(rate, []).append(value)


def _rate(study: Study, run_id: str) -> float:
    return float(study.spec(run_id)["train"]["peak_lr"])


def summary(study: Study) -> Table:
    """A line per learning rate, a column per model; best bold. The note names models whose best rate is at the grid's edge."""
    values, what = grid(study)
    models = ordered(values)
    rates = sorted({rate for by_rate in values.values() for rate in by_rate})
    cells: dict[str, list[Cell]] = {}
    for rate in rates:
        found = [values[model].get(rate) for model in models]
        cells[f"LR {rate:g}"] = [None if each is None else np.array(each) for each in found]
    best = {model: min(by_rate, key=lambda rate: float(np.mean(by_rate[rate]))) for model, by_rate in values.items()}
    edges = [title(m) for m in models if len(values[m]) > 2 and best[m] in (min(values[m]), max(values[m]))]
    note = f"{scale_note(study).capitalize()}. Corpus: {study.corpora}. Best of each model bold."
    note += f" Best at the edge of what was tried: {', '.join(edges)}." if edges else ""
    columns = [Column(model, title(model), 3, "lower") for model in models]
    return over_seeds(f"Learning rates: {what}", columns, cells, note)


def draw(study: Study) -> list[Path]:
    """Write tables/STEM.{md,tex,csv}."""
    return write_table(summary(study), study.folder / "tables" / study.stem)
