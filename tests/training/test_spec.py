import dataclasses
import json
from pathlib import Path

import pytest
from pydantic import ValidationError

from data.spec import DataSpec
from experiments.recipes import NAMES, Recipe, model_spec
from experiments.scales import SCALES
from models.forgetting_transformer.spec import ForgettingTransformerSpec
from models.mamba2.spec import Mamba2Spec
from training.spec import Execution, RunSpec, TrainSpec, fitted

DATA = DataSpec(source="text", tokenizer="gpt2", vocab_size=50257, bos_id=50256, document_len=65536, fingerprint="0123")


def specs() -> list[RunSpec]:
    return [
        Recipe(model, model, scale.name).run_spec(
            dataclasses.replace(DATA, document_len=scale.document_len, fingerprint=f"{DATA.fingerprint}{scale.short_documents}")
        )
        for scale in SCALES.values()
        for model in NAMES
    ]


@pytest.mark.parametrize("spec", specs(), ids=lambda spec: f"{spec.scale}-{spec.name}")
def test_json_round_trip_keeps_spec_and_identity(spec):
    again = RunSpec.from_json(spec.to_json())
    assert again == spec and again.run_id == spec.run_id


def test_every_run_of_every_scale_has_its_own_identity():
    assert len({spec.run_id for spec in specs()}) == len(NAMES) * len(SCALES)


def test_identity_changes_with_the_result_and_not_with_the_name():
    spec = specs()[0]
    assert dataclasses.replace(spec, name="other", scale="mini").run_id == spec.run_id
    changed = [
        dataclasses.replace(spec, seed=1),
        dataclasses.replace(spec, data=dataclasses.replace(spec.data, fingerprint="4567")),
        dataclasses.replace(spec, train=dataclasses.replace(spec.train, peak_lr=1e-4)),
        dataclasses.replace(spec, train=dataclasses.replace(spec.train, grad_reduce="bf16")),
        dataclasses.replace(spec, model=dataclasses.replace(spec.model, use_rope=True)),
    ]
    assert len({s.run_id for s in [spec, *changed]}) == 6


def test_fields_added_later_rename_no_run_that_was_trained():
    """Every run whose record is committed still has the identity it was trained under."""
    records = [json.loads(line) for path in Path("results").rglob("runs.jsonl") for line in path.read_text().splitlines()]
    assert records
    for record in records:
        assert RunSpec.from_json(json.dumps(record["spec"])).run_id == record["run_id"]


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"beta1": 1.0}, "less than 1"),
        ({"batch_tokens": 100}, "batch_tokens 100 is not a multiple of seq_len 64"),
        ({"piece_len": 96}, "batch_tokens 256 is not a multiple of piece_len 96"),
        ({"piece_len": 32}, "piece_len 32 is not a multiple of seq_len 64"),
        ({"train_tokens": 1000}, "train_tokens 1000 is not a multiple of batch_tokens 256"),
        ({"warmup_tokens": 2560}, "warmup_tokens 2560 must be below train_tokens 2560"),
        ({"peak_lr": 0.0}, "greater than 0"),
        ({"seq_len": "64"}, "valid integer"),
        ({"precision": "fp16"}, "'fp32' or 'bf16'"),
        ({"lr": 1e-3}, "Unexpected keyword argument"),
    ],
)
def test_impossible_settings_are_refused(change, words):
    good = dict(seq_len=64, batch_tokens=256, train_tokens=2560, warmup_tokens=256, peak_lr=1e-3)
    with pytest.raises(ValidationError, match=words):
        TrainSpec(**{**good, **change})


def test_vocabulary_must_hold_the_tokens():
    spec = specs()[0]
    with pytest.raises(ValidationError, match="vocab_size 1000 is smaller than the tokeniser's 50257"):
        dataclasses.replace(spec, model=dataclasses.replace(spec.model, vocab_size=1000))


def test_the_papers_table_of_configurations():
    """Heads and head sizes of Table 4 and the released configurations, which differ between FoX and Transformer at 760M."""
    for name, fox_heads, transformer_heads in (("760m-48b", 24, 12), ("360m-7.5b", 16, 16), ("125m-2.7b", 12, 12)):
        scale = SCALES[name]
        assert model_spec("fox_pro", scale, 50257).num_heads == fox_heads
        assert model_spec("transformer_pro", scale, 50257).num_heads == transformer_heads
        assert model_spec("transformer_pro", scale, 50257).use_rope and not model_spec("fox_pro", scale, 50257).use_rope
        assert model_spec("fox_pro", scale, 50257).intermediate_size < model_spec("fox_llama", scale, 50257).intermediate_size
        assert model_spec("mamba2", scale, 50257).num_layers == 2 * scale.num_layers
    rates = {spec.name: spec.train.peak_lr for spec in specs() if spec.scale == "760m-48b"}
    assert (rates["fox_pro"], rates["transformer_llama"], rates["hgrn2"]) == (2e-3, 5e-4, 2e-3)


@pytest.mark.parametrize(
    ("device", "asked", "processes", "micro_batch_tokens", "compiled"),
    [
        ("cuda", {}, 1, 2048, True),
        ("cuda:1", {}, 4, 1024, True),  # no more than a process's share of a step
        ("cuda", {"micro_batch_tokens": 512}, 1, 512, True),
        ("cuda", {"activation_checkpointing": True}, 1, 2048, False),
        ("cuda", {"activation_checkpointing": True, "compile": "yes"}, 1, 2048, True),
        ("cuda", {"compile": "no"}, 1, 2048, False),
        ("cpu", {}, 1, 2048, False),
    ],
)
def test_what_a_run_leaves_open_is_as_its_scale_has_it(device, asked, processes, micro_batch_tokens, compiled):
    train = TrainSpec(seq_len=512, batch_tokens=4096, train_tokens=4096, warmup_tokens=0, peak_lr=1e-3)
    sizes = dict(vocab_size=64, hidden_size=64, num_layers=2)
    how = dict(micro_batch_tokens=2048, compile=True, processes=processes)
    execution = fitted(Execution(**asked), ForgettingTransformerSpec(**sizes, num_heads=2), train, device, **how)
    assert (execution.micro_batch_tokens, execution.compiles) == (micro_batch_tokens, compiled)
    assert not fitted(Execution(), Mamba2Spec(**sizes), train, device, **how).compiles
    assert not fitted(Execution(), None, train, device, **how).compiles


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"prune_log_tolerance": 5.0}, "below 0"),
        ({"prune_log_tolerance": float("nan")}, "finite number"),
        ({"norm_eps": float("inf")}, "finite number"),
        ({"rope_base": float("inf")}, "finite number"),
        ({"initializer_range": float("inf")}, "finite number"),
        ({"forget_gate": "fixed", "decay_time_min": 9.0, "decay_time_max": 3.0}, "is above decay_time_max"),
    ],
)
def test_a_model_is_of_finite_numbers_in_order(changes, words):
    with pytest.raises(ValueError, match=words):
        ForgettingTransformerSpec(vocab_size=16, hidden_size=32, num_layers=1, num_heads=2, **changes)
