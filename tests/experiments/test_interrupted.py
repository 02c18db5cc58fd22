"""`run` with several artefacts, killed at random moments, or with something deleted: the same rows, and nothing done twice.
Its tasks by hand, in fresh processes: the same, too.

`tests/torture` does the same to one model by the thousand, without processes of its own for each task.
"""

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

    def start(self, folder: Path, **variables: str) -> subprocess.Popen[str]:
        only = [word for model in MODELS for word in ("--only", model)]
        places = [word for name in ("runs", "results", "corpora") for word in (f"--{name}-dir", str(folder / name))]
        return subprocess.Popen(
            [sys.executable, "-m", "experiments", "run", *ARTEFACTS, "--scale", "pocket", "--data", f"text:{self.texts}", *only,
             *places, "--checkpoint-minutes", "0.005"],
            cwd=self.checkout, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, start_new_session=True,
            env=os.environ | variables,
        )  # fmt: skip

    def run(self, folder: Path, **variables: str) -> list[str]:
        """To the end. The tasks that were carried out, by name."""
        launcher = self.start(folder, **variables)
        said, _ = launcher.communicate(timeout=280)
        assert launcher.returncode == 0, said
        return re.findall(r"^done  (\S+ \S+)  ", said, re.MULTILINE)


@pytest.fixture(scope="module")
def bench(tmp_path_factory: pytest.TempPathFactory) -> Bench:
    folder = tmp_path_factory.mktemp("bench")
    return Bench(copy_code(folder / "checkout", steps=100), write_texts(folder / "texts", documents=12))


@pytest.fixture(scope="module")
def undisturbed(bench: Bench, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, float]:
    """The folder of a run that nothing happened to, and its seconds."""
    folder, began = tmp_path_factory.mktemp("undisturbed"), time.monotonic()
    assert len(bench.run(folder, PYTHONPROFILEIMPORTTIME="1")) == 4, "two trainings and two evaluations"
    return folder, time.monotonic() - began


def rows(folder: Path) -> dict[str, object]:
    """Everything that is stored of the artefacts, to the last bit, but for what tells times."""
    import pandas as pd

    found: dict[str, object] = {}
    results = folder / "results" / "pocket"
    for path in results.rglob("*.parquet"):
        table = pd.read_parquet(path)
        found[path.name] = table.drop(columns=TIMED, errors="ignore").to_json(double_precision=15)
    for stem in ARTEFACTS:
        found[stem] = re.findall(r'"run_id": "\w+"', (results / f"{stem}.json").read_text())
        found[f"{stem}.csv"] = (results / "figures" / f"{stem}.csv").read_bytes()
    for path in (folder / "runs" / "pocket").glob("*/export/model.safetensors"):
        found[path.parts[-3]] = path.read_bytes()
    assert len(found) == 5 + 2 * len(ARTEFACTS) + 2, sorted(found)
    return found


def tasks_of(pid: int) -> list[int]:
    """The processes that a launcher started."""
    try:
        children = [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    except FileNotFoundError:
        return []
    return children + [task for child in children for task in tasks_of(child)]


@pytest.mark.timeout(3000)
@pytest.mark.parametrize("kills", [3, pytest.param(10, marks=pytest.mark.long)])
def test_kills_at_random_moments_leave_the_same_rows(bench, undisturbed, tmp_path, kills):
    """Kill the launcher, or the launcher and all its tasks: what was left alone saves and leaves by itself."""
    whole, seconds = undisturbed
    rng = random.Random(kills)
    for kill in range(kills):
        launcher = bench.start(tmp_path)
        time.sleep(rng.uniform(0.1, 0.9) * seconds / (1 if kill else 2))
        tasks = tasks_of(launcher.pid)
        launcher.kill()
        for task in tasks if kill % 2 else ():
            with suppress(ProcessLookupError):
                os.kill(task, signal.SIGKILL)
        launcher.communicate()
    bench.run(tmp_path)
    assert rows(tmp_path) == rows(whole)


def test_what_takes_long_is_imported_once_for_all_tasks(undisturbed):
    whole, _ = undisturbed
    for log in whole.glob("runs/pocket/*/logs/*.log"):
        imported = [line.rpartition("|")[2].strip() for line in log.read_text().splitlines() if line.startswith("import time:")]
        assert 0 < len(imported) < 300, (log.name, len(imported), imported)


def test_fresh_processes_give_the_same_bits_as_forks(bench, undisturbed, tmp_path):
    whole, _ = undisturbed
    folder = tmp_path / "work"
    shutil.copytree(whole, folder)
    before = rows(folder)
    (run,) = (folder / "runs" / "pocket").glob("fox_pro-*")
    (corpus,) = (path.parent for path in folder.glob("corpora/*/corpus.json"))
    shutil.rmtree(folder / "results")
    for path in run.iterdir():
        if path.name not in ("spec.json", "evals"):
            shutil.rmtree(path) if path.is_dir() else path.unlink()
    for path in (*run.glob("evals/*.parquet"), *run.glob("evals/*.meta.json")):
        path.unlink()
    for command in (
        ["training", str(run), "--corpus-dir", str(corpus), "--quiet"],
        ["eval.job", str(run), "--spec", *map(str, run.glob("evals/*.spec.json")), "--corpus", str(corpus)],
    ):
        environment = dict(os.environ, OMP_NUM_THREADS="1")
        subprocess.run([sys.executable, "-m", *command], cwd=bench.checkout, env=environment, check=True, capture_output=True)
    assert bench.run(folder) == [], "what was made by hand is taken"
    assert rows(folder) == before


def test_what_is_deleted_is_made_again_and_nothing_else(bench, undisturbed, tmp_path):
    """A run, an evaluation of another run, and then a figure."""
    whole, _ = undisturbed
    folder = tmp_path / "work"
    shutil.copytree(whole, folder)
    before = rows(folder)
    (run,) = (folder / "runs" / "pocket").glob("fox_pro-*")
    (other,) = (folder / "runs" / "pocket").glob("transformer_pro-*")
    shutil.rmtree(run)
    next(other.glob("evals/per_token_loss-*.parquet")).unlink()
    done = bench.run(folder)
    assert sorted(done) == [f"evaluate {run.name}", f"evaluate {other.name}", f"train {run.name}"]
    assert rows(folder) == before
    figure = folder / "results" / "pocket" / "figures" / "fig3_forget_gates.png"
    figure.unlink()
    assert bench.run(folder) == []
    assert rows(folder) == before
    assert figure.is_file()
