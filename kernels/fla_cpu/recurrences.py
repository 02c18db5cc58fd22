"""PyTorch versions of the flash-linear-attention recurrences that the baselines use: chunked matmuls, no loop over tokens.

Inputs, layouts and options are fla's: q, k (B, T, H, K), v (B, T, H, V), results (o of v's shape, final state or None). Every
exponent is a sum of log gates, hence <= 0 however strong the gates, so nothing overflows. Sums run in fp32 for any input dtype.

Suffixes: B batch, H heads, N chunks, C tokens of a chunk, K key and V value channels."""

from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

CHUNK = 64


@dataclass(frozen=True)
class _Options:
    """Options that fla's recurrences take besides their inputs."""

    scale: float | None = None
    """Defaults to K^-0.5."""
    initial_state: Tensor | None = None
    output_final_state: bool = False
    state_v_first: bool = False
    """States are (B, H, V, K) instead of (B, H, K, V)."""
    use_qk_l2norm_in_kernel: bool = False
    use_beta_sigmoid_in_kernel: bool = False
    allow_neg_eigval: bool = False
    use_gate_in_kernel: bool = False
    A_log: Tensor | None = None
    dt_bias: Tensor | None = None
    safe_gate: bool = False
    lower_bound: float | None = None
    cu_seqlens: None = None

    def __post_init__(self) -> None:
        if self.cu_seqlens is not None:
            raise NotImplementedError("packed sequences (cu_seqlens) run on CUDA only; on the CPU pass a padded batch")
        if self.safe_gate or self.lower_bound is not None:
            raise NotImplementedError("the gated delta rule on the CPU has no bounded gates")

    def scaled(self, q: Tensor) -> Tensor:
        return q * (q.shape[-1] ** -0.5 if self.scale is None else self.scale)

    def start(self, like: Tensor) -> Tensor:
        """Return the state (B, H, K, V) before the first token."""
        if self.initial_state is None:
            return torch.zeros_like(like)
        return self.initial_state.float().mT if self.state_v_first else self.initial_state.float()

    def final(self, state: Tensor) -> Tensor | None:
        if not self.output_final_state:
            return None
        return state.mT.contiguous() if self.state_v_first else state


def to_chunks(x: Tensor, size: int) -> Tensor:
    """Split (B, T, H, ...) -> (B, H, N, C, ...) in fp32, zero-padded: zero keys and log gates do not change the state."""
    x, missing = x.float(), -x.shape[1] % size
    if missing:
        x = F.pad(x, (0, 0) * (x.ndim - 2) + (0, missing))
    return x.unflatten(1, (-1, size)).movedim(3, 1)


def _from_chunks(o_BHNCV: Tensor, like: Tensor) -> Tensor:
    return o_BHNCV.movedim(1, 3).flatten(1, 2)[:, : like.shape[1]].to(like.dtype)


def chunk_size(seq_len: int) -> int:
    """Return CHUNK, or for short inputs the next power of two, which the halving of `decayed_scores` needs."""
    return min(CHUNK, 1 << (seq_len - 1).bit_length())


def log_decay(g: Tensor) -> tuple[Tensor, Tensor]:
    """Return the cumulative log gates c of each chunk, as fp32 parts (high, low) whose sum is the fp64 value.

    A chunk of strong gates accumulates thousands of nats, whose fp32 rounding error would show in the decay between adjacent
    tokens. Differences of high parts are exact where they matter, and exp(low) = 1 + low is a factor per token."""
    exact = g.double().cumsum(-2)
    high = exact.float()
    return high, (exact - high).float().detach()  # the gradient goes through the high part


def decayed_scores(q: Tensor, k: Tensor, c: Tensor) -> Tensor:
    """Return A[i, j] = sum_d q[i, d] k[j, d] exp(c[i, d] - c[j, d]) for i >= j, else 0; c is non-increasing along the tokens.

    Recurses on halves: between the second half and the first, c at the midpoint splits the exponent into two sums of log
    gates, both <= 0, so that a plain matmul is exact where exp(c_i) * exp(-c_j) would overflow."""
    size = c.shape[-2]
    if size <= 4:
        causal = torch.ones(size, size, dtype=torch.bool, device=c.device).tril()[..., None]
        decay = (c[..., :, None, :] - c[..., None, :, :]).masked_fill(~causal, -torch.inf).exp()
        return (q[..., :, None, :] * decay * k[..., None, :, :]).sum(-1)
    half = size // 2
    diagonal = decayed_scores(*(x.unflatten(-2, (2, half)) for x in (q, k, c)))
    middle = c[..., half - 1 : half, :]
    late = q[..., half:, :] * (c[..., half:, :] - middle).exp()
    early = k[..., :half, :] * (middle - c[..., :half, :]).exp()
    top = F.pad(diagonal[..., 0, :, :], (0, half))
    return torch.cat([top, torch.cat([late @ early.mT, diagonal[..., 1, :, :]], -1)], -2)


def chunk_gla(q: Tensor, k: Tensor, v: Tensor, g: Tensor, **given: Any) -> tuple[Tensor, Tensor | None]:
    """Gated linear attention: S_t = diag(exp g_t) S_{t-1} + k_t v_t^T, o_t = scale * S_t^T q_t, log gates g (B, T, H, K)."""
    options, like, size = _Options(**given), v, chunk_size(q.shape[1])
    q, k, v, g = (to_chunks(x, size) for x in (q, k, v, g))
    q = options.scaled(q)
    c, low = log_decay(g)
    q, k = q * (1 + low), k * (1 - low)
    last = c[..., -1:, :]
    update = (k * (last - c).exp() * (1 + low[..., -1:, :])).mT @ v
    state, before = options.start(update[:, :, 0]), []
    # unbind rather than indexing: each index would get a gradient as large as the whole tensor, mostly zeros.
    for factor_BHK1, update_BHKV in zip(last.mT.exp().unbind(2), update.unbind(2), strict=True):
        before.append(state)
        state = state * factor_BHK1 + update_BHKV
    o = decayed_scores(q, k, c) @ v + (q * c.exp()) @ torch.stack(before, 2)
    return _from_chunks(o, like), options.final(state)


def fused_recurrent_gla(q: Tensor, k: Tensor, v: Tensor, gk: Tensor, **given: Any) -> tuple[Tensor, Tensor | None]:
    """`chunk_gla` with the name and arguments that fla's layers use for short inputs."""
    return chunk_gla(q, k, v, gk, **given)


def l2norm(x: Tensor, eps: float = 1e-6) -> Tensor:
    """Return x / sqrt(sum x^2 + eps) over the last dimension, in fp32: fla's definition, with eps inside the root."""
    x = x.float()
    return x * torch.rsqrt(x.square().sum(-1, keepdim=True) + eps)


def chunk_delta_rule(q: Tensor, k: Tensor, v: Tensor, beta: Tensor, **given: Any) -> tuple[Tensor, Tensor | None]:
    """Delta rule without gates: S_t = (I - beta_t k_t k_t^T) S_{t-1} + beta_t k_t v_t^T."""
    return gated_delta_rule(q, k, v, None, beta, **given)


def gated_delta_rule(
    q: Tensor, k: Tensor, v: Tensor, g: Tensor | None, beta: Tensor, **given: Any
) -> tuple[Tensor, Tensor | None]:
    """Delta rule with a forget gate: S_t = (I - beta_t k_t k_t^T) diag(exp g_t) S_{t-1} + beta_t k_t v_t^T, o_t = scale * S_t^T
    q_t, with beta (B, T, H). Log gates are (B, T, H) in Gated DeltaNet (arXiv 2412.06464) and (B, T, H, K) in Kimi Delta
    Attention (2510.26692); with `use_gate_in_kernel` g is the input of the gate, -exp(A_log) * softplus(g + dt_bias).

    A chunk's writes u solve a triangular system (the WY form): (I + tril(beta decay k k^T, -1)) u = beta (v - decay k S)."""
    options, like, size = _Options(**given), v, chunk_size(q.shape[1])
    if k.shape[2] != v.shape[2]:
        raise NotImplementedError("the gated delta rule on the CPU needs as many value heads as key heads")
    if options.use_qk_l2norm_in_kernel:
        q, k = l2norm(q), l2norm(k)
    if options.use_beta_sigmoid_in_kernel:
        beta = beta.float().sigmoid() * (2 if options.allow_neg_eigval else 1)
    if g is not None and options.use_gate_in_kernel:
        assert options.A_log is not None
        g = g.float() if options.dt_bias is None else g.float() + options.dt_bias.float().view(g.shape[2:])
        g = -options.A_log.float().exp().view(-1, *(1,) * (g.ndim - 3)) * F.softplus(g)
    q, k, v, beta = (to_chunks(x, size) for x in (q, k, v, beta))
    q = options.scaled(q)
    keeper = k  # the keys as they enter the state after the chunk
    decays: list[Tensor | None] = [None] * k.shape[2]
    written = k * beta[..., None]
    if g is None:
        write, erase = written @ k.mT, written
    else:
        c, low = log_decay(to_chunks(g if g.ndim == 4 else g[..., None], size))
        last = c[..., -1:, :]
        early, written = k * (1 - low), written * (1 + low)
        write, erase = decayed_scores(written, early, c), written * c.exp()
        keeper = early * (last - c).exp() * (1 + low[..., -1:, :])
        decays = list(last.mT.exp().unbind(2))
    # unitriangular: the solver takes the diagonal as 1
    wanted = torch.cat([v * beta[..., None], erase], -1)
    solved = torch.linalg.solve_triangular(write.tril(-1), wanted, upper=False, unitriangular=True)
    write_BHNCV, erase_BHNCK = solved.split([v.shape[-1], k.shape[-1]], -1)
    state = options.start(k.new_empty(*k.shape[:2], k.shape[-1], v.shape[-1]))
    before, writes = [], []
    for write_BHCV, erase_BHCK, k_BHCK, decay in zip(
        write_BHNCV.unbind(2), erase_BHNCK.unbind(2), keeper.unbind(2), decays, strict=True
    ):
        u = write_BHCV - erase_BHCK @ state
        before.append(state)
        writes.append(u)
        state = (state if decay is None else state * decay) + k_BHCK.mT @ u
    if g is None:
        o = q @ torch.stack(before, 2) + (q @ k.mT).tril() @ torch.stack(writes, 2)
    else:
        q = q * (1 + low)
        o = (q * c.exp()) @ torch.stack(before, 2) + decayed_scores(q, early, c) @ torch.stack(writes, 2)
    return _from_chunks(o, like), options.final(state)
