"""Figure 4: needle in a haystack, one heatmap per model and mode, depth against context length."""

from pathlib import Path

import numpy as np
from matplotlib.figure import Figure

from analysis.names import title
from analysis.needles import Needles, mean_of, needles, num_seeds, places
from analysis.panels import colour_bar, needle_panel
from analysis.study import Study
from analysis.style import WIDTH, figure_style, plt, publish, scale_note, tokens
from analysis.tables import Column, Table

PANELS_PER_ROW = 4


@figure_style()
def draw(study: Study) -> list[Path]:
    """Write figures/STEM.{png,pdf,csv}; the CSV holds the cells' means over samples and seeds."""
    found = needles(study)
    measured = [name for name in ("score", "exact", "fuzzy", "recall_nats") if name in found.rows]
    cells = found.rows.groupby(["label", "mode", "length", "depth"], as_index=False, sort=False)[measured].mean()
    counts = sorted(set(found.rows.groupby(["label", "mode"])["seed"].nunique()))
    number = " to ".join(map(str, dict.fromkeys((counts[0], counts[-1]))))
    seeds = f"mean of {number} seeds" if counts[-1] > 1 else "one seed per model"
    dashed = f"dashed: training length {tokens(study.train_len)}"
    return publish(study, _draw(study, found), cells, found.note, seeds, dashed)


def _draw(study: Study, found: Needles) -> Figure:
    labels, modes, train_len = found.labels, found.modes, study.train_len
    per_row = min(max(1, PANELS_PER_ROW // len(modes)), len(labels))
    lines = -(-len(labels) // per_row)
    columns = per_row * len(modes)
    depths = found.rows["depth"].nunique()
    height = float(np.clip(0.55 + 0.085 * depths, 0.95, 1.5))
    figure, panels = plt.subplots(
        lines, columns, figsize=(WIDTH * max(columns, 3) / PANELS_PER_ROW, height * lines + 0.75), squeeze=False
    )
    free = list(panels.flat)
    for index, (label, mode) in enumerate((label, mode) for label in labels for mode in modes):
        axes = free[index]
        axes.set_title(f"{title(label)}, {mode}", fontsize=6.6, pad=2.5)
        needle_panel(axes, found.of(label=label, mode=mode), found.colours, train_len)
        if index % columns:
            axes.set_yticklabels([])
    for axes in free[len(labels) * len(modes) :]:
        axes.set_axis_off()
    figure.supxlabel("context length (tokens)", fontsize=8.5)
    figure.supylabel("depth of the needle", fontsize=8.5)
    if found.unit == "nats":
        colour_bar(figure, free, found.colours)
    return figure


def summary(study: Study) -> Table:
    """Mean score or recall per mode, inside the training context and beyond it, with 95% intervals."""
    found = needles(study)
    columns, wanted = [], []
    for mode in found.modes:
        for place, (words, low, high) in places(study.train_len).items():
            if any(len(found.of(label=label, mode=mode, low=low, high=high)) for label in found.labels):
                columns.append(Column(f"{mode}_{place}", f"{mode}, {words}", 2, "higher"))
                wanted.append((mode, low, high))
    rows: dict[str, list[float | None]] = {}
    ranges: dict[str, list[tuple[float, float] | None]] = {}
    for label in found.labels:
        own = [found.of(label=label, mode=mode, low=low, high=high) for mode, low, high in wanted]
        estimates = [mean_of(part) if len(part) else None for part in own]
        rows[label] = [None if estimate is None else estimate.effect for estimate in estimates]
        ranges[label] = [None if estimate is None else estimate.interval for estimate in estimates]
    samples = int(found.rows.groupby(["label", "run_id", "mode", "length", "depth"]).size().max())
    seeds = num_seeds(own for _, own in found.rows.groupby("label"))
    note = f"{scale_note(study).capitalize()}. {samples} needle{'s' if samples > 1 else ''} per cell and seed. "
    note += "In square brackets: 95% interval over needles"
    note += f" and {seeds} seeds." if seeds > 1 else "; one seed."
    if found.unit == "nats":
        caption = "Mean needle recall in nats: log-probability of the answer with the needle minus without"
        note += " No model's score leaves the floor at this scale."
    else:
        caption = "Mean needle score, 1 (nothing found) to 10"
    return Table(caption, columns, rows, note, ranges=ranges)
