"""Parts of the report, each worked out by hand: what was made from what, how much of it, and in which order it stands."""

import math
from collections import Counter
from types import SimpleNamespace

import pytest
from PIL import Image, PngImagePlugin

from analysis import report
from analysis.statistics import Estimate
from analysis.study import Line
from analysis.verdict import PERPLEXITY, RATIO, SHARE, Claim, Comparison, Status, amount, in_words, number, with_interval

SHA = "0123456789abcdef"
LOG_2 = math.log(2)
FILES = {"tiny/rows/needle/r0-aaaa.parquet": "f", "tiny/rows/throughput/r0-bbbb.parquet": "g"}


def start(date: str = "2025-01-01T10:00", dirty: bool = False, sha: str = SHA, **more):
    return {"date": date, "git_dirty": dirty, "git_sha": sha, "device": "GPU", **more}


def meta(created: str, dirty: bool = False, device: str | None = "GPU"):
    return {"created": created, "provenance": {"git_sha": SHA, "git_dirty": dirty, "device": device}}


def line(run: str, label: str = "fox_pro", model: str = "fox_pro", scale: str = "tiny", files=None, seed: int = 0) -> Line:
    return Line(label, {}, model, seed, scale, run, FILES if files is None else files)


def study(stem: str = "fig", lines=(), runs=None, metas=()):
    return SimpleNamespace(stem=stem, lines=list(lines), runs=runs or {}, all_metas=list(metas), corpora="books")


def record(*starts, **more):
    return {"starts": list(starts), "spec": {"train": {"seq_len": 64}}, **more}


def test_what_an_artefact_was_made_from():
    lines = [line("r0"), line("r1", "mine"), line("r0", files={"tiny/rows/needle/r0-cccc-01234567.parquet": "h"})]
    metas = [meta("2025-01-02T00:00"), meta("2025-01-01T05:00", True), meta("2025-01-01T06:00", device=None)]
    made = report._made_from(study(lines=lines, metas=metas))
    assert made.pop("lines") == list(zip(lines, [["needle-aaaa", "throughput-bbbb"]] * 2 + [["needle-cccc"]], strict=True))
    assert made == {"runs": 2, "evaluations": 5, "corpora": "books", "devices": ["GPU"],
                    "commits": ["0123456789", "0123456789+"], "dates": ["2025-01-01", "2025-01-02"]}  # fmt: skip


def test_changed_trees_are_counted_by_run_and_evaluation():
    fresh = line("r2", files={"tiny/rows/throughput/r2-bbbb.parquet": "g"})
    runs = {"r0": record(start(), start(dirty=True, sha="b" * 20)), "r1": record(start()), "r2": record(start(dirty=True))}
    lines = [line("r0"), line("r0"), line("r1"), fresh]
    said = "From a changed working tree 1 of 2 runs were trained (bbbbbbbbbb+)"
    for dirty, more in ((False, "."), (True, " and 1 of 2 evaluations were made (0123456789+).")):
        assert report._changed_trees(study(lines=lines, runs=runs, metas=[meta("a"), meta("b", dirty)])) == said + more
    assert report._changed_trees(study(lines=[line("r1"), fresh], runs=runs, metas=[meta("a")])) == ""


def test_sizes_are_of_models_under_their_own_name():
    runs = {"r0": record(params=7), "r1": record(start(), start(params=8)), "r2": record(params=9), "r3": record(start())}
    lines = [line("r1", "mamba2", "mamba2"), line("r0"), line("r2", "mine"), line("r3", "hgrn2", "hgrn2"),
             line("r2", scale="mini")]  # fmt: skip
    found = report._sizes([study(lines=lines, runs=runs), study(lines=[line("r0")], runs=runs)])
    assert found == {"tiny": {"fox_pro": 7, "mamba2": 8}, "mini": {"fox_pro": 9}} and list(found["tiny"]) == [
        "fox_pro",
        "mamba2",
    ]


def test_every_run_stands_once():
    versions = {"torch": "2.0", "triton": None, "numpy": "1.0"}
    last = start("2025-01-03T10:00", True, device="CPU", python="3.11", versions=versions)
    runs = {"r0": record(start("2025-01-01T10:00"), last, final_loss=2.5, params=7), "r1": record(), "r2": record(start())}
    one = study("fig", [line("r0", "mine"), line("r2", "mamba2", "mamba2"), line("r1", seed=1)], runs)
    other = study("table", [line("r0"), line("r2", "a", "fox_llama", "mini")], runs)
    found = report._runs([one, other])
    assert [run["line"].run_id for run in found] == ["r1", "r0", "r2"], "by scale, model, label and seed"
    run = found[1]
    about = {"params": 7, "train": {"seq_len": 64}, "loss": 2.5, "commits": ["0123456789", "0123456789+"], "starts": 2,
             "devices": ["CPU", "GPU"], "versions": "python 3.11, torch 2.0, numpy 1.0", "date": "2025-01-03",
             "labels": {"mine": True, "FoX (Pro)": True}, "artefacts": {"fig": True, "table": True}}  # fmt: skip
    assert {name: run[name] for name in about} == about
    assert (found[0]["date"], found[0]["versions"], found[0]["starts"]) == ("", "", 0)
    assert report._spent([one, other]) == "3 runs, 0.0 million tokens, no time known"


def test_time_and_tokens_are_summed_over_starts():
    ends = [{"tokens": 1_500_000, "wall_s": 3600}, {"tokens": None, "wall_s": 1800}, None]
    runs = {"r0": record(*(start(end=end, world_size=2) for end in ends)), "r1": record(start(end=ends[0], device="CPU"))}
    lines = [line("r0"), line("r1"), line("r0")]
    assert report._spent([study(lines=lines, runs=runs)]) == "2 runs, 3.0 million tokens, 1.0 hours on CPU and 3.0 hours on GPU"


def test_neighbours_without_claims_stand_side_by_side():
    def each(stem, pictures=True, claims=(), findings=()):
        return {"section": SimpleNamespace(stem=stem, claims=claims), "pictures": [1] * pictures, "findings": findings}

    assert report._halves([each("a"), each("b"), each("c"), each("d", claims=(1,)), each("e"), each("f", False)]) == {"a", "b"}
    assert report._halves([each("a", claims=(1,)), each("b"), each("c"), each("d"), each("e")]) == {"b", "c", "d", "e"}
    assert report._halves([each("a"), each("b", findings=("a sentence",)), each("c"), each("d")]) == {"c", "d"}
    assert report._halves([each("a", False), each("b")]) == set()


def test_claims_stand_by_number():
    ids = ["C10", "C2", "C22b", "C22", "A3"]
    assert sorted(ids, key=lambda each: report._place(Claim(each, "", print))) == ["A3", "C2", "C10", "C22", "C22b"]


def test_pictures_have_their_share_of_the_page(tmp_path):
    """Seven inches of 220 dots; numbers and print where they are there."""
    note = PngImagePlugin.PngInfo()
    note.add_text("Description", "scale: tiny")
    folder = tmp_path / "figures"
    folder.mkdir()
    for name, width in (("fig", 770), ("fig-more", 1540), ("fig-wide", 9000), ("figure", 10)):
        Image.new("RGB", (width, 2)).save(folder / f"{name}.png", pnginfo=note)
    (folder / "fig.csv").write_text("position,loss\n1,2\n8,3\n")
    (folder / "fig-more.pdf").write_bytes(b"")
    found = report._pictures(tmp_path, SimpleNamespace(stem="fig"))
    shown = [(each["name"], each["share"], each["note"], each["size"][0]) for each in found]
    parts = (("fig", 50, 770), ("fig-more", 100, 1540), ("fig-wide", 100, 9000))
    assert shown == [(name, share, "scale: tiny", width) for name, share, width in parts]
    assert [each["files"] for each in found] == [[f"figures/{name}" for name in names] for names in (
        ("fig.csv", "fig.png"), ("fig-more.png", "fig-more.pdf"), ("fig-wide.png",))]  # fmt: skip
    assert "token index" in found[0]["read"] and not found[1]["read"]
    with pytest.raises(ValueError, match="not drawn yet; render none first"):
        report._pictures(tmp_path, SimpleNamespace(stem="none"))
    (tmp_path / "tables").mkdir()
    (tmp_path / "tables" / "none.md").write_text("")
    assert report._pictures(tmp_path, SimpleNamespace(stem="none")) == []


@pytest.mark.parametrize(("comparison", "text"), [
    (Comparison("a", Estimate(0.5)), "a; asked for > 0"),
    (Comparison("a", Estimate(0.5, 0.1), 0.25, True, False), "a; asked for ≤ 0.25; detectable 0.2802 nats"),
    (Comparison("a", Estimate(-0.5), unit=RATIO), "a; asked for > 1.00; log −0.5000"),
    (Comparison("a", Estimate(0.5), -0.02, unit=PERPLEXITY), "a; asked for > −2.0%; log +0.5000"),
    (Comparison("a", Estimate(0.5), unit=PERPLEXITY), "a; asked for > 0; log +0.5000"),
    (Comparison("a", Estimate(0.5), 0.25, unit=SHARE), "a; asked for > 25.0%"),
    (Comparison("a", Estimate(0.5), unit="points", shown="x"), "a; asked for > 0; +0.5000 points"),
])  # fmt: skip
def test_what_stands_behind_a_number(comparison, text):
    assert report._statistic(comparison) == text


@pytest.mark.parametrize(("value", "unit", "printed", "plain"), [
    (0.12345, "nats", "+0.1235", "0.1235 nats"), (-2.0, "points", "−2.00", "−2.00 points"), (LOG_2, RATIO, "2.00", "2.00"),
    (LOG_2, PERPLEXITY, "+100.0%", "100.0%"), (2.5, PERPLEXITY, "+1,118%", "1,118%"), (-0.25, SHARE, "−25.0%", "−25.0%"),
    (12_345.0, "nats", "+1.23e+04", "1.23e+04 nats"), (1.5, "%", "+1.50", "1.50%"), (1.5, "", "+1.50", "1.50"),
])  # fmt: skip
def test_numbers_with_their_units(value, unit, printed, plain):
    assert (number(value, unit), amount(value, unit)) == (printed, plain)


def test_words_and_intervals():
    assert [in_words(Estimate(effect, 0.1), "less", "more", "same") for effect in (-1.0, 0.1, 1.0)] == ["less", "same", "more"]
    assert (
        in_words(Estimate(0.1), "less", "more") == "more"
        and in_words(Estimate(0.0), "less", "more") == "cannot be told from none"
    )
    assert with_interval(Estimate(1.0, 0.5), "points") == "+1.00 points [+0.02, +1.98]"
    assert with_interval(Estimate(-1.0, 0.0), "points") == with_interval(Estimate(-1.0), "points") == "−1.00 points"
    shown = Comparison("a", Estimate(1.0), paper="2 to 3", shown="x", unit="points")
    assert shown.beside_the_paper == "x, paper 2 to 3" and str(shown) == "a: x, paper 2 to 3; +1.00 points; asked for > 0"
    assert str(Comparison("a", Estimate(1.0), 0.5, unit="points")) == "a: +1.00 points; asked for > 0.5"


@pytest.mark.parametrize(("estimate", "bound", "below", "lead"), [
    (Estimate(1.0, 0.5), 0.25, False, (1.5, 0.75)), (Estimate(1.0, 0.5), 0.25, True, (-1.5, -0.75)),
    (Estimate(1.0), 0.25, False, (float("inf"), 0.75)), (Estimate(1.0), 1.0, False, (0.0, 0.0)),
    (Estimate(float("nan")), 1.0, False, (-float("inf"), -float("inf"))),
])  # fmt: skip
def test_leads(estimate, bound, below, lead):
    assert Comparison("a", estimate, bound, below).lead == lead


def test_a_design_is_blind_below_what_it_sees():
    seen = Estimate(0.0, 1.0).detectable
    assert [Comparison("a", Estimate(0.0, 1.0), size=size).blind for size in (seen - 0.01, seen, None)] == [True, False, False]
    assert not Comparison("a", Estimate(0.0), size=1.0).blind


def test_signs_of_every_verdict():
    assert set(report.SIGNS) == set(Status) and len(Counter(kind for kind, _ in report.SIGNS.values())) > 2
    assert report._sign(Status.HOLDS).endswith(f"{report.SIGNS[Status.HOLDS][1]} holds</span>")
    assert report._sign(Status.HOLDS, False).endswith(f"{report.SIGNS[Status.HOLDS][1]} </span>")
