"""Tests of what every model owes: shapes, causality, count, decoding, padding, saving, learning. One test each, over all."""

import dataclasses
import json
import pickle
import re
from copy import deepcopy

import pytest
import torch
from pydantic import TypeAdapter
from transformers import AutoModelForCausalLM, DynamicCache

from models.backbone import ResidualBlock
from models.build import build_model, load_model, num_params, spec_of
from models.cache import DecodingCache
from models.causal_lm import CausalLMConfig
from models.loss import token_losses
from models.recurrent import FusedOutput
from models.spec import ModelSpec
from tests.models.conftest import SPECS


def test_logits_have_the_right_shape(model, spec, tokens):
    logits = model(tokens).logits
    assert logits.shape == (*tokens.shape, spec.vocab_size)
    assert torch.isfinite(logits).all()
    kept = model(tokens, logits_to_keep=2).logits  # a smaller product: processors may add it up in another order
    torch.testing.assert_close(kept, logits[:, -2:], rtol=1e-5, atol=1e-5)


def test_future_tokens_change_nothing_earlier(model, tokens):
    changed = tokens.clone()
    changed[:, 100] = (changed[:, 100] + 1) % 97
    before, after = model(tokens).logits, model(changed).logits
    assert torch.equal(before[:, :100], after[:, :100])
    assert ((before[:, 100] - after[:, 100]).abs().amax(-1) > 0).all()


def test_parameters_are_counted_the_same_on_a_model_and_its_spec(model, spec):
    assert num_params(model) == spec.num_params
    embedding = spec.vocab_size * spec.hidden_size
    assert num_params(model) == sum(p.numel() for p in model.parameters()) - embedding


def test_a_convolution_is_as_long_as_the_spec_says(spec):
    """fla's layers take 4 where they are not told."""
    if hasattr(spec, "conv_size"):
        longer = dataclasses.replace(spec, conv_size=5)
        assert num_params(build_model(longer)) == longer.num_params > spec.num_params


def test_prefill_then_decoding_equals_the_parallel_pass(model, tokens):
    """Identity I6, with one token and with several at a time after the prefill."""
    with torch.no_grad():
        expected = model(tokens).logits
        out = model(tokens[:, :90], use_cache=True)
        logits = [out.logits]
        position = 90
        for step in (1, 1, 5, 1, 50, 1, 1):
            out = model(tokens[:, position : position + step], past_key_values=out.past_key_values)
            logits.append(out.logits)
            position += step
    assert out.past_key_values.get_seq_length() == 150
    assert torch.allclose(torch.cat(logits, 1), expected, atol=2e-5)


def test_a_cache_grows_past_its_first_blocks(model, tokens, monkeypatch):
    monkeypatch.setattr("models.cache.BLOCK", 8)
    with torch.no_grad():
        expected = model(tokens[:, :60]).logits[:, -1]
        cache = model(tokens[:, :9], use_cache=True).past_key_values
        for position in range(9, 60):
            out = model(tokens[:, position : position + 1], past_key_values=cache)
    assert torch.allclose(out.logits[:, 0], expected, atol=2e-5)


def pad_left(tokens: torch.Tensor, lengths: list[int]) -> tuple[torch.Tensor, torch.Tensor]:
    """Rows cut to their last `lengths` tokens; what stood before stays as the (arbitrary) padding."""
    mask = torch.arange(tokens.shape[1]) >= tokens.shape[1] - torch.tensor(lengths)[:, None]
    return tokens, mask.long()


def test_a_cache_holds_no_more_than_it_shows(model, tokens):
    """A view of a prefill's activations in the cache would keep all of them in memory."""

    def tensors(value):
        if value is None or isinstance(value, torch.Tensor):
            return [] if value is None else [value]
        return [x for part in (value.values() if isinstance(value, dict) else value) for x in tensors(part)]

    with torch.no_grad():
        cache = model(input_ids=tokens, use_cache=True).past_key_values
    for state in cache.layers.values():
        assert tensors(state)
        for x in tensors(state):
            assert x.untyped_storage().nbytes() == x.numel() * x.element_size(), tuple(x.shape)


def test_left_padding_leaves_no_trace(model, tokens):
    padded, mask = pad_left(tokens, [150, 80, 3])
    other = torch.where(mask.bool(), padded, (padded + 5) % 97)
    with torch.no_grad():
        out = model(padded, attention_mask=mask, use_cache=True)
        same = model(other, attention_mask=mask, use_cache=True)
        following = tokens[:, :1]
        mask_after = torch.nn.functional.pad(mask, (0, 1), value=1)
        next_logits = model(following, attention_mask=mask_after, past_key_values=out.past_key_values).logits
        for row, length in enumerate([150, 80, 3]):
            alone = model(tokens[row : row + 1, -length:], use_cache=True)
            assert torch.allclose(out.logits[row, -length:], alone.logits[0], atol=2e-5)
            assert torch.equal(out.logits[row, -length:], same.logits[row, -length:])
            after = model(following[row : row + 1], past_key_values=alone.past_key_values).logits
            assert torch.allclose(next_logits[row], after[0], atol=2e-5)


def test_a_cache_knows_its_padding(model, tokens):
    """Without a mask, its padded tokens would count as text."""
    padded, mask = pad_left(tokens[:, :80], [80, 40, 3])
    order = torch.tensor([2, 0, 1, 1])
    with torch.no_grad():
        cache = model(padded, attention_mask=mask, use_cache=True).past_key_values
        for ids in (tokens[:, 80:81], tokens[:, 81:90], tokens[:, 90:91]):
            found = model(ids, past_key_values=cache).logits
        text, ones = tokens[:, :91], torch.nn.functional.pad(mask, (0, 11), value=1)
        expected = model(text, attention_mask=ones).logits[:, -1:]
        assert torch.allclose(found, expected, atol=2e-5)
        cache.reorder_cache(order)
        found = model(tokens[order, 91:92], past_key_values=cache).logits
        ones = torch.nn.functional.pad(ones, (0, 1), value=1)
        assert torch.allclose(found, model(tokens[order, :92], attention_mask=ones[order]).logits[:, -1:], atol=2e-5)


@pytest.mark.parametrize("shape", [(3, 149), (1, 150), (2, 150), (150,), (3, 1, 150, 150)])
def test_a_mask_of_another_shape_is_refused(model, tokens, shape):
    told = re.escape(f"attention_mask of shape {shape} with 0 cached and 150 new tokens in 3 rows: it must be (3, 150)")
    with pytest.raises(ValueError, match=told):
        model(tokens, attention_mask=torch.ones(shape))


@pytest.mark.parametrize("shape", [(3, 0), (0, 3), (3,)])
def test_input_without_rows_of_tokens_is_refused(model, tokens, shape):
    with torch.no_grad():
        cache = model(tokens, use_cache=True).past_key_values
    for cached, given in ((0, {}), (0, {"use_cache": True}), (150, {"past_key_values": cache})):
        told = re.escape(f"input_ids of shape {shape} after {cached} cached tokens: it must be (batch, tokens), one of each")
        with pytest.raises(ValueError, match=told):
            model(torch.ones(shape, dtype=torch.long), **given)
    assert cache.get_seq_length() == 150


def test_a_cache_goes_on_with_its_own_rows(model, tokens):
    """One row would be spread over the others."""
    with torch.no_grad():
        for cached, new in ((1, 3), (3, 1), (3, 2)):
            cache = model(tokens[:cached, :9], use_cache=True).past_key_values
            for step in (1, 3):
                with pytest.raises(ValueError, match=f"{new} rows of tokens after a cache of {cached}: .*reorder_cache"):
                    model(tokens[:new, 9 : 9 + step], past_key_values=cache)
            rows = torch.arange(new) % cached
            cache.reorder_cache(rows)
            after = model(tokens[:new, 9:20], past_key_values=cache).logits
            text = torch.cat([tokens[rows, :9], tokens[:new, 9:20]], 1)
            torch.testing.assert_close(after, model(text).logits[:, 9:], rtol=0, atol=2e-5)


def test_rows_are_kept_by_their_indices(tokens):
    """A mask would be counted as all its rows, one of which is then spread over the others."""
    model = build_model(SPECS["hgrn2"]).eval()
    with torch.no_grad():
        caches = [model(tokens[:, :9], use_cache=True).past_key_values for _ in range(2)]
        for rows in (torch.tensor([True, False, True]), [True, False, True], [[2, 0]], [], 1, [2.0]):
            with pytest.raises(ValueError, match=r"reorder_cache of shape .* indices of rows, for a mask mask.nonzero\(\)"):
                caches[0].reorder_cache(rows)
        for cache, rows in zip(caches, (torch.tensor([2, 0]), [2, 0]), strict=True):
            cache.reorder_cache(rows)
            assert cache.rows == 2
        one, other = (model(tokens[:2, 9:10], past_key_values=cache).logits for cache in caches)
        assert torch.equal(one, other)


def test_a_cache_goes_on_in_its_own_dtype(model, tokens):
    """Under autocast or without, not in turn."""
    for first in (True, False):
        with torch.no_grad():
            with torch.autocast("cpu", torch.bfloat16, enabled=first):
                cache = model(tokens[:, :9], use_cache=True).past_key_values
            dtypes = ("torch.float32", "torch.bfloat16") if first else ("torch.bfloat16", "torch.float32")
            for step in (1, 3):
                refused = pytest.raises(ValueError, match="new tokens in {} after a cache in {}: continue".format(*dtypes))
                with torch.autocast("cpu", torch.bfloat16, enabled=not first), refused:
                    model(tokens[:, 9 : 9 + step], past_key_values=cache)
                with torch.autocast("cpu", torch.bfloat16, enabled=first):
                    model(tokens[:, 9 : 9 + step], past_key_values=cache)
    with torch.no_grad():
        cache = model(tokens[:, :9], use_cache=True).past_key_values
        with pytest.raises(ValueError, match=r"new tokens in torch.float64 after a cache in torch.float32"):
            model.double()(tokens[:, 9:10], past_key_values=cache)


def test_a_cache_hands_on_no_gradients(model, tokens):
    with torch.no_grad():
        cache = model(tokens[:, :9], use_cache=True).past_key_values
    for step in (1, 3):
        with pytest.raises(ValueError, match=r"past_key_values of 9 tokens with gradients, .*torch.no_grad\(\)"):
            model(tokens[:, 9 : 9 + step], past_key_values=cache)
    model.model.requires_grad_(False)
    assert model(tokens[:, 9:12], past_key_values=cache).logits.requires_grad, "the head's are right"


def generate(model, tokens, **options):
    options = {"max_new_tokens": 12, "do_sample": False, "pad_token_id": 0, **options}
    return model.generate(tokens, **options)


def test_cached_generation_equals_uncached(model, tokens):
    assert torch.equal(generate(model, tokens), generate(model, tokens, use_cache=False))


def test_beam_search_reorders_the_cache(model, tokens):
    beams = generate(model, tokens[:, :70], num_beams=3, max_new_tokens=6)
    assert torch.equal(beams, generate(model, tokens[:, :70], num_beams=3, max_new_tokens=6, use_cache=False))


def test_batched_generation_equals_single(model, tokens):
    padded, mask = pad_left(tokens, [150, 80, 3])
    batch = generate(model, padded, attention_mask=mask)[:, 150:]
    for row, length in enumerate([150, 80, 3]):
        alone = generate(model, tokens[row : row + 1, -length:])[0, length:]
        assert torch.equal(batch[row], alone)


def test_padding_after_tokens_is_refused_where_they_go_on(model, tokens):
    mask = torch.ones_like(tokens)
    mask[1, 80:] = 0
    for given in (mask, mask.bool()):
        with pytest.raises(ValueError, match=r"is 0 at the last token of row 1, after ones: .*padding_side='left'"):
            generate(model, tokens, attention_mask=given)
        with pytest.raises(ValueError, match=r"is 0 at the last token of row 1, after ones: .*padding_side='left'"):
            model(tokens, given, use_cache=True)
    alone = model(tokens[1:2, :80]).logits[0]
    assert torch.allclose(model(tokens, mask).logits[1, :80], alone, atol=2e-5), "without a cache it is right"


def test_a_mask_that_generate_makes_hides_no_text(model, tokens):
    """It has zeros wherever the pad token stands."""
    text, ones = tokens[:1, :60].clone(), torch.ones(1, 60, dtype=torch.long)
    text[0, 30] = 0
    assert torch.equal(generate(model, text, pad_token_id=0), generate(model, text, pad_token_id=0, attention_mask=ones))


@pytest.mark.parametrize("name", ["output_attentions", "output_hidden_states"])
def test_generation_returns_nothing_else(tokens, name):
    model = build_model(SPECS["fox_pro"]).eval()
    for made in ({"return_dict_in_generate": True}, {"num_beams": 2}):
        with pytest.raises(ValueError, match=f"{name}=True: models here return none; leave it out"):
            generate(model, tokens, **made, **{name: True})
    assert generate(model, tokens[:, :9], return_dict_in_generate=True, **{name: False}).sequences.shape == (3, 21)


def test_a_given_cache_is_continued(model, tokens):
    cache = model(tokens[:, :100], use_cache=True).past_key_values
    continued = generate(model, tokens[:, :120], past_key_values=cache)
    assert torch.equal(continued, generate(model, tokens[:, :120]))


def test_a_cache_of_inference_mode_is_continued_outside(model, tokens):
    """As by generate, which only leaves out gradients."""
    with torch.inference_mode():
        cache = model(tokens[:, :100], use_cache=True).past_key_values
    continued = generate(model, tokens[:, :120], past_key_values=cache)
    assert torch.equal(continued, generate(model, tokens[:, :120]))


@pytest.mark.parametrize("key", ["fox_pro"])
@pytest.mark.parametrize("kind", ["room", "longest"])
def test_states_that_stay_are_updated_in_the_mode_that_made_them(model, tokens, kind):
    for begin, end, refused in ((True, False, True), (True, True, False), (False, True, False), (False, False, False)):
        cache = DecodingCache(**{kind: 120})
        with torch.inference_mode(begin), torch.no_grad():
            model(tokens[:, :100], past_key_values=cache)
        with torch.inference_mode(end), torch.no_grad():
            if refused:
                with pytest.raises(ValueError, match=f"cache with {kind}=120, begun in inference mode"):
                    model(tokens[:, 100:101], past_key_values=cache)
                assert cache.seq_len == 100
            else:
                model(tokens[:, 100:101], past_key_values=cache)
                assert cache.seq_len == 101


def test_a_given_cache_is_continued_by_new_tokens_alone(model, tokens):
    """As Hugging Face has it where a mask tells of all, one of ones too."""
    for lengths in ([20, 9, 3], [20, 20, 20]):
        padded, mask = pad_left(tokens[:, :20], lengths)
        expected = generate(model, padded, attention_mask=mask)[:, 20:]
        for cached in (5, 10, 18):
            cache = model(padded[:, :cached], attention_mask=mask[:, :cached], use_cache=True).past_key_values
            found = generate(model, padded[:, cached:], attention_mask=mask, past_key_values=cache)
            assert torch.equal(found[:, 20 - cached :], expected)
        for chunk in (7, 20, 30):
            found = generate(model, padded, attention_mask=mask, past_key_values=DecodingCache(), prefill_chunk_size=chunk)
            assert torch.equal(found[:, 20:], expected)


def test_a_given_cache_is_continued_whatever_use_cache_says(model, tokens):
    cache = model(tokens[:, :10], use_cache=True).past_key_values
    continued = generate(model, tokens[:, :20], past_key_values=cache, use_cache=False)
    assert torch.equal(continued, generate(model, tokens[:, :20]))


@pytest.mark.parametrize("given", [3, 9])
def test_a_prompt_without_new_tokens_is_refused(tokens, given):
    model = build_model(SPECS["hgrn2"]).eval()
    cache = model(tokens[:, :9], use_cache=True).past_key_values
    with pytest.raises(ValueError, match=f"input_ids of {given} tokens with past_key_values of 9: give the whole text, or"):
        generate(model, tokens[:, :given], past_key_values=cache)


class Adapted(torch.nn.Module):
    """A linear map with an adapter beside it, as LoRA has it: `weight` is that of the map alone."""

    def __init__(self, base: torch.nn.Linear) -> None:
        super().__init__()
        self.base, self.beside = base, torch.nn.Linear(base.in_features, base.out_features, bias=False)

    weight, bias = property(lambda self: self.base.weight), property(lambda self: self.base.bias)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.base(x) + self.beside(x)


def linears(model) -> dict[str, torch.nn.Linear]:
    return {name: module for name, module in model.named_modules() if type(module) is torch.nn.Linear}


@pytest.mark.parametrize("key", ["fox_pro"])
def test_pefts_wrapper_is_a_model_too(model, tokens):
    """It passes inputs_embeds, output_attentions, output_hidden_states and return_dict without a value."""
    from peft import LoraConfig, get_peft_model

    given = LoraConfig(task_type="CAUSAL_LM", target_modules=["q_proj", "fgate_proj", "linear"], init_lora_weights=False)
    wrapped = get_peft_model(model, given).eval()
    found = wrapped(input_ids=tokens, labels=tokens)
    expected = torch.nn.functional.cross_entropy(found.logits.mT, tokens, reduction="none")
    torch.testing.assert_close(token_losses(wrapped, tokens, tokens), expected)
    found.loss.backward()
    assert all(p.grad is not None for p in wrapped.parameters() if p.requires_grad)
    texts = wrapped.generate(input_ids=tokens[:, :5], max_new_tokens=3, do_sample=False)
    assert torch.equal(texts[:, 5], wrapped(input_ids=tokens[:, :5]).logits[:, -1].argmax(-1)) and texts.shape[1] == 8


@pytest.mark.parametrize("key", ["fox_pro"])
@pytest.mark.parametrize("name", ["inputs_embeds", "output_attentions", "output_hidden_states"])
def test_what_a_model_neither_reads_nor_returns_is_refused(model, tokens, name):
    value = model.get_input_embeddings()(tokens) if name == "inputs_embeds" else True
    with pytest.raises(ValueError, match=f"^{name}.*: models here"):
        model(tokens, **{name: value})


@pytest.mark.parametrize("key", ["fox_pro"])
def test_a_tuple_is_returned_where_it_is_asked_for(model, tokens):
    """By the call, or else by the configuration."""
    for given, configured, kind in ((None, True, dict), (False, True, tuple), (None, False, tuple), (True, False, dict)):
        model.config.return_dict = configured
        assert isinstance(model(tokens, return_dict=given), kind)


def test_adapters_and_hooks_are_heeded(model, key, tokens):
    """On every linear map, in logits and losses; an output projection that fla does not call refuses both."""
    merged, called = deepcopy(model), set[str]()
    refused = pytest.raises(ValueError, match=r"o_proj of layer 0, a .*: fla uses only its weight")
    fused = {f"{name}.o_proj" for name, module in model.named_modules() if isinstance(module, FusedOutput)}
    assert bool(fused) or key != "hgrn2"
    if fused:
        for attach in (Adapted, lambda module: module.register_forward_hook(print) and module):
            broken = deepcopy(model)
            broken.model.layers[0].attn.o_proj = attach(broken.model.layers[0].attn.o_proj)
            with refused:
                broken(tokens[:, :9])
    chosen = {name: linear for name, linear in linears(model).items() if name not in fused}
    hooked, expected = deepcopy(model), model(tokens).logits
    for name in chosen:
        hooked.get_submodule(name).register_forward_hook(lambda *_, name=name: called.add(name))
    torch.testing.assert_close(hooked(tokens).logits, expected, rtol=0, atol=2e-5)
    assert called == set(chosen), "a layer takes a map's weight alone: if it is o_proj, begin its bases with FusedOutput"
    for name, linear in chosen.items():
        model.set_submodule(name, Adapted(linear))
        with torch.no_grad():
            merged.get_submodule(name).weight += model.get_submodule(name).beside.weight
    torch.testing.assert_close(model(tokens).logits, merged(tokens).logits, rtol=0, atol=5e-5)
    torch.testing.assert_close(token_losses(model, tokens, tokens), token_losses(merged, tokens, tokens), rtol=0, atol=5e-5)


def test_saving_and_loading_keep_the_logits(model, spec, tokens, tmp_path):
    expected = model(tokens).logits
    model.save_pretrained(tmp_path)
    assert json.loads((tmp_path / "config.json").read_text())["spec"] == dataclasses.asdict(spec)
    for loaded in (load_model(tmp_path), AutoModelForCausalLM.from_pretrained(tmp_path).eval()):
        assert torch.equal(loaded(tokens).logits, expected)
        assert spec_of(loaded) == spec
    half = load_model(tmp_path, dtype=torch.bfloat16)
    assert half.get_output_embeddings().weight.dtype == torch.bfloat16
    assert (half(tokens).logits.float() - expected).abs().max() < 0.1 * expected.abs().max()


@pytest.mark.parametrize("key", ["transformer_llama"])
def test_an_export_takes_any_length(key, model, tokens):
    """Attention over a whole text, without gates."""
    lengths = {"input_ids": {1: torch.export.Dim("tokens", min=2, max=4096)}}
    with torch.no_grad():
        exported = torch.export.export(model, (tokens[:, :9].clone(),), dynamic_shapes=lengths, strict=False).module()
        for length in (9, 40):
            torch.testing.assert_close(exported(tokens[:, :length]).logits, model(tokens[:, :length]).logits)


def test_pickling_keeps_the_logits(model, tokens):
    """As torch.save of a whole model and processes that are spawned ask for it."""
    assert torch.equal(pickle.loads(pickle.dumps(model))(tokens).logits, model(tokens).logits)


def test_the_spec_comes_back_from_the_model(model, spec):
    assert spec_of(model) == spec
    assert spec_of(build_model(spec, "meta")) == spec
    adapter = TypeAdapter(ModelSpec)
    assert adapter.validate_json(adapter.dump_json(spec)) == spec


def test_the_seed_decides_the_weights(spec):
    def weights(seed: int) -> list[torch.Tensor]:
        torch.manual_seed(seed)
        return list(build_model(spec).parameters())

    assert all(torch.equal(a, b) for a, b in zip(weights(3), weights(3), strict=True))
    assert not all(torch.equal(a, b) for a, b in zip(weights(3), weights(4), strict=True))


def test_ten_steps_lower_the_loss(spec, tokens):
    torch.manual_seed(0)
    model = build_model(spec).train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    losses = []
    for _ in range(10):
        loss = token_losses(model, tokens[:, :-1], tokens[:, 1:]).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[0] == pytest.approx(torch.tensor(97.0).log().item(), abs=0.3)
    assert losses[-1] < losses[0] - 0.5


def test_every_used_parameter_gets_a_gradient(model, tokens):
    """DDP waits for every parameter that requires a gradient."""
    token_losses(model, tokens[:, :-1], tokens[:, 1:]).mean().backward()
    without = [n for n, p in model.named_parameters() if p.requires_grad and (p.grad is None or not p.grad.any())]
    assert without == []


def test_activation_checkpointing_changes_no_gradient(model, tokens):
    def gradients() -> list[torch.Tensor | None]:
        model.zero_grad()
        token_losses(model, tokens[:, :-1], tokens[:, 1:]).mean().backward()
        return [None if p.grad is None else p.grad.clone() for p in model.parameters()]

    model.train()
    plain = gradients()
    recomputed = []
    handles = [m.register_forward_pre_hook(lambda *_: recomputed.append(1)) for m in mixers(model)]
    model.gradient_checkpointing_enable()
    for a, b in zip(plain, gradients(), strict=True):
        assert (a is None and b is None) or torch.equal(a, b)
    assert len(recomputed) == 2 * len(handles)


def test_a_cache_is_no_part_of_what_is_recomputed(model, tokens):
    """The blocks would read it as the first pass has left it."""

    def gradients(**options) -> list[torch.Tensor | None]:
        model.zero_grad()
        model(tokens, labels=tokens, **options).loss.backward()
        return [None if p.grad is None else p.grad.clone() for p in model.parameters()]

    model.train()
    model.gradient_checkpointing_enable()
    for a, b in zip(gradients(), gradients(use_cache=True), strict=True):
        assert (a is None and b is None) or torch.equal(a, b)
    assert model(tokens, use_cache=True).past_key_values is None
    with torch.no_grad():
        cache = model(tokens, use_cache=True).past_key_values
    assert cache.get_seq_length() == 150, "without gradients nothing is recomputed"
    with pytest.raises(ValueError, match=r"past_key_values of 150 tokens with gradient checkpointing: .*disable"):
        model(tokens, past_key_values=cache)


def mixers(model) -> list[torch.nn.Module]:
    blocks = [m for m in model.modules() if isinstance(m, ResidualBlock)]
    return [block.attn if hasattr(block, "attn") else block.mixer for block in blocks]


def test_the_residual_stream_stays_fp32_under_autocast(model, tokens):
    """Mixers and MLPs compute in bf16, what they are added to does not."""
    seen: dict[str, set[torch.dtype]] = {"block": set(), "mixer": set()}
    for kind, modules in (
        ("block", [m for m in model.modules() if isinstance(m, ResidualBlock)]),
        ("mixer", mixers(model)),
    ):
        for module in modules:
            # fla's layers give more than what is added: that comes first
            module.register_forward_hook(lambda m, i, o, kind=kind: seen[kind].add((o[0] if isinstance(o, tuple) else o).dtype))
    with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
        logits = model(tokens).logits
    assert logits.dtype == torch.bfloat16
    assert seen["block"] == {torch.float32}
    exact = model(tokens).logits
    assert (logits.float() - exact).abs().max() < 0.1 * exact.abs().max()


def test_shifted_labels_follow_the_convention_of_hugging_face(model, tokens):
    expected = token_losses(model, tokens[:, :-1], tokens[:, 1:]).mean()
    assert torch.allclose(model(tokens, labels=tokens).loss, expected, atol=1e-5)
    with torch.no_grad():
        assert deepcopy(model).bfloat16()(tokens, labels=tokens).loss.dtype == torch.float32


@pytest.mark.parametrize("shape", [(3, 8), (4, 7), (27,)])
def test_labels_of_another_shape_are_refused(tokens, shape):
    """Four rows of seven have as many to predict as three of nine."""
    model, labels = build_model(SPECS["hgrn2"]), torch.zeros(shape, dtype=torch.long)
    told = re.escape(f"labels of shape {shape} with input_ids of (3, 9): give a label for each token, -100 where")
    with pytest.raises(ValueError, match=told):
        model(tokens[:, :9], labels=labels)


def test_labels_that_carry_no_loss(tokens):
    """By Hugging Face's convention they are left out of the mean, which is NaN of nothing."""
    model, labels = build_model(SPECS["hgrn2"]), tokens[:, :9].clone()
    labels[1:] = -100
    expected = token_losses(model, tokens[:1, :8], tokens[:1, 1:9]).mean()
    assert torch.allclose(model(tokens[:, :9], labels=labels).loss, expected, atol=1e-5)
    assert model(tokens[:, :9], labels=torch.full_like(labels, -100)).loss.isnan()


def test_a_loss_needs_all_logits(model, tokens):
    for kept in (1, torch.tensor([149])):
        with pytest.raises(ValueError, match=r"logits_to_keep=.* with labels"):
            model(tokens, labels=tokens, logits_to_keep=kept)


def test_a_cache_of_another_kind_is_refused(model, tokens):
    with pytest.raises(ValueError, match="past_key_values is a DynamicCache; give a DecodingCache or use_cache=True"):
        model(tokens, past_key_values=DynamicCache())


def test_another_vocabulary_is_refused_before_anything_changes(model, spec, tokens):
    before = model(tokens).logits
    with pytest.raises(ValueError, match=r"resize_token_embeddings to 100: the spec has vocab_size 97; build_model"):
        model.resize_token_embeddings(100)
    with pytest.raises(ValueError, match="resize_token_embeddings to 104"):
        model.resize_token_embeddings(pad_to_multiple_of=8)
    assert model.resize_token_embeddings() is model.resize_token_embeddings(97) is model.get_input_embeddings()
    assert torch.equal(model(tokens).logits, before) and spec_of(model) == spec


def test_a_tied_head_is_refused(tmp_path):
    """In a configuration of one's own, and where a folder is loaded."""
    config = CausalLMConfig(dataclasses.asdict(SPECS["fox_pro"]), tie_word_embeddings=True)
    with pytest.raises(ValueError, match="tie_word_embeddings is True: models here have a head of their own"):
        AutoModelForCausalLM.from_config(config)
    build_model(SPECS["fox_pro"]).save_pretrained(tmp_path)
    with pytest.raises(ValueError, match="tie_word_embeddings is True"):
        AutoModelForCausalLM.from_pretrained(tmp_path, tie_word_embeddings=True)


def test_a_configuration_says_its_sizes_by_the_names_of_others():
    config = CausalLMConfig({"vocab_size": 5, "hidden_size": 6, "num_layers": 7})
    assert (config.vocab_size, config.hidden_size, config.num_hidden_layers) == (5, 6, 7)
