"""A table of numbers per model, and its Markdown, LaTeX, CSV and HTML: best bold, second underlined, paper's in brackets."""

import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from html import escape
from pathlib import Path
from typing import Literal

from analysis.names import label
from results.atomic import write_atomic

Values = Mapping[str, Sequence[float | None]]
Mark = Literal["", "best", "second"]
WIDE = 10


@dataclass(frozen=True)
class Column:
    """`key` names the column in the CSV; `better`: which end is best, "" where no order is meant."""

    key: str
    title: str
    decimals: int = 2
    better: Literal["lower", "higher", ""] = ""

    def text(self, value: float | None) -> str:
        if value is None or math.isnan(value):
            return "\N{EN DASH}"
        decimals = self.decimals if abs(value) < 10_000 else 0
        return f"{value:,.{decimals}f}"


@dataclass(frozen=True)
class Table:
    """`rows`: model key -> one value per column. `paper`: the paper's values, given only where the scale is the same."""

    caption: str
    columns: Sequence[Column]
    rows: Values
    note: str = ""
    paper: Values = field(default_factory=dict)

    def marks(self) -> dict[str, list[Mark]]:
        """Which printed values are best and second best of their column, ties included; none where all are equal."""
        marks: dict[str, list[Mark]] = {model: [""] * len(self.columns) for model in self.rows}
        for index, column in enumerate(self.columns):
            printed = {model: _printed(column, values[index]) for model, values in self.rows.items()}
            known = sorted({value for value in printed.values() if value is not None}, reverse=column.better == "higher")
            if not column.better or len(known) < 2:
                continue
            alone = list(printed.values()).count(known[0]) == 1  # a tie for best leaves no second
            for model, value in printed.items():
                if value == known[0]:
                    marks[model][index] = "best"
                elif value == known[1] and alone:
                    marks[model][index] = "second"
        return marks

    def cells(self) -> list[tuple[str, list[tuple[str, Mark, str]]]]:
        """(label, [(our value, mark, the paper's value or "")]) per model."""
        marks = self.marks()
        lines = []
        for model, values in self.rows.items():
            papers = self.paper.get(model, [None] * len(self.columns))
            cells = [
                (column.text(value), mark, "" if paper is None else column.text(paper))
                for column, value, mark, paper in zip(self.columns, values, marks[model], papers, strict=True)
            ]
            lines.append((label(model), cells))
        return lines


def _printed(column: Column, value: float | None) -> float | None:
    return None if value is None or math.isnan(value) else round(value, column.decimals)


def _caption(table: Table) -> str:
    ours = " In brackets: the paper's value." if table.paper else ""
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
    """A table environment; needs the packages booktabs and, for tables of many columns, graphicx."""
    wide = len(table.columns) > WIDE
    wrap: dict[Mark, str] = {"": "{}", "best": r"\textbf{{{}}}", "second": r"\underline{{{}}}"}
    lines = [r"\begin{table}", r"\centering", rf"\caption{{{_tex(_caption(table))}}}", r"\small"]
    lines += [r"\resizebox{\textwidth}{!}{%"] if wide else []
    lines += [rf"\begin{{tabular}}{{l{'r' * len(table.columns)}}}", r"\toprule"]
    lines += [" & ".join(["Model", *(_tex(column.title) for column in table.columns)]) + r" \\", r"\midrule"]
    for name, cells in table.cells():
        texts = [
            wrap[mark].format(_tex(text)) + (rf" {{\scriptsize ({_tex(paper)})}}" if paper else "")
            for text, mark, paper in cells
        ]
        lines.append(" & ".join([_tex(name), *texts]) + r" \\")
    return "\n".join([*lines, r"\bottomrule", r"\end{tabular}" + ("}" if wide else ""), r"\end{table}", ""])


def _tex(text: str) -> str:
    for plain, command in {"\\": r"\textbackslash{}", "&": r"\&", "%": r"\%", "_": r"\_", "#": r"\#", "$": r"\$"}.items():
        text = text.replace(plain, command)
    arrows = {"\N{UPWARDS ARROW}": r"$\uparrow$", "\N{DOWNWARDS ARROW}": r"$\downarrow$", "\N{EN DASH}": "--"}
    for sign, command in {**arrows, "\N{EM DASH}": "---", "\N{MULTIPLICATION SIGN}": r"$\times$"}.items():
        text = text.replace(sign, command)
    return text


def to_csv(table: Table) -> str:
    """model, our columns, then COLUMN_paper where the paper's values are given; unrounded."""
    names = ["model", *(column.key for column in table.columns)]
    names += [f"{column.key}_paper" for column in table.columns] if table.paper else []
    lines = [",".join(names)]
    for model, values in table.rows.items():
        papers = table.paper.get(model, [None] * len(table.columns)) if table.paper else []
        numbers = ["" if value is None or math.isnan(value) else f"{value:.10g}" for value in [*values, *papers]]
        lines.append(",".join([model, *numbers]))
    return "\n".join([*lines, ""])


def to_html(table: Table) -> str:
    head = "".join(f"<th>{_breakable(column.title)}</th>" for column in table.columns)
    body = []
    for name, cells in table.cells():
        tds = []
        for text, mark, paper in cells:
            ours = f"<span class='{mark}'>{escape(text)}</span>" if mark else escape(text)
            tds.append(f"<td>{ours}{f'<small>{escape(paper)}</small>' if paper else ''}</td>")
        body.append(f"<tr><th>{escape(name)}</th>{''.join(tds)}</tr>")
    caption = f"<caption>{escape(_caption(table))}</caption>".replace("In brackets: the paper", "Below, small: the paper")
    wide = " wide" if len(table.columns) > WIDE else ""
    inside = f"<thead><tr><th></th>{head}</tr></thead><tbody>{''.join(body)}</tbody>"
    return f"<table class='numbers{wide}'>{caption}{inside}</table>"


def _breakable(title: str) -> str:
    """HTML of a column title that may break between the parts of NarrativeQA, but not within ARC-e."""
    return re.sub(r"(?<=[a-z])(?=[A-Z])", "<wbr>", escape(title.replace("-", "\N{NON-BREAKING HYPHEN}")))


def write_table(table: Table, stem: Path) -> list[Path]:
    """STEM.md, STEM.tex and STEM.csv, atomically."""
    forms: dict[str, Callable[[Table], str]] = {"md": to_markdown, "tex": to_latex, "csv": to_csv}
    paths = []
    for ending, form in forms.items():
        path = stem.with_name(f"{stem.name}.{ending}")
        write_atomic(path, form(table))
        paths.append(path)
    return paths
