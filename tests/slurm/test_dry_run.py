"""The graph as it is printed and grouped, on a machine that has never heard of SLURM."""

import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from experiments.artefact import artefact_names
from experiments.plan import Plan, Request, make_plan
from slurm import graph, resources
from slurm.cluster import Cluster, read_cluster
from slurm.submit import _dependency
from tests.slurm.graphs import environment_without_slurm

ROOT = Path(__file__).parents[2]
EXAMPLE = ROOT / "slurm" / "clusters" / "example.toml"


def plan_of(tmp_path: Path, *artefacts: str, scale: str = "760m-48b", only: tuple[str, ...] = ()) -> Plan:
    request = Request(
        artefacts=artefacts or ("fig2_per_token_loss",), scale=scale, data=None, tokenizer=None, only=only, device="cuda",
        runs_dir=tmp_path / "runs", results_dir=tmp_path / "results", corpora_dir=tmp_path / "corpora",
    )  # fmt: skip
    return make_plan(request, "bf16", rehearsal=True)


@pytest.fixture(scope="module")
def cluster() -> Cluster:
    return read_cluster(EXAMPLE)


def command(tmp_path: Path, *more: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "experiments", "run", "--scale", "760m-48b", "--launcher", "slurm", *more,
         "--runs-dir", str(tmp_path / "runs"), "--results-dir", str(tmp_path / "results")],
        cwd=ROOT, env=environment_without_slurm(), capture_output=True, text=True, check=False,
    )  # fmt: skip


def test_the_whole_paper_is_rehearsed_without_slurm_and_without_data(tmp_path):
    done = command(tmp_path, "--cluster", str(EXAMPLE), "--dry-run")
    assert done.returncode == 0, done.stderr
    artefacts = artefact_names()
    plan = plan_of(tmp_path, *artefacts)
    flops = sum(3 * run.spec.model.flops_per_token(16384) * 45 * 2**30 for run in plan.runs.values())
    hours = flops / (0.35 * 989e12) / 3600
    total = re.search(r"(\d+) jobs by (\d+) calls of sbatch; ([\d,]+) GPU-hours \(([\d,]+) of training", done.stdout)
    assert total is not None
    assert int(total[1]) == 2 * len(plan.runs) + len(artefacts) and int(total[2]) == 2 + len(artefacts)
    assert int(total[4].replace(",", "")) == round(hours)
    for line in ("--array=0-6%4", "--gpus-per-node=8", "--ntasks-per-node=8", "--time=1440", "--signal=USR2@300",
                 "--dependency=aftercorr:JOB0", "--kill-on-invalid-dep=yes", "--requeue", "--partition=gpu"):  # fmt: skip
        assert f"#SBATCH {line}\n" in done.stdout
    assert "LongCrawl64 is not here" in done.stdout and "nothing was submitted" in done.stdout
    assert not list(tmp_path.iterdir())


def test_submitting_without_slurm_is_an_error_of_one_line(tmp_path):
    done = command(tmp_path, "fig2_per_token_loss", "--cluster", str(EXAMPLE), "--data", "longcrawl64:/nowhere")
    assert done.returncode == 2 and done.stderr.count("\n") == 1 and "/nowhere" in done.stderr
    done = subprocess.run(
        [sys.executable, "-m", "slurm", "status", "--runs-dir", str(tmp_path)],
        cwd=ROOT, env=environment_without_slurm(), capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 2 and done.stderr.count("\n") == 1
    assert done.stderr.startswith("error: sbatch, srun, squeue, scontrol, scancel not found")


def test_runs_shared_by_artefacts_are_trained_once(tmp_path, cluster):
    alone = graph.nodes(plan_of(tmp_path, "fig2_per_token_loss"), cluster)
    both = graph.nodes(plan_of(tmp_path, "fig2_per_token_loss", "table1_lm_eval"), cluster)
    assert len(both) == len(alone) + 1
    assert [node.kind for node in both].count("train") == len({node.key for node in both if node.kind == "train"}) == 7


def test_what_is_under_way_is_left_out_and_waited_for(tmp_path, cluster):
    plan = plan_of(tmp_path)
    every = graph.nodes(plan, cluster)
    first, second = (node for node in every if node.kind == "train" and "transformer" in node.key)
    left = graph.nodes(plan, cluster, active={first.key: "7_1"})
    assert first.key not in {node.key for node in left} and len(left) == len(every) - 1
    groups = graph.groups(left, cluster)
    single = [group for group in groups if group.kind == "evaluate" and group.nodes[0].needs == (first.key,)]
    assert len(single) == 1 and single[0].pairs_with is None
    assert _dependency(single[0], {first.key: "7_1"}, []) == "afterok:7_1"
    assert second.key in {node.key for node in groups[0].nodes}
    promised = {path for node in every if node.kind == "evaluate" for path in node.job.makes}
    assert not [node for node in graph.nodes(plan, cluster, promised) if node.kind == "evaluate"]


def test_gpus_follow_the_estimate_and_hours_are_capped(tmp_path, cluster):
    free = replace(cluster, gpus_per_run=None)
    (big,) = plan_of(tmp_path, only=("fox_pro",)).runs.values()
    (small,) = plan_of(tmp_path, scale="125m-2.7b", only=("fox_pro",)).runs.values()
    hours = resources.train_gpu_hours(small, free)
    assert hours is not None and 1 < hours < 20
    assert resources.for_training(small, free).gpus == 1
    assert resources.for_training(small, free).minutes == pytest.approx(60 * (1.3 * hours + 0.25), abs=1)
    assert resources.for_training(big, free).gpus == 8 and resources.for_training(big, free).minutes == 24 * 60
    many = resources.for_training(big, replace(cluster, gpus_per_run=32))
    assert (many.nodes, many.tasks_per_node, many.gpus) == (4, 8, 32)
    with pytest.raises(ValueError, match="gpus_per_run 64: a step of fox_pro has 32 sequences"):
        resources.for_training(big, replace(cluster, gpus_per_run=64))


def test_micro_batches_shrink_with_the_share_of_a_process(tmp_path, cluster):
    wide = replace(cluster, gpus_per_run=32)
    plan = plan_of(tmp_path, scale="125m-2.7b", only=("fox_pro",))
    (train,) = (node for node in graph.nodes(plan, wide) if node.kind == "train")
    assert train.job.args[train.job.args.index("--micro-batch-tokens") + 1] == "16384"
