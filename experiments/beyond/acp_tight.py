"""Beyond the papers: Tight pruning beside adaptive computation pruning.

Both rules promise that no query loses more than e^-10 of its probability. The paper's knows of a head how large its logits can
be; the tight one adds up, tile by tile, what the newest keys weigh and what the gates leave of the others. FoX (Pro) trained
with each, at three training contexts. Not in the papers."""

from analysis.curves import loss_curves
from analysis.pruning import skipped, tile_note
from analysis.study import Study
from analysis.style import about
from analysis.tables import Cell, Column, over_seeds
from experiments import evaluations
from experiments.acp.acp_pruned_share import largest_dropped
from experiments.acp.acp_quality import PRUNED
from experiments.acp.acp_quality import runs as pairs
from experiments.acp.acp_speed import times
from results.provenance import commit_name, is_cpu

AXES = {"pruning": ("pruned", "tightly pruned"), "context": int}


def runs(scale, seeds):
    return pairs(scale, seeds, (("pruned", PRUNED), ("tightly pruned", PRUNED | dict(prune_tightly=True))))


def evals(scale):
    return evaluations.loss(scale) + evaluations.skipped(scale) + times(scale)


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
        change = [float(change_D.mean()), error, largest_dropped(each)]
        shown = times.get(each.label, (None, None))
        values[each.label] = [100 * each.share_SD.mean(axis=1), losses.get(each.label), *change, *shown]
    note = f"{about(study)} Each at its training context, {tile_note(tuple(found))}."
    for machine in sorted(machines):
        note += f" Times on {machine}{', which skips only what all heads do' if is_cpu(machine) else ''}."
    if len(commits) > 1:
        note += f" They are of different code ({', '.join(commits)}), attention without pruning too: compare within a line."
    return over_seeds("FoX (Pro) trained with ACP's pruning and with tight pruning", columns, values, note)


def _relative_times(study: Study) -> tuple[dict[str, list[float]], set[str], list[str]]:
    """Relative times by label (of one seed): attention forward + backward, and the step, in percent; machines; commits."""
    found: dict[str, list[float]] = {}
    evaluations = study.evaluations("attention_speed")
    for line, rows, _ in evaluations:
        ms = rows.set_index(["quantity", "pruned"])["milliseconds"]
        found.setdefault(line.label, [100 * float(ms[what, 1] / ms[what, 0]) for what in ("attention", "step")])
    machines = {str(rows["machine"].iloc[0]) for _, rows, _ in evaluations}
    return found, machines, list(dict.fromkeys(commit_name(meta["provenance"]) for *_, meta in evaluations))
