"""Figure 2 on a real SLURM, with everything that happens to jobs, compared with a local run."""

import os
import re
import shutil
import signal
import sys

import pytest

from analysis.study import Study
from slurm import client
from tests.slurm.daemons import until
from tests.slurm.graphs import FOX, TRANSFORMER, Graph, Suite, assert_same_rows, assert_same_run, pending_signal, starts

pytestmark = [pytest.mark.slurm, pytest.mark.timeout(1800)]
CURVES = "appendix_training_curves"


def job_count(graph) -> int:
    """Jobs that SLURM remembers of a graph."""
    ids = {path.stem for path in graph.submissions.glob("*.json")}
    return sum(job.comment.split(".")[1] in ids for job in client.queue().values() if job.comment.startswith("fox."))


def preempt(graph, model) -> None:
    """Return what preemption does to a job: a signal, from outside."""
    job = graph.states()[f"train {model}"].id
    assert graph.suite.slurm.call("scancel", "--signal=USR2", job).returncode == 0


@pytest.fixture(scope="module")
def brief(suite: Suite) -> Graph:
    """The first steps of a real scale, with its own data and the fastest of the seven models (`test_figure_at_tiny.py` has all
    of them, to the end). It takes longest, so it is submitted first."""
    graph = suite.graph("brief", (TRANSFORMER,), "time_limit_hours = 1", "brief")
    assert "submitted 4 jobs" in graph.submit().stdout
    return graph


def test_a_graph_survives_signals_kills_and_a_restarted_controller(brief, local, suite):
    """From nothing: two shells, with settings that must not count, submit at once; one run is preempted, while the controller
    is away, and the other is killed by `kill -9`. All that comes of it equals a local run bit for bit."""
    graph = suite.graph("disturbed", corpora=suite.folder / "corpora of its own")
    shell = {"SBATCH_PARTITION": "nowhere", "SBATCH_EXPORT": "NONE", "RANK": "3", "WORLD_SIZE": "8", "MASTER_ADDR": "nowhere"}
    shells = [graph.start_submitting(**shell), graph.start_submitting(**shell)]
    outputs = sorted((shell.communicate(timeout=120)[0] for shell in shells), key=lambda output: "nothing to submit" in output)
    assert [shell.returncode for shell in shells] == [0, 0], outputs
    assert ["nothing to submit" in output for output in outputs] == [False, True], outputs
    assert "left out: SBATCH_EXPORT, SBATCH_PARTITION of this shell" in outputs[0]
    assert job_count(graph) == 6  # a corpus, two trainings, two evaluations, one drawing

    held = graph.hold(30, TRANSFORMER, FOX)
    os.kill(held[TRANSFORMER], signal.SIGKILL)
    preempt(graph, FOX)
    until(lambda: pending_signal(held[FOX], signal.SIGUSR2), 90, "the signal")
    suite.slurm.stop_controller()
    os.kill(held[FOX], signal.SIGCONT)
    until(lambda: not os.path.exists(f"/proc/{held[FOX]}"), 120, "the preempted process to save and leave")
    suite.slurm.start_controller()

    again = graph.submit()
    assert again.returncode == 0
    assert "nothing to submit" in again.stdout  # how many jobs are left to wait for depends on how fast the machine is
    states = graph.until_drawn(200)
    assert job_count(graph) == 6
    assert [state.job.kind for state in states.values()] == ["prepare", "train", "train", "evaluate", "evaluate", "draw"]
    assert len({state.id.split("_")[0] for state in states.values()}) == 4  # trainings and evaluations are arrays
    assert states[f"train {FOX}"].restarts == 1 and states[f"train {FOX}"].error == ""
    assert states[f"train {TRANSFORMER}"].restarts == 1 and "SIGKILL" in states[f"train {TRANSFORMER}"].restarted
    for model in (FOX, TRANSFORMER):
        assert starts(graph.run(model))[1]["first_step"] > 0
        assert_same_run(graph.run(model), local.run(model))
    assert_same_rows(graph, local)
    shown = graph.slurm("status")
    assert shown.returncode == 0
    for word in (FOX, TRANSFORMER, "200/200", "done", "draw"):
        assert word in shown.stdout
    assert graph.slurm("watch").returncode == 0


def test_two_tasks_train_one_run_while_nodes_are_drained_and_fail(local, suite):
    """Two processes on two nodes, joined by gloo, the model sharded: preempted, held back while a node is drained, and hit by
    its failure."""
    lines = 'environment = { GLOO_SOCKET_IFNAME = "lo" }\ntrain = { tasks = 2, nodes = 2 }'
    graph = suite.graph("two", (FOX,), lines, options=("--parallel", "fsdp"))
    assert graph.submit().returncode == 0
    held = graph.hold(20, FOX)
    assert suite.slurm.call("scontrol", "update", "nodename=n2", "state=drain", "reason=test").returncode == 0
    try:
        preempt(graph, FOX)
        os.kill(held[FOX], signal.SIGCONT)
        graph.until(lambda: graph.states()[f"train {FOX}"].state == "requeued", 120, "a requeued job")
        step = graph.logged(FOX)
        until(lambda: graph.states()[f"train {FOX}"].state == "running", 6, "", fail=False, every=1.0)
        assert graph.states()[f"train {FOX}"].state == "requeued"
        assert graph.logged(FOX) == step
    finally:
        suite.slurm.call("scontrol", "update", "nodename=n2", "state=resume")
    graph.hold(step + 20, FOX)
    suite.slurm.call("scontrol", "update", "nodename=n2", "state=down", "reason=test")
    graph.until(lambda: graph.states()[f"train {FOX}"].state == "requeued", 120, "a job that its failed node has left")
    suite.slurm.call("scontrol", "update", "nodename=n2", "state=resume")
    graph.until_trained(FOX)
    graph.cancel_rest()
    assert [start["world_size"] for start in starts(graph.run(FOX))] == [2, 2, 2]
    assert starts(graph.run(FOX))[1]["first_step"] >= 20
    # The same experiment, up to the order in which numbers are added.
    ours, alone = (run.read_metrics() for run in (graph.run(FOX), local.run(FOX)))
    assert ours[0]["loss"] == pytest.approx(alone[0]["loss"], rel=1e-5)
    assert ours[-1]["loss"] == pytest.approx(alone[-1]["loss"], rel=0.02)


def test_a_failing_job_stops_its_dependants_and_can_be_resubmitted(local, suite, tmp_path):
    (corpus,) = (path.parent for path in suite.corpora.glob("text-*/corpus.json"))
    broken = tmp_path / "corpora" / corpus.name
    shutil.copytree(corpus, broken)
    shutil.rmtree(broken / "train.zarr")
    graph = suite.graph("failing", corpora=tmp_path / "corpora")
    assert graph.submit().returncode == 0
    graph.until(
        lambda: all(state.state in ("failed", "cancelled") for state in graph.states().values()), 150, "five jobs that ended"
    )
    states = graph.states()
    assert len(states) == 5
    for model in (FOX, TRANSFORMER):
        assert states[f"train {model}"].state == "failed" and "train.zarr" in states[f"train {model}"].error
        assert states[f"train {model}"].restarts == 0  # an error to mend is not tried again
        waiting = states[f"evaluate {model}"]
        assert waiting.state == "cancelled" and re.match(f"needs train {model}-.*, which failed: .*train.zarr", waiting.error)
    assert "nothing to draw" in states[graph.draw].error
    shown = graph.slurm("status")
    assert shown.returncode == 1 and "train.zarr" in shown.stdout
    assert "train.zarr" in graph.slurm("logs", FOX).stdout

    assert "nothing: no such run was submitted" in graph.slurm("resubmit", "nothing").stderr
    for names in ((FOX,), ()):  # a training, its evaluation and the figure; then the other's, and the figure after both
        resubmitted = graph.slurm("resubmit", *names)
        assert resubmitted.returncode == 0 and "submitted 3 jobs" in resubmitted.stdout, resubmitted.stderr
    assert "cancelled" in graph.slurm("cancel").stdout
    graph.until(lambda: all(s.state in ("failed", "cancelled") for s in graph.states().values()), 90, "five cancelled jobs")
    assert "no job is queued" in graph.slurm("cancel").stdout


def test_what_slurm_refuses_is_passed_on_and_nothing_stays_queued(local, suite, tmp_path):
    nowhere = suite.graph("nowhere", cluster='partition = "nowhere"')
    refused = nowhere.submit()
    assert refused.returncode == 2 and refused.stderr.count("\n") == 1
    assert "invalid partition specified: nowhere" in refused.stderr
    other = tmp_path / "texts"
    shutil.copytree(suite.texts, other)
    next(other.iterdir()).unlink()
    large = suite.graph("large", cluster="train = { tasks = 2, cpus_per_task = 3 }", texts=other)
    before = {job.id for job in client.queue().values()}
    refused = large.submit()
    assert refused.returncode == 2 and refused.stderr.count("\n") <= 2, refused.stderr
    assert "not available" in refused.stderr and "Submitted before it and cancelled again: 1." in refused.stderr

    def cancelled() -> bool:  # SLURM remembers the refused job, too, as failed
        new = [job for job in client.queue().values() if job.id not in before]
        return not any(job.active for job in new) and "CANCELLED" in {job.state for job in new}

    large.until(cancelled, 60, "a cancelled job")
    for graph in (nowhere, large):
        assert not graph.states()


def test_evaluations_that_never_begin_or_fail_and_a_killed_submitter(local, suite, tmp_path):
    """Try runs that are trained: a submitter is killed, its jobs are held, and their container is missing; then the metrics of
    one run are damaged. After each repair the rest can be had."""
    graph = suite.graph("half", artefact=CURVES)
    for model in (FOX, TRANSFORMER):
        run = local.run(model).path
        shutil.copytree(run, graph.runs / graph.scale / run.name, ignore=shutil.ignore_patterns("evals", "starts", "logs"))
    metrics = graph.run(FOX).metrics_file
    content = metrics.read_text()
    file = graph.folder / "cluster.toml"
    mended = file.read_text()
    file.write_text(mended + 'container = "/nowhere/apptainer exec image.sif"\nmax_restarts = 1\n')
    sbatch = tmp_path / "sbatch"
    sbatch.write_text(f'#!/bin/sh\n{shutil.which("sbatch")} --hold "$@"\nkill -9 $PPID\n')
    sbatch.chmod(0o755)

    assert graph.submit(PATH=f"{tmp_path}:{os.environ['PATH']}").returncode == -9
    assert job_count(graph) == 2
    states = graph.states()
    assert {state.state for state in states.values()} == {"held"} and len(states) == 2
    assert "scontrol release" in states[f"evaluate {FOX}"].error
    assert "submitted 1 jobs" in graph.submit().stdout and job_count(graph) == 3
    assert suite.slurm.call("scontrol", "release", states[f"evaluate {FOX}"].id.split("_")[0]).returncode == 0

    graph.until(lambda: all(state.state == "failed" for state in graph.states().values()), 150, "three jobs that gave up")
    state = graph.states()[f"evaluate {FOX}"]
    assert state.restarts == 1 and state.error.startswith("given up after 2 starts without progress: exit code")
    assert "the task never began" in state.error and "/nowhere/apptainer" in state.error
    assert str(state.shell_log) in graph.slurm("status").stdout
    assert "/nowhere/apptainer" in graph.slurm("logs", FOX).stdout

    file.write_text(mended)
    metrics.write_text(content.replace('"loss": 5', '"loss": 6', 1))
    assert "submitted 3 jobs" in graph.slurm("resubmit", "--cluster", str(file)).stdout
    graph.until(lambda: graph.states()[graph.draw].state in ("done", "failed", "cancelled"), 150, "the figure")
    states = graph.states()
    found = [states[name].state for name in (f"evaluate {FOX}", f"evaluate {TRANSFORMER}", graph.draw)]
    assert found == ["failed", "done", "done"], states
    figure = graph.results / graph.scale / "figures" / f"{CURVES}.csv"
    assert TRANSFORMER in figure.read_text() and FOX not in figure.read_text()

    metrics.write_text(content)
    again = graph.slurm("resubmit")
    assert again.returncode == 0 and "submitted 2 jobs" in again.stdout, again.stdout + again.stderr
    graph.until_drawn(150)
    assert FOX in figure.read_text()


def test_an_allocation_is_used_by_srun_and_its_shell_says_so(local, suite):
    salloc, srun = ["salloc", "--ntasks=1"], ["srun", "--nodes=1", "--ntasks=1"]
    refused = local.call([*salloc, *local.local_command()])
    assert refused.returncode == 2 and re.search(r"job \d+, but .*`srun --nodes=1 --ntasks=1`", refused.stderr), refused.stderr
    done = local.call([*salloc, *srun, *local.local_command()])
    assert done.returncode == 0 and "evaluations exist already" in done.stdout, done.stdout + done.stderr


@pytest.mark.parametrize("built", [True, False], ids=["with-cuda", "without-cuda"])
def test_a_node_without_its_gpus_is_left_and_named(local, suite, tmp_path, built):
    """A training on GPUs where there are none; SLURM is not asked for them. No node is to blame for a torch without CUDA."""
    (tmp_path / "sitecustomize.py").write_text(f"import torch\n\ntorch.backends.cuda.is_built = lambda: {built}\n")
    setup = f'python = "{sys.executable}"\nsetup = ["export PYTHONPATH={tmp_path}"]\n'
    lines = setup + "gpus_per_node = 1\ngpu_tflops = 989\nsbatch = { gpus-per-node = false }\nmax_restarts = 1"
    graph = suite.graph("with CUDA" if built else "without CUDA", (FOX,), lines)
    submitted = graph.submit()
    assert submitted.returncode == 0, submitted.stdout + submitted.stderr
    training = f"train {FOX}"
    ended = {True: lambda state: "not on" in state.restarted, False: lambda state: state.state == "failed"}[built]
    graph.until(lambda: ended(graph.states()[training]), 60, "a training that failed")
    state = graph.states()[training]
    graph.cancel_rest()
    if built:
        said = r"this node failed: no GPU, though the job asked for some; not on n\d again"
        assert re.fullmatch(said, state.restarted) and state.state != "failed", state
    else:
        said = r"error: --device cuda: torch .* of .*python.* is built without CUDA; use --device cpu, or .*"
        assert not state.restarted and re.fullmatch(said, state.error), state


def test_figure_2_of_the_first_steps_of_a_real_scale(brief):
    brief.until_drawn(550)
    rows = Study(brief.results, "brief", "fig2_per_token_loss").rows("per_token_loss")
    assert set(rows["model"]) == {TRANSFORMER} and rows["loss"].mean() < 5.0  # from ln 512 = 6.2
