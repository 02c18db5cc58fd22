"""A step and what is built round it, and the words of a command line, by hand."""

import contextlib
import errno
import hashlib
import os
import signal
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from pydantic import ValidationError
from safetensors.torch import save_file
from torch import nn

from models.build import build_model
from models.spec import KINDS, ForgettingTransformerSpec
from results.sealed import read_sealed
from training import __main__ as command
from training import (
    command_line,
    loop,
    manifest,
    optimizer,
    step,
)
from training.distributed import World
from training.journal import Journal
from training.lines import line
from training.run_folder import RunFolder
from training.spec import Execution, TrainSpec, check_capability, check_device, micro_batch_size

CPU = torch.device("cpu")
GPU = torch.device("cuda", 1)
ALONE = World(0, 1, CPU)
SPEC = TrainSpec(seq_len=4, batch_tokens=32, train_tokens=32 * 200, warmup_tokens=32, peak_lr=0.5, precision="fp32")


def test_every_parameter_has_its_moments_by_name():
    model = nn.Sequential(nn.Linear(2, 3), nn.Linear(3, 1))
    model[1].bias.requires_grad_(False)
    adam = optimizer.build_optimizer(model, replace(SPEC, weight_decay=0.25, beta1=0.5, beta2=0.75, adam_eps=1e-3))
    assert [(group["weight_decay"], len(group["params"])) for group in adam.param_groups] == [(0.25, 2), (0.0, 1)]
    assert (
        adam.defaults["betas"] == (0.5, 0.75)
        and adam.defaults["eps"] == 1e-3
        and adam.defaults["lr"] == 0.0
        and adam.defaults["fused"]
    )
    assert optimizer.named_state(model, adam) == {}
    optimizer.allocate_state(adam)
    for parameter in list(model.parameters())[:3]:
        adam.state[parameter]["step"] += 3
        adam.state[parameter]["exp_avg"] += 1
        adam.state[parameter]["exp_avg_sq"] += 2
    state = optimizer.named_state(model, adam)
    assert list(state) == [
        f"{kind}.{name}" for name in ("0.weight", "0.bias", "1.weight") for kind in ("exp_avg", "exp_avg_sq", "steps")
    ]
    for name, value in state.items():
        number = {"exp_avg": 1.0, "exp_avg_sq": 2.0, "steps": 3.0}[name.split(".")[0]]
        assert value.dtype is torch.float32 and bool((value == number).all())
        assert value.shape == (() if number == 3 else dict(model.named_parameters())[name.partition(".")[2]].shape)


@pytest.mark.parametrize(("seen", "rate"), [(0, 0.0), (16, 0.25), (32, 0.5), (3216, 0.25), (6400, 0.0)])
def test_rates_by_hand(seen, rate):
    assert optimizer.learning_rate(seen, SPEC) == pytest.approx(rate, abs=1e-12)


@pytest.mark.parametrize(
    ("world", "tokens", "size"), [(1, None, 8), (2, None, 4), (8, None, 1), (1, 4, 1), (1, 32, 8), (2, 16, 4), (2, 8, 2)]
)
def test_sequences_of_a_forward_pass(world, tokens, size):
    assert (SPEC.batch_size, SPEC.num_steps) == (8, 200) and micro_batch_size(SPEC, world, tokens) == size


@pytest.mark.parametrize(("world", "tokens", "words"), [
    (3, None, "a step has 8 sequences, which do not divide among 3 processes; use a number of processes that divides 8"),
    (2, 6, "micro_batch_tokens 6 must be a multiple of seq_len 4 that divides the 16 tokens of each process"),
    (1, 12, "micro_batch_tokens 12 must be a multiple of seq_len 4 that divides the 32 tokens"),
    (2, 32, "divides the 16 tokens"),
])  # fmt: skip
def test_sequences_that_do_not_divide_are_refused(world, tokens, words):
    with pytest.raises(ValueError, match=words):
        micro_batch_size(SPEC, world, tokens)


def test_a_piece_of_text_is_never_shared_by_processes():
    cut = replace(SPEC, piece_len=2 * SPEC.seq_len)
    assert [micro_batch_size(cut, world, None) for world in (1, 2, 4)] == [8, 4, 2] and cut.num_pieces == 4
    with pytest.raises(ValueError, match="a step has 4 pieces of text of 8 tokens, which do not divide among 8 processes"):
        micro_batch_size(cut, 8, None)


@pytest.mark.parametrize(("device", "precision", "kind", "refused"), [
    ("cuda:0", "fp32", "delta_net", True), ("cuda", "bf16", "delta_net", False), ("cpu", "fp32", "delta_net", False),
    ("cuda", "fp32", "mamba2", False), ("cuda", "fp32", "path_fox", True), ("cuda", "bf16", "path_fox", False),
])  # fmt: skip
def test_what_a_gpu_cannot_train(device, precision, kind, refused):
    spec = SimpleNamespace(name="n", scale="s", train=SimpleNamespace(precision=precision), model=KINDS[kind])
    with pytest.raises(ValueError, match="n at s is trained in fp32, which") if refused else contextlib.nullcontext():
        check_device(spec, device)


@pytest.mark.parametrize(("capability", "kind", "head_dim", "refused"), [
    ((9, 0), "gated_delta_net", 63, True), ((9, 0), "gated_delta_net", 64, False), ((9, 0), "fox_hybrid", 32, True),
    ((9, 0), "fox_hybrid", 128, False), ((9, 0), "delta_net", 16, False), ((9, 0), "kimi_delta_attention", 16, False),
    ((8, 0), "gated_delta_net", 16, False), ((10, 0), "fox_hybrid", 16, False),
])  # fmt: skip
def test_whose_gradients_are_wrong_on_a_gpu(capability, kind, head_dim, refused):
    spec = SimpleNamespace(name="n", scale="s", model=SimpleNamespace(kind=kind, head_dim=head_dim))
    with pytest.raises(ValueError, match=f"with keys of {head_dim} channels") if refused else contextlib.nullcontext():
        check_capability(spec, capability)


FOX = ForgettingTransformerSpec(vocab_size=16, hidden_size=32, num_layers=2, num_heads=2, mlp_width=32)


@pytest.mark.parametrize(("execution", "size", "did"), [
    (dict(), 1, ["bits False", "look"]), (dict(deterministic=False), 1, ["look"]),
    (dict(compile="yes"), 1, ["bits True", "look", "compile", "compile"]),
    (dict(activation_checkpointing=True), 1, ["bits False", "look", "recompute"]),
    (dict(parallel="hsdp"), 2, ["bits False", "look", "hsdp 2 bf16 False"]),
    (dict(), 2, ["bits False", "look", "ddp 2 bf16 True"]),
    (dict(deterministic=False), 2, ["look", "ddp 2 bf16 False"]),
])  # fmt: skip
def test_what_a_step_is_built_of(monkeypatch, execution, size, did):
    done = []
    model = build_model(FOX)
    monkeypatch.setattr(step, "repeat_bits", lambda compiled: done.append(f"bits {compiled}"))
    monkeypatch.setattr(step, "look", lambda world: done.append("look"))
    monkeypatch.setattr(nn.Module, "compile", lambda layer: done.append("compile"))
    monkeypatch.setattr(model, "gradient_checkpointing_enable", lambda: done.append("recompute"))
    monkeypatch.setattr(step, "spread", lambda module, layers, world, parallel, dtype, in_pairs: (
        done.append(f"{parallel} {len(layers)} {dtype} {in_pairs}") if world.size > 1 else None, module)[1])  # fmt: skip
    spec = replace(SPEC, grad_reduce="bf16")
    made = step.build_stepper(
        model.eval(), spec, Execution(micro_batch_tokens=8, spike_factor=3.5, **execution), World(0, size, CPU)
    )
    assert done == did and model.training and made.micro_batch == 2 and made.guard._factor == 3.5
    assert made.ordered == (execution.get("deterministic", True) and "parallel" not in execution)
    assert len(optimizer.named_state(made.token_loss, made.optimizer)) == 3 * len(list(model.parameters()))


def test_a_guard_forms_a_mean_of_what_was_applied():
    guard = step.Guard(2.0, ALONE)
    norms = [4.0, 2.0, float("inf"), 3.0]
    found = [int(guard.judge(torch.tensor(1.0), torch.tensor(norm))) for norm in norms]
    assert found == [0, 0, step.NOT_FINITE, 0] and guard.mean_norm == 3.0 and guard.steps_seen == 3
    assert (
        list(guard.state()) == ["guard.mean_norm", "guard.steps_seen"] and guard.state()["guard.mean_norm"] is guard.mean_norm
    )
    guard.steps_seen.fill_(step.WARM_STEPS - 1)
    assert guard.judge(torch.tensor(1.0), torch.tensor(9.0)) == 0 and guard.mean_norm.item() == pytest.approx(3 + 6 / 100)
    guard.mean_norm.fill_(3.0)
    assert guard.judge(torch.tensor(1.0), torch.tensor(6.0)) == 0  # twice the mean is no spike
    assert guard.mean_norm.item() == pytest.approx(3.03) and guard.judge(torch.tensor(1.0), torch.tensor(6.2)) == step.SPIKE
    assert guard.judge(torch.tensor(float("nan")), torch.tensor(99.0)) == step.NOT_FINITE and guard.steps_seen == 101


@pytest.mark.parametrize(("steps", "every"), [(200, 3), (63, 1), (64, 1), (640, 10)])
def test_what_a_model_wants_measured_is_measured_so_often(steps, every):
    model = build_model(replace(FOX, prune_log_tolerance=-10.0))
    stepper = SimpleNamespace(
        spec=replace(SPEC, train_tokens=32 * steps), autocast=contextlib.nullcontext, token_loss=step.TokenLoss(model)
    )
    meter, ids = (
        step.Meter(model, stepper, compiled=False),
        torch.randint(16, (8, 64), generator=torch.Generator().manual_seed(0)),
    )
    assert meter.names == ("pruned_share",) and meter._every == every
    found = [meter.values(number, ids, ids) for number in (every, every + 1, 2 * every)]
    assert [value.isnan().item() for value in found] == [False, every > 1, False]
    (alone,) = meter.values(every, ids[:1], ids[:1])
    assert found[0].shape == (1,) and alone == found[0]
    silent = step.Meter(build_model(FOX), stepper, compiled=False)
    assert silent.values(every, ids, ids).shape == (0,)


def test_what_is_measured_is_a_mean_over_layers():
    found = {"x": torch.tensor([1.0, 3.0]).unbind(), "y": torch.tensor([5.0, 5.0]).unbind()}
    spec, backbone = SimpleNamespace(measured=("y", "x")), SimpleNamespace(measuring=lambda: contextlib.nullcontext(found))
    model = SimpleNamespace(config=SimpleNamespace(to_spec=lambda: spec), model=backbone)
    stepper = SimpleNamespace(spec=SPEC, autocast=contextlib.nullcontext, token_loss=lambda inputs, targets: None)
    ids = torch.zeros(1, 4, dtype=torch.int64)
    assert step.Meter(model, stepper, compiled=False).values(0, ids, ids).tolist() == [5.0, 2.0]


def test_a_repeated_step_changes_nothing_and_predicts_the_next_token(monkeypatch):
    seen = []
    model, ids = build_model(FOX), torch.arange(32).view(8, 4) % 16
    before = {name: value.clone() for name, value in model.state_dict().items()}
    whole = step.Stepper.run
    monkeypatch.setattr(
        step.Stepper,
        "run",
        lambda self, inputs, targets, lr: seen.append((inputs, targets, lr)) or whole(self, inputs, targets, lr),
    )
    with step.repeated_step(model, ids, SPEC, Execution(deterministic=False), ALONE) as once:
        once()
        once()
    assert len(seen) == 2 and all(bool((value == before[name]).all()) for name, value in model.state_dict().items())
    for inputs, targets, lr in seen:
        assert (
            lr == 0.0
            and bool((inputs == ids).all())
            and bool((targets[:, :-1] == ids[:, 1:]).all())
            and bool((targets[:, -1] == ids[:, 0]).all())
        )


def invalid(**values: object) -> ValidationError:
    with pytest.raises(ValidationError) as met:
        TrainSpec(**{**dict(seq_len=4, batch_tokens=8, train_tokens=16, warmup_tokens=0, peak_lr=1.0), **values})
    return met.value


@pytest.mark.parametrize(("error", "told"), [
    (lambda: ValueError("one\ntwo\nthree"), "one\ntwo"),
    (lambda: OSError(errno.ENOENT, "No such file", "a"), "No such file: a"), (lambda: OSError("broken"), "broken"),
    *((lambda number=number: OSError(number, "Full", "a"), "Full: a. Free some space and start the same command again.")
      for number in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)),
    (lambda: invalid(peak_lr=0.0), "peak_lr: Input should be greater than 0 (given: 0.0)"),
    (lambda: invalid(batch_tokens=6), "batch_tokens 6 is not a multiple of seq_len 4"),
    (lambda: invalid(precision=[1]), "precision: Input should be 'fp32' or 'bf16'"),
])  # fmt: skip
def test_an_error_in_a_line_or_two(error, told):
    assert command_line.short(error()) == told


@pytest.mark.parametrize(("raised", "code", "said"), [
    (None, 7, ""), (ValueError("bad"), 2, "error: bad\n"), (OSError(2, "No such file", "a"), 2, "error: No such file: a\n"),
    *((OSError(number, os.strerror(number), "a"), 2, f"error: {os.strerror(number)}: a") for number in (
        errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EACCES, errno.EPERM, errno.ENOTDIR, errno.EISDIR, errno.EEXIST,
        errno.ENOTEMPTY, errno.ELOOP, errno.ENAMETOOLONG, errno.EINVAL, errno.ENOSYS, errno.EOPNOTSUPP, errno.EPIPE)),
    *((OSError(number, os.strerror(number), "a"), 1, f"error: {os.strerror(number)}: a\n") for number in (
        errno.EIO, errno.ESTALE, errno.ESHUTDOWN, errno.EROFS, errno.ECONNRESET, errno.ETIMEDOUT, errno.ENODEV)),
    (OSError("broken"), 2, "error: broken\n"),
    (KeyboardInterrupt(), 130, "interrupted; "), (command_line.Terminated("SIGTERM"), 75, "interrupted; "),
])  # fmt: skip
def test_how_a_command_ends(monkeypatch, capsys, raised, code, said):
    found = {}
    monkeypatch.setattr(command_line.signal, "signal", found.__setitem__)
    monkeypatch.delenv("TOKENIZERS_PARALLELISM", raising=False)

    def action() -> int:
        if raised is not None:
            raise raised
        return 7

    assert (
        command_line.guarded(action) == code
        and capsys.readouterr().err.startswith(said)
        and os.environ["TOKENIZERS_PARALLELISM"] == "false"
    )
    assert set(found) == {signal.SIGTERM, signal.SIGUSR2}
    with pytest.raises(command_line.Terminated, match="SIGUSR2"):
        found[signal.SIGUSR2](signal.SIGUSR2, None)


def test_options_become_the_words_that_make_them():
    how = Execution(device="cpu", micro_batch_tokens=64, compile="yes", deterministic=False, max_hours=1.5, on_bad_step="skip")
    words = command_line.arguments_of(how)
    assert words == [
        "--device",
        "cpu",
        "--micro-batch-tokens",
        "64",
        "--compile",
        "yes",
        "--no-deterministic",
        "--max-hours",
        "1.5",
        "--on-bad-step",
        "skip",
    ]
    assert command_line.parse(Execution, words, "x", None) == how and command_line.arguments_of(Execution()) == []


@pytest.mark.parametrize(
    ("tokenizer", "fingerprint", "refused"),
    [(None, "0", None), ("gpt2-json:f", "0", None), (None, "1", "holds corpus 1, but the run was made for 0: give")],
)
def test_a_corpus_is_opened_with_its_tokeniser(monkeypatch, tokenizer, fingerprint, refused):
    asked = []
    corpus = SimpleNamespace(spec=SimpleNamespace(fingerprint=fingerprint), tokenizer=SimpleNamespace(vocab_size=9))
    monkeypatch.setattr(loop.Corpus, "open", lambda folder, **named: asked.append((folder, named)) or corpus)
    monkeypatch.setattr(loop, "parse_tokenizer", lambda text: f"parsed {text}")
    spec = SimpleNamespace(name="n", data=SimpleNamespace(document_len=64, fingerprint="0", vocab_size=9))
    with pytest.raises(ValueError, match=refused) if refused else contextlib.nullcontext():
        assert loop.open_corpus(Path("c"), tokenizer, spec) is corpus
    assert asked == [(Path("c"), {"document_len": 64, "tokenizer": None if tokenizer is None else "parsed gpt2-json:f"})]


@pytest.mark.parametrize(("source", "corpus", "tokenizer", "refused"), [
    ("packages", "c", "gpt2-json:f", "--tokenizer gpt2-json:f: only LongCrawl64 comes without a tokeniser, and n is"),
    ("recall", None, "bytes", "--tokenizer bytes: only LongCrawl64"), ("longcrawl64", "c", "gpt2-json:f", None),
    ("recall", "c", None, "--corpus-dir c: n makes its own sequences"), ("packages", "c", None, None),
    ("recall", None, None, None),
])  # fmt: skip
def test_options_that_a_training_does_not_read_are_refused(monkeypatch, tmp_path, source, corpus, tokenizer, refused):
    def stop(name: str) -> None:
        raise ValueError("goes on")

    data = SimpleNamespace(source=source, recall="task" if source == "recall" else None)
    spec = SimpleNamespace(name="n", data=data)
    monkeypatch.setattr(loop.RunFolder, "open", lambda path: SimpleNamespace(read_spec=lambda: spec))
    monkeypatch.setattr(loop, "pick_device", stop)
    with pytest.raises(ValueError, match=f"^{refused or 'goes on'}"):
        loop.train(tmp_path, Path(corpus) if corpus else None, Execution(), tokenizer=tokenizer)


@pytest.mark.parametrize(("words", "threads", "quiet", "tokenizer"), [
    ([], 1, False, None), (["--threads", "3", "--quiet", "--tokenizer", "gpt2-json:f", "--device", "cpu"], 3, True,
    "gpt2-json:f"),
])  # fmt: skip
def test_a_training_is_begun_as_the_command_says(monkeypatch, tmp_path, words, threads, quiet, tokenizer):
    did = []
    monkeypatch.setattr(RunFolder, "open", classmethod(lambda cls, path: did.append(path)))
    monkeypatch.setattr(
        command, "equal_bits", lambda count, given: did.append((count, given is os.environ)) or {"SOME_BITS": "1"}
    )
    monkeypatch.setattr(torch, "set_num_threads", did.append)
    monkeypatch.setattr(loop, "train", lambda *given, **named: did.append((given, named)) or 75)
    monkeypatch.setattr(command_line.signal, "signal", lambda *given: None)
    monkeypatch.setenv("SOME_BITS", "0")
    assert (
        command.main([str(tmp_path), "--corpus-dir", "c", "--max-hours", "2", *words]) == 75 and os.environ["SOME_BITS"] == "1"
    )
    how = Execution(max_hours=2.0, device="cpu" if words else "auto")
    called = ((tmp_path, Path("c"), how), {"tokenizer": tokenizer, "quiet": quiet})
    assert did == [tmp_path, (threads, True), threads, called]


@pytest.mark.parametrize("done", [True, False])
def test_a_training_looks_at_its_device_and_its_export_before_its_corpus(make_run, monkeypatch, capsys, done):
    run, did = make_run(), []

    @contextlib.contextmanager
    def join(device: str, minutes: float):
        did.append(("join", device, minutes))
        yield World(0, 1, CPU)

    monkeypatch.setattr(loop, "pick_device", lambda name: did.append(name) or torch.device("cuda", 1))
    monkeypatch.setattr(loop, "check_device", lambda spec, device: did.append((spec == run.read_spec(), device)))
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (device.index, 0))
    monkeypatch.setattr(loop, "check_capability", lambda spec, capability: did.append((spec.name, capability)))
    monkeypatch.setattr(loop, "check_read", lambda spec, corpus_dir, tokenizer: None)
    monkeypatch.setattr(loop, "StopRequest", lambda hours: f"stops after {hours}")
    monkeypatch.setattr(loop, "join_world", join)
    monkeypatch.setattr(loop, "already_exported", lambda folder, spec, world: did.append(folder.path) or done)
    monkeypatch.setattr(loop, "open_corpus", lambda *given: did.append(given[:2]) or "corpus")
    monkeypatch.setattr(loop, "_train", lambda *given: did.append(given[2:]) or 75)
    how = Execution(device="cuda", hang_minutes=7.0, max_hours=3.0)
    assert loop.train(run.path, Path("c"), how, tokenizer="t", quiet=True) == (0 if done else 75)
    rest = [(Path("c"), "t"), ("corpus", how, World(0, 1, CPU), "stops after 3.0", True)]
    looked = ["cuda", (True, "cuda"), (run.read_spec().name, (1, 0))]
    assert did == [*looked, ("join", "cuda", 7.0), run.path, *([] if done else rest)]
    assert torch.initial_seed() == run.read_spec().seed
    assert not capsys.readouterr().err
    loop.train(run.path, Path("c"), how)
    assert capsys.readouterr().err == f"{run.path} is trained to its last step already: nothing to do\n" * done


@pytest.mark.parametrize(("finished", "tokens", "first_steps", "dates"), [
    (True, None, [0], [0]), (True, 9, [0, 5], [0, 1]), (False, 100, [0, 5, 0, 7], [2, 3]), (False, 101, [0, 0], [1]),
    (False, 99, [0, 5], None), (False, None, [], None), (True, 100, [5, 7], [0, 1]), (True, 100, [], []),
])  # fmt: skip
def test_what_results_keep_of_a_run(monkeypatch, tmp_path, finished, tokens, first_steps, dates):
    """Its training has ended with its export or its last token, and begins with the newest start from nothing."""
    train = SimpleNamespace(train_tokens=100)
    spec = SimpleNamespace(train=train, run_id="r", scale="s", name="n", to_json=lambda: '{"a": 1}')
    starts = [{"first_step": step, "date": at} for at, step in enumerate(first_steps)]
    told = {"read_spec": spec, "last_row": None if tokens is None else {"tokens": tokens}, "read_starts": starts}
    for name, value in (told | {"read_metrics": [{"loss": 3.0}, {"loss": 2.0}]}).items():
        monkeypatch.setattr(RunFolder, name, lambda self, value=value: value)
    for name, value in (("finished", finished), ("weights", "w")):
        monkeypatch.setattr(RunFolder, name, property(lambda self, value=value: value))
    loss = None if dates is None else 2.0
    trainings = [] if dates is None else [{"weights": "w", "starts": dates, "final_loss": loss}]
    told = {"run_id": "r", "scale": "s", "name": "n", "spec": {"a": 1}, "starts": starts}
    assert RunFolder(tmp_path).record() == {**told, "trainings": trainings, "final_loss": loss}


@pytest.mark.parametrize(("ends", "weights"), [
    ([], None), ([{"weights": "a"}], "a"), ([{"weights": "a"}, {"weights": "b"}], "b"), ([{"weights": "a"}, None], None),
    ([{"weights": "a"}, {"exit_code": 75}], None), ([None, {"weights": "b"}], "b"),
])  # fmt: skip
def test_weights_that_are_gone_are_those_that_the_last_start_ended_with(tmp_path, ends, weights):
    folder = RunFolder(tmp_path)
    folder.run_id = "r"
    assert folder.weights is None
    folder.provenance_file.write_text("".join(line({"end": end}, "r") for end in ends))
    assert folder.weights == weights


def test_a_sealed_folder_is_whole_in_all_its_files(tmp_path):
    """Facts that a manifest does not tell are no fault, and what was put beside its files is none of them."""
    (tmp_path / "deep").mkdir()
    files = {"a": "one", "deep/b": "two"}
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    assert "is missing, truncated" in manifest.fault(tmp_path, digests=False)
    manifest.seal(tmp_path, run_id="r")
    (tmp_path / "beside").touch()
    for facts, told in (({}, None), ({"run_id": "r"}, None), ({"run_id": "r", "step": 3}, None),
                        ({"run_id": "s"}, "it does not belong here: its run_id is r, not s")):  # fmt: skip
        assert manifest.fault(tmp_path, digests=True, **facts) == told
    for name, text in files.items():
        base = name.rpartition("/")[2]
        for changed, digests, told in ((text + "x", False, f"{base} has 4 bytes, not 3"), ("new", False, None),
                                       ("new", True, f"{base} was altered (its SHA-256 differs)")):  # fmt: skip
            (tmp_path / name).write_text(changed)
            assert manifest.fault(tmp_path, digests=digests) == told
        (tmp_path / name).unlink()
        assert manifest.fault(tmp_path, digests=False) == f"{base} cannot be read (No such file or directory)"
        (tmp_path / name).write_text(text)
    assert manifest.weights(tmp_path) is None


def test_a_sealed_folder_is_as_open_to_others_as_the_umask_says(tmp_path):
    """Also the weights, which safetensors writes for their owner alone."""
    before = os.umask(0)
    try:
        for umask, mode in ((0o077, 0o600), (0o022, 0o644), (0o002, 0o664)):
            os.umask(umask)
            save_file({"a": torch.ones(1)}, tmp_path / "model.safetensors")
            manifest.seal(tmp_path)
            assert {path.stat().st_mode & 0o777 for path in tmp_path.iterdir()} == {mode}
    finally:
        os.umask(before)


def test_all_is_on_disk_before_it_is_relied_on(monkeypatch, tmp_path):
    """Every file before its manifest, and the rows of metrics before a checkpoint."""
    synced = []
    monkeypatch.setattr(manifest.os, "fsync", lambda number: synced.append(Path(os.readlink(f"/proc/self/fd/{number}")).name))
    (tmp_path / "deep").mkdir()
    for name in ("a", "deep/b", manifest.MANIFEST):
        (tmp_path / name).write_text(name)
    manifest.seal(tmp_path)
    assert synced[:2] == ["a", "b"] and read_sealed(tmp_path / manifest.MANIFEST, "")["files"].keys() == {"a", "deep/b"}
    synced.clear()
    own = SimpleNamespace(_record=lambda following: synced.append(following), _file=None)
    Journal.catch_up(own)
    with open(tmp_path / "metrics.jsonl", "w") as own._file:
        Journal.catch_up(own)
    assert synced == [None, None, "metrics.jsonl"]


@pytest.mark.parametrize("names", [["model.safetensors"], ["model-00001-of-2.safetensors", "model-00002-of-2.safetensors"]])
def test_weights_of_a_folder_are_of_all_their_files(tmp_path, names):
    """Names and contents of whatever files they are in; others do not count. None before they are sealed."""
    for name in (*reversed(names), "config.json"):
        (tmp_path / name).write_text(name * 2)
    assert manifest.weights(tmp_path) is None
    manifest.seal(tmp_path)
    whole = b"".join(name.encode() + hashlib.sha256(name.encode() * 2).digest() for name in names)
    assert manifest.weights(tmp_path) == hashlib.sha256(whole).hexdigest()[:16]
