import dataclasses
from copy import deepcopy

import pytest
import torch

from analysis.names import SEVEN
from data.spec import DataSpec
from experiments.recipes import Recipe, model_spec
from experiments.scales import TINY
from models.build import build_model, load_model
from models.forgetting_transformer.spec import ForgettingTransformerSpec
from tests.models.conftest import SPECS
from training.optimizer import build_optimizer, decays

KEPT_WHOLE = ("norm", "bias", "A_log", ".D", "dt_bias", "lower_bounds", "fgate_bias")


@pytest.mark.parametrize("name", SEVEN)
def test_what_decays(name):
    """Matrices, convolutions, embedding and head decay; biases, norms, decay rates and bounds do not."""
    model = build_model(model_spec(name, TINY, 1024), device="meta")
    for parameter_name, parameter in model.named_parameters():
        if any(part in parameter_name for part in KEPT_WHOLE):
            assert not decays(parameter_name, parameter), parameter_name
        else:
            assert decays(parameter_name, parameter), parameter_name
    assert decays("lm_head.weight", model.get_output_embeddings().weight)
    assert decays("embeddings.weight", model.get_input_embeddings().weight)


@pytest.mark.parametrize("key", SPECS)
def test_a_loaded_and_a_copied_model_decay_as_the_one_that_was_built(key, tmp_path):
    """Its parameters alone carry the flags that fla sets; what they say holds for all three."""

    def decaying(model: torch.nn.Module) -> list[str]:
        return [name for name, parameter in model.named_parameters() if decays(name, parameter)]

    built = build_model(SPECS[key])
    flagged = {name for name, p in built.named_parameters() if getattr(p, "_no_weight_decay", False)}
    whole = {name for name, _ in built.named_parameters() if name.rpartition(".")[2] in ("A_log", "D", "lower_bounds")}
    built.save_pretrained(tmp_path)
    for model in (built, load_model(tmp_path), deepcopy(built)):
        assert decaying(model) == decaying(built)
        assert not (flagged | whole) & set(decaying(model))


def test_learned_constant_gate_does_not_decay_and_fixed_gate_is_no_parameter():
    settings = dict(vocab_size=64, hidden_size=32, num_layers=1, num_heads=2, mlp_width=32)
    learned = build_model(
        ForgettingTransformerSpec(**settings, forget_gate="bias_only", decay_time_min=2.0, decay_time_max=16.0)
    )
    fixed = build_model(ForgettingTransformerSpec(**settings, forget_gate="fixed", decay_time_min=2.0, decay_time_max=16.0))
    gates = {n: p for n, p in learned.named_parameters() if "fgate" in n}
    assert gates and not any(decays(n, p) for n, p in gates.items())
    assert not [n for n, _ in fixed.named_parameters() if "fgate" in n]


def test_one_step_is_adamw_of_the_paper():
    """The first update by hand: decay with the rate, then the sign of the gradient (bias-corrected moments are equal)."""
    data = DataSpec(source="text", tokenizer="bytes", vocab_size=257, bos_id=256, document_len=2048, fingerprint="0")
    spec = dataclasses.replace(Recipe("fox_llama", "fox_llama", "tiny").run_spec(data).train, weight_decay=0.1)
    layer = torch.nn.Linear(3, 2)
    optimizer = build_optimizer(layer, spec)
    before = {name: p.detach().clone() for name, p in layer.named_parameters()}
    for parameter in layer.parameters():
        parameter.grad = torch.full_like(parameter, 0.5)
    for group in optimizer.param_groups:
        group["lr"] = 0.01
    optimizer.step()
    torch.testing.assert_close(layer.weight, before["weight"] * (1 - 0.01 * 0.1) - 0.01)
    torch.testing.assert_close(layer.bias, before["bias"] - 0.01)
    assert optimizer.defaults["betas"] == (0.9, 0.95) and optimizer.defaults["eps"] == 1e-8
