from dataclasses import replace

import pandas as pd
import pytest

from analysis.study import Line, Lines, NothingStored, Study, joined, read_lines, study_file, write_lines
from results.store import read_rows, write_rows
from tests import synthetic

ROWS = pd.DataFrame({"value": [1.0, 2.0]})


def store_of(tmp_path, **seeds):
    store = synthetic.Store(tmp_path)
    for label, count in seeds.items():
        for seed in range(count):
            store.add("fig", label, [("needle", ROWS + seed)], seed=seed)
    return store


def line_of(model="fox_pro", run_id="r1", seed=0, **evals):
    return Line(model, {"gate": "full", "longest": 256, "on": True}, model, seed, "tiny", run_id, evals)


def test_lines_come_back_and_an_unchanged_file_is_left_alone(tmp_path):
    lines = Lines("fig", "tiny", (line_of(e1="w1"), line_of(seed=1, run_id="r2", e1=None)), "../results")
    write_lines(tmp_path, lines)
    before = study_file(tmp_path, "tiny", "fig").stat().st_mtime_ns
    write_lines(tmp_path, lines)
    assert read_lines(tmp_path, "tiny", "fig") == lines and study_file(tmp_path, "tiny", "fig").stat().st_mtime_ns == before
    for stem in ("other", "fig"):  # never planned, and planned without rows
        with pytest.raises(NothingStored, match=stem):
            Study(tmp_path, "tiny", stem)
    path = study_file(tmp_path, "tiny", "fig")
    path.write_bytes(path.read_bytes()[:-20])
    with pytest.raises(ValueError, match=r"fig\.json is damaged"):
        read_lines(tmp_path, "tiny", "fig")


def test_new_lines_stand_where_they_are_declared_and_none_is_lost():
    old = (line_of("a", "ra", e1=None), line_of("c", "rc"))
    new = (line_of("a", "ra", e2=None), line_of("b", "rb"), line_of("c", "again"), line_of("d", "rd"))
    found = joined(old, new)
    assert [line.run_id for line in found] == ["ra", "rb", "again", "rd", "rc"] and [*found[0].evals] == ["e1", "e2"]
    assert joined(found, new) == found and joined((), new) == new


def test_rows_stand_behind_the_columns_of_their_line(tmp_path):
    rows = store_of(tmp_path, fox_pro=2, mamba2=1).study("fig").rows("needle")
    assert list(rows.columns) == ["label", "model", "seed", "scale", "run_id", "eval_id", "value"]
    assert rows["seed"].tolist() == [0, 0, 1, 1, 0, 0]
    assert rows["value"].tolist() == [1, 2, 2, 3, 1, 2]
    assert store_of(tmp_path, fox_pro=1).study("fig").rows("longbench").empty


def test_seeds_scales_corpora_and_training_lengths(tmp_path):
    store = store_of(tmp_path, fox_pro=3, mamba2=1)
    study = store.study("fig")
    assert study.num_seeds == 3
    assert study.seed_counts == {((), "fox_pro", "tiny"): 3, ((), "mamba2", "tiny"): 1}
    assert study.scales == ["tiny"]
    assert study.corpora == "made-up, bpe-512 (feedbeef)"
    assert study.train_len == 256
    store.add("fig", "hgrn2", [("needle", ROWS)], scale="mini", train={"seq_len": 512})
    study = store.study("fig")
    assert study.scales == ["tiny", "mini"]
    with pytest.raises(ValueError, match=r"one training context length.*\[256, 512\]"):
        study.train_len  # noqa: B018


def test_a_line_has_the_rows_of_one_training_of_its_own_folder_first(tmp_path):
    """Rows beside are drawn for lines without rows of one's own; rows of two trainings, and damaged ones, are refused."""
    own, other = store_of(tmp_path / "own", fox_pro=1), store_of(tmp_path / "other", fox_pro=2)
    other.study("fig")
    own.study("fig")
    rows = tmp_path / "own" / "tiny" / "runs" / f"fox_pro-{own.lines['fig'][0].run_id}" / "evals" / "needle-00000000.parquet"
    held, meta = read_rows(rows)
    write_rows(rows, held + 5, meta | {"weights": "w1"}, synthetic.UNCHECKED)
    write_lines(tmp_path / "own", Lines("fig", "tiny", tuple(other.lines["fig"]), "../other"))
    study = Study(tmp_path / "own", "tiny", "fig")
    assert study.rows("needle")["value"].tolist() == [6, 7, 2, 3]
    assert [line.weights for line in study.lines] == ["w1", None] and all(line.is_trained for line in study.lines)
    write_rows(rows.with_name("recall-1.parquet"), held, meta | {"eval_id": "recall-1", "weights": "w2"}, synthetic.UNCHECKED)
    line = own.lines["fig"][0]
    own.lines["fig"] = [replace(line, evals={**line.evals, "recall-1": None})]
    with pytest.raises(ValueError, match="several trainings"):
        own.study("fig")
    rows.write_bytes(rows.read_bytes()[:-9])
    with pytest.raises(ValueError, match=rows.name):
        own.study("fig")


def evaluated(tmp_path, ways):
    """Lines with evaluations, each (value, digest of its way, created, mode)."""
    store = synthetic.Store(tmp_path)
    for label, own in ways.items():
        store.add("fig", label, [])
        line = store.lines["fig"].pop()
        for value, way, created, mode in own:
            meta = {
                "kind": "needle", "scale": "tiny", "model": label, "run_id": line.run_id, "eval_id": f"needle-{way}",
                "spec": {"mode": mode}, "created": created, "provenance": {}, "extras": {"way": way}, "weights": "w",
            }  # fmt: skip
            path = tmp_path / "tiny" / "runs" / f"{label}-{line.run_id}" / "evals" / f"needle-{way}.parquet"
            write_rows(path, pd.DataFrame({"value": [value]}), meta, synthetic.UNCHECKED)
        store.lines["fig"].append(replace(line, evals={f"needle-{way}": None for _, way, *_ in own}))
    return store.study("fig")


def test_of_several_ways_of_evaluating_that_of_most_lines_is_drawn_then_the_newest(tmp_path):
    study = evaluated(
        tmp_path / "a",
        {
            "fox_pro": [(1.0, "few", "2025-01-01", "x"), (2.0, "many", "2025-01-02", "x")],
            "mamba2": [(3.0, "few", "2025-01-01", "x")],
        },
    )
    assert study.rows("needle")["value"].tolist() == [1.0, 3.0]
    study = evaluated(tmp_path / "b", {"fox_pro": [(2.0, "many", "2025-01-02", "x"), (1.0, "few", "2025-01-01", "x")]})
    assert study.rows("needle")["value"].tolist() == [2.0]
    assert study.extra("needle", study.lines[0].run_id, "way") == "many"
    assert study.extra("needle", study.lines[0].run_id, "nothing") is None
    assert study.created == "2025-01-02"


def test_every_mode_is_drawn(tmp_path):
    study = evaluated(tmp_path, {"fox_pro": [(1.0, "a", "2025-01-01", "easy"), (2.0, "b", "2025-01-01", "standard")]})
    assert study.rows("needle")["value"].tolist() == [1.0, 2.0]
    assert study.rows("needle", mode="standard")["value"].tolist() == [2.0]
