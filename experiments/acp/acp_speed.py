"""ACP, speed: Speed with and without pruning.

Time of attention and of whole training steps with pruning relative to without, measured with trained models on held-out text.
Attention takes 50 to 70% less time, and training is 10 to 40% faster; longer contexts save more."""

import math
from dataclasses import dataclass
from functools import partial
from itertools import pairwise, product

import numpy as np
import pandas as pd

from analysis.paper import read
from analysis.pruning import skipped
from analysis.statistics import TWENTY_TO_EIGHTY, Estimate, contrast
from analysis.study import Study
from analysis.style import WIDTH, Files, about, plt, publish, tokens
from analysis.tables import Column, Table
from analysis.verdict import RATIO, SHARE, Claim, Comparison, Verdict, decide, not_applicable
from eval.attention_speed.spec import Spec
from experiments import evaluations
from experiments.acp import acp_quality
from experiments.acp.acp_pruned_share import AXES, runs  # noqa: F401
from experiments.scales import MINIS, PAPERS, TINIES, Scale, sizes_at
from results.provenance import is_cpu

SIZES = {TINIES: 4, MINIS: 8, ("125m-0.2b",): 4, PAPERS: 1}
"""Sequences of the longest context per timed step."""
KIND = "attention_speed"
TITLES = {"attention_forward": "attention, forward", "attention": "attention, forward + backward", "step": "training step"}
COLOURS = ("#BBBBBB", "#777777", "#33658A")
PRINTED = read("acp_headlines.csv")
LEAST_TIME, MOST_TIME = PRINTED["attention_time"].values()
LEAST_GAIN, MOST_GAIN = PRINTED["training_throughput"].values()
"""The paper's time of attention, and training throughput, with pruning relative to without."""
ON_A_CPU = "Timed on a CPU, whose attention skips only what all heads prune; the claim is about the GPU kernels."


def times(scale: Scale) -> tuple[Spec, ...]:
    """Times of attention and training steps with and without pruning at the training length, for as many tokens as at the
    longest."""
    tokens = sizes_at(scale, SIZES, __name__) * max(sizes_at(scale, acp_quality.SIZES, acp_quality.__name__))
    return (Spec(seq_len=scale.seq_len, batch_size=max(1, tokens // scale.seq_len)),)


def evals(scale):
    return times(scale) + evaluations.skipped(scale)


@dataclass(frozen=True)
class Timed:
    """Times at one context: (median, low, high) in milliseconds by (quantity, pruned)."""

    context: int
    tokens: int
    times: dict[tuple[str, int], tuple[float, float, float]]

    def medians(self, quantity: str) -> tuple[float, float]:
        """Medians in milliseconds without and with pruning."""
        return self.times[quantity, 0][0], self.times[quantity, 1][0]

    def log_ratio(self, quantity: str) -> Estimate:
        """Return the log of the time with pruning over that without; its error is that of single repetitions."""
        whole, pruned = self.medians(quantity)
        ends = [self.times[quantity, each][1:] for each in (0, 1)]
        spreads = [math.log(high / low) / TWENTY_TO_EIGHTY for low, high in ends]
        return Estimate(math.log(pruned / whole), math.hypot(*spreads))


def timed(study: Study) -> tuple[str, list[Timed]]:
    """Return the machine on which most lines were timed (of equals the last by name), and its times by context, of one seed.
    ValueError if nothing is stored."""
    found = study.evaluations(KIND, "times", rule=None)
    machines = [rows["machine"].iloc[0] for _, rows, _ in found]
    machine = max(machines, key=lambda name: (machines.count(name), name))
    contexts: dict[int, Timed] = {}
    for line, rows, _ in found:
        if rows["machine"].iloc[0] == machine:
            columns = rows[["quantity", "pruned", "milliseconds", "milliseconds_low", "milliseconds_high"]]
            times = {(what, int(pruned)): tuple(ms) for what, pruned, *ms in columns.itertuples(index=False, name=None)}
            context = line.axes["context"]
            contexts.setdefault(context, Timed(context, int(rows["tokens"].iloc[0]), times))
    return machine, [contexts[context] for context in sorted(contexts)]


def draw(study: Study) -> Files:
    machine, contexts = timed(study)
    figure, axes = plt.subplots(figsize=(WIDTH, 2.7))
    width = 0.8 / len(TITLES)
    bands = {"attention": (LEAST_TIME, MOST_TIME), "step": (1 / MOST_GAIN, 1 / LEAST_GAIN)}
    for place, (quantity, name) in enumerate(TITLES.items()):
        ratios = [each.log_ratio(quantity) for each in contexts]
        heights = np.array([math.exp(ratio.effect) for ratio in ratios])
        errors = heights * [ratio.error or 0.0 for ratio in ratios]
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
    rows = [(each.context, *key, ms) for each in contexts for key, (ms, _, _) in each.times.items()]
    table = pd.DataFrame(rows, columns=["context", "quantity", "pruned", "milliseconds"])
    note = "medians, with one standard deviation of single repetitions"
    return publish(study, figure, table, f"on {machine}", note, _caution(machine))


def _caution(machine: str) -> str:
    return "a CPU, which skips only what all heads prune" if is_cpu(machine) else ""


def summary(study: Study) -> Table:
    """Tabulate the times, and the training throughput with pruning relative to without."""
    machine, contexts = timed(study)
    keys = product(TITLES.items(), ("unpruned", "pruned"))
    columns = [Column(f"{quantity}_{each}", f"{name}, {each} (ms)", 2) for (quantity, name), each in keys]
    columns.append(Column("throughput_gain", "training throughput gained (%)", 1, style="signed"))
    rows = {
        f"context {each.context}": [*(ms for quantity in TITLES for ms in each.medians(quantity)),
                                    100 * math.expm1(-each.log_ratio("step").effect)]
        for each in contexts
    }  # fmt: skip
    note = (
        f"{about(study, corpus=False)} On {machine}; {contexts[0].tokens:,} tokens at the shortest context. In the paper "
        f"attention takes {LEAST_TIME} to {MOST_TIME} of the time, and training is {LEAST_GAIN} to {MOST_GAIN} times as fast."
    )
    caution = _caution(machine)
    return Table("Speed with and without pruning", columns, rows, f"{note} This is {caution}." if caution else note)


def _ratios(study: Study, quantity: str, low: float, high: float, what: str, inverse: bool = False) -> Verdict:
    """Judge whether the ratio of times (`inverse`: of speeds) lies between two bounds at every context."""
    machine, contexts = timed(study)
    if is_cpu(machine):
        return not_applicable(ON_A_CPU)
    comparisons, parts = [], []
    between = partial(Comparison, strict=False, unit=RATIO, paper=f"{low} to {high}")
    for each in contexts:
        ratio = each.log_ratio(quantity)
        ratio = ratio.negative() if inverse else ratio
        name = f"{what} with pruning over without, context {tokens(each.context)}"
        comparisons.append(between(name, ratio, math.log(low), ceiling=not inverse))
        comparisons.append(between(name, ratio, math.log(high), below=True, ceiling=inverse))
        parts.append(f"{math.exp(ratio.effect):.2f} at {tokens(each.context)}")
    return decide(f"With pruning relative to without: {', '.join(parts)} (on {machine}).", comparisons)


a3 = partial(_ratios, quantity="attention", low=LEAST_TIME, high=MOST_TIME, what="attention's time")
a4 = partial(_ratios, quantity="step", low=LEAST_GAIN, high=MOST_GAIN, what="training throughput", inverse=True)


def time_and_tiles(study: Study) -> str:
    """Compare attention's time with the share of tiles that are computed, and say whether the excess grows with the work."""
    kept = {each.context: 1 - each.share.effect for each in skipped(study)}
    contexts = [each for each in timed(study)[1] if each.context in kept]
    found = [(tokens(each.context), kept[each.context], *each.medians("attention")) for each in contexts]
    if not found:
        return "Unknown: times and shares of tiles are not stored for the same contexts."
    parts = [f"{context} {share:.2f} and {pruned / whole:.2f}" for context, share, whole, pruned in found]
    text = f"Share of tiles that are computed, and relative time of attention: {', '.join(parts)}."
    if len(found) > 1:
        rests = [pruned - share * whole for _, share, whole, pruned in found]
        work, beside = found[-1][2] / found[0][2], ", ".join(f"{rest:.1f}" for rest in rests)
        text += f" On top of the tiles' share come {beside} ms, while attention's work grows {work:.1f} times: time "
        if max(rests) < min(rests) * work**0.5:
            slow = [context for context, share, whole, pruned in found if share < MOST_TIME < pruned / whole]
            text += "follows the tiles apart from what looks like a constant cost per call"
            text += f", which is too large at {', '.join(slow)}." if slow else "."
        else:
            text += "does not follow the tiles."
    fast = [context for context, share, whole, pruned in found if max(share, pruned / whole) < LEAST_TIME]
    return text + (f" At {', '.join(fast)} more is skipped than the claim allows for." if fast else "")


def share_of_the_step(study: Study) -> str:
    """Say which throughput follows from attention's time alone, with the claimed savings and with the measured ones."""
    parts, apart, beyond = [], [], []
    for each in timed(study)[1]:
        (whole, pruned), (step, fast), context = each.medians("attention"), each.medians("step"), tokens(each.context)
        least, most, alone = (step / (step - whole + time) for time in (MOST_TIME * whole, LEAST_TIME * whole, pruned))
        parts.append(f"{context} {whole / step:.0%}, {least:.2f} to {most:.2f}, {alone:.2f}, {step / fast:.2f}")
        apart += [context] if abs(math.log(alone * fast / step)) > 0.1 else []
        beyond += [context] if min(most, step / fast) > MOST_GAIN else []
    text = "Attention's share of a step, the step's speed-up expected from attention's claimed and from its measured savings, "
    text += f"and the measured speed-up: {'; '.join(parts)}."
    if len(apart) == len(parts):
        return f"{text} Attention's savings do not explain the throughput."
    text += f" Attention's savings explain it{' except at ' if apart else ''}{', '.join(apart)}."
    return text + (f" At {', '.join(beyond)} attention's share is so large that {MOST_GAIN} is exceeded." if beyond else "")


def a5(study: Study) -> Verdict:
    """The skipped share grows from each training context to the next longer one, and attention's relative time falls."""
    found, (machine, contexts) = skipped(study), timed(study)
    cpu = is_cpu(machine)
    comparisons = []
    for each, longer in pairwise(found):
        name = f"share of tiles skipped at context {tokens(longer.context)} minus at {tokens(each.context)}"
        comparisons.append(Comparison(name, contrast([longer.term(1.0), each.term(-1.0)]), unit=SHARE))
    for one, other in [] if cpu else pairwise(contexts):
        near, far = one.log_ratio("attention"), other.log_ratio("attention")
        change = Estimate(far.effect - near.effect, math.hypot(far.error or 0.0, near.error or 0.0))
        name = f"attention's relative time at {tokens(other.context)} over that at {tokens(one.context)}"
        comparisons.append(Comparison(name, change, below=True, unit=RATIO))
    parts = [f"{each.share.effect:.1%} at {tokens(each.context)}" for each in found]
    absent = ["times on a GPU"] * cpu + ["two training contexts or more"] * (len(found) < 2)
    return decide(f"Skipped: {', '.join(parts)}.", comparisons, absent)


CLAIMS = (
    Claim("A3", "Attention takes 50 to 70% less time", a3),
    Claim("A4", "Training throughput is 10 to 40% higher", a4),
    Claim("A5", "Longer contexts save more", a5),
)
LOOKS = {"A3": time_and_tiles, "A4": share_of_the_step}
