"""What is kept of one run, copied to its place in another: refused, or made again, never drawn."""

import shutil
from dataclasses import replace
from pathlib import Path

from analysis.study import Study
from experiments.plan import Plan, Run, make_plan, write_specs
from tests.experiments.finished import finish, write_curve

STEMS = {"fig2_per_token_loss": "per_token_loss", "appendix_training_curves": "training_curve"}
OWN, OTHERS = 2.5, 2.0
"""Losses of the run that is copied to, and of the run that is copied from."""


def runs_of(plan: Plan) -> tuple[Run, Run]:
    one, two = sorted(plan.runs.values(), key=lambda run: run.spec.seed)
    return one, two


def drawn(asked) -> list[float]:
    """The last losses that the artefacts would draw for the first run; nothing for what `run` would make again."""
    plan = make_plan(replace(asked, artefacts=tuple(STEMS), only=("fox_pro",), seeds=(0, 1)))
    run, _ = runs_of(plan)
    found = []
    for stem, kind in STEMS.items() if not run.missing_evals else ():
        rows = Study(asked.results_dir, "tiny", stem).rows(kind)
        found.append(round(float(rows[rows["run_id"] == run.spec.run_id]["loss"].iloc[-1]), 1))
    return found


def test_nothing_of_another_run_is_used(asked, tmp_path):
    plan = make_plan(replace(asked, artefacts=tuple(STEMS), only=("fox_pro",), seeds=(0, 1)))
    write_specs(plan)
    run, other = runs_of(plan)
    for each, loss in ((run, OWN), (other, OTHERS)):
        finish(each, evaluations=True, loss=loss, weights=f"{loss}".encode(), final_loss=loss)
        for spec in each.evals:
            if spec.kind == "training_curve":
                write_curve(each, spec, 1.0, loss)
    assert drawn(asked) == [OWN, OWN]
    whole = shutil.copytree(run.folder.path, tmp_path / "whole")
    kept = [path for path in other.folder.path.rglob("*") if path.is_file()]
    refused = remade = 0
    for paths in (*((path,) for path in kept), tuple(other.folder.export.rglob("*")), tuple(kept)):
        shutil.rmtree(run.folder.path)
        shutil.copytree(whole, run.folder.path)
        for path in paths:
            shutil.copyfile(path, Path(str(path).replace(other.spec.folder_name, run.spec.folder_name)))
        try:
            found = drawn(asked)
        except ValueError:
            refused += 1
            continue
        remade += not found
        assert {*found} <= {OWN}, (paths, found)
    assert refused and remade
    shutil.copytree(other.folder.export, run.folder.export, dirs_exist_ok=True)
    assert not run.folder.finished and "its run_id is" in str(run.folder.export_fault(digests=True))
