"""Carry a plan out on this machine: corpus, runs, evaluations, drawings, report."""

import time

from rich.console import Console

from data.prepare import prepare
from experiments import collect
from experiments.local import run_jobs, slots_of
from experiments.overview import train_flops
from experiments.plan import KnownCorpus, Plan, jobs, write_specs


def prepare_corpus(plan: Plan, console: Console) -> None:
    """Tokenise the plan's corpus unless it is there."""
    if plan.corpus.ready or isinstance(plan.corpus, KnownCorpus):
        return
    console.print(f"preparing the corpus ({plan.corpus.spec.source}, {plan.corpus.spec.tokenizer}) ...")
    started = time.monotonic()
    with console.status("tokenising") as status:
        prepare(plan.corpus, progress=status.update)
    console.print(f"[green]done[/]  corpus in {plan.corpus.folder}  ({time.monotonic() - started:.0f} s)")


def execute(plan: Plan, device: str, slots: int | None, console: Console) -> int:
    """Do what is missing and draw what is whole. Returns 0, or 1 if a job failed (everything else is still done)."""
    if slots is not None and slots < 1:
        raise ValueError(f"--slots {slots}: give at least 1.")
    write_specs(plan)
    prepare_corpus(plan, console)
    # The most work first: begun last, it would keep one slot busy while the others stand idle.
    todo = sorted(jobs(plan, device), key=lambda job: -train_flops(job.run) if job.run else 0.0)
    failed = run_jobs(todo, slots or slots_of(device), device, console) if todo else []
    if not todo:
        console.print(f"all {len(plan.runs)} runs and their evaluations exist already")
    for name in plan.artefacts:
        if collect.collect(plan, name) is not None:
            for path in collect.render(name, plan.scale.name, plan.request.results_dir):
                console.print(f"[green]drawn[/] {path}")
    console.print(f"[green]report[/] {collect.write_report(plan.scale.name, plan.request.results_dir)}")
    if failed:
        console.print(f"[red]{len(failed)} of {len(todo)} jobs failed or could not start[/]; the same command tries them again")
    return 1 if failed else 0
