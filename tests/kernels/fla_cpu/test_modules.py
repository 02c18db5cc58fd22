"""CPU norms and convolutions against definitions written out, and the dispatch by device."""

import importlib
import sys

import pytest
import torch
import torch.nn.functional as F

from kernels.fla_cpu import install, modules, recurrences


def test_rms_norm_uses_its_eps():
    x, weight = torch.randn(2, 5, 16) * 1e-2, torch.rand(16) + 0.5
    for eps in (1e-6, 1e-2):
        expected = x / (x.square().mean(-1, keepdim=True) + eps).sqrt() * weight
        assert torch.allclose(modules.rms_norm(x, weight, eps=eps), expected, atol=1e-6)
    linear = torch.randn(3, 16)
    expected = F.linear(modules.rms_norm(x, weight, eps=1e-5), linear)
    assert torch.allclose(modules.rms_norm_linear(x, weight, None, linear, None), expected, atol=1e-6)


def test_gated_norm_gates_before_it_normalises():
    x, z, weight = torch.randn(2, 5, 16), torch.randn(2, 5, 16), torch.rand(16) + 0.5
    gated = x * z * torch.sigmoid(z)
    expected = gated / (gated.square().mean(-1, keepdim=True) + 1e-5).sqrt() * weight
    actual = modules.rmsnorm_fn(x, weight, None, z=z, eps=1e-5, group_size=16, norm_before_gate=False)
    assert torch.allclose(actual, expected, atol=1e-6)


@pytest.mark.parametrize("seq_len", [1, 2, 9])
def test_convolution_is_causal_and_continues_from_its_state(seq_len):
    x, weight, bias = torch.randn(2, 12, 6), torch.randn(6, 4), torch.randn(6)
    expected = F.silu(F.conv1d(F.pad(x.mT, (3, 0)), weight[:, None], bias, groups=6).mT)
    first, state = modules.causal_conv1d(x[:, :-seq_len], weight, bias, output_final_state=True, activation="silu")
    second, end = modules.causal_conv1d(
        x[:, -seq_len:], weight, bias, initial_state=state, output_final_state=True, activation="silu"
    )
    assert torch.allclose(torch.cat([first, second], 1), expected, atol=1e-5)
    assert torch.equal(end, x[:, -4:].mT)


def test_convolution_update_changes_its_cache_in_place():
    x, weight = torch.randn(2, 6, 3), torch.randn(3, 4)
    expected, _ = modules.causal_conv1d(x, weight)
    cache = F.pad(x[:, :5], (0, 0, 4, 0))[:, -4:].mT.contiguous()
    y, same = modules.causal_conv1d_update(x[:, 5:], cache, weight=weight)
    assert torch.allclose(y, expected[:, 5:], atol=1e-6)
    assert same is cache
    assert torch.equal(cache, x[:, -4:].mT)


@pytest.mark.parametrize(
    ("message", "call"),
    [
        ("neither a bias nor a fused residual", lambda x, w: modules.rms_norm(x, w, residual=x)),
        ("gates before the norm", lambda x, w: modules.rmsnorm_fn(x, w, None, z=x)),
        ("neither a residual nor packed", lambda x, w: modules.causal_conv1d(x, torch.ones(8, 4), residual=x)),
        ("activation is 'relu'", lambda x, w: modules.causal_conv1d(x, torch.ones(8, 4), activation="relu")),
    ],
)
def test_what_no_model_here_asks_of_fla_is_refused_not_ignored(message, call):
    with pytest.raises(NotImplementedError, match=message):
        call(torch.randn(2, 5, 8), torch.ones(8))


def test_installing_twice_wraps_once():
    install.install()
    before = {place[:2]: getattr(importlib.import_module(place[0]), place[1]) for place in install._PLACES}
    install.install()
    for (module_name, name), function in before.items():
        assert getattr(importlib.import_module(module_name), name) is function
        assert not hasattr(function.fla_function, "cpu_function")


class Elsewhere(torch.Tensor):
    device = torch.device("cuda")


def test_other_devices_reach_the_untouched_function():
    calls = []
    dispatch = install._by_device(lambda x: calls.append("fla"), lambda x: calls.append("cpu"))
    dispatch(torch.zeros(1))
    dispatch(torch.zeros(1, device="meta"))  # holds no numbers, so that no GPU is needed
    dispatch(x=torch.zeros(1).as_subclass(Elsewhere))
    assert calls == ["cpu", "cpu", "fla"]


def test_autocast_does_not_reach_the_recurrences():
    install.install()
    layer = importlib.import_module("fla.layers.delta_net")
    q, k, v = (torch.randn(1, 80, 2, 8) for _ in range(3))
    beta = torch.rand(1, 80, 2)
    with torch.autocast("cpu", torch.bfloat16):
        o, _ = layer.chunk_delta_rule(q, k, v, beta, use_qk_l2norm_in_kernel=True)
    exact, _ = recurrences.chunk_delta_rule(q, k, v, beta, use_qk_l2norm_in_kernel=True)
    assert torch.equal(o, exact)


def test_a_layer_without_a_cpu_version_says_which_and_where_to_add_it(monkeypatch):
    """As Triton finds no GPU, whether there is one or not."""

    def none_found():
        raise RuntimeError("0 active drivers ([]). There should only be one.")

    install.install()
    from fla.layers.rodimus import RodimusAttention
    from fla.modules import LayerNorm
    from fla.modules.feature_map import SwishFeatureMap

    driver = sys.modules["triton.runtime.driver"]
    assert hasattr(driver._create_driver, "__wrapped__")
    monkeypatch.setattr(driver, "_create_driver", install._explained(none_found))
    for name in ("_default", "_active"):
        monkeypatch.setattr(driver.driver, name, None)
    layer = RodimusAttention(hidden_size=64)
    place = r'add \("fla.layers.rodimus", "chunk_gla", recurrences.chunk_gla\) to _PLACES in kernels/fla_cpu/install\.py'
    with pytest.raises(ValueError, match=rf"fla.layers.rodimus calls fla\.ops\.gla\.chunk\.chunk_gla, .*{place}"):
        layer(torch.randn(1, 70, 64))
    norm = "fla.modules.norm.layernorm"
    with pytest.raises(ValueError, match=rf'add \("{norm}", "layer_norm", your version in PyTorch\)'):
        LayerNorm(32)(torch.randn(1, 70, 32))
    applied = r'add \("fla.modules.feature_map", "swish", your version in PyTorch\)'  # SwishFunction.apply
    with pytest.raises(ValueError, match=rf"fla.modules.feature_map calls fla.modules.activations.ops.swish, .*{applied}"):
        SwishFeatureMap()(torch.randn(1, 70, 32))
    with pytest.raises(RuntimeError, match="0 active drivers"):
        driver.driver.active  # noqa: B018  (not called by a layer)
