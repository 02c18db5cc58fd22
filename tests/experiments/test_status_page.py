"""The page of what is stored says what the rows of this checkout say."""

import re
from pathlib import Path

import pytest

from analysis.verdict import judge
from experiments.artefact import artefacts
from experiments.fox import fig2_per_token_loss
from experiments.render import status_page, write_claims
from results.store import record_run
from tests.synthetic import Store, main_losses

RESULTS = Path(__file__).parents[2] / "results"


def test_the_committed_page_is_that_of_the_committed_rows():
    assert (RESULTS / "README.md").read_text() == status_page(RESULTS)


def test_a_cell_counts_lines_and_seeds(tmp_path):
    main_losses(Store(tmp_path), models=("fox_pro", "transformer_pro"), seeds=2)
    text = status_page(tmp_path)
    (line,) = (line for line in text.splitlines() if "`fig2_per_token_loss`" in line)
    assert line.endswith("| 2 of 7 lines, 2 seeds |")
    assert all(f"`{stem}`" in text for stem in artefacts())


def test_the_page_of_claims_has_command_minutes_number_and_where_it_was_seen(tmp_path):
    store = Store(tmp_path)
    for run in main_losses(store, seeds=2).runs.values():
        (start,) = run["starts"]
        record_run(tmp_path, {**run, "starts": [{**start, "end": {"wall_s": 90.0}}]})
    text = write_claims("tiny", tmp_path, {}).read_text()
    study = store.study("fig2_per_token_loss")
    (c1,) = [verdict for claim, verdict in judge(fig2_per_token_loss.CLAIMS, study) if claim.id == "C1"]
    assert f"`python -m experiments run fig2_per_token_loss --scale tiny --seeds 0,1 --results-dir {tmp_path}`" in text
    (row,) = (line for line in text.splitlines() if line.startswith("| C1 |"))
    assert row.endswith(f"| {c1.decisive} | {c1.decisive.detectable} | 2 | {c1.status} |") and "% [" in row
    newest = max(study.all_metas, key=lambda meta: meta["created"])
    assert f"Last seen {newest['created'][:10]} on {newest['provenance']['device']}" in text
    assert "14 trainings, 21 minutes on Synthetic device" in text
    assert "\n* No rows: C22b (`fig4_needle`)" in text and "C17 (`table1_lm_eval`)" in text.splitlines()[-1]
    assert text.count(f" --results-dir {tmp_path}`") == 3, "the command of the page, of `compare` and of the figure"


def test_a_claim_that_is_not_judged_is_listed_with_the_reason(tmp_path):
    main_losses(Store(tmp_path), models=("fox_pro", "transformer_pro"))
    why = write_claims("tiny", tmp_path, {}).read_text().partition("## Not judged at this scale\n")[2].splitlines()
    assert (
        "* Not measured: FoX (LLaMA) with Transformer (LLaMA): C1 (`fig2_per_token_loss`), C2 (`fig2_per_token_loss`)." in why
    )
    assert [line for line in why if line.startswith("* No rows: ")] == why[-1:]


@pytest.mark.parametrize("folder", [RESULTS, RESULTS / "unseen_books", None], ids=lambda folder: folder and folder.name)
def test_every_link_of_the_page_leads_somewhere_and_what_it_lists_is_there(folder, tmp_path):
    folder = folder or tmp_path / "mine"
    main_losses(Store(tmp_path / "mine"), models=("fox_pro",))
    page = status_page(folder)
    for target in re.findall(r"\]\(([^)]*)\)", page):
        assert (folder / target).resolve().exists(), target
    for name in ("measurements/", "kernels/", "training/", "unseen_books/"):
        assert (name in page) is (folder / name).is_dir(), name
    assert ("](" in page) is folder.is_relative_to(RESULTS), "a folder outside the checkout is moved without it"


def test_a_folders_name_is_quoted_in_commands(tmp_path):
    folder = tmp_path / "my results"
    main_losses(Store(folder), models=("fox_pro", "transformer_pro"))
    assert f"render --results-dir '{folder}'`" in status_page(folder)
    assert f"--results-dir '{folder}'`" in write_claims("tiny", folder, {}).read_text()
