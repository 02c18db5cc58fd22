"""Generation whose cache lets go of keys for good: what it writes, what it keeps, and that it says what it cannot do."""

import copy
import math
import sys

import pytest
import torch
from torch.utils._pytree import tree_leaves

from kernels.forgetting_attention import pruning_threshold
from models import cache as cache_module
from models.build import build_model
from models.cache import DecodingCache
from models.forgetting_transformer import eviction, module
from models.spec import ForgettingTransformerSpec
from tests.models.test_forgetting_transformer import BASE, PRO

PROMPT, LENGTH = 200, 230


@pytest.fixture
def model():
    """Heads of each layer forget within some tokens, some ten, some ten more, and never."""
    torch.manual_seed(0)
    model = build_model(ForgettingTransformerSpec(**BASE, **PRO)).eval()
    for layer in model.model.layers:
        with torch.no_grad():
            layer.attn.fgate_proj.weight.normal_(0, 0.02)
            layer.attn.fgate_proj.bias.copy_(torch.tensor([-1.0, 1.0, 2.0, 20.0]))
            layer.attn.q_norm.weight.fill_(1.5)
    return model


def tokens(rows=2, length=LENGTH):
    return torch.randint(31, (rows, length), generator=torch.Generator().manual_seed(1))


def logits_along(model, cache, mask=None, length=LENGTH):
    """Logits of all tokens after a prompt, one by one."""
    text = tokens(length=length)
    given = [None if mask is None else mask[:, :end] for end in range(length + 1)]
    with torch.no_grad():
        model(text[:, :PROMPT], attention_mask=given[PROMPT], past_key_values=cache)
        steps = [
            model(text[:, at : at + 1], attention_mask=given[at + 1], past_key_values=cache).logits
            for at in range(PROMPT, length)
        ]
    return torch.cat(steps, 1)


@pytest.mark.parametrize("padded", [False, True])
def test_logits_are_those_with_all_keys_and_bytes_fall(model, padded, monkeypatch):
    mask = torch.ones(2, LENGTH, dtype=torch.long)
    mask[1, :40] = 0 if padded else 1
    whole, evicting = DecodingCache(), DecodingCache(longest=LENGTH)
    expected = logits_along(model, whole, mask)
    found = logits_along(model, evicting, mask)
    # A query loses less than e^-10 in each of two layers, with values and logits of this size.
    torch.testing.assert_close(found, expected, rtol=0, atol=math.exp(-10))
    remaining = sum(int(layer["keys"]["length"].sum()) for layer in evicting.layers.values())
    assert remaining < 0.75 * 2 * 2 * 4 * LENGTH  # of two layers, two texts, four heads
    assert evicting[0]["keys"]["length"][7] == mask[1].sum()  # the second text's head that never forgets
    monkeypatch.setattr(module, "pruning_threshold", lambda *given: 0.05 * pruning_threshold(*given))
    broken = logits_along(model, DecodingCache(longest=LENGTH), mask)
    assert (broken - expected).abs().max() > 100 * math.exp(-10)


@pytest.mark.parametrize("spare", [1, 1000])  # laid anew in its own memory, or in other
def test_what_remains_are_the_keys_above_the_threshold(model, spare, monkeypatch):
    """Right after all were laid anew, which takes place each so many tokens, with the newest key behind them."""
    for name, value in (("PLACES", 10), ("SPARE", spare), ("STRIDE", 500)):
        monkeypatch.setattr(eviction, name, value)
    monkeypatch.setattr(cache_module, "PLACES", 10)
    cache, whole, moved = DecodingCache(longest=400), DecodingCache(), []
    move = cache.move
    monkeypatch.setattr(cache, "move", lambda layer, **state: moved.append(layer) or move(layer, **state))
    logits_along(model, cache, length=LENGTH + 1)
    logits_along(model, whole, length=LENGTH + 1)
    assert cache.free == 9 and len(moved) == (0 if spare == 1 else 6), "three times, each of two layers"
    for layer, block in enumerate(model.model.layers):
        keys = cache[layer]["keys"]
        gate_sum = whole[layer]["gate_sum"][:, : LENGTH + 1]
        bound = math.sqrt(block.attn.spec.head_dim) * 1.5  # QK-norm's, with scales of 1.5 and 1
        seen_BTH = gate_sum[:, -2:-1] - gate_sum >= -2 * bound - math.log(400) - 10
        assert keys["length"].tolist() == seen_BTH.sum(1).flatten().tolist()
        assert keys["threshold"].tolist() == pytest.approx([-2 * bound - math.log(400) - 10] * 8)
        for row, head in ((0, 0), (1, 2), (1, 3)):
            first, length = (int(keys[name][4 * row + head]) for name in ("first", "length"))
            for name in ("k", "v", "gate_sum"):
                own = whole[layer][name][row, : LENGTH + 1, head][seen_BTH[row, :, head]]
                torch.testing.assert_close(keys[name][first : first + length], own)


@pytest.mark.parametrize("stride", [1, 4])
def test_no_head_gets_more_keys_than_its_list_says(stride, monkeypatch):
    """Until it is laid anew, by which kernels choose how far they read; and no more than the rounding beyond that."""
    for name, value in (("PLACES", 10), ("SPARE", 1), ("STRIDE", stride)):
        monkeypatch.setattr(eviction, name, value)
    kept = {"k": torch.zeros(13, 4), "v": torch.zeros(13, 4), "gate_sum": torch.zeros(13)}
    keys = eviction._spread(kept, torch.tensor([3, 10]), torch.full((2,), -1.0))
    for longest in (20, 30, 40):
        assert longest <= keys["most"] < longest + stride
        for _ in range(10):
            eviction.add(keys, torch.zeros(2, 4), torch.zeros(2, 4), torch.zeros(2))
        assert keys["length"].tolist() == [longest - 7, longest]
        keys, _ = eviction.laid_anew(keys)


def test_generate_takes_such_a_cache_and_writes_the_same(model):
    prompt = tokens(length=PROMPT)
    how = dict(max_new_tokens=LENGTH - PROMPT, do_sample=False, pad_token_id=0, eos_token_id=-1)
    cache = DecodingCache(longest=LENGTH)
    assert torch.equal(model.generate(prompt, past_key_values=cache, **how), model.generate(prompt, **how))
    assert cache.seq_len == LENGTH - 1 and "keys" in cache[0]


@pytest.mark.parametrize("how", [{}, {"room": 30}, {"longest": 30}])
def test_nothing_that_is_kept_remembers_gradients(model, how):
    cache = DecodingCache(**how)
    for at in range(20, 23):
        with torch.set_grad_enabled(at == 20):
            model(tokens()[:, :20] if at == 20 else tokens()[:, at : at + 1], past_key_values=cache)
    kept = [x for x in tree_leaves(list(cache.layers.values())) if isinstance(x, torch.Tensor)]
    assert len(kept) > 4 and not any(x.requires_grad for x in kept)


def test_what_it_cannot_do_is_said(model):
    text, cache = tokens(), DecodingCache(longest=21)
    with torch.no_grad():
        model(text[:, :19], past_key_values=cache)
        with pytest.raises(ValueError, match=r"2 tokens after 19: .* token by token"):
            model(text[:, 19:21], past_key_values=cache)
        model(text[:, 19:20], past_key_values=cache)
        model(text[:, 20:21], past_key_values=cache)
        with pytest.raises(ValueError, match="token 22 is beyond longest=21"):
            model(text[:, 21:22], past_key_values=cache)
        needs = r"needs forget gates, and QK-norm, .*: use fox_pro"
        places = f"longest={LENGTH}: steps of this model cannot be replayed"
        for changes, said in (({"qk_norm": False}, needs), ({"forget_gate": "none"}, needs), ({"window_size": 8}, places)):
            other = build_model(ForgettingTransformerSpec(**BASE, **{**PRO, **changes}))
            with pytest.raises(ValueError, match=said):
                other(text, past_key_values=DecodingCache(longest=LENGTH))
    with pytest.raises(ValueError, match="beams need a cache without"):
        cache.reorder_cache(torch.tensor([1, 0]))


@pytest.mark.gpu
def test_a_gpu_lets_go_of_the_same_keys(model, monkeypatch):
    whole, here, there = DecodingCache(), DecodingCache(longest=LENGTH), DecodingCache(longest=LENGTH)
    logits_along(model, here)
    text, on_gpu = tokens, copy.deepcopy(model).cuda()
    monkeypatch.setattr(sys.modules[__name__], "tokens", lambda **how: text(**how).cuda())
    expected = logits_along(on_gpu, whole)
    torch.testing.assert_close(logits_along(on_gpu, there), expected, rtol=0, atol=2 * math.exp(-10))
    for layer, of_cpu in here.layers.items():
        assert (there[layer]["keys"]["length"].cpu() - of_cpu["keys"]["length"]).abs().max() <= 1
