"""What a check of a claim says: a status, the numbers it rests on, and one sentence."""

import math
from dataclasses import dataclass, field
from enum import StrEnum


class Status(StrEnum):
    HOLDS = "holds"
    FAILS = "fails"
    WITHIN_NOISE = "within noise"
    NOT_APPLICABLE = "not applicable"


@dataclass(frozen=True)
class Verdict:
    """`numbers`: what was compared, by name; `sentence`: the outcome in words, with its decisive numbers."""

    claim: str
    status: Status
    sentence: str
    numbers: dict[str, float] = field(default_factory=dict)


def not_applicable(claim: str, why: str) -> Verdict:
    return Verdict(claim, Status.NOT_APPLICABLE, why)


def status_of(violations: list[float], noises: list[float]) -> Status:
    """Status of "every violation is <= 0": each is how far one comparison misses, in the unit of its noise.

    Within noise: some comparisons miss, but none by more than its noise. NaN and infinity are misses that no noise excuses.
    """
    if all(violation <= 0 for violation in violations):
        return Status.HOLDS
    pairs = zip(violations, noises, strict=True)
    if all(violation <= 0 or (math.isfinite(violation) and violation <= noise) for violation, noise in pairs):
        return Status.WITHIN_NOISE
    return Status.FAILS
