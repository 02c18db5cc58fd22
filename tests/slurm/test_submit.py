"""`run`, `status` and `cancel` with sbatch, squeue and scancel that are small scripts over a folder of jobs."""

import json
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from experiments.plan import write_specs
from experiments.request import Request
from slurm.__main__ import main
from slurm.cluster import read_cluster
from slurm.jobs import jobs
from slurm.submit import planned
from tests.experiments.finished import finish

FIGURE = "fig2_per_token_loss"

SBATCH = """
script=$(cat "$1"); cd "$JOBS"; id=$(($(ls -A ended . | grep -c "^[0-9]") + 100))
[ "$(ls | grep -c "^[0-9]")" -lt "$(cat limit)" ] || { echo "sbatch: error: AssocMaxSubmitJobLimit" >&2; exit 1; }
option() { echo "$script" | sed -n "s/^#SBATCH --$1=//p"; }
echo "$id|PENDING|None||$(option job-name)|$(option dependency)|${SBATCH_PARTITION:-}" > "$id"
echo "Submitted batch job $id"
"""
SQUEUE = 'cd "$JOBS"; echo "CLUSTER: one"; cat [0-9]* 2>/dev/null | cut -d "|" -f 1-5; true'
SCANCEL = 'cd "$JOBS"; mv "$@" ended/'


class Fake:
    """SLURM's queue as files `ID|STATE|REASON|NODE|NAME|DEPENDENCY|...`."""

    def __init__(self, folder: Path):
        self.folder = folder
        (folder / "ended").mkdir(parents=True)
        self.limit(100)

    def limit(self, jobs: int) -> None:
        (self.folder / "limit").write_text(str(jobs))

    def jobs(self) -> dict[str, tuple[str, str]]:
        """Return (id, dependency) of each job in the queue, by its name."""
        rows = [path.read_text().strip().split("|") for path in sorted(self.folder.glob("[0-9]*"))]
        assert not any(row[6] for row in rows), "a variable of this shell got through"
        found = {row[4]: (row[0], row[5]) for row in rows}
        assert len(found) == len(rows), "submitted twice"
        return found

    def __getitem__(self, name: str) -> tuple[str, str]:
        """Return (id, dependency) of the newest job whose name begins so."""
        return [job for full, job in self.jobs().items() if full.startswith(name)][-1]

    def end(self, name: str) -> str:
        job = self[name][0]
        (self.folder / job).rename(self.folder / "ended" / job)
        return job

    def set(self, name: str, state: str, reason: str = "None") -> None:
        path = self.folder / self[name][0]
        fields = path.read_text().split("|")
        path.write_text("|".join([fields[0], state, reason, "n1", *fields[4:]]))


@pytest.fixture
def fake(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Fake:
    (tmp_path / "bin").mkdir()
    for name, text in (("sbatch", SBATCH), ("squeue", SQUEUE), ("scancel", SCANCEL)):
        (tmp_path / "bin" / name).write_text(f"#!/bin/bash\n{text}\n")
        (tmp_path / "bin" / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}/bin:{os.environ['PATH']}")
    monkeypatch.setenv("JOBS", str(tmp_path / "queue"))
    monkeypatch.setenv("SBATCH_PARTITION", "nowhere")
    return Fake(tmp_path / "queue")


Say = Callable[..., tuple[int, str]]


@pytest.fixture
def say(tmp_path: Path, cluster_file: Path, capsys: pytest.CaptureFixture[str]) -> Say:
    """Say a command about Figure 2 of two models at `tiny`; return its exit code and output."""
    asked = ["--scale", "tiny", "--only", "fox_llama", "--only", "delta_net", "--cluster", str(cluster_file)]
    asked += [f"--{name}-dir={tmp_path / name}" for name in ("results", "corpora")]

    def said(*words: str) -> tuple[int, str]:
        code = main([words[0], FIGURE, *words[1:], *asked])
        return code, capsys.readouterr().out

    return said


RUNS = ("delta_net", "fox_llama")
CURVES = "appendix_training_curves"


def test_a_graph_waits_in_order_and_is_submitted_once(fake: Fake, say: Say) -> None:
    assert say("run")[0] == 0
    jobs = fake.jobs()
    assert len(jobs) == 6 and fake["prepare"][1] == ""
    for run in RUNS:
        assert fake[f"train-{run}"][1] == f"afterok:{fake['prepare'][0]}"
        assert fake[f"evaluate-{run}"][1] == f"afterok:{fake['prepare'][0]}:{fake[f'train-{run}'][0]}"
    assert _draws(fake) == {fake[f"evaluate-{run}"][0] for run in RUNS}
    code, text = say("run")
    assert code == 0 and "submitted 0 jobs, 6 are queued or running" in text and fake.jobs() == jobs


def _draws(fake: Fake) -> set[str]:
    """Return the ids that the figure waits for."""
    kind, *ids = fake["draw-fig2"][1].split(":")
    assert kind == "afterany"
    return set(ids)


def test_after_a_refusal_the_command_is_said_again(fake: Fake, say: Say) -> None:
    fake.limit(3)
    code, text = say("run")
    first = fake.jobs()
    assert code == 75 and "say the command again" in text and len(first) == 3
    assert "0 of 4 done; jobs: 3 pending, 3 not submitted" in say("status")[1]
    assert say("run")[0] == 75 and fake.jobs() == first
    fake.limit(100)
    assert say("run")[0] == 0
    assert len(fake.jobs()) == 6 and first.items() <= fake.jobs().items()
    assert fake["evaluate-fox_llama"][1].endswith(fake["train-fox_llama"][0])


def test_what_was_cancelled_is_submitted_again_and_drawn_with_the_rest(fake: Fake, say: Say) -> None:
    say("run")
    before = fake.jobs()
    fake.end("train-fox_llama")
    fake.set("evaluate-fox_llama", "PENDING", "DependencyNeverSatisfied")
    fake.end("evaluate-fox_llama")
    assert "submitted 3 jobs, 3 are queued" in say("run")[1]
    after = fake.jobs()
    assert fake["evaluate-fox_llama"][1].endswith(fake["train-fox_llama"][0])
    assert _draws(fake) == {fake[f"evaluate-{run}"][0] for run in RUNS}
    kept = {name.split(".")[0].rsplit("-", 1)[0] for name in before if before[name] == after[name]}
    assert {"train-delta_net", "evaluate-delta_net"} < kept and len(kept) == 3


def test_jobs_that_write_the_same_files_follow_one_another(fake: Fake, say: Say) -> None:
    """More evaluations of a run while others of it are queued; and a job whose process is just leaving."""
    say("run")
    old = fake["evaluate-fox_llama"][0]
    assert "submitted 4 jobs, 3 are queued" in say("run", CURVES)[1]  # evaluations and drawings, after the same trainings
    assert fake["evaluate-fox_llama"][1].endswith(f":{fake['train-fox_llama'][0]},afterany:{old}")
    fake.set("train-fox_llama", "COMPLETING")
    code, text = say("run")
    assert code == 75 and "just ending" in text and "say the command again" in text


def test_a_job_keeps_its_name_while_its_evaluations_get_done(tmp_path: Path, cluster_file: Path) -> None:
    places = {f"{name}_dir": tmp_path / name for name in ("results", "corpora")}
    request, cluster = Request(artefacts=(FIGURE, CURVES), only=("fox_llama",), **places), read_cluster(cluster_file)
    plan = planned(request, cluster)
    names = {job.task.kind: job.name for job in jobs(plan, cluster)}
    write_specs(plan)
    finish(*plan.runs.values(), evaluations=True)  # all but the curves
    again = {job.task.kind: job for job in jobs(planned(request, cluster), cluster)}
    assert "train" not in again and len(again["evaluate"].task.makes) == 1
    assert again["evaluate"].name == names["evaluate"] and again["draw"].name == names["draw"]


def test_cancel_leaves_the_jobs_of_others(fake: Fake, say: Say) -> None:
    (fake.folder / "7").write_text("7|RUNNING|None|n1|train-mine||\n")
    say("run")
    code, text = say("cancel")
    assert code == 0 and "cancelled 6 jobs" in text and [*fake.jobs()] == ["train-mine"]
    assert say("status")[0] == 1 and "6 cancelled" in say("status")[1]


def test_status_says_what_became_of_each_run(fake: Fake, say: Say, tmp_path: Path) -> None:
    say("run")
    fake.set("train-fox_llama", "RUNNING")
    failed = fake.end("train-delta_net")
    fake.end("evaluate-delta_net")
    events = [{"event": "start", "job": failed, "mark": "step-0"}] * 2
    events.append({"event": "end", "job": failed, "action": "failed", "reason": "no chunk 3 of the corpus"})
    (run,) = (tmp_path / "results" / "tiny" / "runs").glob("delta_net-*")
    (run / "starts").mkdir()
    (run / "starts" / "train.jsonl").write_text("".join(json.dumps(event) + "\n" for event in events))
    never = fake.end("prepare")
    (folder,) = (tmp_path / "scratch" / "jobs").glob("prepare-*")
    (folder / f"{never}_0_log.out").write_text("apptainer: command not found\n")
    code, text = say("status")
    lines = {line.split()[0].split("-")[0]: line for line in text.splitlines() if line}
    assert code == 1
    assert " running " in lines["fox_llama"] and " n1 " in lines["fox_llama"]
    assert " failed " in lines["delta_net"] and " 1 " in lines["delta_net"] and "no chunk 3" in lines["delta_net"]
    assert " failed " in lines["packages"] and "apptainer: command not found" in lines["packages"]
    assert " pending " in lines["fig2_per_token_loss"]
