"""The paper's claims in words, and the verdicts on them from stored rows.

The predicates are in `claims_loss` (C1-C6) and `claims_tasks` (C17-C19, C21, C22, C22b, C22c); `judge` picks by artefact.
"""

from typing import Any

import pandas as pd

from analysis import table1_lm_eval, table2_longbench
from analysis.claims_loss import loss_verdicts
from analysis.claims_tasks import c17, c18, c19, c21, c22, c22b, c22c
from analysis.rows import loss_curves, made_locally, train_seq_len
from analysis.verdict import Status, Verdict, not_applicable

__all__ = ["CLAIMS", "Status", "Verdict", "judge"]

CLAIMS: dict[str, str] = {
    "C1": "Inside the training context FoX has a lower perplexity than the Transformer of the same architecture",
    "C2": "FoX extrapolates better than the Transformer of the same architecture",
    "C3": "FoX uses its context up to the end of the training context: its per-token loss keeps falling",
    "C4": "The recurrent models stop gaining from more context",
    "C5": "FoX (Pro) is the best of the seven models within the training context",
    "C6": "Pro beats LLaMA, for FoX and for the Transformer",
    "C17": "FoX (Pro) is best on average and on both perplexities",
    "C18": "FoX is at least as good as the Transformer of the same architecture (9 of 12 columns)",
    "C19": "Pro is at least as good as LLaMA within a family (9 of 12 columns)",
    "C21": "FoX is on par with the Transformer on LongBench (means within 2 points)",
    "C22": "Softmax models beat recurrent ones on LongBench without its code tasks (by more than 3 points)",
    "C22b": "Easy needle inside the training context: FoX and Transformer near perfect, recurrent models well below",
    "C22c": "Standard needle inside the training context: FoX at least as good as the Transformer",
}


ON_PUBLIC_TASKS = {"lm_eval": ("C17", "C18", "C19"), "longbench": ("C21", "C22")}


def judge(kind: str, rows: pd.DataFrame, meta: dict[str, Any]) -> list[Verdict]:
    """Verdicts on the claims that results of this kind bear on; empty for kinds without claims."""
    if kind == "per_token_loss":
        return loss_verdicts(loss_curves(rows), train_seq_len(meta))
    if kind in ON_PUBLIC_TASKS and made_locally(meta):
        why = "The tasks are stand-ins made from the held-out text, not the public benchmark that the claim is about."
        return [not_applicable(claim, why) for claim in ON_PUBLIC_TASKS[kind]]
    if kind == "lm_eval":
        scores = table1_lm_eval.scores(rows)
        return [c17(scores), c18(scores), c19(scores)]
    if kind == "longbench":
        scores = table2_longbench.scores(rows)
        return [c21(scores), c22(scores)]
    if kind == "needle":
        train_len = train_seq_len(meta)
        return [c22b(rows, train_len), c22c(rows, train_len)]
    return []
