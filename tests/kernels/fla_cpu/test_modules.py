"""Norms for CPUs against their definitions in float64, and the dispatch."""

import pytest
import torch
import torch.nn.functional as F

from kernels.fla_cpu import modules
from kernels.fla_cpu.install import install
from tests.kernels.exact import assert_exact


def norm(x, weight, eps):
    return x / (x.square().mean(-1, keepdim=True) + eps).sqrt() * weight


def test_norms():
    torch.manual_seed(0)
    x, z, weight, linear, bias = (torch.randn(size) for size in ((2, 5, 16), (2, 5, 16), (16,), (3, 16), (3,)))
    x = 0.1 * x
    own = lambda x, w: modules.rms_norm(x, w, eps=1e-2)  # noqa: E731
    assert_exact(own, lambda x, w: norm(x, w, 1e-2), [x, weight], 1e-6)
    own = lambda x, w, a, b: modules.rms_norm_linear(x, w, None, a, b, eps=1e-2)  # noqa: E731
    assert_exact(own, lambda x, w, a, b: F.linear(norm(x, w, 1e-2), a, b), [x, weight, linear, bias], 1e-6)
    for activation, gate in (("swish", F.silu), ("sigmoid", torch.sigmoid)):
        own = lambda x, z, w, a=activation: modules.rms_norm_gated(x, z, w, activation=a, eps=1e-2)  # noqa: E731
        assert_exact(own, lambda x, z, w, f=gate: norm(x, w, 1e-2) * f(z), [x, z, weight], 1e-6)

    def mamba(x, z, w):
        return modules.rmsnorm_fn(x, w, None, z, eps=1e-2, group_size=8, norm_before_gate=False)

    def groups(x, z, w):
        return norm((x * F.silu(z)).unflatten(-1, (2, 8)), 1.0, 1e-2).flatten(-2) * w

    assert_exact(mamba, groups, [x, z, weight], 1e-6)


@pytest.mark.skipif(torch.cuda.is_available(), reason="a GPU has a version of every layer")
def test_a_layer_without_a_cpu_version_says_which_and_where_to_add_it():
    install()
    from fla.layers.rodimus import RodimusAttention

    with pytest.raises(ValueError, match=r'add \("fla.layers.rodimus", "chunk_gla", recurrences.chunk_gla\) to _PLACES'):
        RodimusAttention(hidden_size=64)(torch.randn(1, 70, 64))
