import contextlib
import hashlib
import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from results.lines import to_lines
from results.measured import FOLDER
from results.provenance import commit_name, git_state
from results.schema import Schema, integer, number, text
from results.store import SUMS, Key, append, difference, open_store, read_rows, without_seed, write_rows, write_sums

SCHEMA = Schema({"position": integer(1), "loss": number(0, nullable=True), "word": text()}, key=("position",))
EVAL = "per_token_loss-0badc0de"


def rows_of(loss: float = 2.0) -> pd.DataFrame:
    return pd.DataFrame({"position": [1, 2], "loss": [3.0, loss], "word": "x"})


def meta_of(run_id: str = "r1", weights: str | None = "w1", eval_id: str = EVAL) -> dict:
    about = dict(kind=eval_id.rpartition("-")[0], scale="tiny", model="fox_pro", run_id=run_id, eval_id=eval_id)
    made = dict(weights=weights, created="2025-01-01", provenance={"git_sha": "abc"}, extras={"sources": [1]})
    return {**about, **made, "spec": {"context_len": 2}}


def test_a_file_gives_back_its_rows_and_meta_and_no_reader_changes_them(tmp_path):
    path = tmp_path / "rows.parquet"
    write_rows(path, rows_of(), meta_of(), SCHEMA)
    changed, _ = read_rows(path)
    changed.loc[0, "loss"] = 7.0
    rows, meta = read_rows(path)
    pd.testing.assert_frame_equal(rows, rows_of(), check_dtype=False)
    assert meta == meta_of() and [each.name for each in tmp_path.iterdir()] == [path.name]
    before = path.read_bytes()
    for bad, where in ((rows_of(-1.0), path), (rows_of(), tmp_path / "rows.csv")):
        with pytest.raises(ValueError, match=r"rows\."):
            write_rows(where, bad, meta_of(), SCHEMA)
    assert path.read_bytes() == before


@given(st.data())
def test_a_damaged_file_is_refused_or_reads_the_same(tmp_path_factory, data):
    path = tmp_path_factory.mktemp("rows") / "rows.parquet"
    write_rows(path, rows_of(), meta_of(), SCHEMA)
    body = bytearray(path.read_bytes())
    place = data.draw(st.integers(0, len(body) - 1))
    if data.draw(st.booleans()):
        body[place] ^= data.draw(st.integers(1, 255))
    else:
        del body[place:]
    path.write_bytes(body)
    with contextlib.suppress(ValueError):
        rows, meta = read_rows(path)
        pd.testing.assert_frame_equal(rows, rows_of(), check_dtype=False)
        assert meta == meta_of()


def record(run_id: str, weights: str) -> dict:
    return {"run_id": run_id, "scale": "tiny", "name": "fox_pro", "spec": {"seed": 0}, "starts": [], "weights": weights,
            "final_loss": 2.0}  # fmt: skip


def test_tables_grow_and_tell_two_trainings_of_a_run_apart(tmp_path):
    first = [(meta_of(), rows_of(1.0)), (meta_of(weights=None, eval_id="throughput-1"), rows_of(5.0))]
    assert append(tmp_path, "tiny", [record("r1", "w1")], first) == 2
    files = {path: path.read_bytes() for path in tmp_path.rglob("*.parquet")}
    more = [*first, (meta_of(weights="w2"), rows_of(2.0)), (meta_of("r2"), rows_of(3.0))]
    more = [(meta, rows.assign(loss=9.0) if number < 2 else rows) for number, (meta, rows) in enumerate(more)]
    assert append(tmp_path, "tiny", [record("r1", "w1"), record("r1", "w2"), record("r2", "w1")], more) == 2
    assert all(path.read_bytes() == body for path, body in files.items())
    store = open_store(tmp_path, "tiny")
    losses = {key: store.rows(key)["loss"].iloc[-1] for key in store.metas}
    assert losses == {
        Key("r1", EVAL, "w1"): 1.0, Key("r1", "throughput-1", None): 5.0, Key("r1", EVAL, "w2"): 2.0,
        Key("r2", EVAL, "w1"): 3.0,
    }  # fmt: skip
    assert store.metas[Key("r1", EVAL, "w2")] == meta_of(weights="w2")
    assert store.find("r1", EVAL, None) == Key("r1", EVAL, "w1") and store.find("r2", EVAL, "w2") is None
    assert [each["weights"] for each in store.runs["r1"]] == ["w1", "w2"] and store.run("r1", "w2")["weights"] == "w2"
    write_sums(tmp_path)
    assert subprocess.run(["sha256sum", "--check", "--quiet", SUMS], cwd=tmp_path, check=False).returncode == 0
    table = next(tmp_path.glob("tiny/rows/per_token_loss-*.parquet"))
    table.write_bytes(table.read_bytes()[:-30])
    with pytest.raises(ValueError, match=table.name):
        open_store(tmp_path, "tiny").rows(Key("r2", EVAL, "w1"))


def test_rows_lie_in_the_folder_of_their_run(tmp_path):
    runs = tmp_path / "tiny" / "runs"
    for run_id, tokens in (("r1", 8), ("r2", 4)):
        write_rows(runs / f"fox-{run_id}" / "evals" / f"{EVAL}.parquet", rows_of(), meta_of(run_id), SCHEMA)
        spec = {"scale": "tiny", "name": "fox", "seed": 0, "train": {"train_tokens": 8}}
        (runs / f"fox-{run_id}" / "spec.json").write_text(json.dumps(spec))
        (runs / f"fox-{run_id}" / "metrics.jsonl").write_text(to_lines([{"tokens": tokens, "loss": 1.5}]) + '{"tok')
    (runs / "fox-r3" / "evals").mkdir(parents=True)
    copied = runs / "fox-r3" / "evals" / f"{EVAL}.parquet"
    copied.write_bytes((runs / "fox-r1" / "evals" / copied.name).read_bytes())
    store = open_store(tmp_path, "tiny")
    assert {*store.metas} == {Key("r1", EVAL, "w1"), Key("r2", EVAL, "w1")} and [*store.faults] == [("r3", EVAL)]
    assert [store.run(run_id, "w1")["final_loss"] for run_id in ("r1", "r2")] == [1.5, None]
    copied.unlink()
    assert not open_store(tmp_path, "tiny").faults


def test_differences_are_relative_to_the_largest_number_of_a_column():
    one, odd = rows_of(), rows_of().assign(loss=[np.inf, np.nan])
    assert difference(one, one.copy()) == difference(odd, odd.copy()) == 0
    assert difference(one, rows_of(2.003)) == pytest.approx(0.001)
    for other in (one.iloc[:1], one.rename(columns={"word": "w"}), one.assign(word=["x", "y"]), odd):
        assert difference(one, other) == np.inf
    assert difference(odd, odd.assign(loss=[-np.inf, np.nan])) == difference(odd, odd.assign(loss=[np.nan, np.inf])) == np.inf


def test_a_series_is_a_spec_without_seed_name_and_switches_that_are_off():
    spec = {"seed": 1, "name": "fox", "model": {"kind": "fox", "gate": True}}
    same = {"seed": 2, "name": "other", "model": {"gate": True, "new": False, "newer": None, "kind": "fox"}}
    assert without_seed(spec) == without_seed(same) != without_seed({**spec, "model": {"kind": "fox"}})


@pytest.mark.parametrize("folder", [FOLDER.parent, FOLDER.parent / "unseen_books"], ids=lambda folder: folder.name)
def test_what_is_published_is_whole_and_has_the_rows_that_figures_name(folder):
    for digest, name in (line.split("  ") for line in (folder / SUMS).read_text().splitlines()):
        assert hashlib.sha256((folder / name).read_bytes()).hexdigest() == digest, name
    for path in (path for path in folder.glob("*/*.json") if "lines" in path.read_text()):
        for line in json.loads(path.read_text())["lines"]:
            store = open_store(folder, line["scale"])
            keys = [Key(line["run_id"], *each) for each in line["evals"].items()]
            assert keys and all(key in store.metas for key in keys) and line["run_id"] in store.runs, (path, line)


def test_results_and_analysis_do_not_import_torch():
    names = "analysis.report, experiments.fox.fig2_per_token_loss, experiments.fox.fig4_needle"
    code = f"import sys, results.store, {names}; print({{'torch', 'transformers', 'lm_eval'}} & set(sys.modules))"
    how = dict(capture_output=True, text=True, cwd=Path(__file__).parents[2], check=True)
    assert subprocess.run([sys.executable, "-c", code], **how).stdout.strip() == "set()"


def test_the_state_of_a_checkout(tmp_path):
    """Its commit, and whether a file that git knows differs from it; results and unknown files do not count."""

    def git(*words):
        own = ["git", "-c", "user.name=a", "-c", "user.email=a@b", *words]
        subprocess.run(own, cwd=tmp_path, check=True, capture_output=True)

    git("init", "-q")
    (tmp_path / "results").mkdir()
    (tmp_path / "code.py").write_text("another project, in which the code lies")
    git("add", ".")
    git("commit", "-qm", "one")
    (tmp_path / "results" / "provenance.py").write_text("first")
    assert git_state(tmp_path) == {"git_sha": None, "git_dirty": None}
    git("add", ".")
    git("commit", "-qm", "two")
    clean = git_state(tmp_path)
    (tmp_path / "results" / "provenance.py").write_text("changed")
    assert git_state(tmp_path) == clean and len(clean["git_sha"]) == 40 and clean["git_dirty"] is False
    (tmp_path / "code.py").write_text("changed")
    assert git_state(tmp_path) == {**clean, "git_dirty": True}
    assert commit_name({**clean, "git_dirty": True}) == clean["git_sha"][:10] + "+" and commit_name({}) == "unknown"
