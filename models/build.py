"""Models from specs, and back: `build_model`, `load_model`, `spec_of`."""

import re
from dataclasses import asdict
from pathlib import Path
from typing import Any

import kernels.hf_guard  # noqa: F401  # isort: skip  (before transformers)
import torch
from pydantic import ValidationError
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor
from transformers import AutoModelForCausalLM, PreTrainedModel
from transformers.utils import logging

from models.authors import AUTHORS_SUFFIX, name_for_authors, spec_from_authors
from models.causal_lm import CausalLM, CausalLMConfig
from models.spec import ModelSpec
from models.weight_files import read_json, weight_files

_MASKS = re.compile(r"\.(attn|attention)\.(masked_)?bias$")
"""Causal masks, which older versions of transformers saved beside the weights of GPT-2, GPT-Neo and GPT-J."""


def build_model(spec: ModelSpec, device: torch.device | str = "cpu") -> CausalLM:
    """Return a new model in fp32, initialised as in the paper's runs from torch's seed. Device "meta" allocates nothing."""
    with torch.device("meta" if str(device) == "meta" else "cpu"):
        model = CausalLM(CausalLMConfig(asdict(spec)))
    return model if str(device) == "meta" else model.to(device)  # type: ignore[arg-type]


def num_params(model: PreTrainedModel) -> int:
    """Count the parameters without the input embedding, but with the output head: the paper's "non-embedding" count."""
    return sum(p.numel() for p in model.parameters()) - sum(p.numel() for p in model.get_input_embeddings().parameters())


def spec_of(model: PreTrainedModel) -> ModelSpec:
    """Return the spec of a model built or loaded here, the authors' checkpoints included. Raises ValueError for any other."""
    if not isinstance(model, CausalLM):
        raise ValueError(f"a model of type {model.config.model_type!r} has no spec; only models of this suite have one")
    return model.config.to_spec()


def load_model(source: str | Path, dtype: torch.dtype | None = torch.float32) -> PreTrainedModel:
    """Return a model in evaluation mode, on the CPU, from a folder of ours, a folder in the authors' format, or anything that
    `AutoModelForCausalLM` loads (folder or hub name); dtype None keeps the stored one. Even in float64, gates, rotations and
    recurrent states are fp32. Raises ValueError if nothing can be loaded, and for tensors that are missing, unexpected or of
    another shape than the model's. (Tied weights and computed buffers may be missing, causal masks may be present.)"""
    try:
        folder = Path(source)
        if folder.is_dir():
            weight_files(folder)
            if not (folder / "config.json").is_file():
                raise ValueError("it holds no config.json")
            config = read_json(folder / "config.json")
            if str(config.get("model_type")).endswith(AUTHORS_SUFFIX):
                return _load_authors(folder, spec_from_authors(config), dtype)
        return _load_hugging_face(str(source), dtype)
    except Exception as error:  # Hugging Face raises many types for the same thing
        remedy = "give a complete folder, config.json and the weights saved with it, of ours, the authors or Hugging Face"
        raise ValueError(f"{source}: {_in_one_line(error)}\n{remedy}, or a hub name") from error


def _load_hugging_face(source: str, dtype: torch.dtype | None) -> PreTrainedModel:
    verbosity = logging.get_verbosity()
    logging.set_verbosity_error()  # hides its table of mismatches, which are refused below
    logging.disable_progress_bar()  # loading takes a second or two; its bar would only litter a log
    load: Any = AutoModelForCausalLM.from_pretrained
    options = dict(output_loading_info=True, ignore_mismatched_sizes=True, use_safetensors=True)
    try:
        model, found = load(source, dtype=dtype or "auto", **options)
    finally:
        logging.set_verbosity(verbosity)
    unexpected = {name for name in found["unexpected_keys"] if not _MASKS.search(name)}
    _refuse_misfits(found["missing_keys"], unexpected, found["mismatched_keys"])
    return model.eval()


def _load_authors(folder: Path, spec: ModelSpec, dtype: torch.dtype | None) -> CausalLM:
    model = build_model(spec, "meta")
    wanted = {name_for_authors(spec, name): tensor.shape for name, tensor in model.state_dict().items()}
    found: dict[str, Tensor] = {}
    for path in weight_files(folder):
        if not path.is_file():
            raise ValueError(f"it holds no {path.name}")
        found |= load_file(path)
    misshapen = {(n, found[n].shape, wanted[n]) for n in wanted.keys() & found.keys() if found[n].shape != wanted[n]}
    _refuse_misfits(wanted.keys() - found.keys(), found.keys() - wanted.keys(), misshapen)
    exact = {name: buffer.dtype for name, buffer in model.named_buffers()}  # a fixed gate stays fp32
    ours = {name: found[name_for_authors(spec, name)] for name in model.state_dict()}
    model.load_state_dict({n: t.to(exact.get(n, dtype or t.dtype)) for n, t in ours.items()}, assign=True)
    return model.eval()


def _refuse_misfits(missing: set[str], unexpected: set[str], misshapen: set[tuple[str, Any, Any]]) -> None:
    def some(names: set[str]) -> str:
        return ", ".join(sorted(names)[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")

    shapes = {f"{name} {tuple(found)}, not {tuple(wanted)}" for name, found, wanted in misshapen}
    kinds = {"missing": missing, "unexpected": unexpected, "of another shape": shapes}
    wrong = "; ".join(f"{kind}: {some(names)}" for kind, names in kinds.items() if names)
    if wrong:
        raise ValueError(f"the weights do not fit config.json: tensors {wrong}")


def _in_one_line(error: Exception) -> str:
    if isinstance(error, ValidationError):
        first = error.errors()[0]
        return " ".join(("config.json:", *map(str, first["loc"]), first["msg"].removeprefix("Value error, ")))
    if isinstance(error, SafetensorError):
        return f"its safetensors are damaged or incomplete ({error})"
    what = "" if isinstance(error, (OSError, ValueError)) else f"{type(error).__name__} "
    return what + " ".join(str(error).split())[:600]
