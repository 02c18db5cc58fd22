"""Style that all figures share: fonts, sizes, ticks, the note that states scale and corpus, and saving without timestamps.

Figures have the width of a printed page (7 inches), so that their text is printed at the size it is set in."""

import math
import textwrap
from collections.abc import Mapping, Sequence
from io import BytesIO
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("Agg")

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.image import imsave
from PIL import Image

from analysis.names import title
from analysis.study import Study
from results.atomic import write_atomic

PAPER_SCALE = "760m-48b"
WIDTH, DPI = 7.0, 220
NOTE_CHARACTERS = 147

Files = list[Path]
"""Paths of the files that were written."""

_RC: dict[Any, Any] = {
    "font.family": "DejaVu Sans",
    **dict.fromkeys(("axes.titlesize", "axes.labelsize"), 8.5),
    **dict.fromkeys(("font.size", "legend.fontsize"), 8),
    **dict.fromkeys(("xtick.labelsize", "ytick.labelsize"), 7.5),
    **dict.fromkeys(("xtick.major.size", "ytick.major.size"), 3),
    **dict.fromkeys(("axes.linewidth", "xtick.major.width", "ytick.major.width"), 0.7),
    **dict.fromkeys(("axes.spines.top", "axes.spines.right", "legend.frameon"), False),
    **dict.fromkeys(("axes.grid", "axes.axisbelow", "figure.constrained_layout.use"), True),
    "grid.color": "#E3E3E3",
    "grid.linewidth": 0.5,
    "lines.linewidth": 1.6,
    "legend.handlelength": 2.6,
    "pdf.fonttype": 42,
}
matplotlib.rcdefaults()  # overrides the user's matplotlibrc
matplotlib.rcParams.update(_RC)


def save(figure: Figure, stem: Path) -> list[Path]:
    """Write STEM.png and STEM.pdf atomically, without dates, so that equal rows give equal bytes, and close the figure. A PNG
    with the same pixels and note is kept (compression differs between machines), and then so is a PDF that is newer than it."""
    with plt.rc_context({"figure.constrained_layout.use": False}):
        if layout := figure.get_layout_engine():
            for _ in range(2):  # in the second pass ticks have their labels, which need room
                layout.execute(figure)
        figure.set_layout_engine(None)  # the layout is computed once, for both files
    path, pdf = (stem.with_name(f"{stem.name}.{ending}") for ending in ("png", "pdf"))
    note = " ".join(figure.get_suptitle().replace("$", "").split())  # in the PNG as text, for the report
    shown = _body(figure, format="rgba", dpi=DPI)
    stays = _shown(path) == (shown, note)
    if not stays:  # save these pixels: drawing again shifts some
        pixels, png = np.frombuffer(shown, np.uint8).reshape(-1, int(figure.get_figwidth() * DPI), 4), BytesIO()
        texts: dict[str, Any] = {"Software": None, "Description": note}
        imsave(png, pixels, format="png", origin="upper", dpi=DPI, metadata=texts)
        write_atomic(path, png.getvalue())
    if not (stays and pdf.is_file() and pdf.stat().st_mtime_ns >= path.stat().st_mtime_ns):
        write_atomic(pdf, _body(figure, format="pdf", metadata=dict.fromkeys(("CreationDate", "Creator", "Producer"))))
    plt.close(figure)
    return [path, pdf]


def _body(figure: Figure, **how: Any) -> bytes:
    buffer = BytesIO()
    figure.savefig(buffer, **how)
    return buffer.getvalue()


def _shown(path: Path) -> tuple[bytes, str] | None:
    """Return the pixels and the note of a PNG; None if it cannot be read."""
    try:
        with Image.open(path) as image:
            return image.tobytes(), str(image.info.get("Description"))
    except (OSError, SyntaxError):
        return None


def scale_note(study: Study) -> str:
    """Describe the scale so that no small-budget result is mistaken for the paper's, with the runs' scales if they differ."""
    paper = "the paper's main setting" if study.scale == PAPER_SCALE else f"not the paper's main setting, {PAPER_SCALE}"
    runs = "" if study.scales == [study.scale] else f"; runs at {', '.join(study.scales)}"
    return f"scale: {study.scale} ({paper}{runs})"


def about(study: Study, *, corpus: bool = True) -> str:
    """Begin the note below a table: the scale, the corpora, and trainings on another GPU or Triton than most."""
    elsewhere = trained_elsewhere(study)
    corpora = f" Corpus: {study.corpora}." if corpus else ""
    return f"{scale_note(study).capitalize()}.{corpora}{elsewhere and f' {elsewhere}.'}"


def place_of(start: Mapping[str, Any]) -> str:
    """Name the GPU and the version of Triton of a training's start."""
    return f"{start['device']}, Triton {(start.get('versions') or {}).get('triton', 'unknown')}"


def first_training(starts: Sequence[Mapping[str, Any]]) -> Sequence[Mapping[str, Any]]:
    """Return the starts up to the first that ended without an error; all if none is known to have."""
    ended = [(start.get("end") or {}).get("exit_code") == 0 for start in starts]
    return starts[: ended.index(True) + 1] if any(ended) else starts


def trained_elsewhere(study: Study) -> str:
    """Name the trainings on another GPU or Triton than most; empty if there are none. CPUs are ignored: they use no Triton.
    Of trainings with the same weights the first counts."""
    places: dict[str, dict[str, set[int]]] = {}
    for line in study.lines:
        for start in first_training(study.starts(line)):
            if "thread" not in start["device"]:
                places.setdefault(place_of(start), {}).setdefault(title(line.label), set()).add(line.seed)
    most, *others = sorted(places, key=lambda place: -sum(map(len, places[place].values()))) or [""]
    parts = [
        f"on {place}: {', '.join(f'{label} (seed {_joined(seeds)})' for label, seeds in places[place].items())}"
        for place in others
    ]
    return f"Trained on {most}, but {'; '.join(parts)}" if parts else ""


def _joined(seeds: set[int]) -> str:
    return ", ".join(map(str, sorted(seeds)))


def changed_note(study: Study) -> str:
    """Note how many of the drawn runs were trained with uncommitted code; empty if none was."""
    trained = {line.run_id for line in study.lines if line.is_trained}
    changed = {line.run_id for line in study.lines if study.is_from_changed_code(line)}
    return f"{len(changed)} of {len(trained)} runs of uncommitted code" if changed else ""


def set_note(figure: Figure, study: Study, *parts: str) -> None:
    """Set the note above a figure: scale, corpus, `parts` (what else a reader must know), and runs of uncommitted code."""
    others = ", ".join(scale for scale in study.scales if scale != study.scale)
    runs = f"; {'with' if study.scale in study.scales else 'runs at'} {others}" if others else ""
    whose = "the paper's" if study.scale == PAPER_SCALE else "not the paper's"
    notes = [f"scale: {study.scale} ({whose}{runs})", f"corpus: {study.corpora}", *parts, changed_note(study)]
    text = " · ".join(note for note in notes if note)
    width = round(NOTE_CHARACTERS * figure.get_figwidth() / WIDTH)
    figure.suptitle(textwrap.fill(text, width, break_long_words=False), fontsize=6.6, color="#444444")


def publish(
    study: Study, figure: Figure, table: pd.DataFrame | Sequence[pd.DataFrame], *notes: str, part: str = ""
) -> list[Path]:
    """Write figures/STEM.{png,pdf,csv} (STEM-PART.*): the figure below a note with `notes`, and the numbers that it draws, from
    one or several tables."""
    table = table if isinstance(table, pd.DataFrame) else pd.concat(table, ignore_index=True)
    set_note(figure, study, *notes)
    stem = study.folder / "figures" / (f"{study.stem}-{part}" if part else study.stem)
    paths = [*save(figure, stem), stem.with_name(f"{stem.name}.csv")]
    write_atomic(paths[-1], table.to_csv(index=False, float_format="%.6g", lineterminator="\n"))
    return paths


def tokens(count: float) -> str:
    """Print a number of tokens: 512 -> '512', 16384 -> '16k', 1536 -> '1.5k' (k = 1024)."""
    return f"{count / 1024:.4g}k" if count >= 1024 else f"{count:g}"


def millions(count: float) -> str:
    """Print a number in millions, or from a thousand of them on in billions: 57300000 -> '57.3M', 7.5e9 -> '7.5B'."""
    return f"{count / 1e9:.3g}B" if count >= 1e9 else f"{count / 1e6:.3g}M"


def token_ticks(axes: Axes, longest: int, pieces: int = 8) -> None:
    """Set x ticks 0, 8k, ... 64k as in the paper; at other lengths at most `pieces` steps of a power of two."""
    step = 2 ** max(0, math.ceil(math.log2(longest / pieces)))
    ticks = list(range(0, longest + 1, step))
    axes.set_xticks(ticks, [tokens(tick) if step >= 1024 else str(tick) for tick in ticks])


def training_length_line(axes: Axes, position: float) -> None:
    """Draw the paper's dashed vertical line at the training context length."""
    axes.axvline(position, color="#555555", linestyle=(0, (4, 3)), linewidth=1.0, zorder=1.5)
