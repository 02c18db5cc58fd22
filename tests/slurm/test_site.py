"""Tests of what takes minutes, and a cluster as sites really are: `pytest -m long tests/slurm`."""

import os
import shutil
import sys
import time
from collections import Counter
from collections.abc import Iterator

import pytest

from slurm import client
from slurm.job import adopt, read_submissions
from tests.slurm.conftest import running
from tests.slurm.daemons import Site
from tests.slurm.graphs import FOX, TRANSFORMER, Suite, assert_same_rows, assert_same_run, starts

pytestmark = [pytest.mark.slurm, pytest.mark.long, pytest.mark.timeout(1200)]

SITE = Site(
    {"n1": 4, "n2": 2, "n3": 2},
    """
JobRequeue=0
MaxArraySize=1
PreemptType=preempt/partition_prio
PreemptMode=REQUEUE
KillWait=20
AccountingStorageEnforce=associations,limits,qos
PartitionName=spare Nodes=n[1-3] Default=YES MaxTime=00:04:00 PriorityTier=1 PreemptMode=REQUEUE GraceTime=20 State=UP
PartitionName=loose Nodes=n[1-3] MaxTime=01:00:00 PriorityTier=1 PreemptMode=CANCEL GraceTime=0 State=UP
PartitionName=polite Nodes=n[1-3] MaxTime=01:00:00 PriorityTier=1 PreemptMode=CANCEL GraceTime=40 State=UP
PartitionName=urgent Nodes=n[1-3] MaxTime=01:00:00 PriorityTier=10 PreemptMode=OFF State=UP
""",
    accounting=True,
)
"""No arrays, no requeueing unless asked for, unequal nodes, a preemptible partition with a short limit, accounts and QOS."""


def test_a_task_that_cannot_leave_before_its_limit_goes_on_from_its_checkpoint(local, suite):
    graph = suite.graph("limited", (FOX,), "time_limit_hours = 0.0333\nsignal_seconds = 60\nmax_restarts = 9")
    assert graph.submit().returncode == 0
    graph.hold(20, FOX)  # for good: nobody lets it go on
    graph.until(lambda: graph.states()[f"train {FOX}"].restarts, 240, "a second start")
    assert graph.states()[f"train {FOX}"].restarted == "did not exit in time"
    graph.until_trained(FOX, 400)
    graph.cancel_rest()
    assert starts(graph.run(FOX))[1]["first_step"] > 0
    assert_same_run(graph.run(FOX), local.run(FOX))


def test_a_third_of_failing_calls_on_a_real_slurm(local, suite, tmp_path):
    """sbatch fails before or after it has made its job; every job is there once."""
    real = shutil.which("sbatch")
    sbatch = tmp_path / "sbatch"
    sbatch.write_text(f"""#!{sys.executable}
import random, subprocess, sys
chance = random.SystemRandom()
print("24 Nov: maintenance", flush=True)
fails, lost = chance.random() < 0.3, chance.random() < 0.5
if lost or not fails:
    code = subprocess.run(["{real}", *sys.argv[1:]], stdout=subprocess.DEVNULL if fails else None).returncode
sys.exit("sbatch: error: Batch job submission failed: Socket timed out on send/recv operation" if fails else code)
""")
    sbatch.chmod(0o755)
    graph = suite.graph("unlucky", (), "arrays = false", options=("--seeds", "0,1"))
    submitted = graph.submit(PATH=f"{tmp_path}:{os.environ['PATH']}")
    assert submitted.returncode == 0 and "submitted 29 jobs" in submitted.stdout, submitted.stdout + submitted.stderr
    submissions, queue = read_submissions(graph.submissions), client.queue()
    assert adopt(submissions, queue) == set()
    names = Counter(job.comment for job in queue.values() if job.active and submissions[0].path.stem in job.comment)
    graph.cancel_rest()
    assert len(names) == 29 and set(names.values()) == {1}


@pytest.fixture(scope="module")
def site(checkout, texts, local, tmp_path_factory) -> Iterator[Suite]:
    with running(SITE) as daemons:
        for what in (
            "add account lab description=lab", "add qos few set MaxSubmitJobsPerUser=2", "add user root account=lab",
            "add qos brief set MaxWall=00:02:00 Flags=DenyOnLimit", "modify user root set qos+=brief",
            "modify user root set qos+=few", "modify user root set defaultaccount=lab",
        ):  # fmt: skip
            done = daemons.call("sacctmgr", "-i", *what.split())
            assert done.returncode == 0, (what, done.stdout, done.stderr)
        folder = tmp_path_factory.mktemp("a site")
        spaced = folder / "check out"
        shutil.copytree(checkout, spaced)
        found = Suite(daemons, spaced, texts, folder)
        found.corpora = local.suite.corpora
        yield found


def test_a_graph_on_a_site_with_limits_preemption_and_no_arrays(local, site):
    """Two jobs may be submitted at a time; a training is preempted; a wrong account is refused; all rows are as elsewhere."""
    settings = (
        'partition = "spare"\nqos = "few"\naccount = "lab"\ntime_limit_hours = 0.06\nsubmit_minutes = 0.1\nmax_restarts = 9'
    )
    wrong = site.graph("wrong", cluster=settings.replace("lab", "nobody"))
    refused = wrong.submit()
    assert refused.returncode == 2 and "account" in refused.stderr.lower(), refused.stderr
    graph = site.graph("right", cluster=settings)
    first = graph.submit()
    assert first.returncode == 75 and "3 jobs were not accepted" in first.stdout, first.stdout + first.stderr
    graph.hold(20, FOX)
    urgent = site.slurm.call("sbatch", "--partition=urgent", "--account=lab", "--exclusive", "--nodes=3", "--wrap=sleep 20")
    assert urgent.returncode == 0, urgent.stderr
    graph.until(lambda: graph.states()[f"train {FOX}"].restarts, 200, "a preempted training that began again")

    def submitted_all() -> bool:
        graph.submit()
        return graph.draw in graph.states()

    graph.until(submitted_all, 600, "room for all jobs")
    graph.until_drawn(300)
    for model in (FOX, TRANSFORMER):
        assert_same_run(graph.run(model), local.run(model))
    assert_same_rows(graph, local)
    assert len(starts(graph.run(FOX))) >= 2


def test_a_limit_on_one_job_is_refused_at_once(local, site):
    """Also while jobs of ours are queued: MaxWall with DenyOnLimit does not pass."""
    first = site.graph("first", (FOX,), 'partition = "spare"\naccount = "lab"\nsbatch = { hold = true }')
    assert first.submit().returncode == 0
    settings = 'partition = "urgent"\naccount = "lab"\nqos = "brief"\ntime_limit_hours = 0.5\nsubmit_minutes = 5'
    began = time.monotonic()
    refused = site.graph("walled", (FOX,), settings).submit()
    first.cancel_rest()
    assert refused.returncode == 2 and "QOSMaxWallDurationPerJobLimit" in refused.stderr, refused.stderr
    assert time.monotonic() - began < 120


@pytest.mark.parametrize("partition", ["loose", "polite"])
def test_preemption_that_cancels(local, site, partition):
    """With a grace time and without, the training saves and starts again; what waits for it goes on waiting."""
    lines = f'partition = "{partition}"\naccount = "lab"\ntime_limit_hours = 0.2'
    graph = site.graph(partition, (FOX,), lines)
    submitted = graph.submit()
    assert submitted.returncode == 0 and ("preemption in loose leaves a job" in submitted.stdout) == (partition == "loose")
    graph.hold(20, FOX)  # SLURM lets it go on, when it sends SIGTERM
    urgent = site.slurm.call("sbatch", "--partition=urgent", "--account=lab", "--exclusive", "--nodes=3", "--wrap=sleep 5")
    assert urgent.returncode == 0, urgent.stderr
    graph.until_drawn(300)
    assert graph.states()[f"train {FOX}"].restarts == 1
    assert_same_run(graph.run(FOX), local.run(FOX))
