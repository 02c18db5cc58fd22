"""Requests: all that `plan`, `run` and `python -m slurm run` can be asked for. Torch-free."""

from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated, Literal

from tyro.conf import OmitArgPrefixes, Positional, UseAppendAction
from tyro.constructors import PrimitiveConstructorSpec

from eval.shell.sources import Sources, UserData
from experiments.scales import get_scale
from training.spec import Execution

STATUS_PAGE = Path(__file__).with_name("status.md.j2")


def _numbers(words: list[str]) -> tuple[int, ...]:
    """ValueError for seeds that are no numbers."""
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
    """Rows of a scale."""

    scale: str = "tiny"
    """tiny, mini, 125m-2.7b, 360m-7.5b, 760m-16b, 760m-48b (`list` shows all)."""
    results_dir: Path = Path("results")
    """Stored rows, figures, report."""

    def __post_init__(self) -> None:
        """Raise ValueError for a folder whose README.md is none of ours, over which drawing would write another."""
        page, ours = self.results_dir / "README.md", STATUS_PAGE.read_text().partition("\n")[0]
        if page.is_file() and not page.read_text(errors="replace").startswith(ours):
            raise ValueError(f"--results-dir {self.results_dir}: drawing would write over its README.md; name another folder")


@dataclass(frozen=True, kw_only=True)
class Selection(Stored):
    """Artefacts of a scale, and the store of their rows."""

    artefacts: Positional[tuple[str, ...]] = ()
    """Figures and tables, such as fig2_per_token_loss; `all`; default: the main ones."""


@dataclass(frozen=True, kw_only=True)
class Corpora:
    """The text to train and evaluate on, and the folder of tokenised corpora."""

    data: str | None = None
    """packages, text:PATH[,PATH...], longcrawl64:FOLDER or hf:NAME[:CONFIG][@REVISION]; default: that of the scale."""
    heldout: str | None = None
    """Texts to evaluate on, PATH[,PATH...]; default: a fraction of the documents of --data is held out."""
    tokenizer: str | None = None
    """bpe-N, bytes, gpt2[:FOLDER] or gpt2-json[:FOLDER]; default: that of the scale."""
    corpora_dir: Path = Path("corpora")
    """Tokenised corpora."""


@dataclass(frozen=True, kw_only=True)
class Request(Corpora, Selection):
    """Artefacts to make, their runs, and the folders of both."""

    seeds: Seeds = (0,)
    """Seeds of every run; figures then show their spread."""
    only: UseAppendAction[tuple[str, ...]] = ()
    """Only this model (repeatable)."""
    line: UseAppendAction[tuple[str, ...]] = ()
    """Only the line of this label, as `plan` shows it; * stands for anything: '* LR 0.004' (repeatable)."""
    also: UseAppendAction[tuple[str, ...]] = ()
    """This model, too, where a figure or table has a line per model: stick_breaking, say (repeatable)."""
    runs_dir: Path = Path("runs")
    """Run folders."""
    reuse_stored: bool = False
    """Count stored rows as done: train and evaluate only what they lack, and do not check that they are reproduced."""
    draw_these_trainings: bool = False
    """Draw the training in the run folder in place of another of its run that is drawn so far; rows of both stay stored."""
    judge_model: str | None = None
    """Model that scores needle answers at --judge-url."""
    user_data: OmitArgPrefixes[UserData] = field(default_factory=UserData)
    execution: OmitArgPrefixes[Execution] = field(default_factory=Execution)

    @property
    def sources(self) -> Sources:
        """Texts, data sets, judge and tokeniser that evaluations are told of."""
        return Sources(**vars(self.user_data), tokenizer=self.tokenizer)

    @property
    def device(self) -> Literal["cpu", "cuda"]:
        """cpu or cuda; cpu where nobody has looked for a GPU yet (`settled`)."""
        return "cpu" if self.execution.device == "auto" else self.execution.device

    def on(self, device: Literal["cpu", "cuda"]) -> "Request":
        """The same request for the device cpu or cuda."""
        return replace(self, execution=replace(self.execution, device=device))

    def settled(self) -> "Request":
        """The same request for a device of this machine. ValueError where CUDA is asked for and not there."""
        if self.execution.device == "auto" and get_scale(self.scale).precision == "fp32":
            return self.on("cpu")
        from training.distributed import pick_device

        return self.on("cuda" if pick_device(self.execution.device).type == "cuda" else "cpu")
