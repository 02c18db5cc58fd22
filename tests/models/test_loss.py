"""Per-token losses of other people's models and of what has an adapter or a hook, and gradients in a distributed wrapper."""

from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.nn.functional as F
from peft import LoraConfig, get_peft_model
from torch.nn.parallel import DistributedDataParallel
from transformers import (
    Gemma2Config,
    Gemma2ForCausalLM,
    GPT2Config,
    GPT2LMHeadModel,
    LlamaConfig,
    LlamaForCausalLM,
    PhiConfig,
    PhiForCausalLM,
)

from models.loss import TokenLoss, token_losses
from tests.models.conftest import SPECS, spread

COMMON: dict[str, Any] = {"vocab_size": 97, "bos_token_id": 0, "eos_token_id": 0}
LLAMA: dict[str, Any] = COMMON | dict(hidden_size=32, intermediate_size=48, num_hidden_layers=1, num_attention_heads=2)
CAPPED = LLAMA | dict(num_key_value_heads=2, head_dim=16, final_logit_softcapping=0.05)
FOREIGN = {
    "gpt2": lambda: GPT2LMHeadModel(GPT2Config(n_embd=32, n_layer=1, n_head=2, **COMMON)),
    "llama": lambda: LlamaForCausalLM(LlamaConfig(**LLAMA)),
    "phi": lambda: PhiForCausalLM(PhiConfig(**LLAMA)),
    "gemma2": lambda: Gemma2ForCausalLM(Gemma2Config(**CAPPED)),
}


@pytest.mark.parametrize("name", FOREIGN)
def test_any_causal_language_model_gets_its_own_losses(name, tokens):
    """Phi's head has a bias, and Gemma 2 caps its logits: taking either for a plain matmul would be silently wrong. So would
    be what a head that was tested gets later, an adapter or a hook."""
    torch.manual_seed(0)
    model = FOREIGN[name]().eval()
    inputs, targets = tokens[:, :-1], tokens[:, 1:]
    if name == "phi":
        torch.nn.init.normal_(model.lm_head.bias)

    def assert_own_losses() -> None:
        expected = F.cross_entropy(model(inputs).logits.mT, targets, reduction="none")
        torch.testing.assert_close(token_losses(model, inputs, targets), expected, rtol=0, atol=1e-5)

    assert_own_losses()
    hook = model.get_output_embeddings().register_forward_hook(lambda head, given, logits: 2 * logits)
    assert_own_losses()
    hook.remove()
    get_peft_model(model, LoraConfig(target_modules=["lm_head"], init_lora_weights=False)).eval()
    assert_own_losses()


@pytest.mark.parametrize("key", ["fox_pro", "hgrn2"])
def test_a_distributed_wrapper_gets_every_gradient(key, tokens, tmp_path):
    module = TokenLoss(spread(SPECS[key]))
    module(tokens[:, :-1], tokens[:, 1:]).mean().backward()
    expected = {name: p.grad.clone() for name, p in module.named_parameters() if p.requires_grad}
    dist.init_process_group("gloo", init_method=f"file://{tmp_path}/rendezvous", rank=0, world_size=1)
    try:
        wrapped = DistributedDataParallel(module)
        for _ in range(2):  # a parameter without a gradient fails at the second step
            module.zero_grad()
            wrapped(tokens[:, :-1], tokens[:, 1:]).mean().backward()
    finally:
        del wrapped  # before its process group: freed after it, gloo's threads and Python wait for each other
        dist.destroy_process_group()
    for name, gradient in expected.items():
        assert torch.allclose(module.get_parameter(name).grad, gradient, atol=1e-7), name
