"""The batch script under bash, with an srun that only runs its command: what reaches the task, and what becomes of its end."""

import io
import json
import os
import re
import shlex
import signal
import subprocess
import time
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
from rich.console import Console

from slurm import graph
from slurm.batch import _array, _hours, _memory, script, task_python
from slurm.cluster import CLUSTER, Cluster
from slurm.submit import new_submission, rehearse
from tests.slurm.daemons import until
from tests.slurm.plans import plan_of

PYTHON = """#!/bin/bash
# Stands for python: notes how it is called; as the task it then does what $TASK says.
echo "$2 ${@: -1} RANK=${RANK-unset} MASTER=${MASTER_ADDR-unset} CPUS=$SRUN_CPUS_PER_TASK COLOUR=$COLOUR" >> "$NOTES"
[ "$2" = slurm.launcher ] || exit "${@: -1}"
echo $$ > "$NOTES.pid"
eval "$TASK"
"""


@dataclass
class Shell:
    """A folder with commands, in which batch scripts are run."""

    folder: Path

    def cluster(self, **settings: object) -> Cluster:
        whole = {"time_limit_hours": 24.0, "signal_seconds": 3, "scratch": str(self.folder / "scratch"),
                 "python": str(self.folder / "python"), **settings}  # fmt: skip
        return CLUSTER.validate_json(json.dumps(whole))

    def start(self, cluster: Cluster, task: str = "exit 0", **variables: str) -> subprocess.Popen[str]:
        text = text_of(self.folder, cluster, "train", only=("fox_pro",))
        (self.folder / "scratch/snapshots/DIGEST").mkdir(parents=True, exist_ok=True)
        return self.start_text(text, task, **variables)

    def start_text(self, text: str, task: str = "exit 0", **variables: str) -> subprocess.Popen[str]:
        environment = {"PATH": f"{self.folder}:{os.environ['PATH']}", "TASK": task, "NOTES": str(self.notes),
                       "SLURM_JOB_ID": "7", "SLURM_JOB_NODELIST": "n[1-2]", **variables}  # fmt: skip
        return subprocess.Popen(
            ["bash", "-c", text], env=environment, text=True, stderr=subprocess.PIPE, stdout=subprocess.PIPE
        )

    @property
    def notes(self) -> Path:
        return self.folder / "notes"

    def ended(self) -> list[str]:
        """With which exit codes the epilogue was called."""
        return re.findall(r"^slurm.epilogue (\d+)", self.notes.read_text(), re.M)


@pytest.fixture
def shell(tmp_path) -> Shell:
    for name, text in (("python", PYTHON), ("srun", '#!/bin/bash\nwhile [[ $1 == --* ]]; do shift; done\nexec "$@"\n'),
                       ("scontrol", "#!/bin/bash\nprintf 'n1\\nn2\\n'\n")):  # fmt: skip
        (tmp_path / name).write_text(text)
        (tmp_path / name).chmod(0o755)
    return Shell(tmp_path)


def text_of(tmp_path: Path, cluster: Cluster, kind: str, stems: tuple[str, ...] = (), only: tuple[str, ...] = ()) -> str:
    """The script of the first batch of a kind of job."""
    plan = plan_of(tmp_path, *stems, only=only, device=cluster.device)
    jobs = graph.jobs(plan, cluster)
    submission = replace(new_submission(plan, cluster, jobs), cwd=str(tmp_path))
    group = next(group for group in graph.groups(jobs, cluster) if group[0].kind == kind)
    submission.batches.append(replace(graph.batches(group, {})[0], logs=str(tmp_path / "log-")))
    submission.save()
    return script(submission, 0, cluster, cluster.scratch / "snapshots" / "DIGEST", None)


@pytest.mark.parametrize(("task", "code"), [("exit 0", 0), ("exit 75", 75), ("kill -KILL $$", 137)])
def test_the_epilogue_hears_how_the_task_ended(shell, task, code):
    job = shell.start(shell.cluster(), task)
    assert job.wait(timeout=30) == code
    assert shell.ended() == [str(code)]


def test_a_tasks_environment_is_the_cluster_files_and_not_that_of_the_shell(shell):
    shell.start(shell.cluster(environment={"COLOUR": "a b"}), RANK="3", MASTER_ADDR="login", SLURM_CPUS_PER_TASK="6").wait(
        timeout=30
    )
    task = shell.notes.read_text().splitlines()[0]
    assert task == "slurm.launcher 0 RANK=unset MASTER=unset CPUS=6 COLOUR=a b"


def test_a_failing_setup_is_said_and_its_task_never_begins(shell):
    job = shell.start(shell.cluster(setup=["true", "source nowhere/activate"]))
    said = job.communicate(timeout=30)[1]
    assert "error: setup failed: source nowhere/activate" in said
    assert shell.ended() == ["1"] and "launcher" not in shell.notes.read_text()


def test_a_folder_that_the_node_does_not_see_is_said(shell):
    cluster = shell.cluster()
    results = shell.folder / "results"
    results.mkdir()
    text = text_of(shell.folder, cluster, "train", only=("fox_pro",))
    results.rmdir()
    (shell.folder / "scratch/snapshots/DIGEST").mkdir(parents=True)
    job = shell.start_text(text, SLURMD_NODENAME="n7")
    assert f"error: n7 does not see {results}, which all nodes must" in job.communicate(timeout=30)[1]
    assert shell.ended() == ["1"] and "launcher" not in shell.notes.read_text()


def test_a_runs_folder_that_the_node_does_not_see_is_the_last_word(shell):
    """Else the epilogue's own complaint of it would be what `status` shows."""
    text = text_of(shell.folder, shell.cluster(), "train", only=("fox_pro",))
    (shell.folder / "scratch/snapshots/DIGEST").mkdir(parents=True)
    (shell.folder / "runs").rename(shell.folder / "elsewhere")
    job = shell.start_text(text, SLURMD_NODENAME="n7")
    assert f"error: n7 does not see {shell.folder}/runs" in job.communicate(timeout=30)[1].splitlines()[-1]
    assert job.returncode == 1 and not shell.notes.exists()


def test_a_container_that_is_not_there_is_noticed(shell):
    (shell.folder / "python3").symlink_to("python")  # the host's
    job = shell.start(shell.cluster(container="nowhere/apptainer exec image.sif"))
    assert job.wait(timeout=30) == 127 and shell.ended() == ["127"]


@pytest.mark.parametrize(("task", "code"), [
    ("trap 'exit 75' USR2; while :; do sleep 0.1; done", 75),
    ("trap '' USR2; while :; do sleep 0.1; done", 124),  # left behind after two seconds
])  # fmt: skip
def test_a_task_is_told_to_leave_and_left_behind_if_it_cannot(shell, task, code):
    job = shell.start(shell.cluster(), task)
    pid = shell.folder / "notes.pid"
    until(lambda: pid.exists() and pid.read_text().strip(), 30, "the task")
    time.sleep(0.3)  # its trap
    job.send_signal(signal.SIGUSR2)
    assert job.wait(timeout=30) == code and shell.ended() == [str(code)]


def test_a_job_that_is_told_to_leave_during_setup_does_not_begin(shell):
    job = shell.start(shell.cluster(setup=[f"touch {shell.folder}/setup; sleep 1"]))
    until((shell.folder / "setup").exists, 30, "the setup")
    job.send_signal(signal.SIGUSR2)
    assert job.wait(timeout=30) == 75 and shell.ended() == ["75"] and "launcher" not in shell.notes.read_text()


def options(text: str) -> dict[str, str]:
    """The options of a script; each must be there once."""
    found = [
        shlex.split(line)[1].removeprefix("--").partition("=") for line in text.splitlines() if line.startswith("#SBATCH ")
    ]
    assert len({name for name, _, _ in found}) == len(found)
    return {name: value for name, _, value in found}


GPUS = {"gpus_per_node": 8, "gpu_tflops": 989.0, "cpus_per_task": 12, "mem_gb_per_task": 100.0, "python": None}


def test_kinds_of_jobs_have_settings_of_their_own(shell):
    cluster = shell.cluster(
        **GPUS, partition="gpu", account="lab", gpu_type="h100", sbatch={"mail-type": "END"},
        train={"gpus": 16, "qos": "long"}, evaluate={"gpu_type": "a100", "time_limit_hours": 3.0},
        draw={"partition": "cpu", "cpus_per_task": 2, "mem_gb_per_task": 4.0, "sbatch": {"mail-type": False}},
    )  # fmt: skip
    train, evaluate, draw = (options(text_of(shell.folder, cluster, kind)) for kind in ("train", "evaluate", "draw"))
    timed = options(text_of(shell.folder, cluster, "time", stems=("table6_throughput",)))
    assert (train["partition"], train["account"], train["qos"], train["gpus-per-node"]) == ("gpu", "lab", "long", "h100:8")
    assert (train["nodes"], train["ntasks-per-node"], train["mem"], train["mail-type"]) == ("2", "8", "800G", "END")
    assert (evaluate["gpus-per-node"], evaluate["time"], evaluate["mem"]) == ("a100:1", "3:00:00", "100G")
    assert "qos" not in evaluate and timed["gpus-per-node"] == "a100:1" and "exclusive" not in timed
    assert (draw["partition"], draw["cpus-per-task"], draw["mem"]) == ("cpu", "2", "4G")
    assert not {"gpus-per-node", "gres", "mail-type"} & draw.keys()


@pytest.mark.parametrize(("settings", "there", "gone"), [
    ({"gpu_option": "gres", "gpu_type": "h100"}, {"gres": "gpu:h100:8"}, {"gpus-per-node"}),
    ({"sbatch": {"gres": "gpu:h100:8"}}, {"gres": "gpu:h100:8"}, {"gpus-per-node"}),
    ({"sbatch": {"gpus-per-task": 1}, "gpu_option": "gres"}, {"gpus-per-task": "1"}, {"gpus-per-node", "gres"}),
    ({"sbatch": {"gres": "nvme:1"}}, {"gres": "nvme:1", "gpus-per-node": "8"}, set()),
    ({"sbatch": {"gres": "nvme:1"}, "gpu_option": "gres"}, {"gres": "gpu:8,nvme:1"}, {"gpus-per-node"}),
    ({"sbatch": {"mem-per-gpu": "90G"}}, {"mem-per-gpu": "90G"}, {"mem"}),
    ({"sbatch": {"requeue": False, "exclusive": True, "time": 30}}, {"exclusive": "", "time": "30"}, {"requeue"}),
    ({"partition": "one", "sbatch": {"partition": "two", "wckey": "x"}}, {"partition": "two", "wckey": "x"}, set()),
    ({}, {"comment": "", "cpus-per-task": "12"}, {"partition", "account", "qos", "wckey", "array", "dependency"}),
])  # fmt: skip
def test_any_option_of_sbatch_stands_once_and_wins(shell, settings, there, gone):
    found = options(
        text_of(shell.folder, shell.cluster(**{**GPUS, "train": {"gpus": 8}, **settings}), "train", only=("fox_pro",))
    )
    assert all(found[name] == value or not value for name, value in there.items()), found
    assert not gone & found.keys()


def test_options_of_srun_and_timings_on_a_cpu_cluster(shell):
    text = text_of(shell.folder, shell.cluster(srun={"mpi": "none"}, train={"srun": {"kill-on-bad-exit": 0}}), "train")
    assert "\nsrun --export=ALL --kill-on-bad-exit=0 --mpi=none " in text
    assert "exclusive" in options(text_of(shell.folder, shell.cluster(), "time", stems=("table6_throughput",)))


def test_folders_with_spaces_are_quoted(tmp_path):
    folder = tmp_path / "a b"
    folder.mkdir()
    shell = Shell(folder)
    text = text_of(folder, shell.cluster(), "train", only=("fox_pro",))
    assert options(text)["chdir"] == str(folder) and options(text)["output"] == f"{folder}/log-%j.log"
    assert subprocess.run(["bash", "-n", "-c", text], check=False).returncode == 0
    assert f"'{folder}/scratch/snapshots/DIGEST'" in text


def test_the_python_of_a_job_is_setups_or_the_containers_choice_and_is_said(shell):
    import sys

    assert task_python(shell.cluster(python=None)) == shlex.quote(sys.executable)
    assert task_python(shell.cluster(python=None, setup=["module load python"])) == "python3"
    assert task_python(shell.cluster(python="python3.12", setup=["module load python"])) == "python3.12"
    told = io.StringIO()
    rehearse(plan_of(shell.folder), shell.cluster(python=None, setup=["module load python"]), Console(file=told))
    assert "jobs run python3 (as setup leaves it)" in told.getvalue() and "python $(command -v python3)" in told.getvalue()


def test_how_sizes_are_written():
    assert [_hours(minutes) for minutes in (5, 60, 95, 1500)] == ["0:05:00", "1:00:00", "1:35:00", "25:00:00"]
    assert [_memory(*size) for size in ((None, 4), (2.0, 1), (2.0, 4), (0.5, 3), (1.5, 2))] == [None, "2G", "8G", "1536M", "3G"]
    cases = (([0, 1, 2, 3], None), ([0, 1, 2, 3], 4), ([0, 1, 2, 3], 3), ([7, 3, 9, 8], None), ([5], 1))
    assert [_array(*case) for case in cases] == ["0-3", "0-3", "0-3%3", "3,7-9", "5"]


@pytest.mark.parametrize(("signal_s", "patience"), [(300, 240), (90, 60), (30, 20), (3, 2)])
def test_a_task_that_does_not_save_leaves_time_to_requeue(tmp_path, signal_s, patience):
    text = text_of(tmp_path, Shell(tmp_path).cluster(signal_seconds=signal_s), "train", only=("fox_pro",))
    assert f"(sleep {patience}; kill -KILL" in text and f"--signal=B:USR2@{signal_s}" in text
