"""Execute a plan on this machine: prepare corpora, train, evaluate, draw figures and the report, and check that stored results
are reproduced."""

import math
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from functools import partial
from pathlib import Path

from rich.console import Console
from rich.markup import escape

from data.plan import CorpusPlan
from data.prepare import prepare
from eval.runner.machine import go_offline_if_unreachable
from experiments import graph
from experiments.collect import BOUND, Collected, DrawSpec, collect
from experiments.compare import by_seeds, print_bands
from experiments.local import places, run_tasks
from experiments.overview import SHOWN, print_idle, task_flops
from experiments.plan import Plan, check, write_specs
from experiments.render import render_all
from results.atomic import alone, check_writable
from training.command_line import short
from training.signals import EXIT_ERROR, EXIT_FINISHED, EXIT_NOT_REPRODUCED


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
    """Run every missing task, then draw what has rows. Returns 0, 1 if a task failed (all others are still run), or 3 if stored
    results are not reproduced."""
    places(slots, processes, plan.request.device)
    for run in plan.runs.values():
        if run.trains:
            graph.train_task(plan, run, processes)  # raises now, not after the corpora are prepared
    for name in ("results", "runs", "corpora"):  # now, not after training
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
    code = draw([*plan.drawings.values()], console)
    if failed:
        told = f"{len(failed)} of {len(todo)} tasks failed or could not start"
        console.print(f"[red]{told}[/]; fix the errors above, then repeat the command to try them again")
    return 1 if failed else code


def draw(specs: Sequence[DrawSpec], console: Console) -> int:
    """Collect and draw artefacts of a scale, and report whether stored results are reproduced: on a CPU within rounding (within
    seeds' noise if training amplifies the rounding), on a GPU within seeds' noise. Returns the exit code: 1 if an artefact
    could not be drawn, 2 if none has rows, 3 if a result was not reproduced."""
    scale, results_dir = specs[0].scale, specs[0].results_dir
    found, runs, broken = list[Collected](), list[Path](), list[str]()
    results_dir.mkdir(parents=True, exist_ok=True)
    with alone_in(results_dir, console):
        for spec in specs:
            try:
                collected = collect(spec)
            except ValueError as error:  # one run's damage must not cost the figures of the others
                broken.append(spec.stem)
                print(f"error: {spec.stem} at {scale} is not drawn: {short(error)}", file=sys.stderr)
                continue
            runs += [line.run for line in spec.lines]
            found += [] if collected is None else [collected]
        if not found:
            return 1 if broken else EXIT_ERROR
        broken += render_all([each.stem for each in found], scale, results_dir, console)
    parted = {run: text for each in found for run, text in each.parted.items()}
    banded = by_seeds(runs, parted, results_dir)
    known = {each.run for each in banded if each.predicted is not None and each.predicted.noise is not None}
    alone = {f"training of {run.name}": text for run, text in parted.items() if run.name not in known}
    for run, text in parted.items():
        if run.name in known:
            console.print(f"[yellow]parted[/] training of {run.name}: {text}; its rows are judged by the band of one more seed")
    reproduced = _report_reproduced(found, alone, console)
    fits = print_bands(banded, console, whole=False) if banded else True
    return 1 if broken else EXIT_FINISHED if reproduced and fits else EXIT_NOT_REPRODUCED


def alone_in(results_dir: Path, console: Console) -> AbstractContextManager[None]:
    """Lock a results folder: lines of figures and records of runs are read, merged and rewritten, and everything must be drawn
    from the same rows. On a file system without locks, this does nothing."""
    waits = partial(console.print, f"another command is drawing into {escape(str(results_dir))}; waiting for it ...")
    return alone(results_dir / ".lock", waits, needed=False)


def _report_reproduced(found: Sequence[Collected], alone: Mapping[str, str], console: Console) -> bool:
    """Report which stored results were reproduced, and return whether all were, up to rounding. `alone`: trainings that parted
    and have no seeds to be judged by."""
    reproduced = len({name for each in found for name in each.reproduced})  # artefacts share evaluations
    differing = {name: difference for each in found for name, difference in each.differing.items()}
    beyond = {**alone, **{name: text for each in found for name, text in each.beyond.items()}}
    left_out = {name for each in found for name in each.left_out}
    beside = list(dict.fromkeys(line for each in found for line in each.beside))
    if beside:
        some = "; ".join(beside[:SHOWN]) + " ..." * (len(beside) > SHOWN)
        console.print(
            f"{len(beside)} lines are still drawn from other trainings of their runs than these run folders hold; rows of both "
            f"are stored, and `--draw-these-trainings` draws from the run folders: {some}"
        )
    if left_out:
        console.print(f"{len(left_out)} timings of this CPU stay in their run folders: timings of another CPU are stored")
    if stored := reproduced + len(differing) + len(beyond):
        more = f", {len(beyond)} differ by more than rounding explains" if beyond else ""
        console.print(f"{reproduced} of {stored} stored evaluations were reproduced within rounding{more}")
    if differing:
        console.print(
            "other processors or libraries round differently, and training amplifies that: mean losses are at most "
            f"{BOUND} nats apart (no bound is known for scores and texts); the largest differences:"
        )
    for name, difference in sorted(differing.items(), key=lambda item: -item[1])[:SHOWN]:
        how = f"by {difference:.1e} of the largest value" if math.isfinite(difference) else "in its texts"
        console.print(f"[yellow]differs[/] {name}: {how}; the rows that were stored first are drawn")
    for name, text in list(beyond.items())[:SHOWN]:
        console.print(f"[red]not reproduced[/] {name}: {text}")
    if beyond:
        console.print(
            "rounding does not explain that: look for what changed in the code between the commits (+: with uncommitted "
            "changes), and with `python -m experiments compare FOLDER` for the step at which the trainings part"
        )
    return not beyond
