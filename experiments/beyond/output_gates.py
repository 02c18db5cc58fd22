"""Beyond the papers: Output gates, by their activation.

FoX (Pro), Transformer (Pro) and Kimi Delta Attention multiply what a head reads by the sigmoid of a gate, Gated DeltaNet by its
SiLU. Here each of them is trained with both, on the tokens of the ablations. How much of their distances is due to this choice?
Not in the papers."""

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import product

from analysis.curves import LossCurve, difference, loss_curves
from analysis.names import title
from analysis.statistics import Estimate
from analysis.study import Study
from analysis.style import about, tokens
from analysis.tables import Cell, Column, Table, over_seeds
from analysis.verdict import in_words, with_interval
from experiments.beyond.successors import FOX
from experiments.evaluations import loss as evals  # noqa: F401
from experiments.recipes import recipes
from experiments.scales import for_ablations

OWN = {FOX: "sigmoid", "transformer_pro": "sigmoid", "gated_delta_net": "silu", "kimi_delta_attention": "sigmoid"}
"""The activation that each model has elsewhere."""
ACTIVATIONS = {"sigmoid": "sigmoid", "silu": "SiLU"}
AXES = {"output_gate": tuple(ACTIVATIONS)}


def runs(scale, seeds):
    at = for_ablations(scale)
    for (model, own), gate in product(OWN.items(), ACTIVATIONS):
        changes = {} if gate == own else dict(output_gate_activation=gate)
        yield from recipes(at, model, seeds, axes=dict(output_gate=gate), label=f"{model}, {ACTIVATIONS[gate]}", model=changes)


@dataclass(frozen=True)
class Gated:
    """One model with both activations, None for one that is not stored."""

    sigmoid: LossCurve | None
    silu: LossCurve | None

    @property
    def gain(self) -> Estimate | None:
        """Return the loss with SiLU above that with sigmoid (nats)."""
        return difference(self.silu, self.sigmoid) if self.silu and self.sigmoid else None

    def behind(self, other: "Gated", gate: str) -> Estimate | None:
        """Return the loss above another model's with the same activation (nats)."""
        own, others = getattr(self, gate), getattr(other, gate)
        return difference(own, others) if own and others and own is not others else None


def by_gate(study: Study) -> Mapping[str, Gated]:
    """Return what is stored by model, in the order of `OWN`."""
    curves = {(curve.model, curve.axes["output_gate"]): curve for curve in loss_curves(study)}
    found = {model: Gated(*(curves.get((model, gate)) for gate in ACTIVATIONS)) for model in OWN}
    return {model: each for model, each in found.items() if each.sigmoid or each.silu}


def summary(study: Study) -> Table:
    """Tabulate each model's loss with both activations, the difference, and the distances to FoX (Pro) with each."""
    columns = [Column(gate, name, 3, "lower") for gate, name in ACTIVATIONS.items()]
    columns += [Column("gain", "SiLU minus sigmoid", 3, style="signed")]
    columns += [Column(f"behind_{gate}", f"above FoX (Pro), {name}", 3, style="signed") for gate, name in ACTIVATIONS.items()]
    found = by_gate(study)
    fox = found.get(FOX, Gated(None, None))
    cells: dict[str, list[Cell]] = {}
    for model, each in found.items():
        curves = (each.sigmoid, each.silu)
        losses: list[Cell] = [None if curve is None else curve.log_p(curve.train_len) for curve in curves]
        cells[title(model)] = [*losses, each.gain, *(each.behind(fox, gate) for gate in ACTIVATIONS)]
    note = f"{about(study)} In square brackets: 95% intervals over documents by source and seeds. One learning rate for all."
    return over_seeds(f"Mean loss up to {tokens(study.train_len)} (nats) by the output gate's activation", columns, cells, note)


def findings(study: Study) -> list[str]:
    """Say for each model which activation has the lower loss, and how FoX (Pro)'s distance from the others depends on it."""
    found = by_gate(study)
    fox, told = found.get(FOX, Gated(None, None)), []
    for model, each in found.items():
        if each.gain is None:
            continue
        said = in_words(each.gain, "a lower loss with SiLU than with sigmoid", "a higher loss with SiLU than with sigmoid",
                        "a loss with SiLU within noise of that with sigmoid")  # fmt: skip
        sentence = f"{title(model)} has {said} ({with_interval(each.gain, 'nats')})"
        both = [each.behind(fox, gate) for gate in ACTIVATIONS]
        if all(both):
            before, after = (with_interval(one, "nats") for one in both if one)
            sentence += f"; relative to FoX (Pro) its loss is {before} with sigmoid and {after} with SiLU"
        told.append(f"{sentence}.")
    return told or ["No model was trained with both activations."]
