"""The report: whole HTML whose links lead somewhere, the numbers of its verdicts, and the same page of the same rows."""

import re
from dataclasses import replace
from html.parser import HTMLParser
from types import SimpleNamespace

import numpy as np
import pytest

from analysis import report
from analysis.report import Section
from analysis.verdict import judge
from experiments.artefact import artefacts
from tests import synthetic
from tests.synthetic import pictures_of_a_dot, seeds_that_do_not_differ  # noqa: F401

FIG2 = "fig2_per_token_loss"
pytestmark = pytest.mark.usefixtures("pictures_of_a_dot")


def section(stem, study, **how):
    own = artefacts()[stem]
    again = f"python -m experiments run {stem} --as-given"
    return replace(
        Section(stem, own.title, own.paper, own.shows, own.claims, own.looks, own.summary, study, run=again, why=again), **how
    )


def losses(folder, **how):
    return synthetic.main_losses(synthetic.Store(folder, "tiny", 128), **{"documents": 8} | how)


def page_of(folder, study, absent=(), **how):
    artefacts()[study.stem].draw(study)
    sections = [section(study.stem, study, **how), *(section(stem, None) for stem in absent)]
    return report.build(folder / "tiny", sections).read_text()


class Page(HTMLParser):
    """Links, ids, and whether every tag is closed."""

    def __init__(self, text):
        super().__init__()
        self.links, self.ids, self.open = [], [], []
        self.feed(text)

    def handle_starttag(self, tag, attributes):
        self.links += [value for name, value in attributes if name in ("src", "href") and value]
        self.ids += [value for name, value in attributes if name == "id"]
        if tag not in ("meta", "img", "br", "wbr", "input"):
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag


def test_the_report_is_self_contained_well_formed_and_its_links_lead_somewhere(tmp_path):
    """It names what is missing with its command, and shows foreign names as text."""
    store = synthetic.Store(tmp_path, "tiny", 128)
    study = synthetic.main_losses(store, documents=8)
    evil = "<script>alert(1)</script>"
    store.add(FIG2, evil, [("per_token_loss", synthetic.loss_rows(np.linspace(3, 2, 512)))], name="evil")
    text = page_of(tmp_path, store.study(FIG2), absent=("fig4_needle",), missing=("Mamba-2, LR 1",))
    page = Page(text)
    assert not page.open and len(page.ids) == len(set(page.ids)) and study.lines
    targets = {f"#{each}" for each in page.ids}
    assert [link for link in page.links if not link.startswith("data:") and link not in targets
            and not (tmp_path / "tiny" / link).is_file()] == []  # fmt: skip
    assert not re.search(r"https?://|@import|<script|url\(", text)
    assert "Mamba-2, LR 1" in text and "python -m experiments run fig4_needle --as-given" in text


def test_each_claim_has_its_verdict_and_numbers_and_equal_rows_give_an_equal_page(tmp_path):
    studies = [losses(tmp_path / place, seeds=3, seed_noise=0.001) for place in "ab"]
    text, other = (page_of(tmp_path / place, study) for place, study in zip("ab", studies, strict=True))
    assert text == other
    for claim, verdict in judge(artefacts()[FIG2].claims, studies[0]):
        row = text[text.index(f'id="claim-{claim.id}"') :].partition("</tr>")[0]
        assert str(verdict.status) in row and verdict.decisive.beside_the_paper in row


def test_time_is_summed_by_device_and_gpu_and_tokens_by_start():
    """Two runs, the second of two starts on two kinds of device; a start that did not end counts nothing."""
    ended = [("A", 4, 1800, 1e6), ("A", 1, 3600, 2e6), ("B", 2, 900, 5e5), ("B", 2, None, None)]
    starts = [{"device": device, "world_size": size, "end": seconds and {"wall_s": seconds, "tokens": tokens}}
              for device, size, seconds, tokens in ended]  # fmt: skip
    runs = {"one": {"starts": starts[:1]}, "two": {"starts": starts[1:]}}
    study = SimpleNamespace(lines=[SimpleNamespace(run_id=name) for name in ("one", "two", "two")], runs=runs)
    assert report._spent([study, study]) == "2 runs, 3.5 million tokens, 3.0 hours on A and 0.5 hours on B"


def test_what_cannot_be_summed_up_says_why_and_nothing_stored_is_an_error(tmp_path):
    def broken(study):
        return {}["no such row"]

    study = losses(tmp_path)
    assert "<strong>Not drawn:</strong> " in page_of(tmp_path, study, summary=broken)
    with pytest.raises(ValueError, match="no results to report on"):
        report.build(tmp_path / "mini", [section(FIG2, None)])
