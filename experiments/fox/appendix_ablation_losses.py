"""Appendix F.1: per-token loss of the models of Table 3."""

from pathlib import Path

import pandas as pd

from analysis.curves import smoothing_window
from analysis.names import SHADES, LineStyle
from analysis.panels import band_note, core_limits, draw_lines, is_cut, position_axis, smoothed
from analysis.study import Study
from analysis.style import WIDTH, figure_style, plt, publish, tokens
from experiments.evaluations import loss as evals  # noqa: F401
from experiments.fox.table3_ablation import AXES, ablations, runs, summary  # noqa: F401

TITLE = "Per-token loss of the ablations"
PAPER = "Appendix F.1"
SHOWS = (
    "Per-token loss of the models of Table 3: parts added one by one to the LLaMA block, and left out one by one of the Pro "
    "block. The paper's own captions could not be obtained."
)
DASHES = (None, (2.2, 0.9))


@figure_style()
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
    frames, cut = [], False
    for axes, (name, labels) in zip(row, panels.items(), strict=True):
        styles = [LineStyle(label, SHADES[i % len(SHADES)], DASHES[i // len(SHADES) % 2]) for i, label in enumerate(labels)]
        lines = [smoothed(curves[style.label], style, window) for style in styles]
        # Without any sign of position the block fails far above the others: its curve may leave the frame.
        placed = [line for line in lines if curves[line.style.label].axes != {"use_rope": False}]
        limits = core_limits(placed, study.train_len)
        draw_lines(axes, lines)
        position_axis(axes, study.train_len, int(lines[0].x[-1]), pieces=4, ylim=limits, xlabel="Token index $i$", title=name)
        axes.legend(loc="upper center", bbox_to_anchor=(0.5, -0.15), fontsize=6, handlelength=2.4)
        cut = cut or is_cut(lines, limits)
        frames += [line.frame(panel=name, label=line.style.label) for line in lines]
    row[0].set_ylabel("Per-token loss $L(i)$ (nats)")
    return publish(
        study,
        figure,
        pd.concat(frames, ignore_index=True),
        f"smoothed over {window} tokens",
        band_note(study.seed_counts.values()),
        f"dashed vertical: training length {tokens(study.train_len)}",
        "curves that leave the frame go on above" if cut else "",
    )
