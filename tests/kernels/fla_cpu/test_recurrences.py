"""The recurrences for CPUs, gradients and final states, against token-by-token recurrences in float64 and fla's references."""

import pytest
import torch
import torch.nn.functional as F

from kernels.fla_cpu import recurrences
from kernels.fla_cpu.install import install
from tests.kernels.exact import assert_exact

B, H, K, V = 2, 3, 16, 8
GATES = {
    "none": lambda shape: torch.zeros(shape),
    "mild": lambda shape: -torch.rand(shape),
    "strong": lambda shape: -60 * torch.rand(shape),
    "mixed": lambda shape: torch.where(torch.rand(shape) < 0.1, -60.0, -1e-3 * torch.rand(shape)),
    "cut": lambda shape: torch.where(torch.rand(shape) < 0.05, -1e4, 0.0),
}
SCALE = 0.4


def steps(q, k, v, g, beta, state):
    """S_t = (I - beta_t k_t k_t^T) diag(exp g_t) S_{t-1} + beta_t k_t v_t^T, or without beta S_t = diag(exp g_t) S_{t-1} +
    k_t v_t^T; o_t = scale S_t^T q_t."""
    outputs = []
    for t in range(q.shape[1]):
        k_t = k[:, t, :, :, None]
        state = state * g[:, t].exp()[..., None]
        error = v[:, t, :, None] - (0 if beta is None else k_t.mT @ state)
        state = state + (1 if beta is None else beta[:, t, :, None, None]) * k_t @ error
        outputs.append(SCALE * (state.mT @ q[:, t, :, :, None])[..., 0])
    return torch.stack(outputs, 1), state


def inputs(seq_len, gate, *channels):
    torch.manual_seed(seq_len)
    q, k, v = torch.randn(B, seq_len, H, K), torch.randn(B, seq_len, H, K), torch.randn(B, seq_len, H, V)
    q, k = recurrences.l2norm(q), recurrences.l2norm(k)
    return [q, k, v, GATES[gate]((B, seq_len, H, *channels)), torch.rand(B, seq_len, H), torch.randn(B, H, K, V)]


CASES = [(1, "mild"), (3, "mixed"), (64, "none"), (65, "cut"), (200, "mixed"), (200, "strong"), (200, "cut")]


@pytest.mark.parametrize(("seq_len", "gate"), CASES)
def test_gated_recurrence(seq_len, gate):
    q, k, v, g, _, state = inputs(seq_len, gate, K)

    def run(q, k, v, g, state):
        return recurrences.chunk_gla(q, k, v, g, scale=SCALE, initial_state=state, output_final_state=True)

    assert_exact(run, lambda *x: steps(*x[:4], None, x[4]), [q, k, v, g, state], 1e-5)


@pytest.mark.parametrize("channels", [(), (K,)], ids=["per head", "per channel"])
@pytest.mark.parametrize(("seq_len", "gate"), CASES)
def test_delta_rule(seq_len, gate, channels):
    given = inputs(seq_len, gate, *channels)

    def run(q, k, v, g, beta, state):
        more = dict(scale=SCALE, initial_state=state, output_final_state=True)
        return recurrences.gated_delta_rule(q, k, v, g, beta, **more)

    def wanted(q, k, v, g, *rest):
        return steps(q, k, v, g if channels else g[..., None], *rest)

    assert_exact(run, wanted, given, 1e-5)
    if gate == "none":
        q, k, v, _, beta, state = given
        more = dict(scale=SCALE, initial_state=state, output_final_state=True)
        torch.testing.assert_close(recurrences.chunk_delta_rule(q, k, v, beta, **more), run(*given))


@pytest.mark.parametrize("channels", [(), (K,)], ids=["per head", "per channel"])
@pytest.mark.parametrize("negative", [False, True])
def test_gates_norms_and_states_as_the_layers_hand_them_over(channels, negative):
    q, k, v, raw, beta, state = inputs(70, "mild", *channels)
    q, k, raw, beta = 3 * q, 2 * k, 3 * raw + 1, 4 * beta - 2
    A_log, dt_bias = torch.randn(H), torch.randn(raw[0, 0].numel())
    gate = -A_log.exp().view(H, *(1 for _ in channels)) * F.softplus(raw + dt_bias.view(H, *channels))
    found, last = recurrences.gated_delta_rule(
        q, k, v, raw, beta, output_final_state=True, use_qk_l2norm_in_kernel=True, use_beta_sigmoid_in_kernel=True,
        allow_neg_eigval=negative, initial_state=state.mT, state_v_first=True, use_gate_in_kernel=True, A_log=A_log,
        dt_bias=dt_bias, scale=SCALE,
    )  # fmt: skip
    q, k = (x / (x.square().sum(-1, keepdim=True) + 1e-6).sqrt() for x in (q, k))
    gate = gate if channels else gate[..., None]
    expected, exact = steps(*(x.double() for x in (q, k, v, gate, (1 + negative) * beta.sigmoid(), state)))
    torch.testing.assert_close(found.double(), expected, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(last.mT.double(), exact, rtol=1e-5, atol=1e-5)


def test_a_sequence_continues_from_its_state_in_either_layout():
    q, k, v, g, _, state = inputs(150, "mild", K)
    whole, last = recurrences.chunk_gla(q, k, v, g, initial_state=state, output_final_state=True)
    parts = [state.mT]
    for now in (slice(0, 90), slice(90, 150)):
        o, reached = recurrences.fused_recurrent_gla(
            *(x[:, now] for x in (q, k, v, g)), initial_state=parts.pop(), output_final_state=True, state_v_first=True
        )
        parts += [o, reached]
    torch.testing.assert_close(torch.cat(parts[:2], 1), whole, rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(parts[2].mT, last, rtol=1e-4, atol=1e-4)


def test_flas_references_agree():
    from fla.ops.delta_rule.naive import delta_rule_recurrence
    from fla.ops.gla.naive import naive_recurrent_gla

    q, k, v, g, beta, _ = inputs(96, "mild", K)
    torch.testing.assert_close(recurrences.chunk_gla(q, k, v, g)[0], naive_recurrent_gla(q, k, v, g)[0], rtol=1e-4, atol=1e-4)
    expected = delta_rule_recurrence(*(x.transpose(1, 2) for x in (q, k, v, beta)))[0].transpose(1, 2)
    torch.testing.assert_close(recurrences.chunk_delta_rule(q, k, v, beta)[0], expected, rtol=1e-4, atol=1e-4)


def test_sums_are_in_fp32_in_16_bits_and_under_autocast():
    import fla.layers.delta_net as layer

    install()
    q, k, v, _, beta, _ = (x.bfloat16() for x in inputs(200, "mild"))
    exact, _ = recurrences.chunk_delta_rule(*(x.float() for x in (q, k, v, beta)))
    with torch.autocast("cpu", torch.bfloat16):
        o, _ = layer.chunk_delta_rule(q, k, v, beta)
    assert torch.equal(o, exact.bfloat16())


def test_keys_of_zeros_stay_zeros():
    """As padded places have them: the square root is of 1e-6 there."""
    assert torch.equal(recurrences.l2norm(torch.zeros(2, 3)), torch.zeros(2, 3))
