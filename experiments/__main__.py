"""Plan, run and draw every figure and table of the papers.

`python -m experiments run` makes the main figures and tables at scale tiny from scratch; `list` shows all others."""

import training.interrupted  # noqa: F401  # isort: skip  (before what takes long)
import os
import sys
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro
from rich.console import Console
from tyro.conf import Positional

from eval.runner.machine import machine_name
from experiments import adopt, artefact, compare, execute, overview, plan, publish, render
from experiments.recipes import Recipe, check_name
from experiments.request import Corpora, Request, Selection, Stored
from experiments.scales import get_scale
from training.command_line import guarded, parse
from training.signals import EXIT_ERROR


@dataclass(frozen=True, kw_only=True)
class List:
    """Show all figures, tables and scales."""

    results_dir: Path = Path("results")
    """Folder whose stored scales are shown."""

    def run(self, console: Console) -> None:
        overview.print_overview(console, self.results_dir)


@dataclass(frozen=True, kw_only=True)
class Plan(Request):
    """Show what a request would compute and cost, and what exists already. Uses no GPU and writes only file-digests.json in
    --corpora-dir, a cache of the digests of files of 1 MB and more."""

    mfu: float = 0.4
    """Model FLOPs utilisation (MFU) assumed for GPU-hours; small or recurrent models reach less."""

    def run(self, console: Console) -> None:
        overview.print_plan(_planned(self, rehearsal=True), self.mfu, console)


@dataclass(frozen=True, kw_only=True)
class Prepare(Request):
    """Tokenise the corpora of a request and fetch what its evaluations read from the hub, and nothing else."""

    corpora_only: bool = False
    """Only tokenise; fetch nothing from the hub (for SLURM jobs: submitting them has fetched everything)."""

    def run(self, console: Console) -> None:
        made = plan.make_plan(self.on("cpu"))
        execute.prepare_corpora(made, console)
        if not self.corpora_only:
            execute.fetch(made, console)


@dataclass(frozen=True, kw_only=True)
class Run(Request):
    """Run every missing task, then draw. Can be stopped with Ctrl-C at any time: the same command resumes."""

    slots: int | None = None
    """Number of concurrent tasks; default: one per GPU, or one per CPU core. With more slots than GPUs, tasks share GPUs."""
    processes: int = 1
    """Number of processes that share each training run, each with its own GPU (or CPU core)."""

    def run(self, console: Console) -> int:
        job = os.environ.get("SLURM_JOB_ID")
        if job and "SLURMD_NODENAME" not in os.environ:  # set on compute nodes only; salloc's shell may be on a login node
            where = f"this shell belongs to SLURM's job {job}, but may be on a login node"
            remedy = "begin the command with `srun --nodes=1 --ntasks=1`, which trains one run per GPU of the job's first node"
            raise ValueError(f"{where}: {remedy}; `python -m slurm run` submits jobs.")
        return execute.execute(_planned(self), self.slots, self.processes, console)


def _planned(request: Request, *, rehearsal: bool = False) -> plan.Plan:
    """Plan a request for this machine."""
    settled = request.settled()
    return plan.make_plan(settled, machine=machine_name(settled.device), rehearsal=rehearsal)


@dataclass(frozen=True, kw_only=True)
class Render(Selection):
    """Draw from stored rows and write the report. Needs no torch and no GPU."""

    def run(self, console: Console) -> int:
        scale = get_scale(self.scale).name
        named, there = artefact.chosen(self.artefacts) if self.artefacts else (), (self.results_dir / scale).is_dir()
        with execute.alone_in(self.results_dir, console) if there else nullcontext():  # a typing error creates no files
            stems = named or render.stored(scale, self.results_dir)
            return EXIT_ERROR if render.render_all(stems, scale, self.results_dir, console) else 0


@dataclass(frozen=True, kw_only=True)
class Why(Stored):
    """Show what a figure or table was made from: its runs with all their starts, the corpus, versions, dates, and the rows."""

    artefact: Positional[str]

    def run(self, console: Console) -> None:
        scale, stems = get_scale(self.scale).name, [*artefact.chosen([self.artefact])]
        there = {*render.stored(scale, self.results_dir)}
        for stem in [each for each in stems if each in there] or stems[:1]:
            overview.print_ancestry(stem, scale, self.results_dir, console)


@dataclass(frozen=True, kw_only=True)
class Compare:
    """Compare the rows of two results folders: does each number lie where one more seed would? Or two run folders, step by
    step."""

    one: Positional[Path] = Path("out")
    """Your results folder, or a run folder."""
    other: Positional[Path] = Path("results")
    """The folder to compare it with."""
    scale: str = "tiny"
    """Scale to compare, with all others of its size."""

    def run(self, console: Console) -> int:
        return compare.compare(self.one, self.other, get_scale(self.scale).name, console)


@dataclass(frozen=True, kw_only=True)
class Publish:
    """Append the rows of your results folder to a published one, which other commands only read."""

    source: Positional[Path]
    """Your results folder, also of an older version."""
    target: Positional[Path]
    """Published folder, such as results."""

    def run(self, console: Console) -> None:
        publish.publish(self.source, self.target, console)


@dataclass(frozen=True, kw_only=True)
class Adopt(Corpora):
    """Use a published checkpoint as a run, which is then evaluated and drawn like any other."""

    folder: Positional[Path]
    """Folder with config.json and safetensors, in our format or the authors'."""
    name: Annotated[str, tyro.conf.arg(name="as")]
    """Model of the checkpoint, such as fox_pro."""
    scale: str = "tiny"
    """Scale of the checkpoint."""
    results_dir: Path = Path("out")
    """Results folder for the run, better none with trainings of your own."""

    def run(self, console: Console) -> None:
        check_name(self.name, "--as ")
        corpus = plan.corpus_at(self, get_scale(self.scale))
        prepared = None if corpus.counts() is None else corpus.folder
        run = adopt.adopt(self.folder, Recipe(self.name, self.name, self.scale), corpus.spec, prepared, self.results_dir)
        console.print(f"adopted as {run.path}; `run` evaluates and draws it like any other run", markup=False)


Command = List | Plan | Prepare | Run | Render | Why | Compare | Publish | Adopt


def main(arguments: list[str] | None = None) -> int:
    """Exit codes: 0 done, 1 a task failed, 2 an error that the user can fix, 3 not reproduced (`compare`), 75 stopped and to be
    restarted, 130 interrupted."""
    command = parse(Command, arguments, "python -m experiments", __doc__)
    console = Console(soft_wrap=True, highlight=False, width=None if sys.stdout.isatty() else 160)
    return guarded(lambda: command.run(console) or 0)


if __name__ == "__main__":
    sys.exit(main())
