"""Table 9: LongBench, with windowed and hybrid models.

Fourteen long-context tasks at 760M parameters and 16B tokens. Samba and Transformer-SWA, with an attention window of 2,048
tokens, are well behind FoX (Pro) and Transformer (Pro) except on the two code tasks."""

from itertools import product

from analysis.harness import STAND_INS, made_locally
from analysis.names import pairs_in, title
from analysis.study import Study
from analysis.verdict import Claim, Verdict, decide, not_applicable
from experiments.evaluations import long_tasks as evals  # noqa: F401
from experiments.fox.table2_longbench import MEANS, ahead, mean_terms, summary  # noqa: F401
from experiments.fox.table8_lm_eval import runs  # noqa: F401


def c24b(study: Study) -> Verdict:
    """FoX (Pro) and Transformer (Pro) beat Samba and Transformer-SWA on the 12 LongBench tasks that are not code."""
    if made_locally(study):
        return not_applicable(STAND_INS)
    terms = mean_terms(study, MEANS["mean12"])
    there, absent = pairs_in(terms, list(product(("fox_pro", "transformer_pro"), ("samba", "transformer_swa"))))
    comparisons = [ahead(terms, *pair, "mean12") for pair in there]
    names = dict.fromkeys(model for pair in there for model in pair)
    parts = [f"{title(model)} {terms[model].seeds.mean():.2f}" for model in names]
    return decide(f"Mean over 12 tasks: {', '.join(parts)}.", comparisons, absent)


CLAIMS = (Claim("C24b", "Windowed and hybrid models are weaker on LongBench without its code tasks", c24b),)
