"""Places of what is stored, the order in which it gets there, and who is named as its maker."""

import datetime
import json
import os
from pathlib import Path

import pytest

from analysis.study import Line, Study, study_file, write_lines
from results import measured, provenance, store
from results.atomic import write_atomic
from tests import synthetic


def test_where_everything_lies(tmp_path):
    """At another place nobody would find what was stored before."""
    root = tmp_path / "tiny"
    assert store.run_file(tmp_path, "tiny", "r") == root / "runs" / "r.json"
    assert store.meta_path(Path("a/b.parquet")) == Path("a/b.meta.json")
    assert study_file(tmp_path, "tiny", "fig") == root / "fig.json"
    assert (
        store.record_run(tmp_path, {"run_id": "r", "scale": "tiny", "name": "n", "spec": {}, "starts": []})
        == root / "runs" / "r.json"
    )
    made = synthetic.Store(tmp_path)
    made.add("fig", "fox_pro", [])
    assert made.study("fig").folder == root == Study(tmp_path, "tiny", "fig").folder


def test_lines_know_what_they_were_drawn_from(tmp_path):
    lines = [Line("a", {}, "fox_pro", 1, "tiny", "r", {"x": "f"}, weights) for weights in ("0123456789", None)]
    write_lines(tmp_path, "tiny", "fig", lines)
    assert json.loads((tmp_path / "tiny" / "fig.json").read_text())["lines"][0]["weights"] == "0123456789"
    assert [line.trained_weights for line in lines] == ["weights 0123456789", "weights not recorded"]


def test_a_file_is_on_the_disk_before_it_has_its_name(tmp_path, monkeypatch):
    """And its name is, before the writer goes on."""
    told, fsync, replace = [], os.fsync, os.replace

    def flushed(handle):
        told.append(Path(os.readlink(f"/proc/self/fd/{handle}")))
        fsync(handle)

    def renamed(source, target):
        assert Path(source).read_text() == "text" and Path(source).parent == Path(target).parent
        told.append(target)
        replace(source, target)

    monkeypatch.setattr("results.atomic.os.fsync", flushed)
    monkeypatch.setattr("results.atomic.os.replace", renamed)
    path = tmp_path / "new" / "file"
    write_atomic(path, "text")
    temporary, target, folder = told
    assert temporary.name.startswith(".file.") and (target, folder) == (path, path.parent)
    assert [each.name for each in path.parent.iterdir()] == ["file"]
    write_atomic(path, b"text")
    assert path.read_bytes() == b"text"


def test_an_error_of_another_keeps_its_name_and_leaves_nothing(tmp_path, monkeypatch):
    for error, name in ((OSError(5, "broken", "elsewhere"), "elsewhere"), (OSError(5, "broken"), str(tmp_path / "file"))):
        monkeypatch.setattr("results.atomic.os.replace", lambda *_, error=error: (_ for _ in ()).throw(error))
        with pytest.raises(OSError, match="broken") as caught:
            write_atomic(tmp_path / "file", "text")
        assert caught.value.filename == name and not list(tmp_path.iterdir())
    monkeypatch.setattr("results.atomic.os.replace", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
    with pytest.raises(KeyboardInterrupt):
        write_atomic(tmp_path / "file", "text")
    assert not list(tmp_path.iterdir())


def test_a_maker_is_named_in_full(monkeypatch):
    monkeypatch.setattr(provenance, "git_state", lambda: {"git_sha": "0123456789ab", "git_dirty": True})
    versions = {"torch": "2.0", "numpy": "1.0"}

    def version(package):
        if package not in versions:
            raise provenance.importlib.metadata.PackageNotFoundError
        return versions[package]

    monkeypatch.setattr(provenance.importlib.metadata, "version", version)
    made = provenance.provenance("some GPU", 4)
    date = datetime.datetime.fromisoformat(made.pop("date"))
    assert date.utcoffset() == datetime.timedelta(0) and date.microsecond % 1000 == 0
    assert abs(date.timestamp() - datetime.datetime.now().timestamp()) < 60
    assert made == {
        "git_sha": "0123456789ab", "git_dirty": True, "python": provenance.platform.python_version(), "device": "some GPU",
        "world_size": 4, "versions": {"torch": "2.0", "triton": None, "flash-linear-attention": None, "transformers": None,
                                      "numpy": "1.0"},
    }  # fmt: skip
    assert provenance.provenance("cpu")["world_size"] == 1
    for state, name in (({"git_sha": "0123456789ab"}, "0123456789"), ({"git_sha": None, "git_dirty": True}, "unknown+"),
                        ({"git_sha": "0123456789ab", "git_dirty": True}, "0123456789+")):  # fmt: skip
        assert provenance.commit_name(state) == name
    assert provenance.is_cpu("a CPU, 8 cores") and not provenance.is_cpu("8 cores of a GPU")


@pytest.mark.parametrize(("code", "dirty", "commit"), [
    ("", True, "0123456789+"), ("", False, "0123456789"), ("a word that is long", True, "a word tha")
])  # fmt: skip
def test_a_measuring_names_its_code(tmp_path, monkeypatch, code, dirty, commit):
    """Named code takes the place of the checkout's, of which it is not known whether it was changed."""
    monkeypatch.setattr(provenance, "git_state", lambda: {"git_sha": "0123456789ab", "git_dirty": dirty})
    row = {"provider": "ours", "head_dim": 64, "logit": 1.0, "gates": "open", **dict.fromkeys(measured.GRADIENTS, 0.0)}
    path = measured.add("errors_by_regime", [row], "some GPU", code=code, folder=tmp_path)
    rows, meta = store.read_rows(path)
    when = meta["created"][:19].translate({45: None, 58: None})
    assert (
        path.parent == tmp_path / "errors_by_regime" and path.stem.partition("-")[0] == when and len(path.stem) == len(when) + 9
    )
    assert meta["provenance"]["git_dirty"] is (None if code else dirty) and meta["kind"] == "errors_by_regime"
    found = measured.read("errors_by_regime", tmp_path)
    versions = meta["provenance"]["versions"]
    about = {
        "created": meta["created"],
        "commit": commit,
        "gpu": "some GPU",
        "torch": versions["torch"],
        "triton": versions["triton"],
    }
    assert found.to_dict("records") == [{**about, **row}] and len(rows) == 1
