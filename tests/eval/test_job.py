"""The entry points: a job over several specs, what exists is skipped, errors are short, interruptions keep what is done."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from data.corpus import Corpus
from data.prepare import prepare, resolve
from eval.__main__ import main as eval_main
from eval.job import main as job_main
from eval.shell import go_offline_if_unreachable
from eval.spec import EVAL_SPEC, NeedleSpec, PerTokenLossSpec, eval_id
from results.store import read_rows

LOSS = PerTokenLossSpec(context_len=128, num_documents=2)
NEEDLE = NeedleSpec(mode="easy", lengths=(320, 400), depths=(0.0, 50.0), max_new_tokens=4, reserve=150)


def write_specs(folder: Path, *specs: object) -> list[str]:
    paths = []
    for spec in specs:
        path = folder / f"{eval_id(spec)}.json"
        path.write_bytes(EVAL_SPEC.dump_json(spec))
        paths.append(str(path))
    return paths


def test_job_writes_validated_rows_and_skips_what_exists(make_run, corpus: Corpus, tmp_path, capsys):
    run = make_run()
    arguments = [str(run), "--spec", *write_specs(tmp_path, LOSS, NEEDLE), "--corpus", str(corpus.folder)]
    assert job_main(arguments) == 0
    for spec in (LOSS, NEEDLE):
        rows, meta = read_rows(run / "evals" / f"{eval_id(spec)}.parquet")
        assert set(rows["run_id"]) == {run.name.split("-")[-1]}
        assert set(rows["model"]) == {"fox_pro"}
        assert meta["scale"] == "tiny"
        assert meta["spec"] == EVAL_SPEC.dump_python(spec, mode="json")
        assert meta["provenance"]["versions"]["torch"]
    assert meta["extras"]["prompt_tokens"]
    assert not list((run / "evals").glob("*.partial*"))
    before = {file: file.stat().st_mtime_ns for file in (run / "evals").iterdir()}
    assert job_main(arguments) == 0
    assert {file: file.stat().st_mtime_ns for file in (run / "evals").iterdir()} == before
    assert capsys.readouterr().err.count("exists, skipped") == 2


def test_command_line_on_a_plain_hugging_face_folder(make_run, corpus, tmp_path, capsys):
    export = make_run() / "export"
    out = tmp_path / "loss.parquet"
    arguments = ["per_token_loss", "--model", str(export), "--corpus", str(corpus.folder), "--out", str(out)]
    assert eval_main([*arguments, "--context-len", "64", "--num-documents", "1"]) == 0
    rows, meta = read_rows(out)
    assert len(rows) == 64
    assert meta["scale"] == "custom"
    assert "perplexity of the first 64 tokens" in capsys.readouterr().out


LOSS_OPTIONS = ["--context-len", "4", "--num-documents", "1"]
JUDGE_OPTIONS = ["--judge", "m", "--judge-url", "http://127.0.0.1:9/v1", "--judge-key-env", "NO_SUCH_KEY"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["per_token_loss", "--model", "/nowhere", *LOSS_OPTIONS], "neither a folder nor a hub name"),
        (["needle", "--model", "RUN", "--judge", "m"], "--judge-url"),
        (["needle", "--model", "RUN", *JUDGE_OPTIONS], "NO_SUCH_KEY"),
        (["needle", "--model", "RUN"], "--corpus"),
        (["needle", "--model", "RUN", "--haystack", "/nowhere"], "no such file or folder"),
        (["longbench", "--model", "RUN", "--dataset", "abc"], "--longbench"),
        (["per_token_loss", "--model", "RUN", "--corpus", "/nowhere", *LOSS_OPTIONS], "/nowhere"),
        (["per_token_loss", "--model", "RUN", *LOSS_OPTIONS, "--out", "x.csv"], ".parquet"),
        (["per_token_loss", "--model", "RUN", "--device", "cuda", *LOSS_OPTIONS], "--device cpu"),
    ],
)
def test_user_errors_are_one_or_two_lines(arguments, message, make_run, capsys, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    if "cuda" in arguments:
        monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    run = str(make_run()) if "RUN" in arguments else ""
    capsys.readouterr()
    assert eval_main([run if a == "RUN" else a for a in arguments]) == 2
    error = capsys.readouterr().err
    assert message in error
    assert len(error.strip().splitlines()) <= 2
    assert "Traceback" not in error


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["nonsense"], "nonsense"),
        (["needle", "--model", "x", "--lenghts", "3"], "--lenghts"),
        (["needle"], "--model"),
        (["needle", "--model", "x", "--lengths", "100"], "length 100 leaves nothing after the 200 reserved tokens"),
        (["longbench", "--model", "x", "--tasks", "hotpot"], "unknown LongBench task hotpot"),
        (["per_token_loss", "--model", "x", "--num-documents", "0", "--context-len", "4"], "greater than 0"),
    ],
)
def test_mistakes_on_the_command_line_are_one_line(arguments, message, capsys):
    with pytest.raises(SystemExit) as stop:
        eval_main(arguments)
    assert stop.value.code == 2
    (line,) = capsys.readouterr().err.strip().splitlines()
    assert line.startswith("error: ")
    assert message in line


def test_help_is_shown(capsys):
    with pytest.raises(SystemExit) as stop:
        eval_main(["needle", "--help"])
    assert stop.value.code == 0
    assert "--judge-url" in capsys.readouterr().out


def test_a_hub_out_of_reach_is_noticed_at_once(monkeypatch, capsys):
    from huggingface_hub import constants

    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(constants, "ENDPOINT", "http://127.0.0.1:9")
    monkeypatch.setattr("urllib.request.getproxies", dict)
    monkeypatch.delenv("HF_HUB_OFFLINE")
    go_offline_if_unreachable()
    assert constants.HF_HUB_OFFLINE
    assert "out of reach" in capsys.readouterr().err


def test_model_without_tokenizer(make_run, corpus, tmp_path, capsys):
    run = make_run()
    for file in (run / "export").glob("token*"):
        file.unlink()
    needle = [str(run), "--spec", *write_specs(tmp_path, NEEDLE), "--corpus", str(corpus.folder)]
    assert job_main(needle) == 2
    assert "--tokenizer" in capsys.readouterr().err
    assert job_main([str(run), "--spec", *write_specs(tmp_path, LOSS), "--corpus", str(corpus.folder)]) == 0
    assert job_main([*needle, "--tokenizer", str(corpus.folder / "tokenizer")]) == 0


def test_unfinished_run_and_bad_spec_files(make_run, corpus, tmp_path, capsys):
    run = make_run()
    (run / "export").rename(run / "export.partial")
    (spec,) = write_specs(tmp_path, LOSS)
    assert job_main([str(run), "--spec", spec, "--corpus", str(corpus.folder)]) == 2
    assert "not finished" in capsys.readouterr().err
    Path(spec).write_text(json.dumps({"kind": "needle", "lenghts": [3]}))
    assert job_main([str(run), "--spec", spec]) == 2
    assert "lenghts" in capsys.readouterr().err


def test_token_ids_of_another_corpus_are_refused(make_run, corpus, texts_folder, tmp_path, capsys):
    other = prepare(resolve(f"text:{texts_folder}", cache_dir=tmp_path, tokenizer="bpe-400", document_len=1024))
    run = make_run()
    assert job_main([str(run), "--spec", *write_specs(tmp_path, LOSS), "--corpus", str(other.folder)]) == 2
    assert f"({corpus.spec.tokenizer}, {corpus.spec.fingerprint})" in capsys.readouterr().err
    text_only = NeedleSpec(mode="easy", lengths=(320,), depths=(0.0,), max_new_tokens=2, reserve=150)
    assert job_main([str(run), "--spec", *write_specs(tmp_path, text_only), "--corpus", str(other.folder)]) == 0


def test_sigterm_keeps_samples_and_the_next_start_goes_on(make_run, corpus, tmp_path):
    """A real process is stopped between samples; the second start computes only what is missing, the rows are the same."""
    spec = NeedleSpec(mode="easy", lengths=(320, 400, 480), depths=(0.0, 50.0, 100.0), max_new_tokens=24, reserve=150)
    run, undisturbed = make_run(), make_run()
    (path,) = write_specs(tmp_path, spec)
    options = ["--spec", path, "--corpus", str(corpus.folder), "--batch-tokens", "1"]
    command = [sys.executable, "-m", "eval.job", str(run), *options]
    root = Path(__file__).parents[2]
    process = subprocess.Popen(command, cwd=root, stderr=subprocess.PIPE, text=True, env={**os.environ, "OMP_NUM_THREADS": "1"})
    partial = run / "evals" / f"{eval_id(spec)}.partial.jsonl"
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline and (not partial.exists() or partial.read_text().count("\n") < 3):
        time.sleep(0.005)
    process.send_signal(signal.SIGTERM)
    _, error = process.communicate(timeout=60)
    assert process.returncode == 75, error
    assert "interrupted" in error
    assert "Traceback" not in error
    kept = partial.read_text().splitlines()[1:]
    assert 2 <= len(kept) < 9
    with open(partial, "a") as file:
        file.write('{"key": "cut off in the mid')
    assert job_main([str(run), *options]) == 0
    assert job_main([str(undisturbed), *options]) == 0
    name = f"{eval_id(spec)}.parquet"
    assert read_rows(run / "evals" / name)[0].equals(read_rows(undisturbed / "evals" / name)[0])
