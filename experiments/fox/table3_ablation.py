"""Table 3: Ablation of the forget gate and of the Pro block.

Perplexity at the training length. Without any position signal the LLaMA block fails; the forget gate replaces RoPE and does
better; QK-norm, output gate, output norm and KV-shift each help, whether added one by one or removed one at a time; RoPE adds
nothing to FoX (Pro)."""

import math
from dataclasses import replace
from itertools import combinations, pairwise
from typing import Any

import numpy as np

from analysis.curves import LossCurve, difference, loss_curves
from analysis.paper import paper_scores, read
from analysis.study import Study
from analysis.style import about, tokens
from analysis.tables import Cell, Column, Table, over_seeds
from analysis.verdict import PERPLEXITY, Claim, Comparison, Verdict, decide, number
from experiments.evaluations import loss as evals  # noqa: F401
from experiments.recipes import recipes
from experiments.scales import for_ablations

QK, GATE, NORM = dict(qk_norm=True), dict(use_output_gate=True), dict(use_output_norm=True)
ROWS: tuple[tuple[str, str, dict[str, Any]], ...] = (
    ("Transformer (LLaMA) w/o RoPE", "transformer_llama", dict(use_rope=False)),
    ("Transformer (LLaMA)", "transformer_llama", {}),
    ("FoX (LLaMA) + RoPE", "fox_llama", dict(use_rope=True)),
    ("FoX (LLaMA)", "fox_llama", {}),
    ("FoX (LLaMA) + QK-norm", "fox_llama", QK),
    ("FoX (LLaMA) + QK-norm + output gate", "fox_llama", QK | GATE),
    ("FoX (LLaMA) + QK-norm + output gate + output norm", "fox_llama", QK | GATE | NORM),
    ("FoX (Pro)", "fox_pro", {}),
    ("FoX (Pro) - QK-norm", "fox_pro", dict(qk_norm=False)),
    ("FoX (Pro) - output gate", "fox_pro", dict(use_output_gate=False)),
    ("FoX (Pro) - output norm", "fox_pro", dict(use_output_norm=False)),
    ("FoX (Pro) - KV-shift", "fox_pro", dict(use_k_shift=False, use_v_shift=False)),
    ("FoX (Pro) + RoPE", "fox_pro", dict(use_rope=True)),
    ("FoX (Pro) - forget gate + RoPE", "fox_pro", dict(forget_gate="none", use_rope=True)),
    ("FoX (Pro) - forget gate", "fox_pro", dict(forget_gate="none")),
)
SWITCHES = ("use_rope", *QK, *GATE, *NORM, "use_k_shift", "use_v_shift")
AXES = dict.fromkeys(SWITCHES, bool | None) | {"forget_gate": ("none", None)}
PRINTED = read("table3_ablation_360m.csv")
"""The paper's table; we keep its order of lines."""
PARTS = {
    "RoPE": ("use_rope",), "forget gate": ("forget_gate",), "QK-norm": ("qk_norm",), "output gate": ("use_output_gate",),
    "output norm": ("use_output_norm",), "KV-shift": ("use_k_shift", "use_v_shift"),
}  # fmt: skip
"""Columns of check marks, with the fields of a model's spec that tell whether it has the part."""
PRO, LLAMA, TRANSFORMER = "FoX (Pro)", "FoX (LLaMA)", "Transformer (LLaMA)"
LLAMA_ROPE, TRANSFORMER_PRO = f"{LLAMA} + RoPE", f"{PRO} - forget gate + RoPE"
NEITHER = f"{PRO} - forget gate"
CHAIN = [label for label, *_ in ROWS[3:8]]
"""The steps from FoX (LLaMA) to FoX (Pro), part by part."""
LEFT_OUT = _, WITHOUT_GATE, WITHOUT_NORM, _ = [label for label, *_ in ROWS[8:12]]
Asked = tuple[str, str, str, float]
CEILINGS = {(LLAMA, ">=", LLAMA_ROPE), (TRANSFORMER_PRO, "<=", PRO)}
"""Bounds whose violation exceeds the claim: RoPE does not help FoX at all, or the gate is worth more than in the paper."""


def runs(scale, seeds):
    for label, model, changes in ROWS:
        yield from recipes(for_ablations(scale), model, seeds, axes=changes, label=label, model=changes)


def ablations(study: Study) -> dict[str, LossCurve]:
    """Return the stored curves by label, in the paper's order; labels that the paper does not have come last."""
    curves = {curve.label: curve for curve in loss_curves(study) if curve.length >= curve.train_len}
    order = [*(label for label in PRINTED if label in curves), *(label for label in curves if label not in PRINTED)]
    return {label: curves[label] for label in order}


def parts_of(model: dict) -> list[float]:
    """Return 1 or 0 for each of PARTS, from the model's spec."""
    model = {"forget_gate": "full", **model}
    return [float(any(model.get(name, False) not in (False, "none") for name in names)) for names in PARTS.values()]


def summary(study: Study) -> Table:
    """Tabulate the ablations. Differences from FoX (Pro) are in percent of its perplexity, to be comparable between scales."""
    curves = ablations(study)
    if not curves:
        raise ValueError(f"{study.stem}: no per-token losses up to the training length are stored; run its experiment first")
    pro = curves.get(PRO)
    columns = [Column(part.lower().replace(" ", "_").replace("-", "_"), part, 0, style="check") for part in PARTS]
    columns += [
        Column("ppl", f"P({tokens(study.train_len)})", 2, "lower"),
        Column("over_fox_pro_percent", "over FoX (Pro), %", 1, style="signed"),
        Column("over_fox_pro_percent_paper", "the same in the paper (360M), %", 1, style="signed"),
    ]
    values: dict[str, list[Cell]] = {}
    ranges: dict[str, list[tuple[float, float] | None]] = {}
    for label, curve in curves.items():
        apart = difference(curve, pro) if pro is not None and curve is not pro else None
        over = _percent(apart.effect) if apart else 0.0 if curve is pro else None
        around = (_percent(apart.interval[0]), _percent(apart.interval[1])) if apart and apart.interval else None
        paper = _percent(math.log(PRINTED[label]["ppl"] / PRINTED[PRO]["ppl"])) if label in PRINTED else None
        parts = parts_of(study.spec(curve.run_ids[0])["model"])
        values[label] = [*parts, np.exp(curve.log_p(curve.train_len)), over, paper]
        ranges[label] = [*(None for _ in parts), None, around, None]
    note = f"{about(study)} {_agreement(curves)} In square brackets: 95% intervals over documents by source and seeds."
    printed, nothing = paper_scores("table3_ablation", "".join(study.scales)), [None] * len(PARTS)
    beside = {label: [*nothing, printed[label]["ppl"], None, None] for label in values if label in printed}
    return replace(over_seeds("Ablations", columns, values, note, beside), ranges=ranges)


def _percent(log: float) -> float:
    return 100 * math.expm1(log)


def _agreement(curves: dict[str, LossCurve]) -> str:
    """Say how far the order of lines agrees with the paper's (Kendall's tau); two lines of the same run count once."""
    once = {curve.run_ids: label for label, curve in reversed(curves.items()) if label in PRINTED}
    both = [(curves[label].log_p(curves[label].train_len).mean(), PRINTED[label]["ppl"]) for label in reversed(once.values())]
    signs = [np.sign(a - b) * np.sign(one - two) for (a, one), (b, two) in combinations(both, 2) if one != two]
    if len(signs) < 3:
        return ""
    same, tau = sum(sign > 0 for sign in signs), f"Kendall's \N{GREEK SMALL LETTER TAU} {np.mean(signs):.2f}"
    return f"Of {len(signs)} pairs of lines {same} are in the paper's order ({tau})."


def claim(name: str, sentence: str, *inequalities: Asked) -> Claim:
    """Make a claim about lines of the table. (one, "<", other, margin): log P of `one` less that of `other` is below margin."""
    labels = tuple(dict.fromkeys(label for one, _, other, _ in inequalities for label in (one, other)))

    def predicate(study: Study) -> Verdict:
        curves = {label: curve for label, curve in ablations(study).items() if label in labels}
        comparisons, what = [], f"P({tokens(study.train_len)})"
        for one, sign, other, margin in inequalities:
            if one in curves and other in curves:
                apart, papers = difference(curves[one], curves[other]), math.log(PRINTED[one]["ppl"] / PRINTED[other]["ppl"])
                how: dict[str, Any] = dict(below="<" in sign, strict="=" not in sign, ceiling=(one, sign, other) in CEILINGS)
                how |= dict(unit=PERPLEXITY, size=abs(papers - margin) or None, paper=number(papers, PERPLEXITY))
                comparisons.append(Comparison(f"{what}, {one} against {other}", apart, margin, **how))
        parts = [f"{label} {math.exp(curve.inside):.3f}" for label, curve in curves.items()]
        missing = [label for label in labels if label not in curves]
        return decide(f"{what}: {', '.join(parts)}.", comparisons, missing)

    return Claim(name, sentence, predicate)


def ratio(margin: float, of: float) -> float:
    """Convert a difference in perplexity, at the paper's perplexity `of`, to nats."""
    return math.log1p(margin / of)


CLAIMS = (
    claim("C7", "RoPE is unnecessary for FoX (Pro)", (PRO, "<=", f"{PRO} + RoPE", ratio(0.02, 6.63))),
    claim("C8", "RoPE gives FoX (LLaMA) at most a small gain",
          (LLAMA, ">=", LLAMA_ROPE, 0.0), (LLAMA, "<=", LLAMA_ROPE, ratio(0.10, 7.19))),
    claim("C9", "The forget gate replaces RoPE and does better", (LLAMA, "<", TRANSFORMER, 0.0)),
    claim("C10", "The forget gate also helps on top of RoPE", (LLAMA_ROPE, "<", TRANSFORMER, 0.0)),
    claim("C11", "Without any position signal the LLaMA block fails",
          (f"{TRANSFORMER} w/o RoPE", ">", TRANSFORMER, math.log(2))),
    claim("C12", "In the Pro block dropping both gate and RoPE is bad but not catastrophic",
          (NEITHER, ">", TRANSFORMER_PRO, 0.0), (NEITHER, "<", TRANSFORMER_PRO, ratio(8.0 - 6.82, 6.82))),
    claim("C13", "Each Pro component helps when added: QK-norm, output gate, output norm, KV-shift",
          *((after, "<", before, 0.0) for before, after in pairwise(CHAIN))),
    claim("C14", "Each Pro component helps when removed alone from FoX (Pro)",
          *((without, ">", PRO, 0.0) for without in LEFT_OUT)),
    claim("C15", "Of these the output norm matters least, the output gate most",
          *((WITHOUT_NORM, "<", other, 0.0) for other in LEFT_OUT if other != WITHOUT_NORM),
          *((WITHOUT_GATE, ">", other, 0.0) for other in LEFT_OUT if other not in (WITHOUT_GATE, WITHOUT_NORM))),
    claim("C16", "Against RoPE the forget gate is worth about 0.2 perplexity (3%) in the Pro block",
          (TRANSFORMER_PRO, ">=", PRO, ratio(0.12, 6.62)), (TRANSFORMER_PRO, "<=", PRO, ratio(0.28, 6.62))),
)  # fmt: skip
