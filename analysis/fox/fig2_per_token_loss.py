"""Figure 2: per-token loss L(i) against position, perplexity P(l) against context length; FoX's lead in another picture."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from analysis.curves import KIND, LossCurve, around, by_model, compare, log_perplexity, perplexity, smoothing_window
from analysis.names import pairs_in, rank, style_of, title
from analysis.panels import Drawn, band_note, core_limits, draw_lines, is_cut, legend_of, position_axis, smoothed
from analysis.study import Study
from analysis.style import PAPER_SCALE, WIDTH, figure_style, plt, publish, scale_note, tokens
from analysis.tables import Column, Table, over_seeds

PAPER_LOSS_RANGE = (1.47, 1.67)
PAPER_PERPLEXITY_RANGE = (4.4, 5.5)
GAP_POINTS = 160


@figure_style()
def draw(study: Study) -> list[Path]:
    """Write figures/STEM.{png,pdf,csv} and, where FoX and a Transformer of one architecture are there, figures/STEM-lead.*;
    the CSV files hold what is drawn."""
    curves = _in_order(study)
    window = smoothing_window(study.train_len)
    losses = [smoothed(curve, style_of(curve.model, title(curve.label)), window) for curve in curves]
    perplexities = [
        Drawn(line.style, line.x, perplexity(curve.losses_SN)[:, line.x - 1])
        for line, curve in zip(losses, curves, strict=True)
    ]
    return _draw_curves(study, curves, losses, perplexities, window) + _draw_lead(study, by_model(study))


def _in_order(study: Study) -> list[LossCurve]:
    curves = sorted(by_model(study).values(), key=lambda curve: (rank(curve.model), curve.model))
    if not curves:
        raise ValueError(f"{study.stem}: no per-token losses are stored; run its experiment first")
    return curves


def _draw_curves(
    study: Study, curves: list[LossCurve], losses: list[Drawn], perplexities: list[Drawn], window: int
) -> list[Path]:
    figure, (left, right) = plt.subplots(1, 2, figsize=(WIDTH, 3.35))
    cut = False
    for axes, lines, of_paper, ylabel, xlabel in (
        (left, losses, PAPER_LOSS_RANGE, "Per-token loss $L(i)$ (nats)", "Token index $i$"),
        (right, perplexities, PAPER_PERPLEXITY_RANGE, "Perplexity $P(l)$", "Validation context length $l$"),
    ):
        limits = _limits(lines, study, of_paper)
        draw_lines(axes, lines)
        position_axis(axes, study.train_len, int(lines[0].x[-1]), xlabel=xlabel, ylabel=ylabel, ylim=limits)
        cut = cut or is_cut(lines, limits)
    legend_of(figure, [line.style for line in losses])
    return publish(
        study,
        figure,
        _table(curves, losses, perplexities),
        f"{curves[0].num_documents:,} held-out documents",
        band_note(len(curve.seeds) for curve in curves),
        f"$L(i)$ smoothed over {window} tokens, $P(l)$ not",
        f"dashed: training length {tokens(study.train_len)}",
        "curves that leave the frame go on above" if cut else "",
    )


def _limits(lines: Sequence[Drawn], study: Study, of_paper: tuple[float, float]) -> tuple[float, float]:
    """The paper's y-range at its scale if the curves are in it; else one set by the training context."""
    inside = [line.mean[(line.x >= study.train_len / 8) & (line.x <= study.train_len)] for line in lines]
    if study.scale == PAPER_SCALE and of_paper[0] < np.nanmedian(np.concatenate(inside)) < of_paper[1]:
        return of_paper
    return core_limits(lines, study.train_len)


def _table(curves: list[LossCurve], losses: list[Drawn], perplexities: list[Drawn]) -> pd.DataFrame:
    columns: dict[str, np.ndarray] = {"position": losses[0].x}
    for what, lines in (("loss_smoothed", losses), ("perplexity", perplexities)):
        for curve, line in zip(curves, lines, strict=True):
            columns[f"{curve.model}_{what}"] = line.mean
            if line.band is not None:
                columns[f"{curve.model}_{what}_low"], columns[f"{curve.model}_{what}_high"] = line.band
    return pd.DataFrame(columns)


def _draw_lead(study: Study, curves: dict[str, LossCurve]) -> list[Path]:
    """Loss of the Transformer minus loss of FoX with a 95% interval, along the positions."""
    pairs, _ = pairs_in(curves)
    if not pairs:
        return []
    window = max(1, study.train_len // 16) | 1
    figure, panels = plt.subplots(1, len(pairs), figsize=(WIDTH if len(pairs) > 1 else WIDTH / 2 + 0.3, 2.4), squeeze=False)
    frames, leaves = [], False
    for axes, (fox, other) in zip(panels[0], pairs, strict=True):
        table = lead(curves[fox], curves[other], window)
        colour = style_of(fox).colour
        axes.axhline(0, color="#222222", linewidth=0.8)
        axes.plot(table["position"], table["lead"], color=colour)
        if table["low"].notna().any():
            axes.fill_between(table["position"], table["low"], table["high"], color=colour, alpha=0.22, linewidth=0)
        names: dict[str, Any] = {"title": f"{title(other)} minus {title(fox)}", "xlabel": "Token index $i$"}
        limits = _lead_limits(table, study.train_len)
        leaves |= table["lead"].max() > limits[1]
        position_axis(axes, study.train_len, curves[fox].length, ylim=limits, **names)
        frames.append(table.assign(fox=fox, transformer=other))
    panels[0, 0].set_ylabel("Lead of FoX (nats)")
    seeds = min(len(curves[model].seeds) for pair in pairs for model in pair)
    noise = "documents and seeds" if seeds > 1 else "documents; one seed"
    known = any(table["low"].notna().any() for table in frames)
    return publish(
        study,
        figure,
        pd.concat(frames, ignore_index=True),
        f"mean over windows of {window} tokens",
        f"shaded: 95% interval ({noise})" if known else "no documents are stored, so no interval is known",
        "what leaves the frame goes on above" if leaves else "",
        f"dashed: training length {tokens(study.train_len)}",
        part="lead",
    )


def lead(fox: LossCurve, other: LossCurve, window: int) -> pd.DataFrame:
    """L of `other` minus L of `fox` around some positions: columns position, lead, low, high (95%; NaN where not known)."""
    length = fox.length
    rows = []
    for position in np.unique(np.linspace(window // 2 + 1, length - window // 2, GAP_POINTS).astype(int)):
        first, last = around(int(position), window, length)
        estimate = compare((1.0, other, first, last), (-1.0, fox, first, last))
        low, high = estimate.interval or (np.nan, np.nan)
        rows.append((position, estimate.effect, low, high))
    return pd.DataFrame(rows, columns=["position", "lead", "low", "high"])


def _lead_limits(table: pd.DataFrame, train_len: int) -> tuple[float, float]:
    """Room for the lead inside the training context and for its start beyond, and for all of it unless it explodes."""
    near = table[(table["position"] >= train_len / 8) & (table["position"] <= 1.1 * train_len)]
    values = near[["lead", "low", "high"]].to_numpy()
    values = values[np.isfinite(values)]
    low, high = min(0.0, values.min(initial=0.0)), max(1e-3, values.max(initial=0.0))
    highest = float(np.nanmax(table[["lead", "high"]].to_numpy()))
    high = high if highest > 2.5 * high else max(high, highest)
    span = high - low
    return low - 0.15 * span, high + 0.35 * span if highest > high else high + 0.1 * span


def summary(study: Study) -> Table:
    """The numbers of the figure in short: mean loss inside the training context, and P(l) at four lengths."""
    train_len = study.train_len
    curves = _in_order(study)
    lengths = [length for length in (train_len // 4, train_len, 2 * train_len, 4 * train_len) if 0 < length <= curves[0].length]
    entropy = unigram_entropy(study)
    columns = [Column("mean_loss", f"mean loss, first {tokens(train_len)} tokens (nats)", 3, "lower")]
    columns += [Column("below_unigram", "below unigram entropy by", 3)] if entropy is not None else []
    columns += [Column(f"ppl_{length}", f"P({tokens(length)})", 3, "lower") for length in lengths]
    values = {}
    for curve in curves:
        means_S = log_perplexity(curve.losses_SN)
        inside_S = means_S[:, train_len - 1] if curve.length >= train_len else means_S[:, -1]
        per_seed = [inside_S] if entropy is None else [inside_S, entropy - inside_S]
        values[curve.label] = [*per_seed, *(np.exp(means_S[:, length - 1]) for length in lengths)]
    note = f"{scale_note(study).capitalize()}. Corpus: {study.corpora}."
    if entropy is not None:
        note += f" Unigram entropy of the held-out text: {entropy:.3f} nats per token, the loss of a model that knows only"
        note += " how frequent each token is."
    return over_seeds("Held-out loss and perplexity", columns, values, note)


def unigram_entropy(study: Study) -> float | None:
    """Entropy (nats per token) of the held-out text's token frequencies, as the evaluation recorded it."""
    found = [study.extra(KIND, line.run_id, "unigram_entropy") for line in study.lines]
    return next((float(value) for value in found if value is not None), None)
