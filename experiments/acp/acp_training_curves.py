"""ACP, loss curves: Training loss with and without pruning.

Training loss of FoX (Pro) with and without pruning, and their difference. The curves coincide within noise."""

import pandas as pd

from analysis.names import DASHED, FOX_SHADES, LineStyle
from analysis.panels import Drawn, band_note, draw_lines, legend_of
from analysis.study import Study
from analysis.style import WIDTH, Files, plt, publish, tokens
from analysis.training_curves import SMOOTHED_SHARE, summary, trainings  # noqa: F401
from experiments.acp.acp_quality import AXES, runs  # noqa: F401
from experiments.evaluations import curve as evals  # noqa: F401

SHOWN_FROM = 0.1


def draw(study: Study) -> Files:
    found = {(training.axes["pruning"], training.axes["context"]): training for training in trainings(study)}
    contexts = sorted({context for _, context in found}, reverse=True)
    lines, differences, frames = [], [], []
    for (rule, context), training in found.items():
        colour = FOX_SHADES[contexts.index(context) % len(FOX_SHADES)]
        style = LineStyle(f"{rule}, {tokens(context)}", colour, None if rule == "pruned" else DASHED)
        shown, losses_SN = training.shown(SHOWN_FROM), training.smoothed_SN
        line = Drawn(style, training.tokens[shown] / training.tokens[-1], losses_SN[:, shown])
        lines.append(line)
        if rule == "pruned" and (other := found.get(("unpruned", context))):
            change_SN = losses_SN - other.smoothed_SN.mean(axis=0)
            differences.append(Drawn(LineStyle(tokens(context), colour), line.x, change_SN[:, shown]))
        frames.append(pd.DataFrame({"label": training.label, "share_of_training": line.x, "loss_smoothed": line.mean}))
    panels = [(lines, "training loss (nats)"), (differences, "pruned minus unpruned (nats)")][: 1 + bool(differences)]
    figure, (row,) = plt.subplots(1, len(panels), figsize=(WIDTH, 2.9), squeeze=False)
    for axes, (own, ylabel) in zip(row, panels, strict=True):
        draw_lines(axes, own)
        axes.set(xlabel="share of the training", ylabel=ylabel, xlim=(SHOWN_FROM, 1))
    if differences:
        row[1].axhline(0.0, color="#555555", linewidth=0.8)
    legend_of(figure, [line.style for line in lines], columns=3)
    smooth = f"mean over the last {SMOOTHED_SHARE:.0%} of the steps"
    return publish(study, figure, frames, smooth, band_note(study.seed_counts.values()))
