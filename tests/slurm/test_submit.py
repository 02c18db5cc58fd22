"""Tests of what sbatch says on its bad days: every job is submitted once, whatever is lost, refused or killed on the way."""

import io
import json
import os
import re
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest
from rich.console import Console

from data.plan import CorpusPlan
from data.source import LongCrawl64Source
from data.tokenizer import TokenizerChoice
from eval.kinds import KINDS
from experiments import restarts
from experiments.plan import Plan
from experiments.request import Request
from slurm import client, graph
from slurm.cluster import CLUSTER, Cluster
from slurm.job import adopt, read_submissions
from slurm.submit import active_jobs, new_submission, planned, rehearse, submit
from tests.slurm.fake import FakeSlurm
from tests.slurm.plans import plan_of
from tests.texts import write_texts
from training.spec import Execution


@pytest.fixture(autouse=True)
def _impatient(monkeypatch):
    monkeypatch.setattr("slurm.submit.PAUSES_S", (0.01,))


def cluster_of(tmp_path: Path, **settings: object) -> Cluster:
    whole = {
        "time_limit_hours": 24.0,
        "gpus_per_node": 8,
        "gpu_tflops": 989.0,
        "machine": "H100",
        "scratch": str(tmp_path / "scratch"),
        **settings,
    }
    return CLUSTER.validate_json(json.dumps(whole))


@pytest.fixture
def make_slurm(tmp_path, monkeypatch):
    def make(**settings: object) -> FakeSlurm:
        fake = FakeSlurm(tmp_path / "bin", **settings)
        monkeypatch.setenv("PATH", f"{fake.folder}:{os.environ['PATH']}")
        return fake

    return make


def submitted(plan: Plan, cluster: Cluster) -> tuple[int, str]:
    told = io.StringIO()
    return submit(plan, cluster, Console(file=told, width=200)), told.getvalue()


def wanted(plan: Plan, cluster: Cluster) -> set[str]:
    return {node.key for node in graph.jobs(plan, cluster)}


def assert_each_once(plan: Plan, fake: FakeSlurm, keys: set[str]) -> None:
    """Every job that SLURM has is the one job of a task, and every task has one."""
    submissions = read_submissions(graph.submissions_dir(plan))
    queue = client.queue()
    assert adopt(submissions, queue) == set()
    ids = Counter(job for submission in submissions for job in submission.job_ids().values())
    alive = [job.id for job in fake.jobs if job.state not in ("CANCELLED", "COMPLETED")]
    assert set(ids.values()) == {1} and sorted(ids) == sorted(alive)
    assert set(active_jobs(submissions, queue)) == keys


def test_a_third_of_failing_calls_loses_and_doubles_nothing(tmp_path, make_slurm):
    fake = make_slurm(fails=0.3)
    cluster = cluster_of(tmp_path, arrays=False)
    plan = plan_of(tmp_path, "fig2_per_token_loss", "table6_throughput", seeds=(0, 1))
    keys = wanted(plan, cluster)
    code, _ = submitted(plan, cluster)
    assert code == 0 and len(keys) > 30 and fake.read().calls > 1.2 * len(keys) and len(fake.jobs) == len(keys)
    assert_each_once(plan, fake, keys)


def test_dependencies_hold_in_an_array_and_one_by_one(tmp_path, make_slurm):
    fake = make_slurm()
    plan = plan_of(tmp_path)
    submitted(plan, cluster_of(tmp_path))
    dependencies = [job.dependency for job in fake.jobs]
    assert dependencies == [""] * 7 + ["aftercorr:101"] * 7 + ["afterany:102"]
    fake.write(type(fake.read())(arrays=False))
    other = plan_of(tmp_path / "other")
    submitted(other, cluster_of(tmp_path))
    singles = fake.jobs[:7], fake.jobs[7:14], fake.jobs[14]
    assert [job.dependency for job in singles[1]] == [f"afterok:{job.id}" for job in singles[0]]
    assert set(singles[2].dependency.split(":")) == {"afterany", *(job.id for job in singles[1])}


def test_a_limit_is_filled_in_pieces_and_the_same_command_goes_on(tmp_path, make_slurm):
    fake = make_slurm(limit=10)
    cluster, plan = cluster_of(tmp_path, submit_minutes=0.001, max_concurrent=4), plan_of(tmp_path)
    keys = wanted(plan, cluster)
    code, told = submitted(plan, cluster)
    assert code == 75 and "5 jobs were not accepted" in told and "AssocMaxSubmitJobLimit" in told
    trainings, evaluations = fake.jobs[:7], fake.jobs[7:]
    assert len(evaluations) == 3 and all(job.dependency.startswith(("aftercorr:101", "afterok:101_")) for job in evaluations)
    assert fake.read().calls < 12
    fake.change(limit=None)
    code, told = submitted(plan, cluster)
    assert code == 0 and "submitted 5 jobs" in told
    assert_each_once(plan, fake, keys)
    rest = [job for job in fake.jobs if job.id not in {job.id for job in trainings + evaluations}]
    assert rest[0].dependency.startswith("aftercorr:101") and rest[-1].dependency.startswith("afterany:")


@pytest.mark.parametrize(("arrays", "gone"), [(False, 2), (True, 7), (False, 7)])
@pytest.mark.parametrize("finished", [True, False])
def test_what_slurm_has_forgotten_is_waited_for_no_longer_where_it_is_done(
    tmp_path, make_slurm, monkeypatch, arrays, gone, finished
):
    """Trainings end, and are forgotten, between two calls of sbatch."""
    fake, cluster, plan = make_slurm(limit=7), cluster_of(tmp_path, submit_minutes=0.001, arrays=arrays), plan_of(tmp_path)
    assert submitted(plan, cluster)[0] == 75 and len(fake.jobs) == 7
    (first,) = read_submissions(graph.submissions_dir(plan))
    trainings = {key: job_id for key, job_id in first.job_ids().items() if key.startswith("train")}
    forgotten = [*trainings][:gone]

    def forget(folder: Path) -> Path:
        for path in (path for key in forgotten[: None if finished else -1] for path in first.jobs[key].makes):
            path.parent.mkdir(parents=True)
            path.touch()
        ids = {trainings[key] for key in forgotten}
        fake.change(limit=None, jobs=[job for job in fake.read().jobs if job["id"] not in ids])
        return folder

    monkeypatch.setattr("slurm.submit.snapshot", forget)
    if not finished:
        with pytest.raises(ValueError, match=r"SLURM refused the job 'evaluate': .*Job dependency problem"):
            submitted(plan, cluster)
        return
    assert submitted(plan, cluster)[0] == 0
    evaluations, draw = fake.jobs[7 - gone : -1], fake.jobs[-1]
    assert len(evaluations) == 7 and draw.dependency.startswith("afterany:")
    left = [f"afterok:{job_id}" for key, job_id in trainings.items() if key not in forgotten]
    assert sorted(job.dependency for job in evaluations) == [""] * gone + left


def test_without_arrays_a_job_waits_for_the_one_so_many_places_before_it(tmp_path, make_slurm):
    fake = make_slurm(arrays=False)
    submitted(plan_of(tmp_path), cluster_of(tmp_path, max_concurrent=3))
    trainings, evaluations, draw = fake.jobs[:7], fake.jobs[7:14], fake.jobs[14]
    assert [job.dependency for job in trainings] == [""] * 3 + [f"afterany:{job.id}" for job in trainings[:4]]
    lanes = [""] * 3 + [f",afterany:{job.id}" for job in evaluations[:4]]
    wanted = [f"afterok:{job.id}{lane}" for job, lane in zip(trainings, lanes, strict=True)]
    assert [job.dependency for job in evaluations] == wanted
    assert set(draw.dependency.split(":")) == {"afterany", *(job.id for job in evaluations)}


def test_a_limit_that_nothing_of_ours_fills_is_a_refusal(tmp_path, make_slurm):
    make_slurm(limit=0)
    with pytest.raises(ValueError, match="refused the job 'train': AssocMaxSubmitJobLimit"):
        submitted(plan_of(tmp_path, only=("fox_pro",)), cluster_of(tmp_path))


@pytest.mark.parametrize("kill_after", [1, 2, 3])
def test_jobs_of_a_killed_submitter_are_adopted(tmp_path, make_slurm, kill_after):
    fake = make_slurm(kill_after=kill_after)
    cluster, plan = cluster_of(tmp_path), plan_of(tmp_path)
    keys = wanted(plan, cluster)
    child = os.fork()
    if child == 0:
        try:
            submitted(plan, cluster)
        finally:
            os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -9
    record = read_submissions(graph.submissions_dir(plan))[0]
    assert record.batches[-1].id is None  # the answer was lost
    for run in plan.runs.values():  # and all that the jobs read was there before
        assert run.folder.spec_file.is_file() and list(run.folder.evals.glob("*.spec.json"))
    fake.change(kill_after=None)
    code, told = submitted(plan, cluster)
    assert code == 0
    assert_each_once(plan, fake, keys)
    assert len(fake.jobs) == 15 and ("nothing to submit" in told) == (kill_after == 3)
    adopted = read_submissions(graph.submissions_dir(plan))[0]
    assert adopted.batches[-1].id is not None, "it is known after the queue has forgotten it"


def test_a_job_is_known_by_its_name_where_its_comment_is_not_ours(tmp_path, make_slurm):
    fake = make_slurm(kill_after=1)
    cluster, plan = cluster_of(tmp_path, sbatch={"comment": "project 7"}), plan_of(tmp_path, only=("fox_pro",))
    child = os.fork()
    if child == 0:
        try:
            submitted(plan, cluster)
        finally:
            os._exit(0)
    os.waitpid(child, 0)
    fake.change(kill_after=None)
    assert fake.jobs[0].comment == "project 7"
    assert "submitted 2 jobs" in submitted(plan, cluster)[1]


def test_a_greeting_before_sbatchs_answer_is_not_the_id(tmp_path, make_slurm):
    make_slurm(says="24 Nov: maintenance\n7\tnodes are down\n")
    plan = plan_of(tmp_path, only=("fox_pro",))
    assert submitted(plan, cluster_of(tmp_path))[0] == 0
    (record,) = read_submissions(graph.submissions_dir(plan))
    assert [batch.id for batch in record.batches] == ["101", "102", "103"]
    assert [batch.dependency for batch in record.batches] == [None, "afterok:101", "afterany:102"]


@pytest.mark.parametrize("limit", ["QOSMaxWallDurationPerJobLimit", "QOSMaxCpuPerJobLimit", "AssocGrpNodeLimit"])
def test_a_limit_that_a_job_breaks_by_itself_is_a_refusal(tmp_path, make_slurm, limit):
    """Also while others of ours are queued: it is not one that passes."""
    fake = make_slurm()
    cluster = cluster_of(tmp_path)
    submitted(plan_of(tmp_path / "before"), cluster)
    fake.change(lasting=limit, calls=0)
    with pytest.raises(ValueError, match=f"refused the job 'train': {limit}; Batch job submission failed"):
        submitted(plan_of(tmp_path), cluster)
    assert fake.read().calls == 1


@pytest.mark.parametrize(("mode", "grace", "told"), [("CANCEL", 0, True), ("CANCEL", 30, False), ("REQUEUE", 0, False)])
def test_a_partition_that_cancels_what_it_preempts_is_named(tmp_path, make_slurm, mode, grace, told):
    lines = [f"PartitionName={name} Default={default} GraceTime={grace} PreemptMode={mode}"
             for name, default in (("gpu", "YES"), ("spare", "NO"))]  # fmt: skip
    make_slurm(config="\n".join(lines))
    for settings, name in (({}, "gpu"), ({"partition": "spare"}, "spare")):
        said = submitted(plan_of(tmp_path / name), cluster_of(tmp_path, **settings))[1]
        assert (f"preemption in {name} leaves a job KillWait (30 s) to save" in said) == told


def test_what_a_colleague_whose_jobs_slurm_hides_has_submitted_is_not_submitted_twice(tmp_path, make_slurm, monkeypatch):
    fake = make_slurm(config="PrivateData = jobs")
    monkeypatch.setattr("os.geteuid", lambda: 1000)
    monkeypatch.setattr(client, "me", lambda: "ann")
    plan, cluster = plan_of(tmp_path, only=("fox_pro",)), cluster_of(tmp_path)
    submitted(plan, cluster)
    fake.change(jobs=[{**vars(job), "user": "ann"} for job in fake.jobs])
    monkeypatch.setattr(client, "me", lambda: "me")
    with pytest.raises(ValueError, match=r"ann has submitted 'train fox_pro-\w+' .*hides others' jobs .*another --runs-dir"):
        submitted(plan, cluster)
    assert len(fake.jobs) == 3
    assert "submitted 3 jobs" in submitted(plan_of(tmp_path, only=("mamba2",)), cluster)[1]  # nothing of hers
    (record, _) = read_submissions(graph.submissions_dir(plan))
    for key, job in record.job_ids().items():
        restarts.append(record.jobs[key].journal, "end", job=job, code=2, action="failed", reason="")
    assert "submitted 3 jobs" in submitted(plan, cluster)[1]


def test_an_array_is_cancelled_by_one_request(tmp_path, make_slurm):
    fake = make_slurm()
    plan = plan_of(tmp_path, seeds=tuple(range(4)))
    submitted(plan, cluster_of(tmp_path))
    fake.end("COMPLETED", "101_3")
    client.cancel(job.id for job in fake.jobs if job.state == "PENDING")
    assert fake.read().cancels == [["101_[0-2,4-27]", "102_[0-27]", "103"]]
    assert {job.state for job in fake.jobs} == {"COMPLETED", "CANCELLED"}


@pytest.mark.parametrize("name", ["corpora", "results"])
def test_folders_of_the_jobs_that_cannot_be_written_are_an_error(tmp_path, make_slurm, name):
    fake = make_slurm()
    places = {place: tmp_path / place for place in ("runs_dir", "results_dir", "corpora_dir")}
    texts = write_texts(tmp_path / "texts", documents=12)
    asked = Request(scale="tiny", only=("transformer_llama",), data=f"text:{texts}", **places)
    plan = planned(asked, cluster_of(tmp_path, gpus_per_node=0))
    (tmp_path / f"{name}_dir").write_text("")
    said = "is a file; name a folder" if name == "results" else r"cannot be written: File exists; choose another\."
    with pytest.raises(ValueError, match=rf"--{name}-dir .*/{name}_dir {said}"):
        submitted(plan, cluster_of(tmp_path, gpus_per_node=0))
    assert not fake.read().calls


def test_caches_in_home_are_said(tmp_path, make_slurm, monkeypatch):
    make_slurm()
    for name in ("HF_HOME", "TRITON_CACHE_DIR"):
        monkeypatch.delenv(name, raising=False)
    assert (
        "~/.cache/huggingface (HF_HOME), ~/.triton (TRITON_CACHE_DIR)" in submitted(plan_of(tmp_path), cluster_of(tmp_path))[1]
    )
    elsewhere = cluster_of(tmp_path, environment={"HF_HOME": "/scratch/hf", "TRITON_CACHE_DIR": "/scratch/triton"})
    assert "caches" not in submitted(plan_of(tmp_path / "two"), elsewhere)[1]


def test_scratch_that_cannot_be_written_is_an_error(tmp_path, make_slurm):
    fake = make_slurm()
    (tmp_path / "file").write_text("")
    with pytest.raises(ValueError, match=r"scratch .*/file/scratch cannot be written: Not a directory; [^\n]*$"):
        submitted(plan_of(tmp_path), cluster_of(tmp_path, scratch=str(tmp_path / "file" / "scratch")))
    assert not fake.read().calls


def test_what_is_refused_for_good_leaves_nothing_queued(tmp_path, make_slurm):
    fake = make_slurm(refuse="partition=nowhere")
    cluster = cluster_of(tmp_path, draw={"partition": "nowhere", "sbatch": {"mail-type": "END"}})
    plan = plan_of(tmp_path)
    with pytest.raises(ValueError, match=r"refused the job 'draw': .*Invalid partition.*cancelled again: 14\.") as refused:
        submitted(plan, cluster)
    assert "It asks for partition nowhere, sbatch {'mail-type': 'END'}, hours 1.0; fix that" in str(refused.value)
    assert {job.state for job in fake.jobs} == {"CANCELLED"}
    # A job of it that appears only now, because the controller was slow, is cancelled by the next submission.
    state = fake.read()
    state.jobs[0]["state"], state.refuse = "PENDING", ""
    fake.write(state)
    submitted(plan, cluster)
    assert fake.jobs[0].state == "CANCELLED" and sum(job.state == "PENDING" for job in fake.jobs) == 15


def test_jobs_under_way_keep_their_settings_and_that_is_said(tmp_path, make_slurm):
    make_slurm()
    plan, words = plan_of(tmp_path, only=("fox_pro",)), "They keep another cluster file's settings: `python -m slurm cancel`"
    said = [submitted(plan_of(tmp_path, only=only), cluster_of(tmp_path, max_restarts=restarts))[1]
            for only, restarts in ((("fox_pro",), 1), (("fox_pro",), 1), (("fox_pro",), 2), ((), 2), ((), 2))]  # fmt: skip
    assert [words in each for each in said] == [False, False, True, True, True]
    client.cancel(job for job in client.queue())
    assert not any(words in submitted(plan, cluster_of(tmp_path, max_restarts=3))[1] for _ in range(2))


def test_settings_of_the_login_shell_reach_neither_sbatch_nor_the_job(tmp_path, make_slurm, monkeypatch):
    fake = make_slurm()
    for name in ("SBATCH_PARTITION", "SBATCH_EXPORT", "SLURM_NTASKS", "SLURM_MEM_PER_NODE"):
        monkeypatch.setenv(name, "7")
    monkeypatch.setenv("SLURM_CONF", "/etc/slurm.conf")
    _, told = submitted(plan_of(tmp_path, only=("fox_pro",)), cluster_of(tmp_path))
    for environment in fake.read().environments:
        assert environment == {"SLURM_CONF": "/etc/slurm.conf"}
    assert "left out: SBATCH_EXPORT, SBATCH_PARTITION of this shell" in told


def test_one_failing_evaluation_is_waited_for_by_its_own_drawing_only(tmp_path, make_slurm):
    fake = make_slurm(arrays=False)
    plan = plan_of(tmp_path, "fig2_per_token_loss", "table6_throughput")
    submitted(plan, cluster_of(tmp_path))
    drawings = {job.name.split(".")[0]: job for job in fake.jobs if job.name.startswith("fox-draw")}
    (record,) = read_submissions(graph.submissions_dir(plan))
    kinds = {job: key.split(":")[0] for key, job in record.job_ids().items()}
    for name, kind in (("fox-draw-fig2_per_token_loss", "evaluate"), ("fox-draw-table6_throughput", "time")):
        how, *ids = drawings[name].dependency.split(":")
        assert how == "afterany" and ids and {kinds[job] for job in ids} == {kind}


def test_trainings_are_carried_out_as_the_cluster_file_says_where_the_command_does_not(tmp_path):
    given = {"async_checkpoint": True, "keep_checkpoints": 5, "max_hours": 3.5, "spike_factor": 4.0}
    cluster = cluster_of(tmp_path, train=given)
    asked = Request(scale="760m-48b", only=("fox_pro",), runs_dir=tmp_path, execution=Execution(keep_checkpoints=7))
    (train,) = (job for job in graph.jobs(planned(asked, cluster, rehearsal=True), cluster) if job.kind == "train")
    words = " ".join(train.args)
    for said in ("--async-checkpoint", "--keep-checkpoints 7", "--max-hours 3.5", "--spike-factor 4.0"):
        assert f"{said} " in f"{words} "
    assert (
        planned(asked, cluster, rehearsal=True).runs.keys() == planned(asked, cluster_of(tmp_path), rehearsal=True).runs.keys()
    )


def test_some_runs_are_submitted_with_what_they_need_and_their_figures(tmp_path, make_slurm):
    make_slurm()
    plan, cluster = plan_of(tmp_path, "fig2_per_token_loss", "table6_throughput"), cluster_of(tmp_path)
    for names, wanted in ((("mamba2-", "hgrn2-"), 8), (("table6",), 1), ((), None)):
        keys = {job.key for job in graph.jobs(plan, cluster)} if wanted is None else set()
        assert submit(plan, cluster, Console(quiet=True), names) == 0
        record = read_submissions(graph.submissions_dir(plan))[-1]
        about = {job.about.split("-")[0] for job in record.jobs.values()}
        if wanted is not None:
            assert len(record.jobs) == wanted and about <= {"mamba2", "hgrn2", "fig2_per_token_loss", "table6_throughput"}, (
                about
            )
        else:
            assert len(keys) == 23 and len(record.jobs) == 17  # both figures again, after all their evaluations


def test_submissions_of_one_second_are_in_the_order_of_time(tmp_path, monkeypatch):
    plan, cluster = plan_of(tmp_path), cluster_of(tmp_path)
    names = [new_submission(plan, cluster, []).path.name for _ in range(50)]
    assert names == sorted(names) and len(set(names)) == 50
    for later in (1_000, 70_000_000, 999_999_000):  # of one digit more each
        monkeypatch.setattr("slurm.submit.time.time_ns", lambda later=later: 1_800_000_000 * 10**9 + later)
        names.append(new_submission(plan, cluster, []).path.name)
    assert names[50:] == sorted(names[50:])
    assert all(re.fullmatch(r"\d{8}-\d{6}-[0-9a-f]{6}\.json", name) for name in names)


def test_timings_are_of_a_machine_that_has_a_name(tmp_path, make_slurm):
    fake = make_slurm()
    with pytest.raises(ValueError, match=r"there are timings, .* machine ="):
        submitted(plan_of(tmp_path, "table6_throughput"), cluster_of(tmp_path, machine="unnamed"))
    assert not fake.jobs
    assert submitted(plan_of(tmp_path), cluster_of(tmp_path, machine="unnamed"))[0] == 0


def test_fifty_runs_are_one_array_with_a_throttle_and_a_line_each(tmp_path, make_slurm):
    fake = make_slurm()
    plan = plan_of(tmp_path, only=("fox_pro", "mamba2"), seeds=tuple(range(25)))
    code, told = submitted(plan, cluster_of(tmp_path, max_concurrent=6, train={"gpus": 8}))
    assert code == 0 and fake.read().calls == 3 and len(fake.jobs) == 101
    scripts = sorted((tmp_path / "scratch").rglob("*.sh"))
    assert "#SBATCH --array=0-49%6\n" in scripts[0].read_text()
    for run in plan.runs.values():
        assert sum(run.spec.folder_name in line for line in told.splitlines()) == 1


def test_arrays_of_several_shapes_share_a_throttle_also_in_a_rehearsal(tmp_path, make_slurm):
    make_slurm()
    plan, cluster = plan_of(tmp_path, "fig2_per_token_loss", "table3_ablation"), cluster_of(tmp_path, max_concurrent=6)
    told = io.StringIO()
    assert rehearse(plan, cluster, Console(file=told, width=200)) == 0
    assert submitted(plan, cluster)[0] == 0
    scripts = "".join(path.read_text() for path in sorted((tmp_path / "scratch").rglob("*.sh")))
    for text in (told.getvalue(), scripts):
        assert re.findall(r"^#SBATCH --array=(\S+)", text, re.M) == ["0-6%2", "0-13%4", "0-6%2", "0-13%4"]


def test_what_evaluations_read_from_the_hub_is_had_before_anything_is_submitted(tmp_path, make_slurm, monkeypatch):
    fake, fetched = make_slurm(), []
    monkeypatch.setattr(KINDS["lm_eval"], "fetch", lambda spec, sources: fetched.append(spec.kind))
    plan = plan_of(tmp_path, "table1_lm_eval", "table2_longbench")
    with pytest.raises(ValueError, match=r"LongBench .* is neither in the local cache nor available"):
        submitted(plan, cluster_of(tmp_path))
    assert not fake.jobs and set(fetched) <= {"lm_eval"}
    monkeypatch.setattr(KINDS["longbench"], "fetch", lambda spec, sources: fetched.append(spec.kind))
    fetched.clear()
    assert submitted(plan, cluster_of(tmp_path))[0] == 0 and fetched == ["lm_eval", "longbench"]  # once for seven runs


def test_the_vocabulary_of_longcrawl64_is_had_before_anything_is_submitted(tmp_path, make_slurm):
    fake, plan = make_slurm(), plan_of(tmp_path)
    for split in ("train.zarr", "heldout.zarr"):
        (tmp_path / split).mkdir()
    source, choice = LongCrawl64Source(tmp_path), TokenizerChoice("gpt2-json", tmp_path / "vocabulary")
    runs = {
        run_id: replace(run, corpus=CorpusPlan(source, choice, run.corpus.spec, tmp_path, 0.0, None, None))
        for run_id, run in plan.runs.items()
    }
    with pytest.raises(ValueError, match=r"vocabulary has no vocab\.json"):
        submitted(replace(plan, runs=runs), cluster_of(tmp_path))
    assert not fake.jobs


def test_an_evaluation_that_had_too_little_memory_or_time_asks_for_half_more(tmp_path, make_slurm):
    """Each time, time up to the limit; what was known once holds for later tries. Trainings ask for what they did."""
    fake = make_slurm()
    cluster = cluster_of(tmp_path, time_limit_hours=10.0, mem_gb_per_task=16.0, train={"gpus": 8})
    plan = plan_of(tmp_path, only=("fox_pro",))
    asked = []
    for state in ("OUT_OF_MEMORY", "TIMEOUT", "FAILED", "OUT_OF_MEMORY", "TIMEOUT"):
        submitted(plan, cluster)
        texts = [path.read_text() for path in max((tmp_path / "scratch" / "jobs").iterdir()).glob("*.sh")]
        sizes = {kind: re.findall(r"--(?:mem|time)=(.*)", next(text for text in texts if f"job-name=fox-{kind}" in text))
                 for kind in ("train", "evaluate")}  # fmt: skip
        asked.append(sizes["evaluate"])
        assert sizes["train"][0] == "128G"
        fake.end(state)
    assert asked == [["16G", "6:00:00"], ["24G", "6:00:00"], ["24G", "9:00:00"], ["24G", "9:00:00"], ["36G", "9:00:00"]]
    submitted(plan, cluster)
    (evaluate,) = (job for job in read_submissions(graph.submissions_dir(plan))[-1].jobs.values() if job.kind == "evaluate")
    assert evaluate.resources.minutes == 600
