"""FoX and Transformer against a reference written out token by token in fp64, and the identities of the architecture."""

import dataclasses
import math
from typing import Any

import pytest
import torch
import torch.nn.functional as F

from kernels.forgetting_attention import norm_logit_bound, skipped_tiles
from models.build import build_model, load_model
from models.cache import DecodingCache
from models.forgetting_transformer.module import decay_time_bias, rotate, rotation_table, watched
from models.forgetting_transformer.spec import ForgettingTransformerSpec
from tests.models.conftest import PRO, ROPE, STICK

BASE: dict[str, Any] = {"vocab_size": 31, "hidden_size": 64, "num_layers": 2, "num_heads": 4, "mlp_width": 48}
TEXT = torch.randint(31, (2, 400), generator=torch.Generator().manual_seed(2))
CONSTANT: dict[str, Any] = {"decay_time_min": 2.0, "decay_time_max": 64.0}
VARIANTS: dict[str, dict[str, Any]] = {
    "fox_pro": PRO,
    "transformer_pro": {**PRO, **ROPE},
    "fox_llama": {},
    "transformer_llama": ROPE,
    "scale_per_head": {**PRO, "qk_norm_share_param_across_head": False},
    "fox_with_rope": {**PRO, "use_rope": True},
    "only_k_shift": {"use_k_shift": True},
    "only_v_shift": {"use_v_shift": True},
    "only_qk_norm": {"qk_norm": True},
    "only_output_gate": {"use_output_gate": True},
    "only_output_norm": {"use_output_norm": True},
    "silu_output_gate": {"use_output_gate": True, "output_gate_activation": "silu"},
    "silu_pro": {**PRO, "output_gate_activation": "silu"},
    "bias_only": {"forget_gate": "bias_only", **CONSTANT},
    "fixed": {"forget_gate": "fixed", **CONSTANT},
    "window": {**PRO, "window_size": 3},
    "softmax_window": {**ROPE, "window_size": 3},
    "other_eps": {**PRO, "norm_eps": 1e-2},
    "stick_breaking": STICK,
    "stick_breaking_pro": {**PRO, **STICK, "stick_remainder": True},
    "stick_breaking_with_rope": {**STICK, "use_rope": True},
}


def make(variant: str) -> tuple[Any, ForgettingTransformerSpec]:
    """A model whose every part matters: small q and k (so that eps shows), strong shifts and gates, uneven norms."""
    spec = ForgettingTransformerSpec(**BASE, **VARIANTS[variant])
    torch.manual_seed(0)
    model = build_model(spec).eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "norm" in name:
                parameter.uniform_(0.5, 1.5)
            elif "shift_proj" in name or "gate_proj" in name:
                parameter.normal_(std=0.3)
            elif "q_proj" in name or "k_proj" in name:
                parameter.normal_(std=2e-3 if spec.qk_norm else 0.2)
            elif "embeddings" not in name:
                parameter.normal_(std=0.1)
    return model, spec


def rms(x: torch.Tensor, eps: float) -> torch.Tensor:
    return x / (x.square().mean(-1, keepdim=True) + eps).sqrt()


def rope(x: torch.Tensor, position: int) -> torch.Tensor:
    """One head's vector as D/2 complex numbers x_i + j x_{i + D/2}, turned by position * 500000^(-2i / D)."""
    half = len(x) // 2
    angles = position * 500000.0 ** (-2 * torch.arange(half, dtype=torch.float64) / len(x))
    turned = torch.complex(x[:half], x[half:]) * torch.polar(torch.ones_like(angles), angles)
    return torch.cat([turned.real, turned.imag])


def reference_attention(x: torch.Tensor, w: dict[str, torch.Tensor], spec: ForgettingTransformerSpec) -> torch.Tensor:
    """Section 3.3 for x (T, d), one token and head at a time."""
    heads, D, T = spec.num_heads, spec.head_dim, len(x)
    split = lambda y: y.view(T, heads, D)  # noqa: E731
    q = split(x @ w["q_proj.weight"].T)
    kv = {}
    for name, shifted in (("k", spec.use_k_shift), ("v", spec.use_v_shift)):
        y = split(x @ w[f"{name}_proj.linear.weight" if shifted else f"{name}_proj.weight"].T)
        if shifted:
            alpha = torch.sigmoid(x @ w[f"{name}_proj.shift_proj.weight"].T)
            previous = torch.cat([torch.zeros_like(y[:1]), y[:-1]])
            y = alpha[..., None] * previous + (1 - alpha[..., None]) * y
        kv[name] = y
    k, v = kv["k"], kv["v"]
    if spec.qk_norm:
        q, k = (rms(y, 1e-5) * w[f"{n}_norm.weight"].view(-1, D) for n, y in (("q", q), ("k", k)))
    if spec.use_rope:
        q, k = (torch.stack([torch.stack([rope(y[t, h], t) for h in range(heads)]) for t in range(T)]) for y in (q, k))
    if spec.forget_gate == "full":
        gate = torch.sigmoid(x @ w["fgate_proj.weight"].T + w["fgate_proj.bias"])
    elif spec.forget_gate == "none":
        gate = torch.ones(T, heads, dtype=x.dtype)
    else:
        gate = torch.sigmoid(w["fgate_bias"]).expand(T, heads)
    o = torch.zeros_like(q)
    for h in range(heads):
        for i in range(T):
            if spec.attention == "stick_breaking":
                left = torch.ones((), dtype=x.dtype)
                for j in range(i - 1, -1, -1):
                    share = torch.sigmoid(q[i, h] @ k[j, h] / math.sqrt(D))
                    o[i, h] += left * share * v[j, h]
                    left = left * (1 - share)
                o[i, h] += left * v[i, h] if spec.stick_remainder else 0.0
                continue
            first = 0 if spec.window_size is None else max(0, i - spec.window_size + 1)
            weights = torch.stack(
                [gate[j + 1 : i + 1, h].prod() * torch.exp(q[i, h] @ k[j, h] / math.sqrt(D)) for j in range(first, i + 1)]
            )
            o[i, h] = weights / weights.sum() @ v[first : i + 1, h]
    if spec.use_output_norm:
        o = rms(o, spec.norm_eps) * w["output_norm.weight"].view(heads, D)
    o = o.reshape(T, -1)
    if spec.use_output_gate:
        z = x @ w["ogate_proj.weight"].T
        o = o * torch.sigmoid(z) * (z if spec.output_gate_activation == "silu" else 1)
    return o @ w["o_proj.weight"].T


def reference_logits(model: Any, spec: ForgettingTransformerSpec, tokens: torch.Tensor) -> torch.Tensor:
    """Logits (T, V) of one sequence in fp64."""
    state = {name: tensor.double() for name, tensor in model.state_dict().items()}
    x = state["model.embeddings.weight"][tokens]
    for i in range(spec.num_layers):
        layer = {n.removeprefix(f"model.layers.{i}."): t for n, t in state.items() if n.startswith(f"model.layers.{i}.")}
        attention = {n.removeprefix("attn."): t for n, t in layer.items() if n.startswith("attn.")}
        x = x + reference_attention(rms(x, spec.norm_eps) * layer["attn_norm.weight"], attention, spec)
        h = rms(x, spec.norm_eps) * layer["mlp_norm.weight"]
        width = spec.intermediate_size
        gate, up = h @ layer["mlp.gate_proj.weight"][:width].T, h @ layer["mlp.gate_proj.weight"][width:].T
        x = x + (gate * torch.sigmoid(gate) * up) @ layer["mlp.down_proj.weight"].T
    return (rms(x, spec.norm_eps) * state["model.norm.weight"]) @ state["lm_head.weight"].T


@pytest.mark.parametrize("variant", VARIANTS)
def test_logits_equal_the_written_out_reference(variant):
    model, spec = make(variant)
    with torch.no_grad():
        actual = model(TEXT[:1, :9]).logits[0].double()
        expected = reference_logits(model, spec, TEXT[0, :9])
    assert (actual - expected).abs().max() < 1e-4 * expected.abs().max()


def test_an_open_gate_is_softmax_attention():
    """Identity I1: with f = 1, FoX is the Transformer with the same weights."""
    model, spec = make("fox_pro")
    plain = build_model(dataclasses.replace(spec, forget_gate="none")).eval()
    state = model.state_dict()
    plain.load_state_dict({name: tensor for name, tensor in state.items() if "fgate" not in name})
    with torch.no_grad():
        for layer in model.model.layers:
            layer.attn.fgate_proj.weight.zero_()
            layer.attn.fgate_proj.bias.fill_(40.0)
    assert torch.allclose(model(TEXT).logits, plain(TEXT).logits, atol=1e-4)


def test_rotation_is_relative_and_exact_at_long_positions():
    q, k = torch.randn(1, 1, 1, 32), torch.randn(1, 1, 1, 32)

    def at(position: int) -> tuple[torch.Tensor, torch.Tensor]:
        return rotation_table(torch.tensor([[position]]), 32, 500000.0)

    def product(i: int, j: int) -> float:
        return (rotate(q, *at(i)) * rotate(k, *at(j))).sum().item()

    assert product(7, 3) == pytest.approx(product(65_004, 65_000), abs=2e-2)
    assert product(7, 3) != pytest.approx(product(7, 4), abs=2e-2)
    half = rotate(q.bfloat16(), *at(65_000))
    assert half.dtype == torch.bfloat16
    exact = rotate(q.bfloat16().float(), *at(65_000))
    assert (half.float() - exact).abs().max() < 2e-2, "angles must not be computed in bf16"


def test_decay_times_give_alibi_slopes():
    """Identity I2: 8 heads between 2 and 256 tokens are ALiBi's slopes 2^-1 .. 2^-8."""
    slopes = -F.logsigmoid(decay_time_bias(8, 2.0, 256.0))
    assert torch.allclose(slopes, 2.0 ** -torch.arange(1, 9), rtol=1e-5)


def test_a_fixed_gate_keeps_its_digits_in_bf16(tmp_path):
    exact = decay_time_bias(4, 2.0, 64.0)
    model = build_model(ForgettingTransformerSpec(**BASE, **VARIANTS["fixed"]))
    model.save_pretrained(tmp_path)
    for half in (model.bfloat16(), load_model(tmp_path, torch.bfloat16), load_model(tmp_path).half().to("cpu")):
        assert torch.equal(half.model.layers[1].attn.fgate_bias, exact)
        assert torch.isfinite(half.float()(torch.zeros(1, 3, dtype=torch.long)).logits).all()
    meta = build_model(ForgettingTransformerSpec(**BASE, **VARIANTS["fixed"]), "meta").to_empty(device="cpu")
    assert meta.model.layers[0].attn.fgate_bias.dtype == torch.float32


@pytest.mark.parametrize("padded", [0, 23])
@pytest.mark.parametrize("gate", [{}, ROPE], ids=["fox", "softmax"])
def test_a_window_bounds_the_cache_and_changes_no_logit(gate, padded):
    """Decoding from the last tokens alone, one or several at a time and with left padding, equals the parallel pass."""
    torch.manual_seed(0)
    spec = ForgettingTransformerSpec(**BASE, **PRO, **gate, window_size=7)
    model, cache, logits = build_model(spec).eval(), DecodingCache(), []
    mask = torch.ones(2, 50, dtype=torch.long)
    mask[1, :padded] = 0
    with torch.no_grad():
        expected = model(TEXT[:, :50], attention_mask=mask).logits
        for step in (3, 1, 17, 1, 12, *[1] * 16):
            start = cache.seq_len
            seen = mask[:, : start + step] if padded else None
            logits.append(model(TEXT[:, start : start + step], attention_mask=seen, past_key_values=cache).logits)
            held = [value for name, value in cache.layers[1].items() if "shift" not in name]
            assert all(x.shape[1] == min(cache.seq_len, 7) for x in held)
    assert torch.allclose(torch.cat(logits, 1)[mask.bool()], expected[mask.bool()], atol=1e-5)


@pytest.mark.parametrize("tightly", [False, True])
@pytest.mark.parametrize("variant", ["fox_pro", "fox_llama", "scale_per_head", "fox_with_rope"])
def test_pruning_changes_the_logits_by_less_than_its_tolerance(variant, tightly):
    """With strong gates: over whole texts and over caches, whose beams keep their bounds; far tiles are dropped, by the tight
    rule more of them."""
    model, spec = make(variant)
    with torch.no_grad():
        for layer in model.model.layers:
            layer.attn.fgate_proj.bias.fill_(-2.0)
    pruned = build_model(dataclasses.replace(spec, prune_log_tolerance=-10.0, prune_tightly=tightly)).eval()
    pruned.load_state_dict(model.state_dict())
    counts, cache, order = {}, DecodingCache(), torch.tensor([1, 1])

    def count(layer, q, k, v, log_fgate):
        rules = {"acp": {"adaptive_threshold": layer.threshold(q, k, -10.0)}, "spec": layer.pruning(q, k, -10.0)}
        counts.update({name: skipped_tiles(q, k, log_fgate, tile=16, **rule) for name, rule in rules.items()})
        if spec.qk_norm:
            scales = (norm.weight.view(-1, 16).abs().amax(-1) for norm in (layer.q_norm, layer.k_norm))
            bound = 4.0 * math.prod(scales)
        else:
            bound = q.norm(dim=-1).amax(1) * k.norm(dim=-1).amax(1) / 4.0
        torch.testing.assert_close(rules["acp"]["adaptive_threshold"].squeeze(), (-2 * bound - math.log(400) - 10).squeeze())
        if spec.qk_norm:  # rounded q and k exceed the bound by their roundings
            grown = (1 + 2**-8) ** (4 if spec.use_rope else 2)
            rounded = layer.threshold(q.bfloat16(), k.bfloat16(), -10.0)
            torch.testing.assert_close(rounded.squeeze(), (-2 * grown * bound - math.log(400) - 10).squeeze())

    attention, bounds = pruned.model.layers[0].attn, []
    newest = attention.attend_newest
    attention.attend_newest = lambda *given: bounds.append((given[5], norm_logit_bound(*given[:2], 0.25))) or newest(*given)
    with torch.no_grad():
        whole = model(TEXT).logits
        with watched({0: attention}, count):
            found = pruned(TEXT).logits
        steps = [pruned(TEXT[:, a:b], past_key_values=cache).logits for a, b in ((0, 390), (390, 391), (391, 396), (396, 397))]
        cache.reorder_cache(order)
        last = pruned(TEXT[order, 397:398], past_key_values=cache).logits
    assert torch.allclose(found, whole, atol=1e-3) and not torch.equal(found, whole)
    assert torch.allclose(torch.cat(steps, 1), whole[:, :397], atol=1e-3)
    assert torch.allclose(last[:, 0], whole[order, 397], atol=1e-3)
    assert len(bounds) == 3 and all(bool((own <= kept * (1 + 1e-6)).all()) for kept, own in bounds)
    assert bool((counts["spec"] >= counts["acp"]).all()) and counts["acp"].sum() > 0
    assert bool(counts["spec"].sum() > counts["acp"].sum()) is tightly
