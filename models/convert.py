"""Checkpoints of the authors: `python -m models.convert SOURCE TARGET` translates a folder, in either direction.

The published format has our parameter names and nearly our config keys; what differs is checked and translated here. A folder
in that format needs no conversion to be used: `models.build.load_model` reads it directly.
"""

import argparse
import json
import shutil
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import models.hf_guard  # noqa: F401  # isort: skip  (before transformers)
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from models.build import build_model, load_model, spec_of
from models.spec import DeltaNetSpec, ForgettingTransformerSpec, HGRN2Spec, Mamba2Spec, ModelSpec

if TYPE_CHECKING:
    from transformers import PreTrainedModel

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
_COMPANIONS = ("tokenizer*", "vocab.json", "merges.txt", "special_tokens_map.json", "added_tokens.json")


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
        keys = {"head_dim": "head_dim", "state_size": "state_size", "expand": "expand", "conv_size": "conv_kernel"}
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
        names = {"head_dim": spec.head_dim, "state_size": spec.state_size, "expand": spec.expand}
        return _for_authors(_MAMBA2, common | names | {"num_heads": spec.num_heads, "conv_kernel": spec.conv_size})
    common |= {"hidden_ratio": spec.mlp_ratio, "intermediate_size": spec.mlp_width}
    if isinstance(spec, HGRN2Spec):
        if spec.use_lower_bound:
            raise ValueError("use_lower_bound is true; the authors' HGRN2 allocates lower bounds but never applies them")
        return _for_authors(_HGRN2, common | {"expand_ratio": spec.expand_ratio, "use_lower_bound": True})
    if isinstance(spec, DeltaNetSpec):
        heads = spec.hidden_size // spec.head_dim
        return _for_authors(_DELTA_NET, common | {"num_heads": heads, "conv_size": spec.conv_size})
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


def load_authors(folder: Path, dtype: torch.dtype | None = None) -> "PreTrainedModel":
    """Our model with the weights of a folder in the authors' format; in the stored dtype if none is given.

    Raises:
        ValueError: an unsupported config, or tensors that are missing, unexpected or of the wrong shape.
    """
    try:
        spec = spec_from_authors(json.loads((folder / "config.json").read_text()))
    except ValueError as error:
        raise ValueError(f"{folder / 'config.json'}: {error}") from error
    tensors = _read_weights(folder)
    model = build_model(spec, "meta")
    expected = {name: tuple(tensor.shape) for name, tensor in model.state_dict().items()}
    found = {name: tuple(tensor.shape) for name, tensor in tensors.items()}
    _compare(folder, expected, found)
    buffers = {name: buffer.dtype for name, buffer in model.named_buffers()}  # a fixed gate stays fp32
    tensors = {name: tensor.to(buffers.get(name, dtype or tensor.dtype)) for name, tensor in tensors.items()}
    model.load_state_dict(tensors, assign=True)
    return model


def save_authors(model: "PreTrainedModel", folder: Path) -> None:
    """Write a model of this suite in the authors' format: config.json and model.safetensors."""
    config = config_for_authors(spec_of(model))
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config, indent=2, sort_keys=True) + "\n")
    tensors = {name: tensor.detach().cpu().contiguous() for name, tensor in model.state_dict().items()}
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})


def convert(source: Path, target: Path) -> str:
    """Translate SOURCE (either format) into TARGET (the other one); returns one line about what was written.

    TARGET appears complete or not at all. Raises ValueError for anything a user can put right.
    """
    if not (source / "config.json").is_file():
        raise ValueError(f"{source} is no checkpoint folder: it holds no config.json")
    if target.exists() and (not target.is_dir() or any(target.iterdir())):
        raise ValueError(f"{target} exists and is not an empty folder; give another target")
    model_type = str(json.loads((source / "config.json").read_text()).get("model_type"))
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=target.parent, prefix=f".{target.name}-") as scratch:
        made = Path(scratch) / "converted"
        if model_type.endswith(AUTHORS_SUFFIX):
            load_authors(source).save_pretrained(made)
            direction = "from the authors' format to this suite's"
        elif model_type.endswith("_suite"):
            save_authors(load_model(source), made)
            direction = "from this suite's format to the authors'"
        else:
            raise ValueError(f"{source / 'config.json'}: model_type {model_type!r} is neither the authors' nor ours")
        for pattern in _COMPANIONS:
            for file in source.glob(pattern):
                shutil.copy2(file, made / file.name)
        if target.exists():
            target.rmdir()
        made.rename(target)
    return f"{target}: {model_type} converted {direction}"


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m models.convert", description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("source", type=Path, help="checkpoint folder, in the authors' format or in ours")
    parser.add_argument("target", type=Path, help="folder to write, in the other format; must not exist or be empty")
    options = parser.parse_args(arguments)
    try:
        print(convert(options.source, options.target))
    except (ValueError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    return 0


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


def _read_weights(folder: Path) -> dict[str, Tensor]:
    index = folder / "model.safetensors.index.json"
    if index.is_file():
        names = sorted(set(json.loads(index.read_text())["weight_map"].values()))
    else:
        names = ["model.safetensors"]
    tensors: dict[str, Tensor] = {}
    for name in names:
        if not (folder / name).is_file():
            raise ValueError(f"{folder} holds no {name}")
        tensors |= load_file(folder / name)
    return tensors


def _compare(folder: Path, expected: dict[str, tuple[int, ...]], found: dict[str, tuple[int, ...]]) -> None:
    def some(names: list[str]) -> str:
        return ", ".join(names[:5]) + (f" and {len(names) - 5} more" if len(names) > 5 else "")

    missing, unexpected = sorted(expected.keys() - found.keys()), sorted(found.keys() - expected.keys())
    wrong = [n for n in sorted(expected.keys() & found.keys()) if expected[n] != found[n]]
    if missing or unexpected:
        raise ValueError(f"{folder}: tensors missing: {some(missing) or 'none'}; unexpected: {some(unexpected) or 'none'}")
    if wrong:
        name = wrong[0]
        raise ValueError(f"{folder}: {name} has shape {found[name]}, its config.json asks for {expected[name]}")


if __name__ == "__main__":
    sys.exit(main())
