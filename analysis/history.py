"""History of verdicts: results/SCALE/verdicts.jsonl, a line whenever some are others than before. Only added to.

{"date": of the newest evaluation, "commit": that made it, "verdicts": {"C1": "holds", ...}}     those that changed
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from analysis.study import Study
from results.atomic import write_atomic


@dataclass(frozen=True)
class Change:
    """`verdicts`: claim -> (status before, status since), with the newest evaluation's date and commit."""

    date: str
    commit: str
    verdicts: dict[str, tuple[str, str]]


def changes(folder: Path, statuses: Mapping[str, str], studies: Sequence[Study]) -> list[Change]:
    """Note what changed since the last time, and return all changes after the first verdicts, the newest first. ValueError for
    a damaged file."""
    path = folder / "verdicts.jsonl"
    text = path.read_text() if path.is_file() else ""
    try:
        entries = [json.loads(line) for line in text.splitlines()]
        known = {claim: status for entry in entries for claim, status in entry["verdicts"].items()}
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        raise ValueError(f"{path} is damaged: restore it from version control, or delete it and lose the history") from None
    different = {claim: status for claim, status in statuses.items() if known.get(claim) != status}
    if different:
        newest = max((meta for study in studies for meta in study.all_metas), key=lambda meta: meta["created"])
        commit = str(newest["provenance"].get("git_sha") or "unknown")[:10]
        entries.append({"date": newest["created"][:10], "commit": commit, "verdicts": different})
        write_atomic(path, text + json.dumps(entries[-1]) + "\n")
    found: list[Change] = []
    before: dict[str, str] = {}
    for entry in entries:
        both = {claim: (before[claim], status) for claim, status in entry["verdicts"].items() if claim in before}
        before |= entry["verdicts"]
        found += [Change(entry["date"], entry["commit"], both)] if both else []
    return found[::-1]
