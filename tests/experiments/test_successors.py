"""The figure of FoX among its successors: ranks, what tells neighbours apart, and the numbers that each model keeps."""

import json

import numpy as np
import pandas as pd
import pytest
from pydantic import TypeAdapter

from experiments.beyond import successors
from experiments.recipes import model_spec
from experiments.scales import get_scale
from models.spec import ModelSpec
from tests import synthetic
from tests.experiments.every_picture import assert_written, recorded

TINY = get_scale("tiny")
ABOVE = {"fox_pro": 0.0, "gated_delta_net": 0.1, "kimi_delta_attention": 0.1001, "mamba2": 0.2}


def spec_of(name, **changes):
    return json.loads(TypeAdapter(ModelSpec).dump_json(model_spec(name, TINY, 512, changes)))


def study(tmp_path, models=ABOVE):
    store, rng = synthetic.Store(tmp_path, train_len=128), np.random.default_rng(0)
    texts = rng.normal(0.0, 0.2, (8, 16))
    base = synthetic.curve("mamba2", 128, 512)

    def add(label, model, above, spec, axes):
        for seed in range(2):
            own = base + above + 0.002 * seed
            mean, bands = synthetic.documents_of(own, rng, texts)
            kinds = [("per_token_loss", synthetic.loss_rows(mean, bands))]
            store.add("successors", label, kinds, model=model, seed=seed, spec=spec, axes=axes, name=f"{label} {model}")

    for model, above in models.items():
        add(model, model, above, spec_of(model), {})
    base_of = dict(rope_base=successors.LARGER_BASE)
    add("RoPE base 5e+06", "transformer_pro", 0.3, spec_of("transformer_pro", **base_of), base_of)
    return store.study("successors")


def test_models_are_ranked_and_neighbours_told_apart_only_where_they_can_be(tmp_path):
    table = successors.summary(study(tmp_path))
    assert list(table.rows) == [
        "FoX (Pro)",
        "Gated DeltaNet",
        "Kimi Delta Attention",
        "Mamba-2",
        "Transformer (Pro), RoPE base 5e+06",
    ]
    for label, (model, above) in zip(list(table.rows)[1:4], list(ABOVE.items())[1:], strict=True):
        assert table.rows[label][1] == pytest.approx(above, abs=0.02), model
    assert table.rows["FoX (Pro)"][1:3] == [None, None]
    low, high = table.ranges["Kimi Delta Attention"][2]
    assert low < 0 < high
    assert table.ranges["Mamba-2"][2][0] > 0
    assert [row[4] for row in table.rows.values()] == [2] * 5


def test_numbers_kept_are_those_of_the_spec_that_was_trained(tmp_path):
    table = successors.summary(study(tmp_path))
    layers, d, T = TINY.num_layers, TINY.hidden_size, successors.DECODED
    assert table.rows["Gated DeltaNet"][3] * 1e6 == pytest.approx(layers * d * (64 + 2 * 4))
    assert table.rows["Kimi Delta Attention"][3] * 1e6 == pytest.approx(layers * d * (128 + 3 * 4))
    assert table.rows["Transformer (Pro), RoPE base 5e+06"][3] * 1e6 > 2 * layers * d * T


def test_the_picture_holds_every_band_of_every_series(tmp_path, monkeypatch):
    seen = recorded(monkeypatch)
    files, table = successors.draw(study(tmp_path)), successors.summary(study(tmp_path / "again"))
    assert_written(seen, files, table, "successors", tmp_path)
    drawn = pd.read_csv(files[2])
    assert set(drawn["series"]) == set(table.rows)
    assert drawn.groupby("series")["last"].max().eq(512).all()
    assert drawn[drawn["model"] == "fox_pro"]["behind"].eq(0).all()
    behind = drawn[drawn["model"] == "mamba2"]
    assert behind["behind"].mean() == pytest.approx(0.2, abs=0.02)
    assert (behind["low"] < behind["behind"]).all()


def test_without_fox_there_is_nothing_to_stand_beside(tmp_path):
    with pytest.raises(ValueError, match=r"FoX \(Pro\) is not among the stored runs"):
        successors.draw(study(tmp_path, {"mamba2": 0.2}))
