"""Per-token losses of models against plain cross-entropy of their logits: wrappers, and other people's models."""

import pytest
import torch
import torch.nn.functional as F

from models import loss as loss_module
from models.loss import TokenLoss, token_losses


def test_losses_of_a_model_are_unshifted_and_equal_those_of_its_logits(model, tokens):
    inputs_BT, targets_BT = tokens[:, :-1], tokens[:, 1:]
    losses = token_losses(model, inputs_BT, targets_BT)
    expected = F.cross_entropy(model(inputs_BT).logits.flatten(0, 1), targets_BT.flatten(), reduction="none")
    assert losses.shape == targets_BT.shape
    assert losses.dtype == torch.float32
    assert torch.allclose(losses.flatten(), expected, atol=2e-6)


def test_shapes_must_agree(model, tokens):
    with pytest.raises(ValueError, match=r"targets \(3, 149\)"):
        token_losses(model, tokens, tokens[:, 1:])


def hugging_face_model(name: str):
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

    torch.manual_seed(0)
    common = {"vocab_size": 97, "bos_token_id": 0, "eos_token_id": 0}
    llama = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 1, "num_attention_heads": 2}
    if name == "gpt2":
        return GPT2LMHeadModel(GPT2Config(n_embd=32, n_layer=1, n_head=2, **common))
    if name == "llama":
        return LlamaForCausalLM(LlamaConfig(**llama, **common))
    if name == "phi":
        phi = PhiForCausalLM(PhiConfig(**llama, **common))
        torch.nn.init.normal_(phi.lm_head.bias)
        return phi
    capped = {"num_key_value_heads": 2, "head_dim": 16, "final_logit_softcapping": 0.05}
    return Gemma2ForCausalLM(Gemma2Config(**llama, **common, **capped))


@pytest.mark.parametrize(("name", "linear"), [("gpt2", True), ("llama", True), ("phi", False), ("gemma2", False)])
def test_any_causal_language_model_gets_its_own_losses(name, linear, tokens):
    """Phi's head has a bias, and Gemma 2 caps its logits: taking either for a plain matmul would be silently wrong."""
    model = hugging_face_model(name).eval()
    losses = token_losses(model, tokens[:, :-1], tokens[:, 1:])
    expected = F.cross_entropy(model(tokens[:, :-1]).logits.flatten(0, 1), tokens[:, 1:].flatten(), reduction="none")
    assert torch.allclose(losses.flatten(), expected, atol=1e-5)
    assert loss_module._has_linear_head(model) is linear
    assert loss_module._probe_head(model.train()) is linear and model.training, "asked without dropout, and then as it was"


@pytest.mark.parametrize("attach", ["adapter", "hook"])
def test_what_a_head_gets_later_counts(attach, tokens):
    """A model of somebody else's is tested once; then its head gets an adapter or a hook."""
    model = hugging_face_model("llama").eval()
    token_losses(model, tokens[:, :-1], tokens[:, 1:])
    if attach == "adapter":
        from peft import LoraConfig, get_peft_model

        get_peft_model(model, LoraConfig(target_modules=["lm_head"], init_lora_weights=False)).eval()
    else:
        model.lm_head.register_forward_hook(lambda head, given, logits: 2 * logits)
    losses = token_losses(model, tokens[:, :-1], tokens[:, 1:])
    expected = F.cross_entropy(model(tokens[:, :-1]).logits.flatten(0, 1), tokens[:, 1:].flatten(), reduction="none")
    torch.testing.assert_close(losses.flatten(), expected)


def test_a_distributed_wrapper_gets_every_gradient(model, tokens, tmp_path):
    import torch.distributed as dist
    from torch.nn.parallel import DistributedDataParallel

    module = TokenLoss(model)
    module(tokens[:, :-1], tokens[:, 1:]).mean().backward()
    expected = {name: p.grad.clone() for name, p in module.named_parameters() if p.requires_grad}
    module.zero_grad()
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
