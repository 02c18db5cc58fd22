"""Measure the attention kernels on this GPU, or show stored measurements: `python -m kernels.benchmark [MODE ...] [--show]`.

Modes: `times` of all operators and their alternatives; `errors` of forgetting attention by regime, against float64; `decode`,
times of one token over a cache; `model`, training steps of flash-linear-attention's FoX with its attention and with ours;
`tiles`, the share of the causal tiles that each pruning rule keeps (needs no GPU)."""

import sys
from collections.abc import Iterator
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Literal, get_args

import pandas as pd
import tyro
from tyro.conf import Positional, UseAppendAction

from kernels.benchmark.rows import LIMIT_S, PICTURES, decoding_table, draw, error_table, markdown, model_table, table
from results.atomic import write_atomic
from results.measured import FOLDER, read

if TYPE_CHECKING:
    from kernels.benchmark.operators import Operator

Shape = tuple[int, int, int, int]
Mode = Literal["times", "errors", "decode", "model", "tiles"]
Kind = Literal["forgetting_attention", "stick_breaking", "mamba2_recurrence", "short_convolution"]
PACKAGES = Path(__file__).parents[1]
TABLES = {"errors_by_regime": error_table, "decoding": decoding_table, "fla_model": model_table}
REGIMES = {
    "forgetting_attention": "Gates from very local to global over the heads, or all open.",
    "stick_breaking": "Logits N(-9, 1), with which every key counts (long), or N(0, 1), with which a stick is used up after\n"
    "some fifty keys (short); the time of softmax attention does not depend on them.",
}
DRAWN = {
    "forgetting_attention": ("attention.png", "local to global", "forget gates from very local to global over the heads"),
    "stick_breaking": ("stick_breaking.png", "long", "logits N(-9, 1): nothing can be skipped"),
}


@dataclass(frozen=True)
class Options:
    """Measure attention against softmax attention."""

    modes: Positional[tuple[Mode, ...]] = ("times", "errors", "decode", "model")
    """Times of the kernels, errors by regime, times of one token over a cache, of a model's training step, share of tiles that
    pruning keeps."""
    show: bool = False
    """Print and draw the stored rows; needs no GPU."""
    rows: Path = FOLDER
    """Folder that the rows are added to or read from."""
    operators: tuple[Kind, ...] = get_args(Kind)
    """Operators to time."""
    only: tuple[str, ...] = ()
    """Providers to measure besides cuDNN's softmax; all by default."""
    shape: UseAppendAction[tuple[Shape, ...]] = ()
    """B T H D (repeatable) to time; defaults to each operator's own list."""
    limit_s: int = LIMIT_S
    """Seconds that a provider may take to compile, tune and run; times that are missing then are stored as NaN."""
    code: str = ""
    """Version of the measured code (a commit, a word), if it is not run from a checkout."""


def timed_operators() -> "dict[str, Operator]":
    """Return the operators that `times` measures, by kind."""
    from kernels.benchmark.mamba2 import CONVOLUTION, RECURRENCE
    from kernels.benchmark.operators import FORGETTING, STICK_BREAKING

    return {operator.kind: operator for operator in (FORGETTING, STICK_BREAKING, RECURRENCE, CONVOLUTION)}


def measured(options: Options) -> None:
    """Measure group by group, and store each group's rows as soon as it ends. Raises ValueError if a mode needs a GPU."""
    import torch

    if set(options.modes) - {"tiles"} and not torch.cuda.is_available():
        raise ValueError("every mode but tiles needs a GPU, and torch finds none; --show prints the stored rows")
    from kernels.benchmark.decode import measure_decoding
    from kernels.benchmark.errors import measure_errors
    from kernels.benchmark.model import KIND, measure_model
    from kernels.benchmark.operators import tiles_left
    from kernels.benchmark.times import Row, keep, measure

    groups: list[tuple[str, str, Iterator[Row]]] = []
    operators = timed_operators()
    for operator in [operators[kind] for kind in options.operators] if "times" in options.modes else ():
        for shape in options.shape or operator.shapes:
            groups.append((operator.kind, f"{operator.kind} {shape}", measure(operator, shape, options.only, options.limit_s)))
    if "errors" in options.modes:
        groups.append(("errors_by_regime", "errors by regime", measure_errors(options.only)))
    if "decode" in options.modes:
        groups.append(("decoding", "decoding", measure_decoding(options.shape, options.only, options.limit_s)))
    if "model" in options.modes:
        groups.append((KIND, "training steps of fla's FoX", measure_model(options.shape)))
    for number, (kind, label, rows) in enumerate(groups, 1):
        keep(kind, rows, f"{number} of {len(groups)}: {label}", options.code, options.rows)
    if "tiles" in options.modes:
        shapes = options.shape or operators["forgetting_attention"].shapes
        lines = [(", ".join(map(str, shape)), *(f"{100 * share:.1f}" for share in tiles_left(shape))) for shape in shapes]
        print(markdown(("B, T, H, D", "kept by ACP's rule (%)", "kept by the tight rule (%)"), lines))


def check_shown(options: Options) -> None:
    """Raise ValueError for options that `--show` does not read, and for a mode that stores nothing."""
    unread = {"only", "shape", "limit_s", "code"}
    given = [item.name for item in fields(Options) if item.name in unread and getattr(options, item.name) != item.default]
    if given:
        raise ValueError(f"--show does not use {', '.join('--' + name.replace('_', '-') for name in given)}; leave it out")
    if "tiles" in options.modes:
        raise ValueError("tiles has no stored rows to show; run it without --show (it needs no GPU)")


def show(options: Options) -> None:
    """Print a table for each mode that has rows, and draw the times. Raises ValueError if there are no rows."""
    kinds = {"times": options.operators, "errors": ("errors_by_regime",), "decode": ("decoding",), "model": ("fla_model",)}
    asked = [kind for mode in options.modes for kind in kinds.get(mode, ())]
    there = {kind: read(kind, options.rows) for kind in asked if any((options.rows / kind).glob("*.parquet"))}
    if asked and not there:
        raise ValueError(f"{options.rows} holds no measurements; measure first")
    if not asked:
        return
    folder = PICTURES if options.rows.resolve() == FOLDER.resolve() else options.rows
    for kind, rows in there.items():
        if kind in DRAWN:
            name, gates, title = DRAWN[kind]
            draw(rows, folder / name, gates, title)
    text = tables(there)
    print(text)
    if {*DRAWN, *TABLES} <= set(there):
        write_atomic(folder / "README.md", text)
        for kind in DRAWN if folder == PICTURES else ():
            write_atomic(PACKAGES / kind / "README.md", page(kind, there))


def tables(measured: dict[str, pd.DataFrame]) -> str:
    """Return a page with a table for each kind of rows."""
    text = (
        "# Times and errors of the kernels\n\nWritten by `python -m kernels.benchmark --show` from the rows in measurements/.\n"
    )
    for kind, rows in measured.items():
        about = f"{REGIMES[kind]}\n\n" if kind in REGIMES else ""
        text += f"\n## {kind}\n\n{about}{TABLES.get(kind, table)(rows)}\n"
    return text


def page(kind: str, measured: dict[str, pd.DataFrame]) -> str:
    """Return an operator's own page with the tables for which it has a placeholder, from rows by kind: training times in the
    regimes that are drawn, decoding times, and a model's training steps."""
    rows, text = measured[kind], (PACKAGES / kind / "README.md").read_text()
    shown = rows[(rows.operation == "forward+backward") & rows.gates.isin((DRAWN[kind][1], "short", "any"))]
    decoded, steps = decoding_table(measured["decoding"]), model_table(measured["fla_model"])
    for place, drawn in (("<!-- table -->", table(shown)), ("<!-- decoding -->", decoded), ("<!-- model -->", steps)):
        before, found, rest = text.partition(place)
        text = f"{before}{place}\n\n{drawn}\n\n<!-- end -->{rest.partition('<!-- end -->')[2]}" if found else text
    return text


def main() -> int:
    options = tyro.cli(Options, prog="python -m kernels.benchmark", description=__doc__)
    try:
        (check_shown if options.show else measured)(options)
        show(options)
    except ValueError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
