"""Timings with clocks and models played: what is timed, in which order, and what is left as it was."""

import math
from contextlib import contextmanager, nullcontext
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch import nn

from eval.attention_speed import measure as attention_speed
from eval.decoding.spec import FIRST
from eval.kinds import KINDS
from eval.shell.context import Compute, Context
from eval.throughput import measure as throughput
from tests.eval.played import Split, of


@pytest.mark.parametrize("device", ["cpu", "cuda:1"])
def test_repeats_are_timed_in_turn_and_waited_for(device, opened, monkeypatch):
    """On a GPU before each and behind each; those of the warm-up do not count."""
    events = []
    monkeypatch.setattr("torch.cuda.synchronize", lambda device: events.append(device))
    clock = iter(range(100))
    monkeypatch.setattr(throughput.time, "perf_counter", lambda: events.append("t") or float(next(clock)))
    spec = KINDS["throughput"](warmup=1, repeats=2)
    found = throughput.seconds_of("what", [lambda: events.append("a"), lambda: events.append("b")], spec, Compute(device))
    wait = [device] * (device != "cpu")
    timed = lambda name, *end: [*wait, "t", name, *wait, *end]  # noqa: E731
    assert events == timed("a") + timed("b") + (timed("a", "t") + timed("b", "t")) * 2
    assert found.tolist() == [[1.0, 1.0], [1.0, 1.0]] and opened == [("what", 6)] + [1] * 6


@pytest.mark.parametrize("mode", ["train", "generate"])
def test_what_is_timed_fits_into_the_positions(mode, monkeypatch):
    """Prompts and new tokens, where there are any; peak and memory are the device's."""
    checked = []
    monkeypatch.setattr(throughput, "check_machine", lambda wanted, device: f"{wanted} on {device}")
    monkeypatch.setattr(throughput, "check_positions", lambda model, *given: checked.append(given))
    monkeypatch.setattr(throughput, "lift_limit", lambda: checked.append("lifted"))
    monkeypatch.setattr(throughput, "num_params", lambda model: 5)
    monkeypatch.setattr(throughput, "_own_spec", lambda model: None)
    monkeypatch.setattr(throughput, "peak_flops", lambda device: checked.append(str(device)))
    monkeypatch.setattr(throughput, "peak_memory_gib", lambda device: {"cuda:1": 3.0}[device])
    monkeypatch.setattr(throughput, "_time_steps", lambda *given: (np.ones((2, 1)), 3.0))
    monkeypatch.setattr(throughput, "_time_generation", lambda *given: (1.0, np.array([0.5, 0.5])))
    spec = KINDS["throughput"](mode=mode, seq_len=16, new_tokens=12, batch_size=2, machine="m", precision="fp32")
    (row,) = throughput.evaluate(SimpleNamespace(fresh=lambda: "model"), spec, Context(device="cuda:1")).to_dict("records")
    assert checked == [(28 if mode == "generate" else 16, "lower --seq-len"), "lifted", "cuda:1"]
    assert (row["peak_memory_gib"], row["fwd_flops_per_token"], row["machine"]) == (3.0, 10.0, "m on cuda:1") and math.isnan(
        row["mfu"]
    )
    assert row["tokens_per_s"] == (32.0 if mode == "train" else 4.0)


@pytest.mark.parametrize("fails", [False, True])
def test_a_timed_step_is_the_specs_and_leaves_the_model_as_it_was(fails, monkeypatch):
    """Out of memory is said with the micro-batches."""
    model, seen = nn.Linear(2, 2).train(), []
    model.gradient_checkpointing_disable = lambda: seen.append("no checkpoints")
    model.weight.grad = torch.ones(2, 2)

    @contextmanager
    def step(model, ids, train, execution, world):
        seen.append(
            (
                train.precision,
                train.batch_tokens,
                execution.activation_checkpointing,
                execution.micro_batch_tokens,
                str(world.device),
            )
        )
        torch.use_deterministic_algorithms(not before)
        model.eval()
        if fails:
            raise torch.OutOfMemoryError
        yield "step"

    monkeypatch.setattr(throughput, "repeated_step", step)
    monkeypatch.setattr(throughput, "_own_spec", lambda model: None)
    before = torch.are_deterministic_algorithms_enabled()
    for micro, recompute in ((None, False), (8, True)):
        spec = KINDS["throughput"](seq_len=8, micro_batch_tokens=micro, activation_checkpointing=recompute)
        said = (
            pytest.raises(ValueError, match=f"out of memory on cpu with micro-batches of {micro or 16} tokens; lower")
            if fails
            else nullcontext()
        )
        with said, throughput.training_step(model, torch.zeros(2, 8, dtype=torch.long), spec, Compute("cpu", "bf16")) as made:
            assert made == "step" and not model.training
        assert model.training and model.weight.grad is None and torch.are_deterministic_algorithms_enabled() == before
        assert seen == [("bf16", 16, recompute, micro, "cpu"), *["no checkpoints"] * recompute]
        seen.clear()


def test_steps_are_compiled_where_a_spec_says_so(monkeypatch):
    asked = []
    monkeypatch.setattr(
        throughput, "fitted", lambda execution, model, train, device, **how: asked.append((device, how)) or execution
    )
    monkeypatch.setattr(throughput, "repeated_step", lambda *given: nullcontext("step"))
    monkeypatch.setattr(throughput, "_own_spec", lambda model: None)
    for compiled in (True, False):
        spec = KINDS["throughput"](seq_len=8, compile=compiled, micro_batch_tokens=8)
        with throughput.training_step(nn.Linear(1, 1), torch.zeros(2, 8), spec, Compute("cuda:1")):
            pass
    assert asked == [("cuda:1", dict(micro_batch_tokens=8, compile=compiled)) for compiled in (True, False)]


@pytest.mark.parametrize("beside", [False, True])
def test_steps_are_tuned_first_and_memory_is_of_the_model_alone(beside, tiny_fox, monkeypatch):
    events = []
    other = tiny_fox(64)
    monkeypatch.setattr(
        throughput, "training_step", lambda model, ids, spec, compute: nullcontext(lambda: events.append(model))
    )
    monkeypatch.setattr(throughput, "vocab_size", lambda model: 64)
    monkeypatch.setattr(throughput, "peak_memory_gib", lambda device: events.append(f"memory of {device}") or 3.0)
    monkeypatch.setattr(throughput, "build_model", lambda spec, device: events.append((spec, device)) or "other")
    monkeypatch.setattr(throughput, "seconds_of", lambda what, steps, spec, compute: [step() for step in steps] and what)
    spec = KINDS["throughput"](seq_len=8, beside=other if beside else None)
    assert throughput._time_steps("model", spec, Compute("cuda:1")) == ("throughput (train)", 3.0)
    assert events == [
        "model",
        "model",
        "memory of cuda:1",
        *([(other, "cuda:1")] if beside else []),
        "model",
        *["other"] * beside,
    ]


def test_generation_is_timed_between_tokens(monkeypatch, opened):
    """Without the first ones, with which kernels are tuned, and without the warm-up."""
    asked = []

    def timed(model, prompts, compute, new_tokens):
        asked.append((len(prompts), len(prompts[0]), new_tokens))
        return np.array([10.0 * len(asked), *[99.0] * FIRST, len(asked), 0.5])

    monkeypatch.setattr(throughput, "vocab_size", lambda model: 64)
    monkeypatch.setattr(throughput, "seconds_of_tokens", timed)
    spec = KINDS["throughput"](seq_len=8, batch_size=3, new_tokens=FIRST + 3, warmup=1, repeats=3)
    prefill, tokens = throughput._time_generation("model", spec, Compute())
    assert (prefill, tokens.tolist()) == (30.0, [2.0, 0.5, 3.0, 0.5, 4.0, 0.5])
    assert asked == [(3, 8, FIRST + 3)] * 4 and opened == [("throughput (generate)", 4)] + [1] * 4
    assert (
        throughput._random_ids("model", KINDS["throughput"](seq_len=8)).tolist()
        == throughput._random_ids("model", KINDS["throughput"](seq_len=8)).tolist()
    )


def test_attention_is_timed_as_the_spec_says(opened, monkeypatch):
    """Documents are the first ones, with gradients where they are asked for; nothing of what was given is kept."""
    layers = {0: SimpleNamespace(spec=None, pruning=lambda q, k, tolerance: {"tolerance": tolerance})}
    seen, timings = [], []
    monkeypatch.setattr(attention_speed, "check_machine", lambda wanted, device: f"{wanted} on {device}")
    monkeypatch.setattr(attention_speed, "gated_layers", lambda model: {})
    monkeypatch.setattr(attention_speed, "watched", lambda layers, visit: nullcontext())
    monkeypatch.setattr(attention_speed, "_attention", lambda given, tolerance, timing, compute, backward: timings.append(
        (tolerance, timing.warmup, timing.repeats, timing.batch_size, timing.seq_len, timing.compile, backward)
    ) or np.array([1.0]))  # fmt: skip
    monkeypatch.setattr(
        attention_speed, "training_step", lambda model, ids, timing, compute: seen.append(ids) or nullcontext("step")
    )
    monkeypatch.setattr(attention_speed, "seconds_of", lambda what, actions, timing, compute: np.array([2.0]))
    spec = of("attention_speed", seq_len=8, batch_size=2, warmup=3, repeats=4, log_tolerance=-3.0, machine="m")
    loaded = SimpleNamespace(model=lambda **how: seen.append(how["input_ids"]))
    rows = attention_speed.evaluate(loaded, spec, Context())
    assert all(ids.tolist() == Split().read(slice(0, 2), 0, 8).tolist() for ids in seen) and len(seen) == 3
    assert timings == [(tolerance, 3, 4, 2, 8, True, backward) for tolerance in (None, -3.0) for backward in (False, True)]
    assert set(rows["tokens"]) == {16} and set(rows["machine"]) == {"m on cpu"} and len(rows) == 6
    monkeypatch.undo()
    how = []

    def attention(q, k, v, log_fgate, tolerance):
        how.append((tolerance, torch.is_grad_enabled(), q.requires_grad))
        return q + k + v + log_fgate

    gradients = []
    real = torch.autograd.grad
    monkeypatch.setattr(torch.autograd, "grad", lambda *given: gradients.append(1) or real(*given))
    monkeypatch.setattr(attention_speed, "forgetting_attention", attention)
    monkeypatch.setattr(attention_speed, "seconds_of", lambda what, actions, timing, compute: actions[0]())
    for backward in (True, False):
        attention_speed._attention([(layers[0], *(torch.ones(2) for _ in range(4)))], -3.0, None, Compute(), backward)
    assert how == [(-3.0, True, True), (-3.0, False, False)] and gradients == [1]
