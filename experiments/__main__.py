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
from experiments import adopt, artefact, compare, execute, overview, plan, render
from experiments.collect import DrawSpec
from experiments.recipes import Recipe, check_name
from experiments.request import Corpora, Request, Selection, Stored
from experiments.scales import get_scale
from training.command_line import guarded, parse
from training.signals import EXIT_ERROR, EXIT_NOT_REPRODUCED


@dataclass(frozen=True, kw_only=True)
class List:
    """Show all figures, tables and scales."""

    results_dir: Path = Path("results")

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


@dataclass(frozen=True)
class Draw:
    """Collect and draw the artefact that a file written by `run` specifies (for the last jobs of a SLURM graph)."""

    file: Positional[Path]

    def run(self, console: Console) -> int:
        code = execute.draw([DrawSpec.read(self.file)], console)
        if code == EXIT_ERROR:  # a restart would not help
            raise ValueError(f"{self.file.stem}: nothing to draw, none of its evaluations is finished.")
        # Damaged rows stay damaged on every node. Results that were not reproduced were drawn.
        return EXIT_ERROR if code not in (0, EXIT_NOT_REPRODUCED) else 0


@dataclass(frozen=True, kw_only=True)
class Render(Selection):
    """Draw from stored rows and write the report. Needs no torch and no GPU."""

    def run(self, console: Console) -> int:
        scale = get_scale(self.scale).name
        named, there = artefact.chosen(self.artefacts) if self.artefacts else (), (self.results_dir / scale).is_dir()
        with execute.alone_in(self.results_dir, console) if there else nullcontext():  # a typing error creates no files
            stems = named or render.stored(scale, self.results_dir)
            return 1 if render.render_all(stems, scale, self.results_dir, console) else 0


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
class Compare(Stored):
    """Compare runs with the stored ones: does each number lie where one more seed would? Or compare two runs step by step."""

    folders: Positional[tuple[Path, ...]] = ()
    """Run folders. None: all of the scale. One: also step by step with the stored curve. Two: with each other."""
    runs_dir: Path = Path("runs")
    """Run folders."""

    def run(self, console: Console) -> int:
        of_scale = self.runs_dir / get_scale(self.scale).name
        folders = self.folders or sorted(path.parent for path in of_scale.glob("*/spec.json"))
        if not folders:
            raise ValueError(f"{of_scale} holds no runs: make some with `run`, or name run folders.")
        if len(self.folders) != 2 and not self.results_dir.is_dir():
            raise ValueError(f"--results-dir {self.results_dir}: there is no such folder to compare with.")
        return compare.compare(folders, self.results_dir, console, named=bool(self.folders))


@dataclass(frozen=True, kw_only=True)
class Adopt(Corpora):
    """Use a published checkpoint as a run, which is then evaluated and drawn like any other."""

    folder: Positional[Path]
    """Folder with config.json and safetensors, in our format or the authors'."""
    name: Annotated[str, tyro.conf.arg(name="as")]
    """Model of the checkpoint, such as fox_pro."""
    scale: str = "tiny"
    """Scale of the checkpoint."""
    runs_dir: Path = Path("runs")
    """Run folders."""

    def run(self, console: Console) -> None:
        check_name(self.name, "--as ")
        corpus = plan.corpus_at(self, get_scale(self.scale))
        prepared = None if corpus.counts() is None else corpus.folder
        run = adopt.adopt(self.folder, Recipe(self.name, self.name, self.scale), corpus.spec, prepared, self.runs_dir)
        console.print(f"adopted as {run.path}; `run` evaluates and draws it like any other run", markup=False)


Command = List | Plan | Prepare | Run | Draw | Render | Why | Compare | Adopt


def main(arguments: list[str] | None = None) -> int:
    """Exit codes: 0 done, 1 a task failed, 2 an error that the user can fix, 3 done, but stored results were not reproduced,
    75 stopped and to be restarted, 130 interrupted."""
    command = parse(Command, arguments, "python -m experiments", __doc__)
    console = Console(soft_wrap=True, highlight=False, width=None if sys.stdout.isatty() else 160)
    return guarded(lambda: command.run(console) or 0)


if __name__ == "__main__":
    sys.exit(main())
