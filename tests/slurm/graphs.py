"""Graphs of Figure 2 at the scale of a few seconds, submitted by the command line, and what becomes of them."""

import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pandas as pd

from experiments import restarts
from slurm import client
from slurm.job import adopt, read_submissions
from slurm.status import JobState, job_states
from tests.slurm.daemons import Slurm, until
from training.run_folder import RunFolder

FOX, TRANSFORMER = "fox_llama", "transformer_llama"
CLUSTER = 'partition = "main"\ntime_limit_hours = 0.2\nsignal_seconds = 60\n'
TIMINGS = {"wall_s", "tokens_per_s", "mfu", "mfu_dense"}


class Suite:
    """Return what all graphs share: SLURM, the checkout, the texts and the corpora."""

    def __init__(self, slurm: Slurm, checkout: Path, texts: Path, folder: Path):
        self.slurm, self.checkout, self.texts, self.folder = slurm, checkout, texts, folder
        self.corpora = folder / "corpora"

    def graph(self, name: str, models: tuple[str, ...] = (FOX, TRANSFORMER), cluster: str = "", scale: str = "pocket",
              options: tuple[str, ...] = (), artefact: str = "fig2_per_token_loss", **places: Path) -> "Graph":  # fmt: skip
        """A graph in folders of its own; `cluster` are further lines of its cluster file, `options` of its command."""
        corpora, texts = places.get("corpora", self.corpora), places.get("texts", self.texts)
        return Graph(self, name, models, cluster, scale, options, artefact, corpora, texts)


class Graph:
    """A figure of some models."""

    def __init__(self, suite: Suite, name: str, models: tuple[str, ...], cluster: str, scale: str, options: tuple[str, ...],
                 artefact: str, corpora: Path, texts: Path):  # fmt: skip
        self.suite, self.models, self.scale, self.corpora, self.texts = suite, models, scale, corpora, texts
        self.artefact, self.draw = artefact, f"draw {artefact}"
        self.options = ("--checkpoint-minutes", "0.01", *options)
        self.folder = suite.folder / name
        self.folder.mkdir()
        self.runs, self.results = self.folder / "runs", self.folder / "results"
        given = {line.split("=")[0].strip() for line in cluster.splitlines()}
        ours = [*CLUSTER.splitlines(), f'scratch = "{suite.folder / "scratch"}"']
        lines = [line for line in ours if line.split("=")[0].strip() not in given]
        (self.folder / "cluster.toml").write_text("\n".join([*lines, *cluster.splitlines()]) + "\n")

    def command(self) -> list[str]:
        return self.local_command("slurm", "--cluster", str(self.folder / "cluster.toml"))

    def local_command(self, room: str = "experiments", *more: str) -> list[str]:
        only = [word for model in self.models for word in ("--only", model)]
        data = ["--data", f"text:{self.texts}"] if self.scale == "pocket" else []
        return [
            sys.executable, "-m", room, "run", self.artefact, "--scale", self.scale, *only, *data,
            *self.options, "--runs-dir", str(self.runs), "--results-dir", str(self.results),
            "--corpora-dir", str(self.corpora), *more,
        ]  # fmt: skip

    @property
    def submissions(self) -> Path:
        return self.runs / self.scale / "plans" / "submissions"

    def submit(self, **variables: str) -> subprocess.CompletedProcess[str]:
        return self.call(self.command(), **variables)

    def start_submitting(self, **variables: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            self.command(), cwd=self.suite.checkout, env={**self.suite.slurm.environment, **variables}, text=True,
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        )  # fmt: skip

    def slurm(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        """`python -m slurm ...` on this graph."""
        return self.call([sys.executable, "-m", "slurm", *arguments, "--runs-dir", str(self.runs)])

    def call(self, command: list[str], **variables: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            command, cwd=self.suite.checkout, env={**self.suite.slurm.environment, **variables}, text=True,
            capture_output=True, check=False, timeout=300,
        )  # fmt: skip

    def run(self, model: str) -> RunFolder:
        (found,) = self.runs.glob(f"{self.scale}/{model}-*")
        return RunFolder(found)

    def states(self) -> dict[str, JobState]:
        """By "kind model" or `draw`."""
        queue, submissions = client.queue(), read_submissions(self.submissions)
        adopt(submissions, queue)
        states = job_states(submissions, queue)
        return {f"{state.job.kind} {state.job.about.rsplit('-', 1)[0]}": state for state in states}

    def until(self, condition: Callable[[], object], seconds: float, what: str, every: float = 0.5) -> None:
        """As daemons.until, with all that one wants to know if it fails; asking more often would take time from the jobs."""
        try:
            until(condition, seconds, what, every=every)
        except TimeoutError as error:
            logs = "\n".join(f"== {log}\n{log.read_text()[-1500:]}" for log in sorted(self.runs.rglob("*.log")))
            queue = self.suite.slurm.call("squeue", "-t", "all").stdout
            raise AssertionError(f"{error}\n{queue}\n{self.slurm('status').stdout}\n{logs}") from error

    def until_drawn(self, seconds: float) -> dict[str, JobState]:
        """Wait for the figure; every job must have ended well, and a later submission find nothing to do."""
        ends = ("done", "failed", "cancelled")
        self.until(lambda: self.states()[self.draw].state in ends, seconds, "the figure")
        states = self.states()
        assert {name: state.state for name, state in states.items()} == dict.fromkeys(states, "done")
        drawn = self.results / self.scale
        for name in (f"figures/{self.artefact}.png", f"figures/{self.artefact}.csv", "report.html"):
            assert (drawn / name).stat().st_size > 1000
        again = self.submit()
        assert again.returncode == 0 and "nothing to submit: all is done" in again.stdout
        return states

    def until_trained(self, model: str, seconds: float = 150) -> None:
        journal = self.run(model).path / "starts" / "train.jsonl"
        ends = ("done", "failed")
        self.until(lambda: any(event.get("action") in ends for event in restarts.read(journal)), seconds, f"{model}'s end")
        assert self.run(model).finished, self.slurm("status").stdout

    def cancel_rest(self) -> None:
        """Save the time of jobs that a test does not look at."""
        assert self.slurm("cancel").returncode == 0

    def hold(self, step: int, *models: str) -> dict[str, int]:
        """Freeze each training once it has logged `step` and saved, so that it cannot end before the test does something to it.

        Returns their processes; SIGCONT lets one go on.
        """
        states = self.states()
        jobs = {model: states[f"train {model}"].id for model in models}
        held: dict[str, int] = {}

        def all_held() -> bool:
            for model in jobs.keys() - held.keys():
                far = self.logged(model) >= step and any(self.run(model).checkpoints.glob("step-*[0-9]"))
                task = self._task_of(jobs[model]) if far else None
                if task is not None:
                    os.kill(task, signal.SIGSTOP)
                    held[model] = task
            return len(held) == len(jobs)

        self.until(all_held, 150, f"step {step} of {' and '.join(models)}", every=0.05)
        return held

    def logged(self, model: str) -> int:
        """Steps that a training has logged."""
        metrics = self.run(model).metrics_file
        return metrics.read_text().count("\n") if metrics.exists() else 0

    def _task_of(self, job: str) -> int | None:
        """Process of a job's first task."""
        array, _, task = job.partition("_")
        wanted = {f"SLURM_ARRAY_JOB_ID={array}", f"SLURM_ARRAY_TASK_ID={task}"} if task else {f"SLURM_JOB_ID={job}"}
        wanted |= {f"SLURM_CONF={self.suite.slurm.environment['SLURM_CONF']}", "SLURM_PROCID=0"}
        for entry in Path("/proc").glob("[0-9]*"):
            try:
                environment = set((entry / "environ").read_bytes().decode(errors="replace").split("\0"))
                command = (entry / "cmdline").read_bytes().decode().split("\0")
            except OSError:
                continue
            if "slurm.launcher" in command and not command[0].endswith("srun") and wanted <= environment:
                return int(entry.name)
        return None


def starts(run: RunFolder) -> list[dict]:
    """One line of provenance per start of a training that got as far as its first step."""
    return run.read_starts()


def assert_same_run(one: RunFolder, other: RunFolder) -> None:
    """Equal to the last bit: metrics apart from timings, and exported weights."""
    first, second = ([{k: v for k, v in row.items() if k not in TIMINGS} for row in run.read_metrics()] for run in (one, other))
    assert first == second
    assert (one.export / "model.safetensors").read_bytes() == (other.export / "model.safetensors").read_bytes()


def assert_same_rows(one: Graph, other: Graph) -> None:
    """Equal to the last bit: the rows of all evaluations, and what was drawn from them."""
    tables = [{path.name: pd.read_parquet(path) for path in (graph.results / graph.scale / "rows").rglob("*.parquet")}
              for graph in (one, other)]  # fmt: skip
    assert tables[0].keys() == tables[1].keys() and len(tables[0]) == len(one.models)
    for name, table in tables[0].items():
        assert len(table) > 10 and table["loss"].notna().all()
        pd.testing.assert_frame_equal(table, tables[1][name], check_exact=True)
    drawn = [(graph.results / graph.scale / "figures" / f"{graph.artefact}.csv").read_bytes() for graph in (one, other)]
    assert drawn[0] == drawn[1]


def pending_signal(pid: int, number: signal.Signals) -> bool:
    """Tell whether a stopped process has been sent a signal."""
    try:
        text = Path(f"/proc/{pid}/status").read_text()
    except FileNotFoundError:
        raise ProcessLookupError(pid) from None
    fields = dict(line.split(":\t") for line in text.splitlines() if ":\t" in line)
    return any(int(fields[name], 16) & 1 << (number - 1) for name in ("SigPnd", "ShdPnd"))


def environment_without_slurm() -> dict[str, str]:
    """As on a machine that has never heard of SLURM."""
    return {name: value for name, value in os.environ.items() if not name.startswith("SLURM")} | {"PATH": "/nonexistent"}
