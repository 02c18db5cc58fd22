"""Claims and the verdicts on them.

A claim is inequalities between effects that must all be met (or, for "there is a pair ...", all those of one alternative). It
holds if each is met beyond the noise (an intersection-union test: no correction inside a claim), fails if one is missed beyond
it (Bonferroni over the inequalities), and is within noise otherwise. "On par" is two inequalities, so that to hold is to pass
two one-sided tests. Either mistake is made in at most 2.5% of repetitions, for all claims of one artefact together (Holm).
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum

from analysis.statistics import LEVEL, Estimate, holm
from analysis.study import Study


class Status(StrEnum):
    HOLDS = "holds"
    FAILS = "fails"
    WITHIN_NOISE = "within noise"
    NOT_MEASURED = "not measured"
    NOT_APPLICABLE = "not applicable"


JUDGED = (Status.HOLDS, Status.FAILS, Status.WITHIN_NOISE)


@dataclass(frozen=True)
class Comparison:
    """One inequality: `estimate` above `bound` (or below, if `below`), in `unit`; not `strict`: equal is enough."""

    name: str
    estimate: Estimate
    bound: float = 0.0
    below: bool = False
    strict: bool = True
    unit: str = "nats"

    @property
    def _towards(self) -> tuple[Estimate, float]:
        return (self.estimate.negative(), -self.bound) if self.below else (self.estimate, self.bound)

    @property
    def p_holds(self) -> float:
        """p-value against the inequality being missed."""
        estimate, bound = self._towards
        return estimate.p_not_above(bound, strict=self.strict)

    @property
    def p_fails(self) -> float:
        """p-value against its being met."""
        return 1.0 - self.p_holds

    @property
    def lead(self) -> tuple[float, float]:
        """Margin by which it is met, in standard errors and then in its unit; for putting comparisons in order."""
        estimate, bound = self._towards
        margin = estimate.effect - bound
        if math.isnan(margin):
            return -math.inf, -math.inf
        if estimate.error:
            return margin / estimate.error, margin
        return (0.0 if margin == 0 else math.copysign(math.inf, margin)), margin

    @property
    def asked(self) -> str:
        """The inequality: "< 0", "≥ 9.5"."""
        signs = "\N{LESS-THAN OR EQUAL TO}<" if self.below else "\N{GREATER-THAN OR EQUAL TO}>"
        return f"{signs[self.strict]} {self.bound:.3g}".replace("-", "\N{MINUS SIGN}")

    def __str__(self) -> str:
        return f"{self.name}: {with_interval(self.estimate, self.unit)}, asked for {self.asked}"


def number(value: float, unit: str = "nats") -> str:
    """Print a value with a sign, four decimals for nats and two otherwise, and a true minus sign."""
    text = f"{value:+.{4 if unit == 'nats' else 2}f}" if abs(value) < 1e4 else f"{value:+.3g}"
    return text.replace("-", "\N{MINUS SIGN}")


def in_words(estimate: Estimate, below: str, above: str, neither: str = "cannot be told from none") -> str:
    """`below` or `above` where the interval leaves 0 out on that side, else `neither`."""
    low, high = estimate.interval or (estimate.effect, estimate.effect)
    return below if high < 0 else above if low > 0 else neither


def with_interval(estimate: Estimate, unit: str) -> str:
    text = f"{number(estimate.effect, unit)} {unit}".strip()
    interval = estimate.interval if estimate.error else None
    return text if interval is None else f"{text} [{number(interval[0], unit)}, {number(interval[1], unit)}]"


@dataclass(frozen=True)
class Verdict:
    """`decisive`: the comparison that decides, whose effect, interval and smallest detectable effect are shown. `p`: two-sided
    p-value of the claim, before Holm over the `judged` claims of its artefact. `seeds`: the fewest of any model compared.
    `whole`: rows for every part of the claim are there; without them it may fail, but not hold."""

    status: Status
    sentence: str
    comparisons: tuple[Comparison, ...] = ()
    decisive: Comparison | None = None
    seeds: int = 0
    p: float = 1.0
    whole: bool = True
    judged: int = 1

    @property
    def effect(self) -> float | None:
        return None if self.decisive is None else self.decisive.estimate.effect

    @property
    def interval(self) -> tuple[float, float] | None:
        return None if self.decisive is None else self.decisive.estimate.interval

    @property
    def detectable(self) -> float | None:
        return None if self.decisive is None else self.decisive.estimate.detectable


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


def decide(sentence: str, comparisons: Sequence[Comparison], seeds: int, missing: Sequence[str] = ()) -> Verdict:
    """Verdict on "all of `comparisons`". `missing`: parts of the claim for which there are no rows."""
    return decide_any(sentence, [comparisons] if comparisons else [], seeds, missing)


def decide_any(sentence: str, alternatives: Sequence[Sequence[Comparison]], seeds: int, missing: Sequence[str] = ()) -> Verdict:
    """Verdict on "all comparisons of at least one of `alternatives`" (Bonferroni over them)."""
    if not alternatives:
        return not_measured(f"Not measured: {', '.join(missing)}.")
    holds = [max(each.p_holds for each in some) for some in alternatives]
    fails = [min(1.0, len(some) * min(each.p_fails for each in some)) for some in alternatives]
    p_holds, p_fails = min(1.0, len(alternatives) * min(holds)), max(fails)
    likely = Status.HOLDS if p_holds <= p_fails else Status.FAILS
    p = min(1.0, 2 * min(p_holds, p_fails))
    best = min(alternatives, key=lambda some: max(each.p_holds for each in some))
    decisive = min(best, key=lambda each: each.lead)
    every = tuple(each for some in alternatives for each in some)
    if missing:
        sentence = f"Not measured: {', '.join(missing)}. {sentence}"
    if any(each.estimate.error is None for each in every):
        sentence += " No spread is stored: the numbers are taken as they stand."
    elif seeds == 1:
        sentence += " One seed: this cannot separate a seed from a model."
    return Verdict(_status(likely, p, not missing), sentence, every, decisive, seeds, p, not missing)


def _status(likely: Status, p: float, whole: bool) -> Status:
    status = likely if p < 1 - LEVEL else Status.WITHIN_NOISE
    return status if whole or status is Status.FAILS else Status.NOT_MEASURED


def judge(claims: Sequence[Claim], study: Study) -> list[tuple[Claim, Verdict]]:
    """Verdicts on the claims of one artefact, judged together: a status that Holm's correction takes away is within noise."""
    verdicts = [claim.predicate(study) for claim in claims]
    family = [index for index, verdict in enumerate(verdicts) if verdict.status in JUDGED]
    for index, p in zip(family, holm([verdicts[index].p for index in family]), strict=True):
        verdict = verdicts[index]
        status, sentence = _status(verdict.status, p, verdict.whole), verdict.sentence
        if status is not verdict.status:
            sentence += f" Judged alone: {verdict.status}."
        verdicts[index] = replace(verdict, status=status, sentence=sentence, judged=len(family))
    return list(zip(claims, verdicts, strict=True))
