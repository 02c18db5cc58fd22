"""Figure 7: data-dependent, data-independent and fixed forget gates, in both blocks."""

from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import NamedTuple

import pandas as pd

from analysis.curves import LossCurve, difference, fewest_seeds, log_perplexity, smoothing_window, stored_curves
from analysis.names import DASHED, SHADES, LineStyle, style_of
from analysis.panels import band_note, core_limits, draw_lines, is_cut, legend_of, position_axis, smoothed
from analysis.study import Study
from analysis.style import WIDTH, plt, publish, scale_note, tokens
from analysis.tables import Cell, Column, Table, over_seeds
from analysis.verdict import Claim, Comparison, Verdict, decide, in_words, number, with_interval
from experiments.evaluations import loss as evals  # noqa: F401
from experiments.recipes import recipes
from experiments.scales import MINIS, PAPERS, TINIES, for_ablations, sizes_at

TITLE = "Kinds of forget gate"
PAPER = "Figure 7"
SHOWS = (
    "Per-token loss, less the data-dependent gate's, of a forget gate that depends on the token, one that is learned per head, "
    "and one that is fixed per head (ALiBi). The data-dependent gate is best, the learned constant next, the fixed one worst, "
    "in both blocks."
)

SIZES = {TINIES: (4, 32, 256), MINIS: (64, 512, 4096), PAPERS: (256, 2048, 16384)}
"""T_max of the constant gates."""


GATES = {"full": "data-dependent", "bias_only": "data-independent", "fixed": "fixed"}
"""Kinds of forget gate, as the models' specs and as the figure call them. All but the first have a panel each."""
AXES = {"gate": GATES, "longest": int | None}
CONSTANT = ("bias_only", "fixed")
"""Kinds that have a T_max."""
BLOCKS = {"fox_llama": "LLaMA", "fox_pro": "Pro"}


class Gate(NamedTuple):
    """`kind`: one of GATES; `longest`: T_max in tokens of a constant one."""

    kind: str
    longest: int | None = None

    def __str__(self) -> str:
        return GATES[self.kind] + ("" if self.longest is None else f", T_max {self.longest}")


DATA_DEPENDENT = Gate("full")


def runs(scale, seeds):
    at, decay_times = for_ablations(scale), sizes_at(scale, SIZES, __name__)
    for block, gate in product(BLOCKS, GATES):
        if gate not in CONSTANT:
            kind = {} if gate == "full" else dict(forget_gate=gate)
            yield from recipes(at, block, seeds, axes=dict(gate=gate), label=GATES[gate], model=kind)
        for longest in decay_times if gate in CONSTANT else ():
            axes, label = dict(gate=gate, longest=longest), str(Gate(gate, longest))
            changes = dict(forget_gate=gate, decay_time_min=2.0, decay_time_max=float(longest))
            yield from recipes(at, block, seeds, axes=axes, label=label, model=changes)


def gates(study: Study, model: str) -> dict[Gate, LossCurve]:
    """Return the curves of one block, the data-dependent gate first, then by kind and T_max."""
    found = {Gate(c.axes["gate"], c.axes.get("longest")): c for c in stored_curves(study) if c.model == model}
    return {gate: found[gate] for gate in sorted(found, key=lambda gate: (list(GATES).index(gate.kind), gate.longest or 0))}


def draw(study: Study) -> list[Path]:
    """Write figures/STEM.{png,pdf,csv}: a panel per block and other gate, each against the data-dependent one."""
    window = smoothing_window(study.train_len, of_paper=1001)
    blocks = {model: found for model in BLOCKS if (found := gates(study, model))}
    longest = sorted({gate.longest for found in blocks.values() for gate in found if gate.longest})
    others = tuple(GATES)[1:]
    count = len(others)
    figure, panels = plt.subplots(1, count * len(blocks), figsize=(WIDTH * count * len(blocks) / 4, 2.75), squeeze=False)
    cut, frames = False, []
    entries: dict[str, LineStyle] = {}
    for place, (model, found) in enumerate(blocks.items()):
        own = panels[0, count * place : count * (place + 1)]
        losses = {gate: smoothed(curve, _style(model, gate, longest), window) for gate, curve in found.items()}
        base = losses.get(DATA_DEPENDENT, next(iter(losses.values())))
        lines = {gate: replace(line, values_SX=line.values_SX - base.mean) for gate, line in losses.items()}
        limits, end = core_limits(list(lines.values()), study.train_len), int(next(iter(lines.values())).x[-1])
        cut = cut or is_cut(list(lines.values()), limits)
        for axes, kind in zip(own, others, strict=True):
            shown = [line for gate, line in lines.items() if gate.kind in (DATA_DEPENDENT.kind, kind)]
            draw_lines(axes, shown)
            position_axis(
                axes,
                study.train_len,
                end,
                pieces=4,
                ylim=limits,
                title=f"{BLOCKS[model]}, {GATES[kind]}",
                xlabel="Token index $i$",
            )
        for axes in own[1:]:
            axes.tick_params(labelleft=False)
        entries |= {line.style.label: line.style for line in lines.values()}
        frames += [losses[gate].frame(model=model, label=curve.label) for gate, curve in found.items()]
    legend_of(figure, list(entries.values()), columns=3)
    panels[0, 0].set_ylabel("Difference of $L(i)$ (nats)")
    return publish(
        study,
        figure,
        pd.concat(frames, ignore_index=True),
        f"$L(i)$ minus the data-dependent gate's, smoothed over {window} tokens",
        band_note(study.seed_counts.values()),
        f"dashed: training length {tokens(study.train_len)}",
        f"the {'two ' * (count == 2)}panels of a block share their axis",
        "cut curves go on" if cut else "",
    )


def _style(model: str, gate: Gate, longest: list[int]) -> LineStyle:
    if gate == DATA_DEPENDENT:
        return replace(style_of(model, f"{DATA_DEPENDENT} ({BLOCKS[model]})"), dashes=None)
    if gate.longest is None:
        return LineStyle(str(gate), SHADES[-list(GATES).index(gate.kind) % len(SHADES)], DASHED)
    shade = SHADES[longest.index(gate.longest) % len(SHADES)]
    return LineStyle(f"constant, $T_{{max}}$ {tokens(gate.longest)}", shade, DASHED)


def summary(study: Study) -> Table:
    """Mean loss inside the training context by gate, for both blocks, and by how much it is above the data-dependent gate's."""
    columns: list[Column] = []
    values: dict[str, list[Cell]] = {}
    blocks = [(model, found) for model in BLOCKS if (found := gates(study, model))]
    labels = [gate for _, found in blocks for gate in found]
    for model, found in blocks:
        columns += [
            Column(f"{model}_loss", f"{BLOCKS[model]}: mean loss, first {tokens(study.train_len)} (nats)", 4, "lower"),
            Column(f"{model}_above", f"{BLOCKS[model]}: above data-dependent (nats)", 4, style="signed"),
        ]
        means = {gate: log_perplexity(curve.losses_SN)[:, curve.train_len - 1] for gate, curve in found.items()}
        base = means[DATA_DEPENDENT].mean() if DATA_DEPENDENT in means else None
        for gate in dict.fromkeys(labels):
            loss = means.get(gate)
            values.setdefault(str(gate), [])
            values[str(gate)] += [loss, None if loss is None or base is None else loss - base]
    note = f"{scale_note(study).capitalize()}. Corpus: {study.corpora}."
    return over_seeds("Forget-gate types", columns, values, note)


def _mean_losses(one: LossCurve, other: LossCurve, name: str, *, strict: bool = True) -> Comparison:
    """Mean loss inside the training context of `one` below that of `other`."""
    return Comparison(name, difference(one, other), below=True, strict=strict)


def _on_gates(study: Study, comparisons: list[Comparison], absent: list[str], used: list[LossCurve]) -> Verdict:
    won = sum(each.estimate.effect < 0 for each in comparisons)
    least = min(comparisons, key=lambda each: each.lead, default=None)
    sentence = f"{won} of {len(comparisons)} comparisons of mean loss up to {tokens(study.train_len)} go the claimed way"
    if least is not None:
        sentence += f", least clearly {least.name} ({number(least.estimate.effect)} nats)"
    return decide(f"{sentence}.", comparisons, fewest_seeds(used), absent)


def c26(study: Study) -> Verdict:
    """The data-dependent gate's mean loss within the training context is below every constant gate's, in both blocks."""
    comparisons, absent, used = [], [], []
    for model, block in BLOCKS.items():
        found = gates(study, model)
        best = found.get(DATA_DEPENDENT)
        absent += [f"{block}, {DATA_DEPENDENT}"] if best is None else []
        absent += [f"{block}, {GATES[kind]}" for kind in CONSTANT if not any(gate.kind == kind for gate in found)]
        for gate, curve in found.items() if best is not None else ():
            if gate.longest is not None:
                assert best is not None
                name = f"{block}, {DATA_DEPENDENT} minus {curve.label}"
                comparisons.append(_mean_losses(best, curve, name))
                used += [best, curve]
    return _on_gates(study, comparisons, absent, used)


def _learned_and_fixed(study: Study) -> dict[str, list[tuple[LossCurve, LossCurve]]]:
    """The constant gates of the same decay times, by block."""
    found = {block: gates(study, model) for model, block in BLOCKS.items()}
    longest = {block: sorted({gate.longest for gate in own if gate.longest is not None}) for block, own in found.items()}
    return {
        block: [(own[Gate("bias_only", n)], own[Gate("fixed", n)]) for n in longest[block]
                if {Gate("bias_only", n), Gate("fixed", n)} <= own.keys()]
        for block, own in found.items()
    }  # fmt: skip


def c26b(study: Study) -> Verdict:
    """A gate that is learned per head is at least as good as one fixed at the same decay times, in both blocks."""
    comparisons, absent, used = [], [], []
    for block, both in _learned_and_fixed(study).items():
        absent += [f"{block}: both constant gates of one T_max"] if not both else []
        for learned, fixed in both:
            comparisons.append(_mean_losses(learned, fixed, f"{block}, {learned.label} minus {fixed.label}", strict=False))
            used += [learned, fixed]
    return _on_gates(study, comparisons, absent, used)


def or_a_seed(study: Study) -> str:
    """Say which comparisons of C26b are missed, and whether by more than seeds differ."""
    both = [(block, *pair) for block, pairs in _learned_and_fixed(study).items() for pair in pairs]
    parts = []
    for block, learned, fixed in both:
        above = _mean_losses(learned, fixed, "").estimate
        if above.effect > 0:
            seeds = fewest_seeds((learned, fixed))
            told = in_words(above, "", "more than seeds differ", "no more than seeds differ")
            noise = f"{seeds} seeds: {told}" if seeds > 1 else "one seed: this cannot be told from a seed"
            parts.append(f"{block}, {learned.label}, {with_interval(above, 'nats')} above fixed ({noise})")
    return f"Missed by {len(parts)} of {len(both)} comparisons{': ' if parts else ''}{'; '.join(parts)}."


CLAIMS = (
    Claim("C26", "The data-dependent gate is better than data-independent and fixed ones, in both blocks", c26),
    Claim("C26b", "Learning a constant gate is at least as good as fixing it", c26b),
)
LOOKS = {"C26b": or_a_seed}
