"""Several evaluations of one run in one process: `python -m eval.job RUN_DIR --spec A.json B.json --corpus DIR`.

Writes RUN_DIR/evals/<eval_id>.parquet. Finished evaluations are skipped, interrupted ones resumed. If one fails,
the others are still computed, and the exit code is 2."""

import datetime
import sys
import time
import traceback
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated

import tyro
from pydantic import TypeAdapter

from eval.kinds import EVAL_SPEC, eval_id, measure_of, unbound, unread
from eval.runner.context import Context, make_context
from eval.runner.loading import Loaded, Subject
from eval.runner.machine import go_offline_if_unreachable, machine_name, peak_memory_gib, reset_peak_memory, use
from eval.runner.partial import Partial
from eval.runner.sources import Sources
from eval.runner.spec import EvalSpec
from results.atomic import check_writable
from results.provenance import provenance
from results.store import Key, read_rows, write_rows
from training.command_line import guarded, parse, short
from training.signals import EXIT_ERROR, EXIT_FINISHED


@dataclass(frozen=True, kw_only=True)
class Command:
    """Options of both commands: the device, and what evaluations read."""

    device: str = "cpu"
    """cpu, cuda or cuda:N."""
    threads: int = 1
    """CPU threads; 1 makes results independent of the machine's number of cores."""
    sources: tyro.conf.OmitArgPrefixes[Sources] = field(default_factory=Sources)


@dataclass(frozen=True, kw_only=True)
class Job(Command):
    """Evaluate one run by one or several specs."""

    run: Annotated[Path, tyro.conf.Positional]
    """Run folder (RESULTS/SCALE/runs/NAME-ID)."""
    spec: tuple[Path, ...]
    """JSON files with one bound spec each."""


def read_spec(path: Path) -> EvalSpec:
    """Read one bound spec. ValueError if the file is missing, is not a spec, or leaves open what will be read."""
    try:
        spec = EVAL_SPEC.validate_json(path.read_bytes())
    except FileNotFoundError:
        raise ValueError(f"{path}: there is no such spec file") from None
    if missing := ", ".join(unbound(spec)):
        raise ValueError(f"{path}: the spec must say which {missing} it reads, as the specs of a plan do")
    return spec


def exists(out: Path, subject: Subject, spec: EvalSpec) -> bool:
    """Return whether `out` holds this evaluation of this model. If it is damaged or of other weights, or another's in the run's
    own folder, False is returned and the reason printed. ValueError for another's file that the user named."""
    if not out.exists():
        return False
    own = Key(subject.run_id, eval_id(spec), weights_of(subject, spec))
    try:
        held = Key.of(read_rows(out)[1])
        fault = "" if held == own else f"{out} holds {held.eval_id} of run {held.run_id}, weights {held.weights}; wanted: {own}"
    except ValueError as error:
        held, fault = own, str(error)
    if held[:2] != own[:2] and (subject.run is None or out.parent != subject.path / "evals"):
        raise ValueError(f"{fault}: delete it, or name another file with --out")
    if fault:
        print(f"{fault}: evaluating again", file=sys.stderr)
    return not fault


def weights_of(subject: Subject, spec: EvalSpec) -> str | None:
    """Return the digest of the weights that an evaluation reads; None if it builds a fresh model."""
    return None if spec.NEEDS == "spec" else subject.weights


def run(loaded: Loaded, spec: EvalSpec, context: Context, out: Path) -> bool:
    """Evaluate and write `out`, a .parquet file. Return False if it exists already. Samples finished before an
    interruption are kept beside it in .partial.jsonl / .partial.npz and not computed again."""
    subject, name = loaded.subject, eval_id(spec)
    if exists(out, subject, spec):
        if spec.NEEDS == "weights":
            _ = loaded.folder  # one that was damaged since then is said to be
        return False
    check_writable(out.parent, "the folder", "name another file with --out")  # before anything is computed
    weights = weights_of(subject, spec)
    partial = out.with_name(out.name.removesuffix(".parquet") + ".partial.jsonl")
    identity = "/".join(filter(None, (subject.run_id, name, weights)))
    context = replace(context, partial=Partial(partial, identity=identity), extras={})
    reset_peak_memory(context.device)
    started = time.perf_counter()
    rows = measure_of(spec).evaluate(loaded, spec, context)
    context.extras |= {"seconds": round(time.perf_counter() - started, 2), "peak_memory_gib": peak_memory_gib(context.device)}
    meta = {
        **dict(kind=spec.kind, scale=subject.scale, model=subject.model, run_id=subject.run_id, eval_id=name),
        "spec": TypeAdapter(type(spec)).dump_python(spec, mode="json"),
        "weights": weights,
        "created": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "provenance": provenance(machine_name(context.device)),
        "extras": context.extras,
    }
    write_rows(out, rows, meta, spec.SCHEMA)
    context.partial.discard()
    return True


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
            code, ours = EXIT_ERROR, "an unexpected error, which is a bug of this program"
            print(f"error: {out.stem}: {short(error) if isinstance(error, ValueError) else ours}", file=sys.stderr)
            if not isinstance(error, ValueError):
                traceback.print_exc()
    return code


def main(arguments: list[str] | None = None) -> int:
    job = parse(Job, arguments, "python -m eval.job", __doc__)
    return guarded(lambda: run_job(job))


if __name__ == "__main__":
    sys.exit(main())
