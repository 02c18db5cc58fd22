"""Claims C24 on tokens and learning rates (Figure 5), C25 and C25b on scale (Figure 6), C31 on learning rates (Table 5)."""

from itertools import pairwise

from analysis.curves import LossCurve, compare
from analysis.fox.claims_loss import FAMILIES, fewest_seeds
from analysis.fox.fig5_tokens_and_lr import MODE, has_needles, inside_and_beyond, settings, tokens_of
from analysis.fox.fig6_scale import lead, pairs_of, panels_of
from analysis.fox.table_lr_grid import best_of, by_rate, mean_loss
from analysis.names import PAIRS, title
from analysis.needles import Needles, difference, needles
from analysis.statistics import Estimate
from analysis.study import Study
from analysis.verdict import Claim, Comparison, Look, Verdict, decide, decide_any, in_words, number, with_interval


def c24(study: Study) -> Verdict:
    """There is a pair of FoX (Pro) runs of which the one with more tokens is better inside the training context and worse, by
    loss or by easy needles, beyond it."""
    curves = [curve for curve in settings(study) if curve.model == "fox_pro" and curve.length > curve.train_len]
    found = needles(study) if has_needles(study) else None
    alternatives, parts = [], []
    for more, fewer in [(a, b) for a in curves for b in curves if tokens_of(study, a) > tokens_of(study, b)]:
        inside, beyond = inside_and_beyond(more, fewer)
        name = f"{more.label} minus {fewer.label}"
        better = Comparison(f"{name}, loss inside", inside, below=True)
        if beyond is not None:
            alternatives.append([better, Comparison(f"{name}, loss beyond", beyond)])
            parts.append(f"{name}: {number(inside.effect)} inside, {number(beyond.effect)} nats beyond")
        recall = needles_beyond(study, found, more, fewer)
        if found is not None and recall is not None:
            lost = Comparison(f"{name}, easy needles beyond", recall, below=True, unit=found.unit)
            alternatives.append([better, lost])
    absent = (
        [] if alternatives else ["FoX (Pro) with several numbers of training tokens, evaluated beyond the training context"]
    )
    return decide_any("; ".join(parts) + ".", alternatives, fewest_seeds(curves), absent)


def needles_beyond(study: Study, found: Needles | None, more: LossCurve, fewer: LossCurve) -> Estimate | None:
    """What one run's score or recall of easy needles beyond the training context has over the other's."""
    if found is None:
        return None
    rows = [found.of(label=curve.label, mode=MODE, low=study.train_len + 1) for curve in (more, fewer)]
    return difference(*rows) if all(len(own) for own in rows) else None


def with_more_tokens(study: Study) -> str:
    """What more tokens do at the same rate, inside and beyond the training context."""
    found = needles(study) if has_needles(study) else None
    runs = [(curve, study.spec(curve.run_ids[0])["train"]) for curve in settings(study) if curve.model == "fox_pro"]
    parts = []
    for fewer, more in pairwise(sorted(runs, key=lambda run: (run[1]["peak_lr"], run[1]["train_tokens"]))):
        inside, beyond = inside_and_beyond(more[0], fewer[0])
        if more[1]["peak_lr"] == fewer[1]["peak_lr"] and beyond is not None:
            times = more[1]["train_tokens"] / fewer[1]["train_tokens"]
            trend = in_words(beyond, "still falls with tokens", "rises with tokens", "does not clearly change with tokens")
            parts.append(
                f"At LR {more[1]['peak_lr']:g}, {times:.3g} times the tokens ({more[1]['train_tokens'] / 1e6:.4g}M) change the "
                f"loss by {with_interval(inside, 'nats')} inside the training context and by {with_interval(beyond, 'nats')} "
                f"beyond it, which {trend}."
            )
            recall = needles_beyond(study, found, more[0], fewer[0])
            if found is not None and recall is not None:
                parts.append(f"Easy needles beyond it change by {with_interval(recall, found.unit)}.")
    return (
        " ".join(parts)
        or "Cannot be told: no two numbers of tokens are stored at one rate, evaluated beyond the training context."
    )


def c25(study: Study) -> Verdict:
    """FoX's lead over the last quarter of the context grows from each training context length to the next."""
    groups = panels_of(study).get("context", {})
    pairs = sorted((pair for curves in groups.values() for pair in pairs_of(curves)), key=lambda pair: pair[0].train_len)
    comparisons = []
    for model, _ in PAIRS:
        own = [pair for pair in pairs if pair[0].model == model]
        for (fox, other), (longer_fox, longer_other) in pairwise(own):
            growth = compare(
                (1.0, longer_other, *_last_quarter(longer_other)), (-1.0, longer_fox, *_last_quarter(longer_fox)),
                (-1.0, other, *_last_quarter(other)), (1.0, fox, *_last_quarter(fox)),
            )  # fmt: skip
            comparisons.append(Comparison(f"growth of {title(model)}'s lead, {fox.label} to {longer_fox.label}", growth))
    return _leads(pairs, comparisons, "training contexts")


def _last_quarter(curve: LossCurve) -> tuple[int, int]:
    return curve.train_len * 3 // 4 + 1, curve.train_len


def _leads(pairs: list[tuple[LossCurve, LossCurve]], comparisons: list[Comparison], what: str) -> Verdict:
    parts = [f"{fox.label} {number(lead(fox, other).effect)}" for fox, other in pairs]
    absent = [] if comparisons else [f"FoX and the Transformer at two {what} or more"]
    sentence = f"Lead of FoX over the last quarter of the context: {', '.join(parts)} nats."
    return decide(sentence, comparisons, fewest_seeds(curve for pair in pairs for curve in pair), absent)


def c25b(study: Study) -> Verdict:
    groups = panels_of(study).get("size", {})
    pairs = [pair for curves in groups.values() for pair in pairs_of(curves)]
    comparisons = [Comparison(f"lead of {title(fox.model)}, {fox.label}", lead(fox, other)) for fox, other in pairs]
    return _leads(pairs, comparisons if len(groups) > 1 else [], "model sizes")


def c31(study: Study) -> Verdict:
    """Each model's loss is lower at some rate of at least twice the best one of the model it is compared with than at that rate
    and all lower ones: FoX compared with the Transformer of its architecture, Pro with LLaMA of its family."""
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
        chosen, lower = (min(some, key=lambda curve: mean_loss(curve)) for some in (high, low))
        difference = compare((1.0, chosen, 1, chosen.train_len), (-1.0, lower, 1, lower.train_len))
        comparisons.append(Comparison(f"{chosen.label} minus {lower.label}", difference, below=True))
    sentence = f"Best rates: {'; '.join(parts)}. Head sizes, of which the claim speaks too, are not varied here."
    return decide(sentence, comparisons, fewest_seeds(curve for rates in curves.values() for curve in rates.values()), absent)


SPIKE, UNSTABLE = 4, 0.01
"""A step whose gradient norm is so many times the median is a spike. Trainings that went well had spikes in 0 to 0.7% of their
steps (at mini, three seeds of seven models); more than 1% are called unstable."""


def rates_tried(study: Study) -> str:
    """Where each model's best rate lies among those tried, and whether the highest was unstable."""
    curves, spikes = by_rate(study), _spikes(study)
    parts, edges, unstable, unknown = [], [], [], []
    for model in (model for pair in PAIRS for model in pair if len(curves.get(model, ())) > 1):
        best, low, high = best_of(curves[model]), min(curves[model]), max(curves[model])
        near = [
            f"{rate:g}"
            for rate, curve in sorted(curves[model].items())
            if rate != best and _as_good(curve, curves[model][best])
        ]
        tie = f" (cannot be told from {' and '.join(near)})" if near else ""
        parts.append(f"{title(model)} at {best:g} of {low:g} to {high:g}{tie}")
        edges += [f"{title(model)} ({'lowest' if best == low else 'highest'})"] if best in (low, high) else []
        if best == high:
            continue
        if not {(model, best), (model, high)} <= set(spikes):
            unknown.append(f"{title(model)} at {high:g}")
            continue
        shares = [f"{spikes[model, rate]:.1%} at {rate:g}" for rate in (high, best)]
        word = "unstable" if spikes[model, high] > max(UNSTABLE, spikes[model, best]) else "not unstable"
        unstable.append(f"{title(model)} {', '.join(shares)} ({word})")
    if not parts:
        return "Cannot be told: no model was evaluated at several rates."
    text = f"Best rates: {'; '.join(parts)}."
    text += f" At the edge of what was tried, so that a better one may lie beyond: {', '.join(edges)}." if edges else ""
    text += (
        f" Steps after warm-up with a gradient norm above {SPIKE} times the median: {'; '.join(unstable)}." if unstable else ""
    )
    text += (
        f" Training curves are not stored for {', '.join(unknown)}: whether these rates were unstable cannot be told."
        if unknown
        else ""
    )
    return text


def _as_good(one: LossCurve, best: LossCurve) -> bool:
    return in_words(compare((1.0, one, 1, one.train_len), (-1.0, best, 1, best.train_len)), "", "worse", "") != "worse"


def _spikes(study: Study) -> dict[tuple[str, float], float]:
    """Share of the steps after warm-up that are spikes or were not applied, by model and rate: the worst seed."""
    found: dict[tuple[str, float], float] = {}
    for line, rows, _ in study.evaluations("training_curve"):
        train = study.spec(line.run_id)["train"]
        norm = rows.loc[rows["tokens"] > train["warmup_tokens"], "grad_norm"]
        share = float((norm.isna() | (norm > SPIKE * norm.median())).mean())
        key = line.model, float(train["peak_lr"])
        found[key] = max(share, found.get(key, 0.0))
    return found


FIVE, SIX, RATES = "fig5_tokens_and_lr", "fig6_scale", "table_lr_grid"
CLAIMS = (
    Claim(
        "C24",
        "More training tokens can hurt extrapolation while they help inside the training context",
        FIVE,
        c24,
        Look(FIVE, with_more_tokens),
    ),
    Claim("C25", "FoX's advantage over the Transformer grows with the training context length", SIX, c25),
    Claim("C25b", "FoX's advantage persists at every model size", SIX, c25b),
    Claim(
        "C31",
        "FoX prefers higher learning rates than the Transformer, Pro than LLaMA (twice or more)",
        RATES,
        c31,
        Look(RATES, rates_tried),
    ),
)
