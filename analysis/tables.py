"""A table of numbers per label as Markdown, LaTeX, CSV and HTML: best bold, second underlined, the paper's in brackets."""

import math
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, TypeGuard

import jinja2
import numpy as np
import pandas as pd
from markupsafe import Markup, escape
from pandas.api.types import is_numeric_dtype

from analysis.names import title
from analysis.statistics import Estimate
from analysis.style import millions, tokens
from results.atomic import write_atomic

Values = Mapping[str, Sequence[float | None]]
Ranges = Mapping[str, Sequence[tuple[float, float] | None]]
Mark = Literal["", "best", "second"]
MARKED = " Bold, underlined: best and second best, where the interval or spread overlaps no other's."
WIDE = 10
CHECK = "\N{CHECK MARK}"
HTML = jinja2.Template(Path(__file__).with_name("table.html.j2").read_text(), autoescape=True, trim_blocks=True)


@dataclass(frozen=True)
class Column:
    """`key` names the column in the CSV; `better`: which end is best, "" if values are not ranked. `style`: "check" prints 1 as
    a check mark and 0 as nothing; "signed" prints a sign before every number, and one significant digit of a number that would
    be rounded to zero."""

    key: str
    title: str
    decimals: int = 2
    better: Literal["lower", "higher", ""] = ""
    style: Literal["", "check", "signed"] = ""

    def text(self, value: float | None) -> str:
        if value is None or math.isnan(value):
            return "\N{EN DASH}"
        if self.style == "check":
            return CHECK if value else ""
        decimals = self.decimals if abs(value) < 10_000 else 0
        text = f"{value:{'+' if self.style == 'signed' else ''},.{decimals}f}"
        if self.style == "signed" and value and not text.strip("+-0."):  # a sign before zeros says nothing
            text = f"{value:+.1g}"
        return text.replace("-", "\N{MINUS SIGN}")


@dataclass(frozen=True)
class Table:
    """`rows`: label -> one value per column. `spreads`: standard deviations over seeds, printed after +/-. `ranges`: low and
    high end of a value that was measured repeatedly, or of its interval. Values whose ranges, or else spreads, overlap are not
    marked. `paper`: the paper's values, given only if they are comparable."""

    caption: str
    columns: Sequence[Column]
    rows: Values
    note: str = ""
    paper: Values = field(default_factory=dict)
    spreads: Values = field(default_factory=dict)
    ranges: Ranges = field(default_factory=dict)

    def marks(self) -> dict[str, list[Mark]]:
        """Mark the best and the second best value of a column, each only if its range overlaps no other's. If a value of the
        column has no range, none is marked, because it is not known whether they differ."""
        marks: dict[str, list[Mark]] = {label: [""] * len(self.columns) for label in self.rows}
        places: tuple[Mark, Mark] = ("best", "second")
        for index, column in enumerate(self.columns):
            known = {label: value for label, values in self.rows.items() if _finite(value := values[index])}
            ranges = {label: self._range(label, index) for label in known}
            if not column.better or len(known) < 2:
                continue
            order = sorted(known, key=lambda label: known[label], reverse=column.better == "higher")
            for label, mark in zip(order, places, strict=False):
                if not any(_overlap(ranges[label], ranges[other]) for other in known if other != label):
                    marks[label][index] = mark
        return marks

    def _range(self, label: str, index: int) -> tuple[float, float] | None:
        """Return the range of a value or, without one, its spread on both sides; None if it has neither, or an end is not
        finite."""
        value, around = self.rows[label][index], self.ranges.get(label)
        spread = self.spreads[label][index] if label in self.spreads else None
        found = around[index] if around is not None else None
        if found is None and value is not None and spread is not None:
            found = (value - spread, value + spread)
        return found if found is not None and all(map(math.isfinite, found)) else None

    def cells(self) -> list[tuple[str, list[tuple[str, Mark, str]]]]:
        """Return (label, [(our value with its spread, mark, the paper's value or "")]) per label."""
        marks, nothing = self.marks(), [None] * len(self.columns)
        lines = []
        for label, values in self.rows.items():
            beside = (each.get(label, nothing) for each in (self.paper, self.spreads, self.ranges))
            cells = []
            for column, value, mark, paper, spread, around in zip(self.columns, values, marks[label], *beside, strict=True):
                text = column.text(value)
                if value is not None and spread is not None and math.isfinite(spread):
                    text += f" \N{PLUS-MINUS SIGN} {spread:,.{column.decimals if abs(value) < 10_000 else 0}f}"
                if value is not None and around is not None:
                    text += f" [{column.text(around[0])}, {column.text(around[1])}]"
                cells.append((text, mark, "" if paper is None or math.isnan(paper) else column.text(paper)))
            lines.append((title(label), cells))
        return lines


Cell = np.ndarray | Estimate | float | None


def over_seeds(
    caption: str, columns: Sequence[Column], values: Mapping[str, Sequence[Cell]], note: str = "", paper: Values | None = None
) -> Table:
    """Make a table from one value per seed (S,), an estimate, or a number without seeds per label and column. It has the mean,
    the standard deviation if there are several seeds (the note says how many), and the 95% interval of an estimate. If only
    values of one seed are given, the note says so, and names their columns where an estimate has several."""
    counts = {len(cell) for cells in values.values() for cell in cells if isinstance(cell, np.ndarray)}
    means = {label: [cell.effect if isinstance(cell, Estimate) else cell for cell in cells] for label, cells in values.items()}
    ranges = {
        label: [cell.interval if isinstance(cell, Estimate) else None for cell in cells] for label, cells in values.items()
    }
    rows = {label: [None if cell is None else float(np.mean(cell)) for cell in cells] for label, cells in means.items()}
    spreads: dict[str, list[float | None]] = {}
    if max(counts, default=1) > 1:
        note += f" Mean \N{PLUS-MINUS SIGN} standard deviation over {count_range(counts, 'seeds')}."
        for label, cells in values.items():
            several = [cell if isinstance(cell, np.ndarray) and len(cell) > 1 else None for cell in cells]
            spreads[label] = [None if cell is None else float(np.std(cell, ddof=1)) for cell in several]
    elif counts:
        several_seeds = any(isinstance(cell, Estimate) and cell.seeds > 1 for cells in values.values() for cell in cells)
        once = [column.title for column, cells in zip(columns, zip(*values.values(), strict=True), strict=True)
                if any(isinstance(cell, np.ndarray) for cell in cells)]  # fmt: skip
        note += f" One seed: {', '.join(once)}." if several_seeds else " One seed."
    return Table(caption, columns, rows, note.strip(), paper or {}, spreads, ranges)


def count_range(counts: Collection[int], noun: str) -> str:
    """Print one count, "200 examples", or "150 to 500 examples" if counts differ."""
    return f"{' to '.join(f'{count:,}' for count in dict.fromkeys((min(counts), max(counts))))} {noun}"


def _finite(value: float | None) -> TypeGuard[float]:
    return value is not None and math.isfinite(value)


def _overlap(one: tuple[float, float] | None, other: tuple[float, float] | None) -> bool:
    """Return whether two ranges touch, or one is not known."""
    return one is None or other is None or (one[0] <= other[1] and other[0] <= one[1])


def _caption(table: Table) -> str:
    ours = " In brackets: the paper's value." if table.paper else ""
    ours += MARKED if any(map(any, table.marks().values())) else ""
    return f"{table.caption}.{' ' + table.note if table.note else ''}{ours}"


def to_markdown(table: Table) -> str:
    lines = ["| | " + " | ".join(column.title for column in table.columns) + " |"]
    lines.append("|---|" + "---:|" * len(table.columns))
    wrap: dict[Mark, str] = {"": "{}", "best": "**{}**", "second": "<u>{}</u>"}
    for name, cells in table.cells():
        texts = [wrap[mark].format(text) + (f" ({paper})" if paper else "") for text, mark, paper in cells]
        lines.append(f"| {name} | " + " | ".join(texts) + " |")
    return "\n".join([*lines, "", _caption(table), ""])


def to_latex(table: Table) -> str:
    """Return a table environment; it needs the packages booktabs and, for check marks or many columns, amssymb and graphicx."""
    wide = len(table.columns) > WIDE
    wrap: dict[Mark, str] = {"": "{}", "best": r"\textbf{{{}}}", "second": r"\underline{{{}}}"}
    lines = [r"\begin{table}", r"\centering", rf"\caption{{{_tex(_caption(table))}}}", r"\small"]
    lines += [r"\resizebox{\textwidth}{!}{%"] * wide
    lines += [rf"\begin{{tabular}}{{l{'r' * len(table.columns)}}}", r"\toprule"]
    lines += [" & ".join(["Model", *(_tex(column.title) for column in table.columns)]) + r" \\", r"\midrule"]
    for name, cells in table.cells():
        texts = [
            wrap[mark].format(_tex(text)) + (rf" {{\scriptsize ({_tex(paper)})}}" if paper else "")
            for text, mark, paper in cells
        ]
        lines.append(" & ".join([_tex(name), *texts]) + r" \\")
    return "\n".join([*lines, r"\bottomrule", r"\end{tabular}" + ("}" if wide else ""), r"\end{table}", ""])


_TEX = str.maketrans({
    "\\": r"\textbackslash{}", "^": r"\textasciicircum{}", "~": r"\textasciitilde{}", "{": r"\{", "}": r"\}",
    "&": r"\&", "%": r"\%", "_": r"\_", "#": r"\#", "$": r"\$",
    "\N{UPWARDS ARROW}": r"$\uparrow$", "\N{DOWNWARDS ARROW}": r"$\downarrow$", "\N{EN DASH}": "--", "\N{EM DASH}": "---",
    "\N{MULTIPLICATION SIGN}": r"$\times$", "\N{PLUS-MINUS SIGN}": r"$\pm$", "\N{MINUS SIGN}": "$-$", CHECK: r"\checkmark",
    "\N{GREEK SMALL LETTER TAU}": r"$\tau$", "\N{MIDDLE DOT}": r"$\cdot$", "<": r"$<$", ">": r"$>$",
})  # fmt: skip


def _tex(text: str) -> str:
    return text.translate(_TEX)


def to_csv(table: Table) -> str:
    """Return label, our columns, then COLUMN_sd, COLUMN_low, COLUMN_high and COLUMN_paper if there are any; unrounded."""
    nothing = [None] * len(table.columns)
    low, high = ({label: [cell and cell[end] for cell in cells] for label, cells in table.ranges.items()} for end in (0, 1))
    frame = pd.DataFrame({"label": list(table.rows)})
    for ending, values in (("", table.rows), ("_sd", table.spreads), ("_low", low), ("_high", high), ("_paper", table.paper)):
        for index, column in enumerate(table.columns):
            numbers = pd.Series([values.get(label, nothing)[index] for label in table.rows], dtype=float)
            if not ending or numbers.notna().any():
                frame[column.key + ending] = numbers
    return frame.to_csv(index=False, float_format="%.10g", lineterminator="\n")


def to_html(table: Table) -> Markup:
    """Return the table in a scrolling box, and its caption below."""
    # A title may break between the parts of NarrativeQA, but not within ARC-e or RoPE.
    titles = [escape(column.title.replace("-", "\N{NON-BREAKING HYPHEN}")) for column in table.columns]
    titles = [Markup(re.sub(r"(?<=[a-z]{3})(?=[A-Z])", "<wbr>", each)) for each in titles]
    caption = _caption(table).replace("In brackets: the paper", "Below, small: the paper")
    wide = len(table.columns) > WIDE
    return Markup(HTML.render(table=table, titles=titles, caption=caption, wide=wide))


def write_table(table: Table, stem: Path) -> list[Path]:
    """Write STEM.md, STEM.tex and STEM.csv, atomically."""
    forms: dict[str, Callable[[Table], str]] = {"md": to_markdown, "tex": to_latex, "csv": to_csv}
    paths = {stem.with_name(f"{stem.name}.{ending}"): form for ending, form in forms.items()}
    for path, form in paths.items():
        write_atomic(path, form(table))
    return list(paths)


ALONG = {"position": "token index", "x": "place", "tokens": "training tokens", "share_of_training": "share of training"}
"""Columns along which curves are drawn, and their names."""
PLACES = 8


def read_off(csv: Path) -> Table | None:
    """Return the curves of a picture at up to eight places, linearly interpolated between drawn points; None if its CSV holds
    no curves. Token indices and places are halved from the end on; other axes are divided into equal parts."""
    frame = pd.read_csv(csv)
    along = next((name for name in ALONG if name in frame), None)
    if along is None:
        return None
    frame = frame.sort_values(along)
    keys = [str(name) for name in frame.columns if not is_numeric_dtype(frame[name])]
    values = [str(name) for name in frame.columns if name not in (along, *keys) and not str(name).endswith(("low", "high"))]
    halved = along in ("position", "x")
    shares = 0.5 ** np.arange(PLACES)[::-1] if halved else np.arange(1, PLACES + 1) / PLACES
    places = float(frame[along].max()) * shares
    places = places[places >= frame[along].min()]
    rows = {}
    for key, own in frame.groupby(keys, sort=False) if keys else [((), frame)]:
        for value in values:
            drawn = own[[along, value]].dropna()
            if len(drawn):
                name = [title(str(part)) for part in (key if isinstance(key, tuple) else (key,))]
                name += [value.replace("_", " ")] if len(values) > 1 or not name else []
                found = np.interp(places, drawn[along], drawn[value], left=np.nan, right=np.nan)
                rows[", ".join(name)] = found.tolist()
    columns = [Column(f"{place:g}", _named(along, place), 3) for place in places]
    what = f"{values[0].replace('_', ' ')} by " if len(values) == 1 else "By "
    return Table(f"{what}{ALONG[along]}".capitalize(), columns, rows, "Between drawn points along a straight line.")


def _named(along: str, place: float) -> str:
    if along == "share_of_training":
        return f"{place:.0%}"
    return millions(place) if along == "tokens" else tokens(round(place))
