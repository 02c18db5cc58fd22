"""Every figure and table of the papers: planned, run and drawn.

`python -m experiments run` makes the main figures and tables at scale tiny, from nothing; `list` shows what else there is.
"""

import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated

import tyro
from rich.console import Console
from tyro.conf import OmitArgPrefixes, Positional, subcommand

from eval.shell.machine import machine_name
from experiments import plan
from experiments.request import Corpora, Request, Selection
from experiments.scales import get_scale
from training.command_line import guarded, parse
from training.signals import EXIT_ERROR


@dataclass(frozen=True, kw_only=True)
class Asked:
    """A command that plans a request."""

    request: OmitArgPrefixes[Request] = field(default_factory=Request)

    def plan(self, *, rehearsal: bool = False) -> plan.Plan:
        request = self.request.settled()
        return plan.make_plan(request, machine=machine_name(request.device), rehearsal=rehearsal)


@dataclass(frozen=True, kw_only=True)
class List:
    """The figures and tables, and the scales."""

    results_dir: Path = Path("results")

    def run(self, console: Console) -> int:
        from experiments.overview import print_overview

        print_overview(console, self.results_dir)
        return 0


@dataclass(frozen=True, kw_only=True)
class Plan(Asked):
    """Show what a request would compute and cost, and what exists already. Uses no GPU and writes nothing."""

    mfu: float = 0.4
    """Utilisation assumed for GPU-hours."""

    def run(self, console: Console) -> int:
        from experiments.overview import print_plan

        print_plan(self.plan(rehearsal=True), self.mfu, console)
        return 0


@dataclass(frozen=True, kw_only=True)
class Prepare(Asked):
    """Tokenise the corpora of a request and fetch what its evaluations read from the hub, and nothing else."""

    corpora_only: bool = False
    """Fetch nothing (the jobs of a SLURM graph, where submitting has done it)."""

    def run(self, console: Console) -> int:
        from experiments.execute import fetch, prepare_corpora

        made = plan.make_plan(self.request.on("cpu"))
        prepare_corpora(made, console)
        if not self.corpora_only:
            fetch(made, console)
        return 0


@dataclass(frozen=True, kw_only=True)
class Run(Asked):
    """Do what is missing, then draw. Ctrl-C at any time: the same command goes on from there."""

    slots: int | None = None
    """Tasks at a time; default: one a GPU, or one a CPU core. More than GPUs share them: two small models keep one busier."""

    def run(self, console: Console) -> int:
        from experiments.execute import execute

        return execute(self.plan(), self.slots, console)


@dataclass(frozen=True)
class Draw:
    """Collect and draw one artefact as a file of `run` says (the last jobs of a SLURM graph)."""

    file: Positional[Path]

    def run(self, console: Console) -> int:
        from experiments.closing import close
        from experiments.collect import DrawSpec, collect
        from experiments.compare import on_gpus
        from experiments.render import render_all

        spec = DrawSpec.read(self.file)
        collected = collect(spec)
        if collected is None:  # starting again would not help
            raise ValueError(f"{self.file.stem}: nothing to draw, none of its evaluations is finished.")
        console.print(f"{self.file.stem}: {collected.lines} lines")
        broken = render_all([spec.stem], spec.scale, spec.results_dir, console)
        close([collected], on_gpus((line.run for line in spec.lines), spec.results_dir), console)
        return 1 if broken else 0


@dataclass(frozen=True, kw_only=True)
class Render:
    """Draw from stored rows alone, and write the report: no torch, no GPU."""

    selection: OmitArgPrefixes[Selection] = field(default_factory=Selection)

    def run(self, console: Console) -> int:
        from experiments.artefact import chosen
        from experiments.render import render_all, stored

        asked, scale = self.selection, get_scale(self.selection.scale).name
        stems = chosen(asked.artefacts) if asked.artefacts else stored(scale, asked.results_dir)
        return 1 if render_all(stems, scale, asked.results_dir, console) else 0


@dataclass(frozen=True, kw_only=True)
class Why:
    """The ancestry of a figure or table: its runs with all their starts, the corpus, versions, dates, and the rows."""

    artefact: Positional[str]
    scale: str = "tiny"
    results_dir: Path = Path("results")

    def run(self, console: Console) -> int:
        from experiments.artefact import chosen
        from experiments.overview import print_ancestry

        for stem in chosen([self.artefact]):
            print_ancestry(stem, get_scale(self.scale).name, self.results_dir, console)
        return 0


@dataclass(frozen=True, kw_only=True)
class Compare:
    """Compare runs with those that are stored: does each number lie where one more seed would? Or two of them, step by step."""

    folders: Positional[tuple[Path, ...]] = ()
    """Run folders: none for all of a scale; one, also step by step against the stored curve; or two, against each other."""
    scale: str = "tiny"
    """The scale whose runs are compared where no folder is named."""
    runs_dir: Path = Path("runs")
    """Run folders."""
    results_dir: Path = Path("results")
    """Stored rows."""

    def run(self, console: Console) -> int:
        from experiments.compare import compare

        folders = self.folders or sorted(
            path.parent for path in (self.runs_dir / get_scale(self.scale).name).glob("*/spec.json")
        )
        if not folders:
            raise ValueError(f"{self.runs_dir / self.scale} holds no runs: `run` makes some, or name run folders.")
        return compare(folders, self.results_dir, console, named=bool(self.folders))


@dataclass(frozen=True, kw_only=True)
class Adopt:
    """Take a published checkpoint for a run: it is then evaluated and drawn like one."""

    folder: Positional[Path]
    """Folder with config.json and safetensors, ours or the authors'."""
    name: Annotated[str, tyro.conf.arg(name="as")]
    """The model it is, such as fox_pro."""
    scale: str = "tiny"
    """The scale it is of."""
    runs_dir: Path = Path("runs")
    """Run folders."""
    corpora: OmitArgPrefixes[Corpora] = field(default_factory=Corpora)

    def run(self, console: Console) -> int:
        from experiments.adopt import adopt
        from experiments.recipes import Recipe

        corpus = plan.corpus_at(self.corpora, get_scale(self.scale))
        run = adopt(self.folder, Recipe(self.name, self.name, self.scale), corpus.spec, self.runs_dir)
        console.print(f"adopted as {run.path}; `run` evaluates and draws it like a run of ours")
        return 0


Command = (
    Annotated[List, subcommand("list")]
    | Annotated[Plan, subcommand("plan")]
    | Annotated[Prepare, subcommand("prepare")]
    | Annotated[Run, subcommand("run")]
    | Annotated[Draw, subcommand("draw")]
    | Annotated[Render, subcommand("render")]
    | Annotated[Why, subcommand("why")]
    | Annotated[Compare, subcommand("compare")]
    | Annotated[Adopt, subcommand("adopt")]
)


def main(arguments: list[str] | None = None) -> int:
    """Exit codes: 0 done, 1 some task failed, 2 an error to mend, 3 done, but what is stored was not met, 75 stopped and to be
    started again, 130 interrupted."""
    if "--launcher" in (sys.argv[1:] if arguments is None else arguments):
        print("error: --launcher is no option any more: `python -m slurm run` submits, with the same options", file=sys.stderr)
        return EXIT_ERROR
    command = parse(Command, arguments, "python -m experiments", __doc__)
    console = Console(soft_wrap=True, highlight=False, width=None if sys.stdout.isatty() else 160)
    return guarded(lambda: command.run(console))


if __name__ == "__main__":
    sys.exit(main())
