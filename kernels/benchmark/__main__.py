"""Measure the attention kernels on this GPU, or show what was measured: `python -m kernels.benchmark [--show]`."""

import sys
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Literal

import tyro
from tyro.conf import UseAppendAction

from kernels.benchmark.records import FILE, records
from kernels.benchmark.rows import LIMIT_S, PICTURES, draw, short_table, table
from results.measured import FOLDER, read

KIND, SHORT, ERRORS = "forgetting_attention", "short_calls", "errors_by_regime"
Shape = tuple[int, int, int, int]
Part = Literal["short", "shapes", "errors"]


OPEN = ("ours", "ours, pruned", "ours, tightly pruned")  # with open gates: what looking for something to prune costs


@dataclass(frozen=True)
class Options:
    """Measure forgetting attention against softmax attention."""

    show: bool = False
    """Print and draw the stored rows; needs no GPU."""
    rows: Path = FOLDER
    """Folder that the rows are added to or read from."""
    only: tuple[str, ...] = ()
    """Providers to measure besides cuDNN's softmax; all by default."""
    shape: UseAppendAction[tuple[Shape, ...]] = ()
    """B T H D (repeatable); the usual four by default."""
    parts: tuple[Part, ...] = ("short", "shapes", "errors")
    """Wall time of short calls, times of the kernels shape by shape, errors by regime."""
    limit_s: int = LIMIT_S
    """Seconds after which a provider is left where it compiles, tunes and runs: the times that it lacks are stored as NaN."""
    code: str = ""
    """Which code is measured, where no checkout tells (a commit, a word)."""


def measured(options: Options) -> None:
    """Each group's rows are kept as soon as they are there."""
    from kernels.benchmark import measure
    from kernels.benchmark.errors import measure_errors
    from kernels.benchmark.keep import Row, keep
    from kernels.benchmark.short import measure_short

    only, limit_s = options.only, options.limit_s
    groups: list[tuple[str, str, Iterator[Row]]] = []
    if "short" in options.parts:
        groups.append((SHORT, "short calls", measure_short(only, limit_s)))
    for shape in (options.shape or measure.SHAPES) if "shapes" in options.parts else ():
        others = chain(measure.measure_boundary(shape), measure.measure_decode(shape), measure.measure_norms(shape))
        groups += [
            (KIND, f"{shape}, gates local to global", measure.measure(shape, "local to global", only, limit_s)),
            (KIND, f"{shape}, gates open", measure.measure(shape, "open", OPEN, limit_s)),
            (KIND, f"{shape}, the rest", others),
        ]
    if "errors" in options.parts:
        groups.append((ERRORS, "errors by regime", measure_errors(only)))
    for number, (kind, label, rows) in enumerate(groups, 1):
        keep(kind, rows, f"{number} of {len(groups)}: {label}", options.code, options.rows)


def main() -> int:
    options = tyro.cli(Options, prog="python -m kernels.benchmark", description=__doc__)
    try:
        if not options.show:
            measured(options)
        there = {
            kind: read(kind, options.rows) for kind in (KIND, SHORT, ERRORS) if any((options.rows / kind).glob("*.parquet"))
        }
        if not there:
            raise ValueError(f"{options.rows} holds no measurements; measure first")
    except ValueError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    if ERRORS in there:
        print(there[ERRORS].to_string(index=False))
    if SHORT in there:
        print(short_table(there[SHORT]), end="\n\n")
    if KIND in there:
        rows = there[KIND]
        print(table(rows))
        if options.rows == FOLDER:
            FILE.write_text(records(rows, read("attempts")))
        folder = PICTURES if options.rows == FOLDER else options.rows
        draw(rows, folder / "attention.png", "local to global", "forget gates from very local to global over the heads")
    return 0


if __name__ == "__main__":
    sys.exit(main())
