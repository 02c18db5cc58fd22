"""Parts of figures: curves with a band over seeds, and heatmaps of needle scores."""

import math
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.cm import ScalarMappable
from matplotlib.colors import Colormap, Normalize
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from analysis.curves import LossCurve, first_plotted, smooth
from analysis.names import LineStyle
from analysis.style import token_ticks, tokens, training_length_line
from analysis.tables import count_range

MAX_POINTS = 2_048
BINS_PER_DOUBLING = 4
FEW_SEEDS = 4
NO_CELL = "#DDDDDD"


@dataclass(frozen=True, eq=False)
class Drawn:
    """One line of a panel: `x` and, for every seed, `values_SX`."""

    style: LineStyle
    x: np.ndarray
    values_SX: np.ndarray

    @property
    def mean(self) -> np.ndarray:
        return self.values_SX.mean(axis=0)

    @property
    def band(self) -> tuple[np.ndarray, np.ndarray] | None:
        """Minimum and maximum of two to four seeds, mean -/+ standard deviation of more; None for one seed."""
        if len(self.values_SX) < 2:
            return None
        if len(self.values_SX) <= FEW_SEEDS:
            return self.values_SX.min(axis=0), self.values_SX.max(axis=0)
        deviation = self.values_SX.std(axis=0, ddof=1)
        return self.mean - deviation, self.mean + deviation

    def frame(self, **labels: str) -> pd.DataFrame:
        """Return the smoothed loss as it is drawn, as a table that begins with columns of labels."""
        return pd.DataFrame({**labels, "position": self.x, "loss_smoothed": self.mean})


def band_note(seeds: Iterable[int]) -> str:
    """Describe the line and its band for the note above a figure."""
    counts = set(seeds)
    if counts == {1}:
        return "one seed"
    kinds = ["min to max"] * any(1 < count <= FEW_SEEDS for count in counts)
    kinds += ["standard deviation"] * (max(counts) > FEW_SEEDS)
    return f"mean of {count_range(counts, 'seeds')}, bands: {' or '.join(kinds)}"


def smoothed(curve: LossCurve, style: LineStyle, window: int, length: int | None = None) -> Drawn:
    """Return L(i) smoothed over `window` tokens, up to `length` (None: all of it), at up to about 2,048 evenly spaced positions
    (1-based), a few per window, and at the last one."""
    length = curve.length if length is None else length
    stride = max(1, window // 8, math.ceil(length / MAX_POINTS))
    positions = np.arange(min(first_plotted(curve.train_len), length), length + 1, stride)
    positions = positions if positions[-1] == length else np.append(positions, length)
    return Drawn(style, positions, np.stack([smooth(losses, window)[positions - 1] for losses in curve.losses_SN]))


def binned(curve: LossCurve, style: LineStyle, first: float, last: int) -> Drawn:
    """Return the means of L(i) from `first` to `last` over bins of equal width on a logarithmic axis, four per doubling."""
    edges = np.geomspace(first, last, round(BINS_PER_DOUBLING * np.log2(last / first)) + 1)
    edges = np.unique(edges.round().astype(np.int64))
    sums = np.add.reduceat(curve.losses_SN[:, : edges[-1]], edges[:-1].tolist(), axis=1)
    return Drawn(style, np.sqrt(edges[:-1] * edges[1:]), sums / np.diff(edges))


def without_text(lines: Sequence[Drawn], train_len: int) -> tuple[list[Drawn], np.ndarray, list[str]]:
    """Remove the difficulty of the text: subtract the models' mean at each position. Return the new lines, that mean, and the
    labels of the models left out of the mean because they leave the frame of the losses, as when a model breaks down beyond the
    training context."""
    highest = core_limits(lines, train_len)[1]
    calm = [line for line in lines if (line.mean[line.x >= train_len / 8] <= highest).all()] or lines
    text_X = np.mean([line.mean for line in calm], axis=0)
    shown = [replace(line, values_SX=line.values_SX - text_X) for line in lines]
    return shown, text_X, [line.style.label for line in lines if line not in calm]


def without_note(wild: Collection[str]) -> str:
    """Name the models that `without_text` left out of the mean, for the note above a figure."""
    named = "".join(wild) if len(wild) == 1 else f"{len(wild)} that leave the frame"
    return f"mean without {named}" if wild else ""


def draw_lines(axes: Axes, lines: Sequence[Drawn]) -> None:
    """Draw lines with their bands: the first line on top, bands below all lines. Legend entries have their line's dashes."""
    for place, line in enumerate(lines):
        axes.plot(line.x, line.mean, **line.style.line, zorder=3 - place / 100)
        if (band := line.band) is not None:
            axes.fill_between(line.x, *band, color=line.style.colour, alpha=0.22, linewidth=0, zorder=2)


def position_axis(axes: Axes, train_len: int, longest: int, *, pieces: int = 8, **labels: Any) -> None:
    """Make x the positions up to `longest` and mark the training length; `labels`: arguments of Axes.set."""
    training_length_line(axes, train_len)
    token_ticks(axes, longest, pieces)
    axes.set(xlim=(0, longest), **labels)


def doublings_axis(axes: Axes, ticks: Iterable[int], words: Callable[[int], str] = tokens, **text: Any) -> None:
    """Make x logarithmic, with these ticks and no others; `text`: text properties of their labels."""
    ticks = list(ticks)
    axes.set_xscale("log", base=2)
    axes.set_xticks(ticks, [words(tick) for tick in ticks], **text)
    axes.minorticks_off()


def core_limits(lines: Sequence[Drawn], train_len: int) -> tuple[float, float]:
    """Return a y-range whose top is set by the last 7/8 of the training context and whose bottom is set by the lowest value
    anywhere. Before that (the first tokens are hard) and beyond (a curve may explode), curves may leave it at the top, as in
    the paper."""
    drawn = [(line.x, values) for line in lines for values in (line.mean, *(line.band or ()))]
    core = [values[(x >= train_len / 8) & (x <= train_len)] for x, values in drawn]
    every = [values for _, values in drawn]
    inside, all_of_it = (values[np.isfinite(values)] for values in (np.concatenate(core), np.concatenate(every)))
    if not inside.size:
        return 0.0, 1.0
    low, high = all_of_it.min(), inside.max()
    span = max(high - low, 1e-3 * abs(high), 1e-9)
    return float(low - 0.06 * span), float(high + 0.30 * span)


def cut_note(lines: Sequence[Drawn], limits: tuple[float, float]) -> str:
    """Return words for the note above a figure if a curve leaves the range at the top, else ""."""
    return "curves cut at the top continue" if any((~(line.mean <= limits[1])).any() for line in lines) else ""


def position_panel(
    axes: Axes, lines: Sequence[Drawn], train_len: int, limits: tuple[float, float] | None = None, **how: Any
) -> str:
    """Draw lines along positions, within `limits` (None: `core_limits`). Return the note on cut curves. `how`: see
    `position_axis`."""
    limits = limits or core_limits(lines, train_len)
    draw_lines(axes, lines)
    position_axis(axes, train_len, int(lines[0].x[-1]), ylim=limits, **how)
    return cut_note(lines, limits)


def legend_of(figure: Figure, styles: Sequence[LineStyle], columns: int = 4, markers: bool = False) -> None:
    """Draw one legend below all panels; `markers`: whether its lines have their markers."""
    handles = [Line2D([], [], **style.line, marker=style.marker if markers else None, markersize=4) for style in styles]
    figure.legend(handles=handles, loc="outside lower center", ncols=min(columns, len(handles)))


@dataclass(frozen=True)
class ColourScale:
    """Colours of a heatmap's cells, and what they mean."""

    colours: str | Colormap
    low: float
    high: float
    title: str


def needle_panel(axes: Axes, cells: pd.DataFrame, scale: ColourScale, train_len: int) -> None:
    """Draw the mean of `value` by depth (downwards) and length, in cells of equal size, whatever the spacing of the lengths."""
    axes.grid(False)
    axes.set_facecolor(NO_CELL)
    if cells.empty:
        axes.set(xticks=[], yticks=[])
        axes.text(0.5, 0.5, "not evaluated", transform=axes.transAxes, ha="center", va="center", fontsize=7)
        return
    grid = cells.pivot_table(index="depth", columns="length", values="value", aggfunc="mean")
    lengths, depths = grid.columns.to_numpy(float), grid.index.to_numpy(float)
    mesh = np.ma.masked_invalid(grid.to_numpy())
    axes.pcolormesh(mesh, cmap=scale.colours, vmin=scale.low, vmax=scale.high, edgecolors="white", linewidth=0.3)
    axes.set_ylim(len(depths), 0)
    labels = _length_labels(lengths)
    shown = _every(len(lengths), min(6, 26 // max(map(len, labels))))  # as many as fit side by side
    axes.set_xticks(shown + 0.5, [labels[at] for at in shown], fontsize=6.5)
    shown = _every(len(depths), 6)
    axes.set_yticks(shown + 0.5, [f"{depths[at]:g}%" for at in shown], fontsize=6.5)
    axes.tick_params(length=1.5)
    axes.spines[:].set_visible(False)
    if lengths[0] <= train_len <= lengths[-1]:
        # Between two columns by interpolation; at the paper's grid this is the middle of the 16,500 column.
        at = np.interp(train_len, lengths, np.arange(len(lengths)) + 0.5)
        axes.axvline(float(at), color="black", linestyle=(0, (4, 3)), linewidth=1.1)


def colour_bar(figure: Figure, panels: Sequence[Axes], scale: ColourScale) -> None:
    mapping = ScalarMappable(Normalize(scale.low, scale.high), scale.colours)
    shrink, aspect = (1.0, 20) if len(panels) <= 4 else (0.5, 30)
    bar = figure.colorbar(mapping, ax=list(panels), shrink=shrink, aspect=aspect, fraction=0.04, pad=0.015)
    bar.set_label(scale.title, fontsize=7.5)
    bar.ax.tick_params(labelsize=6.5)
    bar.outline.set_visible(False)  # type: ignore[operator]


def _every(count: int, most: int) -> np.ndarray:
    """Return at most `most` evenly spaced indices from the first on."""
    return np.arange(0, count, -(-count // most))


def _length_labels(lengths: np.ndarray) -> list[str]:
    """Print lengths in units of 1,024 tokens if all are multiples of 256 (and the last is 1,024 or more), else in thousands as
    in the paper ("7.2k"), or in full if all are below 8,000."""
    if lengths[-1] >= 1_024 and not (lengths % 256).any():
        return [tokens(length) for length in lengths]
    return [f"{length / 1000:.3g}k" if lengths[-1] >= 8_000 else f"{length:g}" for length in lengths]
