"""Claims C7 to C16 on the ablations (Table 3) and C26, C26b on the gates (Figure 7).

Perplexities are compared by their logarithms. Margins that the claims state as differences of the paper's perplexities (0.02 at
6.62) are taken as the same ratio, so that they keep their meaning where perplexities are higher.
"""

import math
from collections.abc import Callable
from itertools import pairwise

from analysis.curves import LossCurve, compare
from analysis.fox.claims_loss import fewest_seeds
from analysis.fox.fig7_gate_types import BLOCKS, CONSTANT, DATA_DEPENDENT, Gate, gates
from analysis.fox.gate_worth import rates_or_tokens
from analysis.fox.table3_ablation import ablations
from analysis.study import Study
from analysis.style import tokens
from analysis.verdict import Claim, Comparison, Look, Verdict, decide, in_words, number, with_interval

PRO, LLAMA = "FoX (Pro)", "FoX (LLaMA)"
TRANSFORMER, TRANSFORMER_PRO = "Transformer (LLaMA)", "FoX (Pro) - forget gate + RoPE"
CHAIN = (
    LLAMA,
    "FoX (LLaMA) + QK-norm",
    "FoX (LLaMA) + QK-norm + output gate",
    "FoX (LLaMA) + QK-norm + output gate + output norm",
    PRO,
)
LEFT_OUT = QK_NORM, GATE, NORM, KV_SHIFT = tuple(
    f"{PRO} - {part}" for part in ("QK-norm", "output gate", "output norm", "KV-shift")
)


Asked = tuple[str, str, str, float]


def asked(*inequalities: Asked) -> Callable[[Study], Verdict]:
    """A claim on lines of the table. (one, "<", other, margin): log P of `one` minus log P of `other` is below the margin."""
    labels = tuple(dict.fromkeys(label for one, _, other, _ in inequalities for label in (one, other)))

    def predicate(study: Study) -> Verdict:
        curves = {label: curve for label, curve in ablations(study).items() if label in labels}
        length = study.train_len
        comparisons = []
        for one, sign, other, margin in inequalities:
            if one in curves and other in curves:
                difference = compare((1.0, curves[one], 1, length), (-1.0, curves[other], 1, length))
                name = f"log P, {one} minus {other}"
                comparisons.append(Comparison(name, difference, margin, below="<" in sign, strict="=" not in sign))
        parts = [f"{label} {math.exp(curve.mean_N[:length].mean()):.3f}" for label, curve in curves.items()]
        missing = [label for label in labels if label not in curves]
        return decide(f"P({tokens(length)}): {', '.join(parts)}.", comparisons, fewest_seeds(curves.values()), missing)

    return predicate


def ratio(margin: float, of: float) -> float:
    """A difference of perplexities at the paper's perplexity `of`, in nats."""
    return math.log1p(margin / of)


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


def _learned_and_fixed(study: Study) -> dict[str, list[tuple[LossCurve, LossCurve]]]:
    """The constant gates of the same decay times, by block."""
    found = {block: gates(study, model) for model, block in BLOCKS.items()}
    longest = {block: sorted({gate.longest for gate in own if gate.longest is not None}) for block, own in found.items()}
    return {
        block: [(own[Gate(CONSTANT[0], n)], own[Gate(CONSTANT[1], n)]) for n in longest[block]
                if all(Gate(kind, n) in own for kind in CONSTANT)]
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
    """Which comparisons of C26b are missed, and whether by more than seeds differ."""
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


TABLE, FIGURE = "table3_ablation", "fig7_gate_types"
WORTH = Look("gate_worth", rates_or_tokens)
CLAIMS = (
    Claim("C7", "RoPE is unnecessary for FoX (Pro)", TABLE, asked((PRO, "<=", f"{PRO} + RoPE", ratio(0.02, 6.63)))),
    Claim(
        "C8",
        "RoPE gives FoX (LLaMA) at most a small gain",
        TABLE,
        asked((LLAMA, ">=", f"{LLAMA} + RoPE", 0.0), (LLAMA, "<=", f"{LLAMA} + RoPE", ratio(0.10, 7.19))),
        WORTH,
    ),
    Claim("C9", "The forget gate replaces RoPE and does better", TABLE, asked((LLAMA, "<", TRANSFORMER, 0.0))),
    Claim("C10", "The forget gate also helps on top of RoPE", TABLE, asked((f"{LLAMA} + RoPE", "<", TRANSFORMER, 0.0))),
    Claim(
        "C11",
        "Without any position signal the LLaMA block fails",
        TABLE,
        asked((f"{TRANSFORMER} w/o RoPE", ">", TRANSFORMER, math.log(2))),
        WORTH,
    ),
    Claim(
        "C12",
        "In the Pro block dropping both gate and RoPE is bad but not catastrophic",
        TABLE,
        asked(
            (f"{PRO} - forget gate", ">", TRANSFORMER_PRO, 0.0),
            (f"{PRO} - forget gate", "<", TRANSFORMER_PRO, ratio(8.0 - 6.82, 6.82)),
        ),
        WORTH,
    ),
    Claim(
        "C13",
        "Each Pro component helps when added: QK-norm, output gate, output norm, KV-shift",
        TABLE,
        asked(*((after, "<", before, 0.0) for before, after in pairwise(CHAIN))),
    ),
    Claim(
        "C14",
        "Each Pro component helps when removed alone from FoX (Pro)",
        TABLE,
        asked(*((without, ">", PRO, 0.0) for without in LEFT_OUT)),
    ),
    Claim(
        "C15",
        "Of these the output norm matters least, the output gate most",
        TABLE,
        asked(
            *((NORM, "<", other, 0.0) for other in LEFT_OUT if other != NORM),
            *((GATE, ">", other, 0.0) for other in LEFT_OUT if other not in (GATE, NORM)),
        ),
    ),
    Claim(
        "C16",
        "Against RoPE the forget gate is worth about 0.2 perplexity (3%) in the Pro block",
        TABLE,
        asked((TRANSFORMER_PRO, ">=", PRO, ratio(0.12, 6.62)), (TRANSFORMER_PRO, "<=", PRO, ratio(0.28, 6.62))),
        WORTH,
    ),
    Claim("C26", "The data-dependent gate is better than data-independent and fixed ones, in both blocks", FIGURE, c26),
    Claim("C26b", "Learning a constant gate is at least as good as fixing it", FIGURE, c26b, Look(FIGURE, or_a_seed)),
)
