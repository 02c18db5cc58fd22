"""Repeated associative recall: accuracy against the number of keys.

A line's label says the size ("16 keys"); its model says the attention.
"""

import re
from pathlib import Path

import numpy as np
import pandas as pd

from analysis.names import ordered, style_of
from analysis.panels import Drawn, band_note, draw_lines, legend_of
from analysis.study import Study
from analysis.style import WIDTH, figure_style, plt, publish, scale_note
from analysis.tables import Cell, Column, Table, over_seeds

KIND = "recall"


def keys_of(label: str) -> int:
    """16 of "16 keys". ValueError otherwise."""
    found = re.fullmatch(r"(\d+) keys", label)
    if not found:
        raise ValueError(f"label {label!r} names no size of the recall task; expected one like '16 keys'")
    return int(found[1])


def answered(study: Study) -> pd.DataFrame:
    """One row a sequence: num_keys, model, seed, run_id, sequence, correct and stale (shares of the queries). ValueError
    where nothing is stored."""
    rows = study.rows(KIND)
    if rows.empty:
        raise ValueError(f"{study.stem}: no recall is stored; run its experiment first")
    return rows.assign(
        num_keys=rows["label"].map(keys_of),
        correct=rows["num_correct"] / rows["num_queries"],
        stale=rows["num_stale"] / rows["num_queries"],
    )


@figure_style()
def draw(study: Study) -> list[Path]:
    """Write figures/STEM.{png,pdf,csv}."""
    rows = answered(study)
    sizes = sorted(rows["num_keys"].unique())
    models = ordered(rows["model"])
    frames = []
    figure, panels = plt.subplots(1, 2, figsize=(0.8 * WIDTH, 2.7), sharex=True)
    for axes, what, words in zip(
        panels, ("correct", "stale"), ("answered correctly", "answered with an earlier value"), strict=True
    ):
        lines = [_line(rows[rows["model"] == model], model, what) for model in models]
        draw_lines(axes, lines)
        for line in lines:
            axes.plot(line.x, line.mean, line.style.marker, color=line.style.colour, markersize=4)
        axes.set_xscale("log", base=2)
        axes.set_xticks(sizes, [str(size) for size in sizes])
        axes.minorticks_off()
        axes.set(ylim=(-0.03, 1.03), xlabel="Keys in a sequence", title=words)
        frames += [
            pd.DataFrame({"model": model, "quantity": what, "num_keys": line.x, "share": line.mean})
            for model, line in zip(models, lines, strict=True)
        ]
    panels[0].set_ylabel("Share of the queries")
    legend_of(figure, [style_of(model) for model in models], markers=True)
    task = study.spec(study.lines[0].run_id)["data"]["recall"]
    return publish(
        study,
        figure,
        pd.concat(frames, ignore_index=True),
        f"every key is assigned {task['num_assignments']} times, and asked for {task['num_queries']} times among them",
        f"guessing one of {task['num_symbols']} values: {1 / task['num_symbols']:.2g}",
        band_note(study.seed_counts.values()),
    )


def _line(rows: pd.DataFrame, model: str, what: str) -> Drawn:
    shares = rows.groupby(["seed", "num_keys"])[what].mean().unstack()
    return Drawn(style_of(model), shares.columns.to_numpy(), shares.to_numpy())


def summary(study: Study) -> Table:
    """Shares of the queries that were answered, in percent, by model and size."""
    rows = answered(study)
    sizes = sorted(rows["num_keys"].unique())
    columns = [
        Column(f"{what}_{size}", f"{size} keys: {words} (%)", 1, better)  # type: ignore[arg-type]
        for size in sizes
        for what, words, better in (("correct", "correct", "higher"), ("stale", "an earlier value", ""))
    ]
    values: dict[str, list[Cell]] = {}
    for model in ordered(rows["model"]):
        own = rows[rows["model"] == model]
        values[model] = [
            np.array(100 * own[own["num_keys"] == size].groupby("seed")[what].mean())
            if (own["num_keys"] == size).any()
            else None
            for size in sizes
            for what in ("correct", "stale")
        ]
    return over_seeds("Repeated associative recall", columns, values, f"{scale_note(study).capitalize()}.")
