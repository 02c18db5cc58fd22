"""Doubles under autocast, tensors without storage, and torch.func, in every operator."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from kernels.forgetting_attention import forgetting_attention, forgetting_attention_cached, forgetting_attention_listed
from kernels.linear_cross_entropy import linear_cross_entropy
from kernels.selective_scan import selective_scan
from kernels.ssd import ssd
from kernels.stick_breaking import stick_breaking_attention

B, T, H, D = 2, 70, 2, 16


def inputs(dtype: torch.dtype, device: str) -> tuple[Tensor, Tensor, Tensor]:
    torch.manual_seed(0)
    x, gates = (torch.randn(B, T, H, D).to(device, dtype).requires_grad_() for _ in range(2))
    return x, -gates.detach()[..., 0].abs().float(), torch.tensor([30, 40], dtype=torch.int32, device=device)


ATTENTION: dict[str, Callable[..., Tensor]] = {
    "forgetting": lambda x, g, n, **o: forgetting_attention(x, x, x, g, **o),
    "forgetting, double gates": lambda x, g, n: forgetting_attention(x, x, x, g.to(torch.promote_types(x.dtype, g.dtype))),
    "cached": lambda x, g, n: forgetting_attention_cached(x[:, -1:], x, x, g.double()),
    "listed": lambda x, g, n: forgetting_attention_listed(
        x[0, -1], x[0, :, 0], x[0, :, 0], g[0, :, 0].double(), (n - 30) * 3, n, 40
    ),
    "stick-breaking": lambda x, g, n, **o: stick_breaking_attention(x, x, x, **o)[0],
    "loss": lambda x, g, n: linear_cross_entropy(x[0, :, 0], x[0, :, 1], n.long()[[0] * T]),
}  # fmt: skip


@pytest.mark.parametrize("name", ATTENTION)
def test_autocast_leaves_doubles(name):
    """As PyTorch's attention does."""
    given = inputs(torch.float64, "cpu")
    plain = ATTENTION[name](*given)
    with torch.autocast("cpu", torch.bfloat16):
        found = ATTENTION[name](*given)
    assert found.dtype == torch.float64 and torch.equal(found, plain)


@pytest.mark.parametrize("name", ATTENTION)
def test_autocast_computes_as_with_rounded_inputs(name):
    """Within a rounding; gates are not rounded."""
    x, gates, lengths = inputs(torch.float32, "cpu")
    with torch.autocast("cpu", torch.bfloat16):
        found = ATTENTION[name](x, gates, lengths)
    rounded = ATTENTION[name](x.bfloat16(), gates, lengths)
    assert found.dtype == rounded.dtype and (found - rounded).norm() < 2**-8 * rounded.norm()


@pytest.mark.parametrize("name", ATTENTION)
def test_tensors_without_storage(name):
    given, shapes = inputs(torch.float32, "meta"), ATTENTION[name](*inputs(torch.float32, "cpu")).shape
    found = ATTENTION[name](*given)
    assert found.is_meta and found.shape == shapes
    if found.requires_grad:
        found.sum().backward()
        assert given[0].grad.is_meta and given[0].grad.shape == given[0].shape
    if "stick" in name or name == "forgetting":
        assert ATTENTION[name](*given, backend="reference", seq_start=torch.zeros(B, dtype=torch.int64, device="meta")).is_meta


def test_recurrences_without_storage():
    x, g, _ = inputs(torch.float32, "meta")
    q = torch.empty(B, T, 8, device="meta")
    assert ssd(q, q, x, g, g, torch.empty(H, device="meta"))[0].shape == x.shape
    flat = x.flatten(2)
    A, skip = torch.empty(H * D, 8, device="meta"), torch.empty(H * D, device="meta")
    assert selective_scan(flat, flat, A, q, q, skip)[0].shape == flat.shape


@pytest.mark.parametrize("name", ["forgetting", "stick-breaking"])
def test_transforms_need_the_reference(name):
    x, g, n = inputs(torch.float32, "cpu")
    x, way = x.detach(), torch.randn(B, T, H, D)
    of = lambda y, **o: ATTENTION[name](y, g, n, **o)  # noqa: E731
    calls = {
        "grad": lambda **o: torch.func.grad(lambda y: of(y, **o).sum())(x),
        "jvp": lambda **o: torch.func.jvp(lambda y: of(y, **o), (x,), (way,))[1],
        "vmap": lambda **o: torch.func.vmap(lambda y: of(y, **o))(torch.stack([x, way])),
    }
    for call in calls.values():
        with pytest.raises(ValueError, match=r"of torch\.func need backend='reference'"):
            call()
    y = x.clone().requires_grad_()
    of(y).sum().backward()
    torch.testing.assert_close(calls["grad"](backend="reference"), y.grad)
    step = 1e-3
    slope = (of((x + step * way).double()) - of((x - step * way).double())) / (2 * step)
    torch.testing.assert_close(calls["jvp"](backend="reference").double(), slope, rtol=1e-2, atol=1e-3)
    torch.testing.assert_close(calls["vmap"](backend="reference"), torch.stack([of(x), of(way)]))


def test_gates_are_mapped_too():
    """Though their values cannot be looked at."""
    x, g, _ = inputs(torch.float32, "cpu")
    x, gates = x.detach(), torch.stack([g, 2 * g])
    found = torch.func.vmap(lambda g: forgetting_attention(x, x, x, g, backend="reference"))(gates)
    torch.testing.assert_close(found, torch.stack([forgetting_attention(x, x, x, g) for g in gates]))
