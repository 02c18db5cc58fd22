"""Run folders that look as after a training, without one."""

import numpy as np
import pandas as pd

from eval.kinds import EVAL_SPEC, eval_id
from experiments.plan import Run
from results.lines import to_lines
from results.store import write_rows
from training import manifest

START = {"date": "2026-01-01T00:00:00+00:00", "git_sha": "abc", "git_dirty": False, "python": "3.11", "versions": {},
         "device": "CPU (1 thread, AVX2)", "world_size": 1, "first_step": 0, "params": 10, "end": None}  # fmt: skip


def finish(
    run: Run,
    evaluations: bool = False,
    loss: float = 2.0,
    weights: bytes = b"",
    final_loss: float = 3.0,
    device: str = "",
    created: str = START["date"],
) -> None:
    """An export (of these weights), a start, a line of metrics; with `evaluations` every per-token loss that was asked for."""
    folder = run.folder
    if not folder.finished:
        folder.export.mkdir(parents=True)
        (folder.export / "config.json").write_text("{}")
        if weights:
            (folder.export / "model.safetensors").write_bytes(weights)
        manifest.seal(folder.export, run_id=run.spec.run_id)
        date = f"2026-01-01T00:00:{len(weights):02}+00:00" if weights else START["date"]
        start = {**START, "date": date, "device": device or START["device"]}
        folder.provenance_file.write_text(to_lines([start]))
        folder.metrics_file.write_text(
            to_lines(
                {"step": n + 1, "tokens": (n + 1) * run.spec.train.batch_tokens, "loss": final_loss, "wall_s": 1.0}
                for n in range(run.spec.train.num_steps)
            )
        )
    if evaluations:
        for spec in run.evals:
            if spec.kind == "per_token_loss":
                write_loss(run, spec, loss, created)


def write_loss(run: Run, spec, loss: float, created: str = START["date"]) -> None:
    position = np.arange(1, spec.context_len + 1)
    rows = pd.DataFrame(
        {"document": -1, "position": position, "width": 1, "loss": loss + 1 / np.sqrt(position), "num_documents": 2}
    )
    _write(run, spec, rows, created)


def write_curve(run: Run, spec, tokens_per_s: float, loss: float) -> None:
    steps = np.arange(1, run.spec.train.num_steps + 1)
    rows = pd.DataFrame(
        {"step": steps, "tokens": steps, "loss": loss, "grad_norm": 1.0, "lr": 0.1, "tokens_per_s": tokens_per_s, "mfu": np.nan,
         "mfu_dense": np.nan, "pruned_share": np.nan}
    )  # fmt: skip
    _write(run, spec, rows)


def write_timing(run: Run, spec) -> None:
    row = {
        "mode": spec.mode, "seq_len": spec.seq_len, "tokens_per_s": 1.0, "tokens_per_s_low": 1.0, "tokens_per_s_high": 1.0,
        "relative": 1.0, "relative_low": 1.0, "relative_high": 1.0, "mfu": np.nan, "mfu_dense": np.nan,
        "peak_memory_gib": np.nan, "params": 10, "fwd_flops_per_token": 1.0, "machine": spec.machine,
    }  # fmt: skip
    _write(run, spec, pd.DataFrame([row]))


def _write(run: Run, spec, rows: pd.DataFrame, created: str = START["date"]) -> None:
    meta = {
        "kind": spec.kind, "scale": run.spec.scale, "model": run.spec.name, "run_id": run.spec.run_id,
        "eval_id": eval_id(spec), "spec": EVAL_SPEC.dump_python(spec, mode="json"), "created": created,
        "weights": run.folder.weights,
        "provenance": START, "extras": {},
    }  # fmt: skip
    write_rows(run.eval_file(spec), rows, meta, spec.SCHEMA)
