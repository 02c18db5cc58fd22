"""Attention speed: every quantity with and without pruning, and a model that is left as it was."""

from dataclasses import replace

import pytest
import torch

from eval.attention_speed import measure
from eval.attention_speed.spec import Spec
from models.build import build_model

QUANTITIES = ("attention_forward", "attention", "step")


@pytest.mark.parametrize("tightly", [False, True])
def test_every_quantity_is_timed_with_and_without_pruning(tiny_fox, in_memory, bind, context, tightly):
    model = build_model(tiny_fox(prune_log_tolerance=-10.0, prune_tightly=tightly)).eval()
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    rows = measure.evaluate(in_memory(model), bind(Spec(seq_len=64, warmup=0, repeats=3)), context)
    Spec.SCHEMA.validate(rows)
    assert set(zip(rows["quantity"], rows["pruned"], strict=True)) == {(name, each) for name in QUANTITIES for each in (0, 1)}
    assert (rows["milliseconds_low"] <= rows["milliseconds"]).all() and (rows["milliseconds"] > 0).all()
    assert len(Spec(seq_len=64).summary(rows)) == len(QUANTITIES)
    assert all(torch.equal(tensor, before[name]) for name, tensor in model.state_dict().items())
    specs = [layer.attn.spec for layer in model.base_model.layers]
    assert all((spec.prune_log_tolerance, spec.prune_tightly) == (-10.0, tightly) for spec in specs)


@pytest.mark.parametrize(("tightly", "rule"), [(False, None), (True, None), (False, "tight"), (True, "tight")])
def test_pruned_times_are_those_of_pruned_attention(tiny_fox, in_memory, bind, context, monkeypatch, tightly, rule):
    """Half of the attention calls prune, by the rule that is asked for or else the model's, and of the steps the second."""
    seen, steps = [], []
    real = measure.forgetting_attention

    def attention(*tensors, adaptive_threshold, **options):
        seen.append("tight" if isinstance(adaptive_threshold, str) else adaptive_threshold is not None)
        return real(*tensors, adaptive_threshold=adaptive_threshold, **options)

    monkeypatch.setattr(measure, "forgetting_attention", attention)
    timed = measure.training_step

    def training(model, ids, spec, compute):
        own = model.base_model.layers[0].attn.spec
        steps.append((own.prune_log_tolerance, own.prune_tightly))
        return timed(model, ids, spec, compute)

    monkeypatch.setattr(measure, "training_step", training)
    own = {"prune_log_tolerance": -10.0, "prune_tightly": True} if tightly else {}
    model = build_model(tiny_fox(**own)).eval()
    measure.evaluate(in_memory(model), bind(Spec(seq_len=64, warmup=0, repeats=1, rule=rule)), context)
    assert seen == [False] * 4 + ["tight" if tightly or rule else True] * 4  # two layers, forward alone and with backward
    assert steps == [(None, False), (-10.0, tightly or rule == "tight")]
    left = {(layer.attn.spec.prune_log_tolerance, layer.attn.spec.prune_tightly) for layer in model.base_model.layers}
    assert left == {(-10.0, True) if tightly else (None, False)}, "the model is as it was"


def test_a_timing_of_another_machine_is_refused(tiny_fox, in_memory, bind, context):
    spec = replace(bind(Spec(seq_len=64)), machine="another")
    with pytest.raises(ValueError, match="is a timing on another"):
        measure.evaluate(in_memory(build_model(tiny_fox())), spec, context)
