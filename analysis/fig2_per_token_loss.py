"""Figure 2: per-token loss L(i) against position, and perplexity P(l) against context length."""

import math
from io import StringIO
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes

from analysis.names import SEVEN, style_of
from analysis.rows import corpus_names, first_plotted, loss_curves, perplexity, smooth, smoothing_window, train_seq_len
from analysis.style import (
    LINE_WIDTH,
    PAPER_SCALE,
    figure_style,
    plt,
    save,
    scale_note,
    token_ticks,
    tokens,
    training_length_line,
)
from analysis.tables import Column, Table
from results.atomic import write_atomic

KIND = "per_token_loss"
TITLE = "Long-context language modelling"
PAPER = "Figure 2"
SHOWS = (
    "Left: per-token loss against the position of the token. Right: perplexity against the length of the context. "
    "FoX lies below the Transformer of the same architecture inside and beyond the training context, and keeps "
    "improving up to its end; the recurrent models stop improving; Pro beats LLaMA. Beyond the training context the "
    "Transformers with RoPE break down soon, FoX degrades gently."
)
CLAIMS = ("C1", "C2", "C3", "C4", "C5", "C6")
MODELS = SEVEN

PAPER_LOSS_RANGE = (1.47, 1.67)
PAPER_PERPLEXITY_RANGE = (4.4, 5.5)
MAX_POINTS = 2_048

Curves = dict[str, np.ndarray]


def render(rows: pd.DataFrame, meta: dict[str, Any], out: Path) -> list[Path]:
    """Write out/figures/fig2_per_token_loss.{png,pdf,csv} for the models in `rows`; the CSV holds what is drawn."""
    train_len = train_seq_len(meta)
    curves = loss_curves(rows)
    window = smoothing_window(train_len)
    positions = _drawn_positions(len(next(iter(curves.values()))), train_len, window)
    losses = {model: smooth(curve, window)[positions - 1] for model, curve in curves.items()}
    perplexities = {model: perplexity(curve)[positions - 1] for model, curve in curves.items()}
    stem = out / "figures" / "fig2_per_token_loss"
    with figure_style():
        paths = _draw(positions, losses, perplexities, rows, meta, train_len, window, stem)
    return [*paths, _write_csv(positions, losses, perplexities, stem.with_suffix(".csv"))]


def _drawn_positions(length: int, train_len: int, window: int) -> np.ndarray:
    """At most about 2,048 positions (1-based), evenly spaced, at least 3 (at the paper's lengths) to 8 in each window."""
    stride = max(1, window // 8, math.ceil(length / MAX_POINTS))
    positions = np.arange(first_plotted(train_len), length + 1, stride)
    return positions if positions[-1] == length else np.append(positions, length)


def _draw(
    positions: np.ndarray,
    losses: Curves,
    perplexities: Curves,
    rows: pd.DataFrame,
    meta: dict[str, Any],
    train_len: int,
    window: int,
    stem: Path,
) -> list[Path]:
    figure, (left, right) = plt.subplots(1, 2, figsize=(11, 4.9))
    _panel(left, positions, losses, train_len, "Per-token loss $L(i)$", "Token index $i$")
    _panel(right, positions, perplexities, train_len, "Perplexity $P(l)$", "Validation context length $l$")
    left.set_ylim(*_limits(positions, losses, train_len, meta["scale"], PAPER_LOSS_RANGE))
    right.set_ylim(*_limits(positions, perplexities, train_len, meta["scale"], PAPER_PERPLEXITY_RANGE))
    handles, labels = left.get_legend_handles_labels()
    figure.legend(handles, labels, loc="lower center", ncols=4, handlelength=2.6, columnspacing=1.8)
    documents = int(rows["num_documents"].min())
    corpus = corpus_names(meta)
    note = (
        f"{scale_note(meta['scale'])} · {documents:,} held-out documents{f' ({corpus})' if corpus else ''} · "
        f"$L(i)$ smoothed over {window} tokens · dashed: training length {tokens(train_len)}"
    )
    figure.text(0.5, 0.985, note, ha="center", va="top", fontsize=8.6, color="#444444")
    legend_rows = 2 if len(handles) > 4 else 1
    figure.tight_layout(rect=(0, 0.055 * legend_rows + 0.01, 1, 0.965), w_pad=2.5)
    return save(figure, stem)


def _panel(axes: Axes, positions: np.ndarray, curves: Curves, train_len: int, ylabel: str, xlabel: str) -> None:
    for rank, model in enumerate(curves):
        style = style_of(model)
        (line,) = axes.plot(positions, curves[model], color=style.colour, linewidth=LINE_WIDTH, label=style.label)
        line.set_zorder(3 - rank / 100)  # FoX (Pro) on top
        if style.dashes:
            line.set_dashes(style.dashes)
    training_length_line(axes, train_len)
    token_ticks(axes, int(positions[-1]))
    axes.set_xlim(0, positions[-1])
    axes.set_xlabel(xlabel)
    axes.set_ylabel(ylabel)


def _limits(
    positions: np.ndarray, curves: Curves, train_len: int, scale: str, of_paper: tuple[float, float]
) -> tuple[float, float]:
    """The paper's y-range at its scale if the curves are in it; else one set by the last 7/8 of the training context.

    What happens before (the first tokens are hard) and beyond (a curve may explode) may leave the range, as in the paper.
    """
    core = (positions >= train_len / 8) & (positions <= train_len)
    values = np.concatenate([curve[core] for curve in curves.values()])
    values = values[np.isfinite(values)]
    if values.size == 0:
        return of_paper
    if scale == PAPER_SCALE and of_paper[0] < np.median(values) < of_paper[1]:
        return of_paper
    beyond = np.concatenate([curve[positions >= train_len / 8] for curve in curves.values()])
    low, high = min(values.min(), beyond[np.isfinite(beyond)].min()), values.max()
    span = max(high - low, 1e-3 * abs(high), 1e-9)
    return low - 0.06 * span, high + 0.30 * span


def _write_csv(positions: np.ndarray, losses: Curves, perplexities: Curves, path: Path) -> Path:
    columns: dict[str, np.ndarray] = {"position": positions}
    columns |= {f"{model}_loss_smoothed": values for model, values in losses.items()}
    columns |= {f"{model}_perplexity": values for model, values in perplexities.items()}
    text = StringIO()
    pd.DataFrame(columns).to_csv(text, index=False, float_format="%.6g", lineterminator="\n")
    write_atomic(path, text.getvalue())
    return path


def summary(rows: pd.DataFrame, meta: dict[str, Any]) -> Table:
    """The numbers of the figure in short, for the report: mean loss inside the training context, and P(l)."""
    train_len = train_seq_len(meta)
    curves = loss_curves(rows)
    longest = len(next(iter(curves.values())))
    lengths = [length for length in (train_len // 4, train_len, 2 * train_len, 4 * train_len) if 0 < length <= longest]
    entropy = unigram_entropy(meta)
    columns = [Column("mean_loss", f"mean loss, first {tokens(train_len)} tokens (nats)", 3, "lower")]
    columns += [Column("below_unigram", "below unigram entropy by", 3)] if entropy is not None else []
    columns += [Column(f"ppl_{length}", f"P({tokens(length)})", 3, "lower") for length in lengths]
    table = {}
    for model, curve in curves.items():
        mean = float(curve[:train_len].mean())
        values = [mean] if entropy is None else [mean, entropy - mean]
        table[model] = [*values, *(float(perplexity(curve)[length - 1]) for length in lengths)]
    note = scale_note(meta["scale"]).capitalize() + "."
    if corpus := corpus_names(meta):
        note += f" Corpus: {corpus}."
    if entropy is not None:
        note += f" Unigram entropy of the held-out text: {entropy:.3f} nats per token, the loss of a model that knows only"
        note += " how frequent each token is."
    return Table("Held-out loss and perplexity", columns, table, note)


def unigram_entropy(meta: dict[str, Any]) -> float | None:
    """Entropy (nats per token) of the held-out text's token frequencies, as the evaluation recorded it."""
    for evaluation in meta["evals"].values():
        for made in evaluation["runs"].values():
            value = made.get("extras", {}).get("unigram_entropy")
            if value is not None:
                return float(value)
    return None
