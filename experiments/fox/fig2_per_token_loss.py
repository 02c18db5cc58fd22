"""Figure 2: Long-context language modelling.

Left: per-token loss by token position, minus the mean of the models, which removes how hard the text is at each position.
Right: perplexity by context length. FoX has a lower loss than the Transformer of the same architecture inside and beyond the
training context, and keeps improving up to its end; the recurrent models stop improving; Pro beats LLaMA. Beyond the training
context, Transformers with RoPE soon break down, while FoX degrades gently."""

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pandas as pd

from analysis import panels
from analysis.curves import LossCurve, by_model, difference, in_order, perplexity, smoothing_window
from analysis.names import FAMILIES, SEVEN, missing_of, pairs_in, style_of, title
from analysis.paper import read
from analysis.study import Study
from analysis.style import PAPER_SCALE, WIDTH, Files, about, plt, publish, tokens
from analysis.tables import Column, Table, over_seeds
from analysis.verdict import PERPLEXITY, Claim, Comparison, Verdict, decide, not_applicable, number, with_interval
from experiments.evaluations import loss as evals  # noqa: F401
from experiments.recipes import main_models as runs  # noqa: F401

PAPER_LOSS_RANGE, PAPER_PERPLEXITY_RANGE = (1.47, 1.67), (4.4, 5.5)
GAP_POINTS = 160
SHADED = "shaded: 95% interval (sources, seeds) over the stored band of positions"
IN_TABLE_3 = {
    "fox_pro": "FoX (Pro)", "transformer_pro": "FoX (Pro) - forget gate + RoPE",
    "fox_llama": "FoX (LLaMA)", "transformer_llama": "Transformer (LLaMA)",
}  # fmt: skip


def draw(study: Study) -> Files:
    """Draw both panels and, if FoX and the Transformer of the same architecture are stored, figures/STEM-lead.*, too."""
    by_name, train_len = in_order(study), study.train_len
    curves, window = list(by_name.values()), smoothing_window(train_len)
    losses = [panels.smoothed(curve, style_of(curve.model, title(curve.label)), window) for curve in curves]
    both = zip(losses, curves, strict=True)
    perplexities = [panels.Drawn(line.style, line.x, perplexity(curve.losses_SN)[:, line.x - 1]) for line, curve in both]
    table = _table(curves, loss_smoothed=losses, perplexity=perplexities)
    figure, (left, right) = plt.subplots(1, 2, figsize=(WIDTH, 3.35))
    what, shown = "Per-token loss $L(i)$ (nats)", losses
    less, text_X, wild = panels.without_text(losses, train_len)
    # Curves within the paper's y-range are drawn as in the paper, without subtracting the mean: its documents are so many that
    # no position is harder. So is a single model, which would become a level line.
    if len(losses) - len(wild) > 1 and _limits(losses, study, PAPER_LOSS_RANGE) != PAPER_LOSS_RANGE:
        shown, table["mean_of_models"], what = less, text_X, "$L(i)$ minus models' mean (nats)"
    else:
        wild = []
    cuts = []
    for axes, lines, of_paper, ylabel, xlabel in (
        (left, shown, PAPER_LOSS_RANGE, what, "Token index $i$"),
        (right, perplexities, PAPER_PERPLEXITY_RANGE, "Perplexity $P(l)$", "Validation context length $l$"),
    ):
        axes.set(xlabel=xlabel, ylabel=ylabel)
        cuts.append(panels.position_panel(axes, lines, train_len, _limits(lines, study, of_paper)))
    panels.legend_of(figure, [line.style for line in losses])
    seeds, smooth = panels.band_note(len(curve.seeds) for curve in curves), f"$L(i)$ smoothed over {window} tokens"
    notes = f"{curves[0].num_documents:,} documents", seeds, smooth, _dashed(study), panels.without_note(wild), max(cuts)
    return publish(study, figure, table, *notes) + _draw_lead(study, by_name)


def _dashed(study: Study) -> str:
    return f"dashed vertical: training length {tokens(study.train_len)}"


def _limits(lines: Sequence[panels.Drawn], study: Study, of_paper: tuple[float, float]) -> tuple[float, float]:
    """Return the paper's y-range if the curves lie in it at the paper's scale, else one from the training context."""
    inside = [line.mean[(line.x >= study.train_len / 8) & (line.x <= study.train_len)] for line in lines]
    if study.scale == PAPER_SCALE and of_paper[0] < np.nanmedian(np.concatenate(inside)) < of_paper[1]:
        return of_paper
    return panels.core_limits(lines, study.train_len)


def _table(curves: list[LossCurve], **drawn: list[panels.Drawn]) -> pd.DataFrame:
    columns: dict[str, np.ndarray] = {"position": next(iter(drawn.values()))[0].x}
    for what, lines in drawn.items():
        for name, line in zip([f"{curve.model}_{what}" for curve in curves], lines, strict=True):
            columns[name] = line.mean
            if line.band is not None:
                columns[f"{name}_low"], columns[f"{name}_high"] = line.band
    return pd.DataFrame(columns)


def _draw_lead(study: Study, curves: dict[str, LossCurve]) -> Files:
    """Draw the loss of the Transformer minus that of FoX by position, with a 95% interval."""
    pairs, _ = pairs_in(curves)
    if not pairs:
        return []
    window = max(1, study.train_len // 16) | 1
    figure, row = plt.subplots(1, len(pairs), figsize=(WIDTH, 2.4), squeeze=False)
    frames, leaves = [], False
    for axes, (fox, other) in zip(row[0], pairs, strict=True):
        table, colour = lead(curves[fox], curves[other], window), style_of(fox).colour
        axes.axhline(0, color="#222222", linewidth=0.8)
        axes.plot(table["position"], table["lead"], color=colour)
        if table["low"].notna().any():
            axes.fill_between(table["position"], table["low"], table["high"], color=colour, alpha=0.22, linewidth=0)
        limits = _lead_limits(table, study.train_len)
        leaves |= table["lead"].max() > limits[1]
        axes.set(title=f"{title(other)} minus {title(fox)}", xlabel="Token index $i$")
        panels.position_axis(axes, study.train_len, curves[fox].length, ylim=limits)
        frames.append(table.assign(fox=fox, transformer=other))
    row[0, 0].set_ylabel("Lead of FoX (nats)")
    known = any(table["low"].notna().any() for table in frames)
    shaded = SHADED if known else "no documents are stored, so no interval is known"
    notes = f"mean over windows of {window} tokens", shaded, "curves cut at the top continue" if leaves else "", _dashed(study)
    return publish(study, figure, frames, *notes, part="lead")


def lead(fox: LossCurve, other: LossCurve, window: int) -> pd.DataFrame:
    """Return L of `other` minus L of `fox`, averaged over windows, in columns position, lead, low and high (95%). The interval
    is as wide as that of the mean over the stored bands that contain the window, NaN if it is not known."""
    rows = []
    for position in np.unique(np.linspace(window // 2 + 1, fox.length - window // 2, GAP_POINTS).astype(int)):
        first, last = int(position) - window // 2, int(position) + window // 2
        estimate = difference(other, fox, first, last)
        mean = (other.mean_N - fox.mean_N)[first - 1 : last].mean()
        rows.append((position, mean, *(mean - estimate.effect + np.array(estimate.interval or (np.nan, np.nan))).tolist()))
    return pd.DataFrame(rows, columns=["position", "lead", "low", "high"])


def _lead_limits(table: pd.DataFrame, train_len: int) -> tuple[float, float]:
    """Return a y-range for the lead inside the training context and just beyond, and for all of the lead unless it explodes."""
    near = table[(table["position"] >= train_len / 8) & (table["position"] <= 1.1 * train_len)]
    values = near[["lead", "low", "high"]].to_numpy()
    values = values[np.isfinite(values)]
    low, high = min(0.0, values.min(initial=0.0)), max(1e-3, values.max(initial=0.0))
    highest = float(np.nanmax(table[["lead", "high"]].to_numpy()))
    high = high if highest > 2.5 * high else max(high, highest)
    span = high - low
    return low - 0.15 * span, high + 0.35 * span if highest > high else high + 0.1 * span


def summary(study: Study) -> Table:
    """Tabulate the mean loss inside the training context, and P(l) at four lengths."""
    train_len, curves, entropy = study.train_len, in_order(study).values(), unigram_entropy(study)
    longest = next(iter(curves)).length
    lengths = [length for length in (train_len // 4, train_len, 2 * train_len, 4 * train_len) if 0 < length <= longest]
    columns = [Column("mean_loss", f"mean loss, first {tokens(train_len)} tokens (nats)", 3, "lower")]
    columns += [Column("below_unigram", "below unigram entropy by", 3)] if entropy is not None else []
    columns += [Column(f"ppl_{length}", f"P({tokens(length)})", 3, "lower") for length in lengths]
    values = {}
    for curve in curves:
        inside_S = curve.log_p(min(train_len, curve.length))
        below = [] if entropy is None else [entropy - inside_S]
        values[curve.label] = [inside_S, *below, *(np.exp(curve.log_p(length)) for length in lengths)]
    note = about(study)
    if entropy is not None:
        note += f" Unigram entropy of the held-out text: {entropy:.3f} nats per token, the loss of a model that knows only"
        note += " how frequent each token is."
    return over_seeds("Held-out loss and perplexity", columns, values, note)


def unigram_entropy(study: Study) -> float | None:
    """Entropy (nats per token) of the held-out text's token frequencies, as recorded by the evaluation."""
    found = [study.extra("per_token_loss", line.run_id, "unigram_entropy") for line in study.lines]
    return next((float(value) for value in found if value is not None), None)


def grid_inside(train_len: int) -> list[int]:
    """The paper's {512, 1k, 2k, 4k, 8k, 16k}, scaled to the training context length."""
    return [max(1, train_len // part) for part in (32, 16, 8, 4, 2, 1)]


def grid_beyond(train_len: int, longest: int) -> list[int]:
    """The paper's {20k, 24k, 32k, 48k, 64k}, scaled, up to the evaluation length."""
    return [length for length in (train_len * quarter // 4 for quarter in (5, 6, 8, 12, 16)) if length <= longest]


def log_ratio(one: LossCurve, other: LossCurve, length: int) -> Comparison:
    """Compare P of `one`, expected to be lower, with that of `other` at a length, or at the end of the first stored band if
    that is longer."""
    length = one.whole(1, length)[1]
    papers = papers_lead(one.model, other.model)
    name, paper = f"P({tokens(length)}), {title(one.label)} against {title(other.label)}", ""
    if papers:
        paper = f"{number(-papers, PERPLEXITY)} (Table 3, 360M)"
    return Comparison(name, difference(one, other, last=length), below=True, unit=PERPLEXITY, size=papers, paper=paper)


def loss_between(one: LossCurve, other: LossCurve, first: int, last: int) -> Comparison:
    """Compare the loss of `one`, expected to be lower, with that of `other` over positions first..last. The paper's P, which
    includes all tokens before them, is shown beside it."""
    name = f"loss from {tokens(first - 1)} to {tokens(last)}, {title(one.label)} minus {title(other.label)}"
    shown = f"P({tokens(last)}) {with_interval(difference(one, other, last=last), PERPLEXITY)}"
    return Comparison(name, difference(one, other, first, last), below=True, shown=shown)


def papers_lead(model: str, other: str) -> float | None:
    """Return how much lower log P of one model is than that of another in the paper's ablations (Table 3)."""
    paper = read("table3_ablation_360m.csv")
    lines = [paper[IN_TABLE_3[each]] for each in (model, other) if each in IN_TABLE_3]
    return math.log(lines[1]["ppl"] / lines[0]["ppl"]) if len(lines) == 2 else None


def _curves(study: Study) -> dict[str, LossCurve]:
    return {model: curve for model, curve in by_model(study).items() if curve.length >= curve.train_len}


def _lower_everywhere(curves: dict[str, LossCurve], compared: Callable[[LossCurve, LossCurve], list[Comparison]]) -> Verdict:
    """Judge whether FoX is below the Transformer of the same architecture in all comparisons made by `compared`."""
    names, absent = pairs_in(curves)
    comparisons, parts = [], []
    for fox, other in names:
        comparisons += (own := compared(curves[fox], curves[other]))
        won, worst = sum(each.estimate.effect < 0 for each in own), min(own, key=lambda each: each.lead)
        parts.append(
            f"{title(curves[fox].label)} below {title(curves[other].label)} in {won} of {len(own)}, least clearly in "
            f"{worst.name.partition(', ')[0]} ({with_interval(worst.estimate, worst.unit)})"
        )
    return decide("; ".join(parts) + ".", comparisons, absent)


def c1(study: Study) -> Verdict:
    """Compare P at every length of the grid; lengths within the first stored band count as one."""

    def compared(fox: LossCurve, other: LossCurve) -> list[Comparison]:
        lengths = dict.fromkeys(fox.whole(1, length)[1] for length in grid_inside(study.train_len))
        return [log_ratio(fox, other, length) for length in lengths]

    return _lower_everywhere(_curves(study), compared)


def c2(study: Study) -> Verdict:
    """Compare the loss from the training context to the grid's first length, and between later lengths, over whole bands."""
    curves = _curves(study)
    longest = min((curve.length for curve in curves.values()), default=0)
    grid = grid_beyond(study.train_len, longest)
    if curves and not grid:
        return not_applicable(f"The evaluation ends at {longest} tokens, not beyond the training context of {study.train_len}.")

    def compared(fox: LossCurve, other: LossCurve) -> list[Comparison]:
        stretches = dict.fromkeys(fox.whole(start + 1, end) for start, end in pairwise([study.train_len, *grid]))
        return [loss_between(fox, other, *each) for each in stretches]

    return _lower_everywhere(curves, compared)


def _p(curve: LossCurve) -> float:
    return float(perplexity(curve.mean_N)[curve.train_len - 1])


def c5(study: Study) -> Verdict:
    """FoX (Pro) has the lowest perplexity of the seven models at the training context length."""
    curves = _curves(study)
    absent = missing_of(SEVEN, curves)
    others = [curves[model] for model in SEVEN if model in curves and model != "fox_pro"]
    if "fox_pro" not in curves or not others:
        return decide("", [], absent)
    fox, best = curves["fox_pro"], min(others, key=_p)
    sentence = f"P({tokens(study.train_len)}) of FoX (Pro) is {_p(fox):.3f}, of the best of the others, {title(best.label)}, "
    size = papers_lead("fox_pro", "transformer_pro")  # Transformer (Pro) is the best of the others in the paper
    comparisons = [replace(log_ratio(fox, other, study.train_len), size=size) for other in others]
    return decide(f"{sentence}{_p(best):.3f}.", comparisons, absent)


def c6(study: Study) -> Verdict:
    """Pro beats LLaMA for FoX and for the Transformer, at the training context length."""
    curves = _curves(study)
    names, absent = pairs_in(curves, FAMILIES)
    pairs = [(curves[pro], curves[llama]) for pro, llama in names]
    parts = [f"{title(pro.label)} {_p(pro):.3f}, {title(llama.label)} {_p(llama):.3f}" for pro, llama in pairs]
    comparisons = [log_ratio(pro, llama, study.train_len) for pro, llama in pairs]
    return decide(f"P({tokens(study.train_len)}): {'; '.join(parts)}.", comparisons, absent)


CLAIMS = (
    Claim("C1", "Inside the training context FoX has a lower perplexity than the Transformer of the same architecture", c1),
    Claim("C2", "Beyond the training context, too, FoX has a lower loss than the Transformer of the same architecture", c2),
    Claim("C5", "FoX (Pro) is the best of the seven models within the training context", c5),
    Claim("C6", "Pro beats LLaMA, for FoX and for the Transformer", c6),
)
