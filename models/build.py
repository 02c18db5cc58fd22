"""From a spec to a model and back: `build_model`, `load_model`, `spec_of`."""

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import models.hf_guard  # noqa: F401  # isort: skip  (before transformers)
import torch

from models.spec import DeltaNetSpec, ForgettingTransformerSpec, HGRN2Spec, Mamba2Spec, ModelSpec

if TYPE_CHECKING:
    from transformers import PreTrainedModel


def build_model(spec: ModelSpec, device: torch.device | str = "cpu") -> "PreTrainedModel":
    """A fresh model in fp32, initialised as in the paper's runs from torch's current seed. On device "meta" nothing
    is allocated."""
    config_class, model_class = _classes(spec.kind)
    with torch.device("meta" if str(device) == "meta" else "cpu"):
        model = model_class(config_class.from_spec(spec))
    return model if str(device) == "meta" else model.to(device)


def spec_of(model: "PreTrainedModel") -> ModelSpec:
    """The spec of a model built or loaded here. Raises ValueError for any other model."""
    config = model.config
    if not hasattr(config, "to_spec"):
        raise ValueError(f"a model of type {config.model_type!r} has no spec; only models of this suite have one")
    return config.to_spec()


def load_model(source: str | Path, dtype: torch.dtype = torch.float32) -> "PreTrainedModel":
    """A model in evaluation mode, on the CPU, from a folder of ours, a folder in the authors' format, or anything that
    `AutoModelForCausalLM` loads (folder or hub name).

    Raises:
        ValueError: a folder without config.json, or weights that do not fit the architecture.
    """
    from transformers import AutoModelForCausalLM
    from transformers.utils import logging

    logging.disable_progress_bar()  # loading takes a second or two; its bar would only litter a log
    folder = Path(source)
    if folder.is_dir():
        if not (folder / "config.json").is_file():
            raise ValueError(f"{folder} holds no config.json: give the folder that save_pretrained wrote, e.g. RUN/export")
        model_type = json.loads((folder / "config.json").read_text()).get("model_type")
        if str(model_type).endswith("-project_fox"):
            from models.convert import load_authors

            return load_authors(folder, dtype).eval()
        if str(model_type).endswith("_suite"):
            _classes(str(model_type).removesuffix("_suite"))  # registers it with AutoModelForCausalLM
    return AutoModelForCausalLM.from_pretrained(str(source), dtype=dtype).eval()


def _classes(kind: str) -> tuple[Any, Any]:
    """(config class, model class) of a kind of spec; imports only what that model needs."""
    if kind == ForgettingTransformerSpec.kind:
        from models.forgetting_transformer import ForgettingTransformerConfig, ForgettingTransformerForCausalLM

        return ForgettingTransformerConfig, ForgettingTransformerForCausalLM
    if kind == Mamba2Spec.kind:
        from models.mamba2 import Mamba2Config, Mamba2ForCausalLM

        return Mamba2Config, Mamba2ForCausalLM
    if kind == HGRN2Spec.kind:
        from models.hgrn2 import HGRN2Config, HGRN2ForCausalLM

        return HGRN2Config, HGRN2ForCausalLM
    if kind == DeltaNetSpec.kind:
        from models.delta_net import DeltaNetConfig, DeltaNetForCausalLM

        return DeltaNetConfig, DeltaNetForCausalLM
    raise ValueError(f"no model of kind {kind!r}; known are forgetting_transformer, mamba2, hgrn2, delta_net")
