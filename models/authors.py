"""The authors' checkpoint format, without torch: their config.json and the names of their tensors.

The format has our parameter names (but for Mamba-2) and nearly the fields of our specs; what differs is checked and translated
here.
"""

from dataclasses import fields
from typing import Any

from models.spec import DeltaNetSpec, ForgettingTransformerSpec, HGRN2Spec, Mamba2Spec, ModelSpec

AUTHORS_SUFFIX = "-project_fox"
_FOX, _TRANSFORMER = "forgetting_transformer" + AUTHORS_SUFFIX, "transformer" + AUTHORS_SUFFIX
_SAMBA = "samba" + AUTHORS_SUFFIX
_MAMBA2, _HGRN2, _DELTA_NET = "mamba2" + AUTHORS_SUFFIX, "hgrn2" + AUTHORS_SUFFIX, "delta_net" + AUTHORS_SUFFIX
_ARCHITECTURES = {
    _FOX: "ForgettingTransformerForCausalLM",
    _TRANSFORMER: "TransformerForCausalLM",
    _MAMBA2: "Mamba2ForCausalLM",
    _HGRN2: "HGRN2ForCausalLM",
    _DELTA_NET: "DeltaNetForCausalLM",
}

# Settings that our models have built in: the authors' key, and the only value that it may have.
_FIXED: dict[str, dict[str, Any]] = {
    _FOX: {"ogate_act": "sigmoid"},
    _TRANSFORMER: {},
    _MAMBA2: {"n_groups": 1, "use_bias": False, "use_conv_bias": True, "norm_before_gate": False, "hidden_act": "silu"},
    _HGRN2: {"use_short_conv": False},
    _DELTA_NET: {
        "expand_k": 1,
        "expand_v": 1,
        "use_gate": False,
        "use_short_conv": True,
        "use_beta": True,
        "qk_norm": "l2",
        "qk_activation": "silu",
    },
}
_COMMON = {"vocab_size": "vocab_size", "hidden_size": "hidden_size", "num_layers": "num_hidden_layers", "norm_eps": "norm_eps"}
_MLP = {**_COMMON, "mlp_ratio": "hidden_ratio", "mlp_width": "intermediate_size"}
_ATTENTION = {name: name for name in ("num_heads", "use_rope", "rope_base", "window_size", "initializer_range")}
_SWITCHES = ("use_k_shift", "use_v_shift", "qk_norm", "use_output_gate", "use_output_norm")
_GATE = {name: name for name in (*_SWITCHES, "qk_norm_share_param_across_head", "decay_time_min", "decay_time_max")}
# Fields that both formats state: our name, their key.
_KEYS: dict[str, dict[str, str]] = {
    _FOX: {**_MLP, **_ATTENTION, **_GATE, "forget_gate": "fgate_type", "prune_log_tolerance": "log_pruning_tolerance"},
    _TRANSFORMER: {**_MLP, **_ATTENTION},
    _MAMBA2: {
        **_COMMON,
        "head_dim": "head_dim",
        "ssm_state_size": "state_size",
        "expand": "expand",
        "conv_size": "conv_kernel",
    },
    _HGRN2: {**_MLP, "expand_ratio": "expand_ratio"},
    _DELTA_NET: {**_MLP, "conv_size": "conv_size"},
}
# Values that the authors' code knows, of keys that choose among kinds.
_KNOWN = {"fgate_type": ("full", "bias_only", "fixed", "none")}
# Keys without which a config is not understood, besides the sizes of the whole model.
_NEEDED: dict[str, tuple[str, ...]] = {
    _FOX: ("num_heads", "fgate_type", "use_rope", *_SWITCHES),
    _TRANSFORMER: ("num_heads",),
    _DELTA_NET: ("num_heads",),
}


def spec_from_authors(config: dict[str, Any]) -> ModelSpec:
    """Return the spec of a config.json in the authors' format. Raises ValueError naming the key that does not fit."""
    model_type = config.get("model_type")
    if model_type == _SAMBA:
        raise ValueError(
            f"{model_type} cannot be read: the authors have published no such weights, and neither the keys of its config.json "
            "nor the names of its tensors are known here; save it as a folder of this suite (models/samba/spec.py)"
        )
    if model_type not in _FIXED:
        raise ValueError(f"model_type {model_type!r} is none of {', '.join(sorted(_FIXED))}")
    for key, value in {**_FIXED[model_type], "tie_word_embeddings": False}.items():
        if config.get(key, value) != value:
            raise ValueError(f"{key} is {config[key]!r} in config.json; only {value!r} is supported for {model_type}")
    for key, values in _KNOWN.items():
        if config.get(key, values[0]) not in values:
            raise ValueError(f"{key} is {config[key]!r}; the authors' format has {', '.join(values)}")
    needed = ("vocab_size", "hidden_size", "num_hidden_layers", *_NEEDED.get(model_type, ()))
    for key in needed:
        if key not in config:
            raise ValueError(f"the key {key!r} is missing")
    found = {ours: config[key] for ours, key in _KEYS[model_type].items() if key in needed or config.get(key) is not None}
    if model_type == _MAMBA2:
        return Mamba2Spec(**found)
    if model_type == _HGRN2:
        # `use_lower_bound` there only allocates the bounds: the released code never hands them to the mixer.
        return HGRN2Spec(**found)
    if model_type == _DELTA_NET:
        return DeltaNetSpec(**found, head_dim=found["hidden_size"] // config["num_heads"])
    if model_type == _TRANSFORMER:
        if config.get("num_kv_heads") not in (None, config["num_heads"]):
            raise ValueError(f"num_kv_heads is {config['num_kv_heads']}; only num_heads or null is supported")
        return ForgettingTransformerSpec(**{"use_rope": True, **found}, forget_gate="none")
    gate = found["forget_gate"]
    of_no_use = set() if gate in ("bias_only", "fixed") else {"decay_time_min", "decay_time_max"}
    of_no_use |= {"prune_log_tolerance"} if gate == "none" else set()
    # The paper's checkpoints say true; the authors' present default, for a config without the key, is false.
    found = {"qk_norm_share_param_across_head": False, **found}
    return ForgettingTransformerSpec(**{ours: value for ours, value in found.items() if ours not in of_no_use})


def config_for_authors(spec: ModelSpec) -> dict[str, Any]:
    """Return config.json of a spec in the authors' format. Raises ValueError for what that format cannot express."""
    more: dict[str, Any] = {}
    if isinstance(spec, Mamba2Spec):
        model_type, more = _MAMBA2, {"num_heads": spec.num_heads}
    elif isinstance(spec, HGRN2Spec):
        model_type, more = _HGRN2, {"use_lower_bound": True}  # there it only allocates them
    elif isinstance(spec, DeltaNetSpec):
        model_type, more = _DELTA_NET, {"num_heads": spec.num_heads}
    elif isinstance(spec, ForgettingTransformerSpec):
        model_type = _FOX
        plain = not any(getattr(spec, name) for name in _SWITCHES) and spec.qk_norm_share_param_across_head
        if spec.forget_gate == "none" and plain:
            model_type, more = _TRANSFORMER, {"num_kv_heads": None}
    else:
        raise ValueError(f"the authors' format has no model of kind {spec.kind!r}")
    stated = {key: getattr(spec, ours) for ours, key in _KEYS[model_type].items()}
    architecture = {"model_type": model_type, "architectures": [_ARCHITECTURES[model_type]], "tie_word_embeddings": False}
    config = {**architecture, **stated, **more, **_FIXED[model_type]}
    back = spec_from_authors(config)
    lost = [field.name for field in fields(spec) if getattr(back, field.name) != getattr(spec, field.name)]
    if lost:
        names = ", ".join(f"{name} {getattr(spec, name)!r} (it would come back as {getattr(back, name)!r})" for name in lost)
        raise ValueError(f"the authors' format cannot hold {names}; convert a model without it")
    return config


def name_for_authors(spec: ModelSpec, name: str) -> str:
    """Return the authors' name of one of our tensors."""
    if isinstance(spec, Mamba2Spec):
        return name.replace("model.norm.", "backbone.norm_f.").replace("model.", "backbone.")
    return name
