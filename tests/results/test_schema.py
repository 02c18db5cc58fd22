import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from results.schema import Schema, flag, integer, number, text

SCHEMA = Schema(
    {
        "name": text(),
        "note": text(empty=True),
        "mode": text(("easy", "standard")),
        "position": integer(1, 100),
        "loss": number(0, nullable=True),
        "share": number(0, 1),
        "whole": flag(),
    },
    key=("name", "position"),
)


def rows_of(**changed: object) -> pd.DataFrame:
    columns = {"name": "a", "note": "", "mode": "easy", "position": [1, 2, 3], "loss": [3.0, 2.5, 2.25], "share": 0.5}
    columns["whole"] = True
    return pd.DataFrame(columns | changed)


def test_valid_rows_come_back_in_the_schemas_order_and_types():
    shuffled = rows_of()[["loss", "position", "share", "mode", "note", "name", "whole"]]
    shuffled["position"] = shuffled["position"].astype("int32")
    shuffled["name"] = shuffled["name"].astype(object)
    rows = SCHEMA.validate(shuffled.set_index(np.array([7, 8, 9])))
    assert list(rows.columns) == list(SCHEMA.columns)
    assert rows["position"].dtype == "int64"
    assert rows["loss"].tolist() == [3.0, 2.5, 2.25]
    assert rows.index.tolist() == [0, 1, 2]


def test_whole_numbers_stored_as_floats_are_taken():
    assert SCHEMA.validate(rows_of(position=[1.0, 2.0, 3.0]))["position"].tolist() == [1, 2, 3]


@pytest.mark.parametrize(
    ("changed", "says"),
    [
        ({"position": [1, 2, 2.5]}, "whole numbers.*2.5"),
        ({"position": [1, 2, np.nan]}, "whole numbers.*nan"),
        ({"position": [1, 2, 0]}, "position"),
        ({"position": [1, 2, 101]}, "position"),
        ({"position": [1, 2, 2]}, "1 rows appear twice.*'position': 2"),
        ({"loss": [1.0, 2.0, -1.0]}, "loss"),
        ({"loss": ["a", "b", "c"]}, "loss"),
        ({"share": [0.1, 0.2, 1.2]}, "share"),
        ({"share": [0.1, 0.2, np.nan]}, "share"),
        ({"name": ["", "x", "y"]}, "name"),
        ({"name": [None, "x", "y"]}, "name"),
        ({"mode": ["easy", "hard", "easy"]}, "mode.*hard"),
        ({"whole": ["False", "", "x"]}, "'whole' must hold bool; it holds (object|str)"),
        ({"whole": [1.0, np.nan, 0.3]}, "'whole' must hold bool; it holds float64"),
        ({"position": [True, False, True]}, "'position' must hold int64; it holds bool"),
        ({"surprise": 1}, r"not expected \['surprise'\]"),
    ],
)
def test_bad_rows_are_refused_with_a_short_message_that_names_their_place(changed, says):
    with pytest.raises(ValueError, match=says) as caught:
        SCHEMA.validate(rows_of(**changed), where="here.parquet")
    assert str(caught.value).startswith("here.parquet: ")
    assert len(str(caught.value)) < 400


def test_missing_columns_and_empty_rows_are_refused():
    with pytest.raises(ValueError, match=r"missing \['loss'\]"):
        SCHEMA.validate(rows_of().drop(columns="loss"))
    with pytest.raises(ValueError, match="there are no rows"):
        SCHEMA.validate(rows_of().iloc[:0])


def test_what_is_not_known_is_a_result_where_the_column_says_so():
    assert np.isnan(SCHEMA.validate(rows_of(loss=[1.0, np.nan, 2.0]))["loss"][1])


@settings(max_examples=20)
@given(st.permutations(list(SCHEMA.columns)))
def test_the_order_of_columns_does_not_matter(order):
    pd.testing.assert_frame_equal(SCHEMA.validate(rows_of()[order]), SCHEMA.validate(rows_of()))
