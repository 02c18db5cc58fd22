"""Use of context: the forward passes, the longest windows first."""

import math

import numpy as np
import pandas as pd

from data.sampler import bos_roll
from eval.context_use.spec import Spec
from eval.runner.batching import check_positions, recorded
from eval.runner.context import Context
from eval.runner.heldout import open_heldout
from eval.runner.loading import Loaded
from models.loss import token_losses


def evaluate(loaded: Loaded, spec: Spec, context: Context) -> pd.DataFrame:
    """Return the mean loss of the targets for each document, place and context. `context.extras` gets sources (index of each
    document's source text, if the corpus stores it). ValueError for too few or too short documents, token ids that are not the
    model's, and a loss that is not finite."""
    corpus = open_heldout(spec, loaded, context)
    check_positions(loaded.model, max(spec.contexts) + spec.targets, "ask for shorter --contexts")
    tokens_DT = corpus.heldout.read(slice(0, spec.num_documents), 0, max(spec.places))
    compute = context.compute(spec.precision)
    windows = {
        f"{document}/{place}/{length}": (document, place, length)
        for document in range(spec.num_documents)
        for length in spec.contexts
        for place in spec.places_of(length)
    }

    def run(keys: list[str]) -> list[dict[str, float]]:
        """Compute the losses of one batch of windows, right-padded, which a causal model does not see."""
        read_T = [tokens_DT[d, place - spec.targets - length : place] for d, place, length in map(windows.__getitem__, keys)]
        padded_BT = np.stack([np.pad(own_T, (0, max(map(len, read_T)) - len(own_T))) for own_T in read_T])
        inputs_BT, targets_BT = (tensor.to(compute.device) for tensor in bos_roll(padded_BT, corpus.spec.bos_id))
        with compute.inference():
            losses_BT = token_losses(loaded.model, inputs_BT, targets_BT).double().cpu().numpy()
        ends = (losses_T[len(own_T) - spec.targets : len(own_T)] for losses_T, own_T in zip(losses_BT, read_T, strict=True))
        losses = [float(losses_T.mean()) for losses_T in ends]
        for loss, (document, place, length) in zip(losses, map(windows.__getitem__, keys), strict=True):
            if not math.isfinite(loss):
                what = f"the mean loss of the targets before {place}, given {length} tokens, is {loss}"
                raise ValueError(f"held-out document {document}: {what}: look at the training, or evaluate in fp32")
        return [{"loss": loss} for loss in losses]

    lengths = {key: length + spec.targets for key, (*_, length) in windows.items()}
    found = recorded("context use", lengths, context, compute, run)
    if corpus.heldout_sources is not None:
        context.extras["sources"] = corpus.heldout_sources[: spec.num_documents]
    rows = pd.DataFrame(windows.values(), columns=["document", "place", "context"])
    return rows.assign(loss=[found[key]["loss"] for key in windows])
