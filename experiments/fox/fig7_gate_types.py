"""Figure 7: data-dependent, data-independent and fixed forget gates, in both blocks."""

from itertools import product

from experiments.evaluations import loss as evals  # noqa: F401
from experiments.recipes import recipes
from experiments.scales import get_scale

TITLE = "Kinds of forget gate"
PAPER = "Figure 7"
SHOWS = (
    "Per-token loss with a forget gate that depends on the token, one that is learned per head, and one that is fixed per head "
    "(ALiBi). The data-dependent gate is best, the learned constant next, the fixed one worst, in both blocks."
)
CLAIMS = ("C26", "C26b")


def runs(scale, seeds):
    at = get_scale(scale.ablation)
    for block in ("fox_llama", "fox_pro"):
        yield from recipes(at, block, seeds, axes=dict(gate="full"), label="data-dependent")
        for (gate, name), longest in product((("bias_only", "data-independent"), ("fixed", "fixed")), scale.decay_times):
            changes = dict(forget_gate=gate, decay_time_min=2.0, decay_time_max=float(longest))
            axes = dict(gate=gate, longest=longest)
            yield from recipes(at, block, seeds, axes=axes, label=f"{name}, T_max {longest}", model=changes)
