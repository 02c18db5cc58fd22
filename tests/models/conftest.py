"""The models at a size for tests: the paper's seven, Samba, a window, stick-breaking, and every other kind and gate."""

from typing import Any, get_args

import pytest
import torch

from models.delta_net.spec import DeltaNetSpec
from models.forgetting_transformer.spec import ForgetGate, ForgettingTransformerSpec
from models.hgrn2.spec import HGRN2Spec
from models.mamba2.spec import Mamba2Spec
from models.samba.spec import SambaSpec
from models.spec import KINDS, ModelSpec

VOCAB = 97
COMMON: dict[str, Any] = {"vocab_size": VOCAB, "hidden_size": 64, "num_layers": 2}
SWITCHES = ("use_k_shift", "use_v_shift", "qk_norm", "use_output_gate", "use_output_norm")
PRO: dict[str, Any] = dict.fromkeys(SWITCHES, True)
ROPE: dict[str, Any] = {"forget_gate": "none", "use_rope": True}
STICK: dict[str, Any] = {"attention": "stick_breaking", "forget_gate": "none"}
DECAY: dict[str, Any] = {"decay_time_min": 2.0, "decay_time_max": 256.0}


def fox(width: int = 128, **changes: Any) -> ForgettingTransformerSpec:
    return ForgettingTransformerSpec(**COMMON, num_heads=2, mlp_width=width, **changes)


SPECS: dict[str, ModelSpec] = {
    "fox_pro": fox(96, **PRO),
    "transformer_pro": fox(96, **PRO, **ROPE),
    "fox_llama": fox(),
    "transformer_llama": fox(**ROPE),
    "mamba2": Mamba2Spec(**COMMON, head_dim=32, ssm_state_size=16),
    "hgrn2": HGRN2Spec(**COMMON, expand_ratio=32, mlp_width=128, output_norm_eps=None),
    "delta_net": DeltaNetSpec(**COMMON, head_dim=32, mlp_width=128),
    "samba": SambaSpec(**COMMON, num_heads=2, window_size=40, mlp_width=128, mamba_mlp_width=96),
    "transformer_swa": fox(**ROPE, window_size=40),
    "stick_breaking": fox(**STICK),
    "stick_breaking_pro": fox(96, **PRO, **STICK, stick_remainder=True),
}
# A new kind or gate is tested as soon as it is listed; give it a line above if its defaults do not suit 64 channels.
SPECS |= {
    gate: fox(forget_gate=gate, **(DECAY if gate in ("bias_only", "fixed") else {}))
    for gate in get_args(ForgetGate)
    if gate not in ("full", "none")
}
OWN = [kind for kind in KINDS.values() if kind.__module__.startswith("models.")]
SPECS |= {kind.kind: kind(**COMMON) for kind in OWN if not any(isinstance(spec, kind) for spec in SPECS.values())}


@pytest.fixture(params=SPECS)
def key(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture
def spec(key: str) -> ModelSpec:
    return SPECS[key]


def spread(spec: ModelSpec, factor: float = 3.0) -> Any:
    """Build a model whose weights are spread enough that a slip shows in its outputs."""
    from models.build import build_model

    torch.manual_seed(0)
    model = build_model(spec).eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if parameter.ndim == 2 and "embeddings" not in name:
                parameter.mul_(factor)
            elif name.endswith("norm.weight"):
                parameter.uniform_(0.5, 1.5)
    return model


@pytest.fixture
def model(spec: ModelSpec) -> Any:
    return spread(spec)


@pytest.fixture
def tokens() -> torch.Tensor:
    """(3, 150): longer than two chunks of the recurrences."""
    return torch.randint(VOCAB, (3, 150), generator=torch.Generator().manual_seed(1))


def pad_left(tokens: torch.Tensor, lengths: list[int]) -> torch.Tensor:
    """Mask of rows whose last `lengths` tokens are text; what stands before is padding, whatever it is."""
    return (torch.arange(tokens.shape[1]) >= tokens.shape[1] - torch.tensor(lengths)[:, None]).long()


def generate(model: Any, tokens: torch.Tensor, **options: Any) -> torch.Tensor:
    return model.generate(tokens, **{"max_new_tokens": 12, "do_sample": False, "pad_token_id": 0, **options})
