"""Beyond the papers: Last words of held-out passages.

The model has to predict a word that occurs earlier in a passage of unseen text, but not in its last lines. Filled: given the
whole passage; hollow: given only its last words. The difference is what the passage is worth to a model. Similar to LAMBADA,
but chosen from held-out text by a rule that uses no model. Not in the paper."""

from dataclasses import dataclass
from itertools import product
from typing import Any

import numpy as np
import pandas as pd

from analysis.names import pairs_in, rank, style_of, title
from analysis.seeds import Measured
from analysis.statistics import Estimate, Term, apart, contrast, share
from analysis.study import Study
from analysis.style import DPI, WIDTH, Files, about, plt, publish
from analysis.tables import Column, Table
from beyond.eval.last_words.spec import Spec
from experiments.recipes import main_models as runs  # noqa: F401
from experiments.scales import MINIS, PAPERS, TINIES, sizes_at

SIZES: dict[tuple[str, ...], dict[str, Any]] = {
    TINIES: dict(num_items=400, words=100, near=10, common=300, anywhere=True),  # the text is code
    (*MINIS, *PAPERS): dict(num_items=5000),
}
"""Number of passages, and the rule by which they are chosen."""
KIND = "last_words"
GIVEN = {"passage": "", "last words": "_near"}
"""Texts that the model is given, and the suffixes of their columns."""


def evals(scale):
    return (Spec(num_documents=scale.heldout_documents, **sizes_at(scale, SIZES, __name__)),)


@dataclass(frozen=True, eq=False, kw_only=True)
class Words(Measured):
    """Rows of one model: `values_SI` by column, for every seed and item; `documents_I`: the document of each item."""

    values_SI: dict[str, np.ndarray]
    documents_I: np.ndarray


def compare(column: str, *parts: tuple[float, Words]) -> Estimate:
    """Return the sum of coefficient x mean of a column, paired by item."""
    terms = []
    for coefficient, words in parts:
        sources_I = None if words.sources_D is None else words.sources_D[words.documents_I]
        terms.append(Term.of(words, coefficient, words.values_SI[column], sources_I, "passages"))
    noises = {words: words.noise(lambda other: np.array([rows[column].mean() for rows in other.rows])) for _, words in parts}
    found, counted = contrast(terms, noises), parts[0][1].values_SI[column].size
    if not column.startswith("right"):
        return found
    return share(found, counted) if len(parts) == 1 else apart(found, counted)


def last_words(study: Study) -> dict[str, Words]:
    """Return the rows by model, in the paper's order. ValueError: see `by_line`."""
    return {words.model: words for words in by_line(study)}


def by_line(study: Study) -> list[Words]:
    """Return the rows by line, in the paper's order of models. ValueError if nothing is stored, or if lines were asked other
    words."""
    groups = study.by_series(KIND, "last words")
    if len({tuple(rows["document"]) for group in groups for _, rows, _ in group}) > 1:
        raise ValueError(f"{study.stem}: models or seeds were asked for other words; evaluate all alike")
    columns = [f"{name}{end}" for name in ("right", "logp") for end in GIVEN.values()]
    found = []
    for group in sorted(groups, key=lambda group: rank(group[0][0].model)):
        line, rows, meta = group[0]
        values_SI = {name: np.stack([own[name] for _, own, _ in group]) for name in columns}
        documents_I = rows["document"].to_numpy()
        whole = study.measured(line, meta, int(documents_I.max()) + 1)
        found.append(Words(**whole, values_SI=values_SI, documents_I=documents_I))
    return found


def points(study: Study) -> pd.DataFrame:
    """Return the drawn points by model: panel, model (FoX for leads), given, and value with its 95% interval."""
    found = last_words(study)
    rows: list[tuple[str | float, ...]] = []
    for model, (given, end) in product(found, GIVEN.items()):
        rows.append(("accuracy", model, given, *_with_ends(compare(f"right{end}", (1.0, found[model])))))
        nats = _with_ends(compare(f"logp{end}", (-1.0, found[model])))
        rows.append(("perplexity", model, given, *np.exp(nats).tolist()))
    for fox, other in pairs_in(found)[0]:
        difference = compare("right", (1.0, found[fox]), (-1.0, found[other]))
        rows.append(("lead", fox, "passage", *_with_ends(difference)))
    return pd.DataFrame(rows, columns=["panel", "model", "given", "value", "low", "high"])


def _with_ends(estimate: Estimate) -> tuple[float, float, float]:
    return estimate.effect, *(estimate.interval or (np.nan, np.nan))


def draw(study: Study) -> Files:
    drawn = points(study)
    models = list(drawn["model"].unique())
    figure, panels = plt.subplots(1, 3, figsize=(WIDTH, 0.9 + 0.24 * len(models)), width_ratios=(3, 3, 2), sharey=True)
    figure.set_dpi(DPI)  # hinting makes long labels wider: lay out at the resolution of the drawing
    of_panel = dict(zip(("accuracy", "perplexity", "lead"), panels, strict=True))
    for point in drawn.to_dict("records"):
        colour, whole = style_of(point["model"]).colour, point["given"] == "passage"
        value, low, high = point["value"], point["low"], point["high"]
        of_panel[point["panel"]].errorbar(
            value, models.index(point["model"]) + (-0.13 if whole else 0.13), color=colour, marker="o", markersize=4.5,
            xerr=[[value - low], [high - value]], markerfacecolor=colour if whole else "white", elinewidth=1.0,
        )  # fmt: skip
    panels[0].set_yticks(range(len(models)), [title(model) for model in models])
    panels[0].set(ylim=(len(models) - 0.5, -0.5), xlabel="right (%)")
    panels[1].set(xscale="log", xlabel="perplexity")
    panels[2].set(xlabel="lead of FoX (points)")
    panels[2].axvline(0, color="#222222", linewidth=0.8)
    return publish(study, figure, drawn, *_notes(study, "filled: given the", "hollow:", "; lead: over the Transformer"))


def _notes(study: Study, passage: str, ends: str, lead: str) -> tuple[str, ...]:
    """Return notes on the words that were asked, on the given texts (introduced by these words), and on seeds and intervals."""
    spec = study.metas(KIND)[0]["spec"]
    where = "anywhere" if spec["anywhere"] else "at the end of a sentence"
    number = len(study.rows(KIND)["item"].unique())
    return (
        f"{number:,} words {where} that stood {spec['near']} to {spec['words']} words before, of four letters or more, without "
        f"the {spec['common']} most frequent",
        f"{passage} {spec['words']} words before, {ends} the last {spec['near']} of them{lead}",
        f"most seeds of a model: {study.num_seeds}; 95% intervals (passages by source, and seeds)",
    )


def summary(study: Study) -> Table:
    """Tabulate accuracy and perplexity with 95% intervals."""
    columns = []
    for given in GIVEN:
        key = given.replace(" ", "_")
        columns.append(Column(f"accuracy_{key}", f"right (%), given the {given}", 1, "higher"))
        columns.append(Column(f"perplexity_{key}", f"perplexity, given the {given}", 1, "lower"))
    rows: dict[str, list[float | None]] = {}
    ranges: dict[str, list[tuple[float, float] | None]] = {}
    for point in points(study).to_dict("records"):
        if point["panel"] != "lead":
            rows.setdefault(point["model"], []).append(point["value"])
            ranges.setdefault(point["model"], []).append(None if np.isnan(point["low"]) else (point["low"], point["high"]))
    notes = _notes(study, "the passage is the", "the last words are", "")
    note = f"{about(study)} {'; '.join(notes)}."
    return Table("Last words of held-out passages", columns, rows, note, ranges=ranges)
