"""Beyond the papers: Multi-query associative recall.

Small models are trained to recall the value of each key once (arXiv 2312.04927: all key-value pairs first, then the queries
among blanks; with fewer symbols than there). Attention keeps the whole text, recurrent models a state of fixed size. Every
model is trained at the same learning rates, and shown at its best one for each number of keys. FoX, ALiBi and Transformers
start from larger weights than on text, other models as on text, which may hold some of them back. Not in the paper."""

from dataclasses import fields
from itertools import product

import pandas as pd

from analysis.names import LineStyle, ordered, style_of, title
from analysis.panels import band_note
from analysis.study import Study
from analysis.style import DPI, WIDTH, Files, plt, publish
from analysis.tables import Column, Table, over_seeds
from data.recall import RecallTask
from experiments.evaluations import key_recall as evals  # noqa: F401
from experiments.recipes import model_spec, recipes
from experiments.scales import MINIS, PAPERS, TINIES, sizes_at
from experiments.stick_breaking import stick_recall

SIZES = {TINIES: (16,), (*MINIS, *PAPERS): (32, 64, 128)}
"""Numbers of keys; sizes of models and training are those of repeated recall (stick_recall)."""
AXES = stick_recall.AXES


def runs(scale, seeds):
    grid = sizes_at(scale, stick_recall.SIZES, stick_recall.__name__)
    head, attention = grid.hidden_size // grid.num_heads, grid.attention()
    models = {
        "fox_pro": attention,
        "transformer_pro": attention,
        "mamba2": dict(hidden_size=grid.hidden_size, num_layers=2 * grid.num_layers, head_dim=head, ssm_state_size=head),
        "hgrn2": dict(**grid.model(), expand_ratio=head),
        "delta_net": dict(**grid.model(), head_dim=head),
    }
    yield from _trainings(scale, seeds, models)


def more(scale, seeds, models):
    """Yield the recipes of further models, with the same sizes wherever their specs have such fields."""
    grid = sizes_at(scale, stick_recall.SIZES, stick_recall.__name__)
    head, width = grid.hidden_size // grid.num_heads, 2 * grid.hidden_size
    sizes = dict(**grid.attention(), head_dim=head, ssm_state_size=head, fox_every=grid.num_layers, fox_mlp_width=width,
                 mamba_mlp_width=width)  # fmt: skip
    declared = {recipe.name for recipe in runs(scale, seeds[:1])}
    known = {model: {each.name for each in fields(model_spec(model, scale, vocab_size=1))} for model in models}
    others = {model: {name: sizes[name] for name in sizes if name in known[model]} for model in models if model not in declared}
    yield from _trainings(scale, seeds, others)


def _trainings(scale, seeds, models):
    """Yield recipes of models with their sizes, for every number of keys and learning rate."""
    grid = sizes_at(scale, stick_recall.SIZES, stick_recall.__name__)
    for num_keys in sizes_at(scale, SIZES, __name__):
        for how, (name, model) in product(grid.trainings(task_of(num_keys, grid)), models.items()):
            yield from recipes(scale, name, seeds, model=model, **how)


def task_of(num_keys: int, grid: stick_recall.Grid) -> RecallTask:
    symbols = max(num_keys, grid.num_symbols)
    return RecallTask(num_keys=num_keys, num_assignments=1, num_queries=1, num_symbols=symbols, pairs_first=True)


def is_zoologys(study: Study, run_id: str) -> bool:
    """Return whether a run was trained on Zoology's layout; older runs have pairs and queries in any order."""
    return bool(study.spec(run_id)["data"]["recall"].get("pairs_first"))


def weights_note(study: Study) -> str:
    """Say which models start from larger weights than on text, unless all models do."""
    starts = {line.model: study.spec(line.run_id)["model"].get("initializer_range") for line in study.lines}
    larger = {model: start for model, start in starts.items() if start}
    if len(larger) in (0, len(starts)):
        return ""
    deviations = " or ".join(f"{start:g}" for start in sorted({*larger.values()}))
    names = ", ".join(map(title, ordered(larger)))
    return f"initial weights have a standard deviation of {deviations} in {names}, in others as on text"


def answers(study: Study) -> pd.DataFrame:
    """Return the rows of one layout; layouts are never mixed. If there are rows of Zoology's layout, only these count."""
    rows = stick_recall.answers(study)
    zoologys = rows["run_id"].map(lambda run_id: is_zoologys(study, run_id))
    return rows[zoologys] if zoologys.any() else rows


def shares(study: Study) -> pd.DataFrame:
    """Percent of queries answered correctly, by (model, seed) and number of keys, at the best learning rate."""
    return shares_of(answers(study))


def shares_of(rows: pd.DataFrame) -> pd.DataFrame:
    own = stick_recall.at_best(rows).groupby(["model", "seed", "num_keys"])
    return 100 * own["correct"].mean().unstack()


def draw(study: Study) -> Files:
    rows = answers(study)
    return draw_bars(study, rows, {model: style_of(model) for model in ordered(rows["model"])})


def draw_bars(study: Study, rows: pd.DataFrame, styles: dict[str, LineStyle]) -> Files:
    """Draw a panel per number of keys, with a bar per `model` in the rows, in the order of `styles`, and a dot per seed."""
    table = shares_of(rows)
    size = (WIDTH, 1.1 + 0.19 * len(styles))
    symbols = study.spec(study.lines[0].run_id)["data"]["recall"]["num_symbols"]
    figure, panels = plt.subplots(ncols=len(table.columns), sharey=True, squeeze=False, figsize=size)
    figure.set_dpi(DPI)  # hinting makes long labels wider: lay out at the resolution of the drawing
    for axes, keys in zip(panels[0], table.columns, strict=True):
        for place, (model, style) in enumerate(styles.items()):
            own = table.loc[model][keys].dropna()
            axes.barh(place, own.mean(), 0.8, color=style.colour)
            if len(own) > 1:
                axes.plot(own, [place] * len(own), ".", color="#222222", markersize=3)
        axes.axvline(100 / symbols, color="#555555", linestyle=(0, (4, 3)), linewidth=0.8)
        axes.set(title=f"{keys} keys", xlim=(0, 103), ylim=(len(styles) - 0.5, -0.5), xlabel="queries answered (%)")
        axes.grid(visible=False, axis="y")
    panels[0, 0].set_yticks(range(len(styles)), [style.label for style in styles.values()])
    zoologys = any(is_zoologys(study, line.run_id) for line in study.lines)
    layout = "all pairs come first" if zoologys else "pairs and queries mixed, values may repeat: not yet Zoology's layout"
    asked = f"every key is assigned and asked for once ({layout}); dashed: guessing one of {symbols} values"
    means = table.groupby("model").mean().reset_index().melt("model", value_name="percent")
    rates = stick_recall.at_best(rows).groupby(["model", "num_keys"], as_index=False)["peak_lr"].first()
    counts = set(study.seed_counts.values())
    seeds = band_note(counts).partition(", bands")[0] + ", dots: single seeds" * (max(counts) > 1)
    notes = (asked, seeds, stick_recall.rates_note(rows), weights_note(study))
    return publish(study, figure, means.merge(rates, how="left"), *notes)


def summary(study: Study) -> Table:
    rows = answers(study)
    return table_of(study, rows, {model: model for model in ordered(rows["model"])})


def table_of(study: Study, rows: pd.DataFrame, names: dict[str, str]) -> Table:
    """Tabulate the shares of each `model` in the rows, in the order and under the names of `names`."""
    table = shares_of(rows)
    columns = [Column(f"keys_{keys}", f"{keys} keys (%)", 1, "higher") for keys in table.columns]
    values = {name: [table.loc[model][keys].to_numpy() for keys in table.columns] for model, name in names.items()}
    weights = weights_note(study)
    note = stick_recall.table_note(study, rows) + (f" {weights[0].upper()}{weights[1:]}." if weights else "")
    return over_seeds("Multi-query associative recall", columns, values, note)
