"""The entry points: what is written and skipped, what goes on after a fault, and one-line errors of users' mistakes."""

import multiprocessing
import os
import shutil
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest
from safetensors.torch import load_file, save_file

from data.corpus import Corpus
from data.plan import resolve
from data.prepare import prepare
from eval.__main__ import main as eval_main
from eval.job import main as job_main
from eval.kinds import EVAL_SPEC, KINDS, eval_id
from eval.runner import machine
from eval.runner.loading import Subject
from results.store import read_rows
from training import manifest

LOSS = KINDS["per_token_loss"](context_len=128, num_documents=2)
NEEDLE = KINDS["needle"](mode="easy", lengths=(320, 400), depths=(0.0, 50.0), max_new_tokens=4, reserve=150)
LOSS_OPTIONS = ["--context-len", "4", "--num-documents", "1"]
GRID = ["--lengths", "400", "--depths", "0"]


@pytest.fixture
def job(bind, corpus, tmp_path):
    """A job on a run, with specs as a plan writes them."""

    def arguments(run: Path, *specs: object, corpus: Corpus = corpus) -> list[str]:
        paths = []
        for spec in map(bind, specs):
            path = tmp_path / f"{eval_id(spec)}.json"
            path.write_bytes(EVAL_SPEC.dump_json(spec))
            paths.append(str(path))
        return [str(run), "--spec", *paths, "--corpus", str(corpus.folder)]

    return arguments


@pytest.fixture
def other_corpus(texts_folder, tmp_path) -> Corpus:
    return prepare(resolve(f"text:{texts_folder}", cache_dir=tmp_path / "other", tokenizer="bpe-400", document_len=1024))


def test_rows_name_who_made_them_and_what_exists_is_skipped(make_run, job, bind):
    run = make_run()
    arguments = job(run, LOSS, NEEDLE)
    assert job_main(arguments) == 0
    files = {run / "evals" / f"{eval_id(bind(spec))}.parquet" for spec in (LOSS, NEEDLE)}
    for file in files:
        meta = read_rows(file)[1]
        subject = Subject.find(str(run))
        assert (meta["run_id"], meta["weights"]) == (subject.run_id, subject.weights) and subject.run_id in run.name
        assert (meta["eval_id"], meta["model"], meta["scale"]) == (file.stem, "fox_pro", "tiny")
        assert meta["provenance"]["versions"]["torch"] and meta["extras"]["seconds"] > 0
    assert not list((run / "evals").glob("*.partial*"))
    before = {file: file.stat().st_mtime_ns for file in files}
    assert job_main(arguments) == 0 and {file: file.stat().st_mtime_ns for file in files} == before


def test_damaged_rows_and_rows_of_other_weights_are_made_again(make_run, job):
    run = make_run()
    assert job_main(job(run, LOSS)) == 0
    (out,) = (run / "evals").glob("*.parquet")
    rows, meta = read_rows(out)
    out.write_bytes(out.read_bytes()[:-7] + b"flipped")
    assert job_main(job(run, LOSS)) == 0 and read_rows(out)[0].equals(rows)
    file = run / "export" / "model.safetensors"
    save_file({name: 2 * tensor for name, tensor in load_file(file).items()}, file, metadata={"format": "pt"})
    manifest.seal(run / "export", run_id=Subject.find(str(run)).run_id)
    assert job_main(job(run, LOSS)) == 0 and not read_rows(out)[0].equals(rows)
    assert read_rows(out)[1]["weights"] == Subject.find(str(run)).weights != meta["weights"]


def test_when_one_fails_the_others_are_done(make_run, job, bind, capsys, monkeypatch):
    run, too_many = make_run(), replace(LOSS, num_documents=10**6)
    monkeypatch.setattr("eval.needle.measure.evaluate", None)
    assert job_main(job(run, too_many, NEEDLE, LOSS)) == 2
    error = capsys.readouterr().err
    assert f"error: {eval_id(bind(too_many))}: 1000000 documents exceed the" in error
    assert f"error: {eval_id(bind(NEEDLE))}: an unexpected error" in error and "Traceback" in error
    assert [file.stem for file in (run / "evals").glob("*.parquet")] == [eval_id(bind(LOSS))]


def test_another_corpus_than_the_specs_is_refused(make_run, corpus, other_corpus, job, capsys):
    """Also where only its text is read: the pipeline would take the file for that of its own corpus. Asked for by a user, text
    of any corpus is read, token ids are not."""
    run = make_run()
    for spec in (LOSS, NEEDLE):
        assert job_main(job(run, spec, corpus=other_corpus)) == 2
        assert f"is of corpus {corpus.spec.fingerprint}, but" in capsys.readouterr().err
    assert not list((run / "evals").glob("*.parquet"))
    source = ["--model", str(run), "--corpus", str(other_corpus.folder)]
    assert eval_main(["per_token_loss", *source, *LOSS_OPTIONS]) == 2
    assert f"({corpus.spec.tokenizer}, {corpus.spec.fingerprint})" in capsys.readouterr().err
    assert eval_main(["needle", *source, *GRID, "--mode", "easy", "--reserve", "150", "--max-new-tokens", "2"]) == 0


def test_a_model_of_others_gets_a_file_of_its_own(make_run, corpus, tmp_path, tiny_fox, capsys, monkeypatch):
    """In one folder, one after the other; and what `--out` names is only taken if it is this very evaluation."""
    monkeypatch.chdir(tmp_path)
    first, second = (str(make_run(tiny_fox(num_layers=n)) / "export") for n in (1, 2))
    ask = lambda model, *more: eval_main(  # noqa: E731
        ["per_token_loss", "--model", model, "--corpus", str(corpus.folder), *LOSS_OPTIONS, *more]
    )
    assert [ask(model) for model in (first, second, first)] == [0, 0, 0]
    files = {read_rows(file)[1]["run_id"]: file for file in tmp_path.glob("*.parquet")}
    assert len(files) == 2 and all(run_id in file.name for run_id, file in files.items())
    out = ["--out", str(files[Subject.find(first).run_id])]
    assert ask(first, *out) == 0 and ask(second, *out) == 2 and ask(first, *out, "--context-len", "5") == 2
    assert "name another file with --out" in capsys.readouterr().err


def test_a_damaged_export_is_refused(make_run, job, capsys):
    """Each of the flips that changed a result unnoticed: in weights, in the tokeniser, in the configuration. Also where all
    that is asked for is there."""
    for name, spec in (("model.safetensors", LOSS), ("tokenizer.json", NEEDLE), ("config.json", LOSS)):
        run = make_run()
        assert job_main(job(run, LOSS)) == 0
        file = run / "export" / name
        body = bytearray(file.read_bytes())
        body[len(body) // 2] ^= 1
        file.write_bytes(body)
        for asked in (spec, LOSS):
            assert job_main(job(run, asked)) == 2 and "export is damaged" in capsys.readouterr().err
        copy = shutil.copytree(run / "export", run / "copy")
        source = ["--model", str(copy), "--corpus", job(run, spec)[-1], *LOSS_OPTIONS, "--out", str(run / "x.parquet")]
        assert eval_main(["per_token_loss", *source]) == 2


@pytest.mark.parametrize(("arguments", "message"), [
    (["per_token_loss", "--model", "/nowhere", *LOSS_OPTIONS], "neither a folder nor a model"),
    (["per_token_loss", "--model", "owner/name", *LOSS_OPTIONS], "neither a folder nor a model"),
    (["per_token_loss", "--model", "EMPTY", *LOSS_OPTIONS], "neither a run folder (spec.json) nor a model folder"),
    (["needle", "--model", "RUN", "--corpus", "CORPUS", *GRID, "--judge", "m"], "--judge-url"),
    (["needle", "--model", "RUN", "--corpus", "CORPUS", *GRID, "--judge", "m", "--judge-url", "http://127.0.0.1:9/v1",
      "--judge-key-env", "NO_SUCH_KEY"], "NO_SUCH_KEY"),
    (["needle", "--model", "RUN", "--corpus", "CORPUS", *GRID, "--judge-url", "x"], "--judge-url: needle does not read it"),
    (["needle", "--model", "RUN", "--haystack", "/nowhere", *GRID], "no such file or folder"),
    (["per_token_loss", "--model", "RUN", "--corpus", "/nowhere", *LOSS_OPTIONS], "/nowhere"),
    (["per_token_loss", "--model", "RUN", *LOSS_OPTIONS, "--corpus", "CORPUS", "--out", "x.csv"], ".parquet"),
    (["per_token_loss", "--model", "RUN", *LOSS_OPTIONS, "--corpus", "CORPUS", "--out", "FILE/x.parquet"], "cannot be written"),
    (["per_token_loss", "--model", "RUN", "--device", "cuda:99", *LOSS_OPTIONS], "--device cuda:99: choose one of cpu"),
    (["training_curve", "--model", "EXPORT"], "only runs of this suite have metrics"),
    (["needle", "--model", "x", "--lenghts", "3"], "--lenghts"),
    (["per_token_loss", "--model", "x", *LOSS_OPTIONS, "--wording", "abc"], "--wording"),  # filled in, never typed
])  # fmt: skip
def test_users_errors_are_one_or_two_lines(arguments, message, make_run, corpus, capsys, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    run = make_run()
    (tmp_path / "FILE").write_text("")
    places = {"RUN": run, "EXPORT": run / "export", "CORPUS": corpus.folder, "EMPTY": tmp_path}
    capsys.readouterr()
    try:
        code = eval_main([str(places.get(a, a)) for a in arguments])
    except SystemExit as stop:
        code = stop.code
    error = capsys.readouterr().err
    assert code == 2 and message in error and len(error.strip().splitlines()) <= 2 and "Traceback" not in error


def test_unfinished_runs_and_bad_spec_files(make_run, job, tmp_path, capsys):
    run = make_run()
    arguments = job(run, LOSS)
    (run / "export").rename(run / "export.partial")
    for content, told in (
        (None, "not finished"), (b'{"kind": "needle", "lenghts": [3]}', "lenghts"), (b"\xff\xfe", "error: "),
        (EVAL_SPEC.dump_json(LOSS), "must say which corpus, precision it reads"),
    ):  # fmt: skip
        if content is not None:
            Path(arguments[2]).write_bytes(content)
        assert job_main(arguments) == 2
        error = capsys.readouterr().err
        assert told in error and "Traceback" not in error


def test_a_hub_out_of_reach_is_noticed_at_once(monkeypatch, capsys):
    from huggingface_hub import constants

    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(constants, "ENDPOINT", "http://127.0.0.1:9")
    monkeypatch.delenv("HF_HUB_OFFLINE")
    machine.go_offline_if_unreachable()
    assert constants.HF_HUB_OFFLINE and "cannot be reached" in capsys.readouterr().err


def test_sigterm_keeps_samples_and_the_next_start_goes_on(make_run, job):
    """A process is stopped between samples; the second start computes only what is missing, the rows are the same."""
    spec = replace(NEEDLE, lengths=(320, 400, 480), depths=(0.0, 50.0, 100.0), max_new_tokens=24)
    run, undisturbed = make_run(), make_run()
    options = ["--batch-tokens", "1"]
    process = multiprocessing.get_context("fork").Process(target=lambda: sys.exit(job_main([*job(run, spec), *options])))
    lines = lambda: [file.read_text().count("\n") for file in (run / "evals").glob("*.partial.jsonl")]  # noqa: E731
    process.start()
    while process.is_alive() and sum(lines()) < 3:
        time.sleep(0.005)
    process.terminate()
    process.join(60)
    assert process.exitcode == 75
    assert 3 <= lines()[0] < 10
    for folder in (run, undisturbed):
        assert job_main([*job(folder, spec), *options]) == 0
    rows, others = (read_rows(next((folder / "evals").glob("*.parquet")))[0] for folder in (run, undisturbed))
    assert rows.equals(others) and os.listdir(run / "evals") == os.listdir(undisturbed / "evals")
