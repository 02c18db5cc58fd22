"""Training losses as they were logged, step by step, and training speeds as they were timed on one machine."""

from dataclasses import dataclass

import numpy as np
import pandas as pd

from analysis.names import rank
from analysis.seeds import Measured
from analysis.study import Study
from analysis.style import about
from analysis.tables import Cell, Column, Table, over_seeds

KIND, SPEED = "training_curve", "throughput"
SMOOTHED_SHARE = 0.02
LAST_SHARE = 0.02
MAX_POINTS = 1000


@dataclass(frozen=True, eq=False, kw_only=True)
class Training(Measured):
    """Logged steps of one series: `tokens` (N,), `loss_SN`, and every seed's median tokens per second and MFU."""

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
    """Return the trainings in the paper's order of models. ValueError if none are stored, or seeds logged different steps."""
    found = []
    for group in study.by_series(KIND, "training curves"):
        runs = [rows.sort_values("step") for _, rows, _ in group]
        line, _, meta = group[0]
        tokens = runs[0]["tokens"].to_numpy(float)
        if not all(np.array_equal(rows["tokens"], tokens) for rows in runs):
            raise ValueError(f"{study.stem}: the seeds of {line.label} logged different steps")
        loss_SN = np.stack([rows["loss"].to_numpy(float) for rows in runs])
        speeds, mfus = (np.array([rows[name].median() for rows in runs], float) for name in ("tokens_per_s", "mfu"))
        found.append(Training(**study.measured(line, meta), tokens=tokens, loss_SN=loss_SN, tokens_per_s=speeds, mfu=mfus))
    return sorted(found, key=lambda training: rank(training.model))


def smooth_backwards(loss_N: np.ndarray, window: int) -> np.ndarray:
    """Return the mean of the last `window` steps, of fewer at the start, without skipped steps (NaN)."""
    return pd.Series(loss_N).rolling(window, min_periods=1).mean().to_numpy()


def summary(study: Study) -> Table:
    """Tabulate the training loss at the end, and the median speed and MFU of the fastest seed, which shared its GPU least."""
    found = trainings(study)
    columns = [
        Column("final_loss", f"training loss, last {LAST_SHARE:.0%} (nats)", 3),
        Column("tokens_per_s", "median tokens/s, fastest seed", 0, "higher"),
    ]
    if any(np.isfinite(each.mfu).all() for each in found):
        columns.append(Column("mfu_percent", "median MFU, executed, fastest seed (%)", 1, "higher"))
    values: dict[str, list[Cell]] = {}
    for each in found:
        last_SN = each.loss_SN[:, -max(1, round(LAST_SHARE * len(each.tokens))) :]
        mfu = 100 * float(each.mfu.max()) if np.isfinite(each.mfu).all() else None
        cells: list[Cell] = [np.nanmean(last_SN, axis=1), float(each.tokens_per_s.max()), mfu]
        values[each.label] = cells[: len(columns)]
    note = f"{about(study)} Trainings may have shared a GPU."
    return over_seeds("Training", columns, values, note)


def measured(study: Study, subject: str) -> pd.DataFrame:
    """Return training speeds, one row per label, in the paper's order of models: those on the machine and at the length at
    which most labels were timed, or the newest of equals. `triton`: its version. If `subject`, the model of the figure, was
    timed with the step of training runs, only rows with that step are used: the evaluation's earlier own step was slower, and
    not equally for all models. ValueError if there are none."""
    wanted = {"mode": "train", "step": "stepper"}
    if all(line.model != subject for line, _, _ in study.evaluations(SPEED, **wanted)):
        wanted = {"mode": "train"}
    rows = study.stored(SPEED, "training speeds", **wanted)
    found = study.evaluations(SPEED, **wanted)
    dates = sorted((meta["created"], meta["eval_id"]) for _, _, meta in found)
    tritons = {(line.run_id, meta["eval_id"]): meta["provenance"]["versions"].get("triton", "?") for line, _, meta in found}
    rows["triton"] = [tritons[key] for key in zip(rows["run_id"], rows["eval_id"], strict=True)]
    newest = {eval_id: date for date, eval_id in dates}

    def timed(alike: pd.DataFrame) -> tuple[int, str]:
        return alike["label"].nunique(), alike["eval_id"].map(newest).max()

    alike = max((own for _, own in rows.groupby(["machine", "seq_len"])), key=timed)
    return alike.drop_duplicates("label", ignore_index=True)  # a fresh model's speed does not depend on the seed
