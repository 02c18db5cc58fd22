"""The entry points: a job over several specs, what exists is skipped, errors are short, interruptions keep what is done."""

import errno
import json
import multiprocessing
import os
import shutil
import signal
import sys
import time
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

import eval.per_token_loss.measure
import eval.throughput.measure
from data.corpus import Corpus
from data.plan import resolve
from data.prepare import prepare
from eval.__main__ import main as eval_main
from eval.__main__ import run_command
from eval.job import Job, run_job
from eval.job import main as job_main
from eval.kinds import EVAL_SPEC, eval_id
from eval.longbench import spec as longbench
from eval.needle import spec as needle
from eval.per_token_loss import spec as per_token_loss
from eval.shell import machine
from eval.shell.loading import Subject
from eval.shell.machine import go_offline_if_unreachable
from eval.shell.sources import Sources
from eval.throughput import spec as throughput
from results.store import read_rows
from training import hardware

LOSS = per_token_loss.Spec(context_len=128, num_documents=2)
NEEDLE = needle.Spec(mode="easy", lengths=(320, 400), depths=(0.0, 50.0), max_new_tokens=4, reserve=150)


@pytest.fixture
def write(bind, tmp_path):
    """Files of bound specs, as a plan writes them."""

    def write_specs(*specs: object) -> list[str]:
        paths = []
        for spec in map(bind, specs):
            path = tmp_path / f"{eval_id(spec)}.json"
            path.write_bytes(EVAL_SPEC.dump_json(spec))
            paths.append(str(path))
        return paths

    return write_specs


def test_job_writes_validated_rows_and_skips_what_exists(make_run, corpus: Corpus, write, bind, capsys):
    run = make_run()
    arguments = [str(run), "--spec", *write(LOSS, NEEDLE), "--corpus", str(corpus.folder)]
    assert job_main(arguments) == 0
    for spec in map(bind, (LOSS, NEEDLE)):
        rows, meta = read_rows(run / "evals" / f"{eval_id(spec)}.parquet")
        assert list(rows.columns) == list(spec.SCHEMA.columns)
        assert (meta["run_id"], meta["model"], meta["scale"]) == (run.name.split("-")[-1], "fox_pro", "tiny")
        assert meta["spec"] == EVAL_SPEC.dump_python(spec, mode="json")
        assert meta["provenance"]["versions"]["torch"]
    assert meta["extras"]["prompt_tokens"]
    assert not list((run / "evals").glob("*.partial*"))
    before = {file: file.stat().st_mtime_ns for file in (run / "evals").iterdir()}
    assert job_main(arguments) == 0
    assert {file: file.stat().st_mtime_ns for file in (run / "evals").iterdir()} == before
    assert capsys.readouterr().err.count("exists, skipped") == 2


def test_a_damaged_result_is_made_again(make_run, corpus, write, bind, capsys):
    run = make_run()
    arguments = [str(run), "--spec", *write(LOSS), "--corpus", str(corpus.folder)]
    assert job_main(arguments) == 0
    out = run / "evals" / f"{eval_id(bind(LOSS))}.parquet"
    whole = out.read_bytes()
    out.write_bytes(whole[:-7] + b"flipped")
    assert job_main(arguments) == 0
    assert "is damaged: evaluating again" in capsys.readouterr().err
    assert out.read_bytes() == whole


def test_when_one_fails_the_others_are_done(make_run, corpus, write, bind, capsys, monkeypatch):
    run = make_run()
    too_many = replace(LOSS, num_documents=10**6)
    arguments = [str(run), "--spec", *write(too_many, LOSS, NEEDLE), "--corpus", str(corpus.folder)]

    def broken(*arguments):
        raise RuntimeError("a fault of ours")

    monkeypatch.setattr("eval.needle.measure.evaluate", broken)
    assert job_main(arguments) == 2
    error = capsys.readouterr().err
    assert f"error: {eval_id(bind(too_many))}: 1000000 documents exceed the" in error
    assert f"error: {eval_id(bind(NEEDLE))}: an unexpected error, which is a bug of this program" in error
    assert "RuntimeError: a fault of ours" in error
    done = [file.name for file in (run / "evals").glob("*.parquet")]
    assert done == [f"{eval_id(bind(LOSS))}.parquet"]
    monkeypatch.undo()
    assert job_main(arguments) == 2
    assert len(list((run / "evals").glob("*.parquet"))) == 2


def test_specs_that_do_not_say_what_they_read_are_refused(make_run, corpus, tmp_path, capsys):
    path = tmp_path / "unbound.json"
    path.write_bytes(EVAL_SPEC.dump_json(LOSS))
    assert job_main([str(make_run()), "--spec", str(path), "--corpus", str(corpus.folder)]) == 2
    assert "must say which corpus, precision it reads" in capsys.readouterr().err


@pytest.fixture
def other_corpus(texts_folder, tmp_path) -> Corpus:
    return prepare(resolve(f"text:{texts_folder}", cache_dir=tmp_path / "other", tokenizer="bpe-400", document_len=1024))


def test_another_corpus_than_the_specs_is_refused(make_run, corpus, other_corpus, write, capsys):
    """Also where only its text is read: the pipeline would take the file for that of its own corpus."""
    run = make_run()
    for spec in (LOSS, NEEDLE):
        assert job_main([str(run), "--spec", *write(spec), "--corpus", str(other_corpus.folder)]) == 2
        assert f"is of corpus {corpus.spec.fingerprint}, but" in capsys.readouterr().err
    assert list((run / "evals").glob("*.parquet")) == []


def test_token_ids_of_another_corpus_are_refused_its_text_is_not(make_run, corpus, other_corpus, capsys):
    run, source = str(make_run()), ["--corpus", str(other_corpus.folder)]
    assert eval_main(["per_token_loss", "--model", run, *LOSS_OPTIONS, *source]) == 2
    assert f"({corpus.spec.tokenizer}, {corpus.spec.fingerprint})" in capsys.readouterr().err
    grid = ["--mode", "easy", "--lengths", "320", "--depths", "0", "--reserve", "150", "--max-new-tokens", "2"]
    assert eval_main(["needle", "--model", run, *grid, *source]) == 0


def test_a_model_of_others_gets_a_file_of_its_own(make_run, corpus, tmp_path, tiny_fox, capsys, monkeypatch):
    """In one folder, one after the other; and what `--out` names is only taken if it is this very evaluation."""
    monkeypatch.chdir(tmp_path)
    exports = [make_run(tiny_fox(num_layers=n)) / "export" for n in (1, 2)]
    options = ["--corpus", str(corpus.folder), "--context-len", "64", "--num-documents", "1"]
    for export in (*exports, exports[0]):
        assert eval_main(["per_token_loss", "--model", str(export), *options]) == 0
    out = capsys.readouterr().out
    files = sorted(tmp_path.glob("*.parquet"))
    assert len(files) == 2
    metas = [read_rows(file)[1] for file in files]
    assert all(meta["scale"] == "custom" and meta["run_id"] in file.name for meta, file in zip(metas, files, strict=True))
    lines = [line for line in out.splitlines() if "perplexity of the first 64 tokens" in line]
    assert lines[0] == lines[2] != lines[1]
    (first,) = (file for file, meta in zip(files, metas, strict=True) if meta["run_id"] == Subject.find(str(exports[0])).run_id)
    assert eval_main(["per_token_loss", "--model", str(exports[0]), *options, "--out", str(first)]) == 0
    assert eval_main(["per_token_loss", "--model", str(exports[1]), *options, "--out", str(first)]) == 2
    assert "name another file with --out" in capsys.readouterr().err
    other_spec = [*options[:2], "--context-len", "32", "--num-documents", "1"]
    assert eval_main(["per_token_loss", "--model", str(exports[0]), *other_spec, "--out", str(first)]) == 2


def test_a_place_where_nothing_can_be_written_is_named_before_anything_is_computed(
    make_run, corpus, write, tmp_path, monkeypatch, capsys
):
    run, (spec,) = make_run(), write(LOSS)
    options = ["--model", str(run), "--corpus", str(corpus.folder), "--context-len", "128", "--num-documents", "2"]
    there, folder, file = tmp_path / "there.parquet", tmp_path / "folder.parquet", tmp_path / "file"
    assert eval_main(["per_token_loss", *options, "--out", str(there)]) == 0
    folder.mkdir()
    file.write_text("")
    told = "cannot be written: Permission denied; name another file with --out"

    def refused(dir: Path) -> None:
        raise PermissionError(errno.EACCES, "Permission denied", str(dir))

    monkeypatch.setattr("tempfile.TemporaryFile", refused)
    monkeypatch.setattr(eval.per_token_loss.measure, "evaluate", None)
    capsys.readouterr()
    for out, said in (
        (tmp_path / "new" / "x.parquet", f"{tmp_path}/new {told}"),
        (file / "x.parquet", f"{file} cannot be written: File exists; name another file with --out"),
        (folder, f"--out {folder} is a folder: name a file"),
    ):
        assert eval_main(["per_token_loss", *options, "--out", str(out)]) == 2
        assert f"{said}.\n" in capsys.readouterr().err
    assert job_main([str(run), "--spec", spec, "--corpus", str(corpus.folder)]) == 2
    assert f"{run}/evals {told}" in capsys.readouterr().err
    assert eval_main(["per_token_loss", *options, "--out", str(there)]) == 0  # what is there needs no place


def test_a_copied_model_is_the_same_model_and_a_changed_one_is_not(make_run, corpus, tmp_path):
    export = make_run() / "export"
    shutil.copytree(export, tmp_path / "copy")
    first, copy = (Subject.find(str(path)).run_id for path in (export, tmp_path / "copy"))
    assert first == copy
    weights = tmp_path / "copy" / "model.safetensors"
    body = bytearray(weights.read_bytes())
    body[-3] ^= 1
    stamp = weights.stat().st_mtime_ns
    weights.write_bytes(body)
    os.utime(weights, ns=(stamp, stamp))
    assert Subject.find(str(tmp_path / "copy")).run_id != first
    assert Subject.find(str(export), str(corpus.folder / "tokenizer")).run_id != first


LOSS_OPTIONS = ["--context-len", "4", "--num-documents", "1"]
GRID = ["--lengths", "400", "--depths", "0"]
JUDGE_OPTIONS = ["--judge", "m", "--judge-url", "http://127.0.0.1:9/v1", "--judge-key-env", "NO_SUCH_KEY"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["per_token_loss", "--model", "/nowhere", *LOSS_OPTIONS], "neither a folder nor a hub name"),
        (["per_token_loss", "--model", "owner/name", *LOSS_OPTIONS], "cannot be fetched from the hub"),
        (["per_token_loss", "--model", "EMPTY", *LOSS_OPTIONS], "neither a run folder (spec.json) nor a model folder"),
        (["needle", "--model", "RUN", "--corpus", "CORPUS", *GRID, "--judge", "m"], "--judge-url"),
        (["needle", "--model", "RUN", "--corpus", "CORPUS", *GRID, *JUDGE_OPTIONS], "NO_SUCH_KEY"),
        (["needle", "--model", "RUN", "--corpus", "CORPUS", *GRID, "--judge-url", "x"], "--judge-url: needle does not read it"),
        (["needle", "--model", "RUN", *GRID], "--corpus"),
        (["needle", "--model", "RUN", "--haystack", "/nowhere", *GRID], "no such file or folder"),
        (["longbench", "--model", "RUN", "--dataset", "abc"], "--longbench"),
        (
            ["longbench", "--model", "RUN", "--corpus", "CORPUS", "--dataset", "local", "--longbench", "EMPTY"],
            "--longbench: longbench does not read it",
        ),
        (["lm_eval", "--model", "RUN", "--corpus", "CORPUS", "--include", "local", "--prompts", "EMPTY"], "--prompts: lm_eval"),
        (["per_token_loss", "--model", "RUN", "--corpus", "/nowhere", *LOSS_OPTIONS], "/nowhere"),
        (["per_token_loss", "--model", "RUN", *LOSS_OPTIONS, "--corpus", "CORPUS", "--out", "x.csv"], ".parquet"),
        (["per_token_loss", "--model", "RUN", "--device", "cuda", *LOSS_OPTIONS], "choose another, or --device cpu"),
        (["per_token_loss", "--model", "RUN", "--device", "gpu", *LOSS_OPTIONS], "choose cpu, cuda or cuda:N"),
        (["per_token_loss", "--model", "RUN", "--threads", "0", *LOSS_OPTIONS], "--threads 0: at least 1 is needed"),
        (["training_curve", "--model", "EXPORT"], "only runs of this suite have metrics"),
    ],
)
def test_user_errors_are_one_or_two_lines(arguments, message, make_run, corpus, capsys, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    if "cuda" in arguments:
        monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    run = make_run()
    places = {"RUN": run, "EXPORT": run / "export", "CORPUS": corpus.folder, "EMPTY": tmp_path}
    capsys.readouterr()
    assert eval_main([str(places.get(a, a)) for a in arguments]) == 2
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
        (["needle", "--model", "x", "--batch-tokens", "-5"], "greater than 0"),
        (["per_token_loss", "--model", "x", *LOSS_OPTIONS, "--wording", "abc"], "--wording"),  # filled in, never typed
    ],
)
def test_mistakes_on_the_command_line_are_one_line(arguments, message, capsys):
    with pytest.raises(SystemExit) as stop:
        eval_main(arguments)
    assert stop.value.code == 2
    (line,) = capsys.readouterr().err.strip().splitlines()
    assert line.startswith("error: ")
    assert message in line and "ArgsKwargs" not in line


def test_help_is_shown(capsys):
    with pytest.raises(SystemExit) as stop:
        eval_main(["needle", "--help"])
    assert stop.value.code == 0
    assert "--judge-url" in capsys.readouterr().out


def test_unread_options_are_said_by_a_job(make_run, corpus, write, tmp_path, capsys):
    run = make_run()
    arguments = [str(run), "--spec", *write(LOSS), "--corpus", str(corpus.folder), "--longbench", str(tmp_path)]
    assert job_main(arguments) == 0
    assert "--longbench: none of these evaluations reads it" in capsys.readouterr().err


def test_a_hub_out_of_reach_is_noticed_at_once(monkeypatch, capsys):
    from huggingface_hub import constants

    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(constants, "ENDPOINT", "http://127.0.0.1:9")
    monkeypatch.setattr("urllib.request.getproxies", dict)
    monkeypatch.delenv("HF_HUB_OFFLINE")
    go_offline_if_unreachable()
    assert constants.HF_HUB_OFFLINE
    assert "cannot be reached" in capsys.readouterr().err


HUB = longbench.Spec(precision="fp32")


@pytest.mark.parametrize(("specs", "asked"), [
    ((HUB,), 1), ((LOSS,), 0), ((LOSS, HUB), 1), ((HUB, LOSS), 1), ((LOSS, NEEDLE, HUB), 1), ((NEEDLE, LOSS), 0),
])  # fmt: skip
def test_the_hub_is_looked_for_where_any_of_the_evaluations_reads_it(specs, asked, monkeypatch):
    looked = []
    stop = lambda *arguments: (_ for _ in ()).throw(ValueError("far enough"))  # noqa: E731
    monkeypatch.setattr("eval.job.go_offline_if_unreachable", lambda: looked.append(1))
    monkeypatch.setattr("eval.job.read_spec", specs.__getitem__)
    monkeypatch.setattr("eval.job.use", stop)
    with pytest.raises(ValueError, match="far enough"):
        run_job(Job(run=Path("run"), spec=tuple(range(len(specs)))))
    assert len(looked) == asked


@pytest.mark.parametrize(("spec", "model", "given", "asked"), [
    (HUB, ".", {}, 1), (LOSS, ".", {}, 0), (LOSS, "owner/name", {}, 1), (HUB, "owner/name", {}, 1),
    (HUB, ".", {"longbench": Path()}, 0), (HUB, "owner/name", {"longbench": Path()}, 1), (LOSS, ".", {"tokenizer": "a/b"}, 1),
    (LOSS, ".", {"tokenizer": "./."}, 0), (LOSS, ".", {"tokenizer": "gpt2-json:a/b"}, 0), (LOSS, ".", {"tokenizer": "gpt2"}, 0),
])  # fmt: skip
def test_the_hub_is_looked_for_where_data_model_or_tokeniser_are_there(spec, model, given, asked, monkeypatch):
    looked = []
    stop = lambda *arguments: (_ for _ in ()).throw(ValueError("far enough"))  # noqa: E731
    monkeypatch.setattr("eval.__main__.go_offline_if_unreachable", lambda: looked.append(1))
    monkeypatch.setattr("eval.__main__.Subject.find", stop)
    threads = torch.get_num_threads()
    with pytest.raises(ValueError, match="far enough"):
        run_command(SimpleNamespace(device="cpu", threads=threads, spec=spec, model=model, sources=Sources(**given)))
    assert len(looked) == asked


def test_a_context_is_of_what_the_run_was_trained_on(bind, monkeypatch):
    """From both commands."""
    given, data, spec = [], object(), bind(LOSS)
    sources, found = Sources(), SimpleNamespace(data=data)
    stop = lambda *arguments: given.append((arguments[0], *arguments[3:])) or (_ for _ in ()).throw(ValueError("x"))  # noqa: E731
    for module in ("eval.__main__", "eval.job"):
        monkeypatch.setattr(f"{module}.Subject.find", lambda *arguments: found)
        monkeypatch.setattr(f"{module}.make_context", stop)
    monkeypatch.setattr("eval.job.read_spec", lambda path: spec)
    common = {"device": "cpu", "threads": torch.get_num_threads(), "sources": sources}
    assert run_job(Job(run=Path("run"), spec=(Path("spec"),), **common)) == 2
    with pytest.raises(ValueError, match="x"):
        run_command(SimpleNamespace(spec=spec, model=".", **common))
    assert given == [(sources, data)] * 2


def test_unfinished_run_and_bad_spec_files(make_run, corpus, write, capsys):
    run = make_run()
    (run / "export").rename(run / "export.partial")
    (spec,) = write(LOSS)
    assert job_main([str(run), "--spec", spec, "--corpus", str(corpus.folder)]) == 2
    assert "not finished" in capsys.readouterr().err
    Path(spec).write_text(json.dumps({"kind": "needle", "lenghts": [3]}))
    assert job_main([str(run), "--spec", spec]) == 2
    assert "lenghts" in capsys.readouterr().err
    Path(spec).write_bytes(b"\xff\xfe")
    assert job_main([str(run), "--spec", spec]) == 2
    assert "Traceback" not in capsys.readouterr().err


def test_a_damaged_export_is_refused(make_run, corpus, write, capsys):
    """Each of the flips that changed a result unnoticed: in weights, in the tokeniser, in the configuration."""
    for name, spec in (("model.safetensors", LOSS), ("tokenizer.json", NEEDLE), ("config.json", LOSS)):
        run = make_run()
        file = run / "export" / name
        body = bytearray(file.read_bytes())
        body[len(body) // 2] ^= 1
        file.write_bytes(body)
        assert job_main([str(run), "--spec", *write(spec), "--corpus", str(corpus.folder)]) == 2
        assert "export is damaged" in capsys.readouterr().err


def test_fresh_models_come_first_and_memory_is_counted_anew(make_run, corpus, write, bind, monkeypatch):
    """A timing holds no trained model in memory, and no evaluation counts what another took."""
    run, order = make_run(), []
    timing = throughput.Spec(seq_len=16, warmup=0, repeats=1)
    monkeypatch.setattr("eval.job.reset_peak_memory", lambda device: order.append("reset"))
    for module in (eval.per_token_loss.measure, eval.throughput.measure):
        real = module.evaluate

        def spied(loaded, spec, context, real=real):
            order.append(spec.kind)
            return real(loaded, spec, context)

        monkeypatch.setattr(module, "evaluate", spied)
    assert job_main([str(run), "--spec", *write(LOSS, timing), "--corpus", str(corpus.folder)]) == 0
    assert order == ["reset", "throughput", "reset", "per_token_loss"]


def test_names_of_machines(monkeypatch, tmp_path):
    assert machine.machine_name("cpu") == f"{hardware.processor()}, {os.cpu_count()} cores"
    assert hardware.processor()
    monkeypatch.setattr("torch.cuda.is_available", lambda: True)
    monkeypatch.setattr("torch.cuda.device_count", lambda: 2)
    monkeypatch.setattr("torch.cuda.set_device", lambda number: None)
    assert machine.use("cuda:1", 1) == "cuda:1"
    with pytest.raises(ValueError, match="has 2 CUDA GPUs, counted from 0"):
        machine.use("cuda:2", 1)


def test_sigterm_keeps_samples_and_the_next_start_goes_on(make_run, corpus, write, bind):
    """A process is stopped between samples; the second start computes only what is missing, the rows are the same."""
    spec = needle.Spec(mode="easy", lengths=(320, 400, 480), depths=(0.0, 50.0, 100.0), max_new_tokens=24, reserve=150)
    run, undisturbed = make_run(), make_run()
    options = ["--spec", *write(spec), "--corpus", str(corpus.folder), "--batch-tokens", "1"]
    log = run / "log"
    name = eval_id(bind(spec))
    partial = run / "evals" / f"{name}.partial.jsonl"

    def started() -> None:
        with log.open("w") as sys.stderr:
            sys.exit(job_main([str(run), *options]))

    process = multiprocessing.get_context("fork").Process(target=started)
    process.start()
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline and (not partial.exists() or partial.read_text().count("\n") < 3):
        time.sleep(0.005)
    assert process.pid is not None
    os.kill(process.pid, signal.SIGTERM)
    process.join(60)
    error = log.read_text()
    assert process.exitcode == 75, error
    assert "interrupted" in error
    assert "Traceback" not in error
    kept = partial.read_text().splitlines()[1:]
    assert 2 <= len(kept) < 9
    with open(partial, "a") as file:
        file.write('{"key": "cut off in the mid')
    assert job_main([str(run), *options]) == 0
    assert job_main([str(undisturbed), *options]) == 0
    rows, others = (read_rows(folder / "evals" / f"{name}.parquet")[0] for folder in (run, undisturbed))
    assert rows.equals(others)
