"""Multi-query associative recall: the share of the queries that is answered, by the number of keys."""

from pathlib import Path

import pandas as pd

from analysis.names import ordered, style_of
from analysis.panels import band_note
from analysis.stick_breaking.stick_recall import answered
from analysis.study import Study
from analysis.style import WIDTH, figure_style, plt, publish, scale_note
from analysis.tables import Cell, Column, Table, over_seeds


def shares(study: Study) -> pd.DataFrame:
    """Percent of the queries that were answered, by (model, seed) and number of keys."""
    rows = answered(study)
    return 100 * rows.groupby(["model", "seed", "num_keys"])["correct"].mean().unstack()


@figure_style()
def draw(study: Study) -> list[Path]:
    """Write figures/STEM.{png,pdf,csv}: bars, with every seed as a dot."""
    table = shares(study)
    models = ordered(table.index.get_level_values("model"))
    figure, axes = plt.subplots(figsize=(0.75 * WIDTH, 2.7))
    width = 0.8 / len(models)
    for place, model in enumerate(models):
        own, style = table.loc[model], style_of(model)
        x = [index + (place - (len(models) - 1) / 2) * width for index in range(len(table.columns))]
        axes.bar(x, own.mean(), width * 0.92, color=style.colour, label=style.label)
        if len(own) > 1:
            axes.plot(x, own.to_numpy().T, ".", color="#222222", markersize=3)
    axes.set_xticks(range(len(table.columns)), [f"{keys} keys" for keys in table.columns])
    axes.set(ylim=(0, 103), ylabel="queries answered (%)")
    symbols = study.spec(study.lines[0].run_id)["data"]["recall"]["num_symbols"]
    axes.axhline(100 / symbols, color="#555555", linestyle=(0, (4, 3)), linewidth=0.8)
    figure.legend(loc="outside lower center", ncols=3, fontsize=7)
    notes = (
        f"every key is assigned and asked for once; dashed: guessing one of {symbols} values",
        band_note(study.seed_counts.values()),
    )
    return publish(study, figure, table.groupby("model").mean().reset_index().melt("model", value_name="percent"), *notes)


def summary(study: Study) -> Table:
    table = shares(study)
    columns = [Column(f"keys_{keys}", f"{keys} keys (%)", 1, "higher") for keys in table.columns]
    values: dict[str, list[Cell]] = {
        model: [table.loc[model][keys].to_numpy() for keys in table.columns]
        for model in ordered(table.index.get_level_values(0))
    }
    return over_seeds("Multi-query associative recall", columns, values, f"{scale_note(study).capitalize()}.")
