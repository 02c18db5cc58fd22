from dataclasses import replace
from functools import cache

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from scipy import stats

from analysis.statistics import Estimate, Noise, Part, Term, apart, combined, contrast, holm, share, stratified
from analysis.verdict import Comparison, Status, decide


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


def test_a_pool_counts_once_however_many_models_share_it():
    """Its variance comes once for each model, by its own seeds, and its degrees of freedom do not add up."""
    terms = [Term("a", 1.0, np.array([1.0]), np.empty(0)), Term("b", -1.0, np.array([1.0, 2.0]), np.empty(0))]
    pool = Noise(0.09, 4.0, "all")
    estimate = contrast(terms, {"a": pool, "b": pool})
    assert estimate.error == pytest.approx((0.09 + 0.045) ** 0.5) and estimate.df == pytest.approx(4.0)
    assert [part.count for part in estimate.parts] == [1]
    assert contrast(terms, {"a": pool, "b": Noise(0.09, 4.0, "others")}).df > 4.0
    assert not contrast(terms).seeds_known and estimate.seeds_known and estimate.where == ("all",)


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


VALUES = st.lists(st.floats(-5, 5), min_size=2, max_size=6, unique=True)


@given(VALUES, VALUES, st.floats(-3, 3))
def test_seeds_are_compared_as_by_welch_and_items_as_by_a_paired_t_test(one, other, bound):
    assume(min(np.std(one), np.std(other)) > 1e-3)
    alone, nothing = contrast([Term("a", 1.0, np.array(one), np.empty(0))]), np.empty(0)
    student = stats.ttest_1samp(one, bound, alternative="greater")
    assert alone.interval == pytest.approx(tuple(stats.ttest_1samp(one, 0).confidence_interval()), rel=1e-6, abs=1e-9)
    assert alone.p_not_above(bound) == pytest.approx(student.pvalue, rel=1e-6, abs=1e-12)
    both = contrast([Term("a", 1.0, np.array(one), nothing), Term("b", -1.0, np.array(other), nothing)])
    welch = stats.ttest_ind(one, other, equal_var=False)
    assert both.interval == pytest.approx(tuple(welch.confidence_interval()), rel=1e-6, abs=1e-9)
    size = min(len(one), len(other))
    items = [Term(name, sign, np.array([np.mean(own[:size])]), np.array(own[:size]) - np.mean(own[:size]))
             for name, sign, own in (("a", 1.0, one), ("b", -1.0, other))]  # fmt: skip
    apart_by = np.subtract(one[:size], other[:size])
    assume(np.std(apart_by) > 1e-3)
    exact = stats.ttest_1samp(apart_by, 0).confidence_interval()
    known = dict.fromkeys("ab", Noise(0.0, np.inf, "none"))
    assert contrast(items, known).interval == pytest.approx(tuple(exact), rel=1e-6, abs=1e-9)


@given(st.integers(1, 60), st.data())
def test_the_interval_of_a_share_is_wilsons(count, data):
    """And what it leaves out is what is rejected."""
    right = data.draw(st.integers(0, count))
    found = share(Estimate(100 * right / count, 100 * (right * (count - right) / count**3) ** 0.5), count)
    ends = stats.binomtest(right, count).proportion_ci(0.95, method="wilson")
    assert found.interval == pytest.approx((100 * ends.low, 100 * ends.high), abs=1e-6)
    if right:
        assert found.p_not_above(found.interval[0]) == pytest.approx(0.025, abs=1e-6)


@pytest.mark.parametrize("effect", [20.0, 50.0])
def test_a_share_is_as_sure_as_one_of_the_things_that_are_independent(effect):
    """At most all that were counted."""
    error = (effect * (100 - effect) / 10) ** 0.5  # of ten
    ten, of_forty, of_eight = (share(Estimate(effect, error), counted) for counted in (10, 40, 8))
    eight = share(Estimate(effect, error * (10 / 8) ** 0.5), 8)
    for one, other in ((ten, of_forty), (eight, of_eight)):
        assert other.interval == pytest.approx(one.interval)
        assert other.negative().p_not_above(-70.0) == pytest.approx(one.negative().p_not_above(-70.0))


SPREADS = (0.003, 0.010, 0.03)
TRUTHS = {"no difference": (0.0, 0.0), "the paper's": (0.03, 0.0), "at the bound": (0.03, 0.03)}
"""Standard deviations over seeds (nats); the true lead, and the lead that the claim asks to be surpassed."""


@cache
def draws(lead, seeds, spread):
    """Leads of one model over another, as at mini, on 128 documents of 16 sources that go together (correlation 0.56), with a
    standard deviation of 0.03 over documents. One seed takes its noise from two series of three, the least that is taken."""
    rng, clusters = np.random.default_rng([seeds, round(1e3 * spread)]), np.repeat(np.arange(16), 8)
    found = []
    for _ in range(500):
        paired = 0.03 * (0.56**0.5 * rng.normal(size=16)[clusters] + 0.44**0.5 * rng.normal(size=128))
        ours, theirs = (spread * rng.normal(size=seeds) for _ in range(2))
        terms = [Term("other", 1.0, theirs + lead + paired.mean(), paired - paired.mean(), clusters),
                 Term("model", -1.0, ours, np.zeros(128), clusters)]  # fmt: skip
        repeated = [spread * rng.normal(size=3) for _ in range(2)] + ([ours, theirs] if seeds > 1 else [])
        df = sum(len(values) - 1 for values in repeated)
        noise = Noise(float(sum(((values - values.mean()) ** 2).sum() for values in repeated)) / df, df, "all")
        found.append(contrast(terms, {"other": noise, "model": noise}))
    return found


@pytest.mark.parametrize("truth", TRUTHS)
@pytest.mark.parametrize("seeds", [1, 3, 5])
def test_a_wrong_verdict_is_had_in_5_percent_at_most(truth, seeds):
    """Whatever the seeds' spread, with clustered documents: 5%, and three standard errors of 500 draws."""
    lead, bound = TRUTHS[truth]
    for spread in SPREADS:
        statuses = [decide("", [Comparison("lead", replace(each, seeds_known=True), bound)]).status
                    for each in draws(lead, seeds, spread)]  # fmt: skip
        wrong = [status is Status.FAILS or (status is Status.HOLDS and lead <= bound) for status in statuses]
        assert np.mean(wrong) < 0.05 + 3 * (0.05 * 0.95 / 500) ** 0.5
