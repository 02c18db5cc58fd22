"""The authors' checkpoint format, without torch: their config.json and the names of their tensors.

The format has our parameter names (except Mamba-2's) and nearly the fields of our specs; differences are checked and translated
here. A model_type is our kind's name and a suffix; Transformers have a separate one."""

from dataclasses import fields
from typing import Any, NamedTuple

from models.delta_net.spec import DeltaNetSpec
from models.forgetting_transformer.spec import ForgettingTransformerSpec
from models.hgrn2.spec import HGRN2Spec
from models.mamba2.spec import Mamba2Spec
from models.spec import ModelSpec

AUTHORS_SUFFIX = "-project_fox"
_FOX, _TRANSFORMER = "forgetting_transformer" + AUTHORS_SUFFIX, "transformer" + AUTHORS_SUFFIX
_GATES = ("full", "bias_only", "fixed", "none")


class _Format(NamedTuple):
    """A model_type. `keys`: fields that both formats have, our name -> their key; `fixed`: settings that are hard-coded in our
    models, with their only value; `needed`: keys that a config must have, besides the sizes."""

    architecture: str
    spec: type
    keys: dict[str, str]
    fixed: dict[str, Any]
    needed: tuple[str, ...] = ()


_SIZES = {"vocab_size": "vocab_size", "hidden_size": "hidden_size", "num_layers": "num_hidden_layers", "norm_eps": "norm_eps"}
_MLP = {**_SIZES, "mlp_ratio": "hidden_ratio", "mlp_width": "intermediate_size"}
_ATTENTION = _MLP | {name: name for name in ("num_heads", "use_rope", "rope_base", "window_size", "initializer_range")}
_SWITCHES = ("use_k_shift", "use_v_shift", "qk_norm", "use_output_gate", "use_output_norm")
_GATE = {name: name for name in (*_SWITCHES, "qk_norm_share_param_across_head", "decay_time_min", "decay_time_max")}
_SCAN = {"head_dim": "head_dim", "ssm_state_size": "state_size", "expand": "expand", "conv_size": "conv_kernel"}
_FORMATS = {
    _FOX: _Format(
        "ForgettingTransformerForCausalLM",
        ForgettingTransformerSpec,
        {**_ATTENTION, **_GATE, "forget_gate": "fgate_type", "prune_log_tolerance": "log_pruning_tolerance"},
        {"ogate_act": "sigmoid"},
        needed=("num_heads", "fgate_type", "use_rope", *_SWITCHES),
    ),
    _TRANSFORMER: _Format("TransformerForCausalLM", ForgettingTransformerSpec, _ATTENTION, {}, needed=("num_heads",)),
    "mamba2" + AUTHORS_SUFFIX: _Format(
        "Mamba2ForCausalLM",
        Mamba2Spec,
        _SIZES | _SCAN,
        {"n_groups": 1, "use_bias": False, "use_conv_bias": True, "norm_before_gate": False, "hidden_act": "silu"},
    ),
    "hgrn2" + AUTHORS_SUFFIX: _Format(
        "HGRN2ForCausalLM", HGRN2Spec, {**_MLP, "expand_ratio": "expand_ratio"}, {"use_short_conv": False}
    ),
    "delta_net" + AUTHORS_SUFFIX: _Format(
        "DeltaNetForCausalLM",
        DeltaNetSpec,
        {**_MLP, "conv_size": "conv_size"},
        dict(expand_k=1, expand_v=1, use_gate=False, use_short_conv=True, use_beta=True, qk_norm="l2", qk_activation="silu"),
        needed=("num_heads",),
    ),
}


def spec_from_authors(config: dict[str, Any]) -> ModelSpec:
    """Return the spec of a config.json in the authors' format. Raises ValueError naming the key that does not fit."""
    model_type = config.get("model_type")
    if model_type not in _FORMATS:
        raise ValueError(f"model_type {model_type!r} is none of {', '.join(sorted(_FORMATS))}")
    form = _FORMATS[model_type]
    for key, value in {**form.fixed, "tie_word_embeddings": False}.items():
        if config.get(key, value) != value:
            raise ValueError(f"{key} is {config[key]!r} in config.json; only {value!r} is supported for {model_type}")
    if config.get("fgate_type", "none") not in _GATES:
        raise ValueError(f"fgate_type is {config['fgate_type']!r}; the authors' format has {', '.join(_GATES)}")
    needed = ("vocab_size", "hidden_size", "num_hidden_layers", *form.needed)
    for key in needed:
        if key not in config:
            raise ValueError(f"the key {key!r} is missing")
    found = {ours: config[key] for ours, key in form.keys.items() if key in needed or config.get(key) is not None}
    if form.spec is DeltaNetSpec:
        found["head_dim"] = found["hidden_size"] // config["num_heads"]
    elif form.spec is HGRN2Spec:
        found["output_norm_eps"] = None
        spec = HGRN2Spec(**found)
        heads = spec.hidden_size // spec.expand_ratio
        if config.get("num_heads") not in (None, heads):  # no tensor's shape would tell
            given = f"num_heads is {config['num_heads']} with expand_ratio {config.get('expand_ratio')}"
            raise ValueError(f"{given}; only hidden_size / expand_ratio, here {heads}, or null is supported")
    elif model_type == _TRANSFORMER:
        if config.get("num_kv_heads") not in (None, config["num_heads"]):
            raise ValueError(f"num_kv_heads is {config['num_kv_heads']}; only num_heads or null is supported")
        found = {"use_rope": True, **found, "forget_gate": "none"}
    elif model_type == _FOX:
        # The paper's checkpoints have true; the authors' current default, for a config without the key, is false.
        found = {"qk_norm_share_param_across_head": False, **found}
        starts = config.get("fgate_bias_init") if found["forget_gate"] == "full" else found["forget_gate"] != "none"
        of_no_use = () if starts else ("decay_time_min", "decay_time_max")
        for name in (*of_no_use, *(["prune_log_tolerance"] if found["forget_gate"] == "none" else [])):
            found.pop(name, None)
    return form.spec(**found)


def config_for_authors(spec: ModelSpec) -> dict[str, Any]:
    """Return config.json of a spec in the authors' format. Raises ValueError for what that format cannot express."""
    model_type, more = spec.kind + AUTHORS_SUFFIX, dict[str, Any]()
    if isinstance(spec, Mamba2Spec | DeltaNetSpec):
        more = {"num_heads": spec.num_heads}
    elif isinstance(spec, HGRN2Spec):
        more = {"use_lower_bound": True}  # it only allocates the bounds: the released code never passes them to the mixer
    elif isinstance(spec, ForgettingTransformerSpec):
        if spec.forget_gate == "none" and spec.qk_norm_share_param_across_head and not any(getattr(spec, s) for s in _SWITCHES):
            model_type, more = _TRANSFORMER, {"num_kv_heads": None}
        elif spec.forget_gate == "full" and spec.decay_time_min is not None:
            more = {"fgate_bias_init": True}
    else:
        raise ValueError(f"the authors' format has no model of kind {spec.kind!r}")
    form = _FORMATS[model_type]
    stated = {key: getattr(spec, ours) for ours, key in form.keys.items()}
    architecture = {"model_type": model_type, "architectures": [form.architecture], "tie_word_embeddings": False}
    config = {**architecture, **stated, **more, **form.fixed}
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
