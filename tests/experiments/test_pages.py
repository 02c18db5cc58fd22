"""Pages say what the rows say: every published page is what its template gives today, and its numbers are those of the rows."""

import re

import numpy as np
import pytest

from experiments import pages

TEMPLATES = sorted({*pages.ROOT.glob("*.md.in"), *pages.RESULTS.rglob("*.md.in")})


@pytest.fixture(autouse=True)
def seeds_that_do_not_differ():
    """These rows are real: a model of one seed does not count as known, as it does in the tests on made-up rows."""


@pytest.mark.parametrize("template", TEMPLATES, ids=lambda path: str(path.relative_to(pages.ROOT)))
def test_a_page_is_words_around_numbers_and_up_to_date(template):
    text = template.read_text()
    assert not re.search(r"\{[%#]|\{\{(?! [\w./-]+ \}\})", text)
    assert template.with_suffix("").read_text() == pages.NAME.sub(lambda name: pages.text_of(name[1]), text)


def test_the_scoreboards_first_number_is_that_of_the_rows():
    """C1: mean loss of the first 4k tokens, FoX (Pro) less Transformer (Pro), as a ratio of perplexities."""
    study = pages.study("unseen_books/mini", "fig2_per_token_loss")
    losses = {"fox_pro": [], "transformer_pro": []}
    for line, rows, _ in study.evaluations("per_token_loss"):
        inside = rows[(rows["document"] == -1) & (rows["position"] <= study.train_len)]
        losses.get(line.model, []).append(np.average(inside["loss"], weights=inside["width"]))
    assert [len(each) for each in losses.values()] == [3, 3]
    percent = 100 * np.expm1(np.mean(losses["fox_pro"]) - np.mean(losses["transformer_pro"]))
    (c1,) = [each for each in pages.verdicts() if each.claim.id == "C1"]
    shown = c1.verdict.decisive.ours.split("%")[0].replace("\N{MINUS SIGN}", "-")
    assert float(shown) == pytest.approx(percent, abs=0.05)


def test_a_name_without_a_number_is_named():
    with pytest.raises(ValueError, match="no such number or table"):
        pages.text_of("mini/no_such_figure")
