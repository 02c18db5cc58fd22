"""Storage only grows, and a figure names what it is drawn from."""

import errno
import fcntl
import io
import json
import math
import multiprocessing
import os
import shutil
import signal
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest
from rich.console import Console

from analysis import style
from analysis.study import Study, read_lines, study_file
from eval.kinds import eval_id
from experiments import __main__ as command
from experiments import collect as collecting
from experiments import compare, execute, graph
from experiments.collect import Collected, DrawSpec, collect, drawn_file, is_collected
from experiments.overview import print_ancestry, print_plan
from experiments.plan import Plan, make_plan
from results.store import meta_path, read_rows, rows_file, run_file
from tests.experiments.finished import finish, write_curve, write_loss, write_timing
from training.lines import line

pytestmark = pytest.mark.usefixtures("pictures_of_a_dot")
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
    collect(plan.drawings[FIG2])
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


def test_what_was_not_reproduced_is_said_with_its_cause(asked, monkeypatch):
    plan = made(asked, *PAIR)
    found = Collected(FIG2, 2, {"needle-2 of b"}, {"needle-1 of a": math.inf, "per_token_loss-2 of b": 0.25})
    for collected in (found, Collected(FIG2, 2, {"needle-1 of a", "needle-2 of b", "needle-3 of c"}, {})):
        monkeypatch.setattr(execute, "collect", lambda _, collected=collected: collected)
        execute.draw([*plan.drawings.values()] * 2, Console(width=200, file=(said := io.StringIO())))  # both draw the same rows
        text = said.getvalue()
        reproduced = len(collected.reproduced)
        stored = reproduced + len(collected.differing)
        assert f"{reproduced} of {stored} stored evaluations were reproduced within rounding" in text
        told = (
            "needle-1 of a: in its texts; the rows that were stored first",
            "per_token_loss-2 of b: by 2.5e-01 of the largest",
            "at most 0.01 nats apart",
        )
        assert [words in text for words in told] == [bool(collected.differing)] * 3


def test_rows_in_the_store_are_drawn_without_their_run_folders(asked):
    plan = made(asked, *PAIR)
    study_file(asked.results_dir, "tiny", FIG2).unlink()
    for run in plan.runs.values():
        shutil.rmtree(run.folder.evals)
    collect(plan.drawings[FIG2])
    assert len(places(asked)) == 2


def test_stored_rows_stay_and_a_difference_is_told(asked):
    plan = made(asked, "fox_pro")
    (run,) = plan.runs.values()
    stored = rows_file(asked.results_dir, "tiny", run.spec.run_id, run.eval_file(run.evals[0]).stem)
    before = stored.read_bytes(), meta_path(stored).read_bytes()
    again = collect(plan.drawings[FIG2])
    assert again is not None and (again.reproduced, again.differing) == (set(), {}), "its own rows"
    write_loss(run, run.evals[0], 2.0, created="2026-01-02")
    again = collect(plan.drawings[FIG2])
    assert again is not None and (len(again.reproduced), again.differing) == (1, {})
    write_loss(run, run.evals[0], 2.006)
    other = collect(plan.drawings[FIG2])
    assert other is not None and (other.reproduced, other.beyond) == (set(), {})
    assert list(other.differing.values()) == [pytest.approx(0.006 / 3)]
    assert (stored.read_bytes(), meta_path(stored).read_bytes()) == before


def test_a_curve_of_another_speed_is_reproduced_and_one_of_another_loss_is_not(asked):
    plan = make_plan(replace(asked, artefacts=("appendix_training_curves",), only=("fox_pro",)))
    (run,) = plan.runs.values()
    run.folder.create(run.folder.path, run.spec)
    finish(run)
    for speed, loss, differing, beyond in ((5.0, 3.0, 0, 0), (7.0, 3.0, 0, 0), (7.0, 3.009, 1, 0), (7.0, 3.011, 0, 1)):
        write_curve(run, run.evals[0], speed, loss)
        collected = collect(plan.drawings["appendix_training_curves"])
        assert collected is not None and (len(collected.differing), len(collected.beyond)) == (differing, beyond)


def test_a_newer_run_takes_the_place_of_an_older_one(asked):
    made(asked, *PAIR)
    file = study_file(asked.results_dir, "tiny", FIG2)
    older = read_lines(asked.results_dir, "tiny", FIG2)
    from analysis.study import write_lines

    write_lines(asked.results_dir, "tiny", FIG2, [replace(older[0], run_id="0123456789"), older[1]])
    made(asked, "fox_pro")
    assert read_lines(asked.results_dir, "tiny", FIG2) == older
    assert json.loads(file.read_text())["sha256"]


def test_a_run_that_diverged_costs_no_figure(asked, capsys):
    """Its loss is unknown; and one that cannot be kept is named, its figure alone is not drawn."""
    plan = make_plan(replace(asked, artefacts=(FIG2, "appendix_training_curves"), only=PAIR))
    for run, loss in zip(plan.runs.values(), (math.nan, 3.0), strict=True):
        run.folder.create(run.folder.path, run.spec)
        finish(run, evaluations=True, final_loss=loss)
        (curve,) = (spec for spec in run.evals if spec.kind == "training_curve")
        write_curve(run, curve, 1.0, 3.0)
    specs = [*plan.drawings.values()]
    assert execute.draw(specs[:1], Console(file=io.StringIO())) == 0
    study = Study(asked.results_dir, "tiny", FIG2)
    assert [study.final_loss(line) for line in study.lines] == [None, 3.0]
    run_file(asked.results_dir, "tiny", next(iter(plan.runs.values())).spec.run_id).write_text("{}")
    alone = replace(specs[1], lines=specs[1].lines[1:])
    assert execute.draw([specs[0], alone], Console(file=(said := io.StringIO()))) == 1
    assert "error: " in (told := capsys.readouterr().err) and f"{FIG2} at tiny is not drawn: " in told
    assert "figures/appendix_training_curves.png" in said.getvalue().replace("\n", "")
    assert execute.draw(specs[:1], Console(file=io.StringIO())) == 1


def test_two_commands_at_once_lose_nothing_of_each_other(asked, monkeypatch):
    """A figure's lines are read, joined and written again: one command waits for another, and says so."""
    drawings = [made(asked, "fox_pro", seeds=(seed,)).drawings[FIG2] for seed in (0, 1)]
    study_file(asked.results_dir, "tiny", FIG2).unlink()

    def slowly(*given):
        found = read_lines(*given)
        time.sleep(0.3)
        return found

    monkeypatch.setattr(collecting, "read_lines", slowly)
    monkeypatch.setattr(execute, "render_all", lambda *given: [])
    said = [io.StringIO() for _ in drawings]
    with ThreadPoolExecutor() as pool:
        consoles = (Console(file=each, width=500) for each in said)
        assert list(pool.map(execute.draw, ([spec] for spec in drawings), consoles)) == [0, 0]
    assert sorted(places(asked)) == [("fox_pro", 0), ("fox_pro", 1)]
    waits = f"another command is drawing into {asked.results_dir}; waiting for it ..."
    assert sorted(waits in each.getvalue() for each in said) == [False, True]


def test_folders_whose_names_are_markup_are_told_as_they_are(asked, tmp_path, monkeypatch, capsys):
    """[dim] would be swallowed, and [/x] ends a command."""
    odd = tmp_path / "a[/x] [dim]"
    places = {f"{name}_dir": odd / name for name in ("runs", "results", "corpora")}
    plan = made(replace(asked, **places), "fox_pro")
    console = Console(file=(told := io.StringIO()), width=500, soft_wrap=True)
    assert execute.draw([*plan.drawings.values()], console) == 0
    (run,) = plan.runs.values()
    monkeypatch.setattr(execute, "check", lambda plan: None)
    execute.prepare_corpora(plan, console)
    print_plan(plan, 0.4, console)
    of_run = compare.training_of(run.folder)
    compare.print_parting(of_run, replace(of_run, spec={"data": {"source": str(odd)}}), console)
    compare.print_bands([compare.Compared(odd.name, "needle-1", "score", 1.0, None)], console)
    for place in (f"drawn {odd}/results/tiny/figures/{FIG2}.png", f"report {odd}/results/tiny/report.html",
                  f"done  corpus in {run.corpus.folder} ", f"ready in {run.corpus.folder}", f"a: {run.folder.path}\n",
                  f"  {odd}\n", f"{odd.name}  needle-1, score"):  # fmt: skip
        assert place in told.getvalue(), place
    monkeypatch.setattr(command.plan, "corpus_at", lambda *given: run.corpus)
    monkeypatch.setattr(command.adopt, "adopt", lambda *given: run.folder)
    assert command.main(["adopt", str(odd), "--as", "fox_pro"]) == 0
    assert f"adopted as {run.folder.path};" in capsys.readouterr().out.replace("\n", " ")


def test_a_file_system_without_locks_keeps_nobody_from_drawing(asked, monkeypatch):
    def flock(file: object, how: int) -> None:
        raise OSError(errno.ENOLCK, "No locks available")

    plan = made(asked, "fox_pro")
    monkeypatch.setattr(fcntl, "flock", flock)
    assert execute.draw([*plan.drawings.values()], Console(file=io.StringIO())) == 0


def test_damage_is_refused_and_named(asked):
    plan = made(asked, "fox_pro")
    (run,) = plan.runs.values()
    stored = rows_file(asked.results_dir, "tiny", run.spec.run_id, run.eval_file(run.evals[0]).stem)
    body = bytearray(stored.read_bytes())
    body[100] ^= 1
    stored.write_bytes(bytes(body))
    with pytest.raises(ValueError, match=f"{stored.name}: truncated or changed"):
        read_rows(stored)
    collect(plan.drawings[FIG2])  # the run folder still has them
    assert len(read_rows(stored)[0]) == 1024
    meta = json.loads(meta_path(stored).read_text())
    meta["provenance"]["git_sha"] = "other"
    meta_path(stored).write_text(json.dumps(meta))
    with pytest.raises(ValueError, match="was changed after it was written"):
        read_rows(stored)


def test_every_start_of_a_run_with_new_rows_is_kept(asked):
    plan = made(asked, "fox_pro")
    (run,) = plan.runs.values()
    (start,) = run.folder.read_starts()
    stored = rows_file(asked.results_dir, "tiny", run.spec.run_id, run.eval_file(run.evals[0]).stem)
    run.folder.begin_start({**start, "date": "2026-01-02T00:00:00+00:00", "git_sha": "def", "first_step": 7})
    for provenance in (run.folder.provenance_file.read_text(), line(start)):
        stored.unlink()  # so that rows are new
        run.folder.provenance_file.write_text(provenance)
        collect(plan.drawings[FIG2])
    study = Study(asked.results_dir, "tiny", FIG2)
    assert [start["git_sha"] for start in study.runs[run.spec.run_id]["starts"]] == ["abc", "def"]
    console = Console(record=True, width=200)
    print_ancestry(FIG2, "tiny", asked.results_dir, console)
    said = console.export_text()
    for word in (run.spec.run_id, "def", "from step 7", run.spec.data.fingerprint, run.eval_file(run.evals[0]).stem[-8:]):
        assert word in said


def contents(folder):
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_a_users_own_run_over_stored_rows_changes_no_file(asked):
    """Rows that are reproduced, or not, whose training was another start: what is published stays to the byte."""
    plan = made(asked, *PAIR, seeds=(0, 1))
    assert not execute.draw([*plan.drawings.values()], Console(file=io.StringIO()))
    before = contents(asked.results_dir)
    assert len(before) > 10
    shutil.rmtree(asked.runs_dir)
    for index, run in enumerate(plan.runs.values()):
        run.folder.create(run.folder.path, run.spec)
        finish(run, evaluations=True, loss=2.0 + index / 10 if index else 2.005, created="2026-02-02")
        (start,) = run.folder.read_starts()
        run.folder.begin_start({**start, "date": "2026-02-02T00:00:00+00:00", "git_sha": "mine"})
    assert not execute.draw([*plan.drawings.values()], Console(file=(said := io.StringIO())))
    assert "3 of 4 stored evaluations were reproduced within rounding" in said.getvalue()
    assert contents(asked.results_dir) == before


def timed(asked, machine: str) -> Plan:
    """A plan whose timings were made on a machine."""
    plan = make_plan(replace(asked, artefacts=("table6_throughput",), only=PAIR), machine=machine)
    for run in plan.runs.values():
        run.folder.create(run.folder.path, run.spec)
        for spec in run.evals:
            write_timing(run, spec)
    return plan


def test_another_cpus_timings_are_not_added_and_a_gpus_are(asked):
    execute.draw([*timed(asked, "One CPU, 2 cores").drawings.values()], Console(file=io.StringIO()))
    before = contents(asked.results_dir)
    other = timed(asked, "Another CPU, 64 cores")
    assert not execute.draw([*other.drawings.values()], Console(file=(said := io.StringIO()), width=200))
    assert "2 timings of this CPU stay in their run folders: timings of another CPU are stored" in said.getvalue()
    assert contents(asked.results_dir) == before
    assert is_collected(other.drawings["table6_throughput"])
    run, wanted = next(iter(other.runs.values())), other.drawings["table6_throughput"].lines[0]
    for repeats, is_stored in ((run.evals[0].repeats, True), (9, False)):  # which is another timing
        write_timing(run, replace(run.evals[0], repeats=repeats))
        asked_for = eval_id(replace(run.evals[0], repeats=repeats))
        assert collecting._stored_at(wanted, asked_for, asked.results_dir).is_file() is is_stored
    gpu = timed(asked, "NVIDIA H100")
    assert not is_collected(gpu.drawings["table6_throughput"])
    assert not execute.draw([*gpu.drawings.values()], Console(file=(said := io.StringIO())))
    assert "stay in their run folders" not in said.getvalue()
    assert [len(line.files) for line in read_lines(asked.results_dir, "tiny", "table6_throughput")] == [2, 2]


@pytest.mark.parametrize("stem", [FIG2, "table6_throughput"])
def test_a_drawing_is_left_to_do_until_its_picture_or_table_is_there(asked, stem):
    """Its lines are written first, and its job may end between the two."""
    plan = plan_of(asked, "fox_pro") if stem == FIG2 else timed(asked, "One CPU, 2 cores")
    for run in plan.runs.values():
        run.folder.create(run.folder.path, run.spec)
        finish(run, evaluations=stem == FIG2)
    left = lambda: [task.kind for task in graph.tasks(plan) if task.kind == "draw"]  # noqa: E731
    assert left() == ["draw"]
    collect(plan.drawings[stem])
    assert is_collected(plan.drawings[stem]) and left() == ["draw"]
    for _ in range(2):  # a picture that shows the same stays as it was
        assert not execute.draw([*plan.drawings.values()], Console(file=io.StringIO())) and left() == []
        drawn = drawn_file(asked.results_dir, "tiny", stem).stat().st_mtime_ns
        os.utime(study_file(asked.results_dir, "tiny", stem), ns=(drawn, drawn + 1))
        assert left() == ["draw"], "other lines have come"


def test_a_drawing_that_is_killed_between_two_pictures_is_left_to_do(asked, monkeypatch):
    """Also where both were there before, as the first may be of other rows or code than the second."""
    plan, save = made(asked), style.save

    def killed(figure, stem):
        if stem.name.endswith("-lead"):
            os.kill(os.getpid(), signal.SIGKILL)
        return save(figure, stem)

    def draw() -> int:
        return execute.draw([*plan.drawings.values()], Console(file=io.StringIO()))

    left = lambda: [task.kind for task in graph.tasks(plan) if task.kind == "draw"]  # noqa: E731
    for _ in range(2):
        with monkeypatch.context() as patched:
            patched.setattr("analysis.style.save", killed)
            process = multiprocessing.get_context("fork").Process(target=draw)
            process.start()
            process.join()
        assert process.exitcode == -signal.SIGKILL
        assert (asked.results_dir / "tiny" / "figures" / f"{FIG2}.csv").is_file() and left() == ["draw"]
        assert draw() == 0 and left() == []
    (asked.results_dir / "tiny" / "figures" / f"{FIG2}-lead.png").unlink()
    assert left() == ["draw"]


def test_what_draw_is_told_goes_through_json_and_damage_is_named(asked, tmp_path):
    spec = make_plan(replace(asked, artefacts=("table_lr_grid",))).drawings["table_lr_grid"]
    assert all(each.line.axes for each in spec.lines)
    file = tmp_path / "spec.json"
    file.write_text(spec.to_json())
    assert DrawSpec.read(file) == spec
    file.write_text(spec.to_json().replace('"evals"', '"vals"'))
    with pytest.raises(ValueError, match=r"spec.json cannot be read .* `run` writes it again"):
        DrawSpec.read(file)
