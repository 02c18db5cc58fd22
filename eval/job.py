"""Several evaluations of one finished run in one process: `python -m eval.job RUN_DIR --spec A.json B.json --corpus DIR`.

Writes RUN_DIR/evals/<eval_id>.parquet and .meta.json, skips what exists, and goes on with what was begun.
"""

import os
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated

import tyro

from eval.shell import go_offline_if_unreachable
from eval.sources import Sources, make_context, needs_hub
from eval.spec import EVAL_SPEC, EvalSpec, eval_id
from training.command_line import guarded, parse
from training.signals import EXIT_FINISHED


@dataclass(frozen=True)
class Job:
    """Evaluate one finished run by one or several specs."""

    run: Annotated[Path, tyro.conf.Positional]
    """Run folder (runs/SCALE/NAME-ID)."""
    spec: tuple[Path, ...]
    """JSON files, one evaluation each."""
    device: str = "cpu"
    """cpu, cuda or cuda:N."""
    threads: int = 1
    """CPU threads; 1 makes results independent of the machine's number of cores."""
    sources: tyro.conf.OmitArgPrefixes[Sources] = field(default_factory=Sources)


def read_spec(path: Path) -> EvalSpec:
    try:
        return EVAL_SPEC.validate_json(path.read_text())
    except FileNotFoundError:
        raise ValueError(f"{path}: there is no such spec file") from None


def run_job(job: Job) -> int:
    specs = [read_spec(path) for path in job.spec]
    evals = job.run / "evals"
    from results.store import meta_path

    todo = []
    for spec in specs:
        out = evals / f"{eval_id(spec)}.parquet"
        if out.is_file() and meta_path(out).is_file():
            print(f"{out.stem}: exists, skipped", file=sys.stderr)
        else:
            todo.append((spec, out))
    if not todo:
        return EXIT_FINISHED
    os.environ.setdefault("OMP_NUM_THREADS", str(job.threads))
    if any(needs_hub(spec) for spec, _ in todo):
        go_offline_if_unreachable()
    from eval.loading import Loaded, Subject
    from eval.run import run

    loaded = Loaded(Subject.find(str(job.run), job.sources.tokenizer), job.device)
    for spec, out in todo:
        run(loaded, spec, make_context(spec, job.sources, job.device, out.parent), out)
        print(f"{out.stem}: written to {out}", file=sys.stderr)
    return EXIT_FINISHED


def main(arguments: list[str] | None = None) -> int:
    job = parse(Job, arguments, "python -m eval.job", __doc__)
    return guarded(lambda: run_job(job))


if __name__ == "__main__":
    sys.exit(main())
