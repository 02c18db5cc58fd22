"""Files of JSON lines that grow while a run is trained. Torch-free.

Each line carries its own CRC-32, seeded with its owner's name, so that a line of another run counts as damaged. Lines without
an owner are accepted for any run."""

import json
import zlib
from pathlib import Path
from typing import Any

CHECK = "crc32"
Row = dict[str, Any]


def line(row: Row, owner: str = "") -> str:
    """Return `row` as one line whose last key is its CRC."""
    return json.dumps({**row, CHECK: _crc(row, owner)}) + "\n"


def read_line(text: bytes, owner: str = "") -> Row | None:
    """Return the row of one line; None if it is damaged or another owner's."""
    try:
        row = json.loads(text)
        check = row.pop(CHECK)
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return None
    return row if check in (_crc(row, owner), _crc(row, "")) else None


def read_lines(path: Path, owner: str = "") -> tuple[list[Row], int]:
    """Return the undamaged rows in order, and the number of damaged lines. A last line without a newline counts as neither: it
    is still being written, or its writer was killed."""
    texts = path.read_bytes().split(b"\n")[:-1] if path.exists() else []
    rows = [read_line(text, owner) for text in texts]
    whole = [row for row in rows if row is not None]
    return whole, len(rows) - len(whole)


def _crc(row: Row, owner: str) -> int:
    return zlib.crc32(json.dumps(row).encode(), zlib.crc32(owner.encode()))
