"""The authors' checkpoint format, without torch: their config.json and the names of their tensors.

The format has our parameter names (but for Mamba-2) and nearly the fields of our specs; what differs is checked and translated
here.
"""

from typing import Any

from models.spec import DeltaNetSpec, ForgettingTransformerSpec, HGRN2Spec, Mamba2Spec, ModelSpec

AUTHORS_SUFFIX = "-project_fox"
_FOX, _TRANSFORMER = "forgetting_transformer" + AUTHORS_SUFFIX, "transformer" + AUTHORS_SUFFIX
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
_FOX_SWITCHES = ("use_rope", "use_k_shift", "use_v_shift", "qk_norm", "use_output_gate", "use_output_norm")


def spec_from_authors(config: dict[str, Any]) -> ModelSpec:
    """The spec of a config.json in the authors' format. Raises ValueError naming the key that does not fit."""
    model_type = config.get("model_type")
    if model_type not in _FIXED:
        raise ValueError(f"model_type {model_type!r} is none of {', '.join(sorted(_FIXED))}")
    for key, value in {**_FIXED[model_type], "tie_word_embeddings": False}.items():
        if config.get(key, value) != value:
            raise ValueError(f"{key} is {config[key]!r} in config.json; only {value!r} is supported for {model_type}")
    if model_type == _FOX:
        return _fox_spec(config)
    common = {
        "vocab_size": _need(config, "vocab_size"),
        "hidden_size": _need(config, "hidden_size"),
        "num_layers": _need(config, "num_hidden_layers"),
    }
    if model_type == _MAMBA2:
        keys = {"head_dim": "head_dim", "ssm_state_size": "state_size", "expand": "expand", "conv_size": "conv_kernel"}
        return Mamba2Spec(**common, **_given(config, {**keys, "norm_eps": "norm_eps"}))
    common |= _given(config, {"mlp_ratio": "hidden_ratio", "mlp_width": "intermediate_size", "norm_eps": "norm_eps"})
    if model_type == _HGRN2:
        # `use_lower_bound` there only allocates the bounds: the released code never hands them to the mixer.
        return HGRN2Spec(**common, **_given(config, {"expand_ratio": "expand_ratio"}))
    if model_type == _DELTA_NET:
        head_dim = common["hidden_size"] // _need(config, "num_heads")
        return DeltaNetSpec(**common, head_dim=head_dim, **_given(config, {"conv_size": "conv_size"}))
    if config.get("num_kv_heads") not in (None, config.get("num_heads")):
        raise ValueError(f"num_kv_heads is {config['num_kv_heads']}; only num_heads or null is supported")
    return ForgettingTransformerSpec(
        **common,
        num_heads=_need(config, "num_heads"),
        forget_gate="none",
        use_rope=config.get("use_rope", True),
        **_given(config, {"rope_base": "rope_base", "window_size": "window_size"}),
    )


def config_for_authors(spec: ModelSpec) -> dict[str, Any]:
    """config.json of a spec in the authors' format. Raises ValueError for what that format cannot express."""
    common: dict[str, Any] = {
        "vocab_size": spec.vocab_size,
        "hidden_size": spec.hidden_size,
        "num_hidden_layers": spec.num_layers,
        "norm_eps": spec.norm_eps,
        "tie_word_embeddings": False,
    }
    if isinstance(spec, Mamba2Spec):
        names = {"head_dim": spec.head_dim, "state_size": spec.ssm_state_size, "expand": spec.expand}
        return _for_authors(_MAMBA2, common | names | {"num_heads": spec.num_heads, "conv_kernel": spec.conv_size})
    if not isinstance(spec, ForgettingTransformerSpec | HGRN2Spec | DeltaNetSpec):
        raise ValueError(f"the authors' format has no model of kind {spec.kind!r}")
    common |= {"hidden_ratio": spec.mlp_ratio, "intermediate_size": spec.mlp_width}
    if isinstance(spec, HGRN2Spec):
        if spec.use_lower_bound:
            raise ValueError("use_lower_bound is true; the authors' HGRN2 allocates lower bounds but never applies them")
        return _for_authors(_HGRN2, common | {"expand_ratio": spec.expand_ratio, "use_lower_bound": True})
    if isinstance(spec, DeltaNetSpec):
        return _for_authors(_DELTA_NET, common | {"num_heads": spec.num_heads, "conv_size": spec.conv_size})
    if spec.attention != "softmax":
        raise ValueError(f"attention is {spec.attention!r}; the authors' format has softmax attention only")
    common |= {
        "num_heads": spec.num_heads,
        "use_rope": spec.use_rope,
        "rope_base": spec.rope_base,
        "window_size": spec.window_size,
        "initializer_range": spec.initializer_range,
    }
    extras = [getattr(spec, name) for name in _FOX_SWITCHES if name != "use_rope"]
    if spec.forget_gate == "none" and not any(extras):
        return _for_authors(_TRANSFORMER, common | {"num_kv_heads": None})
    return _for_authors(
        _FOX,
        common
        | {name: getattr(spec, name) for name in _FOX_SWITCHES}
        | {
            "fgate_type": spec.forget_gate,
            "decay_time_min": spec.decay_time_min,
            "decay_time_max": spec.decay_time_max,
            "qk_norm_share_param_across_head": spec.qk_norm_share_param_across_head,
            "log_pruning_tolerance": spec.prune_log_tolerance,
        },
    )


def name_for_authors(spec: ModelSpec, name: str) -> str:
    """What the authors call one of our tensors."""
    if isinstance(spec, Mamba2Spec):
        return name.replace("model.norm.", "backbone.norm_f.").replace("model.", "backbone.")
    return name


def _fox_spec(config: dict[str, Any]) -> ForgettingTransformerSpec:
    gate = _need(config, "fgate_type")
    values = {name: _need(config, name) for name in ("vocab_size", "hidden_size", "num_heads", *_FOX_SWITCHES)}
    # The paper's checkpoints say true; the authors' present default, for a config without the key, is false.
    values["qk_norm_share_param_across_head"] = config.get("qk_norm_share_param_across_head", False)
    keys = {"mlp_ratio": "hidden_ratio", "mlp_width": "intermediate_size", "initializer_range": "initializer_range"}
    for key in ("rope_base", "window_size", "norm_eps"):
        keys[key] = key
    if gate in ("bias_only", "fixed"):
        keys |= {"decay_time_min": "decay_time_min", "decay_time_max": "decay_time_max"}
    if gate != "none":
        keys["prune_log_tolerance"] = "log_pruning_tolerance"
    values |= _given(config, keys)
    return ForgettingTransformerSpec(num_layers=_need(config, "num_hidden_layers"), forget_gate=gate, **values)


def _for_authors(model_type: str, values: dict[str, Any]) -> dict[str, Any]:
    architecture = {"model_type": model_type, "architectures": [_ARCHITECTURES[model_type]]}
    return {**architecture, **values, **_FIXED[model_type]}


def _need(config: dict[str, Any], key: str) -> Any:
    if key not in config:
        raise ValueError(f"the key {key!r} is missing")
    return config[key]


def _given(config: dict[str, Any], keys: dict[str, str]) -> dict[str, Any]:
    """Fields of a spec for which the config has a value other than null."""
    return {field: config[key] for field, key in keys.items() if config.get(key) is not None}
