"""Appendix F.1: per-token loss of the models of Table 3."""

from dataclasses import replace
from pathlib import Path

import pandas as pd

from analysis.curves import LossCurve, smoothing_window
from analysis.names import SHADES, LineStyle, style_of
from analysis.panels import band_note, core_limits, draw_lines, is_cut, position_axis, smoothed, without_note, without_text
from analysis.study import Study
from analysis.style import WIDTH, plt, publish, tokens
from experiments.evaluations import loss as evals  # noqa: F401
from experiments.fox.table3_ablation import AXES, ablations, runs, summary  # noqa: F401

TITLE = "Per-token loss of the ablations"
PAPER = "Appendix F.1"
SHOWS = (
    "Per-token loss, less the mean of a panel's models, of the models of Table 3: parts added one by one to the LLaMA block, "
    "and left out one by one of the Pro block. The paper's own captions could not be obtained."
)
DASHES = (None, (2.2, 0.9))


def draw(study: Study) -> list[Path]:
    """Write figures/STEM.{png,pdf,csv}."""
    curves = ablations(study)
    if not curves:
        raise ValueError(f"{study.stem}: no per-token losses are stored; run its experiment first")
    window = smoothing_window(study.train_len)
    panels = {
        "added one by one": [label for label, curve in curves.items() if curve.model != "fox_pro" or not curve.axes],
        "changed in the Pro block": [label for label, curve in curves.items() if curve.model == "fox_pro"],
    }
    figure, row = plt.subplots(1, 2, figsize=(WIDTH, 4.3))
    frames, cut, left_out = [], False, set[str]()
    for axes, (name, labels) in zip(row, panels.items(), strict=True):
        losses = [smoothed(curves[label], _style(curves[label], place), window) for place, label in enumerate(labels)]
        # Without any sign of position the block fails far above the others: its curve may leave the frame.
        placed = [line for line in losses if curves[line.style.label].axes != {"use_rope": False}]
        placed, text_X, wild = without_text(placed, study.train_len)
        lines = [replace(line, values_SX=line.values_SX - text_X) for line in losses]
        limits = core_limits(placed, study.train_len)
        draw_lines(axes, lines)
        position_axis(axes, study.train_len, int(lines[0].x[-1]), pieces=4, ylim=limits, xlabel="Token index $i$", title=name)
        axes.legend(loc="upper center", bbox_to_anchor=(0.5, -0.15), fontsize=6, handlelength=2.4)
        cut = cut or is_cut(lines, limits)
        left_out |= {*wild, *(line.style.label for line in losses if curves[line.style.label].axes == {"use_rope": False})}
        frames += [line.frame(panel=name, label=line.style.label) for line in losses]
    row[0].set_ylabel("$L(i)$ minus the panel's mean (nats)")
    return publish(
        study,
        figure,
        pd.concat(frames, ignore_index=True),
        f"smoothed over {window} tokens",
        band_note(study.seed_counts.values()),
        f"dashed vertical: training length {tokens(study.train_len)}",
        without_note(left_out),
        "cut curves go on" if cut else "",
    )


def _style(curve: LossCurve, place: int) -> LineStyle:
    """The model's own style where nothing of it is changed."""
    if not curve.axes:
        return style_of(curve.model, curve.label)
    return LineStyle(curve.label, SHADES[place % len(SHADES)], DASHES[place // len(SHADES) % 2])
