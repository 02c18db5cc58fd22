"""Tight pruning, which keeps ACP's promise with another bound: what it skips, its speed and its loss, beside ACP's own rule."""

import numpy as np

from analysis.curves import loss_curves
from analysis.pruning import skipped, tile_note
from analysis.study import Study
from analysis.style import scale_note
from analysis.tables import Cell, Column, over_seeds
from experiments import evaluations
from experiments.acp.acp_quality import PRUNED
from experiments.acp.acp_quality import runs as pairs
from experiments.acp.acp_speed import times
from results.provenance import commit_name, is_cpu

TITLE = "Tight pruning beside adaptive computation pruning"
PAPER = "beyond the papers"
SHOWS = (
    "Both rules promise that no query loses more than e^-10 of its probability. The paper's knows of a head how large its "
    "logits can be; the tight one adds up, tile by tile, what the newest keys weigh and what the gates leave of the others. "
    "FoX (Pro) trained with each, at three training contexts. Not in the papers."
)


AXES = {"pruning": ("pruned", "tightly pruned"), "context": int}


def runs(scale, seeds):
    return pairs(scale, seeds, (("pruned", PRUNED), ("tightly pruned", PRUNED | dict(prune_tightly=True))))


def evals(scale):
    return evaluations.loss(scale) + evaluations.skipped(scale) + times(scale)


SPEED = "attention_speed"


def summary(study: Study):
    """A line per context and rule. Times are relative to the same model's without pruning, on the same machine."""
    columns = [
        Column("tiles_pruned", "tiles skipped (%)", 1),
        Column("loss", "held-out loss (nats)", 4),
        Column("loss_change", "loss, pruned minus not (nats, millionths)", 2, style="signed"),
        Column("loss_change_error", "its standard error over documents", 2),
        Column("dropped", "largest probability dropped (of e^-10)", 3),
        Column("attention", "attention's time (% of that without pruning)", 0),
        Column("step", "training step's time (the same)", 0),
    ]
    losses = {curve.label: curve.losses_SN[:, : curve.train_len].mean(1) for curve in loss_curves(study)}
    times, machines, commits = _relative_times(study)
    found = sorted(skipped(study), key=lambda each: (each.context, each.label))
    values: dict[str, list[Cell]] = {}
    for each in found:
        change_D = 1e6 * (each.losses["loss_pruned"] - each.losses["loss"])
        error = float(change_D.std()) / len(change_D) ** 0.5
        dropped = float(each.dropped_H.max() / np.exp(each.log_tolerance))
        values[each.label] = [
            100 * each.share_SD.mean(axis=1), losses.get(each.label), float(change_D.mean()), error, dropped,
            *times.get(each.label, (None, None)),
        ]  # fmt: skip
    note = (
        f"{scale_note(study).capitalize()}. Corpus: {study.corpora}. Each at its training context, {tile_note(tuple(found))}."
    )
    note += "".join(
        f" Times on {machine}{', which skips only what all heads do' if is_cpu(machine) else ''}." for machine in machines
    )
    if len(commits) > 1:
        note += f" They are of different code ({', '.join(commits)}), attention without pruning too: compare within a line."
    return over_seeds("FoX (Pro) trained with ACP's pruning and with tight pruning", columns, values, note)


def _relative_times(study: Study) -> tuple[dict[str, tuple[float, float]], list[str], list[str]]:
    """Relative times by label (of one seed): attention forward + backward, and the step, in percent; machines; commits."""
    found: dict[str, tuple[float, float]] = {}
    machines: set[str] = set()
    commits: dict[str, None] = {}
    for line, rows, meta in study.evaluations(SPEED):
        ms = rows.set_index(["quantity", "pruned"])["milliseconds"]
        found.setdefault(line.label, tuple(100 * float(ms[what, 1] / ms[what, 0]) for what in ("attention", "step")))  # type: ignore[arg-type]
        machines.add(str(rows["machine"].iloc[0]))
        commits[commit_name(meta["provenance"])] = None
    return found, sorted(machines), list(commits)
