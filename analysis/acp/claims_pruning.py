"""Claims A1 to A8 on adaptive computation pruning.

Margins that the claims state at the paper's perplexities (0.5 at 28) are taken as the same ratio.
"""

import math
from collections.abc import Sequence
from itertools import pairwise

import numpy as np

from analysis.acp.acp_quality import pairs
from analysis.acp.acp_speed import Timed, on_gpu, timed
from analysis.acp.pruning import Skipped, skipped
from analysis.curves import compare
from analysis.fox import table1_lm_eval as table1
from analysis.fox.claims_loss import fewest_seeds
from analysis.fox.claims_tasks import ahead, lines_by_label
from analysis.statistics import Estimate, contrast
from analysis.study import Study
from analysis.style import tokens
from analysis.verdict import Claim, Comparison, Look, Verdict, decide, not_applicable, number

LOSS_MARGIN = math.log1p(0.5 / 28.0)
"""0.5 of Wikitext's perplexity, at the paper's 28."""
WORD_MARGIN, AVERAGE_MARGIN = 0.5, 1.0
LEAST_TIME, MOST_TIME = 0.3, 0.5
"""Of attention without pruning, as the claim has it."""
MOST_GAIN = 1.4
ON_A_CPU = "Timed on a CPU, whose attention skips only what all heads prune; the claim is about the GPU kernels."


def _seeds(found: Sequence[Skipped]) -> int:
    return min(len(each.share_SD) for each in found)


def _shares(study: Study, what: str) -> Verdict:
    """Between 60% and 85% at every training context."""
    found = skipped(study)
    comparisons = []
    for each in found:
        name = f"{what} at context {tokens(each.context)}"
        comparisons += [
            Comparison(name, each.share, 0.6, strict=False, unit="of 1"),
            Comparison(name, each.share, 0.85, below=True, strict=False, unit="of 1"),
        ]
    parts = [f"{each.share.effect:.1%} at {tokens(each.context)}" for each in found]
    return decide(f"Skipped: {', '.join(parts)} (tiles of {found[-1].tile}).", comparisons, _seeds(found))


def a1(study: Study) -> Verdict:
    return _shares(study, "FLOPs skipped")


def a2(study: Study) -> Verdict:
    """A tile that is skipped is neither multiplied nor loaded, so the share is that of A1."""
    return _shares(study, "tiles of K and V not loaded")


def _ratios(study: Study, quantity: str, low: float, high: float, inverse: bool = False) -> Verdict:
    """The ratio of times, or with `inverse` of speeds, between two bounds at every context."""
    machine, contexts = timed(study)
    if not on_gpu(machine):
        return not_applicable(ON_A_CPU)
    comparisons, parts = [], []
    for each in contexts:
        ratio = each.log_ratio(quantity)
        ratio = ratio.negative() if inverse else ratio
        name = f"log of the ratio at context {tokens(each.context)}"
        comparisons += [
            Comparison(name, ratio, math.log(low), strict=False, unit=""),
            Comparison(name, ratio, math.log(high), below=True, strict=False, unit=""),
        ]
        parts.append(f"{math.exp(ratio.effect):.2f} at {tokens(each.context)}")
    return decide(f"With pruning relative to without: {', '.join(parts)} (on {machine}).", comparisons, 0)


def a3(study: Study) -> Verdict:
    """Forward and backward of attention take 0.3 to 0.5 of the time."""
    return _ratios(study, "attention", LEAST_TIME, MOST_TIME)


def a4(study: Study) -> Verdict:
    """Training throughput is 1.1 to 1.4 times as high."""
    return _ratios(study, "step", 1.1, MOST_GAIN, inverse=True)


def time_and_tiles(study: Study) -> str:
    """Attention's time beside the share of tiles that is computed, and whether what comes on top grows with the work."""
    kept = {each.context: 1 - each.share.effect for each in skipped(study)}
    found = []
    for each in timed(study)[1]:
        if each.context in kept:
            whole, pruned = (each.times["attention", place][0] for place in (0, 1))
            found.append((tokens(each.context), kept[each.context], whole, pruned))
    if not found:
        return "Cannot be told: times and shares of tiles are not stored for the same contexts."
    parts = [f"{context} {share:.2f} and {pruned / whole:.2f}" for context, share, whole, pruned in found]
    text = f"Share of the tiles that are computed, and of the time that is taken: {', '.join(parts)}."
    slow = [context for context, share, whole, pruned in found if share < MOST_TIME < pruned / whole]
    if len(found) > 1:
        rests = [pruned - share * whole for _, share, whole, pruned in found]
        work = found[-1][2] / found[0][2]
        text += (
            f" Beside the tiles' share there are {', '.join(f'{rest:.1f}' for rest in rests)} ms, while attention's work grows"
        )
        if max(rests) < min(rests) * work**0.5:
            text += f" {work:.1f} times: time follows the tiles but for what looks like a cost per call"
            text += f", which is too much at {', '.join(slow)}." if slow else "."
        else:
            text += f" {work:.1f} times: time does not follow the tiles."
    fast = [context for context, share, whole, pruned in found if max(share, pruned / whole) < LEAST_TIME]
    return text + (f" At {', '.join(fast)} more is skipped than the claim allows for." if fast else "")


def share_of_the_step(study: Study) -> str:
    """The throughput that attention's time alone would give, at the claimed savings and at those measured."""
    parts, apart, beyond = [], [], []
    for each in timed(study)[1]:
        (whole, pruned), (step, fast) = ([each.times[name, place][0] for place in (0, 1)] for name in ("attention", "step"))
        least, most, alone = (step / (step - whole + time) for time in (MOST_TIME * whole, LEAST_TIME * whole, pruned))
        context, gained = tokens(each.context), step / fast
        parts.append(f"{context} {whole / step:.0%}, {least:.2f} to {most:.2f}, {alone:.2f}, {gained:.2f}")
        apart += [context] if abs(math.log(alone / gained)) > 0.1 else []
        beyond += [context] if min(most, gained) > MOST_GAIN else []
    text = "Attention's share of a step, the speed-up from its claimed savings, from those measured, and the step's own: "
    text += f"{'; '.join(parts)}."
    if len(apart) == len(parts):
        return f"{text} What attention saves does not explain the throughput."
    text += f" What attention saves explains it{' except at ' if apart else ''}{', '.join(apart)}."
    return text + (f" At {', '.join(beyond)} attention is so large a share that {MOST_GAIN} is passed." if beyond else "")


def a5(study: Study) -> Verdict:
    """From each training context to the next longer one more is skipped, and attention is faster."""
    found = skipped(study)
    comparisons = [
        Comparison(
            f"share skipped at {tokens(longer.context)} minus at {tokens(each.context)}",
            contrast([longer.term(1.0), each.term(-1.0)]), unit="of 1",
        )
        for each, longer in pairwise(found)
    ]  # fmt: skip
    machine, contexts = timed(study)
    comparisons += [_faster(each, longer) for each, longer in pairwise(contexts)] if on_gpu(machine) else []
    parts = [f"{each.share.effect:.1%} at {tokens(each.context)}" for each in found]
    absent = [] if on_gpu(machine) else ["times on a GPU"]
    absent += [] if len(found) > 1 else ["two training contexts or more"]
    return decide(f"Skipped: {', '.join(parts)}.", comparisons, _seeds(found), absent)


def _faster(each: Timed, longer: Timed) -> Comparison:
    """log of time with pruning over without falls from one context to the next."""
    one, other = longer.log_ratio("attention"), each.log_ratio("attention")
    change = Estimate(one.effect - other.effect, math.hypot(one.error or 0.0, other.error or 0.0))
    name = f"log of relative attention time at {tokens(longer.context)} minus at {tokens(each.context)}"
    return Comparison(name, change, below=True, unit="")


def a6(study: Study) -> Verdict:
    """Held-out loss, Wikitext and the average of the tasks differ by less than their margins (two one-sided tests each)."""
    comparisons: list[Comparison] = []
    parts, absent = [], []
    found = pairs(study)
    for pruned, whole in found:
        inside = 1, pruned.train_len
        change = compare((1.0, pruned, *inside), (-1.0, whole, *inside))
        comparisons += _within(f"log P, {pruned.label} minus not", change, LOSS_MARGIN, "nats")
        parts.append(f"{number(change.effect)} nats at context {tokens(pruned.train_len)}")
    if not found:
        absent.append("held-out losses with and without pruning")
    if table1.made_locally(study):
        absent.append("the public benchmarks (the tasks here are stand-ins made from the held-out text)")
    else:
        lines = lines_by_label(study)
        for pruned, _ in found:
            if {pruned.label, f"un{pruned.label}"} <= set(lines):
                one, other = lines[pruned.label], lines[f"un{pruned.label}"]
                for column, margin, unit in (("wikitext_ppl", WORD_MARGIN, ""), ("avg_acc", AVERAGE_MARGIN, "points")):
                    comparisons += _within(f"{column}, {pruned.label} ahead of not", ahead(one, other, column), margin, unit)
            else:
                absent.append(f"all tasks at context {tokens(pruned.train_len)}")
    seeds = fewest_seeds(curve for pair in found for curve in pair)
    return decide(f"Held-out loss with pruning minus without: {', '.join(parts)}.", comparisons, seeds, absent)


def _within(name: str, difference: Estimate, margin: float, unit: str) -> list[Comparison]:
    return [
        Comparison(name, difference, margin, below=True, unit=unit),
        Comparison(name, difference, -margin, unit=unit),
    ]


def a7(study: Study) -> Verdict:
    """No query of any head loses e^-10 of its probability: measured, in double precision."""
    found = skipped(study)
    comparisons = [
        Comparison(
            f"largest probability dropped at context {tokens(each.context)}",
            Estimate(float(each.dropped_H.max() / np.exp(each.log_tolerance)), 0.0), 1.0, below=True, unit="of e^-10",
        )
        for each in found
    ]  # fmt: skip
    largest = max(float(each.dropped_H.max()) for each in found)
    return decide(
        f"At most {largest:.1e} of a query's probability is dropped (the bound is {math.exp(-10):.1e}).", comparisons, 0
    )


ABOVE, LEAST = 0.9, 0.25


def a8(study: Study) -> Verdict:
    """At the longest training context a quarter of the heads or more skip above 90%, while a tenth or more skip below half."""
    each = skipped(study)[-1]
    local, wide = each.mean_H > ABOVE, each.mean_H < 0.5
    comparisons = [
        Comparison("heads that skip more than 90%", _share_of(local), LEAST, strict=False, unit="of 1"),
        Comparison("heads that skip less than half", _share_of(wide), 0.1, strict=False, unit="of 1"),
    ]
    sentence = (
        f"Of {len(local)} heads at context {tokens(each.context)} {local.sum()} skip more than 90% and {wide.sum()} less than "
        f"half; standard deviation over heads {each.mean_H.std():.2f}."
    )
    return decide(sentence, comparisons, len(each.share_SD))


def _share_of(is_so: np.ndarray) -> Estimate:
    """A share of the heads there are: counted, not estimated."""
    return Estimate(float(is_so.mean()), 0.0)


SHARE, SPEED, QUALITY = "acp_pruned_share", "acp_speed", "acp_quality"
CLAIMS = (
    Claim("A1", "Pruning removes about 70% of attention's FLOPs (60 to 85%)", SHARE, a1),
    Claim("A2", "Pruning removes about 70% of attention's memory accesses (60 to 85%)", SHARE, a2),
    Claim("A3", "Attention takes 50 to 70% less time", SPEED, a3, Look(SPEED, time_and_tiles)),
    Claim("A4", "Training throughput is 10 to 40% higher", SPEED, a4, Look(SPEED, share_of_the_step)),
    Claim("A5", "Longer contexts save more", SPEED, a5),
    Claim("A6", "No loss of quality: losses coincide, Wikitext within 0.5, the average within 1 point", QUALITY, a6),
    Claim("A7", "A query loses less than e^-10 of its probability", SHARE, a7),
    Claim("A8", "Many heads are local: the shares of heads are widely spread, many above 90%", SHARE, a8),
)
