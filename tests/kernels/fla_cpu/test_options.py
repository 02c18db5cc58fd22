"""Options of fla's operators: what the versions for CPUs make of each, and what they refuse."""

import pytest
import torch
import torch.nn.functional as F

from kernels.fla_cpu import modules, path_attention, recurrences, tuning, wall_attention

X, WEIGHT = torch.randn(2, 5, 8, generator=torch.Generator().manual_seed(0)), torch.linspace(0.5, 2, 8)
TAPS = torch.randn(8, 4, generator=torch.Generator().manual_seed(1))


def inputs(tokens: int = 5) -> list[torch.Tensor]:
    """q, k, v (B, T, H, K) and beta (B, T, H)."""
    make = torch.Generator().manual_seed(2)
    return [torch.randn(1, tokens, 2, 4, generator=make) for _ in range(3)] + [torch.rand(1, tokens, 2, generator=make)]


Q, K, V, BETA = inputs()
GATE = -torch.rand(1, 5, 2, generator=torch.Generator().manual_seed(3))


@pytest.mark.parametrize(("call", "words"), [
    (lambda: modules.rms_norm(X, WEIGHT, bias=WEIGHT), "neither a bias nor a fused residual"),
    (lambda: modules.rms_norm(X, WEIGHT, prenorm=True), "neither a bias nor a fused residual"),
    (lambda: modules.rms_norm_linear(X, WEIGHT, WEIGHT, TAPS.mT, None), "neither a bias nor a fused residual"),
    (lambda: modules.rms_norm_gated(X, X, WEIGHT, bias=WEIGHT), "neither a bias nor a fused residual"),
    (lambda: modules.rms_norm_gated(X, X, WEIGHT, prenorm=True), "neither a bias nor a fused residual"),
    (lambda: modules.rmsnorm_fn(X, WEIGHT, WEIGHT, z=X, norm_before_gate=False), "takes no bias"),
    (lambda: modules.rmsnorm_fn(X, WEIGHT, None, z=X, norm_before_gate=True), "gates before the norm"),
    (lambda: modules.causal_conv1d(X, TAPS, cu_seqlens=X), "neither a residual nor packed sequences"),
    (lambda: modules.causal_conv1d_update(X[:, :1], TAPS.expand(2, 8, 4), residual=X, weight=TAPS), "neither a residual"),
    (lambda: recurrences.chunk_gla(Q, K, V, GATE, cu_seqlens=X), "packed sequences"),
    (lambda: recurrences.gated_delta_rule(Q, K, V, GATE, BETA, safe_gate=True), "has no bounded gates"),
    (lambda: recurrences.gated_delta_rule(Q, K, V, GATE, BETA, lower_bound=0.0), "has no bounded gates"),
    (lambda: recurrences.gated_delta_rule(Q, K, V[:, :, :1], GATE, BETA), "as many value heads as key heads"),
    (lambda: wall_attention.parallel_wall_attn(Q, K, V, K, cu_seqlens=X), "Wall attention on the CPU takes none of cu_seqlens"),
    (lambda: path_attention.parallel_path_attn(Q, K, V, K, BETA, GATE, cu_seqlens=X), "packed sequences"),
])  # fmt: skip
def test_what_is_refused(call, words):
    with pytest.raises(NotImplementedError, match=words):
        call()


def test_norms_of_every_kind():
    norm = lambda x, eps: x / (x.square().mean(-1, keepdim=True) + eps).sqrt()  # noqa: E731
    close = torch.testing.assert_close
    close(modules.rms_norm(X, None), norm(X, 1e-5))
    close(modules.rms_norm(X, WEIGHT, residual_in_fp32=False), norm(X, 1e-5) * WEIGHT)
    close(modules.rms_norm_linear(X, WEIGHT, None, TAPS.mT, TAPS[0], eps=0.5), norm(X, 0.5) * WEIGHT @ TAPS + TAPS[0])
    for activation, gate in (("swish", F.silu(X)), ("sigmoid", X.sigmoid())):
        found = modules.rms_norm_gated(X, X, WEIGHT, activation=activation, eps=0.5, prenorm=False)
        close(found, norm(X, 0.5) * WEIGHT * gate)
    half = modules.rms_norm_gated(X.bfloat16(), X, WEIGHT)
    assert half.dtype == torch.bfloat16
    close(half, (norm(X.bfloat16().float(), 1e-6) * WEIGHT * F.silu(X)).bfloat16())
    gated = X * F.silu(WEIGHT * X)
    for size, groups in ((4, 2), (None, 1)):
        found = modules.rmsnorm_fn(X, WEIGHT, None, z=WEIGHT * X, eps=0.5, group_size=size, norm_before_gate=False)
        close(found, norm(gated.unflatten(-1, (groups, -1)), 0.5).flatten(-2) * WEIGHT)


def test_convolutions_of_every_kind():
    plain = F.conv1d(F.pad(X.mT, (3, 0)), TAPS[:, None], groups=8).mT
    for activation in ("silu", "swish"):
        torch.testing.assert_close(modules.causal_conv1d(X, TAPS, activation=activation)[0], F.silu(plain))
    y, state = modules.causal_conv1d(X, TAPS, WEIGHT)
    torch.testing.assert_close(y, plain + WEIGHT)
    assert state is None
    short, state = modules.causal_conv1d(X[:, :2].bfloat16(), TAPS, output_final_state=True)
    assert short.dtype == state.dtype == torch.bfloat16 and state.is_contiguous()
    assert torch.equal(state, F.pad(X[:, :2].bfloat16().mT, (2, 0)))
    with pytest.raises(NotImplementedError, match="activation is 'relu'; causal_conv1d on the CPU takes 'silu', 'swish'"):
        modules.causal_conv1d(X, TAPS, activation="relu")


def delta(q: torch.Tensor, k: torch.Tensor, beta: torch.Tensor, g: torch.Tensor | None, scale: float = 0.5,
          state: torch.Tensor | None = None) -> tuple[torch.Tensor, torch.Tensor]:  # fmt: skip
    """Token by token, as in the docstring, in float64; g (B, T, H, 1 or K)."""
    q, k, v, beta = (x.double() for x in (q, k, V, beta))
    S = torch.zeros(1, 2, 4, 4, dtype=torch.float64) if state is None else state.double()
    outputs = []
    for t in range(q.shape[1]):
        S = S if g is None else S * g[:, t].double().exp()[..., None]
        k_t, b_t = k[:, t, :, :, None], beta[:, t, :, None, None]
        S = S - b_t * k_t @ (k_t.mT @ S) + b_t * k_t @ v[:, t, :, None]
        outputs.append(scale * (S.mT @ q[:, t, :, :, None])[..., 0])
    return torch.stack(outputs, 1), S


KNORM, QNORM = (x * torch.rsqrt(x.square().sum(-1, keepdim=True) + 1e-6) for x in (K, Q))
A_LOG, BIAS = torch.tensor([0.1, -0.3]), torch.tensor([0.5, -1.0])


@pytest.mark.parametrize(("given", "like"), [
    (dict(g=None), dict(g=None)), (dict(g=GATE), dict(g=GATE[..., None])), (dict(g=-K.abs()), dict(g=-K.abs())),
    (dict(g=GATE, scale=2.0), dict(g=GATE[..., None], scale=2.0)),
    (dict(g=GATE, use_qk_l2norm_in_kernel=True), dict(g=GATE[..., None], q=QNORM, k=KNORM)),
    (dict(g=GATE, use_beta_sigmoid_in_kernel=True), dict(g=GATE[..., None], beta=BETA.sigmoid())),
    (dict(g=GATE, use_beta_sigmoid_in_kernel=True, allow_neg_eigval=True), dict(g=GATE[..., None], beta=2 * BETA.sigmoid())),
    (dict(g=GATE, allow_neg_eigval=True, A_log=A_LOG, dt_bias=BIAS), dict(g=GATE[..., None])),
    (dict(g=GATE, use_gate_in_kernel=True, A_log=A_LOG), dict(g=(-A_LOG.exp() * F.softplus(GATE))[..., None])),
    (dict(g=GATE, use_gate_in_kernel=True, A_log=A_LOG, dt_bias=BIAS),
     dict(g=(-A_LOG.exp() * F.softplus(GATE + BIAS))[..., None])),
    (dict(g=K, use_gate_in_kernel=True, A_log=A_LOG, dt_bias=Q[0, 0].flatten()),
     dict(g=-A_LOG.exp()[:, None] * F.softplus(K + Q[0, 0]))),
])  # fmt: skip
@pytest.mark.parametrize("initial", [False, True])
def test_options_of_the_delta_rule(given, like, initial):
    state = V[:, :4].transpose(1, 2).contiguous() if initial else None
    exact, last = delta(**{"q": Q, "k": K, "beta": BETA, **like, "state": state})
    for first in (False, True):
        start = state.mT if first and initial else state
        found, final = recurrences.gated_delta_rule(
            Q, K, V, beta=BETA, **given, initial_state=start, output_final_state=True, state_v_first=first)  # fmt: skip
        torch.testing.assert_close(found.double(), exact, rtol=1e-5, atol=1e-5)
        torch.testing.assert_close(final.double(), last.mT if first else last, rtol=1e-5, atol=1e-5)
        assert final.is_contiguous()
    assert recurrences.gated_delta_rule(Q, K, V, beta=BETA, **given, initial_state=state)[1] is None


@pytest.mark.parametrize(("tokens", "size"), [(1, 1), (2, 2), (3, 4), (33, 64), (64, 64), (65, 64), (1000, 64)])
def test_sizes_of_chunks(tokens, size):
    assert recurrences.chunk_size(tokens) == size
    cut = recurrences.to_chunks(torch.ones(2, tokens, 3, 4, dtype=torch.bfloat16), size)
    assert cut.shape == (2, 3, -(-tokens // size), size, 4) and cut.dtype == torch.float32 and cut.sum() == 2 * tokens * 12


def test_what_is_no_tuned_kernel_has_no_tuner():
    class Wrapped:
        def __init__(self, fn: object) -> None:
            self.fn = fn

    tuner = object.__new__(tuning.Autotuner)
    for value, found in ((None, None), (3, None), (Wrapped(None), None), (Wrapped(Wrapped(tuner)), tuner), (tuner, tuner)):
        assert tuning._tuner(value) is found
    configs = [tuning.Config({"BK": 16, "WIDE": "no"}, num_warps=4, num_stages=3), tuning.Config({"BK": 64, "WIDE": "no"})]
    assert tuning._spread(configs) == configs[::-1] and tuning._spread([]) == []
