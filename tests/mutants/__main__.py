"""Do the tests notice? `python -m tests.mutants [NAME ...] [--workers N] [--out FILE]`.

Each mutant of tests/mutants/listed.py is put into a copy of the checkout, its tests are run there, and it is taken out again; a
mutant is killed if one of them fails. Before that the same tests must pass in the copy as it is.
Exit code 1 if tests fail without a mutant, or fewer than nine in ten mutants are killed.
"""

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from queue import SimpleQueue

from tests.mutants.forked import run_pytest
from tests.mutants.listed import MUTANTS, Mutant
from tests.mutants.place import ROOT, Code, Place, files_of_tests, replacement

ENOUGH = 0.9
LONGEST_S = 900.0
KILLED, SURVIVED, HUNG, INVALID = "killed", "survived", "killed (hung)", "invalid"


@dataclass(frozen=True)
class Result:
    """`by`: the first test that failed, or the last line that was said."""

    became: str
    seconds: float
    by: str = ""

    @property
    def killed(self) -> bool:
        return self.became in (KILLED, HUNG)


def copy_checkout(folder: Path) -> Path:
    """Copy the files of the checkout, as they are on disk."""
    listing = ["git", "ls-files", "-z", "-co", "--exclude-standard"]
    for name in subprocess.run(listing, cwd=ROOT, capture_output=True, check=True, text=True).stdout.split("\0"):
        if (ROOT / name).is_file():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(ROOT / name, folder / name)
    return folder


def run_tests(folder: Path, mutant: Mutant, limit_s: float) -> Result:
    """Run the tests of a mutant until the first failure, in a process group of their own."""
    _, _, chosen = mutant.tests.partition(" -k ")
    arguments = ["-x", "-q", "-p", "no:cacheprovider", "-m", "not gpu and not long", f"--basetemp={folder / '.tmp'}"]
    started = time.monotonic()
    code, said = run_pytest(folder, [*arguments, *(["-k", chosen] if chosen else []), *files_of_tests(mutant)], limit_s)
    failed = re.search(r"^(?:FAILED|ERROR) \S*?(\w+\.py\S*)", said, re.MULTILINE)
    became = {None: HUNG, 0: SURVIVED, 1: KILLED}.get(code, INVALID)
    words = failed[1] if failed else (said.strip().splitlines() or [""])[-1] if became is INVALID else ""
    return Result(became, round(time.monotonic() - started, 1), words)


def run_mutant(folder: Path, mutant: Mutant, place: Place, limit_s: float) -> Result:
    """Run the tests of a mutant in a copy that has it."""
    path = folder / place.file
    whole = path.read_text()
    path.write_text(place.changed(whole, replacement(mutant)))
    try:
        return run_tests(folder, mutant, limit_s)
    finally:
        path.write_text(whole)


def judge(folder: Path, some: dict[Mutant, Place]) -> dict[Mutant, Result] | None:
    """Judge mutants of the same tests; None if these fail without any."""
    first = next(iter(some))
    whole = run_tests(folder, first, LONGEST_S)
    _say(f"{whole.seconds} s, {whole.became} without a mutant: {first.tests} {whole.by}")
    if whole.became != SURVIVED:
        return None
    results = {}
    for mutant, place in some.items():
        results[mutant] = result = run_mutant(folder, mutant, place, min(LONGEST_S, 60 + 4 * whole.seconds))
        _say(f"{result.became}: {mutant.name}: {mutant.old} -> {mutant.new}: {result.by}")
    return results


def torment(chosen: list[Mutant], workers: int) -> dict[Mutant, Result] | None:
    """Judge all, in as many copies as there are workers; None if tests fail without a mutant."""
    code = Code()
    sets: dict[str, dict[Mutant, Place]] = {}
    for mutant in chosen:
        (sets.setdefault(mutant.tests, {})[mutant],) = code.places(mutant)
    folders: SimpleQueue[Path] = SimpleQueue()

    def in_a_copy(some: dict[Mutant, Place]) -> dict[Mutant, Result] | None:
        folder = folders.get()
        try:
            return judge(folder, some)
        finally:
            folders.put(folder)

    with tempfile.TemporaryDirectory(prefix="mutants-") as scratch, ThreadPoolExecutor(workers) as pool:
        for number in range(workers):
            folders.put(copy_checkout(Path(scratch, str(number))))
        found = list(pool.map(in_a_copy, sets.values()))
    return None if None in found else {mutant: result for some in found for mutant, result in (some or {}).items()}


def table(results: dict[Mutant, Result]) -> str:
    """Return a line of Markdown per mutant, those that survived first."""
    killed, minutes = sum(result.killed for result in results.values()), sum(r.seconds for r in results.values()) / 60
    lines = [f"{killed} of {len(results)} mutants killed in {minutes:.0f} minutes of one core.", ""]
    lines += ["| in | what | becomes | | noticed by |", "|---|---|---|---|---|"]
    for mutant, result in sorted(results.items(), key=lambda item: item[1].killed):
        cells = (mutant.name, f"`{mutant.old}`", f"`{mutant.new}`", result.became, result.by)
        lines.append("| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |")
    return "\n".join(lines) + "\n"


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.mutants", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help="parts of the names of functions or tests; default: all")
    parser.add_argument("--workers", type=int, default=len(os.sched_getaffinity(0)), metavar="N")
    parser.add_argument("--out", type=Path, help="where the table goes, as Markdown")
    asked = parser.parse_args()
    chosen = [each for each in MUTANTS if not asked.names or any(name in f"{each.name} {each.tests}" for name in asked.names)]
    if not chosen:
        parser.error(f"{' '.join(asked.names)}: no mutant is so called, nor its tests")
    results = torment(chosen, asked.workers)
    if results is None:
        return 1
    print(table(results))
    if asked.out is not None:
        asked.out.write_text(table(results))
    return 0 if sum(result.killed for result in results.values()) >= ENOUGH * len(results) else 1


if __name__ == "__main__":
    sys.exit(main())
