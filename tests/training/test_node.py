"""A GPU that is slow by far, wrong or silent ends a start; a CPU is not looked at. GPUs are played, but in the last test."""

import subprocess
import sys
from contextlib import nullcontext
from pathlib import Path

import pytest
import torch

from training import node
from training.distributed import World
from training.signals import EXIT_BROKEN_NODE

GPU = torch.device("cuda", 3)


class Left(Exception):
    pass


@pytest.fixture
def played(monkeypatch):
    """An H100 that multiplies as told, and exits that raise."""

    def play(right: bool, rate: float, name: str = "NVIDIA H100 80GB HBM3", taken: int = 2**29) -> None:
        monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (80 * 2**30 - taken, 80 * 2**30))
        monkeypatch.setattr(node, "multiply", lambda device: (right, rate))
        monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: name)

    def leave(code: int) -> None:
        raise Left(code)

    monkeypatch.setattr("os._exit", leave)
    monkeypatch.setattr(node, "_wrong_together", lambda world: "")
    return play


@pytest.mark.parametrize(("right", "rate", "name", "said"), [
    (True, 98e12, "NVIDIA H100 80GB HBM3", "98 TFLOP/s, where its datasheet says 989"),
    (True, 98.9e12, "NVIDIA H100 80GB HBM3", ""), (True, 99e12, "NVIDIA H100 80GB HBM3", ""),
    (True, 9e12, "NVIDIA H100 80GB HBM3 MIG 1g.10gb", ""),
    (True, 1e9, "A GPU of tomorrow", ""),
    (False, 700e12, "NVIDIA H100 80GB HBM3", "a product of matrices is wrong"),
    (False, 1e9, "A GPU of tomorrow", "a product of matrices is wrong"),
])  # fmt: skip
def test_a_gpu_that_is_slow_by_far_or_wrong_is_told(played, right, rate, name, said):
    played(right, rate, name)
    assert node.wrong_alone(GPU) == said


@pytest.mark.parametrize(("taken", "told"), [(node.SHARED - 1, True), (node.SHARED, False)])
def test_a_gpu_that_others_use_may_be_slow_but_not_wrong(played, taken, told):
    played(True, 63e12, taken=taken)
    assert bool(node.wrong_alone(GPU)) == told
    played(False, 63e12, taken=taken)
    assert node.wrong_alone(GPU) == "a product of matrices is wrong"


def test_a_broken_gpu_ends_the_start_with_a_code_of_its_own(played, capsys):
    played(True, 1e12)
    with pytest.raises(Left, match=str(EXIT_BROKEN_NODE)):
        node.look(World(0, 1, GPU))
    assert capsys.readouterr().err == "error: this node: cuda:3: 1 TFLOP/s, where its datasheet says 989\n"


def test_an_error_of_cuda_and_a_wrong_sum_are_the_nodes(played, monkeypatch, capsys):
    played(True, 900e12)
    monkeypatch.setattr(node, "_wrong_together", lambda world: "a sum over all processes is wrong")
    with pytest.raises(Left, match=str(EXIT_BROKEN_NODE)):
        node.look(World(0, 2, GPU))

    def fail(device: torch.device) -> None:
        raise RuntimeError("CUDA error: uncorrectable ECC error\nCompile with ...")

    monkeypatch.setattr(node, "multiply", fail)
    with pytest.raises(Left, match=str(EXIT_BROKEN_NODE)):
        node.look(World(0, 2, GPU))
    assert capsys.readouterr().err.splitlines() == [
        "error: this node: cuda:3: a sum over all processes is wrong",
        "error: this node: cuda:3: CUDA error: uncorrectable ECC error",
    ]


def test_a_full_gpu_is_not_broken(played, monkeypatch):
    def fill(device: torch.device) -> None:
        raise torch.OutOfMemoryError("CUDA out of memory")

    monkeypatch.setattr(node, "multiply", fill)
    with pytest.raises(torch.OutOfMemoryError):
        node.look(World(0, 1, GPU))


def test_a_gpu_that_others_use_is_as_fast_as_its_fastest_product(monkeypatch):
    monkeypatch.setattr(node, "SIZE", 64)
    times = iter([0.0, 1.0] * 7 + [0.0, 0.5] + [0.0, 1.0] * (node.PRODUCTS - 8))
    monkeypatch.setattr("time.perf_counter", lambda: next(times))
    assert node.multiply(torch.device("cpu")) == (True, 2 * 64**3 / 0.5)


def test_a_gpu_that_does_not_answer_is_left_behind():
    code = "import time, torch; from training import node; from training.distributed import World; node.SILENT_S = 0.1; " \
           "node.multiply = lambda device: time.sleep(60); node.look(World(0, 1, torch.device('cuda')))"  # fmt: skip
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=Path(__file__).parents[2], capture_output=True, text=True, check=False
    )
    assert done.returncode == EXIT_BROKEN_NODE and "error: this node: no answer for" in done.stderr


def test_a_cpu_is_not_looked_at(monkeypatch):
    monkeypatch.setattr(node, "wrong_alone", lambda device: pytest.fail("looked at"))
    node.look(World(0, 1, torch.device("cpu")))


def test_products_and_sums_that_are_wrong_are_seen(monkeypatch):
    """On the CPU, at a small size."""
    monkeypatch.setattr(node, "SIZE", 64)
    cpu = torch.device("cpu")
    assert node.multiply(cpu)[0] and node._wrong_together(World(0, 1, cpu)) == ""
    assert node._wrong_together(World(1, 1, cpu)) == "a sum over all processes is wrong"
    eye = torch.eye
    monkeypatch.setattr(torch, "eye", lambda *args, **rest: eye(*args, **rest).index_fill_(0, torch.tensor([63]), 0))
    assert not node.multiply(cpu)[0]


@pytest.mark.parametrize("equal", [(True, False), (False, True), (False, False)])
def test_the_first_product_and_the_last_must_be_right(equal, monkeypatch):
    monkeypatch.setattr(node, "SIZE", 64)
    results = iter(equal)
    monkeypatch.setattr(torch, "equal", lambda one, other: next(results))
    assert not node.multiply(torch.device("cpu"))[0]


@pytest.mark.parametrize("found", ["sound", "slow", "wrong", "broken", "full", "wrong together"])
def test_a_gpu_that_has_answered_is_not_waited_for(found, played, monkeypatch):
    """The limit would else end the training that follows. Those that wait for a hung GPU of another node wait longer than that
    node does, which is the one to blame."""
    timers = []

    class Timer:
        daemon = False

        def __init__(self, seconds: float, function: object, arguments: list[str]):
            self.seconds, self.waits = seconds, False
            timers.append(self)

        def start(self) -> None:
            self.waits = True

        def cancel(self) -> None:
            self.waits = False

    def waiting() -> list[float]:
        assert all(timer.daemon for timer in timers)
        return [timer.seconds for timer in timers if timer.waits]

    def together(world: World) -> str:
        assert waiting() == [node.PEERS_S] and node.PEERS_S >= 3 * node.SILENT_S
        return "wrong" if found == "wrong together" else ""

    def multiply(device: torch.device) -> tuple[bool, float]:
        assert waiting() == [node.SILENT_S]
        if found in ("broken", "full"):
            raise (torch.OutOfMemoryError if found == "full" else RuntimeError)("CUDA")
        return found != "wrong", 1e12 if found == "slow" else 9e14

    played(True, 0)
    monkeypatch.setattr(node, "multiply", multiply)
    monkeypatch.setattr(node, "_wrong_together", together)
    monkeypatch.setattr("threading.Timer", Timer)
    for name in ("empty_cache", "reset_peak_memory_stats"):
        monkeypatch.setattr(torch.cuda, name, lambda *device: None)
    with nullcontext() if found == "sound" else pytest.raises(torch.OutOfMemoryError if found == "full" else Left):
        node.look(World(0, 1, GPU))
    assert timers and not waiting()


@pytest.mark.gpu
def test_the_gpu_of_this_machine_is_sound():
    right, _ = node.multiply(torch.device("cuda", 0))
    assert right
    node.look(World(0, 1, torch.device("cuda", 0)))
    assert torch.cuda.max_memory_allocated() == torch.cuda.memory_allocated()
