"""Figure 2 of three models on a real SLURM, with everything that happens to jobs: rows equal those of an undisturbed run on
this machine, bit by bit. `pytest -m slurm tests/slurm` runs it as root on Debian."""

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pandas as pd
import pytest

from tests.checkout import copy_code
from tests.slurm.daemons import Slurm, install, until
from tests.texts import write_texts
from training.run_folder import RunFolder

pytestmark = [pytest.mark.slurm, pytest.mark.timeout(3600)]
MODELS = FOX, TRANSFORMER, MAMBA = "fox_llama", "transformer_llama", "mamba2"
FIGURE = "fig2_per_token_loss"


@pytest.fixture(scope="module")
def slurm() -> Iterator[Slurm]:
    if os.geteuid() or shutil.which("apt-get") is None:
        pytest.skip("needs root on Debian, for packages and daemons of its own")
    install()
    daemons = Slurm()
    try:
        daemons.start()
        yield daemons
    finally:
        daemons.stop()


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder of a copy of the code that has a scale of a few seconds, and of texts."""
    folder = tmp_path_factory.mktemp("shared")
    copy_code(folder / "code")
    write_texts(folder / "texts", documents=12)
    return folder


class Graph:
    """The figure, in folders of its own."""

    def __init__(self, slurm: Slurm, shared: Path, folder: Path, cluster: Path, models: tuple[str, ...] = MODELS):
        self.slurm, self.code, self.folder, self.runs = slurm, shared / "code", folder, folder / "results" / "pocket" / "runs"
        self.cluster = cluster
        self.options = [
            FIGURE, "--scale", "pocket", "--data", f"text:{shared}/texts", "--checkpoint-minutes", "0.01",
            "--results-dir", f"{folder}/results", "--corpora-dir", f"{folder}/corpora",
            *(word for model in models for word in ("--only", model)),
        ]  # fmt: skip

    def say(self, *words: str, room: str = "slurm") -> subprocess.CompletedProcess[str]:
        """`python -m slurm run ...`, with the graph's options."""
        cluster = ["--cluster", str(self.cluster)] if room == "slurm" else []
        command = [sys.executable, "-m", room, words[0], *self.options, *cluster, *words[1:]]
        environment = {**self.slurm.environment, "RANK": "3", "WORLD_SIZE": "8", "SBATCH_PARTITION": "nowhere"}
        environment = self.slurm.environment if room != "slurm" else environment
        return subprocess.run(command, cwd=self.code, env=environment, capture_output=True, text=True, timeout=600)

    def run(self, model: str) -> RunFolder:
        (found,) = self.runs.glob(f"{model}-*")
        return RunFolder(found)

    def jobs(self) -> dict[str, str]:
        """Return SLURM's ids of this graph's jobs, by kind and model."""
        lines = self.slurm.call("squeue", "-h", "-o", "%i %j").stdout.splitlines()
        return {name.rpartition("-")[0]: job for job, name in (line.split() for line in lines)}

    def until_ended(self) -> None:
        until(lambda: not self.jobs(), "the graph's end", 120, every=2)

    def hold(self, *models: str) -> dict[str, int]:
        """Stop the process of each training once it has saved, and return them. SLURM's signals let them go on."""
        held, seen = dict[str, int](), dict[int, float]()

        def all_held() -> bool:
            for model in set(models) - held.keys():
                for run in self.runs.glob(f"{model}-*"):
                    for pid in _processes("training", str(run)):
                        since = seen.setdefault(pid, time.time())
                        if any(path.stat().st_mtime > since for path in run.glob("checkpoints/step-*[0-9]")):
                            os.kill(pid, signal.SIGSTOP)
                            held[model] = pid
            return len(held) == len(models)

        until(all_held, f"checkpoints of {', '.join(models)}", 120, every=0.02)
        return held


def _until_gone(held: dict[str, int]) -> None:
    until(lambda: not any(Path(f"/proc/{pid}").exists() for pid in held.values()), "trainings to save and leave", 120)


def _processes(*words: str) -> Iterator[int]:
    """Yield the processes with these words on their command lines."""
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            if set(words) <= set((entry / "cmdline").read_text().split("\0")):
                yield int(entry.name)
        except OSError:
            continue


@pytest.fixture(scope="module")
def local(slurm: Slurm, shared: Path, tmp_path_factory: pytest.TempPathFactory) -> Graph:
    """The figure as `python -m experiments run` makes it."""
    graph = Graph(slurm, shared, tmp_path_factory.mktemp("local"), shared)
    done = graph.say("run", "--slots", "1", room="experiments")
    assert done.returncode == 0, done.stdout + done.stderr
    return graph


@pytest.fixture
def graph(slurm: Slurm, shared: Path, tmp_path: Path, cluster_file: Path) -> Iterator[Graph]:
    made = Graph(slurm, shared, tmp_path, cluster_file)
    yield made
    slurm.call("scancel", "--user=root")
    made.until_ended()


def assert_equal(graph: Graph, local: Graph, models: tuple[str, ...] = MODELS) -> None:
    """Assert that nothing is left to be done, and that losses and rows are those of the undisturbed run."""
    shown = graph.say("status")
    assert shown.returncode == 0 and f"{len(models) + 1} of {len(models) + 1} done" in shown.stdout, shown.stdout
    assert "all is done" in graph.say("run").stdout
    for model in models:
        ours, others = graph.run(model), local.run(model)
        assert [row["loss"] for row in ours.read_metrics()] == [row["loss"] for row in others.read_metrics()]
        for path in ours.evals.glob("*.parquet"):
            pd.testing.assert_frame_equal(pd.read_parquet(path), pd.read_parquet(others.evals / path.name), check_exact=True)
    drawn = [each.folder / "results" / "pocket" / "figures" / f"{FIGURE}.csv" for each in (graph, local)]
    assert drawn[0].read_text() == drawn[1].read_text()


def test_preemption_a_failing_node_and_a_time_limit(graph: Graph, local: Graph, slurm: Slurm) -> None:
    """All trainings are preempted, then lose their node; one reaches its time limit. SLURM's signals wake what is held."""
    said = graph.say("run")
    assert said.returncode == 0 and "submitted 8 jobs" in said.stdout, said.stdout + said.stderr
    held = graph.hold(*MODELS)
    for node in ("n1", "n2"):
        words = ("-p", "urgent", "--exclusive", "-w", node, "-o", "/dev/null", "-J", "urgent-job", "--wrap", "sleep 1")
        slurm.call("sbatch", *words, check=True)
    _until_gone(held)
    graph.hold(*MODELS)
    node = slurm.call("squeue", "-h", "-o", "%N", "-j", graph.jobs()[f"train-{FOX}"]).stdout.strip()
    slurm.fail_node(node)
    held = graph.hold(FOX)
    slurm.call("scontrol", "update", f"jobid={graph.jobs()[f'train-{FOX}']}", "timelimit=2", check=True)
    _until_gone(held)
    slurm.start_node(node)
    graph.until_ended()
    for model in MODELS:
        begun = [start["first_step"] for start in graph.run(model).read_starts()]
        assert len(begun) >= 2 + 2 * (model == FOX) and sorted(begun) == begun and begun[1] > 0, begun
    assert_equal(graph, local)


def test_a_limit_of_five_jobs_and_a_cancelled_graph(graph: Graph, local: Graph, slurm: Slurm) -> None:
    slurm.call("sacctmgr", "-i", "modify", "user", "root", "set", "MaxSubmitJobs=5", check=True)
    try:
        refused = _say_patiently(graph)
        assert refused.returncode == 75 and "say the command again" in refused.stdout, refused.stdout
        assert "not submitted" in graph.say("status").stdout
        assert _say_patiently(graph).returncode == 75
        graph.hold(FOX)
        assert "cancelled" in graph.say("cancel").stdout
        until(lambda: "all is done" in _say_patiently(graph).stdout, "the graph's end", 300, every=3)
    finally:
        slurm.call("sacctmgr", "-i", "modify", "user", "root", "set", "MaxSubmitJobs=-1", check=True)
    assert [start["first_step"] > 0 for start in graph.run(FOX).read_starts()] == [False, True]
    assert_equal(graph, local)


def _say_patiently(graph: Graph) -> subprocess.CompletedProcess[str]:
    """Say the command again. Nothing may be there twice, and nothing but the limit be said."""
    said = graph.say("run")
    names = graph.slurm.call("squeue", "-h", "-o", "%j").stdout.split()
    assert said.returncode in (0, 75) and len(names) == len(set(names)) <= 5, said.stdout + said.stderr
    return said


def test_a_mistake_is_final_and_can_be_mended(graph: Graph, local: Graph) -> None:
    """Trainings without their corpus fail at once, and what needs them is cancelled."""
    (corpus,) = (local.folder / "corpora").glob("text-*")
    broken = graph.folder / "corpora" / corpus.name
    shutil.copytree(corpus, broken)
    shutil.move(broken / "train.zarr", graph.folder)
    assert graph.say("run").returncode == 0
    graph.until_ended()
    shown = graph.say("status")
    assert shown.returncode == 1 and "4 failed" in shown.stdout and "train.zarr" in shown.stdout, shown.stdout
    assert "log: " in shown.stdout
    shutil.move(graph.folder / "train.zarr", broken)
    assert "submitted 7 jobs" in graph.say("run").stdout
    graph.until_ended()
    assert [len(graph.run(model).read_starts()) for model in MODELS] == [1, 1, 1]
    assert_equal(graph, local)


def test_two_nodes_train_one_run(graph: Graph, local: Graph) -> None:
    """Two processes, joined by gloo, save when the first of them is told to."""
    with open(graph.cluster, "a") as file:
        file.write('environment = { GLOO_SOCKET_IFNAME = "lo" }\ntrain = { tasks = 2, nodes = 2 }\n')
    del graph.options[-4:]  # the other models
    assert graph.say("run").returncode == 0
    graph.hold(FOX)
    graph.slurm.call("scancel", "--signal=USR2", graph.jobs()[f"train-{FOX}"], check=True)
    graph.until_ended()
    begun = graph.run(FOX).read_starts()
    assert [start["world_size"] for start in begun] == [2, 2] and begun[1]["first_step"] > 0
    ours, alone = (each.run(FOX).read_metrics() for each in (graph, local))
    assert ours[0]["loss"] == pytest.approx(alone[0]["loss"], rel=1e-5)
    assert ours[-1]["loss"] == pytest.approx(alone[-1]["loss"], rel=0.02)
    assert (graph.folder / "results" / "pocket" / "figures" / f"{FIGURE}.png").exists()
