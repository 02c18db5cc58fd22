"""Reading stored rows: what the artefacts ask of every table of rows and its meta."""

from typing import Any

import numpy as np
import pandas as pd

from analysis.names import ordered

Meta = dict[str, Any]


def train_seq_len(meta: Meta) -> int:
    """Training context length of the runs behind a result, in tokens. ValueError if unknown or not one and the same."""
    lengths = set()
    for run in meta.get("runs", {}).values():
        spec = run.get("spec") or {}
        length = run.get("train_seq_len") or spec.get("train", {}).get("seq_len")
        if length:
            lengths.add(int(length))
    for evaluation in meta.get("evals", {}).values():
        for made in evaluation.get("runs", {}).values():
            if made.get("extras", {}).get("train_seq_len"):
                lengths.add(int(made["extras"]["train_seq_len"]))
    if len(lengths) != 1:
        found = ", ".join(map(str, sorted(lengths))) or "none"
        raise ValueError(f"one training context length is needed to draw this; the runs' meta give: {found}")
    return lengths.pop()


def corpus_names(meta: Meta) -> str:
    """What the runs behind a result were trained on, as "stdlib, bpe-512"; empty if their meta does not tell."""
    specs = (run.get("spec") or {} for run in meta.get("runs", {}).values())
    names = {f"{spec['data']['source']}, {spec['data']['tokenizer']}" for spec in specs if "data" in spec}
    return "; ".join(sorted(names))


def one_evaluation_each(rows: pd.DataFrame, key: list[str]) -> None:
    """ValueError if one run has several values for a key: two evaluations (say, of other sizes) would be mixed."""
    twice = rows[rows.duplicated(["run_id", *key])]
    if len(twice):
        run = twice["run_id"].iloc[0]
        found = ", ".join(sorted(set(rows.loc[rows["run_id"] == run, "eval_id"])))
        raise ValueError(f"run {run} has several evaluations of the same thing ({found}); gather one of them")


def loss_curves(rows: pd.DataFrame) -> dict[str, np.ndarray]:
    """L(i) of each model, i = 1..N at index i - 1, mean over its runs (seeds), in the paper's order of models.

    ValueError if positions are missing or the curves have several lengths.
    """
    one_evaluation_each(rows, ["position"])
    curves = {}
    for model in ordered(rows["model"].unique()):
        table = rows[rows["model"] == model].pivot(index="position", columns="run_id", values="loss")
        counts = rows.loc[rows["model"] == model, "run_id"].value_counts()
        if table.index[0] != 1 or table.index[-1] != len(table) or not (counts == len(table)).all():
            raise ValueError(f"{model}: per-token losses have gaps; positions 1 to {table.index[-1]} are needed, for every run")
        curves[model] = table.to_numpy().mean(axis=1)
    if len({len(curve) for curve in curves.values()}) != 1:
        lengths = {model: len(curve) for model, curve in curves.items()}
        raise ValueError(f"per-token losses have several lengths: {lengths}; evaluate all models at one length")
    return curves


def smooth(values: np.ndarray, window: int) -> np.ndarray:
    """Centred moving average over `window` (odd) positions, truncated at both ends (section 4); NaN where one is not finite."""
    if window < 1 or window % 2 == 0:
        raise ValueError(f"window {window} must be odd and positive")
    finite = np.isfinite(values)
    sums = np.concatenate([[0.0], np.cumsum(np.where(finite, values, 0.0), dtype=np.float64)])
    broken = np.concatenate([[0], np.cumsum(~finite)])
    centre = np.arange(len(values))
    low = np.maximum(centre - window // 2, 0)
    high = np.minimum(centre + window // 2 + 1, len(values))
    return np.where(broken[high] > broken[low], np.nan, (sums[high] - sums[low]) / (high - low))


def perplexity(losses: np.ndarray) -> np.ndarray:
    """P(l) = exp of the mean of L(1..l), at index l - 1 (section 4)."""
    running = np.cumsum(losses, dtype=np.float64) / np.arange(1, len(losses) + 1)
    with np.errstate(over="ignore"):
        return np.exp(running)


def smoothing_window(train_len: int) -> int:
    """101 tokens as in the paper; for training contexts below 808 tokens an eighth of the context, rounded up to odd."""
    return min(101, train_len // 8 | 1)


def first_plotted(train_len: int) -> int:
    """First position drawn: 128 as in the paper; a sixteenth of the training context below 2,048 tokens."""
    return max(1, min(128, train_len // 16))


def made_locally(meta: Meta) -> bool:
    """Whether tasks were stand-ins made from the held-out text, not the public data sets."""
    specs = [evaluation["spec"] for evaluation in meta["evals"].values()]
    return any("local" in (spec.get("dataset"), spec.get("include")) for spec in specs)


def extra(meta: Meta, run_id: str, name: str) -> Any:
    """What an evaluation recorded of a run under `name` beyond its rows; None if it did not."""
    for evaluation in meta["evals"].values():
        extras = evaluation["runs"].get(run_id, {}).get("extras", {})
        if name in extras:
            return extras[name]
    return None


def count_range(counts: pd.Series, noun: str) -> str:
    """One count, "200 examples", or "150 to 500 examples" where counts differ."""
    low, high = int(counts.min()), int(counts.max())
    return f"{low:,} {noun}" if low == high else f"{low:,} to {high:,} {noun}"
