import base64
import io
import json
import re
import shutil
import subprocess
from dataclasses import replace
from html import unescape
from html.parser import HTMLParser
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
from PIL import Image

from analysis import report
from analysis.report import Section
from analysis.style import PAPER_SCALE
from analysis.tables import read_off
from analysis.verdict import Claim
from experiments.artefact import artefacts, claims
from experiments.fox.fig7_gate_types import Gate
from experiments.render import write_report
from results.measured import FOLDER
from results.store import record_run
from tests import synthetic
from tests.synthetic import pictures_of_a_dot, seeds_that_do_not_differ  # noqa: F401

FIG2 = "fig2_per_token_loss"
LOOKS_AT_NO_PICTURE = pytest.mark.usefixtures("pictures_of_a_dot")
BROWSERS = ("chromium", "chromium-browser", "google-chrome")
BROWSER = next(filter(None, map(shutil.which, BROWSERS)), None)


def section(stem, study, *, missing=()):
    own = artefacts()[stem]
    paper = stem.partition("_")[0].replace("fig", "Figure ").replace("table", "Table ")
    how = {"run": f"python -m experiments run {stem} --as-given", "why": f"python -m experiments why {stem} --as-given"}
    named = stem, f"title of {stem}", paper, f"What {stem} shows."
    return Section(*named, own.claims, own.looks, own.summary, study, missing, **how)


def losses(folder, scale="tiny", **how):
    store = synthetic.Store(folder, scale, 128)
    return synthetic.main_losses(store, **{"documents": 8} | how)


def drawn(study):
    artefacts()[study.stem].draw(study)
    return study


def page_of(folder, *studies, scale="tiny", absent=()):
    sections = [section(study.stem, drawn(study)) for study in studies] + [section(stem, None) for stem in absent]
    return report.build(folder / scale, sections).read_text()


DRAWN = []


@pytest.fixture
def figure2(tmp_path_factory):
    """Folder and text of a report of Figure 2, drawn once for all tests that only look at it."""
    if not DRAWN:
        folder = tmp_path_factory.mktemp("figure2")
        absent = ("fig4_needle", "table6_throughput")
        DRAWN[:] = folder, page_of(folder, losses(folder, documents=32), absent=absent)
    return DRAWN


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


def test_report_is_self_contained_well_formed_and_its_links_lead_somewhere(figure2):
    folder, text = figure2
    page = Page(text)
    assert not page.open
    assert len(page.ids) == len(set(page.ids))
    assert not dead_links(page, folder / "tiny")
    assert sum(link.startswith("data:") for link in page.links) == 2, "the figure and FoX's lead"
    assert not re.search(r"https?://|@import|<script|url\(", text)


def test_pictures_are_embedded_as_they_are(figure2):
    folder, text = figure2
    packed = base64.b64decode(re.search(r"data:image/webp;base64,([^\"]+)", text).group(1))
    with Image.open(io.BytesIO(packed)) as ours, Image.open(folder / "tiny" / "figures" / f"{FIG2}.png") as png:
        assert ours.size == png.size and ours.convert("RGB").tobytes() == png.convert("RGB").tobytes()
    assert len(packed) < (folder / "tiny" / "figures" / f"{FIG2}.png").stat().st_size


def test_the_contents_lead_to_everything_and_pictures_come_before_lists(figure2):
    _, text = figure2
    contents = text[text.index('id="contents"') : text.index("</nav>")]
    for place in (FIG2, "verdicts", "reading", "absent", "runs", "only-holds", "only-not-measured"):
        assert f'href="#{place}"' in contents
    assert '<span title="holds">C5 <span class="status holds">' in contents
    places = [text.index(part) for part in ("<nav", "<figure", 'id="claim-C1"', 'id="runs"')]
    assert places == sorted(places)
    assert "<details><summary>7 runs, one by one</summary>" in text, "run lists are folded away"


def test_each_picture_leads_to_its_numbers_its_large_form_and_its_ancestry(figure2):
    _, text = figure2
    captions = re.findall(r"<figcaption.*?</figcaption>", text, re.DOTALL)
    assert len(captions) == 2
    for caption, name in zip(captions, (FIG2, f"{FIG2}-lead"), strict=True):
        assert all(f'href="figures/{name}.{ending}"' in caption for ending in ("csv", "png", "pdf"))
        assert f'href="#from-{FIG2}"' in caption and "Scroll sideways" in caption and f'id="zoom-{name}"' in text
    assert f"python -m experiments why {FIG2} --as-given</code>" in text
    assert text.count("Values read off the curves") == 2


def test_values_are_read_off_the_curves(figure2, tmp_path):
    csv = figure2[0] / "tiny" / "figures" / f"{FIG2}.csv"
    table, frame = read_off(csv), pd.read_csv(csv)
    assert [column.title for column in table.columns] == ["8", "16", "32", "64", "128", "256", "512"]
    values = table.rows["fox pro perplexity"]
    assert values == pytest.approx(np.interp([8, 16, 32, 64, 128, 256, 512], frame["position"], frame["fox_pro_perplexity"]))
    (tmp_path / "bars.csv").write_text("model,percent\nfox_pro,3\n")
    assert read_off(tmp_path / "bars.csv") is None
    (tmp_path / "parts.csv").write_text("label,tokens,loss\nfox_pro,0,4\nfox_pro,8e6,2\nb,4e6,1\nb,5e6,1\n")
    parts = read_off(tmp_path / "parts.csv")
    assert parts.columns[0].title == "1M" and parts.rows["FoX (Pro)"][:2] == pytest.approx([3.75, 3.5])
    assert np.isnan(parts.rows["b"][0]) and parts.rows["b"][3] == 1.0, "nothing is read beyond a curve's ends"


@LOOKS_AT_NO_PICTURE
def test_a_changed_tree_is_said_at_the_picture_and_nameless_weights_once(tmp_path):
    study = losses(tmp_path, seeds=2)  # all of changed trees
    text = page_of(tmp_path, study)
    part = text[text.index(f'id="{FIG2}"') : text.index("<summary>Table")]
    assert "From a changed working tree 14 of 14 runs were trained (0123456789+) and 14 of 14 evaluations were made" in part
    assert text.count("Weights not recorded: 14 of 14 trainings") == 1
    clean = study.runs[study.lines[0].run_id]
    record_run(tmp_path, clean | {"starts": [clean["starts"][0] | {"git_dirty": False}]})
    assert "From a changed working tree 13 of 14 runs" in page_of(tmp_path, study.__class__(tmp_path, "tiny", FIG2))


def test_each_claim_has_its_sentence_number_and_link(figure2):
    _, text = figure2
    table = text[text.index('id="verdicts"') : text.index('id="reading"')]
    assert table.index("C1<") < table.index("C2<") < table.index("C22b<") < table.index("C23<") < table.index("C30<")
    for claim in ("C1", "C2", "C5", "C6"):
        assert f"<strong>{claim}</strong>" in table
        assert claims()[claim].sentence.replace("'", "&#39;") in table
    row = table[table.index("<strong>C5</strong>") :].partition("</tr>")[0]
    assert "holds" in row
    assert re.search(
        r"<strong>−\d+\.\d% \[−\d+\.\d%, −\d+\.\d%\](, paper [^<]*)?</strong><small>P\(128\), FoX \(Pro\) against", row
    )
    assert re.search(r"asked for &lt; 0; log −0\.\d{4}; detectable \d+\.\d%</small>", row)
    assert "1 seed<" in row
    assert '<a href="#fig2_per_token_loss">Figure 2</a>' in row
    assert "11 claims: <a" in text and "7 <span" in table
    rows = re.findall(r'class="is-([a-z-]+)"', table)
    assert rows.count("not-measured") == 7 and rows[-7:] == ["not-measured"] * 7, "claims without rows come last"


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


@LOOKS_AT_NO_PICTURE
def test_only_claims_that_fail_say_why_and_the_table_leads_there(tmp_path):
    text = page_of(tmp_path / "a", gates(tmp_path / "a", 0.02))
    row = text[text.index('id="claim-C26b"') :].partition("</tr>")[0]
    assert '<a href="#why-C26b">' in row and "fails" in row and "not explained" not in text
    why = text[text.index('id="why"') : text.index('id="reading"')]
    assert 'id="why-C26b"' in why and '<a href="#fig7_gate_types">' in why and "2 of 6" not in why
    assert "2 of 2 comparisons fail" in why and 'id="why-C26"' not in why
    assert not Page(text).open and "#why-C26b" in Page(text).links and "why-C26b" in Page(text).ids
    text = page_of(tmp_path / "b", gates(tmp_path / "b", -0.02))
    assert "holds" in text and 'id="why"' not in text and "Why:" not in text


def looked_into(monkeypatch, stem, looks):
    """Looks of an artefact in place of its own."""
    monkeypatch.setitem(artefacts(), stem, replace(artefacts()[stem], looks=looks))


@LOOKS_AT_NO_PICTURE
def test_a_failing_claim_that_nobody_looked_into_says_so(tmp_path, monkeypatch):
    def row_of(name, **how):
        text = page_of(tmp_path / name, gates(tmp_path / name, 0.02, **how))
        return text, text[text.index('id="claim-C26b"') :].partition("</tr>")[0]

    looked_into(monkeypatch, "gate_worth", {"C26b": lambda _: "never asked"})
    for name, looks in (("a", {}), ("b", {"C26": lambda _: "never asked"})):
        looked_into(monkeypatch, "fig7_gate_types", looks)
        text, row = row_of(name)
        assert "Why: not explained at this scale" in row and 'id="why"' not in text

    def fault(_):
        raise ValueError("nothing there")

    looked_into(monkeypatch, "fig7_gate_types", {"C26b": fault})
    assert "Unknown: nothing there." in row_of("c")[0]


@LOOKS_AT_NO_PICTURE
def test_claims_of_one_look_share_its_sentence(tmp_path, monkeypatch):
    looked_into(monkeypatch, "fig7_gate_types", dict.fromkeys(("C26", "C26b"), lambda study: f"Seen in {study.stem}."))
    text = page_of(tmp_path, gates(tmp_path, 0.02, dependent=3.0))
    assert text.count("Seen in fig7_gate_types.") == 1
    assert re.search(r'id="why-C26">C26</strong>, <strong id="why-C26b">C26b</strong>', text)


def test_a_finding_stands_once(figure2):
    _, text = figure2
    finding = re.search(r"P\(128\) of FoX \(Pro\) is [\d.]+, of the best", text).group()
    assert text.count(finding) == 1


def test_the_page_explains_noise_seeds_cut_curves_and_sizes(figure2, tmp_path):
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
    assert "Every model was trained once, with one seed." in figure2[1]


@LOOKS_AT_NO_PICTURE
def test_what_is_not_the_papers_is_not_said_to_be(tmp_path):
    study = drawn(losses(tmp_path, models=("fox_pro", "transformer_pro")))
    ours = replace(section(FIG2, study), paper="Beyond the papers")
    for one, heading, lead in ((section(FIG2, study), "Figure 2", "The paper:"), (ours, "Beyond the papers", "What it shows:")):
        text = report.build(tmp_path / "tiny", [one]).read_text()
        assert f"<h2>{heading}: {one.title}</h2>" in text and f"<p><strong>{lead}</strong> {one.shows}</p>" in text
    named = replace(ours, shows="The recall of `mqar`, if <8 and `mqar_gates`.")
    text = report.build(tmp_path / "tiny", [named]).read_text()
    assert "The recall of <code>mqar</code>, if &lt;8 and <code>mqar_gates</code>.</p>" in text


@LOOKS_AT_NO_PICTURE
def test_what_is_missing_stands_with_the_command_that_makes_it(tmp_path):
    study = drawn(losses(tmp_path, models=("fox_pro", "transformer_pro")))
    sections = [section(FIG2, study, missing=("Mamba-2, LR 1", "HGRN2")), section("fig4_needle", None)]
    text = report.build(tmp_path / "tiny", sections).read_text()
    again = f"<code>python -m experiments run {FIG2} --as-given</code>"
    assert f"<strong>Missing:</strong> Mamba-2, LR 1; HGRN2. {again}" in text
    absent = text[text.index('id="absent"') :]
    assert "<code>python -m experiments run fig4_needle --as-given</code>" in absent
    assert "Not measured: FoX (LLaMA) with Transformer (LLaMA)" in text and "FILES" not in text
    sections[1] = replace(sections[1], run="python -m experiments run fig4_needle --data text:FILES")
    assert "FILES are the texts of the corpus" in report.build(tmp_path / "tiny", sections).read_text()


def test_banners_fit_the_scale_and_what_was_trained(figure2, tmp_path):
    assert "This is not the paper's main setting (760m-48b)." in figure2[1]
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
    assert text.count("data:image/webp") == 2
    assert "scores 1 (red) to 10 (green)" in text, "the note of a picture is also text"


def test_an_artefact_that_cannot_be_summed_up_says_why(tmp_path):
    store = synthetic.Store(tmp_path, "tiny", 128)
    store.add("fig4_needle", "fox_pro", [])
    text = report.build(tmp_path / "tiny", [section("fig4_needle", store.study("fig4_needle"))]).read_text()
    assert "<strong>Not drawn:</strong> fig4_needle: no needles are stored; run its experiment first" in text

    def broken(study):
        return {}["no such row"]

    for part in (dict(summary=broken), dict(claims=(Claim("C0", "broken", broken),))):
        there = replace(section("fig4_needle", store.study("fig4_needle")), **part)
        assert "<strong>Not drawn:</strong> " in report.build(tmp_path / "tiny", [there]).read_text()


@LOOKS_AT_NO_PICTURE
def test_text_from_outside_is_escaped(tmp_path):
    store = synthetic.Store(tmp_path, "tiny", 128)
    evil = "<script>alert(1)</script>"
    store.add(FIG2, evil, [("per_token_loss", synthetic.loss_rows(np.linspace(3, 2, 512)))], name="evil")
    assert "<script" not in page_of(tmp_path, store.study(FIG2))


def test_equal_results_give_an_equal_report_that_says_what_it_was_made_from_and_how_to_make_it_again(tmp_path):
    text, other = (page_of(tmp_path / place, losses(tmp_path / place, seeds=2)) for place in "ab")
    assert text == other
    part = text[text.index('id="fig2_per_token_loss"') : text.index('id="runs"')]
    assert "Made from 14 runs and 14 evaluations on Synthetic device" in part
    assert "Corpus: made-up, bpe-512 (feedbeef). Commits of the evaluations: 0123456789+. Dates: 2025-01-02." in part
    assert "To make it again: <code>python -m experiments run fig2_per_token_loss --as-given</code>" in part
    assert "<code>per_token_loss-00000000</code>" in part
    runs = text[text.index('id="runs"') :]
    assert runs.count("<tr>") == 15
    for wanted in ("Mamba-2", "1,000,000", "8,192", "0.001", "3.100", "0123456789+", "python 3.11.7, torch 0.0", "fig2"):
        assert wanted in runs


def test_time_is_summed_by_device_and_gpu_and_tokens_by_start():
    """Two runs, the second of two starts on two kinds of device; a start that did not end counts nothing."""
    ended = [("A", 4, 1800, 1e6), ("A", 1, 3600, 2e6), ("B", 2, 900, 5e5), ("B", 2, None, None)]
    starts = [{"device": device, "world_size": size, "end": seconds and {"wall_s": seconds, "tokens": tokens}}
              for device, size, seconds, tokens in ended]  # fmt: skip
    runs = {"one": {"starts": starts[:1]}, "two": {"starts": starts[1:]}}
    study = SimpleNamespace(lines=[SimpleNamespace(run_id=name) for name in ("one", "two", "two")], runs=runs)
    assert report._spent([study, study]) == "2 runs, 3.5 million tokens, 3.0 hours on A and 0.5 hours on B"


def test_claims_stand_in_the_order_of_their_numbers():
    ids = ["A1", "A10", "C2", "C10", "C20", "C20b", "C20c", "C21", "S8"]
    shuffled = [SimpleNamespace(id=each) for each in (*ids[::2], *ids[1::2])]
    assert [claim.id for claim in sorted(shuffled, key=report._place)] == ids


def test_nothing_stored_is_an_error_and_what_is_not_drawn_is_said(tmp_path):
    with pytest.raises(ValueError, match="no results to report on"):
        report.build(tmp_path / "mini", [section(FIG2, None)])
    damaged = replace(section(FIG2, None), fault="its rows are gone: restore them")
    with pytest.raises(ValueError, match=f"no report, as none .* can be read; {FIG2}: its rows are gone: restore them"):
        report.build(tmp_path / "mini", [damaged])
    page = report.build(tmp_path / "tiny", [section(FIG2, losses(tmp_path))]).read_text()
    assert re.search(r"Not drawn:</strong> .*not drawn yet; render fig2_per_token_loss", page)


def dead_links(page, folder):
    """Links of a page that lead nowhere: to no id in it and to no file beside it."""
    targets = {f"#{each}" for each in page.ids}
    return [
        link for link in page.links if link not in targets and not link.startswith("data:") and not (folder / link).is_file()
    ]


def in_browser(path, width, script, anchor=""):
    """Return what `script` (d: document, p: its root) finds in a page in a frame of a width, and the browser's messages."""
    frame = path.with_name("frame.html")
    frame.write_text(
        f"<iframe id=f style='border:0' width={width} height=800 src='{path.name}{anchor}'></iframe><pre id=o></pre><script>"
        "f.onload = () => { const d = f.contentDocument, p = d.documentElement, w = f.contentWindow;"
        f" o.textContent = JSON.stringify((() => {{ {script} }})()) }}</script>"
    )
    command = [BROWSER, "--headless=new", "--no-sandbox", "--disable-gpu", "--allow-file-access-from-files", "--dump-dom",
               "--hide-scrollbars", "--enable-logging=stderr", "--virtual-time-budget=8000", "--window-size=1500,1000",
               f"--user-data-dir={path.parent / 'profile'}"]  # fmt: skip
    done = subprocess.run([*command, frame.as_uri()], capture_output=True, text=True, timeout=120, check=True)
    messages = [line for line in done.stderr.splitlines() if "CONSOLE" in line]
    return json.loads(unescape(re.search(r'<pre id="o">(.*?)</pre>', done.stdout, re.DOTALL).group(1))), messages


LAYOUT = """
const height = p.scrollHeight, shown = e => e.getClientRects().length > 0;
const silent = [...d.querySelectorAll(".picture")].filter(box => box.scrollWidth > box.clientWidth
  && !(shown(box.parentElement.querySelector(".phone")) && box.parentElement.textContent.includes("Scrolls sideways")));
d.querySelectorAll("details").forEach(e => e.open = true);
const wide = [...d.body.querySelectorAll("*")].filter(e => !e.closest(".picture, .scroll > table")
  && e.getBoundingClientRect().right > p.clientWidth + 1);
return {width: p.clientWidth, height, broken: [...d.images].filter(e => !e.naturalWidth).length, pictures: d.images.length,
        silent: silent.map(e => e.innerHTML.slice(0, 80)), wide: wide.map(e => e.outerHTML.slice(0, 80)),
        sideways: p.scrollWidth > p.clientWidth};
"""
laid_out = pytest.mark.skipif(
    BROWSER is None, reason=f"none of {', '.join(BROWSERS)} is on PATH, and only one lays out the page"
)


@pytest.fixture(scope="module", params=["tiny", "mini"])
def stored(request, tmp_path_factory):
    """The report of stored rows, in a copy of the results."""
    folder = tmp_path_factory.mktemp(request.param) / "results"
    shutil.copytree(FOLDER.parent, folder)
    return write_report(request.param, folder)


@pytest.mark.long
@laid_out
@pytest.mark.timeout(900)
def test_a_stored_report_fits_a_screen_and_a_telephone(stored):
    assert not dead_links(Page(stored.read_text()), stored.parent)
    for width in (1280, 390):
        found, messages = in_browser(stored, width, LAYOUT)
        assert found["width"] == width and found["pictures"] > 15
        assert (found["broken"], found["silent"], found["wide"], found["sideways"]) == (0, [], [], False)
        assert width < 1280 or found["height"] < 600 * max(stored.read_text().count("<section"), 40)
        assert not messages


@pytest.mark.long
@laid_out
def test_what_the_browser_is_asked_would_be_seen(tmp_path):
    text = page_of(tmp_path, losses(tmp_path, seeds=2))
    path = tmp_path / "tiny" / "report.html"
    bad = "<p style='width: 3000px'>wide</p><img src='none.png'><script>console.error('wrong')</script></main>"
    path.write_text(text.replace("Scrolls sideways", "").replace("</main>", bad))
    found, messages = in_browser(path, 390, LAYOUT)
    assert (
        found["broken"] == 1
        and found["sideways"]
        and found["wide"]
        and found["silent"]
        and any("wrong" in line for line in messages)
    )
    assert dead_links(Page(path.read_text()), path.parent) == ["none.png"]


@pytest.mark.long
@laid_out
def test_claims_are_filtered_by_their_verdict_and_a_picture_has_a_large_form(tmp_path):
    path = tmp_path / "tiny" / "report.html"
    text = page_of(tmp_path, losses(tmp_path, documents=32), absent=("fig4_needle",))
    count = text.count('<tr id="claim-')
    rows = 'return [...d.querySelectorAll(".claims tbody tr")].filter(e => e.getClientRects().length).map(e => e.className)'
    assert len(in_browser(path, 1280, rows)[0]) == count
    for status in ("holds", "not-measured"):
        shown = in_browser(path, 1280, rows, f"#only-{status}")[0]
        assert 0 < len(shown) < count and set(shown) == {f"is-{status}"}
    large = (
        'const box = d.querySelector(".zoom"); box.checked = true; const r = box.nextElementSibling.getBoundingClientRect();'
    )
    assert in_browser(path, 390, f"{large} return [r.top, r.left, r.width, d.images[0].width]")[0] == [0, 0, 390, 1540]


@LOOKS_AT_NO_PICTURE
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


@LOOKS_AT_NO_PICTURE
def test_findings_are_listed_and_give_an_artefact_a_page_of_its_own(tmp_path):
    study = drawn(losses(tmp_path))
    bare = replace(section(FIG2, study), claims=(), looks={})
    two = [bare, replace(bare, stem="fig2_per_token_loss-lead")]
    beside = report.build(tmp_path / "tiny", two).read_text()
    assert beside.count('class="half"') == 2
    told = [replace(two[0], findings=lambda study: ("FoX < Mamba-2.", f"{study.stem} is second.")), two[1]]
    page = report.build(tmp_path / "tiny", told).read_text()
    assert 'class="half"' not in page
    assert "<li>FoX &lt; Mamba-2.</li>\n<li>fig2_per_token_loss is second.</li>" in page
