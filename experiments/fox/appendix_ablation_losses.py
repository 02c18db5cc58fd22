"""Appendix F.1: Per-token loss of the ablations.

Per-token loss of the models of Table 3, minus the mean of each panel's models: components added one by one to the LLaMA block,
and removed one at a time from the Pro block. The paper's own captions could not be obtained."""

from dataclasses import replace

import numpy as np

from analysis.curves import LossCurve, smoothing_window, stored_curves
from analysis.names import DASHED, SHADES, LineStyle, style_of
from analysis.panels import Drawn, band_note, core_limits, position_panel, smoothed, without_note, without_text
from analysis.study import Study
from analysis.style import WIDTH, Files, plt, publish, tokens
from experiments.evaluations import loss as evals  # noqa: F401
from experiments.fox.table3_ablation import AXES, ablations, runs, summary  # noqa: F401

WITHOUT_POSITION = {"use_rope": False}
"""Axes of the block without any position signal, which fails: its curve lies far above the others and may leave the frame."""


def draw(study: Study) -> Files:
    stored_curves(study)
    curves, train_len = ablations(study), study.train_len
    window = smoothing_window(train_len)
    panels = {
        "added one by one": [label for label, curve in curves.items() if curve.model != "fox_pro" or not curve.axes],
        "changed in the Pro block": [label for label, curve in curves.items() if curve.model == "fox_pro"],
    }
    panels = {name: labels for name, labels in panels.items() if labels}
    figure, (row,) = plt.subplots(1, len(panels), figsize=(WIDTH, 4.3), squeeze=False)
    frames, cuts, left_out = [], [], set[str]()
    for axes, (name, labels) in zip(row, panels.items(), strict=True):
        losses = [smoothed(curves[label], _style(curves[label], place), window) for place, label in enumerate(labels)]
        failing = [line for line in losses if curves[line.style.label].axes == WITHOUT_POSITION]
        placed, text_X, wild = without_text([line for line in losses if line not in failing] or losses, train_len)
        if len(losses) == 1:  # a single curve has no mean to be compared with
            placed, text_X = losses, np.zeros(1)
        limits = core_limits(placed, train_len)
        lines = [_named(replace(line, values_SX=line.values_SX - text_X), limits[1]) for line in losses]
        axes.set(xlabel="Token index $i$", title=name)
        cuts.append(position_panel(axes, lines, train_len, limits, pieces=4))
        axes.legend(loc="upper center", bbox_to_anchor=(0.5, -0.15), fontsize=6, handlelength=2.4)
        left_out |= {*wild, *(line.style.label for line in failing)}
        frames += [line.frame(panel=name, label=line.style.label) for line in losses]
    what = ["$L(i)$ minus the panel's mean (nats)" if len(labels) > 1 else "$L(i)$ (nats)" for labels in panels.values()]
    for axes, ylabel in zip(row[: len(set(what))], what, strict=False):  # only once if both panels have the same label
        axes.set_ylabel(ylabel)
    smooth, dashed = f"smoothed over {window} tokens", f"dashed vertical: training length {tokens(train_len)}"
    notes = smooth, band_note(study.seed_counts.values()), dashed, without_note(left_out), max(cuts)
    return publish(study, figure, frames, *notes)


def _named(line: Drawn, top: float) -> Drawn:
    """Return the line, with a remark in the legend if all of it lies above the frame."""
    outside = not (line.mean <= top).any()
    return replace(line, style=replace(line.style, label=f"{line.style.label} (above the frame)")) if outside else line


def _style(curve: LossCurve, place: int) -> LineStyle:
    """Return the style of a curve: the model's own if nothing about the model is changed."""
    if not curve.axes:
        return style_of(curve.model, curve.label)
    return LineStyle(curve.label, SHADES[place % len(SHADES)], (None, DASHED)[place // len(SHADES) % 2])
