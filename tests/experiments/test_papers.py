"""Every figure and table of the papers has an artefact that can be run, and `list` shows it."""

import csv
import re
from pathlib import Path

from experiments.__main__ import main
from experiments.artefact import artefacts

ITEMS = list(csv.DictReader((Path(__file__).parents[2] / "analysis/paper_data/artefacts.csv").open(encoding="utf-8")))


def test_the_list_of_the_papers_items_is_whole():
    """Figures 1 to 7 and Tables 1 to 9 of FoX, and something of every paper."""
    fox = {item["item"] for item in ITEMS if item["paper"] == "fox"}
    assert {f"Figure {n}" for n in range(1, 8)} | {f"Table {n}" for n in range(1, 10)} <= fox
    assert {item["paper"] for item in ITEMS} == {"fox", "acp", "stick_breaking"}
    assert len({(item["paper"], item["item"]) for item in ITEMS}) == len(ITEMS)


def test_every_item_of_the_papers_has_an_artefact_and_list_shows_it(capsys):
    known = artefacts()
    assert main(["list"]) == 0
    shown = capsys.readouterr().out
    for item in ITEMS:
        artefact = known[item["artefact"]]
        assert artefact.folder == f"experiments/{item['paper']}", item
        # a numbered item stands in the artefact's own words
        number = re.match(r"(Figure|Table|Appendix F\.)\s?\d+", item["item"])
        if number and item["paper"] == "fox":
            assert artefact.paper == number.group(), item
        assert re.search(rf"^{artefact.stem}\s.*{re.escape(artefact.title)}", shown, re.MULTILINE), item
        assert callable(artefact.draw)
