"""Table 5: Learning rates.

The paper chose each model's peak learning rate from the grid {1, 2, 5} x 10^i. In its main setting it is 2e-3 for FoX (Pro),
Mamba-2 and HGRN2, 1e-3 for FoX (LLaMA), Transformer (Pro) and DeltaNet, and 5e-4 for Transformer (LLaMA); at 360M and 125M it
is 2e-3 for all."""

from typing import Any

import numpy as np
import pandas as pd

from analysis.curves import LossCurve, difference, loss_curves
from analysis.names import FAMILIES, PAIRS, SEVEN, ordered, title
from analysis.paper import read
from analysis.study import Study
from analysis.style import about, tokens
from analysis.tables import Cell, Column, Table, over_seeds
from analysis.verdict import Claim, Comparison, Verdict, decide, in_words
from experiments import evaluations
from experiments.recipes import recipes
from experiments.scales import MINIS, PAPERS, TINIES, Scale, for_ablations, sizes_at

SIZES: dict[tuple[str, ...], tuple[tuple[float, ...], dict[str, tuple[float, ...]]]] = {
    TINIES: ((4e-3, 8e-3), {}),
    MINIS: ((1e-3, 2e-3, 4e-3), {"fox_llama": (5e-4,), "mamba2": (8e-3,), "hgrn2": (8e-3,), "delta_net": (8e-3,)}),
    PAPERS: ((5e-4, 1e-3, 2e-3), {}),
}
"""Rates at which every model is tried, and further rates for models that were best at the edge of these, and for recurrent
models, so that they have as many rates as FoX."""
AXES = {"peak_lr": float}
Rates = dict[str, dict[float, LossCurve]]
"""Held-out losses by model and learning rate."""
SPIKE, UNSTABLE = 4, 0.01
"""A step whose gradient norm exceeds SPIKE times the median is a spike, and a training with a share of spikes above UNSTABLE is
called unstable: good trainings had spikes in 0 to 0.7% of their steps (at mini, three seeds of seven models)."""


def rates_of(scale: Scale, model: str) -> list[float]:
    """Return the rates at which a model is tried, from low to high."""
    rates, further = sizes_at(scale, SIZES, __name__)
    return sorted((*rates, *further.get(model, ())))


def runs(scale, seeds):
    at = for_ablations(scale)
    for model in SEVEN:
        for rate in rates_of(scale, model):
            axes, label = dict(peak_lr=rate), f"{model}, LR {rate:g}"
            yield from recipes(at, model, seeds, axes=axes, label=label, train=axes)


def evals(scale):
    """Held-out losses, and training curves, which show whether a high rate is worse because training is unstable."""
    return evaluations.loss(scale) + evaluations.curve(scale)


def grid(study: Study) -> tuple[pd.DataFrame, str]:
    """Return model, peak_lr and value of every run, and what the value is: perplexity if every run has been evaluated, else
    the final training loss."""
    curves = loss_curves(study)
    if {run_id for curve in curves for run_id in curve.run_ids} == {line.run_id for line in study.lines}:
        rows = [(curve, np.exp(curve.log_p(min(curve.train_len, curve.length)))) for curve in curves]
        frames = [pd.DataFrame({"model": curve.model, **curve.axes, "value": value_S}) for curve, value_S in rows]
        return pd.concat(frames), f"held-out perplexity P({tokens(study.train_len)})"
    losses = [{"model": line.model, **line.axes, "value": study.final_loss(line)} for line in study.lines]
    found = pd.DataFrame(losses).dropna(subset=["value"]).astype({"value": float})
    if found.empty:
        raise ValueError(f"{study.stem}: no run has ended; run its experiment first")
    return found, "final training loss (nats)"


def by_rate(study: Study) -> Rates:
    found: Rates = {}
    for curve in loss_curves(study):
        found.setdefault(curve.model, {})[curve.axes["peak_lr"]] = curve
    return found


def best_of(rates: dict[float, LossCurve]) -> float:
    return min(rates, key=lambda rate: rates[rate].inside)


def summary(study: Study) -> Table:
    """Tabulate rates (lines) by models (columns). The note names models whose best rate is at the edge of the grid."""
    rows, what = grid(study)
    models = ordered(rows["model"])
    found: dict[Any, np.ndarray] = {key: own.to_numpy() for key, own in rows.groupby(["model", "peak_lr"])["value"]}
    rates = sorted({rate for _, rate in found})
    cells: dict[str, list[Cell]] = {f"LR {rate:g}": [found.get((model, rate)) for model in models] for rate in rates}
    tried = {model: {rate: found[model, rate].mean() for rate in rates if (model, rate) in found} for model in models}
    best = {model: min(values, key=lambda rate: values[rate]) for model, values in tried.items()}
    edges = [title(m) for m in models if len(tried[m]) > 2 and best[m] in (min(tried[m]), max(tried[m]))]
    note = about(study)
    chosen = [f"{title(model)} {line['peak_lr']:g}" for model, line in read("table5_peak_lr.csv").items() if model in models]
    note += f" The paper's choice at 760M and 48B tokens: {', '.join(chosen)}." if chosen else ""
    note += f" Best at the edge of the grid: {', '.join(edges)}." if edges else ""
    columns = [Column(model, title(model), 3, "lower") for model in models]
    return over_seeds(f"Learning rates: {what}", columns, cells, note)


def c31(study: Study) -> Verdict:
    """Each model prefers at least twice the best rate of the model it is compared with: its loss is lower at one of these rates
    than at all rates below. FoX is compared with the Transformer of its architecture, Pro with LLaMA of its family."""
    curves = by_rate(study)
    comparisons, parts, absent = [], [], []
    for one, other in (*PAIRS, *FAMILIES):
        if not {one, other} <= set(curves):
            absent.append(f"{title(one)} with {title(other)}")
            continue
        best = best_of(curves[other])
        high, low = ([curve for rate, curve in curves[one].items() if (rate >= 2 * best) is above] for above in (True, False))
        parts.append(f"{title(one)} {best_of(curves[one]):g}, {title(other)} {best:g}")
        if not high or not low:
            absent.append(f"{title(one)} at rates of {2 * best:g} and more, and below")
            continue
        chosen, lower = (min(some, key=lambda curve: curve.inside) for some in (high, low))
        shown = f"best rate {best_of(curves[one]):g}, {title(other)}'s {best:g}"
        name = (
            f"loss up to {tokens(study.train_len)}, {title(one)}, LR {chosen.axes['peak_lr']:g} minus {lower.axes['peak_lr']:g}"
        )
        how: dict[str, Any] = dict(below=True, paper="twice as high or more", shown=shown)
        comparisons.append(Comparison(name, difference(chosen, lower), **how))
    sentence = f"Best rates: {'; '.join(parts)}. The paper's claim is also about head sizes, which are not varied here."
    return decide(sentence, comparisons, absent)


def rates_tried(study: Study) -> str:
    """Say where each model's best rate lies among those tried, and whether training was unstable at the highest."""
    curves, spikes = by_rate(study), _spikes(study)
    parts, edges, unstable, unknown = [], [], [], []
    for model in (model for pair in PAIRS for model in pair if len(curves.get(model, ())) > 1):
        tried = dict(sorted(curves[model].items()))
        best, low, high = best_of(tried), min(tried), max(tried)
        near = [f"{rate:g}" for rate, curve in tried.items() if rate != best and _as_good(curve, tried[best])]
        tie = f" (cannot be told from {' and '.join(near)})" if near else ""
        parts.append(f"{title(model)} at {best:g} of {low:g} to {high:g}{tie}")
        edges += [f"{title(model)} ({'lowest' if best == low else 'highest'})"] if best in (low, high) else []
        if best != high and not {(model, best), (model, high)} <= set(spikes):
            unknown.append(f"{title(model)} at {high:g}")
        elif best != high:
            shares = [f"{spikes[model, rate]:.1%} at {rate:g}" for rate in (high, best)]
            word = "unstable" if spikes[model, high] > max(UNSTABLE, spikes[model, best]) else "not unstable"
            unstable.append(f"{title(model)} {', '.join(shares)} ({word})")
    sentences = {
        "Best rates: {}.": "; ".join(parts),
        "Best at the edge of the grid, so that a better rate may lie beyond it: {}.": ", ".join(edges),
        f"Steps after warm-up with a gradient norm above {SPIKE} times the median: {{}}.": "; ".join(unstable),
        "Training curves are not stored for {}: whether training was unstable there is unknown.": ", ".join(unknown),
    }
    told = [sentence.format(what) for sentence, what in sentences.items() if what]
    return " ".join(told) or "Unknown: no model was evaluated at several rates."


def _as_good(one: LossCurve, best: LossCurve) -> bool:
    return in_words(difference(one, best), "", "worse", "") != "worse"


def _spikes(study: Study) -> dict[tuple[str, float], float]:
    """Share of the steps after warm-up that are spikes or were skipped, by model and rate, for the worst seed."""
    found: dict[tuple[str, float], float] = {}
    for line, rows, _ in study.evaluations("training_curve"):
        train = study.spec(line.run_id)["train"]
        norm = rows.loc[rows["tokens"] > train["warmup_tokens"], "grad_norm"]
        share = float((norm.isna() | (norm > SPIKE * norm.median())).mean())
        key = line.model, float(train["peak_lr"])
        found[key] = max(share, found.get(key, 0.0))
    return found


CLAIMS = (Claim("C31", "FoX prefers higher learning rates than the Transformer, Pro than LLaMA (twice or more)", c31),)
LOOKS = {"C31": rates_tried}
