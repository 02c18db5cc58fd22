"""Measure the attention kernels on this GPU, or show what was measured: `python -m kernels.benchmark [--show]`."""

import sys
from dataclasses import dataclass
from pathlib import Path

import tyro
from tyro.conf import UseAppendAction

from kernels.benchmark.records import FILE, records
from kernels.benchmark.rows import PICTURES, draw, table
from results.measured import FOLDER, add, read

KIND = "forgetting_attention"
Shape = tuple[int, int, int, int]


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
    errors: bool = False
    """Measure errors by regime alone."""
    code: str = ""
    """Which code is measured, where no checkout tells (a commit, a word)."""


def measured(options: Options) -> None:
    """Each shape's rows are kept as soon as they are there."""
    import torch

    gpu = torch.cuda.get_device_name()
    if options.errors:
        from kernels.benchmark.errors import measure_errors

        add("errors_by_regime", measure_errors(options.only), gpu, code=options.code, folder=options.rows)
        return
    from kernels.benchmark.measure import SHAPES, measure, measure_boundary, measure_decode, measure_norms

    for shape in options.shape or SHAPES:
        rows = measure(shape, "local to global", options.only)
        rows += measure(shape, "open", ("ours", "ours, pruned"))
        rows += measure_boundary(shape) + measure_decode(shape) + measure_norms(shape)
        add(KIND, rows, gpu, code=options.code, folder=options.rows)


def main() -> int:
    options = tyro.cli(Options, prog="python -m kernels.benchmark", description=__doc__)
    try:
        if not options.show:
            measured(options)
        if options.errors:
            print(read("errors_by_regime", options.rows).to_string(index=False))
            return 0
        rows = read(KIND, options.rows)
    except ValueError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    print(table(rows))
    if options.rows == FOLDER:
        FILE.write_text(records(rows, read("attempts")))
    folder = PICTURES if options.rows == FOLDER else options.rows
    draw(rows, folder / "attention.png", "local to global", "forget gates from very local to global over the heads")
    return 0


if __name__ == "__main__":
    sys.exit(main())
