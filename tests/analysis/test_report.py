import re
import shutil
import subprocess
from dataclasses import replace
from html.parser import HTMLParser

import numpy as np
import pytest

from analysis import report
from analysis.report import Section
from analysis.style import PAPER_SCALE
from experiments.artefact import artefacts, claims
from experiments.fox.fig7_gate_types import Gate
from tests import synthetic
from tests.synthetic import seeds_that_do_not_differ  # noqa: F401

FIG2 = "fig2_per_token_loss"
BROWSERS = ("chromium", "chromium-browser", "google-chrome")
BROWSER = next(filter(None, map(shutil.which, BROWSERS)), None)


def section(stem, study, *, missing=()):
    own = artefacts()[stem]
    paper = stem.partition("_")[0].replace("fig", "Figure ").replace("table", "Table ")
    command = f"python -m experiments run {stem} --scale tiny"
    return Section(
        stem, f"title of {stem}", paper, f"What {stem} shows.", own.claims, own.looks, own.summary, study, command, missing
    )


def losses(folder, scale="tiny", **how):
    store = synthetic.Store(folder, scale, 128)
    return synthetic.main_losses(store, **{"documents": 8} | how)


def drawn(study):
    artefacts()[study.stem].draw(study)
    return study


def page_of(folder, *studies, scale="tiny", absent=()):
    sections = [section(study.stem, drawn(study)) for study in studies] + [section(stem, None) for stem in absent]
    return report.build(folder / scale, sections).read_text()


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


def test_report_is_self_contained_well_formed_and_its_links_lead_somewhere(tmp_path):
    text = page_of(tmp_path, losses(tmp_path), absent=("fig4_needle",))
    page = Page(text)
    assert not page.open
    assert len(page.ids) == len(set(page.ids))
    for link in page.links:
        if link.startswith("#"):
            assert link[1:] in page.ids
        elif not link.startswith("data:image/png;base64,"):
            assert (tmp_path / "tiny" / link).is_file()
    assert sum(link.startswith("data:") for link in page.links) == 2, "the figure and FoX's lead"
    assert not re.search(r"https?://|@import|<script|url\(", text)


def test_verdicts_come_first_each_with_its_sentence_effect_and_link(tmp_path):
    text = page_of(tmp_path, losses(tmp_path, documents=32), absent=("fig4_needle", "table6_throughput"))
    table = text[text.index('id="verdicts"') : text.index('id="reading"')]
    assert table.index("C1<") < table.index("C2<") < table.index("C22b<") < table.index("C23<") < table.index("C30<")
    for claim in ("C1", "C2", "C5", "C6"):
        assert f"<strong>{claim}</strong>" in table
        assert claims()[claim].sentence.replace("'", "&#39;") in table
    row = table[table.index("<strong>C5</strong>") :].partition("</tr>")[0]
    assert "holds" in row
    assert re.search(r"−0\.\d{4} nats \[−0\.\d{4}, −0\.\d{4}\]; asked for &lt; 0; detectable 0\.\d{4}", row)
    assert "1 seed<" in row
    assert '<a href="#fig2_per_token_loss">Figure 2</a>' in row
    assert "11 claims: holds" in table
    assert "not measured 7" in table
    shown, _, folded = table.partition("<summary>7 claims without rows at this scale</summary>")
    assert "<strong>C6</strong>" in shown and "not measured" not in shown.partition("<tbody>")[2]
    assert folded.count("not measured") == 7
    assert text.index('id="verdicts"') < text.index('id="reading"') < text.index('id="fig2_per_token_loss"')


def gates(tmp_path, learned, dependent=2.0):
    """Figure 7 with a learned gate that is so much worse than the fixed one, in both blocks."""
    store = synthetic.Store(tmp_path, "tiny", 128)
    losses = {Gate("full"): dependent, Gate("bias_only", 64): 2.1 + learned, Gate("fixed", 64): 2.1}
    for model in ("fox_llama", "fox_pro"):
        for gate, loss in losses.items():
            kinds = [("per_token_loss", synthetic.loss_rows(np.full(512, loss)))]
            axes = {"gate": gate.kind} | ({"longest": gate.longest} if gate.longest else {})
            store.add("fig7_gate_types", str(gate), kinds, model=model, name=f"{model}/{gate}", axes=axes)
    return store.study("fig7_gate_types")


def test_only_claims_that_fail_say_why_and_the_table_leads_there(tmp_path):
    text = page_of(tmp_path / "a", gates(tmp_path / "a", 0.02))
    row = text[text.index("<strong>C26b</strong>") :].partition("</tr>")[0]
    assert '<a href="#why-C26b">' in row and "fails" in row and "not looked into" not in text
    why = text[text.index('id="why"') : text.index('id="reading"')]
    assert 'id="why-C26b"' in why and '<a href="#fig7_gate_types">' in why and "2 of 6" not in why
    assert "Missed by 2 of 2 comparisons" in why and 'id="why-C26"' not in why
    assert not Page(text).open and "#why-C26b" in Page(text).links and "why-C26b" in Page(text).ids
    text = page_of(tmp_path / "b", gates(tmp_path / "b", -0.02))
    assert "holds" in text and 'id="why"' not in text and "Why:" not in text


def looked_into(monkeypatch, stem, looks):
    """Looks of an artefact in place of its own."""
    monkeypatch.setitem(artefacts(), stem, replace(artefacts()[stem], looks=looks))


def test_a_failing_claim_that_nobody_looked_into_says_so(tmp_path, monkeypatch):
    def row_of(name, **how):
        text = page_of(tmp_path / name, gates(tmp_path / name, 0.02, **how))
        return text, text[text.index("<strong>C26b</strong>") :].partition("</tr>")[0]

    looked_into(monkeypatch, "gate_worth", {"C26b": lambda _: "never asked"})
    for name, looks in (("a", {}), ("b", {"C26": lambda _: "never asked"})):
        looked_into(monkeypatch, "fig7_gate_types", looks)
        text, row = row_of(name)
        assert "Why: not looked into at this scale" in row and 'id="why"' not in text

    def fault(_):
        raise ValueError("nothing there")

    looked_into(monkeypatch, "fig7_gate_types", {"C26b": fault})
    assert "Cannot be told: nothing there." in row_of("c")[0]


def test_claims_of_one_look_share_its_sentence(tmp_path, monkeypatch):
    looked_into(monkeypatch, "fig7_gate_types", dict.fromkeys(("C26", "C26b"), lambda study: f"Seen in {study.stem}."))
    text = page_of(tmp_path, gates(tmp_path, 0.02, dependent=3.0))
    assert text.count("Seen in fig7_gate_types.") == 1
    assert re.search(r'id="why-C26">C26</strong>, <strong id="why-C26b">C26b</strong>', text)


def test_a_finding_stands_once(tmp_path):
    text = page_of(tmp_path, losses(tmp_path))
    finding = re.search(r"P\(128\) of FoX \(Pro\) is [\d.]+, of the best", text).group()
    assert text.count(finding) == 1


def test_the_page_explains_noise_seeds_cut_curves_and_sizes(tmp_path):
    store = synthetic.Store(tmp_path, "tiny", 128)
    for model, params in (("fox_pro", 1_020_000), ("transformer_pro", 1_000_000)):
        for seed in range(2):
            rows = synthetic.loss_rows(synthetic.curve(model, 128, 512, floor=3.0))
            store.add(FIG2, model, [("per_token_loss", rows)], params=params, seed=seed)
    text = page_of(tmp_path, store.study(FIG2))
    assert "Models were trained with 2 seeds." in text
    assert "FoX (Pro) 1,020,000, Transformer (Pro) 1,000,000; the largest is 2.0% above the smallest" in text
    for words in ("Noise.", "two one-sided tests", "Holm", "go on above it"):
        assert words in text
    assert "Every model was trained once, with one seed." in page_of(tmp_path / "one", losses(tmp_path / "one"))


def test_every_artefact_says_what_it_was_made_from_and_how_to_make_it_again(tmp_path):
    text = page_of(tmp_path, losses(tmp_path, seeds=2))
    part = text[text.index('id="fig2_per_token_loss"') : text.index('id="runs"')]
    assert "Made from 14 runs and 14 evaluations on Synthetic device" in part
    assert "Corpus: made-up, bpe-512 (feedbeef). Commits of the evaluations: 0123456789+. Dates: 2025-01-02." in part
    assert "python -m experiments run fig2_per_token_loss --scale tiny" in part
    assert "<code>per_token_loss-00000000</code>" in part
    runs = text[text.index('id="runs"') :]
    assert runs.count("<tr>") == 15
    for wanted in ("Mamba-2", "1,000,000", "8,192", "0.001", "3.100", "0123456789+", "python 3.11.7, torch 0.0", "fig2"):
        assert wanted in runs


def test_what_is_not_the_papers_is_not_said_to_be(tmp_path):
    study = drawn(losses(tmp_path, models=("fox_pro", "transformer_pro")))
    ours = replace(section(FIG2, study), paper="beyond the paper")
    for one, heading, lead in ((section(FIG2, study), "Figure 2", "The paper:"), (ours, "Beyond the paper", "What it shows:")):
        text = report.build(tmp_path / "tiny", [one]).read_text()
        assert f"<h2>{heading}: {one.title}</h2>\n<p><strong>{lead}</strong> {one.shows}</p>" in text


def test_what_is_missing_stands_with_the_command_that_makes_it(tmp_path):
    study = drawn(losses(tmp_path, models=("fox_pro", "transformer_pro")))
    sections = [section(FIG2, study, missing=("Mamba-2, LR 1", "HGRN2")), section("fig4_needle", None)]
    text = report.build(tmp_path / "tiny", sections).read_text()
    assert "<strong>Missing:</strong> Mamba-2, LR 1; HGRN2. <code>python -m experiments run fig2_per_token_loss" in text
    absent = text[text.index('id="absent"') :]
    assert "python -m experiments run fig4_needle --scale tiny" in absent
    assert "Not measured: FoX (LLaMA) with Transformer (LLaMA)" in text


def test_banners_fit_the_scale_and_what_was_trained(tmp_path):
    assert "This is not the paper's main setting (760m-48b)." in page_of(tmp_path / "a", losses(tmp_path / "a"))
    assert "This is the paper's main setting." in page_of(
        tmp_path / "b", losses(tmp_path / "b", PAPER_SCALE), scale=PAPER_SCALE
    )
    store = synthetic.Store(tmp_path / "c", PAPER_SCALE, 16_384)
    row = synthetic.throughput_row()
    store.add("table6_throughput", "fox_pro", [("throughput", row)], evaluation={"mode": "train"}, final_loss=None)
    text = page_of(tmp_path / "c", store.study("table6_throughput"), scale=PAPER_SCALE)
    assert "Nothing was trained at this scale." in text
    assert "This is the paper's main setting." not in text
    assert "compared directly" not in text
    assert "reproduced" not in text


def test_report_holds_figures_and_tables(tmp_path):
    rng = np.random.default_rng(0)
    store = synthetic.Store(tmp_path, "tiny", 128)
    extras = {"seq_len": 512, "cell": 64, "distance": 32}
    store.add(
        "fig3_forget_gates", "fox_pro", [("gate_maps", synthetic.gate_rows(rng, layers=1, heads=2, size=8))], extras=extras
    )
    for model in synthetic.SEVEN:
        rows = synthetic.needle_rows(model, rng, train_len=128, lengths=(64, 100, 300), depths=(0.0, 100.0))
        store.add("fig4_needle", model, [("needle", rows)])
        row = synthetic.throughput_row()
        store.add("table6_throughput", model, [("throughput", row)], evaluation={"mode": "train"})
    text = page_of(tmp_path, *(store.study(stem) for stem in store.lines))
    for stem in store.lines:
        assert f"title of {stem}" in text
    assert "tables/table6_throughput.tex" in text
    assert text.count("data:image/png") == 2
    assert "scores 1 (red) to 10 (green)" in text, "the note of a picture is also text"


def test_an_artefact_that_cannot_be_summed_up_says_why(tmp_path):
    store = synthetic.Store(tmp_path, "tiny", 128)
    store.add("fig4_needle", "fox_pro", [])
    text = report.build(tmp_path / "tiny", [section("fig4_needle", store.study("fig4_needle"))]).read_text()
    assert "<strong>Not drawn:</strong> fig4_needle: no needles are stored; run its experiment first" in text


def test_text_from_outside_is_escaped(tmp_path):
    store = synthetic.Store(tmp_path, "tiny", 128)
    evil = "<script>alert(1)</script>"
    store.add(FIG2, evil, [("per_token_loss", synthetic.loss_rows(np.linspace(3, 2, 512)))], name="evil")
    assert "<script" not in page_of(tmp_path, store.study(FIG2))


def test_equal_results_give_an_equal_report(tmp_path):
    one, two = (page_of(tmp_path / place, losses(tmp_path / place, seeds=2)) for place in "ab")
    assert one == two


def test_nothing_stored_is_an_error_and_what_is_not_drawn_is_said(tmp_path):
    with pytest.raises(ValueError, match="no results to report on"):
        report.build(tmp_path / "mini", [section(FIG2, None)])
    page = report.build(tmp_path / "tiny", [section(FIG2, losses(tmp_path))]).read_text()
    assert re.search(r"Not drawn:</strong> .*not drawn yet; render fig2_per_token_loss", page)


@pytest.mark.skipif(BROWSER is None, reason=f"none of {', '.join(BROWSERS)} is on PATH, and only a browser lays out the page")
@pytest.mark.parametrize("width", [390, 1280])
def test_the_page_does_not_scroll_sideways(tmp_path, width):
    page_of(tmp_path, losses(tmp_path, seeds=2))
    frame = tmp_path / "frame.html"
    frame.write_text(
        f"<iframe id=f width={width} height=800 src='tiny/report.html'></iframe><script>f.onload = () => {{"
        "const page = f.contentDocument.documentElement;"
        "const broken = [...f.contentDocument.images].filter(i => !i.naturalWidth);"
        "document.title = `${page.scrollWidth <= page.clientWidth} ${page.clientWidth > 300} ${broken.length}` }</script>"
    )
    command = [BROWSER, "--headless=new", "--no-sandbox", "--disable-gpu", "--allow-file-access-from-files", "--dump-dom",
               f"--user-data-dir={tmp_path / 'profile'}", "--virtual-time-budget=8000", "--window-size=1500,1000"]  # fmt: skip
    found = subprocess.run([*command, frame.as_uri()], capture_output=True, text=True, timeout=120, check=True).stdout
    assert "<title>true true 0</title>" in found


def test_changed_verdicts_are_noted_once_and_shown(tmp_path):
    first = page_of(tmp_path, losses(tmp_path, documents=32))
    history = tmp_path / "tiny" / "verdicts.jsonl"
    assert 'id="changes"' not in first and len(history.read_text().splitlines()) == 1

    def page(**how):  # with the picture that was drawn first
        return report.build(tmp_path / "tiny", [section(FIG2, losses(tmp_path, **how))]).read_text()

    page(documents=32)
    assert len(history.read_text().splitlines()) == 1  # nothing changed
    shutil.rmtree(tmp_path / "tiny" / "rows")
    noisy = page(documents=8, noise=3.0)
    table = noisy[noisy.index('id="changes"') : noisy.index('id="runs"')]
    assert "<strong>C6</strong> holds → cannot be decided by this design" in table and "0123456789" in table
    assert not Page(noisy).open and len(history.read_text().splitlines()) == 2
    assert page(documents=8, noise=3.0) == noisy
    history.write_text("{}\n")
    with pytest.raises(ValueError, match=r"verdicts\.jsonl is damaged"):
        page(documents=8, noise=3.0)
