"""Weights that do not fit are refused by name, whoever wrote the folder; nothing is ever filled with random numbers."""

import json
import logging
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import GPT2Config, GPT2LMHeadModel, LlamaConfig, LlamaForCausalLM, PhiConfig, PhiForCausalLM
from transformers import logging as hf_logging

from models.build import build_model, load_model
from models.convert import save_authors
from models.weight_files import INDEX, read_json, weight_files

SMALL = {"vocab_size": 97, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 1, "num_attention_heads": 2}
FOREIGN = {"bos_token_id": 0, "eos_token_id": 0}
# A tensor of each folder in the folder's own names.
FOLDERS = {
    "ours": "model.layers.1.attn.q_proj.weight",
    "ours, mamba2": "model.layers.0.mixer.A_log",
    "authors": "model.layers.0.attn.fgate_proj.bias",
    "authors, mamba2": "backbone.norm_f.weight",
    "llama": "model.layers.0.self_attn.q_proj.weight",
    "llama, tied": "model.embed_tokens.weight",
    "gpt2": "transformer.h.0.attn.c_attn.bias",
    "phi": "lm_head.bias",
}


@pytest.fixture(scope="session")
def written(specs, tmp_path_factory) -> Path:
    root = tmp_path_factory.mktemp("written")
    for name, key in {"": "fox_pro", ", mamba2": "mamba2"}.items():
        model = build_model(specs[key])
        model.save_pretrained(root / f"ours{name}")
        save_authors(model, root / f"authors{name}")
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
    message = str(error.value)
    assert len(message.splitlines()) == 2
    assert str(folder) in message
    return message.splitlines()[0]


def test_whole_folders_are_loaded_as_they_were_written(kind, folder, capfd):
    """Tied heads and non-persistent buffers, rotary frequencies say, are not in the file and need not be."""
    verbosity = hf_logging.get_verbosity()
    model = load_model(folder)
    assert not model.training and hf_logging.get_verbosity() == verbosity
    stored = load_file(folder / "model.safetensors")
    ours = {name.replace("backbone.norm_f", "model.norm").replace("backbone.", "model."): t for name, t in stored.items()}
    state = model.state_dict()
    assert all(torch.equal(state[name], tensor) for name, tensor in ours.items())
    assert set(state) - set(ours) == ({"lm_head.weight"} if kind in ("gpt2", "llama, tied") else set())
    assert capfd.readouterr().err == ""


def test_a_missing_tensor_is_named(kind, folder, caplog, monkeypatch):
    monkeypatch.setattr(logging.getLogger("transformers"), "propagate", True)
    edit(folder, lambda weights: weights.pop(FOLDERS[kind]))
    message = refusal(folder)
    assert "tensors missing: " in message
    assert FOLDERS[kind] in message
    assert caplog.text == "", "Hugging Face's own table would be a second telling"


def test_an_unexpected_tensor_is_named(folder):
    edit(folder, lambda weights: weights.update({"model.layers.0.attn.extra.weight": torch.zeros(3)}))
    assert "tensors unexpected: model.layers.0.attn.extra.weight" in refusal(folder)


@pytest.mark.parametrize("kind", ["gpt2"], indirect=True)
def test_masks_of_old_checkpoints_are_no_weights(folder):
    """GPT-Neo's and GPT-J's hold them, too."""
    names = ("h.0.attn.bias", "h.0.attn.masked_bias", "h.1.attn.attention.bias", "h.1.attn.attention.masked_bias")
    edit(folder, lambda weights: weights.update({f"transformer.{name}": torch.ones(1, 1, 4, 4) for name in names}))
    load_model(folder)


@pytest.mark.parametrize("kind", sorted(FOLDERS.keys() - {"phi"}), indirect=True)  # phi's head has one
def test_a_head_with_a_bias_is_not_taken_for_one_without(folder):
    edit(folder, lambda weights: weights.update({"lm_head.bias": torch.zeros(97)}))
    assert "tensors unexpected: lm_head.bias" in refusal(folder)


def test_a_tensor_of_another_shape_is_named(kind, folder):
    def cut(weights: dict[str, torch.Tensor]) -> None:
        weights[FOLDERS[kind]] = weights[FOLDERS[kind]][:1].clone()

    shape = tuple(load_file(folder / "model.safetensors")[FOLDERS[kind]].shape)
    edit(folder, cut)
    assert f"of another shape: {FOLDERS[kind]} {(1, *shape[1:])}, not {shape}" in refusal(folder)


def test_all_that_is_wrong_is_said_at_once(written, tmp_path):
    folder = Path(shutil.copytree(written / "ours", tmp_path / "folder"))

    def change(weights: dict[str, torch.Tensor]) -> None:
        for name in sorted(weights)[:7]:
            weights[f"old.{name}"] = weights.pop(name)
        weights["model.norm.weight"] = torch.ones(3)

    edit(folder, change)
    message = refusal(folder)
    assert message.count("old.") == 3
    assert message.count("and 4 more") == 2
    assert "model.norm.weight (3,), not (64,)" in message


@pytest.mark.parametrize("kept", [0, 5, 300, -10])
def test_truncated_weights_are_refused(folder, kept):
    content = (folder / "model.safetensors").read_bytes()
    (folder / "model.safetensors").write_bytes(content[:kept])
    assert "damaged or incomplete" in refusal(folder)


def test_pickles_are_not_loaded(written, tmp_path):
    folder = Path(shutil.copytree(written / "llama", tmp_path / "folder"))
    torch.save(load_file(folder / "model.safetensors"), folder / "pytorch_model.bin")
    (folder / "model.safetensors").unlink()
    assert "model.safetensors" in refusal(folder)


@pytest.mark.parametrize("name", ["sub/w.safetensors", "/tmp/w.safetensors", "w.bin", "../w.safetensors", 1])
def test_an_index_names_safetensors_beside_it_alone(folder, name):
    (folder / INDEX).write_text(json.dumps({"weight_map": {"a": "model.safetensors"}}))
    assert weight_files(folder) == [folder / "model.safetensors"]
    (folder / INDEX).write_text(json.dumps({"weight_map": {"a": name}}))
    assert "must be .safetensors files beside it" in refusal(folder)


@pytest.mark.parametrize(("index", "fault"), [
    ("{", "JSONDecodeError"), (b"\xff", "UnicodeDecodeError"), ("{}", "KeyError"), ("[]", "TypeError"), ("1", "TypeError"),
    ('{"weight_map": ["a"]}', "AttributeError"), ('{"weight_map": {"a": []}}', "TypeError"), ("[" * 99_999, "RecursionError"),
    (None, "PermissionError"),
])  # fmt: skip
def test_an_index_that_says_nothing_usable_is_refused(tmp_path, monkeypatch, index, fault):
    path = tmp_path / INDEX
    path.write_bytes(index if isinstance(index, bytes) else (index or "").encode())
    if index is None:
        monkeypatch.setattr(Path, "read_text", lambda path: (_ for _ in ()).throw(PermissionError("why")))
    with pytest.raises(ValueError, match=rf"{INDEX} cannot be read \({fault}: .*\): copy the model again"):
        weight_files(tmp_path)


@pytest.mark.parametrize(("content", "words"), [
    (b"{", r" \(.*\)"), (b"\xff", r" \(.*\)"), (b"[" * 99_999, r" \(.*\)"), (b"[]", " object"), (b"1", " object"),
])  # fmt: skip
def test_files_that_are_no_json_object_are_refused_and_none_says_nothing(tmp_path, content, words):
    assert read_json(tmp_path / "a.json") == {}
    (tmp_path / "a.json").write_bytes(content)
    with pytest.raises(ValueError, match=rf"a\.json is no JSON{words}: copy the model again"):
        read_json(tmp_path / "a.json")
    (tmp_path / "a.json").write_text('{"a": "caf\u00e9"}', encoding="utf-8")
    assert read_json(tmp_path / "a.json") == {"a": "caf\u00e9"}


@pytest.mark.parametrize("name", ["ours", "authors", "llama"])
@pytest.mark.parametrize(
    ("config", "words"),
    [(None, "no config.json"), ("{", "no JSON"), ("[]", "no JSON object"), ("{}", "model_type"), ("width", "multiple")],
)
def test_a_config_that_says_nothing_usable_is_refused(written, tmp_path, name, config, words):
    folder = Path(shutil.copytree(written / name, tmp_path / "folder"))
    text = (folder / "config.json").read_text()
    (folder / "config.json").unlink()
    if config is not None:
        width = '"hidden_size": {}'
        text = text.replace(width.format(64), width.format(63)).replace(width.format(32), width.format(31))
        (folder / "config.json").write_text(text if config == "width" else config)
    assert words in refusal(folder)


@pytest.mark.parametrize("name", ["ours", "authors", "llama"])
def test_sharded_weights_are_read_and_a_lost_part_is_refused(written, tmp_path, name):
    folder = Path(shutil.copytree(written / name, tmp_path / "folder"))
    weights = load_file(folder / "model.safetensors")
    half = len(weights) // 2
    index = {}
    for i, names in enumerate((list(weights)[:half], list(weights)[half:])):
        save_file({n: weights[n] for n in names}, folder / f"part{i}.safetensors", metadata={"format": "pt"})
        index |= dict.fromkeys(names, f"part{i}.safetensors")
    (folder / "model.safetensors").unlink()
    (folder / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": index}))
    assert torch.equal(load_model(folder).lm_head.weight, weights["lm_head.weight"])
    (folder / "part1.safetensors").unlink()
    assert "part1.safetensors" in refusal(folder)
    (folder / "model.safetensors.index.json").write_text("{}")
    assert "weight_map" in refusal(folder)


def test_a_name_that_is_nowhere_is_refused():
    with pytest.raises(ValueError, match=r"nobody/nothing: .*\n.*or a hub name"):
        load_model("nobody/nothing")


@pytest.mark.parametrize("asked", [None, torch.float32, torch.bfloat16])
@pytest.mark.parametrize("stored", [torch.bfloat16, torch.float16, torch.float32])
def test_weights_keep_the_dtype_that_they_are_stored_in_unless_another_is_asked_for(tmp_path, stored, asked):
    LlamaForCausalLM(LlamaConfig(**SMALL, **FOREIGN)).to(stored).save_pretrained(tmp_path)
    assert {each.dtype for each in load_model(tmp_path, dtype=asked).parameters()} == {asked or stored}
    assert {each.dtype for each in load_model(tmp_path).parameters()} == {torch.float32}
