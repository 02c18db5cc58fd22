"""Table 3: every component of the Pro block and the forget gate, added one by one and left out one by one."""

from typing import Any

from experiments.evaluations import loss as evals  # noqa: F401
from experiments.recipes import recipes
from experiments.scales import get_scale

TITLE = "Ablation of the forget gate and of the Pro block"
PAPER = "Table 3"
SHOWS = (
    "Perplexity at the training length. Without any sign of position the LLaMA block fails; the forget gate replaces RoPE and "
    "does better; QK-norm, output gate, output norm and KV-shift each help, added one by one and left out one by one; RoPE "
    "adds nothing to FoX (Pro)."
)
CLAIMS = ("C7", "C8", "C9", "C10", "C11", "C12", "C13", "C14", "C15", "C16")

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


def runs(scale, seeds):
    for label, model, changes in ROWS:
        yield from recipes(get_scale(scale.ablation), model, seeds, axes=changes, label=label, model=changes)
