"""Recall: the forward passes."""

import numpy as np
import pandas as pd
import torch

from data.recall import heldout
from eval.recall import Spec
from eval.shell.context import Context
from eval.shell.loading import Loaded
from eval.shell.progress import Progress

BATCH_TOKENS = 2**15


def evaluate(loaded: Loaded, spec: Spec, context: Context) -> pd.DataFrame:
    """Rows of SCHEMA. ValueError for a run of another task, or of none."""
    run = loaded.subject.run
    if run is None or run.data.recall is None or run.data.fingerprint != spec.corpus:
        raise ValueError(f"the evaluation is of recall task {spec.corpus}, which {loaded.subject.model} was not trained on")
    task = run.data.recall
    tokens_NT, values_NKR = heldout(task, spec.num_sequences)
    compute = context.compute(spec.precision)
    found = []
    with Progress("recall", spec.num_sequences, 0) as progress:
        for part in np.array_split(tokens_NT, -(-tokens_NT.size // BATCH_TOKENS)):
            inputs_NT, targets_NT = (x.to(compute.device) for x in task.batch(part))
            with compute.inference():
                logits_NKV = loaded.model(input_ids=inputs_NT, use_cache=False).logits[:, targets_NT[0] >= 0]
            if not torch.isfinite(logits_NKV).all():
                raise ValueError(f"a logit of {loaded.subject.model} is not finite")
            found.append(logits_NKV.argmax(-1).cpu().numpy())
            for _ in part:
                progress.advance()
    right_NKR = np.concatenate(found)[..., None] == values_NKR
    correct_NK = right_NKR[..., -1]
    return pd.DataFrame(
        {
            "sequence": np.arange(spec.num_sequences),
            "num_queries": task.num_keys,
            "num_correct": correct_NK.sum(axis=1),
            "num_stale": (right_NKR[..., :-1].any(axis=2) & ~correct_NK).sum(axis=1),
        }
    )
