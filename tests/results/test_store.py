import json
import os
import subprocess
import sys
from pathlib import Path

import pandas as pd
import pytest

from results.store import append, gather, meta_path, read_rows, write_rows


def rows_of(
    run_id: str, model: str = "fox_pro", *, scale: str = "tiny", eval_id: str = "e-1", loss: float = 2.0
) -> pd.DataFrame:
    source = {"scale": scale, "model": model, "run_id": run_id, "eval_id": eval_id}
    return pd.DataFrame({**source, "position": [1, 2], "loss": [3.0, loss], "num_documents": 4})


def meta_of(
    run_id: str, model: str = "fox_pro", *, scale: str = "tiny", eval_id: str = "e-1", created: str = "2025-01-01"
) -> dict:
    return {
        "kind": "per_token_loss",
        "scale": scale,
        "model": model,
        "run_id": run_id,
        "eval_id": eval_id,
        "spec": {"kind": "per_token_loss", "context_len": 2},
        "created": created,
        "provenance": {"git_sha": "abc"},
        "extras": {"unigram_entropy": 5.0},
    }


def stored(folder: Path, run_id: str, model: str = "fox_pro", **changed: str) -> Path:
    return write_rows(folder / run_id / "e-1.parquet", rows_of(run_id, model), meta_of(run_id, model, **changed))


def test_round_trip(tmp_path):
    path = stored(tmp_path, "r1")
    rows, meta = read_rows(path)
    pd.testing.assert_frame_equal(rows, rows_of("r1"), check_dtype=False)
    assert meta.pop("rows_sha256")
    assert meta == meta_of("r1")
    assert sorted(p.name for p in path.parent.iterdir()) == ["e-1.meta.json", "e-1.parquet"]


def test_equal_rows_give_equal_bytes(tmp_path):
    one, two = stored(tmp_path / "a", "r1"), stored(tmp_path / "b", "r1")
    assert one.read_bytes() == two.read_bytes()
    assert meta_path(one).read_bytes() == meta_path(two).read_bytes()


def test_bad_rows_leave_what_was_there_untouched(tmp_path):
    path = stored(tmp_path, "r1")
    before = path.read_bytes()
    with pytest.raises(ValueError, match="loss"):
        write_rows(path, rows_of("r1", loss=-1.0), meta_of("r1"))
    with pytest.raises(ValueError, match="scale mini in a result of scale tiny"):
        write_rows(path, rows_of("r1", scale="mini"), meta_of("r1"))
    with pytest.raises(ValueError, match="lacks kind"):
        write_rows(path, rows_of("r1"), {"scale": "tiny"})
    assert path.read_bytes() == before
    read_rows(path)


def test_missing_truncated_and_edited_files_are_refused(tmp_path):
    path = stored(tmp_path, "r1")
    whole = path.read_bytes()
    with pytest.raises(ValueError, match=r"nothing\.parquet: there is no such result"):
        read_rows(tmp_path / "nothing.parquet")
    path.write_bytes(whole[:-20])
    with pytest.raises(ValueError, match="truncated or changed"):
        read_rows(path)
    path.write_bytes(whole)
    meta_path(path).write_text(meta_path(path).read_text()[:-30])
    with pytest.raises(ValueError, match="not the meta of a result"):
        read_rows(path)
    meta_path(path).unlink()
    with pytest.raises(ValueError, match=r"e-1\.meta\.json is missing"):
        read_rows(path)


def test_a_parquet_with_other_columns_is_refused(tmp_path):
    import hashlib

    path = tmp_path / "x.parquet"
    pd.DataFrame({"a": [1]}).to_parquet(path)
    meta = {**meta_of("r1"), "rows_sha256": hashlib.sha256(path.read_bytes()).hexdigest()}
    meta_path(path).write_text(json.dumps(meta))
    with pytest.raises(ValueError, match="columns of 'per_token_loss'"):
        read_rows(path)


def test_a_writer_killed_between_the_two_renames_is_noticed(tmp_path, monkeypatch):
    path = stored(tmp_path, "r1")
    replace = os.replace

    def only_meta(source, target):
        if str(target).endswith(".parquet"):
            raise KeyboardInterrupt
        replace(source, target)

    monkeypatch.setattr(os, "replace", only_meta)
    with pytest.raises(KeyboardInterrupt):
        write_rows(path, rows_of("r1", loss=1.0), meta_of("r1"))
    with pytest.raises(ValueError, match="run its experiment again"):
        read_rows(path)
    assert len(list(path.parent.iterdir())) == 2, "no temporary file is left"


def test_gather_joins_runs_and_says_who_made_them(tmp_path):
    sources = [stored(tmp_path, "r1"), stored(tmp_path, "r2", "mamba2", created="2025-02-02")]
    runs = {"r1": {"final_loss": 3.5, "spec": {"train": {"seq_len": 512}}}}
    path = gather("fig2_per_token_loss", "tiny", sources, tmp_path / "results", runs)
    assert path == tmp_path / "results/tiny/fig2_per_token_loss.parquet"
    rows, meta = read_rows(path)
    assert list(rows["model"]) == ["fox_pro"] * 2 + ["mamba2"] * 2
    assert meta["created"] == "2025-02-02"
    assert meta["runs"] == {"r1": {**runs["r1"], "model": "fox_pro"}, "r2": {"model": "mamba2"}}
    made = meta["evals"]["e-1"]["runs"]["r2"]
    assert made == {"created": "2025-02-02", "provenance": {"git_sha": "abc"}, "extras": {"unigram_entropy": 5.0}}


def test_gathering_again_leaves_the_files_untouched_unless_something_changed(tmp_path):
    sources = [stored(tmp_path, "r1")]
    path = gather("fig2", "tiny", sources, tmp_path / "results", {})
    before = path.stat().st_mtime_ns, meta_path(path).stat().st_ino
    gather("fig2", "tiny", sources, tmp_path / "results", {})
    assert (path.stat().st_mtime_ns, meta_path(path).stat().st_ino) == before
    gather("fig2", "tiny", sources, tmp_path / "results", {"r1": {"final_loss": 1.0}})
    assert read_rows(path)[1]["runs"]["r1"]["final_loss"] == 1.0


def test_gather_replaces_a_broken_result(tmp_path):
    sources = [stored(tmp_path, "r1")]
    path = gather("fig2", "tiny", sources, tmp_path / "results", {})
    path.write_bytes(b"PAR1")
    gather("fig2", "tiny", sources, tmp_path / "results", {})
    assert len(read_rows(path)[0]) == 2


def test_gather_refuses_what_does_not_belong_together(tmp_path):
    one = stored(tmp_path, "r1")
    with pytest.raises(ValueError, match="no evaluations to gather"):
        gather("fig2", "tiny", [], tmp_path, {})
    with pytest.raises(ValueError, match="gathered twice"):
        gather("fig2", "tiny", [one, one], tmp_path, {})
    with pytest.raises(ValueError, match="per_token_loss at tiny cannot join per_token_loss at mini"):
        gather("fig2", "mini", [one], tmp_path, {})
    meta = meta_of("r3")
    del meta["provenance"]
    nameless = write_rows(tmp_path / "r3.parquet", rows_of("r3"), meta)
    with pytest.raises(ValueError, match="lacks provenance"):
        gather("fig2", "tiny", [nameless], tmp_path, {})


def artefact_meta(run_id: str) -> dict:
    run = {"created": "2025-01-01", "provenance": {}, "extras": {}}
    return {
        "artefact": "fig2",
        "kind": "per_token_loss",
        "scale": "tiny",
        "created": "2025-01-01",
        "runs": {run_id: {"model": "fox_pro"}},
        "evals": {"e-1": {"spec": {}, "runs": {run_id: run}}},
    }


def test_append_replaces_the_same_run_and_keeps_the_others(tmp_path):
    path = tmp_path / "fig2.parquet"
    append(path, rows_of("r1"), artefact_meta("r1"))
    append(path, rows_of("r2"), artefact_meta("r2"))
    append(path, rows_of("r1", loss=9.0), artefact_meta("r1"))
    rows, meta = read_rows(path)
    assert rows.groupby("run_id")["loss"].last().to_dict() == {"r1": 9.0, "r2": 2.0}
    assert len(rows) == 4
    assert set(meta["runs"]) == set(meta["evals"]["e-1"]["runs"]) == {"r1", "r2"}
    with pytest.raises(ValueError, match="cannot be appended"):
        append(path, rows_of("r1"), {**artefact_meta("r1"), "artefact": "fig9"})


def test_results_and_analysis_do_not_import_torch():
    code = "import sys, results.store, analysis.report; print({'torch', 'transformers', 'lm_eval'} & set(sys.modules))"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, cwd=Path(__file__).parents[2], check=True
    )
    assert done.stdout.strip() == "set()"
