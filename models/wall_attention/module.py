"""Wall attention (blog.tilderesearch.com/blog/wall-attn, 2026): flash-linear-attention's layer. The forward pass is our own:
fla's caches gates beside the keys, rounds the keys to bf16, and then ignores the padding of a batch."""

import kernels.hf_guard  # noqa: F401  # isort: skip  (before fla)
import torch
import torch.nn.functional as F
import triton
from torch import Tensor, nn

from kernels.fla_cpu.install import install
from kernels.fla_cpu.wall_attention import wall_attention
from models.backbone import INITIALIZER_RANGE, Backbone, Block, Padding, linear_normal_
from models.cache import DecodingCache
from models.wall_attention.spec import WallAttentionSpec

install()

from fla.layers import wall_attn  # noqa: E402  (fla after the CPU versions are in place)
from fla.ops.wall_attn import parallel  # noqa: E402

BLOCK = 16
FLOOR = -76 / BLOCK
"""Smallest log gate: a token keeps at least 0.9% of a channel, so that no channel decays by more than 76 nats within a block,
where fla's kernels clip it. Their gradients are wrong beyond: with blocks of 32 tokens and no floor, a model of 50M parameters
whose channels began to decay faster diverged within 200 steps."""
for candidates in (parallel.WALL_FWD_AUTOTUNE_CONFIGS, parallel.WALL_BWD_AUTOTUNE_CONFIGS):
    candidates[:] = [triton.Config({"BT": 4 * BLOCK, "BS": BLOCK}, num_warps=4, num_stages=2)]


def attend(q: Tensor, k: Tensor, v: Tensor, g: Tensor) -> Tensor:
    """Compute Wall attention of whole sequences, q, k, v, g (B, T, H, D) -> (B, T, H, D), padded to whole blocks at their end:
    the gradients of fla's kernel are NaN if a block extends beyond T and a channel has decayed by 88 nats by then.

    Runs in fp32: a gate's gradient is the sum of q dq - k dk over all later tokens, which for a decaying channel is below the
    rounding error of 16 bits. In 16 bits a model of 50M parameters ended at 5.0 nats, where others reach 3.6."""
    missing, dtype = -q.shape[1] % BLOCK, q.dtype
    if missing:
        q, k, v, g = (F.pad(x, (0, 0, 0, 0, 0, missing)) for x in (q, k, v, g))
    return wall_attn.parallel_wall_attn(q.float(), k.float(), v.float(), g)[:, : q.shape[1] - missing].to(dtype)


class WallMixer(wall_attn.WallAttention):
    """fla's layer with a forward pass for training, prefill and decoding on any device."""

    def forward(self, x: Tensor, cache: DecodingCache | None, padding: Padding | None) -> Tensor:
        """Return (B, T, d). A cache holds the keys as decayed up to the last token, in fp32, and no gates."""
        past = cache[self.layer_idx] if cache is not None and cache.seq_len else {}
        projections = (self.q_proj, self.k_proj, self.v_proj, self.g_proj)
        q, k, v, g = (projection(x).unflatten(-1, (self.num_heads, -1)) for projection in projections)
        g = F.logsigmoid(g.float()).clamp(min=FLOOR)
        if cache is None and padding is None:
            return self.o_proj(attend(q, k, v, g).flatten(-2))
        if cache is not None:
            (v,) = cache.append(self.layer_idx, v=v)
        start = None if padding is None else padding.start
        with torch.autocast(x.device.type, enabled=False):
            o, faded_k = wall_attention(q, k, v, g, faded_k=past.get("faded_k"), seq_start=start)
        if cache is not None:
            cache.update(self.layer_idx, faded_k=faded_k)
        return self.o_proj(o.flatten(-2))


class Model(Backbone):
    def __init__(self, spec: WallAttentionSpec) -> None:
        d, heads = spec.hidden_size, spec.num_heads
        mixers = (WallMixer(d, heads, layer_idx=i) for i in range(spec.num_layers))
        super().__init__(spec, [Block(mixer, d, spec.intermediate_size, spec.norm_eps) for mixer in mixers])

    def init_module(self, module: nn.Module) -> None:
        """Initialise as FoX, with N(0, 0.02^2) and biases 0, except 8 for the gates: almost nothing decays at first."""
        linear_normal_(module, INITIALIZER_RANGE)
        if isinstance(module, nn.Linear) and module.bias is not None:
            nn.init.constant_(module.bias, 8.0)
