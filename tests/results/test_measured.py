"""Tests of what needs no training is stored like everything else: added to, named by its contents, refused when altered."""

import json
import shlex
import sys

import pandas as pd
import pytest

from results.measured import FOLDER, SCHEMAS, WHOLE_PATH, add, read
from results.store import meta_path, read_rows

ROWS = [{"provider": "ours", "head_dim": 64, "logit": 1.0, "gates": "open", "o": 1e-3, "dq": float("inf"), "dk": 0.0,
         "dv": 0.0, "dlog_fgate": 0.0}]  # fmt: skip
KIND = "errors_by_regime"
RETIRED = ("evaluations", "short_calls", "parallel_curves", "path_curves", "training_steps")


def test_measurings_are_added_and_read_together(tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "orig_argv", ["python3", "-m", "kernels.benchmark", "--repeats", "3"])
    first = add(KIND, ROWS, "some GPU", code="abc", folder=tmp_path)
    before = first.read_bytes(), meta_path(first).read_bytes()
    second = add(KIND, [{**ROWS[0], "o": 2e-3}], "some GPU", folder=tmp_path)
    assert first != second and before == (first.read_bytes(), meta_path(first).read_bytes())
    rows = read(KIND, tmp_path)
    assert sorted(rows.o) == [1e-3, 2e-3] and set(rows.gpu) == {"some GPU"} and "abc" in set(rows.commit)
    meta = json.loads(meta_path(first).read_text())
    assert shlex.split(meta["command"])[1:] == sys.orig_argv[1:] and meta["provenance"]["versions"]["torch"]


def test_the_oldest_comes_first_also_within_a_second(tmp_path):
    """Whatever the names: they tell seconds, and then what is in the file."""
    values = [1e-3 * n for n in (3, 1, 4, 2, 5, 9, 6, 8)]
    for value in values:
        add(KIND, [{**ROWS[0], "o": value}], "some GPU", folder=tmp_path)
    assert read(KIND, tmp_path).o.tolist() == values


@pytest.mark.parametrize(
    ("given", "kept"),
    [
        (["--only", "ours, pruned"], "--only 'ours, pruned'"),
        (["--rows", "/scratch/rows", "--repeats", "3"], "--repeats 3"),
        (["--rows=/scratch/rows", "--corpora-dir=/scratch/corpora", "--corpora-dir", "/scratch/corpora"], ""),
        (["--data", "text:/home/her/books/train*"], "--data 'text:books/train*'"),
        (["--heldout", "/books/last.txt,/home/her/books/more.txt"], "--heldout books/last.txt,books/more.txt"),
        (["--heldout=/last.txt"], "--heldout=last.txt"),
        (["--data", "text:books/a/train*", "--line", "512/12"], "--data 'text:books/a/train*' --line 512/12"),
        (["--rows"], ""),
    ],
    ids=["no-place", "rows", "places", "data", "heldout", "file-at-the-root", "relative", "cut-off"],
)
def test_the_command_says_what_measured_and_no_place_of_that_machine(tmp_path, monkeypatch, given, kept):
    monkeypatch.setattr(sys, "orig_argv", ["python3", "-m", "kernels.benchmark", *given])
    command = json.loads(meta_path(add(KIND, ROWS, "GPU", folder=tmp_path)).read_text())["command"]
    assert command == f"python -m kernels.benchmark {kept}".strip()


def test_bad_rows_and_altered_files_are_refused(tmp_path):
    with pytest.raises(ValueError, match="no measurements"):
        read(KIND, tmp_path)
    with pytest.raises(ValueError, match="column 'o'"):
        add(KIND, [{**ROWS[0], "o": -1.0}], "GPU", folder=tmp_path)
    path = add(KIND, ROWS, "GPU", folder=tmp_path)
    path.write_bytes(path.read_bytes()[:-1] + b"x")
    with pytest.raises(ValueError, match="truncated or changed"):
        read(KIND, tmp_path)


@pytest.mark.parametrize("path", sorted(FOLDER.glob("*/*.parquet")), ids=lambda path: f"{path.parent.name}-{path.stem[-8:]}")
def test_what_is_committed_is_whole_and_says_who_measured_it(path):
    rows, meta = read_rows(path)
    if path.parent.name not in RETIRED:
        pd.testing.assert_frame_equal(SCHEMAS[path.parent.name].validate(rows), rows)
    assert meta["kind"] == path.parent.name and meta["command"]
    assert not any(WHOLE_PATH.search(word) for word in shlex.split(meta["command"]))
    made = meta["provenance"]
    assert made["device"] and (len(made["git_sha"] or "") >= 7 or "converted_from" in meta)  # from notes of before the store
