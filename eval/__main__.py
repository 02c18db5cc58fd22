"""Evaluate one model: `python -m eval NAME --model PATH_OR_RUN [options] --out FILE`.

The model is a run folder of this suite, a folder with a Hugging Face checkpoint (ours, the authors', or any causal LM),
or a hub name. Rows go to FILE (.parquet), their provenance into its footer. An interrupted evaluation is resumed."""

import training.interrupted  # noqa: F401  # isort: skip  (before slow imports)
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Generic, TypeVar, Union

import tyro

from eval.job import Command, run
from eval.kinds import KINDS, eval_id, unread
from eval.runner.context import make_context
from eval.runner.loading import Loaded, Subject
from eval.runner.machine import go_offline_if_unreachable, machine_name, use
from eval.runner.spec import EvalSpec, Setting
from results.store import read_rows
from training.command_line import guarded, parse
from training.signals import EXIT_FINISHED

Spec = TypeVar("Spec", bound=EvalSpec)


@dataclass(frozen=True, kw_only=True)
class On(Command, Generic[Spec]):
    """One evaluation of one model."""

    model: str
    """Run folder, model folder, or hub name (owner/name)."""
    out: Path | None = None
    """Result file (.parquet); default: in the run's evals/ folder, or ./NAME-ID-<eval_id>.parquet for other models."""
    spec: tyro.conf.OmitArgPrefixes[Spec]


_on: Any = On
_first_lines = {name: str(spec.__doc__).split("\n")[0] for name, spec in KINDS.items()}
_named = {name: tyro.conf.subcommand(name, description=line) for name, line in _first_lines.items()}
_commands: Any = Union.__getitem__(tuple(Annotated[_on[KINDS[name]], command] for name, command in _named.items()))


def run_command(command: On) -> int:
    device = use(command.device, command.threads)
    if "hub" in command.spec.reads() or not Path(command.model).exists():
        go_offline_if_unreachable()
    subject = Subject.find(command.model, command.sources.tokenizer)
    context = make_context(command.sources, device, Path(), subject.data)
    corpus = None if context.corpus is None else context.corpus.spec
    spec = command.spec.bound(Setting(corpus, command.sources, subject.precision(device), machine_name(device)))
    if surplus := ", ".join(unread([spec], command.sources)):
        raise ValueError(f"{surplus}: {spec.kind} does not read it with these options; leave it out")
    own = Path(f"{subject.model}-{subject.run_id}-{eval_id(spec)}.parquet")
    out = command.out or (own if subject.run is None else subject.path / "evals" / f"{eval_id(spec)}.parquet")
    if out.suffix != ".parquet":
        raise ValueError(f"--out {out} must end in .parquet")
    context.folder = out.parent
    if not run(Loaded(subject, device), spec, context, out):
        print(f"{out} exists, nothing to do", file=sys.stderr)
    rows, meta = read_rows(out)
    print(f"{meta['eval_id']} of {meta['model']} ({meta['scale']}, {meta['run_id']}): {out}")
    print("\n".join(spec.summary(rows)))
    return EXIT_FINISHED


def main(arguments: list[str] | None = None) -> int:
    command = parse(_commands, arguments, "python -m eval", __doc__)
    return guarded(lambda: run_command(command))


if __name__ == "__main__":
    sys.exit(main())
