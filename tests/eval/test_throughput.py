"""Throughput: plausible rows, timings that follow the clock, weights untouched."""

import itertools

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from eval import throughput
from eval.context import Context
from eval.spec import ThroughputSpec
from models.build import build_model, spec_of
from models.count import num_params


@pytest.mark.parametrize("mode", ["train", "generate"])
def test_rows_follow_the_clock_and_weights_stay(mode, tiny_fox, monkeypatch):
    model = build_model(tiny_fox()).eval()
    before = [parameter.clone() for parameter in model.parameters()]
    ticks = itertools.count()
    monkeypatch.setattr(throughput.time, "perf_counter", lambda: float(next(ticks)))  # every action takes one second
    monkeypatch.setattr(throughput, "peak_flops", lambda device: 1e9)
    spec = ThroughputSpec(mode=mode, seq_len=64, batch_size=2, new_tokens=5, warmup=1, repeats=2)
    context = Context()
    if mode == "generate":
        monkeypatch.setattr(throughput, "_time_generation", lambda *a: (1.0, 3.0))
    (row,) = throughput.evaluate(model, None, spec, context).to_dict("records")
    flops = spec_of(model).flops_per_token(64)
    assert row["tokens_per_s"] == pytest.approx(128.0 if mode == "train" else 2 * 4 / 2)
    assert row["mfu"] == pytest.approx((3 if mode == "train" else 1) * flops * row["tokens_per_s"] / 1e9)
    assert (row["params"], row["fwd_flops_per_token"]) == (num_params(model), flops)
    assert context.extras["batch_size"] == 2
    if mode == "generate":
        assert context.extras["prefill_tokens_per_s"] == 128.0
    assert all(torch.equal(a, b) for a, b in zip(before, model.parameters(), strict=True))
    assert all(parameter.grad is None for parameter in model.parameters())
    assert not model.training


def test_really_timed_and_on_a_foreign_model():
    model = LlamaForCausalLM(
        LlamaConfig(vocab_size=64, hidden_size=32, intermediate_size=64, num_hidden_layers=1, num_attention_heads=2)
    )
    for mode in ("train", "generate"):
        spec = ThroughputSpec(mode=mode, seq_len=32, new_tokens=8, warmup=1, repeats=3)
        (row,) = throughput.evaluate(model, None, spec, Context()).to_dict("records")
        assert row["tokens_per_s"] > 0
        assert row["fwd_flops_per_token"] == 2 * row["params"]
    with pytest.raises(ValueError, match="new_tokens 1"):
        ThroughputSpec(mode="generate", new_tokens=1)
