"""Per-token losses against plain cross-entropy, gradients against fp64, memory, wrappers, and other people's models."""

import pytest
import torch
import torch.nn.functional as F
from torch.utils._python_dispatch import TorchDispatchMode

from models import loss as loss_module
from models.loss import TokenLoss, linear_cross_entropy, token_losses


def inputs(rows: int = 300, hidden: int = 24, vocab: int = 113):
    torch.manual_seed(0)
    return torch.randn(rows, hidden), torch.randn(vocab, hidden), torch.randint(vocab, (rows,)), torch.rand(rows)


@pytest.fixture(autouse=True)
def small_chunks(monkeypatch):
    """64 rows at a time, so that 300 rows are several chunks and a remainder."""
    monkeypatch.setattr(loss_module, "_CHUNK_CPU", 1)


def test_losses_are_exact_and_gradients_close_to_fp64():
    hidden, weight, targets, upstream = inputs()
    results = []
    for dtype in (torch.float32, torch.float64):
        h, w = (x.to(dtype).requires_grad_() for x in (hidden, weight))
        expected = F.cross_entropy(h @ w.T, targets, reduction="none")
        grads = torch.autograd.grad((expected * upstream).sum(), (h, w))
        results.append((expected.detach(), *grads))
    h, w = hidden.requires_grad_(), weight.requires_grad_()
    ours = linear_cross_entropy(h, w, targets)
    ours_all = (ours.detach(), *torch.autograd.grad((ours * upstream).sum(), (h, w)))
    for mine, eager, exact in zip(ours_all, *results, strict=True):
        assert mine.dtype == torch.float32
        assert (mine - exact).abs().max() <= 2 * (eager - exact).abs().max() + 1e-6


def test_autocast_computes_logits_in_bf16_and_sums_the_weight_gradient_in_fp32():
    hidden, weight, targets, upstream = inputs(rows=2000)
    h64, w64 = hidden.double().requires_grad_(), weight.double().requires_grad_()
    exact_loss = F.cross_entropy(h64 @ w64.T, targets, reduction="none")
    exact = (exact_loss.detach(), *torch.autograd.grad((exact_loss * upstream).sum(), (h64, w64)))

    def run(function):
        h, w = hidden.clone().requires_grad_(), weight.clone().requires_grad_()
        with torch.autocast("cpu", torch.bfloat16):
            losses = function(h, w)
        return (losses.detach(), *torch.autograd.grad((losses * upstream).sum(), (h, w)))

    ours = run(lambda h, w: linear_cross_entropy(h, w, targets))
    eager = run(lambda h, w: F.cross_entropy(F.linear(h, w).float(), targets, reduction="none"))
    for mine, other, truth in zip(ours, eager, exact, strict=True):
        assert mine.dtype == torch.float32
        assert (mine - truth).abs().max() <= 2 * (other - truth).abs().max() + 1e-3
    assert (ours[2] != ours[2].bfloat16()).float().mean() > 0.9, "a sum in bf16 has no digits beyond bf16's"


def test_kept_and_recomputed_logits_give_the_same_gradients(monkeypatch):
    hidden, weight, targets, upstream = inputs()
    found = []
    for kept in (0, 2 * 64 * 113, 2**32):
        monkeypatch.setattr(loss_module, "_KEPT", kept)
        h, w = hidden.bfloat16().requires_grad_(), weight.clone().requires_grad_()
        with MatrixProducts() as products:
            losses = linear_cross_entropy(h, w, targets)
            found.append(torch.autograd.grad((losses * upstream).sum(), (h, w)))
        chunks = 5
        assert products.count == 3 * chunks + max(0, chunks - kept // (64 * 113))
    assert all(torch.equal(a, b) for other in found[1:] for a, b in zip(found[0], other, strict=True))


class MatrixProducts(TorchDispatchMode):
    count = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.count += func is torch.ops.aten.mm.default
        return func(*args, **(kwargs or {}))


class LargestTensor(TorchDispatchMode):
    numel = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        for tensor in out if isinstance(out, (tuple, list)) else [out]:
            if isinstance(tensor, torch.Tensor):
                self.numel = max(self.numel, tensor.numel())
        return out


def test_no_tensor_holds_all_logits():
    hidden, weight, targets, _ = inputs(rows=1000)
    with LargestTensor() as largest:
        linear_cross_entropy(hidden.requires_grad_(), weight.requires_grad_(), targets).mean().backward()
    assert largest.numel == max(1000 * 24, 64 * 113)


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
