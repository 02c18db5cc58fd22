"""Parameters as rows: they are the model's own, and count as the paper counts."""

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
