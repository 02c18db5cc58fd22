"""Beyond the papers: The same tokens, more context.

Loss of fixed tokens of held-out documents, given the last c tokens before them. Because the predicted tokens are the same at
every c, it does not matter how hard the text is, unlike by position in Figure 2: C3 and C4 are judged by this. Left: change of
the loss from the shortest context on. Middle: the same from an eighth of the training context on. Right: the lead of FoX over
the Transformer of the same architecture. Below: other models, compared with FoX. The loss of a model that uses its context
falls up to the dashed line. Not in the paper."""

from functools import partial
from itertools import pairwise, product

import numpy as np
import pandas as pd
from matplotlib.axes import Axes

from analysis.curves import ContextLosses, Given, compare_contexts, context_losses, sum_contexts
from analysis.names import RECURRENT, SEVEN, missing_of, pairs_in, style_of, title
from analysis.panels import doublings_axis, legend_of
from analysis.statistics import Estimate
from analysis.study import Study
from analysis.style import WIDTH, Files, about, plt, publish, tokens, training_length_line
from analysis.tables import Cell, Column, Table, count_range, over_seeds
from analysis.verdict import Claim, Comparison, Status, Verdict, decide, in_part, in_words, number
from eval.context_use.spec import Spec
from experiments.recipes import main_models as runs  # noqa: F401
from experiments.scales import MINIS, PAPERS, TINIES, sizes_at

SIZES = {TINIES: (8, 32, 64), MINIS: (64, 512, 128), PAPERS: (64, 512, 1024)}
"""Smallest context, target tokens at each place, and documents."""
APART = 0.16
"""Width over which the models' markers are spread side by side, in doublings of context."""
EARLY, LATE = 1 / 8, 5 / 8
"""Contexts from which C3 and C4 are judged, as shares of the training context: the paper's 2k and 10k of 16k."""
TOLERANCE = 0.003
"""Our choice: a tenth of what the forget gate is worth in the paper's Table 3 (0.03 nats)."""


def evals(scale):
    """Doublings of context up to half the training length, then contexts that with the targets make one, two and four times it;
    at four places of a document, of which only the last fits the longest contexts."""
    smallest, targets, documents = sizes_at(scale, SIZES, __name__)
    train_len, longest = scale.seq_len, scale.document_len
    doubled = [smallest * 2**k for k in range(20) if smallest * 2**k <= train_len // 2]
    whole = [times * train_len - targets for times in (1, 2, 4) if times * train_len <= longest]
    contexts = {*doubled, int(LATE * train_len), *(each for each in whole if each >= smallest)}
    fitting = tuple(sorted(each for each in contexts if each + targets <= longest))
    places = tuple(longest - part * longest // 8 for part in range(4))
    documents = min(documents, scale.heldout_documents)
    return (Spec(contexts=fitting, places=places, targets=targets, num_documents=documents),)


def change(losses: ContextLosses, before: int, after: int, other: ContextLosses | None = None) -> Estimate:
    """Return the loss given `after` tokens of context minus that given `before` tokens, on the same targets, less that of
    `other`."""
    return compare_contexts(*_change(losses, before, after), *(_change(other, before, after, -1.0) if other else ()))


def _change(losses: ContextLosses, before: int, after: int, sign: float = 1.0) -> list[Given]:
    return [(sign, losses, after), (-sign, losses, before)]


def lead(fox: ContextLosses, other: ContextLosses, context: int) -> Estimate:
    """Return the loss of `other` minus that of `fox` at the shortest context, plus its changes by steps up to `context`."""
    first = int(fox.contexts_C[0])
    steps = [[*_change(other, *step), *_change(fox, *step, -1.0)] for step in _steps(fox, first, context)]
    return sum_contexts([(1.0, other, first), (-1.0, fox, first)], *steps)


def along(losses: ContextLosses, start: int, context: int) -> Estimate:
    """Return the change of the loss from `start` to `context`, summed over steps."""
    return sum_contexts(*(_change(losses, *step) for step in _steps(losses, start, context)))


def _steps(losses: ContextLosses, start: int, end: int) -> list[tuple[int, int]]:
    """Return the steps from one context to another, split at every stored context from where on fewer targets have enough. Each
    step uses all targets that have both its ends, so that no segment of a line joins means of different targets."""
    between = [int(context) for context in losses.contexts_C if max(start, losses.everywhere) <= context < end]
    return list(pairwise([start, *between, end]))


def points(study: Study) -> pd.DataFrame:
    """Return the drawn points: panel, model (FoX for leads), context, and value with its 95% interval, in nats."""
    found = context_losses(study)
    first = next(iter(found.values()))
    contexts = first.contexts_C.tolist()
    rows = []
    for panel, start in (("all", contexts[0]), ("late", _early(first))):
        later = [context for context in contexts if context >= start]
        rows += [(panel, model, c, along(losses, start, c)) for model, losses in found.items() for c in later]
    rows += [("lead", fox, c, lead(found[fox], found[other], c)) for fox, other in pairs_in(found)[0] for c in contexts]
    values = [(*place, each.effect, *(each.interval or (np.nan, np.nan))) for *place, each in rows]
    return pd.DataFrame(values, columns=["panel", "model", "context", "value", "low", "high"])


def _early(losses: ContextLosses) -> int:
    """Return the first context of at least an eighth of the training context."""
    return next(int(context) for context in losses.contexts_C if context >= EARLY * losses.train_len)


def draw(study: Study) -> Files:
    found, drawn = context_losses(study), points(study)
    first = next(iter(found.values()))
    shortest, start = tokens(int(first.contexts_C[0])), tokens(_early(first))
    words = {
        "all": ("change of loss (nats)", f"given more than {shortest} tokens"),
        "late": ("change of loss (nats)", f"given more than {start} tokens"),
        "lead": ("lead of FoX (nats)", "Transformer minus FoX"),
    }
    rows = _rows_of(list(found))
    figure, grid = plt.subplots(len(rows), 3, figsize=(WIDTH, 1.2 + 2.2 * len(rows)), squeeze=False)
    for (below, models), (column, (panel, (ylabel, title_of))) in product(enumerate(rows), enumerate(words.items())):
        axes, whole = grid[below, column], drawn[drawn["panel"] == panel]
        own = whole[whole["model"].isin(models)]
        if own.empty or (panel == "lead" and below):  # without a pair of FoX and Transformer, or drawn in the row above
            axes.set_axis_off()
            continue
        _lines(axes, own)
        doublings_axis(axes, _apart(sorted(set(whole["context"]))))
        limits = _limits(whole[whole["context"].isin(first.inside)], whole)
        axes.set(ylim=limits, xlabel="tokens of context $c$", ylabel=ylabel, title=f"others, {title_of}" if below else title_of)
        training_length_line(axes, first.train_len)
    legend_of(figure, [style_of(model) for model in found], markers=True)
    documents, places = first.losses_SDPC.shape[1:3]
    fewer = _fewer(first, first.everywhere, int(first.contexts_C[-1]))
    notes = (
        f"the same tokens at every context: {first.targets} at {places} places of each of {documents} documents",
        f"{fewer}, whose change is added to the value at {tokens(first.everywhere)}" if fewer else "",
        f"mean of {seeds_of(found)}; bars: 95% intervals (documents by source, and seeds)",
        f"dashed vertical: training length {tokens(first.train_len)}; lines are cut at the frame",
    )
    return publish(study, figure, drawn, *notes)


def _rows_of(models: list[str]) -> list[list[str]]:
    """Return the models of each row of panels: the paper's, and below them any others, compared with FoX."""
    others = [model for model in models if model not in SEVEN]
    paper = [model for model in models if model in SEVEN]
    return [paper, [*paper[:1], *others]] if paper and others else [models]


def _fewer(losses: ContextLosses, before: int, after: int) -> str:
    """Say how many of the targets a step uses; empty if all."""
    there_P = losses.fits_P(after)
    where = f"at {there_P.sum()} of {len(there_P)} places, {there_P.mean():.0%} of the tokens"
    return "" if there_P.all() else f"from {tokens(before)} to {tokens(after)} {where}"


def seeds_of(found: dict[str, ContextLosses]) -> str:
    counts = [len(losses.losses_SDPC) for losses in found.values()]
    return count_range(counts, "seeds" if max(counts) > 1 else "seed")


def _apart(contexts: list[int], factor: float = 3.5) -> list[int]:
    """Return contexts to label, from the longest down, that are far enough apart for their labels."""
    kept = contexts[-1:]
    for context in reversed(contexts):
        kept = [context, *kept] if context * factor <= kept[0] else kept
    return kept


def _lines(axes: Axes, rows: pd.DataFrame) -> None:
    """Draw a line per model with its intervals, slightly shifted so that intervals do not cover each other."""
    axes.axhline(0, color="#222222", linewidth=0.8)
    step = min(1 / 40, APART / rows["model"].nunique())
    for place, (model, own) in enumerate(rows.groupby("model", sort=False)):
        style = style_of(str(model))
        bars = np.abs(own[["low", "high"]].to_numpy() - own[["value"]].to_numpy()).T
        x = own["context"] * 2 ** ((place - rows["model"].nunique() / 2) * step)
        drawn = axes.errorbar(x, own["value"], bars, color=style.colour, marker=style.marker, markersize=3, elinewidth=0.9)
        if style.dashes:
            drawn.lines[0].set_dashes(style.dashes)


def _limits(inside: pd.DataFrame, rows: pd.DataFrame) -> tuple[float, float]:
    """Return a y-range for all values within the training context, and for lower values beyond it."""
    ends = ["value", "low", "high"]
    low = min(0.0, float(np.nanmin(inside[ends])), float(rows["value"].min()))
    high = max(0.0, float(np.nanmax(inside[ends])))
    span = max(high - low, 1e-6)
    return low - 0.06 * span, high + 0.15 * span


def summary(study: Study) -> Table:
    """Tabulate gains from more context in parts of the training context and beyond it, with 95% intervals."""
    found = context_losses(study)
    first = next(iter(found.values()))
    contexts, inside = first.contexts_C.tolist(), first.inside
    steps = list(pairwise((contexts[0], _early(first), _half(first), inside[-1])))
    steps += [(inside[-1], contexts[-1])] if contexts[-1] > inside[-1] else []
    columns = [Column("shortest", f"loss given {tokens(contexts[0])} (nats)", 3, "lower")]
    columns += [Column(f"to_{b}", f"from {tokens(a)} to {tokens(b)}", 4, "lower", "signed") for a, b in steps]
    values: dict[str, list[Cell]] = {}
    for model, losses in found.items():
        values[model] = [float(losses.at(contexts[0]).mean()), *(change(losses, *step) for step in steps)]
    note = f"{about(study)} Mean of {seeds_of(found)}. In square brackets: 95% intervals over documents by source, and seeds."
    note += "".join(f" {fewer.capitalize()}." for step in steps if (fewer := _fewer(first, *step)))
    return over_seeds("Loss of the same tokens given more context", columns, values, note)


def _half(losses: ContextLosses) -> int:
    """Return the longest context of at most half of the training context."""
    return max(context for context in losses.inside if context <= losses.train_len / 2)


def c3(study: Study) -> Verdict:
    """FoX uses its context to the end: from an eighth of the training context on, more context never raises the loss by more
    than 0.003 nats, and the longest context is better than this eighth and better than half of the training context."""
    found = context_losses(study)
    foxes = [found[model] for model in ("fox_pro", "fox_llama") if model in found]
    comparisons, parts = [], []
    nowhere = partial(Comparison, bound=TOLERANCE, below=True, strict=False, size=TOLERANCE)
    for fox in foxes:
        contexts, half = [context for context in fox.inside if context >= _early(fox)], _half(fox)
        first, last = contexts[0], contexts[-1]
        gains = {first: change(fox, first, last), half: change(fox, half, last)}
        words = f"{title(fox.model)}: loss given {{}} of context minus given {{}}"
        for before, after in pairwise(contexts):
            comparisons.append(nowhere(words.format(tokens(after), tokens(before)), change(fox, before, after)))
        for before, gain in gains.items():
            comparisons.append(Comparison(words.format(tokens(last), tokens(before)), gain, below=True))
        parts.append(
            f"{title(fox.model)}: from {tokens(first)} to {tokens(last)} tokens of context the loss of the same tokens changes "
            f"by {number(gains[first].effect)}, from {tokens(half)} on by {number(gains[half].effect)} nats"
        )
    return decide("; ".join(parts) + ".", comparisons, missing_of(("fox_pro", "fox_llama"), found))


def c4(study: Study) -> Verdict:
    """Recurrent models gain less than half as much as FoX (Pro) from the last three eighths of the training context, and FoX
    (Pro) itself gains, which the claim presupposes."""
    found = context_losses(study)
    absent = missing_of(("fox_pro", *RECURRENT), found)
    if "fox_pro" not in found:
        return decide("", [], absent)
    fox, others = found["fox_pro"], [found[model] for model in RECURRENT if model in found]
    start, end = max(context for context in fox.inside if context <= LATE * fox.train_len), fox.inside[-1]
    gain = change(fox, end, start)
    what = f"fall of the loss from {tokens(start)} to {tokens(end)} of context"
    comparisons, parts = [Comparison(f"{what}, FoX (Pro)'s", gain)], []
    for other in others:
        excess = compare_contexts((1.0, other, start), (-1.0, other, end), (-0.5, fox, start), (0.5, fox, end))
        words = f"{what}, {title(other.model)}'s minus half of FoX (Pro)'s"
        comparisons.append(Comparison(words, excess, below=True, size=abs(gain.effect) / 2))
        parts.append(f"{title(other.model)} {number(change(other, end, start).effect)}")
    sentence = f"With {tokens(end)} tokens of context in place of {tokens(start)} FoX (Pro) gains {number(gain.effect)} nats"
    verdict = decide(f"{'; '.join([sentence, ', '.join(parts)] if parts else [sentence])}.", comparisons, absent)
    if verdict.status is Status.NOT_MEASURED or in_words(gain, "less", "more", "") != "":
        return verdict
    why = "FoX (Pro)'s own gain cannot be told from none, so that there is no half of it to compare with: the smallest that"
    return in_part(verdict, f"{why} this design sees is {gain.detectable or 0:.2g} nats.")


CLAIMS = (
    Claim("C3", "FoX uses its context up to the end of the training context: its loss keeps falling with more of it", c3),
    Claim("C4", "From the last of the training context the recurrent models gain less than half as much as FoX (Pro)", c4),
)
