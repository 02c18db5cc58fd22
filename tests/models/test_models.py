"""What every model owes: causality, counts, decoding, padding, saving, gradients, learning. Once each, over all kinds."""

import dataclasses
import json
import pickle
from copy import deepcopy
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from pydantic import TypeAdapter
from torch.utils._pytree import tree_leaves
from transformers import AutoModelForCausalLM, DynamicCache

from models.backbone import ResidualBlock
from models.build import build_model, load_model, num_params, spec_of
from models.cache import BLOCK, DecodingCache
from models.causal_lm import CausalLMConfig
from models.loss import token_losses
from models.recurrent import FusedOutput
from models.spec import ModelSpec
from tests.models.conftest import SPECS, generate, pad_left, spread


def test_future_tokens_change_nothing_earlier(model, spec, tokens):
    changed = tokens.clone()
    changed[:, 100] = (changed[:, 100] + 1) % spec.vocab_size
    before, after = model(tokens).logits, model(changed).logits
    assert before.shape == (*tokens.shape, spec.vocab_size) and torch.isfinite(before).all()
    assert torch.equal(before[:, :100], after[:, :100])
    assert ((before[:, 100] - after[:, 100]).abs().amax(-1) > 0).all()
    torch.testing.assert_close(model(tokens, logits_to_keep=2).logits, before[:, -2:], rtol=1e-5, atol=1e-5)


def test_parameters_are_counted_the_same_on_a_model_and_its_spec(model, spec):
    embedding = spec.vocab_size * spec.hidden_size
    assert num_params(model) == spec.num_params == sum(p.numel() for p in model.parameters()) - embedding
    if hasattr(spec, "conv_size"):  # fla's layers take 4 where they are not told
        longer = dataclasses.replace(spec, conv_size=5)
        assert num_params(build_model(longer)) == longer.num_params > spec.num_params


def test_prefill_then_decoding_equals_the_parallel_pass(model, spec, tokens):
    """Identity I6, one token at a time and several; the cache holds what the spec counts, and no views of more."""
    with torch.no_grad():
        expected = model(tokens).logits
        out = model(tokens[:, :90], use_cache=True)
        cache, logits = out.past_key_values, [out.logits]
        for step in (1, 1, 5, 1, 50, 1, 1):
            start = cache.get_seq_length()
            logits.append(model(tokens[:, start : start + step], past_key_values=cache).logits)
    torch.testing.assert_close(torch.cat(logits, 1), expected, rtol=0, atol=2e-5)
    held = 0
    for x in (x for x in tree_leaves(list(cache.layers.values())) if isinstance(x, torch.Tensor)):
        assert x.untyped_storage().nbytes() == x.numel() * x.element_size()
        length = 150 if x.shape[1] == 2 * BLOCK else x.shape[1]  # attention's sequences have room for more
        held += x[0].numel() * length // x.shape[1]
    assert held == spec.state_size(150)


def test_left_padding_leaves_no_trace(model, tokens):
    """A padded row of a batch is as the row alone, whatever the padding; so it stays while decoding, also reordered."""
    mask, order = pad_left(tokens[:, :80], [80, 40, 3]), torch.tensor([2, 0, 1, 1])
    with torch.no_grad():
        cache = (padded := model(tokens[:, :80], mask, use_cache=True)).past_key_values
        other = model(torch.where(mask.bool(), tokens[:, :80], 5), mask, use_cache=True).logits
        steps = [model(tokens[:, at : at + new], past_key_values=cache).logits for at, new in ((80, 1), (81, 9), (90, 1))]
        found = torch.cat([padded.logits, *steps], 1)
        cache.reorder_cache(order)
        last = model(tokens[order, 91:92], past_key_values=cache).logits
        for row, length in enumerate((80, 40, 3)):
            alone = model(tokens[row : row + 1, 80 - length : 92]).logits[0]
            torch.testing.assert_close(found[row, 80 - length :], alone[:-1], rtol=0, atol=2e-5)
            torch.testing.assert_close(last[order == row, 0], alone[-1:].expand((order == row).sum(), -1), rtol=0, atol=2e-5)
            assert torch.equal(padded.logits[row, 80 - length :], other[row, 80 - length :])


def test_generation_is_that_without_a_cache(model, tokens):
    """Also in beams, and over a cache of the text's beginning."""
    mask = pad_left(tokens[:, :20], [20, 9, 3])
    expected = generate(model, tokens[:, :20], attention_mask=mask, use_cache=False)
    assert torch.equal(generate(model, tokens[:, :20], attention_mask=mask), expected)
    cache = model(tokens[:, :18], mask[:, :18], use_cache=True).past_key_values
    assert torch.equal(generate(model, tokens[:, 18:20], attention_mask=mask, past_key_values=cache), expected[:, 18:])
    beams = dict(num_beams=3, max_new_tokens=6)
    plain = generate(model, tokens[:, :70], use_cache=False, **beams)
    assert torch.equal(generate(model, tokens[:, :70], **beams), plain)


class Adapted(torch.nn.Module):
    """A linear map with an adapter beside it, as LoRA has it: `weight` is that of the map alone."""

    def __init__(self, base: torch.nn.Linear) -> None:
        super().__init__()
        self.base, self.beside = base, torch.nn.Linear(base.in_features, base.out_features, bias=False)

    weight, bias = property(lambda self: self.base.weight), property(lambda self: self.base.bias)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.base(x) + self.beside(x)


def test_adapters_and_hooks_are_heeded(model, key, tokens):
    """On every linear map, in logits and losses; an output projection that fla does not call refuses both."""
    fused = {f"{name}.o_proj" for name, module in model.named_modules() if isinstance(module, FusedOutput)}
    assert bool(fused) or key != "hgrn2"
    for attach in (Adapted, lambda module: module.register_forward_hook(print) and module) if fused else ():
        broken = deepcopy(model)
        broken.model.layers[0].attn.o_proj = attach(broken.model.layers[0].attn.o_proj)
        with pytest.raises(ValueError, match="fla uses only its weight"):
            broken(tokens[:, :9])
    linears = [name for name, m in model.named_modules() if type(m) is torch.nn.Linear and name not in fused]
    merged, hooked, called = deepcopy(model), deepcopy(model), set[str]()
    for name in linears:
        hooked.get_submodule(name).register_forward_hook(lambda *_, name=name: called.add(name))
    torch.testing.assert_close(hooked(tokens).logits, model(tokens).logits, rtol=0, atol=2e-5)
    assert called == set(linears), "a layer takes a map's weight alone: if it is o_proj, begin its bases with FusedOutput"
    for name in linears:
        model.set_submodule(name, Adapted(model.get_submodule(name)))
        with torch.no_grad():
            merged.get_submodule(name).weight += model.get_submodule(name).beside.weight
    torch.testing.assert_close(model(tokens).logits, merged(tokens).logits, rtol=0, atol=5e-5)
    losses, wanted = (token_losses(each, tokens, tokens) for each in (model, merged))
    torch.testing.assert_close(losses, wanted, rtol=0, atol=5e-5)


def test_saving_loading_and_pickling_keep_the_logits(model, spec, tokens, tmp_path):
    expected = model(tokens).logits
    model.save_pretrained(tmp_path)
    assert json.loads((tmp_path / "config.json").read_text())["spec"] == dataclasses.asdict(spec)
    for loaded in (load_model(tmp_path), AutoModelForCausalLM.from_pretrained(tmp_path), pickle.loads(pickle.dumps(model))):
        assert torch.equal(loaded.eval()(tokens).logits, expected)
        assert spec_of(loaded) == spec
    half = load_model(tmp_path, dtype=torch.bfloat16)
    assert half.get_output_embeddings().weight.dtype == torch.bfloat16
    assert (half(tokens).logits.float() - expected).abs().max() < 0.1 * expected.abs().max()
    adapter = TypeAdapter(ModelSpec)
    assert adapter.validate_json(adapter.dump_json(spec)) == spec == spec_of(build_model(spec, "meta"))


def test_ten_steps_lower_the_loss_as_the_seed_says(spec, tokens):
    def losses(seed: int, steps: int) -> list[float]:
        torch.manual_seed(seed)
        model = build_model(spec).train()
        optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
        found = []
        for _ in range(steps):
            loss = token_losses(model, tokens[:, :-1], tokens[:, 1:]).mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            found.append(loss.item())
        return found

    found = losses(0, 10)
    assert found[0] == pytest.approx(torch.tensor(97.0).log().item(), abs=0.3)
    assert found[-1] < found[0] - 0.5
    assert losses(0, 2) == found[:2] and losses(1, 1) != found[:1]


def mixers(model: Any) -> list[torch.nn.Module]:
    blocks = [m for m in model.modules() if isinstance(m, ResidualBlock)]
    return [block.attn if hasattr(block, "attn") else block.mixer for block in blocks]


def test_every_parameter_gets_a_gradient_recomputed_or_not(model, tokens):
    """DDP waits for each that requires one; activation checkpointing changes none, with `use_cache` neither."""

    def gradients(**options: bool) -> dict[str, torch.Tensor]:
        model.zero_grad()
        model(tokens, labels=tokens, **options).loss.backward()
        return {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}

    model.train()
    plain, recomputed = gradients(), []
    assert [name for name, p in model.named_parameters() if p.requires_grad and not plain[name].any()] == []
    handles = [m.register_forward_pre_hook(lambda *_: recomputed.append(1)) for m in mixers(model)]
    model.gradient_checkpointing_enable()
    for options in ({}, {"use_cache": True}):
        again = gradients(**options)
        assert again.keys() == plain.keys() and all(torch.equal(again[name], plain[name]) for name in plain)
    assert len(recomputed) == 4 * len(handles)


def test_the_residual_stream_stays_fp32_under_autocast(model, tokens):
    """Mixers and MLPs compute in bf16, what they are added to does not."""
    seen = set()
    for block in (m for m in model.modules() if isinstance(m, ResidualBlock)):
        block.register_forward_hook(lambda m, i, o: seen.add(o.dtype))
    with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
        logits = model(tokens).logits
    assert logits.dtype == torch.bfloat16 and seen == {torch.float32}
    exact = model(tokens).logits
    assert (logits.float() - exact).abs().max() < 0.1 * exact.abs().max()


def test_losses_are_those_of_the_logits(model, tokens):
    """Per token, unshifted; and by labels, which Hugging Face's convention shifts, in fp32 whatever the weights are in."""
    inputs, targets = tokens[:, :-1], tokens[:, 1:]
    expected = F.cross_entropy(model(inputs).logits.mT, targets, reduction="none")
    losses = token_losses(model, inputs, targets)
    assert losses.dtype == torch.float32
    torch.testing.assert_close(losses, expected, rtol=0, atol=2e-6)
    torch.testing.assert_close(model(tokens, labels=tokens).loss, losses.mean(), rtol=0, atol=1e-5)
    part = torch.where(torch.arange(150) < 40, -100, tokens)
    torch.testing.assert_close(model(tokens, labels=part).loss, losses[:, 39:].mean(), rtol=0, atol=1e-5)
    with torch.no_grad():
        assert model.bfloat16()(tokens, labels=tokens).loss.dtype == torch.float32


@pytest.mark.parametrize("key", ["fox_pro"])
def test_pefts_wrapper_is_a_model_too(model, tokens):
    from peft import LoraConfig, get_peft_model

    given = LoraConfig(task_type="CAUSAL_LM", target_modules=["q_proj", "fgate_proj", "linear"], init_lora_weights=False)
    wrapped = get_peft_model(model, given).eval()
    found = wrapped(input_ids=tokens, labels=tokens)
    expected = F.cross_entropy(found.logits.mT, tokens, reduction="none")
    torch.testing.assert_close(token_losses(wrapped, tokens, tokens), expected)
    found.loss.backward()
    assert all(p.grad is not None for p in wrapped.parameters() if p.requires_grad)
    texts = wrapped.generate(input_ids=tokens[:, :5], max_new_tokens=3, do_sample=False)
    assert torch.equal(texts[:, 5], wrapped(input_ids=tokens[:, :5]).logits[:, -1].argmax(-1)) and texts.shape[1] == 8


def cached(model: Any, tokens: torch.Tensor) -> DecodingCache:
    with torch.no_grad():
        return model(tokens[:, :9], use_cache=True).past_key_values


MISUSED = {
    "another mask": lambda m, t: m(t, attention_mask=torch.ones(3, 149)),
    "padding on the right": lambda m, t: m(t, pad_left(t, [150, 150, 3]).flip(1), use_cache=True),
    "no tokens": lambda m, t: m(t[:, :0]),
    "other rows": lambda m, t: m(t[:1, 9:10], past_key_values=cached(m, t)),
    "another dtype": lambda m, t: m.bfloat16()(t[:, 9:10], past_key_values=cached(deepcopy(m).float(), t)),
    "gradients over a cache": torch.enable_grad()(lambda m, t: m(t[:, 9:10], past_key_values=cached(m, t))),
    "a mask as indices": lambda m, t: cached(m, t).reorder_cache(torch.tensor([True, False, True])),
    "a cache of another kind": lambda m, t: m(t, past_key_values=DynamicCache()),
    "nothing new": lambda m, t: generate(m, t[:, :9], past_key_values=cached(m, t)),
    "embeddings": lambda m, t: m(t, inputs_embeds=m.get_input_embeddings()(t)),
    "attentions": lambda m, t: m(t, output_attentions=True),
    "other labels": lambda m, t: m(t, labels=t[:, 1:]),
    "labels without logits": lambda m, t: m(t, labels=t, logits_to_keep=1),
    "another vocabulary": lambda m, t: m.resize_token_embeddings(100),
    "a tied head": lambda m, t: AutoModelForCausalLM.from_config(CausalLMConfig(m.config.spec, tie_word_embeddings=True)),
    "targets of another shape": lambda m, t: token_losses(m, t, t[:, 1:]),
}


@pytest.mark.parametrize("how", MISUSED)
def test_what_would_be_wrong_in_silence_is_refused(how, tokens):
    with torch.no_grad(), pytest.raises(ValueError):  # noqa: PT011
        MISUSED[how](spread(SPECS["fox_pro"]), tokens)


def test_an_export_takes_any_length(tokens):
    """Attention over a whole text, without gates."""
    model = spread(SPECS["transformer_llama"])
    lengths = {"input_ids": {1: torch.export.Dim("tokens", min=2, max=4096)}}
    with torch.no_grad():
        exported = torch.export.export(model, (tokens[:, :9].clone(),), dynamic_shapes=lengths, strict=False).module()
        torch.testing.assert_close(exported(tokens[:, :40]).logits, model(tokens[:, :40]).logits)


def test_a_cached_sequence_grows_by_blocks_and_a_window_keeps_its_own():
    cache, whole = DecodingCache(), torch.randn(2, 1000, 3)
    for length in (5, 1, 250, 1, 300, 443):
        new = whole[:, cache.seq_len : cache.seq_len + length]
        (grown,) = cache.append(0, k=new)
        (slid,) = cache.append(1, 7, k=new)
        cache.seq_len += length
        assert torch.equal(grown, whole[:, : cache.seq_len])
        assert torch.equal(
            slid[:, -min(cache.seq_len, 6 + length) :], whole[:, max(0, cache.seq_len - 6 - length) : cache.seq_len]
        )
    assert cache[0]["k"].shape[1] <= 1000 + 2 * BLOCK and cache[1]["k"].shape[1] == 7
