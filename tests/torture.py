"""Accidents, once each: `python -m tests.torture [WORD]`, an hour; with a word only those that have it in their names.

A `run` of seconds is killed at twelve moments, finds no room on the disk at three, and finds a file of every kind cut or
with a byte flipped, when half trained and when done. Then the same command again: it must end with the weights and tables of an
undisturbed run, or refuse in one line that names the file. Exits with 1 if any ended otherwise."""

import hashlib
import os
import re
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pandas as pd
from safetensors import safe_open

from tests.checkout import copy_code
from tests.texts import write_texts

MOMENTS, SIZES = 12, (2_000, 60_000, 600_000)
STEMS = ("fig2_per_token_loss", "appendix_training_curves")
TIMINGS = ["wall_s", "tokens_per_s", "mfu", "mfu_dense"]


class Ground:
    """A folder with a copy of the code, texts, and what `run` made of them."""

    def __init__(self, folder: Path, code: Path):
        self.folder, self.code = folder, code

    def copy(self, name: str) -> "Ground":
        shutil.rmtree(self.folder.parent / name, ignore_errors=True)
        shutil.copytree(self.folder, self.folder.parent / name)
        return Ground(self.folder.parent / name, self.code)

    def start(self, file_size: int | None = None) -> subprocess.Popen[str]:
        """Start the run, in a session of its own; `file_size`: bytes beyond which no file can grow."""
        folders = [f"--{name}-dir={self.folder / name}" for name in ("corpora", "results")]
        command = [sys.executable, "-m", "experiments", "run", *STEMS, "--scale", "pocket", "--only", "fox_pro", "--data"]

        def limit() -> None:
            if file_size is not None:
                signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
                resource.setrlimit(resource.RLIMIT_FSIZE, (file_size, file_size))

        how = dict(cwd=self.code, start_new_session=True, preexec_fn=limit, text=True)
        words = [*command, f"text:{self.folder / 'texts'}", *folders, "--checkpoint-minutes=0"]
        return subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, **how)

    def run(self, file_size: int | None = None) -> tuple[int, str]:
        process = self.start(file_size)
        said = process.communicate()[0]
        return process.returncode, said

    def numbers(self) -> dict[str, str]:
        """Return a digest of the weights and of every table."""
        found = {}
        for path in self.folder.glob("results/*/runs/*/export/*.safetensors"):
            with safe_open(path, "numpy") as file:
                parts = [name.encode() + file.get_tensor(name).tobytes() for name in sorted(file.keys())]
            found["weights"] = hashlib.sha256(b"".join(parts)).hexdigest()
        for path in self.folder.glob("results/*/*/*.csv"):
            found[path.name] = pd.read_csv(path).drop(columns=TIMINGS, errors="ignore").to_csv()
        return found


def after(ground: Ground, truth: dict[str, str], file: Path | None = None) -> str:
    """Say the command again; return what became of the accident, with a "!" if it should not have."""
    code, said = ground.run()
    if code == 0:
        return "equal" if ground.numbers() == truth else "! other numbers"
    for complaint in re.findall(r"^.*error: .*", said, re.MULTILINE):
        if file is not None and "Traceback" not in said and {file.name, file.parent.name} & set(re.split(r"[/\s:]", complaint)):
            return f"refused: {complaint}"
    return f"! exit code {code}: {said.strip()[-600:]}"


def files_of_each_kind(*states: Ground) -> Iterator[tuple[Ground, str]]:
    """Yield the first file of every kind, told by its path without the digits and digests in it."""
    seen = set()
    for state in states:
        for path in sorted(path for path in state.folder.rglob("*") if path.is_file() and path.stat().st_size > 1):
            name = str(path.relative_to(state.folder))
            kind = re.sub(r"[0-9a-f]{8,}|\d+", "N", name)
            boring = name.startswith("texts") or path.name.startswith(".") or path.suffix in (".png", ".pdf", ".lock")
            if not boring and kind not in seen:
                seen.add(kind)
                yield state, name


def accidents(folder: Path, word: str) -> Iterator[tuple[str, str]]:
    """Yield each accident and what became of it."""
    empty = Ground(folder / "empty", copy_code(folder / "code", steps=40))
    write_texts(empty.folder / "texts", documents=8, sentences_each=120)
    whole, began = empty.copy("whole"), time.monotonic()
    code, said = whole.run()
    assert code == 0, said
    seconds, truth = time.monotonic() - began, whole.numbers()
    assert len(truth) > len(STEMS)
    for moment in range(1, MOMENTS + 1):
        if word in (name := f"killed after {moment}/{MOMENTS + 1} of its time"):
            ground = empty.copy("case")
            process = ground.start()
            time.sleep(seconds * moment / (MOMENTS + 1))
            os.killpg(process.pid, signal.SIGKILL)
            process.communicate()
            yield name, after(ground, truth)
    for size in SIZES:
        if word in (name := f"no room for files beyond {size} bytes"):
            ground = empty.copy("case")
            code, said = ground.run(size)
            fault = f"! {said.strip()[-600:]}" if code in (0, 1) or "Traceback" in said else ""
            yield name, f"exit code {code} {fault}, then {after(ground, truth)}"
    half = empty.copy("half")
    process = half.start()
    while not list(half.folder.glob("results/*/runs/*/checkpoints/step-*")) and process.poll() is None:
        time.sleep(0.05)
    os.killpg(process.pid, signal.SIGTERM)
    process.communicate()
    for state, file in files_of_each_kind(half, whole):
        for what in ("cut", "flipped"):
            if word in (name := f"{what}: {file} when {state.folder.name}"):
                ground = state.copy("case")
                body = bytearray((ground.folder / file).read_bytes())
                body[len(body) // 2] ^= 1
                (ground.folder / file).write_bytes(body[: len(body) // 2] if what == "cut" else body)
                yield name, after(ground, truth, ground.folder / file)


def main() -> int:
    word, bad = " ".join(sys.argv[1:]), 0
    with tempfile.TemporaryDirectory(prefix="torture-") as folder:
        for accident, became in accidents(Path(folder), word):
            bad += "!" in became
            print(f"{accident}: {became}", flush=True)
    print(f"{bad} accidents ended badly")
    return bool(bad)


if __name__ == "__main__":
    sys.exit(main())
