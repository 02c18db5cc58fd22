"""Figure 6: Model size, training tokens and training context.

Per-token loss inside the training context for several model sizes, numbers of training tokens and training context lengths
(each step has the same text for all contexts, cut into shorter sequences). FoX's advantage grows with the training context and
shrinks somewhat with size. The paper does not say which architecture and contexts it shows; here it is the Pro pair. Losses by
training context are averaged over quarters of a doubling."""

from itertools import pairwise
from typing import Any

import numpy as np
from matplotlib.axes import Axes

from analysis.curves import LossCurve, compare, difference, first_plotted, smoothing_window, stored_curves
from analysis.names import DASHED, FOX_SHADES, PAIRS, TRANSFORMER_SHADES, LineStyle, pairs_in, title
from analysis.panels import Drawn, band_note, binned, core_limits, doublings_axis, draw_lines, smoothed
from analysis.statistics import Estimate
from analysis.study import Study
from analysis.style import WIDTH, Files, about, millions, plt, publish, tokens, training_length_line
from analysis.tables import Cell, Column, Table, over_seeds
from analysis.verdict import Claim, Comparison, Status, Verdict, decide, in_part, number
from experiments.evaluations import loss as evals  # noqa: F401
from experiments.recipes import recipes
from experiments.scales import MINIS, PAPERS, SMALLS, TINIES, Scale, for_ablations, get_scale, sizes_at, with_shorter

STEM = "fig6_scale"
PAIR = ("fox_pro", "transformer_pro")
SIZES = {
    TINIES: (("tiny-narrow", "tiny-short"), (64, 128, 256)),
    SMALLS: (("small",), (1024, 4096, 16384)),
    MINIS: (("mini-narrow", "mini"), (1024, 4096, 16384)),
    PAPERS: (("125m-2.7b", "360m-7.5b", "760m-48b"), (4096, 8192, 16384)),
}
"""Scales whose models are compared, and training contexts."""
PANELS = {"size": "Model size (width x layers)", "tokens": "Training tokens", "context": "Training context length"}
"""Titles of the panels by the varied quantity."""
AXES = {"varied": PANELS, "value": str | int}
Pair = tuple[LossCurve, LossCurve]


def runs(scale, seeds):
    (sizes, contexts), ablation = sizes_at(scale, SIZES, __name__), for_ablations(scale)
    varied: list[tuple[Scale, str, str | int, dict[str, int]]] = [
        *((size, "size", f"{size.hidden_size} x {size.num_layers}", {}) for size in map(get_scale, sizes)),
        *((at, "tokens", at.train_tokens, {}) for at in with_shorter(scale)),
        *((ablation, "context", seq_len, _same_text(seq_len, max(contexts))) for seq_len in contexts),
    ]
    for model in PAIR:
        for at, panel, value, train in varied:
            axes, label = dict(varied=panel, value=value), f"{panel} {printed(panel, value)}"
            yield from recipes(at, model, seeds, axes=axes, label=label, train=train)


def _same_text(seq_len: int, longest: int) -> dict[str, int]:
    """Return the fields that cut a step's sequences from those of the longest context. Otherwise a step of as many tokens in
    shorter sequences would contain more texts."""
    return dict(seq_len=seq_len, **(dict(piece_len=longest) if seq_len < longest else {}))


def printed(varied: str | float, value: str | float) -> str:
    return f"{float(value) / 1e6:.4g}M" if varied == "tokens" else str(value)


def _short(varied: str | float, value: Any) -> str:
    """Print a varied value like axes and other pages do."""
    if not isinstance(value, int):
        return str(value)
    return tokens(value) if varied == "context" else millions(value)


def panels_of(study: Study) -> dict[str, dict[str, list[LossCurve]]]:
    """Return panel -> printed value of the varied quantity ("168M") -> curves, each in the order of the artefact's lines."""
    panels: dict[str | float, dict[str, list[LossCurve]]] = {}
    for curve in stored_curves(study):
        panel, value = curve.axes["varied"], curve.axes["value"]
        panels.setdefault(panel, {}).setdefault(_short(panel, value), []).append(curve)
    return {panel: panels[panel] for panel in PANELS if panel in panels}


def pairs_of(groups: dict[str, list[LossCurve]]) -> list[Pair]:
    """Return FoX and the Transformer of the same architecture, group by group."""
    by_model = [{curve.model: curve for curve in curves} for curves in groups.values()]
    return [(own[fox], own[other]) for own in by_model for fox, other in pairs_in(own)[0]]


def _last_quarter(curve: LossCurve) -> tuple[int, int]:
    """Return the ends of the last quarter of the training context, or of the stored band that contains it."""
    return curve.whole(curve.train_len * 3 // 4 + 1, curve.train_len)


def _positions(curve: LossCurve) -> str:
    return "tokens {:,} to {:,}".format(*_last_quarter(curve))


def _quarter(fox: LossCurve, other: LossCurve, sign: float = 1.0):
    """Loss of the Transformer minus loss of FoX over the last quarter of the training context, as arguments of `compare`."""
    return ((k, curve, *_last_quarter(curve)) for k, curve in ((sign, other), (-sign, fox)))


def lead(fox: LossCurve, other: LossCurve) -> Estimate:
    """Return delta, the loss of the Transformer minus that of FoX over the last quarter of the training context, or over the
    stored band that contains it."""
    return difference(other, fox, *_last_quarter(fox))


def draw(study: Study, beyond: bool = False) -> Files:
    """Draw a panel per varied quantity; `beyond`: also positions beyond each training context, which a dashed line marks."""
    panels = panels_of(study)
    frames, windows = [], set()
    figure, grid = plt.subplots(1, len(panels), figsize=(max(3.4, WIDTH * len(panels) / 3), 3.3), squeeze=False)
    for axes, (panel, groups) in zip(grid[0], panels.items(), strict=True):
        places = [(curve, value, place) for place, (value, curves) in enumerate(groups.items()) for curve in curves]
        shown = [(curve, _line(curve, panel, value, place, beyond)) for curve, value, place in places]
        windows |= {smoothing_window(curve.train_len) for curve, _ in shown if panel != "context"}
        _panel(axes, panel, shown, beyond)
        frames += [line.frame(label=curve.label, model=curve.model) for curve, line in shown]
    grid[0, 0].set_ylabel("Per-token loss $L(i)$ (nats)")
    smooth = f"smoothed over {', '.join(map(str, sorted(windows)))} tokens" if windows else ""
    smooth += f"{', ' * bool(windows)}by context in logarithmic bins" if "context" in panels else ""
    marked = ("dashed vertical: training length", _absent_note(study)) if beyond else (_steps_note(study, panels),)
    return publish(study, figure, frames, "Pro block", smooth, band_note(study.seed_counts.values()), *marked)


def _steps_note(study: Study, panels: dict[str, dict[str, list[LossCurve]]]) -> str:
    """Say how many sequences a step has at each context length."""
    curves = sorted((curve for own in panels.get("context", {}).values() for curve in own), key=lambda curve: curve.train_len)
    steps = {tokens(curve.train_len): _sequences(study, curve) for curve in curves}
    if len(set(steps.values())) > 1:
        return f"sequences per step: {', '.join(f'{count} of {context}' for context, count in steps.items())}"
    return f"contexts: cut from {next(iter(steps.values()))} pieces of text a step" if len(curves) > len(PAIR) else ""


def _absent_note(study: Study) -> str:
    """Name the lines of Figure 6 that are not evaluated beyond their training context."""
    there = {line.series for line in study.lines}
    absent: dict[str, list[str]] = {}
    for line in Study(study.results_dir, study.scale, STEM).lines:
        if line.series not in there:
            absent.setdefault(line.model, []).append(line.label)
    names = [f"{title(model)}, {' and '.join(dict.fromkeys(labels))}" for model, labels in absent.items()]
    return f"in Figure 6 and not here: {'; '.join(names)}" if names else ""


def _line(curve: LossCurve, panel: str, value: str, place: int, beyond: bool) -> Drawn:
    """Return a curve as a line: the second value of a panel has the model's own colour, other values are lighter or darker."""
    fox = curve.model.startswith("fox")
    name, shades, dashes = ("FoX", FOX_SHADES, None) if fox else ("Transformer", TRANSFORMER_SHADES, DASHED)
    style, length = LineStyle(f"{name}, {value}", shades[(2 - place) % len(shades)], dashes), _end(curve, beyond)
    if panel == "context":
        return binned(curve, style, min(first_plotted(curve.train_len), length / 2), length)
    return smoothed(curve, style, smoothing_window(curve.train_len), length)


def _end(curve: LossCurve, beyond: bool) -> int:
    return curve.length if beyond else min(curve.train_len, curve.length)


def _panel(axes: Axes, panel: str, shown: list[tuple[LossCurve, Drawn]], beyond: bool) -> None:
    draw_lines(axes, [line for _, line in shown])
    limits = [core_limits([line], curve.train_len) for curve, line in shown]
    axes.set_ylim(min(low for low, _ in limits), max(high for _, high in limits))
    lengths, longest = sorted({curve.train_len for curve, _ in shown}), max(_end(curve, beyond) for curve, _ in shown)
    if len(lengths) > 1:
        doublings_axis(axes, sorted({*lengths, lengths[0] // 4, longest}), fontsize=5.6)
    else:
        ticks = [longest * quarter // 4 for quarter in range(5)]
        axes.set_xticks(ticks, [tokens(tick) for tick in ticks])
        axes.set_xlim(0, longest)
    for length in lengths if beyond else []:
        training_length_line(axes, length)
    axes.set(title=PANELS[panel], xlabel="Token index $i$")
    axes.legend(
        loc="upper center", bbox_to_anchor=(0.5, -0.2), ncols=1 if len(shown) < 3 else 2, fontsize=5.6, handlelength=2.0,
        columnspacing=0.8, labelspacing=0.3, borderaxespad=0.0,
    )  # fmt: skip


def summary(study: Study) -> Table:
    """Tabulate the loss over the last quarter of the training context, and FoX's lead there with a 95% interval."""
    values: dict[str, list[Cell]] = {}
    for fox, other in (pair for groups in panels_of(study).values() for pair in pairs_of(groups)):
        quarter, delta = slice(fox.train_len * 3 // 4, fox.train_len), lead(fox, other)
        losses = [curve.losses_SN[:, quarter].mean(axis=1) for curve in (fox, other)]
        label = f"{fox.label}: {title(fox.model)} and {title(other.model)}"
        values[label] = [*losses, delta, 100 * float(np.expm1(delta.effect))]
    columns = [
        Column("fox_loss", "FoX: loss, last quarter (nats)", 4),
        Column("transformer_loss", "Transformer (nats)", 4),
        Column("lead", "lead of FoX (nats)", 4, style="signed"),
        Column("lead_percent", "in perplexity (%)", 1, style="signed"),
    ]
    note = f"{about(study, corpus=False)} Over the last quarter of the training context; leads over the stored band of"
    note += " positions that contains it, if that is longer. In square brackets: 95% interval."
    return over_seeds("FoX against the Transformer by size, tokens and context", columns, values, note)


def c25(study: Study) -> Verdict:
    """FoX's lead over the last quarter of the context grows from each training context length to the next."""
    pairs = sorted(pairs_of(panels_of(study).get("context", {})), key=lambda pair: pair[0].train_len)
    comparisons = []
    for model, _ in PAIRS:
        for pair, longer in pairwise(pair for pair in pairs if pair[0].model == model):
            growth = compare(*_quarter(*longer), *_quarter(*pair, -1.0))
            ends = [f"{fox.label} ({_positions(fox)})" for fox in (pair[0], longer[0])]
            comparisons.append(Comparison(f"growth of {title(model)}'s lead in loss, {' to '.join(ends)}", growth))
    verdict = _leads(pairs, comparisons, "training contexts")
    steps = sorted({_sequences(study, fox) for fox, _ in pairs}, reverse=True)
    if verdict.status is Status.NOT_MEASURED or len(steps) < 2:
        return verdict
    first = min(fox.whole(1, fox.train_len // 4)[1] for fox, _ in pairs) if pairs else 0
    early = [f"{fox.label} {number(difference(other, fox, last=first).effect)}" for fox, other in pairs]
    why = f"Steps have {', '.join(map(str, steps))} sequences as the context grows, so that its effect cannot be told from that"
    why += f" of fewer sequences per step: over the first {tokens(first)} tokens, which all contexts have, the lead is"
    return in_part(verdict, f"{why} {', '.join(early)} nats. Deciding it takes equally many sequences per step.")


def _sequences(study: Study, curve: LossCurve) -> int:
    """Count the texts from which the sequences of a step are cut."""
    train = study.spec(curve.run_ids[0])["train"]
    return int(train["batch_tokens"] // (train.get("piece_len") or train["seq_len"]))


def _leads(pairs: list[Pair], comparisons: list[Comparison], what: str) -> Verdict:
    parts = [f"{fox.label} {number(lead(fox, other).effect)}" for fox, other in pairs]
    absent = [] if comparisons else [f"FoX and the Transformer at two {what} or more"]
    sentence = f"Lead of FoX over the last quarter of the context: {', '.join(parts)} nats."
    return decide(sentence, comparisons, absent)


def c25b(study: Study) -> Verdict:
    groups = panels_of(study).get("size", {})
    pairs = pairs_of(groups)
    comparisons = [
        Comparison(f"lead of {title(fox.model)} in loss, {fox.label}, {_positions(fox)}", lead(fox, other))
        for fox, other in pairs
    ]
    return _leads(pairs, comparisons if len(groups) > 1 else [], "model sizes")


CLAIMS = (
    Claim("C25", "FoX's advantage over the Transformer grows with the training context length", c25),
    Claim("C25b", "FoX's advantage persists at every model size", c25b),
)
