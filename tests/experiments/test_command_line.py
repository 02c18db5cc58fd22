"""A newcomer's mistakes: one or two lines that name the value and the remedy, exit code 2, nothing half-written."""

from pathlib import Path

import pytest

from experiments.__main__ import main
from experiments.artefact import artefact_names
from experiments.scales import SCALES

FIG2 = "fig2_per_token_loss"


@pytest.fixture
def folders(tmp_path: Path) -> list[str]:
    """--runs-dir, --corpora-dir and --results-dir below an empty folder."""
    names = ("runs", "corpora", "results")
    return [part for name in names for part in (f"--{name}-dir", str(tmp_path / "work" / name))]


def mistake(capsys: pytest.CaptureFixture[str], arguments: list[str]) -> str:
    """What a failing command says, after the checks that hold for all of them."""
    try:
        code = main(arguments)
    except SystemExit as stop:
        code = int(stop.code or 0)
    said = capsys.readouterr().err
    assert code == 2, said
    assert said.startswith("error: ")
    assert len(said.strip().splitlines()) <= 2
    assert "Traceback" not in said
    return said


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["run", "fig9_nothing"], ["fig9_nothing", FIG2]),
        (["plan", FIG2, "--scale", "huge"], ["huge", "tiny", "760m-48b"]),
        (["run", FIG2, "--only", "gpt5"], ["gpt5", "fox_pro"]),
        (["run", FIG2, "--colour", "red"], ["--colour"]),
        (["run", FIG2, "--device", "tpu"], ["tpu"]),
        (["paint"], ["paint"]),
        (["plan", FIG2, "--scale", "mini"], ["--data", "longcrawl64", "text:"]),
        (["plan", FIG2, "--data", "books"], ["books", "text:"]),
        (["plan", FIG2, "--data", "text:/nowhere/at/all"], ["/nowhere/at/all"]),
        (["plan", FIG2, "--data", "longcrawl64:/nowhere"], ["/nowhere"]),
        (["plan", FIG2, "--tokenizer", "wordpiece"], ["wordpiece"]),
        (["plan", FIG2, "--mfu", "40"], ["40", "0.4"]),
        (["run", FIG2, "--slots", "0"], ["--slots 0"]),
        (["run", FIG2, "--device", "cuda"], ["cuda", "--device cpu"]),
    ],
)
def test_mistakes(arguments, words, folders, tmp_path, capsys):
    if "cuda" in arguments:
        torch = pytest.importorskip("torch")
        if torch.cuda.is_available():
            arguments = ["run", FIG2, "--slots", "-1"]
            words = ["--slots -1"]
    planned = arguments[0] in ("plan", "run")
    said = mistake(capsys, arguments + (folders if planned else []))
    for word in words:
        assert word in said
    assert not (tmp_path / "work" / "runs").exists()


def test_an_empty_folder_of_texts(folders, tmp_path, capsys):
    (tmp_path / "texts").mkdir()
    assert str(tmp_path / "texts") in mistake(capsys, ["plan", FIG2, "--data", f"text:{tmp_path / 'texts'}", *folders])


def test_documents_that_are_all_too_short(folders, tmp_path, capsys):
    (tmp_path / "short.txt").write_text("a short text " * 5)
    (tmp_path / "other.txt").write_text("another short text " * 5)
    said = mistake(capsys, ["run", FIG2, "--data", f"text:{tmp_path}/*.txt", "--tokenizer", "bytes", *folders])
    assert "1024" in said
    assert not list((tmp_path / "work" / "corpora").glob("text-*"))


def test_a_runs_folder_that_cannot_be_written(folders, tmp_path, capsys):
    (tmp_path / "file").write_text("")
    folders[1] = str(tmp_path / "file" / "runs")
    assert "--runs-dir" in mistake(capsys, ["run", FIG2, *folders])


def test_a_run_folder_of_another_spec(folders, tmp_path, capsys):
    from experiments.plan import Request, make_plan, write_specs

    runs, corpora, results = (Path(folders[i]) for i in (1, 3, 5))
    request = Request((FIG2,), "tiny", None, None, ("fox_pro", "hgrn2"), "cpu", runs, results, corpora)
    plan = make_plan(request, "fp32")
    write_specs(plan)
    mine, other = (plan.runs[name].folder for name in ("fox_pro", "hgrn2"))
    mine.spec_file.write_text(other.spec_file.read_text())
    said = mistake(capsys, ["run", FIG2, "--only", "fox_pro", *folders])
    assert str(mine.path) in said
    assert "--runs-dir" in said


def test_results_that_are_not_there(tmp_path, capsys):
    said = mistake(capsys, ["render", FIG2, "--results-dir", str(tmp_path)])
    assert "run its experiment first" in said


def test_help_and_lists(capsys):
    assert main([]) == 0
    assert "plan" in capsys.readouterr().out
    assert main(["list"]) == 0
    listed = capsys.readouterr().out
    for name in (*artefact_names(), *SCALES):
        assert name in listed
