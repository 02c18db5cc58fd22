"""Beyond the papers: What the forget gate is worth, by learning rate and training tokens.

In the paper's ablations (360M, 7.5B tokens), replacing RoPE by the forget gate is worth 0.03 nats in both blocks. If it is
worth much more at a smaller scale (C16 is then exceeded), either the learning rates do not suit the Transformer, or models
trained on few tokens gain more from the gate. Not in the paper."""

import math
from typing import NamedTuple

from analysis.curves import LossCurve, compare, difference, loss_curves
from analysis.names import PAIRS, title
from analysis.paper import read
from analysis.statistics import Estimate
from analysis.study import Study
from analysis.style import about, millions, tokens
from analysis.tables import Cell, Column, Table, over_seeds
from analysis.verdict import in_words, number, with_interval
from experiments.evaluations import loss as evals  # noqa: F401
from experiments.fox.table_lr_grid import rates_of
from experiments.recipes import recipes
from experiments.scales import for_ablations, with_shorter

AXES = {"train_tokens": int, "peak_lr": float | None}
BLOCKS = {PAIRS[0]: ("pro", "Pro"), PAIRS[1]: ("llama", "LLaMA")}
PRINTED = {PAIRS[0]: ("FoX (Pro)", "FoX (Pro) - forget gate + RoPE"), PAIRS[1]: ("FoX (LLaMA)", "Transformer (LLaMA)")}
"""Labels of each pair in the paper's Table 3."""
PAPERS_BUDGET = "360M, 7.5B tokens"


def runs(scale, seeds):
    grid = for_ablations(scale)
    for model in ("fox_pro", "transformer_pro", "fox_llama", "transformer_llama"):
        for rate in rates_of(scale, model):
            axes = dict(train_tokens=grid.train_tokens, peak_lr=rate)
            label = f"{millions(grid.train_tokens)} tokens, LR {rate:g}"
            yield from recipes(grid, model, seeds, axes=axes, label=label, train=dict(peak_lr=rate))
        for at in with_shorter(scale):
            if at != grid:
                axes = dict(train_tokens=at.train_tokens)
                yield from recipes(at, model, seeds, axes=axes, label=f"{millions(at.train_tokens)} tokens")


def worths(study: Study) -> dict[str, list[Estimate | None]]:
    """Return condition -> the gate's worth in nats per pair, None if a model is missing. ValueError if no pair is stored."""
    runs: dict[str, dict[str, LossCurve]] = {}
    for curve in loss_curves(study):
        if curve.length >= curve.train_len:
            runs.setdefault(curve.label, {})[curve.model] = curve
    every = {label: [_worth(curves, *pair) for pair in BLOCKS] for label, curves in _with_best(runs).items()}
    found = {label: pairs for label, pairs in every.items() if any(pairs)}  # at some rates only one model was tried
    if not found:
        raise ValueError(f"{study.stem}: no pair of runs with and without a forget gate is stored; run its experiment first")
    return found


def _with_best(runs: dict[str, dict[str, LossCurve]]) -> dict[str, dict[str, LossCurve]]:
    """Return `runs`; those with several rates at one number of tokens are followed by each model at its best rate."""
    sizes: dict[int, list[str]] = {}
    for label, curves in runs.items():
        sizes.setdefault(next(iter(curves.values())).axes["train_tokens"], []).append(label)
    found: dict[str, dict[str, LossCurve]] = {}
    for size, labels in sizes.items():
        found |= {label: runs[label] for label in labels}
        if len(labels) > 1:
            # A model's best curve comes last, and overwrites the others.
            tried = sorted((curve for label in labels for curve in runs[label].values()), key=lambda curve: -curve.inside)
            found[f"{millions(size)} tokens, each at its best LR"] = {curve.model: curve for curve in tried}
    return found


def _worth(curves: dict[str, LossCurve], fox: str, other: str) -> Estimate | None:
    return difference(curves[other], curves[fox]) if {fox, other} <= set(curves) else None


def papers() -> dict[tuple[str, str], float]:
    """Return the gate's worth in nats in the paper, for each pair."""
    paper = read("table3_ablation_360m.csv")
    return {pair: math.log(paper[other]["ppl"] / paper[fox]["ppl"]) for pair, (fox, other) in PRINTED.items()}


def rates_or_tokens(study: Study) -> str:
    """Say whether other learning rates or more training tokens bring the gate's worth closer to the paper's."""
    return f"Worth of the gate in place of RoPE, as in C16. {' '.join(_moved_by(study, pair) for pair in BLOCKS)}"


class Tried(NamedTuple):
    """Runs of one model: with `fewer` tokens at the learning rate of the run with the most tokens (`more`), and with fewer
    tokens at the `best` rate. `sizes`: tokens of the first two; `at_edge`: whether the best rate is at the edge of the grid."""

    fewer: LossCurve
    more: LossCurve
    best: LossCurve
    sizes: tuple[str, str]
    at_edge: bool


def _tried(study: Study, model: str) -> Tried | None:
    """Return the runs of a model; None if it was not trained both at several rates and with more tokens."""
    curves = [curve for curve in loss_curves(study) if curve.model == model and curve.length >= curve.train_len]
    specs = {curve: study.spec(curve.run_ids[0]) for curve in curves}
    count = {curve: spec["train"]["train_tokens"] for curve, spec in specs.items()}
    rate = {curve: spec["train"]["peak_lr"] for curve, spec in specs.items()}
    most = max(curves, key=lambda curve: count[curve], default=None)
    tried = {
        rate[curve]: curve
        for curve in curves
        if most and count[curve] == min(count.values()) and specs[curve]["model"] == specs[most]["model"] and curve is not most
    }
    if most is None or len(tried) < 2 or rate[most] not in tried:
        return None
    fewer, best = tried[rate[most]], min(tried, key=lambda each: tried[each].inside)
    sizes = millions(count[fewer]), millions(count[most])
    return Tried(fewer, most, tried[best], sizes, best in (min(tried), max(tried)))


def _moved_by(study: Study, pair: tuple[str, str]) -> str:
    """Say how the worth of a pair changes with each model at its best rate, and with the most tokens at the same rates."""
    block, (fox, other) = f"{BLOCKS[pair][1]} block", (_tried(study, model) for model in pair)
    if fox is None or other is None:
        return f"{block}: unknown, because runs at several rates and with more tokens are not stored for both models."

    def worth(**sets: float) -> Estimate:
        runs = [(k * sign, getattr(model, name)) for name, k in sets.items() for sign, model in ((-1.0, fox), (1.0, other))]
        return compare(*((coefficient, curve, 1, fox.fewer.train_len) for coefficient, curve in runs))

    before, paper = worth(fewer=1.0), papers()[pair]
    moves = {"learning rates": worth(best=1.0, fewer=-1.0), "training tokens": worth(more=1.0, fewer=-1.0)}
    larger, smaller = sorted(moves, key=lambda name: -abs(moves[name].effect))
    nearer = in_words(moves[larger], "less", "more", "") == ("less" if before.effect > paper else "more")
    by_rate, by_tokens = (with_interval(move, "nats") for move in moves.values())
    edges = [title(model) for model, tried in zip(pair, (fox, other), strict=True) if tried.at_edge]
    edge = f" (at the edge of what was tried for {' and '.join(edges)})" if edges else ""
    return (
        f"{block}: {number(before.effect)} nats at {other.sizes[0]} tokens ({number(paper)} in the paper, {PAPERS_BUDGET}). "
        f"Each model at its best rate{edge} changes this by {by_rate}, {other.sizes[1]} tokens by {by_tokens}: "
        f"{f'{larger} rather than {smaller} bring' if nearer else 'neither brings'} it nearer to the paper."
    )


def summary(study: Study) -> Table:
    """Tabulate one line per condition, with the paper's last; 95% intervals in square brackets."""
    columns = [Column(key, f"{name} block (nats)", 3, style="signed") for key, name in BLOCKS.values()]
    columns.append(Column("seeds", "fewest seeds", 0))
    values: dict[str, list[Cell]] = {}
    for label, found in worths(study).items():
        values[label] = [*found, min(each.seeds for each in found if each)]
    values[f"the paper, {PAPERS_BUDGET}"] = [*papers().values(), None]
    note = about(study)
    note += " In square brackets: 95% intervals over documents by source and seeds (of fewer than three pooled over repeated "
    note += "trainings)."
    return over_seeds(f"log P({tokens(study.train_len)}) of the Transformer minus FoX's", columns, values, note)


LOOKS = {"C16": rates_or_tokens}
