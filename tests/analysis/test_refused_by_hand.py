"""Numbers of each kind, families, and each way in which an artefact's lines and rows are refused, worked out by hand."""

import math
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest

from analysis import report
from analysis.names import MODELS, ordered, rank, title
from analysis.prediction import Predicted, numbers
from analysis.seeds import family_of, size_of, sources_of
from analysis.statistics import Estimate, Noise, Part, Term, contrast, stratified
from analysis.study import Line, Study, read_lines, study_file, write_lines
from analysis.tables import _TEX, Column, _tex, count_range, over_seeds
from analysis.verdict import PERPLEXITY, RATIO, SHARE, Comparison, amount, decide, number, on_par
from models.spec import ForgettingTransformerSpec
from results.sealed import write_sealed
from tests import synthetic
from tests.models.conftest import SPECS

ROWS = pd.DataFrame({"value": [1.0, 2.0]})
LINE = Line("a", {}, "fox_pro", 0, "tiny", "r1", {"tiny/rows/x/r1-0.parquet": "f00"})


@pytest.mark.parametrize(("kind", "columns", "found"), [
    ("needle_recall", {"recall_nats": [1.0, 4.0], "mode": "easy"}, {"recall_nats, easy": 2.5}),
    ("needle_choice", {"right": [1.0], "mode": "easy"}, {}), ("longbench", {"score": [10.0, 30.0]}, {"score": 20.0}),
    ("ruler", {"value": [0.0, 1.0, 1.0, 1.0]}, {"value": 0.75}), ("pruning", {"value": [1.0]}, {}),
    ("recall", {"num_queries": [1, 9], "num_correct": [1, 0]}, {"found (%)": 10.0}),  # each query counts, not each row
    ("lm_eval", {"metric": ["acc_norm", "acc", "bits_perplexity"], "value": [3.0, 5.0, 7.0]},
     {"acc, mean of tasks (%)": 5.0, "acc_norm, mean of tasks (%)": 3.0}),
    ("training_curve", {"step": [20, 18, 19], "loss": [1.0, 9.0, 4.0]}, {"training loss, last tenth": 2.5}),
    ("per_token_loss", {"document": [-1, 0, -1], "position": [5, 2, 8], "width": [1, 9, 3], "loss": [2.0, 9.0, 4.0]},
     {"loss beyond it": 3.5}),
])  # fmt: skip
def test_the_numbers_of_each_kind(kind, columns, found):
    assert numbers(kind, pd.DataFrame(columns), 4) == found


def test_the_band_of_one_more_seed():
    """Two are stored, with two degrees of freedom: the quantile is 4.3027, and the error the root of one and a half."""
    found = Predicted((1.0, 3.0), Noise(1.0, 2.0))
    half = 4.302653 * math.sqrt(1.5)
    assert found.band == pytest.approx((2 - half, 2 + half)) and found.mean == 2.0
    for value in (2 - half, 2 + half):
        assert found.p(value) == pytest.approx(0.05)
    assert found.p(2.0) == 1.0 and found.p(math.inf) == found.p(math.nan) == 0.0
    assert Predicted((1.0,), None).p(-9.0) == 1.0 and Predicted((1.0,), None).p(-math.inf) == 0.0


@pytest.mark.parametrize(("model", "family"), [
    ({"kind": "mamba2"}, "recurrent"), ({"kind": "hgrn2"}, "recurrent"), ({"kind": "delta_net"}, "recurrent"),
    ({"kind": "mamba2", "forget_gate": "full"}, "recurrent"), ({"kind": "samba"}, "recurrent"),
    ({"kind": "x", "forget_gate": "none"}, "attention without a forget gate"),
    ({"kind": "x", "forget_gate": "full"}, "attention with a forget gate"),
    ({"kind": "x", "forget_gate": "fixed"}, "attention with a forget gate"),
])  # fmt: skip
def test_families_of_models(model, family):
    assert family_of(model) == family


@pytest.mark.parametrize(
    "spec", [spec for spec in SPECS.values() if not isinstance(spec, ForgettingTransformerSpec)], ids=lambda spec: spec.kind
)
def test_models_are_recurrent_whose_state_does_not_grow(spec):
    """All others here have a forget gate."""
    grows = spec.state_size(2048) > spec.state_size(1024)
    family, place = ("attention with a forget gate", "GATED_KINDS") if grows else ("recurrent", "RECURRENT_KINDS")
    assert family_of({"kind": spec.kind}) == family, f"a new kind also stands in {place} of analysis/seeds.py"


def test_sizes_and_places_of_models():
    assert [size_of(scale) for scale in ("mini", "mini-short", "360m-7.5b", "mini-a-b")] == ["mini", "mini", "360m", "mini"]
    assert rank("fox_pro") == 0 and rank("y") == rank("x") == len(MODELS)
    assert title("x") == "x" and title("fox_pro") == "FoX (Pro)"
    assert ordered(["y", "mamba2", "x", "fox_pro", "y"]) == ["fox_pro", "mamba2", "x", "y"]


@pytest.mark.parametrize(("documents", "found"), [(0, None), (1, [0]), (2, [0, 1]), (3, None)])
def test_sources_are_of_as_many_documents_as_were_read(documents, found, tmp_path):
    """Without a table of sources, and of an evaluation that recorded two."""
    sources = sources_of(tmp_path, {"extras": {"sources": [0, 1]}, "spec": {}}, documents)
    assert (None if sources is None else sources.tolist()) == found
    assert sources_of(tmp_path, {"extras": {}, "spec": {}}, documents) is None


@pytest.mark.parametrize(("values", "told"), [
    ({"stem": "other"}, "does not belong here: it is other at tiny; restore it"),
    ({"scale": "mini"}, "does not belong here: it is fig at mini; restore it"),
    ({"stem": None, "scale": None}, "it is None at None"), ({"lines": [{"label": "a"}]}, "is of another version: restore it"),
    ({"lines": None}, "is of another version"), ({"lines": {"label": "a"}}, "is of another version"),
])  # fmt: skip
def test_lines_of_elsewhere_or_of_another_version_are_refused(values, told, tmp_path):
    write_sealed(study_file(tmp_path, "tiny", "fig"), {"stem": "fig", "scale": "tiny", "lines": []} | values)
    with pytest.raises(ValueError, match=told):
        read_lines(tmp_path, "tiny", "fig")
    write_lines(tmp_path, "tiny", "fig", [LINE])  # takes its place, whatever it said
    assert read_lines(tmp_path, "tiny", "fig") == [LINE]


@pytest.mark.parametrize("changes", [
    {"axes": {"a": [1]}}, {"axes": {"a": None}}, {"seed": "0"}, {"seed": 0.5}, {"files": {"a": 1}}, {"model": None},
    {"more": 1},
    {"weights": 3},
])  # fmt: skip
def test_a_line_is_of_plain_values(changes, tmp_path):
    fields = {name: getattr(LINE, name) for name in ("label", "axes", "model", "seed", "scale", "run_id", "files")}
    write_sealed(study_file(tmp_path, "tiny", "fig"), {"stem": "fig", "scale": "tiny", "lines": [fields | changes]})
    with pytest.raises(ValueError, match="is of another version"):
        read_lines(tmp_path, "tiny", "fig")


def test_a_file_of_lines_that_is_damaged_is_written_anew(tmp_path):
    path = write_lines(tmp_path, "tiny", "fig", [replace(LINE, weights="ab"), replace(LINE, label="b")])
    assert '"weights"' in path.read_text() and path.read_text().count("weights") == 1
    assert [line.weights for line in read_lines(tmp_path, "tiny", "fig")] == ["ab", None]
    path.write_text("{")
    assert write_lines(tmp_path, "tiny", "fig", [LINE]) == path
    assert read_lines(tmp_path, "tiny", "fig") == [LINE]


def test_the_series_and_the_weights_of_a_line():
    """Axes in the order of their names, whatever order they were said in."""
    one = replace(LINE, axes={"b": 1, "a": "x"})
    assert (
        one.series
        == replace(LINE, axes={"a": "x", "b": 1}, seed=7, label="z").series
        == ((("a", "x"), ("b", 1)), "fox_pro", "tiny")
    )
    assert one.place == (one.series, 0)
    assert one.is_trained and one.trained_weights == "weights not recorded" and one.training == ""
    assert replace(LINE, weights="ab").trained_weights == "weights ab"


def test_an_artefact_of_several_lengths_corpora_and_scales(tmp_path):
    store = synthetic.Store(tmp_path)
    store.add("fig", "fox_pro", [("needle", ROWS)], data={"fingerprint": "b" * 64}, extras={"more": 1})
    store.add("fig", "mamba2", [("needle", ROWS)], train={"seq_len": 128}, data={"fingerprint": "a" * 64})
    store.add("fig", "hgrn2", [("needle", ROWS)], data={"source": "books"}, scale="mini")
    study = store.study("fig")
    assert study.corpora == "books, bpe-512 (feedbeef); made-up, bpe-512 (aaaaaaaa, bbbbbbbb)"
    assert study.scales == ["tiny", "mini"] and study.created == synthetic.CREATED and study.folder == tmp_path / "tiny"
    with pytest.raises(
        ValueError, match=r"fig: one training context length is needed to draw this; the runs have \[128, 256\]"
    ):
        study.train_len  # noqa: B018
    first, second, _ = study.lines
    for kind, line, name, found in (("needle", first, "more", 1), ("needle", first, "less", None),
                                    ("needle", second, "more", None), ("other", first, "more", None)):  # fmt: skip
        assert study.extra(kind, line.run_id, name) == found
    with pytest.raises(ValueError, match="fig: no curves are stored; run its experiment first"):
        study.stored("per_token_loss", "curves")
    with pytest.raises(ValueError, match="fig: no curves are stored"):
        study.by_series("per_token_loss", "curves")
    assert study.by_series("per_token_loss") == []
    assert study.stored("needle", "needles")["model"].drop_duplicates().tolist() == ["fox_pro", "mamba2", "hgrn2"]
    measured = study.measured(second, study.metas("needle")[1])
    assert measured["noise"](lambda other: np.zeros(1)) is None, "nothing was repeated"
    assert {name: measured[name] for name in ("label", "axes", "model", "scale", "train_len", "sources_D")} == {
        "label": "mamba2", "axes": {}, "model": "mamba2", "scale": "tiny", "train_len": 128, "sources_D": None,
    }  # fmt: skip


def test_an_axis_is_called_unlike_the_columns(tmp_path):
    store = synthetic.Store(tmp_path)
    store.add("fig", "fox_pro", [("needle", ROWS)], axes={"value": 1})
    with pytest.raises(ValueError, match="fig: the axis value is a column of needle, too: give it another name"):
        store.study("fig").rows("needle")


def test_rows_of_one_artefact_only(tmp_path):
    """Other rows in their place, or rows that are gone."""
    store = synthetic.Store(tmp_path)
    store.add("fig", "fox_pro", [("needle", ROWS)])
    ((name, digest),) = store.lines["fig"][0].files.items()
    store.lines["fig"] = [replace(store.lines["fig"][0], files={name: digest[::-1]})]
    with pytest.raises(ValueError, match=r"holds other rows than fig.json was drawn from: restore it"):
        store.study("fig").whole()
    (tmp_path / name).unlink()
    with pytest.raises((ValueError, OSError), match="needle"):
        Study(tmp_path, "tiny", "fig").whole()


def test_words_of_tex():
    """Every character that TeX takes for its own."""
    plain = {chr(code): text for code, text in _TEX.items()}
    assert {"\\", "&", "%", "_", "#", "$", "<", ">"} <= set(plain) and _tex(
        "a" + "".join(plain) + "b"
    ) == f"a{''.join(plain.values())}b"
    for text, tex in (("5%", r"5\%"), ("a_b", r"a\_b"), ("R&D", r"R\&D"), ("#1", r"\#1"), ("$2", r"\$2"), (">", "$>$"),
                      ("\N{MINUS SIGN}1", "$-$1"), ("\N{EN DASH}", "--"), ("\N{PLUS-MINUS SIGN}", r"$\pm$"),
                      ("\\", r"\textbackslash{}")):  # fmt: skip
        assert _tex(text) == tex


@pytest.mark.parametrize(("style", "value", "text"), [
    ("", None, "–"), ("", math.nan, "–"), ("", -1.234, "−1.23"), ("", 9999.994, "9,999.99"), ("", 10_000.4, "10,000"),
    ("", -10_000.4, "−10,000"), ("signed", 1.0, "+1.00"), ("signed", -1.0, "−1.00"), ("signed", 10_000.0, "+10,000"),
    ("signed", 0.0, "+0.00"), ("signed", -0.004, "−0.004"), ("signed", 3e-7, "+3e−07"), ("", 0.004, "0.00"),
    ("check", 1.0, "✓"), ("check", 0.0, ""), ("check", None, "–"),
])  # fmt: skip
def test_the_text_of_a_value(style, value, text):
    assert Column("a", "a", 2, style=style).text(value) == text


def test_a_table_over_seeds_says_of_how_many():
    columns = [Column("a", "a"), Column("b", "b")]
    three, two = np.array([1.0, 2.0, 6.0]), np.array([1.0, 3.0])
    estimate = Estimate(2.0, 0.5)
    table = over_seeds("T", columns, {"x": [three, estimate], "y": [two, None], "z": [np.array([4.0]), 5.0]}, "Note.")
    assert table.note == "Note. Mean ± standard deviation over 1 to 3 seeds."
    assert table.rows == {"x": [3.0, 2.0], "y": [2.0, None], "z": [4.0, 5.0]}
    assert table.spreads == {"x": [pytest.approx(7**0.5), None], "y": [pytest.approx(2**0.5), None], "z": [None, None]}
    assert table.ranges == {"x": [None, estimate.interval], "y": [None, None], "z": [None, None]}
    assert over_seeds("T", columns, {"x": [np.array([4.0]), None]}).note == "One seed."
    for seeds, note in ((1, "One seed."), (3, "One seed: a.")):
        rows = {"x": [np.array([4.0]), Estimate(2.0, 0.5, seeds=seeds)], "y": [None, Estimate(2.0, 0.5, seeds=1)]}
        assert over_seeds("T", columns, rows).note == note, "of the columns without estimates of several seeds"
    assert over_seeds("T", columns, {"x": [4.0, None]}).note == "" and table.paper == {}
    assert [count_range(counts, "seeds") for counts in ([3, 3], [2, 1, 5], [1000])] == [
        "3 seeds",
        "1 to 5 seeds",
        "1,000 seeds",
    ]


@pytest.mark.parametrize(("value", "unit", "printed", "with_unit"), [
    (1.0, "nats", "+1.0000", "1.0000 nats"), (-1.0, "points", "−1.00", "−1.00 points"), (9999.0, "", "+9999.00", "9999.00"),
    (1e4, "", "+1e+04", "1e+04"), (-1e4, "nats", "−1e+04", "−1e+04 nats"), (0.0, RATIO, "1.00", "1.00"),
    (0.5, SHARE, "50.0%", "50.0%"), (1.99, PERPLEXITY, "+631.6%", "631.6%"), (2.0, PERPLEXITY, "+639%", "639%"),
    (-0.5, PERPLEXITY, "−39.3%", "−39.3%"), (0.25, "%", "+0.25", "0.25%"),
])  # fmt: skip
def test_a_number_in_its_unit(value, unit, printed, with_unit):
    assert number(value, unit) == printed and amount(value, unit) == with_unit


def test_comparisons_are_asked_and_led_by_hand():
    """A bound of 0 is printed as such, in any unit but ratios."""
    for unit, bound, below, strict, asked in (
        ("nats", -0.5, True, True, "< −0.5"), ("nats", 0.0, False, False, "≥ 0"), (PERPLEXITY, 0.0, True, True, "< 0"),
        (SHARE, 0.5, False, True, "> 50.0%"), (RATIO, 0.0, True, False, "≤ 1.00"), (SHARE, 0.0, False, True, "> 0"),
    ):  # fmt: skip
        assert Comparison("a", Estimate(0.0), bound, below, strict, unit).asked == asked
    for effect, error, below, lead in (
        (3.0, 0.5, False, (4.0, 2.0)), (3.0, 0.5, True, (-4.0, -2.0)), (3.0, None, False, (math.inf, 2.0)),
        (3.0, 0.0, True, (-math.inf, -2.0)), (1.0, None, False, (0.0, 0.0)), (math.nan, 0.5, False, (-math.inf, -math.inf)),
    ):  # fmt: skip
        assert Comparison("a", Estimate(effect, error), 1.0, below).lead == lead
    low, high = sorted(on_par("a", Estimate(0.0, 0.1), 0.5, "nats", strict=False), key=lambda each: each.bound)
    assert (low.bound, low.below, high.bound, high.below, low.size, high.size) == (-0.5, False, 0.5, True, 0.5, 0.5)
    assert not low.strict and not high.strict and on_par("a", Estimate(0.0), 0.5, "nats")[0].strict


def test_a_design_is_blind_to_less_than_it_detects():
    estimate = Estimate(0.0, 1.0)
    seen = estimate.detectable
    assert seen == pytest.approx(1.959964 + 0.841621)
    for size, blind in ((seen, False), (0.99 * seen, True), (None, False)):
        assert Comparison("a", estimate, size=size).blind is blind
    assert not Comparison("a", Estimate(0.0), size=0.1).blind, "of no error nothing is known"
    exact = Estimate(1.0, 0.0)
    assert exact.interval == (1.0, 1.0) and exact.detectable == 0.0 and exact.p_not_above(1.0, strict=False) == 0.0


def test_the_decisive_comparison_and_words_of_a_verdict():
    """Among several the one that is met by the least decides."""
    some = [Comparison(str(effect), Estimate(effect, 0.1, seeds=1, where=("w",))) for effect in (0.9, 0.5, 0.7)]
    verdict = decide("Said.", some, ["one", "two"])
    assert verdict.decisive is some[1] and verdict.comparisons == tuple(some) and not verdict.whole
    assert (
        verdict.sentence == "Not measured: one, two. Said." and verdict.noise == "Some models have one seed; seeds' noise: w."
    )
    assert decide("Said.", [replace(each, estimate=replace(each.estimate, seeds=2)) for each in some]).noise == ""
    assert decide("", [], ["one", "two"]).sentence == "Not measured: one, two."


def test_items_of_one_source_tell_nothing_of_the_spread():
    values = np.array([[1.0, 3.0]])
    alone = contrast([Term.of("a", 2.0, values, np.array([7, 7]))])
    assert alone.parts == (Part("sources of the text", 0.0, math.inf, 1),) and alone.effect == 4.0
    apart = contrast([Term.of("a", 2.0, values, items="needles")])
    assert apart.parts == (Part("needles", pytest.approx(2 * (4 + 4) / 4), 1.0, 2),)
    assert contrast([]) == Estimate(0.0, seeds_known=True)


def test_a_stratum_of_one_value_has_no_spread():
    for strata, influence in (([0, 0, 1], []), ([0, 0, 1, 1], [-1.0, 1.0, -1.0, 1.0])):
        mean, found = stratified(np.array([1.0, 3.0, 5.0, 7.0][: len(strata)]), np.array(strata))
        assert mean == np.mean([2.0, np.mean([5.0, 7.0][: len(strata) - 2])]) and found.tolist() == influence


def test_what_looks_say_is_in_the_order_of_the_claims_they_are_of():
    """Not in that of the sections."""
    claims = [SimpleNamespace(id=name) for name in ("C2", "C10", "C30")]
    first, later = (lambda study, said=said: said for said in ("first", "later"))
    sections = [SimpleNamespace(looks={"C10": later, "C30": later}, study=1), SimpleNamespace(looks={"C2": first}, study=1)]
    assert [(said, asked) for _, said, asked in report._looks(claims, sections)] == [
        ("first", ["C2"]),
        ("later", ["C10", "C30"]),
    ]


def test_an_artefact_s_lines_are_a_line_each(tmp_path):
    lines = [Line("a", {}, "a", seed, "tiny", str(seed), {}) for seed in (0, 1)]
    assert len(write_lines(tmp_path, "tiny", "s", lines).read_text().splitlines()) == 9
