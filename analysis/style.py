"""What all figures share: fonts, sizes, ticks, the note that states the scale, and saving without timestamps."""

from collections.abc import Iterator
from contextlib import contextmanager
from io import BytesIO
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("Agg")

import matplotlib.pyplot as plt
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from results.atomic import write_atomic

PAPER_SCALE = "760m-48b"
PAPER_TRAIN_LEN = 16_384
LINE_WIDTH = 2.5

_RC: dict[Any, Any] = {
    "font.family": "DejaVu Sans",
    "font.size": 11,
    "axes.titlesize": 12,
    "axes.labelsize": 12,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "grid.color": "#E3E3E3",
    "grid.linewidth": 0.7,
    "axes.axisbelow": True,
    "legend.frameon": False,
    "figure.facecolor": "white",
    "savefig.facecolor": "white",
    "pdf.fonttype": 42,
    "svg.hashsalt": "analysis",
    "path.simplify": True,
}


@contextmanager
def figure_style() -> Iterator[None]:
    """The suite's matplotlib settings, on matplotlib's defaults whatever the user's matplotlibrc says."""
    with matplotlib.rc_context():
        matplotlib.rcdefaults()
        matplotlib.rcParams.update(_RC)
        yield


def save(figure: Figure, stem: Path) -> list[Path]:
    """Write STEM.png and STEM.pdf atomically, without dates, so that equal rows give equal bytes; closes the figure."""
    paths = []
    empty = {"png": {"Software": None}, "pdf": {"CreationDate": None, "Creator": None, "Producer": None}}
    for ending, metadata in empty.items():
        buffer = BytesIO()
        figure.savefig(buffer, format=ending, dpi=160, metadata=metadata)
        path = stem.with_name(f"{stem.name}.{ending}")
        write_atomic(path, buffer.getvalue())
        paths.append(path)
    plt.close(figure)
    return paths


def scale_note(scale: str) -> str:
    """The line under a title that keeps a small-budget result from being taken for the paper's."""
    if scale == PAPER_SCALE:
        return f"scale: {scale} (the paper's main setting)"
    return f"scale: {scale} \N{EM DASH} not the paper's main setting ({PAPER_SCALE})"


def tokens(count: float) -> str:
    """512 -> '512', 16384 -> '16k', 1536 -> '1.5k' (k = 1024)."""
    return f"{count / 1024:g}k" if count >= 1024 else f"{count:g}"


def token_ticks(axes: Axes, longest: int, pieces: int = 8) -> None:
    """x ticks 0, 8k, ... 64k as in the paper; at other lengths `pieces` steps of a power of two."""
    step = 1
    while step * pieces < longest:
        step *= 2
    ticks = list(range(0, longest + 1, step))
    axes.set_xticks(ticks, [tokens(tick) if step >= 1024 else str(tick) for tick in ticks])


def training_length_line(axes: Axes, position: float) -> None:
    """The paper's dashed vertical line at the training context length."""
    axes.axvline(position, color="#555555", linestyle=(0, (4, 3)), linewidth=1.3, zorder=1.5)
