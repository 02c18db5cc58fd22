"""Do the tests notice? `python -m tests.mutants [--workers N] [--only ROOM] --out FILE`.

Each mutant of tests/mutants/listed.py is put into a copy of the checkout, its tests are run there, and it is taken out again; a
mutant is killed if one of them fails. Before that the same tests must pass in the copy as it is. Writes a table; exit code 1 if
tests fail without a mutant, or fewer than nine in ten mutants are killed.
"""

import argparse
import os
import platform
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from queue import SimpleQueue

from tests.mutants.listed import MUTANTS, Mutant

ROOT = Path(__file__).parents[2]
ENOUGH = 0.9
LONGEST_S = 900.0
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
    command = [sys.executable, "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider", "-m", "not gpu and not long"]
    command += [
        f"--basetemp={folder / '.tmp'}",
        *(["-k", chosen] if chosen else []),
        *(f"tests/{file}" for file in files.split()),
    ]
    # No bytecode: a mutant of the same length, written within the same second, would not be read again.
    environment = dict(os.environ, OMP_NUM_THREADS="1", PYTHONDONTWRITEBYTECODE="1", HF_HUB_OFFLINE="1")
    started = time.monotonic()
    process = subprocess.Popen(
        command,
        cwd=folder,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
    try:
        said, _ = process.communicate(timeout=limit_s)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, 9)
        process.communicate()
        return Result(HUNG, time.monotonic() - started)
    failed = re.search(r"^(?:FAILED|ERROR) \S*?(\w+\.py\S*)", said, re.MULTILINE)
    words = failed[1] if failed else (said.strip().splitlines() or [""])[-1]
    became = {0: SURVIVED, 1: KILLED}.get(process.returncode, INVALID)
    return Result(became, time.monotonic() - started, words)


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


def table(results: dict[int, Result], seconds: float) -> str:
    """Markdown: how many of each room were killed, and every mutant."""
    import torch

    rooms = list(dict.fromkeys(MUTANTS[index].room for index in sorted(results)))
    killed = sum(result.became in (KILLED, HUNG) for result in results.values())
    text = (
        f"{killed} of {len(results)} mutants killed ({killed / len(results):.1%}); {seconds:.0f} s, Python "
        f"{platform.python_version()}, torch {torch.__version__}.\n\n| room | mutants | killed |\n|---|---|---|\n"
    )
    for room in rooms:
        own = [result for index, result in results.items() if MUTANTS[index].room == room]
        text += f"| {room} | {len(own)} | {sum(result.became in (KILLED, HUNG) for result in own)} |\n"
    text += "\n| file | line | becomes | | noticed by |\n|---|---|---|---|---|\n"
    for index in sorted(results, key=lambda index: (results[index].became in (KILLED, HUNG), index)):
        mutant, result = MUTANTS[index], results[index]
        text += f"| {mutant.file} | {_code(mutant.old)} | {_code(mutant.new)} | {result.became} | {result.by} |\n"
    return text


def _code(text: str) -> str:
    """In one cell of a table."""
    return f"`{' '.join(text.split())}`".replace("|", "\\|") if text.split() else "(nothing)"


def torment(chosen: list[int], workers: int) -> dict[int, Result] | None:
    """Results by index of the mutant; None if tests fail without one."""
    scratch = Path(tempfile.mkdtemp(prefix="mutants-"))
    folders: SimpleQueue[Path] = SimpleQueue()
    try:
        for number in range(workers):
            folders.put(copy_checkout(scratch / str(number)))
        with ThreadPoolExecutor(workers) as pool:

            def in_a_copy(function, *arguments) -> Result:  # type: ignore[no-untyped-def]
                folder = folders.get()
                try:
                    return function(folder, *arguments)
                finally:
                    folders.put(folder)

            sets = sorted({MUTANTS[index].tests for index in chosen})
            _say(f"{len(sets)} sets of tests without a mutant")
            whole = dict(zip(sets, pool.map(lambda tests: in_a_copy(run_tests, tests, LONGEST_S), sets), strict=True))
            broken = {tests: result for tests, result in whole.items() if result.became != SURVIVED}
            for tests, result in broken.items():
                _say(f"{tests}: {result.became} without a mutant: {result.by}")
            if broken:
                return None
            _say(f"{len(chosen)} mutants")
            # The longest first: begun last, they would keep the others waiting.
            order = sorted(chosen, key=lambda index: -whole[MUTANTS[index].tests].seconds)

            def one(index: int) -> Result:
                mutant = MUTANTS[index]
                result = in_a_copy(run_mutant, mutant, min(LONGEST_S, 60 + 4 * whole[mutant.tests].seconds))
                if result.became not in (KILLED, HUNG):
                    _say(f"{result.became}: {mutant.file}: {mutant.old!r} -> {mutant.new!r} by {mutant.tests}: {result.by}")
                return result

            return dict(zip(order, pool.map(one, order), strict=True))
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
    parser.add_argument("--out", type=Path, help="the table, as Markdown")
    asked = parser.parse_args()
    chosen = indices(asked.only)
    if not chosen:
        parser.error(
            f"--only {' '.join(asked.only)}: no mutant is there; rooms are {', '.join(sorted({m.room for m in MUTANTS}))}"
        )
    started = time.monotonic()
    results = torment(chosen, asked.workers)
    if results is None:
        return 1
    text = table(results, time.monotonic() - started)
    if asked.out is not None:
        asked.out.write_text(text)
    print(text)
    killed = sum(result.became in (KILLED, HUNG) for result in results.values())
    return 0 if killed >= ENOUGH * len(results) else 1


if __name__ == "__main__":
    sys.exit(main())
