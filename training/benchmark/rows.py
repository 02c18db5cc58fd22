"""The rows of the training benchmark: appended to a CSV, printed, and turned into Table 6."""

import csv
from pathlib import Path

import pandas as pd
from rich.console import Console
from rich.table import Table

from experiments.scales import get_scale, model_spec
from results.store import write_rows

ROWS = Path("results/training/benchmark.csv")
NOTE = (
    "Random weights, one sequence a step, nothing pruned; every softmax model uses a tuned kernel. With Triton 3.4 to 3.7.0 on "
    "Hopper, Mamba-2 takes a slower path."
)


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


def store(path: Path, scale_name: str, results_dir: Path) -> Path:
    """Write the newest fitting row of each model as the stored rows of `table6_throughput`."""
    scale = get_scale(scale_name)
    with open(path, newline="") as file:
        fitting = {
            row["model"]: row
            for row in csv.DictReader(file)
            if (row["scale"], row["seq_len"], row["gpus"], row["prune"], row["sequences_per_gpu"], row["micro_batches"])
            == (scale_name, str(scale.seq_len), "1", "False", "1", "1")
        }
    if not fitting:
        raise ValueError(f"{path}: no rows of one GPU at {scale_name} and {scale.seq_len} tokens; run the benchmark first")
    lines, runs = [], {}
    for model, row in fitting.items():
        spec = model_spec(model, scale, 50257)
        params = spec.num_params
        source = {"scale": scale_name, "model": model, "run_id": f"benchmark-{model}", "eval_id": "training-benchmark"}
        lines.append({
            **source, "mode": "train", "seq_len": scale.seq_len, "tokens_per_s": float(row["tokens_per_s"]),
            "mfu": float(row["mfu"]), "peak_memory_gib": float(row["peak_memory_gib"]), "params": params,
            "fwd_flops_per_token": float(spec.flops_per_token(scale.seq_len)), "gpu": row["gpu"],
        })  # fmt: skip
        made = {"date": row["date"], "git_sha": row["git_sha"], "device": row["gpu"], "versions": {"torch": row["torch"]}}
        runs[source["run_id"]] = {"model": model, "params": params, "provenance": made, "train_seq_len": scale.seq_len}
    meta = {
        "kind": "throughput", "artefact": "table6_throughput", "scale": scale_name,
        "created": max(row["date"] for row in fitting.values()), "runs": runs,
        "evals": {"training-benchmark": {"spec": {"kind": "throughput"}, "runs": {}}},
        "note": NOTE,
    }  # fmt: skip
    return write_rows(results_dir / scale_name / "table6_throughput.parquet", pd.DataFrame(lines), meta)
