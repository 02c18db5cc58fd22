"""`run` of two models and three figures, from nothing to the report: killed, with something deleted, drawn again, by hand."""

import os
import random
import re
import shutil
import signal
import subprocess
import sys
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import pandas as pd
import pytest

from tests.checkout import copy_code
from tests.texts import write_texts

ARTEFACTS = ("fig2_per_token_loss", "fig3_forget_gates", "appendix_training_curves")
MODELS = ("fox_pro", "transformer_pro")
TIMED = {"wall_s", "tokens_per_s", "mfu", "mfu_dense"}


@dataclass(frozen=True)
class Bench:
    """A copy of the code with a scale of seconds, and texts."""

    checkout: Path
    texts: Path

    def start(self, folder: Path, *command: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [sys.executable, "-m", *command], cwd=self.checkout, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
            start_new_session=True, env=os.environ | {"OMP_NUM_THREADS": "1", "PYTHONDONTWRITEBYTECODE": "1"},
        )  # fmt: skip

    def launch(self, folder: Path) -> subprocess.Popen[str]:
        only = [word for model in MODELS for word in ("--only", model)]
        places = [word for name in ("results", "corpora") for word in (f"--{name}-dir", str(folder / name))]
        asked = (*ARTEFACTS, "--scale", "pocket", "--data", f"text:{self.texts}", *only, *places)
        return self.start(folder, "experiments", "run", *asked, "--checkpoint-minutes", "0.005")

    def end(self, process: subprocess.Popen[str]) -> str:
        said, _ = process.communicate(timeout=280)
        assert process.returncode == 0, said
        return said

    def run(self, folder: Path) -> list[str]:
        """To the end. The tasks that were carried out, by name."""
        return re.findall(r"^done  (\S+ \S+)  ", self.end(self.launch(folder)), re.MULTILINE)


@pytest.fixture(scope="module")
def bench(tmp_path_factory: pytest.TempPathFactory) -> Bench:
    folder = tmp_path_factory.mktemp("bench")
    return Bench(copy_code(folder / "checkout", steps=100), write_texts(folder / "texts", documents=12))


@pytest.fixture(scope="module")
def undisturbed(bench: Bench, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, float]:
    """The folder of a run that nothing happened to, and its seconds."""
    folder, began = tmp_path_factory.mktemp("undisturbed"), time.monotonic()
    before = {path for path in bench.checkout.rglob("*") if path.suffix != ".pyc"}
    assert len(bench.run(folder)) == 4, "two trainings and two evaluations"
    after = {path for path in bench.checkout.rglob("*") if path.suffix != ".pyc" and path.name != "__pycache__"}
    assert after <= before, "it writes into its own folders alone"
    return folder, time.monotonic() - began


def rows(folder: Path) -> dict[str, object]:
    """Everything that is stored of the artefacts, to the last bit, but for what tells times."""
    found: dict[str, object] = {}
    results = folder / "results" / "pocket"
    for path in results.glob("runs/*/evals/*.parquet"):
        held = pd.read_parquet(path).drop(columns=TIMED, errors="ignore")
        found[f"{path.parts[-3]}/{path.name}"] = held.to_json(double_precision=15)
    found |= {path.name: path.read_bytes() for path in results.glob("figures/*.csv") if "training" not in path.name}
    found |= {path.parts[-3]: path.read_bytes() for path in results.glob("runs/*/export/model.safetensors")}
    assert len([name for name in found if str(name).endswith("parquet")]) >= 3 and len(found) >= 8, sorted(found)
    return found


def tasks_of(pid: int) -> list[int]:
    """The processes that a launcher started."""
    try:
        children = [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    except FileNotFoundError:
        return []
    return children + [task for child in children for task in tasks_of(child)]


@pytest.mark.timeout(3000)
@pytest.mark.parametrize("kills", [2, pytest.param(10, marks=pytest.mark.long)])
def test_kills_at_random_moments_leave_the_same_rows(bench, undisturbed, tmp_path, kills):
    """Kill the launcher, or the launcher and all its tasks: what was left alone saves and leaves by itself."""
    whole, seconds = undisturbed
    rng = random.Random(kills)
    for kill in range(kills):
        launcher = bench.launch(tmp_path)
        time.sleep(rng.uniform(0.3, 0.9) * seconds / (1 if kill else 2))
        tasks = tasks_of(launcher.pid)
        launcher.kill()
        for task in tasks if kill % 2 else ():
            with suppress(ProcessLookupError):
                os.kill(task, signal.SIGKILL)
        launcher.communicate()
    bench.run(tmp_path)
    assert rows(tmp_path) == rows(whole)


def test_what_is_deleted_is_made_again_and_fresh_processes_give_the_same_bits(bench, undisturbed, tmp_path):
    """A run is made again by hand, as SLURM's jobs do; then only another's evaluation and a figure are left to be made."""
    whole, _ = undisturbed
    folder = tmp_path / "work"
    shutil.copytree(whole, folder)
    (run,), (other,) = ((folder / "results" / "pocket" / "runs").glob(f"{model}-*") for model in MODELS)
    (corpus,) = (path.parent for path in folder.glob("corpora/*/corpus.json"))
    shutil.rmtree(folder / "results" / "pocket" / "figures")
    for path in run.iterdir():
        if path.name not in ("spec.json", "evals"):
            shutil.rmtree(path) if path.is_dir() else path.unlink()
    for path in run.glob("evals/*.parquet"):
        path.unlink()
    damaged = next(other.glob("evals/per_token_loss-*.parquet"))
    damaged.write_bytes(damaged.read_bytes().replace(b"PAR1", b"PAR2"))
    bench.end(bench.start(folder, "training", str(run), "--corpus-dir", str(corpus), "--quiet"))
    specs = map(str, run.glob("evals/*.spec.json"))
    bench.end(bench.start(folder, "eval.job", str(run), "--spec", *specs, "--corpus", str(corpus)))
    assert bench.run(folder) == [f"evaluate {other.name}"]
    assert rows(folder) == rows(whole)
    both = (f"{each}/results" for each in (folder, whole))
    said = bench.end(bench.start(folder, "experiments", "compare", *both, "--scale", "pocket"))
    assert said.startswith("reproduced: 5 of 5 evaluations are equal up to rounding")


def test_what_was_drawn_is_drawn_again_and_says_what_it_was_made_from(bench, undisturbed, tmp_path):
    folder = tmp_path / "work"
    shutil.copytree(undisturbed[0], folder)
    place = folder / "results" / "pocket"
    drawn = {path: path.read_bytes() for path in (*place.glob("figures/*.*"), place / "report.html") if path.suffix != ".pdf"}
    shutil.rmtree(place / "figures")
    where = ("--scale", "pocket", "--results-dir", str(folder / "results"))
    bench.end(bench.start(folder, "experiments", "render", *where))
    again = {path: path.read_bytes() for path in drawn}
    assert again.keys() >= {place / "figures" / f"{stem}.{end}" for stem in ARTEFACTS for end in ("png", "csv")}
    assert [path.name for path in drawn if drawn[path].replace(bytes(undisturbed[0]), bytes(folder)) != again[path]] == []
    said = bench.end(bench.start(folder, "experiments", "why", ARTEFACTS[0], *where))
    for run in (folder / "results" / "pocket" / "runs").glob("*-*"):
        assert run.name.rpartition("-")[2] in said
