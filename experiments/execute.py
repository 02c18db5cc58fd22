"""Carry a plan out on this machine: corpora, runs, evaluations, figures, report."""

import time

from rich.console import Console

from data.plan import CorpusPlan
from data.prepare import prepare
from eval.kinds import eval_id
from eval.shell.machine import go_offline_if_unreachable
from experiments import graph
from experiments.closing import close
from experiments.collect import collect
from experiments.compare import on_gpus
from experiments.local import run_tasks, slots_of
from experiments.overview import task_flops
from experiments.plan import Plan, check, write_specs
from experiments.render import render_all
from training.signals import EXIT_FINISHED, EXIT_NOT_MET


def prepare_corpora(plan: Plan, console: Console) -> None:
    """Tokenise the plan's corpora unless they are there; then check once more what the evaluations ask of them."""
    for corpus in plan.corpora:
        if corpus.ready or not isinstance(corpus, CorpusPlan):
            continue
        console.print(f"preparing the corpus ({corpus.spec.source}, {corpus.spec.tokenizer}) ...")
        started = time.monotonic()
        with console.status("tokenising") as status:
            prepare(corpus, progress=status.update)
        console.print(f"[green]done[/]  corpus in {corpus.folder}  ({time.monotonic() - started:.0f} s)")
    check(plan)


def fetch(plan: Plan, console: Console) -> None:
    """Have GPT-2's vocabulary, where the corpora need it, and what missing evaluations read from the hub in the local cache, so
    that machines without internet do not find out after a training. ValueError for what cannot be had."""
    for choice in {corpus.tokenizer for corpus in plan.corpora if isinstance(corpus, CorpusPlan)}:
        if not choice.trained:
            choice.load()
    specs = {eval_id(spec): spec for run in plan.runs.values() for spec in run.missing_evals}
    wanted = [spec for spec in specs.values() if "hub" in spec.reads()]
    if wanted:
        go_offline_if_unreachable()
    for spec in wanted:
        with console.status(f"fetching the data of {spec.kind}"):
            spec.fetch(plan.request.sources)
        console.print(f"[green]done[/]  data of {spec.kind}")


def execute(plan: Plan, slots: int | None, console: Console) -> int:
    """Do what is missing and draw what is whole. Returns 0, 1 if a task failed (everything else is still done), or 3 where what
    was stored is not met."""
    if slots is not None and slots < 1:
        raise ValueError(f"--slots {slots}: give at least 1.")
    device = plan.request.device
    prepare_corpora(plan, console)
    write_specs(plan)
    # A trained model is evaluated before the next one is trained: what is finished then stays, whatever comes. Of the rest
    # the most work first: begun last, it would keep one slot busy while the others stand idle.
    todo = [task for task in graph.tasks(plan) if task.kind != "draw"]
    todo.sort(key=lambda task: (task.kind == "train", -task_flops(plan, task)))
    failed = run_tasks(todo, slots or slots_of(device), device, console) if todo else []
    if not todo:
        console.print(f"all {len(plan.runs)} runs and their evaluations exist already")
    code = draw(plan, console)
    if failed:
        console.print(
            f"[red]{len(failed)} of {len(todo)} tasks failed or could not start[/]; the same command tries them again"
        )
    return 1 if failed else code


def draw(plan: Plan, console: Console) -> int:
    """Collect and draw every artefact that has rows, and say whether what was stored before has been met. Returns the exit
    code: 1 if one could not be drawn, 3 if it was not met."""
    found = [each for stem in plan.artefacts if (each := collect(graph.draw_spec(plan, stem))) is not None]
    scale, results_dir = plan.scale.name, plan.request.results_dir
    broken = render_all([each.stem for each in found], scale, results_dir, console) if found else []
    banded = on_gpus((run.folder.path for run in plan.runs.values()), results_dir)
    met = close(found, banded, console)
    return 1 if broken else EXIT_FINISHED if met else EXIT_NOT_MET
