"""Pages of prose: each is what its template and the rows of this checkout say, and no number of it is typed."""

import re
from pathlib import Path

import pytest

from analysis.verdict import judge
from experiments import pages
from experiments.facts import Facts
from experiments.fox import fig2_per_token_loss
from experiments.render import status_page, write_claims
from tests.synthetic import Store, main_losses

ROOT = pages.ROOT
RESULTS = ROOT / "results"
UNSEEN = RESULTS / "unseen_books"
TEMPLATES = [*pages.templates_of(RESULTS), *pages.templates_of(UNSEEN)]
TAKEN_OUT = (
    r"{%.*?%}|{{.*?}}|{#.*?#}",  # what Jinja fills in
    r"```.*?```|`[^`]*`|\]\([^)]*\)",  # code, and what links lead to
    r"(?:ICLR|COLM) \d{4}",  # years of papers
    r"(?m)^\d+\. ",  # lists
    r"\b(?:Figure|Table) \d+|\b[ACS]\d+[a-z]?\b",  # the papers' figures and claims
    r"Mamba-2|FlashAttention-[24]|SLURM|e\^-10",  # names; the bound of pruning is one
)
NUMBER = re.compile(
    r"(?<![A-Za-z0-9])\d|\b(?:three|four|five|six|seven|eight|nine|ten|eleven|twelve|twenty|hundred)\b", re.IGNORECASE
)


@pytest.fixture(autouse=True)
def seeds_that_do_not_differ():
    """These rows are real: a model of one seed does not count as known, as it does in the tests on made-up rows."""


@pytest.fixture(scope="module")
def facts():
    return Facts(RESULTS)


def name(path: Path) -> str:
    return str(path.relative_to(ROOT))


@pytest.mark.parametrize("template", TEMPLATES, ids=name)
def test_a_page_says_what_the_committed_rows_say(template, facts):
    page = template.with_suffix("")
    facts = Facts(UNSEEN) if page.is_relative_to(UNSEEN) else facts
    assert page.read_text() == pages.fill(template, facts), f"render writes {name(page)}; its prose is in {name(template)}"


def typed(text: str) -> list[str]:
    """Lines with numbers that somebody typed."""
    for pattern in TAKEN_OUT:
        text = re.sub(pattern, "", text, flags=re.DOTALL)
    return [line for line in text.splitlines() if NUMBER.search(line)]


@pytest.mark.parametrize("template", TEMPLATES, ids=name)
def test_no_number_of_a_template_is_typed(template):
    assert typed(template.read_text()) == []


def test_the_pages_of_what_is_stored_and_of_claims_have_the_rows_numbers(tmp_path):
    """A line and a seed less than all are counted; a claim has its number, what the design sees, its seeds and verdict."""
    assert (RESULTS / "README.md").read_text() == status_page(RESULTS)
    study = main_losses(Store(tmp_path), models=("fox_pro", "transformer_pro", "fox_llama", "transformer_llama"), seeds=2)
    (line,) = (line for line in status_page(tmp_path).splitlines() if "`fig2_per_token_loss`" in line)
    assert line.endswith("| 4 of 7 lines, 2 seeds |")
    rows = write_claims("tiny", tmp_path, {}).read_text().splitlines()
    for claim, verdict in judge(fig2_per_token_loss.CLAIMS, study):
        if verdict.whole:
            (row,) = (row for row in rows if row.startswith(f"| {claim.id} |"))
            assert row.endswith(f"| {verdict.decisive} | {verdict.decisive.detectable} | 2 | {verdict.status} |")


@pytest.mark.parametrize("folder", [RESULTS, UNSEEN], ids=name)
def test_every_link_of_the_page_leads_somewhere(folder):
    for target in re.findall(r"\]\(([^)]*)\)", status_page(folder)):
        assert (folder / target).resolve().exists(), target
