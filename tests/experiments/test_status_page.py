"""The page of what is stored says what the rows of this checkout say."""

from pathlib import Path

from experiments.artefact import artefacts
from experiments.status import status_page, write_status
from tests.synthetic import Store, main_losses

RESULTS = Path(__file__).parents[2] / "results"


def test_the_committed_page_is_that_of_the_committed_rows():
    assert (RESULTS / "README.md").read_text() == status_page(RESULTS)


def test_a_cell_counts_lines_and_seeds(tmp_path):
    main_losses(Store(tmp_path), models=("fox_pro", "transformer_pro"), seeds=2)
    text = write_status(tmp_path).read_text()
    (line,) = (line for line in text.splitlines() if "`fig2_per_token_loss`" in line)
    assert line.endswith("| 2 of 7 lines, 2 seeds |")
    assert all(f"`{stem}`" in text for stem in artefacts())
