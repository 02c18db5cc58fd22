"""PaTH-FoX (arXiv 2505.16381): flash-linear-attention's PaTH attention with its forget gate. The forward pass is our own: fla's
neither continues a cache by several tokens nor trains on padded batches, and decodes in the dtype of the keys."""

import kernels.hf_guard  # noqa: F401  # isort: skip  (before fla)
from kernels.causal_conv import causal_conv_silu  # isort: skip  (before fla: puts its CPU versions in place)
import torch
import torch.nn.functional as F
from fla.layers import path_attn
from torch import Tensor, nn

from kernels.fla_cpu.path_attention import path_attention
from kernels.fla_cpu.recurrences import l2norm
from models.backbone import INITIALIZER_RANGE, Backbone, Block, Padding, linear_normal_
from models.cache import DecodingCache
from models.path_fox.spec import PathFoxSpec


class PathFoxMixer(path_attn.PaTHAttention):
    """fla's layer with a forward pass for training, prefill and decoding on any device."""

    def forward(self, x: Tensor, cache: DecodingCache | None, padding: Padding | None) -> Tensor:
        """Return (B, T, d). A cache holds the keys as transformed up to the last token, in fp32."""
        past = cache[self.layer_idx] if cache is not None and cache.seq_len else {}
        w, conv_state = causal_conv_silu(
            self.w_proj(x), self.w_conv1d.weight.squeeze(1), None, past.get("conv_state"), keep_state=cache is not None
        )
        q, k, v, w = (y.unflatten(-1, (self.num_heads, -1)) for y in (self.q_proj(x), self.k_proj(x), self.v_proj(x), w))
        w, beta = l2norm(w), 2 * self.bt_proj(x).float().sigmoid()
        log_fgate = F.logsigmoid(self.g_proj(x).float())
        if cache is None and padding is None:
            o, _ = path_attn.parallel_path_attn(q, k, v, w, beta, log_fgate)
            return self.o_proj(o.flatten(-2))
        if cache is not None:
            v, log_fgate = cache.append(self.layer_idx, v=v, log_fgate=log_fgate)
        start = None if padding is None else padding.start
        with torch.autocast(x.device.type, enabled=False):
            o, moved_k = path_attention(q, k, v, w, beta, log_fgate, moved_k=past.get("moved_k"), seq_start=start)
        if cache is not None:
            cache.update(self.layer_idx, moved_k=moved_k, conv_state=conv_state)
        return self.o_proj(o.flatten(-2))


class Model(Backbone):
    def __init__(self, spec: PathFoxSpec) -> None:
        same = {name: getattr(spec, name) for name in ("hidden_size", "num_heads", "conv_size")}
        mixers = (PathFoxMixer(**same, use_forget_gate=True, layer_idx=i) for i in range(spec.num_layers))
        super().__init__(spec, [Block(mixer, spec.hidden_size, spec.intermediate_size, spec.norm_eps) for mixer in mixers])

    def init_module(self, module: nn.Module) -> None:
        """Initialise as FoX, with N(0, 0.02^2) and biases 0; convolutions by PyTorch's default."""
        if isinstance(module, nn.Conv1d):
            module.reset_parameters()
        else:
            linear_normal_(module, INITIALIZER_RANGE)
