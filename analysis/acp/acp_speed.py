"""Time of attention and of training steps with pruning, relative to without, by training context."""

import math
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd

from analysis.acp.pruning import context_of
from analysis.names import FOX_SHADES
from analysis.statistics import TWENTY_TO_EIGHTY, Estimate
from analysis.study import Study
from analysis.style import WIDTH, figure_style, plt, publish, scale_note, tokens
from analysis.tables import Column, Table

KIND = "attention_speed"
TITLES = {"attention_forward": "attention, forward", "attention": "attention, forward + backward", "step": "training step"}


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
            contexts.setdefault(context_of(line.label), Timed(context_of(line.label), int(rows["tokens"].iloc[0]), times))
    return machine, [contexts[context] for context in sorted(contexts)]


def on_gpu(machine: str) -> bool:
    """Only the GPU kernels skip what a single head prunes; the CPU path skips what all heads do."""
    return not machine.endswith("cores")


@figure_style()
def draw(study: Study) -> list[Path]:
    """Write figures/STEM.{png,pdf,csv}."""
    machine, contexts = timed(study)
    figure, axes = plt.subplots(figsize=(WIDTH * 0.75, 2.7))
    width = 0.8 / len(TITLES)
    for place, (quantity, name) in enumerate(TITLES.items()):
        ratios = [each.log_ratio(quantity) for each in contexts]
        heights = [math.exp(ratio.effect) for ratio in ratios]
        errors = [height * (ratio.error or 0.0) for height, ratio in zip(heights, ratios, strict=True)]
        x = np.arange(len(contexts)) + (place - 1) * width
        axes.bar(x, heights, width * 0.92, color=FOX_SHADES[place], label=name, yerr=errors, error_kw={"lw": 0.8})
    axes.axhline(1.0, color="#555555", linewidth=0.8, linestyle=(0, (4, 3)))
    axes.set_xticks(range(len(contexts)), [tokens(each.context) for each in contexts])
    axes.set(xlabel="training context", ylabel="time with pruning / without")
    figure.legend(loc="outside lower center", ncols=len(TITLES), fontsize=7)
    rows = [
        {"context": each.context, "quantity": quantity, "pruned": pruned, "milliseconds": time[0]}
        for each in contexts
        for (quantity, pruned), time in each.times.items()
    ]
    note = "bars: medians, lines: one standard deviation of single repetitions"
    return publish(study, figure, pd.DataFrame(rows), f"on {machine}", note, _caution(machine))


def _caution(machine: str) -> str:
    return "" if on_gpu(machine) else "a CPU, whose attention skips only what all heads prune: the paper's times are of a GPU"


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
    note = f"{scale_note(study).capitalize()}. On {machine}; {contexts[0].tokens:,} tokens at the shortest context."
    caution = _caution(machine)
    return Table("Speed with and without pruning", columns, rows, f"{note} This is {caution}." if caution else note)
