"""CPU recurrences, gradients and final states, against step-by-step fp64 recurrences and against fla's own references."""

import pytest
import torch

from kernels.fla_cpu import recurrences

B, H, K, V = 2, 3, 16, 8
GATES = {
    "none": lambda shape: torch.zeros(shape),
    "mild": lambda shape: -torch.rand(shape),
    "strong": lambda shape: -60 * torch.rand(shape),
    "mixed": lambda shape: torch.where(torch.rand(shape) < 0.1, -60.0, -1e-3 * torch.rand(shape)),
    "cut": lambda shape: torch.where(torch.rand(shape) < 0.05, -1e4, 0.0),
}


def gated_recurrence(q, k, v, g, state, scale):
    """S_t = diag(exp g_t) S_{t-1} + k_t v_t^T, o_t = scale S_t^T q_t, token by token in fp64."""
    q, k, v, g, state = (x.double() for x in (q, k, v, g, state))
    outputs = []
    for t in range(q.shape[1]):
        state = state * g[:, t].exp()[..., None] + k[:, t, :, :, None] * v[:, t, :, None, :]
        outputs.append(scale * torch.einsum("bhk,bhkv->bhv", q[:, t], state))
    return torch.stack(outputs, 1), state


def delta_recurrence(q, k, v, beta, state, scale):
    """S_t = S_{t-1} + beta_t k_t (v_t - S_{t-1}^T k_t)^T, token by token in fp64."""
    q, k, v, beta, state = (x.double() for x in (q, k, v, beta, state))
    outputs = []
    for t in range(q.shape[1]):
        error = v[:, t] - torch.einsum("bhk,bhkv->bhv", k[:, t], state)
        state = state + beta[:, t, :, None, None] * k[:, t, :, :, None] * error[:, :, None, :]
        outputs.append(scale * torch.einsum("bhk,bhkv->bhv", q[:, t], state))
    return torch.stack(outputs, 1), state


def gated_delta_recurrence(q, k, v, g, beta, state, scale):
    """S_t = (I - beta_t k_t k_t^T) diag(exp g_t) S_{t-1} + beta_t k_t v_t^T, token by token in fp64."""
    q, k, v, g, beta, state = (x.double() for x in (q, k, v, g, beta, state))
    outputs = []
    for t in range(q.shape[1]):
        state = state * g[:, t].exp()[..., None]
        error = v[:, t] - torch.einsum("bhk,bhkv->bhv", k[:, t], state)
        state = state + beta[:, t, :, None, None] * k[:, t, :, :, None] * error[:, :, None, :]
        outputs.append(scale * torch.einsum("bhk,bhkv->bhv", q[:, t], state))
    return torch.stack(outputs, 1), state


def inputs(seq_len):
    torch.manual_seed(seq_len)
    q, k, v = torch.randn(B, seq_len, H, K), torch.randn(B, seq_len, H, K), torch.randn(B, seq_len, H, V)
    return q, k, v, torch.randn(B, H, K, V)


def assert_close(actual, expected, tolerance):
    """Largest error relative to the largest value: sums over a chunk are fp32."""
    for name, a, e in zip(("o", "state", "dq", "dk", "dv", "dgate", "dstate"), actual, expected, strict=True):
        error = (a.double() - e).abs().max() / e.abs().max().clamp(min=1e-3)
        assert torch.isfinite(a).all(), name
        assert error < tolerance, f"{name}: relative error {error:.2e}"


def with_gradients(function, arguments):
    leaves = [x.clone().requires_grad_() for x in arguments]
    o, state = function(*leaves)
    torch.manual_seed(1)
    loss = (o * torch.randn(o.shape)).sum() + (state * torch.randn(state.shape)).sum()
    return (o.detach(), state.detach(), *torch.autograd.grad(loss, leaves))


@pytest.mark.parametrize("gate", GATES)
@pytest.mark.parametrize("seq_len", [1, 3, 64, 65, 200])
def test_gated_recurrences_match_fp64(seq_len, gate):
    q, k, v, state = inputs(seq_len)
    for function, shape in (
        (recurrences.chunk_gla, (B, seq_len, H, K)),
        (recurrences.fused_recurrent_gla, (B, seq_len, H, K)),
    ):
        arguments = (q, k, v, GATES[gate](shape), state)
        actual = with_gradients(
            lambda *a, function=function: function(*a[:4], initial_state=a[4], output_final_state=True), arguments
        )
        expected = with_gradients(lambda *a: gated_recurrence(*a, K**-0.5), arguments)
        assert_close(actual, expected, 2e-5)


@pytest.mark.parametrize("seq_len", [1, 3, 64, 65, 200])
def test_delta_rule_matches_fp64(seq_len):
    q, k, v, state = inputs(seq_len)
    q, k = recurrences.l2norm(q), recurrences.l2norm(k)
    arguments = (q, k, v, torch.rand(B, seq_len, H), state)
    actual = with_gradients(
        lambda *a: recurrences.chunk_delta_rule(*a[:4], initial_state=a[4], output_final_state=True), arguments
    )
    assert_close(actual, with_gradients(lambda *a: delta_recurrence(*a, K**-0.5), arguments), 2e-5)


@pytest.mark.parametrize("gate", GATES)
@pytest.mark.parametrize("channels", [(), (K,)], ids=["per_head", "per_channel"])
@pytest.mark.parametrize("seq_len", [1, 65, 200])
def test_gated_delta_rule_matches_fp64(seq_len, channels, gate):
    q, k, v, state = inputs(seq_len)
    q, k = recurrences.l2norm(q), recurrences.l2norm(k)
    arguments = (q, k, v, GATES[gate]((B, seq_len, H, *channels)), torch.rand(B, seq_len, H), state)
    actual = with_gradients(
        lambda *a: recurrences.gated_delta_rule(*a[:5], initial_state=a[5], output_final_state=True), arguments
    )

    def wanted(q, k, v, g, beta, state):
        return gated_delta_recurrence(q, k, v, g if channels else g[..., None], beta, state, K**-0.5)

    names = ("o", "state", "dq", "dk", "dv", "dgate", "dbeta", "dstate")
    for name, a, e in zip(names, actual, with_gradients(wanted, arguments), strict=True):
        error = (a.double() - e).abs().max() / e.abs().max().clamp(min=1e-3)
        assert error < 2e-5, f"{name}: relative error {error:.2e}"


@pytest.mark.parametrize("channels", [(), (K,)], ids=["per_head", "per_channel"])
def test_gates_of_the_delta_rule_as_the_layers_hand_them_over(channels):
    q, k, v, _ = inputs(70)
    raw, beta = torch.randn(B, 70, H, *channels), torch.randn(B, 70, H)
    A_log, dt_bias = torch.randn(H), torch.randn(raw[0, 0].numel())
    gate = -A_log.exp().view(H, *(1 for _ in channels)) * torch.nn.functional.softplus(raw + dt_bias.view(H, *channels))
    for negative in (False, True):
        fused, last = recurrences.gated_delta_rule(
            q, k, v, raw, beta, output_final_state=True, use_qk_l2norm_in_kernel=True, use_beta_sigmoid_in_kernel=True,
            allow_neg_eigval=negative, state_v_first=True, use_gate_in_kernel=True, A_log=A_log, dt_bias=dt_bias,
        )  # fmt: skip
        plain, state = recurrences.gated_delta_rule(
            recurrences.l2norm(q), recurrences.l2norm(k), v, gate, (1 + negative) * beta.sigmoid(), output_final_state=True
        )
        assert torch.allclose(fused, plain, atol=1e-5)
        assert torch.allclose(last.mT, state, atol=1e-5)
    with pytest.raises(NotImplementedError, match="no bounded gates"):
        recurrences.gated_delta_rule(q, k, v, gate, beta, lower_bound=-5.0)


def test_delta_rule_normalises_queries_and_keys():
    q, k, v, _ = inputs(70)
    beta = torch.rand(B, 70, H)
    plain, _ = recurrences.chunk_delta_rule(recurrences.l2norm(q), recurrences.l2norm(k), v, beta)
    fused, _ = recurrences.chunk_delta_rule(q, k, v, beta, use_qk_l2norm_in_kernel=True)
    assert torch.allclose(plain, fused, atol=1e-6)
    assert torch.allclose(recurrences.l2norm(q).square().sum(-1), torch.ones(B, 70, H), atol=1e-4)


def test_a_sequence_continues_from_its_state_in_either_layout():
    q, k, v, state = inputs(150)
    g = GATES["mild"]((B, 150, H, K))
    whole, last = recurrences.chunk_gla(q, k, v, g, initial_state=state, output_final_state=True)
    first, middle = recurrences.chunk_gla(
        *(x[:, :90] for x in (q, k, v, g)), initial_state=state.mT, output_final_state=True, state_v_first=True
    )
    assert middle.shape == (B, H, V, K)
    second, end = recurrences.chunk_gla(
        *(x[:, 90:] for x in (q, k, v, g)), initial_state=middle, output_final_state=True, state_v_first=True
    )
    assert torch.allclose(torch.cat([first, second], 1), whole, atol=1e-4)
    assert torch.allclose(end.mT, last, atol=1e-4)


def test_fla_references_agree():
    from fla.ops.delta_rule.naive import delta_rule_recurrence
    from fla.ops.gla.naive import naive_recurrent_gla

    q, k, v, _ = inputs(96)
    g = GATES["mild"]((B, 96, H, K))
    assert torch.allclose(recurrences.chunk_gla(q, k, v, g)[0], naive_recurrent_gla(q, k, v, g)[0], atol=1e-4)
    k, beta = recurrences.l2norm(k), torch.rand(B, 96, H)
    expected = delta_rule_recurrence(*(x.transpose(1, 2) for x in (q, k, v, beta)))[0].transpose(1, 2)
    assert torch.allclose(recurrences.chunk_delta_rule(q, k, v, beta)[0], expected, atol=1e-4)


def test_bf16_inputs_are_summed_in_fp32():
    q, k, v, _ = (x.bfloat16() for x in inputs(200))
    g = GATES["mild"]((B, 200, H, K))
    o, _ = recurrences.chunk_gla(q, k, v, g)
    exact, _ = gated_recurrence(q, k, v, g, torch.zeros(B, H, K, V), K**-0.5)
    assert o.dtype == torch.bfloat16
    assert (o.double() - exact).abs().max() < 2**-8 * exact.abs().max()


def test_packed_sequences_are_refused():
    q, k, v, _ = inputs(8)
    with pytest.raises(NotImplementedError, match="cu_seqlens"):
        recurrences.chunk_delta_rule(q, k, v, torch.rand(B, 8, H), cu_seqlens=torch.tensor([0, 8]))


def test_keys_of_zeros_stay_zeros():
    """As padded places have them: the square root is of 1e-6 there."""
    assert torch.equal(recurrences.l2norm(torch.zeros(2, 3)), torch.zeros(2, 3))
    small = torch.tensor([3e-3, 4e-3])
    torch.testing.assert_close(recurrences.l2norm(small), small / (25e-6 + 1e-6) ** 0.5)
