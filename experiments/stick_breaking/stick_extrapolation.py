"""Stick-breaking: length extrapolation: Length extrapolation of stick-breaking attention.

Stick-breaking attention without position encoding, softmax with RoPE, FoX and ALiBi (a fixed forget gate), all in the LLaMA
block. The paper trains models of 350M parameters at 2,048 tokens: the perplexity of stick-breaking falls up to 16,384, that of
softmax with RoPE does not. Losses are averaged over quarters of a doubling; right: untrained models, mean over heads."""

from functools import partial

import numpy as np
import pandas as pd
from matplotlib.axes import Axes

from analysis.curves import by_model, compare, difference, in_order, perplexity
from analysis.names import ordered, style_of, title
from analysis.panels import Drawn, band_note, binned, core_limits, cut_note, doublings_axis, draw_lines, legend_of
from analysis.paper import read
from analysis.statistics import Estimate
from analysis.study import Study
from analysis.style import WIDTH, Files, about, plt, publish, tokens, training_length_line
from analysis.tables import Column, Table, over_seeds
from analysis.verdict import PERPLEXITY, Claim, Comparison, Status, Verdict, by_construction, decide, not_applicable, number
from eval.equal_logits.spec import Spec
from experiments.evaluations import loss
from experiments.recipes import recipes
from experiments.scales import MINIS, PAPERS, TINIES, Scale, get_scale, sizes_at

SIZES = {TINIES: "tiny-extrapolation", MINIS: "mini-extrapolation", PAPERS: "360m-extrapolation"}
"""Scales that evaluate up to sixteen times the training length."""
DISTANCES = 12
"""Largest distance of keys whose weights are drawn and judged."""
STICK, SOFTMAX = "stick_breaking", "transformer_llama"
S4_TOLERANCE = 0.05
"""Our choice: 5% of perplexity; having no position signal at all costs the LLaMA block a factor of two or more (C11)."""
S6_TOLERANCE = 0.01
"""Our choice, for rounding of the weights in fp32."""


def far(scale: Scale) -> Scale:
    """Return the scale at which the models are trained."""
    return get_scale(sizes_at(scale, SIZES, __name__))


def evals(scale):
    """Per-token loss far beyond the training length, and the architecture's bias towards recent keys."""
    return (*loss(scale), Spec())


def runs(scale, seeds):
    at = far(scale)
    return recipes(at, ("stick_breaking", "transformer_llama", "fox_llama", "alibi"), seeds)


def draw(study: Study) -> Files:
    found, train_len = in_order(study), study.train_len
    curves, styles = list(found.values()), [style_of(model) for model in found]
    losses = [binned(curve, style, train_len / 8, curve.length) for curve, style in zip(curves, styles, strict=True)]
    points = np.unique(np.geomspace(train_len / 8, losses[0].x[-1], 120).astype(int))
    both = zip(curves, styles, strict=True)
    perplexities = [Drawn(style, points, perplexity(curve.losses_SN)[:, points - 1]) for curve, style in both]
    figure, (left, middle, right) = plt.subplots(1, 3, figsize=(WIDTH, 2.9), width_ratios=(1, 1, 0.8))
    frames: list[pd.DataFrame] = []
    cuts, paper = [], int(read("stick_breaking.csv")["extrapolation"]["low"])
    for axes, quantity, lines, ylabel, xlabel in (
        (left, "loss", losses, "Per-token loss $L(i)$ (nats)", "Token index $i$"),
        (middle, "perplexity", perplexities, "Perplexity $P(l)$", "Context length $l$"),
    ):
        limits = core_limits(lines, train_len)
        draw_lines(axes, lines)
        training_length_line(axes, train_len)
        ends = [train_len * 2**power for power in range(-2, 5, 2)]
        doublings_axis(axes, [end for end in ends if end <= 1.2 * int(lines[0].x[-1])])
        axes.set(ylim=limits, ylabel=ylabel, xlabel=xlabel)
        axes.axvline(paper * train_len, color="#555555", linestyle=(0, (1, 2)), linewidth=1.0, zorder=1.5)
        cuts.append(cut_note(lines, limits))
        columns = [{"label": line.style.label, "quantity": quantity, "x": line.x, "value": line.mean} for line in lines]
        frames += map(pd.DataFrame, columns)
    legend_of(figure, styles)
    documents, seeds = f"{curves[0].num_documents:,} documents", band_note(len(curve.seeds) for curve in curves)
    marked = f"dashed vertical: training length {tokens(train_len)}, dotted: the paper's falls to {paper} times that"
    return publish(study, figure, [*frames, _draw_weights(right, study)], documents, seeds, marked, max(cuts))


def mean_weights(study: Study) -> pd.DataFrame:
    """Return columns model, distance and weight: weights for equal logits, averaged over heads. Those of untrained models do
    not depend on the seed."""
    rows = study.rows("equal_logits")
    if rows.empty:
        return pd.DataFrame(columns=["model", "distance", "weight"])
    rows = rows[rows["seed"] == rows.groupby("model")["seed"].transform("min")]
    return rows.groupby(["model", "distance"])["weight"].mean().reset_index()


def _draw_weights(axes: Axes, study: Study) -> pd.DataFrame:
    weights = mean_weights(study)
    weights = weights[weights["distance"] <= DISTANCES]
    for model in ordered(weights["model"]):
        own = weights[(weights["model"] == model) & (weights["weight"] > 0)]
        style = style_of(model)
        axes.plot(own["distance"], own["weight"], color=style.colour, marker=style.marker, markersize=2.5, linewidth=0.9)
    axes.set_yscale("log")
    axes.set(xlabel="Distance of the key", ylabel="Weight where all logits are 0")
    labels = [style_of(model).label for model in weights["model"]]
    return pd.DataFrame({"label": labels, "quantity": "weight", "x": weights["distance"], "value": weights["weight"]})


def summary(study: Study) -> Table:
    """Tabulate the perplexity at the training length and its doublings, and the mean loss over the last eighth of positions."""
    found, train_len = in_order(study), study.train_len
    longest = next(iter(found.values())).length
    lengths = [train_len * 2**power for power in range(5) if train_len * 2**power <= longest]
    columns = [Column(f"ppl_{length}", f"P({tokens(length)})", 3, "lower") for length in lengths]
    columns.append(Column("last_eighth", f"loss, {tokens(longest * 7 // 8)} to {tokens(longest)} (nats)", 3, "lower"))
    values = {}
    for model, curve in found.items():
        last = curve.losses_SN[:, longest * 7 // 8 :].mean(axis=1)
        values[model] = [*(np.exp(curve.log_p(length)) for length in lengths), last]
    note = f"{about(study)} Training length {tokens(train_len)}."
    return over_seeds("Perplexity beyond the training length", columns, values, note)


def s1(study: Study) -> Verdict:
    """Stick-breaking is on par with softmax and RoPE on downstream tasks at 1B and 3B."""
    why = "Downstream tasks of stick-breaking are in no artefact; the paper's are of 1B and 3B parameters."
    return Verdict(Status.NOT_MEASURED, why)


def _change(study: Study, model: str, below: bool) -> Verdict:
    """Judge whether the perplexity at eight times the training length is above (or `below`) that at the training length."""
    curve = by_model(study).get(model)
    if curve is None:
        return decide("", [], [title(model)])
    far, near = 8 * curve.train_len, curve.train_len
    if curve.length < far:
        return not_applicable(f"The evaluation ends at {curve.length} tokens, before eight times the training length.")
    rise = compare((1.0, curve, 1, far), (-1.0, curve, 1, near))
    name = f"P({tokens(far)}) against P({tokens(near)}), {title(model)}"
    sentence = f"From {tokens(near)} to {tokens(far)} tokens the perplexity of {title(model)} changes by "
    comparison = Comparison(name, rise, below=below, unit=PERPLEXITY)
    return decide(f"{sentence}{number(rise.effect, PERPLEXITY)}.", [comparison])


s2, s3 = partial(_change, model=STICK, below=True), partial(_change, model=SOFTMAX, below=False)


def s4(study: Study) -> Verdict:
    """Without positions, stick-breaking's log perplexity at the training length is within 0.05 nats of softmax with RoPE."""
    curves = by_model(study)
    absent = [title(model) for model in (STICK, SOFTMAX) if model not in curves]
    if absent:
        return decide("", [], absent)
    stick, softmax = curves[STICK], curves[SOFTMAX]
    above, length = difference(stick, softmax), tokens(stick.train_len)
    sentence = f"Perplexity of stick-breaking without positions against softmax with RoPE at {length} tokens: "
    name = f"P({length}), {title(STICK)} against {title(SOFTMAX)}"
    comparison = Comparison(name, above, S4_TOLERANCE, below=True, unit=PERPLEXITY, size=S4_TOLERANCE)
    return decide(f"{sentence}{number(above.effect, PERPLEXITY)}.", [comparison])


def s6(study: Study) -> Verdict:
    """With equal logits (0 here), each key has half the weight of the next nearer key: measured, without noise."""
    weights = mean_weights(study)
    own = weights[(weights["model"] == STICK) & weights["distance"].between(1, DISTANCES)].sort_values("distance")
    if own.empty:
        return decide("", [], [f"weights of {title(STICK)}"])
    ratios = own["weight"].to_numpy()[1:] / own["weight"].to_numpy()[:-1]
    worst = Estimate(float(np.abs(ratios - 0.5).max()), 0.0)
    name = "largest distance of a ratio of neighbours' weights from 1/2"
    sentence = f"The weights of distances 1 to {DISTANCES} fall by factors of {ratios.min():.4f} to {ratios.max():.4f}."
    why = "It follows from the definition of the weights: only a mistake in the code could violate it."
    return by_construction(decide(sentence, [Comparison(name, worst, S6_TOLERANCE, below=True, unit="")]), why)


CLAIMS = (
    Claim("S1", "Stick-breaking is on par with softmax and RoPE on downstream tasks", s1),
    Claim("S2", "Its perplexity falls up to eight times the training length", s2),
    Claim("S3", "That of softmax with RoPE does not", s3),
    Claim("S4", "It needs no position encoding", s4),
    Claim("S6", "It prefers recent keys: with equal logits the weight decays geometrically with distance", s6),
)
