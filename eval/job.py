"""Several evaluations of one run in one process: `python -m eval.job RUN_DIR --spec A.json B.json --corpus DIR`.

Writes RUN_DIR/evals/<eval_id>.parquet and .meta.json, skips what exists, and goes on with what was begun. If one fails, the
others are still done; the exit code is 2 then.
"""

import sys
import traceback
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated

import tyro

from eval.kinds import EVAL_SPEC, eval_id, unbound, unread
from eval.shell.context import make_context
from eval.shell.loading import Loaded, Subject
from eval.shell.machine import go_offline_if_unreachable, use
from eval.shell.run import run
from eval.shell.sources import Sources
from eval.shell.spec import EvalSpec
from training.command_line import guarded, parse, short
from training.signals import EXIT_ERROR, EXIT_FINISHED


@dataclass(frozen=True, kw_only=True)
class Command:
    """Options of both commands: where evaluations are computed, and what they read."""

    device: str = "cpu"
    """cpu, cuda or cuda:N."""
    threads: int = 1
    """CPU threads; 1 makes results independent of the machine's number of cores."""
    sources: tyro.conf.OmitArgPrefixes[Sources] = field(default_factory=Sources)


@dataclass(frozen=True, kw_only=True)
class Job(Command):
    """Evaluate one run by one or several specs."""

    run: Annotated[Path, tyro.conf.Positional]
    """Run folder (runs/SCALE/NAME-ID)."""
    spec: tuple[Path, ...]
    """JSON files, one evaluation each, bound to what they read."""


def read_spec(path: Path) -> EvalSpec:
    """Read one spec. ValueError for a file that is missing, no spec, or does not say all that will be read."""
    try:
        spec = EVAL_SPEC.validate_json(path.read_bytes())
    except FileNotFoundError:
        raise ValueError(f"{path}: there is no such spec file") from None
    if missing := ", ".join(unbound(spec)):
        raise ValueError(f"{path}: the spec must say which {missing} it reads, as the specs of a plan do")
    return spec


def run_job(job: Job) -> int:
    specs = [read_spec(path) for path in job.spec]
    for flag in unread(specs, job.sources):
        print(f"{flag}: none of these evaluations reads it", file=sys.stderr)
    if any("hub" in spec.reads() for spec in specs):
        go_offline_if_unreachable()
    device = use(job.device, job.threads)
    subject = Subject.find(str(job.run), job.sources.tokenizer)
    loaded, code = Loaded(subject, device), EXIT_FINISHED
    for spec in sorted(specs, key=lambda spec: spec.NEEDS != "spec"):  # fresh models first: one at a time in memory
        out = job.run / "evals" / f"{eval_id(spec)}.parquet"
        try:
            made = run(loaded, spec, make_context(job.sources, device, out.parent, subject.data), out)
            print(f"{out.stem}: {f'written to {out}' if made else 'exists, skipped'}", file=sys.stderr)
        except OSError:
            raise  # a full disk, say: nothing else could be written either
        except Exception as error:
            code, ours = EXIT_ERROR, "an error that this program should not have made"
            print(f"error: {out.stem}: {short(error) if isinstance(error, ValueError) else ours}", file=sys.stderr)
            if not isinstance(error, ValueError):
                traceback.print_exc()
    return code


def main(arguments: list[str] | None = None) -> int:
    job = parse(Job, arguments, "python -m eval.job", __doc__)
    return guarded(lambda: run_job(job))


if __name__ == "__main__":
    sys.exit(main())
