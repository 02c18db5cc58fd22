"""Claims C1 to C6 on per-token loss and perplexity (Figure 2).

The grids scale with the training length: at 16,384 tokens they are {512, 1k, 2k, 4k, 8k, 16k}, {20k, 24k, 32k, 48k, 64k} and 2k
steps. Perplexities are compared by their logarithms, in nats: that is the difference of the mean losses up to a length.
"""

from collections.abc import Iterable, Sequence

import numpy as np

from analysis.curves import LossCurve, around, by_model, compare, log_perplexity, smoothing_window
from analysis.names import RECURRENT, SEVEN, missing_of, pairs_in, title
from analysis.study import Study
from analysis.style import tokens
from analysis.verdict import Claim, Comparison, Verdict, decide, not_applicable, number

Curves = dict[str, LossCurve]

FAMILIES = (("fox_pro", "fox_llama"), ("transformer_pro", "transformer_llama"))
C3_TOLERANCE = 0.003


def grid_inside(train_len: int) -> list[int]:
    """The paper's {512, 1k, 2k, 4k, 8k, 16k}, scaled to the training context length."""
    return [max(1, train_len // part) for part in (32, 16, 8, 4, 2, 1)]


def grid_beyond(train_len: int, longest: int) -> list[int]:
    """The paper's {20k, 24k, 32k, 48k, 64k}, scaled, as far as the evaluation reaches."""
    return [length for length in (train_len * quarter // 4 for quarter in (5, 6, 8, 12, 16)) if length <= longest]


def log_ratio(one: LossCurve, other: LossCurve, length: int) -> Comparison:
    """log P of `one` below that of `other` at a length."""
    name = f"log P({tokens(length)}), {title(one.label)} minus {title(other.label)}"
    return Comparison(name, compare((1.0, one, 1, length), (-1.0, other, 1, length)), below=True)


def fewest_seeds(curves: Iterable[LossCurve]) -> int:
    return min((len(curve.seeds) for curve in curves), default=0)


def _curves(study: Study) -> Curves:
    return {model: curve for model, curve in by_model(study).items() if curve.length >= curve.train_len}


def _lower_everywhere(curves: Curves, grid: Sequence[int]) -> Verdict:
    """P of FoX below P of the Transformer of the same architecture at every length of the grid."""
    names, absent = pairs_in(curves)
    pairs = [(curves[fox], curves[other]) for fox, other in names]
    comparisons, parts = [], []
    for fox, other in pairs:
        own = [log_ratio(fox, other, length) for length in grid]
        comparisons += own
        won = sum(each.estimate.effect < 0 for each in own)
        worst = min(own, key=lambda each: each.lead)
        parts.append(
            f"{title(fox.label)} below {title(other.label)} at {won} of {len(grid)} lengths, least clearly at "
            f"{tokens(grid[own.index(worst)])} ({number(worst.estimate.effect)} nats)"
        )
    return decide("; ".join(parts) + ".", comparisons, fewest_seeds(curve for pair in pairs for curve in pair), absent)


def c1(study: Study) -> Verdict:
    return _lower_everywhere(_curves(study), grid_inside(study.train_len))


def c2(study: Study) -> Verdict:
    curves = _curves(study)
    longest = min((curve.length for curve in curves.values()), default=0)
    grid = grid_beyond(study.train_len, longest)
    if curves and not grid:
        return not_applicable(f"The evaluation ends at {longest} tokens, not beyond the training context of {study.train_len}.")
    return _lower_everywhere(curves, grid)


def c3(study: Study) -> Verdict:
    """FoX uses its context to the end: smoothed L at steps of an eighth of the context rises nowhere by more than 0.003, ends
    lower than it began, and is lower in the last quarter of the context than in the second."""
    curves, train_len = _curves(study), study.train_len
    foxes = [curves[model] for model in ("fox_pro", "fox_llama") if model in curves]
    window = smoothing_window(train_len)
    points = [train_len * eighth // 8 for eighth in range(1, 9)]
    comparisons, parts = [], []
    for fox in foxes:
        places = [around(point, window, train_len) for point in points]
        for index in range(7):
            name = f"{title(fox.label)}: L({tokens(points[index + 1])}) minus L({tokens(points[index])})"
            rise = compare((1.0, fox, *places[index + 1]), (-1.0, fox, *places[index]))
            comparisons.append(Comparison(name, rise, C3_TOLERANCE, below=True, strict=False))
        ends = compare((1.0, fox, *places[-1]), (-1.0, fox, *places[0]))
        quarters = compare((1.0, fox, train_len * 3 // 4 + 1, train_len), (-1.0, fox, train_len // 4 + 1, train_len // 2))
        comparisons.append(Comparison(f"{title(fox.label)}: L at the end minus L({tokens(points[0])})", ends, below=True))
        comparisons.append(Comparison(f"{title(fox.label)}: last quarter minus second quarter", quarters, below=True))
        parts.append(
            f"{title(fox.label)}: from {tokens(points[0])} to {tokens(train_len)} tokens L changes by {number(ends.effect)}, "
            f"from the second to the last quarter by {number(quarters.effect)} nats"
        )
    return decide("; ".join(parts) + ".", comparisons, fewest_seeds(foxes), missing_of(("fox_pro", "fox_llama"), curves))


def c4(study: Study) -> Verdict:
    """Recurrent models gain less than half of what FoX (Pro) gains from the last three eighths of the context, and FoX (Pro)
    gains, which the claim takes for granted. A loss at a length is the mean over an eighth of the context up to there."""
    curves, train_len = _curves(study), study.train_len
    absent = missing_of(("fox_pro", *RECURRENT), curves)
    if "fox_pro" not in curves:
        return decide("", [], 0, absent)
    start, eighth = train_len * 5 // 8, train_len // 8  # 10k of 16k, over 2k
    fox = curves["fox_pro"]
    early, late = (start - eighth + 1, start), (train_len - eighth + 1, train_len)
    fox_gain = compare((1.0, fox, *early), (-1.0, fox, *late))
    comparisons, parts = [Comparison("gain of FoX (Pro)", fox_gain)], []
    for curve in (curves[model] for model in RECURRENT if model in curves):
        excess = compare((1.0, curve, *early), (-1.0, curve, *late), (-0.5, fox, *early), (0.5, fox, *late))
        comparisons.append(Comparison(f"gain of {title(curve.label)} minus half of FoX (Pro)'s", excess, below=True))
        parts.append(f"{title(curve.label)} {number(compare((1.0, curve, *early), (-1.0, curve, *late)).effect)}")
    sentence = f"From {tokens(start)} to {tokens(train_len)} tokens FoX (Pro) gains {number(fox_gain.effect)} nats"
    seeds = fewest_seeds(curves[model] for model in ("fox_pro", *RECURRENT) if model in curves)
    return decide(f"{'; '.join([sentence, ', '.join(parts)] if parts else [sentence])}.", comparisons, seeds, absent)


def _p(curve: LossCurve) -> float:
    with np.errstate(over="ignore"):
        return float(np.exp(log_perplexity(curve.mean_N)[curve.train_len - 1]))


def c5(study: Study) -> Verdict:
    """FoX (Pro) has the lowest perplexity of the seven models at the training context length."""
    curves = _curves(study)
    absent = missing_of(SEVEN, curves)
    others = [curves[model] for model in SEVEN if model in curves and model != "fox_pro"]
    if "fox_pro" not in curves or not others:
        return decide("", [], 0, absent)
    fox = curves["fox_pro"]
    best = min(others, key=_p)
    sentence = f"P({tokens(study.train_len)}) of FoX (Pro) is {_p(fox):.3f}, of the best of the others, {title(best.label)}, "
    sentence += f"{_p(best):.3f}."
    comparisons = [log_ratio(fox, other, study.train_len) for other in others]
    return decide(sentence, comparisons, fewest_seeds([fox, *others]), absent)


def c6(study: Study) -> Verdict:
    """Pro beats LLaMA for FoX and for the Transformer, at the training context length."""
    curves = _curves(study)
    names, absent = pairs_in(curves, FAMILIES)
    pairs = [(curves[pro], curves[llama]) for pro, llama in names]
    parts = [f"{title(pro.label)} {_p(pro):.3f}, {title(llama.label)} {_p(llama):.3f}" for pro, llama in pairs]
    comparisons = [log_ratio(pro, llama, study.train_len) for pro, llama in pairs]
    seeds = fewest_seeds(curve for pair in pairs for curve in pair)
    return decide(f"P({tokens(study.train_len)}): {'; '.join(parts)}.", comparisons, seeds, absent)


STEM = "fig2_per_token_loss"
CLAIMS = (
    Claim(
        "C1", "Inside the training context FoX has a lower perplexity than the Transformer of the same architecture", STEM, c1
    ),
    Claim("C2", "FoX extrapolates better than the Transformer of the same architecture", STEM, c2),
    Claim("C3", "FoX uses its context up to the end of the training context: its per-token loss keeps falling", STEM, c3),
    Claim("C4", "The recurrent models stop gaining from more context", STEM, c4),
    Claim("C5", "FoX (Pro) is the best of the seven models within the training context", STEM, c5),
    Claim("C6", "Pro beats LLaMA, for FoX and for the Transformer", STEM, c6),
)
