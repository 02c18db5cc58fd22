"""HGRN2 (arXiv 2404.07904): flash-linear-attention's layer in our skeleton, the paper's set-up (Appendix B).

As in the released code, the layer-wise lower bounds exist but do not reach the mixer, unless `use_lower_bound` asks
for it.
"""

from typing import Any

import models.hf_guard  # noqa: F401  # isort: skip  (before transformers)
import torch
from torch import Tensor, nn
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedConfig

from kernels.fla_cpu.install import install
from models.cache import DecodingCache
from models.causal_lm import Backbone, Block, CausalLM, Padding, init_linear_recurrent_, mark_places
from models.spec import HGRN2Spec

install()

from fla.layers.hgrn2 import HGRN2Attention  # noqa: E402  (fla after the CPU versions are in place)


class HGRN2Config(PreTrainedConfig):
    """Hugging Face configuration; keys as in flash-linear-attention."""

    model_type = "hgrn2_suite"

    def __init__(
        self,
        vocab_size: int = 50257,
        hidden_size: int = 768,
        num_hidden_layers: int = 12,
        expand_ratio: int = 128,
        hidden_ratio: float = 4.0,
        intermediate_size: int | None = None,
        use_lower_bound: bool = False,
        norm_eps: float = 1e-6,
        **kwargs: Any,
    ) -> None:
        self.vocab_size = vocab_size
        self.hidden_size = hidden_size
        self.num_hidden_layers = num_hidden_layers
        self.expand_ratio = expand_ratio
        self.hidden_ratio = hidden_ratio
        self.intermediate_size = intermediate_size
        self.use_lower_bound = use_lower_bound
        self.norm_eps = norm_eps
        super().__init__(**{"tie_word_embeddings": False, **kwargs})

    @classmethod
    def from_spec(cls, spec: HGRN2Spec) -> "HGRN2Config":
        return cls(
            vocab_size=spec.vocab_size,
            hidden_size=spec.hidden_size,
            num_hidden_layers=spec.num_layers,
            expand_ratio=spec.expand_ratio,
            hidden_ratio=spec.mlp_ratio,
            intermediate_size=spec.mlp_width,
            use_lower_bound=spec.use_lower_bound,
            norm_eps=spec.norm_eps,
        )

    def to_spec(self) -> HGRN2Spec:
        """Raises ValueError (pydantic's) for values that no spec allows."""
        return HGRN2Spec(
            vocab_size=self.vocab_size,
            hidden_size=self.hidden_size,
            num_layers=self.num_hidden_layers,
            expand_ratio=self.expand_ratio,
            mlp_ratio=self.hidden_ratio,
            mlp_width=self.intermediate_size,
            use_lower_bound=self.use_lower_bound,
            norm_eps=self.norm_eps,
        )


class HGRN2Mixer(HGRN2Attention):
    """fla's layer behind the skeleton's mixer signature."""

    def forward(
        self, x: Tensor, cache: DecodingCache | None, padding: Padding | None, lower_bound: Tensor | None = None
    ) -> Tensor:
        # Padded inputs are zero, so their values k * i are zero and the state stays zero: no mask is needed.
        return super().forward(x, past_key_values=cache, use_cache=cache is not None, lower_bound=lower_bound)[0]


class HGRN2Backbone(Backbone):
    """Backbone with the lower bounds of the forget gates, (layers, d)."""

    def __init__(self, spec: HGRN2Spec) -> None:
        blocks: list[nn.Module] = [
            mark_places(
                Block(
                    HGRN2Mixer(
                        hidden_size=spec.hidden_size,
                        expand_ratio=spec.expand_ratio,
                        norm_eps=spec.norm_eps,
                        layer_idx=layer_idx,
                    ),
                    spec.hidden_size,
                    spec.intermediate_size,
                    spec.norm_eps,
                )
            )
            for layer_idx in range(spec.num_layers)
        ]
        super().__init__(spec.vocab_size, spec.hidden_size, blocks, spec.norm_eps)
        # Unused bounds take no gradient: DDP must not wait for one.
        self.lower_bounds = nn.Parameter(torch.zeros(spec.num_layers, spec.hidden_size), requires_grad=spec.use_lower_bound)
        self.lower_bounds._no_weight_decay = True  # type: ignore[attr-defined]
        self.use_lower_bound = spec.use_lower_bound

    def extra_inputs(self, layer_idx: int) -> tuple[Tensor, ...]:
        if not self.use_lower_bound:
            return ()
        shares = self.lower_bounds.softmax(0, dtype=torch.float32)
        return (shares[1 : layer_idx + 1].sum(0),)


class HGRN2ForCausalLM(CausalLM):
    """HGRN2 with a language-modelling head."""

    config_class = HGRN2Config

    def __init__(self, config: HGRN2Config) -> None:
        super().__init__(config, HGRN2Backbone(config.to_spec()))
        self.post_init()

    @torch.no_grad()
    def _init_weights(self, module: nn.Module) -> None:
        """Mixer projections Xavier-uniform with gain 2^-2.5; the rest N(0, 0.02^2), MLP outputs scaled by depth."""
        init_linear_recurrent_(module, self.config.num_hidden_layers)
        if isinstance(module, HGRN2Backbone):
            nn.init.zeros_(module.lower_bounds)


AutoConfig.register(HGRN2Config.model_type, HGRN2Config, exist_ok=True)
AutoModelForCausalLM.register(HGRN2Config, HGRN2ForCausalLM, exist_ok=True)
