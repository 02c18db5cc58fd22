"""Tests of the benchmark's errors: the share of the norm, a root mean square over several draws; inf if one is not finite."""

import math

import pytest
from torch import Tensor

from kernels.benchmark import errors
from kernels.forgetting_attention import reference_attention
from results.measured import GRADIENTS


@pytest.fixture
def found(monkeypatch: pytest.MonkeyPatch) -> dict[str, dict[str, float]]:
    calls = {"uneven": 0, "broken": 0}

    def exact(*inputs: Tensor) -> Tensor:
        return reference_attention(*(x.double() for x in inputs))

    def uneven(*inputs: Tensor) -> Tensor:  # by 1%, 2%, 3% and 4% too large
        calls["uneven"] += 1
        return exact(*inputs) * (1 + 0.01 * calls["uneven"])

    def broken(*inputs: Tensor) -> Tensor:
        calls["broken"] += 1
        return exact(*inputs) * (math.nan if calls["broken"] == 2 else 1.0)

    monkeypatch.setattr(errors, "providers", lambda: {"exact": exact, "uneven": uneven, "broken": broken})
    monkeypatch.setattr(errors, "SHAPE", (1, 24, 2))
    monkeypatch.setattr(errors, "LOGITS", (3.0,))
    monkeypatch.setattr(errors, "GATES", {"local": -6.0})
    monkeypatch.setattr(errors, "limit_tuning", lambda: None)
    return {str(row["provider"]): row for row in errors.measure_errors((), (16,), "cpu")}


def test_errors_are_root_mean_squares_over_the_draws(found):
    assert found["uneven"]["o"] == pytest.approx(math.sqrt((1 + 4 + 9 + 16) / 4) / 100, rel=5e-3)
    assert all(0 < found["exact"][name] < 4e-3 for name in GRADIENTS[1:]), "gradients are rounded to bfloat16"
    assert found["exact"]["o"] < 1e-12
    assert all(math.isinf(found["broken"][name]) for name in GRADIENTS)
