"""Output gates by their activation: what is trained, the table, and the sentences."""

import numpy as np
import pytest

from beyond.figures import output_gates
from experiments.scales import get_scale
from tests import synthetic

STEM = "output_gates"


def study(folder, losses):
    """Return a study of mean losses by model, activation and scale (tiny-short if it is left out)."""
    store, rng = synthetic.Store(folder, train_len=64), np.random.default_rng(0)
    for (model, gate, *at), loss in losses.items():
        scale = at[0] if at else "tiny-short"
        for seed in range(3):
            mean, bands = synthetic.documents_of(np.full(128, loss), rng, np.zeros((16, 16)), noise=1e-3)
            rows = [("per_token_loss", synthetic.loss_rows(mean, bands))]
            how = dict(model=model, name=f"{model} {gate} {scale}", axes={"output_gate": gate}, seed=seed, scale=scale)
            store.add(STEM, f"{model}, {gate}", rows, **how)
    return store.study(STEM)


@pytest.mark.parametrize("scale", ["tiny", "mini"])
def test_each_model_is_trained_with_its_own_gate_and_the_other(scale):
    found = list(output_gates.runs(get_scale(scale), (0,)))
    other = {(recipe.scale, recipe.name, recipe.axes["output_gate"]) for recipe in found if recipe.model}
    wanted = ("fox_pro", "silu"), ("transformer_pro", "silu"), ("kimi_delta_attention", "silu"), ("gated_delta_net", "sigmoid")
    assert other == {(at, *each) for at in (f"{scale}-short", scale) for each in wanted}
    assert len(found) == len({recipe.label for recipe in found}) == 16 and all(
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
        "FoX (Pro), 0.262M tokens": [3.0, 2.9, -0.1, None, None],
        "Transformer (Pro), 0.262M tokens": [3.5, 3.1, -0.4, 0.5, 0.2],
        "Gated DeltaNet, 0.262M tokens": [None, 3.2, None, None, 0.3],
    }
    assert rows.keys() == expected.keys()
    for name, wanted in expected.items():
        for cell, value in zip(rows[name], wanted, strict=True):
            assert (cell is None) == (value is None) and (value is None or cell == pytest.approx(value, abs=2e-3)), name
    fox, transformer = output_gates.findings(made)
    assert (
        fox.startswith("With 0.262M tokens FoX (Pro) has a lower loss with SiLU than with sigmoid (−0.")
        and "relative" not in fox
    )
    assert "relative to FoX (Pro) its loss is +0." in transformer and " with sigmoid and +0." in transformer


def test_without_both_gates_nothing_is_compared(tmp_path):
    made = study(tmp_path, {("gated_delta_net", "silu"): 3.2})
    assert output_gates.findings(made) == ["No model was trained with both activations."]
    assert output_gates.summary(made).rows["Gated DeltaNet, 0.262M tokens"][2:] == [None] * 3


@pytest.mark.parametrize(("silu", "said"), [
    (2.3, "SiLU's gain cannot be told to change"), (2.2, "SiLU gains more"), (2.4, "SiLU gains less"),
])  # fmt: skip
def test_what_remains_of_a_gain_with_more_tokens(tmp_path, silu, said):
    losses = {("fox_pro", "sigmoid"): 3.0, ("fox_pro", "silu"): 2.9}
    made = study(tmp_path, losses | {("fox_pro", "sigmoid", "tiny"): 2.4, ("fox_pro", "silu", "tiny"): silu})
    assert [*output_gates.by_gate(made)] == ["tiny-short", "tiny"]
    assert [*output_gates.summary(made).rows] == ["FoX (Pro), 0.262M tokens", "FoX (Pro), 1.02M tokens"]
    *_, last = output_gates.findings(made)
    assert last.startswith(f"FoX (Pro): {said} with 1.02M tokens than with 0.262M tokens (")
