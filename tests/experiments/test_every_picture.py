"""Pictures and tables that test_figures.py does not draw: all that stands in them is written down in every_picture/."""

import pytest

from experiments.artefact import artefacts
from tests.experiments.every_claim import ROWS, _study, made_up
from tests.experiments.every_picture import assert_written, recorded
from tests.experiments.test_figures import EVERY

pytestmark = pytest.mark.usefixtures("pictures_of_a_dot")
OTHERS = [stem for stem in ROWS if stem not in {module.__name__.rpartition(".")[2] for module, _, _ in EVERY}]


@pytest.mark.parametrize("stem", OTHERS)
def test_pictures_and_tables_are_those_that_are_written_down(stem, tmp_path, monkeypatch):
    study, artefact = _study(made_up(tmp_path / "results", stem)), artefacts()[stem]
    seen = recorded(monkeypatch)
    files = artefact.draw(study)
    assert_written(seen, files, artefact.summary(study), stem, tmp_path)
