"""Every figure and table of the papers: planned, run and drawn.

`python -m experiments run` makes the main figures and tables at scale tiny, from nothing; `list` shows what else there is."""

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

from eval.shell.machine import machine_name
from experiments import adopt, artefact, compare, execute, overview, plan, render
from experiments.collect import DrawSpec
from experiments.recipes import Recipe, check_name
from experiments.request import Corpora, Request, Selection, Stored
from experiments.scales import get_scale
from training.command_line import guarded, parse
from training.signals import EXIT_ERROR, EXIT_NOT_REPRODUCED


@dataclass(frozen=True, kw_only=True)
class List:
    """The figures and tables, and the scales."""

    results_dir: Path = Path("results")

    def run(self, console: Console) -> None:
        overview.print_overview(console, self.results_dir)


@dataclass(frozen=True, kw_only=True)
class Plan(Request):
    """Show what a request would compute and cost, and what exists already. Uses no GPU and writes nothing but
    file-digests.json in --corpora-dir, by which files of 1 MB and more are read once."""

    mfu: float = 0.4
    """Utilisation assumed for GPU-hours; small or recurrent models reach less."""

    def run(self, console: Console) -> None:
        overview.print_plan(_planned(self, rehearsal=True), self.mfu, console)


@dataclass(frozen=True, kw_only=True)
class Prepare(Request):
    """Tokenise the corpora of a request and fetch what its evaluations read from the hub, and nothing else."""

    corpora_only: bool = False
    """Fetch nothing (the jobs of a SLURM graph, where submitting has done it)."""

    def run(self, console: Console) -> None:
        made = plan.make_plan(self.on("cpu"))
        execute.prepare_corpora(made, console)
        if not self.corpora_only:
            execute.fetch(made, console)


@dataclass(frozen=True, kw_only=True)
class Run(Request):
    """Do what is missing, then draw. Ctrl-C at any time: the same command goes on from there."""

    slots: int | None = None
    """Tasks at a time; default: one a GPU, or one a CPU core. More than GPUs share them."""
    processes: int = 1
    """Processes that share each training, each with a GPU of its own (or a CPU core)."""

    def run(self, console: Console) -> int:
        job = os.environ.get("SLURM_JOB_ID")
        if job and "SLURMD_NODENAME" not in os.environ:  # which SLURM sets on nodes alone; salloc's shell may be elsewhere
            where = f"this shell belongs to SLURM's job {job}, but may be on a login node"
            remedy = "begin the command with `srun --nodes=1 --ntasks=1`, which trains one run a GPU of the job's first node"
            raise ValueError(f"{where}: {remedy}; `python -m slurm run` submits jobs.")
        return execute.execute(_planned(self), self.slots, self.processes, console)


def _planned(request: Request, *, rehearsal: bool = False) -> plan.Plan:
    """Plan a request for this machine."""
    settled = request.settled()
    return plan.make_plan(settled, machine=machine_name(settled.device), rehearsal=rehearsal)


@dataclass(frozen=True)
class Draw:
    """Collect and draw one artefact as a file of `run` says (the last jobs of a SLURM graph)."""

    file: Positional[Path]

    def run(self, console: Console) -> int:
        code = execute.draw([DrawSpec.read(self.file)], console)
        if code == EXIT_ERROR:  # starting again would not help
            raise ValueError(f"{self.file.stem}: nothing to draw, none of its evaluations is finished.")
        return 0 if code == EXIT_NOT_REPRODUCED else code  # the drawing is done


@dataclass(frozen=True, kw_only=True)
class Render(Selection):
    """Draw from stored rows alone, and write the report: no torch, no GPU."""

    def run(self, console: Console) -> int:
        scale = get_scale(self.scale).name
        named, there = artefact.chosen(self.artefacts) if self.artefacts else (), (self.results_dir / scale).is_dir()
        with execute.alone_in(self.results_dir, console) if there else nullcontext():  # a mistake leaves nothing behind
            stems = named or render.stored(scale, self.results_dir)
            return 1 if render.render_all(stems, scale, self.results_dir, console) else 0


@dataclass(frozen=True, kw_only=True)
class Why(Stored):
    """The ancestry of a figure or table: its runs with all their starts, the corpus, versions, dates, and the rows."""

    artefact: Positional[str]

    def run(self, console: Console) -> None:
        for stem in artefact.chosen([self.artefact]):
            overview.print_ancestry(stem, get_scale(self.scale).name, self.results_dir, console)


@dataclass(frozen=True, kw_only=True)
class Compare(Stored):
    """Compare runs with those that are stored: does each number lie where one more seed would? Or two of them, step by step."""

    folders: Positional[tuple[Path, ...]] = ()
    """Run folders: none for all of a scale; one, also step by step against the stored curve; or two, against each other."""
    runs_dir: Path = Path("runs")
    """Run folders."""

    def run(self, console: Console) -> int:
        of_scale = self.runs_dir / get_scale(self.scale).name
        folders = self.folders or sorted(path.parent for path in of_scale.glob("*/spec.json"))
        if not folders:
            raise ValueError(f"{of_scale} holds no runs: `run` makes some, or name run folders.")
        return compare.compare(folders, self.results_dir, console, named=bool(self.folders))


@dataclass(frozen=True, kw_only=True)
class Adopt(Corpora):
    """Take a published checkpoint for a run: it is then evaluated and drawn like one."""

    folder: Positional[Path]
    """Folder with config.json and safetensors, ours or the authors'."""
    name: Annotated[str, tyro.conf.arg(name="as")]
    """The model it is, such as fox_pro."""
    scale: str = "tiny"
    """The scale it is of."""
    runs_dir: Path = Path("runs")
    """Run folders."""

    def run(self, console: Console) -> None:
        check_name(self.name, "--as ")
        corpus = plan.corpus_at(self, get_scale(self.scale))
        prepared = None if corpus.counts() is None else corpus.folder
        run = adopt.adopt(self.folder, Recipe(self.name, self.name, self.scale), corpus.spec, prepared, self.runs_dir)
        console.print(f"adopted as {run.path}; `run` evaluates and draws it like a run of ours", markup=False)


Command = List | Plan | Prepare | Run | Draw | Render | Why | Compare | Adopt


def main(arguments: list[str] | None = None) -> int:
    """Exit codes: 0 done, 1 a task failed, 2 an error that the user can fix, 3 done, but stored results were not reproduced,
    75 stopped and to be restarted, 130 interrupted."""
    command = parse(Command, arguments, "python -m experiments", __doc__)
    console = Console(soft_wrap=True, highlight=False, width=None if sys.stdout.isatty() else 160)
    return guarded(lambda: command.run(console) or 0)


if __name__ == "__main__":
    sys.exit(main())
