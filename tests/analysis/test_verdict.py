import math
from dataclasses import replace

import numpy as np
import pytest

from analysis.statistics import Estimate, Part
from analysis.study import NothingStored
from analysis.verdict import (
    PERPLEXITY,
    RATIO,
    SHARE,
    Claim,
    Comparison,
    Status,
    decide,
    decide_any,
    in_part,
    in_words,
    judge,
    not_applicable,
    number,
    with_interval,
)


def met(effect, error=0.1, **how):
    return Comparison("a minus b", Estimate(effect, error), **how)


@pytest.mark.parametrize(
    ("effect", "status"), [(0.5, Status.HOLDS), (0.15, Status.WITHIN_NOISE), (-0.15, Status.WITHIN_NOISE), (-0.5, Status.FAILS)]
)
def test_a_verdict_is_clear_only_beyond_the_noise(effect, status):
    verdict = decide("Said.", [met(effect)])
    assert verdict.status is status
    assert decide("Said.", [met(-effect, below=True)]).status is status
    assert decide("Said.", [met(effect + 7, bound=7.0)]).status is status
    assert verdict.decisive.estimate.effect == effect
    assert verdict.decisive.estimate.interval == pytest.approx((effect - 0.196, effect + 0.196), abs=1e-3)
    assert verdict.decisive.estimate.detectable == pytest.approx(0.1 * (1.96 + 0.8416), abs=1e-3)


def test_failing_is_corrected_for_the_number_of_comparisons():
    assert decide("", [met(-0.21)]).status is Status.FAILS
    assert decide("", [met(-0.21)] + [met(1.0)] * 19).status is Status.WITHIN_NOISE


def test_on_par_needs_both_one_sided_tests():
    def par(effect, error):
        return decide("", [met(effect, error, bound=-2.0), met(effect, error, bound=2.0, below=True)]).status

    assert par(0.3, 0.5) is Status.HOLDS
    assert par(0.3, 2.0) is Status.WITHIN_NOISE, "not significantly different is not on par"
    assert par(3.5, 0.5) is Status.FAILS
    assert par(-3.5, 0.5) is Status.FAILS


def test_one_alternative_is_enough_where_one_is_asked_for():
    assert decide_any("", [[met(-0.5)], [met(0.5), met(0.6)]]).status is Status.HOLDS
    assert decide_any("", [[met(-0.5)], [met(0.5), met(-0.6)]]).status is Status.FAILS
    assert decide_any("", [[met(0.22)]] + [[met(-0.5)]] * 9).status is Status.WITHIN_NOISE
    assert decide_any("", [[met(0.9), met(-0.5)], [met(0.3), met(0.2)]]).decisive.estimate.effect == 0.2


def test_equal_is_enough_only_where_the_claim_says_so():
    assert decide("", [Comparison("x", Estimate(0.0))]).status is Status.FAILS
    assert decide("", [Comparison("x", Estimate(0.0), strict=False)]).status is Status.HOLDS


@pytest.mark.parametrize("effect", [math.nan, -math.nan])
@pytest.mark.parametrize("error", [None, 0.1])
def test_no_number_decides_nothing(effect, error):
    for below in (False, True):
        verdict = decide("Said.", [met(0.5), Comparison("x", Estimate(effect, error), below=below)])
        assert verdict.status is Status.UNDECIDED and verdict.p == 1.0
        assert verdict.sentence.endswith("One of the compared numbers is NaN: a training diverged.")
    assert decide("", [Comparison("x", Estimate(effect, error))], ["FoX (Pro)"]).status is Status.NOT_MEASURED


def test_what_is_missing_may_fail_but_not_hold():
    verdict = decide("Said.", [met(0.5)], ["FoX (Pro)"])
    assert verdict.status is Status.NOT_MEASURED
    assert verdict.sentence == "Not measured: FoX (Pro). Said."
    assert decide("", [met(-0.5)], ["FoX (Pro)"]).status is Status.FAILS
    assert decide("", [], ["FoX (Pro)"]).status is Status.NOT_MEASURED


def test_one_seed_of_which_nothing_like_was_repeated_decides_nothing():
    for effect in (0.5, -0.5, 0.0):
        verdict = decide("Said.", [Comparison("x", Estimate(effect, 0.1, seeds_known=False))])
        assert verdict.status is Status.UNDECIDED and "two seeds of every model" in verdict.sentence
    known, unknown = met(0.5), replace(met(0.5), estimate=Estimate(0.5, 0.1, seeds_known=False))
    assert decide("", [known, unknown]).status is Status.UNDECIDED
    assert decide("", [known, unknown], ["FoX (Pro)"]).status is Status.NOT_MEASURED


def test_a_design_that_is_blind_to_the_claims_effect_decides_nothing_and_says_what_would():
    parts = (Part("seeds", 0.009, 4.0, 1), Part("sources of the text", 0.001, 15.0, 16))
    estimate = Estimate(0.05, 0.1, 5.0, parts)
    blind, sharp = (judge((Claim("C", "", lambda _, size=size: decide("", [Comparison("x", estimate, size=size)])),), None)
                    for size in (0.1, 0.9))  # fmt: skip
    assert blind[0][1].status is Status.UNDECIDED
    assert (
        "sees 0.3490 nats and more, and the claim is about 0.1000 nats. It would take about 15 seeds and 26"
        in blind[0][1].sentence
    )
    assert sharp[0][1].status is Status.WITHIN_NOISE
    both = [Comparison(name, estimate, size=size) for name, size in (("near", 0.1), ("far", 0.05), ("nearer", 0.2))]
    ((_, worst),) = judge((Claim("C", "", lambda _: decide("", both)),), None)
    assert "far: this design sees 0.3490 nats and more, and the claim is about 0.0500 nats" in worst.sentence


@pytest.mark.parametrize(("effect", "status"), [(0.9, Status.HOLDS), (0.188, Status.UNDECIDED), (-0.9, Status.FAILS)])
def test_a_blind_design_leaves_what_is_clear(effect, status):
    ((_, verdict),) = judge((Claim("C", "", lambda _: decide("", [met(effect, size=0.1)])),), None)
    assert verdict.status is status


@pytest.mark.parametrize(("effect", "status"), [(0.206, Status.WITHIN_NOISE), (0.188, Status.UNDECIDED)])
def test_only_what_is_open_asks_for_a_sharper_design(effect, status):
    """Alone these have p-values of 0.02 and 0.03; the other comparison is open, and the design is sharp enough for it."""
    ((_, verdict),) = judge((Claim("C", "", lambda _: decide("", [met(effect, size=0.1), met(0.0, size=0.9)])),), None)
    assert verdict.status is status


def test_more_than_is_claimed_exceeds_unless_something_else_is_missed():
    over, under = met(5.0, bound=2.0, below=True, ceiling=True), met(-5.0)
    assert decide("", [met(5.0), over]).status is Status.EXCEEDS
    assert decide("", [under, over]).status is decide("", [met(0.18), over]).status is Status.FAILS
    assert decide("", [met(5.0), met(5.0, bound=2.0, below=True)]).status is Status.FAILS


@pytest.mark.parametrize(
    ("compared", "status"),
    [([0.5], Status.UNDECIDED), ([-0.5], Status.FAILS), ([0.5, -0.5], Status.FAILS), ([], Status.NOT_MEASURED)],
)
def test_part_of_a_claim_may_fail_it_but_not_hold(compared, status):
    assert in_part(decide("", [met(effect) for effect in compared], ["Mamba-2"][len(compared) :]), "").status is status


def claims_of(*effects, error=0.1):
    return tuple(Claim(f"C{i}", "", lambda _, e=e: decide("Said.", [met(e, error)])) for i, e in enumerate(effects))


def test_claims_of_one_figure_are_judged_together():
    statuses = [verdict.status for _, verdict in judge(claims_of(0.21), None)]
    assert statuses == [Status.HOLDS]
    judged = judge((*claims_of(0.21, 0.5, 0.0), Claim("X", "", lambda _: not_applicable("why"))), None)
    assert [verdict.status for _, verdict in judged] == [
        Status.WITHIN_NOISE, Status.HOLDS, Status.WITHIN_NOISE, Status.NOT_APPLICABLE,
    ]  # fmt: skip
    assert [verdict.judged for _, verdict in judged] == [3, 3, 3, 1]
    assert judged[0][1].sentence == "Said. Judged alone: holds."


@pytest.mark.parametrize("part", [lambda each: in_part(each, "A part."), lambda each: decide("", each.comparisons, ["a row"])])
def test_claims_that_could_only_have_failed_count_among_those_judged_together(part):
    def claims(*effects):
        made = [Claim(f"P{i}", "", lambda _, e=e: part(decide("", [met(e, 0.1)]))) for i, e in enumerate(effects)]
        return [verdict.status for _, verdict in judge((*claims_of(0.21), *made), None)]

    other = part(decide("", [met(0.3, 0.1)])).status
    assert claims() == [Status.HOLDS] and claims(0.3, 0.3) == [Status.WITHIN_NOISE, other, other]
    assert claims(-0.5, 0.3)[1] is Status.FAILS, "beyond the noise of three"
    assert claims(-0.21, 0.3)[1] is not Status.FAILS


def test_a_claim_whose_rows_are_missing_leaves_the_others_their_verdicts():
    def missing(study):
        raise NothingStored("fig: no evaluations of pruning are stored; run its experiment first")

    (held,) = claims_of(1.0)
    (_, verdict), (_, other) = judge((Claim("C2", "s", missing), held), None)
    assert (verdict.status, other.status) == (Status.NOT_MEASURED, Status.HOLDS)
    assert "no evaluations of pruning are stored" in verdict.sentence

    def edited(study):
        raise ValueError("rows.parquet holds other rows")

    with pytest.raises(ValueError, match="holds other rows"):
        judge((Claim("C3", "s", edited), held), None)


def test_a_failure_that_holm_takes_away_from_an_incomplete_claim_leaves_it_unmeasured():
    incomplete = Claim("C", "", lambda _: decide("Said.", [met(-0.21)], ["Mamba-2"]))
    assert judge((incomplete,), None)[0][1].status is Status.FAILS
    assert judge((incomplete, *claims_of(0.0, 0.0)), None)[0][1].status is Status.NOT_MEASURED


def test_wrong_verdicts_are_as_rare_as_the_page_says():
    """Five claims on effects of 0, 4,000 times: any wrong verdict in 5% at most; and effects at five errors are seen."""
    rng = np.random.default_rng(0)
    wrong = 0
    for effects in rng.normal(size=(4_000, 5)):
        wrong += any(verdict.status is not Status.WITHIN_NOISE for _, verdict in judge(claims_of(*effects, error=1.0), None))
    assert 0.035 < wrong / 4_000 < 0.06
    seen = [judge(claims_of(*(5 + effects), error=1.0), None)[0][1].status for effects in rng.normal(size=(200, 5))]
    assert seen.count(Status.HOLDS) > 190


def test_on_par_is_wrongly_said_in_one_of_forty_at_the_margin():
    rng = np.random.default_rng(1)
    said = 0
    for effect in 2.0 + 0.3 * rng.normal(size=4_000):
        both = [met(effect, 0.3, bound=-2.0, strict=False), met(effect, 0.3, bound=2.0, below=True, strict=False)]
        said += decide("", both).status is Status.HOLDS
    assert 0.015 < said / 4_000 < 0.035


@pytest.mark.parametrize(("value", "unit", "printed"), [
    (-0.02791, "nats", "−0.0279"), (5e-5, "nats", "+0.0001"), (-4e-5, "nats", "−4e−05"), (1.234, "points", "+1.23"),
    (math.log(2), RATIO, "2.00"), (math.log(2), PERPLEXITY, "+100.0%"), (2.5, PERPLEXITY, "+1,118%"), (-0.25, SHARE, "−25.0%"),
    (12_345.0, "nats", "+1.23e+04"), (math.inf, "points", "+inf"),
])  # fmt: skip
def test_numbers_are_printed_in_their_unit(value, unit, printed):
    assert number(value, unit) == printed


def test_intervals_and_bounds_are_printed_in_the_unit_of_the_paper():
    third = met(math.log(0.2), 0.02, bound=math.log(0.3), unit=RATIO, strict=False, paper="0.3 to 0.5")
    assert third.beside_the_paper == "0.20 [0.19, 0.21], paper 0.3 to 0.5" and third.asked == "≥ 0.30"
    lower = met(math.log(0.9), 0.01, below=True, unit=PERPLEXITY)
    assert str(lower) == "a minus b: −10.0% [−11.7%, −8.2%]; asked for < 0"
    assert with_interval(Estimate(0.85, 0.01), SHARE) == "85.0% [83.0%, 87.0%]"
    words = [in_words(Estimate(effect, 0.1), "falls", "rises", "neither") for effect in (-0.5, 0.5, 0.1, -0.1)]
    assert words == ["falls", "rises", "neither", "neither"]
