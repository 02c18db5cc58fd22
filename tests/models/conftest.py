"""The models at a size for tests: the paper's seven, one with a window, two with stick-breaking attention, and whatever
kind of model or forget gate is not among them yet."""

from typing import Any, get_args

import pytest
import torch

from models.forgetting_transformer.spec import ForgetGate
from models.spec import (
    DeltaNetSpec,
    ForgettingTransformerSpec,
    FoxHybridSpec,
    GatedDeltaNetSpec,
    GatedLinearAttentionSpec,
    HGRN2Spec,
    KimiDeltaAttentionSpec,
    Mamba2Spec,
    Mamba3Spec,
    ModelSpec,
    PathFoxSpec,
    SambaSpec,
    WallAttentionSpec,
)

VOCAB = 97
COMMON: dict[str, Any] = {"vocab_size": VOCAB, "hidden_size": 64, "num_layers": 2}
PRO: dict[str, Any] = {
    "mlp_width": 96,
    "use_k_shift": True,
    "use_v_shift": True,
    "qk_norm": True,
    "use_output_gate": True,
    "use_output_norm": True,
}
SOFTMAX: dict[str, Any] = {"forget_gate": "none", "use_rope": True}
STICK: dict[str, Any] = {"attention": "stick_breaking", "forget_gate": "none"}
SPECS: dict[str, ModelSpec] = {
    "fox_pro": ForgettingTransformerSpec(**COMMON, **PRO, num_heads=2),
    "transformer_pro": ForgettingTransformerSpec(**COMMON, **PRO, **SOFTMAX, num_heads=2),
    "fox_llama": ForgettingTransformerSpec(**COMMON, num_heads=2, mlp_width=128),
    "transformer_llama": ForgettingTransformerSpec(**COMMON, **SOFTMAX, num_heads=2, mlp_width=128),
    "mamba2": Mamba2Spec(**COMMON, head_dim=32, ssm_state_size=16),
    "hgrn2": HGRN2Spec(**COMMON, expand_ratio=32, mlp_width=128, output_norm_eps=None),
    "delta_net": DeltaNetSpec(**COMMON, head_dim=32, mlp_width=128),
    "gated_delta_net": GatedDeltaNetSpec(**COMMON, head_dim=16, mlp_width=128),
    "gated_linear_attention": GatedLinearAttentionSpec(**COMMON, head_dim=32, mlp_width=128),
    "fox_hybrid": FoxHybridSpec(**COMMON, num_heads=2, fox_every=2, head_dim=16, mlp_width=128, fox_mlp_width=96),
    "kimi_delta_attention": KimiDeltaAttentionSpec(**COMMON, head_dim=32, mlp_width=128),
    "path_fox": PathFoxSpec(**COMMON, num_heads=2, mlp_width=128),
    "wall_attention": WallAttentionSpec(**COMMON, num_heads=2, mlp_width=128),
    "mamba3": Mamba3Spec(**COMMON, head_dim=32, ssm_state_size=16, mlp_width=96),
    "samba": SambaSpec(**COMMON, num_heads=2, window_size=40, mlp_width=128, mamba_mlp_width=96),
    "transformer_swa": ForgettingTransformerSpec(**COMMON, **SOFTMAX, num_heads=2, mlp_width=128, window_size=40),
    "stick_breaking": ForgettingTransformerSpec(**COMMON, **STICK, num_heads=2, mlp_width=128),
    "stick_breaking_pro": ForgettingTransformerSpec(**COMMON, **PRO, **STICK, num_heads=2, stick_remainder=True),
}
# A new kind is tested as soon as it is listed; give it a line above if its defaults do not suit 64 channels.
DECAY: dict[str, Any] = {"decay_time_min": 2.0, "decay_time_max": 256.0}
SPECS |= {
    gate: ForgettingTransformerSpec(
        **COMMON, num_heads=2, forget_gate=gate, **(DECAY if gate in ("bias_only", "fixed") else {})
    )
    for gate in get_args(ForgetGate)
    if gate not in ("full", "none")
}
KINDS = get_args(get_args(ModelSpec)[0])
SPECS |= {kind.kind: kind(**COMMON) for kind in KINDS if not any(isinstance(spec, kind) for spec in SPECS.values())}


@pytest.fixture(scope="session")
def specs() -> dict[str, ModelSpec]:
    return SPECS


@pytest.fixture(params=SPECS)
def key(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture
def spec(key: str) -> ModelSpec:
    return SPECS[key]


@pytest.fixture
def model(spec: ModelSpec):
    """A model whose weights are spread enough that a slip shows in its outputs."""
    from models.build import build_model

    torch.manual_seed(0)
    model = build_model(spec).eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if parameter.ndim == 2 and "embeddings" not in name:
                parameter.mul_(3.0)
            elif name.endswith("norm.weight"):
                parameter.uniform_(0.5, 1.5)
    return model


@pytest.fixture
def tokens() -> torch.Tensor:
    """(3, 150): longer than two chunks of the recurrences."""
    return torch.randint(VOCAB, (3, 150), generator=torch.Generator().manual_seed(1))
