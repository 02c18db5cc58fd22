"""The example cluster files at the paper's scale, as a real controller reads them: its nodes exist on paper only."""

import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace

import pytest
from rich.console import Console

from experiments.artefact import MAIN
from slurm import submit
from slurm.cluster import read_cluster
from slurm.job import read_submissions
from tests.slurm.conftest import running
from tests.slurm.daemons import Site, Slurm
from tests.slurm.plans import plan_of
from tests.slurm.test_cluster_file import CLUSTERS

pytestmark = pytest.mark.slurm

PAPER = Site(
    {},
    """
GresTypes=gpu
AccountingStorageType=accounting_storage/none
NodeName=h[1-4] NodeAddr=127.0.0.1 CPUs=128 RealMemory=2000000 Gres=gpu:h100:8
NodeName=a[1-4] NodeAddr=127.0.0.1 CPUs=128 RealMemory=1000000 Gres=gpu:a100:8
NodeName=c1 NodeAddr=127.0.0.1 CPUs=128 RealMemory=500000
PartitionName=gpu Nodes=h[1-4],a[1-4] State=UP
PartitionName=batch Nodes=a[1-4] State=UP
PartitionName=preemptible Nodes=a[1-4] State=UP
PartitionName=cpu Nodes=c1 State=UP
""",
)


@pytest.fixture(scope="module")
def controller() -> Iterator[Slurm]:
    with running(PAPER) as daemons:
        yield daemons


ASKED = {
    "university": {
        "train": {"gpu my-lab 1 nodes 96 cpus 960G gres:gpu:8 1-00:00:00"},
        "evaluate": {"gpu my-lab 1 nodes 12 cpus 120G gres:gpu:1 12:00:00"},
        "time": {"gpu my-lab 1 nodes 12 cpus 120G gres:gpu:1 2:00:00"},
        "draw": {"gpu my-lab 1 nodes 2 cpus 8G N/A 1:00:00"},
    },
    "containers": {
        "train": {"preemptible (null) 1 nodes 32 cpus 240G gres:gpu:4 4:00:00"},
        "evaluate": {"batch (null) 1 nodes 8 cpus 60G gres:gpu:1 4:00:00"},
        "time": {"batch (null) 1 nodes 8 cpus 60G gres:gpu:1 2:00:00"},
        "draw": {"batch (null) 1 nodes 2 cpus 8G N/A 1:00:00"},
    },
    "typed_gpus": {
        "train": {f"gpu project_465 4 nodes 448 cpus 1200G gres:gpu:h100:8 {time}" for time in ("13:09:00", "8:05:00")},
        "evaluate": {"gpu project_465 1 nodes 14 cpus 150G gres:gpu:a100:1 1-00:00:00"},
        "time": {"gpu project_465 1 nodes 14 cpus 150G gres:gpu:h100:1 2:00:00"},
        "draw": {"cpu project_465 1 nodes 2 cpus 8G N/A 1:00:00"},
    },
}


@pytest.mark.parametrize("name", ASKED)
def test_slurm_reads_what_the_file_means(controller, tmp_path, monkeypatch, name):
    monkeypatch.setattr(submit, "fetch", lambda *_: None)
    cluster = replace(read_cluster(CLUSTERS / f"{name}.toml"), scratch=tmp_path)
    assert submit.submit(plan_of(tmp_path, *MAIN), cluster, Console(quiet=True)) == 0
    (record,) = read_submissions(tmp_path / "runs" / "760m-48b" / "plans" / "submissions")
    shown = controller.call("squeue", "--noheader", "--array", "--format=%j|%P %a %D nodes %C cpus %m %b %l|%E").stdout
    jobs = [line.split("|") for line in shown.splitlines() if f".{record.path.stem}." in line]
    kinds = [re.split("[-.]", job)[1] for job, _, _ in jobs]
    assert Counter(kinds) == {"train": 7, "evaluate": 7, "time": 7, "draw": 6}
    waits = {"train": "(null)", "evaluate": "aftercorr:", "time": "(null)", "draw": "afterany:"}
    asked: dict[str, set[str]] = {}
    for kind, (_, what, dependency) in zip(kinds, jobs, strict=True):
        asked.setdefault(kind, set()).add(what)
        assert dependency.startswith(waits[kind])
    assert asked == ASKED[name]
    throttle = controller.call("scontrol", "show", "job", record.batches[0].id).stdout
    assert ("ArrayTaskThrottle=4" in throttle) == (cluster.max_concurrent == 4)
