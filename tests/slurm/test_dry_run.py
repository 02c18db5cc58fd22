"""The graph as it is printed and grouped, on a machine that has never heard of SLURM."""

import os
import re
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from experiments.artefact import MAIN
from slurm import graph
from slurm.__main__ import main
from slurm.cluster import Cluster, read_cluster
from tests.slurm.graphs import environment_without_slurm
from tests.slurm.plans import plan_of
from training.spec import Execution

ROOT = Path(__file__).parents[2]
CLUSTERS = ROOT / "slurm" / "clusters"


@pytest.fixture(scope="module")
def cluster() -> Cluster:
    return read_cluster(CLUSTERS / "university.toml")


@pytest.fixture
def command(tmp_path, monkeypatch, capsys) -> Callable[..., tuple[int, str, str]]:
    """`python -m slurm run ...`, without SLURM: exit code, stdout and stderr."""
    folders = ("--runs-dir", str(tmp_path / "runs"), "--results-dir", str(tmp_path / "results"))

    def call(*more: str) -> tuple[int, str, str]:
        with monkeypatch.context() as patch:
            patch.setattr(os, "environ", environment_without_slurm())
            code = main(["run", "--scale", "760m-48b", *more, *folders])
        return code, *capsys.readouterr()

    return call


@pytest.mark.parametrize(("name", "calls", "lines"), [
    ("university", 6, ["--account=my-lab", "--gpus-per-node=8", "--mem=960G", "--array=0-6%4"]),
    ("containers", 6, ["--partition=preemptible", "--qos=scavenger", "--ntasks-per-node=4"]),
    ("typed_gpus", 8, ["--gres=gpu:h100:8", "--gres=gpu:a100:1", "--partition=cpu", "--nodes=4", "--mail-type=FAIL"]),
])  # fmt: skip
def test_the_whole_paper_is_rehearsed_without_slurm_and_without_data(command, tmp_path, name, calls, lines):
    code, said, errors = command("--cluster", str(CLUSTERS / f"{name}.toml"), "--dry-run", "--parallel", "fsdp")
    assert code == 0, errors
    plan, cluster = plan_of(tmp_path, *MAIN, execution=Execution(parallel="fsdp")), read_cluster(CLUSTERS / f"{name}.toml")
    jobs = graph.jobs(plan, cluster)
    hours = sum(job.resources.gpu_hours for job in jobs if job.kind == "train")
    total = re.search(r"(\d+) jobs by (\d+) calls of sbatch; ([\d,]+) GPU-hours \(([\d,]+) of training", said)
    assert total is not None and int(total[1]) == len(jobs) == 3 * len(plan.runs) + len(MAIN)
    # Trainings (of two lengths), their evaluations, timings, and drawings: one array for all that wait for the same.
    assert int(total[2]) == calls and int(total[4].replace(",", "")) == round(hours)
    for line in (*lines, "--dependency=aftercorr:JOB0", "--kill-on-invalid-dep=yes", "--requeue"):
        assert f"#SBATCH {line}\n" in said, line
    table = re.findall(r"^\w+-\w{10} .* (\d+) +([\d.]+)(?: x (\d+))? *$", said, re.M)
    asked = sum(int(gpus) * float(each) * int(starts or 1) for gpus, each, starts in table)
    assert len(table) == 7 and hours <= asked < 1.5 * hours  # a training longer than its limit starts several times
    assert "LongCrawl64 is not here" in said and "nothing was submitted" in said
    assert not list(tmp_path.iterdir())
    trainings = [job.args for job in jobs if job.kind == "train"]
    assert len(trainings) == 7 and all(args[args.index("--parallel") + 1] == "fsdp" for args in trainings)


def test_a_device_that_the_cluster_file_contradicts_is_refused_and_the_remedies_hold(command, tmp_path):
    university, without = tmp_path / "university.toml", tmp_path / "without.toml"
    text = (CLUSTERS / "university.toml").read_text().replace("\ngpus = 8", "\ngpus = 4")  # a step at tiny has 4 sequences
    university.write_text(text)
    without.write_text("".join(line for line in text.splitlines(keepends=True) if "gpu" not in line))
    said = {}
    for file, device in ((university, "cpu"), (without, "cuda")):
        code, _, said[device] = command("fig2", "--scale", "tiny", "--device", device, "--cluster", str(file), "--dry-run")
        assert code == 2 and said[device].startswith(f"error: --device {device}: ") and said[device].count("\n") == 1
        assert f"{file} " in said[device] and "Leave --device out" in said[device]
    assert "gpus_per_node 8, so" in said["cpu"] and "a cluster file without gpus_per_node and gpus" in said["cpu"]
    assert "no gpus_per_node, so" in said["cuda"] and "gpus_per_node and gpu_tflops" in said["cuda"]
    code, _, errors = command("fig2", "--scale", "tiny", "--cluster", str(university), "--dry-run")
    assert code == 2 and "delta_net at tiny is trained in fp32" in errors
    assert "with `python -m slurm run` a cluster file without gpus_per_node and gpus" in errors
    for file, more in ((university, ("--device", "cuda", "--only", "fox_pro")), (without, ()), (without, ("--device", "cpu"))):
        code, shown, errors = command("fig2", "--scale", "tiny", "--cluster", str(file), "--dry-run", *more)
        assert code == 0 and ("--gpus-per-node=" in shown) == (file == university), errors


def test_submitting_without_slurm_is_an_error_of_one_line(command, tmp_path):
    cluster = str(CLUSTERS / "university.toml")
    code, _, errors = command("fig2_per_token_loss", "--cluster", cluster, "--data", "longcrawl64:/nowhere")
    assert code == 2 and errors.count("\n") == 1 and "/nowhere" in errors
    done = subprocess.run(
        [sys.executable, "-m", "slurm", "status", "--runs-dir", str(tmp_path)],
        cwd=ROOT, env=environment_without_slurm(), capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 2 and done.stderr.count("\n") == 1
    assert done.stderr.startswith("error: sbatch, srun, squeue, scontrol, scancel not found")


def test_runs_shared_by_artefacts_are_trained_once(tmp_path, cluster):
    alone = graph.jobs(plan_of(tmp_path, "fig2_per_token_loss"), cluster)
    both = graph.jobs(plan_of(tmp_path, "fig2_per_token_loss", "table1_lm_eval"), cluster)
    assert len(both) == len(alone) + 1
    assert [node.kind for node in both].count("train") == len({node.key for node in both if node.kind == "train"}) == 7


def test_what_is_under_way_is_left_out_and_waited_for(tmp_path, cluster):
    plan = plan_of(tmp_path)
    every = graph.jobs(plan, cluster)
    first = next(node for node in every if node.kind == "train")
    left = graph.jobs(plan, cluster, {first.key: first})
    assert {node.key for node in every} - {node.key for node in left} == {first.key}
    evaluations = [group for group in graph.groups(left, cluster) if group[0].kind == "evaluate"]
    ids = {node.key: f"9_{index}" for index, node in enumerate(node for node in left if node.kind == "train")}
    batches = graph.batches(evaluations[0], {first.key: "7_1", **ids})
    assert {(batch.dependency, len(batch.keys)) for batch in batches} == {("afterok:7_1", 1), ("aftercorr:9", 6)}
    needs = {node.key: node.needs for node in evaluations[0]}
    assert all(needs[job] == (list(ids)[index],) for batch in batches if not batch.single for index, job in batch.keys.items())


def test_a_drawing_under_way_is_made_again_only_if_more_is_to_come(tmp_path, cluster):
    plan = plan_of(tmp_path)
    every = {node.key: node for node in graph.jobs(plan, cluster)}
    assert not graph.jobs(plan, cluster, every)
    evaluation = next(key for key in every if key.startswith("evaluate:"))
    (again, drawing) = graph.jobs(plan, cluster, {key: task for key, task in every.items() if key != evaluation})
    assert again.key == evaluation and drawing.kind == "draw"
    assert set(drawing.needs) == {key for key in every if key.startswith("evaluate:")}


def test_gpus_follow_the_estimate_and_hours_are_capped(tmp_path, cluster):
    free = replace(cluster, train=replace(cluster.train, gpus=None))
    (big,) = plan_of(tmp_path, only=("fox_pro",)).runs.values()
    (small,) = plan_of(tmp_path, scale="125m-2.7b", only=("fox_pro",)).runs.values()
    hours = graph.train_gpu_hours(small, free)
    assert 1 < hours < 20
    assert graph.for_training(small, free).gpus == 1
    assert graph.for_training(small, free).minutes == pytest.approx(60 * (1.3 * hours + 0.25), abs=1)
    assert graph.for_training(big, free).gpus == 8 and graph.for_training(big, free).minutes == 24 * 60
    many = graph.for_training(big, replace(cluster, train=replace(cluster.train, gpus=32)))
    assert (many.nodes, many.tasks_per_node, many.gpus) == (4, 8, 32)
    with pytest.raises(ValueError, match=r"train.gpus 64: a step of fox_pro has 32 sequences"):
        graph.for_training(big, replace(cluster, train=replace(cluster.train, gpus=64)))
    short = replace(big.spec, train=replace(big.spec.train, seq_len=4096, piece_len=16384))
    with pytest.raises(ValueError, match=r"fox_pro has 32 pieces of text of 16384 tokens; choose a divisor of 32"):
        graph.for_training(replace(big, spec=short), replace(cluster, train=replace(cluster.train, gpus=64)))


def test_short_trainings_do_not_ask_for_the_time_of_long_ones(tmp_path, cluster):
    """Unless a throttle is to hold for all of them, for which they must be one array."""
    plan = plan_of(tmp_path, "fig2_per_token_loss", "table3_ablation")
    throttled = [group for group in graph.groups(graph.jobs(plan, cluster), cluster) if group[0].kind == "train"]
    free = replace(cluster, max_concurrent=None)
    several = [group for group in graph.groups(graph.jobs(plan, free), free) if group[0].kind == "train"]
    assert len(throttled) == 1 and len(several) > 1 and sum(map(len, several)) == len(throttled[0])
    for group in several:
        minutes = [node.resources.minutes for node in group]
        assert max(minutes) < 4 * min(minutes)


def test_micro_batches_shrink_with_the_share_of_a_process(tmp_path, cluster):
    wide = replace(cluster, train=replace(cluster.train, gpus=32))
    (train,) = (
        node for node in graph.jobs(plan_of(tmp_path, scale="125m-2.7b", only=("fox_pro",)), wide) if node.kind == "train"
    )
    assert train.args[train.args.index("--micro-batch-tokens") + 1] == "16384"
