"""The small files of a run: what was altered is refused or said, and every start is accounted for."""

import json
import os
import shutil
import signal
from pathlib import Path

import pytest

from results.lines import read_lines, to_lines
from results.store import read_record
from tests.training.runs import assert_same_run
from tests.training.test_loop import slow, wait_for_step
from training.signals import EXIT_FINISHED, EXIT_REQUEUE


def alter(path: Path, number: int) -> None:
    """Damage line `number` of a file of lines."""
    lines = path.read_bytes().split(b"\n")
    lines[number] = lines[number].replace(b'"', b"", 1)
    path.write_bytes(b"\n".join(lines))


def flip(path: Path, place: float = 0.5) -> None:
    """Turn one bit of a file."""
    content = bytearray(path.read_bytes())
    content[int(place * len(content))] ^= 1
    path.write_bytes(content)


def test_a_line_that_is_being_written_is_not_yet_there(tmp_path):
    path = tmp_path / "rows.jsonl"
    path.write_text(to_lines([{"step": 1}, {"step": 2}])[:-5])
    assert read_lines(path) == ([{"step": 1}], 0)
    path.write_text(to_lines([{"step": 1}]) + "{odd}\n[1]\n\n" + to_lines([{"step": 2}]))
    assert read_lines(path) == ([{"step": 1}, {"step": 2}], 3)
    assert read_lines(tmp_path / "none.jsonl") == ([], 0)


@pytest.mark.parametrize(("changes", "words"), [
    ({"peak_lr": 0.004}, r"is the spec of run \w+, which its folder does not name"),
    ({"peak_lr": "high"}, r"train\.peak_lr: Input should be a valid number \(given: 'high'\)"),
    ({"peak_lrr": 0.1}, r"train\.peak_lrr: Unexpected keyword argument"), (None, "cannot be read"),
])  # fmt: skip
def test_an_edited_spec_is_refused_with_its_field_and_the_way_to_have_it(make_run, start, changes, words):
    run = make_run(steps=4)
    values = json.loads(run.spec_file.read_text())
    values["train"] |= changes or {}
    run.spec_file.write_text(json.dumps(values) if changes else "{")
    with pytest.raises(ValueError, match=rf"spec\.json .*{words}.*; for your own settings, add a line to a figure's file"):
        run.read_spec()
    assert start(run).exit_code() == 1 and not run.metrics_file.exists()


def test_damaged_metrics_of_a_finished_run_cost_its_curve_alone(make_run, start):
    run = make_run(steps=6)
    assert start(run).exit_code() == EXIT_FINISHED
    whole, record = run.metrics_file.read_bytes(), read_record(run.path)
    assert [row["step"] for row in run.read_curve()] == [1, 2, 3, 4, 5, 6] and record["final_loss"] == run.last_row()["loss"]
    for damaged in (whole.replace(b'"loss": 5', b'"loss": 4', 1), whole[: len(whole) // 2], b""):
        assert damaged != whole
        run.metrics_file.write_bytes(damaged)
        with pytest.raises(ValueError, match=r"metrics\.jsonl does not hold each of the run's 6 steps"):
            run.read_curve()
    run.metrics_file.write_bytes(whole)
    alter(run.metrics_file, 2)
    assert start(run).exit_code() == EXIT_FINISHED and read_record(run.path) == record


def test_a_gap_before_the_checkpoint_is_recorded_and_what_follows_kept(make_run, start):
    undisturbed, run = make_run("undisturbed", steps=30), make_run("gap", steps=30)
    assert start(undisturbed).exit_code() == EXIT_FINISHED
    outcome = start(run, before=slow)
    wait_for_step(run, 10)
    os.kill(outcome.processes[0].pid, signal.SIGTERM)
    assert outcome.exit_code() == EXIT_REQUEUE
    alter(run.metrics_file, 3)
    outcome = start(run)
    assert outcome.exit_code() == EXIT_FINISHED and "the curve has a gap" in outcome.output
    assert [row["step"] for row in run.read_metrics()] == [1, 2, 3, *range(5, 31)]
    assert [start.get("missing_steps") for start in run.read_starts()] == [None, 1]
    with pytest.raises(ValueError, match="does not hold each"):
        run.read_curve()


def test_every_start_is_kept_with_its_end(make_run, start):
    run = make_run(steps=40)
    stopped = start(run, before=slow)
    wait_for_step(run, 8)
    os.kill(stopped.processes[0].pid, signal.SIGTERM)
    assert stopped.exit_code() == EXIT_REQUEUE
    killed = start(run, before=slow, checkpoint_minutes=0)
    wait_for_step(run, run.last_row()["step"] + 8)
    killed.processes[0].kill()
    killed.processes[0].join()
    last = run.last_row()
    assert [one["end"] is None for one in run.read_starts()] == [False, True]
    assert start(run).exit_code() == EXIT_FINISHED
    first, second, third = run.read_starts()
    assert [one["end"]["exit_code"] for one in (first, second, third)] == [EXIT_REQUEUE, None, EXIT_FINISHED]
    assert first["first_step"] == 0 and first["end"]["tokens"] == 256 * second["first_step"]
    assert second["end"]["tokens"] == 256 * (last["step"] - second["first_step"])
    assert second["end"]["wall_s"] == last["wall_s"]
    assert third["end"]["tokens"] == 256 * (40 - third["first_step"])
    for one in (first, third):
        assert 0 < one["end"]["wall_s"] < 60 and one["end"]["peak_memory_bytes"] > 2**20
    walls = [row["wall_s"] for row in run.read_metrics()]
    assert walls[third["first_step"] - 1] > walls[third["first_step"]]  # each start counts from its own begin
    alter(run.provenance_file, 1)
    assert run.read_starts() == [first, third]


def test_a_start_that_fails_is_kept_too(make_run, start):
    run = make_run(steps=30, peak_lr=1e25, warmup_tokens=0)
    assert start(run).exit_code() == 1
    [only] = run.read_starts()
    assert only["end"]["exit_code"] == 2


def test_repeated_text_is_said_and_recorded(make_run, start, corpus):
    steps = len(corpus.train) // 16  # 64 segments a step, four segments a row: the whole corpus
    batch = dict(batch_tokens=64 * 64)
    once = make_run("once", train_tokens=64 * 64 * steps, **batch)
    twice = make_run("twice", train_tokens=2 * 64 * 64 * steps, **batch)
    outcome = start(once)
    assert outcome.exit_code() == EXIT_FINISHED and "smaller than the training budget" not in outcome.output
    outcome = start(twice)
    assert outcome.exit_code() == EXIT_FINISHED and "the corpus is smaller than the training budget" in outcome.output
    assert once.read_starts()[0]["epochs"] <= 1 and twice.read_starts()[0]["epochs"] == 2 * once.read_starts()[0]["epochs"]


def damage_export(run, how: str) -> None:
    weights = run.export / "model.safetensors"
    if how == "flipped":
        flip(weights)
    elif how == "cut off":
        weights.write_bytes(weights.read_bytes()[:-4])
    elif how == "weights gone":
        weights.unlink()
    elif how == "manifest flipped":
        flip(run.export / "manifest.json")
    else:
        for file in run.export.iterdir():
            file.unlink()


@pytest.mark.parametrize("how", ["flipped", "cut off", "weights gone", "manifest flipped", "empty"])
def test_a_damaged_export_is_moved_aside_and_made_again(make_run, start, how):
    undisturbed, run = make_run("undisturbed", steps=6), make_run("damaged", steps=6)
    assert start(undisturbed).exit_code() == start(run).exit_code() == EXIT_FINISHED
    run.check_export()
    damage_export(run, how)
    assert run.finished == (how == "flipped")  # sizes alone do not show it
    with pytest.raises(ValueError, match=r"export is damaged: .*Delete it and run its experiment again"):
        run.check_export()
    outcome = start(run)
    assert outcome.exit_code() == EXIT_FINISHED and "It was renamed to export.damaged" in outcome.output
    assert run.finished and not (run.path / "export.damaged").exists()
    assert_same_run(undisturbed, run)


def test_adopted_weights_are_not_trained_again(make_run, start):
    import dataclasses

    from training import manifest
    from training.run_folder import RunFolder

    run = make_run(steps=4)
    spec = dataclasses.replace(run.read_spec(), weights="0123")
    adopted = RunFolder.create(run.path.with_name(spec.folder_name), spec)
    assert start(run).exit_code() == EXIT_FINISHED
    run.export.rename(adopted.export)
    assert not adopted.finished, "the export is another run's"
    manifest.seal(adopted.export, run_id=adopted.run_id)
    assert start(adopted).exit_code() == EXIT_FINISHED
    assert adopted.finished and adopted.read_metrics() == adopted.read_starts() == []
    flip(adopted.export / "model.safetensors")
    outcome = start(adopted)
    assert outcome.exit_code() == 1 and "adopt them again" in outcome.output
    assert adopted.export.exists() and not adopted.metrics_file.exists()


def test_a_half_trained_run_takes_nothing_of_another(make_run, start):
    """Checkpoints, metrics and starts of another seed, copied: the run is trained as if they were not there."""
    undisturbed, run, other = (make_run(name, steps=30, seed=seed) for name, seed in (("own", 0), ("copied", 0), ("other", 1)))
    stopped = start(other, before=slow, checkpoint_minutes=0)
    wait_for_step(other, 10)
    os.kill(stopped.processes[0].pid, signal.SIGTERM)
    assert stopped.exit_code() == EXIT_REQUEUE
    shutil.copytree(other.checkpoints, run.checkpoints)
    for name in ("metrics_file", "provenance_file"):
        shutil.copyfile(getattr(other, name), getattr(run, name))
    outcome = start(run)
    assert outcome.exit_code() == start(undisturbed).exit_code() == EXIT_FINISHED and "does not belong here" in outcome.output
    assert_same_run(undisturbed, run)
    assert run.read_starts()[-1]["end"]["weights"] == run.weights == undisturbed.weights


def test_weights_that_are_gone_are_those_of_the_last_start(make_run):
    run = make_run(steps=40)
    for ends, weights in (
        ((), None),
        (({"weights": "u"}, {"weights": "v"}), "v"),
        (({"weights": "u"}, None), None),
        (({},), None),
    ):
        starts = [{"date": str(number), "end": end} for number, end in enumerate(ends)]
        run.provenance_file.write_text(to_lines(starts))
        assert run.weights == weights
