"""Storage only grows, and a figure names what it is drawn from."""

import io
import json
import math
import shutil
from dataclasses import replace

import pytest
from rich.console import Console

from analysis.study import Study, read_lines, study_file
from experiments import drawing, graph
from experiments.execute import draw
from experiments.overview import print_ancestry
from experiments.plan import Plan, make_plan
from results.store import meta_path, read_rows, rows_file
from tests.experiments.finished import finish, write_curve, write_loss
from training.lines import line

FIG2 = "fig2_per_token_loss"
PAIR = ("fox_pro", "transformer_pro")


def plan_of(asked, *models: str, seeds: tuple[int, ...] = (0,)) -> Plan:
    return make_plan(replace(asked, artefacts=(FIG2,), only=models or PAIR, seeds=seeds))


def made(asked, *models: str, **more) -> Plan:
    """A plan whose runs are finished and collected."""
    plan = plan_of(asked, *models, **more)
    for index, run in enumerate(plan.runs.values()):
        run.folder.create(run.folder.path, run.spec)
        finish(run, evaluations=True, loss=2.0 + index / 10)
    drawing.collect(graph.drawing(plan, FIG2))
    return plan


def places(asked) -> list[tuple[str, int]]:
    return [(line.label, line.seed) for line in read_lines(asked.results_dir, "tiny", FIG2)]


def test_less_asked_for_removes_nothing(asked):
    made(asked, *PAIR)
    assert places(asked) == [("fox_pro", 0), ("transformer_pro", 0)]
    shutil.rmtree(asked.runs_dir)  # another checkout, which has only the results
    made(asked, "fox_pro", seeds=(1,))
    assert sorted(places(asked)) == [("fox_pro", 0), ("fox_pro", 1), ("transformer_pro", 0)]
    study = Study(asked.results_dir, "tiny", FIG2)
    rows = study.rows("per_token_loss")
    assert rows.groupby(["label", "seed"]).ngroups == 3 and study.num_seeds == 2


def test_doing_a_part_again_leaves_the_order_of_the_lines(asked):
    made(asked, *PAIR, seeds=(0, 1))
    before = places(asked)
    assert len(before) == 4
    for part in ("fox_pro", "transformer_pro"):
        made(asked, part, seeds=(0,))
        assert places(asked) == before


def test_a_new_line_stands_where_it_is_declared_and_moves_no_other(asked):
    made(asked, "hgrn2", "fox_pro")
    file = study_file(asked.results_dir, "tiny", FIG2)
    before = file.read_text().splitlines()
    assert places(asked) == [("fox_pro", 0), ("hgrn2", 0)]
    made(asked, "fox_pro", "mamba2", "hgrn2")
    assert places(asked) == [("fox_pro", 0), ("mamba2", 0), ("hgrn2", 0)]
    assert len(set(file.read_text().splitlines()) - set(before)) == 2  # the line and the seal
    made(asked, "delta_net")
    made(asked, "transformer_llama", "hgrn2")
    assert [label for label, _ in places(asked)] == ["fox_pro", "mamba2", "transformer_llama", "hgrn2", "delta_net"]


def test_what_was_not_met_is_said_with_its_cause(asked, monkeypatch):
    plan = made(asked, *PAIR)
    found = drawing.Collected(FIG2, 2, 1, {"needle-1 of a": math.inf, "per_token_loss-2 of b": 0.25})
    for collected in (found, drawing.Collected(FIG2, 2, 3, {})):
        monkeypatch.setattr(drawing, "collect", lambda _, collected=collected: collected)
        draw(plan, Console(width=200, file=(said := io.StringIO())))
        text = said.getvalue()
        assert f"{collected.met} stored evaluations were met within rounding, {len(collected.differing)} were not" in text
        told = "needle-1 of a: in its texts; what", "per_token_loss-2 of b: by 2.5e-01 of the largest", "another processor"
        assert [words in text for words in told] == [bool(collected.differing)] * 3


def test_rows_in_the_store_are_drawn_without_their_run_folders(asked):
    plan = made(asked, *PAIR)
    study_file(asked.results_dir, "tiny", FIG2).unlink()
    for run in plan.runs.values():
        shutil.rmtree(run.folder.evals)
    drawing.collect(graph.drawing(plan, FIG2))
    assert len(places(asked)) == 2


def test_stored_rows_stay_and_a_difference_is_told(asked):
    plan = made(asked, "fox_pro")
    (run,) = plan.runs.values()
    stored = rows_file(asked.results_dir, "tiny", run.spec.run_id, run.eval_file(run.evals[0]).stem)
    before = stored.read_bytes(), meta_path(stored).read_bytes()
    again = drawing.collect(graph.drawing(plan, FIG2))
    assert again is not None and (again.met, again.differing) == (1, {})
    write_loss(run, run.evals[0], 2.5)
    other = drawing.collect(graph.drawing(plan, FIG2))
    assert other is not None and other.met == 0
    assert list(other.differing.values()) == [pytest.approx(0.5 / 3)]
    assert (stored.read_bytes(), meta_path(stored).read_bytes()) == before


def test_a_curve_of_another_speed_is_met_and_one_of_another_loss_is_not(asked):
    plan = make_plan(replace(asked, artefacts=("appendix_training_curves",), only=("fox_pro",)))
    (run,) = plan.runs.values()
    run.folder.create(run.folder.path, run.spec)
    finish(run)
    for speed, loss, differing in ((5.0, 3.0, 0), (7.0, 3.0, 0), (7.0, 3.5, 1)):
        write_curve(run, run.evals[0], speed, loss)
        collected = drawing.collect(graph.drawing(plan, "appendix_training_curves"))
        assert collected is not None and len(collected.differing) == differing


def test_a_newer_run_takes_the_place_of_an_older_one(asked):
    made(asked, *PAIR)
    file = study_file(asked.results_dir, "tiny", FIG2)
    older = read_lines(asked.results_dir, "tiny", FIG2)
    from analysis.study import write_lines

    write_lines(asked.results_dir, "tiny", FIG2, [replace(older[0], run_id="0123456789"), older[1]])
    made(asked, "fox_pro")
    assert read_lines(asked.results_dir, "tiny", FIG2) == older
    assert json.loads(file.read_text())["sha256"]


def test_damage_is_refused_and_named(asked):
    plan = made(asked, "fox_pro")
    (run,) = plan.runs.values()
    stored = rows_file(asked.results_dir, "tiny", run.spec.run_id, run.eval_file(run.evals[0]).stem)
    body = bytearray(stored.read_bytes())
    body[100] ^= 1
    stored.write_bytes(bytes(body))
    with pytest.raises(ValueError, match=f"{stored.name}: truncated or changed"):
        read_rows(stored)
    drawing.collect(graph.drawing(plan, FIG2))  # the run folder still has them
    assert len(read_rows(stored)[0]) == 1024
    meta = json.loads(meta_path(stored).read_text())
    meta["provenance"]["git_sha"] = "other"
    meta_path(stored).write_text(json.dumps(meta))
    with pytest.raises(ValueError, match="was changed after it was written"):
        read_rows(stored)


def test_every_start_of_a_run_is_kept(asked):
    plan = made(asked, "fox_pro")
    (run,) = plan.runs.values()
    (start,) = run.folder.read_starts()
    run.folder.begin_start({**start, "date": "2026-01-02T00:00:00+00:00", "git_sha": "def", "first_step": 7})
    drawing.collect(graph.drawing(plan, FIG2))
    run.folder.provenance_file.write_text(line(start))
    drawing.collect(graph.drawing(plan, FIG2))
    study = Study(asked.results_dir, "tiny", FIG2)
    assert [start["git_sha"] for start in study.runs[run.spec.run_id]["starts"]] == ["abc", "def"]
    console = Console(record=True, width=200)
    print_ancestry(FIG2, "tiny", asked.results_dir, console)
    said = console.export_text()
    for word in (run.spec.run_id, "def", "from step 7", run.spec.data.fingerprint, run.eval_file(run.evals[0]).stem[-8:]):
        assert word in said


def test_drawing_twice_gives_the_same_bytes(asked):
    made(asked, *PAIR)
    first = {path: path.read_bytes() for path in drawing.render(FIG2, "tiny", asked.results_dir)}
    report = drawing.write_report("tiny", asked.results_dir).read_bytes()
    assert first and first == {path: path.read_bytes() for path in drawing.render(FIG2, "tiny", asked.results_dir)}
    assert report == drawing.write_report("tiny", asked.results_dir).read_bytes()
