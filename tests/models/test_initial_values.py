"""Tests of all parameters' initial values against the released setup (protocol 2.1): one table, nothing left out."""

import dataclasses
import math
import re
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from models.build import build_model
from models.delta_net.spec import DeltaNetSpec
from models.forgetting_transformer.module import decay_time_bias
from models.forgetting_transformer.spec import ForgettingTransformerSpec
from models.hgrn2.spec import HGRN2Spec
from models.mamba2.spec import Mamba2Spec
from models.samba.spec import SambaSpec
from models.spec import ModelSpec

D, LAYERS, HEADS = 128, 8, 4
COMMON: dict[str, Any] = {"vocab_size": 300, "hidden_size": D, "num_layers": LAYERS}
PRO: dict[str, Any] = {
    "use_k_shift": True,
    "use_v_shift": True,
    "qk_norm": True,
    "use_output_gate": True,
    "use_output_norm": True,
}
SOFTMAX: dict[str, Any] = {"forget_gate": "none", "use_rope": True}
CONSTANT: dict[str, Any] = {"decay_time_min": 2.0, "decay_time_max": 256.0}


def fox(**changes: Any) -> ForgettingTransformerSpec:
    return ForgettingTransformerSpec(**COMMON, num_heads=HEADS, mlp_width=200, **changes)


MODELS: dict[str, ModelSpec] = {
    "fox_pro": fox(**PRO),
    "fox_pro, a norm per head": fox(**PRO, qk_norm_share_param_across_head=False),
    "transformer_pro": fox(**PRO, **SOFTMAX),
    "fox_llama": fox(),
    "transformer_llama": fox(**SOFTMAX),
    "bias_only": fox(forget_gate="bias_only", **CONSTANT),
    "full, with decay times": fox(**CONSTANT),
    "fixed": fox(forget_gate="fixed", **CONSTANT),
    "stick_breaking": fox(attention="stick_breaking", forget_gate="none"),
    "mamba2": Mamba2Spec(**COMMON, head_dim=8, ssm_state_size=16),
    "samba": SambaSpec(**COMMON, num_heads=HEADS, mlp_width=200, mamba_mlp_width=160),
    "hgrn2": HGRN2Spec(**COMMON, expand_ratio=32, mlp_width=200),
    "delta_net": DeltaNetSpec(**COMMON, head_dim=32, mlp_width=200),
}

Check = Callable[[list[Tensor]], None]


def distribution(cdf: Callable[[Tensor], Tensor], mean: float, std: float) -> Check:
    """Independent draws: mean and standard deviation within five standard errors, and the largest gap between the
    empirical distribution and the true one (Kolmogorov and Smirnov's) below its 1e-4 quantile."""

    def check(tensors: list[Tensor]) -> None:
        x = torch.cat([tensor.flatten() for tensor in tensors]).double().sort().values
        n = len(x)
        assert n >= 16
        assert x.mean().item() == pytest.approx(mean, abs=5 * std / math.sqrt(n))
        if n > 500:
            assert x.std().item() == pytest.approx(std, rel=5 / math.sqrt(2 * n))
        gap = (cdf(x) - (torch.arange(n) + 0.5) / n).abs().max().item()
        assert gap < 2.3 / math.sqrt(n)
        assert len({tensor.flatten()[0].item() for tensor in tensors}) == len(tensors), "each layer has its own draws"

    return check


def normal(std: float) -> Check:
    return distribution(lambda x: 0.5 * (1 + torch.erf(x / (std * math.sqrt(2)))), 0.0, std)


def uniform(bound: float) -> Check:
    inside = distribution(lambda x: (x / bound + 1) / 2, 0.0, bound / math.sqrt(3))

    def check(tensors: list[Tensor]) -> None:
        x = torch.cat([tensor.flatten() for tensor in tensors])
        for extreme in (-x.min().item(), x.max().item()):  # misses the bound by 20/n once in e^10
            assert bound * (1 - 20 / len(x)) <= extreme <= bound * (1 + 1e-6)
        inside(tensors)

    return check


def constant(value: Tensor | float) -> Check:
    def check(tensors: list[Tensor]) -> None:
        for tensor in tensors:
            assert torch.allclose(tensor, torch.as_tensor(value).expand_as(tensor), rtol=1e-6)

    return check


def xavier(fan_out: int) -> Check:
    """Uniform with gain 2^-2.5, of a map from the width to `fan_out`."""
    return uniform(2**-2.5 * math.sqrt(6 / (D + fan_out)))


def log_uniform_steps(tensors: list[Tensor]) -> None:
    """softplus(dt_bias) is log-uniform in [1e-3, 1e-1]."""
    uniform(math.log(10.0))([F.softplus(tensor.double()).log() - math.log(1e-2) for tensor in tensors])


NORMS = {r".*norm\.weight": constant(1.0)}
EMBEDDING = {r"model\.embeddings\.weight": normal(0.02)}
FOX = {r".*(embeddings|lm_head|_proj|linear)\.weight": normal(0.02), r".*fgate_proj\.bias": constant(0.0), **NORMS}
CONSTANT_GATE = {**FOX, r".*\.fgate_bias": constant(decay_time_bias(HEADS, 2.0, 256.0))}
LINEAR_RECURRENT = {
    **EMBEDDING,
    **NORMS,
    r"lm_head\.weight|.*mlp\.gate_proj\.weight": normal(0.02),
    r".*mlp\.down_proj\.weight": normal(0.02 / math.sqrt(2 * LAYERS)),
    r".*attn\.[qkvfio]_proj\.weight": xavier(D),
}
TABLE: dict[str, dict[str, Check]] = {
    "fox_pro": FOX,
    "fox_pro, a norm per head": FOX,
    "transformer_pro": FOX,
    "fox_llama": FOX,
    "transformer_llama": FOX,
    "stick_breaking": FOX,
    "bias_only": CONSTANT_GATE,
    "full, with decay times": {**FOX, r".*fgate_proj\.bias": constant(decay_time_bias(HEADS, 2.0, 256.0))},
    "fixed": CONSTANT_GATE,
    "hgrn2": {**LINEAR_RECURRENT, r"model\.lower_bounds": constant(0.0)},
    "delta_net": {
        **LINEAR_RECURRENT,
        r".*attn\.b_proj\.weight": xavier(HEADS),
        r".*attn\.[qkv]_conv1d\.weight": uniform(0.5),
    },
    "mamba2": {
        **EMBEDDING,
        **NORMS,
        r"lm_head\.weight|.*in_proj\.weight": uniform(1 / math.sqrt(D)),
        r".*out_proj\.weight": uniform(1 / math.sqrt(2 * D) / math.sqrt(LAYERS)),
        r".*conv1d\.(weight|bias)": uniform(0.5),
        r".*\.A_log": constant(torch.arange(1.0, 33.0).log()),
        r".*\.D": constant(1.0),
        r".*\.dt_bias": log_uniform_steps,
    },
    "samba": {
        **EMBEDDING,
        **NORMS,
        r"lm_head\.weight|.*(in|q|k|v|gate)_proj\.weight": uniform(1 / math.sqrt(D)),
        r".*\.x_proj\.weight": uniform(1 / math.sqrt(2 * D)),
        r".*out_proj\.weight": uniform(1 / math.sqrt(2 * D) / math.sqrt(2 * LAYERS)),
        r".*attn\.o_proj\.weight": uniform(1 / math.sqrt(D) / math.sqrt(2 * LAYERS)),
        # 160 wide after Mamba, 200 after attention
        **{
            rf".*layers\.[{layers}]\.mlp\.down_proj\.weight": uniform(1 / math.sqrt(width) / math.sqrt(2 * LAYERS))
            for layers, width in (("02468", 160), ("13579", 200))
        },
        r".*conv1d\.(weight|bias)": uniform(0.5),
        r".*\.dt_proj\.weight": uniform(1 / math.sqrt(D // 16)),
        r".*\.A_log": constant(torch.arange(1.0, 17.0).log()),
        r".*\.D": constant(1.0),
        r".*\.dt_proj\.bias": log_uniform_steps,
    },
}


@pytest.mark.parametrize("name", MODELS)
def test_every_parameter_starts_as_in_the_released_setup(name):
    torch.manual_seed(0)
    by_row: dict[tuple[str, str], list[Tensor]] = {}
    for parameter, tensor in build_model(MODELS[name]).state_dict().items():
        rows = [row for row in TABLE[name] if re.fullmatch(row, parameter)]
        assert len(rows) == 1, f"{parameter} is in {len(rows)} rows of the table"
        by_row.setdefault((rows[0], re.sub(r"\.\d+\.", ".*.", parameter)), []).append(tensor)
    assert {row for row, _ in by_row} >= TABLE[name].keys() - {r".*fgate_proj\.bias", r".*norm\.weight"}
    for (row, parameter), tensors in by_row.items():
        try:
            TABLE[name][row](tensors)
        except AssertionError as error:
            raise AssertionError(f"{parameter}: {error}") from error


def test_depth_enters_where_it_should():
    """The table is met at one depth; here at others."""
    for layers in (2, 32):
        spec = dataclasses.replace(MODELS["delta_net"], num_layers=layers)
        down = build_model(spec).model.layers[0].mlp.down_proj.weight
        assert down.std().item() == pytest.approx(0.02 / math.sqrt(2 * layers), rel=0.05)
        plain = build_model(dataclasses.replace(MODELS["fox_pro"], num_layers=layers)).model.layers[0].mlp.down_proj.weight
        assert plain.std().item() == pytest.approx(0.02, rel=0.05)
