"""Beyond the papers: Tight pruning beside adaptive computation pruning.

Both rules guarantee that no query loses more than e^-10 of its probability. The paper's rule uses one bound on the logits of
each head; the tight rule adds up, tile by tile, the weights of the newest keys and what the gates leave of the others. FoX
(Pro) is trained with each rule and without pruning at three training contexts; the tight rule is also applied to the models
that were trained without it. Not in the papers."""

from dataclasses import replace
from typing import Literal

from analysis.curves import difference, loss_curves
from analysis.pruning import skipped, tile_note
from analysis.study import Study
from analysis.style import about, tokens
from analysis.tables import Cell, Column, over_seeds
from experiments import evaluations
from experiments.acp.acp_pruned_share import largest_dropped
from experiments.acp.acp_quality import PRUNED, WHOLE
from experiments.acp.acp_quality import runs as pairs
from experiments.acp.acp_speed import times
from results.provenance import commit_name, is_cpu

AXES = {"pruning": ("pruned", "tightly pruned", "unpruned"), "context": int}
TIGHT: Literal["tight"] = "tight"


def runs(scale, seeds):
    tightly = PRUNED | dict(prune_tightly=True)
    return pairs(scale, seeds, (("pruned", PRUNED), ("tightly pruned", tightly), ("unpruned", WHOLE)))


def evals(scale):
    """Losses, and the skipped share and the times by the model's own rule and by the tight one."""
    (skips,), (timing,) = evaluations.skipped(scale), times(scale)
    return (*evaluations.loss(scale), skips, timing, replace(skips, rule=TIGHT), replace(timing, rule=TIGHT))


def summary(study: Study):
    """Tabulate one line per context and training. Times are relative to the same model without pruning on the same machine."""
    columns = [
        Column("tiles_pruned", "tiles skipped (%)", 1),
        Column("loss", "held-out loss (nats)", 4),
        Column("loss_change", "loss, pruned minus not (nats, millionths)", 2, style="signed"),
        Column("loss_change_error", "its standard error over documents", 2),
        Column("dropped", "largest probability dropped (times e^-10)", 3),
        Column("attention", "attention's time (% of that without pruning)", 0),
        Column("step", "training step's time (the same)", 0),
    ]
    by_label = {curve.label: curve for curve in loss_curves(study)}
    found = sorted(skipped(study), key=lambda each: (each.context, each.label))
    own, values = _by_rule(study), dict[str, list[Cell]]()
    for each in found:
        curve, (tiles, *pruned) = by_label.get(each.label), own[each.label]
        loss = None if curve is None else curve.losses_SN[:, : curve.train_len].mean(1)
        values[each.label] = [tiles, loss, *pruned]
    if study.evaluations("pruning", rule=TIGHT):
        columns += [
            Column("above", "loss above that of the model trained without (nats)", 4, style="signed"),
            *(replace(column, key=f"{column.key}_tightly", title=f"by the tight rule: {column.title}")
              for column in columns if column.key != "loss"),
        ]  # fmt: skip
        tight = _by_rule(study, TIGHT)
        for each in found:
            curve, whole = by_label.get(each.label), by_label.get(f"unpruned, context {each.context}")
            above = None if curve is None or whole is None or curve is whole else difference(curve, whole)
            values[each.label] += [above, *tight.get(each.label, [None] * 6)]
    times = study.evaluations("attention_speed")
    machines = {str(rows["machine"].iloc[0]) for _, rows, _ in times}
    note = f"{about(study)} Each at its training context, {tile_note(tuple(found))}."
    if any(each.axes["pruning"] == "unpruned" for each in found):
        note += " Models trained without pruning are pruned by ACP's rule."
    for machine in sorted(machines):
        note += f" Times on {machine}{', which skips only what all heads do' if is_cpu(machine) else ''}."
    note += f" {different}" if (different := by_code(study)) else ""
    return over_seeds("FoX (Pro) trained with ACP's pruning and with tight pruning", columns, values, note)


def by_code(study: Study) -> str:
    """Say how long attention without pruning takes with the code of each commit, if there are several."""
    found: dict[str, list[str]] = {}
    for line, rows, meta in study.evaluations("attention_speed", rule=None):
        (ms,) = rows.loc[(rows["quantity"] == "attention") & (rows["pruned"] == 0), "milliseconds"]
        found.setdefault(commit_name(meta["provenance"]), []).append(f"{ms:.1f} at {tokens(int(line.axes['context']))}")
    parts = [f"{', '.join(times)} ({commit})" for commit, times in found.items()]
    told = f"Times are of different code: attention without pruning takes {'; '.join(parts)} (ms). Compare within a line."
    return told if len(parts) > 1 else ""


def _by_rule(study: Study, rule: str | None = None) -> dict[str, list[Cell]]:
    """Return by label what a rule (None: the models' own) skips and changes, and its times in percent, of one seed: attention
    forward + backward, and the step."""
    times: dict[str, list[Cell]] = {}
    for line, rows, _ in study.evaluations("attention_speed", rule=rule):
        ms = rows.set_index(["quantity", "pruned"])["milliseconds"]
        times.setdefault(line.label, [100 * float(ms[what, 1] / ms[what, 0]) for what in ("attention", "step")])
    values: dict[str, list[Cell]] = {}
    for each in skipped(study, rule):
        change_D = 1e6 * (each.losses["loss_pruned"] - each.losses["loss"])
        change = [float(change_D.mean()), float(change_D.std()) / len(change_D) ** 0.5, largest_dropped(each)]
        values[each.label] = [100 * each.share_SD.mean(axis=1), *change, *times.get(each.label, (None, None))]
    return values
