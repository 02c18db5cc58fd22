"""Do the tests notice? `python -m tests.mutants [--workers N] [--only ROOM] --out FILE`.

Each mutant of tests/mutants/listed.py is put into a copy of the checkout, its tests are run there, and it is taken out again; a
mutant is killed if one of them fails. Before that the same tests must pass in the copy as it is. Writes a table, and every
verdict to FILE with .jsonl as soon as it is known: the same command goes on from there, and judges again what survived or was
changed.
Exit code 1 if tests fail without a mutant, or fewer than nine in ten mutants are killed.
"""

import argparse
import hashlib
import os
import platform
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from queue import SimpleQueue

from tests.mutants.forked import run_pytest
from tests.mutants.listed import MUTANTS, Mutant
from training.lines import line, read_lines

ROOT = Path(__file__).parents[2]
ENOUGH = 0.9
LONGEST_S = 900.0
TOGETHER = 8  # mutants of the same tests that one worker takes
KILLED, SURVIVED, HUNG, INVALID = "killed", "survived", "killed (hung)", "invalid"


@dataclass(frozen=True)
class Result:
    """`by`: the first test that failed, or the last line that was said."""

    became: str
    seconds: float
    by: str = ""


def copy_checkout(folder: Path) -> Path:
    """The files of the checkout, as they are on disk."""
    listing = subprocess.run(["git", "ls-files", "-z", "-co", "--exclude-standard"], cwd=ROOT, capture_output=True, check=False)
    if listing.returncode == 0:
        for name in filter(None, listing.stdout.decode().split("\0")):
            if (ROOT / name).is_file():
                (folder / name).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy2(ROOT / name, folder / name)
    else:  # no checkout of git
        skipped = shutil.ignore_patterns(".*", "__pycache__", "runs", "corpora", "slurm_jobs")
        shutil.copytree(ROOT, folder, ignore=skipped, dirs_exist_ok=True)
    return folder


def run_tests(folder: Path, tests: str, limit_s: float) -> Result:
    """Until the first failure, in a process group of their own."""
    files, _, chosen = tests.partition(" -k ")
    arguments = ["-x", "-q", "-p", "no:cacheprovider", "-m", "not gpu and not long", f"--basetemp={folder / '.tmp'}"]
    arguments += [*(["-k", chosen] if chosen else []), *(f"tests/{file}" for file in files.split())]
    started = time.monotonic()
    code, said = run_pytest(folder, arguments, limit_s)
    failed = re.search(r"^(?:FAILED|ERROR) \S*?(\w+\.py\S*)", said, re.MULTILINE)
    became = {None: HUNG, 0: SURVIVED, 1: KILLED}.get(code, INVALID)
    words = failed[1] if failed else (said.strip().splitlines() or [""])[-1] if became is INVALID else ""
    return Result(became, round(time.monotonic() - started, 1), words)


def run_mutant(folder: Path, mutant: Mutant, limit_s: float) -> Result:
    path = folder / mutant.file
    whole = path.read_text()
    if whole.count(mutant.old) != 1:
        return Result(INVALID, 0.0, "applies to no line, or to several")
    path.write_text(whole.replace(mutant.old, mutant.new))
    try:
        return run_tests(folder, mutant.tests, limit_s)
    finally:
        path.write_text(whole)


def table(results: dict[int, Result]) -> str:
    """Markdown: how many of each room were killed, and every mutant."""
    import torch

    rooms = list(dict.fromkeys(MUTANTS[index].room for index in sorted(results)))
    killed = sum(result.became in (KILLED, HUNG) for result in results.values())
    text = (
        f"{killed} of {len(results)} mutants killed ({killed / len(results):.1%}) in "
        f"{sum(result.seconds for result in results.values()) / 60:.0f} minutes of one core, Python "
        f"{platform.python_version()}, torch {torch.__version__}.\n\n| room | mutants | killed |\n|---|---|---|\n"
    )
    for room in rooms:
        own = [result for index, result in results.items() if MUTANTS[index].room == room]
        text += f"| {room} | {len(own)} | {sum(result.became in (KILLED, HUNG) for result in own)} |\n"
    text += "\n| file | line | becomes | | noticed by |\n|---|---|---|---|---|\n"
    for index in sorted(results, key=lambda index: (results[index].became in (KILLED, HUNG), index)):
        mutant, result = MUTANTS[index], results[index]
        text += f"| {mutant.file} | {code(mutant.old)} | {code(mutant.new)} | {result.became} | {result.by} |\n"
    return text


def code(text: str) -> str:
    """In one cell of a table."""
    return f"`{' '.join(text.split())}`".replace("|", "\\|") if text.split() else "(nothing)"


def digest(mutant: Mutant) -> str:
    """Of what is changed, and of the tests that have to notice."""
    files = [mutant.file, *(f"tests/{name}" for name in mutant.tests.partition(" -k ")[0].split())]
    return hashlib.sha256(b"".join((ROOT / name).read_bytes() for name in files)).hexdigest()[:16]


def known(journal: Path | None, chosen: Iterable[int]) -> dict[int, Result]:
    """Of an earlier start, the mutants that were killed and whose file and tests are what they were."""
    rows = [] if journal is None else read_lines(journal)[0]
    results = [(row, Result(**row["result"])) for row in rows]
    found = {(row["digest"], *row["mutant"]): result for row, result in results if result.became in (KILLED, HUNG)}
    return {i: result for i in chosen if (result := found.get((digest(MUTANTS[i]), *MUTANTS[i])))}


def torment(chosen: list[int], workers: int, journal: Path | None) -> dict[int, Result] | None:
    """Results by index of the mutant; None if tests fail without one."""
    results = known(journal, chosen)
    sets: dict[str, list[int]] = defaultdict(list)
    for index in chosen:
        if index not in results:
            sets[MUTANTS[index].tests].append(index)
    _say(f"{len(results)} mutants were killed before, {len(chosen) - len(results)} are left")
    scratch = Path(tempfile.mkdtemp(prefix="mutants-"))
    folders: SimpleQueue[Path] = SimpleQueue()

    def judge(tests: str, some: list[int]) -> bool:
        """Without a mutant, then with one after the other."""
        folder = folders.get()
        try:
            whole = run_tests(folder, tests, LONGEST_S)
            _say(f"{whole.seconds} s, {whole.became} without a mutant: {tests}{whole.by if whole.became != SURVIVED else ''}")
            if whole.became != SURVIVED:
                return False
            for index in some:
                before, mutant = digest(MUTANTS[index]), MUTANTS[index]
                result = run_mutant(folder, mutant, min(LONGEST_S, 60 + 4 * whole.seconds))
                results[index] = result
                if result.became not in (KILLED, HUNG):
                    _say(f"{result.became}: {mutant.file}: {mutant.old!r} -> {mutant.new!r}: {result.by}")
                if journal is not None:
                    with journal.open("a") as file:
                        file.write(line({"digest": before, "mutant": list(mutant), "result": asdict(result)}))
            return True
        finally:
            folders.put(folder)

    try:
        for number in range(workers):
            folders.put(copy_checkout(scratch / str(number)))
        parts = [(tests, some[i : i + TOGETHER]) for tests, some in sets.items() for i in range(0, len(some), TOGETHER)]
        with ThreadPoolExecutor(workers) as pool:
            passed = list(pool.map(lambda part: judge(*part), parts))
        return results if all(passed) else None
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def indices(only: Iterable[str]) -> list[int]:
    """Mutants of the rooms (or files) named, of all if none is."""
    names = tuple(only)
    return [index for index, mutant in enumerate(MUTANTS) if not names or mutant.file.startswith(names)]


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.mutants", description=__doc__)
    parser.add_argument("--workers", type=int, default=len(os.sched_getaffinity(0)), metavar="N")
    parser.add_argument("--only", action="append", default=[], metavar="ROOM", help="a room or a file (repeatable)")
    parser.add_argument("--out", type=Path, help="the table, as Markdown; what is begun is continued")
    asked = parser.parse_args()
    chosen = indices(asked.only)
    if not chosen:
        parser.error(
            f"--only {' '.join(asked.only)}: no mutant is there; rooms are {', '.join(sorted({m.room for m in MUTANTS}))}"
        )
    results = torment(chosen, asked.workers, asked.out and asked.out.with_suffix(".jsonl"))
    if results is None:
        return 1
    text = table(results)
    if asked.out is not None:
        asked.out.write_text(text)
    print(text)
    killed = sum(result.became in (KILLED, HUNG) for result in results.values())
    return 0 if killed >= ENOUGH * len(results) else 1


if __name__ == "__main__":
    sys.exit(main())
