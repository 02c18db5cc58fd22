"""Figure 4: Needle in a haystack.

Scores from 1 (red) to 10 (green) by depth of the needle and context length; easy mode left, standard mode right. Within the
training context FoX is near perfect in both modes, and the Transformers are in easy mode; the recurrent models do poorly. FoX
and Transformer (Pro) extrapolate partly beyond the training context, Transformer (LLaMA) does not."""

from collections.abc import Iterable
from dataclasses import replace
from functools import partial
from itertools import product

import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from analysis.names import PAIRS, RECURRENT, missing_of, pairs_in, title
from analysis.needles import CHOICE, COLUMNS, RECALL, SCORE, Needles, longest_inside, measures, needles, places
from analysis.panels import colour_bar, needle_panel
from analysis.statistics import Estimate
from analysis.study import Study
from analysis.style import WIDTH, Files, about, plt, publish, tokens
from analysis.tables import Cell, Column, Table, count_range, over_seeds
from analysis.verdict import Claim, Comparison, Verdict, decide, in_part, not_applicable, number
from experiments.evaluations import needles_and_choices as evals  # noqa: F401
from experiments.recipes import main_models as runs  # noqa: F401

PANELS_PER_ROW = 4
CAPTIONS = {
    SCORE: "Mean needle score, 1 (nothing found) to 10",
    CHOICE: "Needles whose word is the likeliest of ten (%), 10 by guessing",
    RECALL: "Mean needle recall in nats: log-probability of the answer with the needle minus without",
}
AT_FLOOR = "No model finds the needle anywhere (all scores are near the lowest), so there is no order."
NOTES = {
    CHOICE: " No model writes the answer by itself, so it is given ten words to choose from.",
    RECALL: " No model's score leaves the floor at this scale.",
}
PAPER_BEYOND = (19_600 / 16_384, 32_000 / 16_384)


def draw(study: Study) -> Files:
    """Draw the measure that claims are judged by, and in figures/STEM-choice.* choices, too, if that measure is the score. The
    CSV files contain each cell's mean over samples and seeds."""
    found, judged = measures(study), needles(study)
    if judged.kind == SCORE and CHOICE in found:
        return [*_publish(study, judged), *_publish(study, found[CHOICE], part="choice")]
    floor = "no score leaves the floor, so choices are drawn: " if judged.kind == CHOICE and SCORE in found else ""
    return _publish(study, judged, floor)


def _publish(study: Study, found: Needles, floor: str = "", part: str = "") -> Files:
    measured = [name for name in (*COLUMNS.values(), "exact", "fuzzy") if name in found.rows]
    cells = found.rows.groupby(["label", "mode", "length", "depth"], as_index=False, sort=False)[measured].mean()
    counts = found.rows.groupby(["label", "mode"])["seed"].nunique()
    seeds = f"mean of {count_range(counts, 'seeds')}" if counts.max() > 1 else "one seed per model"
    dashed = f"dashed: training length {tokens(study.train_len)}"
    return publish(study, _draw(study, found), cells, floor + found.note, seeds, dashed, part=part)


def _draw(study: Study, found: Needles) -> Figure:
    labels, modes = found.labels, found.modes
    per_row = min(max(1, PANELS_PER_ROW // len(modes)), len(labels))
    lines, columns = -(-len(labels) // per_row), per_row * len(modes)
    height = float(np.clip(0.55 + 0.085 * found.rows["depth"].nunique(), 0.95, 1.5))
    figure, panels = plt.subplots(lines, columns, figsize=(WIDTH, height * lines + 0.75), squeeze=False)
    free = list(panels.flat)
    for index, (axes, (label, mode)) in enumerate(zip(free, product(labels, modes), strict=False)):
        axes.set_title(f"{title(label)}, {mode}", fontsize=6.6, pad=2.5)
        needle_panel(axes, found.of(label=label, mode=mode), found.colours, study.train_len)
        if index % columns:
            axes.set_yticklabels([])
    for axes in free[len(labels) * len(modes) :]:
        axes.set_axis_off()
    figure.supxlabel("context length (tokens)", fontsize=8.5)
    figure.supylabel("depth of the needle" if lines > 1 else "depth", fontsize=8.5)
    if found.kind != SCORE:
        colour_bar(figure, free, found.colours)
    return figure


def summary(study: Study) -> Table:
    """Tabulate mean score, choice or recall per mode, inside and beyond the training context, with 95% intervals."""
    found = needles(study)
    columns: list[Column] = []
    values: dict[str, list[Cell]] = {label: [] for label in found.labels}
    for mode, (place, (words, low, high)) in product(found.modes, places(study.train_len).items()):
        cells = {label: found.of(label=label, mode=mode, low=low, high=high) for label in found.labels}
        if any(map(len, cells.values())):
            columns.append(Column(f"{mode}_{place}", f"{mode}, {words}", 2, "higher"))
            for label, own in cells.items():
                values[label].append(found.mean_of(own) if len(own) else None)
    samples = int(found.rows.groupby(["label", "run_id", "mode", "length", "depth"]).size().max())
    note = f"{about(study, corpus=False)} {samples} needle{'s' if samples > 1 else ''} per cell and seed. "
    means = [each for own in values.values() for each in own if isinstance(each, Estimate)]
    known = any(part.what == "seeds" for each in means for part in each.parts)
    note += f"In square brackets: 95% interval over needles{' and seeds' if known else ''}; {_seeds(found)}."
    note += NOTES.get(found.kind, "")
    return over_seeds(CAPTIONS[found.kind], columns, values, note)


def _seeds(found: Needles) -> str:
    """Say how many seeds most models have, and which models have fewer, in which modes."""
    counts = found.rows.groupby(["label", "mode"], sort=False)["run_id"].nunique().unstack(fill_value=0)
    most, fewer = int(counts.to_numpy().max()), dict[int, list[str]]()
    for label, own in counts.iterrows():
        for mode, count in own.items() if own.nunique() > 1 else [("", own.iloc[0])]:
            if 0 < count < most:
                fewer.setdefault(int(count), []).append(f"{title(str(label))}{f' ({mode})' if mode else ''}")
    parts = [f"{count} of {', '.join(names)}" for count, names in sorted(fewer.items())]
    return f"{most} seed{'s' * (most > 1)}{', but ' * bool(parts)}{'; '.join(parts)}"


def c22b(study: Study) -> Verdict:
    """Easy needle inside the training context: FoX and Transformers score at least 9.5, and each recurrent model is lower by 2.
    FoX and Transformers that only guess are left out."""
    found = needles(study)
    if found.at_floor or found.kind == RECALL:
        return not_applicable(AT_FLOOR)
    longest, wanted = longest_inside(study.train_len), [model for pair in PAIRS for model in pair]
    cells = {model: found.of(model=model, mode="easy", high=longest) for model in (*wanted, *RECURRENT)}
    cells = {model: rows for model, rows in cells.items() if len(rows)}
    absent = missing_of((*wanted, *RECURRENT), cells)
    if not cells:
        return decide("", [], absent)
    guessing = [model for model in wanted if model in cells and found.guessed(cells[model])]
    softmax, recurrent = ([model for model in some if model in cells and model not in guessing] for some in (wanted, RECURRENT))
    above, what = partial(Comparison, strict=False, unit=found.unit), _what(found, "easy", cells.values())
    comparisons = [above(f"{what}, mean of {title(one)}", found.mean_of(cells[one]), 9.5 * found.per_point) for one in softmax]
    for one, other in product(softmax, recurrent):
        lead = found.difference(cells[one], cells[other])
        name = f"{what}, {title(one)} minus {title(other)}"
        comparisons.append(above(name, lead, 2.0 * found.per_point, unit=found.unit_apart))
    means = ", ".join(f"{title(model)} {found.mean_of(rows).effect:.2f}" for model, rows in cells.items())
    return _above_floor(f"Mean {what}: {means} {found.unit}.", comparisons, absent, list(map(title, guessing)))


def _above_floor(sentence: str, comparisons: list[Comparison], absent: list[str], guessing: list[str]) -> Verdict:
    """Return the verdict from comparisons that leave out models or pairs that only guess, because they cannot be ordered."""
    if not guessing:
        return decide(sentence, comparisons, absent)
    comparisons = [replace(each, name=f"{each.name} (left out as guessing: {', '.join(guessing)})") for each in comparisons]
    verdict = decide(sentence, comparisons, [*absent, *(f"{each} (at the floor of guessing)" for each in guessing)])
    return in_part(verdict, "Models that only guess cannot be ranked.")


def _what(found: Needles, mode: str, cells: Iterable[pd.DataFrame]) -> str:
    """Say what is compared: the measure of the needles, the mode, and the lengths of the texts."""
    lengths = pd.concat(cells)["length"]
    ends = dict.fromkeys(f"{length:,}" for length in (lengths.min(), lengths.max()))
    return f"{found.measure}, {mode} mode, {' to '.join(ends)} tokens"


def c22c(study: Study) -> Verdict:
    """Standard needle inside the training context: FoX at least as good as the Transformer of the same architecture."""
    return _compared(study, "standard", 0, longest_inside(study.train_len), PAIRS, strict=False)


def c23(study: Study) -> Verdict:
    """Easy needle beyond the training context: FoX and Transformer (Pro) above Transformer (LLaMA)."""
    low, high = (share * study.train_len for share in PAPER_BEYOND)
    others = ("fox_pro", "fox_llama", "transformer_pro")
    return _compared(study, "easy", low - 1, high + 1, [(model, "transformer_llama") for model in others])


def _compared(study: Study, mode: str, low: float, high: float, pairs, *, strict: bool = True) -> Verdict:
    """Judge whether the first of each pair is above the second, by score or, if all scores are at the floor, by choice or
    recall. Pairs in which both models only guess are left out."""
    found = needles(study)
    if found.at_floor:
        return not_applicable(AT_FLOOR)
    cells = {model: found.of(model=model, mode=mode, low=low, high=high) for pair in pairs for model in pair}
    there, others = pairs_in([model for model, rows in cells.items() if len(rows)], pairs)
    guessing = [pair for pair in there if all(found.guessed(cells[model]) for model in pair)]
    leads = {
        f"{title(one)} minus {title(other)}": found.difference(cells[one], cells[other])
        for one, other in there
        if (one, other) not in guessing
    }
    absent = [f"{words}, {mode} mode" for words in others]
    both = [f"{title(one)} minus {title(other)}" for one, other in guessing]
    if not leads:
        return _above_floor("", [], absent, both)
    what = _what(found, mode, [cells[model] for pair in there for model in pair])
    comparisons = [Comparison(f"{what}, {name}", lead, strict=strict, unit=found.unit_apart) for name, lead in leads.items()]
    parts = [f"{name} {number(lead.effect, found.unit_apart)}" for name, lead in leads.items()]
    return _above_floor(f"Mean {what}: {'; '.join(parts)} {found.unit_apart}.", comparisons, absent, both)


CLAIMS = (
    Claim(
        "C22b", "Easy needle inside the training context: FoX and Transformer near perfect, recurrent models well below", c22b
    ),
    Claim("C22c", "Standard needle inside the training context: FoX at least as good as the Transformer", c22c),
    Claim("C23", "Easy needle beyond the training context: FoX and Transformer (Pro) above Transformer (LLaMA)", c23),
)
