"""Tests of what is kept of one run, copied to its place in another: refused, or made again, never used."""

import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from analysis.study import Study
from experiments.collect import collect
from experiments.plan import Plan, Run, make_plan
from results.store import meta_path
from tests.experiments.finished import finish, write_curve

STEMS = ("fig2_per_token_loss", "appendix_training_curves")
OWN, OTHERS = 2.5, 2.0
"""Losses of the run that is copied to, and of the run that is copied from."""


def plan_of(asked, **more) -> Plan:
    return make_plan(replace(asked, artefacts=STEMS, only=("fox_pro",), seeds=(0, 1), **more))


def runs_of(plan: Plan) -> tuple[Run, Run]:
    one, two = sorted(plan.runs.values(), key=lambda run: run.spec.seed)
    return one, two


@pytest.fixture
def plan(asked) -> Plan:
    """Two finished runs whose rows are stored."""
    made = plan_of(asked)
    for run, loss in zip(runs_of(made), (OWN, OTHERS), strict=True):
        run.folder.create(run.folder.path, run.spec)
        finish(run, evaluations=True, loss=loss, weights=f"{loss}".encode(), final_loss=loss)
        for spec in run.evals:
            if spec.kind == "training_curve":
                write_curve(run, spec, 1.0, loss)
    for stem in STEMS:
        collect(made.drawings[stem])
    return made


def files_of(plan: Plan, results: Path) -> list[tuple[Path, ...]]:
    """Return what is kept of the second run: each file alone, and those that belong together."""
    _, other = runs_of(plan)
    kept = [path for path in other.folder.path.rglob("*") if path.is_file()]
    stored = [path for path in results.rglob(f"{other.spec.run_id}*") if path.is_file()]
    pairs = [(path, meta_path(path)) for path in (*kept, *stored) if path.suffix == ".parquet"]
    export = tuple(other.folder.export.rglob("*"))
    return [*((path,) for path in (*kept, *stored)), *pairs, export, tuple(kept), tuple(stored)]


def drawn(asked, results: Path) -> list[float]:
    """The numbers that the artefacts would draw for the first run: the last loss of each, and of its record."""
    plan = plan_of(asked, results_dir=results, reuse_stored=results == asked.results_dir)
    run, _ = runs_of(plan)
    found = []
    for stem, kind in zip(STEMS, ("per_token_loss", "training_curve"), strict=True):
        if run.missing_evals or collect(plan.drawings[stem]) is None:
            continue  # made again
        study = Study(results, "tiny", stem).whole()
        rows = study.rows(kind)
        rows = rows[rows["run_id"] == run.spec.run_id]
        found += [float(rows["loss"].iloc[-1])] if len(rows) else []
        found += [study.runs[run.spec.run_id]["final_loss"]] if run.spec.run_id in study.runs else []
    return [value for value in found if value is not None]


def test_nothing_of_another_run_is_used(asked, plan, tmp_path):
    run, other = runs_of(plan)
    places = [asked.runs_dir, asked.results_dir]
    whole = [shutil.copytree(place, tmp_path / "whole" / place.name) for place in places]
    own = {round(value, 1) for results in (asked.results_dir, tmp_path / "new") for value in drawn(asked, results)}
    assert own == {OWN}
    refused = remade = tried = 0
    for paths in files_of(plan, asked.results_dir):
        for results in (asked.results_dir, tmp_path / "new"):
            for place, copy in zip(places, whole, strict=True):
                shutil.rmtree(place)
                shutil.copytree(copy, place)
            shutil.rmtree(tmp_path / "new", ignore_errors=True)
            for path in paths:
                target = Path(str(path).replace(other.spec.run_id, run.spec.run_id))
                if path.is_file():
                    shutil.copyfile(path, target)
            tried += 1
            try:
                values = drawn(asked, results)
            except ValueError:
                refused += 1
                continue
            remade += not values
            assert {round(value, 1) for value in values} <= {OWN}, (paths, results, values)
    assert tried > 40 and refused and remade, (tried, refused, remade)


def test_an_export_of_another_run_is_no_export(plan):
    run, other = runs_of(plan)
    assert run.folder.finished
    shutil.rmtree(run.folder.export)
    shutil.copytree(other.folder.export, run.folder.export)
    assert not run.folder.finished and "its run_id is" in str(run.folder.export_fault(digests=True))
