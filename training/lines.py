"""Files of JSON lines that grow while a run is trained; each line carries a CRC-32 of its own. Torch-free."""

import json
import zlib
from pathlib import Path
from typing import Any

CHECK = "crc32"
Row = dict[str, Any]


def line(row: Row) -> str:
    """Return `row` as one line whose last key is its check."""
    return json.dumps({**row, CHECK: _crc(row)}) + "\n"


def read_line(text: bytes) -> Row | None:
    """Return the row of one line; None where it is damaged."""
    try:
        row = json.loads(text)
        check = row.pop(CHECK)
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return None
    return row if check == _crc(row) else None


def read_lines(path: Path) -> tuple[list[Row], int]:
    """Return the whole rows in their order, and how many lines are damaged. A last line without its end counts as neither: it
    is being written, or the process was killed while it wrote."""
    if not path.exists():
        return [], 0
    rows = [read_line(text) for text in path.read_bytes().split(b"\n")[:-1]]
    whole = [row for row in rows if row is not None]
    return whole, len(rows) - len(whole)


def _crc(row: Row) -> int:
    return zlib.crc32(json.dumps(row).encode())
