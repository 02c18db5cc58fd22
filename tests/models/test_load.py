"""Weights that do not fit are refused by name, whoever wrote the folder; nothing is ever filled with random numbers."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import GPT2Config, GPT2LMHeadModel, LlamaConfig, LlamaForCausalLM, PhiConfig, PhiForCausalLM

from models.build import build_model, load_model
from models.convert import save_authors
from models.weight_files import INDEX
from tests.models.conftest import SPECS

SMALL = {"vocab_size": 97, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 1, "num_attention_heads": 2}
FOREIGN = {"bos_token_id": 0, "eos_token_id": 0}
# A tensor of each folder in the folder's own names.
FOLDERS = {
    "ours": "model.layers.1.attn.q_proj.weight",
    "authors": "model.layers.0.attn.fgate_proj.bias",
    "authors, mamba2": "backbone.norm_f.weight",
    "llama": "model.layers.0.self_attn.q_proj.weight",
    "llama, tied": "model.embed_tokens.weight",
    "gpt2": "transformer.h.0.attn.c_attn.bias",
    "phi": "lm_head.bias",
}


@pytest.fixture(scope="session")
def written(tmp_path_factory) -> Path:
    root = tmp_path_factory.mktemp("written")
    build_model(SPECS["fox_pro"]).save_pretrained(root / "ours")
    save_authors(build_model(SPECS["fox_pro"]), root / "authors")
    save_authors(build_model(SPECS["mamba2"]), root / "authors, mamba2")
    LlamaForCausalLM(LlamaConfig(**SMALL, **FOREIGN)).save_pretrained(root / "llama")
    LlamaForCausalLM(LlamaConfig(**SMALL, **FOREIGN, tie_word_embeddings=True)).save_pretrained(root / "llama, tied")
    GPT2LMHeadModel(GPT2Config(vocab_size=97, n_embd=32, n_layer=1, n_head=2, **FOREIGN)).save_pretrained(root / "gpt2")
    PhiForCausalLM(PhiConfig(**SMALL, **FOREIGN)).save_pretrained(root / "phi")
    return root


@pytest.fixture(params=FOLDERS)
def kind(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture
def folder(kind: str, written: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(written / kind, tmp_path / "folder"))


def edit(folder: Path, change: Callable[[dict[str, torch.Tensor]], Any]) -> None:
    weights = load_file(folder / "model.safetensors")
    change(weights)
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})


def refusal(folder: Path) -> str:
    with pytest.raises(ValueError, match=r"give a complete folder") as error:
        load_model(folder)
    assert str(folder) in str(error.value) and len(str(error.value).splitlines()) == 2
    return str(error.value)


def test_whole_folders_are_loaded_as_they_were_written(kind, folder, capfd):
    """Tied heads and non-persistent buffers, rotary frequencies say, are not in the file and need not be; nor are the masks
    that old checkpoints hold weights."""
    stored = load_file(folder / "model.safetensors")
    ours = {name.replace("backbone.norm_f", "model.norm").replace("backbone.", "model."): t for name, t in stored.items()}
    if kind == "gpt2":
        edit(folder, lambda weights: weights.update({"transformer.h.0.attn.masked_bias": torch.ones(1, 1, 4, 4)}))
    state = load_model(folder).state_dict()
    assert all(torch.equal(state[name], tensor) for name, tensor in ours.items())
    assert set(state) - set(ours) == ({"lm_head.weight"} if kind in ("gpt2", "llama, tied") else set())
    assert capfd.readouterr().err == ""
    edit(folder, lambda weights: weights.update({name: t.half() for name, t in weights.items()}))
    assert load_model(folder).lm_head.weight.dtype == torch.float32
    if "authors" in kind:  # elsewhere config.json tells
        assert load_model(folder, dtype=None).lm_head.weight.dtype == torch.float16


FAULTS: dict[str, Callable[[dict[str, torch.Tensor], str], Any]] = {
    "missing": lambda weights, name: weights.pop(name),
    "unexpected": lambda weights, name: weights.update({"model.layers.0.attn.extra.weight": torch.zeros(3)}),
    "unexpected: lm_head.bias": lambda weights, name: weights.update({"lm_head.bias": torch.zeros(97)}),
    "of another shape": lambda weights, name: weights.update({name: weights[name][:1].clone()}),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_tensors_that_do_not_fit_are_named(kind, folder, fault):
    if kind == "phi" and fault == "unexpected: lm_head.bias":
        return  # its head has one
    edit(folder, lambda weights: FAULTS[fault](weights, FOLDERS[kind]))
    assert fault in refusal(folder) and (FOLDERS[kind] in refusal(folder) or "unexpected" in fault)


@pytest.mark.parametrize("kept", [0, 300, -10])
def test_truncated_weights_are_refused(folder, kept):
    content = (folder / "model.safetensors").read_bytes()
    (folder / "model.safetensors").write_bytes(content[:kept])
    assert "damaged or incomplete" in refusal(folder)


@pytest.mark.parametrize("kind", ["ours", "authors", "llama"])
def test_sharded_weights_are_read_and_damaged_folders_are_refused(folder):
    weights, index = load_file(folder / "model.safetensors"), {}
    half = len(weights) // 2
    for i, names in enumerate((list(weights)[:half], list(weights)[half:])):
        save_file({n: weights[n] for n in names}, folder / f"part{i}.safetensors", metadata={"format": "pt"})
        index |= dict.fromkeys(names, f"part{i}.safetensors")
    (folder / "model.safetensors").unlink()
    (folder / INDEX).write_text(whole := json.dumps({"metadata": {}, "weight_map": index}))
    assert torch.equal(load_model(folder).lm_head.weight, weights["lm_head.weight"])
    for damaged in ("{}", "{", '{"weight_map": {"a": "../part0.safetensors"}}', '{"weight_map": {"a": "w.bin"}}'):
        (folder / INDEX).write_text(damaged)
        refusal(folder)
    (folder / INDEX).write_text(whole)
    torch.save(load_file(folder / "part1.safetensors"), folder / "pytorch_model.bin")  # a pickle is never loaded
    (folder / "part1.safetensors").unlink()
    assert "part1.safetensors" in refusal(folder)
    for damaged in ("{", "[]", "{}"):
        (folder / "config.json").write_text(damaged)
        refusal(folder)
