from dataclasses import replace
from functools import cache

import numpy as np
import pytest

from analysis.statistics import Estimate, Noise, Part, Term, apart, combined, contrast, holm, share, stratified
from tests.analysis.simulate import SEEDS, SPREADS, TRUTHS, draw, wrong


def term(source, coefficient, values_SD):
    """Return one model's values of S seeds on D items."""
    mean_D = values_SD.mean(axis=0)
    return Term(source, coefficient, values_SD.mean(axis=1), mean_D - mean_D.mean())


def made_up(rng, seeds=3, items=40, seed_noise=0.03, shared=0.3, own=0.05, models=2):
    """Values of models without any difference: (S, D) each."""
    shared_D = shared * rng.normal(size=items)
    return [shared_D + seed_noise * rng.normal(size=(seeds, 1)) + own * rng.normal(size=(seeds, items)) for _ in range(models)]


def test_the_error_is_that_of_a_bootstrap_of_seeds_and_then_items():
    """Many draws by brute force; the draw over few seeds is too narrow by (S - 1) / S, which is put right here."""
    rng = np.random.default_rng(0)
    one, two = made_up(rng, seeds=5, items=60)
    estimate = contrast([term("a", 1.0, one), term("b", -1.0, two)])
    draws, S, D = 20_000, 5, 60
    seeds_a, seeds_b, items = (
        rng.integers(S, size=(draws, S)),
        rng.integers(S, size=(draws, S)),
        rng.integers(D, size=(draws, D)),
    )
    centre = one.mean() - two.mean()
    of_seeds = one.mean(axis=1)[seeds_a].mean(axis=1) - two.mean(axis=1)[seeds_b].mean(axis=1) - centre
    of_items = (one.mean(axis=0) - two.mean(axis=0))[items].mean(axis=1) - centre
    expected = np.std(of_seeds * (S / (S - 1)) ** 0.5 + of_items * (D / (D - 1)) ** 0.5)
    assert estimate.effect == pytest.approx(centre)
    assert estimate.error == pytest.approx(expected, rel=0.02)


@pytest.mark.parametrize(("seeds", "seed_noise"), [(3, 0.03), (3, 0.0), (2, 0.03), (1, 0.0)])
def test_intervals_cover_what_they_say(seeds, seed_noise):
    """Two models without a difference, 2,000 times: the 95% interval misses 0 in 5% at most (in fewer where seeds do not
    differ: what varies inside an item is then counted twice)."""
    rng = np.random.default_rng(1)
    missed = 0
    for _ in range(2_000):
        one, two = made_up(rng, seeds=seeds, seed_noise=seed_noise)
        low, high = contrast([term("a", 1.0, one), term("b", -1.0, two)]).interval
        missed += not low <= 0 <= high
    assert missed / 2_000 < 0.062
    assert missed / 2_000 > 0.005


def test_percentiles_of_a_bootstrap_over_three_seeds_would_not():
    rng = np.random.default_rng(2)
    missed = 0
    for _ in range(400):
        values = rng.normal(size=3)
        draws = values[rng.integers(3, size=(1_000, 3))].mean(axis=1)
        missed += not np.quantile(draws, 0.025) <= 0 <= np.quantile(draws, 0.975)
    assert missed / 400 > 0.15


def test_the_detectable_effect_is_detected_in_four_of_five():
    rng = np.random.default_rng(3)
    found, sizes = 0, []
    for _ in range(2_000):
        one, two = made_up(rng, seeds=6, seed_noise=0.03, items=40)
        estimate = contrast([term("a", 1.0, one), term("b", -1.0, two)])
        sizes.append(estimate.detectable)
    effect = float(np.median(sizes))
    for _ in range(2_000):
        one, two = made_up(rng, seeds=6, seed_noise=0.03, items=40)
        estimate = contrast([term("a", 1.0, one + effect), term("b", -1.0, two)])
        found += estimate.interval[0] > 0
    assert found / 2_000 == pytest.approx(0.8, abs=0.05)


def test_what_both_models_find_hard_cancels():
    rng = np.random.default_rng(4)
    one, two = made_up(rng, seeds=1, shared=5.0, own=0.01)
    paired = contrast([term("a", 1.0, one), term("b", -1.0, two)])
    other_items = contrast([term("a", 1.0, one), term("b", -1.0, two[:, :-1])])
    assert paired.error < 0.01 < 0.5 < other_items.error


def test_terms_of_one_model_share_its_seeds():
    seeds = np.array([1.0, 2.0, 4.0])
    nothing = np.empty(0)
    assert contrast([Term("a", 1.0, seeds, nothing), Term("a", -1.0, seeds + 1, nothing)]).error == 0
    assert contrast([Term("a", 1.0, seeds, nothing), Term("b", -1.0, seeds + 1, nothing)]).error > 1
    assert contrast([Term.of("a", 1.0, np.array([[2.0]]))]).error is None, "one seed on one item"


def test_printed_numbers_have_no_interval_and_no_doubt():
    estimate = contrast([Term("a", 1.0, np.array([2.0]), np.empty(0)), Term("b", -1.0, np.array([1.5]), np.empty(0))])
    assert estimate == Estimate(0.5, seeds=1, seeds_known=False)
    assert estimate.interval is None
    assert estimate.detectable is None
    assert (estimate.p_not_above(0.0), estimate.p_not_above(0.6)) == (0.0, 1.0)
    assert (estimate.p_not_above(0.5), estimate.p_not_above(0.5, strict=False)) == (1.0, 0.0)


def test_what_is_not_finite_is_above_or_below_everything_and_nan_is_neither():
    assert Estimate(np.inf).p_not_above(1e9) == 0.0
    assert Estimate(-np.inf, 0.1).p_not_above(-1e9) == 1.0
    assert Estimate(np.nan).p_not_above(0.0) == Estimate(np.nan, 0.1).p_not_above(0.0) == 1.0
    diverged = Term("a", 1.0, np.array([np.inf, 1.0, 2.0]), np.array([1.0, -1.0]))
    assert contrast([diverged]) == Estimate(np.inf, seeds=3), "no interval"


def estimate_of(*parts, effect=0.0):
    return combined(effect, [Part("seeds", variance, df, 3) for variance, df in parts])


def test_degrees_of_freedom_are_those_of_the_larger_noise():
    assert estimate_of((1.0, 2.0), (1e-9, 500.0)).df == pytest.approx(2.0, rel=1e-6)
    assert estimate_of((1.0, 2.0), (1.0, 2.0)).df == pytest.approx(4.0)
    assert estimate_of((1.0, np.inf)).df == np.inf
    assert estimate_of((0.25, np.inf), effect=1.0).interval == pytest.approx((1 - 1.96 * 0.5, 1 + 1.96 * 0.5), abs=1e-3)


def test_a_pool_counts_once_however_many_models_share_it():
    """Its variance comes once for each model, by its own seeds, and its degrees of freedom do not add up."""
    terms = [Term("a", 1.0, np.array([1.0]), np.empty(0)), Term("b", -1.0, np.array([1.0, 2.0]), np.empty(0))]
    pool = Noise(0.09, 4.0, "all")
    estimate = contrast(terms, {"a": pool, "b": pool})
    assert estimate.error == pytest.approx((0.09 + 0.045) ** 0.5) and estimate.df == pytest.approx(4.0)
    assert [part.count for part in estimate.parts] == [1]
    assert contrast(terms, {"a": pool, "b": Noise(0.09, 4.0, "others")}).df > 4.0
    assert not contrast(terms).seeds_known and estimate.seeds_known and estimate.where == ("all",)


def test_three_seeds_speak_for_themselves():
    terms = [Term("a", 1.0, np.array([1.0, 1.1, 1.2]), np.empty(0))]
    estimate = contrast(terms, {"a": Noise(9.0, 8.0, "all")})
    assert (estimate.error, estimate.df, estimate.where) == (pytest.approx((0.01 / 3) ** 0.5), pytest.approx(2.0), ())


@pytest.mark.parametrize(("right", "ends"), [(2, (5.67, 50.98)), (1, (1.79, 40.42)), (0, (0, 27.75)), (10, (72.25, 100))])
def test_the_interval_of_a_share_is_wilsons(right, ends):
    """As printed in tables of it, for ten items; what it leaves out is what is rejected."""
    found = share(Estimate(10.0 * right, (right * (10 - right) / 10) ** 0.5 * 10), 10)
    assert found.interval == pytest.approx(ends, abs=0.01) and found.interval[0] >= 0 and found.interval[1] <= 100
    if right:
        assert found.p_not_above(found.interval[0]) == pytest.approx(0.025, abs=1e-6)
    if right < 10:
        assert found.negative().p_not_above(-found.interval[1]) == pytest.approx(0.025, abs=1e-6)
    of_one = share(Estimate(found.effect / 100, found.error / 100), 10, 1.0)
    assert np.multiply(100, of_one.interval) == pytest.approx(found.interval)
    for bound in (0.0, 0.5, 50.0, 100.0):
        assert of_one.p_not_above(bound / 100) == pytest.approx(found.p_not_above(bound))


@pytest.mark.parametrize("effect", [20.0, 50.0])
def test_a_share_is_as_sure_as_one_of_the_things_that_are_independent(effect):
    """At most all that were counted."""
    error = (effect * (100 - effect) / 10) ** 0.5  # of ten
    ten, of_forty, of_eight = (share(Estimate(effect, error), counted) for counted in (10, 40, 8))
    eight = share(Estimate(effect, error * (10 / 8) ** 0.5), 8)
    for one, other in ((ten, of_forty), (eight, of_eight)):
        assert other.interval == pytest.approx(one.interval)
        assert other.negative().p_not_above(-70.0) == pytest.approx(one.negative().p_not_above(-70.0))


def test_two_samples_that_agree_are_not_certain():
    """Two sentences of ten needles, two found of each. t(1) is 12.706, so z = 161.45 / 20 = 8.072:
    (20 + 50 z +- root(z (20 x 80 + 2500 z))) / (1 + z). A difference of theirs has the error of one needle of twenty, 5."""
    right = np.array([[100.0] * 2 + [0.0] * 8 + [0.0] * 8 + [100.0] * 2])
    term = Term.of("a", 1.0, right, np.repeat([0, 1], 10))
    found = contrast([term])
    assert found.error == pytest.approx(0, abs=1e-9)
    assert share(found, 20).interval == pytest.approx((0.47, 92.91), abs=0.01)
    same = contrast([term, replace(term, source="b", coefficient=-1.0)])
    assert same.interval == (0.0, 0.0) and apart(same, 20).interval == pytest.approx((-63.53, 63.53), abs=0.01)
    assert apart(same, 20).p_not_above(-5.0) == pytest.approx(0.25)  # a quarter of t(1) lies below -1


def test_a_difference_of_shares_is_not_more_than_all():
    assert apart(Estimate(-10.0, 10.0, 1.0), 20).interval == (-100.0, 100.0)
    assert apart(Estimate(0.5, 0.1), 20, 1.0).interval == Estimate(0.5, 0.1).interval
    assert apart(Estimate(0.5), 20).interval is None
    assert apart(Estimate(0.5, 0.01, 3.0), 20, 1.0).df == 3.0
    equal = combined(0.0, [Part("seeds", 0.0, 2.0, 3), Part("needles", 0.0, 9.0, 10)])
    assert apart(equal, 20).df == 2.0, "the fewest, where nothing varies"


def test_documents_of_one_source_are_one_draw():
    rng = np.random.default_rng(5)
    clusters, seeds = np.repeat(np.arange(16), 8), np.array([0.0, 0.0])
    books = rng.normal(size=16)[clusters]
    books -= books.mean()
    apart = contrast([Term("a", 1.0, seeds, books)])
    together = contrast([Term("a", 1.0, seeds, books, clusters)])
    assert together.error == pytest.approx(books[::8].std(ddof=1) / 4) and together.df == pytest.approx(15.0)
    assert together.error > 2.7 * apart.error


@cache
def draws(lead, seeds, spread):
    """A thousand, which two truths share."""
    rng = np.random.default_rng([seeds, round(1e3 * spread)])
    return [draw(rng, lead, seeds, spread) for _ in range(1_000)]


@pytest.mark.parametrize("truth", TRUTHS)
@pytest.mark.parametrize("seeds", SEEDS)
def test_a_wrong_verdict_is_had_in_5_percent_at_most(truth, seeds):
    """Whatever the seeds' spread, with clustered documents: 5%, and three standard errors of 1,000 draws."""
    lead, bound = TRUTHS[truth]
    for spread in SPREADS:
        before, now = np.mean([[wrong(each, lead, bound) for each in both] for both in draws(lead, seeds, spread)], axis=0)
        assert now < 0.05 + 3 * (0.05 * 0.95 / 1_000) ** 0.5
        if seeds == 1 and truth != "the paper's effect":
            assert before > 0.35, "without seeds' noise and sources most verdicts are luck"


def test_strata_count_alike_and_their_noise_is_what_varies_inside():
    values = np.array([1.0, 3.0, 10.0, 10.0, 10.0, 13.0])
    strata = np.array([0, 0, 1, 1, 1, 1])
    mean, influence = stratified(values, strata)
    assert mean == pytest.approx((2.0 + 10.75) / 2)
    assert influence.mean() == pytest.approx(0.0)
    error = (influence.var(ddof=0) / len(influence)) ** 0.5
    exact = 0.5 * (np.var([1, 3]) / 2 + np.var([10, 10, 10, 13]) / 4) ** 0.5
    assert error == pytest.approx(exact)
    assert stratified(values, np.arange(6))[1].size == 0


def test_holm():
    assert holm([0.01, 0.04, 0.03]) == pytest.approx([0.03, 0.06, 0.06])
    assert holm([0.6, 0.9]) == pytest.approx([1.0, 1.0])
    assert holm([]) == []


@pytest.mark.parametrize(("parts", "needed"), [
    ([("seeds", 0.02, 3)], {"seeds": 6}), ([("seeds", 0.02, 3), ("documents", 0.0, 16)], {"seeds": 6}),
    ([("seeds", 0.02, 3), ("documents", 0.001, 16)], {"seeds": 12, "documents": 16}),
    ([("seeds", 0.02, 3), ("seeds", 0.02, 1)], {"seeds": 12}), ([("seeds", 0.0101, 3)], {"seeds": 4}),
    ([("documents", 0.0, 16)], {}), ([], {}),
])  # fmt: skip
def test_how_many_would_be_needed(parts, needed):
    """To see 0.2802 in 80 of 100 repetitions the error may be a tenth: 1.96 + 0.84 of it are seen. Parts share it equally."""
    given = tuple(Part(what, variance, 4.0, count) for what, variance, count in parts)
    assert Estimate(1.0, 0.5, parts=given).needed(0.2802) == needed
