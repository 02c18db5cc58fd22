"""Last words: what is drawn, worked out by hand."""

import math

import pandas as pd
import pytest

from beyond.figures import last_words
from tests import synthetic
from tests.synthetic import no_waiting_for_the_disk, seeds_that_do_not_differ  # noqa: F401


def made(folder, changes=lambda model, rows: rows):
    """Four words of two documents: given the passage FoX has three right, the Transformer one; given its end each one."""
    store = synthetic.Store(folder)
    rule = {"anywhere": False, "words": 200, "near": 20, "common": 500}
    for model, right, logp in (("fox_pro", [100, 100, 100, 0], -1.0), ("transformer_pro", [0, 0, 0, 100], -2.0)):
        rows = pd.DataFrame({"item": range(4), "document": [0, 0, 1, 1], "right": right, "logp": [logp, 3 * logp] * 2,
                             "right_near": [100.0, 0, 0, 0], "logp_near": [2 * logp, 4 * logp] * 2})  # fmt: skip
        rows = changes(model, rows.assign(right=rows["right"].astype(float)))
        store.add("last_words", model, [("last_words", rows)], evaluation=rule)
    return store.study("last_words")


def test_points_are_shares_perplexities_and_leads(tmp_path):
    found = last_words.points(made(tmp_path)).set_index(["panel", "model", "given"])
    wanted = {
        ("accuracy", "fox_pro", "passage"): 75, ("accuracy", "fox_pro", "last words"): 25, ("lead", "fox_pro", "passage"): 50,
        ("accuracy", "transformer_pro", "passage"): 25, ("accuracy", "transformer_pro", "last words"): 25,
        ("perplexity", "fox_pro", "passage"): math.e**2, ("perplexity", "fox_pro", "last words"): math.e**3,
        ("perplexity", "transformer_pro", "passage"): math.e**4, ("perplexity", "transformer_pro", "last words"): math.e**6,
    }  # fmt: skip
    assert found["value"].to_dict() == pytest.approx(wanted)
    assert (found["low"] < found["value"]).all() and (found["value"] < found["high"]).all()
    assert found.loc["accuracy"]["low"].min() >= 0 and found.loc["accuracy"]["high"].max() <= 100
    assert found.loc["lead", ["low", "high"]].to_numpy().tolist() == [[-100, 100]]  # of two documents
    table = last_words.summary(made(tmp_path / "again"))
    assert [column.key for column in table.columns] == [
        "accuracy_passage", "perplexity_passage", "accuracy_last_words", "perplexity_last_words",
    ]  # fmt: skip
    assert table.rows["fox_pro"] == pytest.approx([75, math.e**2, 25, math.e**3])


def test_models_that_were_asked_for_other_words_do_not_meet(tmp_path):
    others = made(tmp_path, lambda model, rows: rows.assign(document=[0, 0, 0, 1]) if model == "fox_pro" else rows)
    with pytest.raises(ValueError, match="asked for other words"):
        last_words.points(others)
