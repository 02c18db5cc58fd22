"""The backend for flash-linear-attention: fla's function and layer compute with ours where it applies, and as before
where it does not. fla's own kernels do not run on a CPU, so what they would get is caught before them."""

import importlib
import sys

import pytest
import torch
from fla.layers import ForgettingAttention
from fla.ops import parallel_attn
from fla.ops.attn import parallel as kernels
from fla.ops.forgetting_attn import naive_forgetting_attn, parallel, parallel_forgetting_attn

from tests.kernels.forgetting_attention.oracle import assert_right, attend, errors, make_case, output_and_gradients

FALLEN_BACK = torch.zeros(1)


@pytest.fixture(autouse=True)
def backend(monkeypatch):
    """Import it, for this test alone, after the function has been imported; fla's kernels give a tensor to be known by."""
    monkeypatch.setattr(kernels.ParallelAttentionFunction, "apply", lambda *inputs: FALLEN_BACK)
    monkeypatch.setattr(parallel, "parallel_attn", parallel_attn)
    monkeypatch.delitem(sys.modules, "kernels.forgetting_attention.fla", raising=False)
    return importlib.import_module("kernels.forgetting_attention.fla")


@pytest.mark.parametrize("gates", ["zero", "mixture", "cuts"])
@pytest.mark.parametrize("options", [{}, {"window_size": 20}, {"cu_seqlens": torch.tensor([0, 7, 90, 90, 130])}])
def test_flas_function_is_as_exact_as_ours(gates, options):
    batch = 1 if "cu_seqlens" in options else 2
    assert_right(parallel_forgetting_attn, make_case(gates, batch, 130, 130, 4, 2, 32, torch.float32), **options)


def test_gates_are_taken_before_they_are_summed():
    """A sum of -2,500 has float32 steps of 2e-4: ours does not see them, and who is given the sum does."""
    case = make_case("one", 1, 2500, 2500, 1, 1, 16, torch.float32)
    exact = output_and_gradients(attend, case.to(torch.float64))
    summed = case._replace(log_fgate=case.log_fgate.cumsum(1).diff(dim=1, prepend=torch.zeros(1, 1, 1)))
    ours, late = (errors(output_and_gradients(parallel_forgetting_attn, x), exact)[0] for x in (case, summed))
    assert ours < 2e-6 < 2e-5 < late


def test_what_we_do_not_compute_falls_back(monkeypatch):
    q, k, v, g, _ = make_case("one", 1, 40, 40, 2, 2, 32, torch.float32)
    assert parallel_forgetting_attn(q, k, v, g) is not FALLEN_BACK
    for other in ((q[..., :30], k[..., :30], v[..., :30]), (q, k, v[..., :16]), (q, k[:, :30], v[:, :30])):
        assert parallel_forgetting_attn(*other, g) is FALLEN_BACK
    assert parallel_attn(q, k, v) is FALLEN_BACK, "attention without gates is fla's own"
    monkeypatch.setenv("FLA_FORGETTING_ATTENTION", "0")
    assert parallel_forgetting_attn(q, k, v, g) is FALLEN_BACK


def both(model, monkeypatch, *inputs, **options):
    """Outputs and gradients with the backend, and with fla's definition in its place."""
    found = []
    for attention in (parallel_forgetting_attn, lambda *inputs, cu_seqlens: naive_forgetting_attn(*inputs)):
        monkeypatch.setattr("fla.layers.forgetting_attn.parallel_forgetting_attn", attention)
        model.zero_grad()
        output = model(*inputs, **options)[0]
        output.square().sum().backward()
        found.append([output.detach(), *(p.grad.clone() for p in model.parameters())])
    return found


def test_flas_layer_computes_with_ours(monkeypatch):
    torch.manual_seed(0)
    layer = ForgettingAttention(hidden_size=64, num_heads=4, num_kv_heads=2, use_output_gate=True)
    ours, theirs = both(layer, monkeypatch, torch.randn(2, 150, 64))
    torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-5)
