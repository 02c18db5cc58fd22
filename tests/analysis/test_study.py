from dataclasses import replace

import pandas as pd
import pytest

from analysis.study import Line, Study, read_lines, study_file, write_lines
from tests import synthetic

ROWS = pd.DataFrame({"value": [1.0, 2.0]})


def store_of(tmp_path, **seeds):
    store = synthetic.Store(tmp_path)
    for label, count in seeds.items():
        for seed in range(count):
            store.add("fig", label, [("needle", ROWS + seed)], seed=seed)
    return store


def test_lines_come_back_and_an_unchanged_file_is_left_alone(tmp_path):
    lines = [
        Line(
            "a",
            {"gate": "full", "longest": 256, "on": True, "rate": 1.0},
            "fox_pro",
            0,
            "tiny",
            "r1",
            {"tiny/rows/x/r1-0.parquet": "f00"},
        )
    ]
    path = write_lines(tmp_path, "tiny", "fig", lines)
    before = path.stat().st_mtime_ns
    assert read_lines(tmp_path, "tiny", "fig") == lines
    assert write_lines(tmp_path, "tiny", "fig", lines) == path
    assert path.stat().st_mtime_ns == before
    assert read_lines(tmp_path, "tiny", "other") == []
    with pytest.raises(ValueError, match="nothing is stored for other"):
        Study(tmp_path, "tiny", "other")


def test_an_edited_lines_file_is_refused(tmp_path):
    store_of(tmp_path, fox_pro=1).study("fig")
    path = study_file(tmp_path, "tiny", "fig")
    path.write_text(path.read_text().replace("fox_pro", "fox_llama"))
    with pytest.raises(ValueError, match="changed after it was written"):
        Study(tmp_path, "tiny", "fig")


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


def test_rows_that_were_replaced_are_refused(tmp_path):
    store = store_of(tmp_path, fox_pro=1)
    line = store.lines["fig"][0]
    store.lines["fig"] = [replace(line, files={next(iter(line.files)): "0" * 64})]
    with pytest.raises(ValueError, match=r"other rows than fig\.json was drawn from"):
        store.study("fig").rows("needle")


def evaluated(tmp_path, ways):
    """Lines with evaluations, each (value, digest of its way, created, mode)."""
    from results.store import read_rows, rows_file, write_rows

    store = synthetic.Store(tmp_path)
    for label, own in ways.items():
        store.add("fig", label, [])
        line = store.lines["fig"].pop()
        files = {}
        for value, way, created, mode in own:
            meta = {
                "kind": "needle", "scale": "tiny", "model": label, "run_id": line.run_id, "eval_id": f"needle-{way}",
                "spec": {"mode": mode}, "created": created, "provenance": {}, "extras": {"way": way},
            }  # fmt: skip
            rows = pd.DataFrame({"value": [value]})
            path = write_rows(rows_file(tmp_path, "tiny", line.run_id, meta["eval_id"]), rows, meta, synthetic.UNCHECKED)
            files[str(path.relative_to(tmp_path))] = read_rows(path)[1]["rows_sha256"]
        store.lines["fig"].append(Line(label, {}, label, 0, "tiny", line.run_id, files))
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
