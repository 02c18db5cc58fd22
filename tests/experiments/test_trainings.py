"""A run that was trained twice: rows of both are kept, and no artefact mixes them."""

import io
import json
from dataclasses import replace
from pathlib import Path

import pytest
from rich.console import Console

from analysis.study import Study, read_lines, study_file
from experiments import execute
from experiments.adopt import adopt
from experiments.collect import collect, is_collected
from experiments.overview import print_ancestry
from experiments.plan import Plan, corpus_at, make_plan
from experiments.recipes import Recipe, model_spec
from experiments.scales import SCALES
from models.build import build_model
from results.sealed import read_sealed, write_sealed
from results.store import META, meta_path, read_rows, read_run, run_file
from tests.experiments.finished import finish
from training import manifest

FIG2 = "fig2_per_token_loss"
GPU = "NVIDIA H100 80GB HBM3"


def trained(asked, weights: bytes, loss: float, *, where: str = "runs", device: str = GPU, **more) -> Plan:
    """A plan whose only run was trained to these weights and evaluated."""
    request = replace(asked, artefacts=(FIG2,), only=("fox_pro",), runs_dir=asked.runs_dir.with_name(where), **more)
    plan = make_plan(request)
    (run,) = plan.runs.values()
    run.folder.create(run.folder.path, run.spec)
    finish(run, evaluations=True, loss=loss, weights=weights, final_loss=loss, device=device)
    return plan


def said(plan: Plan, code: int = 0) -> str:
    text = io.StringIO()
    assert execute.draw([*plan.drawings.values()], Console(file=text, width=500)) == code
    return text.getvalue()


def line_of(asked):
    (line,) = read_lines(asked.results_dir, "tiny", FIG2)
    return line


def contents(folder: Path) -> dict[Path, bytes]:
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def digest_of(plan: Plan) -> str:
    (run,) = plan.runs.values()
    assert run.folder.weights is not None
    return run.folder.weights


def test_rows_of_another_training_are_kept_beside_and_drawn_when_asked_for(asked):
    first = trained(asked, b"first", 2.0)
    assert "stay drawn" not in said(first)
    x, (run,) = digest_of(first), first.runs.values()
    assert line_of(asked).weights == x and [len(Path(name).stem) for name in line_of(asked).files] == [10 + 1 + 8]
    before = {path: body for path, body in contents(asked.results_dir).items() if "rows" in path.parts}

    second = trained(asked, b"second", 2.1, where="again")
    text, y = said(second), digest_of(second)
    assert x != y and "1 lines are still drawn from other trainings" in text
    assert "--draw-these-trainings" in text and y[:8] in text
    assert is_collected(second.drawings[FIG2])
    assert line_of(asked).weights == x and len(line_of(asked).files) == 1
    rows = {path: body for path, body in contents(asked.results_dir).items() if "rows" in path.parts}
    assert before.items() <= rows.items() and len(rows) == 2 * len(before)
    (beside,) = [path for path in rows if path.name.endswith(f"-{y[:8]}.parquet")]
    assert read_rows(beside, META)[1]["weights"] == y
    record = read_run(run_file(asked.results_dir, "tiny", run.spec.run_id))
    assert [(each["weights"], each["final_loss"], len(each["starts"])) for each in record["trainings"]] == [
        (x, 2.0, 1), (y, 2.1, 1),
    ]  # fmt: skip
    assert record["final_loss"] == 2.0 and len(record["starts"]) == 2

    for plan, drawn in ((second, y), (first, y)):  # asked for once, an artefact keeps drawing from it
        request = replace(plan.request, draw_these_trainings=plan is second)
        said(make_plan(request))
        (line,) = read_lines(asked.results_dir, "tiny", FIG2)
        assert line.weights == drawn and all(drawn[:8] in name for name in line.files)
        console = Console(record=True, width=300)
        print_ancestry(FIG2, "tiny", asked.results_dir, console)
        why = console.export_text()
        assert why.count("drawn from weights") == 1 and f"drawn from weights {drawn}" in why
        assert f"training with weights {x}: 1 starts, final loss 2.00000" in why
        assert Study(asked.results_dir, "tiny", FIG2).final_loss(line) == 2.1
    third = trained(asked, b"third", 2.2, where="third")
    assert is_collected(third.drawings[FIG2]), "its line stays with the second"
    said(make_plan(replace(first.request, draw_these_trainings=True)))
    assert line_of(asked).weights == x, "and back to the first"


@pytest.mark.parametrize(("off", "added"), [(0.0, 0), (0.005, 0), (0.02, 2)])
def test_a_cpu_that_rounds_otherwise_adds_nothing(asked, off, added):
    cpu = "Some CPU (1 thread, AVX2)"
    said(trained(asked, b"first", 2.0, device=cpu))
    before = contents(asked.results_dir)
    said(trained(asked, b"second", 2.0 + off, where="again", device=cpu), 3 if added else 0)
    after = contents(asked.results_dir)
    assert len(after) == len(before) + added
    if not added:
        assert after == before


def test_rows_of_before_weights_had_digests_are_marked(asked):
    plan = trained(asked, b"", 2.0)
    said(plan)
    line = line_of(asked)
    assert line.weights is None and line.trained_weights == "weights not recorded"
    assert "weights" not in json.loads(study_file(asked.results_dir, "tiny", FIG2).read_text())["lines"][0]
    console = Console(record=True, width=300)
    print_ancestry(FIG2, "tiny", asked.results_dir, console)
    assert "drawn from weights not recorded" in console.export_text()
    assert "weights not recorded" in (asked.results_dir / "tiny" / "report.html").read_text()
    said(trained(asked, b"other", 2.1, where="again"))
    assert line_of(asked) == line, "another training takes no place of theirs"


def test_a_line_of_two_trainings_is_refused_with_the_command_that_mends_it(asked):
    said(trained(asked, b"first", 2.0))
    x = line_of(asked)
    said(trained(asked, b"second", 2.1, where="again"))
    said(trained(asked, b"second", 2.1, where="again", draw_these_trainings=True))
    y = line_of(asked)
    file = study_file(asked.results_dir, "tiny", FIG2)
    values = read_sealed(file, "")
    for mixed in ({**x.files, **y.files}, x.files):
        write_sealed(file, {**values, "lines": [{**values["lines"][0], "files": mixed}]})
        with pytest.raises(ValueError, match=rf"{FIG2} at tiny mixes trainings of run .*run {FIG2} .*--draw-these-trainings"):
            Study(asked.results_dir, "tiny", FIG2).whole()


def test_an_evaluation_of_weights_that_were_replaced_is_made_again(asked):
    plan = trained(asked, b"first", 2.0)
    (run,) = plan.runs.values()
    assert run.missing_evals == ()
    (run.folder.export / "model.safetensors").write_bytes(b"again")
    manifest.seal(run.folder.export, run_id=run.spec.run_id)
    assert run.missing_evals == run.evals
    assert collect(plan.drawings[FIG2]) is None


def test_lost_rows_of_a_replaced_training_are_told_with_what_brings_the_figure_back(asked):
    """The run folder makes no rows of weights that it does not hold, however often they are asked for."""
    said(trained(asked, b"first", 2.0))
    second = trained(asked, b"second", 2.1, where="again")
    said(second)
    (name,) = line_of(asked).files
    rows = asked.results_dir / name
    for path in (meta_path(rows), rows):
        path.unlink()
        assert not is_collected(second.drawings[FIG2])
        with pytest.raises(ValueError, match=rf"^{path} is lost: bring it back .git restore., or .* --draw-these-trainings$"):
            collect(second.drawings[FIG2])
        path.touch()
    rows.unlink()
    meta_path(rows).unlink()
    said(make_plan(replace(second.request, draw_these_trainings=True)))
    said(second)
    assert line_of(asked).weights == digest_of(second)


def test_lost_rows_that_nothing_asks_for_any_more_are_told_with_what_brings_the_figure_back(asked):
    plan, file = trained(asked, b"first", 2.0), study_file(asked.results_dir, "tiny", FIG2)
    said(plan)
    values = read_sealed(file, "")
    (line,) = values["lines"]
    write_sealed(file, {**values, "lines": [{**line, "files": {**line["files"], "tiny/rows/needle/0-1.parquet": "2"}}]})
    with pytest.raises(ValueError, match=rf"needle/0-1.parquet is lost: .* or delete {file}, which `run` writes again$"):
        collect(plan.drawings[FIG2])
    file.unlink()
    said(plan)
    assert read_sealed(file, "") == values


@pytest.fixture
def published(tmp_path) -> Path:
    """A checkpoint of fox_pro at tiny, with a tokeniser that nothing here reads."""
    build_model(model_spec("fox_pro", SCALES["tiny"], 512)).save_pretrained(tmp_path / "published")
    (tmp_path / "published" / "tokenizer.json").write_text("{}")
    return tmp_path / "published"


def adopted(asked, published: Path, where: str) -> Plan:
    """A plan of Figure 2 whose only run was adopted into a folder of its own, and evaluated."""
    asked = replace(asked, artefacts=(FIG2,), only=("fox_pro",), runs_dir=asked.runs_dir.with_name(where))
    corpus = corpus_at(asked, SCALES["tiny"], rehearsal=False)
    adopt(published, Recipe("fox_pro", "fox_pro", "tiny"), corpus.spec, None, asked.runs_dir)
    plan = make_plan(replace(asked, results_dir=asked.results_dir.with_name("theirs")))
    (run,) = plan.runs.values()
    assert run.folder.finished and run.spec.weights is not None
    finish(run, evaluations=True)
    return plan


@pytest.mark.parametrize("cut", [0, 100])
def test_a_damaged_adopted_model_is_whole_when_it_is_adopted_again(asked, published, cut):
    """A file has its size with other bytes, or is cut off."""
    (run,) = adopted(asked, published, "adopted").runs.values()
    file = run.folder.export / "model.safetensors"
    whole = file.read_bytes()
    file.write_bytes(whole[: -100 - cut] + bytes(100))
    with pytest.raises(ValueError, match="damaged"):
        run.folder.check_export()
    again = adopt(published, Recipe("fox_pro", "fox_pro", "tiny"), run.spec.data, None, run.folder.path.parents[1])
    again.check_export()
    assert again.path == run.folder.path and file.read_bytes() == whole


def test_adopted_weights_take_no_place_of_a_training(asked, published):
    """Neither in a folder of runs, where a new plan would draw them, nor in a figure; a run that has not been begun is none."""
    own = trained(asked, b"own", 2.0)
    said(own)
    (run,) = own.runs.values()
    before = contents(asked.runs_dir)
    with pytest.raises(ValueError, match=rf"{run.folder.path} is a training of seed 0, which the adopted fox_pro-\w+ replaces"):
        adopted(asked, published, "runs")
    assert contents(asked.runs_dir) == before
    theirs = adopted(asked, published, "theirs")
    (their_run,) = theirs.runs.values()
    names = rf"run {their_run.spec.run_id} is adopted and cannot be averaged with run {run.spec.run_id} \(seed 0\) or drawn in"
    with pytest.raises(ValueError, match=names):
        make_plan(replace(theirs.request, results_dir=asked.results_dir))
    their_run.folder.path.rename(run.folder.path.with_name(their_run.folder.path.name))
    with pytest.raises(ValueError, match=r"is a training of seed 0, .*--runs-dir FOLDER"):
        make_plan(replace(own.request, results_dir=theirs.request.results_dir))
    run.folder.provenance_file.unlink()
    assert make_plan(replace(own.request, results_dir=theirs.request.results_dir)).runs.keys() == theirs.runs.keys()


def test_adopted_weights_are_no_seed_of_a_series(asked, published):
    """Neither of one that is asked for with them nor of one drawn before; drawn alone, the report says what they are."""
    theirs = adopted(asked, published, "theirs")
    (run,) = theirs.runs.values()
    for seeds in ((0, 1), (1, 0)):
        with pytest.raises(ValueError, match=rf"run {run.spec.run_id} is adopted .* \(seed 1\) .*--seeds 0 asks for it alone"):
            make_plan(replace(theirs.request, seeds=seeds))
    said(theirs)
    report = (theirs.request.results_dir / "tiny" / "report.html").read_text()
    assert report.count("<td>adopted</td>") == 2, "of the line and of the run"
    with pytest.raises(ValueError, match=rf"run {run.spec.run_id} is adopted and cannot be averaged"):
        make_plan(replace(theirs.request, seeds=(1,)))
    another = make_plan(replace(theirs.request, seeds=(1,), results_dir=asked.results_dir))
    (other,) = another.runs.values()
    other.folder.create(other.folder.path, other.spec)
    finish(other, evaluations=True, weights=b"other")
    said(another)
    with pytest.raises(ValueError, match=rf"averaged with run {other.spec.run_id} \(seed 1\)"):
        make_plan(replace(theirs.request, results_dir=asked.results_dir))
    make_plan(replace(theirs.request, only=("hgrn2",), seeds=(0, 1)))


def test_why_names_adopted_weights_once(asked, published):
    """By the digest that rows have, which is of the weights alone, also where the run's own is of a tokeniser, too."""
    (published / "tokenizer.json").write_text("{}")
    theirs = adopted(asked, published, "theirs")
    (run,) = theirs.runs.values()
    said(theirs)
    console = Console(record=True, width=300)
    print_ancestry(FIG2, "tiny", theirs.request.results_dir, console)
    why = console.export_text()
    assert run.spec.weights != run.folder.weights and run.spec.weights not in why
    assert f"(fox_pro, trained elsewhere and adopted): run {run.spec.run_id} of scale tiny" in why
    assert why.count("weights") == 1 and f"drawn from weights {run.folder.weights}" in why
