"""Recall: the forward passes."""

import numpy as np
import pandas as pd
import torch

from data.recall import heldout
from eval.recall.spec import Spec
from eval.runner.context import Context
from eval.runner.loading import Loaded
from training.progress import Progress

BATCH_TOKENS = 2**15


def evaluate(loaded: Loaded, spec: Spec, context: Context) -> pd.DataFrame:
    """Return the counts of each sequence's answers. ValueError for a run that was not trained on the spec's task."""
    run = loaded.subject.run
    if run is None or run.data.recall is None or run.data.fingerprint != spec.corpus:
        other = f"which {loaded.subject.model} was not trained on: name another"
        raise ValueError(f"the evaluation is of recall task {spec.corpus}, {other}")
    task = run.data.recall
    tokens_NT, queries_NP = heldout(task, spec.num_sequences)
    compute = context.compute(spec.precision)
    found = []
    with Progress("recall", spec.num_sequences) as progress:
        for rows in np.array_split(np.arange(spec.num_sequences), -(-tokens_NT.size // BATCH_TOKENS)):
            inputs_NT, _ = task.batch(tokens_NT[rows], queries_NP[rows])
            with compute.inference():
                logits_NPV = loaded.model(input_ids=inputs_NT.to(compute.device), use_cache=False).logits[:, 1::2]
            if not torch.isfinite(logits_NPV).all():
                raise ValueError(f"a logit of {loaded.subject.model} is not finite: look at its training, or evaluate in fp32")
            found.append(logits_NPV.argmax(-1).cpu().numpy())
            progress.advance(len(rows))
    correct_NP, stale_NP = judged(tokens_NT, np.concatenate(found))
    counts = {"num_queries": queries_NP, "num_correct": correct_NP & queries_NP, "num_stale": stale_NP & queries_NP}
    return pd.DataFrame({"sequence": np.arange(spec.num_sequences)} | {name: x.sum(axis=1) for name, x in counts.items()})


def judged(tokens_NT: np.ndarray, answers_NP: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return masks (N, P) of the answers that are the pair's value, and of those that are an earlier value of its key."""
    keys_NP, values_NP = tokens_NT[:, ::2], tokens_NT[:, 1::2]
    correct_NP = answers_NP == values_NP
    earlier_PP = np.tri(keys_NP.shape[1], k=-1, dtype=bool)
    had_NP = [
        (earlier_PP & (keys[:, None] == keys) & (answers[:, None] == values)).any(axis=1)
        for keys, values, answers in zip(keys_NP, values_NP, answers_NP, strict=True)
    ]
    return correct_NP, np.stack(had_NP) & ~correct_NP
