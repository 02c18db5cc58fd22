"""Report of a step: copied off the device without waiting, written as one line of metrics.jsonl, flushed."""

import os
import time
from collections import deque
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from training.lines import line


@dataclass(frozen=True)
class StepReport:
    """The host's view of one step. `stop`, `save`: some process was asked to stop; the main one has a checkpoint due.
    `measured`: what the model's spec names, NaN where this step did not measure it."""

    step: int
    loss: float
    grad_norm: float
    verdict: int
    stop: bool
    save: bool
    measured: tuple[float, ...]


class PendingReport:
    """Device values on their way to the host."""

    def __init__(self, step: int, values: torch.Tensor):
        self.step = step
        self._event: torch.cuda.Event | None = None
        if values.device.type == "cuda":
            self._host = torch.empty_like(values, device="cpu", pin_memory=True)
            self._host.copy_(values, non_blocking=True)
            self._event = torch.cuda.Event()
            self._event.record()
        else:
            self._host = values

    def wait(self) -> StepReport:
        if self._event is not None:
            self._event.synchronize()
        loss, grad_norm, verdict, stop, save, *measured = self._host.tolist()
        return StepReport(self.step, loss, grad_norm, int(verdict), stop > 0, save > 0, tuple(measured))


class Speed:
    """Tokens per second over the last `window` steps, pauses (checkpoints) left out."""

    def __init__(self, batch_tokens: int, window: int = 100):
        self._batch_tokens = batch_tokens
        self._durations: deque[float] = deque(maxlen=window)
        self._last = time.perf_counter()

    def resume(self) -> None:
        """Start the clock again after a pause."""
        self._last = time.perf_counter()

    def tick(self) -> float:
        """Count one step and return tokens per second."""
        now = time.perf_counter()
        self._durations.append(now - self._last)
        self._last = now
        return self._batch_tokens * len(self._durations) / sum(self._durations)


class MetricsWriter:
    """Writer of metrics.jsonl, a line per step, mirrored to TensorBoard."""

    def __init__(self, path: Path, tensorboard: Path | None, first_step: int, *, owner: str = ""):
        self._file = open(path, "a")  # noqa: SIM115 - closed in close()
        self._owner = owner
        self._board = None
        if tensorboard is not None:
            from torch.utils.tensorboard import SummaryWriter

            self._board = SummaryWriter(str(tensorboard), purge_step=first_step + 1)

    def write(self, row: dict[str, Any]) -> None:
        self._file.write(line(row, self._owner))
        self._file.flush()
        if self._board is not None:
            for key in ("loss", "grad_norm", "lr", "tokens_per_s"):
                self._board.add_scalar(key, row[key], row["step"])

    def sync(self) -> None:
        """Have on disk what was written, before a checkpoint relies on it."""
        os.fsync(self._file.fileno())

    def close(self) -> None:
        self._file.close()
        if self._board is not None:
            self._board.close()
