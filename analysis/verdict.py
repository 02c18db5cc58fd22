"""Claims and the verdicts on them. The noise of the numbers that they compare is in analysis/statistics.py.

A claim is a set of inequalities between effects that must all be met (for "there is a pair ...", all those of one alternative):

* holds: each is met beyond the noise (an intersection-union test: no correction inside a claim);
* fails: one is missed beyond the noise (Bonferroni over the inequalities);
* exceeds: missed only because the effect is larger than the paper says;
* cannot be decided by this design: neither, and the smallest detectable effect is larger than the one that the claim is about;
  or seeds' noise is not known; or the baseline has not learned, or differs in something else, too;
* within noise: neither, and the design would have detected the effect that the claim is about, if it has a number;
* by construction: met, but no run could have missed it.

"On par" is two inequalities: it holds if two one-sided tests pass. A wrong "holds" and a wrong "fails" are each made in at most
2.5% of repetitions, over all claims of one artefact together that could hold or fail (Holm)."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from functools import lru_cache

from analysis.statistics import LEVEL, Estimate, holm
from analysis.study import NothingStored, Study


class Status(StrEnum):
    HOLDS = "holds"
    EXCEEDS = "exceeds"
    FAILS = "fails"
    WITHIN_NOISE = "within noise"
    UNDECIDED = "cannot be decided by this design"
    BY_CONSTRUCTION = "by construction"
    NOT_MEASURED = "not measured"
    NOT_APPLICABLE = "not applicable"


JUDGED = (Status.HOLDS, Status.EXCEEDS, Status.FAILS, Status.WITHIN_NOISE)
RATIO, PERPLEXITY, SHARE = "ratio", "of perplexity", "share"
"""Units of effects that papers give in another form: logs of ratios (printed 0.20), logs of ratios of perplexities (-3.2%), and
shares (85.0%)."""


@dataclass(frozen=True)
class Comparison:
    """One inequality: `estimate` is above `bound` (below it, if `below`), in `unit`; unless `strict`, equality is enough.
    `size`: distance from the bound of the effect that the claim is about (the paper's, or none within a tolerance); None if no
    number is known. `ceiling`: missing it means a larger effect than the paper's. `paper`: the paper's number. `shown`: printed
    in place of the effect if the paper's number is not the one that is tested."""

    name: str
    estimate: Estimate
    bound: float = 0.0
    below: bool = False
    strict: bool = True
    unit: str = "nats"
    size: float | None = None
    ceiling: bool = False
    paper: str = ""
    shown: str = ""

    @property
    def blind(self) -> bool:
        """True if this design detects only effects that are larger than the one that the claim is about."""
        return bool(self.size and self.estimate.detectable and self.estimate.detectable > self.size)

    @property
    def _towards(self) -> tuple[Estimate, float]:
        return (self.estimate.negative(), -self.bound) if self.below else (self.estimate, self.bound)

    @property
    def p_holds(self) -> float:
        """p-value against the inequality being missed."""
        estimate, bound = self._towards
        return estimate.p_not_above(bound, strict=self.strict)

    @property
    def lead(self) -> tuple[float, float]:
        """Margin by which the inequality is met, in standard errors and then in its unit; used to sort comparisons."""
        estimate, bound = self._towards
        margin = estimate.effect - bound
        if math.isnan(margin):
            return -math.inf, -math.inf
        nothing = math.copysign(math.inf, margin) if margin else 0.0
        return (margin / estimate.error if estimate.error else nothing), margin

    @property
    def asked(self) -> str:
        """The inequality: "< 0", "≥ 9.5"."""
        signs = "\N{LESS-THAN OR EQUAL TO}<" if self.below else "\N{GREATER-THAN OR EQUAL TO}>"
        exact = self.unit == RATIO or (self.bound and self.unit in (PERPLEXITY, SHARE))
        bound = number(self.bound, self.unit) if exact else f"{self.bound:.3g}".replace("-", "\N{MINUS SIGN}")
        return f"{signs[self.strict]} {bound}"

    @property
    def ours(self) -> str:
        """The effect with its interval."""
        return self.shown or with_interval(self.estimate, self.unit)

    @property
    def beside_the_paper(self) -> str:
        """The effect with its interval, then the paper's: "0.20 [0.19, 0.21], paper 0.3 to 0.5"."""
        return f"{self.ours}, paper {self.paper}" if self.paper else self.ours

    @property
    def detectable(self) -> str:
        """The smallest effect that this design detects in 80% of repetitions; empty without noise."""
        return amount(self.estimate.detectable, self.unit) if self.estimate.detectable else ""

    def __str__(self) -> str:
        shown = f"; {with_interval(self.estimate, self.unit)}" if self.shown else ""
        return f"{self.name}: {self.beside_the_paper}{shown}; asked for {self.asked}"


def on_par(name: str, estimate: Estimate, margin: float, unit: str, *, strict: bool = True) -> list[Comparison]:
    """Return two one-sided tests: that the estimate lies within `margin` on either side of 0."""
    return [Comparison(name, estimate, end, end > 0, strict, unit, size=margin) for end in (margin, -margin)]


def number(value: float, unit: str = "nats") -> str:
    """Print a value with a true minus sign: ratios, perplexities (in percent) and shares as papers give them, others with a
    sign and four decimals for nats, two otherwise, or one significant digit if these would be zeros."""
    if unit == RATIO:
        text = f"{math.exp(value):.2f}"
    elif unit == SHARE:
        text = f"{100 * value:.1f}%"
    elif unit == PERPLEXITY:
        text = f"{100 * math.expm1(min(value, 100.0)):+,.{1 if value < 2 else 0}f}%"
    else:
        digits = 4 if unit == "nats" else 2
        fixed = 0.5 * 10**-digits <= abs(value) < 1e4 or value == 0
        text = f"{value:+.{digits}f}" if fixed else f"{value:+.1g}" if abs(value) < 1 else f"{value:+.3g}"
    return text.replace("-", "\N{MINUS SIGN}")


def amount(value: float, unit: str) -> str:
    """Print a value with its unit, without a plus sign."""
    plain = "" if unit in (RATIO, PERPLEXITY, SHARE) else unit if unit == "%" else f" {unit}".rstrip()
    return number(value, unit).removeprefix("+") + plain


def in_words(estimate: Estimate, below: str, above: str, neither: str = "cannot be told from none") -> str:
    """Return `below` or `above` if the interval lies on that side of 0, else `neither`."""
    low, high = estimate.interval or (estimate.effect, estimate.effect)
    return below if high < 0 else above if low > 0 else neither


def with_interval(estimate: Estimate, unit: str) -> str:
    text = ("+" if number(estimate.effect, unit).startswith("+") else "") + amount(estimate.effect, unit)
    interval = estimate.interval if estimate.error else None
    return text if interval is None else f"{text} [{number(interval[0], unit)}, {number(interval[1], unit)}]"


@dataclass(frozen=True)
class Verdict:
    """`decisive`: the comparison that decides, whose effect, interval and smallest detectable effect are shown. `p`: two-sided
    p-value of the claim, before Holm over the `judged` claims of its artefact. `tested`: True if the claim could have failed,
    whatever its status. `seeds`: the fewest of any compared model.
    `whole`: True if there are rows for every part of the claim; otherwise it can fail but not hold. `noise`: source of the
    noise of models with one seed."""

    status: Status
    sentence: str
    comparisons: tuple[Comparison, ...] = ()
    decisive: Comparison | None = None
    seeds: int = 0
    p: float = 1.0
    whole: bool = True
    judged: int = 1
    noise: str = ""
    tested: bool = False


Look = Callable[[Study], str]
"""Explanation of why a claim fails: a sentence made from an artefact's rows alone, whichever way they point."""


@dataclass(frozen=True)
class Claim:
    """A claim of a paper, in the file of the artefact whose rows `predicate` asks for. `sentence`: what the paper says."""

    id: str
    sentence: str
    predicate: Callable[[Study], Verdict]


def not_applicable(why: str) -> Verdict:
    return Verdict(Status.NOT_APPLICABLE, why)


def not_measured(why: str) -> Verdict:
    return Verdict(Status.NOT_MEASURED, why)


def decide(sentence: str, comparisons: Sequence[Comparison], missing: Sequence[str] = ()) -> Verdict:
    """Return the verdict on "all of `comparisons`". `missing`: parts of the claim for which there are no rows."""
    return decide_any(sentence, [comparisons] if comparisons else [], missing)


def decide_any(sentence: str, alternatives: Sequence[Sequence[Comparison]], missing: Sequence[str] = ()) -> Verdict:
    """Return the verdict on "all comparisons of at least one of `alternatives`" (Bonferroni over them)."""
    if not alternatives:
        return not_measured(f"Not measured: {', '.join(missing)}.")
    holds = [max(each.p_holds for each in some) for some in alternatives]
    fails = [min(1.0, len(some) * min(1.0 - each.p_holds for each in some)) for some in alternatives]
    p_holds, p_fails = min(1.0, len(alternatives) * min(holds)), max(fails)
    likely = Status.HOLDS if p_holds <= p_fails else Status.EXCEEDS if _exceeds(alternatives) else Status.FAILS
    p = min(1.0, 2 * min(p_holds, p_fails))
    best = min(alternatives, key=lambda some: max(each.p_holds for each in some))
    decisive = min(best, key=lambda each: each.lead)
    every = tuple(each for some in alternatives for each in some)
    seeds = min((each.estimate.seeds for each in every if each.estimate.seeds), default=0)
    if missing:
        sentence = f"Not measured: {', '.join(missing)}. {sentence}"
    if any(each.estimate.error is None and each.estimate.seeds_known for each in every):
        sentence += " No spread is stored: the numbers are compared without noise."
    where = dict.fromkeys(place for each in every for place in each.estimate.where)
    noise = f"Some models have one seed; seeds' noise: {'; '.join(where)}." if where and seeds == 1 else ""
    verdict = Verdict(
        _status(likely, p, not missing), sentence, every, decisive, seeds, p, not missing, noise=noise, tested=True
    )
    if any(math.isnan(each.estimate.effect) for each in every):
        verdict = undecided(verdict, "One of the compared numbers is NaN: a training diverged.")
        return replace(verdict, status=Status.NOT_MEASURED) if missing else verdict
    if not all(each.estimate.seeds_known for each in every) and verdict.status is not Status.NOT_MEASURED:
        why = "A compared model has one seed, and no run with several seeds was evaluated in the same way, so that the effect "
        return undecided(verdict, why + "may be the seed's. It would take at least two seeds of every model.")
    return verdict


def _exceeds(alternatives: Sequence[Sequence[Comparison]]) -> bool:
    """Return whether some alternative has ceilings and all its other inequalities are met beyond the noise."""
    return any(
        all(each.ceiling or each.p_holds < (1 - LEVEL) / 2 for each in some) and any(each.ceiling for each in some)
        for some in alternatives
    )


def undecided(verdict: Verdict, why: str) -> Verdict:
    """Return the verdict as undecided, because its comparisons do not decide the claim."""
    return replace(verdict, status=Status.UNDECIDED, sentence=f"{verdict.sentence} {why}", p=1.0, tested=False)


def in_part(verdict: Verdict, why: str) -> Verdict:
    """Return the verdict on a claim of which only a part can be compared: it can fail, but not hold."""
    if verdict.status is Status.FAILS or not verdict.comparisons:
        return verdict
    return replace(undecided(verdict, why), tested=verdict.tested)


def by_construction(verdict: Verdict, why: str) -> Verdict:
    """Return the verdict on a claim that no run could have missed; it can still fail, by a bug."""
    met = verdict.status is Status.HOLDS
    said = f"{verdict.sentence} {why}"
    return replace(verdict, status=Status.BY_CONSTRUCTION, sentence=said, tested=False) if met else verdict


def _status(likely: Status, p: float, whole: bool) -> Status:
    status = likely if p < 1 - LEVEL else Status.WITHIN_NOISE
    return status if whole or status is Status.FAILS else Status.NOT_MEASURED


def _with_its_power(verdict: Verdict) -> Verdict:
    """Make a claim within noise undecided if the design could not detect the claimed effect, and say what that would take."""
    open_ones = [each for each in verdict.comparisons if each.blind and each.p_holds >= (1 - LEVEL) / 2]
    if verdict.status is not Status.WITHIN_NOISE or not open_ones:
        return verdict
    worst = max(open_ones, key=lambda each: (each.estimate.detectable or 0.0) / (each.size or 1e-12))
    seen, size = (amount(value or 0.0, worst.unit) for value in (worst.estimate.detectable, worst.size))
    why = f"{worst.name}: this design sees {seen} and more, and the claim is about {size}."
    needed = worst.estimate.needed(worst.size or 0.0)
    counts = [f"{count if count <= 1000 else 'more than 1,000'} {what}" for what, count in needed.items()]
    if counts:
        why += f" It would take about {' and '.join(counts)}."
    return undecided(verdict, why)


def _alone(claim: Claim, study: Study) -> Verdict:
    """Return the verdict on one claim; if its rows are not stored it is not measured, and the other claims are still judged."""
    try:
        return claim.predicate(study)
    except NothingStored as error:
        return not_measured(f"Not measured: {error}.")


@lru_cache(maxsize=256)
def judge(claims: tuple[Claim, ...], study: Study) -> list[tuple[Claim, Verdict]]:
    """Return the verdicts on the claims of one artefact, judged together: a status that fails Holm's correction becomes within
    noise."""
    verdicts = [_alone(claim, study) for claim in claims]
    family = [index for index, verdict in enumerate(verdicts) if verdict.tested]
    each = [verdicts[index].p if verdicts[index].status in JUDGED else 1.0 for index in family]  # 1: could only have failed
    for index, p in zip(family, holm(each), strict=True):
        verdict = verdicts[index]
        if verdict.status not in JUDGED:
            continue
        status, sentence = _status(verdict.status, p, verdict.whole), verdict.sentence
        if status is not verdict.status:
            sentence += f" Judged alone: {verdict.status}."
        verdicts[index] = _with_its_power(replace(verdict, status=status, sentence=sentence, judged=len(family)))
    return list(zip(claims, verdicts, strict=True))
