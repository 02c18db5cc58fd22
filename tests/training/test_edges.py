"""Records, checkpoints, exports and command lines at their edges, by hand."""

import contextlib
import errno
import os
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from torch import nn

from models.build import build_model
from models.spec import ForgettingTransformerSpec
from training import checkpoint, command_line, export, hardware, journal, loop, manifest, node, optimizer, step, tree
from training.distributed import World
from training.lines import line, read_line
from training.run_folder import RunFolder
from training.spec import Execution, TrainSpec

CPU, GPU = torch.device("cpu"), torch.device("cuda", 1)
ALONE = World(0, 1, CPU)
SPEC = TrainSpec(seq_len=4, batch_tokens=32, train_tokens=32 * 200, warmup_tokens=32, peak_lr=0.5, precision="fp32")
BOX = "╭─ Value error ────╮\n│ {} │\n├──────────────────┤\n│ For full helptext, see x │\n╰──────────────────╯"
RULES = " Value error\n ------\n  {}\n  ------\n  For full helptext, see x"


@pytest.mark.parametrize("form", [BOX, RULES, "{}"])
@pytest.mark.parametrize(("text", "told"), [
    ("broken.", "broken"), ("broken: ", "broken"), ("a  b\n  c", "a b c"), ("bad\n  For further information visit x", "bad"),
    ("bad [type=greater_than, input=0]", "bad"), ("one Got errors: a, b", "one"), ("Value error, bad", "bad"),
    ("Error parsing __tyro-dummy-inner__.spec: bad", "bad"),
    ("Error parsing __tyro-dummy-inner__.execution: 1 validation error for Execution\n  max_hours\n    Input should be more "
     "[type=greater_than, input_value=0.0, input_type=float]\n  For further information", "max_hours Input should be more "
     "(given: 0.0)"),
])  # fmt: skip
def test_words_are_taken_out_of_boxes(form, text, told):
    assert command_line._unboxed(form.format(text)) == told


@pytest.mark.parametrize(("words", "code", "said"), [
    (["--max-hours", "0"], 2, "error: max_hours Input should be greater than 0 (given: 0.0); see prog --help\n"),
    (["--help"], 0, ""), (["--devise"], 2, "error: Unrecognized options: --devise; see prog --help\n"),
    (["\udcff"], 2, "error: '\\udcff': this shell's locale cannot decode it; set LC_ALL=C.UTF-8\n"),
])  # fmt: skip
def test_a_mistake_is_one_line_and_help_is_none(capsys, words, code, said):
    with pytest.raises(SystemExit) as end:
        command_line.parse(Execution, words, "prog", None)
    told = capsys.readouterr()
    assert (end.value.code, told.err) == (code, said) and ("--max-hours" in told.out) is (code == 0)


def test_the_place_of_an_invalid_value():
    """Without the alternatives of a type, and with numbers of entries."""
    from pydantic import TypeAdapter, ValidationError

    integer = "Input should be a valid integer, unable to parse string as an integer"
    for kind, value, told in (
        (dict[str, list[int]], {"a": [1, "x"]}, f"a.1: {integer} (given: 'x')"),
        (dict[str, int | bool], {"a": "x"}, f"a: {integer} (given: 'x')"),
        (int, None, "Input should be a valid integer"),
    ):  # fmt: skip
        with pytest.raises(ValidationError) as met:
            TypeAdapter(kind).validate_python(value)
        assert command_line.short(met.value) == told


@pytest.mark.parametrize("text", [b"", b"[1]", b"1", b'"a"', b"null", b"{", b'{"step": 1}', b"[" * 100_000, b"\xff"])
def test_a_damaged_line_is_none(text):
    assert read_line(text) is None


def test_a_whole_start_is_written_and_shown(make_run, monkeypatch, capsys):
    """By the main process; a full disk, which was told, does not hide how it ended."""
    run, shown, scalars = make_run(steps=4), [], []
    run.provenance_file.write_text("damaged\n")
    board = contextlib.nullcontext(SimpleNamespace(add_scalar=lambda *given: scalars.append(given)))
    bar = SimpleNamespace(advance=lambda **given: shown.append(given))
    monkeypatch.setattr(journal, "Progress", lambda *given: shown.append(given) or contextlib.nullcontext(bar))
    monkeypatch.setattr("torch.utils.tensorboard.SummaryWriter", lambda *given, **named: shown.append((given, named)) or board)
    monkeypatch.setattr(journal, "provenance", lambda device, size: {"device": device, "world_size": size, "date": "d"})
    how, told = Execution(parallel="hsdp", micro_batch_tokens=128), []
    made = journal.Journal(run, run.read_spec(), how, ALONE, SimpleNamespace(wall_s=1.0), True)
    made._speed = SimpleNamespace(tick=lambda: 500.0, resume=lambda: told.append("resumed"))

    def full(self: RunFolder, start: object, end: object) -> None:
        told.append(end["exit_code"])
        raise OSError(errno.ENOSPC, "full")

    monkeypatch.setattr(RunFolder, "end_start", full)
    with made.start(0, SimpleNamespace(epochs=lambda steps: 1.0)) as end:
        made.add(1, torch.tensor([2.0, 3.0, 0.0, 0.0, 0.0]))
        made.catch_up()
        end["exit_code"] = 75
    assert told == ["resumed", 75] and made._speed is not None
    row = run.last_row()
    assert scalars == [(key, row[key], 1) for key in ("loss", "grad_norm", "lr", "tokens_per_s")]
    assert shown[0] == ((str(run.path / "tensorboard"),), {"purge_step": 1}) and shown[1] == ("run", 4, 0, True)
    assert [list(each) for each in shown[2:]] == [["numbers"]] and shown[2]["numbers"].startswith("loss 2.000")
    (start,) = run.read_starts()
    assert start == {"device": journal.device_label(CPU), "world_size": 1, "date": "d", "first_step": 0, "epochs": 1.0,
                     "params": run.read_spec().model.num_params, "deterministic": True, "parallel": "hsdp",
                     "micro_batch_tokens": 128, "end": None}  # fmt: skip
    assert "a damaged line was dropped; its record of an earlier start is lost" in capsys.readouterr().err
    journal.Journal(run, run.read_spec(), how, World(1, 2, CPU), None, True).say("from another process")
    assert capsys.readouterr().err == ""


def test_documents_of_a_bad_step_are_of_the_first_process_of_one(make_run):
    asked = []
    own = SimpleNamespace(world=World(1, 2, CPU), folder=make_run(), execution=Execution(on_bad_step="skip"),
        _sampler=SimpleNamespace(rows=lambda *given: asked.append(given) or ([], 0)))  # fmt: skip
    journal.Journal._anomaly(own, 5, "spike", 1.0, 2.0)
    assert asked == [(4, 0, 1)]


def of(folder: Path, world: World, background: bool = False, **more: object) -> checkpoint.Checkpoints:
    return checkpoint.Checkpoints(folder, "r", world, background=background, **more)


def test_what_a_background_checkpoint_met_is_raised_by_the_next_before_it_begins(tmp_path, monkeypatch):
    saved, begun = of(tmp_path, ALONE, background=True), []

    def write(step: int, state: object, group: object) -> None:
        begun.append(step)
        if step == 1:
            raise OSError(errno.ENOSPC, "full")

    monkeypatch.setattr(saved, "_write", write)
    saved.save(1, {"a": torch.ones(1)})
    with pytest.raises(OSError, match="full"):
        saved.save(2, {"a": torch.ones(1)})
    assert begun == [1]
    saved.save(3, {"a": torch.ones(1)})
    saved.wait()
    saved.wait()
    assert begun == [1, 3]


@pytest.mark.parametrize(("rank", "done"), [(0, ["dcp", "publish", "meet"]), (1, ["dcp", "meet"])])
def test_one_of_several_processes_publishes_a_checkpoint(tmp_path, monkeypatch, rank, done):
    did = []
    saved = of(tmp_path, World(rank, 2, CPU))
    monkeypatch.setattr(checkpoint.dcp, "save", lambda state, storage_writer, process_group, no_dist: (
        did.append("dcp") if (process_group, no_dist) == ("group", False) else None))  # fmt: skip
    monkeypatch.setattr(saved, "_publish", lambda step, partial: did.append("publish"))
    monkeypatch.setattr(checkpoint.dist, "barrier", lambda group: did.append("meet") if group == "group" else None)
    saved._write(3, {}, "group")
    assert did == done


@pytest.mark.parametrize(("free", "refused"), [(420, False), (419, True)])
def test_a_checkpoint_has_room_or_is_not_begun(tmp_path, monkeypatch, free, refused):
    """Five per cent more than its tensors take; remains of earlier ones are gone before."""
    saved = of(tmp_path / "deep" / "checkpoints", ALONE)
    saved.folder.mkdir(parents=True)
    (saved.folder / "step-00000001.partial").mkdir()
    monkeypatch.setattr(checkpoint.shutil, "disk_usage", lambda folder: SimpleNamespace(free=free))
    monkeypatch.setattr(saved, "_write", lambda *given: None)
    words = rf"the disk is too full for a checkpoint: 0.00 GiB needed, 0.00 GiB free at {saved.folder}"
    with pytest.raises(OSError, match=words) if refused else contextlib.nullcontext():
        saved.save(2, {"a": torch.ones(50), "b": torch.ones(100, dtype=torch.bfloat16)})
    assert not any(saved.folder.iterdir())


@pytest.mark.parametrize(("size", "gathered"), [(1, False), (2, True)])
def test_sharded_weights_are_gathered_for_the_export_and_all_wait_for_it(make_run, monkeypatch, size, gathered):
    run, met, asked = make_run(), [], []
    monkeypatch.setattr(export, "get_model_state_dict", lambda model, options: asked.append(options) or "gathered")
    world = SimpleNamespace(size=size, is_main=False, barrier=lambda: met.append("barrier"))
    export.export_model(SimpleNamespace(state_dict=lambda: "own"), None, run.read_spec(), run, world)
    assert met == ["barrier"] and [(each.full_state_dict, each.cpu_offload) for each in asked] == [(True, True)] * gathered


@pytest.mark.parametrize(("there", "aside", "left"), [(False, False, set()), (True, False, {"new"}), (True, True, {"new"})])
def test_a_damaged_export_takes_the_place_of_an_older_one(make_run, capsys, there, aside, left):
    run = make_run()
    for path, name in [(run.export, "new")] * there + [(run.path / export.ASIDE, "old")] * aside:
        path.mkdir()
        (path / name).touch()
    assert export.already_exported(run, run.read_spec(), ALONE) is False and not run.export.exists()
    assert {path.name for path in (run.path / export.ASIDE).glob("*")} == left
    assert ("It was renamed to export.damaged" in capsys.readouterr().err) is there


@pytest.mark.parametrize(("weights", "words"), [("w", "These weights were trained elsewhere: adopt them again"), (None, None)])
def test_weights_of_elsewhere_are_not_trained_in_their_place(make_run, weights, words):
    run = make_run()
    with pytest.raises(ValueError, match=words) if words else contextlib.nullcontext():
        assert not export.already_exported(run, replace(run.read_spec(), weights=weights), ALONE)


def test_folders_that_lack_a_file(make_run, monkeypatch):
    run = make_run()
    before = run.spec_file.stat().st_mtime_ns, run.spec_file.stat().st_ino
    RunFolder.create(run.path, run.read_spec())
    assert before == (run.spec_file.stat().st_mtime_ns, run.spec_file.stat().st_ino), "it is not written again"
    assert run.export_fault(digests=False) == f"there is no {run.export / manifest.MANIFEST} or no spec.json"
    assert run.read_starts() == [] and run.truncate(0) and not run.metrics_file.exists() and not run.anomalies_file.exists()
    for folder, name in ((run.evals, "e-1.parquet"), (run.export, manifest.MANIFEST)):
        folder.mkdir()
        (folder / name).touch()
    monkeypatch.setattr(RunFolder, "finished", True)
    with pytest.raises(ValueError, match=r"provenance.jsonl has 0 damaged lines and 0 undamaged ones"):
        run.read_starts()
    run.spec_file.unlink()
    elsewhere = RunFolder(run.path)
    assert elsewhere.evaluation_fault("e-1").endswith("or no spec.json")
    assert elsewhere.export_fault(digests=False).endswith("or no spec.json")


def test_the_newest_row_is_read_from_the_end_alone(make_run, monkeypatch):
    run, read = make_run(), []
    run.metrics_file.write_text("".join(line({"step": number, "pad": "x" * 500}, run.run_id) for number in range(20)))
    monkeypatch.setattr("training.run_folder.read_line", lambda text, owner: read.append(text) or read_line(text, owner))
    assert run.last_row()["step"] == 19 and len(read) == 2


@pytest.mark.parametrize(("flags", "held"), [("fma avx2", True), ("avx2", False), ("fma", False)])
def test_bits_are_equal_among_processors_that_have_both(tmp_path, monkeypatch, flags, held):
    monkeypatch.setattr(hardware, "TOLD", tmp_path / "cpuinfo")
    hardware.TOLD.write_text(f"flags : {flags}\n")
    assert (len(hardware.equal_bits(1, {})) == 3) is held


def test_layers_are_compiled_whole_under_ddp(monkeypatch):
    import torch._dynamo

    from kernels.fla_cpu import tuning

    monkeypatch.setattr(torch, "use_deterministic_algorithms", lambda on: None)
    monkeypatch.setattr(tuning, "fix_tuning", lambda: None)
    monkeypatch.setenv("CUBLAS_WORKSPACE_CONFIG", ":16:8")
    for compiled, cut in ((False, True), (True, False)):
        with torch._dynamo.config.patch(optimize_ddp=True), torch._inductor.config.patch(deterministic=False):
            hardware.repeat_bits(compiled)
            assert torch._dynamo.config.optimize_ddp is cut
    assert os.environ["CUBLAS_WORKSPACE_CONFIG"] == ":16:8", "the user's own stays"


def test_a_task_that_is_made_as_it_is_read_opens_no_corpus(make_run, monkeypatch):
    run, did = make_run(), []
    spec = SimpleNamespace(seed=3, data=SimpleNamespace(recall="task"))
    for name, value in {"already_exported": False, "check_device": None, "StopRequest": "stop"}.items():
        monkeypatch.setattr(loop, name, lambda *given, value=value: value)
    monkeypatch.setattr(RunFolder, "read_spec", lambda self: spec)
    monkeypatch.setattr(loop, "join_world", lambda *given: contextlib.nullcontext(World(1, 2, CPU)))
    monkeypatch.setattr(loop, "_train", lambda folder, spec, corpus, how, world, stop, quiet: did.append((corpus, quiet)) or 0)
    assert loop.train(run.path, None, Execution(device="cpu")) == 0 and did == [(None, True)]


def test_parameters_of_one_kind_are_one_group():
    bare = nn.Linear(2, 3)
    bare.weight.requires_grad_(False)
    (group,) = optimizer.build_optimizer(bare, SPEC).param_groups
    assert group["weight_decay"] == 0.0 and len(group["params"]) == 1


def test_a_parameter_that_nothing_reaches_has_no_gradient():
    used, unused = (nn.Parameter(torch.ones(1)) for _ in range(2))
    for _ in tree.in_tree([used, unused], 4):
        (2 * used).sum().backward()
    assert used.grad.item() == 8 and unused.grad is None


def test_a_gradient_is_moved_to_where_all_sum_it_alike():
    parameter = nn.Parameter(torch.ones(4))
    buffer = torch.zeros(9)
    for start, moved in ((0, False), (1, True), (4, False)):
        parameter.grad = own = buffer[start : start + 4]
        for _ in tree.in_tree([parameter], 1):
            pass
        assert (parameter.grad is not own) is moved and torch.equal(parameter.grad, own)


def test_a_gpu_is_looked_at_and_left_as_it_was(monkeypatch):
    """Its peers add up 16 MiB, and what looking took does not count as the training's."""
    did, world = [], World(2, 4, GPU)
    monkeypatch.setattr(node, "wrong_alone", lambda device: did.append(device) or "")
    monkeypatch.setattr(node.threading, "Timer", lambda *given: SimpleNamespace(start=lambda: did.append(given[0]),
                        cancel=lambda: did.append("cancel")))  # fmt: skip
    monkeypatch.setattr(torch.cuda, "empty_cache", lambda: did.append("empty"))
    monkeypatch.setattr(torch.cuda, "reset_peak_memory_stats", lambda device: did.append(("reset", device)))
    monkeypatch.setattr(node, "_wrong_together", lambda given: did.append(given) or "")
    node.look(world)
    assert did == [node.SILENT_S, GPU, "cancel", node.PEERS_S, world, "cancel", "empty", ("reset", GPU)]
    monkeypatch.undo()
    for total, told in ((10.0, ""), (10.5, "a sum over all processes is wrong")):
        asked = []
        own = SimpleNamespace(
            rank=2, size=4, device=CPU, sum=lambda x, total=total, asked=asked: asked.append(x.clone()) or x.fill_(total)
        )
        assert node._wrong_together(own) == told
        assert asked[0].dtype is torch.float32 and asked[0].nbytes == 2**24 and bool((asked[0] == 3.0).all())


def test_one_false_number_of_a_sum_is_enough():
    def sum_of(x: torch.Tensor) -> torch.Tensor:
        x.fill_(3.0)[-1] = 2.0
        return x

    assert node._wrong_together(SimpleNamespace(rank=0, size=2, device=CPU, sum=sum_of))


def test_a_model_is_moved_and_its_measurements_are_where_its_batches_are(monkeypatch):
    """On a device that computes nothing."""
    meta = torch.device("meta")
    monkeypatch.setattr(step, "repeat_bits", lambda compiled: None)
    model = build_model(ForgettingTransformerSpec(vocab_size=16, hidden_size=32, num_layers=1, num_heads=2, mlp_width=32,
                                                  prune_log_tolerance=-10.0))  # fmt: skip
    made = step.build_stepper(model, SPEC, Execution(), World(0, 1, meta))
    state = optimizer.named_state(made.token_loss, made.optimizer)
    assert {each.device for each in (*made.token_loss.parameters(), *state.values(), *made.guard.state().values())} == {meta}
    ids = torch.zeros(8, 4, dtype=torch.long, device=meta)
    assert step.Meter(model, made, compiled=False).values(1, ids, ids).device == meta


def test_batches_are_read_three_ahead(monkeypatch):
    asked = []

    def ahead(items: object, depth: int) -> contextlib.AbstractContextManager:
        asked.append(depth)
        return contextlib.nullcontext(items)

    monkeypatch.setattr(step, "Prefetcher", ahead)
    load = lambda number: (torch.tensor([number]), torch.tensor([number + 1]))  # noqa: E731
    with step.batches_on(CPU, load, range(5, 7)) as batches:
        found = [(number, inputs.item(), targets.item()) for number, inputs, targets in batches]
    assert asked == [3] and found == [(5, 5, 6), (6, 6, 7)]
