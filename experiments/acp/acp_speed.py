"""Attention time and training throughput with and without pruning, by training context (ACP)."""

import math
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import numpy as np
import pandas as pd

from analysis.paper import read
from analysis.pruning import fewest_seeds, skipped
from analysis.statistics import TWENTY_TO_EIGHTY, Estimate, contrast
from analysis.study import Study
from analysis.style import WIDTH, plt, publish, scale_note, tokens
from analysis.tables import Column, Table
from analysis.verdict import RATIO, SHARE, Claim, Comparison, Verdict, decide, not_applicable
from eval.attention_speed.spec import Spec
from experiments import evaluations
from experiments.acp import acp_quality
from experiments.acp.acp_pruned_share import AXES, runs  # noqa: F401
from experiments.scales import MINIS, PAPERS, TINIES, Scale, sizes_at
from results.provenance import is_cpu

TITLE = "Speed with and without pruning"
PAPER = "ACP, speed"
SHOWS = (
    "Time of attention and of whole training steps with pruning, relative to without, of trained models on held-out text. "
    "Attention takes 50 to 70% less time, training is 10 to 40% faster, and more so in longer contexts."
)


SIZES = {TINIES: 4, MINIS: 8, ("125m-0.2b",): 4, PAPERS: 1}
"""Sequences of the longest context in a timed step."""


def times(scale: Scale) -> tuple[Spec, ...]:
    """Attention and training steps with and without pruning at the training length, of as many tokens as at the longest."""
    tokens = sizes_at(scale, SIZES, __name__) * max(sizes_at(scale, acp_quality.SIZES, acp_quality.__name__))
    return (Spec(seq_len=scale.seq_len, batch_size=max(1, tokens // scale.seq_len)),)


def evals(scale):
    return times(scale) + evaluations.skipped(scale)


KIND = "attention_speed"
TITLES = {"attention_forward": "attention, forward", "attention": "attention, forward + backward", "step": "training step"}
COLOURS = ("#BBBBBB", "#777777", "#33658A")
PRINTED = read("acp_headlines.csv")
(LEAST_TIME, MOST_TIME), (LEAST_GAIN, MOST_GAIN) = (
    PRINTED[name].values() for name in ("attention_time", "training_throughput")
)
"""The paper's shares of the time of attention without pruning, and of its throughput."""


@dataclass(frozen=True)
class Timed:
    """One context: milliseconds by (quantity, pruned) as (median, low, high)."""

    context: int
    tokens: int
    times: dict[tuple[str, int], tuple[float, float, float]]

    def log_ratio(self, quantity: str) -> Estimate:
        """log of the time with pruning over that without; its error is that of single repetitions."""
        whole, pruned = (self.times[quantity, each] for each in (0, 1))
        spreads = [math.log(high / low) / TWENTY_TO_EIGHTY for _, low, high in (whole, pruned)]
        return Estimate(math.log(pruned[0] / whole[0]), math.hypot(*spreads))


def timed(study: Study) -> tuple[str, list[Timed]]:
    """The machine, and what was timed on it by context (of one seed): the machine that most lines share, the newest of equals.

    ValueError if nothing is stored.
    """
    found = study.evaluations(KIND)
    if not found:
        raise ValueError(f"{study.stem}: no times are stored; run its experiment first")
    machines = [rows["machine"].iloc[0] for _, rows, _ in found]
    machine = max(machines, key=lambda name: (machines.count(name), name))
    contexts: dict[int, Timed] = {}
    for line, rows, _ in found:
        if rows["machine"].iloc[0] == machine:
            times = {
                (row["quantity"], int(row["pruned"])): (row["milliseconds"], row["milliseconds_low"], row["milliseconds_high"])
                for row in rows.to_dict("records")
            }
            context = line.axes["context"]
            contexts.setdefault(context, Timed(context, int(rows["tokens"].iloc[0]), times))
    return machine, [contexts[context] for context in sorted(contexts)]


def draw(study: Study) -> list[Path]:
    """Write figures/STEM.{png,pdf,csv}."""
    machine, contexts = timed(study)
    figure, axes = plt.subplots(figsize=(WIDTH, 2.7))
    width = 0.8 / len(TITLES)
    bands = {"attention": (LEAST_TIME, MOST_TIME), "step": (1 / MOST_GAIN, 1 / LEAST_GAIN)}
    for place, (quantity, name) in enumerate(TITLES.items()):
        ratios = [each.log_ratio(quantity) for each in contexts]
        heights = [math.exp(ratio.effect) for ratio in ratios]
        errors = [height * (ratio.error or 0.0) for height, ratio in zip(heights, ratios, strict=True)]
        x = np.arange(len(contexts)) + (place - 1) * width
        axes.bar(x, heights, width * 0.92, color=COLOURS[place], label=name, yerr=errors, error_kw={"lw": 0.8})
        if quantity in bands:
            low, high = bands[quantity]
            axes.bar(x, high - low, width, bottom=low, fill=False, hatch="//////", linewidth=0.7, zorder=3,
                     label="the paper" if quantity == "step" else None)  # fmt: skip
    axes.axhline(1.0, color="#555555", linewidth=0.8, linestyle=(0, (4, 3)))
    axes.set_xticks(range(len(contexts)), [tokens(each.context) for each in contexts])
    axes.set(xlabel="training context", ylabel="time with pruning / without")
    figure.legend(loc="outside lower center", ncols=4, fontsize=7)
    rows = [
        {"context": each.context, "quantity": quantity, "pruned": pruned, "milliseconds": time[0]}
        for each in contexts
        for (quantity, pruned), time in each.times.items()
    ]
    note = "medians, with one standard deviation of single repetitions"
    return publish(study, figure, pd.DataFrame(rows), f"on {machine}", note, _caution(machine))


def _caution(machine: str) -> str:
    return "a CPU, which skips only what all heads prune" if is_cpu(machine) else ""


def summary(study: Study) -> Table:
    """Milliseconds, and the training throughput with pruning relative to without."""
    machine, contexts = timed(study)
    columns = [
        Column(f"{quantity}_{each}", f"{name}, {each} (ms)", 2)
        for quantity, name in TITLES.items()
        for each in ("unpruned", "pruned")
    ]
    columns.append(Column("throughput_gain", "training throughput gained (%)", 1, style="signed"))
    rows: dict[str, list[float | None]] = {}
    for each in contexts:
        times = [each.times[quantity, pruned][0] for quantity in TITLES for pruned in (0, 1)]
        rows[f"context {each.context}"] = [*times, 100 * math.expm1(-each.log_ratio("step").effect)]
    note = (
        f"{scale_note(study).capitalize()}. On {machine}; {contexts[0].tokens:,} tokens at the shortest context. In the paper"
    )
    note += (
        f" attention takes {LEAST_TIME} to {MOST_TIME} of the time, and training is {LEAST_GAIN} to {MOST_GAIN} times as fast."
    )
    caution = _caution(machine)
    return Table("Speed with and without pruning", columns, rows, f"{note} This is {caution}." if caution else note)


ON_A_CPU = "Timed on a CPU, whose attention skips only what all heads prune; the claim is about the GPU kernels."


def _ratios(study: Study, quantity: str, low: float, high: float, what: str, inverse: bool = False) -> Verdict:
    """The ratio of times, or with `inverse` of speeds, between two bounds at every context."""
    machine, contexts = timed(study)
    if is_cpu(machine):
        return not_applicable(ON_A_CPU)
    comparisons, parts = [], []
    for each in contexts:
        ratio = each.log_ratio(quantity)
        ratio = ratio.negative() if inverse else ratio
        name, paper = f"{what} with pruning over without, context {tokens(each.context)}", f"{low} to {high}"
        comparisons += [
            Comparison(name, ratio, math.log(low), strict=False, unit=RATIO, ceiling=not inverse, paper=paper),
            Comparison(name, ratio, math.log(high), below=True, strict=False, unit=RATIO, ceiling=inverse, paper=paper),
        ]
        parts.append(f"{math.exp(ratio.effect):.2f} at {tokens(each.context)}")
    return decide(f"With pruning relative to without: {', '.join(parts)} (on {machine}).", comparisons, 0)


def a3(study: Study) -> Verdict:
    """Forward and backward of attention take 0.3 to 0.5 of the time."""
    return _ratios(study, "attention", LEAST_TIME, MOST_TIME, "attention's time")


def a4(study: Study) -> Verdict:
    """Training throughput is 1.1 to 1.4 times as high."""
    return _ratios(study, "step", LEAST_GAIN, MOST_GAIN, "training throughput", inverse=True)


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
    """More is skipped from each training context to the next longer one, and attention is faster."""
    found = skipped(study)
    comparisons = [
        Comparison(
            f"share skipped at {tokens(longer.context)} minus at {tokens(each.context)}",
            contrast([longer.term(1.0), each.term(-1.0)]), unit=SHARE,
        )
        for each, longer in pairwise(found)
    ]  # fmt: skip
    machine, contexts = timed(study)
    comparisons += [] if is_cpu(machine) else [_faster(each, longer) for each, longer in pairwise(contexts)]
    parts = [f"{each.share.effect:.1%} at {tokens(each.context)}" for each in found]
    absent = ["times on a GPU"] if is_cpu(machine) else []
    absent += [] if len(found) > 1 else ["two training contexts or more"]
    return decide(f"Skipped: {', '.join(parts)}.", comparisons, fewest_seeds(found), absent)


def _faster(each: Timed, longer: Timed) -> Comparison:
    """Attention's time with pruning over without falls from one context to the next."""
    one, other = longer.log_ratio("attention"), each.log_ratio("attention")
    change = Estimate(one.effect - other.effect, math.hypot(one.error or 0.0, other.error or 0.0))
    name = f"attention's relative time at {tokens(longer.context)} over that at {tokens(each.context)}"
    return Comparison(name, change, below=True, unit=RATIO)


CLAIMS = (
    Claim("A3", "Attention takes 50 to 70% less time", a3),
    Claim("A4", "Training throughput is 10 to 40% higher", a4),
    Claim("A5", "Longer contexts save more", a5),
)
LOOKS = {"A3": time_and_tiles, "A4": share_of_the_step}
