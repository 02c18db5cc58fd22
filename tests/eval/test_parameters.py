"""Parameters as rows: they are the model's own, and count as the paper counts."""

import pytest
from transformers import GPT2Config, GPT2LMHeadModel

from eval.parameters import measure
from eval.parameters.spec import Spec, counted
from models.build import build_model
from models.mamba2.spec import Mamba2Spec
from tests.eval.oracles import llama


def test_every_parameter_is_a_row_and_the_count_is_the_papers(tiny_fox, in_memory, context):
    mamba = Mamba2Spec(vocab_size=512, hidden_size=64, num_layers=2)
    for spec in (tiny_fox(), tiny_fox(forget_gate="none", qk_norm=False), mamba):
        model = build_model(spec)
        rows = Spec.SCHEMA.validate(measure.evaluate(in_memory(model), Spec(), context))
        assert counted(rows) == spec.num_params and rows["count"].sum() == model.num_parameters()
    rows = measure.evaluate(in_memory(build_model(tiny_fox())), Spec(), context).set_index("name")
    assert rows.loc["layers.0.attn.k_proj.shift_proj.weight"].to_dict() == {"module": "Linear", "shape": "2 x 64", "count": 128}


@pytest.mark.parametrize("tied", [True, False])
def test_other_peoples_models_count_with_their_head_and_without_their_embedding(tied, in_memory, context):
    """A tied head counts once: there is no input embedding besides it."""
    gpt2 = GPT2LMHeadModel(GPT2Config(vocab_size=97, n_embd=32, n_layer=1, n_head=2, tie_word_embeddings=tied))
    for model in (llama(vocab_size=97, tie_word_embeddings=tied), gpt2):
        rows = Spec.SCHEMA.validate(measure.evaluate(in_memory(model), Spec(), context))
        assert rows["count"].sum() == model.num_parameters()
        assert counted(rows) == model.num_parameters() - (0 if tied else 97 * 32)
