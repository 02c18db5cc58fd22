"""Use of context: a forward pass for each window of a document."""

import pandas as pd

from eval.context_use.spec import Spec
from eval.per_token_loss.measure import document_losses
from eval.runner.batching import check_positions, recorded
from eval.runner.context import Context
from eval.runner.heldout import open_heldout
from eval.runner.loading import Loaded


def evaluate(loaded: Loaded, spec: Spec, context: Context) -> pd.DataFrame:
    """Return the mean loss of the targets for each document, place and context. ValueError as in `open_heldout`, and for a loss
    that is not finite."""
    corpus = open_heldout(spec, loaded, context)
    longest = max(spec.contexts) + spec.targets
    check_positions(loaded.model, longest, "ask for shorter --contexts")
    compute = context.compute(spec.precision)
    windows = [(place, length) for length in spec.contexts for place in spec.places_of(length)]

    def run(keys: list[str]) -> list[dict[str, list[float]]]:
        """Compute the losses of one document's windows."""
        (document,), losses = map(int, keys), []
        tokens_T = corpus.heldout.read(slice(document, document + 1), 0, max(spec.places))[0]
        for place, length in windows:
            read_T = tokens_T[place - spec.targets - length : place]
            loss_T = document_losses(loaded.model, read_T, corpus.spec.bos_id, compute, document)
            losses.append(float(loss_T[-spec.targets :].mean()))
        return [{"losses": losses}]

    lengths = {str(document): longest for document in range(spec.num_documents)}
    found = recorded("context use", lengths, context, compute, run, size=1)
    return pd.DataFrame(
        {"document": int(document), "place": place, "context": length, "loss": loss}
        for document in lengths
        for (place, length), loss in zip(windows, found[document]["losses"], strict=True)
    )
