"""Figure 7: Kinds of forget gate.

Per-token loss, minus that with the data-dependent gate, for a forget gate that depends on the token, one that is a learned
constant per head, and one that is fixed per head (ALiBi). In both blocks the data-dependent gate is best, the learned constant
next, and the fixed one worst."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from itertools import product
from typing import NamedTuple

from analysis.curves import LossCurve, difference, smoothing_window, stored_curves
from analysis.names import DASHED, SHADES, LineStyle, style_of
from analysis.panels import band_note, core_limits, legend_of, position_panel, smoothed
from analysis.study import Study
from analysis.style import WIDTH, Files, about, plt, publish, tokens
from analysis.tables import Cell, Column, Table, over_seeds
from analysis.verdict import Claim, Comparison, Verdict, decide, in_part, in_words, number, with_interval
from experiments.evaluations import loss as evals  # noqa: F401
from experiments.recipes import recipes
from experiments.scales import MINIS, PAPERS, TINIES, for_ablations, get_scale, sizes_at

SIZES = {TINIES: (4, 32, 256), MINIS: (64, 512, 4096), PAPERS: (256, 2048, 16384)}
"""T_max of the constant gates."""
GATES = {"full": "data-dependent", "bias_only": "data-independent", "fixed": "fixed"}
"""Kinds of forget gate: their names in the models' specs and in the figure. All but the first have a panel each."""
AXES = {"gate": GATES, "longest": int | None}
CONSTANT = ("bias_only", "fixed")
"""Kinds that have a T_max."""
BLOCKS = {"fox_llama": "LLaMA", "fox_pro": "Pro"}
Pairs = list[tuple[str, LossCurve, LossCurve]]


class Gate(NamedTuple):
    """A forget gate. `kind`: one of GATES; `longest`: T_max in tokens of a constant gate."""

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


def draw(study: Study) -> Files:
    """Draw a panel per block and kind of gate, each relative to the data-dependent gate."""
    window, train_len = smoothing_window(study.train_len, of_paper=1001), study.train_len
    blocks = {model: found for model in BLOCKS if DATA_DEPENDENT in (found := gates(study, model))}
    if not blocks:
        raise ValueError(f"{study.stem}: gates are drawn relative to the data-dependent gate, which is not stored; run it, too")
    stored = sorted({gate.longest for found in blocks.values() for gate in found if gate.longest})
    longest = [*dict.fromkeys((*sizes_at(get_scale(study.scale), SIZES, __name__), *stored))]  # so that colours never change
    others = tuple(GATES)[1:]
    count = len(others)
    figure, panels = plt.subplots(1, count * len(blocks), figsize=(WIDTH * count * len(blocks) / 4, 2.75), squeeze=False)
    cuts, frames, entries = [], [], dict[str, LineStyle]()
    for place, (model, found) in enumerate(blocks.items()):
        own = panels[0, count * place : count * (place + 1)]
        losses = {gate: smoothed(curve, _style(model, gate, longest), window) for gate, curve in found.items()}
        base_X = losses[DATA_DEPENDENT].mean
        lines = {gate: replace(line, values_SX=line.values_SX - base_X) for gate, line in losses.items()}
        limits = core_limits(list(lines.values()), train_len)
        for axes, kind in zip(own, others, strict=True):
            shown = [line for gate, line in lines.items() if gate.kind in (DATA_DEPENDENT.kind, kind)]
            axes.set(title=f"{BLOCKS[model]}, {GATES[kind]}", xlabel="Token index $i$")
            cuts.append(position_panel(axes, shown, train_len, limits, pieces=4))
        for axes in own[1:]:
            axes.tick_params(labelleft=False)
        entries |= {line.style.label: line.style for line in lines.values()}
        frames += [losses[gate].frame(model=model, label=curve.label) for gate, curve in found.items()]
    legend_of(figure, list(entries.values()), columns=3)
    panels[0, 0].set_ylabel("Difference of $L(i)$ (nats)")
    what, dashed = "$L(i)$ minus the data-dependent gate's", f"dashed vertical: training length {tokens(train_len)}"
    shared = f"the {'two ' * (count == 2)}panels of a block share their axis"
    notes = f"{what}, smoothed over {window} tokens", band_note(study.seed_counts.values()), dashed, shared, max(cuts)
    return publish(study, figure, frames, *notes)


def _style(model: str, gate: Gate, longest: list[int]) -> LineStyle:
    if gate == DATA_DEPENDENT:
        return replace(style_of(model, f"{DATA_DEPENDENT} ({BLOCKS[model]})"), dashes=None)
    if gate.longest is None:
        return LineStyle(str(gate), SHADES[-list(GATES).index(gate.kind) % len(SHADES)], DASHED)
    shade = SHADES[longest.index(gate.longest) % len(SHADES)]
    return LineStyle(f"constant, $T_{{max}}$ {tokens(gate.longest)}", shade, DASHED)


def summary(study: Study) -> Table:
    """Tabulate the mean loss inside the training context by gate and block, and its excess over the data-dependent gate's."""
    columns: list[Column] = []
    blocks = {model: found for model in BLOCKS if (found := gates(study, model))}
    values: dict[str, list[Cell]] = {str(gate): [] for found in blocks.values() for gate in found}
    for model, found in blocks.items():
        columns += [
            Column(f"{model}_loss", f"{BLOCKS[model]}: mean loss, first {tokens(study.train_len)} (nats)", 4, "lower"),
            Column(f"{model}_above", f"{BLOCKS[model]}: above data-dependent (nats)", 4, style="signed"),
        ]
        base = found.get(DATA_DEPENDENT)
        own = {str(gate): curve for gate, curve in found.items()}
        for gate, cells in values.items():
            if (curve := own.get(gate)) is None:
                cells += [None, None]
                continue
            apart = None if base is None else 0.0 if curve is base else difference(curve, base)
            cells += [curve.log_p(curve.train_len), apart]
    note = f"{about(study)} In square brackets: 95% intervals over documents by source and seeds."
    return over_seeds("Forget-gate types", columns, values, note)


def _pairs(study: Study, better: Callable[[Gate], Gate], kinds: Sequence[str]) -> tuple[Pairs, list[str]]:
    """Pair each gate of some kinds with the gate that should be better, at every T_max that the scale declares or that is
    stored, by block. Returns the pairs, and for each incomplete pair the missing gate."""
    pairs: Pairs = []
    absent = []
    declared = [Gate(kind, longest) for kind in kinds for longest in sizes_at(get_scale(study.scale), SIZES, __name__)]
    for model, block in BLOCKS.items():
        found = gates(study, model)
        for gate in dict.fromkeys([*(gate for gate in found if gate.kind in kinds), *declared]):
            lacking = [each for each in (better(gate), gate) if each not in found]
            pairs += [] if lacking else [(block, found[better(gate)], found[gate])]
            absent += [f"{block}, {each}" for each in lacking[:1]]
    return pairs, absent


def _lower(study: Study, pairs: Pairs, absent: list[str], strict: bool = True) -> Verdict:
    """Judge whether the mean loss inside the training context of each pair's first gate is below that of the second."""
    lower = partial(Comparison, below=True, strict=strict)
    what = f"loss up to {tokens(study.train_len)}"
    comparisons = [lower(f"{what}, {block}, {a.label} minus {b.label}", difference(a, b)) for block, a, b in pairs]
    won = sum(each.estimate.effect < 0 for each in comparisons)
    sentence = f"{won} of {len(comparisons)} comparisons of mean {what} go the claimed way"
    if comparisons:
        least = min(comparisons, key=lambda each: each.lead)
        sentence += f", least clearly {least.name.removeprefix(f'{what}, ')} ({number(least.estimate.effect)} nats)"
    if not absent:
        return decide(f"{sentence}.", comparisons)
    stored = f"{len(comparisons)} of {len(comparisons) + len(absent)} comparisons are stored"
    comparisons = [replace(each, name=f"{each.name} ({stored})") for each in comparisons]
    return in_part(decide(f"{sentence}.", comparisons, list(dict.fromkeys(absent))), f"Only {stored}.")


def c26(study: Study) -> Verdict:
    """The data-dependent gate's mean loss within the training context is below every constant gate's, in both blocks."""
    return _lower(study, *_pairs(study, lambda gate: DATA_DEPENDENT, CONSTANT))


def _learned_and_fixed(study: Study) -> tuple[Pairs, list[str]]:
    """Return pairs of the learned and the fixed gate with the same decay times, by block."""
    return _pairs(study, lambda gate: Gate("bias_only", gate.longest), ("fixed",))


def c26b(study: Study) -> Verdict:
    """A constant gate learned per head is at least as good as a fixed one with the same decay times, in both blocks."""
    return _lower(study, *_learned_and_fixed(study), strict=False)


def or_a_seed(study: Study) -> str:
    """Say which comparisons of C26b fail, and whether by more than seeds differ."""
    (both, _), parts = _learned_and_fixed(study), []
    for block, learned, fixed in both:
        above = difference(learned, fixed)
        if above.effect > 0:
            told = in_words(above, "", "more than seed noise", "within seed noise")
            noise = f"{above.seeds} seeds: {told}" if above.seeds > 1 else "one seed: this may be seed noise"
            parts.append(f"{block}, {learned.label}, {with_interval(above, 'nats')} above fixed ({noise})")
    return f"{len(parts)} of {len(both)} comparisons fail{': ' if parts else ''}{'; '.join(parts)}."


CLAIMS = (
    Claim("C26", "The data-dependent gate is better than data-independent and fixed ones, in both blocks", c26),
    Claim("C26b", "Learning a constant gate is at least as good as fixing it", c26b),
)
LOOKS = {"C26b": or_a_seed}
