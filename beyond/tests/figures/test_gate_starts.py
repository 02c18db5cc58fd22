"""Language models by how their gates start: what is trained, the table, and the sentences."""

import numpy as np
import pandas as pd
import pytest

from beyond.figures import gate_starts, mqar_gates
from experiments.scales import for_ablations, get_scale
from tests import synthetic

STEM = "gate_starts"


def study(folder, losses, right):
    """Return a study of FoX (Pro): mean losses inside and beyond the training context and words told (%), by start."""
    store, rng = synthetic.Store(folder, train_len=64), np.random.default_rng(0)
    for start, (inside, beyond) in losses.items():
        for seed in range(3):
            mean = np.repeat([inside, beyond], 64)
            mean, bands = synthetic.documents_of(mean, rng, np.zeros((16, 16)), noise=1e-3)
            evaluations = [("per_token_loss", synthetic.loss_rows(mean, bands))]
            if start in right:
                told = (np.arange(400) % 100 < right[start] + seed) * 100.0
                own = {"item": range(400), "document": np.arange(400) // 25, "right": told, "logp": -1.0, "right_near": 0.0,
                       "logp_near": -2.0}  # fmt: skip
                evaluations.append(("last_words", pd.DataFrame(own)))
            how = dict(model="fox_pro", name=f"fox_pro {start}", axes={"start": start} if start else {}, seed=seed)
            store.add(STEM, f"fox_pro {start}", evaluations, **how)
    return store.study(STEM)


@pytest.mark.parametrize("scale", ["tiny", "mini"])
def test_starts_reach_to_the_training_context_and_the_papers_is_shared(scale):
    at = for_ablations(get_scale(scale))
    found = list(gate_starts.runs(get_scale(scale), (0,)))
    assert [recipe.model for recipe in found if not recipe.axes] == [{}, {}]
    times = [(recipe.model["decay_time_min"], recipe.model["decay_time_max"]) for recipe in found if recipe.axes]
    assert times == [(2, at.seq_len), (at.seq_len, at.seq_len)] * 2
    assert {recipe.scale for recipe in found} == {at.name}


def test_each_start_stands_beside_the_papers(tmp_path):
    losses = {None: (3.0, 3.0), "spread": (2.9, 3.2), "long": (3.1, 3.0)}
    made = study(tmp_path, losses, {None: 20, "spread": 50})
    rows = gate_starts.summary(made).rows
    names = [f"FoX (Pro), {mqar_gates.STARTS[start]}" for start in losses]
    expected = [[3.0, None, None, 21, None], [2.9, -0.1, 0.2, 51, 30], [3.1, 0.1, 0.0, None, None]]
    assert list(rows) == names
    for name, wanted in zip(names, expected, strict=True):
        for cell, value in zip(rows[name], wanted, strict=True):
            assert (cell is None) == (value is None) and (value is None or cell == pytest.approx(value, abs=2e-3)), name
    spread, long = gate_starts.findings(made)
    assert spread.startswith(f"{names[1]}: lower loss than with the paper's start (−0.")
    assert "; more last words right (+30" in spread
    assert long.startswith(f"{names[2]}: higher loss than with the paper's start (+0.") and "words" not in long


def test_words_at_the_floor_are_not_spoken_of(tmp_path):
    made = study(tmp_path, {None: (3.0, 3.0), "long": (3.1, 3.0)}, {None: -9, "long": -9})
    (told,) = gate_starts.findings(made)
    assert "words" not in told and gate_starts.summary(made).rows[f"FoX (Pro), {mqar_gates.STARTS['long']}"][3:] == [0, 0]


def test_without_the_papers_start_nothing_is_compared(tmp_path):
    made = study(tmp_path, {"long": (3.0, 3.0)}, {"long": 20})
    ((_, row),) = gate_starts.summary(made).rows.items()
    assert row == [pytest.approx(3.0, abs=2e-3), None, None, pytest.approx(21), None]
    assert gate_starts.findings(made) == ["No model was trained with both the paper's start and another."]
