"""Trainings in forked processes (each starts in milliseconds), and what two runs have in common."""

import multiprocessing
import os
import socket
import sys
from collections.abc import Callable
from pathlib import Path

import torch
from torch.utils.tensorboard import SummaryWriter

from models.build import build_model
from models.forgetting_transformer.spec import ForgettingTransformerSpec
from results.lines import read_lines
from training.loop import train
from training.run_folder import RunFolder
from training.spec import Execution

# Import here what a training imports on its way, so that the forked processes need not.
build_model(ForgettingTransformerSpec(vocab_size=16, hidden_size=32, num_layers=1, num_heads=2), device="meta")
assert SummaryWriter
FORK = multiprocessing.get_context("fork")


class Outcome:
    """A training that runs in forked processes, one a rank."""

    def __init__(
        self, run: RunFolder, corpus_dir: Path, execution: Execution, world_size: int, before: Callable[[], None] | None
    ):
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
        self.log = run.path / "test.log"
        self.processes = [
            FORK.Process(target=_rank, args=(rank, world_size, port, run, corpus_dir, execution, self.log, before))
            for rank in range(world_size)
        ]
        for process in self.processes:
            process.start()

    def exit_code(self, timeout: float = 60) -> int | None:
        """Exit code of rank 0, once all ranks have ended."""
        for process in self.processes:
            process.join(timeout)
            assert process.exitcode is not None, "a training process did not end"
        return self.processes[0].exitcode

    @property
    def output(self) -> str:
        return self.log.read_text()


def _rank(rank, world_size, port, run, corpus_dir, execution, log, before) -> None:
    os.environ.update(
        RANK=str(rank), WORLD_SIZE=str(world_size), LOCAL_RANK=str(rank % 2), LOCAL_WORLD_SIZE=str(min(world_size, 2))
    )
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
    target = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.dup2(target, 1)
    os.dup2(target, 2)
    sys.stdout, sys.stderr = os.fdopen(1, "w", buffering=1), os.fdopen(2, "w", buffering=1)
    torch.set_num_threads(1)
    if before is not None:
        before()
    os._exit(train(run.path, corpus_dir, execution, quiet=True))


TIMINGS = {"wall_s", "tokens_per_s", "mfu", "mfu_dense"}


def losses(run: RunFolder) -> list[float]:
    return [row["loss"] for row in read_lines(run.metrics_file)[0]]


def grad_norms(run: RunFolder) -> list[float]:
    return [row["grad_norm"] for row in read_lines(run.metrics_file)[0]]


def without_timings(run: RunFolder) -> list[dict]:
    return [{key: value for key, value in row.items() if key not in TIMINGS} for row in read_lines(run.metrics_file)[0]]


def weights(run: RunFolder) -> dict[str, torch.Tensor]:
    from safetensors.torch import load_file

    return load_file(run.export / "model.safetensors")


def assert_same_run(one: RunFolder, other: RunFolder) -> None:
    """Equal to the last bit: exported weights, and metrics apart from timings."""
    assert without_timings(one) == without_timings(other)
    first, second = weights(one), weights(other)
    assert first.keys() == second.keys()
    assert all(torch.equal(first[name], second[name]) for name in first)


def anomalies(run: RunFolder) -> list[dict]:
    rows, damaged = read_lines(run.anomalies_file)
    assert not damaged
    return rows
