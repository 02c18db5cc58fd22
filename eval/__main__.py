"""Evaluate one model: `python -m eval NAME --model PATH_OR_RUN [options] --out FILE`.

The model is a run folder of this suite, a folder with a Hugging Face checkpoint (ours, the authors', or any causal LM),
or a hub name. Rows go to FILE (.parquet) with who made them beside it (.meta.json). Started again, it goes on where it was.
"""

import os
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated

import tyro

from eval.shell import go_offline_if_unreachable, guarded, parse
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
from training.signals import EXIT_FINISHED


@dataclass(frozen=True, kw_only=True)
class Common:
    """What every evaluation takes."""

    model: str
    """Run folder, model folder, or hub name (owner/name)."""
    out: Path | None = None
    """Result file (.parquet); default: in the run's evals/ folder, or ./<eval_id>.parquet for other models."""
    device: str = "cpu"
    """cpu, cuda or cuda:N."""
    threads: int = 1
    """CPU threads; 1 makes results independent of the machine's number of cores."""
    sources: tyro.conf.OmitArgPrefixes[Sources] = field(default_factory=Sources)


@dataclass(frozen=True, kw_only=True)
class PerTokenLoss(Common):
    """Loss at every position of long held-out documents (Fig. 2)."""

    spec: tyro.conf.OmitArgPrefixes[PerTokenLossSpec]


@dataclass(frozen=True, kw_only=True)
class Needle(Common):
    """Needle in a haystack: easy, standard, or the pass-key variant (Fig. 4)."""

    spec: tyro.conf.OmitArgPrefixes[NeedleSpec]


@dataclass(frozen=True, kw_only=True)
class LongBench(Common):
    """The 14 English LongBench tasks (Table 2)."""

    spec: tyro.conf.OmitArgPrefixes[LongBenchSpec]


@dataclass(frozen=True, kw_only=True)
class LmEval(Common):
    """Zero-shot tasks of the LM evaluation harness (Table 1)."""

    spec: tyro.conf.OmitArgPrefixes[LmEvalSpec]


@dataclass(frozen=True, kw_only=True)
class GateMaps(Common):
    """Forget-gate and attention matrices, and statistics of all heads (Fig. 3)."""

    spec: tyro.conf.OmitArgPrefixes[GateMapsSpec]


@dataclass(frozen=True, kw_only=True)
class Throughput(Common):
    """Speed and memory of training steps or of generation (Table 6)."""

    spec: tyro.conf.OmitArgPrefixes[ThroughputSpec]


Command = (
    Annotated[PerTokenLoss, tyro.conf.subcommand("per_token_loss")]
    | Annotated[Needle, tyro.conf.subcommand("needle")]
    | Annotated[LongBench, tyro.conf.subcommand("longbench")]
    | Annotated[LmEval, tyro.conf.subcommand("lm_eval")]
    | Annotated[GateMaps, tyro.conf.subcommand("gate_maps")]
    | Annotated[Throughput, tyro.conf.subcommand("throughput")]
)


def run_command(command: Common, spec: EvalSpec) -> int:
    spec = named_by_content(spec, command.sources)
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
    return guarded(lambda: run_command(command, command.spec))


if __name__ == "__main__":
    sys.exit(main())
