"""Figure 5: Extrapolation against training tokens and learning rate.

Easy-mode needle heatmaps and per-token loss (minus the runs' mean) of FoX (Pro) for several numbers of training tokens and
learning rates. Length extrapolation is fragile: more tokens can make it worse, depending on the learning rate, while the loss
inside the training context improves. The paper does not say which settings it shows; these are ours."""

from dataclasses import replace
from itertools import pairwise

from analysis.curves import LossCurve, difference, smoothing_window, stored_curves
from analysis.names import DASHED, FOX_SHADES, LineStyle
from analysis.needles import RECALL, SCORE, Needles, needles, places
from analysis.panels import band_note, colour_bar, legend_of, needle_panel, position_panel, smoothed, without_note, without_text
from analysis.statistics import Estimate
from analysis.study import Study
from analysis.style import WIDTH, Files, about, plt, publish, tokens
from analysis.tables import Cell, Column, Table, over_seeds
from analysis.verdict import Claim, Comparison, Verdict, decide_any, in_words, with_interval
from experiments import evaluations
from experiments.recipes import recipes
from experiments.scales import MINIS, PAPERS, TINIES, sizes_at, with_shorter

SIZES = {("tiny",): (2e-3, 4e-3, 8e-3), TINIES: (4e-3, 8e-3), MINIS: (1e-3, 2e-3, 4e-3), PAPERS: (5e-4, 1e-3, 2e-3)}
"""Peak learning rates."""
AXES = {"train_tokens": int, "peak_lr": float}
MODE = "easy"
HEATMAPS_PER_ROW = 3


def runs(scale, seeds):
    for at in with_shorter(scale):
        for rate in sizes_at(scale, SIZES, __name__):
            axes = dict(train_tokens=at.train_tokens, peak_lr=rate)
            label = f"{at.train_tokens / 1e6:.4g}M tokens, LR {rate:g}"
            yield from recipes(at, "fox_pro", seeds, axes=axes, label=label, train=dict(peak_lr=rate))


def evals(scale):
    return evaluations.loss(scale) + evaluations.needles(scale, modes=("easy",))


def settings(study: Study) -> list[LossCurve]:
    """The curves, by training tokens and then by learning rate."""
    return sorted(stored_curves(study), key=lambda curve: (curve.axes["train_tokens"], curve.axes["peak_lr"]))


def stored_needles(study: Study) -> Needles | None:
    return needles(study) if study.evaluations(SCORE) or study.evaluations(RECALL) else None


def draw(study: Study, mode: str = MODE) -> Files:
    """Draw losses and, if needles are stored, their heatmaps in one mode."""
    curves, found, train_len = settings(study), stored_needles(study), study.train_len
    window = smoothing_window(train_len)
    lines = [smoothed(curve, style, window) for curve, style in zip(curves, _styles(curves), strict=True)]
    rows = -(-len(curves) // HEATMAPS_PER_ROW) if found else 0
    figure = plt.figure(figsize=(WIDTH, 2.9 + 1.25 * rows))
    parts = figure.subfigures(1 + bool(rows), 1, height_ratios=[2.9, 1.25 * rows] if rows else None, squeeze=False)[:, 0]
    shown, wild, ylabel = lines, list[str](), "$L(i)$ (nats)"
    if len(lines) > 1:
        shown, _, wild = without_text(lines, train_len)
        ylabel = "$L(i)$ minus runs' mean (nats)"
    cut = position_panel(parts[0].subplots(), shown, train_len, xlabel="Token index $i$", ylabel=ylabel)
    legend_of(parts[0], [line.style for line in lines], columns=3)
    if found:
        grid = parts[1].subplots(rows, HEATMAPS_PER_ROW, squeeze=False)
        for curve, panel in zip(curves, grid.flat, strict=False):
            panel.set_title(curve.label, fontsize=6.6, pad=2.5)
            needle_panel(panel, found.of(label=curve.label, mode=mode), found.colours, train_len)
        for panel in grid.flat[len(curves) :]:
            panel.set_axis_off()
        colour_bar(parts[1], list(grid.flat), replace(found.colours, title=f"{mode}, {found.colours.title}"))
        parts[1].supylabel("depth", fontsize=7.5)
        parts[1].supxlabel("context length (tokens)", fontsize=7.5)
    frames = [line.frame(label=curve.label) for curve, line in zip(curves, lines, strict=True)]
    smooth, dashed = f"smoothed over {window} tokens", f"dashed vertical: training length {tokens(train_len)}"
    notes = smooth, band_note(study.seed_counts.values()), dashed, without_note(wild), cut, found.note if found else ""
    return publish(study, figure, frames, *notes)


def _styles(curves: list[LossCurve]) -> list[LineStyle]:
    """Return line styles in FoX's colour: darker for higher rates, solid for the most tokens and dashed for fewer."""
    most, rates = curves[-1].axes["train_tokens"], sorted({curve.axes["peak_lr"] for curve in curves})
    shades = [FOX_SHADES[(2 - rates.index(curve.axes["peak_lr"])) % len(FOX_SHADES)] for curve in curves]
    dashes = [None if curve.axes["train_tokens"] == most else DASHED for curve in curves]
    return [LineStyle(curve.label, *how) for curve, how in zip(curves, zip(shades, dashes, strict=True), strict=True)]


def summary(study: Study, mode: str = MODE) -> Table:
    """Tabulate the loss inside and beyond the training context, and the mean over needles of one mode in both places."""
    train_len, found = study.train_len, stored_needles(study)
    columns = [
        Column("inside", f"mean loss, first {tokens(train_len)} (nats)", 4, "lower"),
        Column("beyond", "mean loss beyond (nats)", 4, "lower"),
    ]
    values: dict[str, list[Cell]] = {}
    for curve in settings(study):
        beyond = curve.losses_SN[:, train_len:].mean(axis=1) if curve.length > train_len else None
        values[curve.label] = [curve.log_p(train_len), beyond]
    if found is not None:
        for place, (words, low, high) in places(train_len).items():
            columns.append(Column(f"needle_{place}", f"{mode} needle, {words} ({found.unit})", 2, "higher"))
            for label, cells in values.items():
                own = found.of(label=label, mode=mode, low=low, high=high)
                cells.append(found.mean_of(own).effect if len(own) else None)
    return over_seeds("FoX (Pro) by training tokens and learning rate", columns, values, about(study))


def _last(more: LossCurve, fewer: LossCurve) -> int:
    """Return the last position at which both runs were evaluated."""
    return min(more.length, fewer.length)


def inside_and_beyond(more: LossCurve, fewer: LossCurve) -> tuple[Estimate, Estimate | None]:
    """Return the loss with more training tokens minus that with fewer, inside and beyond the training context."""
    train_len, last = more.train_len, _last(more, fewer)
    return difference(more, fewer), difference(more, fewer, train_len + 1, last) if last > train_len else None


def c24(study: Study) -> Verdict:
    """There is a pair of FoX (Pro) runs in which more training tokens are better inside the training context, but worse beyond
    it, by loss or by easy needles."""
    curves = [curve for curve in settings(study) if curve.model == "fox_pro" and curve.length > curve.train_len]
    found, alternatives, worse = stored_needles(study), [], []
    for more, fewer in [(a, b) for a in curves for b in curves if a.axes["train_tokens"] > b.axes["train_tokens"]]:
        inside, beyond = inside_and_beyond(more, fewer)
        name, end = f"{more.label} minus {fewer.label}", tokens(more.train_len)
        better = Comparison(f"{name}, loss up to {end}", inside, below=True)
        if beyond is not None:
            alternatives.append([better, Comparison(f"{name}, loss from {end} to {tokens(_last(more, fewer))}", beyond)])
            worse.append(inside.effect < 0 < beyond.effect)
        if found and (lost := needles_beyond(study, found, more, fewer)):
            name += f", {MODE} needles beyond {end}, {found.measure}"
            alternatives.append([better, Comparison(name, lost[0], below=True, unit=lost[1])])
    asked = "FoX (Pro) with several numbers of training tokens, evaluated beyond the training context"
    sentence = (
        f"In {sum(worse)} of {len(worse)} pairs of runs more tokens lower the loss inside the context and raise it beyond."
    )
    return decide_any(sentence, alternatives, [] if alternatives else [asked])


def needles_beyond(study: Study, found: Needles | None, more: LossCurve, fewer: LossCurve) -> tuple[Estimate, str] | None:
    """Return the difference between two runs' scores or recalls on easy needles beyond the training context, and its unit."""
    if found is None:
        return None
    rows = [found.of(label=curve.label, mode=MODE, low=study.train_len + 1) for curve in (more, fewer)]
    return (found.difference(*rows), found.unit_apart) if all(len(own) for own in rows) else None


def with_more_tokens(study: Study) -> str:
    """Say how more tokens change the loss at the same learning rate, inside and beyond the training context."""
    found, parts = stored_needles(study), []
    curves = [curve for curve in settings(study) if curve.model == "fox_pro"]
    for fewer, more in pairwise(sorted(curves, key=lambda curve: (curve.axes["peak_lr"], curve.axes["train_tokens"]))):
        inside, beyond = inside_and_beyond(more, fewer)
        rate, count = more.axes["peak_lr"], more.axes["train_tokens"]
        if rate == fewer.axes["peak_lr"] and beyond is not None:
            trend = in_words(beyond, "still falls with tokens", "rises with tokens", "does not clearly change with tokens")
            parts.append(
                f"At LR {rate:g}, {count / fewer.axes['train_tokens']:.3g} times the tokens ({count / 1e6:.4g}M) change the "
                f"loss by {with_interval(inside, 'nats')} inside the training context and by {with_interval(beyond, 'nats')} "
                f"beyond it, which {trend}."
            )
            if changed := needles_beyond(study, found, more, fewer):
                parts.append(f"Easy needles beyond it change by {with_interval(*changed)}.")
    nothing = "Unknown: at no rate are runs with two numbers of tokens stored and evaluated beyond the training context."
    return " ".join(parts) or nothing


CLAIMS = (Claim("C24", "More training tokens can hurt extrapolation while they help inside the training context", c24),)
LOOKS = {"C24": with_more_tokens}
