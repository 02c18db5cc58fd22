"""Every figure and table of the papers: planned, run and drawn.

`python -m experiments run` makes the main figures and tables at scale tiny, from nothing; `list` shows what else there is.
"""

import sys
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated, Literal

import tyro
from rich.console import Console
from tyro.conf import OmitArgPrefixes, Positional, UseAppendAction, subcommand

from eval.shell.machine import machine_name
from eval.shell.sources import Sources
from experiments.plan import SOURCE_FLAGS, Request, make_plan
from experiments.scales import get_scale
from training.command_line import guarded, parse
from training.spec import Execution


@dataclass(frozen=True, kw_only=True)
class Asked:
    """What to make."""

    artefacts: Positional[tuple[str, ...]] = ()
    """Figures and tables, such as fig2_per_token_loss; `all`; default: the main ones."""
    scale: str = "tiny"
    """tiny, mini, 125m-2.7b, 360m-7.5b, 760m-16b, 760m-48b (`list` shows all)."""
    results_dir: Path = Path("results")
    """Stored rows, figures, report."""


@dataclass(frozen=True, kw_only=True)
class Wanted(Asked):
    """What to make, from which text, in which folders."""

    data: str | None = None
    """packages, text:PATH[,PATH...], longcrawl64:FOLDER or hf:NAME[:CONFIG][@REVISION]; default: that of the scale."""
    heldout: str | None = None
    """Texts to evaluate on, PATH[,PATH...]; default: a fraction of the documents of --data is held out."""
    tokenizer: str | None = None
    """bpe-N, bytes, gpt2[:FOLDER] or gpt2-json[:FOLDER]; default: that of the scale."""
    seeds: Annotated[str, tyro.conf.arg(metavar="N[,N...]")] = "0"
    """Seeds of every run; figures then show their spread."""
    only: UseAppendAction[tuple[str, ...]] = ()
    """Only this model (repeatable)."""
    line: UseAppendAction[tuple[str, ...]] = ()
    """Only the line of this label, as `plan` shows it; * stands for anything: '* LR 0.004' (repeatable)."""
    also: UseAppendAction[tuple[str, ...]] = ()
    """This model, too, where a figure or table has a line per model: stick_breaking, say (repeatable)."""
    average: Annotated[float, tyro.conf.arg(metavar="SHARE")] = 0.0
    """Export and evaluate the mean of the weights after each of the last steps, so large a share of all (0.1, say)."""
    device: Literal["auto", "cpu", "cuda"] = "auto"
    """auto: a GPU where there is one, but never for the scales in fp32 (tiny), which are for CPUs."""
    runs_dir: Path = Path("runs")
    """Run folders."""
    corpora_dir: Path = Path("corpora")
    """Tokenised corpora."""
    reuse_stored: bool = False
    """Rows that are stored count as done: train and evaluate only what they lack, and meet none of them again."""
    sources: OmitArgPrefixes["Given"] = field(default_factory=lambda: Given())

    def pick_device(self) -> str:
        """cpu or cuda. ValueError where CUDA is asked for and not there."""
        if self.device == "auto" and get_scale(self.scale).precision == "fp32":
            return "cpu"
        from training.distributed import pick_device

        return pick_device(self.device).type

    def request(self, device: str, execution: Execution | None = None) -> Request:
        """ValueError for seeds that are no numbers."""
        try:
            seeds = tuple(int(seed) for seed in self.seeds.split(","))
        except ValueError:
            raise ValueError(f"--seeds {self.seeds}: give numbers separated by commas, such as 0,1,2.") from None
        same = ("artefacts", "scale", "results_dir", "data", "heldout", "tokenizer", "only", "line", "also", "average",
                "runs_dir", "corpora_dir", "reuse_stored")  # fmt: skip
        return Request(
            **{name: getattr(self, name) for name in same},
            seeds=seeds,
            judge_model=self.sources.judge_model,
            device=device,
            machine=machine_name(device),
            sources=Sources(**{name: getattr(self.sources, name) for name in SOURCE_FLAGS}),
            execution=execution or Execution(),
        )


@dataclass(frozen=True, kw_only=True)
class Given:
    """Texts, data sets and judges of the user's."""

    haystack: Path | None = None
    """Folder of texts for the needle test and RULER; default: held-out text."""
    haystack_unsorted: bool = False
    """Take them in the order the directory lists them, as the released evaluation did, not by name."""
    prompts: Path | None = None
    """TOML file with the wording of the needle test (a copy of eval/needle/prompts.toml, edited)."""
    longbench: Path | None = None
    """Folder with LongBench data; default: the hub."""
    include_path: Path | None = None
    """Folder with lm-eval tasks and data; default: the hub."""
    judge_url: str | None = None
    """OpenAI-compatible endpoint that scores needle answers; default: by match."""
    judge_model: str | None = None
    """Model to ask there."""


@dataclass(frozen=True, kw_only=True)
class List:
    """The figures and tables, and the scales."""

    results_dir: Path = Path("results")

    def run(self, console: Console) -> int:
        from experiments.overview import print_overview

        print_overview(console, self.results_dir)
        return 0


@dataclass(frozen=True, kw_only=True)
class Plan(Wanted):
    """What a request would compute and cost, and what exists already. Uses no GPU and writes nothing."""

    mfu: float = 0.4
    """Utilisation assumed for GPU-hours."""

    def run(self, console: Console) -> int:
        from experiments.overview import print_plan

        print_plan(make_plan(self.request(self.pick_device()), rehearsal=True), self.mfu, console)
        return 0


@dataclass(frozen=True, kw_only=True)
class Prepare(Wanted):
    """Tokenise the corpora of a request and fetch what its evaluations read from the hub, and nothing else."""

    corpora_only: bool = False
    """Fetch nothing (the jobs of a SLURM graph, where submitting has done it)."""

    def run(self, console: Console) -> int:
        from experiments.execute import fetch, prepare_corpora

        plan = make_plan(self.request("cpu"))
        prepare_corpora(plan, console)
        if not self.corpora_only:
            fetch(plan, console)
        return 0


@dataclass(frozen=True, kw_only=True)
class Run(Wanted):
    """Do what is missing, then draw. Ctrl-C at any time: the same command goes on from there."""

    launcher: Literal["local", "slurm"] = "local"
    slots: int | None = None
    """Tasks at a time; default: one a GPU, or one a CPU core. More than GPUs share them: two small models keep one busier."""
    cluster: Path | None = None
    """The cluster's TOML file, for --launcher slurm."""
    dry_run: bool = False
    """Print the graph and its sbatch scripts, submit nothing (--launcher slurm)."""
    micro_batch_tokens: int | None = None
    """Tokens per forward pass and GPU: more is faster and takes memory."""
    parallel: Literal["ddp", "fsdp"] = "ddp"
    """With several processes a run: replicate the model, or shard it."""
    activation_checkpointing: bool = False
    """Recompute activations instead of compiling, for GPUs below 48 GiB at 760M."""
    deterministic: bool = False
    """Equal bits from run to run on a GPU, at some speed."""
    checkpoint_minutes: float = 10.0
    """Minutes of wall clock between checkpoints."""
    on_bad_step: Literal["stop", "skip"] = "stop"
    """A step whose loss or gradient is not finite is never applied; stop then, or go on without it."""
    hang_minutes: float = 20.0
    """Start a training again when no step finishes for this long."""

    def run(self, console: Console) -> int:
        same = (
            "micro_batch_tokens",
            "parallel",
            "activation_checkpointing",
            "deterministic",
            "checkpoint_minutes",
            "on_bad_step",
            "hang_minutes",
        )
        execution = Execution(**{name: getattr(self, name) for name in same})
        if self.launcher == "slurm":
            return self._submit(execution, console)
        for flag, given in (("--dry-run", self.dry_run), ("--cluster", self.cluster is not None)):
            if given:
                raise ValueError(f"{flag} goes with --launcher slurm; `plan` shows what a local run would do.")
        from experiments.execute import execute

        return execute(make_plan(self.request(self.pick_device(), execution)), self.slots, console)

    def _submit(self, execution: Execution, console: Console) -> int:
        from slurm.cluster import read_cluster
        from slurm.submit import rehearse, submit, whole_paths

        if self.cluster is None:
            raise ValueError("--launcher slurm needs --cluster FILE; slurm/clusters has some to copy and edit.")
        cluster = read_cluster(self.cluster)
        # The login node may have no GPU: what counts is where the jobs run.
        request = replace(self.request("cpu", execution), device=cluster.device, machine=cluster.machine)
        plan = make_plan(whole_paths(request), rehearsal=self.dry_run)
        return (rehearse if self.dry_run else submit)(plan, cluster, console)


@dataclass(frozen=True)
class Draw:
    """Collect and draw one artefact as a file of `run` says (the last jobs of a SLURM graph)."""

    file: Positional[Path]

    def run(self, console: Console) -> int:
        from experiments.drawing import draw_from_file

        collected = draw_from_file(self.file)
        if collected is None:  # starting again would not help
            raise ValueError(f"{self.file.stem}: nothing to draw, none of its evaluations is finished.")
        console.print(f"{self.file.stem}: {collected.lines} lines drawn")
        return 0


@dataclass(frozen=True, kw_only=True)
class Render(Asked):
    """Draw from stored rows alone, and write the report: no torch, no GPU."""

    def run(self, console: Console) -> int:
        from experiments.artefact import chosen
        from experiments.drawing import render, stored, write_report

        scale = get_scale(self.scale).name
        for stem in chosen(self.artefacts) if self.artefacts else stored(scale, self.results_dir):
            for path in render(stem, scale, self.results_dir):
                console.print(str(path))
        console.print(str(write_report(scale, self.results_dir)))
        return 0


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
class Adopt(Wanted):
    """Take a published checkpoint for a run: it is then evaluated and drawn like one."""

    artefacts: tyro.conf.Suppress[tuple[str, ...]] = ()
    folder: Positional[Path]
    """Folder with config.json and safetensors, ours or the authors'."""
    name: Annotated[str, tyro.conf.arg(name="as")]
    """The model it is, such as fox_pro."""

    def run(self, console: Console) -> int:
        from experiments.adopt import adopt
        from experiments.plan import corpus_at
        from experiments.recipes import Recipe

        corpus = corpus_at(self.request("cpu"), get_scale(self.scale))
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
    | Annotated[Adopt, subcommand("adopt")]
)


def main(arguments: list[str] | None = None) -> int:
    """Exit codes: 0 done, 1 some task failed, 2 an error to mend, 75 stopped and to be started again, 130 interrupted."""
    command = parse(Command, arguments, "python -m experiments", __doc__)
    console = Console(soft_wrap=True, highlight=False, width=None if sys.stdout.isatty() else 160)
    return guarded(lambda: command.run(console))


if __name__ == "__main__":
    sys.exit(main())
