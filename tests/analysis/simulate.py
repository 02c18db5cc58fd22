"""Wrong verdicts where the truth is known: `python -m tests.analysis.simulate` prints how often they are had, before and after.

Two models are compared on 128 documents of 16 sources, as at mini, and the claim is that one is ahead. Documents of a source go
together (`INTRA`). Seeds' noise of one seed is pooled over two series of three seeds, the least that it is taken from.
"Before": documents count as independent, and seeds' noise enters only where the models themselves have several.
"""

from dataclasses import replace
from itertools import product

import numpy as np

from analysis.statistics import Estimate, Noise, Term, contrast
from analysis.verdict import Comparison, Status, decide

SEEDS, SPREADS = (1, 3, 5), (0.003, 0.010, 0.03)
SOURCES, DOCUMENTS = 16, 8
INTRA = 0.56
"""Correlation of two documents of one source."""
DOCUMENT_SPREAD = 0.03
"""Standard deviation over documents of the difference of two models of equal seeds (nats); 0.02 to 0.05 at mini."""
PAPER = 0.03
"""Effect of the paper's Table 3: what the forget gate is worth in place of RoPE (nats)."""
TRUTHS = {"no difference": (0.0, 0.0), "the paper's effect": (PAPER, 0.0), "at the boundary": (PAPER, PAPER)}
"""Truth -> true lead, and the lead that the claim asks to be surpassed."""


def draw(rng: np.random.Generator, lead: float, seeds: int, spread: float) -> tuple[Estimate, Estimate]:
    """Return the lead of one model over the other as it was estimated before, and as it is now."""
    clusters = np.repeat(np.arange(SOURCES), DOCUMENTS)
    paired = INTRA**0.5 * rng.normal(size=SOURCES)[clusters] + (1 - INTRA) ** 0.5 * rng.normal(size=len(clusters))
    paired *= DOCUMENT_SPREAD
    ours, theirs = (spread * rng.normal(size=seeds) for _ in range(2))
    terms = [
        Term("other", 1.0, theirs + lead + paired.mean(), paired - paired.mean(), clusters),
        Term("model", -1.0, ours, np.zeros(len(clusters)), clusters),
    ]
    before = contrast([replace(term, clusters=None) for term in terms])
    repeated = [spread * rng.normal(size=3) for _ in range(2)] + ([ours, theirs] if seeds > 1 else [])
    df = sum(len(values) - 1 for values in repeated)
    noise = Noise(float(sum(((values - values.mean()) ** 2).sum() for values in repeated)) / df, df, "all")
    return before, contrast(terms, {"other": noise, "model": noise})


def wrong(estimate: Estimate, lead: float, bound: float) -> bool:
    """Tell whether "ahead by more than `bound`" is judged wrongly; at the boundary either judgement is wrong."""
    known = replace(estimate, seeds_known=True)
    status = decide("", [Comparison("lead", known, bound)]).status
    return status is Status.FAILS or (status is Status.HOLDS and lead <= bound)


def main(draws: int = 4000) -> None:
    print("Wrong verdicts (%)\n\n| truth | seeds | SD of seeds (nats) | before | now |\n|---|---:|---:|---:|---:|")
    for (truth, (lead, bound)), seeds, spread in product(TRUTHS.items(), SEEDS, SPREADS):
        rng = np.random.default_rng([seeds, round(1e3 * spread), round(1e3 * (lead + bound))])
        both = np.array([[wrong(each, lead, bound) for each in draw(rng, lead, seeds, spread)] for _ in range(draws)])
        before, now = 100 * both.mean(axis=0)
        print(f"| {truth} | {seeds} | {spread:g} | {before:.1f} | {now:.1f} |")


if __name__ == "__main__":
    main()
