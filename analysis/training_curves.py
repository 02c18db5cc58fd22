"""Training losses as they were logged, step by step."""

from dataclasses import dataclass

import numpy as np
import pandas as pd

from analysis.names import rank
from analysis.study import Axes, Line, Series, Study
from analysis.style import about
from analysis.tables import Cell, Column, Table, over_seeds

KIND = "training_curve"
SMOOTHED_SHARE = 0.02
LAST_SHARE = 0.02
MAX_POINTS = 1000


@dataclass(frozen=True)
class Training:
    """Logged steps of one series: `tokens` (N,), `loss_SN`, and every seed's median tokens per second and MFU."""

    label: str
    axes: Axes
    model: str
    tokens: np.ndarray
    loss_SN: np.ndarray
    tokens_per_s: np.ndarray
    mfu: np.ndarray

    @property
    def smoothed_SN(self) -> np.ndarray:
        """Mean loss of the last SMOOTHED_SHARE of the steps at every step."""
        window = max(1, round(SMOOTHED_SHARE * len(self.tokens)))
        return np.stack([smooth_backwards(loss_N, window) for loss_N in self.loss_SN])

    def shown(self, share: float) -> np.ndarray:
        """Return the steps to draw: at most MAX_POINTS evenly spaced ones, without those in the first `share` of the tokens."""
        steps = np.unique(np.linspace(0, len(self.tokens) - 1, MAX_POINTS).astype(int))
        return steps[self.tokens[steps] >= share * self.tokens[-1]]


def trainings(study: Study) -> list[Training]:
    """Return the trainings in the paper's order of models. ValueError: none stored, or seeds that logged other steps."""
    groups: dict[Series, list[tuple[Line, pd.DataFrame]]] = {}
    for line, rows, _ in study.evaluations(KIND, "training curves"):
        groups.setdefault(line.series, []).append((line, rows.sort_values("step")))
    found = []
    for group in groups.values():
        line, runs = group[0][0], [rows for _, rows in group]
        tokens = runs[0]["tokens"].to_numpy(float)
        if any(len(rows) != len(tokens) or (rows["tokens"].to_numpy() != tokens).any() for rows in runs):
            raise ValueError(f"{study.stem}: the seeds of {line.label} logged different steps")
        loss_SN = np.stack([rows["loss"].to_numpy(float) for rows in runs])
        speeds, mfus = (np.array([rows[name].median() for rows in runs], float) for name in ("tokens_per_s", "mfu"))
        found.append(Training(line.label, line.axes, line.model, tokens, loss_SN, speeds, mfus))
    return sorted(found, key=lambda training: rank(training.model))


def smooth_backwards(loss_N: np.ndarray, window: int) -> np.ndarray:
    """Mean of the last `window` steps, of fewer at the start; steps that were not applied (NaN) are left out."""
    applied = np.isfinite(loss_N)
    sums = np.concatenate([[0.0], np.cumsum(np.where(applied, loss_N, 0.0))])
    counts = np.concatenate([[0], np.cumsum(applied)])
    ends = np.arange(1, len(loss_N) + 1)
    starts = np.maximum(ends - window, 0)
    return (sums[ends] - sums[starts]) / np.maximum(counts[ends] - counts[starts], 1)


def summary(study: Study) -> Table:
    """Training loss at the end; median speed and share of the GPU's peak, of the seed that had most of its GPU to itself."""
    columns = [
        Column("final_loss", f"training loss, last {LAST_SHARE:.0%} (nats)", 3, "lower"),
        Column("tokens_per_s", "median tokens/s, fastest seed", 0, "higher"),
        Column("mfu_percent", "median MFU, executed, fastest seed (%)", 1, "higher"),
    ]
    values: dict[str, list[Cell]] = {}
    for training in trainings(study):
        last = max(1, round(LAST_SHARE * len(training.tokens)))
        mfu = 100 * training.mfu
        values[training.label] = [
            np.nanmean(training.loss_SN[:, -last:], axis=1),
            training.tokens_per_s.max(keepdims=True),
            mfu.max(keepdims=True) if np.isfinite(mfu).all() else None,
        ]
    if all(cells[-1] is None for cells in values.values()):
        columns, values = columns[:-1], {label: cells[:-1] for label, cells in values.items()}
    note = f"{about(study)} Trainings may have shared a GPU."
    return over_seeds("Training", columns, values, note)
