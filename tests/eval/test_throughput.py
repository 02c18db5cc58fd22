"""Throughput: plausible rows, timings that follow the clock, weights untouched."""

import itertools
from dataclasses import replace

import numpy as np
import pytest
import torch
from transformers import GPT2Config, GPT2LMHeadModel, LlamaConfig, LlamaForCausalLM

from eval.kinds import eval_id
from eval.shell.context import Context
from eval.shell.loading import Loaded, Subject
from eval.throughput import measure
from eval.throughput.spec import Spec
from models.build import build_model, num_params, spec_of
from training import step as training_step
from training.step import Stepper, build_stepper


def llama() -> LlamaForCausalLM:
    return LlamaForCausalLM(
        LlamaConfig(vocab_size=64, hidden_size=32, intermediate_size=64, num_hidden_layers=1, num_attention_heads=2)
    )


@pytest.mark.parametrize("mode", ["train", "generate"])
@pytest.mark.parametrize("pruned", [False, True])
def test_rows_follow_the_clock_and_weights_stay(mode, pruned, tiny_fox, bind, in_memory, monkeypatch):
    model = build_model(tiny_fox(prune_log_tolerance=-10.0 if pruned else None)).eval()
    before = [parameter.clone() for parameter in model.parameters()]
    # Repeats of 1, 2, 3, 4 and 5 seconds, after a warm-up whose end nobody asks for.
    ticks = itertools.accumulate(itertools.chain([0], *([100, n] for n in (1, 2, 3, 4, 5))))
    monkeypatch.setattr(measure.time, "perf_counter", lambda: float(next(ticks)))
    monkeypatch.setattr(measure, "peak_flops", lambda device: 1e9)
    spec = bind(Spec(mode=mode, seq_len=64, batch_size=2, new_tokens=12, warmup=1, repeats=5))
    context = Context()
    if mode == "generate":
        monkeypatch.setattr(measure, "_time_generation", lambda *a: (1.0, np.array([1.0, 2.0, 3.0, 4.0, 5.0])))
    (row,) = Spec.SCHEMA.validate(measure.evaluate(in_memory(model), spec, context)).to_dict("records")
    flops = spec_of(model).flops_per_token(64 if mode == "train" else 128)  # the last of 64 sees all, as 64 of 128 on average
    tokens = 128 if mode == "train" else 2
    rates = np.quantile(tokens / np.array([1.0, 2.0, 3.0, 4.0, 5.0]), (0.2, 0.5, 0.8))
    assert [row[f"tokens_per_s{name}"] for name in ("_low", "", "_high")] == pytest.approx(rates.tolist())
    assert row["mfu_dense"] == pytest.approx((3 if mode == "train" else 1) * flops * row["tokens_per_s"] / 1e9)
    if pruned and mode == "train":  # fresh gates of 1/2 forget within some fifty tokens, and matrices are never skipped
        least = spec_of(model).executed_flops_per_token(64, 1.0) / flops
        assert least < row["mfu"] / row["mfu_dense"] < 1 - 0.1 * (1 - least)
    else:
        assert np.isnan(row["mfu"]) if pruned else row["mfu"] == row["mfu_dense"]
    assert (row["params"], row["fwd_flops_per_token"], row["machine"]) == (num_params(model), flops, spec.machine)
    assert (context.extras["batch_size"], context.extras["autotune"]) == (2, "full")
    if mode == "generate":
        assert context.extras["prefill_tokens_per_s"] == 128.0
    assert all(torch.equal(a, b) for a, b in zip(before, model.parameters(), strict=True))
    assert all(parameter.grad is None for parameter in model.parameters())
    assert not model.training


def test_steps_alternate_with_those_of_the_model_beside(tiny_fox, bind, in_memory, monkeypatch):
    """Twice as long for the one beside, whatever else the machine does: the fifth pair takes ten times as long."""
    model = build_model(tiny_fox()).eval()
    steps = [(own, 2.0 * own) for own in (1.0, 1.0, 2.0, 1.5, 10.0)]
    ticks = itertools.accumulate(itertools.chain([0.0, 1.0], *([100.0, each] for pair in steps for each in pair)))
    monkeypatch.setattr(measure.time, "perf_counter", lambda: float(next(ticks)))
    spec = bind(Spec(seq_len=32, warmup=1, beside=tiny_fox(vocab_size=1, use_rope=True)))
    assert spec.beside == tiny_fox(use_rope=True), "the corpus's vocabulary"
    assert eval_id(spec) != eval_id(replace(spec, beside=None))
    (row,) = Spec.SCHEMA.validate(measure.evaluate(in_memory(model), spec, Context())).to_dict("records")
    assert [row[f"relative{name}"] for name in ("_low", "", "_high")] == [2.0, 2.0, 2.0]
    assert row["tokens_per_s"] == 32 / 1.5
    monkeypatch.undo()
    alone = measure.evaluate(in_memory(model), bind(Spec(seq_len=32, warmup=0, repeats=1)), Context())
    assert alone["relative"].isna().all()
    with pytest.raises(ValueError, match="beside: only training steps"):
        Spec(mode="generate", beside=tiny_fox())


def test_really_timed_and_on_a_foreign_model(bind, in_memory):
    for mode in ("train", "generate"):
        spec = bind(Spec(mode=mode, seq_len=32, new_tokens=11, warmup=1, repeats=3))
        (row,) = measure.evaluate(in_memory(llama()), spec, Context()).to_dict("records")
        assert 0 < row["tokens_per_s_low"] <= row["tokens_per_s"] <= row["tokens_per_s_high"]
        assert row["fwd_flops_per_token"] == 2 * row["params"]
    short = GPT2LMHeadModel(GPT2Config(vocab_size=64, n_embd=32, n_layer=1, n_head=2, n_positions=16))
    with pytest.raises(ValueError, match="16 positions"):
        measure.evaluate(in_memory(short), bind(Spec(seq_len=32)), Context())
    with pytest.raises(ValueError, match="new_tokens 9: the first 8 steps do not count; ask for 10 or more"):
        Spec(mode="generate", new_tokens=9)
    assert bind(Spec(mode="generate", new_tokens=10)).step == "token"


def test_a_step_is_what_a_training_of_the_run_takes(tiny_fox, bind, in_memory, monkeypatch):
    """The micro-batches and the precision as a run has them, the optimiser's rule, clipping; fla's kernels with all their
    candidates. Both models' steps are built alike."""
    built: list[Stepper] = []
    calls: list[str] = []

    def build(*arguments):
        built.append(build_stepper(*arguments))
        return built[-1]

    monkeypatch.setattr(training_step, "build_stepper", build)
    monkeypatch.setattr(measure, "lift_limit", lambda: calls.append("lifted"))
    spec = bind(Spec(seq_len=32, batch_size=4, micro_batch_tokens=64, warmup=0, repeats=1, beside=tiny_fox(use_rope=True)))
    measure.evaluate(in_memory(build_model(tiny_fox())), spec, Context())
    assert calls == ["lifted"] and len(built) == 2
    for stepper in built:
        assert stepper.micro_batch == 2 and stepper.spec.batch_size == 4 and stepper.spec.precision == spec.precision
        assert [group["weight_decay"] for group in stepper.optimizer.param_groups] == [0.1, 0.0]
        assert stepper.optimizer.defaults["fused"] and stepper.spec.grad_clip == 1.0


def test_stored_rows_of_the_earlier_step_are_another_evaluation(bind):
    stored = Spec(seq_len=32, machine="NVIDIA H200", precision="bf16")
    assert eval_id(stored) == "throughput-3eec709d" != eval_id(replace(stored, step="stepper"))
    assert bind(Spec()).step == "stepper" and bind(Spec(mode="generate")).step == "token"


def test_another_machine_is_another_evaluation(bind, in_memory):
    spec = bind(Spec(seq_len=32, warmup=0, repeats=1))
    assert "cores" in spec.machine
    with pytest.raises(ValueError, match="is a timing on NVIDIA H200; this is"):
        measure.evaluate(in_memory(llama()), replace(spec, machine="NVIDIA H200"), Context())


def test_a_run_is_timed_with_fresh_weights_and_need_not_be_trained(make_run, tiny_fox):
    run = make_run(tiny_fox(num_layers=1))
    (run / "export").rename(run / "export.partial")
    loaded = Loaded(Subject.find(str(run)), "cpu")
    model = loaded.fresh()
    torch.manual_seed(0)
    expected = build_model(tiny_fox(num_layers=1))
    assert all(torch.equal(a, b) for a, b in zip(model.parameters(), expected.parameters(), strict=True))
