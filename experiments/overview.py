"""Tables of `list`, `plan` and `why`: artefacts and scales, the cost of a plan, the provenance of a figure."""

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from analysis.study import Study
from experiments.artefact import artefacts
from experiments.graph import Planned
from experiments.plan import KnownCorpus, Plan, Run
from experiments.scales import SCALES
from results.provenance import commit_name
from training.hardware import DENSE_BF16_PEAK

GPU = "H100"
WIDTH = 240
SHOWN = 5


def uncut(console: Console) -> Console:
    """Return a console with the same output that is wide enough for tables: a narrow terminal wraps lines but cuts none."""
    return Console(file=console.file, width=max(console.width, WIDTH), quiet=console.quiet, highlight=False, soft_wrap=True)


def print_overview(console: Console, results_dir: Path) -> None:
    """Print for `list` every artefact with the scales at which it has stored rows, and every scale."""
    table = Table("artefact", "paper", "shows", "stored at", box=None, pad_edge=False)
    for stem, artefact in artefacts().items():
        there = [scale for scale in SCALES if (results_dir / scale / f"{stem}.json").is_file()]
        table.add_row(stem, artefact.paper, artefact.title, ", ".join(there) or "-")
    console.print(table)
    console.print()
    scales = Table("scale", "train tokens", "training length", "evaluation length", "about", box=None, pad_edge=False)
    for scale in SCALES.values():
        scales.add_row(scale.name, count(scale.train_tokens), f"{scale.seq_len:,}", f"{scale.document_len:,}", scale.about)
    console.print(scales)


def print_idle(plan: Plan, console: Console) -> None:
    """Print which artefacts have no line that matches the request, and which options no run reads."""
    if plan.idle:
        more = f" and {len(plan.idle) - SHOWN} more" if len(plan.idle) > SHOWN else ""
        console.print(f"[yellow]skipped[/] {', '.join(plan.idle[:SHOWN])}{more}: none of their lines matches the request")
    if plan.unread:
        console.print(f"[yellow]ignored[/] {', '.join(plan.unread)}: every run here generates its own sequences")


def print_plan(plan: Plan, mfu: float, console: Console) -> None:
    """Print for `plan` the size of each run, its cost at `mfu` of a GPU's peak, what exists of it, and the lines it is for."""
    if not 0 < mfu <= 1:
        raise ValueError(f"--mfu {mfu}: give a share between 0 and 1, such as 0.4.")
    print_idle(plan, console)
    for corpus in plan.corpora:
        ready = f"ready in {corpus.folder}" if corpus.ready else "to be prepared"
        state = corpus.note if isinstance(corpus, KnownCorpus) else ready
        what = f"corpus {corpus.spec.source}, {corpus.spec.tokenizer} ({corpus.spec.vocab_size} tokens): {state}"
        console.print(what, markup=False)
    table = Table(box=None, pad_edge=False)
    for heading in ("run", "parameters", "tokens", "FLOPs", f"{GPU}-hours", "disk", "exists, evaluations", "for"):
        left = heading in ("run", "exists, evaluations", "for")
        table.add_column(heading, no_wrap=heading != "for", justify="left" if left else "right")
    per_hour = 3600 * mfu * DENSE_BF16_PEAK[GPU]
    hours_in_all = hours_to_do = disk_in_all = 0.0
    to_train = to_evaluate = 0
    for run in plan.runs.values():
        params, missing, trains = run.spec.model.num_params, run.missing_evals, run.trains
        flops = train_flops(run) + eval_flops(run, run.evals)
        disk = 4 * params * (3 * 3 + 1) / 2**30  # fp32: weights and two moments in each of 3 checkpoints, and the export
        hours_in_all, disk_in_all = hours_in_all + flops / per_hour, disk_in_all + disk
        to_train, to_evaluate = to_train + trains, to_evaluate + len(missing)
        hours_to_do += (trains * train_flops(run) + eval_flops(run, missing)) / per_hour
        table.add_row(
            f"{run.spec.scale}/{run.spec.folder_name}", f"{params:,}", count(run.spec.train.train_tokens), f"{flops:.1e}",
            f"{flops / per_hour:,.2f}", f"{disk:,.2f} GiB", _state(run), _wanted_by(plan, run),
        )  # fmt: skip
    title = f"{len(plan.runs)} runs, {sum(len(run.evals) for run in plan.runs.values())} evaluations"
    table.add_row(title, "", "", "", f"{hours_in_all:,.2f}", f"{disk_in_all:,.2f} GiB", "", "", style="bold")
    table.add_row(f"to do: {to_train} trainings, {to_evaluate} evaluations", "", "", "", f"{hours_to_do:,.2f}", style="bold")
    uncut(console).print(table)
    console.print(
        "parameters as the paper counts them (without the input embedding); FLOPs of training (three forward passes, by the "
        "formulas of Table 6) and evaluation; disk space during training, a tenth of it afterwards; "
        f"hours at {mfu:.0%} of an {GPU}'s {DENSE_BF16_PEAK[GPU] / 1e12:.0f} TFLOP/s (bf16), of which small "
        "or recurrent models reach a fraction: --mfu sets another MFU (Table 6 and Appendix F.9 have measured ones)"
    )


def print_ancestry(stem: str, scale: str, results_dir: Path, console: Console) -> None:
    """Print for `why STEM` every line of an artefact, its run with all starts, and the evaluations that it is drawn from."""
    study = Study(results_dir, scale, stem)
    console.print(f"{stem} at {scale}: {len(study.lines)} lines")
    for line in study.lines:
        run = study.runs[line.run_id]
        data = run["spec"]["data"]
        adopted = study.is_adopted(line)
        of = "trained elsewhere and adopted" if adopted else f"seed {line.seed}"
        console.print(f"\n[bold]{line.label}[/] ({line.model}, {of}): run {line.run_id} of scale {line.scale}")
        console.print(f"  corpus {data['source']}, {data['tokenizer']}, {data['fingerprint']}", markup=False)
        console.print(f"  drawn from {line.trained_weights}")
        if run["final_loss"] is not None:
            console.print(f"  {len(run['starts'])} starts, final loss {run['final_loss']:.5f}")
        for start in run["starts"]:
            console.print(f"  start {_made(start)}, from step {start.get('first_step', 0)}", soft_wrap=True)
        for meta in study.metas_of(line):
            console.print(f"  rows  {meta['eval_id']}: {meta['created']}, {_made(meta['provenance'])}", soft_wrap=True)


def _made(provenance: dict[str, Any]) -> str:
    """Return a provenance as one line: date, commit, device and versions."""
    versions = ", ".join(f"{name} {version}" for name, version in (provenance.get("versions") or {}).items() if version)
    machine = f"{provenance.get('device')}, python {provenance.get('python')}, {versions}"
    return f"{provenance.get('date', '')} {commit_name(provenance)} on {machine}"


def train_flops(run: Run) -> float:
    """FLOPs to train a run: three forward passes over its tokens; 0 for a run that was trained elsewhere."""
    train = run.spec.train
    return 0.0 if run.spec.weights is not None else 3 * run.spec.model.flops_per_token(train.seq_len) * train.train_tokens


def eval_flops(run: Run, specs: Iterable[Any]) -> float:
    return sum(spec.flops(run.spec.model) for spec in specs)


def task_flops(task: Planned) -> float:
    """FLOPs of a task and of the evaluations that wait for it, to order tasks by; infinite for a task without a run."""
    if task.run is None:
        return float("inf")
    return (train_flops(task.run) if task.kind == "train" else 0.0) + eval_flops(task.run, task.run.missing_evals)


def _state(run: Run) -> str:
    row = run.folder.last_row()
    begun = "nothing" if row is None else f"step {row['step']}"
    trained = "adopted" if run.spec.weights is not None else "trained" if run.folder.finished else begun
    return f"{trained}, {len(run.evals) - len(run.missing_evals)}/{len(run.evals)}"


def _wanted_by(plan: Plan, run: Run) -> str:
    """Return the first line that is drawn from a run, with its label, and how many more lines are."""
    run_id = run.spec.run_id
    (stem, line), *others = [(stem, line) for stem, lines in plan.drawings.items() for line in lines if line.run_id == run_id]
    label = (f": {line.label}" if line.label != line.model else "") + (f", seed {line.seed}" if line.seed else "")
    return f"{stem}{label}" + (f", and {len(others)} more" if others else "")


def count(number: float) -> str:
    for unit, value in (("B", 1e9), ("M", 1e6), ("k", 1e3)):
        if number >= value:
            return f"{number / value:.3g}{unit}"
    return f"{number:.0f}"
