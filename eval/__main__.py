"""Evaluate one model: `python -m eval NAME --model PATH_OR_RUN [options] --out FILE`.

The model is a run folder of this suite, a folder with a Hugging Face checkpoint (ours, the authors', or any causal LM),
or a hub name. Rows go to FILE (.parquet) with who made them beside it (.meta.json). Started again, it goes on where it was.
"""

import os
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Generic, TypeVar

import tyro

from eval.shell import go_offline_if_unreachable
from eval.sources import Sources, make_context, named_by_content, needs_hub
from eval.spec import (
    EvalSpec,
    GateMapsSpec,
    LmEvalSpec,
    LongBenchSpec,
    NeedleSpec,
    PerTokenLossSpec,
    ThroughputSpec,
    eval_id,
)
from training.command_line import guarded, parse
from training.signals import EXIT_FINISHED

Spec = TypeVar("Spec", bound=EvalSpec)


@dataclass(frozen=True, kw_only=True)
class On(Generic[Spec]):
    """An evaluation on a model."""

    model: str
    """Run folder, model folder, or hub name (owner/name)."""
    out: Path | None = None
    """Result file (.parquet); default: in the run's evals/ folder, or ./<eval_id>.parquet for other models."""
    device: str = "cpu"
    """cpu, cuda or cuda:N."""
    threads: int = 1
    """CPU threads; 1 makes results independent of the machine's number of cores."""
    sources: tyro.conf.OmitArgPrefixes[Sources] = field(default_factory=Sources)
    spec: tyro.conf.OmitArgPrefixes[Spec]


_named = tyro.conf.subcommand
Command = (
    Annotated[On[PerTokenLossSpec], _named("per_token_loss", description="Loss at every position of long documents (Fig. 2).")]
    | Annotated[On[NeedleSpec], _named("needle", description="Needle in a haystack: easy, standard, or pass-key (Fig. 4).")]
    | Annotated[On[LongBenchSpec], _named("longbench", description="The 14 English LongBench tasks (Table 2).")]
    | Annotated[On[LmEvalSpec], _named("lm_eval", description="Zero-shot tasks of the LM evaluation harness (Table 1).")]
    | Annotated[On[GateMapsSpec], _named("gate_maps", description="Forget-gate and attention maps, head statistics (Fig. 3).")]
    | Annotated[On[ThroughputSpec], _named("throughput", description="Speed and memory of training or generation (Table 6).")]
)


def run_command(command: On) -> int:
    spec = named_by_content(command.spec, command.sources)
    os.environ.setdefault("OMP_NUM_THREADS", str(command.threads))
    if needs_hub(spec) or not Path(command.model).exists():
        go_offline_if_unreachable()
    from eval.loading import Loaded, Subject
    from eval.run import run
    from eval.summary import summary

    loaded = Loaded(Subject.find(command.model, command.sources.tokenizer), command.device)
    out = command.out or default_out(command.model, spec)
    if out.suffix != ".parquet":
        raise ValueError(f"--out {out} must end in .parquet")
    context = make_context(spec, command.sources, command.device, out.parent)
    if not run(loaded, spec, context, out):
        print(f"{out} exists, nothing to do", file=sys.stderr)
    print(summary(out))
    return EXIT_FINISHED


def default_out(model: str, spec: EvalSpec) -> Path:
    folder = Path(model) / "evals" if (Path(model) / "spec.json").is_file() else Path()
    return folder / f"{eval_id(spec)}.parquet"


def main(arguments: list[str] | None = None) -> int:
    command = parse(Command, arguments, "python -m eval", __doc__)
    return guarded(lambda: run_command(command))


if __name__ == "__main__":
    sys.exit(main())
