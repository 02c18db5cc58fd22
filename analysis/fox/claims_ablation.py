"""Claims C7 to C16 on the ablations (Table 3) and C26, C26b on the gates (Figure 7).

Perplexities are compared by their logarithms. Margins that the claims state as differences of the paper's perplexities (0.02 at
6.62) are taken as the same ratio, so that they keep their meaning where perplexities are higher.
"""

import math
from itertools import pairwise

from analysis.curves import LossCurve, compare
from analysis.fox.claims_loss import fewest_seeds
from analysis.fox.fig7_gate_types import BLOCKS, CONSTANT, DATA_DEPENDENT, Gate, gates
from analysis.fox.table3_ablation import ablations
from analysis.study import Study
from analysis.style import tokens
from analysis.verdict import Claim, Comparison, Verdict, decide, number

PRO, LLAMA = "FoX (Pro)", "FoX (LLaMA)"
TRANSFORMER, TRANSFORMER_PRO = "Transformer (LLaMA)", "FoX (Pro) - forget gate + RoPE"
CHAIN = (
    LLAMA,
    "FoX (LLaMA) + QK-norm",
    "FoX (LLaMA) + QK-norm + output gate",
    "FoX (LLaMA) + QK-norm + output gate + output norm",
    PRO,
)
LEFT_OUT = tuple(f"FoX (Pro) - {part}" for part in ("QK-norm", "output gate", "output norm", "KV-shift"))


class Rows:
    """The lines of the table that a claim asks for, and what it finds missing."""

    def __init__(self, study: Study, *labels: str):
        self.curves = {label: curve for label, curve in ablations(study).items() if label in labels}
        self.missing = [label for label in labels if label not in self.curves]
        self.length = study.train_len

    def compare(
        self, one: str, other: str, bound: float = 0.0, *, below: bool = False, strict: bool = True
    ) -> list[Comparison]:
        """log P of `one` minus log P of `other`, above (or below) a bound; nothing if one of them is missing."""
        if one not in self.curves or other not in self.curves:
            return []
        difference = compare((1.0, self.curves[one], 1, self.length), (-1.0, self.curves[other], 1, self.length))
        return [Comparison(f"log P, {one} minus {other}", difference, bound, below, strict)]

    def decide(self, *comparisons: list[Comparison]) -> Verdict:
        found = [each for some in comparisons for each in some]
        parts = [f"{label} {math.exp(self._log_p(curve)):.3f}" for label, curve in self.curves.items()]
        sentence = f"P({tokens(self.length)}): {', '.join(parts)}."
        return decide(sentence, found, fewest_seeds(self.curves.values()), self.missing)

    def _log_p(self, curve: LossCurve) -> float:
        return float(curve.mean_N[: self.length].mean())


def ratio(margin: float, of: float) -> float:
    """A difference of perplexities at the paper's perplexity `of`, in nats."""
    return math.log1p(margin / of)


def c7(study: Study) -> Verdict:
    rows = Rows(study, PRO, f"{PRO} + RoPE")
    return rows.decide(rows.compare(PRO, f"{PRO} + RoPE", ratio(0.02, 6.63), below=True, strict=False))


def c8(study: Study) -> Verdict:
    rows = Rows(study, LLAMA, f"{LLAMA} + RoPE")
    return rows.decide(
        rows.compare(LLAMA, f"{LLAMA} + RoPE", strict=False),
        rows.compare(LLAMA, f"{LLAMA} + RoPE", ratio(0.10, 7.19), below=True, strict=False),
    )


def c9(study: Study) -> Verdict:
    rows = Rows(study, LLAMA, TRANSFORMER)
    return rows.decide(rows.compare(LLAMA, TRANSFORMER, below=True))


def c10(study: Study) -> Verdict:
    rows = Rows(study, f"{LLAMA} + RoPE", TRANSFORMER)
    return rows.decide(rows.compare(f"{LLAMA} + RoPE", TRANSFORMER, below=True))


def c11(study: Study) -> Verdict:
    rows = Rows(study, f"{TRANSFORMER} w/o RoPE", TRANSFORMER)
    return rows.decide(rows.compare(f"{TRANSFORMER} w/o RoPE", TRANSFORMER, math.log(2)))


def c12(study: Study) -> Verdict:
    rows = Rows(study, f"{PRO} - forget gate", TRANSFORMER_PRO)
    return rows.decide(
        rows.compare(f"{PRO} - forget gate", TRANSFORMER_PRO),
        rows.compare(f"{PRO} - forget gate", TRANSFORMER_PRO, ratio(8.0 - 6.82, 6.82), below=True),
    )


def c13(study: Study) -> Verdict:
    rows = Rows(study, *CHAIN)
    return rows.decide(*(rows.compare(after, before, below=True) for before, after in pairwise(CHAIN)))


def c14(study: Study) -> Verdict:
    rows = Rows(study, PRO, *LEFT_OUT)
    return rows.decide(*(rows.compare(without, PRO) for without in LEFT_OUT))


def c15(study: Study) -> Verdict:
    gate, norm = f"{PRO} - output gate", f"{PRO} - output norm"
    rows = Rows(study, *LEFT_OUT)
    lowest = [rows.compare(norm, other, below=True) for other in LEFT_OUT if other != norm]
    return rows.decide(*lowest, *(rows.compare(gate, other) for other in LEFT_OUT if other not in (gate, norm)))


def c16(study: Study) -> Verdict:
    rows = Rows(study, TRANSFORMER_PRO, PRO)
    return rows.decide(
        rows.compare(TRANSFORMER_PRO, PRO, ratio(0.12, 6.62), strict=False),
        rows.compare(TRANSFORMER_PRO, PRO, ratio(0.28, 6.62), below=True, strict=False),
    )


def _mean_losses(one: LossCurve, other: LossCurve, name: str, *, strict: bool = True) -> Comparison:
    """Mean loss inside the training context of `one` below that of `other`."""
    inside = 1, one.train_len
    return Comparison(name, compare((1.0, one, *inside), (-1.0, other, *inside)), below=True, strict=strict)


def _on_gates(study: Study, comparisons: list[Comparison], absent: list[str], used: list[LossCurve]) -> Verdict:
    won = sum(each.estimate.effect < 0 for each in comparisons)
    least = min(comparisons, key=lambda each: each.lead, default=None)
    sentence = f"{won} of {len(comparisons)} comparisons of mean loss up to {tokens(study.train_len)} go the claimed way"
    if least is not None:
        sentence += f", least clearly {least.name} ({number(least.estimate.effect)} nats)"
    return decide(f"{sentence}.", comparisons, fewest_seeds(used), absent)


def c26(study: Study) -> Verdict:
    """Within the training context the data-dependent gate's mean loss is below every constant gate's, in both blocks."""
    comparisons, absent, used = [], [], []
    for model, block in BLOCKS.items():
        found = gates(study, model)
        best = found.get(Gate(DATA_DEPENDENT, None))
        absent += [f"{block}, {DATA_DEPENDENT}"] if best is None else []
        absent += [f"{block}, {kind}" for kind in CONSTANT if not any(gate.kind == kind for gate in found)]
        for gate, curve in found.items() if best is not None else ():
            if gate.longest is not None:
                assert best is not None
                name = f"{block}, {DATA_DEPENDENT} minus {curve.label}"
                comparisons.append(_mean_losses(best, curve, name))
                used += [best, curve]
    return _on_gates(study, comparisons, absent, used)


def c26b(study: Study) -> Verdict:
    """A gate that is learned per head is at least as good as one fixed at the same decay times, in both blocks."""
    comparisons, absent, used = [], [], []
    for model, block in BLOCKS.items():
        found = gates(study, model)
        longest = sorted({gate.longest for gate in found if gate.longest is not None})
        both = [n for n in longest if all(Gate(kind, n) in found for kind in CONSTANT)]
        absent += [f"{block}: both constant gates of one T_max"] if not both else []
        for n in both:
            learned, fixed = (found[Gate(kind, n)] for kind in CONSTANT)
            comparisons.append(_mean_losses(learned, fixed, f"{block}, {learned.label} minus {fixed.label}", strict=False))
            used += [learned, fixed]
    return _on_gates(study, comparisons, absent, used)


TABLE, FIGURE = "table3_ablation", "fig7_gate_types"
CLAIMS = (
    Claim("C7", "RoPE is unnecessary for FoX (Pro)", TABLE, c7),
    Claim("C8", "RoPE gives FoX (LLaMA) at most a small gain", TABLE, c8),
    Claim("C9", "The forget gate replaces RoPE and does better", TABLE, c9),
    Claim("C10", "The forget gate also helps on top of RoPE", TABLE, c10),
    Claim("C11", "Without any position signal the LLaMA block fails", TABLE, c11),
    Claim("C12", "In the Pro block dropping both gate and RoPE is bad but not catastrophic", TABLE, c12),
    Claim("C13", "Each Pro component helps when added: QK-norm, output gate, output norm, KV-shift", TABLE, c13),
    Claim("C14", "Each Pro component helps when removed alone from FoX (Pro)", TABLE, c14),
    Claim("C15", "Of these the output norm matters least, the output gate most", TABLE, c15),
    Claim("C16", "Against RoPE the forget gate is worth about 0.2 perplexity (3%) in the Pro block", TABLE, c16),
    Claim("C26", "The data-dependent gate is better than data-independent and fixed ones, in both blocks", FIGURE, c26),
    Claim("C26b", "Learning a constant gate is at least as good as fixing it", FIGURE, c26b),
)
