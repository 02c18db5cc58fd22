"""Runs one evaluation of one model: its rows, named and stored; what exists is skipped, what was begun is continued."""

import datetime
import platform
import time
from dataclasses import replace
from pathlib import Path

import pandas as pd

from eval.context import Context
from eval.loading import Loaded
from eval.partial import Partial
from eval.spec import (
    EVAL_SPEC,
    EvalSpec,
    GateMapsSpec,
    LmEvalSpec,
    LongBenchSpec,
    NeedleSpec,
    PerTokenLossSpec,
    ThroughputSpec,
    eval_id,
)
from results.store import meta_path, write_rows
from training.provenance import provenance


def evaluate(loaded: Loaded, spec: EvalSpec, context: Context) -> pd.DataFrame:
    """The rows of `spec`, without the columns that say where they come from. Modules are imported as they are needed."""
    model = loaded.model
    match spec:
        case PerTokenLossSpec():
            from eval import per_token_loss

            return per_token_loss.evaluate(model, None, spec, context)
        case NeedleSpec():
            from eval import needle

            return needle.evaluate(model, loaded.tokenizer, spec, context)
        case LongBenchSpec():
            from eval import longbench

            return longbench.evaluate(model, loaded.tokenizer, spec, context)
        case LmEvalSpec():
            from eval import lm_eval_harness

            return lm_eval_harness.evaluate(model, loaded.tokenizer, spec, context)
        case GateMapsSpec():
            from eval import gate_maps

            return gate_maps.evaluate(model, None, spec, context)
        case ThroughputSpec():
            from eval import throughput

            return throughput.evaluate(model, None, spec, context)


def run(loaded: Loaded, spec: EvalSpec, context: Context, out: Path) -> bool:
    """Evaluate and write `out` (.parquet and .meta.json). False if both exist already.

    Samples finished before an interruption lie beside `out` as .partial.jsonl / .partial.npz and are not computed again.
    """
    if out.is_file() and meta_path(out).is_file():
        return False
    subject, name = loaded.subject, eval_id(spec)
    if isinstance(spec, PerTokenLossSpec | GateMapsSpec) and context.corpus is not None:
        subject.check_corpus(context.corpus.spec)  # these read token ids, the others text
    partial = out.with_name(out.name.removesuffix(".parquet") + ".partial.jsonl")
    context = replace(context, partial=Partial(partial, identity=f"{subject.run_id}/{name}"), extras={})
    context.train_seq_len = subject.train_seq_len
    started = time.perf_counter()
    rows = evaluate(loaded, spec, context)
    context.extras |= {"seconds": round(time.perf_counter() - started, 2), "peak_memory_gib": _peak_memory_gib(loaded.device)}
    source = {"scale": subject.scale, "model": subject.model, "run_id": subject.run_id, "eval_id": name}
    rows = pd.concat([pd.DataFrame(source, index=rows.index), rows], axis=1)
    meta = {
        "kind": spec.kind,
        **source,
        "spec": EVAL_SPEC.dump_python(spec, mode="json"),
        "created": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "provenance": provenance(device_name(loaded.device)),
        "extras": context.extras,
    }
    write_rows(out, rows, meta)
    context.partial.discard()
    return True


def _peak_memory_gib(device: str) -> float | None:
    import torch

    return round(torch.cuda.max_memory_allocated(device) / 2**30, 2) if torch.device(device).type == "cuda" else None


def device_name(device: str) -> str:
    """GPU model, or the processor architecture."""
    import torch

    if torch.device(device).type == "cuda":
        return torch.cuda.get_device_name(device)
    return f"{platform.machine()} CPU"
