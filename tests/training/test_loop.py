"""A run survives what happens to runs, and ends where an undisturbed one ends."""

import math
import os
import random
import signal
import subprocess
import sys
import time
from dataclasses import replace
from functools import partial
from itertools import product
from pathlib import Path

import pytest
import torch

from data.recall import IGNORED, RecallTask
from data.sampler import Sampler
from data.spec import DataSpec
from models.build import build_model
from models.forgetting_transformer.spec import ForgettingTransformerSpec
from models.loss import TokenLoss
from tests.training.runs import Outcome, anomalies, assert_same_run, grad_norms, losses, weights
from training.distributed import World, spread
from training.loop import batches_of, train
from training.progress import numbers
from training.run_folder import RunFolder
from training.signals import EXIT_FINISHED, EXIT_INTERRUPTED, EXIT_REQUEUE
from training.spec import Execution, RunSpec, TrainSpec
from training.step import WARM_STEPS, Guard, Stepper

ROOT = Path(__file__).parent.parent.parent


def wait_for_step(run, step, timeout=30.0):
    end = time.monotonic() + timeout
    while not (rows := run.read_metrics()) or rows[-1]["step"] < step:
        assert time.monotonic() < end, f"step {step} did not come"
        time.sleep(0.01)


def slow():
    """Makes each step take a moment, so that a signal finds the run in its middle."""
    import training.loop

    whole = training.loop.learning_rate

    def learning_rate(*arguments):
        time.sleep(0.02)
        return whole(*arguments)

    training.loop.learning_rate = learning_rate


def scale_loss(step, factor):
    """The loss of one step, and with it its gradient, times `factor`."""
    import models.loss

    whole, calls = models.loss.TokenLoss.forward, []

    def forward(self, *batch):
        calls.append(1)
        return whole(self, *batch) * (factor if len(calls) == step else 1.0)

    models.loss.TokenLoss.forward = forward


def no_space_after(checkpoints):
    """Every save after the first few finds a full disk."""
    import training.checkpoint

    whole, calls = training.checkpoint.shutil.disk_usage, []

    def disk_usage(path):
        calls.append(1)
        usage = whole(path)
        return usage if len(calls) <= checkpoints else usage._replace(free=1000)

    training.checkpoint.shutil.disk_usage = disk_usage


def keep_the_folder_of(name):
    """Return what export drops of a run stays: only its checkpoints, here."""
    import training.export

    whole = training.export.shutil.rmtree
    training.export.shutil.rmtree = lambda path, **named: None if Path(path).name == name else whole(path, **named)


def checkpointed(run: RunFolder, step: int) -> dict[str, torch.Tensor]:
    from safetensors.torch import load_file

    parts = (run.checkpoints / f"step-{step:08d}").glob("*.safetensors")
    return {name: tensor for part in parts for name, tensor in load_file(part).items()}


def hang_at_step_three():
    import training.loop

    whole = training.loop.load_batch

    def load_batch(split, sampler, step, *rest, **named):
        if step == 2:
            time.sleep(600)
        return whole(split, sampler, step, *rest, **named)

    training.loop.load_batch = load_batch


UNDISTURBED: dict[int, RunFolder] = {}


@pytest.fixture
def undisturbed(make_run, start):
    """undisturbed(steps) -> a run that nothing happened to, trained once for all tests that only compare with it."""

    def trained(steps):
        if steps not in UNDISTURBED:
            run = make_run("undisturbed", steps=steps)
            assert start(run).exit_code() == EXIT_FINISHED
            UNDISTURBED[steps] = run
        return UNDISTURBED[steps]

    return trained


def test_loss_falls_and_the_run_is_exported(make_run, start):
    run = make_run(steps=60)
    assert start(run).exit_code() == EXIT_FINISHED
    values = losses(run)
    assert len(values) == 60 and run.finished and not run.checkpoints.exists()
    assert sum(values[-5:]) / 5 < values[0] - 1.0
    assert run.read_metrics()[0]["lr"] == 0.0
    from models.build import load_model

    model = load_model(run.export)
    assert model.config.to_spec() == run.read_spec().model
    assert RunSpec.from_json((run.export / "run_spec.json").read_text()) == run.read_spec()
    names = {"config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json", "README.md", "manifest.json"}
    assert names <= {path.name for path in run.export.iterdir()}


def a_known_peak():
    import training.journal

    training.journal.peak_flops = lambda device: 1e12


def executed(spec, row):
    """Utilisation of what the tiles that are left take, and the matrices."""
    attention = 4 * spec.model.num_layers * spec.model.hidden_size * spec.train.seq_len / 2
    flops = spec.model.flops_per_token(spec.train.seq_len) - row["pruned_share"] * attention
    return row["tokens_per_s"] * 3 * flops / 1e12


@pytest.mark.parametrize("prune_log_tolerance", [None, -10.0])
def test_utilisation_is_of_what_is_executed_and_of_a_dense_computation(make_run, start, prune_log_tolerance):
    run = make_run(steps=3, prune=prune_log_tolerance)
    assert start(run, before=a_known_peak).exit_code() == EXIT_FINISHED
    spec = run.read_spec()
    for row in run.read_metrics():
        three_passes = 3 * spec.model.flops_per_token(spec.train.seq_len)
        assert row["mfu_dense"] == pytest.approx(row["tokens_per_s"] * three_passes / 1e12)
        assert ("pruned_share" in row) == (prune_log_tolerance is not None)
        assert row["mfu"] == (row["mfu_dense"] if prune_log_tolerance is None else pytest.approx(executed(spec, row)))


def test_progress_names_the_utilisation():
    row = {"step": 1, "tokens": 4, "loss": 2.0, "tokens_per_s": 8.0, "mfu": 0.25, "mfu_dense": 0.25}
    assert numbers(row) == "loss 2.000  8 tokens/s  MFU 25%"
    assert numbers({**row, "mfu": 0.2}) == "loss 2.000  8 tokens/s  MFU 25% (dense-equivalent; executed 20%)"
    assert numbers({**row, "mfu": None}) == "loss 2.000  8 tokens/s  MFU 25% (dense-equivalent)"
    assert numbers({**row, "mfu": None, "mfu_dense": None}) == "loss 2.000  8 tokens/s"


def test_a_finished_run_is_left_alone(make_run, start):
    """But for checkpoints that a process left which was killed as it dropped them."""
    run = make_run(steps=4)
    assert start(run).exit_code() == EXIT_FINISHED
    before = run.metrics_file.read_bytes()
    (run.checkpoints / "step-00000004").mkdir(parents=True)
    assert start(run).exit_code() == EXIT_FINISHED
    assert run.metrics_file.read_bytes() == before and not run.checkpoints.exists()


def test_killed_ten_times_ends_bitwise_the_same(make_run, start):
    undisturbed, run = make_run("undisturbed", steps=120), make_run("killed", steps=120)
    assert start(undisturbed, checkpoint_minutes=0.001).exit_code() == EXIT_FINISHED
    moments = random.Random(3)
    kills = 0
    while kills < 10:
        outcome = start(run, before=slow, checkpoint_minutes=0.002)
        time.sleep(moments.uniform(0.3, 0.9))
        os.kill(outcome.processes[0].pid, signal.SIGKILL)
        outcome.processes[0].join()
        kills += 1
        assert not run.finished, "the run ended before it was killed ten times; make it longer"
    assert start(run, checkpoint_minutes=0.002).exit_code() == EXIT_FINISHED
    assert_same_run(undisturbed, run)


@pytest.mark.parametrize("world_size", [1, 2])
def test_sequences_are_cut_from_the_pieces_that_longer_ones_are(make_run, corpus, world_size):
    spec = make_run().read_spec()
    length, batch = spec.train.seq_len, spec.train.batch_tokens
    longer = replace(spec, train=replace(spec.train, seq_len=2 * length, batch_tokens=2 * batch, train_tokens=4 * batch))
    cut = replace(longer, train=replace(longer.train, seq_len=length, piece_len=2 * length))
    assert cut.train.batch_size == 2 * longer.train.batch_size
    for rank, step in product(range(world_size), range(2)):
        world = World(rank, world_size, torch.device("cpu"))
        (sampler, load), (other, load_longer) = (batches_of(each, corpus, world) for each in (cut, longer))
        assert sampler == other
        assert torch.equal(load(step)[1], load_longer(step)[1].reshape(-1, length))


@pytest.mark.parametrize(
    ("number", "code"),
    [(signal.SIGINT, EXIT_INTERRUPTED), (signal.SIGTERM, EXIT_REQUEUE), (signal.SIGUSR2, EXIT_REQUEUE)],
)
def test_signals_save_and_leave_with_a_code(make_run, start, undisturbed, number, code):
    run = make_run("stopped", steps=30)
    outcome = start(run, before=slow)
    wait_for_step(run, 5)
    os.kill(outcome.processes[0].pid, number)
    assert outcome.exit_code() == code
    assert "saved at step" in outcome.output
    stopped_at = run.read_metrics()[-1]["step"]
    assert 5 <= stopped_at < 30 and (run.checkpoints / f"step-{stopped_at:08d}").is_dir()
    assert start(run).exit_code() == EXIT_FINISHED
    assert_same_run(undisturbed(30), run)


def test_wall_clock_limit_asks_to_be_requeued(make_run, start):
    run = make_run(steps=500)
    outcome = start(run, before=slow, max_hours=1.0 / 3600)
    assert outcome.exit_code() == EXIT_REQUEUE and "wall-clock limit" in outcome.output


@pytest.mark.parametrize("fault", ["truncated", "flipped", "no_manifest"])
def test_damaged_checkpoint_is_named_and_passed_over(make_run, start, undisturbed, fault):
    run = make_run("damaged", steps=30)
    outcome = start(run, before=slow, checkpoint_minutes=0)
    wait_for_step(run, 17)
    outcome.processes[0].kill()
    outcome.processes[0].join()
    newest = sorted(run.checkpoints.glob("step-????????"))[-1]
    file = next(newest.glob("*.safetensors"))
    if fault == "truncated":
        os.truncate(file, file.stat().st_size - 100)
    elif fault == "flipped":
        with open(file, "rb+") as handle:
            handle.seek(file.stat().st_size // 2)
            byte = handle.read(1)
            handle.seek(-1, os.SEEK_CUR)
            handle.write(bytes([byte[0] ^ 1]))
    else:
        (newest / "manifest.json").unlink()
    outcome = start(run)
    assert outcome.exit_code() == EXIT_FINISHED
    assert f"{newest} is damaged" in outcome.output
    assert f"resuming from step {int(newest.name[5:]) - 1}" in outcome.output
    assert_same_run(undisturbed(30), run)


def test_accumulation_gives_the_curve_of_one_pass(make_run, start, undisturbed):
    whole, parts = undisturbed(20), make_run("parts", steps=20)
    assert start(parts, micro_batch_tokens=64).exit_code() == EXIT_FINISHED
    torch.testing.assert_close(torch.tensor(losses(whole)), torch.tensor(losses(parts)), rtol=2e-5, atol=2e-5)


@pytest.mark.parametrize(("processes", "parallel"), [(2, "ddp"), (2, "fsdp"), (4, "hsdp")])
def test_several_processes_give_the_curve_of_one(make_run, start, undisturbed, processes, parallel):
    """Micro-batches are single sequences; four processes are two nodes. The first gradient is equal but for rounding. Measuring
    what pruning skips changes none."""
    alone, pair = undisturbed(20), make_run("pair", steps=20, prune=-10.0)
    outcome = start(pair, world_size=processes, parallel=parallel, micro_batch_tokens=64)
    assert outcome.exit_code() == EXIT_FINISHED
    torch.testing.assert_close(torch.tensor(losses(alone)), torch.tensor(losses(pair)), rtol=2e-5, atol=2e-5)
    assert grad_norms(pair)[0] == pytest.approx(grad_norms(alone)[0], rel=1e-5)
    assert weights(alone).keys() == weights(pair).keys()
    assert all(0 < row["pruned_share"] < 1 for row in pair.read_metrics())


def test_nodes_of_unequal_size_are_refused(monkeypatch):
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "2")
    with pytest.raises(ValueError, match="3 processes, 2 on this node"):
        spread(torch.nn.Linear(2, 2), [], World(0, 3, torch.device("cpu")), "hsdp", "fp32")


@pytest.mark.parametrize(("first", "then"), [(2, 1), (1, 2)])
@pytest.mark.parametrize("background", [False, True])
def test_resume_on_another_number_of_processes(make_run, start, undisturbed, first, then, background):
    alone, moved = undisturbed(24), make_run("moved", steps=24)
    execution = dict(parallel="fsdp", checkpoint_minutes=0.003, async_checkpoint=background)
    outcome = start(moved, world_size=first, before=slow, **execution)
    wait_for_step(moved, 12)
    for process in outcome.processes:
        os.kill(process.pid, signal.SIGTERM)
    assert outcome.exit_code() == EXIT_REQUEUE
    assert start(moved, world_size=then, **execution).exit_code() == EXIT_FINISHED
    assert [row["step"] for row in moved.read_metrics()] == list(range(1, 25))
    torch.testing.assert_close(torch.tensor(losses(alone)), torch.tensor(losses(moved)), rtol=5e-5, atol=5e-5)


def test_bf16_reduction_is_another_run_with_nearly_the_same_curve(make_run, start):
    exact, rounded = make_run("exact", steps=12), make_run("rounded", steps=12, grad_reduce="bf16")
    assert exact.read_spec().run_id != rounded.read_spec().run_id
    assert start(exact, world_size=2).exit_code() == start(rounded, world_size=2).exit_code() == EXIT_FINISHED
    assert losses(exact) != losses(rounded)
    torch.testing.assert_close(torch.tensor(losses(exact)), torch.tensor(losses(rounded)), rtol=5e-3, atol=5e-3)
    assert grad_norms(rounded)[0] == pytest.approx(grad_norms(exact)[0], rel=2**-8)


def without_order():
    """A step asks for what PyTorch has in no order that repeats."""
    import models.loss

    whole = models.loss.TokenLoss.forward

    def forward(self, *batch):
        torch.zeros(4).put_(torch.tensor([0, 0]), torch.tensor([1.0, 2.0]))
        return whole(self, *batch)

    models.loss.TokenLoss.forward = forward


def test_a_deterministic_run_refuses_what_does_not_repeat(make_run, start):
    run = make_run("repeats")
    assert start(run).exit_code() == EXIT_FINISHED
    assert run.read_starts()[0]["deterministic"] is True
    assert start(make_run("any order"), before=without_order, deterministic=False).exit_code() == EXIT_FINISHED
    outcome = start(make_run("in order"), before=without_order)
    assert outcome.exit_code() == 1 and "deterministic" in outcome.output


def test_not_finite_stops_before_it_spoils_anything(make_run, start):
    run = make_run(steps=30, peak_lr=1e25, warmup_tokens=0)
    outcome = start(run)
    assert outcome.exit_code() == 1
    [found] = anomalies(run)
    assert found["kind"] == "not finite" and len(found["documents"]) == 4
    assert "was not applied" in outcome.output and not run.finished


def test_not_finite_can_be_skipped(make_run, start, corpus):
    """The same run goes on from its checkpoint, and without the step that stopped it."""
    run = make_run(steps=12)
    outcome = start(run, before=partial(scale_loss, 5, float("inf")), checkpoint_minutes=0)
    assert outcome.exit_code() == 1 and "`--on-bad-step skip`" in outcome.output
    outcome = start(run, before=partial(scale_loss, 1, float("inf")), on_bad_step="skip")
    assert outcome.exit_code() == EXIT_FINISHED and "resuming from step 4" in outcome.output
    [found] = anomalies(run)
    assert found["step"] == 5 and all(torch.isfinite(tensor).all() for tensor in weights(run).values())
    train_spec, data = run.read_spec().train, run.read_spec().data
    sampler = Sampler(len(corpus.train), data.document_len, train_spec.seq_len, train_spec.batch_size)
    documents, start_at = sampler.rows(4)
    assert (found["documents"], found["first_token"]) == (documents.tolist(), start_at), "those of its own step"


def test_spike_is_recorded_and_skipped(make_run, start):
    """A gradient fifty times its running mean, once the mean is formed."""
    step = WARM_STEPS + 5
    run = make_run(steps=step + 10)
    outcome = start(run, before=partial(scale_loss, step, 50.0), on_bad_step="skip", spike_factor=3.0)
    assert outcome.exit_code() == EXIT_FINISHED
    [found] = anomalies(run)
    assert (found["step"], found["kind"]) == (step, "spike")
    assert run.read_metrics()[-1]["grad_norm"] < found["grad_norm"] / 10


def test_hung_step_is_noticed(make_run, start):
    run = make_run(steps=12)
    outcome = start(run, before=hang_at_step_three, hang_minutes=0.03)
    assert outcome.exit_code() == EXIT_REQUEUE
    assert "no step finished" in outcome.output and "Thread" in outcome.output


def impatient():
    import training.run_folder

    training.run_folder.LOCK_WAIT_S = 0.0


def test_second_process_on_the_same_run_is_refused(make_run, start):
    run = make_run(steps=200)
    first = start(run, before=slow)
    wait_for_step(run, 2)
    second = start(run, before=impatient)
    second.processes[0].join(30)
    assert second.processes[0].exitcode != EXIT_FINISHED
    assert "is being trained by another process" in second.output
    third = start(run)
    first.processes[0].terminate()  # it saves and leaves, which the third waits for
    assert first.exit_code() == EXIT_REQUEUE and third.exit_code() == EXIT_FINISHED
    assert run.read_starts()[-1]["first_step"] > 0


def test_full_disk_is_one_line_and_loses_nothing(make_run, start, undisturbed):
    """A checkpoint that does not fit: exit code 2, whole checkpoints stay, and with space the run goes on."""
    run = make_run("full", steps=30)
    assert start(run, before=partial(no_space_after, 3), checkpoint_minutes=0).exit_code() == 1
    assert "the disk is too full for a checkpoint" in (run.path / "test.log").read_text()
    assert [path.name for path in sorted(run.checkpoints.iterdir())] == ["step-00000002", "step-00000003"]
    assert start(run).exit_code() == EXIT_FINISHED
    assert_same_run(undisturbed(30), run)


def test_a_really_full_disk(make_run, start, corpus, tmp_path):
    """A tmpfs of 400 KiB holds the spec and some metrics but no checkpoint."""
    disk = tmp_path / "disk"
    disk.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=400k", "tmpfs", str(disk)]
    mounted = subprocess.run(mount, capture_output=True, text=True, check=False)
    if mounted.returncode != 0:
        pytest.skip(f"a small disk cannot be mounted here ({mounted.stderr.strip()}); the test above covers the rest")
    try:
        spec = make_run("spec", steps=30).read_spec()
        run = RunFolder.create(disk / spec.folder_name, spec)
        command = [
            sys.executable,
            "-m",
            "training",
            str(run.path),
            "--corpus-dir",
            str(corpus.folder),
            "--device",
            "cpu",
            "--quiet",
        ]
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
        assert done.returncode == 2, done.stderr
        errors = [line for line in done.stderr.splitlines() if line.startswith("error: ")]
        assert len(errors) == 1 and errors[0].endswith("Free some space and start the same command again.")
        assert "Traceback" not in done.stderr
        assert not list(run.checkpoints.glob("step-????????")) and not run.finished
        subprocess.run(["mount", "-o", "remount,size=64m", str(disk)], check=True)
        assert start(run).exit_code() == EXIT_FINISHED
        assert run.finished
    finally:
        subprocess.run(["umount", str(disk)], check=True)


def recall_run(folder, **changes):
    task = RecallTask(num_keys=3, num_assignments=2, num_queries=1, num_symbols=8)
    model = ForgettingTransformerSpec(vocab_size=17, hidden_size=32, num_layers=2, num_heads=2, mlp_width=64)
    settings = dict(seq_len=18, batch_tokens=18 * 16, train_tokens=18 * 16 * 40, warmup_tokens=0, peak_lr=3e-3)
    train_spec = TrainSpec(**settings, precision="fp32")
    spec = RunSpec(name="recall", scale="test", model=model, data=DataSpec.of_recall(task), train=train_spec, **changes)
    return RunFolder.create(folder / spec.run_id, spec)


def test_a_synthetic_task_is_trained_without_a_corpus(tmp_path):
    """On one process and on two, broken off and gone on with: the same run; its loss is that of the answers alone."""
    runs = [recall_run(tmp_path / name) for name in ("one", "two", "broken")]
    alone, shared = (
        Outcome(run, None, Execution(device="cpu"), size, None) for run, size in zip(runs[:2], (1, 2), strict=True)
    )
    assert alone.exit_code() == shared.exit_code() == EXIT_FINISHED, alone.output + shared.output
    broken = Outcome(runs[2], None, Execution(device="cpu", checkpoint_minutes=0.0), 1, slow)
    wait_for_step(runs[2], 5)
    os.kill(broken.processes[0].pid, signal.SIGTERM)
    assert broken.exit_code() == EXIT_REQUEUE
    assert Outcome(runs[2], None, Execution(device="cpu"), 1, None).exit_code() == EXIT_FINISHED
    assert_same_run(runs[0], runs[2])
    assert losses(runs[0]) == pytest.approx(losses(runs[1]), rel=1e-4)
    assert losses(runs[0])[0] == pytest.approx(math.log(17), abs=0.1)
    assert sum(losses(runs[0])[-5:]) / 5 < math.log(8) + 0.1, "that an answer is a value is learnt soon"
    assert not (runs[0].export / "tokenizer.json").exists()


def test_a_text_needs_its_corpus(make_run):
    with pytest.raises(ValueError, match="--corpus-dir"):
        train(make_run().path, None, Execution(device="cpu"), quiet=True)


def test_targets_without_loss_change_nothing(make_run):
    """The mean is over those that carry it, in however many micro-batches they come."""
    torch.manual_seed(0)
    model = build_model(ForgettingTransformerSpec(vocab_size=16, hidden_size=32, num_layers=1, num_heads=2, mlp_width=32))
    inputs, targets = torch.randint(16, (2, 4, 12))
    masked = targets.masked_fill(torch.arange(12) % 3 != 0, IGNORED)
    world = World(0, 1, torch.device("cpu"))
    spec = make_run().read_spec().train

    def loss_and_gradient(micro_batch):
        model.zero_grad()
        stepper = Stepper(TokenLoss(model), torch.optim.AdamW(model.parameters()), Guard(None, world), spec, world, micro_batch)
        loss = stepper._backward(inputs, masked)
        return loss, model.lm_head.weight.grad.clone()

    logits = model(inputs).logits
    expected = torch.nn.functional.cross_entropy(logits.flatten(0, 1), masked.flatten(), ignore_index=IGNORED)
    (gradient,) = torch.autograd.grad(expected, [model.lm_head.weight])
    for micro_batch in (4, 1):
        loss, found = loss_and_gradient(micro_batch)
        assert torch.allclose(loss, expected, atol=1e-6) and torch.allclose(found, gradient, atol=1e-6)
