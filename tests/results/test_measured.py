import json
import shlex
import sys

import pytest

from results.measured import ABOUT, FOLDER, SCHEMAS, WHOLE_PATH, add, read, read_whole

ROWS = [{"provider": "ours", "head_dim": 64, "logit": 1.0, "gates": "open", "o": 1e-3, "dq": float("inf"), "dk": 0.0,
         "dv": 0.0, "dlog_fgate": 0.0}]  # fmt: skip
KIND = "errors_by_regime"


def test_measurements_are_added_and_read_oldest_first(tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "orig_argv", ["python3", "-m", "kernels.benchmark", "--repeats", "3"])
    values = [3e-3, 1e-3, 2e-3]
    for value in values:
        path = add(KIND, [{**ROWS[0], "o": value}], "some GPU", code="abc", folder=tmp_path)
    rows = read(KIND, tmp_path)
    assert rows["o"].tolist() == values and set(rows["gpu"]) == {"some GPU"} and set(rows["commit"]) == {"abc"}
    with pytest.raises(ValueError, match="column 'o'"):
        add(KIND, [{**ROWS[0], "o": -1.0}], "GPU", folder=tmp_path)
    assert len(read(KIND, tmp_path)) == 3 and rows["torch"].notna().all()
    path.write_bytes(path.read_bytes()[:-20])
    for kind in (KIND, "decoding"):
        with pytest.raises(ValueError, match=kind):
            read(kind, tmp_path)


@pytest.mark.parametrize(
    ("given", "kept"),
    [
        (["--only", "ours, pruned"], "--only 'ours, pruned'"),
        (["--rows", "/scratch/rows", "--repeats", "3"], "--repeats 3"),
        (["--rows=/scratch/rows", "--corpora-dir=/scratch/corpora", "--corpora-dir", "/scratch/corpora"], ""),
        (["--data", "text:/home/her/books/train*"], "--data 'text:books/train*'"),
        (["--heldout=/books/last.txt,/home/her/books/more.txt"], "--heldout=books/last.txt,books/more.txt"),
        (["--rows"], ""),
    ],
)
def test_the_command_names_no_folder_of_the_machine(tmp_path, monkeypatch, given, kept):
    monkeypatch.setattr(sys, "orig_argv", ["python3", "-m", "kernels.benchmark", *given])
    command = read_whole(add(KIND, ROWS, "GPU", folder=tmp_path))["command"][0]
    assert command == f"python -m kernels.benchmark {kept}".strip()


@pytest.mark.parametrize("path", sorted(FOLDER.glob("*.parquet")), ids=lambda path: path.stem)
def test_what_is_published_says_who_measured_it(path):
    rows = read_whole(path)
    if path.stem in SCHEMAS:
        for _, own in rows.groupby("created"):
            SCHEMAS[path.stem].validate(own.drop(columns=list(ABOUT)))
    for command, provenance in set(zip(rows["command"], rows["provenance"], strict=True)):
        made = json.loads(provenance)
        assert made["device"] and (len(made["git_sha"] or "") >= 7 or "converted_from" in made)
        assert not any(WHOLE_PATH.search(word) for word in shlex.split(command))
