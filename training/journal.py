"""Records of a training: its start and end, a row per step, and the steps that were skipped."""

import math
import os
import sys
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import TextIO

import torch

from data.recall import RecallSampler
from data.sampler import Sampler
from results.lines import Row, to_lines
from results.provenance import provenance
from training.distributed import World, device_label
from training.hardware import peak_flops, peak_memory_bytes
from training.optimizer import learning_rate
from training.progress import Progress, numbers
from training.run_folder import RunFolder
from training.signals import EXIT_ERROR, StopRequest
from training.spec import Execution, RunSpec, micro_batch_size
from training.step import KINDS


class AnomalyError(ValueError):
    """A bad step, which was not applied, in a run with `on_bad_step` "stop"."""


def sent(values: torch.Tensor) -> Callable[[], list[float]]:
    """Start to copy values to the host. The function that is returned waits for them and returns them."""
    if values.device.type != "cuda":
        return values.tolist
    host, arrived = torch.empty_like(values, device="cpu", pin_memory=True), torch.cuda.Event()
    host.copy_(values, non_blocking=True)
    arrived.record()

    def wait() -> list[float]:
        arrived.synchronize()
        return host.tolist()

    return wait


class Speed:
    """Tokens per second over the last `window` steps, without pauses (checkpoints)."""

    def __init__(self, batch_tokens: int, window: int = 100):
        self._batch_tokens = batch_tokens
        self._durations: deque[float] = deque(maxlen=window)
        self.resume()

    def resume(self) -> None:
        self._last = time.perf_counter()

    def tick(self) -> float:
        """Count one step and return tokens per second."""
        now = time.perf_counter()
        self._durations.append(now - self._last)
        self._last = now
        return self._batch_tokens * len(self._durations) / sum(self._durations)


class Journal:
    """The records of one run. A step is recorded while the next one computes, once its values have reached the host.

    `stop`, `save`: whether some process asked to stop, and the main one to save, as of the last step that was recorded."""

    def __init__(self, folder: RunFolder, spec: RunSpec, execution: Execution, world: World, stop: StopRequest, quiet: bool):
        self.folder, self.spec, self.execution, self.world, self.quiet = folder, spec, execution, world, quiet
        self.stop = self.save = False
        self._stop_request = stop
        peak = peak_flops(world.device)
        self._peak = None if peak is None else peak * world.size
        self._speed = Speed(spec.train.batch_tokens)
        self._pruned_share = None if spec.model.prunes else 0.0
        self._pending: tuple[int, Callable[[], list[float]]] | None = None
        self._file: TextIO | None = None

    @contextmanager
    def start(self, first_step: int, sampler: Sampler | RecallSampler) -> Iterator[Row]:
        """Record this start and, when the context ends, how it ended; the caller sets `exit_code` in the yielded row.
        metrics.jsonl gets a line per step, flushed, and is mirrored to TensorBoard."""
        end: Row = {"exit_code": EXIT_ERROR}
        self._sampler, self._last_step = sampler, first_step
        if not self.world.is_main:
            yield end
            return
        folder, name, train = self.folder, self.spec.name, self.spec.train
        epochs = sampler.epochs(train.num_steps)
        start = provenance(device_label(self.world.device), self.world.size)
        start |= {"first_step": first_step, "params": self.spec.model.num_params, "epochs": epochs}
        sequences = micro_batch_size(train, self.world.size, self.execution.micro_batch_tokens)
        start |= {"deterministic": self.execution.deterministic, "parallel": self.execution.parallel}
        start |= {"micro_batch_tokens": sequences * train.seq_len, "end": None}
        if missing := folder.begin_start(start):
            self.say(f"{folder.metrics_file}: {missing} steps before {first_step + 1} are lost; the curve has a gap")
        if first_step:
            self.say(f"{name}: resuming from step {first_step}")
        if epochs > 1:
            self.say(f"{name}: the corpus is smaller than the training budget: its tokens are seen {epochs:.2f} times")
        from torch.utils.tensorboard import SummaryWriter  # takes a second

        board = SummaryWriter(str(folder.path / "tensorboard"), purge_step=first_step + 1)
        progress = Progress(name, train.num_steps, first_step, self.quiet)
        try:
            with open(folder.metrics_file, "a") as self._file, board as self._board, progress as self._progress:
                self.resume()
                yield end
        finally:
            end["tokens"] = (self._last_step - first_step) * train.batch_tokens
            end |= {"wall_s": self._stop_request.wall_s, "peak_memory_bytes": peak_memory_bytes(self.world.device)}
            with suppress(OSError):  # a full disk was already reported
                folder.end_start(end)

    def add(self, step: int, values: torch.Tensor) -> None:
        """Send the values of a step to the host, and record the step before. Raises AnomalyError.

        `values`: loss, gradient norm, verdict, requests to stop (of any process) and to save (of the main one), then the
        model's measurements, NaN if this step made none."""
        self._record((step, sent(values)))

    def catch_up(self) -> None:
        """Record the last step, too, and flush everything to disk before a checkpoint relies on it. Raises AnomalyError."""
        self._record(None)
        if self._file is not None:
            os.fsync(self._file.fileno())

    def resume(self) -> None:
        """Continue after a pause (a checkpoint), which is not counted as time of a step."""
        self.save = False
        self._speed.resume()

    def say(self, text: str) -> None:
        """Print a message for the user, from the main process only."""
        if self.world.is_main:
            print(text, file=sys.stderr, flush=True)

    def _record(self, following: tuple[int, Callable[[], list[float]]] | None) -> None:
        """Record the pending step; `following` is pending from now on."""
        pending, self._pending = self._pending, following
        if pending is None:
            return
        step, values = pending
        loss, grad_norm, verdict, stop, save, *measured = values()
        self.stop, self.save = self.stop or stop > 0, save > 0
        train, model = self.spec.train, self.spec.model
        tokens_per_s = self._speed.tick()
        found = {name: value for name, value in zip(model.measured, measured, strict=True) if not math.isnan(value)}
        self._pruned_share = found.get("pruned_share", self._pruned_share)
        row = {
            "step": step,
            "tokens": step * train.batch_tokens,
            "loss": loss,
            "grad_norm": grad_norm,
            "lr": learning_rate((step - 1) * train.batch_tokens, train),
            "wall_s": round(self._stop_request.wall_s, 3),
            "tokens_per_s": tokens_per_s,
            # mfu: of the executed FLOPs, by the last measured share of skipped tiles; mfu_dense: as if nothing was skipped.
            "mfu": None if self._pruned_share is None else self._mfu(tokens_per_s, self._pruned_share),
            "mfu_dense": self._mfu(tokens_per_s, 0.0),
            **found,
        }
        if self._file is not None:
            self._file.write(to_lines([row]))
            self._file.flush()
            for key in ("loss", "grad_norm", "lr", "tokens_per_s"):
                self._board.add_scalar(key, row[key], step)
            self._progress.advance(numbers=numbers(row))
        self._last_step = step
        if verdict:
            self._anomaly(step, KINDS[int(verdict)], loss, grad_norm)

    def _mfu(self, tokens_per_s: float, pruned_share: float) -> float | None:
        """Return the MFU of training, with three passes' FLOPs a step; None if the peak is not known."""
        flops = 3 * self.spec.model.executed_flops_per_token(self.spec.train.seq_len, pruned_share)
        return None if self._peak is None else tokens_per_s * flops / self._peak

    def _anomaly(self, step: int, kind: str, loss: float, grad_norm: float) -> None:
        documents, start = self._sampler.rows(step - 1, 0, 1)
        row = {"step": step, "kind": kind, "loss": loss, "grad_norm": grad_norm}
        row |= {"documents": [int(document) for document in documents], "first_token": int(start)}
        file = self.folder.anomalies_file
        if self.world.is_main:
            with open(file, "a") as lines:
                lines.write(to_lines([row]))
        if self.execution.on_bad_step == "stop":
            what = f"step {step} ({kind}: loss {loss}, gradient norm {grad_norm}) was not applied"
            raise AnomalyError(f"{what}; its documents are in {file}. `--on-bad-step skip` skips such steps and continues.")
