"""Autocast, tensors without storage, and torch.func, in the attention operators and the loss."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from kernels.forgetting_attention import forgetting_attention, forgetting_attention_cached
from kernels.linear_cross_entropy import linear_cross_entropy
from kernels.stick_breaking import stick_breaking_attention

B, T, H, D = 2, 70, 2, 16


def inputs(dtype: torch.dtype, device: str = "cpu") -> tuple[Tensor, Tensor]:
    torch.manual_seed(0)
    x, gates = (torch.randn(B, T, H, D).to(device, dtype).requires_grad_() for _ in range(2))
    return x, -gates.detach()[..., 0].abs().float()


OPERATORS: dict[str, Callable[..., Tensor]] = {
    "forgetting": lambda x, g, **o: forgetting_attention(x, x, x, g, **o),
    "cached": lambda x, g: forgetting_attention_cached(x[:, -1:], x, x, g.double()),
    "stick-breaking": lambda x, g, **o: stick_breaking_attention(x, x, x, **o)[0],
    "loss": lambda x, g: linear_cross_entropy(x[0, :, 0], x[0, :, 1], torch.arange(T, device=x.device)),
}


@pytest.mark.parametrize("name", OPERATORS)
def test_autocast_rounds_inputs_but_neither_doubles_nor_gates(name):
    operator = OPERATORS[name]
    with torch.autocast("cpu", torch.bfloat16):
        doubles, low = operator(*inputs(torch.float64)), operator(*inputs(torch.float32))
    assert torch.equal(doubles, operator(*inputs(torch.float64)))
    x, gates = inputs(torch.float32)
    rounded = operator(x.bfloat16(), gates)
    assert low.dtype == rounded.dtype
    assert (low - rounded).norm() < 2**-8 * rounded.norm()


@pytest.mark.parametrize("name", ["forgetting", "stick-breaking"])
def test_transforms_need_the_reference(name):
    x, g = inputs(torch.float32)
    x, way = x.detach(), torch.randn(B, T, H, D)
    of = lambda y, **o: OPERATORS[name](y, g, **o)  # noqa: E731
    calls = {
        "grad": lambda **o: torch.func.grad(lambda y: of(y, **o).sum())(x),
        "vmap": lambda **o: torch.func.vmap(lambda y: of(y, **o))(torch.stack([x, way])),
    }
    for call in calls.values():
        with pytest.raises(ValueError, match=r"of torch\.func need backend='reference'"):
            call()
    y = x.clone().requires_grad_()
    of(y).sum().backward()
    torch.testing.assert_close(calls["grad"](backend="reference"), y.grad)
    torch.testing.assert_close(calls["vmap"](backend="reference"), torch.stack([of(x), of(way)]))
