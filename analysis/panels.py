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
        """Smallest and largest of two to four seeds, mean -/+ standard deviation of more; none of one."""
        if len(self.values_SX) < 2:
            return None
        if len(self.values_SX) <= FEW_SEEDS:
            return self.values_SX.min(axis=0), self.values_SX.max(axis=0)
        deviation = self.values_SX.std(axis=0, ddof=1)
        return self.mean - deviation, self.mean + deviation

    def frame(self, **labels: str) -> pd.DataFrame:
        """Tabulate a smoothed loss as it is drawn, behind columns of labels."""
        return pd.DataFrame({**labels, "position": self.x, "loss_smoothed": self.mean})


def band_note(seeds: Iterable[int]) -> str:
    """Say what the line and its band are, for the note above a figure."""
    counts = set(seeds)
    if counts == {1}:
        return "one seed"
    kinds = ["min to max"] * any(1 < count <= FEW_SEEDS for count in counts)
    kinds += ["standard deviation"] * (max(counts) > FEW_SEEDS)
    return f"mean of {count_range(counts, 'seeds')}, bands: {' or '.join(kinds)}"


def smoothed(curve: LossCurve, style: LineStyle, window: int, length: int | None = None) -> Drawn:
    """L(i) smoothed over `window` tokens, up to `length` (None: all of it): at most about 2,048 even positions (1-based)
    and the last one, a few in each window."""
    length = curve.length if length is None else length
    stride = max(1, window // 8, math.ceil(length / MAX_POINTS))
    positions = np.arange(min(first_plotted(curve.train_len), length), length + 1, stride)
    positions = positions if positions[-1] == length else np.append(positions, length)
    return Drawn(style, positions, np.stack([smooth(losses, window)[positions - 1] for losses in curve.losses_SN]))


def binned(curve: LossCurve, style: LineStyle, first: float, last: int) -> Drawn:
    """L(i) from `first` to `last` as means over stretches of equal length on a logarithmic axis, four in a doubling."""
    edges = np.geomspace(first, last, round(BINS_PER_DOUBLING * np.log2(last / first)) + 1)
    edges = np.unique(edges.round().astype(np.int64))
    sums = np.add.reduceat(curve.losses_SN[:, : edges[-1]], edges[:-1].tolist(), axis=1)
    return Drawn(style, np.sqrt(edges[:-1] * edges[1:]), sums / np.diff(edges))


def without_text(lines: Sequence[Drawn], train_len: int) -> tuple[list[Drawn], np.ndarray, list[str]]:
    """Take out how hard the text itself is: the mean of the models at each position. Returns the lines without it, that mean,
    and the labels of models that are not in it because they leave the frame of the losses, as one that breaks down beyond the
    training context does."""
    highest = core_limits(lines, train_len)[1]
    calm = [line for line in lines if (line.mean[line.x >= train_len / 8] <= highest).all()] or lines
    text_X = np.mean([line.mean for line in calm], axis=0)
    shown = [replace(line, values_SX=line.values_SX - text_X) for line in lines]
    return shown, text_X, [line.style.label for line in lines if line not in calm]


def without_note(wild: Collection[str]) -> str:
    """Say which models `without_text` left out of the mean, for the note above a figure."""
    named = "".join(wild) if len(wild) == 1 else f"{len(wild)} that leave the frame"
    return f"mean without {named}" if wild else ""


def draw_lines(axes: Axes, lines: Sequence[Drawn]) -> None:
    """The first line on top, bands below all of them. The dashes of a legend's entry are those of its line."""
    for place, line in enumerate(lines):
        axes.plot(line.x, line.mean, **line.style.line, zorder=3 - place / 100)
        if (band := line.band) is not None:
            axes.fill_between(line.x, *band, color=line.style.colour, alpha=0.22, linewidth=0, zorder=2)


def position_axis(axes: Axes, train_len: int, longest: int, *, pieces: int = 8, **labels: Any) -> None:
    """x are positions up to `longest`, with the training length marked; `labels` as for Axes.set."""
    training_length_line(axes, train_len)
    token_ticks(axes, longest, pieces)
    axes.set(xlim=(0, longest), **labels)


def doublings_axis(axes: Axes, ticks: Iterable[int], words: Callable[[int], str] = tokens, **text: Any) -> None:
    """Make x logarithmic, with these ticks and no others; `text`: how their labels look."""
    ticks = list(ticks)
    axes.set_xscale("log", base=2)
    axes.set_xticks(ticks, [words(tick) for tick in ticks], **text)
    axes.minorticks_off()


def core_limits(lines: Sequence[Drawn], train_len: int) -> tuple[float, float]:
    """y-range set by the last 7/8 of the training context and by what is lower elsewhere. What happens before (the first tokens
    are hard) and beyond (a curve may explode) may leave the range, as in the paper."""
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
    """Say if a curve leaves the range above, for the note above a figure."""
    return "cut curves go on" if any((~(line.mean <= limits[1])).any() for line in lines) else ""


def position_panel(
    axes: Axes, lines: Sequence[Drawn], train_len: int, limits: tuple[float, float] | None = None, **how: Any
) -> str:
    """Draw lines along positions, within `limits` (None: their core). Returns the note on what is cut. `how`: see
    `position_axis`."""
    limits = limits or core_limits(lines, train_len)
    draw_lines(axes, lines)
    position_axis(axes, train_len, int(lines[0].x[-1]), ylim=limits, **how)
    return cut_note(lines, limits)


def legend_of(figure: Figure, styles: Sequence[LineStyle], columns: int = 4, markers: bool = False) -> None:
    """One legend below all panels; `markers`: of lines that are drawn with them."""
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
    """Mean of `value` by depth (downwards) and length; every cell has the same size, whatever the spacing of the lengths."""
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
    shown = _every(len(lengths), min(6, 26 // max(map(len, labels))))  # as many as stand side by side
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
    """Print lengths as in the paper, in thousands ("7.2k"); whole on short grids, in 1,024 tokens where all are multiples."""
    if lengths[-1] >= 1_024 and not (lengths % 256).any():
        return [tokens(length) for length in lengths]
    return [f"{length / 1000:.3g}k" if lengths[-1] >= 8_000 else f"{length:g}" for length in lengths]
