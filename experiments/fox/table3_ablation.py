"""Table 3: every component of the Pro block and the forget gate, added one by one and left out one by one."""

import math
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import numpy as np

from analysis.curves import LossCurve, difference, fewest_seeds, log_perplexity, loss_curves
from analysis.paper import paper_scores, read
from analysis.study import Study
from analysis.style import scale_note, tokens
from analysis.tables import Cell, Column, Table, over_seeds
from analysis.verdict import PERPLEXITY, Claim, Comparison, Verdict, decide, number
from experiments.evaluations import loss as evals  # noqa: F401
from experiments.recipes import recipes
from experiments.scales import for_ablations

TITLE = "Ablation of the forget gate and of the Pro block"
PAPER = "Table 3"
SHOWS = (
    "Perplexity at the training length. Without any sign of position the LLaMA block fails; the forget gate replaces RoPE and "
    "does better; QK-norm, output gate, output norm and KV-shift each help, added one by one and left out one by one; RoPE "
    "adds nothing to FoX (Pro)."
)
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


AXES = dict.fromkeys(("use_rope", *QK, *GATE, *NORM, "use_k_shift", "use_v_shift"), bool | None) | {
    "forget_gate": ("none", None)
}


def runs(scale, seeds):
    for label, model, changes in ROWS:
        yield from recipes(for_ablations(scale), model, seeds, axes=changes, label=label, model=changes)


PRINTED = read("table3_ablation_360m.csv")
"""The paper's table, whose order of lines is ours."""
PARTS = {
    "rope": "RoPE",
    "forget_gate": "forget gate",
    "qk_norm": "QK-norm",
    "output_gate": "output gate",
    "output_norm": "output norm",
    "kv_shift": "KV-shift",
}


def ablations(study: Study) -> dict[str, LossCurve]:
    """The curves that are stored, by label, in the paper's order; labels that it does not have come last."""
    curves = {curve.label: curve for curve in loss_curves(study) if curve.length >= curve.train_len}
    order = [*(label for label in PRINTED if label in curves), *(label for label in curves if label not in PRINTED)]
    return {label: curves[label] for label in order}


def parts_of(model: dict) -> list[float]:
    """1 or 0 for each of PARTS, from the model's spec."""
    has = {
        "rope": model.get("use_rope", False),
        "forget_gate": model.get("forget_gate", "full") != "none",
        "qk_norm": model.get("qk_norm", False),
        "output_gate": model.get("use_output_gate", False),
        "output_norm": model.get("use_output_norm", False),
        "kv_shift": model.get("use_k_shift", False) or model.get("use_v_shift", False),
    }
    return [float(has[part]) for part in PARTS]


def summary(study: Study) -> Table:
    """The table; differences to FoX (Pro) in percent of its perplexity, so that orders can be compared between scales."""
    curves = ablations(study)
    if not curves:
        raise ValueError(f"{study.stem}: no per-token losses up to the training length are stored; run its experiment first")
    logs_S = {label: log_perplexity(curve.losses_SN)[:, curve.train_len - 1] for label, curve in curves.items()}
    base = logs_S["FoX (Pro)"].mean() if "FoX (Pro)" in logs_S else None
    columns = [Column(part, title, 0, style="check") for part, title in PARTS.items()]
    columns += [
        Column("ppl", f"P({tokens(study.train_len)})", 2, "lower"),
        Column("over_fox_pro_percent", "over FoX (Pro), %", 1, style="signed"),
        Column("over_fox_pro_percent_paper", "the same in the paper (360M), %", 1, style="signed"),
    ]
    values: dict[str, list[Cell]] = {}
    for label, curve in curves.items():
        over = None if base is None else 100 * np.expm1(logs_S[label] - base)
        paper = 100 * (PRINTED[label]["ppl"] / PRINTED["FoX (Pro)"]["ppl"] - 1) if label in PRINTED else None
        values[label] = [*parts_of(study.spec(curve.run_ids[0])["model"]), np.exp(logs_S[label]), over, paper]
    note = f"{scale_note(study).capitalize()}. Corpus: {study.corpora}. {_agreement(logs_S)}"
    printed = paper_scores("table3_ablation", "".join(study.scales))
    beside: dict[str, list[float | None]] = {
        label: [*[None] * len(PARTS), printed[label]["ppl"], None, None] for label in values if label in printed
    }
    return over_seeds("Ablations", columns, values, note.strip(), beside)


def _agreement(logs_S: dict[str, np.ndarray]) -> str:
    """Kendall's tau with the paper's order, over the lines that both have."""
    labels = [label for label in logs_S if label in PRINTED]
    ours, papers = [logs_S[label].mean() for label in labels], [PRINTED[label]["ppl"] for label in labels]
    signs = [
        np.sign(ours[one] - ours[two]) * np.sign(papers[one] - papers[two])
        for one in range(len(labels))
        for two in range(one)
        if papers[one] != papers[two]
    ]
    if len(signs) < 3:
        return ""
    same = sum(sign > 0 for sign in signs)
    return (
        f"Of {len(signs)} pairs of lines {same} are in the paper's order (Kendall's \N{GREEK SMALL LETTER TAU} "
        f"{np.mean(signs):.2f})."
    )


PRO, LLAMA = "FoX (Pro)", "FoX (LLaMA)"
TRANSFORMER, TRANSFORMER_PRO = "Transformer (LLaMA)", "FoX (Pro) - forget gate + RoPE"
CHAIN = (
    LLAMA,
    "FoX (LLaMA) + QK-norm",
    "FoX (LLaMA) + QK-norm + output gate",
    "FoX (LLaMA) + QK-norm + output gate + output norm",
    PRO,
)
LEFT_OUT = _, WITHOUT_GATE, WITHOUT_NORM, _ = tuple(
    f"{PRO} - {part}" for part in ("QK-norm", "output gate", "output norm", "KV-shift")
)
Asked = tuple[str, str, str, float]
CEILINGS = {(LLAMA, ">=", f"{LLAMA} + RoPE"), (TRANSFORMER_PRO, "<=", PRO)}
"""RoPE that does not even help FoX, and a gate that is worth more than the paper says, are more of what is claimed."""


def asked(*inequalities: Asked) -> Callable[[Study], Verdict]:
    """A claim on lines of the table. (one, "<", other, margin): log P of `one` minus log P of `other` is below the margin."""
    labels = tuple(dict.fromkeys(label for one, _, other, _ in inequalities for label in (one, other)))

    def predicate(study: Study) -> Verdict:
        curves = {label: curve for label, curve in ablations(study).items() if label in labels}
        length = study.train_len
        comparisons = []
        for one, sign, other, margin in inequalities:
            if one in curves and other in curves:
                apart, papers = difference(curves[one], curves[other]), math.log(PRINTED[one]["ppl"] / PRINTED[other]["ppl"])
                comparisons.append(
                    Comparison(
                        f"P, {one} against {other}", apart, margin, below="<" in sign, strict="=" not in sign, unit=PERPLEXITY,
                        size=abs(papers - margin) or None, ceiling=(one, sign, other) in CEILINGS,
                        paper=number(papers, PERPLEXITY),
                    )
                )  # fmt: skip
        parts = [f"{label} {math.exp(curve.mean_N[:length].mean()):.3f}" for label, curve in curves.items()]
        missing = [label for label in labels if label not in curves]
        return decide(f"P({tokens(length)}): {', '.join(parts)}.", comparisons, fewest_seeds(curves.values()), missing)

    return predicate


def ratio(margin: float, of: float) -> float:
    """A difference of perplexities at the paper's perplexity `of`, in nats."""
    return math.log1p(margin / of)


CLAIMS = (
    Claim("C7", "RoPE is unnecessary for FoX (Pro)", asked((PRO, "<=", f"{PRO} + RoPE", ratio(0.02, 6.63)))),
    Claim(
        "C8",
        "RoPE gives FoX (LLaMA) at most a small gain",
        asked((LLAMA, ">=", f"{LLAMA} + RoPE", 0.0), (LLAMA, "<=", f"{LLAMA} + RoPE", ratio(0.10, 7.19))),
    ),
    Claim("C9", "The forget gate replaces RoPE and does better", asked((LLAMA, "<", TRANSFORMER, 0.0))),
    Claim("C10", "The forget gate also helps on top of RoPE", asked((f"{LLAMA} + RoPE", "<", TRANSFORMER, 0.0))),
    Claim(
        "C11",
        "Without any position signal the LLaMA block fails",
        asked((f"{TRANSFORMER} w/o RoPE", ">", TRANSFORMER, math.log(2))),
    ),
    Claim(
        "C12",
        "In the Pro block dropping both gate and RoPE is bad but not catastrophic",
        asked(
            (f"{PRO} - forget gate", ">", TRANSFORMER_PRO, 0.0),
            (f"{PRO} - forget gate", "<", TRANSFORMER_PRO, ratio(8.0 - 6.82, 6.82)),
        ),
    ),
    Claim(
        "C13",
        "Each Pro component helps when added: QK-norm, output gate, output norm, KV-shift",
        asked(*((after, "<", before, 0.0) for before, after in pairwise(CHAIN))),
    ),
    Claim(
        "C14",
        "Each Pro component helps when removed alone from FoX (Pro)",
        asked(*((without, ">", PRO, 0.0) for without in LEFT_OUT)),
    ),
    Claim(
        "C15",
        "Of these the output norm matters least, the output gate most",
        asked(
            *((WITHOUT_NORM, "<", other, 0.0) for other in LEFT_OUT if other != WITHOUT_NORM),
            *((WITHOUT_GATE, ">", other, 0.0) for other in LEFT_OUT if other not in (WITHOUT_GATE, WITHOUT_NORM)),
        ),
    ),
    Claim(
        "C16",
        "Against RoPE the forget gate is worth about 0.2 perplexity (3%) in the Pro block",
        asked((TRANSFORMER_PRO, ">=", PRO, ratio(0.12, 6.62)), (TRANSFORMER_PRO, "<=", PRO, ratio(0.28, 6.62))),
    ),
)
