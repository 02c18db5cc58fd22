"""Prediction of one more seed: the interval in which a number of another training lies, from the known noise between seeds.

Given k stored trainings with mean m and a variance v between seeds with `df` degrees of freedom, one more training lies in

    m +- t(df) sqrt(v (1 + 1 / k))

in 95% of cases. v is the variance that verdicts use: a series' own from three seeds on, else pooled (analysis/seeds.py).
Documents, needles and so on are the same in all trainings and add no noise."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd

from analysis.seeds import Repeated, noise_of
from analysis.statistics import LEVEL, OWN, Noise, own_noise
from analysis.student import below, quantile


def numbers(kind: str, rows: pd.DataFrame, train_len: int) -> dict[str, float]:
    """Return the numbers by which rows of an evaluation are compared; none for kinds that do not measure trained quality."""
    if kind == "per_token_loss":
        document, position, width, loss = (rows[name].to_numpy() for name in ("document", "position", "width", "loss"))
        mean, inside = document < 0, position <= train_len
        parts = {"loss in the training context": mean & inside, "loss beyond it": mean & ~inside}
        return {name: float(np.average(loss[part], weights=width[part])) for name, part in parts.items() if part.any()}
    if kind == "training_curve":
        return {"training loss, last tenth": float(rows["loss"][rows["step"] > 0.9 * rows["step"].max()].mean())}
    if kind == "recall":
        return {"found (%)": 100 * float(rows["num_correct"].sum() / rows["num_queries"].sum())}
    if kind == "lm_eval":
        accuracies = rows[~rows["metric"].str.contains("perplexity")].groupby("metric")["value"]
        return {f"{metric}, mean of tasks (%)": float(values.mean()) for metric, values in accuracies}
    column = {"needle": "score", "needle_recall": "recall_nats", "longbench": "score", "ruler": "value"}.get(kind)
    mode = f", {rows['mode'].iloc[0]}" if "mode" in rows else ""
    return {f"{column}{mode}": float(rows[column].mean())} if column else {}


@dataclass(frozen=True)
class Predicted:
    """`stored`: a number of each stored training of a series; `noise`: between seeds, None if it is not known."""

    stored: tuple[float, ...]
    noise: Noise | None

    @property
    def mean(self) -> float:
        return float(np.mean(self.stored))

    @property
    def _error(self) -> float:
        return float(np.sqrt(self.noise.variance * (1 + 1 / len(self.stored)))) if self.noise else np.nan

    @property
    def band(self) -> tuple[float, float] | None:
        """Ends of the 95% prediction interval of one more training; None if seeds' noise is not known."""
        if self.noise is None:
            return None
        half = quantile(self.noise.df, (1 + LEVEL) / 2) * self._error
        return self.mean - half, self.mean + half

    def p(self, value: float) -> float:
        """Return the probability that one more training lies as far from the mean as `value` or farther; 0 for a value that is
        not finite, 1 without a band."""
        if not np.isfinite(value):
            return 0.0
        return 1.0 if self.noise is None else 2 * below(self.noise.df, -abs(value - self.mean) / self._error)


def predict(
    name: str, kind: str, stored: tuple[float, ...], repeats: Sequence[Repeated], scale: tuple[str, str], family: str,
    train_tokens: int,
) -> Predicted:  # fmt: skip
    """Predict the number `name` of one more training at a `scale` of a size. A spread of 0 (e.g. scores at their floor) is not
    used as an estimate of the noise."""

    def functional(other: Repeated) -> np.ndarray:
        return np.array([numbers(kind, rows, other.train_len).get(name, np.nan) for rows in other.rows])

    own = own_noise(np.array(stored)) if len(stored) >= OWN else None
    noise = own if own is not None and own.variance > 0 else noise_of(repeats, *scale, family, train_tokens, functional)
    return Predicted(stored, noise if noise is not None and noise.variance > 0 else None)
