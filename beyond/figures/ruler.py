"""Beyond the papers: RULER, single needles.

S-NIAH 1 to 3 of RULER, through the LM evaluation harness: a magic number among repeated sentences, a number in text, a UUID in
text. Not in the paper; the examples have the harness's form but are made here."""

import pandas as pd

from analysis.names import style_of
from analysis.panels import Drawn, band_note, doublings_axis, draw_lines, legend_of
from analysis.study import Study
from analysis.style import WIDTH, Files, about, plt, publish, tokens, training_length_line
from analysis.tables import Column, Table, over_seeds
from beyond.eval.ruler.spec import Spec
from experiments.recipes import main_models as runs  # noqa: F401
from experiments.scales import MINIS, PAPERS, TINIES, sizes_at

SIZES = {TINIES: (448, 1024), MINIS: (1024, 2048, 4096, 8192, 16384), PAPERS: (4096, 8192, 16384, 32768, 65536)}
"""Lengths of the texts."""
KIND = "ruler"
TITLES = {"niah_single_1": "S-NIAH-1", "niah_single_2": "S-NIAH-2", "niah_single_3": "S-NIAH-3"}


def evals(scale):
    """The three tasks; models too small to spell an answer choose one of four."""
    lengths = sizes_at(scale, SIZES, __name__)
    return (Spec(lengths=lengths, samples=16, answers="choose") if scale.stand_ins else Spec(lengths=lengths),)


def scores(study: Study) -> pd.DataFrame:
    """Percent by (model, seed) and (task, length), in the paper's order of models. ValueError if nothing is stored."""
    rows = study.stored(KIND, "RULER scores")
    return rows.pivot_table(index=["model", "seed"], columns=["task", "length"], values="value", sort=False)


def _note(study: Study) -> str:
    spec = study.metas(KIND)[0]["spec"]
    choose = spec["answers"] == "choose"
    how = "the likeliest of four values, guessing gives 25%" if choose else "values found in what is generated"
    return f"{how}; {spec['samples']} examples per task and length"


def draw(study: Study) -> Files:
    table = scores(study)
    styles = {model: style_of(model) for model in table.index.unique("model")}
    tasks = [task for task in TITLES if task in table.columns.get_level_values("task")]
    figure, panels = plt.subplots(1, len(tasks), figsize=(WIDTH, 2.6), sharey=True, squeeze=False)
    for axes, task in zip(panels[0], tasks, strict=True):
        lengths = table[task].columns.sort_values()
        for model, style in styles.items():
            line = Drawn(style, lengths.to_numpy(), table.loc[model][task][lengths].to_numpy())
            draw_lines(axes, [line])
            axes.plot(line.x, line.mean, style.marker, color=style.colour, markersize=4)
        doublings_axis(axes, lengths)
        axes.set(ylim=(-3, 103), xlabel="length (tokens)", title=TITLES[task])
        training_length_line(axes, study.train_len)
    panels[0, 0].set_ylabel("answers that are right (%)")
    legend_of(figure, list(styles.values()), markers=True)
    frame = table.groupby("model", sort=False).mean().T.reset_index().melt(["task", "length"], value_name="percent")
    dashed = f"dashed vertical: training length {tokens(study.train_len)}"
    return publish(study, figure, frame, _note(study), band_note(study.seed_counts.values()), dashed)


def summary(study: Study) -> Table:
    table = scores(study).sort_index(axis=1)
    keys: list[tuple[str, int]] = table.columns.to_list()  # type: ignore[assignment]
    columns = [Column(f"{task}_{length}", f"{TITLES[task]}, {tokens(length)} (%)", 1, "higher") for task, length in keys]
    values = {str(model): list(own.to_numpy().T) for model, own in table.groupby("model", sort=False)}
    note = f"{about(study, corpus=False)} {_note(study).capitalize()}."
    return over_seeds("RULER, single needles, through the LM evaluation harness", columns, values, note)
