"""From finished evaluations in run folders to an artefact's stored rows, its drawing and the report. Torch-free."""

import importlib
import json
from pathlib import Path
from typing import Any

from analysis import report
from experiments.artefact import artefact_names
from experiments.plan import Plan, Run
from results.store import gather, read_rows


def collect(plan: Plan, artefact: str) -> Path | None:
    """Join the rows of an artefact's finished evaluations into the results folder; None where none is finished."""
    sources, runs = [], {}
    for run, file in plan.eval_files(artefact):
        if file.exists():
            sources.append(file)
            runs[run.spec.run_id] = _record(run)
    if not sources:
        return None
    return gather(artefact, plan.scale.name, sources, plan.request.results_dir, runs)


def _record(run: Run) -> dict[str, Any]:
    """What the results say of a run: its spec, who made it, how it ended."""
    provenance = [json.loads(line) for line in run.folder.provenance_file.read_text().splitlines()]
    return {
        "model": run.spec.name,
        "spec": json.loads(run.spec.to_json()),
        "provenance": provenance[-1],
        "starts": len(provenance),
        "final_loss": run.folder.read_metrics()[-1]["loss"],
        "params": provenance[-1]["params"],
    }


def render(artefact: str, scale: str, results_dir: Path) -> list[Path]:
    """Draw an artefact from its stored rows alone. ValueError where there are none."""
    if artefact not in artefact_names():
        raise ValueError(f"{artefact}: no such figure or table; choose from {', '.join(artefact_names())}.")
    rows, meta = read_rows(results_dir / scale / f"{artefact}.parquet")
    return importlib.import_module(f"analysis.{artefact}").render(rows, meta, results_dir / scale)


def write_report(scale: str, results_dir: Path) -> Path:
    """results/SCALE/report.html from everything that is stored at that scale."""
    return report.build(results_dir / scale)
