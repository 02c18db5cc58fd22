"""Figure 2: per-token loss and perplexity against position, all seven models, at four times the training length."""

from eval.spec import PerTokenLossSpec
from experiments.artefact import Artefact
from experiments.scales import MODELS

ARTEFACT = Artefact(
    title="Per-token loss and perplexity against position",
    paper="Figure 2",
    models=MODELS,
    evals=lambda scale, options: (PerTokenLossSpec(context_len=scale.document_len, num_documents=scale.heldout_documents),),
    claims=("C1", "C2", "C3", "C4", "C5", "C6"),
)
