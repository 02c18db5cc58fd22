"""Stored rows, records and makers that are not as they should be, worked out by hand."""

import hashlib
import json
import subprocess

import numpy as np
import pandas as pd
import pytest

from results import measured, provenance, store
from results.schema import Schema, integer, number, text
from results.sealed import read_sealed, write_sealed
from tests.results.test_store import meta_of, record, rows_of, stored


@pytest.mark.parametrize("values", [{"a": float("nan")}, {"a": [1, float("inf")]}, {"a": [{"b": float("-inf")}]}])
@pytest.mark.parametrize("compact", [True, False])
def test_what_is_not_json_is_not_written(values, compact, tmp_path):
    with pytest.raises(ValueError, match="JSON"):
        write_sealed(tmp_path / "x.json", values, compact=compact)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("body", [None, b"\xff", b"3", b"null", b"[]", b'["sha256"]', b'"text"', b"[" * 100_000])
def test_whatever_lies_there_is_no_sealed_file(body, tmp_path):
    path = tmp_path / "x.json"
    path.mkdir() if body is None else path.write_bytes(body)
    with pytest.raises(ValueError, match=r"x\.json cannot be read \(\w+\): do this$"):
        read_sealed(path, "do this")


def test_rows_whose_bytes_are_no_parquet_are_refused(tmp_path, monkeypatch):
    """Also where they are those that were written."""
    path = stored(tmp_path)
    meta = store.read_meta(path)
    for body in (b"no parquet", b"PAR1xxxxPAR1"):
        path.write_bytes(body)
        write_sealed(store.meta_path(path), meta | {"rows_sha256": hashlib.sha256(body).hexdigest()})
        with pytest.raises(ValueError, match=r"not a readable parquet file \("):
            store.read_rows(path)
    monkeypatch.setattr(store, "_frame", lambda body: (_ for _ in ()).throw(OSError("odd")))
    with pytest.raises(ValueError, match=r"not a readable parquet file \(odd\)"):
        store.read_rows(path)
    write_sealed(store.meta_path(path), {name: value for name, value in meta.items() if name != "rows_sha256"})
    with pytest.raises(ValueError, match="truncated or changed"):
        store.read_rows(path)


@pytest.mark.parametrize("missing", [*store.META_KEYS])
def test_an_evaluation_says_all_that_it_should(missing, tmp_path):
    """Measurements say some of it."""
    path = stored(tmp_path)
    meta = read_sealed(store.meta_path(path), "")
    write_sealed(store.meta_path(path), {name: value for name, value in meta.items() if name != missing})
    assert "is of another version" in store.fault_of(path)
    for read in (store.read_meta, lambda path: store.read_evaluation(path, "r1"), lambda path: store.keep(path, tmp_path)):
        with pytest.raises(ValueError, match="is of another version"):
            read(path)
    if missing not in store.ROWS:
        assert len(store.read_rows(path)[0]) == 2


def test_an_evaluation_lies_where_its_meta_says(tmp_path):
    """Under its run, its identity and, of a later training, its weights."""
    source = stored(tmp_path / "runs")
    first, _ = store.keep(source, tmp_path)
    assert store.read_evaluation(first, "r1")[1] == store.read_rows(source)[1]
    with pytest.raises(ValueError, match="does not belong here: its run_id is r1, not r2"):
        store.read_evaluation(first, "r2")
    meta = meta_of(weights="0123456789")
    store.write_rows(
        source, rows_of(), meta, Schema({"position": integer(1), "loss": number(0), "word": text()}, key=("position",))
    )
    later, difference = store.keep(source, tmp_path, weights="0123456789")
    assert later.name == "r1-0badc0de-01234567.parquet" and difference is None
    assert store.read_evaluation(later, "r1")[1]["weights"] == "0123456789"
    for name in ("r1-0badc0de-76543210", "r1-badc0de0", "r2-0badc0de"):
        moved = [
            path.rename(path.with_name(path.name.replace("r1-0badc0de-01234567", name)))
            for path in (later, store.meta_path(later))
        ]
        with pytest.raises(ValueError, match=rf"does not belong here: its rows belong to {first}; delete it"):
            store.read_evaluation(moved[0], "r1")
        for path in moved:
            path.rename(path.with_name(path.name.replace(name, "r1-0badc0de-01234567")))
    for name, value in (("run_id", "r2"), ("scale", "mini"), ("eval_id", "per_token_loss-ffffffff")):
        assert f"its {name} is" in store.fault_of(first, **{name: value})
        write_sealed(store.meta_path(first), read_sealed(store.meta_path(first), "") | {name: value})
        assert store.keep(source, tmp_path) == (first, None), "what lies there is another's"
    assert store.keep(source, tmp_path) == (first, None), "the same evaluation again"
    write_sealed(store.meta_path(first), read_sealed(store.meta_path(first), "") | {"created": "2025-01-02"})
    assert store.keep(source, tmp_path, but=("word", "none")) == (first, 0.0)


def test_differences_of_small_and_odd_numbers():
    """Relative to the largest of a column, however small; zero to zero is none."""
    of = lambda *values: pd.DataFrame({"a": values})  # noqa: E731
    assert store.difference(of(1e-6, 0.0), of(2e-6, 0.0)) == pytest.approx(1.0)
    assert store.difference(of(-4.0, 2.0), of(-4.0, 3.0)) == 0.25 and store.difference(of(0.0), of(0.0)) == 0.0
    assert store.difference(of(1.0, 2.0), of(1.0)) == np.inf and store.difference(of(), of()) == 0.0
    assert store.difference(of(1.0, np.nan), of(1.0, np.nan)) == 0.0 and store.difference(of(1.0), of(np.inf)) == np.inf
    both = of(1.0, 2.0).assign(b=[4.0, 8.0])
    assert store.difference(both, both.assign(a=[1.0, 2.2], b=[4.0, 8.1])) == pytest.approx(0.1)


def test_a_record_is_where_its_run_is_and_keeps_what_it_knows(tmp_path):
    path = store.record_run(tmp_path, record("b", note=None, device="one"))
    assert store.read_run(path)["note"] is None
    assert store.read_run(store.record_run(tmp_path, record("a", note="x", device=None)))["device"] == "one"
    known = store.read_run(path)
    assert known["note"] == "x" and [start["date"] for start in known["starts"]] == ["a", "b"]
    stamp = path.stat().st_mtime_ns
    store.record_run(tmp_path, record("b"))
    assert path.stat().st_mtime_ns == stamp
    for place in (tmp_path / "mini" / "runs" / "r1.json", tmp_path / "tiny" / "runs" / "r2.json"):
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_bytes(path.read_bytes())
        with pytest.raises(ValueError, match="does not belong here: it is run r1 of tiny; restore it"):
            store.read_run(place)


def test_makers_without_git_and_packages(monkeypatch, tmp_path):
    """And of a snapshot, which says what it was taken from."""
    for error in (FileNotFoundError(2, "no git"), subprocess.CalledProcessError(128, "git")):
        monkeypatch.setattr(provenance.subprocess, "run", lambda *given, error=error, **how: (_ for _ in ()).throw(error))
        assert provenance.git_state(tmp_path) == {"git_sha": None, "git_dirty": None}
    (tmp_path / "snapshot.json").write_text('{"git_sha": "abc", "git_dirty": true}')
    assert provenance.git_state(tmp_path) == {"git_sha": "abc", "git_dirty": True}
    monkeypatch.setattr(provenance, "PACKAGES", ("numpy", "no-such-package"))
    made = provenance.provenance("m", 3)
    assert made["versions"] == {"numpy": np.__version__, "no-such-package": None} and (made["device"], made["world_size"]) == (
        "m",
        3,
    )
    assert [provenance.is_cpu(name) for name in ("AMD EPYC, 2 cores", "NVIDIA H200", "GPU with 9 multicores")] == [
        True,
        False,
        False,
    ]


def test_measurings_say_when_and_by_which_code(tmp_path, monkeypatch):
    made = {"date": "2026-01-02T03:04:05.678+00:00", "git_sha": "0123456789ab", "git_dirty": True, "device": "GPU",
            "versions": {"torch": "1", "triton": "2", "numpy": "3"}}  # fmt: skip
    monkeypatch.setattr(measured, "provenance", lambda device: dict(made, device=device))
    row = dict(provider="ours", head_dim=64, logit=1.0, gates="open", o=1e-3, dq=0.0, dk=0.0, dv=0.0, dlog_fgate=0.0)
    path = measured.add("errors_by_regime", [row], "some GPU", folder=tmp_path)
    assert path.name.startswith("20260102T030405-")
    (found,) = measured.read("errors_by_regime", tmp_path).to_dict("records")
    assert (found["created"], found["commit"], found["gpu"], found["torch"], found["triton"]) == (
        made["date"],
        "0123456789+",
        "some GPU",
        "1",
        "2",
    )
    other = measured.add("errors_by_regime", [row | {"o": 2e-3}], "some GPU", code="own", folder=tmp_path)
    meta = json.loads(store.meta_path(other).read_text())["provenance"]
    assert (meta["git_sha"], meta["git_dirty"]) == ("own", None)
    assert measured.read("errors_by_regime", tmp_path)["commit"].tolist() in (["0123456789+", "own"], ["own", "0123456789+"])


def test_all_that_is_wrong_with_rows_is_counted():
    schema = Schema({"a": number(0, 1), "n": integer(0), "t": text(("x", "y"))}, key=("n",))
    rows = pd.DataFrame({"a": [2.0, 0.5, 3.0], "n": [0, 1, 2], "t": ["x", "y", "z"]})
    with pytest.raises(ValueError, match=r"^here: column 'a': .* fails for 2\.0 \(and 2 more\)$"):
        schema.validate(rows, "here")
    with pytest.raises(ValueError, match=r"^here: column 't': .* fails for 'z'$"):
        schema.validate(rows.assign(a=0.5), "here")
    fine = rows.assign(a=0.5, t="x")
    assert schema.validate(fine.assign(n=[0, 1, 2**62]))["n"].tolist() == [0, 1, 2**62]
    with pytest.raises(ValueError, match=r"2 rows appear twice, the first: {'n': 1}"):
        schema.validate(fine.assign(n=1))
    with pytest.raises(ValueError, match=r"missing \['t'\], not expected \['u'\]"):
        schema.validate(fine.rename(columns={"t": "u"}))


@pytest.mark.parametrize(("other", "same"), [
    ({"seed": 3, "name": "fox_llama"}, True), ({"model": {"kind": "m", "rope": True, "tight": False}}, True),
    ({"model": {"kind": "m", "rope": True, "tight": None}}, True),
    ({"model": {"kind": "m", "rope": True, "tight": True}}, False),
    ({"model": {"kind": "m", "rope": False}}, False), ({"model": {"kind": "m", "rope": True, "heads": 0}}, False),
    ({"train": {"peak_lr": 2.0}}, False),
])  # fmt: skip
def test_trainings_of_one_series_differ_in_seed_name_and_switches_that_are_off(other, same):
    """So that records of before a switch are those of today's trainings without it."""
    spec = {"name": "fox_pro", "seed": 0, "model": {"kind": "m", "rope": True}, "train": {"peak_lr": 1.0}}
    reordered = {name: (spec | other)[name] for name in reversed(spec)}
    assert (store.without_seed(spec) == store.without_seed(spec | other)) is same
    assert (store.without_seed(spec) == store.without_seed(reordered)) is same


@pytest.mark.parametrize("wrong", [{"trainings": None}, {"trainings": "x"}, {"trainings": [1]}, {"starts": [None]}])
def test_a_record_whose_lists_are_none_is_refused(tmp_path, wrong):
    record = {"run_id": "r", "scale": "tiny", "name": "fox_pro", "spec": {}, "starts": [], "trainings": []}
    path = tmp_path / "tiny" / "runs" / "r.json"
    write_sealed(path, record)
    assert store.read_run(path) == record
    write_sealed(path, record | wrong)
    with pytest.raises(ValueError, match="is of another version: restore it from version control"):
        store.read_run(path)
