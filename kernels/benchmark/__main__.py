"""Measure the attention kernels on this GPU, or show what was measured: `python -m kernels.benchmark [--show]`."""

import argparse
from pathlib import Path

from kernels.benchmark.rows import RESULTS, append_rows, draw, read_rows, table


def main() -> None:
    """Parse the command line and run."""
    parser = argparse.ArgumentParser(prog="python -m kernels.benchmark", description=__doc__)
    parser.add_argument("--show", action="store_true", help="print and draw the committed rows; needs no GPU")
    parser.add_argument("--rows", type=Path, default=RESULTS / "attention.csv", help="file the rows go to or come from")
    parser.add_argument("--only", nargs="*", help="providers to measure besides cuDNN's softmax; all by default")
    parser.add_argument("--shape", type=int, nargs=4, action="append", metavar=("B", "T", "H", "D"), help="one shape")
    parser.add_argument("--errors", action="store_true", help="measure errors by regime alone, into errors.csv beside --rows")
    parser.add_argument("--code", default="", help="which code was measured, kept in the rows (a commit, a word)")
    options = parser.parse_args()
    if options.errors:
        from kernels.benchmark.errors import measure_errors

        print(measure_errors(options.rows.with_name("errors.csv"), options.only, options.code))
        return
    if not options.show:
        from kernels.benchmark.measure import SHAPES, measure, measure_boundary, measure_decode, measure_norms

        for shape in [tuple(s) for s in options.shape or SHAPES]:
            append_rows(options.rows, measure(shape, "local to global", options.only, options.code))
            append_rows(options.rows, measure(shape, "open", ["ours", "ours, pruned"], options.code))
            append_rows(options.rows, measure_boundary(shape, options.code) + measure_decode(shape, options.code))
            append_rows(options.rows, measure_norms(shape, options.code))
    rows = read_rows(options.rows)
    if not rows:
        raise SystemExit(f"{options.rows} holds no rows; measure first: python -m kernels.benchmark (needs a GPU)")
    print(table(rows))
    draw(rows, options.rows.with_suffix(".png"))


if __name__ == "__main__":
    main()
