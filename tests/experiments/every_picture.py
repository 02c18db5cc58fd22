"""Descriptions of pictures and of the rows beside them, to be written down: each thing that is drawn, and where."""

import warnings
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from matplotlib.axes import Axes
from matplotlib.colors import to_hex
from matplotlib.figure import Figure
from matplotlib.legend import Legend

from analysis import style
from analysis.tables import Table


def numbers(values: object) -> str:
    """Return how many, the first and last, the least and most, the mean, and the mean of those further on."""
    found = np.ma.filled(np.ma.asarray(values, dtype=float), np.nan).ravel()
    if found.size < 3:
        return " ".join(f"{value:.4g}" for value in found)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        told = (
            found[0],
            found[-1],
            np.nanmin(found),
            np.nanmax(found),
            np.nanmean(found),
            np.nanmean(found[found.size // 3 :]),
        )
    return f"{found.size}: {' '.join(f'{value:.4g}' for value in told)}"


def colours(values: object) -> str:
    found = np.atleast_2d(values)
    return "-" if not found.size else " ".join(dict.fromkeys(to_hex(each, keep_alpha=True) for each in found))


def of_legend(legend: Legend | None) -> str:
    return (
        ""
        if legend is None
        else f"{legend.get_title().get_text()}: {' / '.join(text.get_text() for text in legend.get_texts())}"
    )


def of_axes(axes: Axes) -> Iterator[str]:
    titles = [axes.get_title(loc) for loc in ("left", "center", "right")]
    yield f" axes {' '.join(filter(None, titles))!r}{' hidden' * (not axes.get_visible())}"
    for axis, limits, scale in (
        (axes.xaxis, axes.get_xlim(), axes.get_xscale()),
        (axes.yaxis, axes.get_ylim(), axes.get_yscale()),
    ):
        ticks = " ".join(label.get_text() for label in axis.get_ticklabels())
        yield f"  {axis.axis_name}: {axis.get_label_text()!r} {scale} {numbers(limits)} | {ticks}"
    for line in axes.get_lines():
        how = f"{line.get_linestyle()} {line.get_linewidth():g} {line.get_marker()} {line.get_alpha()}"
        drawn = f"x {numbers(line.get_xdata())}; y {numbers(line.get_ydata())}"
        yield f"  line {line.get_label()!r} {to_hex(line.get_color())} {how}; {drawn}"
    for each in axes.collections:
        corners = [path.vertices for path in each.get_paths()]
        drawn = f"{numbers(np.concatenate(corners) if corners else [])} at {numbers(each.get_offsets())}"
        shown = (
            ""
            if each.get_array() is None
            else f"; values {numbers(each.get_array())}, {each.get_clim()} {each.get_cmap().name}"
        )
        yield f"  {type(each).__name__} {each.get_label()!r} {colours(each.get_facecolor())} {each.get_alpha()}; {drawn}{shown}"
    for patch in axes.patches:
        corners = (patch.get_transform() - axes.transData).transform_path(patch.get_path()).vertices
        yield f"  {type(patch).__name__} {colours(patch.get_facecolor())} {numbers(corners)}"
    for image in axes.get_images():
        how = f"{image.get_clim()} {image.get_extent()} {image.get_cmap().name}"
        yield f"  image {image.get_array().shape} {numbers(image.get_array())}, {how}"
    for text in axes.texts:
        how = f"{text.get_ha()} {text.get_va()} {to_hex(text.get_color())}"
        yield f"  text {text.get_text()!r} at {numbers(text.get_position())} {how}"
    if axes.get_legend() is not None:
        yield f"  legend {of_legend(axes.get_legend())}"


def of_figure(figure: Figure, stem: Path) -> Iterator[str]:
    yield f"{stem.name}: {numbers(figure.get_size_inches())} inches; {figure.get_suptitle()!r}"
    for axes in figure.axes:
        yield from of_axes(axes)
    for text in figure.texts:
        yield f" text {text.get_text()!r} at {numbers(text.get_position())}"
    for legend in figure.legends:
        yield f" legend {of_legend(legend)}"


def of_rows(rows: pd.DataFrame) -> Iterator[str]:
    yield f" {len(rows)} rows"
    for name, column in rows.drop(
        columns=["created", "commit", "torch", "triton"], errors="ignore"
    ).items():  # where they are made
        known = numbers(column) if column.dtype.kind in "fiub" else " ".join(map(str, dict.fromkeys(column)))[:200]
        yield f"  {name}: {known}"


def of_table(table: Table) -> Iterator[str]:
    yield f" table {table.caption!r} {table.note!r}"
    for column in table.columns:
        yield f"  {column}"
    for label, cells in table.rows.items():
        yield f"  {label}: {' '.join('-' if cell is None else f'{float(cell):.4g}' for cell in cells)}"
    for name in ("spreads", "ranges", "paper"):
        for label, cells in (getattr(table, name, None) or {}).items():
            yield f"  {name} of {label}: {' '.join('-' if cell is None else numbers(cell) for cell in cells)}"


WRITTEN = Path(__file__).with_name("every_picture")


def recorded(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Descriptions of all pictures that are saved from now on, in a list that grows."""
    lines: list[str] = []
    whole = style.save

    def save(figure: Figure, stem: Path) -> list[Path]:
        lines.extend(of_figure(figure, stem))
        return whole(figure, stem)

    monkeypatch.setattr(style, "save", save)
    return lines


def assert_written(lines: list[str], files: list[Path], table: Table, stem: str, folder: Path) -> None:
    """Compare with what is written down for an artefact."""
    rows = [line for path in files if path.suffix == ".csv" for line in of_rows(pd.read_csv(path))]
    found = "\n".join(line.rstrip().replace("\n", r"\n") for line in (*lines, *rows, *of_table(table))) + "\n"
    (folder / f"{stem}.txt").write_text(found)
    written = (WRITTEN / f"{stem}.txt").read_text() if (WRITTEN / f"{stem}.txt").exists() else ""
    assert found == written, f"where that is meant: cp {folder}/{stem}.txt {WRITTEN}"
