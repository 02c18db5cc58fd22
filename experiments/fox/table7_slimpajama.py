"""Table 7: Short-context training on SlimPajama.

About 340M parameters, 15B tokens of SlimPajama, context 2,048. FoX (Pro) has the best average and Wikitext perplexity; FoX is
ahead of the Transformer of the same architecture on average. The paper does not give tokeniser, batch, learning rate and
schedule: here a byte-level BPE of 32,000 tokens and otherwise the 360M setting. Documents are packed, each after a BOS token,
and attention and recurrent states are not reset at document boundaries."""

from dataclasses import replace
from functools import partial
from itertools import product

from analysis.harness import BOTH, PERPLEXITIES, SIX, ahead_on
from analysis.names import SEVEN
from analysis.verdict import Claim
from eval.lm_eval.spec import TASKS
from experiments.evaluations import short_tasks
from experiments.fox.table1_lm_eval import summary  # noqa: F401
from experiments.recipes import recipes
from experiments.scales import MINIS, PAPERS, TINIES, get_scale, sizes_at

SIZES = {TINIES: "tiny-packed", MINIS: "mini-packed", PAPERS: "340m-slimpajama"}


def runs(scale, seeds):
    return recipes(get_scale(sizes_at(scale, SIZES, __name__)), SEVEN[:5], seeds)


def evals(scale):
    """The six tasks of the paper's table, with the perplexities."""
    (spec,) = short_tasks(scale)
    return (replace(spec, tasks=TASKS[:7]),)


OTHERS = ("transformer_pro", "fox_llama", "transformer_llama", "mamba2")
LEADS = [*product(("fox_pro",), OTHERS, BOTH), ("fox_llama", "transformer_llama", "avg_acc")]
c20c = partial(ahead_on, leads=LEADS, columns=(*PERPLEXITIES, *SIX))
CLAIMS = (Claim("C20c", "The same after short documents (SlimPajama): FoX (Pro) is best", c20c),)
