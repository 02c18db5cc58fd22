"""Requests: the options of `plan`, `run` and `python -m slurm run`. Torch-free."""

from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated, Literal

import tyro
from tyro.conf import OmitArgPrefixes, Positional, UseAppendAction
from tyro.constructors import PrimitiveConstructorSpec

from eval.runner.sources import Sources, UserData
from experiments.scales import get_scale
from training.run_folder import RunFolder
from training.spec import Execution, RunSpec


def _numbers(words: list[str]) -> tuple[int, ...]:
    """Parse seeds. ValueError for seeds that are not numbers."""
    try:
        return tuple(int(seed) for seed in words[0].split(","))
    except ValueError:
        raise ValueError(f"{words[0]}: give numbers separated by commas, such as 0,1,2.") from None


Seeds = Annotated[
    tuple[int, ...],
    PrimitiveConstructorSpec(
        nargs=1,
        metavar="N[,N...]",
        instance_from_str=_numbers,
        is_instance=lambda value: isinstance(value, tuple),
        str_from_instance=lambda seeds: [",".join(map(str, seeds))],
    ),
]


@dataclass(frozen=True, kw_only=True)
class Stored:
    """A scale and the folder of its stored rows."""

    scale: str = "tiny"
    """tiny, mini, 125m-2.7b, 360m-7.5b, 760m-16b, 760m-48b (`list` shows all)."""
    results_dir: Path = Path("out")
    """Runs, rows, figures, report; results/ is published."""

    def __post_init__(self) -> None:
        """Raise ValueError for a file."""
        if self.results_dir.exists() and not self.results_dir.is_dir():
            raise ValueError(f"--results-dir {self.results_dir} is a file; name a folder")


@dataclass(frozen=True, kw_only=True)
class Selection(Stored):
    """Artefacts of a scale, and the folder of their stored rows."""

    artefacts: Positional[tuple[str, ...]] = ()
    """Figures and tables, such as fig2_per_token_loss, or `all`; default: the main ones."""


@dataclass(frozen=True, kw_only=True)
class Corpora:
    """The text to train and evaluate on, and the folder of tokenised corpora."""

    data: str | None = None
    """packages, text:PATH[,PATH...], longcrawl64:FOLDER or hf:NAME[:CONFIG][@REVISION]; default: the scale's."""
    heldout: str | None = None
    """Held-out texts to evaluate on, PATH[,PATH...]; default: a fraction of the documents of --data is held out."""
    tokenizer: str | None = None
    """bpe-N, bytes, gpt2[:FOLDER] or gpt2-json[:FOLDER]; default: the scale's."""
    corpora_dir: Path = Path("corpora")
    """Folder of tokenised corpora."""


@dataclass(frozen=True, kw_only=True)
class Request(Corpora, Selection):
    """Artefacts to make, and which runs to make them from."""

    seeds: Seeds = (0,)
    """Seeds to train each run with; figures show the spread of several."""
    only: UseAppendAction[tuple[str, ...]] = ()
    """Only this model."""
    line: UseAppendAction[tuple[str, ...]] = ()
    """Only the line with this label, as shown by `plan`; * matches anything: '* LR 0.004'."""
    also: UseAppendAction[tuple[str, ...]] = ()
    """Add this model, such as stick_breaking, to every figure or table that has a line per model."""
    beside: Annotated[Path | None, tyro.conf.arg(name="from")] = None
    """Results folder whose rows are drawn beside one's own and count as done, such as results."""
    judge_model: str | None = None
    """Model that scores needle answers at --judge-url."""
    user_data: OmitArgPrefixes[UserData] = field(default_factory=UserData)
    execution: OmitArgPrefixes[Execution] = field(default_factory=Execution)

    def __post_init__(self) -> None:
        """Raise ValueError for a published folder, which is only read."""
        super().__post_init__()
        if next(self.results_dir.glob("*/runs.jsonl"), None) is not None:
            remedy = f"name a folder of your own; --from {self.results_dir} draws its rows beside yours"
            raise ValueError(f"--results-dir {self.results_dir} is published and only read: {remedy}")
        if self.beside is not None and not self.beside.is_dir():
            raise ValueError(f"--from {self.beside}: there is no such folder")

    def run_folder(self, spec: RunSpec) -> RunFolder:
        return RunFolder(self.results_dir / spec.scale / "runs" / spec.folder_name)

    @property
    def sources(self) -> Sources:
        """Texts, data sets, judge and tokeniser for the evaluations."""
        return Sources(**vars(self.user_data), tokenizer=self.tokenizer)

    @property
    def device(self) -> Literal["cpu", "cuda"]:
        """cpu or cuda; auto counts as cpu until `settled` has looked for a GPU."""
        return "cpu" if self.execution.device == "auto" else self.execution.device

    def on(self, device: Literal["cpu", "cuda"]) -> "Request":
        """Return the same request with the device set to cpu or cuda."""
        return replace(self, execution=replace(self.execution, device=device))

    def settled(self) -> "Request":
        """Return the same request with the device chosen for this machine. ValueError if CUDA is requested but missing."""
        if self.execution.device == "auto" and get_scale(self.scale).precision == "fp32":
            return self.on("cpu")
        from training.distributed import pick_device

        return self.on("cuda" if pick_device(self.execution.device).type == "cuda" else "cpu")
