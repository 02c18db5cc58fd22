"""One evaluation of one model: its rows, named and stored; what exists is skipped, what was begun is continued."""

import datetime
import sys
import time
from dataclasses import replace
from importlib import import_module
from pathlib import Path

from pydantic import TypeAdapter

from eval.kinds import eval_id
from eval.shell.context import Context
from eval.shell.loading import Loaded, Subject
from eval.shell.machine import machine_name, peak_memory_gib, reset_peak_memory
from eval.shell.partial import Partial
from eval.shell.spec import EvalSpec
from results.provenance import provenance
from results.store import fault_of, read_rows, write_rows


def exists(out: Path, subject: Subject, spec: EvalSpec) -> bool:
    """Tell whether `out` is this very evaluation of this model. A damaged file is made again, and one that was measured on
    other weights of the same run; both are said. ValueError: it is that of another model or spec."""
    if not out.exists():
        return False
    if fault_of(out) is not None:
        print(f"{out} is damaged and made again", file=sys.stderr)
        return False
    meta = read_rows(out)[1]
    if (meta["run_id"], meta["eval_id"]) != (subject.run_id, eval_id(spec)):
        found = f"{meta['eval_id']} of {meta['model']} ({meta['run_id']})"
        wanted = f"{eval_id(spec)} of {subject.model} ({subject.run_id})"
        raise ValueError(f"{out} holds {found}, not {wanted}: delete it, or name another file with --out")
    measured, own = meta.get("weights"), weights_of(subject, spec)
    if measured is not None and own is not None and measured != own:
        print(f"{out} was measured on weights {measured}, the model has {own}: it is made again", file=sys.stderr)
        return False
    return True


def weights_of(subject: Subject, spec: EvalSpec) -> str | None:
    """Return the digest of the weights that an evaluation is of; None for one of fresh models."""
    return None if spec.NEEDS == "spec" else subject.weights


def run(loaded: Loaded, spec: EvalSpec, context: Context, out: Path) -> bool:
    """Evaluate and write `out` (.parquet and .meta.json). False if it exists already. Samples finished before an interruption
    lie beside it as .partial.jsonl / .partial.npz and are not computed again."""
    subject, name = loaded.subject, eval_id(spec)
    if exists(out, subject, spec):
        return False
    weights = weights_of(subject, spec)
    partial = out.with_name(out.name.removesuffix(".parquet") + ".partial.jsonl")
    identity = "/".join(filter(None, (subject.run_id, name, weights)))
    context = replace(context, partial=Partial(partial, identity=identity), extras={})
    context.train_seq_len = None if subject.run is None else subject.run.train.seq_len
    reset_peak_memory(context.device)
    started = time.perf_counter()
    rows = import_module(f"eval.{spec.kind}.measure").evaluate(loaded, spec, context)
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
