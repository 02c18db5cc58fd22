"""Stick-breaking: synthetic task: Repeated associative recall.

Models of two layers are trained to recall the value that was last assigned to a key; keys are assigned repeatedly.
Stick-breaking, which takes the nearest match first, is better at it than softmax with RoPE. Every model is trained at the same
learning rates, and shown at its best one for each number of keys."""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product
from typing import Any

import pandas as pd

from analysis.names import ordered, style_of, title
from analysis.panels import Drawn, band_note, doublings_axis, draw_lines, legend_of
from analysis.statistics import Term, contrast
from analysis.study import Study
from analysis.style import WIDTH, Files, about, plt, publish
from analysis.tables import Cell, Column, Table, over_seeds
from analysis.verdict import Claim, Comparison, Status, Verdict, decide, undecided
from data.recall import RecallTask
from experiments.evaluations import key_recall as evals  # noqa: F401
from experiments.recipes import recipes
from experiments.scales import MINIS, PAPERS, TINIES, sizes_at

AXES = {"num_keys": int, "peak_lr": float | None}
ANSWERS = {"correct": "answered correctly", "stale": "answered with an earlier value"}
STICK, SOFTMAX = "stick_breaking", "transformer_llama"
NAMED = 8  # most models whose best learning rates fit into a note
LEARNED = 50.0
"""Our choice, in percent: always naming a sequence's most frequent value gets 3% right with many keys, 25% with the fewest."""


@dataclass(frozen=True)
class Grid:
    """Sizes of the task and of the small models trained on it, independent of the scale's own. A step has `batch_size`
    sequences. At these widths, weights drawn from N(0, 0.02^2) are so small that nothing is learnt for thousands of steps."""

    num_keys: tuple[int, ...] = (8, 16, 32, 64)
    num_assignments: int = 4
    num_queries: int = 4
    num_symbols: int = 128
    hidden_size: int = 128
    num_heads: int = 2
    num_layers: int = 2
    initializer_range: float = 0.1
    batch_size: int = 64
    num_steps: int = 3000
    peak_lr: float = 1e-3
    other_lrs: tuple[float, ...] = ()

    def model(self) -> dict[str, Any]:
        """Return the sizes of any model; attention also has heads and an initialisation."""
        return dict(hidden_size=self.hidden_size, num_layers=self.num_layers, mlp_width=2 * self.hidden_size)

    def attention(self) -> dict[str, Any]:
        return dict(**self.model(), num_heads=self.num_heads, initializer_range=self.initializer_range)

    def trainings(self, task: RecallTask) -> Iterator[dict[str, Any]]:
        """Yield the parts of recipes that describe training on a task, for each learning rate; the first is not an axis."""
        tokens, label = self.batch_size * task.seq_len, f"{task.num_keys} keys"
        steps = dict(train_tokens=self.num_steps * tokens, warmup_tokens=self.num_steps // 10 * tokens)
        train, axes = dict(seq_len=task.seq_len, batch_tokens=tokens, **steps), dict(num_keys=task.num_keys)
        yield dict(task=task, axes=axes, label=label, train=dict(**train, peak_lr=self.peak_lr))
        for rate in self.other_lrs:
            own = dict(peak_lr=rate)
            yield dict(task=task, axes=axes | own, label=f"{label}, LR {rate:g}", train=train | own)


SIZES = {
    TINIES: Grid((4, 8), 2, 4, 16, hidden_size=64, batch_size=32, num_steps=400, peak_lr=4e-3),
    (*MINIS, *PAPERS): Grid(other_lrs=(3e-4, 3e-3)),
}


def runs(scale, seeds):
    grid = sizes_at(scale, SIZES, __name__)
    for num_keys in grid.num_keys:
        task = RecallTask(num_keys=num_keys, num_assignments=grid.num_assignments, num_queries=grid.num_queries,
                          num_symbols=grid.num_symbols)  # fmt: skip
        for how, name in product(grid.trainings(task), ("stick_breaking", "transformer_llama", "fox_llama")):
            yield from recipes(scale, name, seeds, model=grid.attention(), **how)


def answers(study: Study) -> pd.DataFrame:
    """Return one row per sequence, with correct and stale as shares of its queries, and the training's learning rate.
    ValueError if nothing is stored."""
    rows = study.stored("recall", "answers").drop(columns="peak_lr", errors="ignore")
    rates = rows["run_id"].map(lambda run_id: float(study.spec(run_id)["train"]["peak_lr"]))
    shares = {what: rows[f"num_{what}"] / rows["num_queries"] for what in ANSWERS}
    return rows.assign(peak_lr=rates, **shares)


def at_best(rows: pd.DataFrame) -> pd.DataFrame:
    """Keep for each model and number of keys the learning rate with the most correct answers; of equals the lowest."""
    means = rows.groupby(["model", "num_keys", "peak_lr"])["correct"].mean()
    best = means.groupby(level=["model", "num_keys"]).idxmax()
    places = pd.MultiIndex.from_frame(rows[["model", "num_keys", "peak_lr"]])
    return rows[places.isin(list(best))].reset_index(drop=True)


def answered(study: Study) -> pd.DataFrame:
    """Return `answers` for each model and number of keys at its best learning rate."""
    return at_best(answers(study))


def rates_note(rows: pd.DataFrame) -> str:
    """Say which learning rates were tried, if several, and which were best if there are only a few models."""
    tried, models, parts = sorted(rows["peak_lr"].unique()), ordered(rows["model"]), []
    if len(tried) < 2:
        return ""
    for model in models if len(models) <= NAMED else ():
        own = at_best(rows[rows["model"] == model]).groupby("num_keys")["peak_lr"].first()
        parts.append(f"{title(model)} {', '.join(f'{rate:g}' for rate in own)}")
    named = f": {'; '.join(parts)}" if parts else ""
    return f"each at the best of learning rates {', '.join(f'{rate:g}' for rate in tried)}{named}"


def draw(study: Study) -> Files:
    rows, frames = answered(study), []
    sizes, styles = sorted(rows["num_keys"].unique()), {model: style_of(model) for model in ordered(rows["model"])}
    figure, panels = plt.subplots(1, 2, figsize=(WIDTH, 2.7), sharex=True)
    for axes, (what, words) in zip(panels, ANSWERS.items(), strict=True):
        lines = []
        for model, style in styles.items():
            shares = rows[rows["model"] == model].groupby(["seed", "num_keys"])[what].mean().unstack()
            x, values_SX = shares.columns.to_numpy(), shares.to_numpy()
            lines.append(Drawn(style, x, values_SX))
            frames.append(pd.DataFrame({"model": model, "quantity": what, "num_keys": x, "share": lines[-1].mean}))
        draw_lines(axes, lines)
        for line in lines:
            axes.plot(line.x, line.mean, line.style.marker, color=line.style.colour, markersize=4)
        doublings_axis(axes, sizes, str)
        axes.set(ylim=(-0.03, 1.03), xlabel="Keys in a sequence", title=words)
    panels[0].set_ylabel("Share of the queries")
    legend_of(figure, list(styles.values()), markers=True)
    task = study.spec(study.lines[0].run_id)["data"]["recall"]
    asked = f"every key is assigned {task['num_assignments']} times, and asked for {task['num_queries']} times among them"
    guessing = f"guessing one of {task['num_symbols']} values: {1 / task['num_symbols']:.2g}"
    return publish(study, figure, frames, asked, guessing, band_note(study.seed_counts.values()), rates_note(answers(study)))


def summary(study: Study) -> Table:
    """Tabulate the percentage of queries answered correctly, or with an earlier value, by model and number of keys."""
    rows = answered(study)
    columns = []
    for size in sorted(rows["num_keys"].unique()):
        columns.append(Column(f"correct_{size}", f"{size} keys: correct (%)", 1, "higher"))
        columns.append(Column(f"stale_{size}", f"{size} keys: an earlier value (%)", 1))
    values: dict[str, list[Cell]] = {}
    for model in ordered(rows["model"]):
        own = rows[rows["model"] == model].groupby(["num_keys", "seed"])[list(ANSWERS)].mean() * 100
        cells = {f"{what}_{size}": of_size[what].to_numpy() for size, of_size in own.groupby("num_keys") for what in ANSWERS}
        values[model] = [cells.get(column.key) for column in columns]
    return over_seeds("Repeated associative recall", columns, values, table_note(study, answers(study)))


def table_note(study: Study, rows: pd.DataFrame) -> str:
    rates = rates_note(rows)
    return about(study, corpus=False) + (f" {rates[0].upper()}{rates[1:]}." if rates else "")


def s7(study: Study) -> Verdict:
    """Stick-breaking answers at least as many queries correctly as softmax with RoPE at every number of keys."""
    comparisons, parts, absent, guessing = [], [], [], []
    for num_keys, own in answered(study).groupby("num_keys"):
        stick, softmax = (own[own["model"] == model] for model in (STICK, SOFTMAX))
        if stick.empty or softmax.empty:
            absent.append(f"both models with {num_keys} keys")
            continue
        name = f"accuracy with {num_keys} keys, stick-breaking minus softmax + RoPE"
        lead = contrast([_accuracy(1.0, stick), _accuracy(-1.0, softmax)])
        comparisons.append(Comparison(name, lead, strict=False, unit="%"))
        ours, theirs = (100 * one["correct"].mean() for one in (stick, softmax))
        guessing += [f"{num_keys} keys"] if theirs < LEARNED else []
        parts.append(f"{num_keys} keys {ours:.1f}% and {theirs:.1f}%")
    sentence = f"Stick-breaking and softmax with RoPE answer: {', '.join(parts)}."
    verdict = decide(sentence, comparisons, absent)
    if guessing and verdict.status is not Status.NOT_MEASURED:
        why = f"Softmax with RoPE has not learned the task with {' and '.join(guessing)}: it answers less than half, so that"
        return undecided(verdict, f"{why} there is no baseline. It would take other learning rates or more steps.")
    return verdict


def _accuracy(sign: float, rows) -> Term:
    """Return the mean accuracy in percent as a term for `contrast`, paired by sequence: all models get the same ones."""
    correct_SN = 100 * rows.pivot_table(index="run_id", columns="sequence", values="correct").to_numpy()
    return Term.of(rows["model"].iloc[0], sign, correct_SN, items="sequences")


CLAIMS = (Claim("S7", "It is better at repeated associative recall than softmax with RoPE", s7),)
