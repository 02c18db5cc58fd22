"""Claims S1 to S8 of the stick-breaking paper (arXiv 2410.17980).

Lengths scale with the training length: the paper's 2,048 and 16,384 are once and eight times as much. Perplexities are compared
by their logarithms, in nats.
"""

import math

import numpy as np

from analysis.curves import LossCurve, by_model, compare
from analysis.fox import table6_throughput
from analysis.fox.claims_loss import fewest_seeds
from analysis.names import title
from analysis.statistics import Estimate, Term, contrast
from analysis.stick_breaking.stick_cost import kernel_times
from analysis.stick_breaking.stick_extrapolation import mean_weights
from analysis.stick_breaking.stick_recall import answered
from analysis.stick_breaking.stick_remainder import pair
from analysis.study import Study
from analysis.style import tokens
from analysis.verdict import Claim, Comparison, Look, Verdict, decide, not_applicable, not_measured, number

STICK, SOFTMAX = "stick_breaking", "transformer_llama"
S4_TOLERANCE = 0.05
S5_FACTOR = 1.4
S6_TOLERANCE = 0.01
S6_DISTANCES = 12
SHAPE = ("batch", "seq_len", "num_heads", "head_dim")


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
    name = f"log P({tokens(far)}) minus log P({tokens(near)}), {title(model)}"
    sentence = f"From {tokens(near)} to {tokens(far)} tokens the log perplexity of {title(model)} changes by "
    return Comparison(name, rise), f"{sentence}{number(rise.effect)} nats.", curve


def s2(study: Study) -> Verdict:
    """Perplexity of stick-breaking at eight times the training length is below that at the training length."""
    found = _rise(study, STICK)
    if isinstance(found, Verdict):
        return found
    comparison, sentence, curve = found
    return decide(sentence, [Comparison(comparison.name, comparison.estimate, below=True)], len(curve.seeds))


def s3(study: Study) -> Verdict:
    """That of softmax with RoPE is above."""
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
    above = compare((1.0, stick, 1, length), (-1.0, softmax, 1, length))
    name = f"log P({tokens(length)}), {title(STICK)} minus {title(SOFTMAX)}"
    sentence = (
        f"Stick-breaking without positions minus softmax with RoPE at {tokens(length)} tokens: {number(above.effect)} nats."
    )
    return decide(sentence, [Comparison(name, above, S4_TOLERANCE, below=True)], fewest_seeds([stick, softmax]))


def s5(study: Study) -> Verdict:
    """Forward and backward take at most 1.4 times as long as FlashAttention with RoPE, at 4,096 to 16,384 tokens."""
    rows = kernel_times(study)
    setting = ["gpu", *SHAPE]
    flash = rows[rows["provider"] == "softmax flash-2 + RoPE"].set_index(setting)["relative"]
    ours = rows[(rows["provider"] == "ours") & rows["seq_len"].between(4096, 16384)]
    comparisons = []
    for row in ours.to_dict("records"):
        place = tuple(row[name] for name in setting)
        if place in flash.index:
            spread = math.log(row["ms_q80"] / row["ms_q20"]) / (2 * 0.8416)
            ratio = Estimate(math.log(row["relative"] / flash[place]), spread)
            name = f"log of ours / FlashAttention-2 + RoPE, T {row['seq_len']}, D {row['head_dim']}, {row['logits']} reach"
            comparisons.append(Comparison(name, ratio, math.log(S5_FACTOR), below=True, strict=False, unit=""))
    if not comparisons:
        return not_measured("No kernel times of both are stored; `python -m kernels.benchmark times` measures them.")
    factors = [math.exp(each.estimate.effect) for each in comparisons]
    sentence = (
        f"Forward and backward take {min(factors):.2f} to {max(factors):.2f} times as long as FlashAttention-2 with RoPE."
    )
    return decide(sentence, comparisons, 0)


def by_reach(study: Study) -> str:
    """The kernel's time by how far the sticks reach, and what whole training steps take."""
    rows = kernel_times(study)
    flash = rows[rows["provider"] == "softmax flash-2 + RoPE"].set_index(["gpu", *SHAPE])["relative"]
    parts = []
    for reach, what in (("short", "soon used up"), ("long", "never used up")):
        own = rows[(rows["provider"] == "ours") & (rows["logits"] == reach)]
        shapes = list(own[["gpu", *SHAPE]].itertuples(index=False, name=None))
        ratios = {at: value / flash[at] for at, value in zip(shapes, own["relative"], strict=True) if at in flash.index}
        if ratios:
            _, _, length, _, dim = max(ratios, key=lambda at: ratios[at])
            parts.append(
                f"where sticks are {what}, {min(ratios.values()):.2f} to {max(ratios.values()):.2f} times FlashAttention-2's "
                f"time, most at {tokens(length)} tokens and head size {dim}"
            )
    steps = table6_throughput.measured(study).set_index("model")["tokens_per_s"]
    text = f"Forward and backward take, {'; '.join(parts)}." if parts else "No kernel times are stored."
    if {STICK, SOFTMAX} <= set(steps.index):
        text += (
            f" Whole training steps with fresh weights, as {title(STICK)} begins: {steps[STICK] / steps[SOFTMAX]:.2f} times "
            f"the tokens/s of {title(SOFTMAX)}."
        )
    return text


def s6(study: Study) -> Verdict:
    """With equal logits, 0 here, each key has half the weight of its nearer neighbour: measured, not estimated."""
    weights = mean_weights(study)
    own = weights[(weights["model"] == STICK) & weights["distance"].between(1, S6_DISTANCES)].sort_values("distance")
    if own.empty:
        return decide("", [], 0, [f"weights of {title(STICK)}"])
    ratios = own["weight"].to_numpy()[1:] / own["weight"].to_numpy()[:-1]
    worst = float(np.abs(ratios - 0.5).max())
    comparison = Comparison("largest distance of a ratio of neighbours' weights from 1/2", Estimate(worst, 0.0), S6_TOLERANCE,
                            below=True, unit="")  # fmt: skip
    sentence = f"The weights of distances 1 to {S6_DISTANCES} fall by factors of {ratios.min():.4f} to {ratios.max():.4f}."
    return decide(sentence, [comparison], 0)


def s7(study: Study) -> Verdict:
    """Stick-breaking answers at least as many queries as softmax with RoPE at every size."""
    rows = answered(study)
    comparisons, parts, absent, seeds = [], [], [], []
    for num_keys, own in rows.groupby("num_keys"):
        there = [own[own["model"] == model] for model in (STICK, SOFTMAX)]
        if any(one.empty for one in there):
            absent.append(f"both models with {num_keys} keys")
            continue
        lead = contrast([_accuracy(1.0, there[0]), _accuracy(-1.0, there[1])])
        comparisons.append(Comparison(f"accuracy with {num_keys} keys, stick-breaking minus softmax + RoPE", lead, strict=False,
                                      unit="%"))  # fmt: skip
        seeds += [one["run_id"].nunique() for one in there]
        shares = [100 * one["correct"].mean() for one in there]
        parts.append(f"{num_keys} keys {shares[0]:.1f}% and {shares[1]:.1f}%")
    sentence = f"Stick-breaking and softmax with RoPE answer: {', '.join(parts)}."
    return decide(sentence, comparisons, min(seeds, default=0), absent)


def _accuracy(sign: float, rows) -> Term:
    """Mean accuracy in percent, paired by sequence: all models are asked the same ones."""
    correct_SN = 100 * rows.pivot_table(index="run_id", columns="sequence", values="correct").to_numpy()
    mean_N = correct_SN.mean(axis=0)
    return Term(rows["model"].iloc[0], sign, correct_SN.mean(axis=1), mean_N - mean_N.mean())


def s8(study: Study) -> Verdict:
    """Perplexity with the remainder term is not below that without it, at the training length."""
    without, with_it = pair(study)
    if without is None or with_it is None:
        return decide("", [], 0, ["stick-breaking with and without the remainder term"])
    length = without.train_len
    above = compare((1.0, with_it, 1, length), (-1.0, without, 1, length))
    comparison = Comparison(f"log P({tokens(length)}), with the remainder minus without", above, strict=False)
    sentence = f"The remainder term changes the log perplexity at {tokens(length)} tokens by {number(above.effect)} nats."
    return decide(sentence, [comparison], fewest_seeds([without, with_it]))


EXTRAPOLATION = "stick_extrapolation"
CLAIMS = (
    Claim("S1", "Stick-breaking is on par with softmax and RoPE on downstream tasks", EXTRAPOLATION, s1),
    Claim("S2", "Its perplexity falls up to eight times the training length", EXTRAPOLATION, s2),
    Claim("S3", "That of softmax with RoPE does not", EXTRAPOLATION, s3),
    Claim("S4", "It needs no position encoding", EXTRAPOLATION, s4),
    Claim("S5", "A fused kernel makes it trainable at moderate cost", "stick_cost", s5, Look("stick_cost", by_reach)),
    Claim("S6", "It prefers recent keys: with equal logits the weight decays geometrically with distance", EXTRAPOLATION, s6),
    Claim("S7", "It is better at repeated associative recall than softmax with RoPE", "stick_recall", s7),
    Claim("S8", "The remainder term does not help", "stick_remainder", s8),
)
