"""Hugging Face causal language model for every kind: one configuration, built from the spec, and one class: the backbone
of the spec's kind, an untied head, and what `generate` needs.

Suffixes: B batch, T tokens, d hidden size, V vocabulary."""

import json
from typing import Any

import kernels.hf_guard  # noqa: F401  # isort: skip  (before transformers)
import torch
import torch.nn.functional as F
from pydantic import TypeAdapter
from torch import Tensor, nn
from transformers import AutoConfig, AutoModelForCausalLM, GenerationMixin, PreTrainedConfig, PreTrainedModel
from transformers.modeling_outputs import CausalLMOutputWithPast

from models.backbone import Backbone, refuse_padding_after_tokens
from models.cache import DecodingCache
from models.graphed import GraphedStep
from models.spec import ModelSpec, modules_of


class CausalLMConfig(PreTrainedConfig):
    """Hugging Face configuration of every model here: `spec` holds the fields of its spec."""

    model_type = "fox_suite"

    def __init__(self, spec: dict[str, Any] | None = None, **kwargs: Any) -> None:
        self.spec = spec or {}  # Hugging Face makes one without arguments, to see which values are not the default
        super().__init__(**{"tie_word_embeddings": False, **kwargs})

    def to_spec(self) -> ModelSpec:
        """Return the spec. Raises ValueError (pydantic's) for values that no spec allows."""
        return _SPEC.validate_json(json.dumps(self.spec))

    vocab_size = property(lambda self: self.spec.get("vocab_size"))
    hidden_size = property(lambda self: self.spec.get("hidden_size"))
    num_hidden_layers = property(lambda self: self.spec.get("num_layers"))


_SPEC: TypeAdapter[ModelSpec] = TypeAdapter(ModelSpec)


class CausalLM(PreTrainedModel, GenerationMixin):
    """Class of every model here: the backbone of its spec, a head, and what Hugging Face's `generate` needs."""

    config_class = CausalLMConfig
    base_model_prefix = "model"
    _input_embed_layer = "embeddings"
    supports_gradient_checkpointing = True
    # Cached decoding needs all tokens in order: it cannot be rewound, as assisted decoding would require.
    _is_stateful = True
    # Read by models.loss: logits are the head's matmul of the hidden states and nothing else.
    has_linear_head = True

    def __init__(self, config: CausalLMConfig) -> None:
        super().__init__(config)
        if config.tie_word_embeddings:
            raise ValueError("tie_word_embeddings is True: models here have a head of their own; leave it out")
        spec = config.to_spec()
        self.model: Backbone = modules_of(spec).Model(spec)
        self.lm_head = nn.Linear(spec.hidden_size, spec.vocab_size, bias=False)
        self.post_init()

    @torch.no_grad()
    def _init_weights(self, module: nn.Module) -> None:
        self.model.init_module(module)

    def resize_token_embeddings(
        self, new_num_tokens: int | None = None, pad_to_multiple_of: int | None = None, mean_resizing: bool = True
    ) -> nn.Embedding:
        """Raise ValueError for any size but the spec's, before Hugging Face resizes the embeddings."""
        size = self.config.to_spec().vocab_size
        wanted = size if new_num_tokens is None else new_num_tokens
        wanted += -wanted % (pad_to_multiple_of or 1)
        if wanted != size:
            remedy = f"build_model(replace(spec_of(model), vocab_size={wanted})) and copy the weights into it"
            raise ValueError(f"resize_token_embeddings to {wanted}: the spec has vocab_size {size}; {remedy}")
        return self.model.embeddings

    def forward(
        self,
        input_ids: Tensor,
        attention_mask: Tensor | None = None,
        past_key_values: DecodingCache | None = None,
        labels: Tensor | None = None,
        use_cache: bool = False,
        logits_to_keep: int | Tensor = 0,
        return_dict: bool | None = None,
        inputs_embeds: None = None,
        output_attentions: bool | None = None,
        output_hidden_states: bool | None = None,
    ) -> CausalLMOutputWithPast | tuple:
        """Return logits (B, T, V), or of the last `logits_to_keep` positions only. `labels` follow Hugging Face's convention:
        the model shifts them by one and returns the mean loss (`models.loss` gives unshifted, per-token losses). The last
        three arguments are there for wrappers such as PEFT's, which pass them without a value; others are refused."""
        _refuse_outputs(output_attentions=output_attentions, output_hidden_states=output_hidden_states)
        if inputs_embeds is not None:
            raise ValueError("inputs_embeds: models here read tokens; give input_ids (prompt and prefix tuning do not apply)")
        return_dict = self.config.return_dict if return_dict is None else return_dict
        cache = past_key_values
        if cache is not None and not isinstance(cache, DecodingCache):
            raise ValueError(f"past_key_values is a {type(cache).__name__}; give a DecodingCache or use_cache=True")
        if labels is not None and labels.shape != input_ids.shape:
            shapes = f"labels of shape {tuple(labels.shape)} with input_ids of {tuple(input_ids.shape)}"
            raise ValueError(f"{shapes}: give a label for each token, -100 where it carries no loss; the model shifts them")
        if labels is not None and (isinstance(logits_to_keep, Tensor) or logits_to_keep):
            raise ValueError(f"logits_to_keep={logits_to_keep} with labels: the loss needs all logits; give one of the two")
        replays = input_ids.is_cuda and not torch.is_grad_enabled()
        if cache is not None and cache.one_by_one(input_ids.shape[-1]) and replays and (attention_mask is None or cache.begun):
            if cache.graphed is None:
                cache.graphed = GraphedStep(self._step)
            step = CausalLMOutputWithPast(logits=cache.graphed(input_ids, cache), past_key_values=cache)  # type: ignore[arg-type]
            return step if return_dict else step.to_tuple()
        outputs = self.model(input_ids, attention_mask, cache, use_cache)
        keep = slice(-logits_to_keep, None) if isinstance(logits_to_keep, int) else logits_to_keep
        logits = self.lm_head(outputs.last_hidden_state[:, keep])
        loss = None
        if labels is not None:
            loss = F.cross_entropy(logits[:, :-1].flatten(0, 1).float(), labels[:, 1:].flatten())
        result = CausalLMOutputWithPast(loss=loss, logits=logits, past_key_values=outputs.past_key_values)
        return result if return_dict else result.to_tuple()

    def _step(self, input_ids: Tensor, cache: DecodingCache) -> Tensor:
        return self.lm_head(self.model(input_ids, None, cache).last_hidden_state)

    @classmethod
    def _supports_default_dynamic_cache(cls) -> bool:
        return False  # the forward pass starts its own DecodingCache

    def prepare_inputs_for_generation(  # type: ignore[override]
        self,
        input_ids: Tensor,
        next_sequence_length: int | None = None,
        past_key_values: DecodingCache | None = None,
        attention_mask: Tensor | None = None,
        use_cache: bool = True,
        logits_to_keep: int | None = None,
        **unused: Any,
    ) -> dict[str, Any]:
        """Return only the tokens that the cache has not seen, the last `next_sequence_length`, and the mask of all. If
        `generate` does not pass their number, `input_ids` are only these tokens, or with `use_cache=False` the whole text.
        `generate(prefill_chunk_size=...)` needs `past_key_values=DecodingCache()`."""
        _refuse_outputs(**{name: unused.get(name) for name in ("output_attentions", "output_hidden_states")})
        cached, given = 0 if past_key_values is None else past_key_values.get_seq_length(), input_ids.shape[1]
        if next_sequence_length is None:
            next_sequence_length = given if use_cache else given - cached
        if next_sequence_length < 1:
            rule = "give the whole text, or the tokens that the cache has not seen and the attention_mask of the whole text"
            raise ValueError(f"input_ids of {given} tokens with past_key_values of {cached}: {rule}")
        if attention_mask is not None and bool(attention_mask.all()):
            attention_mask = None  # no padding: the faster paths of attention apply
        elif attention_mask is not None:
            refuse_padding_after_tokens(attention_mask)
        inputs = dict(input_ids=input_ids[:, -next_sequence_length:], attention_mask=attention_mask, use_cache=use_cache)
        return dict(inputs, past_key_values=past_key_values, logits_to_keep=logits_to_keep or 0)


def _refuse_outputs(**asked: bool | None) -> None:
    if lacking := [name for name, value in asked.items() if value]:
        raise ValueError(f"{lacking[0]}=True: models here return none; leave it out, or hook the layers")


AutoConfig.register(CausalLMConfig.model_type, CausalLMConfig, exist_ok=True)
AutoModelForCausalLM.register(CausalLMConfig, CausalLM, exist_ok=True)
