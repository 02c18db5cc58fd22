import pytest
import torch


@pytest.fixture(autouse=True)
def _poisoned_memory(request: pytest.FixtureRequest) -> None:
    """What kernels on a GPU allocate next holds NaN."""
    if "gpu" in request.keywords:
        torch.full((64_000_000,), torch.nan, device="cuda")
