"""Every model's loss and gradients on a GPU beside its CPU path, with the same weights and tokens. The helpers are tried on a
CPU, where both sides are one and a fault is put into one of them."""

import copy
from dataclasses import replace

import pytest
import torch
from packaging.version import Version
from torch import Tensor

from models.build import build_model
from models.delta_net.spec import DeltaNetSpec
from models.hgrn2.spec import HGRN2Spec
from models.loss import token_losses
from models.spec import ModelSpec
from tests.models.conftest import SPECS

BF16_ONLY = (DeltaNetSpec,)
"""Kinds whose kernel refuses fp32."""
COARSE = {HGRN2Spec: 2e-3}
"""Kinds whose kernel multiplies fp32 in fewer bits."""
WIDE = {key: replace(spec, hidden_size=128) for key, spec in SPECS.items()}
"""Heads of 64 channels, for which Hopper GPUs have kernels of their own."""
CASES = [
    (key, dtype) for key, spec in SPECS.items() for dtype in (("bf16",) if isinstance(spec, BF16_ONLY) else ("fp32", "bf16"))
]


def made(spec: ModelSpec) -> torch.nn.Module:
    """Build a model in training mode whose weights are spread enough that a slip shows."""
    torch.manual_seed(0)
    model = build_model(spec).train()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if parameter.ndim == 2 and "embeddings" not in name:
                parameter.mul_(2.0)
    return model


def loss_and_gradients(model: torch.nn.Module, tokens: Tensor, device: str, dtype: str) -> dict[str, Tensor]:
    """Return the mean loss and the gradient of each parameter, in fp64 on the host."""
    model = copy.deepcopy(model).to(device)
    tokens = tokens.to(device)
    with torch.autocast(device, torch.bfloat16, enabled=dtype == "bf16"):
        loss = token_losses(model, tokens[:, :-1], tokens[:, 1:]).mean()
    loss.backward()
    gradients = {name: parameter.grad for name, parameter in model.named_parameters() if parameter.grad is not None}
    return {name: value.detach().double().cpu() for name, value in {"loss": loss, **gradients}.items()}


def distances(found: dict[str, Tensor], expected: dict[str, Tensor]) -> tuple[float, float, float]:
    """Return how far the loss is off, relative; how far all gradients together are, by the norm; and their cosine."""
    assert found.keys() == expected.keys()
    loss = float((found["loss"] / expected["loss"] - 1).abs())
    names = sorted(expected.keys() - {"loss"})
    ours, theirs = (torch.cat([side[name].flatten() for name in names]) for side in (found, expected))
    return loss, float((ours - theirs).norm() / theirs.norm()), float(torch.cosine_similarity(ours, theirs, dim=0))


def assert_equal(found: dict[str, Tensor], expected: dict[str, Tensor], dtype: str, most: float = 1e-5) -> None:
    loss, gradients, cosine = distances(found, expected)
    if dtype == "fp32":
        assert max(loss, gradients) < most, f"loss {loss:.1e} and gradients {gradients:.1e} off, relative; {most} is allowed"
    else:
        assert cosine >= 0.999 and loss < 1e-2, f"cosine of the gradients {cosine:.5f}, loss {loss:.1e} off"


def is_wrong_for_gates() -> bool:
    """Tell whether fla refuses the backward pass of gated delta rules: Triton before 3.7.1 gets it wrong on Hopper GPUs."""
    import triton

    return torch.cuda.get_device_capability()[0] == 9 and Version("3.4") <= Version(triton.__version__) < Version("3.7.1")


@pytest.mark.gpu
@pytest.mark.parametrize(("key", "dtype"), CASES)
def test_loss_and_gradients_are_those_of_the_cpu(key, dtype, tokens):
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False  # monkeypatch cannot put them back
    model = made(WIDE[key])
    expected = loss_and_gradients(model, tokens, "cpu", "fp32")
    most = COARSE.get(type(WIDE[key]), 1e-5)
    assert_equal(loss_and_gradients(model, tokens, "cuda", dtype), expected, dtype, most)


@pytest.mark.parametrize("key", ["fox_pro", "hgrn2"])
def test_the_comparison_notices_a_fault_and_nothing_else(key, tokens):
    model, most = made(WIDE[key]), COARSE.get(type(WIDE[key]), 1e-5)
    expected = loss_and_gradients(model, tokens[:, :60], "cpu", "fp32")
    assert_equal(loss_and_gradients(model, tokens[:, :60], "cpu", "fp32"), expected, "fp32", most)
    assert_equal(loss_and_gradients(model, tokens[:, :60], "cpu", "bf16"), expected, "bf16")
    with torch.no_grad():
        model.lm_head.weight.mul_(1.01)
    with pytest.raises(AssertionError, match="off, relative"):
        assert_equal(
            loss_and_gradients(model, tokens[:, :60], "cpu", "fp32"), expected, "fp32", COARSE.get(type(WIDE[key]), 1e-5)
        )
