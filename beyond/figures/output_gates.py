"""Beyond the papers: Output gates, by their activation.

FoX (Pro), Transformer (Pro) and Kimi Delta Attention multiply what a head reads by the sigmoid of a gate, Gated DeltaNet by its
SiLU. Here each of them is trained with both, on the tokens of the ablations and on all of the scale. How much of their
distances is due to this choice, and does it last? Not in the papers."""

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import product

from analysis.curves import LossCurve, difference, loss_curves
from analysis.names import title
from analysis.statistics import Estimate
from analysis.study import Study
from analysis.style import about, millions, tokens
from analysis.tables import Cell, Column, Table, over_seeds
from beyond.figures.successors import FOX
from experiments.evaluations import loss as evals  # noqa: F401
from experiments.recipes import recipes
from experiments.scales import Scale, get_scale, with_shorter

OWN = {FOX: "sigmoid", "transformer_pro": "sigmoid", "gated_delta_net": "silu", "kimi_delta_attention": "sigmoid"}
"""The activation that each model has elsewhere."""
ACTIVATIONS = {"sigmoid": "sigmoid", "silu": "SiLU"}
AXES = {"output_gate": tuple(ACTIVATIONS)}


def runs(scale, seeds):
    for at, (model, own), gate in product(with_shorter(scale), OWN.items(), ACTIVATIONS):
        changes = {} if gate == own else dict(output_gate_activation=gate)
        label = f"{model}, {ACTIVATIONS[gate]}, {_budget(at)}"
        yield from recipes(at, model, seeds, axes=dict(output_gate=gate), label=label, model=changes)


def _budget(scale: Scale) -> str:
    return f"{millions(scale.train_tokens)} tokens"


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


def by_gate(study: Study) -> Mapping[str, Mapping[str, Gated]]:
    """Return what is stored by scale, fewest training tokens first, and by model in the order of `OWN`."""
    curves = {(curve.scale, curve.model, curve.axes["output_gate"]): curve for curve in loss_curves(study)}
    scales = sorted({scale for scale, *_ in curves}, key=lambda scale: get_scale(scale).train_tokens)
    found = {at: {model: Gated(*(curves.get((at, model, gate)) for gate in ACTIVATIONS)) for model in OWN} for at in scales}
    return {at: {model: each for model, each in own.items() if each.sigmoid or each.silu} for at, own in found.items()}


def summary(study: Study) -> Table:
    """Tabulate each model's loss with both activations, the difference, and the distances to FoX (Pro) with each."""
    columns = [Column(gate, name, 3, "lower") for gate, name in ACTIVATIONS.items()]
    columns += [Column("gain", "SiLU minus sigmoid", 3, style="signed")]
    columns += [Column(f"behind_{gate}", f"above FoX (Pro), {name}", 3, style="signed") for gate, name in ACTIVATIONS.items()]
    cells: dict[str, list[Cell]] = {}
    for at, found in by_gate(study).items():
        fox = found.get(FOX, Gated(None, None))
        for model, each in found.items():
            curves = (each.sigmoid, each.silu)
            losses: list[Cell] = [None if curve is None else curve.log_p(curve.train_len) for curve in curves]
            label = f"{title(model)}, {_budget(get_scale(at))}"
            cells[label] = [*losses, each.gain, *(each.behind(fox, gate) for gate in ACTIVATIONS)]
    note = f"{about(study)} In square brackets: 95% intervals over documents by source and seeds. One learning rate for all."
    return over_seeds(f"Mean loss up to {tokens(study.train_len)} (nats) by the output gate's activation", columns, cells, note)
