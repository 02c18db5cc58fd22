import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from results.schema import KEYS, SCHEMAS, validate


def loss_rows(**changed: object) -> pd.DataFrame:
    columns = {
        "scale": "tiny",
        "model": "fox_pro",
        "run_id": "0123456789",
        "eval_id": "per_token_loss-00000000",
        "position": [1, 2, 3],
        "loss": [3.0, 2.5, 2.25],
        "num_documents": 4,
    }
    return pd.DataFrame(columns | changed)


def test_valid_rows_pass_in_the_schemas_order_and_dtypes():
    shuffled = loss_rows()[["loss", "model", "scale", "num_documents", "position", "eval_id", "run_id"]]
    shuffled["position"] = shuffled["position"].astype("int32")
    shuffled["model"] = shuffled["model"].astype(object)
    rows = validate("per_token_loss", shuffled)
    assert list(rows.columns) == list(SCHEMAS["per_token_loss"].columns)
    assert rows["position"].dtype == "int64"
    assert rows["loss"].tolist() == [3.0, 2.5, 2.25]


def test_whole_numbers_stored_as_floats_are_taken():
    assert validate("per_token_loss", loss_rows(position=[1.0, 2.0, 3.0]))["position"].tolist() == [1, 2, 3]


@pytest.mark.parametrize(
    ("changed", "says"),
    [
        ({"position": [1, 2, 2.5]}, "whole numbers.*2.5"),
        ({"position": [1, 2, 0]}, "position"),
        ({"position": [1, 2, 2]}, "appear twice.*'position': 2"),
        ({"loss": [1.0, 2.0, -1.0]}, "loss"),
        ({"loss": ["a", "b", "c"]}, "loss"),
        ({"model": ""}, "model"),
        ({"model": [None, "x", "y"]}, "model"),
        ({"surprise": 1}, "not expected.*surprise"),
    ],
)
def test_bad_rows_are_refused_with_a_short_message(changed, says):
    with pytest.raises(ValueError, match=says) as caught:
        validate("per_token_loss", loss_rows(**changed), where="here.parquet")
    assert "here.parquet" in str(caught.value)
    assert len(str(caught.value)) < 400


def test_missing_column_empty_rows_and_unknown_kind_are_refused():
    with pytest.raises(ValueError, match=r"missing.*loss"):
        validate("per_token_loss", loss_rows().drop(columns="loss"))
    with pytest.raises(ValueError, match="no rows"):
        validate("per_token_loss", loss_rows().iloc[:0])
    with pytest.raises(ValueError, match=r"unknown kind.*'banana'.*needle"):
        validate("banana", loss_rows())


def test_a_loss_that_is_not_finite_is_a_result():
    assert np.isnan(validate("per_token_loss", loss_rows(loss=[1.0, np.nan, 2.0]))["loss"][1])


def test_every_kind_has_keys_among_its_columns():
    assert set(KEYS) == set(SCHEMAS)
    for kind, schema in SCHEMAS.items():
        assert set(KEYS[kind]) <= set(schema.columns)
        assert list(schema.columns)[:4] == ["scale", "model", "run_id", "eval_id"]


@settings(max_examples=20)
@given(st.permutations(list(SCHEMAS["per_token_loss"].columns)))
def test_the_order_of_columns_does_not_matter(order):
    pd.testing.assert_frame_equal(validate("per_token_loss", loss_rows()[order]), validate("per_token_loss", loss_rows()))
