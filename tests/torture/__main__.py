"""Faults by the thousand: `python -m tests.torture --kills 1000 --flips 1000 --workers 24 --out FILE`.

Every case is an experiment of seconds (one model, three artefacts) to which something is done; then the same command again. Its
results must be bitwise those of the undisturbed one, or it must have said in a line what is wrong and what to do, and that must
help. Writes a table; exit code 1 if a case was silently different, crashed, or its remedy did not help.
"""

import argparse
import multiprocessing
import os
import platform
import random
import shutil
import sys
import tempfile
import time
import traceback
from collections import Counter
from pathlib import Path
from typing import Any

from training.hardware import equal_bits

os.environ.update(equal_bits(1, os.environ))
os.environ.setdefault("HF_HUB_OFFLINE", "1")

from tests.torture.cases import CRASHED, STRIDE, TARGETS, Bench, Outcome, altered, can_mount, full_disk, killed, two_at_once
from tests.torture.ground import make_states

Case = tuple[str, int]
FORK = multiprocessing.get_context("fork")


def run_case(bench: Bench, case: Case, seed: int) -> Outcome:
    """The case of this kind and number: the same in every process."""
    kind, number = case
    rng = random.Random(f"{seed} {kind} {number}")
    if kind == "kill":
        return killed(bench, rng)
    if kind in ("flip", "damage"):
        return altered(bench, rng, TARGETS[STRIDE * number % len(TARGETS)], kind)
    if kind == "pair":
        return two_at_once(bench, rng)
    return full_disk(bench, rng, small_disk=number % 2 == 1 and can_mount())


def work(bench: Bench, cases: list[Case], index: Any, kills: Any, outcomes: Any, seed: int) -> None:
    """Case after case until none is left; of kills, until there were enough."""
    bench.folder.mkdir()
    while True:
        with index.get_lock():
            number = index.value
            index.value += 1
        if number >= len(cases):
            break
        case = cases[number]
        if case[0] == "kill" and kills.value <= 0:
            continue
        try:
            outcome = run_case(bench, case, seed)
        except Exception:
            outcome = Outcome(case[0], "the torture itself", CRASHED, traceback.format_exc())
        with kills.get_lock():
            kills.value -= outcome.kills
        outcomes.put((case, outcome))
    outcomes.put(None)


def torture(counts: dict[str, int], workers: int, seed: int, folder: Path, out: Path | None = None) -> list[Outcome]:
    """Carry out so many cases of every kind ("kill": so many kills), in so many processes."""
    started = time.monotonic()
    states = make_states(folder / "states")
    seconds = time.monotonic() - started  # more than one experiment takes: many are killed late, or once more when all is done
    cases = [(kind, number) for kind, count in counts.items() for number in range(count)]
    index, kills = FORK.Value("i", 0), FORK.Value("i", counts.get("kill", 0))
    outcomes: Any = FORK.SimpleQueue()  # without a thread of its own: the workers fork
    benches = [Bench(states, folder / f"worker-{n}", seconds) for n in range(workers)]
    processes = [FORK.Process(target=work, args=(bench, cases, index, kills, outcomes, seed)) for bench in benches]
    for process in processes:
        process.start()
    found: list[Outcome] = []
    left = workers
    while left:
        item = outcomes.get()
        if item is None:
            left -= 1
            continue
        case, outcome = item
        found.append(outcome)
        if outcome.bad:
            print(f"{case} {outcome.target}: {outcome.became}: {outcome.note}", file=sys.stderr, flush=True)
        if len(found) % 50 == 0:
            print(f"{len(found)} cases after {time.monotonic() - started:.0f} s", file=sys.stderr, flush=True)
        if out is not None:
            out.write_text(table(found, time.monotonic() - started, workers, seed))
    for process in processes:
        process.join()
    return found


def table(found: list[Outcome], seconds: float, workers: int, seed: int) -> str:
    """Markdown: how often each case became what."""
    rows = Counter((one.case, one.target, one.became) for one in found)
    kills = sum(one.kills for one in found)
    of = Counter(one.case for one in found)
    import torch

    text = (
        f"{kills} kills in {of['kill']} experiments, {of['flip']} flipped bits, {of['damage']} files cut, emptied, removed or "
        f"replaced, {of['full disk']} full disks, {of['two at once']} pairs of commands; {sum(one.bad for one in found)} of "
        f"{len(found)} cases bad. {seconds:.0f} s with {workers} workers; Python {platform.python_version()}, torch "
        f"{torch.__version__}, seed {seed}.\n\n| case | of | became | times |\n|---|---|---|---|\n"
    )
    text += "".join(f"| {case} | {target} | {became} | {count} |\n" for (case, target, became), count in sorted(rows.items()))
    bad = [one for one in found if one.bad]
    return text + ("\n" + "".join(f"- {one.case}, {one.target}: {one.became}: {one.note}\n" for one in bad) if bad else "")


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.torture", description=__doc__)
    for name, default in (("kills", 1000), ("flips", 1000), ("damages", 200), ("disks", 200), ("pairs", 50)):
        parser.add_argument(f"--{name}", type=int, default=default, metavar="N")
    parser.add_argument("--workers", type=int, default=len(os.sched_getaffinity(0)), metavar="N")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, help="the table, as Markdown")
    asked = parser.parse_args()
    counts = {"kill": asked.kills, "flip": asked.flips, "damage": asked.damages, "disk": asked.disks, "pair": asked.pairs}
    folder = Path(tempfile.mkdtemp(prefix="torture-"))
    started = time.monotonic()
    try:
        found = torture(counts, asked.workers, asked.seed, folder, asked.out)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    print(table(found, time.monotonic() - started, asked.workers, asked.seed))
    return 1 if any(one.bad for one in found) else 0


if __name__ == "__main__":
    sys.exit(main())
