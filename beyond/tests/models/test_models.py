"""What every model owes, as in tests/models; the layers by their definitions; and their GPU kernels."""

import math
from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F

from beyond.models.fox_hybrid.spec import FoxHybridSpec
from beyond.tests.models.conftest import SPECS
from models.build import build_model
from models.forgetting_transformer.module import ForgettingAttention
from models.spec import KINDS
from tests.models.conftest import COMMON
from tests.models.test_baselines import T, assert_close, block_of, rms
from tests.models.test_gpu import assert_equal, is_wrong_for_gates, loss_and_gradients, made
from tests.models.test_graphed import (  # noqa: F401
    test_a_cache_with_room_gives_the_same_logits,
    test_a_recorded_step_goes_on,
    test_generation_over_a_cache_with_room,
)
from tests.models.test_initial_values import COMMON as LARGE
from tests.models.test_initial_values import HEADS, LAYERS, D, normal, xavier
from tests.models.test_models import (  # noqa: F401
    test_adapters_and_hooks_are_heeded,
    test_every_parameter_gets_a_gradient_recomputed_or_not,
    test_future_tokens_change_nothing_earlier,
    test_generation_is_that_without_a_cache,
    test_left_padding_leaves_no_trace,
    test_losses_are_those_of_the_logits,
    test_parameters_are_counted_the_same_on_a_model_and_its_spec,
    test_prefill_then_decoding_equals_the_parallel_pass,
    test_saving_loading_and_pickling_keep_the_logits,
    test_ten_steps_lower_the_loss_as_the_seed_says,
    test_the_residual_stream_stays_fp32_under_autocast,
)

COARSE = {"kimi_delta_attention": 2e-3}
"""Tolerances on GPUs, where kernels multiply fp32 in fewer bits; 4e-3 for the others."""


def test_gated_linear_attention_equals_its_definition():
    """S_t = diag(f^(1/16)) S_{t-1} + k_t v_t^T, o = S^T q / sqrt(keys of a head), RMSNorm per head, times SiLU of the output
    gate."""
    block, x, w = block_of(replace(SPECS["gated_linear_attention"], head_dim=16), 1, "gk_proj.1.bias")
    q, k, v, g = ((x @ w[f"{n}_proj.weight"].T).unflatten(-1, (2, -1)) for n in "qkvg")
    logits = x @ w["gk_proj.0.weight"].T @ w["gk_proj.1.weight"].T + w["gk_proj.1.bias"]
    decay = torch.sigmoid(logits).unflatten(-1, (2, -1)) ** (1 / 16)
    state, outputs = torch.zeros(2, 16, 32, dtype=torch.float64), []
    for t in range(T):
        state = decay[t, :, :, None] * state + k[t, :, :, None] * v[t, :, None, :]
        outputs.append(torch.einsum("hk,hkv->hv", q[t], state) / math.sqrt(16))
    o = rms(torch.stack(outputs), 1e-6) * w["g_norm_swish_gate.weight"] * F.silu(g)
    assert_close(block, o.flatten(1) @ w["o_proj.weight"].T)


def test_layers_of_the_hybrid_start_as_in_the_models_they_are_of():
    spec = FoxHybridSpec(**LARGE, num_heads=HEADS, head_dim=32, mlp_width=200, fox_mlp_width=160)
    of_fox = [False, False, False, True] * 2
    layers = build_model(spec).model.layers
    assert [isinstance(layer.attn, ForgettingAttention) for layer in layers] == of_fox
    for layer, is_fox in zip(layers, of_fox, strict=True):
        assert layer.mlp.down_proj.in_features == (160 if is_fox else 200)
        for weight, start in (
            (layer.mlp.down_proj.weight, normal(0.02 if is_fox else 0.02 / math.sqrt(2 * LAYERS))),
            (layer.attn.o_proj.weight, normal(0.02) if is_fox else xavier(D)),
        ):
            start([weight.detach()])
    with pytest.raises(ValueError, match="fox_every 3 with num_layers 8"):
        replace(spec, fox_every=3)


@pytest.mark.parametrize("name", ["gated_delta_net", "kimi_delta_attention"])
def test_a_gate_of_zero_closes_silu_and_opens_sigmoid_by_half(name):
    found = {}
    for activation in ("sigmoid", "silu"):
        torch.manual_seed(0)
        attn = build_model(replace(SPECS[name], output_gate_activation=activation)).model.layers[0].attn
        x = torch.randn(1, 9, 64)
        found[activation] = [attn(x)[0]]
        with torch.no_grad():
            for parameter in attn.g_proj.parameters():
                parameter.zero_()
            found[activation].append(attn(x)[0])
    assert not found["silu"][1].any() and found["sigmoid"][1].any()
    assert not torch.equal(found["silu"][0], found["sigmoid"][0])


def test_kinds_without_modules_are_read_and_not_built():
    for name, more in {"mamba3": {}, "path_fox": {"num_heads": 2}, "wall_attention": {"num_heads": 2}}.items():
        spec = KINDS[name](**COMMON, **more)
        assert spec.num_params and spec.state_size(9) and not spec.is_built
        with pytest.raises(ValueError, match="can be read, not built"):
            build_model(spec)


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", ["fp32", "bf16"])
def test_loss_and_gradients_are_those_of_the_cpu(key, spec, dtype, tokens):
    """With heads of 64 channels: with keys of 16, fla's gated delta rule reads beyond its arrays (Hopper, Triton 3.7.1)."""
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False
    model = made(replace(spec, hidden_size=128, head_dim=64))
    expected = loss_and_gradients(model, tokens, "cpu", "fp32")
    if key in ("gated_delta_net", "fox_hybrid") and is_wrong_for_gates():
        with pytest.raises(RuntimeError, match="upgrade Triton"):
            loss_and_gradients(model, tokens, "cuda", dtype)
        return
    assert_equal(loss_and_gradients(model, tokens, "cuda", dtype), expected, dtype, COARSE.get(key, 4e-3))
