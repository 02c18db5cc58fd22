"""Claims and the verdicts on them. The noise of what they compare is in analysis/statistics.py.

A claim is inequalities between effects that must all be met (or, for "there is a pair ...", all those of one alternative):

* holds: each is met beyond the noise (an intersection-union test: no correction inside a claim);
* fails: one is missed beyond the noise (Bonferroni over the inequalities);
* exceeds: missed only by more of what the claim says than the paper says;
* cannot be decided by this design: neither, and the smallest effect that could have been seen is larger than the one that the
  claim is about; or seeds' noise is not known; or what is compared with has not learned, or differs in something else, too;
* within noise: neither, and the design would have seen the effect that the claim is about, where it has a number;
* by construction: met, but no run could have missed it.

"On par" is two inequalities, so that to hold is to pass two one-sided tests. Either mistake is made in at most 2.5% of
repetitions, for all claims of one artefact together (Holm)."""

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
    """One inequality: `estimate` above `bound` (or below, if `below`), in `unit`; not `strict`: equal is enough. `size`: how
    far from the bound the effect lies that the claim is about (the paper's, or none within a tolerance); None where no number
    is known. `ceiling`: to miss it is to show more of what the claim says than the paper does. `paper`: what the paper gives.
    `shown`: what takes the effect's place where the paper's number is another than the one that is tested."""

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
        """True where this design sees only effects that are larger than the one that the claim is about."""
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
        """Margin by which it is met, in standard errors and then in its unit; for putting comparisons in order."""
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
    def beside_the_paper(self) -> str:
        """The effect with its interval, then the paper's: "0.20 [0.19, 0.21], paper 0.3 to 0.5"."""
        ours = self.shown or with_interval(self.estimate, self.unit)
        return f"{ours}, paper {self.paper}" if self.paper else ours

    def __str__(self) -> str:
        shown = f"; {with_interval(self.estimate, self.unit)}" if self.shown else ""
        return f"{self.name}: {self.beside_the_paper}{shown}; asked for {self.asked}"


def on_par(name: str, estimate: Estimate, margin: float, unit: str, *, strict: bool = True) -> list[Comparison]:
    """Two one-sided tests: within a margin on either side."""
    return [Comparison(name, estimate, end, end > 0, strict, unit, size=margin) for end in (margin, -margin)]


def number(value: float, unit: str = "nats") -> str:
    """Print a value with a true minus sign: with a sign and four decimals for nats and two otherwise (one digit and its power
    of ten where these would be zeros), but as papers give them ratios, perplexities (in percent) and shares."""
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
    """`below` or `above` where the interval leaves 0 out on that side, else `neither`."""
    low, high = estimate.interval or (estimate.effect, estimate.effect)
    return below if high < 0 else above if low > 0 else neither


def with_interval(estimate: Estimate, unit: str) -> str:
    text = ("+" if number(estimate.effect, unit).startswith("+") else "") + amount(estimate.effect, unit)
    interval = estimate.interval if estimate.error else None
    return text if interval is None else f"{text} [{number(interval[0], unit)}, {number(interval[1], unit)}]"


@dataclass(frozen=True)
class Verdict:
    """`decisive`: the comparison that decides, whose effect, interval and smallest detectable effect are shown. `p`: two-sided
    p-value of the claim, before Holm over the `judged` claims of its artefact. `seeds`: the fewest of any model compared.
    `whole`: rows for every part of the claim are there; without them it may fail, but not hold. `noise`: where the noise of a
    model of one seed is from."""

    status: Status
    sentence: str
    comparisons: tuple[Comparison, ...] = ()
    decisive: Comparison | None = None
    seeds: int = 0
    p: float = 1.0
    whole: bool = True
    judged: int = 1
    noise: str = ""


Look = Callable[[Study], str]
"""A look into why a claim fails: what an artefact's rows say, made from these numbers alone, whichever way they point."""


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
    """Verdict on "all of `comparisons`". `missing`: parts of the claim for which there are no rows."""
    return decide_any(sentence, [comparisons] if comparisons else [], missing)


def decide_any(sentence: str, alternatives: Sequence[Sequence[Comparison]], missing: Sequence[str] = ()) -> Verdict:
    """Verdict on "all comparisons of at least one of `alternatives`" (Bonferroni over them)."""
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
        sentence += " No spread is stored: the numbers are taken as they stand."
    where = dict.fromkeys(place for each in every for place in each.estimate.where)
    noise = f"Some models have one seed; seeds' noise: {'; '.join(where)}." if where and seeds == 1 else ""
    verdict = Verdict(_status(likely, p, not missing), sentence, every, decisive, seeds, p, not missing, noise=noise)
    if any(math.isnan(each.estimate.effect) for each in every):
        verdict = undecided(verdict, "One of the numbers compared is none: a training diverged.")
        return replace(verdict, status=Status.NOT_MEASURED) if missing else verdict
    if not all(each.estimate.seeds_known for each in every) and verdict.status is not Status.NOT_MEASURED:
        why = "A model compared has one seed, and nothing that was repeated with other seeds was evaluated like it, so that a "
        return undecided(verdict, why + "seed cannot be told from a model. It would take two seeds of every model, or more.")
    return verdict


def _exceeds(alternatives: Sequence[Sequence[Comparison]]) -> bool:
    """True where nothing is missed, or near to it, but inequalities that are ceilings."""
    return any(
        all(each.ceiling or each.p_holds < (1 - LEVEL) / 2 for each in some) and any(each.ceiling for each in some)
        for some in alternatives
    )


def undecided(verdict: Verdict, why: str) -> Verdict:
    """The verdict taken back: what was compared does not decide the claim."""
    return replace(verdict, status=Status.UNDECIDED, sentence=f"{verdict.sentence} {why}", p=1.0)


def in_part(verdict: Verdict, why: str) -> Verdict:
    """The verdict on what can be compared of a claim, which may fail by it, but not hold."""
    return verdict if verdict.status is Status.FAILS or not verdict.comparisons else undecided(verdict, why)


def by_construction(verdict: Verdict, why: str) -> Verdict:
    """The verdict on a claim that no run could have missed; it may still fail, by a mistake of the code."""
    met = verdict.status is Status.HOLDS
    return replace(verdict, status=Status.BY_CONSTRUCTION, sentence=f"{verdict.sentence} {why}") if met else verdict


def _status(likely: Status, p: float, whole: bool) -> Status:
    status = likely if p < 1 - LEVEL else Status.WITHIN_NOISE
    return status if whole or status is Status.FAILS else Status.NOT_MEASURED


def _with_its_power(verdict: Verdict) -> Verdict:
    """A claim within noise is undecided where the design could not have seen what it is about; with what it would take."""
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
    """The verdict on one claim; rows that it alone wants and that are not stored leave the others theirs."""
    try:
        return claim.predicate(study)
    except NothingStored as error:
        return not_measured(f"Not measured: {error}.")


@lru_cache(maxsize=256)
def judge(claims: tuple[Claim, ...], study: Study) -> list[tuple[Claim, Verdict]]:
    """Verdicts on the claims of one artefact, judged together: a status that Holm's correction takes away is within noise."""
    verdicts = [_alone(claim, study) for claim in claims]
    family = [index for index, verdict in enumerate(verdicts) if verdict.status in JUDGED]
    for index, p in zip(family, holm([verdicts[index].p for index in family]), strict=True):
        verdict = verdicts[index]
        status, sentence = _status(verdict.status, p, verdict.whole), verdict.sentence
        if status is not verdict.status:
            sentence += f" Judged alone: {verdict.status}."
        verdicts[index] = _with_its_power(replace(verdict, status=status, sentence=sentence, judged=len(family)))
    return list(zip(claims, verdicts, strict=True))
