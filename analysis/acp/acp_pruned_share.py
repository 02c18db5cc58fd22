"""What pruning skips: of every head, of all heads by training context, and over training."""

from pathlib import Path

import numpy as np
import pandas as pd

from analysis.acp.pruning import Skipped, context_of, skipped, tile_note
from analysis.fox.appendix_training_curves import KIND as CURVE
from analysis.names import FOX_SHADES, LineStyle
from analysis.panels import ColourScale, Drawn, band_note, colour_bar, draw_lines, legend_of
from analysis.study import Study
from analysis.style import WIDTH, figure_style, plt, publish, scale_note, tokens
from analysis.tables import Cell, Column, Table, over_seeds

COLOURS = ColourScale("viridis", 0.0, 1.0, "skipped")


@figure_style()
def draw(study: Study) -> list[Path]:
    """Write figures/STEM.{png,pdf,csv}."""
    found = skipped(study)
    styles = {
        each.label: LineStyle(f"context {tokens(each.context)}", FOX_SHADES[place % len(FOX_SHADES)])
        for place, each in enumerate(reversed(found))
    }
    figure, (heads, spread, training) = plt.subplots(1, 3, figsize=(WIDTH, 2.7))
    _heads(heads, found[-1])
    colour_bar(figure, [heads], COLOURS)
    for each in found:
        ranked = np.sort(each.mean_H)[::-1]
        place = (np.arange(len(ranked)) + 0.5) / len(ranked)
        spread.plot(place, ranked, color=styles[each.label].colour, marker=".", markersize=3)
    spread.set(xlabel="heads, most pruned first (share of all)", ylabel="share of tiles skipped", ylim=(0, 1), xlim=(0, 1))
    lines = [_over_training(study, label, style) for label, style in styles.items()]
    draw_lines(training, [line for line in lines if line is not None])
    training.set(xlabel="share of the training", ylabel="share of tiles skipped", ylim=(0, 1), xlim=(0, 1))
    legend_of(figure, list(styles.values()))
    frames = [
        pd.DataFrame(each.heads, columns=["layer", "head"]).assign(
            label=each.label, tiles_pruned=each.mean_H, keys_read=each.keys_read_H, dropped=each.dropped_H
        )
        for each in found
    ]
    return publish(
        study,
        figure,
        pd.concat(frames, ignore_index=True),
        f"left: every head at context {tokens(found[-1].context)}; middle: heads by training context; right: over training",
        tile_note(found),
        band_note(study.seed_counts.values()),
    )


def _heads(axes, each: Skipped) -> None:
    grid = pd.Series(each.mean_H, index=pd.MultiIndex.from_tuples(each.heads)).unstack()
    axes.grid(False)
    axes.pcolormesh(grid.to_numpy(), cmap=COLOURS.colours, vmin=0, vmax=1, edgecolors="white", linewidth=0.3)
    axes.set(xlabel="head", ylabel="layer", ylim=(len(grid), 0))
    for place, ticks in ((axes.set_xticks, grid.columns), (axes.set_yticks, grid.index)):
        step = max(1, len(ticks) // 6)
        place(np.arange(len(ticks))[::step] + 0.5, [str(int(tick) + 1) for tick in ticks[::step]])


def _over_training(study: Study, label: str, style: LineStyle) -> Drawn | None:
    """The share that the trainings measured on their way; None of runs that did not."""
    runs = []
    for line, rows, _ in study.evaluations(CURVE):
        measured = rows.dropna(subset=["pruned_share"]) if "pruned_share" in rows else rows.iloc[:0]
        if line.label == label and len(measured):
            runs.append((measured["tokens"].to_numpy() / rows["tokens"].max(), measured["pruned_share"].to_numpy()))
    return Drawn(style, runs[0][0], np.stack([share for _, share in runs])) if runs else None


def summary(study: Study) -> Table:
    """One line per training context."""
    columns = [
        Column("tiles_pruned", "tiles skipped (%)", 1),
        Column("above_90", "heads that skip more than 90% (%)", 1),
        Column("below_10", "heads that skip less than 10% (%)", 1),
        Column("keys_read", "keys read per decoded token (% of all)", 1),
        Column("loss_change", "loss, pruned minus not (nats, millionths)", 2, style="signed"),
        Column("decoded_change", "decoding, the same", 2, style="signed"),
        Column("dropped", "largest probability dropped (of e^-10)", 3),
    ]
    values: dict[str, list[Cell]] = {}
    found = skipped(study)
    for each in found:
        change = 1e6 * (each.losses["loss_pruned"] - each.losses["loss"]).mean()
        decoded = 1e6 * (each.losses["decoded_loss_pruned"] - each.losses["decoded_loss"]).mean()
        values[f"context {context_of(each.label)}"] = [
            100 * each.share_SD.mean(axis=1), 100 * float((each.mean_H > 0.9).mean()), 100 * float((each.mean_H < 0.1).mean()),
            100 * float(each.keys_read_H.mean()) / each.context, float(change), float(decoded),
            float(each.dropped_H.max() / np.exp(each.log_tolerance)),
        ]  # fmt: skip
    note = f"{scale_note(study).capitalize()}. Corpus: {study.corpora}. Each at its training context, {tile_note(found)}."
    return over_seeds("What pruning skips, and what it changes", columns, values, note)
