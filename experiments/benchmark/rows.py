"""The rows of the training benchmark: appended to a CSV, and printed."""

import csv
from pathlib import Path

from rich.console import Console
from rich.table import Table

ROWS = Path("results/training/benchmark.csv")


def append_row(path: Path, row: dict[str, object]) -> None:
    """Add a row to a CSV. ValueError if the rows there have other columns: they are of another version."""
    path.parent.mkdir(parents=True, exist_ok=True)
    fresh = not path.exists()
    if not fresh and path.read_text().partition("\n")[0].strip() != ",".join(row):
        raise ValueError(f"{path} has other columns than this version writes; name another file with --out.")
    with open(path, "a", newline="") as file:
        writer = csv.DictWriter(file, fieldnames=list(row), lineterminator="\n")
        if fresh:
            writer.writeheader()
        writer.writerow(row)


def show(path: Path) -> None:
    """Print the stored rows."""
    if not path.is_file():
        raise ValueError(f"{path}: no rows there yet; run the benchmark without --show first")
    columns = ("date", "gpu", "gpus", "parallel", "model", "scale", "seq_len", "sequences_per_gpu", "micro_batches",
               "gates", "prune", "compile", "tokens_per_s", "mfu", "tflops_per_gpu", "peak_memory_gib", "step_ms",
               "first_step_s")  # fmt: skip
    table = Table(*columns, box=None)
    with open(path, newline="") as file:
        for row in csv.DictReader(file):
            table.add_row(*(row[column] for column in columns))
    Console(width=220).print(table)
