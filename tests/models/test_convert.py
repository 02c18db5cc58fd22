"""The authors' checkpoint format: round trips with random weights, configs as published, and what it cannot hold."""

import dataclasses
import json
from typing import Any, get_args

import pytest
import torch
from hypothesis import given, reject, settings
from hypothesis import strategies as st
from pydantic import ValidationError
from safetensors.torch import load_file

from models.authors import config_for_authors, spec_from_authors
from models.build import build_model, load_model, spec_of
from models.convert import main, save_authors
from models.delta_net.spec import DeltaNetSpec
from models.forgetting_transformer.spec import ForgetGate, ForgettingTransformerSpec
from models.hgrn2.spec import HGRN2Spec
from models.mamba2.spec import Mamba2Spec
from models.spec_parts import OutputGate
from tests.models.conftest import DECAY, fox, spread

# Each model's type, and some names of the published format with their shapes at the test size.
PUBLISHED: dict[str, tuple[str, dict[str, tuple[int, ...]]]] = {
    "fox_pro": (
        "forgetting_transformer",
        {"model.layers.1.attn.k_proj.shift_proj.weight": (2, 64), "model.layers.0.attn.q_norm.weight": (32,)},
    ),
    "transformer_pro": ("forgetting_transformer", {"model.layers.0.attn.v_proj.linear.weight": (64, 64)}),
    "fox_llama": (
        "forgetting_transformer",
        {"model.layers.0.attn.fgate_proj.bias": (2,), "model.layers.0.attn.k_proj.weight": (64, 64)},
    ),
    "transformer_llama": ("transformer", {"model.layers.0.mlp.gate_proj.weight": (256, 64), "model.norm.weight": (64,)}),
    "mamba2": ("mamba2", {"backbone.layers.0.mixer.conv1d.bias": (160,), "backbone.norm_f.weight": (64,)}),
    "hgrn2": ("hgrn2", {"model.lower_bounds": (2, 64), "model.layers.0.attn.g_norm.weight": (64,)}),
    "transformer_swa": ("transformer", {"model.layers.1.attn.v_proj.weight": (64, 64)}),
    "delta_net": (
        "delta_net",
        {"model.layers.0.attn.q_conv1d.weight": (64, 1, 4), "model.layers.0.attn.o_norm.weight": (32,)},
    ),
}


@pytest.mark.parametrize("key", PUBLISHED)
def test_round_trips_keep_names_specs_and_logits(key, model, spec, tokens, tmp_path, capsys):
    ours, authors, back = tmp_path / "ours", tmp_path / "authors", tmp_path / "back"
    model_type, shapes = PUBLISHED[key]
    expected = model(tokens).logits
    model.save_pretrained(ours)
    for file in ("tokenizer.json", "merges.txt"):
        (ours / file).write_text("{}")
    assert main([str(ours), str(authors)]) == main([str(authors), str(back)]) == 0
    assert f"{model_type}-project_fox" in capsys.readouterr().out
    config = json.loads((authors / "config.json").read_text())
    assert config["model_type"] == f"{model_type}-project_fox" and config["tie_word_embeddings"] is False
    weights = load_file(authors / "model.safetensors")
    assert {name: tuple(weights[name].shape) for name in shapes} == shapes
    assert (back / "tokenizer.json").is_file() and (back / "merges.txt").is_file()
    for folder in (authors, back):
        loaded = load_model(folder)
        assert spec_of(loaded) == spec and torch.equal(loaded(tokens).logits, expected)
        assert len({file.stat().st_mode for file in folder.iterdir()}) == 1, "who reads one of the files reads them all"
    assert load_model(authors, torch.bfloat16).get_output_embeddings().weight.dtype == torch.bfloat16


@pytest.mark.parametrize("gate", ["fixed", "bias_only"])
def test_constant_gates_make_the_round_trip(gate, tmp_path):
    model = build_model(fox(forget_gate=gate, **DECAY)).eval()
    save_authors(model, tmp_path / "authors")
    loaded = load_model(tmp_path / "authors", torch.bfloat16)
    assert spec_of(loaded) == spec_of(model)
    kept, bias = (each.model.layers[0].attn.fgate_bias for each in (loaded, model))
    assert torch.equal(kept, bias if gate == "fixed" else bias.bfloat16())


FIELDS: dict[str, st.SearchStrategy[Any]] = {
    "vocab_size": st.integers(1, 99),
    "hidden_size": st.sampled_from((64, 128)),
    "num_layers": st.integers(1, 3),
    "norm_eps": st.sampled_from((1e-5, 1e-6)),
    "mlp_ratio": st.sampled_from((3.5, 4.0)),
    "mlp_width": st.none() | st.integers(1, 300),
    "num_heads": st.sampled_from((2, 4)),
    "head_dim": st.sampled_from((32, 64)),
    "expand_ratio": st.sampled_from((32, 64)),
    "expand": st.integers(1, 3),
    "conv_size": st.integers(2, 4),
    "ssm_state_size": st.integers(1, 64),
    "attention": st.sampled_from(("softmax", "stick_breaking")),
    "forget_gate": st.sampled_from(get_args(ForgetGate)),
    "output_gate_activation": st.sampled_from(get_args(OutputGate)),
    "decay_time_min": st.none() | st.floats(1, 9),
    "decay_time_max": st.none() | st.floats(9, 99),
    "rope_base": st.floats(1e3, 1e6),
    "window_size": st.none() | st.integers(1, 99),
    "prune_log_tolerance": st.none() | st.floats(-20, -1),
    "initializer_range": st.floats(0.01, 0.1),
    "output_norm_eps": st.none() | st.floats(1e-6, 1e-5),
}
"""Values of the fields that are no switch."""
REFUSED = {"attention", "output_norm_eps", "output_gate_activation", "prune_tightly", "use_lower_bound"}
"""Fields whose other values the format cannot hold."""


@pytest.mark.parametrize("kind", [ForgettingTransformerSpec, Mamba2Spec, HGRN2Spec, DeltaNetSpec])
@settings(deadline=None, max_examples=100)
@given(data=st.data())
def test_every_field_comes_back_or_is_refused(kind, data):
    names = [field.name for field in dataclasses.fields(kind) if field.name != "kind"]
    drawn = {name: data.draw(FIELDS.get(name, st.booleans()), label=name) for name in names}
    if drawn.get("forget_gate") == "none":
        drawn |= dict.fromkeys({"decay_time_min", "decay_time_max"} & set(names))
    try:
        spec = kind(**drawn)
    except ValidationError:
        reject()
    other = {name for name in REFUSED & set(names) if drawn[name] not in (None, False, "softmax", "sigmoid")}
    if not other:
        assert spec_from_authors(json.loads(json.dumps(config_for_authors(spec)))) == spec
        return
    with pytest.raises(ValueError, match="|".join(other)):
        config_for_authors(spec)


# config.json of the published FoX (Pro) 760M, as the format's description gives it.
CONFIG: dict[str, object] = {
    "model_type": "forgetting_transformer-project_fox", "vocab_size": 50257, "hidden_size": 1536, "hidden_ratio": 3.5,
    "intermediate_size": None, "num_hidden_layers": 24, "num_heads": 24, "rope_base": 500000.0, "use_rope": False,
    "fgate_type": "full", "fgate_bias_init": False, "decay_time_min": None, "decay_time_max": None, "use_k_shift": True,
    "use_v_shift": True, "qk_norm": True, "qk_norm_share_param_across_head": True, "use_output_gate": True,
    "ogate_act": "sigmoid", "use_output_norm": True, "norm_eps": 1e-6, "log_pruning_tolerance": None,
    "initializer_range": 0.02, "tie_word_embeddings": False,
}  # fmt: skip


def test_the_published_config_is_understood():
    spec = spec_from_authors(CONFIG)
    assert isinstance(spec, ForgettingTransformerSpec)
    assert (spec.head_dim, spec.intermediate_size, spec.qk_norm_share_param_across_head) == (64, 3584, True)
    older = {key: value for key, value in CONFIG.items() if key != "qk_norm_share_param_across_head"}
    assert not spec_from_authors(older).qk_norm_share_param_across_head, "the authors' present default"
    unused = dict(decay_time_min=2.0, decay_time_max=3.0)  # of a gate that starts at 0
    assert spec_from_authors({**CONFIG, **unused}) == spec
    assert spec_from_authors({**CONFIG, **unused, "fgate_bias_init": True}).decay_time_max == 3.0


@pytest.mark.parametrize("changes", [
    {"model_type": "samba-project_fox"}, {"ogate_act": "silu"}, {"tie_word_embeddings": True}, {"num_heads": 7},
    {"fgate_type": "shared"}, {"model_type": "hgrn2-project_fox", "use_short_conv": True},
    {"model_type": "hgrn2-project_fox", "num_heads": 6, "expand_ratio": None},
    {"model_type": "transformer-project_fox", "num_kv_heads": 4},
], ids=str)  # fmt: skip
def test_configs_that_do_not_fit_are_refused(changes):
    told = [str(value) for value in changes.values() if value is not None][-1]
    with pytest.raises(ValueError, match=told):
        spec_from_authors({**CONFIG, **changes})
    with pytest.raises(ValueError, match="the key 'num_heads' is missing"):
        spec_from_authors({key: value for key, value in CONFIG.items() if key != "num_heads"})


def test_errors_of_a_user_end_with_exit_code_2_and_leave_nothing(tmp_path, capsys):
    source, target = tmp_path / "authors", tmp_path / "target"
    save_authors(spread(fox()), source)
    assert main([str(tmp_path), str(target)]) == main([str(source), str(source)]) == 2
    (source / "model.safetensors").unlink()
    assert main([str(source), str(target)]) == 2
    assert capsys.readouterr().err.count("error: ") == 3 and not target.exists()
