"""The models beyond the papers at a size for tests, under the names of the core's fixtures."""

from typing import Any

import pytest

from beyond.models.fox_hybrid.spec import FoxHybridSpec
from beyond.models.gated_delta_net.spec import GatedDeltaNetSpec
from beyond.models.gated_linear_attention.spec import GatedLinearAttentionSpec
from beyond.models.kimi_delta_attention.spec import KimiDeltaAttentionSpec
from models.spec import ModelSpec
from tests.conftest import pytest_collection_modifyitems  # noqa: F401
from tests.models.conftest import COMMON, spread, tokens  # noqa: F401

SPECS: dict[str, ModelSpec] = {
    "gated_delta_net": GatedDeltaNetSpec(**COMMON, head_dim=16, mlp_width=128),
    "gated_linear_attention": GatedLinearAttentionSpec(**COMMON, head_dim=32, mlp_width=128),
    "fox_hybrid": FoxHybridSpec(**COMMON, num_heads=2, fox_every=2, head_dim=16, mlp_width=128, fox_mlp_width=96),
    "kimi_delta_attention": KimiDeltaAttentionSpec(**COMMON, head_dim=32, mlp_width=128),
}


@pytest.fixture(params=SPECS)
def key(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture
def spec(key: str) -> ModelSpec:
    return SPECS[key]


@pytest.fixture
def model(spec: ModelSpec) -> Any:
    return spread(spec)
