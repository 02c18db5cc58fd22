"""What an unfinished evaluation has already got, so that starting it again goes on at the next sample.

Samples are lines of an append-only `<eval_id>.partial.jsonl`, each with a check (training/lines.py); the first line names model
and spec, and a file of another model or spec is not used. What follows a damaged or cut line is computed again. Large running
sums go to `<eval_id>.partial.npz`, replaced atomically.
"""

import io
import os
from pathlib import Path
from typing import Any

import numpy as np

from results.atomic import write_atomic
from training.lines import line, read_line


class Partial:
    """Finished samples by key, kept in `path` (None keeps them in memory only).

    >>> partial = Partial(None, identity="x"); partial.add("3", {"score": 1.0}); partial.records["3"]
    {'score': 1.0}
    """

    def __init__(self, path: Path | None, identity: str):
        self.path = path
        self.identity = identity
        self.records: dict[str, dict[str, Any]] = {}
        if path is not None:
            path.parent.mkdir(parents=True, exist_ok=True)
            self._read()

    def _read(self) -> None:
        assert self.path is not None
        body = self.path.read_bytes() if self.path.exists() else b""
        lines = body.split(b"\n")[:-1]  # what follows the last newline is a line cut off while it was written
        whole = 0
        for number, text in enumerate(lines):
            entry = read_line(text)
            if entry is None or (number == 0 and entry != {"identity": self.identity}):
                break
            if number:
                self.records[entry["key"]] = entry["record"]
            whole += len(text) + 1
        if whole < len(body):
            os.truncate(self.path, whole)
        if not whole:
            self._append({"identity": self.identity})

    def _append(self, entry: dict[str, Any]) -> None:
        if self.path is not None:
            with open(self.path, "a", encoding="utf-8") as file:
                file.write(line(entry))

    def add(self, key: str, record: dict[str, Any]) -> None:
        """Keep one finished sample; on disk when this returns."""
        self._append({"key": key, "record": record})
        self.records[key] = record

    @property
    def _state_path(self) -> Path | None:
        return None if self.path is None else self.path.with_suffix(".npz")

    def save_state(self, arrays: dict[str, np.ndarray]) -> None:
        """Replace the running sums on disk."""
        if self._state_path is None:
            return
        buffer = io.BytesIO()
        np.savez(buffer, allow_pickle=False, identity=np.array(self.identity), **arrays)
        write_atomic(self._state_path, buffer.getvalue())

    def load_state(self) -> dict[str, np.ndarray] | None:
        """The running sums of this model and spec, or None."""
        if self._state_path is None or not self._state_path.exists():
            return None
        try:
            with np.load(self._state_path, allow_pickle=False) as file:
                arrays = {name: file[name] for name in file.files}
        except Exception:  # damaged archives raise errors of many families
            return None
        if str(arrays.pop("identity", "")) != self.identity:
            return None
        return arrays

    def discard(self) -> None:
        """Remove the files, because the evaluation is finished."""
        for path in (self.path, self._state_path):
            if path is not None:
                path.unlink(missing_ok=True)
