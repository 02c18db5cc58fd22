"""Measurements of kernels, which need no training: times and errors. Torch-free.

FOLDER/KIND.parquet has the rows of all measurements of a kind, oldest first, after columns `created` (ISO, UTC), `command` and
`provenance` (JSON)."""

import json
import re
import shlex
import sys
from pathlib import Path
from typing import Any

import pandas as pd

from results.atomic import alone
from results.provenance import provenance
from results.schema import Schema, flag, integer, number, text
from results.store import open_parquet, reading, to_table, write_tables

FOLDER = Path(__file__).parent / "measurements"
"""Published measurements."""
OWN = Path("out/measurements")
"""Where measurements of one's own go."""
ABOUT = ("created", "command", "provenance")
PLACES = ("--rows", "--corpora-dir")  # options for folders on the machine, which do not change what is measured
WHOLE_PATH = re.compile(r"(?<![^:=,])/[^:=,]*")  # also after a scheme (text:/data/books/train*) or after --option=
GRADIENTS = ("o", "dq", "dk", "dv", "dlog_fgate")

# Rows with the same `date` are compared with each other. For stick-breaking attention, `gates` holds the kind of logits.
_KERNEL = {name: text() for name in ("date", "provider", "operation", "gates", "dtype")}
_KERNEL |= {name: integer(1) for name in ("batch", "seq_len", "num_heads", "head_dim")}
_TIMES = {
    # Quantiles 20/50/80 of the repeats; NaN if the provider did not compile, tune and run within the time limit.
    **{name: number(0, nullable=True) for name in ("ms_q20", "ms_q50", "ms_q80")},
    "effective_tflops": number(0),  # skipped work counts as done; 0 if FLOPs are not counted
    "max_error": number(0, nullable=True),  # of the output, against float64
}
KERNEL_TIMES = Schema({**_KERNEL, **_TIMES}, key=tuple(_KERNEL))
_ERRORS = {name: number(0) for name in GRADIENTS}

# Kinds that are no longer measured or drawn have files but no schema.
SCHEMAS = {
    "forgetting_attention": KERNEL_TIMES,
    "stick_breaking": KERNEL_TIMES,
    "decoding": KERNEL_TIMES,
    "mamba2_recurrence": KERNEL_TIMES,
    "short_convolution": KERNEL_TIMES,
    "fla_model": KERNEL_TIMES,  # of a whole training step
    # Training steps: `graph`: as one CUDA graph; `train_ms`: in a training, `step_ms`: in a row on one batch.
    "steps": Schema(
        {"model": text(), "scale": text(), "batch_tokens": integer(1), "graph": flag(), "kernels": integer(1)}
        | {name: number(0) for name in ("step_ms", "busy_ms", "train_ms", "reserved_gib")},
        key=("model", "scale", "batch_tokens", "graph"),
    ),
    # Errors relative to the norm of each quantity, by regime.
    "errors_by_regime": Schema(
        {"provider": text(), "head_dim": integer(1), "logit": number(0), "gates": text(), **_ERRORS},
        key=("provider", "head_dim", "logit", "gates"),
    ),
}


def add(kind: str, rows: list[dict[str, Any]], device: str, *, code: str = "", folder: Path = OWN) -> Path:
    """Store rows that were just measured on `device`. `code`: the commit of the code, if no checkout tells it. ValueError for
    rows that do not match SCHEMAS."""
    made = provenance(device)
    if code:
        made |= {"git_sha": code, "git_dirty": None}
    frame = SCHEMAS[kind].validate(pd.DataFrame(rows), where=kind)
    about = dict(zip(ABOUT, (made["date"], _command(), json.dumps(made)), strict=True))
    return append(kind, pd.DataFrame({**about, **frame}), folder)


def append(kind: str, rows: pd.DataFrame, folder: Path) -> Path:
    """Append rows to the table of a kind."""
    path = folder / f"{kind}.parquet"
    folder.mkdir(parents=True, exist_ok=True)
    with alone(folder / ".lock", lambda: None, needed=False):
        known = [read_whole(path)] if path.is_file() else []
        write_tables(path, [to_table(pd.concat([*known, rows], ignore_index=True))])
    return path


def read_whole(path: Path) -> pd.DataFrame:
    """Read a table. ValueError if it is damaged."""
    with reading(path):
        return open_parquet(path).read(use_threads=False).to_pandas(use_threads=False)


def _command() -> str:
    """Return this command without what is specific to this machine: folders of rows and corpora are left out, and absolute
    paths are cut to the last folder and the file name."""
    words = iter(sys.orig_argv[1:])
    kept = ["python"]
    for word in words:
        if word in PLACES:
            next(words, None)
        elif not word.startswith(tuple(f"{place}=" for place in PLACES)):
            kept.append(WHOLE_PATH.sub(lambda path: "/".join(path[0].split("/")[-2:]).lstrip("/"), word))
    return shlex.join(kept)


def has(kind: str, folder: Path = FOLDER) -> bool:
    return (folder / f"{kind}.parquet").is_file()


def read(kind: str, folder: Path = FOLDER) -> pd.DataFrame:
    """Read all rows of a kind, oldest first, with the columns `created`, `commit`, `gpu`, `torch` and `triton` in front.
    ValueError if there are none, or if the file is damaged."""
    if not has(kind, folder):
        raise ValueError(f"{folder / kind} holds no measurements; measure first")
    rows = read_whole(folder / f"{kind}.parquet").sort_values("created", kind="stable", ignore_index=True)
    made = [json.loads(text) for text in rows["provenance"]]
    source = {
        "created": rows["created"],
        "commit": [str(each["git_sha"] or "")[:10] + ("+" if each["git_dirty"] else "") for each in made],
        "gpu": [each["device"] for each in made],
        **{name: [each["versions"][name] for each in made] for name in ("torch", "triton")},
    }
    return pd.DataFrame({**source, **rows.drop(columns=list(ABOUT))})
