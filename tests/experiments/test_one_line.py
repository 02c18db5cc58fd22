"""Whatever of an artefact is stored first is drawn: a part of it is trained, and the rest waits."""

import shutil
from pathlib import Path

import pytest

from analysis import study
from experiments.artefact import artefacts

STORED = Path(__file__).parents[2] / "results"


@pytest.fixture(scope="module")
def results(tmp_path_factory):
    """Copies of what is stored at tiny, without what was drawn from it."""
    copied = tmp_path_factory.mktemp("results")
    for folder in STORED.glob("tiny*"):
        shutil.copytree(folder, copied / folder.name, ignore=shutil.ignore_patterns("figures", "tables", "*.html"))
    return copied


@pytest.mark.usefixtures("pictures_of_a_dot")
@pytest.mark.parametrize("stem", artefacts())
def test_a_single_line_is_drawn_or_said_to_be_too_few(stem, results, monkeypatch):
    stored = study.read_lines(results, "tiny", stem)
    for line in {line.series: line for line in (*stored[:1], *stored[-1:])}.values():
        monkeypatch.setattr(study, "read_lines", lambda *_, own=line.series: [each for each in stored if each.series == own])
        try:
            told = bool(artefacts()[stem].draw(study.Study(results, "tiny", stem)))
        except ValueError as error:
            told = str(error).startswith(f"{stem}: ")
        assert told, "neither drawn nor refused in words of its own"
