"""Nothing that SLURM is asked for, and nothing that is made of how a job ended, changes unnoticed: scripts, jobs, batches,
     states
and decisions are written down. What is new need not be there yet."""

import io
import json
import os
import re
import sys
from collections.abc import Iterator
from dataclasses import asdict, replace
from itertools import product
from pathlib import Path

import pytest
from rich.console import Console

from experiments import restarts
from slurm import client, epilogue, graph, status
from slurm.batch import TEMPLATE, script
from slurm.client import QueuedJob
from slurm.cluster import CLUSTER, Cluster
from slurm.job import Batch, Job, Resources, Submission
from slurm.status import JobState, job_states, now, rows, summary, table, wide
from slurm.submit import _chosen, _overview, _say_settings
from tests.slurm.plans import plan_of

WRITTEN = Path(__file__).with_suffix(".txt")
GPUS = dict(gpus_per_node=4, gpu_tflops=100.0, cpus_per_task=3, mem_gb_per_task=2.5)
CLUSTERS = {
    "plain": {},
    "gpus": dict(
        **GPUS, partition="p", account="a", qos="q", constraint="c", gpu_type="t", signal_seconds=60, setup=["module load x"],
        environment={"A": "b c"}, sbatch={"mail-type": "END"}, train={"gpus": 8, "srun": {"mpi": "none"}}, time={"qos": "t"},
    ),
    "gres": dict(**GPUS, gpu_option="gres", container="apptainer exec i.sif", python="python3.12", sbatch={"gres": "nvme:1"},
                 evaluate={"gpus": 2, "mem_gb_per_task": 3.3}, train={"sbatch": {"gpus": 7}}, draw={"time_limit_hours": 0.4}),
    "container": dict(container="c run", gpus_per_node=0),
    "tasks": dict(train={"tasks": 4, "nodes": 2}, max_concurrent=2, arrays=False, evaluate={"sbatch": {"exclusive": True}},
                  environment={"OMP_NUM_THREADS": "5"}, sbatch={"requeue": False, "mem-per-cpu": "3G"}),
}  # fmt: skip
SIZES = {
    "prepare": Resources(1, 1, 0, 720), "train": Resources(2, 4, 4, 95, 7.0), "evaluate": Resources(1, 1, 1, 360, 6.0, 1.5),
    "time": Resources(1, 1, 1, 5), "draw": Resources(1, 1, 0, 60),
}  # fmt: skip


def cluster_of(folder: Path, **settings: object) -> Cluster:
    return CLUSTER.validate_json(json.dumps({"time_limit_hours": 24.0, "scratch": str(folder / "scratch"), **settings}))


def job(folder: Path, key: str, needs: tuple[str, ...] = (), minutes: int | None = None) -> Job:
    kind, about = key.split(":")[:2]
    run = folder / about
    makes = {"train": ["export"], "evaluate": ["evals/a.parquet", "evals/b.parquet"]}.get(kind, [])
    size = SIZES[kind] if minutes is None else replace(SIZES[kind], minutes=minutes)
    return Job(key, f"{kind}.it", ("--x",), needs, tuple(run / path for path in makes), run, size)


def submission_of(folder: Path, jobs: list[Job], batches: list[Batch]) -> Submission:
    places = {"results_dir": str(folder), "corpora_dir": str(folder / "nowhere")}
    path = folder / "submissions" / "20260101-120000-1.json"
    return Submission(path, "me", str(folder), 3, {each.key: each for each in jobs}, batches, places, {})


def scripts(folder: Path) -> Iterator[str]:
    """Lines that a script has beside the template, of each kind of job alone, and of an array of two."""
    known = set(TEMPLATE.read_text().splitlines())
    for (name, settings), kind in product(CLUSTERS.items(), SIZES):
        cluster = cluster_of(folder, **settings)
        two = [job(folder, f"{kind}:a-1:x"), job(folder, f"{kind}:b-2:y", minutes=100)]
        for keys in ({0: two[0].key}, {2: two[0].key, 5: two[1].key}):
            batch = Batch(keys, "afterok:7" if kind == "evaluate" else None, f"{folder}/50%-")
            made = submission_of(folder, two, [Batch({}), batch])
            text = script(made, 1, cluster, folder / "code", 1 if kind == "train" else 2)
            own = [line.removeprefix("#SBATCH ").partition("  # ")[0] for line in text.splitlines() if line not in known]
            yield f"{name}, {len(keys)} {kind}: {'; '.join(own)}"


def jobs(folder: Path) -> Iterator[str]:
    plan = plan_of(folder, "fig2_per_token_loss", "table6_throughput", only=("fox_pro", "mamba2"))
    for name in ("plain", "gpus", "gres", "tasks"):
        cluster = cluster_of(folder, machine="H100", **CLUSTERS[name])
        plan = plan_of(folder, "fig2_per_token_loss", "table6_throughput", only=("fox_pro", "mamba2"), device=cluster.device)
        found = graph.jobs(plan, cluster)
        yield from (f"{name}: {json.dumps(asdict(each), default=str, sort_keys=True)}" for each in found)
        ids: dict[str, str] = {}
        for number, group in enumerate(graph.groups(found, cluster)):
            for batch in graph.batches(group, ids, cluster.arrays):
                ids |= replace(batch, id=str(100 + number)).ids()
                yield f"{name}: {batch}"
        told = io.StringIO()
        console = wide(Console(file=told))
        _say_settings(replace(cluster, environment={"HF_HOME": "x"} if name == "gres" else {}), console)
        console.print(_overview(found, dict(list(ids.items())[:-2])))
        yield from (f"{name}: {line}" for line in told.getvalue().splitlines())


def choices(folder: Path) -> Iterator[str]:
    """Jobs that are submitted of some, which batches they are, and after what."""
    some = [job(folder, "prepare:c"), *(job(folder, f"train:{x}-1", ("prepare:c",)) for x in "ab"),
            *(job(folder, f"evaluate:{x}-1:e", (f"train:{x}-1", "prepare:c")) for x in "ab"), job(folder, "time:a-1:t"),
            job(folder, "draw:f:1", ("evaluate:a-1:e", "evaluate:b-1:e")), job(folder, "draw:g:1",
                 ("time:a-1:t",))]  # fmt: skip
    for names in ((), ("a",), ("b-1",), ("c",), ("f",), ("g",), ("x",), ("a-1", "f")):
        yield f"chosen by {names}: {[each.key for each in _chosen(some, names)]}"
    before = {"train:a-1": "5_0", "train:b-1": "5_1", "evaluate:a-1:e": "6_0", "evaluate:b-1:e": "6_1", "time:a-1:t": "7"}
    for given in ({}, before, before | {"train:b-1": "8"}, {"prepare:c": "4"}, {**before, "evaluate:c-1:e": "6_2"}):
        for arrays in (True, False):
            found = [batch for each in graph.groups(some, cluster_of(folder)) for batch in graph.batches(each, given, arrays)]
            yield from (f"given {list(given.values())}: {batch.keys} {batch.dependency}" for batch in found)


def decisions() -> Iterator[str]:
    codes = (0, 1, 2, 3, 75, 76, 124, 127, 130, 137, 143, -9)
    for code, state, fruitless, begun in product(
        codes, ("RUNNING", "TIMEOUT", "PREEMPTED", "FAILED"), (1, 2, 3), (True, False)
    ):
        yield f"{code}, {state}, {fruitless}, {begun}: {epilogue.decide(code, state, fruitless, 2, begun)}"
    for code, fruitless in product(codes, (3, 4)):
        yield f"{code}, {fruitless}: {restarts.decide(code, fruitless)}"


START, CRASH = ("start", dict(mark="step-0")), ("end", dict(code=137, action="again", reason="killed"))
HISTORIES: dict[str, list[tuple[str, dict]]] = {
    "nothing": [], "started": [START], "never began": [("start", dict(mark=epilogue.NEVER_BEGAN))], "crashed": [START, CRASH],
    "crashed, started": [START, CRASH, ("excluded", dict(node="n1")), START],
    "saved": [START, ("end", dict(code=75, action="again", reason="saved, to go on"))],
    "failed": [START, ("end", dict(code=2, action="failed", reason="bad"))],
    "done": [START, ("end", dict(code=0, action="done", reason=""))],
    "ended": [START, ("end", dict(code=143, action="ended", reason="SLURM says failed"))],
    "cancelled": [("end", dict(code=0, action="cancelled", reason="by me"))],
}  # fmt: skip
QUEUE = {
    "forgotten": None, "accounted": None, "pending": ("PENDING", "Priority"), "waiting": ("PENDING", "Dependency"),
    "never": ("PENDING", "DependencyNeverSatisfied"), "held": ("PENDING", "JobHeldUser"), "running": ("RUNNING", "None"),
    "timeout": ("TIMEOUT", "None"), "out": ("OUT_OF_MEMORY", "None"), "preempted": ("PREEMPTED", "None"),
}  # fmt: skip


def states(folder: Path) -> Iterator[str]:
    for number, ((history, events), kind) in enumerate(product(HISTORIES.items(), ("train", "evaluate", "draw"))):
        one = job(folder / str(number), f"{kind}:a-1:x")
        for event, values in events:
            restarts.append(one.journal, event, job="5", **values)
        log = folder / f"{number}-5.log"
        if number % 2:
            log.write_text("error: said\n")
        for name, queued in QUEUE.items():
            queue = {} if queued is None else {"5": QueuedJob("5", *queued, "n3", "me", "", "")}
            made = submission_of(folder, [one], [Batch({0: one.key}, None, f"{folder}/{number}-", "5")])
            client.accounted = lambda ids, name=name: dict.fromkeys(ids, "NODE_FAIL") if name == "accounted" else {}  # type: ignore[assignment]
            (found,) = job_states([made], queue)
            words = {key: str(value) for key, value in vars(found).items() if key not in ("job", "id", "user") and value}
            yield f"{kind} {history}, {name}: {json.dumps(words)}"


def tables(folder: Path) -> Iterator[str]:
    """Rows that are shown of runs whose jobs are in any two states."""
    status.progress = lambda run: ("1/2", "3", "4 min")  # type: ignore[assignment]
    train, evaluate, draw = (job(folder, key) for key in ("train:a-1", "evaluate:a-1:x", "draw:f:x"))
    last = JobState(draw, "7", "ann", "pending")
    for one, two in product((*status.ENDS, *status.OPEN), ("done", "failed", "held", "running", "waiting", "lost")):
        some = [
            JobState(train, "5", "me", one, "n1", 1, "bad", "why", folder / "log"),
            JobState(evaluate, "6", "me", two),
            last,
        ]
        found = rows(some)
        shown = io.StringIO()
        Console(file=shown, width=200, highlight=False).print(table(found))
        words = [" ".join(line.split()) for line in shown.getvalue().splitlines()]
        yield f"{one}, {two}: {now(found[0]).job.kind}; {summary(found)}; {' / '.join(words[1:])}"


@pytest.fixture
def stated(tmp_path, monkeypatch) -> list[str]:
    for owner, name in ((client, "accounted"), (status, "progress")):
        monkeypatch.setattr(owner, name, getattr(owner, name))  # put back in the end
    monkeypatch.setattr(client, "me", lambda: "me")
    for name in [name for name in os.environ if name in ("HF_HOME", "TRITON_CACHE_DIR") or name.startswith("SBATCH_")]:
        monkeypatch.delenv(name)
    parts = (scripts(tmp_path), jobs(tmp_path), choices(tmp_path), decisions(), states(tmp_path), tables(tmp_path))
    found = [line.replace(sys.executable, "PYTHON").replace(str(tmp_path), "DIR") for part in parts for line in part]
    return list(dict.fromkeys(re.sub(r"(draw:\w+:|plans/\w+-)\w{8}", r"\1x", line) for line in found))


def test_all_that_slurm_is_asked_for_is_the_same_that_is_written_down(stated, tmp_path):
    (tmp_path / WRITTEN.name).write_text("\n".join(stated) + "\n")
    gone = set(WRITTEN.read_text().splitlines()) - set(stated)
    assert not gone, f"where that is meant: cp {tmp_path}/{WRITTEN.name} {WRITTEN}"
