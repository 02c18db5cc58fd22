"""Execute a plan on this machine: prepare corpora, train, evaluate, draw figures and the report."""

import time
from collections.abc import Iterable
from contextlib import AbstractContextManager
from functools import partial
from pathlib import Path

from rich.console import Console
from rich.markup import escape

from data.plan import CorpusPlan
from data.prepare import prepare
from eval.runner.machine import go_offline_if_unreachable
from experiments import graph, render
from experiments.local import places, run_tasks
from experiments.overview import print_idle, task_flops
from experiments.plan import Plan, check, write_specs
from results.atomic import alone, check_writable
from training.signals import EXIT_FINISHED


def prepare_corpora(plan: Plan, console: Console) -> None:
    """Tokenise the plan's missing corpora, then check again that all corpora suit their evaluations."""
    say = partial(console.print, style="yellow", markup=False)
    for corpus in (each for each in plan.corpora if isinstance(each, CorpusPlan)):
        if corpus.notice:
            say(corpus.notice)
        if not corpus.ready:
            console.print(f"preparing the corpus ({escape(corpus.spec.source)}, {corpus.spec.tokenizer}) ...")
            started = time.monotonic()
            with console.status("tokenising") as status:
                prepare(corpus, progress=lambda told: status.update(escape(told)), say=say)
            where = escape(str(corpus.folder))
            console.print(f"[green]done[/]  corpus in {where}  ({time.monotonic() - started:.0f} s)")
    check(plan)


def fetch(plan: Plan, console: Console) -> None:
    """Download to the local cache what corpora and missing evaluations read from the hub, so that a machine without internet
    fails before training and not after it. ValueError if something cannot be downloaded."""
    for choice in {corpus.tokenizer for corpus in plan.corpora if isinstance(corpus, CorpusPlan)}:
        if not choice.trained:
            choice.load()
    wanted = dict.fromkeys(spec for run in plan.runs.values() for spec in run.missing_evals if "hub" in spec.reads())
    if wanted:
        go_offline_if_unreachable()
    for spec in wanted:
        with console.status(f"fetching the data of {spec.kind}"):
            spec.fetch(plan.request.sources)
        console.print(f"[green]done[/]  data of {spec.kind}")


def execute(plan: Plan, slots: int | None, processes: int, console: Console) -> int:
    """Run every missing task, then draw what has rows. Returns 0, or 1 if a task failed (all others are still run)."""
    places(slots, processes, plan.request.device)
    for run in plan.runs.values():
        if run.trains:
            graph.train_task(plan, run, processes)  # raises now, not after the corpora are prepared
    for name in ("results", "corpora"):  # now, not after training
        check_writable(getattr(plan.request, f"{name}_dir"), f"--{name}-dir", "choose another")
    print_idle(plan, console)
    prepare_corpora(plan, console)
    write_specs(plan)
    # Evaluate a trained model before training the next one, so that its results are kept if the command is interrupted. Start
    # the longest tasks first: a long one that starts last would keep one slot busy while the others idle.
    todo = [task for task in graph.tasks(plan, processes=processes) if task.kind != "draw"]
    todo.sort(key=lambda task: (task.kind == "train", -task_flops(task)))
    failed = run_tasks(todo, slots, processes, plan.request.device, console) if todo else []
    if not todo:
        console.print(f"all {len(plan.runs)} runs and their evaluations exist already")
    code = draw(plan.drawings, plan.request.scale, plan.request.results_dir, console)
    if failed:
        told = f"{len(failed)} of {len(todo)} tasks failed or could not start"
        console.print(f"[red]{told}[/]; fix the errors above, then repeat the command to try them again")
    return 1 if failed else code


def draw(stems: Iterable[str], scale: str, results_dir: Path, console: Console) -> int:
    """Draw those artefacts of a scale that have rows. Returns the exit code: 1 if one could not be drawn, or none has rows."""
    with alone_in(results_dir, console):
        there = [stem for stem in stems if render.has_rows(stem, scale, results_dir)]
        return 1 if not there or render.render_all(there, scale, results_dir, console) else EXIT_FINISHED


def alone_in(results_dir: Path, console: Console) -> AbstractContextManager[None]:
    """Lock a results folder, to draw everything from the same rows. On a file system without locks, this does nothing."""
    waits = partial(console.print, f"another command is drawing into {escape(str(results_dir))}; waiting for it ...")
    return alone(results_dir / ".lock", waits, needed=False)
