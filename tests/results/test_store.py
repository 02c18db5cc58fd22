import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from results import store
from results.measured import FOLDER
from results.provenance import commit_name, git_state
from results.schema import Schema, integer, number, text
from results.sealed import read_sealed, write_sealed
from results.store import (
    difference,
    fault_of,
    keep,
    meta_path,
    read_rows,
    read_run,
    record_run,
    rows_file,
    run_file,
    write_rows,
)

SCHEMA = Schema({"position": integer(1), "loss": number(0, nullable=True), "word": text()}, key=("position",))


def rows_of(loss: float = 2.0) -> pd.DataFrame:
    return pd.DataFrame({"position": [1, 2], "loss": [3.0, loss], "word": "x"})


def meta_of(run_id: str = "r1", eval_id: str = "per_token_loss-0badc0de", **changed: object) -> dict:
    return {
        "kind": "per_token_loss",
        "scale": "tiny",
        "model": "fox_pro",
        "run_id": run_id,
        "eval_id": eval_id,
        "spec": {"kind": "per_token_loss", "context_len": 2},
        "created": "2025-01-01",
        "provenance": {"git_sha": "abc"},
        "extras": {"unigram_entropy": 5.0},
        **changed,
    }


def stored(folder: Path, run_id: str = "r1", loss: float = 2.0, **changed: object) -> Path:
    path = folder / run_id / "evals" / "per_token_loss-0badc0de.parquet"
    return write_rows(path, rows_of(loss), meta_of(run_id, **changed), SCHEMA)


def test_what_a_reader_writes_to_its_rows_is_seen_by_no_other(tmp_path):
    path = stored(tmp_path)
    rows, _ = read_rows(path)
    rows["loss"] = 9.0
    rows.loc[0, "added"] = 1
    other, _ = read_rows(path)
    other.loc[0, "loss"] = 7.0
    pd.testing.assert_frame_equal(read_rows(path)[0], rows_of(), check_dtype=False)


def test_round_trip(tmp_path):
    path = stored(tmp_path)
    rows, meta = read_rows(path)
    pd.testing.assert_frame_equal(rows, rows_of(), check_dtype=False)
    assert len(meta.pop("rows_sha256")) == 64
    assert meta == meta_of()
    assert sorted(p.name for p in path.parent.iterdir()) == [
        "per_token_loss-0badc0de.meta.json", "per_token_loss-0badc0de.parquet",
    ]  # fmt: skip
    assert fault_of(path) is None


def test_equal_rows_give_equal_bytes(tmp_path):
    one, two = stored(tmp_path / "a"), stored(tmp_path / "b")
    assert one.read_bytes() == two.read_bytes()
    assert meta_path(one).read_bytes() == meta_path(two).read_bytes()


def test_bad_rows_and_meta_leave_what_was_there_untouched(tmp_path):
    path = stored(tmp_path)
    before = path.read_bytes()
    with pytest.raises(ValueError, match="loss"):
        write_rows(path, rows_of(-1.0), meta_of(), SCHEMA)
    with pytest.raises(ValueError, match="the meta lacks kind, scale"):
        write_rows(path, rows_of(), {"model": "x"}, SCHEMA)
    with pytest.raises(ValueError, match=r"stored as \.parquet"):
        write_rows(tmp_path / "rows.csv", rows_of(), meta_of(), SCHEMA)
    assert path.read_bytes() == before
    read_rows(path)


def spoil(path: Path, how: str) -> None:
    body = path.read_bytes()
    if how == "cut":
        path.write_bytes(body[:-20])
    elif how == "flip":
        path.write_bytes(body[:40] + bytes([body[40] ^ 1]) + body[41:])
    else:
        path.unlink()


@pytest.mark.parametrize("part", ["rows", "meta"])
@pytest.mark.parametrize("how", ["cut", "flip", "gone"])
def test_a_pair_that_is_not_whole_is_refused_with_a_remedy(tmp_path, part, how):
    path = stored(tmp_path)
    spoil(path if part == "rows" else meta_path(path), how)
    fault = fault_of(path)
    assert fault is not None
    assert "run its experiment" in fault
    with pytest.raises(ValueError, match="run its experiment"):
        read_rows(path)


def test_a_writer_killed_between_the_two_renames_is_noticed(tmp_path, monkeypatch):
    path = stored(tmp_path)
    replace = os.replace

    def only_meta(source, target):
        if str(target).endswith(".parquet"):
            raise KeyboardInterrupt
        replace(source, target)

    monkeypatch.setattr(os, "replace", only_meta)
    with pytest.raises(KeyboardInterrupt):
        write_rows(path, rows_of(1.0), meta_of(), SCHEMA)
    with pytest.raises(ValueError, match="run its experiment again"):
        read_rows(path)
    assert len(list(path.parent.iterdir())) == 2, "no temporary file is left"


def test_an_evaluation_is_kept_under_its_run_and_identity(tmp_path):
    source, results = stored(tmp_path / "runs"), tmp_path / "results"
    path, changed = keep(source, results)
    assert path == results / "tiny" / "rows" / "per_token_loss" / "r1-0badc0de.parquet"
    assert path == rows_file(results, "tiny", "r1", "per_token_loss-0badc0de")
    assert changed is None
    assert path.read_bytes() == source.read_bytes()
    assert read_rows(path)[1] == read_rows(source)[1]
    assert keep(stored(tmp_path / "runs", "r2"), results)[0] != path


def test_what_is_kept_stays_and_is_told_how_much_a_later_one_differs(tmp_path):
    results = tmp_path / "results"
    path, _ = keep(stored(tmp_path / "a"), results)
    before = path.read_bytes(), path.stat().st_mtime_ns
    assert keep(tmp_path / "a" / "r1" / "evals" / "per_token_loss-0badc0de.parquet", results) == (path, None), "the same one"
    assert keep(stored(tmp_path / "b", created="2025-01-02"), results) == (path, 0.0)
    assert keep(stored(tmp_path / "c", loss=2.3), results) == (path, pytest.approx(0.1))
    assert keep(stored(tmp_path / "c", loss=2.3), results, but=("loss",)) == (path, 0.0)
    assert (path.read_bytes(), path.stat().st_mtime_ns) == before


@pytest.mark.parametrize("part", ["rows", "meta"])
def test_a_stored_pair_that_is_not_whole_is_replaced_and_a_broken_source_is_not_kept(tmp_path, part):
    source, results = stored(tmp_path / "runs"), tmp_path / "results"
    path, _ = keep(source, results)
    spoil(path if part == "rows" else meta_path(path), "cut")
    assert keep(source, results) == (path, None)
    read_rows(path)
    spoil(source, "flip")
    before = path.read_bytes()
    with pytest.raises(ValueError, match="changed since"):
        keep(source, results)
    assert path.read_bytes() == before


def test_differences_are_relative_to_the_largest_number_of_a_column():
    one = rows_of()
    assert difference(one, one.copy()) == 0
    assert difference(one, rows_of(2.003)) == pytest.approx(0.001)
    assert difference(one.assign(loss=0.0), one.assign(loss=0.0)) == 0
    for other in (one.iloc[:1], one.rename(columns={"word": "w"}), one.assign(word=["x", "y"]), one.assign(loss=[3.0, np.nan])):
        assert difference(one, other) == np.inf


def test_what_is_not_finite_must_be_the_same():
    one = rows_of().assign(loss=[np.inf, np.nan])
    assert difference(one, one.copy()) == 0
    assert difference(one, one.assign(loss=[-np.inf, np.nan])) == np.inf
    assert difference(one, one.assign(loss=[np.nan, np.inf])) == np.inf


def record(*dates: str, **changed: object) -> dict:
    starts = [{"date": date, "git_sha": f"sha of {date}"} for date in dates]
    return {"run_id": "r1", "scale": "tiny", "name": "fox_pro", "spec": {"seed": 0}, "starts": starts, **changed}


def test_a_runs_record_gathers_all_its_starts_and_keeps_the_newest_values(tmp_path):
    path = record_run(tmp_path, record("2025-01-02", final_loss=3.0))
    assert path == run_file(tmp_path, "tiny", "r1")
    record_run(tmp_path, record("2025-01-01", "2025-01-02", final_loss=2.5))
    known = read_run(path)
    assert [start["date"] for start in known["starts"]] == ["2025-01-01", "2025-01-02"]
    assert known["final_loss"] == 2.5
    before = path.stat().st_mtime_ns
    record_run(tmp_path, record("2025-01-02"))
    record_run(tmp_path, record(final_loss=None))
    assert path.stat().st_mtime_ns == before, "nothing new, nothing written"
    assert read_run(path)["final_loss"] == 2.5


def test_an_edited_record_is_refused_and_not_overwritten(tmp_path):
    path = record_run(tmp_path, record("2025-01-02"))
    values = read_sealed(path, "")
    write_sealed(path, values)
    path.write_text(path.read_text().replace("fox_pro", "fox_llama"))
    before = path.read_bytes()
    with pytest.raises(ValueError, match="restore it from version control"):
        read_run(path)
    with pytest.raises(ValueError, match="restore it from version control"):
        record_run(tmp_path, record("2025-01-03"))
    assert path.read_bytes() == before


def test_results_and_analysis_do_not_import_torch():
    names = "analysis.report, experiments.fox.fig2_per_token_loss, experiments.fox.fig4_needle"
    code = f"import sys, results.store, {names}; print({{'torch', 'transformers', 'lm_eval'}} & set(sys.modules))"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, cwd=Path(__file__).parents[2], check=True
    )
    assert done.stdout.strip() == "set()"


def test_starts_of_one_day_are_all_kept(tmp_path):
    starts = [{"date": f"2025-01-02T03:04:0{second}.000+00:00", "end": None} for second in range(3)]
    record = {"run_id": "a", "scale": "tiny", "name": "fox", "spec": {}, "starts": starts[:2]}
    record_run(tmp_path, record)
    ended = {**starts[1], "end": {"exit_code": 0}}
    path = record_run(tmp_path, {**record, "starts": [ended, starts[2]]})
    assert read_run(path)["starts"] == [starts[0], ended, starts[2]]


def test_the_state_of_a_checkout(tmp_path):
    """Its commit, and whether a file that git knows differs from it; results and files that git does not know do not count."""

    def git(*words):
        subprocess.run(
            ["git", "-c", "user.name=a", "-c", "user.email=a@b", *words], cwd=tmp_path, check=True, capture_output=True
        )

    assert git_state(tmp_path) == {"git_sha": None, "git_dirty": None}
    git("init", "-q")
    (tmp_path / "results").mkdir()
    (tmp_path / "code.py").write_text("first")
    git("add", ".")
    git("commit", "-qm", "another project, in which the code lies")
    for name in ("results/rows", "results/provenance.py"):
        (tmp_path / name).write_text("first")
    assert git_state(tmp_path) == {"git_sha": None, "git_dirty": None}
    git("add", ".")
    git("commit", "-qm", "one")
    clean = git_state(tmp_path)
    assert len(clean["git_sha"]) == 40 and clean["git_dirty"] is False
    for name in ("results/rows", "new.py"):
        (tmp_path / name).write_text("changed")
    assert git_state(tmp_path) == clean
    (tmp_path / "code.py").write_text("changed")
    assert git_state(tmp_path) == {**clean, "git_dirty": True}
    assert commit_name({**clean, "git_dirty": True}) == clean["git_sha"][:10] + "+" and commit_name({}) == "unknown"


def test_stored_rows_of_every_kind_are_the_same_by_fastparquet(monkeypatch):
    newest = {path.parent.name: path for path in sorted(FOLDER.parent.glob("**/*.parquet"))}
    by_pyarrow = {kind: read_rows(path)[0] for kind, path in newest.items()}
    monkeypatch.setitem(sys.modules, "pyarrow.parquet", None)
    for kind, path in newest.items():
        pd.testing.assert_frame_equal(read_rows(path)[0], by_pyarrow[kind], check_exact=True)
    assert len(newest) > 20


def training(weights: str | None, *starts: str, loss: float | None = 2.0) -> dict:
    return {"weights": weights, "starts": list(starts), "final_loss": loss}


@pytest.mark.parametrize(("one", "other", "same"), [
    (("w", 2.0), ("w", 2.0), True), (("w", 2.0), ("v", 2.0), False), (("w", 2.0), ("w", 3.0), True),  # by their weights
    ((None, 2.0), ("w", 2.0), True), (("w", 2.0), (None, 2.0), True), (("w", 2.0), (None, 3.0), False),  # else by their loss
    ((None, 2.0), (None, 2.0), True), ((None, 2.0), (None, 3.0), False),
])  # fmt: skip
def test_a_training_is_known_by_its_weights_or_by_its_loss(one, other, same):
    one, other = (training(weights, loss=loss) for weights, loss in (one, other))
    assert store.is_training(one, other) is same
    assert len(store._joined([one], [other])) == 2 - same


def test_records_of_a_run_grow_together(tmp_path):
    """Starts by their dates, trainings by what they ended in; what was not known is filled in, and nothing is lost."""

    def record(starts: str, *trainings: dict, **more: object) -> dict:
        own = {"run_id": "r", "scale": "tiny", "name": "fox", "spec": {}, **more}
        return own | {"starts": [{"date": date} for date in starts], "trainings": list(trainings), "final_loss": None}

    first, whole = record("bc", training(None, "b", "c")), training("w", "a", "b", "c", "d")
    other = training("v", "e", loss=3.0)
    grown = [
        (first, "bc", [training(None, "b", "c")], 2.0), (first, "bc", [training(None, "b", "c")], 2.0),
        (record("ad", training("w", "a", "d")), "abcd", [whole], 2.0), (record("e", other), "abcde", [whole, other], 2.0),
        (record(""), "abcde", [whole, other], 2.0),
        (record("", training("w", loss=None), training("v", loss=5.0)), "abcde", [whole, other], 2.0),  # what is known stays
    ]  # fmt: skip
    for new, dates, trainings, loss in grown:
        found = store.read_run(store.record_run(tmp_path, new))
        assert "".join(start["date"] for start in found["starts"]) == dates
        assert found["trainings"] == trainings and found["final_loss"] == loss
    for one, another in ((training("w", loss=None), training("w")), (training("w"), training(None))):
        assert store._joined([one], [another]) == store._joined([another], [one]) == [training("w")]
    later = record("", training("w", loss=None), training("v", loss=3.0)) | {"run_id": "s"}
    assert store.read_run(store.record_run(tmp_path, later))["final_loss"] == 3.0
    assert store.starts_of(found, other) == [{"date": "e"}]
    assert store.starts_of(found, training("w", "a", "x")) == [{"date": "a"}]


def test_trainings_of_records_from_before_they_were_told_apart():
    starts = [{"date": "a"}, {"date": "b"}]
    for record, found in (
        ({"starts": starts, "final_loss": 2.0}, [training(None, "a", "b")]), ({"starts": starts, "final_loss": None}, []),
        ({"starts": starts, "trainings": []}, []), ({"starts": [], "spec": {"weights": "w"}}, [training("w", loss=None)]),
    ):  # fmt: skip
        assert store.trainings_of(record) == found


@pytest.mark.parametrize(("kind", "weights", "training", "fresh"), [
    ("needle", "", "", False), ("needle", "0123456789ab", "01234567", False), ("throughput", "", "", True),
    ("equal_logits", "abc", "abc", True), ("parameters", "", "", True), ("training_curve", "", "", False),
])  # fmt: skip
def test_the_name_of_rows_tells_their_training_and_whether_they_have_one(tmp_path, kind, weights, training, fresh):
    path = store.rows_file(tmp_path, "tiny", "r", f"{kind}-0badc0de", weights)
    assert path == tmp_path / "tiny" / "rows" / kind / f"r-0badc0de{'-' * bool(training)}{training}.parquet"
    assert store.training_in_name(path) == training
    assert store.is_fresh(f"{kind}-0badc0de") is store.is_fresh(str(path.relative_to(tmp_path))) is fresh
