"""Table 1 of the ACP paper: FoX (Pro) trained with and without pruning at three context lengths."""

from experiments.evaluations import loss, short_tasks
from experiments.recipes import recipes
from experiments.scales import with_shorter

TITLE = "Quality with and without adaptive computation pruning"
PAPER = "ACP, Table 1"
SHOWS = (
    "FoX (Pro) trained with and without pruning at three training contexts: held-out perplexity, and the LM evaluation "
    "harness. Pruning costs no quality: the differences are those of repeated trainings."
)
CLAIMS = ("A6",)

PRUNED, WHOLE = dict(prune_log_tolerance=-10.0), dict(prune_log_tolerance=None)


def runs(scale, seeds, kinds=(("pruned", PRUNED), ("unpruned", WHOLE))):
    at = with_shorter(scale)[0]
    for length in at.pruning_contexts:
        for name, model in kinds:
            axes, label = dict(pruning=name, context=length), f"{name}, context {length}"
            yield from recipes(at, "fox_pro", seeds, axes=axes, label=label, model=model, train=dict(seq_len=length))


def evals(scale):
    return loss(scale) + short_tasks(scale)
