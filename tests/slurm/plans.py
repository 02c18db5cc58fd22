"""Plans at the paper's scale that need neither data nor SLURM."""

from pathlib import Path

from experiments.plan import Plan, make_plan
from experiments.request import Request
from training.spec import Execution


def plan_of(
    tmp_path: Path,
    *artefacts: str,
    scale: str = "760m-48b",
    only: tuple[str, ...] = (),
    seeds: tuple[int, ...] = (0,),
    device: str = "cuda",
    execution: Execution | None = None,
) -> Plan:
    request = Request(
        artefacts=artefacts or ("fig2_per_token_loss",), scale=scale, only=only, seeds=seeds,
        runs_dir=tmp_path / "runs", results_dir=tmp_path / "results", corpora_dir=tmp_path / "corpora",
        execution=execution or Execution(),
    )  # fmt: skip
    return make_plan(request.on(device), machine="H100", rehearsal=True)
