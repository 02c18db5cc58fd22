"""Repeated associative recall: a synthetic task on which the last of several values of a key is asked for."""

from pathlib import Path

import numpy as np
import pandas as pd

from analysis.names import ordered, style_of
from analysis.panels import Drawn, band_note, draw_lines, legend_of
from analysis.recall import answered
from analysis.statistics import Term, contrast
from analysis.study import Study
from analysis.style import WIDTH, figure_style, plt, publish, scale_note
from analysis.tables import Cell, Column, Table, over_seeds
from analysis.verdict import Claim, Comparison, Verdict, decide
from data.recall import RecallTask
from experiments.evaluations import key_recall as evals  # noqa: F401
from experiments.recipes import recipes

TITLE = "Repeated associative recall"
PAPER = "Stick-breaking: synthetic task"
SHOWS = (
    "Models of two layers are trained to answer with the value that a key was given last; keys are assigned repeatedly. "
    "Stick-breaking, which takes the nearest match first, is better at it than softmax with RoPE."
)


AXES = {"num_keys": int}


def runs(scale, seeds):
    grid = scale.recall
    for num_keys in grid.num_keys:
        task = RecallTask(num_keys=num_keys, num_assignments=grid.num_assignments, num_queries=grid.num_queries,
                          num_symbols=grid.num_symbols)  # fmt: skip
        tokens = grid.batch_size * task.seq_len
        model = dict(hidden_size=grid.hidden_size, num_layers=grid.num_layers, num_heads=grid.num_heads,
                     mlp_width=2 * grid.hidden_size, initializer_range=grid.initializer_range)  # fmt: skip
        train = dict(seq_len=task.seq_len, batch_tokens=tokens, train_tokens=grid.num_steps * tokens,
                     warmup_tokens=grid.num_steps // 10 * tokens, peak_lr=grid.peak_lr)  # fmt: skip
        for name in ("stick_breaking", "transformer_llama", "fox_llama"):
            axes, label = dict(num_keys=num_keys), f"{num_keys} keys"
            yield from recipes(scale, name, seeds, axes=axes, label=label, model=model, train=train, task=task)


@figure_style()
def draw(study: Study) -> list[Path]:
    """Write figures/STEM.{png,pdf,csv}."""
    rows = answered(study)
    sizes = sorted(rows["num_keys"].unique())
    models = ordered(rows["model"])
    frames = []
    figure, panels = plt.subplots(1, 2, figsize=(0.8 * WIDTH, 2.7), sharex=True)
    for axes, what, words in zip(
        panels, ("correct", "stale"), ("answered correctly", "answered with an earlier value"), strict=True
    ):
        lines = [_line(rows[rows["model"] == model], model, what) for model in models]
        draw_lines(axes, lines)
        for line in lines:
            axes.plot(line.x, line.mean, line.style.marker, color=line.style.colour, markersize=4)
        axes.set_xscale("log", base=2)
        axes.set_xticks(sizes, [str(size) for size in sizes])
        axes.minorticks_off()
        axes.set(ylim=(-0.03, 1.03), xlabel="Keys in a sequence", title=words)
        frames += [
            pd.DataFrame({"model": model, "quantity": what, "num_keys": line.x, "share": line.mean})
            for model, line in zip(models, lines, strict=True)
        ]
    panels[0].set_ylabel("Share of the queries")
    legend_of(figure, [style_of(model) for model in models], markers=True)
    task = study.spec(study.lines[0].run_id)["data"]["recall"]
    return publish(
        study,
        figure,
        pd.concat(frames, ignore_index=True),
        f"every key is assigned {task['num_assignments']} times, and asked for {task['num_queries']} times among them",
        f"guessing one of {task['num_symbols']} values: {1 / task['num_symbols']:.2g}",
        band_note(study.seed_counts.values()),
    )


def _line(rows: pd.DataFrame, model: str, what: str) -> Drawn:
    shares = rows.groupby(["seed", "num_keys"])[what].mean().unstack()
    return Drawn(style_of(model), shares.columns.to_numpy(), shares.to_numpy())


def summary(study: Study) -> Table:
    """Shares of the queries that were answered, in percent, by model and size."""
    rows = answered(study)
    sizes = sorted(rows["num_keys"].unique())
    columns = [
        Column(f"{what}_{size}", f"{size} keys: {words} (%)", 1, better)  # type: ignore[arg-type]
        for size in sizes
        for what, words, better in (("correct", "correct", "higher"), ("stale", "an earlier value", ""))
    ]
    values: dict[str, list[Cell]] = {}
    for model in ordered(rows["model"]):
        own = rows[rows["model"] == model]
        values[model] = [
            np.array(100 * own[own["num_keys"] == size].groupby("seed")[what].mean())
            if (own["num_keys"] == size).any()
            else None
            for size in sizes
            for what in ("correct", "stale")
        ]
    return over_seeds("Repeated associative recall", columns, values, f"{scale_note(study).capitalize()}.")


STICK, SOFTMAX = "stick_breaking", "transformer_llama"


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


CLAIMS = (Claim("S7", "It is better at repeated associative recall than softmax with RoPE", s7),)
