"""Requests of processes to one another, clocks and signals, and what is asked of the hardware, by hand."""

import contextlib
import datetime
import errno
import os
import signal
from types import SimpleNamespace

import pytest
import torch
from torch import nn

from training import (
    checkpoint,
    distributed,
    hardware,
    journal,
    run_folder,
    signals,
)
from training.distributed import World
from training.spec import TrainSpec

CPU = torch.device("cpu")
GPU = torch.device("cuda", 1)
ALONE = World(0, 1, CPU)
SPEC = TrainSpec(seq_len=4, batch_tokens=32, train_tokens=32 * 200, warmup_tokens=32, peak_lr=0.5, precision="fp32")


@pytest.fixture
def asked(monkeypatch):
    """All that is asked of torch.distributed, in order."""
    calls: list[tuple] = []
    for name in ("barrier", "all_reduce", "broadcast_object_list", "init_process_group", "destroy_process_group"):
        monkeypatch.setattr(distributed.dist, name, lambda *given, name=name, **named: calls.append((name, *given, named)))
    return calls


def test_a_process_alone_asks_nobody_and_one_of_several_all(asked):
    value = torch.ones(2)
    assert ALONE.sum(value) is value and ALONE.broadcast(7) == 7 and ALONE.barrier() is None and not asked
    second = World(1, 2, CPU)
    assert second.sum(value) is value and second.broadcast(7) == 7 and (second.is_main, ALONE.is_main) == (False, True)
    second.barrier()
    assert asked == [("all_reduce", value, {}), ("broadcast_object_list", [7], {"src": 0}), ("barrier", {})]


@pytest.mark.parametrize(("given", "device", "world", "backend"), [
    ({}, "cpu", (0, 1, CPU), None), ({"RANK": "3", "WORLD_SIZE": "4", "LOCAL_RANK": "1"}, "cpu", (3, 4, CPU), "gloo"),
    ({"RANK": "3", "WORLD_SIZE": "4", "LOCAL_RANK": "1"}, "cuda", (3, 4, GPU), "cpu:gloo,cuda:nccl"),
    ({"LOCAL_RANK": "1"}, "auto", (0, 1, GPU), None), ({"RANK": "1", "WORLD_SIZE": "2"}, "cpu", (1, 2, CPU), "gloo"),
])  # fmt: skip
def test_processes_meet_as_torchrun_says(asked, monkeypatch, given, device, world, backend):
    for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK"):
        monkeypatch.delenv(name, raising=False)
    for name, value in given.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    chosen = []
    monkeypatch.setattr(torch.cuda, "set_device", chosen.append)
    with contextlib.suppress(KeyError), distributed.join_world(device, 1.5) as joined:
        assert joined == World(*world)
        raise KeyError  # also then the group is left
    timeout, own = datetime.timedelta(seconds=90), world[2] if world[2] == GPU else None
    together = [("init_process_group", backend, {"timeout": timeout, "device_id": own}), ("destroy_process_group", {})]
    assert asked == (together if backend else []) and chosen == ([GPU] if world[2] == GPU else [])


def test_a_gpu_that_is_not_there_is_refused(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert distributed.pick_device("auto") == distributed.pick_device("cpu") == CPU
    monkeypatch.setattr(torch.backends.cuda, "is_built", lambda: True)
    with pytest.raises(ValueError, match="--device cuda: torch sees no CUDA device here; use --device cpu"):
        distributed.pick_device("cuda")
    monkeypatch.setattr(torch.backends.cuda, "is_built", lambda: False)
    with pytest.raises(ValueError, match=r"--device cuda: torch .* is built without CUDA; use --device cpu, or a torch"):
        distributed.pick_device("cuda")


@pytest.mark.parametrize(("parallel", "local", "mesh", "names"), [
    ("fsdp", None, (8,), None), ("hsdp", "4", (2, 4), ("nodes", "gpus")), ("hsdp", None, (1, 8), ("nodes", "gpus")),
])  # fmt: skip
def test_sharded_models_are_split_layer_by_layer(monkeypatch, parallel, local, mesh, names):
    """Over all processes, or those of a node; gradients are reduced in the dtype that is asked for."""
    monkeypatch.delenv("LOCAL_WORLD_SIZE", raising=False)
    if local is not None:
        monkeypatch.setenv("LOCAL_WORLD_SIZE", local)
    made, units = [], []
    monkeypatch.setattr(distributed, "init_device_mesh", lambda *given, **named: made.append((*given, named)) or "mesh")
    monkeypatch.setattr(
        distributed,
        "fully_shard",
        lambda unit, mesh, mp_policy: units.append((unit, mesh, mp_policy.reduce_dtype, mp_policy.param_dtype)),
    )
    layers, world = [nn.Linear(1, 1), nn.Linear(1, 1)], World(1, 8, CPU)
    for dtype, found in (("fp32", torch.float32), ("bf16", torch.bfloat16)):
        module = nn.Sequential(*layers)
        assert distributed.spread(module, layers, world, parallel, dtype) is module
        assert units == [(unit, "mesh", found, None) for unit in (*layers, module)]
        units.clear()
    assert made[0] == ("cpu", mesh, {"mesh_dim_names": names} if names else {})
    assert distributed.spread(module, layers, ALONE, parallel, "bf16") is module and not units


def test_nodes_of_unequal_size_are_refused(monkeypatch):
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "3")
    words = "--parallel hsdp: 8 processes, 3 on this node; give every node the same number, or use fsdp"
    with pytest.raises(ValueError, match=words):
        distributed.spread(nn.Linear(1, 1), [], World(1, 8, CPU), "hsdp", "fp32")


@pytest.mark.parametrize(("device", "devices"), [(CPU, None), (GPU, [GPU])])
@pytest.mark.parametrize("dtype", ["fp32", "bf16"])
def test_replicated_models_are_wrapped_for_their_device(monkeypatch, device, devices, dtype):
    made = []

    class Wrapped:
        def __init__(self, module: nn.Module, **named: object):
            made.append((module, named))

        def register_comm_hook(self, state: object, hook: object) -> None:
            made.append((state, hook))

    monkeypatch.setattr(distributed, "DistributedDataParallel", Wrapped)
    module = nn.Linear(1, 1)
    assert isinstance(distributed.spread(module, [], World(0, 2, device), "ddp", dtype), Wrapped)
    assert made[0] == (module, dict(device_ids=devices, gradient_as_bucket_view=True, broadcast_buffers=False))
    assert made[1:] == [(None, distributed._reduce_in_bf16)] * (dtype == "bf16")


@pytest.mark.parametrize(("size", "in_pairs", "dtype", "pairs"), [
    (2, True, "fp32", False), (3, True, "fp32", False), (4, True, "fp32", True), (6, True, "fp32", False),
    (16, True, "fp32", True), (4, False, "fp32", False), (4, True, "bf16", False),
])  # fmt: skip
def test_powers_of_two_are_added_in_pairs(monkeypatch, size, in_pairs, dtype, pairs):
    hooks, meshes = [], []
    wrapped = SimpleNamespace(register_comm_hook=lambda state, hook: hooks.append(hook))
    mesh = SimpleNamespace(ndim=2, get_group=lambda level: level)
    monkeypatch.setattr(distributed, "DistributedDataParallel", lambda *given, **named: wrapped)
    monkeypatch.setattr(distributed, "init_device_mesh", lambda kind, shape: meshes.append((kind, shape)) or mesh)
    distributed.spread(nn.Linear(1, 1), [], World(0, size, CPU), "ddp", dtype, in_pairs)
    assert hooks == [distributed.Pairs.average] * pairs + [distributed._reduce_in_bf16] * (dtype == "bf16")
    assert meshes == [("cpu", (2,) * (size.bit_length() - 1))] * pairs


def test_gradients_are_averaged_in_bf16(monkeypatch):
    sent, gradients = [], torch.tensor([1.0, 2.0**-20 + 1, 3.0])

    def all_reduce(tensor: torch.Tensor, async_op: bool) -> SimpleNamespace:
        sent.append((tensor.clone(), async_op))
        future: torch.futures.Future = torch.futures.Future()
        future.set_result([2 * tensor])
        return SimpleNamespace(get_future=lambda: future)

    monkeypatch.setattr(distributed.dist, "all_reduce", all_reduce)
    monkeypatch.setattr(distributed.dist, "get_world_size", lambda: 4)
    found = distributed._reduce_in_bf16(None, SimpleNamespace(buffer=lambda: gradients)).wait()
    ((halved, asynchronous),) = sent
    assert asynchronous and halved.dtype is torch.bfloat16 and halved.tolist() == [0.25, 0.25, 0.75]
    assert found is gradients and gradients.tolist() == [0.5, 0.5, 1.5]


@pytest.mark.parametrize("enabled", [True, False])
def test_gradients_are_communicated_in_the_last_micro_batch(monkeypatch, enabled):
    said = []
    sharded = SimpleNamespace(set_requires_gradient_sync=said.append)
    with distributed.gradient_sync(sharded, enabled):
        assert said == [enabled]
    with distributed.gradient_sync(nn.Linear(1, 1), enabled):
        pass

    class Wrapped:
        @contextlib.contextmanager
        def no_sync(self):
            said.append("none")
            yield
            said.append("over")

    monkeypatch.setattr(distributed, "DistributedDataParallel", Wrapped)
    with distributed.gradient_sync(Wrapped(), enabled):
        assert said[1:] == ([] if enabled else ["none"])
    assert said[1:] == ([] if enabled else ["none", "over"])


@pytest.fixture
def clock(monkeypatch):
    now = [100.0]
    for module in (signals, checkpoint, journal, run_folder):
        monkeypatch.setattr(module.time, "monotonic", lambda: now[0])
        monkeypatch.setattr(module.time, "perf_counter", lambda: now[0])
        monkeypatch.setattr(module.time, "sleep", lambda seconds: now.__setitem__(0, now[0] + seconds))
    return now


@pytest.fixture
def handlers(monkeypatch):
    found = {}
    monkeypatch.setattr(signals.signal, "signal", found.__setitem__)
    return found


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 75), (signal.SIGUSR2, 75)])
def test_a_signal_asks_to_stop_and_a_second_interrupt_stops(handlers, number, code):
    stop = signals.StopRequest()
    assert set(handlers) == {signal.SIGINT, signal.SIGTERM, signal.SIGUSR2} and not stop.requested and stop.exit_code is None
    handlers[number](number, None)
    assert stop.requested and (stop.exit_code, stop.reason) == (code, number.name)
    with pytest.raises(KeyboardInterrupt):
        handlers[signal.SIGINT](signal.SIGINT, None)
    handlers[signal.SIGTERM](signal.SIGTERM, None)
    assert (stop.exit_code, stop.reason) == (75, "SIGTERM")


def test_the_limit_of_the_clock(handlers, clock):
    stop = signals.StopRequest(0.5)
    clock[0] += 1800
    assert not stop.requested and stop.wall_s == 1800 and not signals.StopRequest(None).requested
    clock[0] += 0.1
    assert stop.requested and (stop.exit_code, stop.reason) == (75, "the wall-clock limit")
    stopped = signals.StopRequest(0.5)
    handlers[signal.SIGINT](signal.SIGINT, None)
    clock[0] += 9999
    assert stopped.requested and stopped.exit_code == 130


def test_a_watchdog_ends_with_the_training():
    with signals.Watchdog(20.0) as dog:
        assert not dog._done.is_set()
    assert dog._done.is_set()


@pytest.mark.parametrize(("minutes", "look_s"), [(1.0, 6.0), (1.5, 9.0), (20.0, 10.0)])
def test_a_watchdog_looks_often_and_waits_for_its_limit(monkeypatch, capsys, clock, minutes, look_s):
    dog, asked = signals.Watchdog(minutes), []

    def wait(seconds: float) -> bool:
        asked.append(seconds)
        clock[0] += 60 * minutes / 2
        return len(asked) > 9

    def leave(code: int) -> None:
        raise SystemExit(code)

    dog._done = SimpleNamespace(wait=wait, set=lambda: None)
    monkeypatch.setattr(signals.os, "_exit", leave)
    monkeypatch.setattr(signals.faulthandler, "dump_traceback", lambda file: print("stacks", file=file))
    dog.alive()
    with pytest.raises(SystemExit) as left:
        dog._watch()
    assert left.value.code == 75 and asked == [look_s] * 3  # at twice half the limit it waits still
    assert capsys.readouterr().err.startswith(
        f"no step finished for {90 * minutes:.0f} s; stacks follow, then this process exits"
    )


def test_speed_is_of_the_last_steps_without_pauses(clock):
    speed = journal.Speed(100, window=2)
    found = []
    for seconds in (1, 2, 4):
        clock[0] += 50
        speed.resume()
        clock[0] += seconds
        found.append(speed.tick())
    assert found == [100.0, 200 / 3, 200 / 6]


@pytest.mark.parametrize(
    ("rank", "minutes", "passed", "due"), [(0, 2.0, 119, False), (0, 2.0, 120, True), (1, 2.0, 999, False), (0, 0.0, 0, True)]
)
def test_a_checkpoint_is_due_by_the_clock_of_the_main_process(tmp_path, clock, monkeypatch, rank, minutes, passed, due):
    monkeypatch.setattr(checkpoint.dist, "new_group", lambda backend: backend)
    saved = checkpoint.Checkpoints(tmp_path, "r", World(rank, 2, CPU), background=True, minutes=minutes)
    clock[0] += passed
    assert saved.due is due and saved._group == "gloo"
    assert checkpoint.Checkpoints(tmp_path, "r", World(rank, 2, CPU))._group is None
    assert checkpoint.Checkpoints(tmp_path, "r", ALONE, background=True)._group is None


def test_a_run_is_waited_for_and_then_refused(make_run, monkeypatch, clock):
    run, tries = make_run(), []

    def flock(file: object, how: int) -> None:
        tries.append(how)
        if len(tries) < 9:
            raise BlockingIOError

    monkeypatch.setattr(run_folder.fcntl, "flock", flock)
    with run.lock():
        assert (
            len(tries) == 9 and set(tries) == {run_folder.fcntl.LOCK_EX | run_folder.fcntl.LOCK_NB} and 100.7 < clock[0] < 100.9
        )
    tries[:] = [0] * -999
    monkeypatch.setattr(run_folder.fcntl, "flock", lambda file, how: (_ for _ in ()).throw(BlockingIOError))
    with pytest.raises(ValueError, match="is being trained by another process; wait for it, or stop it first"), run.lock():
        pass
    assert run_folder.LOCK_WAIT_S < clock[0] - 100.8 < run_folder.LOCK_WAIT_S + 0.3


@pytest.mark.parametrize(("number", "raised", "said"), [
    *((number, ValueError, "run: its file system has no locks; mount it with locks .*, or choose another --runs-dir")
      for number in (errno.ENOSYS, errno.EOPNOTSUPP, errno.ENOLCK)), (errno.EIO, OSError, "Input/output error"),
])  # fmt: skip
def test_a_file_system_without_locks_is_named(make_run, monkeypatch, number, raised, said):
    def flock(file: object, how: int) -> None:
        raise OSError(number, os.strerror(number))

    run = make_run()
    monkeypatch.setattr(run_folder.fcntl, "flock", flock)
    with pytest.raises(raised, match=said), run.lock():
        pass


@pytest.mark.parametrize(
    ("name", "rate"),
    [(f"NVIDIA {part} 80GB", rate) for part, rate in hardware.DENSE_BF16_PEAK.items()] + [("Tesla V100", None)],
)
def test_the_peak_of_a_gpu_is_by_its_name(monkeypatch, name, rate):
    asked = []
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: asked.append(device) or name)
    assert hardware.peak_flops(GPU) == rate and hardware.peak_flops(CPU) is None and asked == [GPU]
    assert distributed.device_label(GPU) == name


def test_memory_is_the_most_that_was_used(monkeypatch):
    monkeypatch.setattr(torch.cuda, "max_memory_allocated", lambda device: {GPU: 77}[device])
    monkeypatch.setattr(
        hardware.resource, "getrusage", lambda who: {hardware.resource.RUSAGE_SELF: SimpleNamespace(ru_maxrss=3)}[who]
    )
    assert hardware.peak_memory_bytes(GPU) == 77 and hardware.peak_memory_bytes(CPU) == 3072


@pytest.mark.parametrize("compiled", [True, False])
def test_what_repeats_bit_by_bit(monkeypatch, compiled):
    import torch._inductor.config as inductor

    from kernels.fla_cpu import tuning

    said = []
    monkeypatch.delenv("CUBLAS_WORKSPACE_CONFIG", raising=False)
    monkeypatch.setattr(torch, "use_deterministic_algorithms", said.append)
    monkeypatch.setattr(tuning, "fix_tuning", lambda: said.append("fixed"))
    monkeypatch.setattr(torch.utils.deterministic, "fill_uninitialized_memory", True)
    with inductor.patch(deterministic=False):
        hardware.repeat_bits(compiled)
        assert inductor.deterministic is compiled
    assert said == [True, "fixed"] and os.environ["CUBLAS_WORKSPACE_CONFIG"] == ":4096:8"
    assert not torch.utils.deterministic.fill_uninitialized_memory


def test_values_of_a_cpu_are_there_at_once():
    assert journal.sent(torch.tensor([1.0, 2.0]))() == [1.0, 2.0]
