"""Samba (arXiv 2406.07522): alternating Mamba (arXiv 2312.00752) and sliding-window attention.

Suffixes: B batch, T tokens, d hidden size."""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from kernels.causal_conv import causal_conv_silu
from kernels.selective_scan import selective_scan
from models.backbone import Backbone, Block, Padding, init_as_pytorch_, mark_ends, start_with, step_size_bias, zero_padded
from models.cache import DecodingCache
from models.forgetting_transformer.module import ForgettingAttention, rotation_table, token_positions
from models.samba.spec import SambaSpec


class MambaMixer(nn.Module):
    """A Mamba layer; parameters have the names of the authors' code and fla's."""

    def __init__(self, spec: SambaSpec, layer_idx: int) -> None:
        super().__init__()
        self.spec, self.layer_idx = spec, layer_idx
        d, inner = spec.hidden_size, spec.inner_size
        self.in_proj = nn.Linear(d, 2 * inner, bias=False)
        self.conv1d = nn.Conv1d(inner, inner, spec.conv_size, groups=inner, padding=spec.conv_size - 1)
        self.x_proj = nn.Linear(inner, spec.dt_rank + 2 * spec.ssm_state_size, bias=False)
        self.dt_proj = nn.Linear(spec.dt_rank, inner)
        self.A_log = nn.Parameter(torch.empty(inner, spec.ssm_state_size))
        self.D = nn.Parameter(torch.empty(inner))
        self.out_proj = nn.Linear(inner, d, bias=False)

    def forward(self, x: Tensor, cache: DecodingCache | None, padding: Padding | None, *_: Tensor) -> Tensor:
        """Return (B, T, d): out = W (scan(conv(x)) + D conv(x)) * SiLU(z)."""
        past = cache[self.layer_idx] if cache is not None and cache.seq_len else {}
        values, z = self.in_proj(x).chunk(2, -1)
        values, conv_state = causal_conv_silu(
            values, self.conv1d.weight.squeeze(1), self.conv1d.bias, past.get("conv_state"), keep_state=cache is not None
        )
        values = zero_padded(values, padding)  # the convolution's bias made padded positions non-zero
        n = self.spec.ssm_state_size
        dt, into, out = self.x_proj(values).split([self.spec.dt_rank, n, n], -1)
        dt = F.softplus(self.dt_proj(dt).float())
        y, state = selective_scan(values, dt, -self.A_log.float().exp(), into, out, self.D, past.get("state"))
        if cache is not None:
            cache.update(self.layer_idx, conv_state=conv_state, state=state)
        return self.out_proj(y * F.silu(z))


def _block(spec: SambaSpec, layer_idx: int) -> Block:
    mixer: Any
    if layer_idx % 2 == 0:
        mixer, width = MambaMixer(spec, layer_idx), spec.mamba_intermediate_size
        output = mixer.out_proj
    else:
        mixer, width = ForgettingAttention(spec.attention, layer_idx), spec.attention.intermediate_size
        output = mixer.o_proj
    block = Block(mixer, spec.hidden_size, width, spec.norm_eps)
    mark_ends(output, block)
    return block


class Model(Backbone):
    def __init__(self, spec: SambaSpec) -> None:
        super().__init__(spec, [_block(spec, i) for i in range(spec.num_layers)])

    def shared_inputs(self, x_BTd: Tensor, cache: DecodingCache | None, padding: Padding | None) -> tuple[Tensor, ...]:
        return rotation_table(token_positions(x_BTd, cache, padding), self.spec.attention.head_dim, self.spec.rope_base)

    def init_module(self, module: nn.Module) -> None:
        """Initialise with PyTorch's defaults; outputs of attention, Mamba and MLPs Kaiming-uniform(a = sqrt 5) / sqrt(2 *
        layers); A = 1..N, D = 1, dt log-uniform in [1e-3, 1e-1]; embedding N(0, 0.02^2)."""
        if isinstance(module, MambaMixer):
            (inner, n), bound = module.A_log.shape, module.spec.dt_rank**-0.5
            nn.init.uniform_(module.dt_proj.weight, -bound, bound)
            nn.init.ones_(module.D)
            start_with(module.dt_proj.bias, step_size_bias(inner))
            start_with(module.A_log, torch.arange(1.0, n + 1).log().expand(inner, n))
        else:
            init_as_pytorch_(module, len(self.layers))
