"""Mamba-2, HGRN2, DeltaNet and Samba: the recurrences as defined, and the eps of their norms."""

import dataclasses
import math
from inspect import signature

import pytest
import torch
import torch.nn.functional as F
from torch.overrides import TorchFunctionMode

from experiments.recipes import NAMES, model_spec
from experiments.scales import get_scale
from kernels import selective_scan
from kernels.fla_cpu import recurrences
from models.build import build_model
from models.cache import DecodingCache


def test_mamba2_equals_its_definition(specs):
    """h_t = exp(-A dt) h_{t-1} + dt x_t B_t^T, y_t = h_t C_t + D x_t, then norm(y * SiLU(z)): token by token in fp64."""
    torch.manual_seed(0)
    mixer = build_model(specs["mamba2"]).model.layers[0].mixer
    with torch.no_grad():
        mixer.D.uniform_(0.5, 1.5)
        mixer.norm.weight.uniform_(0.5, 1.5)
        mixer.dt_bias.add_(2.0)
        x = torch.randn(1, 100, 64)
        actual = mixer(x, None, None)[0].double()
        w = {name: tensor.double() for name, tensor in mixer.state_dict().items()}
    inner, heads, P, N = 128, 4, 32, 16
    z, xbc, dt = (x[0].double() @ w["in_proj.weight"].T).split([inner, inner + 2 * N, heads], -1)
    padded = F.pad(xbc, (0, 0, 3, 0))
    xbc = F.silu(sum(padded[i : i + 100] * w["conv1d.weight"][:, 0, i] for i in range(4)) + w["conv1d.bias"])
    values, B, C = xbc.split([inner, N, N], -1)
    values, dt = values.view(100, heads, P), F.softplus(dt + w["dt_bias"])
    state, outputs = torch.zeros(heads, P, N, dtype=torch.float64), []
    for t in range(100):
        decay = torch.exp(-w["A_log"].exp() * dt[t])
        state = decay[:, None, None] * state + dt[t, :, None, None] * values[t, :, :, None] * B[t]
        outputs.append((state @ C[t] + w["D"][:, None] * values[t]).flatten())
    y = torch.stack(outputs) * F.silu(z)
    y = y / (y.square().mean(-1, keepdim=True) + 1e-5).sqrt() * w["norm.weight"]
    expected = y @ w["out_proj.weight"].T
    assert (actual - expected).abs().max() < 1e-5 * expected.abs().max()


@pytest.mark.parametrize("eps", [1e-5, None])
def test_hgrn2_equals_its_definition(specs, eps):
    """S_t = diag(f) S_{t-1} + (1 - f) i_t^T, o = S^T SiLU(q) / sqrt(head), RMSNorm over the width: token by token in fp64.
    Its mean squares are of the size of eps here."""
    torch.manual_seed(0)
    mixer = build_model(dataclasses.replace(specs["hgrn2"], output_norm_eps=eps)).model.layers[1].attn
    with torch.no_grad():
        for parameter in mixer.parameters():
            parameter.mul_(8.0)
        mixer.i_proj.weight.div_(512.0)
        x = torch.randn(1, 100, 64)
        actual = mixer(x, None, None)[0].double()
        w = {name: tensor.double() for name, tensor in mixer.state_dict().items()}
    q, f, i = ((x[0].double() @ w[f"{n}_proj.weight"].T).view(100, 2, 32) for n in "qfi")
    q, f = F.silu(q), torch.sigmoid(f)
    state, outputs = torch.zeros(2, 32, 32, dtype=torch.float64), []
    for t in range(100):
        state = f[t, :, :, None] * state + (1 - f[t])[:, :, None] * i[t, :, None, :]
        outputs.append(torch.einsum("hk,hkv->hv", q[t], state).flatten() / math.sqrt(32))
    o = torch.stack(outputs)
    assert o.square().mean() < 1e-4
    o = o / (o.square().mean(-1, keepdim=True) + (eps or 1e-6)).sqrt() * w["g_norm.weight"]
    expected = o @ w["o_proj.weight"].T
    assert (actual - expected).abs().max() < 1e-4 * expected.abs().max()


def test_hgrn2_ignores_its_lower_bounds_unless_asked(specs, tokens):
    spec = specs["hgrn2"]
    torch.manual_seed(0)
    plain = build_model(spec).eval()
    bounded = build_model(dataclasses.replace(spec, use_lower_bound=True)).eval()
    bounded.load_state_dict(plain.state_dict())
    before = plain(tokens).logits
    assert not torch.allclose(bounded(tokens).logits, before, atol=1e-3)
    with torch.no_grad():
        plain.model.lower_bounds.normal_()
    assert torch.equal(plain(tokens).logits, before)
    assert not plain.model.lower_bounds.requires_grad
    bounded(tokens).logits.sum().backward()
    assert bounded.model.lower_bounds.grad.any()


def test_hgrn2_lower_bounds_bound_the_gates(specs):
    """Layer i keeps at least the share of the layers 1..i, layer 0 has no bound."""
    model = build_model(dataclasses.replace(specs["hgrn2"], use_lower_bound=True, num_layers=3))
    with torch.no_grad():
        model.model.lower_bounds.normal_()
    shares = model.model.lower_bounds.softmax(0)
    for i, expected in enumerate((torch.zeros(64), shares[1], shares[1] + shares[2])):
        assert torch.allclose(model.model.extra_inputs(i)[0], expected, atol=1e-6)


def test_delta_net_equals_its_definition(specs):
    """Conv and SiLU on q, k, v; unit q and k; S += beta k (v - S^T k)^T; RMSNorm per head: token by token in fp64."""
    torch.manual_seed(0)
    mixer = build_model(specs["delta_net"]).model.layers[1].attn
    with torch.no_grad():
        for parameter in mixer.parameters():
            parameter.mul_(8.0)
        x = torch.randn(1, 100, 64)
        actual = mixer(x, None, None)[0].double()
        w = {name: tensor.double() for name, tensor in mixer.state_dict().items()}

    def conv(name: str) -> torch.Tensor:
        padded = F.pad(x[0].double() @ w[f"{name}_proj.weight"].T, (0, 0, 3, 0))
        y = sum(padded[i : i + 100] * w[f"{name}_conv1d.weight"][:, 0, i] for i in range(4))
        return F.silu(y).view(100, 2, 32)

    q, k, v = conv("q"), conv("k"), conv("v")
    q, k = (y / (y.square().sum(-1, keepdim=True) + 1e-6).sqrt() for y in (q, k))
    beta = torch.sigmoid(x[0].double() @ w["b_proj.weight"].T)
    state, outputs = torch.zeros(2, 32, 32, dtype=torch.float64), []
    for t in range(100):
        error = v[t] - torch.einsum("hk,hkv->hv", k[t], state)
        state = state + beta[t, :, None, None] * k[t, :, :, None] * error[:, None, :]
        outputs.append(torch.einsum("hk,hkv->hv", q[t], state) / math.sqrt(32))
    o = torch.stack(outputs)
    o = (o / (o.square().mean(-1, keepdim=True) + 1e-6).sqrt() * w["o_norm.weight"]).flatten(1)
    expected = o @ w["o_proj.weight"].T
    assert (actual - expected).abs().max() < 1e-4 * expected.abs().max()


def test_gated_linear_attention_equals_its_definition(specs):
    """S_t = diag(f^(1/16)) S_{t-1} + k_t v_t^T, o = S^T q / sqrt(keys of a head), RMSNorm per head, times SiLU of the output
    gate: token by token in fp64."""
    torch.manual_seed(0)
    mixer = build_model(dataclasses.replace(specs["gated_linear_attention"], head_dim=16)).model.layers[1].attn
    with torch.no_grad():
        for parameter in mixer.parameters():
            parameter.mul_(8.0)
        mixer.gk_proj[1].bias.normal_()
        x = torch.randn(1, 100, 64)
        actual = mixer(x)[0][0].double()
        w = {name: tensor.double() for name, tensor in mixer.state_dict().items()}
    q, k, v, g = ((x[0].double() @ w[f"{n}_proj.weight"].T).unflatten(-1, (2, -1)) for n in "qkvg")
    logits = x[0].double() @ w["gk_proj.0.weight"].T @ w["gk_proj.1.weight"].T + w["gk_proj.1.bias"]
    decay = torch.sigmoid(logits).unflatten(-1, (2, -1)) ** (1 / 16)
    state, outputs = torch.zeros(2, 16, 32, dtype=torch.float64), []
    for t in range(100):
        state = decay[t, :, :, None] * state + k[t, :, :, None] * v[t, :, None, :]
        outputs.append(torch.einsum("hk,hkv->hv", q[t], state) / math.sqrt(16))
    o = torch.stack(outputs)
    o = o / (o.square().mean(-1, keepdim=True) + 1e-6).sqrt() * w["g_norm_swish_gate.weight"] * F.silu(g)
    expected = o.flatten(1) @ w["o_proj.weight"].T
    assert (actual - expected).abs().max() < 1e-4 * expected.abs().max()


def test_path_fox_equals_flas_layer(specs, monkeypatch):
    torch.manual_seed(0)
    mixer = build_model(specs["path_fox"]).model.layers[1].attn
    from fla.layers import path_attn

    with torch.no_grad():
        for parameter in mixer.parameters():
            parameter.mul_(8.0)
        mixer.bt_proj.bias.normal_()
        x = torch.randn(1, 100, 64)
        monkeypatch.setattr(path_attn, "l2_norm", lambda w, output_dtype: recurrences.l2norm(w))  # theirs is for GPUs
        expected = path_attn.PaTHAttention.forward(mixer, x)[0]
        torch.testing.assert_close(mixer(x, None, None), expected)


def test_wall_attention_equals_flas_layer(specs):
    torch.manual_seed(0)
    mixer = build_model(specs["wall_attention"]).model.layers[1].attn
    from fla.layers.wall_attn import WallAttention

    with torch.no_grad():
        for parameter in mixer.parameters():
            parameter.mul_(8.0)
        mixer.g_proj.bias.normal_().add_(3.0)  # no gate below the floor, which theirs does not have
        x = torch.randn(1, 100, 64)
        expected = WallAttention.forward(mixer, x)[0]
        for found in (mixer(x, None, None), mixer(x, DecodingCache(), None)):
            torch.testing.assert_close(found, expected)


def test_a_channel_fades_by_no_more_than_flas_kernels_count(specs):
    """Also over a cache; a gate that would leave less has no gradient."""
    from models.wall_attention.module import BLOCK, FLOOR

    mixer, x = build_model(specs["wall_attention"]).model.layers[1].attn, torch.randn(1, 40, 64)
    assert BLOCK * FLOOR >= -76
    outputs = []
    for bias in (FLOOR - 1, FLOOR - 50):
        with torch.no_grad():
            mixer.g_proj.weight.zero_()
            mixer.g_proj.bias.fill_(bias)
        outputs += [mixer(x, None, None), mixer(x, DecodingCache(), None)]
    assert all(torch.allclose(output, outputs[0], atol=1e-6) for output in outputs)
    assert not torch.autograd.grad(outputs[0].sum(), mixer.g_proj.bias, allow_unused=True)[0].any()


@pytest.mark.parametrize(("length", "whole"), [(15, 16), (16, 16), (17, 32)])
def test_wall_attention_fills_blocks_of_flas_kernels(length, whole, monkeypatch):
    from models.wall_attention import module

    lengths, attend = [], module.wall_attn.parallel_wall_attn
    monkeypatch.setattr(module.wall_attn, "parallel_wall_attn", lambda *x: lengths.extend(y.shape[1] for y in x) or attend(*x))
    q, k, v, g = torch.randn(4, 1, length, 2, 16)
    torch.testing.assert_close(module.attend(q, k, v, -g.abs()), attend(q, k, v, -g.abs()))
    assert lengths == [whole] * 4


def test_wall_attention_takes_small_blocks_of_flas_kernels():
    from fla.ops.wall_attn import parallel

    import models.wall_attention.module  # noqa: F401

    for part in ("fwd_kernel", "bwd_kernel_dq", "bwd_kernel_dkv"):
        candidates = getattr(parallel, f"parallel_wall_attn_{part}").configs
        assert candidates and {candidate.kwargs["BS"] for candidate in candidates} == {16}


def test_mamba3_equals_its_definition(specs):
    """h_t = a h_{t-1} + (1 - lambda) dt a k_{t-1} x_{t-1}^T + lambda dt k_t x_t^T, a = exp(A dt), token by token in fp64; keys
    and queries times a rotation that is the product of those of all tokens up to theirs."""
    torch.manual_seed(0)
    mixer = build_model(specs["mamba3"]).model.layers[1].attn
    with torch.no_grad():
        for name, parameter in mixer.named_parameters():
            parameter.mul_(3.0) if name == "in_proj.weight" else parameter.normal_()
        x = torch.randn(1, 100, 64)
        actual = mixer(x, None, None)[0].double()
        w = {name: tensor.double() for name, tensor in mixer.state_dict().items()}
    z, values, k, q, step, decay, share, turn = (x[0].double() @ w["in_proj.weight"].T).split(
        [128, 128, 16, 16, 4, 4, 4, 4], -1
    )
    q, k = (
        (y / (y.square().mean(-1, keepdim=True) + 1e-5).sqrt() * w[f"{n}_norm.weight"])[:, None] + w[f"{n}_bias"][:, 0]
        for y, n in ((q, "C"), (k, "B"))
    )
    step, share = F.softplus(step + w["dt_bias"]), share.sigmoid()
    decay = torch.exp(-F.softplus(decay).clamp(min=1e-4) * step)
    values, h, outputs = values.unflatten(-1, (4, 32)), torch.zeros(4, 16, 32, dtype=torch.float64), []
    turned, written = torch.eye(16, dtype=torch.float64).expand(4, 16, 16).clone(), torch.zeros_like(h)
    for t in range(100):
        rotation = torch.eye(16, dtype=torch.float64).expand(4, 16, 16).clone()
        angle = math.pi * turn[t].tanh() * step[t, :, None]
        for pair in range(4):
            i, j = 2 * pair, 2 * pair + 1
            rotation[:, i, i] = rotation[:, j, j] = angle[:, pair].cos()
            rotation[:, j, i] = angle[:, pair].sin()
            rotation[:, i, j] = -angle[:, pair].sin()
        turned = rotation @ turned
        into, out = (torch.einsum("hij,hj->hi", turned, y[t]) for y in (k, q))
        h = decay[t, :, None, None] * (h + ((1 - share[t]) * step[t])[:, None, None] * written)
        written = into[:, :, None] * values[t, :, None]
        h = h + (share[t] * step[t])[:, None, None] * written
        outputs.append(torch.einsum("hn,hnp->hp", out, h) + w["D"][:, None] * values[t])
    expected = (torch.stack(outputs).flatten(1) * F.silu(z)) @ w["out_proj.weight"].T
    error = (actual - expected).abs().max() / expected.abs().max()
    assert error < 1e-5


def test_norms_have_the_eps_of_the_released_setup(specs):
    mamba2 = build_model(specs["mamba2"])
    assert mamba2.model.norm.eps == mamba2.model.layers[0].norm.eps == 1e-5
    assert mamba2.model.layers[0].mixer.norm.eps == 1e-5
    for key in ("hgrn2", "delta_net", "fox_pro"):
        model = build_model(specs[key])
        assert model.model.norm.eps == model.model.layers[0].attn_norm.eps == model.model.layers[0].mlp_norm.eps == 1e-6
    assert build_model(specs["hgrn2"]).model.layers[0].attn.g_norm.eps == 1e-6
    assert build_model(specs["delta_net"]).model.layers[0].attn.o_norm.eps == 1e-6
    fox = build_model(specs["fox_pro"]).model.layers[0].attn
    assert fox.q_norm.eps == fox.k_norm.eps == 1e-5
    assert fox.output_norm.eps == 1e-6


def test_samba_equals_its_definition(specs, monkeypatch):
    """h_t = exp(dt A) h_{t-1} + dt x_t B_t^T, y_t = h_t C_t + D x_t, out = W (y * SiLU(z)): token by token in fp64; and the
    same in segments, with the same gradients."""
    torch.manual_seed(0)
    mixer = build_model(specs["samba"]).model.layers[0].attn
    with torch.no_grad():
        mixer.D.uniform_(0.5, 1.5)
        mixer.dt_proj.bias.add_(2.0)
    x = torch.randn(2, 100, 64, requires_grad=True)
    actual = mixer(x, None, None)
    w = {name: tensor.double() for name, tensor in mixer.state_dict().items()}
    inner, N, rank = 128, 16, 4
    values, z = (x.detach().double() @ w["in_proj.weight"].T).split([inner, inner], -1)
    padded = F.pad(values, (0, 0, 3, 0))
    values = F.silu(sum(padded[:, i : i + 100] * w["conv1d.weight"][:, 0, i] for i in range(4)) + w["conv1d.bias"])
    dt, B, C = (values @ w["x_proj.weight"].T).split([rank, N, N], -1)
    dt = F.softplus(dt @ w["dt_proj.weight"].T + w["dt_proj.bias"])
    state, outputs = torch.zeros(2, inner, N, dtype=torch.float64), []
    for t in range(100):
        decay = torch.exp(-dt[:, t, :, None] * w["A_log"].exp())
        state = decay * state + (dt[:, t] * values[:, t])[:, :, None] * B[:, t, None]
        outputs.append((state @ C[:, t, :, None])[..., 0] + w["D"] * values[:, t])
    expected = (torch.stack(outputs, 1) * F.silu(z)) @ w["out_proj.weight"].T
    assert (actual - expected).abs().max() < 1e-5 * expected.abs().max()
    monkeypatch.setattr(selective_scan, "SEGMENT_NUMBERS", 2 * inner * N * 37)  # segments of 37 tokens
    again = mixer(x, None, None)
    torch.testing.assert_close(again, actual)
    weights = torch.randn_like(actual)
    leaves = (x, *mixer.parameters())
    whole, parts = (torch.autograd.grad((out * weights).sum(), leaves) for out in (actual, again))
    for one, other in zip(whole, parts, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-4 * one.abs().max().item())


@pytest.mark.parametrize("name", NAMES)
def test_every_norm_has_the_eps_of_the_spec(name):
    """Of a recipe with an eps of 0.25: in every norm that is computed, but for those of queries and keys (two a layer)."""
    spec = model_spec(name, dataclasses.replace(get_scale("tiny"), hgrn2_norm_eps=None), 97, {"norm_eps": 0.25})
    model, seen = build_model(spec), []

    class Recorded(TorchFunctionMode):
        def __torch_function__(self, func, types, args=(), kwargs=None):
            if func is F.rms_norm:
                bound = signature(F.rms_norm).bind(*args, **kwargs or {})
                seen.append(bound.arguments["eps"])
            return func(*args, **kwargs or {})

    with Recorded(), torch.no_grad():
        model(torch.arange(70)[None])
    others = [eps for eps in seen if eps != 0.25]
    fox = [layer for layer in model.model.layers if getattr(getattr(layer, "attn", None), "q_norm", None) is not None]
    assert others == [1e-5] * (2 * len(fox)), seen
    assert len(seen) - len(others) >= 2 * spec.num_layers, "norms that are computed in another way are not looked at"
