"""Figures and the report from stored rows alone; one that is broken does not cost the others."""

import io
from dataclasses import replace

import pytest
from rich.console import Console

from analysis.study import Study, study_file
from experiments import render
from experiments.__main__ import main
from experiments.artefact import artefacts
from experiments.plan import make_plan, write_specs
from tests.experiments.finished import finish

FIG2, F4 = "fig2_per_token_loss", "appendix_windowed"


@pytest.fixture
def made(asked):
    """Two artefacts with one run each, collected and drawn."""
    plan = make_plan(replace(asked, artefacts=(FIG2, F4), only=("fox_pro",)))
    write_specs(plan)
    for run in plan.runs.values():
        finish(run, evaluations=True)
    assert main(["render", *plan.drawings, "--results-dir", str(asked.results_dir)]) == 0
    return plan


def refuse(study):
    raise KeyError("shared")


def test_a_broken_artefact_is_named_and_costs_no_other(made, monkeypatch, capsys):
    results_dir = made.request.results_dir
    folder = results_dir / "tiny"
    other = folder / "figures" / f"{F4}.png"
    monkeypatch.setitem(artefacts(), FIG2, replace(artefacts()[FIG2], draw=refuse, summary=refuse))
    for stems in ((), (FIG2,)):
        other.unlink(missing_ok=True)
        (folder / "report.html").unlink()
        assert main(["render", *stems, "--results-dir", str(results_dir)]) == 2, "a job is not restarted for it"
        said = capsys.readouterr().err
        assert f"error: {FIG2} at tiny is not drawn: KeyError: 'shared'" in said and "in refuse" in said
        assert "Not drawn:</strong> KeyError: &#39;shared&#39;" in (folder / "report.html").read_text()
        assert other.is_file() is not bool(stems)


def test_a_picture_that_is_drawn_no_more_goes(made, monkeypatch):
    """Else the report would go on showing it; what the user put beside it stays."""
    results_dir = made.request.results_dir
    old, own = (results_dir / "tiny" / "figures" / name for name in (f"{FIG2}-old.png", f"{FIG2}-mine.png"))
    draw = artefacts()[FIG2].draw
    for more in ([old], []):
        monkeypatch.setitem(artefacts(), FIG2, replace(artefacts()[FIG2], draw=lambda study, more=more: [*draw(study), *more]))
        old.write_bytes(b"")
        own.write_bytes(b"")
        assert render.render_all([FIG2], "tiny", results_dir, Console(file=io.StringIO())) == []
        assert (old.exists(), own.exists()) == (bool(more), True)
    assert all(path.exists() for path in draw(Study(results_dir, "tiny", FIG2)))


def test_rows_that_are_damaged_break_their_own_figure_only(made, capsys):
    results_dir = made.request.results_dir
    run = next(iter(made.runs.values()))
    study_file(results_dir, "tiny", FIG2).write_text("{")
    assert render.render_all(render.stored("tiny", results_dir), "tiny", results_dir, Console(file=io.StringIO())) == [FIG2]
    said = capsys.readouterr().err
    assert f"{FIG2}.json is damaged" in said and "Traceback" not in said
    assert "Cannot be read" in (results_dir / "tiny" / "report.html").read_text()
    study_file(results_dir, "tiny", FIG2).unlink()
    write_specs(made)
    run.eval_file(run.evals[0]).write_bytes(b"")
    assert FIG2 in render.render_all(render.stored("tiny", results_dir), "tiny", results_dir, Console(file=io.StringIO()))
