"""The paper's claims in words, and the verdicts on them from stored rows.

The predicates are in `claims_loss` (C1-C6) and `claims_tasks` (C17-C19, C21, C22, C22b, C22c); `judge` picks by artefact.
"""

from typing import Any

import pandas as pd

from analysis.claims_loss import loss_verdicts
from analysis.rows import loss_curves, train_seq_len
from analysis.verdict import Status, Verdict

__all__ = ["CLAIMS", "Status", "Verdict", "judge"]

CLAIMS: dict[str, str] = {
    "C1": "FoX has a lower perplexity than the Transformer of the same architecture at every context length inside the training context",
    "C2": "FoX extrapolates better than the Transformer of the same architecture",
    "C3": "FoX uses its context up to the end of the training context: its per-token loss keeps falling",
    "C4": "The recurrent models stop gaining from more context",
    "C5": "FoX (Pro) is the best of the seven models within the training context",
    "C6": "Pro beats LLaMA, for FoX and for the Transformer",
}


def judge(kind: str, rows: pd.DataFrame, meta: dict[str, Any]) -> list[Verdict]:
    """Verdicts on the claims that results of this kind bear on; empty for kinds without claims."""
    if kind == "per_token_loss":
        return loss_verdicts(loss_curves(rows), train_seq_len(meta))
    return []
