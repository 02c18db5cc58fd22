"""No claim changes unnoticed: what each compares, with which bound, on which lines, is written down for made-up rows in
every_claim/; and each has a boundary, on both sides of which it is tried."""

from functools import cache
from pathlib import Path

import pytest

from experiments.artefact import artefacts
from results import store
from tests.experiments.every_claim import ROWS, said

WRITTEN = Path(__file__).with_name("every_claim")


def test_every_artefact_with_claims_has_rows():
    assert set(ROWS) == {stem for stem, artefact in artefacts().items() if artefact.claims}


@pytest.mark.parametrize("stem", ROWS)
def test_claims_compare_what_is_written_down(stem, tmp_path, monkeypatch):
    monkeypatch.setattr("analysis.study.read_evaluation", cache(store.read_evaluation))  # read once, with and without each line
    monkeypatch.setattr("analysis.study.read_run", cache(store.read_run))
    found = "\n".join(said(tmp_path / "results", stem)) + "\n"
    (tmp_path / f"{stem}.txt").write_text(found)
    written = (WRITTEN / f"{stem}.txt").read_text()
    assert found == written, f"where that is meant: cp {tmp_path}/{stem}.txt {WRITTEN}"
