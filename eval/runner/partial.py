"""Finished samples of an interrupted evaluation, from which it is resumed.

Samples are lines of an append-only `<eval_id>.partial.jsonl`; the first line names model and spec, and a
file of another model or spec is not used. Damaged lines are computed again. Large running sums go to `<eval_id>.partial.npz`,
replaced atomically."""

import io
from pathlib import Path
from typing import Any

import numpy as np

from results.atomic import write_atomic
from results.lines import read_lines, to_lines


class Partial:
    """Finished samples by key, kept in `path` (None keeps them in memory only)."""

    def __init__(self, path: Path | None, identity: str):
        self.path, self.identity, self._head = path, identity, {"identity": identity}
        self.records: dict[str, dict[str, Any]] = {}
        if path is not None and path.exists():
            found, _ = read_lines(path)
            kept = found[1:] if found[:1] == [self._head] else []
            self.records = {entry["key"]: entry["record"] for entry in kept}
            write_atomic(path, to_lines([self._head, *kept]))  # drops a line that was cut off

    def add(self, key: str, record: dict[str, Any]) -> None:
        """Keep one finished sample, in the file when this returns."""
        if self.path is not None:
            if not self.path.exists():
                write_atomic(self.path, to_lines([self._head]))
            with open(self.path, "a", encoding="utf-8") as file:
                file.write(to_lines([{"key": key, "record": record}]))
        self.records[key] = record

    def save_state(self, arrays: dict[str, np.ndarray]) -> None:
        if self.path is not None:
            buffer = io.BytesIO()
            np.savez(buffer, allow_pickle=False, identity=np.array(self.identity), **arrays)
            write_atomic(self.path.with_suffix(".npz"), buffer.getvalue())

    def load_state(self) -> dict[str, np.ndarray] | None:
        """Return the running sums of this model and spec; None if there are none that can be read."""
        if self.path is None:
            return None
        try:
            with np.load(self.path.with_suffix(".npz"), allow_pickle=False) as file:
                arrays = dict(file)
        except Exception:  # damaged archives raise errors of many families
            return None
        return arrays if str(arrays.pop("identity", "")) == self.identity else None

    def discard(self) -> None:
        """Remove the files, because the evaluation is finished."""
        for path in () if self.path is None else (self.path, self.path.with_suffix(".npz")):
            path.unlink(missing_ok=True)
