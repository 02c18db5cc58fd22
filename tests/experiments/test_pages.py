"""Pages of prose: each is what its template and the rows of this checkout say, and no number of it is typed."""

import io
import re
import shutil
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import numpy as np
import pytest
from rich.console import Console

from analysis.curves import LossCurve
from analysis.statistics import Estimate
from analysis.study import read_lines, write_lines
from analysis.style import place_of
from analysis.verdict import SHARE, Comparison, Status, Verdict, not_measured
from experiments import pages
from experiments.facts import MAIN, OPEN_GATES, Facts
from experiments.render import render_all
from results.store import read_evaluation, record_run, write_rows
from tests import synthetic
from tests.synthetic import UNCHECKED, Store, main_losses

ROOT = pages.ROOT
RESULTS = ROOT / "results"
UNSEEN = RESULTS / "unseen_books"
TEMPLATES = [*pages.templates_of(RESULTS), *pages.templates_of(UNSEEN)]
OTHERWISE = ("results/README.md", "results/unseen_books/README.md")
"""Pages that code writes whole, as it does claims.md; each has a test of its own."""
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


def test_every_page_of_results_has_a_template():
    written = {template.with_suffix("") for template in TEMPLATES}
    found = {ROOT / "README.md", ROOT / "kernels" / "README.md", *RESULTS.glob("*.md"), *RESULTS.rglob("*.md")}
    found -= set(RESULTS.rglob("claims.md")) | set(RESULTS.rglob("tables/*"))
    assert found == written | {ROOT / page for page in OTHERWISE}


def typed(text: str) -> list[str]:
    """Lines with numbers that somebody typed."""
    for pattern in TAKEN_OUT:
        text = re.sub(pattern, "", text, flags=re.DOTALL)
    return [line for line in text.splitlines() if NUMBER.search(line)]


@pytest.mark.parametrize("template", TEMPLATES, ids=name)
def test_no_number_of_a_template_is_typed(template):
    assert typed(template.read_text()) == []


@pytest.mark.parametrize("text", ["FoX leads by 0.10 nats", "the last of seven models", "in 3 pairs", "124 runs"])
def test_a_typed_number_is_found(text):
    assert typed(f"Of `mini` (C12, Table 3) one says:\n{text}") == [text]


def copied(to: Path) -> Path:
    scales = ("mini", "mini-short", "mini-narrow", "mini-extrapolation", "125m-0.2b", "measurements")
    for scale in (*scales, "unseen_books/mini", "unseen_books/mini-short"):
        shutil.copytree(RESULTS / scale, to / scale, ignore=shutil.ignore_patterns("figures", "report.html"))
    shutil.copy(RESULTS / "sources.json", to)
    return to


def change_losses(results_dir: Path, model: str, by: float) -> None:
    """Add to every loss of a model of Figure 2 (seed 0), and seal the rows and what is drawn from them anew."""
    line = next(
        each for each in read_lines(results_dir, "mini", "fig2_per_token_loss") if (each.model, each.seed) == (model, 0)
    )
    (file,) = (file for file in line.files if "/per_token_loss/" in file)
    rows, meta = read_evaluation(results_dir / file, line.run_id)
    (results_dir / file).unlink()
    write_rows(results_dir / file, rows.assign(loss=rows["loss"] + by), meta, UNCHECKED)
    digest = read_evaluation(results_dir / file, line.run_id)[1]["rows_sha256"]
    for path in (results_dir / "mini").glob("*.json"):
        lines = read_lines(results_dir, "mini", path.stem)
        for each in lines:
            each.files.update({file: digest} if file in each.files else {})
        write_lines(results_dir, "mini", path.stem, lines)


def test_a_row_that_changes_changes_the_page_or_stops_words_that_it_contradicts(tmp_path):
    results_dir = copied(tmp_path)
    page = results_dir / "mini" / "README.md"
    before = page.read_text()
    change_losses(results_dir, "fox_pro", 0.003)
    assert pages.write_pages(results_dir) == {}
    after = page.read_text()
    old, new = (next(line for line in text.splitlines() if line.startswith("| FoX (Pro) |")) for text in (before, after))
    assert "**3.569 " in old and "**3.570 " in new and after.count("\n") == before.count("\n")

    change_losses(results_dir, "transformer_pro", -0.5)
    (why,) = pages.write_pages(results_dir).values()
    assert "the rows do not support '" in why and page.read_text() == after


def test_render_writes_the_pages_of_its_folder_and_goes_on_past_one_that_is_not_true(tmp_path, capsys):
    main_losses(Store(tmp_path), models=("fox_pro", "transformer_pro"))
    template = tmp_path / "tiny" / "README.md.j2"
    words = '{{ "Best" | when(order(by_model(facts.study("fig2_per_token_loss", "tiny")))[0] == "fox_pro") }}.\n'
    template.write_text(words)
    assert render_all([], "tiny", tmp_path, Console(file=io.StringIO())) == []
    assert (tmp_path / "tiny" / "README.md").read_text() == "Best.\n" and "note:" not in capsys.readouterr().err
    template.write_text(words.replace("fox_pro", "mamba2"))
    assert render_all([], "tiny", tmp_path, Console(file=io.StringIO())) == []
    assert (tmp_path / "tiny" / "README.md").read_text() == "Best.\n"
    said = capsys.readouterr().err
    assert f"note: {tmp_path / 'tiny' / 'README.md'} is left unchanged: ValueError: the rows do not support 'Best'" in said


def test_another_results_folder_leaves_the_checkouts_pages_alone(tmp_path):
    assert pages.templates_of(tmp_path) == []
    assert {ROOT / "README.md.j2", ROOT / "kernels" / "README.md.j2"} < set(TEMPLATES)


def curve_of(model: str, losses_SN: np.ndarray) -> LossCurve:
    parts = dict(label=model, axes={}, scale="tiny", noise=lambda functional: None, seeds=(0, 1), run_ids=("r", "s"))
    return LossCurve(**parts, model=model, train_len=8, losses_SN=losses_SN, bands_DK=np.empty((0, 0)), ends_K=np.empty(0),
                     num_documents=1)  # fmt: skip


def test_what_pages_take_of_curves():
    """Curves of two seeds have 8 tokens inside the training context and 8 beyond it."""
    low, high = np.full((2, 16), 3.0), np.full((2, 16), 3.5)
    high[0, :4], high[1, 6:8] = 4.0, 3.9  # of the first seed the lead shrinks, of the second it grows
    one, other = curve_of("a", low), curve_of("b", high)
    assert pages.shrinks([(one, other)], 4, 5) == (1, 2) and pages.shrinks([(one, other)], 8, 5) == (1, 2)
    assert pages.shrinks([(one, other)], 2, 1) == (1, 2), "the whole context against its beginning"
    assert pages.shrinks([(one, other)] * 2, 4, 4) == (2, 4)
    late = np.broadcast_to(np.repeat([5.0, 4.0, 2.0, 1.0], [5, 1, 2, 8]), (2, 16))
    assert pages.change(curve_of("c", late)).effect == 1 - 2, "beyond the training context minus its last quarter"
    flat = curve_of("d", np.broadcast_to(np.repeat([9.0, 2.0, 4.0], [6, 2, 8]), (2, 16)))
    assert pages.change(flat, curve_of("c", late)).effect == (4 - 2) - (1 - 2)
    apart, alone = [curve_of("e", np.array([[1.0] * 8 + [9.0] * 8, [1.2] * 8 + [1.0] * 8]))], curve_of("f", np.ones((1, 16)))
    assert pages.seeds_apart([*apart, replace(alone, seeds=(0,))]) == pytest.approx(0.2 / 2**0.5)
    assert pages.seeds_apart([*apart, one]) == pytest.approx(0.1), "one degree of freedom each"
    assert pages.order({"high": other, "low": one}) == ["low", "high"]
    assert pages.order({"late": curve_of("c", late), "high": other}) == ["high", "late"], "inside the training context"


def test_curves_with_a_forget_gate_are_those_of_attention_that_has_one(tmp_path):
    store = Store(tmp_path, train_len=64)
    specs = {"fox_pro": {"forget_gate": "full"}, "fixed": {"forget_gate": "fixed"}, "path_fox": {"kind": "path_fox"},
             "transformer_pro": {"forget_gate": "none"}, "mamba2": {"kind": "mamba2"}}  # fmt: skip
    for model, spec in specs.items():
        store.add(MAIN, model, [("per_token_loss", synthetic.loss_rows(np.full(64, 3.0)))], spec=spec)
    assert {curve.model for curve in pages.gated(store.study(MAIN))} == {"fox_pro", "fixed", "path_fox"}


def test_numbers_are_printed_with_their_interval_where_it_is_known():
    estimate = Estimate(-0.1, 0.01)
    assert pages.nats(estimate) == "\N{MINUS SIGN}0.100 nats [\N{MINUS SIGN}0.120, \N{MINUS SIGN}0.080]"
    assert pages.nats(Estimate(0.25), signed=True) == "+0.250 nats"
    assert pages.times(Estimate(0.0)) == "1.00" and pages.percent(Estimate(0.5)) == "50.0%"
    assert pages.words(3) == "three" and pages.words(1234) == "1,234"
    decisive = Comparison("loss", Estimate(-0.1, 0.01))
    shown = pages.measured(Verdict(Status.HOLDS, "", decisive=decisive, seeds=3)).replace("\N{MINUS SIGN}", "-")
    assert shown == ": -0.1000 nats [-0.1196, -0.0804] (3)"
    assert pages.measured(Verdict(Status.HOLDS, "", decisive=Comparison("size", Estimate(0.5), unit=SHARE))) == ": 50.0%"
    assert pages.measured(not_measured("")) == ""
    own = (decisive, Comparison("loss", Estimate(0.5), unit=SHARE), Comparison("other", Estimate(0.25), unit=SHARE))
    other = Verdict(Status.HOLDS, "", own, decisive, seeds=2)
    assert pages.measured(other, own[2]) == ": 25.0% (2)" and pages.measured(other, own[1]) == ": 50.0% (2)"
    assert pages.measured(other, Comparison("third", Estimate(0.5))) == pages.measured(not_measured(""), decisive) == ""


def test_what_pages_count(tmp_path):
    """Runs of all scales of a size; starts without an end, and ends without what they lasted, count nothing."""
    store = Store(tmp_path, "mini")
    curve = [("per_token_loss", synthetic.loss_rows(np.ones(256), np.ones((2, 16))))]
    for model, seed, scale in (
        ("fox_pro", 0, "mini"),
        ("fox_pro", 1, "mini"),
        ("mamba2", 0, "mini-short"),
        ("fox_pro", 0, "tiny"),
    ):
        store.add(MAIN, model, curve, seed=seed, scale=scale)
    store.add("other", "fox_llama", curve, seed=1)
    store.add("timed", "hgrn2", [("throughput", synthetic.throughput_row())], seed=1, final_loss=None)
    ends = [{"tokens": 100, "wall_s": 3600.0, "exit_code": 0}, None, {"tokens": None, "wall_s": None, "exit_code": 2},
            {"tokens": 10, "wall_s": 180.0, "exit_code": 75}]  # fmt: skip
    for index, record in enumerate(store.study(MAIN).runs.values()):
        start = record["starts"][0] | {"end": ends[index], "params": 10 + index, "epochs": 0.5 * index, "git_dirty": index < 2}
        start["deterministic"] = True
        wide = start | {"world_size": 4, "date": "later", "deterministic": False}
        record_run(tmp_path, {**record, "starts": [start, wide] if index == 0 else [start]})
    facts = Facts(tmp_path)
    place = place_of(synthetic.PROVENANCE)
    first = {"tokens": 200, "hours": 5.0, "epochs": 1.0, "fewest": 10, "most": 12, "places": {place: 3}}
    spent = {"runs": 5, "unstarted": 0, "starts": 3, "failed": 1} | first
    assert facts.spent("mini") == facts.spent("mini", False) == spent
    tiny = {"runs": 1, "unstarted": 0, "starts": 1, "failed": 0, "tokens": 10, "hours": 0.05, "epochs": 1.5, "fewest": 13,
            "most": 13, "places": {place: 1}}  # fmt: skip
    assert facts.spent("tiny") == tiny
    assert facts.size("mini") == {"fewest": 10, "most": 13, "minutes": 1.5, "epochs": 1.5}, "the first run started twice"
    store.study("other"), store.study("timed")
    facts = Facts(tmp_path)
    facts._trained = lambda scale: {name: facts.study(name, scale) for name in (MAIN, "other")}
    assert facts.seeds("mini") == {"one": ["other"], "some": [MAIN], "all": []}
    varying = ["fox_llama", "fox_pro"]  # one says nothing of it, the other was not at its last start
    assert facts.trainings("mini") == {"all": 5, "unnamed": 5, "changed": 3, "varying": varying}


def test_runs_that_were_trained_again_are_counted_by_the_weights_that_they_gave(tmp_path):
    """A start that continues another, or did not end, is no training of its own."""
    store = Store(tmp_path, "mini")
    curve = [("per_token_loss", synthetic.loss_rows(np.ones(256), np.ones((2, 16))))]
    trainings = [["a"], ["a", "a"], ["a", "a@H200"], ["a", "b@H200"], ["a", "b"], ["a", "b+"], ["a", ""]]
    for seed in range(len(trainings)):
        store.add(MAIN, "fox_pro", curve, seed=seed)
    for record, weights in zip(store.study(MAIN).runs.values(), trainings, strict=True):
        starts = [
            {**record["starts"][0], "date": str(index), "first_step": 5 * each.endswith("+"),
             "device": each.partition("@")[2] or "H100", "end": {"weights": each[:1]} if each else None}
            for index, each in enumerate(weights)
        ]  # fmt: skip
        record_run(tmp_path, {**record, "starts": starts})
    assert Facts(tmp_path).repeated("mini") == {"all": 4, "same": 2, "anywhere": 1, "one_place": 1}
    assert Facts(tmp_path).repeated("tiny") == {"all": 0, "same": 0, "anywhere": 0, "one_place": 0}


def test_lines_by_seed_that_are_missing_are_counted_by_artefact(tmp_path):
    """A model that the figure does not declare counts, too; more seeds of one line do not stand in for another's."""
    store = Store(tmp_path, "mini")
    curve = [("per_token_loss", synthetic.loss_rows(np.ones(256), np.ones((2, 16))))]
    stored = {"fox_pro": 4, "mamba2": 3, "hgrn2": 1, "alibi": 1}  # of the seven models of Figure 2, and another
    for model, seed in ((model, seed) for model, seeds in stored.items() for seed in range(seeds)):
        store.add(MAIN, model, curve, seed=seed)
    for model in ("fox_pro", "transformer_pro"):  # nothing is repeated: not a figure that is to be
        store.add("successors", model, curve)
    store.study(MAIN), store.study("successors")
    figure = {"name": "Figure 2", "wanted": 24, "missing": 4 * 3 + 2 * 2, "bare": 4}
    assert Facts(tmp_path).gaps(3) == [figure]
    assert Facts(tmp_path).gaps(1) == [figure | {"wanted": 8, "missing": 4}]


def test_which_runs_had_pytorchs_softmax_attention(tmp_path, monkeypatch):
    """Runs without a gate whose first start is older than forgetting attention with open gates for them."""
    records = {}
    for model, seed, gate, days in (
        ("transformer_llama", 0, "none", [-1]),
        ("transformer_pro", 1, "none", [-1]),
        ("transformer_pro", 0, "none", [-2, 2]),
        ("transformer_pro", 2, "none", [0, 1]),
        ("fox_pro", 0, "full", [-1]),
        ("mamba2", 0, None, [-1]),
    ):
        spec = {"model": {"forget_gate": gate} if gate else {}, "seed": seed}
        starts = [{"date": (OPEN_GATES + timedelta(days=day)).isoformat()} for day in days]
        records[f"{model}-{seed}"] = {"name": model, "spec": spec, "starts": starts}
    (tmp_path / "mini" / "runs").mkdir(parents=True)
    for name in records:
        (tmp_path / "mini" / "runs" / f"{name}.json").touch()
    monkeypatch.setattr("experiments.facts.read_run", lambda path: records[path.stem])
    found = Facts(tmp_path).with_softmax("mini")
    assert found == {"transformer_pro": [0, 1], "transformer_llama": [0]} and next(iter(found)) == "transformer_pro"


def test_held_out_losses_above_training_losses_of_recurrent_models_and_of_others(tmp_path):
    store = Store(tmp_path, train_len=64)
    for model, above in (("fox_pro", 0.5), ("hgrn2", 0.75), ("mamba2", 1.0)):
        rows = [("per_token_loss", synthetic.loss_rows(np.full(64, 3.0 + above)))]
        store.add("successors", model, rows, spec={} if model == "fox_pro" else {"kind": model}, final_loss=3.0)
    found = Facts(tmp_path).above_training(store.study("successors"))
    assert found["recurrent"] == pytest.approx((0.75, 1.0)) and found["others"] == pytest.approx((0.5, 0.5))
