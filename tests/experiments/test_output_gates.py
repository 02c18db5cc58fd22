"""Output gates by their activation: what is trained, the table, and the sentences."""

import numpy as np
import pytest

from experiments.beyond import output_gates
from experiments.scales import for_ablations, get_scale
from tests import synthetic

STEM = "output_gates"


def study(folder, losses):
    """Return a study of mean losses by model and activation."""
    store, rng = synthetic.Store(folder, train_len=64), np.random.default_rng(0)
    for (model, gate), loss in losses.items():
        for seed in range(3):
            mean, bands = synthetic.documents_of(np.full(128, loss), rng, np.zeros((16, 16)), noise=1e-3)
            rows = [("per_token_loss", synthetic.loss_rows(mean, bands))]
            how = dict(model=model, name=f"{model} {gate}", axes={"output_gate": gate}, seed=seed)
            store.add(STEM, f"{model}, {gate}", rows, **how)
    return store.study(STEM)


@pytest.mark.parametrize("scale", ["tiny", "mini"])
def test_each_model_is_trained_with_its_own_gate_and_the_other(scale):
    at = for_ablations(get_scale(scale))
    found = list(output_gates.runs(get_scale(scale), (0,)))
    assert {recipe.scale for recipe in found} == {at.name}
    other = {(recipe.name, recipe.axes["output_gate"]) for recipe in found if recipe.model}
    assert other == {
        ("fox_pro", "silu"), ("transformer_pro", "silu"), ("kimi_delta_attention", "silu"), ("gated_delta_net", "sigmoid"),
    }  # fmt: skip
    assert len(found) == 8 and all(
        recipe.model.get("output_gate_activation") in (None, recipe.axes["output_gate"]) for recipe in found
    )


def test_gains_and_distances_to_fox_with_either_gate(tmp_path):
    made = study(
        tmp_path,
        {("fox_pro", "sigmoid"): 3.0, ("fox_pro", "silu"): 2.9, ("transformer_pro", "sigmoid"): 3.5,
         ("transformer_pro", "silu"): 3.1, ("gated_delta_net", "silu"): 3.2},
    )  # fmt: skip
    rows = output_gates.summary(made).rows
    expected = {
        "FoX (Pro)": [3.0, 2.9, -0.1, None, None],
        "Transformer (Pro)": [3.5, 3.1, -0.4, 0.5, 0.2],
        "Gated DeltaNet": [None, 3.2, None, None, 0.3],
    }
    assert rows.keys() == expected.keys()
    for name, wanted in expected.items():
        for cell, value in zip(rows[name], wanted, strict=True):
            assert (cell is None) == (value is None) and (value is None or cell == pytest.approx(value, abs=2e-3)), name
    fox, transformer = output_gates.findings(made)
    assert fox.startswith("FoX (Pro) has a lower loss with SiLU than with sigmoid (−0.") and "relative" not in fox
    assert "relative to FoX (Pro) its loss is +0." in transformer and " with sigmoid and +0." in transformer


def test_without_both_gates_nothing_is_compared(tmp_path):
    made = study(tmp_path, {("gated_delta_net", "silu"): 3.2})
    assert output_gates.findings(made) == ["No model was trained with both activations."]
    assert output_gates.summary(made).rows["Gated DeltaNet"][2:] == [None] * 3
