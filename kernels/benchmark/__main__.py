"""Measure the attention kernels on this GPU, or show stored measurements: `python -m kernels.benchmark [KIND ...] [--show]`.

Kinds: `forgetting_attention` and `stick_breaking`, times beside softmax attention and others' kernels; `calls`, one short call
at a time from the host; `decoding`, one token over a cache; `errors_by_regime`, of forgetting attention against float64."""

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, get_args

import tyro
from tyro.conf import Positional, UseAppendAction

from kernels.benchmark.rows import CALLS, PASSES, PICTURES, draw, error_table, times_table
from results.measured import FOLDER, OWN, read

Shape = tuple[int, int, int, int]
Kind = Literal["forgetting_attention", "calls", "decoding", "stick_breaking", "errors_by_regime"]
KINDS = get_args(Kind)
FORGETTING = "forgetting_attention"


@dataclass(frozen=True)
class Options:
    """Measure attention against softmax attention."""

    kinds: Positional[tuple[Kind, ...]] = KINDS
    """What to measure or show."""
    show: bool = False
    """Print and draw the stored rows; needs no GPU."""
    rows: Path | None = None
    """Folder that the rows are added to (default: out/measurements) or read from (results/measurements)."""
    only: tuple[str, ...] = ()
    """Providers to measure besides cuDNN's softmax; all by default."""
    shape: UseAppendAction[tuple[Shape, ...]] = ()
    """B T H D (repeatable) to time; defaults to each kind's own list."""
    code: str = ""
    """Version of the measured code (a commit, a word), if it is not run from a checkout."""


def measured(options: Options) -> None:
    """Measure shape by shape, and store the rows of each as soon as it ends. Raises ValueError without a GPU."""
    import torch

    if not torch.cuda.is_available():
        raise ValueError("measuring needs a GPU, and torch finds none; --show prints the stored rows")
    from kernels.benchmark import attention, decode, errors
    from kernels.benchmark.timing import keep

    for kind in options.kinds:
        if kind == "errors_by_regime":
            keep(kind, errors.measure_errors(options.only), options.code, options.rows or OWN)
            continue
        for shape in options.shape or attention.SHAPES[kind]:
            if kind == "decoding":
                rows = decode.measure_decoding(shape, options.only)
            elif kind == "calls":
                rows = attention.measure(FORGETTING, shape, options.only, attention.from_the_host, CALLS)
            else:
                rows = attention.measure(kind, shape, options.only)
            keep(FORGETTING if kind == "calls" else kind, rows, options.code, options.rows or OWN)


def show(options: Options) -> None:
    """Print tables of the stored rows, and draw the speed of forgetting attention. Raises ValueError if there are no rows."""
    for kind in options.kinds:
        rows = read(FORGETTING if kind == "calls" else kind, options.rows or FOLDER)
        if kind == FORGETTING:
            draw(rows, (options.rows or PICTURES) / "attention.png")
        print(f"\n## {kind}\n")
        if kind == "errors_by_regime":
            print(error_table(rows))
        for operation in {"calls": CALLS, "decoding": ("decode",), "errors_by_regime": ()}.get(kind, PASSES):
            print(f"{operation}\n\n{times_table(rows, operation)}\n")


def main() -> int:
    options = tyro.cli(Options, prog="python -m kernels.benchmark", description=__doc__)
    try:
        (show if options.show else measured)(options)
    except ValueError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
