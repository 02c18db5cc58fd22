"""A newcomer's mistakes: one or two lines that name the value and the remedy, exit code 2, nothing half-written."""

import shutil
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from data.prepare import prepare
from data.recall import RecallTask
from data.tokenizer import train_bpe
from experiments import graph
from experiments.__main__ import Adopt, main
from experiments.adopt import adopted_run
from experiments.artefact import artefacts
from experiments.plan import corpus_at, make_plan, write_specs
from experiments.recipes import Recipe, model_spec
from experiments.request import Request
from experiments.scales import SCALES
from models.build import build_model
from tests.texts import write_texts
from training import manifest
from training.command_line import parse

FIG2 = "fig2_per_token_loss"
DRAW_FILES = ("[]", "{}", "null", "[{}]", "[" * 100_000)


@pytest.fixture
def folders(tmp_path: Path) -> list[str]:
    """--runs-dir, --corpora-dir and --results-dir below an empty folder."""
    names = ("runs", "corpora", "results")
    return [part for name in names for part in (f"--{name}-dir", str(tmp_path / "work" / name))]


def mistake(capsys: pytest.CaptureFixture[str], arguments: list[str]) -> str:
    """Return what a failing command says, after the checks that hold for all of them."""
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
        (["run", FIG2, "--corpus", "/nowhere"], ["--corpus"]),
        (["plan", FIG2, "--scale", "mini"], ["--data", "longcrawl64", "text:"]),
        (["plan", FIG2, "--data", "books"], ["books", "text:"]),
        (["plan", FIG2, "--data", "text:/nowhere/at/all"], ["/nowhere/at/all"]),
        (["plan", FIG2, "--data", "longcrawl64:/nowhere"], ["/nowhere"]),
        (["plan", FIG2, "--tokenizer", "wordpiece"], ["wordpiece"]),
        (["plan", FIG2, "--mfu", "40"], ["40", "0.4"]),
        (["run", FIG2, "--slots", "0"], ["--slots 0"]),
        (["run", FIG2, "--slots", "many"], ["--slots"]),
        (["run", FIG2, "--processes", "0"], ["--processes 0: give at least 1"]),
        (["run", FIG2, "--slots", "2", "--processes", "4"], ["--processes 4: --slots 2 are too few", "give fewer processes"]),
        (["run", FIG2, "--slots", "3", "--processes", "3"], ["4 sequences, which do not divide among 3 processes"]),
        (["plan", FIG2, "--micro-batch-tokens", "3"], ["micro_batch_tokens 3 must be a multiple of seq_len 256"]),
        (["plan", FIG2, "--seeds", "0,x"], ["--seeds: 0,x"]),
        (["plan", FIG2, "--seeds", "0,0"], ["--seeds 0 0"]),
        (["plan", FIG2, "--seeds", str(2**70)], [str(2**70), "below 2^63"]),
        (["run", "fig4_needle", "--judge-model", "gpt"], ["'gpt'", "--judge-url"]),
        (["adopt", "/nowhere", "--as", "fox_pro"], ["/nowhere: there is no such folder"]),
        (["adopt", "/nowhere", "--as", "foxpro"], ["--as foxpro: no such model"]),
        (["plan", FIG2, "--longbench", "/tmp"], ["--longbench", "reads it"]),
        (["plan", FIG2, "--heldout", "/nowhere"], ["/nowhere"]),
        (["run", FIG2, "--checkpoint-minutes", "-1"], ["checkpoint"]),
        (["why", FIG2, "--results-dir", "/nowhere"], ["run its experiment first"]),
        (["draw", "/nowhere.json"], ["/nowhere.json"]),
        *((["draw", content], ["draw.json cannot be read", "`run` writes it again"]) for content in DRAW_FILES),
        (["run", FIG2, "--device", "cuda"], ["cuda", "--device cpu"]),
    ],
)
def test_mistakes(arguments, words, folders, tmp_path, capsys):
    if "cuda" in arguments and torch.cuda.is_available():
        arguments = ["run", FIG2, "--slots", "-1"]
        words = ["--slots -1"]
    if arguments[-1] in DRAW_FILES:
        (tmp_path / "draw.json").write_text(arguments[-1])
        arguments = ["draw", str(tmp_path / "draw.json")]
    planned = arguments[0] in ("plan", "run")
    said = mistake(capsys, arguments + (folders if planned else []))
    for word in words:
        assert word in said
    assert not (tmp_path / "work" / "runs").exists() and not list((tmp_path / "work").glob("corpora/*/"))


@pytest.mark.parametrize("command", ["plan", "run", "render"])
def test_a_readme_of_others_is_not_written_over(command, tmp_path, monkeypatch, capsys):
    """As in the checkout itself, which an unset variable of the shell names, too."""
    monkeypatch.chdir(tmp_path)
    readme = tmp_path / "README.md"
    for text in ("# Mine\n", ""):
        readme.write_text(text)
        said = mistake(capsys, [command, FIG2, "--results-dir", ""])
        assert said.startswith("error: --results-dir .: drawing would overwrite its README.md; name another folder")
        assert list(tmp_path.iterdir()) == [readme] and readme.read_text() == text


@pytest.mark.parametrize("name", ["corpora", "runs"])
def test_folders_that_cannot_be_written_are_refused_before_anything_is_prepared(name, folders, capsys, tmp_path):
    place = str(tmp_path / "work" / name)
    said = mistake(capsys, ["run", FIG2, *(f"/dev/null/{name}" if word == place else word for word in folders)])
    assert said.startswith(f"error: --{name}-dir /dev/null/{name} cannot be written: Not a directory; choose another")
    assert not [path for path in (tmp_path / "work").rglob("*") if path.is_file()]


@pytest.mark.parametrize("command", ["run", "render", "why"])
def test_a_file_is_no_folder_of_results(command, tmp_path, capsys):
    (tmp_path / "rows").touch()
    said = mistake(capsys, [command, FIG2, "--results-dir", str(tmp_path / "rows")])
    assert said.startswith(f"error: --results-dir {tmp_path / 'rows'} is a file; name a folder")


def test_what_everything_was_made_from_leaves_out_what_has_no_rows(capsys):
    assert main(["why", "all", "--scale", "125m-0.2b"]) == 0
    said = capsys.readouterr().out
    assert "fig2_per_token_loss at 125m-0.2b: " in said and "table1_lm_eval" not in said


def test_a_figure_without_rows_is_not_drawn_in_words(tmp_path, capsys):
    (tmp_path / "tiny").mkdir()
    said = mistake(capsys, ["render", FIG2, "--results-dir", str(tmp_path)])
    assert f"error: {FIG2} at tiny is not drawn: {tmp_path}/tiny/{FIG2}.json: nothing is stored for {FIG2}; run its" in said


def test_the_folder_of_a_run_is_no_checkpoint(tmp_path, capsys):
    (tmp_path / "run" / "export").mkdir(parents=True)
    said = mistake(capsys, ["adopt", str(tmp_path / "run"), "--as", "fox_pro"])
    assert f"run is the folder of a run: name {tmp_path / 'run' / 'export'}, which contains its model" in said


def test_a_damaged_checkpoint_is_not_adopted(folders, texts, tmp_path, capsys):
    """Known by the manifest that it came with."""
    published, where = tmp_path / "published", ["--data", f"text:{texts}", *folders[: folders.index("--results-dir")]]
    build_model(model_spec("fox_llama", SCALES["tiny"], 512)).save_pretrained(published)
    (published / "tokenizer.json").write_text("{}")
    manifest.seal(published, run_id="theirs")
    whole = (published / "model.safetensors").read_bytes()
    (published / "model.safetensors").write_bytes(whole[:-400] + bytes(byte ^ 255 for byte in whole[-400:]))
    capsys.readouterr()
    said = mistake(capsys, ["adopt", str(published), "--as", "fox_llama", *where])
    assert f"{published} is damaged: model.safetensors was altered (its SHA-256 differs). Copy it again;" in said
    assert not Path(folders[1]).exists()
    (published / "model.safetensors").write_bytes(whole)
    assert main(["adopt", str(published), "--as", "fox_llama", *where]) == 0


def test_a_checkpoint_comes_with_the_tokeniser_of_its_corpus(folders, texts, tmp_path, capsys):
    """A BPE trained on other text goes by the same name, and has as many ids."""
    published, where = tmp_path / "published", ["--data", f"text:{texts}", *folders[: folders.index("--results-dir")]]
    build_model(model_spec("fox_llama", SCALES["tiny"], 512)).save_pretrained(published)
    command = ["adopt", str(published), "--as", "fox_llama", *where]
    capsys.readouterr()
    assert f"{published} has no tokeniser to check against the corpus (bpe-512)" in mistake(capsys, command)
    train_bpe(["another text"], 512).to_hf().save_pretrained(published)
    corpus = prepare(corpus_at(parse(Adopt, command[1:], "", ""), SCALES["tiny"]))
    capsys.readouterr()
    assert "tokeniser of published gives held-out text other ids" in mistake(capsys, command)
    assert not Path(folders[1]).exists()
    corpus.tokenizer.to_hf().save_pretrained(published)
    assert main(command) == 0


@pytest.mark.parametrize(("size", "refused"), [(256, True), (257, False), (1280, False), (1281, True)])
def test_a_checkpoint_is_as_large_as_the_tokeniser_or_padded(size, refused, folders, texts, tmp_path, capsys):
    where = ["--data", f"text:{texts}", "--tokenizer", "bytes", *folders[: folders.index("--results-dir")]]
    build_model(model_spec("fox_llama", SCALES["tiny"], size)).save_pretrained(tmp_path / "published")
    command = ["adopt", str(tmp_path / "published"), "--as", "fox_llama", *where]
    capsys.readouterr()
    if refused:
        assert f"published has a vocabulary of {size}, bytes one of 257: name the tokeniser" in mistake(capsys, command)
        assert not Path(folders[1]).exists()
    else:
        assert main(command) == 0


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


def test_a_results_folder_that_cannot_be_written_is_known_before_anything_is_done(folders, tmp_path, capsys):
    (tmp_path / "file").write_text("")
    folders[5] = str(tmp_path / "file" / "results")
    said = mistake(capsys, ["run", FIG2, *folders])
    assert f"--results-dir {folders[5]} cannot be written: Not a directory; choose another." in said
    assert not any(map(Path.exists, (Path(folders[1]), Path(folders[3]))))


def test_a_run_folder_of_another_spec(folders, texts):
    runs, corpora, results = (Path(folders[i]) for i in (1, 3, 5))
    asked = Request(
        artefacts=(FIG2,), data=f"text:{texts}", only=("fox_pro", "hgrn2"), runs_dir=runs, results_dir=results,
        corpora_dir=corpora,
    )  # fmt: skip
    plan = make_plan(asked)
    write_specs(plan)
    mine, other = (next(run.folder for run in plan.runs.values() if run.spec.name == name) for name in ("fox_pro", "hgrn2"))
    mine.spec_file.write_text(other.spec_file.read_text())
    with pytest.raises(ValueError, match=rf"{mine.path} holds run .*--runs-dir"):
        write_specs(plan)


def test_results_that_are_not_there(tmp_path, capsys):
    said = mistake(capsys, ["render", FIG2, "--results-dir", str(tmp_path)])
    assert "run its experiment first" in said


def test_help_and_lists(capsys):
    with pytest.raises(SystemExit) as stop:
        main(["--help"])
    assert stop.value.code == 0
    assert "plan" in capsys.readouterr().out
    assert main(["list"]) == 0
    listed = capsys.readouterr().out
    for name in (*artefacts(), *SCALES):
        assert name in listed


def test_a_published_checkpoint_is_a_run(folders, texts, tmp_path, capsys):
    """Adopted once, it is planned instead of training; another model's weights are refused."""
    scale = SCALES["tiny"]
    model = build_model(model_spec("fox_llama", scale, 512))
    for name in ("published", "other"):
        model.save_pretrained(tmp_path / name)
        (tmp_path / name / "tokenizer.json").write_text("{}")
    given = ["--data", f"text:{texts}", *folders]
    where = given[: given.index("--results-dir")]
    assert main(["adopt", str(tmp_path / "published"), "--as", "fox_llama", *where]) == 0
    asked = Request(artefacts=(FIG2,), data=f"text:{texts}", only=("fox_llama",), runs_dir=Path(folders[1]),
                    results_dir=Path(folders[5]), corpora_dir=Path(folders[3]))  # fmt: skip
    (run,) = make_plan(asked).runs.values()
    assert run.spec.weights is not None and run.folder.finished
    assert [task.kind for task in graph.tasks(make_plan(asked))] == ["prepare", "evaluate", "draw"]
    assert run.folder.record()["starts"] == []
    recipe = Recipe("fox_llama", "fox_llama", "tiny")
    for changes in (
        {},
        {"seed": 1},
        {"model": {"rope_base": 5e6}},
        {"train": {"peak_lr": 1e-3}},
        {"task": RecallTask(num_keys=8, num_assignments=1, num_queries=1, num_symbols=64)},
    ):
        found = adopted_run(asked.runs_dir, replace(recipe, **changes), run.spec.data)
        assert found == (None if changes else run.spec), changes
    with torch.no_grad():
        model.lm_head.weight[0, 0] += 1
    model.save_pretrained(tmp_path / "other")
    capsys.readouterr()
    said = mistake(capsys, ["adopt", str(tmp_path / "other"), "--as", "fox_llama", *where])
    assert f"{run.folder.path} is adopted as fox_llama at tiny already" in said and "delete that folder first" in said
    assert main(["adopt", str(tmp_path / "published"), "--as", "fox_llama", *where]) == 0, "the same again is the same run"
    assert [folder for folder in run.folder.path.parent.iterdir() if folder.is_dir()] == [run.folder.path]
    elsewhere = [part if part != folders[1] else str(tmp_path / "elsewhere") for part in where]
    for number in (1, 2):  # other weights are another run, and another tokeniser is one
        assert main(["adopt", str(tmp_path / "other"), "--as", "fox_llama", *elsewhere]) == 0
        found = list((tmp_path / "elsewhere" / "tiny").rglob("adopted.json"))
        assert len(found) == 1 and found[0].parent.name != run.folder.path.name
        shutil.move(found[0].parent, tmp_path / f"adopted-{number}" / found[0].parent.name)
        (tmp_path / "other" / "tokenizer.json").write_text("[]")
    assert len({path.name for path in tmp_path.glob("adopted-*/*")}) == 2
    another = write_texts(tmp_path / "another", documents=12, sentences_each=200)
    with pytest.raises(ValueError, match=r"fox_llama-\w+ was adopted for another corpus"):
        make_plan(replace(asked, data=f"text:{another}"))
    capsys.readouterr()
    said = mistake(capsys, ["adopt", str(tmp_path / "published"), "--as", "hgrn2", *where])
    assert "forgetting_transformer" in said and "hgrn2" in said
    for other in ("transformer_llama", "fox_pro", "alibi"):
        said = mistake(capsys, ["adopt", str(tmp_path / "published"), "--as", other, *where])
        assert f"is no {other} at tiny: " in said and "--as" in said


def test_a_plan_writes_what_its_help_says_and_nothing_else(capsys, folders, tmp_path):
    for size, written in (((1 << 20) - 1, set()), (1 << 20, {Path("corpora/file-digests.json")})):
        texts = tmp_path / "texts.txt"
        texts.write_text("x" * size)
        assert main(["plan", FIG2, "--data", f"text:{texts}", *folders]) == 0
        work = tmp_path / "work"
        assert {path.relative_to(work) for path in work.rglob("*") if path.is_file()} == written
    capsys.readouterr()
    with pytest.raises(SystemExit):
        main(["plan", "--help"])
    said = " ".join(capsys.readouterr().out.split())
    assert "writes only file-digests.json in --corpora-dir" in said
