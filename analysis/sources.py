"""Sources of held-out documents: rows of one book are cut from it, so they are no independent draws.

An evaluation records the source of each document that it read (extras "sources"). Of evaluations from before that,
results/sources.json has them by corpus: {"FINGERPRINT": [source of document 0, of document 1, ...]}.
"""

import json
from functools import lru_cache
from pathlib import Path

import numpy as np

from results.store import Meta

FILE = "sources.json"


def sources_of(results_dir: Path, meta: Meta, documents: int) -> np.ndarray | None:
    """Return the source of each of the first documents of the corpus that an evaluation read; None where it is not known."""
    sources = meta["extras"].get("sources") or _stored(results_dir / FILE).get(str(meta["spec"].get("corpus")), [])
    return np.array(sources[:documents]) if 0 < documents <= len(sources) else None


@lru_cache(maxsize=4)
def _stored(path: Path) -> dict[str, list[int]]:
    return json.loads(path.read_text()) if path.is_file() else {}
