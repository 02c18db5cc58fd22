"""The authors' checkpoint format: round trips with random weights, configs as published, and errors."""

import dataclasses
import json
from pathlib import Path
from types import SimpleNamespace
from typing import get_args

import pytest
import torch
from hypothesis import given, reject, settings
from hypothesis import strategies as st
from pydantic import ValidationError
from safetensors.torch import load_file
from transformers import LlamaConfig, LlamaForCausalLM

from models.authors import config_for_authors, spec_from_authors
from models.build import build_model, load_model, num_params, spec_of
from models.convert import convert, main, save_authors
from models.forgetting_transformer.spec import ForgetGate
from models.spec import DeltaNetSpec, ForgettingTransformerSpec, HGRN2Spec, Mamba2Spec
from models.spec_parts import OutputGate

MODEL_TYPES = {
    "fox_pro": "forgetting_transformer-project_fox",
    "transformer_pro": "forgetting_transformer-project_fox",
    "fox_llama": "forgetting_transformer-project_fox",
    "transformer_llama": "transformer-project_fox",
    "mamba2": "mamba2-project_fox",
    "hgrn2": "hgrn2-project_fox",
    "delta_net": "delta_net-project_fox",
    "transformer_swa": "transformer-project_fox",
}
# Some names of the published format, one model each with its shape at the test size.
NAMES = {
    "fox_pro": {"model.layers.1.attn.k_proj.shift_proj.weight": (2, 64), "model.layers.0.attn.q_norm.weight": (32,)},
    "transformer_pro": {"model.layers.0.attn.v_proj.linear.weight": (64, 64), "model.layers.0.mlp_norm.weight": (64,)},
    "fox_llama": {"model.layers.0.attn.fgate_proj.bias": (2,), "model.layers.0.attn.k_proj.weight": (64, 64)},
    "transformer_llama": {"model.layers.0.mlp.gate_proj.weight": (256, 64), "model.norm.weight": (64,)},
    "mamba2": {"backbone.layers.0.mixer.conv1d.bias": (160,), "backbone.norm_f.weight": (64,)},
    "hgrn2": {"model.lower_bounds": (2, 64), "model.layers.0.attn.g_norm.weight": (64,)},
    "transformer_swa": {"model.layers.1.attn.v_proj.weight": (64, 64)},
    "delta_net": {"model.layers.0.attn.q_conv1d.weight": (64, 1, 4), "model.layers.0.attn.o_norm.weight": (32,)},
}


@pytest.mark.parametrize("key", MODEL_TYPES)
def test_round_trips_keep_names_specs_and_logits(model, key, spec, tokens, tmp_path, capsys):
    ours, authors, back = tmp_path / "ours", tmp_path / "authors", tmp_path / "back"
    expected = model(tokens).logits
    model.save_pretrained(ours)
    (ours / "tokenizer.json").write_text("{}")
    assert main([str(ours), str(authors)]) == 0
    assert json.loads((authors / "config.json").read_text())["model_type"] == MODEL_TYPES[key]
    weights = load_file(authors / "model.safetensors")
    for name, shape in NAMES[key].items():
        assert tuple(weights[name].shape) == shape
    assert main([str(authors), str(back)]) == 0
    assert (back / "tokenizer.json").is_file()
    assert MODEL_TYPES[key] in capsys.readouterr().out
    for folder in (authors, back):
        loaded = load_model(folder)
        assert spec_of(loaded) == spec
        assert torch.equal(loaded(tokens).logits, expected)
        assert len({file.stat().st_mode for file in folder.iterdir()}) == 1, "who reads one of the files reads them all"
    assert spec_of(loaded).num_params == num_params(loaded)
    assert load_model(authors, torch.bfloat16).get_output_embeddings().weight.dtype == torch.bfloat16


@pytest.mark.parametrize("gate", ["fixed", "bias_only"])
def test_constant_gates_make_the_round_trip(specs, gate, tokens, tmp_path):
    spec = dataclasses.replace(specs["fox_llama"], forget_gate=gate, decay_time_min=2.0, decay_time_max=64.0)
    model = build_model(spec).eval()
    save_authors(model, tmp_path / "authors")
    assert "model.layers.0.attn.fgate_bias" in load_file(tmp_path / "authors" / "model.safetensors")
    loaded = load_model(tmp_path / "authors", torch.bfloat16)
    assert spec_of(loaded) == spec
    if gate == "fixed":
        assert torch.equal(loaded.model.layers[0].attn.fgate_bias, model.model.layers[0].attn.fgate_bias)


COMMON = {
    "vocab_size": st.integers(1, 99),
    "hidden_size": st.sampled_from((64, 128)),
    "num_layers": st.integers(1, 3),
    "norm_eps": st.sampled_from((1e-5, 1e-6)),
}
FIELDS = {
    **COMMON,
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
@settings(deadline=None, max_examples=300)
@given(data=st.data())
def test_every_field_comes_back_or_is_refused(kind, data):
    names = [field.name for field in dataclasses.fields(kind) if field.name != "kind"]
    drawn = {name: data.draw(FIELDS[name] if name in FIELDS else st.booleans(), label=name) for name in names}
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


def test_a_gate_that_the_authors_do_not_have_is_refused(specs):
    spec = dataclasses.replace(specs["fox_pro"])
    object.__setattr__(spec, "forget_gate", "shared")
    with pytest.raises(ValueError, match="fgate_type is 'shared'; the authors' format has full, bias_only, fixed, none"):
        config_for_authors(spec)


def published(**changes: object) -> dict[str, object]:
    """config.json of the published FoX (Pro) 760M, as the format's description gives it."""
    config: dict[str, object] = {
        "model_type": "forgetting_transformer-project_fox",
        "vocab_size": 50257,
        "hidden_size": 1536,
        "hidden_ratio": 3.5,
        "intermediate_size": None,
        "num_hidden_layers": 24,
        "num_heads": 24,
        "rope_base": 500000.0,
        "use_rope": False,
        "fgate_type": "full",
        "fgate_bias_init": False,
        "decay_time_min": None,
        "decay_time_max": None,
        "use_k_shift": True,
        "use_v_shift": True,
        "qk_norm": True,
        "qk_norm_share_param_across_head": True,
        "use_output_gate": True,
        "ogate_act": "sigmoid",
        "use_output_norm": True,
        "norm_eps": 1e-6,
        "log_pruning_tolerance": None,
        "initializer_range": 0.02,
        "tie_word_embeddings": False,
    }
    return {**config, **changes}


def test_the_published_config_is_understood():
    spec = spec_from_authors(published())
    assert isinstance(spec, ForgettingTransformerSpec)
    assert (spec.head_dim, spec.intermediate_size, spec.qk_norm_share_param_across_head) == (64, 3584, True)
    config = published()
    del config["qk_norm_share_param_across_head"]
    assert not spec_from_authors(config).qk_norm_share_param_across_head, "the authors' present default"


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"model_type": "samba-project_fox"}, "model_type 'samba-project_fox' is none of delta_net-project_fox"),
        ({"model_type": "rwkv-project_fox"}, "rwkv-project_fox"),
        ({"ogate_act": "silu"}, "ogate_act is 'silu'"),
        ({"tie_word_embeddings": True}, "tie_word_embeddings is True"),
        ({"num_heads": 7}, "num_heads 7"),
        ({"model_type": "hgrn2-project_fox", "use_short_conv": True}, "use_short_conv is True"),
        (
            {"model_type": "hgrn2-project_fox", "num_heads": 6, "expand_ratio": None},
            "num_heads is 6 with expand_ratio None; .* 12",
        ),
        ({"model_type": "transformer-project_fox", "num_kv_heads": 4}, "num_kv_heads is 4"),
    ],
)
def test_configs_that_do_not_fit_are_refused(changes, message):
    with pytest.raises(ValueError, match=message):
        spec_from_authors(published(**changes))


def test_applied_lower_bounds_cannot_be_expressed(specs):
    with pytest.raises(ValueError, match="use_lower_bound"):
        config_for_authors(dataclasses.replace(specs["hgrn2"], use_lower_bound=True))


def test_stick_breaking_cannot_be_expressed(specs):
    with pytest.raises(ValueError, match="attention 'stick_breaking'"):
        config_for_authors(specs["stick_breaking"])


@pytest.fixture
def authors_folder(specs, tmp_path: Path) -> Path:
    save_authors(build_model(specs["fox_pro"]), tmp_path / "authors")
    return tmp_path / "authors"


def test_user_errors_end_with_exit_code_2_and_leave_nothing(authors_folder, tmp_path, capsys):
    empty, target = tmp_path / "empty", tmp_path / "target"
    empty.mkdir()
    assert main([str(empty), str(target)]) == 2
    assert "no config.json" in capsys.readouterr().err
    assert main([str(authors_folder), str(authors_folder)]) == 2
    assert "not an empty folder" in capsys.readouterr().err
    (authors_folder / "model.safetensors").unlink()
    assert main([str(authors_folder), str(target)]) == 2
    assert "model.safetensors" in capsys.readouterr().err
    llama = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 1, "num_attention_heads": 2, "vocab_size": 9}
    LlamaForCausalLM(LlamaConfig(**llama)).save_pretrained(tmp_path / "llama")
    assert main([str(tmp_path / "llama"), str(target)]) == 2
    assert "'llama' has no spec" in capsys.readouterr().err
    assert sorted(p.name for p in tmp_path.iterdir()) == ["authors", "empty", "llama"]
    with pytest.raises(SystemExit) as exit_info:
        main(["--help"])
    assert exit_info.value.code == 0
    assert "SOURCE" in capsys.readouterr().out.upper()


@pytest.mark.parametrize("model_type", ["fox_suite", "transformer-project_fox"])
def test_every_file_of_a_tokeniser_goes_along(tmp_path, monkeypatch, model_type):
    files = ("tokenizer.json", "tokenizer_config.json", "kind.json", "vocab.json", "vocab.txt", "merges.txt", "spiece.model",
             "special_tokens_map.json", "added_tokens.json")  # fmt: skip
    source = tmp_path / "source"
    source.mkdir()
    for file in (*files, "README.md", "optimizer.pt"):
        (source / file).write_text(f"of {file}")
    (source / "config.json").write_text(json.dumps({"model_type": model_type}))
    monkeypatch.setattr("models.convert.load_model", lambda source, dtype: SimpleNamespace(save_pretrained=Path.mkdir))
    monkeypatch.setattr("models.convert.save_authors", lambda model, folder: folder.mkdir())
    convert(source, tmp_path / "target")
    assert {path.name: path.read_text() for path in (tmp_path / "target").iterdir()} == {file: f"of {file}" for file in files}


@pytest.mark.parametrize("error", [ValueError("why"), OSError("why"), FileNotFoundError("why"), KeyError("why")])
def test_what_a_user_can_put_right_is_one_line(tmp_path, monkeypatch, capsys, error):
    monkeypatch.setattr("models.convert.load_model", lambda source, dtype: (_ for _ in ()).throw(error))
    if isinstance(error, KeyError):
        with pytest.raises(KeyError):
            main([str(tmp_path), str(tmp_path / "target")])
    else:
        assert main([str(tmp_path), str(tmp_path / "target")]) == 2
        assert capsys.readouterr().err == "error: why\n"


def test_the_authors_read_what_their_code_needs_to_be_told():
    """Switches that our specs do not have, or that say another thing by default there."""
    sizes = dict(vocab_size=64, hidden_size=128, num_layers=2)
    told = {
        HGRN2Spec(**sizes, output_norm_eps=None): {"use_lower_bound": True, "use_short_conv": False},
        DeltaNetSpec(**sizes): {"num_heads": 1, "use_gate": False, "use_beta": True, "qk_norm": "l2", "qk_activation": "silu"},
        Mamba2Spec(**sizes): {"num_heads": 4, "n_groups": 1, "norm_before_gate": False},
    }  # fmt: skip
    for spec, wanted in told.items():
        assert wanted.items() <= config_for_authors(spec).items()
        assert config_for_authors(spec)["tie_word_embeddings"] is False
