"""Tasks of a plan by submitit's executors: a figure from nothing, a training that is preempted on the way, a failure."""

import ast
import json
import lzma
import re
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import submitit

from slurm.snapshot import ROOT
from tests.slurm.graphs import Suite, assert_same_run
from training.run_folder import RunFolder

SCRIPT = """
import os, signal, sys, time
from pathlib import Path

import submitit

from experiments.request import Request
from slurm.callables import stages
from training.run_folder import RunFolder
from training.spec import Execution

cluster, folder, texts, corpora = sys.argv[1], *map(Path, sys.argv[2:])
places = dict(runs_dir=folder / "runs", results_dir=folder / "results", corpora_dir=corpora)
asked = Request(artefacts=("fig2_per_token_loss",), scale="pocket", only=("fox_llama",), data=f"text:{texts}",
                execution=Execution(checkpoint_minutes=0.01), **places)
executor = submitit.AutoExecutor(folder=folder / "logs" / "%j", cluster=cluster)
executor.update_parameters(timeout_min=60, **({"slurm_partition": "main"} if cluster == "slurm" else {}))
for stage in stages(asked):
    for task in stage:
        job = executor.submit(task)
        if cluster != "debug":
            run = RunFolder(task.folder)
            while not any(run.checkpoints.glob("step-*[0-9]")):
                time.sleep(0.05)
            if cluster == "slurm":
                job._interrupt()
            else:  # its controller passes signals on only at a time limit
                (pid,) = Path(f"/proc/{job.job_id}/task/{job.job_id}/children").read_text().split()
                os.kill(int(pid), signal.SIGUSR2)
        print(job.result(), flush=True)
    if cluster != "debug":  # the rest takes the same way
        break
print("then", *(task.name for stage in stages(asked) for task in stage))
"""


def figure(checkout: Path, cluster: str, folder: Path, texts: Path, corpora: Path, environment=None) -> RunFolder:
    """Figure 2 of FoX by an executor of submitit, from a script as a notebook would have it; by all but the debug executor its
    training alone, which is preempted."""
    done = subprocess.run([sys.executable, "-c", SCRIPT, cluster, folder, texts, corpora], cwd=checkout, text=True,
                          env=environment, capture_output=True, check=False, timeout=400)  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    said = [line for line in done.stdout.splitlines() if not line.startswith("submitit WARNING")]
    (run,) = (folder / "runs" / "pocket").glob("fox_llama-*")
    rest = [f"evaluate {run.name}", "draw fig2_per_token_loss"]
    if cluster == "debug":
        assert said[-4:] == [f"train {run.name}", *rest, "then"], done.stdout
        assert (folder / "results" / "pocket" / "figures" / "fig2_per_token_loss.png").stat().st_size > 1000
    else:
        assert said == [f"train {run.name}", f"then {' '.join(rest)}"], done.stdout
    return RunFolder(run)


@pytest.fixture(scope="module")
def undisturbed(checkout, texts, tmp_path_factory) -> RunFolder:
    """By the debug executor, in this process."""
    folder = tmp_path_factory.mktemp("debug")
    return figure(checkout, "debug", folder, texts, folder / "corpora")


def assert_went_on(run: RunFolder, undisturbed: RunFolder) -> None:
    first, second = run.read_starts()
    assert first["end"]["exit_code"] == 75 and second["first_step"] > 0
    assert_same_run(run, undisturbed)


def test_the_local_executor_goes_on_after_preemption(checkout, texts, undisturbed, tmp_path):
    assert_went_on(figure(checkout, "local", tmp_path, texts, undisturbed.path.parents[2] / "corpora"), undisturbed)


@pytest.mark.slurm
@pytest.mark.timeout(1800)
def test_slurms_executor_goes_on_after_preemption(suite: Suite, texts, undisturbed, tmp_path):
    corpora = undisturbed.path.parents[2] / "corpora"
    assert_went_on(figure(suite.checkout, "slurm", tmp_path, texts, corpora, suite.slurm.environment), undisturbed)


def test_the_notebook_of_the_page_submits_a_figure(tmp_path, monkeypatch, capsys):
    """Its own lines, with an executor that computes nothing."""
    (code,) = re.findall(r"```python\n(.*?)```", (ROOT / "slurm" / "clusters" / "README.md").read_text(), re.DOTALL)
    books = tmp_path / "books" / "a.jsonl.xz"
    books.parent.mkdir()
    with lzma.open(books, "wt") as file:
        file.writelines(json.dumps({"text": f"book {index} " * 60_000}) + "\n" for index in range(40))
    told = lambda task: SimpleNamespace(result=lambda: task.name)  # noqa: E731
    executor = SimpleNamespace(update_parameters=lambda **parameters: None, submit=told)
    monkeypatch.setattr(submitit, "AutoExecutor", lambda folder: executor)
    monkeypatch.chdir(tmp_path)
    exec(code, {})
    prepared, trained, evaluated, drawn = map(ast.literal_eval, capsys.readouterr().out.splitlines())
    assert len(prepared) == 1 and len(trained) == len(evaluated) == 7 and drawn == ["draw fig2_per_token_loss"]


FAILING = """
import sys
from pathlib import Path
from slurm.callables import Submittable

folder = Path(sys.argv[1])
Submittable("train:a", "training", (str(folder),), (), (), folder, folder, "cpu")()
"""


def test_a_failing_task_says_why_and_where_its_log_is(tmp_path):
    log = tmp_path / "logs" / "train.log"
    log.parent.mkdir()
    log.write_text("an earlier start\n")
    done = subprocess.run([sys.executable, "-c", FAILING, tmp_path], text=True, capture_output=True, check=False)
    assert log.read_text().startswith("an earlier start\n") and len(log.read_text().splitlines()) > 1
    assert done.returncode == 1
    assert f"RuntimeError: train a: error: {tmp_path} is not a run folder" in done.stderr
    assert done.stderr.rstrip().endswith(f"log: {tmp_path}/logs/train.log")
    assert (tmp_path / "starts" / "train.jsonl").read_text().count('"event"') == 2  # an error to mend is not tried again
