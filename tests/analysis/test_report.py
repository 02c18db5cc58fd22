import re
from html.parser import HTMLParser

import pytest
import synthetic

from analysis import report
from analysis.artefacts import ARTEFACTS
from analysis.claims import CLAIMS
from analysis.style import PAPER_SCALE
from results.store import read_rows, write_rows


def stored(folder, scale, **changed):
    rows, meta = synthetic.loss_rows(scale, **{"train_len": 128, "length": 512, "documents": 8, "floor": 3.0} | changed)
    write_rows(folder / scale / "fig2_per_token_loss.parquet", rows, meta)
    return folder / scale


def drawn(folder, *names):
    for name in names:
        ARTEFACTS[name].render(*read_rows(folder / f"{name}.parquet"), folder)
    return folder


class Links(HTMLParser):
    def __init__(self):
        super().__init__()
        self.found, self.open = [], []

    def handle_starttag(self, tag, attributes):
        self.found += [value for name, value in attributes if name in ("src", "href") and value]
        if tag not in ("meta", "img", "br", "wbr"):
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag


def test_report_is_self_contained_and_well_formed(tmp_path):
    path = report.build(drawn(stored(tmp_path, "tiny"), "fig2_per_token_loss"))
    page = path.read_text()
    links = Links()
    links.feed(page)
    assert not links.open
    assert links.found
    assert all(link.startswith(("#", "data:image/png;base64,")) for link in links.found)
    assert not re.search(r"https?://|@import|<script|url\(", page)


def test_report_states_the_scale_everywhere_and_every_verdict(tmp_path):
    page = report.build(drawn(stored(tmp_path, "tiny"), "fig2_per_token_loss")).read_text()
    assert "This is <strong>not</strong> the paper's main setting" in page
    assert page.count("scale: tiny") >= 1
    for claim in ("C1", "C2", "C3", "C4", "C5", "C6"):
        assert page.count(f"<strong>{claim}</strong> {CLAIMS[claim]}") == 2  # at a glance, and in the section
    assert "Unigram entropy of the held-out text: 7.000" in page
    assert "Not run at this scale: Figure 3" in page


def test_report_gives_the_provenance_of_each_run(tmp_path):
    page = report.build(drawn(stored(tmp_path, "tiny"), "fig2_per_token_loss")).read_text()
    for model in synthetic.SEVEN:
        assert synthetic.run_id(model) in page
    assert "0123456789+" in page, "commit, with a sign for changes in the working tree"
    assert "Synthetic device" in page
    assert "python 3.11.7, torch 0.0" in page
    assert "1,000,000" in page
    assert "8,192" in page
    assert "2025-01-02 03:04" in page


def test_report_of_the_papers_scale_and_of_some_models_only(tmp_path):
    folder = drawn(stored(tmp_path, PAPER_SCALE, models=("fox_pro", "transformer_pro")), "fig2_per_token_loss")
    page = report.build(folder).read_text()
    assert "This is the paper's main setting" in page
    assert "Not evaluated here: FoX (LLaMA), Transformer (LLaMA), Mamba-2, HGRN2, DeltaNet" in page
    assert "not applicable" in page


def test_report_holds_every_artefact(tmp_path):
    folder = tmp_path / "tiny"
    made = {
        "fig3_forget_gates": synthetic.gate_rows(models=("fox_pro",), layers=1, heads=2, size=8),
        "fig4_needle": synthetic.needle_rows("tiny", lengths=(64, 100, 300), depths=(0.0, 100.0), train_len=128),
        "table6_throughput": synthetic.throughput_rows("tiny"),
    }
    for name, (rows, meta) in made.items():
        write_rows(folder / f"{name}.parquet", rows, meta)
    page = report.build(drawn(folder, *made)).read_text()
    for title in ("Figure 3: Forget gates", "Figure 4: Needle", "Table 6: Parameters"):
        assert title in page
    assert "<strong>C22b</strong>" in page


def test_text_from_outside_is_escaped(tmp_path):
    folder = stored(tmp_path, "tiny", models=("fox_pro",))
    rows, meta = read_rows(folder / "fig2_per_token_loss.parquet")
    rows["model"] = "<script>alert(1)</script>"
    next(iter(meta["runs"].values()))["model"] = "<script>alert(1)</script>"
    write_rows(folder / "fig2_per_token_loss.parquet", rows, meta)
    assert "<script" not in report.build(drawn(folder, "fig2_per_token_loss")).read_text()


def test_equal_results_give_an_equal_report(tmp_path):
    one = report.build(drawn(stored(tmp_path / "a", "tiny"), "fig2_per_token_loss"))
    two = report.build(drawn(stored(tmp_path / "b", "tiny"), "fig2_per_token_loss"))
    assert one.read_bytes() == two.read_bytes()


def test_nothing_stored_not_drawn_or_in_the_wrong_folder_is_an_error(tmp_path):
    with pytest.raises(ValueError, match="no results to report on"):
        report.build(tmp_path / "mini")
    folder = stored(tmp_path, "tiny")
    with pytest.raises(ValueError, match="not drawn yet"):
        report.build(folder)
    drawn(folder, "fig2_per_token_loss")
    folder.rename(tmp_path / "mini")
    with pytest.raises(ValueError, match="scale tiny"):
        report.build(tmp_path / "mini")
