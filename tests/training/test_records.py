"""Records that a training keeps, row by row and file by file."""

import contextlib
import errno
import json
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from safetensors import SafetensorError

from training import (
    export,
    journal,
    manifest,
    optimizer,
    run_folder,
    step,
)
from training.distributed import World
from training.lines import line, read_line, read_lines
from training.run_folder import RunFolder
from training.spec import Execution, TrainSpec

CPU = torch.device("cpu")
GPU = torch.device("cuda", 1)
ALONE = World(0, 1, CPU)
SPEC = TrainSpec(seq_len=4, batch_tokens=32, train_tokens=32 * 200, warmup_tokens=32, peak_lr=0.5, precision="fp32")


def journal_of(make_run, monkeypatch, *, world=ALONE, peak=1e9, prune=None, **execution) -> journal.Journal:
    monkeypatch.setattr(journal, "peak_flops", lambda device: peak)
    run = make_run(prune=prune)
    made = journal.Journal(run, run.read_spec(), Execution(**execution), world, SimpleNamespace(wall_s=1.23456), True)
    made._speed = SimpleNamespace(tick=lambda: 500.0, resume=lambda: None)
    made._sampler = SimpleNamespace(rows=lambda *given: (torch.tensor([given[0], 7]), torch.tensor(64)))
    made._file = open(run.metrics_file, "a")  # noqa: SIM115
    made._board, made._progress = SimpleNamespace(add_scalar=lambda *given: None), SimpleNamespace(advance=lambda numbers: None)
    return made


@pytest.mark.parametrize(("prune", "measured", "shares"), [
    (None, ((), ()), (0.0, 0.0)), (-10.0, ((0.25,), (torch.nan,)), (0.25, 0.25)), (-10.0, ((torch.nan,), (0.5,)), (None, 0.5)),
])  # fmt: skip
def test_a_row_of_metrics(make_run, monkeypatch, prune, measured, shares):
    """Utilisation is by the share that was measured last; a step is written down when the next one comes."""
    made = journal_of(make_run, monkeypatch, world=World(0, 2, CPU), prune=prune)
    for number, values in enumerate(measured):
        made.add(number + 3, torch.tensor([1.5, 0.5, 0.0, 0.0, float(number), *values]))
        assert len(read_lines(made.folder.metrics_file, made.spec.run_id)[0]) == number
    made.catch_up()
    rows, model = read_lines(made.folder.metrics_file, made.spec.run_id)[0], made.spec.model
    for row, share, values, number in zip(rows, shares, measured, (3, 4), strict=True):
        dense, found = (
            None if each is None else 500 * 3 * model.executed_flops_per_token(64, each) / 2e9 for each in (0.0, share)
        )
        kept = {"pruned_share": values[0]} if values and values[0] == values[0] else {}
        rate = optimizer.learning_rate((number - 1) * 256, made.spec.train)
        assert row == {"step": number, "tokens": number * 256, "loss": 1.5, "grad_norm": 0.5, "lr": rate, "wall_s": 1.235,
                       "tokens_per_s": 500.0, "mfu": found, "mfu_dense": dense, **kept}  # fmt: skip
    assert made.save and not made.stop and made._last_step == 4
    made.resume()
    assert not made.save
    unknown = journal_of(make_run, monkeypatch, peak=None, prune=prune)
    assert unknown._mfu(500.0, 0.0) is None


@pytest.mark.parametrize(("first", "epochs", "told"), [
    (0, 1.0, ""), (0, 2.5, "run: the corpus is smaller than the training budget: its tokens are seen 2.50 times\n"),
    (3, 0.5, "{metrics}: steps before 4 are damaged or missing; the curve has a gap\nrun: resuming from step 3\n"),
])  # fmt: skip
@pytest.mark.parametrize("rank", [0, 1])
def test_a_start_and_its_end(make_run, monkeypatch, capsys, first, epochs, told, rank):
    run = make_run()
    how = Execution(deterministic=False)
    made = journal.Journal(run, run.read_spec(), how, World(rank, 2, CPU), SimpleNamespace(wall_s=5.0), True)
    monkeypatch.setattr(journal, "peak_memory_bytes", lambda device: 77)
    asked = []
    sampler = SimpleNamespace(epochs=lambda steps: asked.append(steps) or epochs)
    with contextlib.suppress(KeyError), made.start(first, sampler) as end:
        made._last_step = first + 2
        end["weights"] = "w"
        assert end["exit_code"] == 2  # unless something better is known in the end
        raise KeyError
    if rank:
        assert not run.provenance_file.exists() and not asked and not capsys.readouterr().err
        return
    (start,) = run.read_starts()
    assert (start["first_step"], start["params"], start["epochs"]) == (first, run.read_spec().model.num_params, epochs)
    assert start["deterministic"] is False and start["world_size"] == 2 and asked == [12]
    assert start["end"] == {"exit_code": 2, "weights": "w", "tokens": 512, "wall_s": 5.0, "peak_memory_bytes": 77}
    assert capsys.readouterr().err == told.replace("{metrics}", str(run.metrics_file)) and (run.path / "tensorboard").is_dir()


@pytest.mark.parametrize(
    ("wishes", "stop", "save"), [((0, 0), False, False), ((1, 0), True, False), ((2, 1), True, True), ((0, 1), False, True)]
)
def test_wishes_of_processes(make_run, monkeypatch, wishes, stop, save):
    made = journal_of(make_run, monkeypatch)
    for values in (wishes, (0, 0)):
        made.add(1, torch.tensor([1.0, 1.0, 0.0, *values]))
    assert (made.stop, made.save) == (stop, save)
    made.catch_up()
    assert (made.stop, made.save) == (stop, False)  # a wish to stop stays


@pytest.mark.parametrize(("verdict", "kind"), [(step.NOT_FINITE, "not finite"), (step.SPIKE, "spike")])
@pytest.mark.parametrize("rank", [0, 1])
@pytest.mark.parametrize("on_bad_step", ["stop", "skip"])
def test_a_bad_step_is_written_down_by_the_main_process_and_stops_all(make_run, monkeypatch, verdict, kind, rank, on_bad_step):
    made = journal_of(make_run, monkeypatch, world=World(rank, 2, CPU), on_bad_step=on_bad_step)
    made.add(5, torch.tensor([2.0, 3.0, verdict, 0.0, 0.0]))
    words = f"step 5 .{kind}: loss 2.0, gradient norm 3.0. was not applied; its documents are in .*anomalies.jsonl"
    with pytest.raises(journal.AnomalyError, match=words) if on_bad_step == "stop" else contextlib.nullcontext():
        made.catch_up()
    rows = read_lines(made.folder.anomalies_file, made.spec.run_id)[0]
    assert rows == [{"step": 5, "kind": kind, "loss": 2.0, "grad_norm": 3.0, "documents": [4, 7], "first_token": 64}] * (
        rank == 0
    )


@pytest.mark.parametrize(("met", "raised"), [
    ("I/O error: No space left on device (os error 28)", OSError), ("HeaderTooLarge", SafetensorError),
])  # fmt: skip
def test_a_full_disk_at_the_end_is_told_in_the_systems_words(make_run, monkeypatch, met, raised):
    def save_pretrained(folder: Path, state_dict: dict) -> None:
        raise SafetensorError(met)

    run = make_run()
    model = SimpleNamespace(save_pretrained=save_pretrained, state_dict=dict)
    with pytest.raises(raised) as told:
        export.export_model(model, None, run.read_spec(), run, ALONE)
    if raised is OSError:
        assert (told.value.errno, told.value.strerror, told.value.filename) == (
            errno.ENOSPC,
            "No space left on device",
            str(run.path / "export.partial"),
        )
    assert not run.export.exists()


@pytest.mark.parametrize("tokenizer", [True, False])
def test_an_export_is_whole_and_leaves_nothing_beside_it(make_run, tokenizer):
    """Remains of one from an earlier start are not in it; checkpoints and a damaged export go."""
    run = make_run()
    for name in ("export.partial", export.ASIDE, "checkpoints"):
        (run.path / name).mkdir()
        (run.path / name / "old").touch()

    def save(name: str, folder: Path, **named: object) -> None:
        folder.mkdir(exist_ok=True)
        (folder / name).write_text(str(named))

    model = SimpleNamespace(
        save_pretrained=lambda folder, **named: save("model.safetensors", folder, **named), state_dict=lambda: 7
    )
    ours = SimpleNamespace(save_pretrained=lambda folder: save("tokenizer.json", folder))
    corpus = SimpleNamespace(tokenizer=SimpleNamespace(to_hf=lambda: ours)) if tokenizer else None
    export.export_model(model, corpus, run.read_spec(), run, World(1, 1, CPU))
    assert not run.export.exists()  # the main process writes it
    export.export_model(model, corpus, run.read_spec(), run, ALONE)
    files = {"model.safetensors", "run_spec.json", "README.md", "manifest.json"} | ({"tokenizer.json"} if tokenizer else set())
    assert {path.name for path in run.export.iterdir()} == files and run.finished
    assert (run.export / "model.safetensors").read_text() == "{'state_dict': 7}"
    assert (run.export / "run_spec.json").read_text() == run.read_spec().to_json()
    assert not any((run.path / name).exists() for name in ("export.partial", export.ASIDE, "checkpoints"))


@pytest.mark.parametrize("done", [True, False])
def test_other_processes_believe_the_main_one_about_the_export(make_run, done):
    run = make_run()
    other = SimpleNamespace(is_main=False, broadcast=lambda value: {None: done}[value])
    assert export.already_exported(run, run.read_spec(), other) is done
    told = []
    main = SimpleNamespace(is_main=True, broadcast=lambda value: told.append(value) or value)
    run.export.mkdir()
    (run.export / "x").write_text("1")
    manifest.seal(run.export, run_id=run.run_id if done else "another")
    assert export.already_exported(run, run.read_spec(), main) is done and told == [done] and run.export.exists() == done


def test_lines_are_their_owners_or_anybodys(tmp_path):
    own, free = line({"a": 1}, "r").encode(), line({"a": 1}).encode()
    assert [read_line(text, owner) for text in (own, free) for owner in ("r", "s", "")] == [{"a": 1}, None, None] + [
        {"a": 1}
    ] * 3
    assert own.endswith(b"}\n") and list(json.loads(own)) == ["a", "crc32"] and own != free


def test_the_last_row_is_found_at_the_end_of_a_long_file(make_run):
    run = make_run()
    assert run.last_row() is None
    rows = [{"step": number, "pad": "x" * 200} for number in range(1, 60)]
    run.metrics_file.write_text("".join(line(row, run.run_id) for row in rows) + '{"step": 60, "p')
    assert run.last_row() == rows[-1]
    with open(run.metrics_file, "a") as file:
        file.write("\n" + line({"step": 61}, "another"))
    assert run.last_row() == rows[-1]


@pytest.mark.parametrize(("step_there", "first", "end"), [
    (None, 2, (0, 0.0)), (None, 0, (0, 0.0)), (2, 2, (0, 0.0)), (3, 2, (256, 9.5)), (3, 0, (768, 9.5)),
])  # fmt: skip
def test_a_start_that_was_killed_is_ended_by_the_next(make_run, step_there, first, end):
    """Also one that was killed before its first step."""
    run = make_run()
    end = {"exit_code": None, "tokens": end[0], "wall_s": end[1], "peak_memory_bytes": None}
    if step_there is not None:
        run.metrics_file.write_text(line({"step": step_there, "tokens": 256 * step_there, "wall_s": 9.5}, run.run_id))
    begun = [{"first_step": 0, "end": {"exit_code": 75}}, {"first_step": first, "end": None}]
    run.provenance_file.write_text("".join(line(row, run.run_id) for row in begun) + "damaged\n")
    assert run.begin_start({"first_step": 9, "end": None}) == 1
    assert run.read_starts() == [begun[0], {**begun[1], "end": end}, {"first_step": 9, "end": None}]
    run.end_start({"first_step": 9, "end": None}, {"exit_code": 0})
    assert run.read_starts()[-1] == {"first_step": 9, "end": {"exit_code": 0}} and len(run.read_starts()) == 3


def test_what_was_logged_after_a_step_is_forgotten(make_run):
    run = make_run()
    for file in (run.metrics_file, run.anomalies_file):
        file.write_text("".join(line({"step": number}, run.run_id) for number in range(1, 6)))
    assert run.truncate(3)
    assert [[row["step"] for row in read_lines(file, run.run_id)[0]] for file in (run.metrics_file, run.anomalies_file)] == [
        [1, 2, 3]
    ] * 2
    assert not run.truncate(4) and run.truncate(0) and make_run("empty").truncate(0) and not make_run("empty").truncate(1)


@pytest.mark.parametrize(
    ("weights", "own", "fault"),
    [("w", "w", None), (None, "w", None), ("w", None, None), ("w", "v", "was measured on weights w; the run's are v")],
)
def test_an_evaluation_is_of_the_runs_weights(make_run, monkeypatch, weights, own, fault):
    run = make_run()
    assert "there is no" in run.evaluation_fault("loss-1")
    run.evals.mkdir()
    (run.evals / "loss-1.parquet").touch()
    facts = []
    monkeypatch.setattr(run_folder, "fault_of", lambda path, **said: facts.append((path, said)))
    monkeypatch.setattr(run_folder, "read_meta", lambda path: {"weights": weights})
    monkeypatch.setattr(RunFolder, "weights", own)
    found = run.evaluation_fault("loss-1")
    assert found is None if fault is None else found.endswith(fault)
    assert facts == [(run.evals / "loss-1.parquet", dict(run_id=run.run_id, scale="test", eval_id="loss-1"))]
    monkeypatch.setattr(run_folder, "fault_of", lambda path, **said: "bad")
    assert run.evaluation_fault("loss-1") == "bad"


def test_folders_of_runs(make_run, tmp_path):
    run = make_run()
    again = RunFolder.create(run.path, run.read_spec())
    assert again.run_id == run.run_id and not run.finished
    with pytest.raises(ValueError, match=rf"holds run {run.run_id}, not \w{{10}}: its spec.json has other settings"):
        RunFolder.create(run.path, replace(run.read_spec(), seed=9))
    (tmp_path / "file").touch()
    with pytest.raises(ValueError, match=r"cannot write the run folder .*: Not a directory. Choose another --runs-dir"):
        RunFolder.create(tmp_path / "file" / "x", run.read_spec())
    assert {name: path.name for name, path in vars(run).items() if isinstance(path, Path) and name != "path"} == {
        "spec_file": "spec.json", "metrics_file": "metrics.jsonl", "provenance_file": "provenance.jsonl",
             "anomalies_file": "anomalies.jsonl",
        "checkpoints": "checkpoints", "export": "export", "evals": "evals"}  # fmt: skip
