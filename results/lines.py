"""Files of JSON lines, most of which grow while a run is trained. Standard library only."""

import json
import os
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any

Row = dict[str, Any]


def to_lines(rows: Iterable[Row]) -> str:
    return "".join(json.dumps(row) + "\n" for row in rows)


def read_lines(path: Path) -> tuple[list[Row], int]:
    """Return the readable rows in order, and the number of damaged lines. A last line without a
    newline counts as neither: it is still being written, or its writer was killed."""
    texts = path.read_bytes().split(b"\n")[:-1] if path.exists() else []
    rows = [row for text in texts if (row := _row(text)) is not None]
    return rows, len(texts) - len(rows)


def last_row(path: Path) -> Row | None:
    """Return the newest readable row; reads only the end of the file."""
    with suppress(OSError), open(path, "rb") as file:
        file.seek(max(0, file.seek(0, os.SEEK_END) - 4096))
        texts = reversed(file.read().split(b"\n")[:-1])
        return next(filter(None, map(_row, texts)), None)
    return None


def _row(text: bytes) -> Row | None:
    try:
        row = json.loads(text)
    except (ValueError, RecursionError):
        return None
    return row if isinstance(row, dict) else None
