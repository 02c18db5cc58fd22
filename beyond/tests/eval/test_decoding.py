"""Decoding: rates by a clock that is made up, bytes by hand, and every way of it with the same tokens."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from beyond.eval.decoding import measure
from beyond.eval.decoding.spec import Spec
from beyond.models.fox_hybrid.spec import FoxHybridSpec
from eval.runner import generation
from eval.runner.context import Compute
from eval.runner.generation import greedy
from eval.throughput.spec import FIRST
from models.build import build_model
from models.forgetting_transformer.module import gated_layers, pruning
from models.mamba2.spec import Mamba2Spec
from models.samba.spec import SambaSpec

SMALL = dict(vocab_size=512, hidden_size=64, num_layers=2)


def forgetful(spec):
    """A FoX of which one head forgets within some ten tokens, and the other hardly anything."""
    torch.manual_seed(0)
    model = build_model(spec).eval()
    for layer in gated_layers(model).values():
        with torch.no_grad():
            layer.fgate_proj.bias.copy_(torch.tensor([-3.0, 9.0]))
    return model


@pytest.fixture
def clock(monkeypatch):
    """Clock on which `steps` pass, one before each look."""
    now = [0.0]

    def look():
        now[0] += next(look.steps)
        return now[0]

    monkeypatch.setattr(generation.time, "perf_counter", look)
    return look


@pytest.mark.parametrize("batch_size", [1, 3])
def test_rates_follow_the_clock(batch_size, tiny_fox, bind, in_memory, context, clock, monkeypatch):
    """Steps of 4 s, two of 2 s and one of 8 s, behind a prompt and FIRST steps that take longer; each row is asked in 0 s."""
    new = FIRST + 5
    steps = [10.0, *[50.0] * FIRST, 4.0, 2.0, 2.0, 8.0]
    looks = [0.0, *(0.0 if row else step for step in steps for row in range(batch_size)), *[7.0] * 5]
    clock.steps = iter(4 * looks)
    asked = []

    def played(model, compute, max_new_tokens, *, stop, cache):
        def run(prompts):
            cache(len(prompts[0]) + max_new_tokens).update(0, state=torch.zeros(3))
            asked.append((len(prompts), len(prompts[0]), max_new_tokens))
            for _ in range(new * batch_size + 5):  # the last looks come when it is over
                assert stop([1]) is False

        return run

    monkeypatch.setattr(generation, "greedy", played)
    model = build_model(tiny_fox(forget_gate="none")).eval()
    spec = bind(Spec(lengths=(64,), batch_sizes=(batch_size,), new_tokens=new, repeats=3))
    (row,) = Spec.SCHEMA.validate(measure.evaluate(in_memory(model), spec, context)).to_dict("records")
    wanted = np.quantile(batch_size / np.array([4.0, 2.0, 2.0, 8.0] * 3), (0.2, 0.5, 0.8))
    assert [row[f"tokens_per_s{name}"] for name in ("_low", "", "_high")] == pytest.approx(wanted.tolist())
    assert row["prefill_tokens_per_s"] == pytest.approx(batch_size * (64 - new) / 10.0)
    assert asked == [(batch_size, 64 - new, new)] * 4
    assert (row["cache"], row["seq_len"], row["batch_size"], row["machine"]) == ("whole", 64, batch_size, spec.machine)
    assert row["cache_bytes"] == 12


def test_every_way_of_decoding(tiny_fox, bind, in_memory, context, monkeypatch):
    """Bytes of all keys, values and sums by hand."""
    model = forgetful(tiny_fox(prune_log_tolerance=-20.0, prune_tightly=True))
    spec = bind(Spec(lengths=(40, 200), batch_sizes=(1, 2), new_tokens=FIRST + 2, repeats=1))
    before = [layer.spec for layer in gated_layers(model).values()]
    found = Spec.SCHEMA.validate(measure.evaluate(in_memory(model), spec, context))
    assert [layer.spec for layer in gated_layers(model).values()] == before
    assert found[["cache", "seq_len", "batch_size"]].values.tolist() == [
        [cache, length, batch] for length in (40, 200) for batch in (1, 2) for cache in ("whole", "pruned")
    ]
    assert (found["tokens_per_s_low"] > 0).all() and (found["prefill_tokens_per_s"] > 0).all()
    held = found.set_index(["cache", "seq_len", "batch_size"])["cache_bytes"]
    key, value, total, shifted = 32 * 4, 32 * 4, 8, 2 * 64 * 4  # of a head; of a layer
    for length in (40, 200):
        for batch in (1, 2):
            whole = 2 * batch * (2 * length * (key + value + total) + shifted)
            assert held["whole", length, batch] == whole
            assert held["pruned", length, batch] == whole + 2 * batch * 2 * 4  # a bound for each head


def test_all_ways_give_the_same_tokens(tiny_fox):
    model, prompts = forgetful(tiny_fox()), [[1, *range(40, 140)], [1, *range(7, 107)]]
    texts = []
    for name, cache in measure.caches(model).items():
        with pruning(gated_layers(model).values(), -10.0 if name == "pruned" else None, "acp"):
            texts.append(greedy(model, Compute(), 12, cache=cache)(prompts))
    assert len(texts) == 2 and texts[0] == texts[1] == greedy(model, Compute(), 12)(prompts)


def test_which_models_are_decoded_how(tiny_fox):
    """A model with windows has no place for them."""
    ways = lambda spec: list(measure.caches(build_model(spec)))  # noqa: E731
    assert ways(tiny_fox()) == ["whole", "pruned"] and ways(tiny_fox(qk_norm=False)) == ["whole", "pruned"]
    assert ways(tiny_fox(forget_gate="none")) == ways(Mamba2Spec(**SMALL, head_dim=32, ssm_state_size=16)) == ["whole"]
    assert ways(tiny_fox(window_size=9)) == ["whole", "pruned"]
    assert ways(FoxHybridSpec(**SMALL, num_heads=2, fox_every=2, head_dim=16))[:2] == ["whole", "pruned"]
    samba = SambaSpec(**SMALL, num_heads=2, window_size=40)
    made = {name: measure.caches(build_model(spec))["whole"](9).room for name, spec in (("fox", tiny_fox()), ("samba", samba))}
    assert made == {"fox": 9, "samba": None}


def test_what_does_not_fit_is_refused(tiny_fox, bind, in_memory, context, monkeypatch):
    model = build_model(tiny_fox()).eval()
    spec = bind(Spec(lengths=(40,), batch_sizes=(2,), new_tokens=FIRST + 2, repeats=1))
    with pytest.raises(ValueError, match="timing on another"):
        measure.evaluate(in_memory(model), replace(spec, machine="another"), context)

    def full(*_, **given):
        if len(given["input_ids"]) > 1:
            raise torch.OutOfMemoryError

    monkeypatch.setattr(model, "generate", full)
    with pytest.raises(ValueError, match="2 texts of 40 tokens at a time do not fit into the memory of cpu"):
        measure.evaluate(in_memory(model), spec, context)
