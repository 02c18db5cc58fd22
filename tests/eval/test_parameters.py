"""Parameters as rows: they are the model's own, and count as the paper counts."""

import pytest
from transformers import GPT2Config, GPT2LMHeadModel, LlamaConfig, LlamaForCausalLM

from eval.parameters import measure
from eval.parameters.spec import Spec, counted
from models.build import build_model
from models.spec import Mamba2Spec


def test_every_parameter_is_a_row_and_the_count_is_the_papers(tiny_fox, in_memory, context):
    for spec in (
        tiny_fox(),
        tiny_fox(forget_gate="none", qk_norm=False),
        Mamba2Spec(vocab_size=512, hidden_size=64, num_layers=2),
    ):
        model = build_model(spec)
        rows = measure.evaluate(in_memory(model), Spec(), context)
        assert counted(rows) == spec.num_params
        assert rows["count"].sum() == sum(parameter.numel() for parameter in model.parameters())
        Spec.SCHEMA.validate(rows)
    rows = measure.evaluate(in_memory(build_model(tiny_fox())), Spec(), context).set_index("name")
    assert rows.loc["layers.0.attn.k_proj.shift_proj.weight"].to_dict() == {"module": "Linear", "shape": "2 x 64", "count": 128}
    assert rows.loc["layers.1.attn.q_norm.weight", "module"] == "HeadNorm"


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("kind", ["llama", "gpt2"])
def test_other_peoples_models_count_with_their_head_and_without_their_embedding(kind, tied, in_memory, context):
    """A tied head counts once: there is no input embedding besides it."""
    if kind == "llama":
        sizes = dict(vocab_size=97, hidden_size=32, intermediate_size=48, num_hidden_layers=1, num_attention_heads=2)
        model = LlamaForCausalLM(LlamaConfig(**sizes, tie_word_embeddings=tied))
    else:
        model = GPT2LMHeadModel(GPT2Config(vocab_size=97, n_embd=32, n_layer=1, n_head=2, tie_word_embeddings=tied))
    rows = measure.evaluate(in_memory(model), Spec(), context)
    Spec.SCHEMA.validate(rows)
    assert rows["count"].sum() == model.num_parameters()
    assert counted(rows) == model.num_parameters() - (0 if tied else 97 * 32)
