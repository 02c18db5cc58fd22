"""Cluster files, and the sbatch scripts, sizes and costs that they make of a plan, by dry run."""

import re
from pathlib import Path

import pytest

from experiments.__main__ import main as experiments_main
from slurm.__main__ import main
from slurm.cluster import KINDS, read_cluster
from slurm.snapshot import snapshot

CLUSTERS = Path(__file__).parents[2] / "slurm" / "clusters"
PAPER = ["fig2_per_token_loss", "--only", "fox_pro", "--scale", "760m-48b"]


def scripts(cluster: Path, capsys: pytest.CaptureFixture[str], *asked: str) -> dict[str, tuple[dict[str, str], str]]:
    """Return the options of each script of a dry run, and the rest of the script, by kind of job."""
    assert main(["run", *(asked or PAPER), "--cluster", str(cluster), "--dry-run", "--scripts"]) == 0
    text = capsys.readouterr().out
    found = {}
    for script in text.split("#!/bin/bash")[1:]:
        options = dict(line.partition("=")[::2] for line in re.findall(r"^#SBATCH --(.+)$", script, re.M))
        found[options["job-name"].split("-")[0]] = (options, script)
    return found


def test_one_run_on_four_nodes_of_a_computing_centre(capsys) -> None:
    found = scripts(CLUSTERS / "centre.toml", capsys)
    train, script = found["train"]
    size = {"nodes": "4", "ntasks-per-node": "4", "gres": "gpu:h100:4", "cpus-per-task": "14", "mem": "450560M", "time": "240"}
    where = {"partition": "preemptible", "qos": "scavenger", "account": "project_465", "exclusive": "", "mail-type": "FAIL"}
    assert {**size, **where, "requeue": "", "signal": "USR2@180", "open-mode": "append"}.items() <= train.items()
    srun = next(line for line in script.splitlines() if line.startswith("srun "))
    words = "--kill-on-bad-exit=1 --export=ALL --cpus-per-task=14 --cpu-bind=cores apptainer exec --nv"
    assert words in srun and " python3 -u -m submitit.core._submit " in srun
    evaluate, draw = found["evaluate"][0], found["draw"][0]
    assert evaluate["gres"] == "gpu:h100:1" and evaluate["dependency"] == "afterok:JOB1" and evaluate["time"] == "360"
    assert draw["dependency"] == "afterany:JOB2" and draw["partition"] == "cpu" and not {"gres", "qos"} & draw.keys()
    assert all(options["kill-on-invalid-dep"] == "yes" for options in (evaluate, draw))


def test_modules_and_a_login_shell_before_the_snapshot_of_the_code(capsys, monkeypatch, tmp_path) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    options, script = scripts(CLUSTERS / "university.toml", capsys)["train"]
    lines = script.splitlines()
    assert lines[0] == " -l" and options["gpus-per-node"] == "8" and "gres" not in options
    order = [
        "set -e",
        "module load cuda/12.8",
        "source .venv/bin/activate",
        "export NCCL_DEBUG=WARN",
        "export PYTHONSAFEPATH=1",
    ]
    code = f'export PYTHONPATH={tmp_path}/fox/snapshots/DIGEST"${{PYTHONPATH:+:$PYTHONPATH}}"'
    assert sorted([*order, code], key=lines.index) == [*order, code] and lines.index(code) < lines.index("# command")


@pytest.mark.parametrize(("limit", "gpus", "minutes"), [(48, 8, 2722), (400, 1, 21664), (10, 8, 600)])
def test_the_fewest_gpus_that_finish_in_one_start(capsys, tmp_path, limit, gpus, minutes) -> None:
    """277.55 GPU-hours at 40% of 989 TFLOP/s, 1.3 times that, and a quarter of an hour; no more than the limit."""
    path = tmp_path / "cluster.toml"
    path.write_text(f"time_limit_hours = {limit}\ngpus_per_node = 8\ngpu_tflops = 989\n")
    train = scripts(path, capsys)["train"][0]
    assert (train["gpus-per-node"], train["time"]) == (str(gpus), str(minutes))


def test_the_dry_run_and_the_plan_tell_one_cost(capsys, cluster_file) -> None:
    cluster_file.write_text("time_limit_hours = 48\ngpus_per_node = 8\ngpu_tflops = 989\nmfu = 0.4\n")
    asked = ["fig2_per_token_loss", "--scale", "760m-48b", "--seeds", "0,1"]
    assert main(["run", *asked, "--cluster", str(cluster_file), "--dry-run"]) == 0
    ours = re.search(r"([\d,]+) GPU-hours", capsys.readouterr().out)[1]
    experiments_main(["plan", *asked])
    (theirs,) = re.findall(r"^to do.*?([\d,]+)\.\d\d *$", capsys.readouterr().out, re.M)
    assert abs(int(ours.replace(",", "")) - int(theirs.replace(",", ""))) <= 1


def test_everything_at_once(capsys, cluster_file) -> None:
    """All figures at `tiny`: several corpora and evaluations a run. Names are identities; nothing waits for a later job."""
    with open(cluster_file, "a") as file:
        file.write('machine = "4 cores"\n')
    assert main(["run", "all", "--scale", "tiny", "--cluster", str(cluster_file), "--dry-run", "--scripts"]) == 0
    text = capsys.readouterr().out
    names = re.findall("^#SBATCH --job-name=(.+)$", text, re.M)
    assert len(names) > 100 and len(set(names)) == len(names)
    for number, script in enumerate(text.split("#!/bin/bash")[1:], 1):
        waits = re.search("^#SBATCH --dependency=(.+)$", script, re.M)
        assert all(int(job) < number for job in re.findall(r"JOB(\d+)", waits[1] if waits else ""))


REFUSED = {
    "gpus_per_node = 4": "gpus_per_node needs gpu_tflops",
    "gpus_per_node = 4\ngpu_tflops = 1\ntrain = { gpus = 6 }": "train.gpus 6 does not fit gpus_per_node 4",
    "gpus_per_node = 4\ngpu_tflops = 1\ntrain = { tasks = 2 }": "set train.gpus",
    "train = { tasks = 3, nodes = 2 }": "train.tasks 3 is not a multiple of train.nodes 2",
    "evaluate = { gpus = 1 }": "evaluate.gpus 1 does not fit gpus_per_node 0",
    "signal_seconds = 7200": "is within signal_seconds",
    "sbatch = { job_name = 'x' }": "job-name: set by the job graph",
    "scratch = '$NOWHERE/x'": "names a variable that is not set",
}


@pytest.mark.parametrize("lines", REFUSED)
def test_mistakes_in_a_cluster_file(tmp_path, lines) -> None:
    (tmp_path / "cluster.toml").write_text(f"time_limit_hours = 2\n{lines}\n")
    with pytest.raises(ValueError, match=re.escape(REFUSED[lines])):
        read_cluster(tmp_path / "cluster.toml")


def test_a_kind_overrides_what_all_have() -> None:
    cluster = read_cluster(CLUSTERS / "centre.toml")
    found = {kind: cluster.settings(kind) for kind in KINDS}
    assert [found[kind].partition for kind in KINDS] == ["cpu", "preemptible", "gpu", "gpu", "cpu"]
    assert [found[kind].sbatch.get("qos", found[kind].qos) for kind in KINDS] == [False, "scavenger", "normal", "normal", False]
    assert [cluster.hours(kind) for kind in KINDS] == [12, 4, 6, 2, 1]


def test_a_snapshot_is_the_code_alone_and_named_by_it(tmp_path) -> None:
    for name in ("slurm/__init__.py", "slurm/a.py", "results/__init__.py", "results/mini/rows/x.csv", "tests/b.py"):
        (tmp_path / "code" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "code" / name).write_text(name)
    made = snapshot(tmp_path / "made", tmp_path / "code")
    files = sorted(str(path.relative_to(made)) for path in made.rglob("*") if path.is_file())
    assert files == ["results/__init__.py", "slurm/__init__.py", "slurm/a.py", "snapshot.json"]
    (made / "slurm" / "a.py").unlink()  # by a purge of the disk
    assert snapshot(tmp_path / "made", tmp_path / "code") == made and (made / "slurm" / "a.py").exists()
    (tmp_path / "code" / "slurm" / "a.py").write_text("changed")
    assert snapshot(tmp_path / "made", tmp_path / "code") != made and (made / "slurm" / "a.py").read_text() == "slurm/a.py"
