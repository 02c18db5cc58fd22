"""Throughput and speed of attention: timings that follow the clock, steps that are those of trainings, weights untouched."""

import itertools
from dataclasses import replace

import numpy as np
import pytest
import torch

from eval.attention_speed import measure as attention
from eval.attention_speed.spec import Spec as AttentionSpec
from eval.runner.context import Context
from eval.throughput import measure
from eval.throughput.spec import Spec
from models.build import build_model, num_params, spec_of
from tests.eval.oracles import llama
from training import step as training_step
from training.step import build_stepper


@pytest.fixture
def clock(monkeypatch):
    """Lets the given seconds pass within what is timed, and 100 s between; of a warm-up only the beginning is looked at."""

    def run(seconds, warmups=1):
        ticks = itertools.accumulate(itertools.chain([0.0] * warmups, *([100.0, each] for each in seconds)))
        monkeypatch.setattr(measure.time, "perf_counter", lambda: float(next(ticks)))

    return run


@pytest.mark.parametrize("mode", ["train", "generate"])
@pytest.mark.parametrize("pruned", [False, True])
def test_rows_follow_the_clock_and_weights_stay(mode, pruned, tiny_fox, bind, in_memory, clock, monkeypatch):
    model = build_model(tiny_fox(prune_log_tolerance=-10.0 if pruned else None)).eval()
    before = [parameter.clone() for parameter in model.parameters()]
    seconds = np.array([1.0, 2.0, 3.0, 4.0, 5.0])
    if mode == "train":
        clock(seconds)
    else:
        monkeypatch.setattr(measure, "_time_generation", lambda *given: (1.0, seconds))
    monkeypatch.setattr(measure, "peak_flops", lambda device: 1e9)
    spec = bind(Spec(mode=mode, seq_len=64, batch_size=2, new_tokens=12, warmup=1, repeats=5))
    context = Context()
    (row,) = Spec.SCHEMA.validate(measure.evaluate(in_memory(model), spec, context)).to_dict("records")
    flops = spec_of(model).flops_per_token(64 if mode == "train" else 128)  # the last of 64 sees all, as 64 of 128 on average
    rates = np.quantile((128 if mode == "train" else 2) / seconds, (0.2, 0.5, 0.8))
    assert [row[f"tokens_per_s{name}"] for name in ("_low", "", "_high")] == pytest.approx(rates.tolist())
    assert row["mfu_dense"] == pytest.approx((3 if mode == "train" else 1) * flops * row["tokens_per_s"] / 1e9)
    if pruned and mode == "train":  # fresh gates of 1/2 forget within some fifty tokens, and matrices are never skipped
        least = spec_of(model).executed_flops_per_token(64, 1.0) / flops
        assert least < row["mfu"] / row["mfu_dense"] < 1 - 0.1 * (1 - least)
    else:
        assert np.isnan(row["mfu"]) if pruned else row["mfu"] == row["mfu_dense"]
    assert (row["params"], row["fwd_flops_per_token"], row["machine"]) == (num_params(model), flops, spec.machine)
    if mode == "generate":
        assert context.extras["prefill_tokens_per_s"] == 128.0
    assert all(torch.equal(a, b) for a, b in zip(before, model.parameters(), strict=True)) and not model.training


def test_steps_alternate_with_those_of_the_model_beside(tiny_fox, bind, in_memory, clock):
    """Twice as long for the one beside, whatever else the machine does: the fifth pair takes ten times as long."""
    model = build_model(tiny_fox()).eval()
    clock((seconds for own in (1.0, 1.0, 2.0, 1.5, 10.0) for seconds in (own, 2.0 * own)), warmups=2)
    spec = bind(Spec(seq_len=32, warmup=1, beside=tiny_fox(vocab_size=1, use_rope=True)))
    assert spec.beside == tiny_fox(use_rope=True), "the corpus's vocabulary"
    (row,) = measure.evaluate(in_memory(model), spec, Context()).to_dict("records")
    assert [row[f"relative{name}"] for name in ("_low", "", "_high")] == [2.0, 2.0, 2.0]
    assert row["tokens_per_s"] == 32 / 1.5


def test_really_timed_and_on_a_foreign_model(bind, in_memory):
    for mode in ("train", "generate"):
        spec = bind(Spec(mode=mode, seq_len=32, new_tokens=11, warmup=1, repeats=3))
        (row,) = measure.evaluate(in_memory(llama()), spec, Context()).to_dict("records")
        assert 0 < row["tokens_per_s_low"] <= row["tokens_per_s"] <= row["tokens_per_s_high"]
        assert row["fwd_flops_per_token"] == 2 * row["params"] and np.isnan(row["relative"])


def test_a_step_is_what_a_training_of_the_run_takes(tiny_fox, bind, in_memory, monkeypatch):
    """The micro-batches and the precision as a run has them, the optimiser's rule, clipping, of both models alike."""
    built = []
    monkeypatch.setattr(training_step, "build_stepper", lambda *given: built.append(build_stepper(*given)) or built[-1])
    spec = bind(Spec(seq_len=32, batch_size=4, micro_batch_tokens=64, warmup=0, repeats=1, beside=tiny_fox(use_rope=True)))
    measure.evaluate(in_memory(build_model(tiny_fox())), spec, Context())
    assert len(built) == 2
    for stepper in built:
        assert stepper.micro_batch == 2 and stepper.spec.batch_size == 4 and stepper.spec.precision == spec.precision
        assert [group["weight_decay"] for group in stepper.optimizer.param_groups] == [0.1, 0.0]
        assert stepper.optimizer.defaults["fused"] and stepper.spec.grad_clip == 1.0


def test_another_machine_is_another_evaluation(tiny_fox, bind, in_memory, context):
    for module, spec in ((measure, bind(Spec(seq_len=32))), (attention, bind(AttentionSpec(seq_len=32)))):
        with pytest.raises(ValueError, match="a timing on NVIDIA H200"):
            module.evaluate(in_memory(build_model(tiny_fox())), replace(spec, machine="NVIDIA H200"), context)


@pytest.mark.parametrize(("tightly", "rule"), [(False, None), (True, None), (False, "tight"), (True, "tight")])
def test_pruned_times_are_those_of_pruned_attention(tiny_fox, in_memory, bind, context, monkeypatch, tightly, rule):
    """Half of the attention calls prune, by the rule that is asked for or else the model's, and of the steps the second."""
    seen, steps = [], []
    attend, timed = attention.forgetting_attention, attention.training_step

    def attending(*tensors, adaptive_threshold, **options):
        seen.append("tight" if isinstance(adaptive_threshold, str) else adaptive_threshold is not None)
        return attend(*tensors, adaptive_threshold=adaptive_threshold, **options)

    def training(model, ids, spec, compute):
        own = model.base_model.layers[0].attn.spec
        steps.append((own.prune_log_tolerance, own.prune_tightly))
        return timed(model, ids, spec, compute)

    monkeypatch.setattr(attention, "forgetting_attention", attending)
    monkeypatch.setattr(attention, "training_step", training)
    own = {"prune_log_tolerance": -10.0, "prune_tightly": True} if tightly else {}
    model = build_model(tiny_fox(**own)).eval()
    before = [parameter.clone() for parameter in model.parameters()]
    rows = attention.evaluate(in_memory(model), bind(AttentionSpec(seq_len=64, warmup=0, repeats=3, rule=rule)), context)
    AttentionSpec.SCHEMA.validate(rows)
    assert set(zip(rows["quantity"], rows["pruned"], strict=True)) == {
        (name, each) for name in ("attention_forward", "attention", "step") for each in (0, 1)
    }
    assert (rows["milliseconds_low"] <= rows["milliseconds"]).all() and (rows["milliseconds"] > 0).all()
    kind = "tight" if tightly or rule else True
    assert seen == [False] * 12 + [kind] * 12  # two layers, three repeats, forward alone and with backward
    assert steps == [(None, False), (-10.0, tightly or rule == "tight")]
    assert all(torch.equal(a, b) for a, b in zip(before, model.parameters(), strict=True)), "the model is as it was"
    left = {(layer.attn.spec.prune_log_tolerance, layer.attn.spec.prune_tightly) for layer in model.base_model.layers}
    assert left == {(-10.0, True) if tightly else (None, False)}
