"""FoX and Transformer against a reference written out token by token in fp64, and the identities of the architecture."""

import dataclasses
import math
from typing import Any

import pytest
import torch
import torch.nn.functional as F

from kernels.forgetting_attention import norm_logit_bound, pruning_threshold
from kernels.fused_norms import shift_and_norm
from models.backbone import Padding
from models.build import build_model, num_params
from models.cache import DecodingCache
from models.forgetting_transformer.module import decay_time_bias, rotate, rotation_table, token_positions, watched
from models.spec import ForgettingTransformerSpec

PRO = {"use_k_shift": True, "use_v_shift": True, "qk_norm": True, "use_output_gate": True, "use_output_norm": True}
BASE: dict[str, Any] = {"vocab_size": 31, "hidden_size": 64, "num_layers": 2, "num_heads": 4, "mlp_width": 48}
ROPE: dict[str, Any] = {"forget_gate": "none", "use_rope": True}
STICK: dict[str, Any] = {"attention": "stick_breaking", "forget_gate": "none"}
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
    tokens = torch.randint(31, (9,), generator=torch.Generator().manual_seed(2))
    with torch.no_grad():
        actual = model(tokens[None]).logits[0].double()
        expected = reference_logits(model, spec, tokens)
    assert (actual - expected).abs().max() < 1e-4 * expected.abs().max()


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"attention": "stick_breaking"}, "forget_gate 'full'"),
        ({**STICK, "window_size": 8}, "window_size 8"),
        ({"stick_remainder": True}, "attention is 'softmax'"),
        ({**STICK, "prune_log_tolerance": -10.0}, "needs a forget gate"),
        ({"prune_tightly": True}, "needs prune_log_tolerance"),
        ({"output_gate_activation": "silu"}, "'silu' needs use_output_gate"),
        ({"forget_gate": "fixed"}, "give both decay times"),
    ],
)
def test_switches_that_do_not_go_together_are_refused(changes, words):
    with pytest.raises(ValueError, match=words):
        ForgettingTransformerSpec(**BASE, **changes)


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
    tokens = torch.randint(31, (2, 50), generator=torch.Generator().manual_seed(2))
    assert torch.allclose(model(tokens).logits, plain(tokens).logits, atol=1e-4)


def test_the_first_gate_never_matters():
    """Identity I3, at the level of the attention: no gradient reaches the gate of the first token, one reaches the others."""
    model, _ = make("fox_llama")
    attention = model.model.layers[0].attn
    x = torch.randn(1, 12, 64)
    logits = attention.fgate_proj(x).detach().requires_grad_()
    attention._log_fgate = lambda *_: F.logsigmoid(logits)
    (attention(x, None, None) * torch.randn(1, 12, 64)).sum().backward()
    assert (logits.grad[:, 0].abs() < 1e-6).all()
    assert (logits.grad[:, 1:].abs().amax(-1) > 1e-6).all()


def test_shift_mixes_in_the_previous_token():
    """Identity I11: alpha = 0 changes nothing, alpha = 1 is a pure delay by one token, starting from zero."""
    x = torch.randn(2, 6, 3, 4)
    ones = torch.ones(2, 6, 3)
    delayed = torch.cat([torch.zeros(2, 1, 3, 4), x[:, :-1]], 1)
    assert torch.equal(shift_and_norm(x, -math.inf * ones, None), x)
    assert torch.equal(shift_and_norm(x, math.inf * ones, None), delayed)
    assert torch.allclose(shift_and_norm(x, math.log(1 / 3) * ones, None), 0.25 * delayed + 0.75 * x)
    assert torch.equal(shift_and_norm(x[:, 3:], math.inf * ones[:, 3:], None, before_B1HD=x[:, 2:3]), delayed[:, 3:])


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


def test_positions_start_at_the_first_real_token():
    cache, x = DecodingCache(), torch.zeros(2, 3, 64)
    assert token_positions(x, None, None).tolist() == [[0, 1, 2]]
    padding = Padding(real=torch.ones(2, 3, dtype=torch.bool), start=torch.tensor([0, 2]))
    assert token_positions(x, None, padding).tolist() == [[0, 1, 2], [0, 0, 0]]
    cache.seq_len = 10
    assert token_positions(x, cache, padding).tolist() == [[10, 11, 12], [8, 9, 10]]


def test_decay_times_give_alibi_slopes():
    """Identity I2: 8 heads between 2 and 256 tokens are ALiBi's slopes 2^-1 .. 2^-8."""
    slopes = -F.logsigmoid(decay_time_bias(8, 2.0, 256.0))
    assert torch.allclose(slopes, 2.0 ** -torch.arange(1, 9), rtol=1e-5)


def test_constant_gates_are_learned_or_held():
    learned = build_model(ForgettingTransformerSpec(**BASE, **VARIANTS["bias_only"]))
    held = build_model(ForgettingTransformerSpec(**BASE, **VARIANTS["fixed"]))
    bias = learned.model.layers[0].attn.fgate_bias
    assert bias.requires_grad
    assert torch.equal(bias, held.model.layers[0].attn.fgate_bias)
    assert torch.equal(bias, decay_time_bias(4, 2.0, 64.0))
    assert num_params(learned) == num_params(held) + 4 * 2
    assert not any("fgate" in name for name, _ in held.named_parameters())


def test_a_fixed_gate_keeps_its_digits_in_bf16(tmp_path):
    from models.build import load_model

    exact = decay_time_bias(4, 2.0, 64.0)
    model = build_model(ForgettingTransformerSpec(**BASE, **VARIANTS["fixed"]))
    model.save_pretrained(tmp_path)
    for half in (model.bfloat16(), load_model(tmp_path, torch.bfloat16), load_model(tmp_path).half().to("cpu")):
        assert torch.equal(half.model.layers[1].attn.fgate_bias, exact)
        assert torch.isfinite(half.float()(torch.zeros(1, 3, dtype=torch.long)).logits).all()
    meta = build_model(ForgettingTransformerSpec(**BASE, **VARIANTS["fixed"]), "meta").to_empty(device="cpu")
    assert meta.model.layers[0].attn.fgate_bias.dtype == torch.float32


@pytest.mark.parametrize("padded", [False, True])
@pytest.mark.parametrize("first", [3, 12])
@pytest.mark.parametrize("gate", [{}, ROPE], ids=["fox", "softmax"])
def test_a_window_bounds_the_cache_and_changes_no_logit(gate, first, padded):
    """Decoding from the last tokens alone, one or several at a time and with left padding, equals the parallel pass."""
    torch.manual_seed(0)
    spec = ForgettingTransformerSpec(**BASE, **PRO, **gate, window_size=7)
    model, cache = build_model(spec).eval(), DecodingCache()
    tokens = torch.randint(31, (2, 50), generator=torch.Generator().manual_seed(2))
    mask = torch.ones(2, 50, dtype=torch.long)
    mask[1, : 23 * padded] = 0
    logits = []
    with torch.no_grad():
        expected = model(tokens, attention_mask=mask).logits
        for step in (first, 1, 17, 1, 1, 15 - first, *[1] * 15):
            start = cache.seq_len
            seen = mask[:, : start + step] if padded else None
            logits.append(model(tokens[:, start : start + step], attention_mask=seen, past_key_values=cache).logits)
            for tensor in (value for name, value in cache.layers[1].items() if "shift" not in name):
                assert tensor.shape[1] == min(cache.seq_len, 7)
                assert tensor.untyped_storage().nbytes() == tensor.numel() * tensor.element_size()
    assert cache.seq_len == 50
    assert torch.allclose(torch.cat(logits, 1)[mask.bool()], expected[mask.bool()], atol=1e-5)


def test_a_window_hands_on_no_more_than_it_sees():
    cache = DecodingCache()
    for length, handed in ((5, 5), (1, 4), (6, 9), (1, 4)):
        (whole,) = cache.append(0, 4, k=torch.arange(float(cache.seq_len), cache.seq_len + length)[None, :, None])
        cache.seq_len += length
        assert whole[0, :, 0].tolist() == list(range(cache.seq_len - handed, cache.seq_len))


def test_tight_pruning_gets_the_tolerance_and_counts_what_it_skips():
    """With strong gates: the logits differ by less than it, and more tiles are skipped than by ACP's rule."""
    model, spec = make("fox_pro")
    with torch.no_grad():
        for layer in model.model.layers:
            layer.attn.fgate_proj.bias.fill_(-2.0)
    tight = build_model(dataclasses.replace(spec, prune_log_tolerance=-10.0, prune_tightly=True)).eval()
    tight.load_state_dict(model.state_dict())
    tokens = torch.randint(31, (1, 400), generator=torch.Generator().manual_seed(2))
    counts = {}

    def count(layer, q, k, v, log_fgate):
        counts[layer.spec.prune_tightly] = layer.pruned_tiles(q, k, log_fgate, -10.0, 16)
        assert layer.pruning(q, k, None) == {"adaptive_threshold": None}
        assert (layer.pruning(q, k, -10.0)["adaptive_threshold"] == "tight") is layer.spec.prune_tightly

    for each in (model, tight):
        with torch.no_grad(), watched({0: each.model.layers[0].attn}, count):
            logits = each(tokens).logits
        if each is model:
            whole = logits
    assert torch.allclose(logits, whole, atol=1e-3) and not torch.equal(logits, whole)
    assert bool((counts[True] >= counts[False]).all()) and counts[True].sum() > counts[False].sum() > 0


@pytest.mark.parametrize("tolerance", [10.0, 14.0])
@pytest.mark.parametrize("variant", ["fox_pro", "fox_llama", "scale_per_head"])
def test_pruning_changes_the_logits_by_less_than_its_tolerance(variant, tolerance):
    model, spec = make(variant)
    with torch.no_grad():
        for layer in model.model.layers:
            layer.attn.fgate_proj.bias.fill_(-2.0)  # strong gates, so that far tiles are dropped
    pruned = build_model(dataclasses.replace(spec, prune_log_tolerance=-tolerance)).eval()
    pruned.load_state_dict(model.state_dict())
    tokens = torch.randint(31, (1, 400), generator=torch.Generator().manual_seed(2))
    thresholds: list[Any] = []
    attention = pruned.model.layers[0].attn
    original = attention.threshold
    attention.threshold = lambda q, k, eps: thresholds.append((q, k, original(q, k, eps))) or thresholds[-1][2]
    with torch.no_grad():
        assert torch.allclose(pruned(tokens).logits, model(tokens).logits, atol=1e-3)
    q, k, threshold = thresholds[0]
    if spec.qk_norm:
        q_scale, k_scale = (n.weight.view(-1, 16).abs().amax(-1) for n in (attention.q_norm, attention.k_norm))
        bound = (4.0 * q_scale * k_scale).squeeze()
    else:
        bound = q.norm(dim=-1).amax(1) * k.norm(dim=-1).amax(1) / 4.0
    assert torch.allclose(threshold, -2 * bound - math.log(400) - tolerance)
    if spec.qk_norm:
        rounded = original(q.bfloat16(), k.bfloat16(), -tolerance)
        grown = (1 + 2**-8) ** (4 if spec.use_rope else 2)
        assert torch.allclose(rounded, -2 * grown * bound - math.log(400) - tolerance)


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
@pytest.mark.parametrize("tightly", [False, True])
@pytest.mark.parametrize("variant", ["fox_pro", "fox_llama", "scale_per_head"])
def test_a_pruned_cache_gives_the_logits_of_the_whole_text(variant, tightly, device):
    """Token by token and several at once; the bound of the logits is kept, holds, leaves keys out, and follows the beams."""
    torch.backends.cuda.matmul.allow_tf32 = False
    model, spec = make(variant)
    model.to(device)
    with torch.no_grad():
        for layer in model.model.layers:
            layer.attn.fgate_proj.bias.fill_(-2.0)
    pruned = build_model(dataclasses.replace(spec, prune_log_tolerance=-10.0, prune_tightly=tightly)).eval().to(device)
    pruned.load_state_dict(model.state_dict())
    attention = pruned.model.layers[0].attn
    seen: list[Any] = []
    original = attention.attend_newest
    attention.attend_newest = lambda *given: seen.append(given) or original(*given)
    tokens = torch.randint(31, (2, 200), generator=torch.Generator().manual_seed(2)).to(device)
    cache, logits = DecodingCache(), []
    with torch.no_grad():
        whole = model(tokens).logits
        for step in (120, 1, 1, 5, 1):
            start = cache.seq_len
            logits.append(pruned(tokens[:, start : start + step], past_key_values=cache).logits)
    assert torch.allclose(torch.cat(logits, 1), whole[:, :128], atol=1e-3)
    assert [given[1].shape[1] for given in seen] == [121, 122, 128]
    for q, k, v, gate_sum, _, bound in seen:
        assert bool((norm_logit_bound(q, k, 0.25) <= bound * (1 + 1e-6)).all())
        assert gate_sum.dtype == torch.float64 and gate_sum.shape == k.shape[:3]
        threshold_BH = pruning_threshold(bound, k.shape[1], -10.0)
        hidden_BTH = gate_sum[:, -1:] - gate_sum < threshold_BH[:, None]
        spoiled = torch.where(hidden_BTH[..., None], 1e16, v)
        assert torch.equal(original(q, k, spoiled, gate_sum, None, bound), original(q, k, v, gate_sum, None, bound))
        assert not torch.equal(original(q, k, spoiled, gate_sum, None, None), original(q, k, v, gate_sum, None, None))
    cache.reorder_cache(torch.tensor([1, 1]))
    assert cache[0]["gate_sum"].stride(1) == 1
    with torch.no_grad():
        after = pruned(tokens[1:, 128:129].expand(2, 1), past_key_values=cache).logits
    assert torch.allclose(after, whole[1:, 128:129].expand_as(after), atol=1e-3)
