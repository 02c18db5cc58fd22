"""One case at a time: what is done to an experiment, and whether it was detected, healed or refused."""

import math
import os
import random
import re
import resource
import shutil
import subprocess
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.torture.ground import STATES, Child, Ground, call, carry_out, differing, facts

SILENT, CRASHED, STUCK = "silently different", "crashed", "remedy fails"
BAD = (SILENT, CRASHED, STUCK)


@dataclass(frozen=True)
class Outcome:
    """`case`: what was done, `target`: to what, `became`: one of the words of `_judge`, or of BAD; `note`: what was said."""

    case: str
    target: str
    became: str
    note: str = ""
    kills: int = 0

    @property
    def bad(self) -> bool:
        return self.became in BAD


@dataclass(frozen=True)
class Target:
    """Files of one kind in a state in which a run reads them. `remedy`: what to delete when told so, relative to the ground."""

    name: str
    state: str
    pattern: str
    remedy: str = ""


RUN, CORPUS, STORE = "runs/*/*", "corpora/text-*", "results/*"
TARGETS = (
    Target("corpus array read no more", "trained", f"{CORPUS}/train.zarr/0.0", CORPUS),
    Target("run spec", "half trained", f"{RUN}/spec.json", RUN),
    Target("run spec", "drawn", f"{RUN}/spec.json", RUN),
    Target("provenance", "half trained", f"{RUN}/provenance.jsonl", RUN),
    Target("provenance", "evaluated", f"{RUN}/provenance.jsonl", RUN),
    Target("metrics", "half trained", f"{RUN}/metrics.jsonl", RUN),
    Target("metrics", "trained", f"{RUN}/metrics.jsonl", RUN),
    Target("metrics", "evaluated", f"{RUN}/metrics.jsonl", RUN),
    Target("checkpoint", "half trained", f"{RUN}/checkpoints/step-*/*"),
    Target("exported weights", "trained", f"{RUN}/export/*.safetensors", f"{RUN}/export"),
    Target("export, other files", "trained", f"{RUN}/export/*.[jp][sy]*", f"{RUN}/export"),
    Target("unfinished evaluation", "half evaluated", f"{RUN}/evals/*.partial.*"),
    Target("rows of a run", "evaluated", f"{RUN}/evals/*.parquet"),
    Target("rows of a run", "drawn", f"{RUN}/evals/*.parquet"),
    Target("meta of a run's rows", "evaluated", f"{RUN}/evals/*.meta.json"),
    Target("evaluation spec", "trained", f"{RUN}/evals/*.spec.json"),
    Target("corpus.json", "half trained", f"{CORPUS}/corpus.json", CORPUS),
    Target("corpus.json", "trained", f"{CORPUS}/corpus.json", CORPUS),
    Target("corpus arrays", "half trained", f"{CORPUS}/*.zarr/*", CORPUS),
    Target("corpus arrays", "trained", f"{CORPUS}/heldout.zarr/*", CORPUS),
    Target("corpus tokeniser", "half trained", f"{CORPUS}/tokenizer/*", CORPUS),
    Target("stored rows", "drawn", f"{STORE}/rows/*/*.parquet", f"{STORE}/rows"),
    Target("meta of stored rows", "drawn", f"{STORE}/rows/*/*.meta.json", f"{STORE}/rows"),
    Target("run record", "drawn", f"{STORE}/runs/*.json", f"{STORE}/runs"),
    Target("STEM.json", "drawn", f"{STORE}/*.json"),
    Target("figures and their CSV", "drawn", f"{STORE}/figures/*"),
    Target("report", "drawn", f"{STORE}/report.html"),
)
STRIDE = (
    7  # from one case to the next, so that a few cases are of different kinds, and all kinds come up before one comes twice
)
assert math.gcd(STRIDE, len(TARGETS)) == 1


@dataclass
class Bench:
    """The experiment in its states, what it is when undisturbed, and room for copies of it."""

    states: dict[str, Ground]
    folder: Path
    seconds: float
    truth: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.truth = facts(self.states["drawn"])
        assert any(name.startswith("rows") for name in self.truth) and any(name.startswith("drawn") for name in self.truth)

    def copy(self, state: str) -> Ground:
        target = self.folder / "case"
        shutil.rmtree(target, ignore_errors=True)
        return self.states[state].copy(target)

    def fresh(self) -> Ground:
        """The texts alone."""
        target = self.folder / "case"
        shutil.rmtree(target, ignore_errors=True)
        shutil.copytree(self.states["drawn"].path / "texts", target / "texts")
        return Ground(target)

    def wrong(self, ground: Ground) -> list[str]:
        """Return what a finished experiment holds that the undisturbed one does not."""
        try:
            return differing(self.truth, facts(ground))
        except Exception as error:  # whatever a reader without checks says of a damaged file
            return [f"unreadable: {type(error).__name__}: {error}"]

    def end(self, ground: Ground) -> str:
        """Carry the experiment out undisturbed, to its end. Returns what is not as it should be, or nothing."""
        code, said = call(lambda: carry_out(ground))
        if code != 0:
            return f"exit code {code}: {_last(said)}"
        return ", ".join(self.wrong(ground))


def killed(bench: Bench, rng: random.Random) -> Outcome:
    """From the texts on, killed at random moments until it is done before it is killed."""
    ground, kills = bench.fresh(), 0
    while True:
        child = Child(lambda: carry_out(ground))
        moment = time.monotonic() + rng.uniform(0, bench.seconds)
        while time.monotonic() < moment and not child.ended:
            time.sleep(0.002)
        child.kill()
        code, said = child.end()
        if code == 0:
            break
        if code != -9:
            return Outcome("kill", "anything", CRASHED, f"after {kills} kills: exit code {code}: {_last(said)}", kills)
        kills += 1
    wrong = ", ".join(bench.wrong(ground))
    return Outcome("kill", "anything", SILENT if wrong else "equal", wrong, kills)


def altered(bench: Bench, rng: random.Random, target: Target, fault: str) -> Outcome:
    """One file is altered; then the same command again. What it refuses is mended as it says."""
    ground = bench.copy(target.state)
    path = rng.choice(sorted(path for path in ground.path.glob(target.pattern) if path.is_file()))
    change = _alter(path, rng, fault)
    altered = _body(path)
    name = f"{target.name} ({target.state})"
    what = f"{path.relative_to(ground.path)}: {change}"

    def outcome(became: str, note: str = "") -> Outcome:
        return Outcome(fault, name, became, f"{what}: {note}" if note else what)

    code, said = call(lambda: carry_out(ground))
    if code == 0 and bench.wrong(ground) == ["corpus train"]:  # a trained run has read its text: the next training is to see it
        for folder in ("runs", "results"):
            shutil.rmtree(ground.path / folder)
        code, said = call(lambda: carry_out(ground))
    if code == 0:
        wrong = bench.wrong(ground)
        if wrong:
            return outcome(SILENT, ", ".join(wrong))
        return outcome("without effect" if _body(path) == altered else "made again")
    complaint = re.findall(r"^error: .*", said, re.MULTILINE)
    if code != 2 or "Traceback" in said or not complaint:
        return outcome(CRASHED, f"exit code {code}: {_last(said)}")
    if not any(part in "\n".join(complaint) for part in (path.name, path.parent.name)):
        return outcome(CRASHED, f"does not name the file: {_last(said)}")
    for each in _told_to_delete(ground, target, path):
        shutil.rmtree(each) if each.is_dir() else each.unlink(missing_ok=True)
    wrong_then = bench.end(ground)
    return outcome(
        STUCK if wrong_then else "refused, mended as told", f"{wrong_then} after: {complaint[0]}" if wrong_then else ""
    )


def _told_to_delete(ground: Ground, target: Target, path: Path) -> list[Path]:
    return list(ground.path.glob(target.remedy)) if target.remedy else [path]


def _alter(path: Path, rng: random.Random, fault: str) -> str:
    """Returns what was done, in words."""
    body = bytearray(path.read_bytes())
    if fault == "flip":
        place, bit = rng.randrange(len(body)), rng.randrange(8)
        body[place] ^= 1 << bit
        path.write_bytes(body)
        return f"flip of bit {bit} of byte {place}"
    kind = rng.choice(("shorter", "empty", "gone", "zeros", "odd"))
    if kind == "gone":
        path.unlink()
    elif kind == "shorter":
        os.truncate(path, rng.randrange(len(body)))
    elif kind == "zeros":
        start = rng.randrange(len(body))
        path.write_bytes(body[:start] + bytes(len(body) - start))
    else:
        path.write_bytes(b"" if kind == "empty" else rng.choice((b"{}\n", b"[]\n", b"null\n", b'{"a": NaN}\n', b"\xff\xfe\n")))
    return kind


def _body(path: Path) -> bytes | None:
    return path.read_bytes() if path.is_file() else None


def full_disk(bench: Bench, rng: random.Random, small_disk: bool) -> Outcome:
    """A disk with a random rest of room, or else no room for files beyond a random size; then room again."""
    return (_small_disk if small_disk else _small_files)(bench, rng, rng.choice(STATES))


def _small_files(bench: Bench, rng: random.Random, state: str) -> Outcome:
    ground = bench.copy(state)
    most = int(2 ** rng.uniform(6, 20))

    def limited() -> int:
        resource.setrlimit(resource.RLIMIT_FSIZE, (most, resource.RLIM_INFINITY))
        return carry_out(ground)

    return _with_room_again(bench, ground, f"no file above a limit ({state})", call(limited), f"{most} bytes")


def can_mount() -> bool:
    """Tell whether this process may make a small disk."""
    return (
        subprocess.run(["unshare", "--mount", "true"], capture_output=True, check=False).returncode == 0 and os.geteuid() == 0
    )


def _small_disk(bench: Bench, rng: random.Random, state: str) -> Outcome:
    source = bench.states[state]
    used = sum(path.stat().st_blocks * 512 for path in source.path.rglob("*"))
    room = int(2 ** rng.uniform(12, 21))
    disk = bench.folder / "disk"
    disk.mkdir(exist_ok=True)
    subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={used + (1 << 17)}", "tmpfs", str(disk)], check=True)
    try:
        ground = source.copy(disk / "case")
        filled = sum(path.stat().st_blocks * 512 for path in disk.rglob("*"))
        subprocess.run(["mount", "-o", f"remount,size={filled + room}", str(disk)], check=True)
        first = call(lambda: carry_out(ground))
        subprocess.run(["mount", "-o", "remount,size=256m", str(disk)], check=True)
        return _with_room_again(bench, ground, f"full disk ({state})", first, f"{room} bytes of room")
    finally:
        subprocess.run(["umount", "-l", str(disk)], check=True)


def _with_room_again(bench: Bench, ground: Ground, target: str, first: tuple[int, str], what: str) -> Outcome:
    code, said = first
    if code not in (0, 2) or "Traceback" in said or (code == 2 and "error: " not in said):
        return Outcome("full disk", target, CRASHED, f"{what}: exit code {code}: {_last(said)}")
    if code == 0 and (wrong := bench.wrong(ground)):
        return Outcome("full disk", target, SILENT, f"{what}: {', '.join(wrong)}")
    wrong_then = bench.end(ground)
    became = STUCK if wrong_then else "refused, went on with room" if code == 2 else "had room"
    return Outcome("full disk", target, became, f"{what}: {wrong_then}; {_last(said)}" if wrong_then else what)


def two_at_once(bench: Bench, rng: random.Random) -> Outcome:
    """Two equal commands, one a moment after the other and now and then killed."""
    state = rng.choice(STATES)
    ground = bench.copy(state)
    first = Child(lambda: carry_out(ground))
    time.sleep(rng.uniform(0, bench.seconds / 2))
    second = Child(lambda: carry_out(ground))
    if rng.random() < 0.5:
        time.sleep(rng.uniform(0, bench.seconds / 2))
        first.kill()
    said = ""
    for child in (first, second):
        code, words = child.end()
        said += words
        waits = code == 2 and "another process" in words
        if code not in (0, -9) and not waits:
            second.kill()
            return Outcome("two at once", state, CRASHED, f"exit code {code}: {_last(words)}")
    wrong = bench.end(ground)
    became = SILENT if wrong else "one refused" if "another process; wait" in said else "equal"
    return Outcome("two at once", state, became, wrong)


def _last(said: str) -> str:
    """The lines of a message that say what was wrong."""
    lines = [line for line in said.splitlines() if line.strip()]
    errors = [line for line in lines if line.startswith("error: ") or re.match(r"\w*(Error|Exception)\b", line)]
    return " | ".join((errors or lines[-1:])[-2:])[:500]
