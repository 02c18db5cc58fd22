"""A published checkpoint stands for a run: known by its weights, of its own model and tokeniser, and whole."""

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
from experiments.plan import corpus_at, make_plan
from experiments.recipes import Recipe, model_spec
from experiments.request import Request
from experiments.scales import SCALES
from models.build import build_model
from results.store import read_record
from tests.texts import write_texts
from training import manifest
from training.command_line import parse

FIG2 = "fig2_per_token_loss"


@pytest.fixture
def folders(tmp_path: Path) -> list[str]:
    """--results-dir and --corpora-dir below an empty folder."""
    names = ("results", "corpora")
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


def test_a_damaged_checkpoint_is_not_adopted(folders, texts, tmp_path, capsys):
    """Known by the manifest that it came with."""
    published, where = tmp_path / "published", ["--data", f"text:{texts}", *folders]
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
    published, where = tmp_path / "published", ["--data", f"text:{texts}", *folders]
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


def test_a_published_checkpoint_is_a_run(folders, texts, tmp_path, capsys):
    """Adopted once, it is planned instead of training; another model's weights are refused."""
    scale = SCALES["tiny"]
    model = build_model(model_spec("fox_llama", scale, 512))
    for name in ("published", "other"):
        model.save_pretrained(tmp_path / name)
        (tmp_path / name / "tokenizer.json").write_text("{}")
    given = ["--data", f"text:{texts}", *folders]
    where = given
    assert main(["adopt", str(tmp_path / "published"), "--as", "fox_llama", *where]) == 0
    asked = Request(artefacts=(FIG2,), data=f"text:{texts}", only=("fox_llama",), results_dir=Path(folders[1]),
                    corpora_dir=Path(folders[3]))  # fmt: skip
    (run,) = make_plan(asked).runs.values()
    assert run.spec.weights is not None and run.folder.finished
    assert [task.kind for task in graph.tasks(make_plan(asked))] == ["prepare", "evaluate", "draw"]
    assert read_record(run.folder.path)["starts"] == []
    recipe = Recipe("fox_llama", "fox_llama", "tiny")
    for changes in (
        {},
        {"model": {"rope_base": 5e6}},
        {"train": {"peak_lr": 1e-3}},
        {"task": RecallTask(num_keys=8, num_assignments=1, num_queries=1, num_symbols=64)},
    ):
        found = adopted_run(asked.results_dir, replace(recipe, **changes), run.spec.data)
        assert found == (None if changes else run.spec), changes
    with pytest.raises(ValueError, match="leave out --seeds"):
        make_plan(replace(asked, seeds=(0, 1)))
    with torch.no_grad():
        model.lm_head.weight[0, 0] += 1
    model.save_pretrained(tmp_path / "other")
    capsys.readouterr()
    said = mistake(capsys, ["adopt", str(tmp_path / "other"), "--as", "fox_llama", *where])
    assert f"{run.folder.path} is fox_llama at tiny already: adopt into another --results-dir" in said
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
