"""Stick-breaking's length extrapolation: trained at one context length, evaluated to sixteen times as much."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
from matplotlib.axes import Axes

from analysis.curves import LossCurve, by_model, compare, difference, fewest_seeds, log_perplexity, perplexity
from analysis.names import ordered, style_of, title
from analysis.panels import (
    Drawn,
    band_note,
    binned,
    core_limits,
    doublings_axis,
    draw_lines,
    is_cut,
    legend_of,
)
from analysis.paper import read
from analysis.statistics import Estimate
from analysis.study import Study
from analysis.style import WIDTH, plt, publish, scale_note, tokens, training_length_line
from analysis.tables import Column, Table, over_seeds
from analysis.verdict import (
    PERPLEXITY,
    Claim,
    Comparison,
    Verdict,
    by_construction,
    decide,
    not_applicable,
    not_measured,
    number,
)
from eval.equal_logits.spec import Spec
from experiments.evaluations import loss
from experiments.recipes import recipes
from experiments.scales import MINIS, PAPERS, TINIES, Scale, get_scale, sizes_at

TITLE = "Length extrapolation of stick-breaking attention"
PAPER = "Stick-breaking: length extrapolation"
SHOWS = (
    "Stick-breaking attention without position encoding, softmax with RoPE, FoX and ALiBi (the forget gate, fixed), all in the "
    "LLaMA block. The paper trains 350M parameters at 2,048 tokens: stick-breaking's perplexity falls up to 16,384, that of "
    "softmax with RoPE does not. Losses are means over quarters of a doubling; right: fresh models, mean over heads."
)

SIZES = {TINIES: "tiny-extrapolation", MINIS: "mini-extrapolation", PAPERS: "360m-extrapolation"}
"""Scales whose evaluations reach to sixteen times the training length."""


def far(scale: Scale) -> Scale:
    """Return the scale that the models are trained at."""
    return get_scale(sizes_at(scale, SIZES, __name__))


def evals(scale):
    """Per-token loss far beyond the training length, and the built-in bias towards recent keys."""
    return (*loss(scale), Spec())


def runs(scale, seeds):
    at = far(scale)
    return recipes(at, ("stick_breaking", "transformer_llama", "fox_llama", "alibi"), seeds)


SHOWN_DISTANCES = 12


def curves(study: Study) -> dict[str, LossCurve]:
    """Return the curves by model, in the order of all figures. ValueError where nothing is stored."""
    found = by_model(study)
    if not found:
        raise ValueError(f"{study.stem}: no per-token losses are stored; run its experiment first")
    return {model: found[model] for model in ordered(found)}


def draw(study: Study) -> list[Path]:
    """Write figures/STEM.{png,pdf,csv}."""
    found = curves(study)
    losses = [binned(curve, style_of(model), study.train_len / 8, curve.length) for model, curve in found.items()]
    points = np.unique(np.geomspace(study.train_len / 8, losses[0].x[-1], 120).astype(int))
    perplexities = [
        Drawn(style_of(model), points, perplexity(curve.losses_SN)[:, points - 1]) for model, curve in found.items()
    ]
    figure, (left, middle, right) = plt.subplots(1, 3, figsize=(WIDTH, 2.9), width_ratios=(1, 1, 0.8))
    cut, paper = False, int(read("stick_breaking.csv")["extrapolation"]["low"])
    for axes, lines, ylabel, xlabel in (
        (left, losses, "Per-token loss $L(i)$ (nats)", "Token index $i$"),
        (middle, perplexities, "Perplexity $P(l)$", "Context length $l$"),
    ):
        limits = core_limits(lines, study.train_len)
        _panel(axes, lines, study.train_len)
        axes.set(ylim=limits, ylabel=ylabel, xlabel=xlabel)
        axes.axvline(paper * study.train_len, color="#555555", linestyle=(0, (1, 2)), linewidth=1.0, zorder=1.5)
        cut = cut or is_cut(lines, limits)
    weights = _draw_weights(right, study)
    legend_of(figure, [line.style for line in losses])
    return publish(
        study,
        figure,
        _table([*losses, *perplexities], weights),
        f"{next(iter(found.values())).num_documents:,} documents",
        band_note(len(curve.seeds) for curve in found.values()),
        f"dashed: training length {tokens(study.train_len)}, dotted: the paper's falls to {paper} times that",
        "cut curves go on" if cut else "",
    )


def _panel(axes: Axes, lines: list[Drawn], train_len: int) -> None:
    draw_lines(axes, lines)
    training_length_line(axes, train_len)
    longest = int(lines[0].x[-1])
    ticks = [train_len * 2**power for power in range(-2, 5, 2) if train_len * 2**power <= 1.2 * longest]
    doublings_axis(axes, ticks)


def mean_weights(study: Study) -> pd.DataFrame:
    """Columns model, distance, weight: of equal logits, mean over heads; a fresh model's do not depend on its seed."""
    rows = study.rows("equal_logits")
    if rows.empty:
        return pd.DataFrame(columns=["model", "distance", "weight"])
    rows = rows[rows["seed"] == rows.groupby("model")["seed"].transform("min")]
    return rows.groupby(["model", "distance"])["weight"].mean().reset_index()


def _draw_weights(axes: Axes, study: Study) -> pd.DataFrame:
    weights = mean_weights(study)
    weights = weights[weights["distance"] <= SHOWN_DISTANCES]
    for model in ordered(weights["model"]):
        own = weights[(weights["model"] == model) & (weights["weight"] > 0)]
        style = style_of(model)
        axes.plot(own["distance"], own["weight"], color=style.colour, marker=style.marker, markersize=2.5, linewidth=0.9)
    axes.set_yscale("log")
    axes.set(xlabel="Distance of the key", ylabel="Weight where all logits are 0")
    return weights


def _table(lines: list[Drawn], weights: pd.DataFrame) -> pd.DataFrame:
    half = len(lines) // 2
    frames = [
        pd.DataFrame({"label": line.style.label, "quantity": quantity, "x": line.x, "value": line.mean})
        for quantity, some in (("loss", lines[:half]), ("perplexity", lines[half:]))
        for line in some
    ]
    labels = weights["model"].map(lambda model: style_of(model).label)
    frames.append(pd.DataFrame({"label": labels, "quantity": "weight", "x": weights["distance"], "value": weights["weight"]}))
    return pd.concat(frames, ignore_index=True)


def summary(study: Study) -> Table:
    """Perplexity at the training length and its doublings, and the mean loss of the last eighth of the evaluation."""
    found = curves(study)
    train_len, longest = study.train_len, next(iter(found.values())).length
    lengths = [train_len * 2**power for power in range(5) if train_len * 2**power <= longest]
    columns = [Column(f"ppl_{length}", f"P({tokens(length)})", 3, "lower") for length in lengths]
    columns.append(Column("last_eighth", f"loss, {tokens(longest * 7 // 8)} to {tokens(longest)} (nats)", 3, "lower"))
    values = {}
    for model, curve in found.items():
        means_SN = log_perplexity(curve.losses_SN)
        last = curve.losses_SN[:, longest * 7 // 8 :].mean(axis=1)
        values[model] = [*(np.exp(means_SN[:, length - 1]) for length in lengths), last]
    note = f"{scale_note(study).capitalize()}. Corpus: {study.corpora}. Training length {tokens(train_len)}."
    return over_seeds("Perplexity beyond the training length", columns, values, note)


STICK, SOFTMAX = "stick_breaking", "transformer_llama"
S4_TOLERANCE = 0.05
"""Ours: 5% of perplexity, where no sign of position at all costs the LLaMA block a factor of two and more (C11)."""
S6_TOLERANCE = 0.01
"""Ours: rounding of the weights, in fp32."""
S6_DISTANCES = 12


def s1(study: Study) -> Verdict:
    """On par with softmax and RoPE on downstream tasks at 1B and 3B."""
    return not_measured("Downstream tasks of stick-breaking are in no artefact; the paper's are of 1B and 3B parameters.")


def _rise(study: Study, model: str) -> tuple[Comparison, str, LossCurve] | Verdict:
    """log P at eight times the training length minus log P at that length."""
    curve = by_model(study).get(model)
    if curve is None:
        return decide("", [], 0, [title(model)])
    far, near = 8 * curve.train_len, curve.train_len
    if curve.length < far:
        return not_applicable(f"The evaluation ends at {curve.length} tokens, before eight times the training length.")
    rise = compare((1.0, curve, 1, far), (-1.0, curve, 1, near))
    name = f"P({tokens(far)}) against P({tokens(near)}), {title(model)}"
    sentence = f"From {tokens(near)} to {tokens(far)} tokens the perplexity of {title(model)} changes by "
    return Comparison(name, rise, unit=PERPLEXITY), f"{sentence}{number(rise.effect, PERPLEXITY)}.", curve


def s2(study: Study) -> Verdict:
    """Perplexity of stick-breaking at eight times the training length is below that at the training length."""
    found = _rise(study, STICK)
    if isinstance(found, Verdict):
        return found
    comparison, sentence, curve = found
    return decide(sentence, [replace(comparison, below=True)], len(curve.seeds))


def s3(study: Study) -> Verdict:
    """Perplexity of softmax with RoPE at eight times the training length is above that at the training length."""
    found = _rise(study, SOFTMAX)
    if isinstance(found, Verdict):
        return found
    comparison, sentence, curve = found
    return decide(sentence, [comparison], len(curve.seeds))


def s4(study: Study) -> Verdict:
    """Without positions, stick-breaking's log perplexity at the training length is within 0.05 nats of softmax with RoPE."""
    curves = by_model(study)
    absent = [title(model) for model in (STICK, SOFTMAX) if model not in curves]
    if absent:
        return decide("", [], 0, absent)
    stick, softmax = curves[STICK], curves[SOFTMAX]
    length = stick.train_len
    above = difference(stick, softmax)
    name = f"P({tokens(length)}), {title(STICK)} against {title(SOFTMAX)}"
    apart = number(above.effect, PERPLEXITY)
    sentence = f"Perplexity of stick-breaking without positions against softmax with RoPE at {tokens(length)} tokens: {apart}."
    comparison = Comparison(name, above, S4_TOLERANCE, below=True, unit=PERPLEXITY, size=S4_TOLERANCE)
    return decide(sentence, [comparison], fewest_seeds([stick, softmax]))


def s6(study: Study) -> Verdict:
    """Each key has, with equal logits (0 here), half the weight of its nearer neighbour: measured, not estimated."""
    weights = mean_weights(study)
    own = weights[(weights["model"] == STICK) & weights["distance"].between(1, S6_DISTANCES)].sort_values("distance")
    if own.empty:
        return decide("", [], 0, [f"weights of {title(STICK)}"])
    ratios = own["weight"].to_numpy()[1:] / own["weight"].to_numpy()[:-1]
    worst = float(np.abs(ratios - 0.5).max())
    comparison = Comparison("largest distance of a ratio of neighbours' weights from 1/2", Estimate(worst, 0.0), S6_TOLERANCE,
                            below=True, unit="")  # fmt: skip
    sentence = f"The weights of distances 1 to {S6_DISTANCES} fall by factors of {ratios.min():.4f} to {ratios.max():.4f}."
    why = "It follows from the definition of the weights: a mistake in the code alone could have missed it."
    return by_construction(decide(sentence, [comparison], 0), why)


CLAIMS = (
    Claim("S1", "Stick-breaking is on par with softmax and RoPE on downstream tasks", s1),
    Claim("S2", "Its perplexity falls up to eight times the training length", s2),
    Claim("S3", "That of softmax with RoPE does not", s3),
    Claim("S4", "It needs no position encoding", s4),
    Claim("S6", "It prefers recent keys: with equal logits the weight decays geometrically with distance", s6),
)
