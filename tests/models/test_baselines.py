"""Mamba-2, HGRN2, DeltaNet and Samba: the recurrences as defined, token by token in fp64, and the eps of their norms."""

import math
from dataclasses import replace
from inspect import signature
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.overrides import TorchFunctionMode

from experiments.recipes import NAMES, model_spec
from experiments.scales import get_scale
from kernels import selective_scan
from models.build import build_model
from models.spec import ModelSpec
from tests.models.conftest import SPECS

T = 100
X = torch.randn(1, T, 64, generator=torch.Generator().manual_seed(3)) * 2


def rms(x: Tensor, eps: float) -> Tensor:
    return x / (x.square().mean(-1, keepdim=True) + eps).sqrt()


def block_of(spec: ModelSpec, layer: int, *others: str) -> tuple[Any, Tensor, dict[str, Tensor]]:
    """A block without its MLP, whose matrices are large and whose parameters named by `others` are drawn anew; what its mixer
    gets (T, d), and the mixer's weights, in fp64."""
    torch.manual_seed(0)
    model = build_model(spec).model
    block = model.layers[layer]
    mixer = block.mixer if hasattr(block, "mixer") else block.attn
    with torch.no_grad():
        for name, parameter in mixer.named_parameters():
            if name in others:
                parameter.normal_().add_(1.0)
            elif parameter.ndim > 1 and name != "A_log":
                parameter.mul_(4.0)
        if hasattr(block, "mlp"):
            block.mlp.down_proj.weight.zero_()
    return block, rms(X[0].double(), spec.norm_eps), {name: tensor.double() for name, tensor in mixer.state_dict().items()}


def assert_close(block: Any, expected: Tensor, *given: Tensor) -> None:
    with torch.no_grad():
        actual = (block(X, None, None, *given) - X)[0].double()
    assert (actual - expected).abs().max() < 1e-5 * expected.abs().max()


def conv(x: Tensor, weight: Tensor, bias: Tensor | float = 0.0) -> Tensor:
    """SiLU of a causal convolution of each channel over four tokens."""
    padded = F.pad(x, (0, 0, 3, 0))
    return F.silu(sum(padded[i : i + T] * weight[:, 0, i] for i in range(4)) + bias)


def test_mamba2_equals_its_definition():
    """h_t = exp(-A dt) h_{t-1} + dt x_t B_t^T, y_t = h_t C_t + D x_t, then norm(y * SiLU(z))."""
    block, x, w = block_of(SPECS["mamba2"], 0, "D", "norm.weight", "dt_bias")
    inner, heads, P, N = 128, 4, 32, 16
    z, xbc, dt = (x @ w["in_proj.weight"].T).split([inner, inner + 2 * N, heads], -1)
    values, B, C = conv(xbc, w["conv1d.weight"], w["conv1d.bias"]).split([inner, N, N], -1)
    values, dt = values.view(T, heads, P), F.softplus(dt + w["dt_bias"])
    state, outputs = torch.zeros(heads, P, N, dtype=torch.float64), []
    for t in range(T):
        decay = torch.exp(-w["A_log"].exp() * dt[t])
        state = decay[:, None, None] * state + dt[t, :, None, None] * values[t, :, :, None] * B[t]
        outputs.append((state @ C[t] + w["D"][:, None] * values[t]).flatten())
    y = rms(torch.stack(outputs) * F.silu(z), 1e-5) * w["norm.weight"]
    assert_close(block, y @ w["out_proj.weight"].T)


@pytest.mark.parametrize("eps", [1e-5, None])
@pytest.mark.parametrize("bounded", [False, True])
def test_hgrn2_equals_its_definition(bounded, eps):
    """S_t = diag(f) S_{t-1} + (1 - f) i_t^T, o = S^T SiLU(q) / sqrt(head), RMSNorm over the width, whose mean squares are of
    the size of eps here; f is at least the layer's lower bound, if that is asked for."""
    spec = replace(SPECS["hgrn2"], use_lower_bound=bounded, output_norm_eps=eps)
    block, x, w = block_of(spec, 1)
    with torch.no_grad():
        block.attn.i_proj.weight.div_(256.0)
    w["i_proj.weight"] /= 256.0
    q, f, i = ((x @ w[f"{n}_proj.weight"].T).view(T, 2, 32) for n in "qfi")
    bound = torch.rand(64, generator=torch.Generator().manual_seed(1)) * bounded
    q, low = F.silu(q), bound.double().view(2, 32)
    f = low + (1 - low) * torch.sigmoid(f)
    state, outputs = torch.zeros(2, 32, 32, dtype=torch.float64), []
    for t in range(T):
        state = f[t, :, :, None] * state + (1 - f[t])[:, :, None] * i[t, :, None, :]
        outputs.append(torch.einsum("hk,hkv->hv", q[t], state).flatten() / math.sqrt(32))
    o = torch.stack(outputs)
    assert o.square().mean() < 1e-4
    assert_close(block, rms(o, eps or 1e-6) * w["g_norm.weight"] @ w["o_proj.weight"].T, *[bound] * bounded)


def test_hgrn2_lower_bounds_are_sums_of_shares_and_unused_unless_asked_for():
    """Layer i keeps at least the share of the layers 1..i, layer 0 has no bound; without them there is nothing to train."""
    for asked in (True, False):
        model = build_model(replace(SPECS["hgrn2"], use_lower_bound=asked, num_layers=3)).model
        assert model.lower_bounds.requires_grad is asked
        with torch.no_grad():
            shares = model.lower_bounds.normal_().softmax(0)
        for i, expected in enumerate((torch.zeros(64), shares[1], shares[1] + shares[2])):
            found = model.extra_inputs(i)
            assert torch.allclose(found[0], expected, atol=1e-6) if asked else found == ()


def test_delta_net_equals_its_definition():
    """Conv and SiLU on q, k, v; unit q and k; S += beta k (v - S^T k)^T; RMSNorm per head."""
    block, x, w = block_of(SPECS["delta_net"], 1)
    q, k, v = (conv(x @ w[f"{n}_proj.weight"].T, w[f"{n}_conv1d.weight"]).view(T, 2, 32) for n in "qkv")
    q, k = (y / (y.square().sum(-1, keepdim=True) + 1e-6).sqrt() for y in (q, k))
    beta = torch.sigmoid(x @ w["b_proj.weight"].T)
    state, outputs = torch.zeros(2, 32, 32, dtype=torch.float64), []
    for t in range(T):
        error = v[t] - torch.einsum("hk,hkv->hv", k[t], state)
        state = state + beta[t, :, None, None] * k[t, :, :, None] * error[:, None, :]
        outputs.append(torch.einsum("hk,hkv->hv", q[t], state) / math.sqrt(32))
    o = rms(torch.stack(outputs), 1e-6) * w["o_norm.weight"]
    assert_close(block, o.flatten(1) @ w["o_proj.weight"].T)


def test_samba_equals_its_definition(monkeypatch):
    """h_t = exp(dt A) h_{t-1} + dt x_t B_t^T, y_t = h_t C_t + D x_t, out = W (y * SiLU(z)); and the same in segments."""
    block, x, w = block_of(SPECS["samba"], 0, "D", "dt_proj.bias")
    inner, N, rank = 128, 16, 4
    values, z = (x @ w["in_proj.weight"].T).split([inner, inner], -1)
    values = conv(values, w["conv1d.weight"], w["conv1d.bias"])
    dt, B, C = (values @ w["x_proj.weight"].T).split([rank, N, N], -1)
    dt = F.softplus(dt @ w["dt_proj.weight"].T + w["dt_proj.bias"])
    state, outputs = torch.zeros(inner, N, dtype=torch.float64), []
    for t in range(T):
        state = torch.exp(-dt[t, :, None] * w["A_log"].exp()) * state + (dt[t] * values[t])[:, None] * B[t]
        outputs.append(state @ C[t] + w["D"] * values[t])
    expected = (torch.stack(outputs) * F.silu(z)) @ w["out_proj.weight"].T
    assert_close(block, expected)
    monkeypatch.setattr(selective_scan, "SEGMENT_NUMBERS", inner * N * 37)  # segments of 37 tokens
    assert_close(block, expected)


def test_norms_have_the_eps_of_the_released_setup():
    """Those of the blocks; the definitions above are held to the mixers'."""
    for key, eps in {"mamba2": 1e-5, "samba": 1e-5, "hgrn2": 1e-6, "delta_net": 1e-6, "fox_pro": 1e-6}.items():
        norms = [m for name, m in build_model(SPECS[key]).named_modules() if name.endswith(("attn_norm", "mlp_norm", ".norm"))]
        assert {norm.eps for norm in norms} == {eps}


@pytest.mark.parametrize("name", [name for name in NAMES if model_spec(name, get_scale("tiny"), 97).is_built])
def test_every_norm_has_the_eps_of_the_spec(name):
    """A recipe with an eps of 0.25 has it in every norm that is computed, but for those of queries and keys (two a layer)."""
    spec = model_spec(name, replace(get_scale("tiny"), hgrn2_norm_eps=None), 97, {"norm_eps": 0.25})
    model, seen = build_model(spec), []

    class Recorded(TorchFunctionMode):
        def __torch_function__(self, func, types, args=(), kwargs=None):
            if func is F.rms_norm:
                seen.append(signature(F.rms_norm).bind(*args, **kwargs or {}).arguments["eps"])
            return func(*args, **kwargs or {})

    with Recorded(), torch.no_grad():
        model(torch.arange(70)[None])
    normed = [layer for layer in model.model.layers if getattr(getattr(layer, "attn", None), "q_norm", None) is not None]
    others = [eps for eps in seen if eps != 0.25]
    assert others == [1e-5] * (2 * len(normed)), seen
    assert len(seen) - len(others) >= 2 * spec.num_layers, "norms that are computed in another way are not looked at"
