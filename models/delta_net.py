"""DeltaNet (arXiv 2406.06484): flash-linear-attention's layer in our skeleton, the paper's set-up (Appendix B)."""

from typing import Any

import models.hf_guard  # noqa: F401  # isort: skip  (before transformers)
import torch
from torch import Tensor, nn
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedConfig

from kernels.fla_cpu.install import install
from models.cache import DecodingCache
from models.causal_lm import Backbone, Block, CausalLM, Padding, init_linear_recurrent_, mark_places
from models.spec import DeltaNetSpec

install()

from fla.layers.delta_net import DeltaNet  # noqa: E402  (fla after the CPU versions are in place)


class DeltaNetConfig(PreTrainedConfig):
    """Hugging Face configuration; keys as in flash-linear-attention."""

    model_type = "delta_net_suite"

    def __init__(
        self,
        vocab_size: int = 50257,
        hidden_size: int = 768,
        num_hidden_layers: int = 12,
        num_heads: int = 6,
        conv_size: int = 4,
        hidden_ratio: float = 4.0,
        intermediate_size: int | None = None,
        norm_eps: float = 1e-6,
        **kwargs: Any,
    ) -> None:
        self.vocab_size = vocab_size
        self.hidden_size = hidden_size
        self.num_hidden_layers = num_hidden_layers
        self.num_heads = num_heads
        self.conv_size = conv_size
        self.hidden_ratio = hidden_ratio
        self.intermediate_size = intermediate_size
        self.norm_eps = norm_eps
        super().__init__(**{"tie_word_embeddings": False, **kwargs})

    @classmethod
    def from_spec(cls, spec: DeltaNetSpec) -> "DeltaNetConfig":
        return cls(
            vocab_size=spec.vocab_size,
            hidden_size=spec.hidden_size,
            num_hidden_layers=spec.num_layers,
            num_heads=spec.hidden_size // spec.head_dim,
            conv_size=spec.conv_size,
            hidden_ratio=spec.mlp_ratio,
            intermediate_size=spec.mlp_width,
            norm_eps=spec.norm_eps,
        )

    def to_spec(self) -> DeltaNetSpec:
        """Raises ValueError (pydantic's) for values that no spec allows."""
        return DeltaNetSpec(
            vocab_size=self.vocab_size,
            hidden_size=self.hidden_size,
            num_layers=self.num_hidden_layers,
            head_dim=self.hidden_size // self.num_heads,
            conv_size=self.conv_size,
            mlp_ratio=self.hidden_ratio,
            mlp_width=self.intermediate_size,
            norm_eps=self.norm_eps,
        )


class DeltaNetMixer(DeltaNet):
    """fla's layer behind the skeleton's mixer signature."""

    def forward(self, x: Tensor, cache: DecodingCache | None, padding: Padding | None) -> Tensor:
        # Padded inputs are zero and nothing here has a bias: keys, values and convolutions stay zero without a mask.
        return super().forward(x, past_key_values=cache, use_cache=cache is not None)[0]


class DeltaNetForCausalLM(CausalLM):
    """DeltaNet with a language-modelling head."""

    config_class = DeltaNetConfig

    def __init__(self, config: DeltaNetConfig) -> None:
        spec = config.to_spec()
        blocks: list[nn.Module] = [
            mark_places(
                Block(
                    DeltaNetMixer(
                        hidden_size=spec.hidden_size,
                        num_heads=spec.hidden_size // spec.head_dim,
                        conv_size=spec.conv_size,
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
        super().__init__(config, Backbone(spec.vocab_size, spec.hidden_size, blocks, spec.norm_eps))
        self.post_init()

    @torch.no_grad()
    def _init_weights(self, module: nn.Module) -> None:
        """Mixer projections Xavier-uniform with gain 2^-2.5; the rest N(0, 0.02^2), MLP outputs scaled by depth."""
        init_linear_recurrent_(module, self.config.num_hidden_layers)


AutoConfig.register(DeltaNetConfig.model_type, DeltaNetConfig, exist_ok=True)
AutoModelForCausalLM.register(DeltaNetConfig, DeltaNetForCausalLM, exist_ok=True)
