"""Appendix F.9: Training curves.

Training loss against tokens. The paper's own captions could not be obtained."""

import pandas as pd

from analysis.names import style_of
from analysis.panels import Drawn, band_note, draw_lines, legend_of
from analysis.study import Study
from analysis.style import WIDTH, Files, plt, publish
from analysis.training_curves import SMOOTHED_SHARE, summary, trainings  # noqa: F401
from experiments.evaluations import curve as evals  # noqa: F401
from experiments.fox.fig2_per_token_loss import runs  # noqa: F401

SHOWN_FROM = 0.05


def draw(study: Study) -> Files:
    lines, frames = [], []
    for training in trainings(study):
        shown, style = training.shown(SHOWN_FROM), style_of(training.model, training.label)
        lines.append(Drawn(style, training.tokens[shown], training.smoothed_SN[:, shown]))
        frames.append(pd.DataFrame({"label": training.label, "tokens": lines[-1].x, "loss_smoothed": lines[-1].mean}))
    figure, axes = plt.subplots(figsize=(WIDTH, 3.4))
    draw_lines(axes, lines)
    longest = max(line.x[-1] for line in lines)
    units = {"billions": 1e9, "millions": 1e6, "thousands": 1e3, "tokens": 1.0}
    name, unit = next((name, unit) for name, unit in units.items() if longest >= unit)
    axes.xaxis.set_major_formatter(lambda value, _: f"{value / unit:g}")
    axes.set(xlabel=f"training tokens ({name})", ylabel="training loss (nats)", xlim=(0, longest))
    legend_of(figure, [line.style for line in lines])
    smooth = f"mean over the last {SMOOTHED_SHARE:.0%} of the steps; the first {SHOWN_FROM:.0%} are not shown"
    return publish(study, figure, frames, smooth, band_note(study.seed_counts.values()))
