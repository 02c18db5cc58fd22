"""Mamba-2's recurrence in its chunked form (SSD, arXiv 2405.21060, section 6): S_t = exp(g_t) S_{t-1} + k_t v_t^T and
o_t = S_t^T q_t, with one decay per head and token, and keys and queries shared by all heads.

All work is in batched matrix products that serve every head at once: chunks meet each other through their states (N, H * P),
tokens of a chunk through q k^T, computed once for all heads, times each head's decay. Every exponent is a sum of log gates,
hence <= 0; sums of log gates are fp64, because thousands of nats pile up in a chunk and the decay between two neighbours is
the difference of two such sums.

Suffixes: B batch, T tokens, H heads, N state size (keys), P value channels; n chunks, C tokens of a chunk.
"""

import functools
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
import triton
import triton.language as tl
from torch import Tensor

CHUNK = {"cuda": 128, "cpu": 64}
BLOCK = 512


@torch.compiler.disable
def ssd(q: Tensor, k: Tensor, v: Tensor, log_decay: Tensor, initial_state: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """q, k (B, T, N), v (B, T, H, P), log_decay <= 0 (B, T, H), state (B, H, N, P): output of v's shape and dtype, and the
    state after the last token, at least fp32. Differentiable in all five."""
    with torch.autocast(v.device.type, enabled=False):
        return _SSD.apply(q, k, v, log_decay, initial_state)


class _SSD(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, q: Tensor, k: Tensor, v: Tensor, g: Tensor, initial: Tensor | None) -> tuple[Tensor, Tensor]:
        ctx.shape, ctx.dtypes = v.shape, (q.dtype, k.dtype, v.dtype, g.dtype)
        q, k, v, c = _chunked(q, k, v, g)
        v_HCP, v_end = _fused(_spread, v)(v, c)
        update = _exact(k.mT, v_end.flatten(-2)).unflatten(-1, v.shape[-2:])
        start = None if initial is None else initial.transpose(1, 2).to(update.dtype)
        states, final = _scan(update, c, start, v.dtype, reverse=False)
        inside = _fused(_weights, v)(_exact(q, k.mT), c, v.dtype) @ v_HCP
        carried = (q @ states.flatten(-2)).unflatten(-1, v.shape[-2:])
        ctx.save_for_backward(q, k, v, c, states, initial)
        o = _unchunked(_fused(_combine, v)(inside, carried, c, False), ctx.shape).to(ctx.dtypes[2])
        return o, final.transpose(1, 2).contiguous()

    @staticmethod
    def backward(ctx: Any, do: Tensor, dfinal: Tensor) -> tuple[Tensor | None, ...]:  # type: ignore[override]
        q, k, v, c, states, initial = ctx.saved_tensors
        heads = v.shape[-2:]
        do = _to_chunks(do.to(v.dtype), v.shape[2])
        # What comes before a chunk reaches it through its state, and what comes after through that state's gradient.
        do_HCP, do_start = _fused(_spread_back, v)(do, c)
        dupdate = _exact(q.mT, do_start.flatten(-2)).unflatten(-1, heads)
        dstates, dinitial = _scan(dupdate, c, dfinal.transpose(1, 2).to(dupdate.dtype), v.dtype, reverse=True)
        carried = (q @ states.flatten(-2)).unflatten(-1, heads)
        onward = (k @ dstates.flatten(-2)).unflatten(-1, heads)
        v_HCP, v_end = _fused(_spread, v)(v, c)
        scores, dweights = _exact(q, k.mT), do_HCP @ v_HCP.mT
        # In three passes: as one function, torch.compile would write the products to memory in fp32.
        dscores = _fused(_score_gradients, v)(dweights, scores, c, v.dtype)
        by_query, by_key = (_fused(_pair_gradients, v)(dweights, scores, c, by_key) for by_key in (False, True))
        inside = _fused(_weights, v)(scores, c, v.dtype).mT @ do_HCP
        dq = _exact(dscores, k) + _exact(do_start.flatten(-2), states.flatten(-2).mT)
        dk = _exact(dscores.mT, q) + _exact(v_end.flatten(-2), dstates.flatten(-2).mT)
        dv = _fused(_combine, v)(inside, onward, c, True)
        arriving, leaving, through = _fused(_gate_parts, v)((by_query - by_key).mT, carried, do, onward, v, states, dstates, c)
        dg = _triangle(arriving).mT @ arriving.double() + _triangle(leaving, -1) @ leaving.double() + through[:, :, None]
        grads = (_unchunked(x, ctx.shape).to(dtype) for x, dtype in zip((dq, dk, dv, dg), ctx.dtypes, strict=True))
        return *grads, None if initial is None else dinitial.transpose(1, 2).to(initial.dtype)


def _chunked(q: Tensor, k: Tensor, v: Tensor, g: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """q, k, v by chunks in the dtype of the matrix products (on a CPU at least fp32), and c, sums of log gates in a chunk."""
    size = min(CHUNK[v.device.type], 1 << (v.shape[1] - 1).bit_length())
    dtype = v.dtype if v.is_cuda else torch.promote_types(v.dtype, torch.float32)
    q, k, v = (_to_chunks(x.to(dtype), size) for x in (q, k, v))
    g = _to_chunks(g.double(), size)
    return q, k, v, _triangle(g) @ g


def _triangle(x_BnCH: Tensor, diagonal: int = 0) -> Tensor:
    """Sums over a token and those before it, as a product: `cumsum` has no order that repeats on a GPU."""
    return torch.ones(x_BnCH.shape[2], x_BnCH.shape[2], dtype=torch.float64, device=x_BnCH.device).tril(diagonal)


def _to_chunks(x: Tensor, size: int) -> Tensor:
    """(B, T, ...) -> (B, n, C, ...), padded with zeros: a zero key and a zero log gate leave the state alone."""
    missing = -x.shape[1] % size
    if missing:
        x = F.pad(x, (0, 0) * (x.ndim - 2) + (0, missing))
    return x.unflatten(1, (-1, size))


def _unchunked(x: Tensor, shape: torch.Size) -> Tensor:
    return x.flatten(1, 2)[:, : shape[1]]


def _exact(a: Tensor, b: Tensor) -> Tensor:
    """a @ b (B, n, ., .), not rounded to a dtype below fp32."""
    if a.element_size() > 2:
        return a @ b
    return torch.bmm(a.flatten(0, 1), b.flatten(0, 1), out_dtype=torch.float32).unflatten(0, a.shape[:2])


def _decay(c_BnCH: Tensor, like: Tensor) -> Tensor:
    """exp(c_i - c_j), (B, n, H, C, C); beyond the diagonal anything."""
    c = c_BnCH.mT.contiguous()  # its strides become the result's
    return (c[..., :, None] - c[..., None, :]).to(like.dtype).exp()


def _causal(scores: Tensor, diagonal: int = 0) -> Tensor:
    token = torch.arange(scores.shape[-1], device=scores.device)
    return token[:, None] - token >= -diagonal


def _weights(scores_BnCC: Tensor, c: Tensor, dtype: torch.dtype) -> Tensor:
    """What each token of a chunk takes from those before it, (B, n, H, C, C)."""
    return torch.where(_causal(scores_BnCC), scores_BnCC[:, :, None] * _decay(c, scores_BnCC), 0.0).to(dtype)


def _score_gradients(dweights: Tensor, scores_BnCC: Tensor, c: Tensor, dtype: torch.dtype) -> Tensor:
    """Summed over the heads, which share the scores."""
    return torch.where(_causal(scores_BnCC), _decay(c, scores_BnCC) * dweights, 0.0).sum(2).to(dtype)


def _pair_gradients(dweights: Tensor, scores_BnCC: Tensor, c: Tensor, by_key: bool) -> Tensor:
    """Gradients of c (B, n, H, C) through the decay between a token and those before it (by key: behind it). A token's weight
    on itself holds no gate: with very local gates it would drown the others if it were added and subtracted."""
    pairs = _decay(c, scores_BnCC) * scores_BnCC[:, :, None] * dweights
    return torch.where(_causal(scores_BnCC, -1), pairs, 0.0).sum(-2 if by_key else -1)


def _to_end(c: Tensor, like: Tensor) -> Tensor:
    """The decay from each token to the end of its chunk, (B, n, C, H, 1)."""
    return (c[:, :, -1:] - c).to(_wide(like)).exp()[..., None]


def _from_start(c: Tensor, like: Tensor) -> Tensor:
    return c.to(_wide(like)).exp()[..., None]


def _wide(like: Tensor) -> torch.dtype:
    return torch.promote_types(like.dtype, torch.float32)


def _spread(v: Tensor, c: Tensor) -> tuple[Tensor, Tensor]:
    """v by heads (B, n, H, C, P), and decayed to the end of the chunk."""
    return v.transpose(2, 3).contiguous(), (v * _to_end(c, v)).to(v.dtype)


def _spread_back(do: Tensor, c: Tensor) -> tuple[Tensor, Tensor]:
    """The same of the gradients, decayed from the start of the chunk."""
    return do.transpose(2, 3).contiguous(), (do * _from_start(c, do)).to(do.dtype)


def _combine(inside_HCP: Tensor, across: Tensor, c: Tensor, backward: bool) -> Tensor:
    """The parts of o from its own chunk and from the state before (backward: of dv, from the state's gradient behind)."""
    decay = _to_end(c, across) if backward else _from_start(c, across)
    return (inside_HCP.transpose(2, 3) + across * decay).to(across.dtype).contiguous()


def _gate_parts(
    dpairs: Tensor, carried: Tensor, do: Tensor, onward: Tensor, v: Tensor, states: Tensor, dstates: Tensor, c: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """A gate decays all that passes from before its token to it or later. By token (B, n, C, H): what arrives there, from the
    chunk and from the state before it, and what leaves for the state behind; by chunk (B, n, H): what passes through."""
    wide = _wide(v)
    arriving = dpairs + ((carried.to(wide) * do).sum(-1, keepdim=True) * _from_start(c, v))[..., 0]
    leaving = ((onward.to(wide) * v).sum(-1, keepdim=True) * _to_end(c, v))[..., 0]
    return arriving, leaving, (states.to(wide) * dstates).sum((2, 4)) * c[:, :, -1].to(wide).exp()


def _scan(update: Tensor, c: Tensor, start_BNHP: Tensor | None, dtype: torch.dtype, reverse: bool) -> tuple[Tensor, Tensor]:
    """States (B, n, N, H, P) before each chunk of S <- exp(decay) S + update in `dtype`, and the state after the last, exact;
    reverse: from the last chunk to the first."""
    decay = c[:, :, -1].exp().to(update.dtype)
    final = torch.zeros_like(update[:, 0]) if start_BNHP is None else start_BNHP.clone(memory_format=torch.contiguous_format)
    states = torch.empty_like(update, dtype=dtype)
    (scan_kernel if update.is_cuda else scan_loop)(update.contiguous(), decay, states, final, reverse)
    return states, final


def scan_loop(update: Tensor, decay: Tensor, states: Tensor, final: Tensor, reverse: bool) -> None:
    """Fill `states`, and take `final` from the state at the start to the one at the end."""
    for chunk in range(update.shape[1])[:: -1 if reverse else 1]:
        states[:, chunk] = final
        final.mul_(decay[:, chunk, None, :, None]).add_(update[:, chunk])


def scan_kernel(update: Tensor, decay: Tensor, states: Tensor, final: Tensor, reverse: bool) -> None:
    """`scan_loop` in one launch."""
    size = final[0].numel()
    grid = (triton.cdiv(size, BLOCK), len(update))
    _scan_kernel[grid](update, decay, states, final, update.shape[1], size, *update.shape[-2:], reverse, BLOCK, num_warps=2)


@triton.jit
def _scan_kernel(
    update, decay, states, final, num_chunks, size, H, P, REVERSE: tl.constexpr, BLOCK: tl.constexpr
):  # fmt: skip
    batch = tl.program_id(1).to(tl.int64)
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = at < size
    head = at // P % H
    state = tl.load(final + batch * size + at, mask, 0.0)
    for step in tl.range(num_chunks, num_stages=4):
        chunk = batch * num_chunks + (num_chunks - 1 - step if REVERSE else step)
        tl.store(states + chunk * size + at, state.to(states.dtype.element_ty), mask)
        factor = tl.load(decay + chunk * H + head, mask, 0.0)
        state = state * factor + tl.load(update + chunk * size + at, mask, 0.0)
    tl.store(final + batch * size + at, state, mask)


@functools.cache
def _compiled(function: Callable[..., Any]) -> Callable[..., Any]:
    return torch.compile(function, dynamic=False)


def _fused(function: Callable[..., Any], like: Tensor) -> Callable[..., Any]:
    """The function as one kernel or few on CUDA, as it is on the CPU."""
    return _compiled(function) if like.is_cuda else function
