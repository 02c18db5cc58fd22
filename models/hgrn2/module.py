"""HGRN2 (arXiv 2404.07904): flash-linear-attention's layer in our backbone, with the paper's settings (Appendix B).

As in the released code, the layer-wise lower bounds exist but are not passed to the mixer, unless `use_lower_bound` is set."""

from typing import Any

import kernels.hf_guard  # noqa: F401  # isort: skip  (before fla)
from models.recurrent import FusedOutput, RecurrentModel  # isort: skip  (before fla: puts its CPU versions in place)
import torch
import torch.nn.functional as F
from fla.layers import hgrn2 as fla
from fla.layers.utils import get_layer_cache, update_layer_cache
from torch import Tensor, nn

from models.cache import DecodingCache
from models.hgrn2.spec import HGRN2Spec


class Layer(fla.HGRN2Attention):
    """fla's layer, without padding and convolutions, and with its norm's eps, which fla's `forward` leaves out."""

    def forward(
        self,
        x: Tensor,
        past_key_values: DecodingCache | None = None,
        use_cache: bool = False,
        lower_bound: Tensor | None = None,
    ) -> tuple[Tensor]:
        q, f, i = self.q_proj(x), self.f_proj(x), self.i_proj(x)
        g = F.logsigmoid(f)
        if lower_bound is not None and self.layer_idx > 0:  # the first layer has none
            g = torch.logaddexp(lower_bound.log(), torch.log1p(-lower_bound) + g)
        k = (1 - g.exp()).to(i)
        q, k, g = (y.unflatten(-1, (-1, self.head_f_dim)) for y in (fla.swish(q), k, g))
        i = i.unflatten(-1, (-1, self.head_i_dim))
        last = get_layer_cache(self, past_key_values)
        how = dict(initial_state=last["recurrent_state"] if last else None, output_final_state=use_cache, state_v_first=True)
        if x.shape[1] <= 64:
            o, state = fla.fused_recurrent_gla(q=q, k=k, v=i, gk=g, **how)
        else:
            o, state = fla.chunk_gla(q=q, k=k, v=i, g=g, **how)
        update_layer_cache(self, past_key_values, recurrent_state=state, conv_state=None, offset=x.shape[1])
        norm = self.g_norm
        return (fla.rms_norm_linear(o.flatten(-2), norm.weight, None, self.o_proj.weight, None, eps=norm.eps),)


class HGRN2Mixer(FusedOutput, Layer):
    """HGRN2's layer, which refuses an output projection that is not plain."""


class Model(RecurrentModel):
    """Backbone with the lower bounds of the forget gates, (layers, d)."""

    def __init__(self, spec: HGRN2Spec) -> None:
        super().__init__(spec, HGRN2Mixer, expand_ratio=spec.expand_ratio)
        for block in self.layers:
            mixer: Any = block.attn
            mixer.g_norm.eps = spec.output_norm_eps or spec.norm_eps
        # Unused bounds require no grad: DDP must not wait for it.
        self.lower_bounds = nn.Parameter(torch.zeros(spec.num_layers, spec.hidden_size), requires_grad=spec.use_lower_bound)

    def extra_inputs(self, layer_idx: int) -> tuple[Tensor, ...]:
        if not self.spec.use_lower_bound:
            return ()
        return (self.lower_bounds.softmax(0, dtype=torch.float32)[1 : layer_idx + 1].sum(0),)

    def init_module(self, module: nn.Module) -> None:
        """Initialise the parameters of the lower bounds with zeros."""
        super().init_module(module)
        if module is self:
            nn.init.zeros_(self.lower_bounds)
