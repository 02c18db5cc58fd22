"""Learning rates of FoX's successors: what is trained, the table, and the sentences on who is held back."""

import numpy as np
import pytest

from beyond.figures import successors_lr
from experiments.fox import table_lr_grid
from experiments.recipes import Recipe
from experiments.scales import get_scale
from tests import synthetic

STEM = "successors_lr"


def study(folder, losses, noise=1e-3):
    """Return a study of mean losses by model and learning rate."""
    store, rng = synthetic.Store(folder, train_len=64), np.random.default_rng(0)
    for model, own in losses.items():
        for rate, loss in own.items():
            for seed in range(3):
                mean, bands = synthetic.documents_of(np.full(128, loss), rng, np.zeros((16, 16)), noise=noise)
                rows = [("per_token_loss", synthetic.loss_rows(mean, bands))]
                store.add(
                    STEM, f"{model}, LR {rate:g}", rows, model=model, name=f"{model} {rate}", axes={"peak_lr": rate}, seed=seed
                )
    return store.study(STEM)


@pytest.mark.parametrize("scale", ["tiny", "mini"])
def test_every_model_is_tried_at_as_many_rates_and_fox_at_those_of_table_5(scale):
    at = get_scale(scale)
    found: dict[str, list[Recipe]] = {}
    for recipe in successors_lr.runs(at, (0,)):
        found.setdefault(recipe.name, []).append(recipe)
    assert list(found) == list(successors_lr.MODELS)
    rates = {model: [recipe.train["peak_lr"] for recipe in own] for model, own in found.items()}
    assert {tuple(own) for own in rates.values()} == {tuple(table_lr_grid.rates_of(at, "fox_pro"))}
    assert all(recipe in list(table_lr_grid.runs(at, (0,))) for recipe in found["fox_pro"])


def test_the_table_has_every_loss_the_best_rate_and_the_distance_at_it(tmp_path):
    losses = {"fox_pro": {0.004: 3.0, 0.008: 3.2}, "mamba3": {0.004: 3.5, 0.008: 3.1}, "path_fox": {0.004: 3.4}}
    table = successors_lr.summary(study(tmp_path, losses))
    assert [column.key for column in table.columns] == ["lr_0.004", "lr_0.008", "best", "behind"]
    assert "Trained on 0.262M tokens; the figure of FoX among its successors has 1.02M" in table.note
    expected = {"FoX (Pro)": [3.0, 3.2, 0.004, None], "PaTH-FoX": [3.4, None, 0.004, 0.4], "Mamba-3": [3.5, 3.1, 0.008, 0.1]}
    assert table.rows.keys() == expected.keys()
    for label, cells in expected.items():
        for cell, value in zip(table.rows[label], cells, strict=True):
            assert (cell is None) == (value is None) and (value is None or cell == pytest.approx(value, abs=2e-3)), label


def test_without_fox_no_distance_is_known(tmp_path):
    table = successors_lr.summary(study(tmp_path, {"mamba3": {0.004: 3.5}}))
    assert table.rows["Mamba-3"][-1] is None


HELD, FINE = "Held back by the shared learning rate: ", "not told from their best: "


@pytest.mark.parametrize(("losses", "noise", "said"), [
    ({"fox_pro": {0.004: 3.0, 0.008: 3.2}, "mamba3": {0.004: 3.5, 0.008: 3.1}}, 1e-3,
     [f"{HELD}Mamba-3 (0.008 is better than 0.004 by +0.4", f"{FINE}FoX (Pro)."]),
    ({"fox_pro": {0.004: 3.001, 0.008: 3.0}}, 0.05, [f"{HELD}none; {FINE}FoX (Pro)"]),
    ({"alibi": {0.002: 3.2, 0.004: 3.1, 0.008: 3.0}, "mamba3": {0.002: 3.2, 0.004: 3.0, 0.008: 3.1},
      "path_fox": {0.002: 2.9, 0.004: 3.0, 0.008: 3.1}, "wall_attention": {0.002: 3.1, 0.008: 3.0}}, 1e-3,
     ["a better rate may lie beyond: ALiBi (LLaMA) (0.008), PaTH-FoX (0.002).", f"{FINE}Mamba-3."]),
    ({"alibi": {0.004: 3.2}, "mamba3": {0.002: 3.0, 0.008: 3.0}}, 1e-3, ["No model was tried"]),
])  # fmt: skip
def test_who_is_held_back(tmp_path, losses, noise, said):
    told = " ".join(successors_lr.findings(study(tmp_path, losses, noise)))
    for words in said:
        assert words in told, told
    assert ("may lie beyond" in told) == any("may lie beyond" in words for words in said)
