"""Tests of what one step does, by hand: AdamW hides the size of a gradient, so plain gradient descent is looked at, too."""

import contextlib
import json
import math
from dataclasses import replace
from functools import partial
from types import SimpleNamespace

import pytest
import torch
from torch import nn

from models.build import build_model
from models.forgetting_transformer.spec import ForgettingTransformerSpec
from models.loss import TokenLoss
from tests.training.runs import losses
from training.distributed import World
from training.signals import EXIT_FINISHED
from training.spec import Execution, TrainSpec, micro_batch_size
from training.step import NOT_FINITE, SPIKE, WARM_STEPS, Guard, Meter, Stepper, repeated_step


class Squares(nn.Module):
    """A loss per token whose gradient is easily written down: (w[input] - target)^2."""

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.linspace(-1, 1, 8))

    def forward(self, inputs, targets):
        return (self.weight[inputs] - targets) ** 2


@pytest.mark.parametrize("micro_batch", [4, 2, 1])
@pytest.mark.parametrize("grad_clip", [0.3, 1e9])
@pytest.mark.parametrize("lr", [0.5, 0.0])
def test_a_step_of_gradient_descent(micro_batch, grad_clip, lr):
    generator = torch.Generator().manual_seed(0)
    inputs, targets = (torch.randint(8, (4, 16), generator=generator) for _ in range(2))
    targets[0, :7] = targets[2, 5] = -1  # carry no loss
    module = Squares()
    before = module.weight.detach().double()
    gradient = torch.zeros(8, dtype=torch.float64)
    difference = (before[inputs] - targets)[targets >= 0]
    gradient.index_add_(0, inputs[targets >= 0], 2 * difference / 56)
    spec = TrainSpec(
        seq_len=16, batch_tokens=64, train_tokens=64, warmup_tokens=0, peak_lr=1.0, grad_clip=grad_clip, precision="fp32"
    )
    world = World(0, 1, torch.device("cpu"))
    stepper = Stepper(module, torch.optim.SGD(module.parameters(), fused=True), Guard(None, world), spec, world, micro_batch)
    loss, grad_norm, verdict = stepper.run(inputs, targets, lr)
    torch.testing.assert_close(loss.double(), (difference**2).mean(), rtol=1e-6, atol=0)
    torch.testing.assert_close(grad_norm.double(), gradient.norm(), rtol=1e-6, atol=0)
    clipped = gradient * min(1, grad_clip / gradient.norm().item())
    torch.testing.assert_close(module.weight.detach().double(), before - lr * clipped, rtol=0, atol=1e-6)
    assert verdict == 0 and module.weight.grad is None


def test_a_step_that_is_judged_bad_is_not_applied_and_one_of_a_process_is_the_mean_of_all():
    judged, module = [], Squares()
    before = module.weight.detach().clone()
    guard = SimpleNamespace(judge=lambda loss, norm: judged.append((loss, norm)) or torch.tensor(verdict))
    spec = TrainSpec(seq_len=8, batch_tokens=8, train_tokens=8, warmup_tokens=0, peak_lr=1.0, precision="fp32")
    adam = torch.optim.AdamW(module.parameters(), lr=0.0, fused=True)
    others = lambda loss: [loss, loss + 1, loss + 5, loss + 6]  # noqa: E731
    world = SimpleNamespace(size=4, gather=others, device=torch.device("cpu"))
    stepper = Stepper(module, adam, guard, spec, world, 1)
    ids = torch.arange(8)[None]
    for verdict, applied in ((SPIKE, False), (NOT_FINITE, False), (0, True)):
        found = stepper.run(ids, ids * 0, 0.5)
        assert float(found[0]) == pytest.approx(float((before**2).mean()) + 3)
        assert [*map(float, judged[-1]), verdict] == found.tolist()
        assert bool((module.weight != before).all()) is applied and module.weight.grad is None


class Matrices(Squares):
    def forward(self, inputs, targets):
        self.computed_in = (torch.eye(2) @ torch.eye(2)).dtype
        return super().forward(inputs, targets)


@pytest.mark.parametrize(("precision", "dtype"), [("fp32", torch.float32), ("bf16", torch.bfloat16)])
def test_the_precision_is_that_of_the_matrix_products(precision, dtype):
    spec = TrainSpec(seq_len=4, batch_tokens=4, train_tokens=4, warmup_tokens=0, peak_lr=1.0, precision=precision)
    module, world = Matrices(), World(0, 1, torch.device("cpu"))
    stepper = Stepper(module, torch.optim.SGD(module.parameters(), fused=True), Guard(None, world), spec, world, 1)
    stepper.run(torch.arange(4)[None], torch.arange(4)[None], lr=0.1)
    assert module.computed_in is dtype and module.weight.dtype is torch.float32


@pytest.mark.parametrize(
    ("loss", "grad_norm", "verdict"),
    [(1.0, 1.0, 0), (math.nan, 1.0, NOT_FINITE), (1.0, math.inf, NOT_FINITE), (1.0, math.nan, NOT_FINITE)],
)
def test_a_step_whose_loss_or_gradient_is_not_finite_is_told(loss, grad_norm, verdict):
    guard = Guard(None, World(0, 1, torch.device("cpu")))
    assert guard.judge(torch.tensor(loss), torch.tensor(grad_norm)) == verdict
    assert guard.steps_seen == (verdict == 0)


def test_a_spike_is_no_part_of_the_mean_that_tells_it():
    guard = Guard(3.0, World(0, 1, torch.device("cpu")))
    loss, usual = torch.tensor(1.0), torch.tensor(2.0)
    assert all(guard.judge(loss, usual) == 0 for _ in range(WARM_STEPS))
    for _ in range(50):
        assert guard.judge(loss, 3.1 * usual) == SPIKE
    assert guard.mean_norm == usual and guard.steps_seen == WARM_STEPS and guard.judge(loss, 2.9 * usual) == 0


def write_down_rates(path):
    whole = Stepper.run

    def run(self, inputs, targets, lr):
        with open(path, "a") as file:
            file.write(json.dumps(lr) + "\n")
        return whole(self, inputs, targets, lr)

    Stepper.run = run


def test_the_applied_rate_is_the_one_written_down(make_run, start, tmp_path):
    run = make_run(steps=8)
    assert start(run, before=partial(write_down_rates, tmp_path / "rates")).exit_code() == EXIT_FINISHED
    applied = [json.loads(line) for line in (tmp_path / "rates").read_text().splitlines()]
    assert applied == [row["lr"] for row in run.read_metrics()]
    assert len(set(applied)) > 5


def test_the_seed_decides_the_weights(make_run, start):
    runs = [make_run(name, steps=3, seed=seed) for name, seed in (("one", 0), ("same", 0), ("other", 1))]
    assert all(start(run).exit_code() == EXIT_FINISHED for run in runs)
    assert losses(runs[0]) == losses(runs[1]) != losses(runs[2])


def test_the_papers_settings_are_the_defaults():
    spec = TrainSpec(seq_len=1, batch_tokens=1, train_tokens=1, warmup_tokens=0, peak_lr=1.0)
    assert (spec.weight_decay, spec.beta1, spec.beta2, spec.adam_eps, spec.grad_clip) == (0.1, 0.9, 0.95, 1e-8, 1.0)
    assert (spec.precision, spec.grad_reduce) == ("bf16", "fp32")


def test_another_corpus_is_refused(make_run, tmp_path):
    from data.plan import resolve
    from data.prepare import prepare
    from training.loop import open_corpus

    texts = tmp_path / "texts"
    texts.mkdir()
    for name in ("a", "b", "c"):
        (texts / f"{name}.txt").write_text(f"{name} " * 600)
    other = prepare(resolve(f"text:{texts}", tokenizer="bytes", document_len=256, cache_dir=tmp_path))
    with pytest.raises(ValueError, match=rf"holds corpus {other.spec.fingerprint[:12]}, but the run was made for"):
        open_corpus(other.folder, None, make_run().read_spec())


SPEC = TrainSpec(seq_len=4, batch_tokens=32, train_tokens=32 * 200, warmup_tokens=32, peak_lr=0.5, precision="fp32")
FOX = ForgettingTransformerSpec(vocab_size=16, hidden_size=32, num_layers=2, num_heads=2, mlp_width=32)
ALONE = World(0, 1, torch.device("cpu"))


@pytest.mark.parametrize(
    ("world", "tokens", "size"), [(1, None, 8), (2, None, 4), (8, None, 1), (1, 4, 1), (1, 32, 8), (2, 16, 4), (2, 8, 2)]
)
def test_sequences_of_a_forward_pass(world, tokens, size):
    assert (SPEC.batch_size, SPEC.num_steps) == (8, 200) and micro_batch_size(SPEC, world, tokens) == size


def test_a_guard_forms_a_mean_of_what_was_applied():
    guard = Guard(2.0, ALONE)
    norms = [4.0, 2.0, float("inf"), 3.0]
    found = [int(guard.judge(torch.tensor(1.0), torch.tensor(norm))) for norm in norms]
    assert found == [0, 0, NOT_FINITE, 0] and guard.mean_norm == 3.0 and guard.steps_seen == 3
    assert (
        list(guard.state()) == ["guard.mean_norm", "guard.steps_seen"] and guard.state()["guard.mean_norm"] is guard.mean_norm
    )
    guard.steps_seen.fill_(WARM_STEPS - 1)
    assert guard.judge(torch.tensor(1.0), torch.tensor(9.0)) == 0 and guard.mean_norm.item() == pytest.approx(3 + 6 / 100)
    guard.mean_norm.fill_(3.0)
    assert guard.judge(torch.tensor(1.0), torch.tensor(6.0)) == 0  # twice the mean is no spike
    assert guard.mean_norm.item() == pytest.approx(3.03) and guard.judge(torch.tensor(1.0), torch.tensor(6.2)) == SPIKE
    assert guard.judge(torch.tensor(float("nan")), torch.tensor(99.0)) == NOT_FINITE and guard.steps_seen == 101


@pytest.mark.parametrize(("steps", "every"), [(200, 3), (63, 1), (64, 1), (640, 10)])
def test_what_a_model_wants_measured_is_measured_so_often(steps, every):
    model = build_model(replace(FOX, prune_log_tolerance=-10.0))
    stepper = SimpleNamespace(
        spec=replace(SPEC, train_tokens=32 * steps), autocast=contextlib.nullcontext, token_loss=TokenLoss(model)
    )
    meter, ids = (
        Meter(model, stepper, compiled=False),
        torch.randint(16, (8, 64), generator=torch.Generator().manual_seed(0)),
    )
    assert meter.names == ("pruned_share",) and meter._every == every
    found = [meter.values(number, ids, ids) for number in (every, every + 1, 2 * every)]
    assert [value.isnan().item() for value in found] == [False, every > 1, False]
    (alone,) = meter.values(every, ids[:1], ids[:1])
    assert found[0].shape == (1,) and alone == found[0]
    silent = Meter(build_model(FOX), stepper, compiled=False)
    assert silent.values(every, ids, ids).shape == (0,)


def test_a_repeated_step_changes_nothing_and_predicts_the_next_token(monkeypatch):
    seen = []
    model, ids = build_model(FOX), torch.arange(32).view(8, 4) % 16
    before = {name: value.clone() for name, value in model.state_dict().items()}
    whole = Stepper.run
    monkeypatch.setattr(
        Stepper,
        "run",
        lambda self, inputs, targets, lr: seen.append((inputs, targets, lr)) or whole(self, inputs, targets, lr),
    )
    with repeated_step(model, ids, SPEC, Execution(deterministic=False), ALONE) as once:
        once()
        once()
    assert len(seen) == 2 and all(bool((value == before[name]).all()) for name, value in model.state_dict().items())
    for inputs, targets, lr in seen:
        assert (
            lr == 0.0
            and bool((inputs == ids).all())
            and bool((targets[:, :-1] == ids[:, 1:]).all())
            and bool((targets[:, -1] == ids[:, 0]).all())
        )
