"""Records of a training: its start and end, a row per step, steps that were not applied."""

import math
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress

import torch

from data.recall import RecallSampler
from data.sampler import Sampler
from results.provenance import provenance
from training.distributed import World, device_label
from training.guard import KINDS
from training.hardware import peak_flops, peak_memory_bytes
from training.lines import Row, line
from training.metrics import MetricsWriter, PendingReport, Speed, StepReport
from training.progress import Progress, numbers
from training.run_folder import RunFolder
from training.schedule import learning_rate
from training.signals import EXIT_ERROR, StopRequest
from training.spec import Execution, RunSpec


class AnomalyError(ValueError):
    """A step that was not applied, in a run that was told to stop there."""


class Journal:
    """The records of one run. A step is written down while the next one computes, when its values have reached the host.

    `stop`, `save`: what the processes asked for together, as of the last step that was written down.
    """

    def __init__(self, folder: RunFolder, spec: RunSpec, execution: Execution, world: World, stop: StopRequest, quiet: bool):
        self.folder, self.spec, self.execution, self.world, self.quiet = folder, spec, execution, world, quiet
        self.stop = self.save = False
        self._stop_request = stop
        peak = peak_flops(world.device)
        self._peak = None if peak is None else peak * world.size
        self._speed = Speed(spec.train.batch_tokens)
        self._pruned_share = None if spec.model.prunes else 0.0
        self._pending: PendingReport | None = None
        self._last_step = 0
        self._writer: MetricsWriter | None = None
        self._progress: Progress | None = None

    @contextmanager
    def start(self, first_step: int, sampler: Sampler | RecallSampler) -> Iterator[Row]:
        """Write down this start and, when it is left, how it ended; an `exit_code` put into what is yielded is added."""
        end: Row = {"exit_code": EXIT_ERROR}
        self._sampler, self._last_step = sampler, first_step
        if not self.world.is_main:
            yield end
            return
        train = self.spec.train
        epochs = sampler.epochs(train.num_steps)
        start = provenance(device_label(self.world.device), self.world.size)
        start |= {"first_step": first_step, "params": self.spec.model.num_params, "epochs": epochs}
        start |= {"deterministic": self.execution.deterministic, "end": None}
        if self.folder.begin_start(start):
            self.say(f"{self.folder.provenance_file}: a line was damaged; what it told of an earlier start is lost")
        if not self.folder.truncate(first_step):
            self.say(f"{self.folder.metrics_file}: steps before {first_step + 1} are damaged or missing; the curve has a gap")
        if first_step:
            self.say(f"{self.spec.name}: going on from step {first_step}")
        if epochs > 1:
            self.say(f"{self.spec.name}: the corpus is smaller than the training: its tokens are seen {epochs:.2f} times")
        self._writer = MetricsWriter(
            self.folder.metrics_file, self.folder.path / "tensorboard", first_step, owner=self.spec.run_id
        )
        self._progress = Progress(self.spec.name, train.num_steps, first_step, self.quiet)
        self.resume()
        try:
            with self._progress:
                yield end
        finally:
            self._writer.close()
            end["tokens"] = (self._last_step - first_step) * train.batch_tokens
            end |= {"wall_s": self._stop_request.wall_s, "peak_memory_bytes": peak_memory_bytes(self.world.device)}
            with suppress(OSError):  # a full disk has been reported
                self.folder.end_start(start, end)

    def add(self, step: int, values: torch.Tensor) -> None:
        """Send the values of a step (loss, gradient norm, verdict, wishes to stop and to save, then what the model wants
        measured) to the host, and write down the step before. Raises AnomalyError."""
        earlier, self._pending = self._pending, PendingReport(step, values)
        if earlier is not None:
            self._record(earlier.wait())

    def catch_up(self) -> None:
        """Write down the last step, too, and have everything on disk, before a checkpoint relies on it. Raises AnomalyError."""
        pending, self._pending = self._pending, None
        if pending is not None:
            self._record(pending.wait())
        if self._writer is not None:
            self._writer.sync()

    def resume(self) -> None:
        """Go on after a pause (a checkpoint), which counts as no step's time."""
        self.save = False
        self._speed.resume()

    def say(self, text: str) -> None:
        """Tell the user, from the main process."""
        if self.world.is_main:
            print(text, file=sys.stderr, flush=True)

    def _record(self, report: StepReport) -> None:
        self.stop, self.save = self.stop or report.stop, report.save
        tokens_per_s = self._speed.tick()
        measured = zip(self.spec.model.measured, report.measured, strict=True)
        found = {name: value for name, value in measured if not math.isnan(value)}
        self._pruned_share = found.get("pruned_share", self._pruned_share)
        row = {
            "step": report.step,
            "tokens": report.step * self.spec.train.batch_tokens,
            "loss": report.loss,
            "grad_norm": report.grad_norm,
            "lr": learning_rate((report.step - 1) * self.spec.train.batch_tokens, self.spec.train),
            "wall_s": round(self._stop_request.wall_s, 3),
            "tokens_per_s": tokens_per_s,
            # Of what is executed, by the share that was skipped when it was last measured; and of a dense computation as fast.
            "mfu": None if self._pruned_share is None else self._mfu(tokens_per_s, self._pruned_share),
            "mfu_dense": self._mfu(tokens_per_s, 0.0),
            **found,
        }
        if self._writer is not None and self._progress is not None:
            self._writer.write(row)
            self._progress.advance(numbers=numbers(row))
        self._last_step = report.step
        if report.verdict:
            self._anomaly(report)

    def _mfu(self, tokens_per_s: float, pruned_share: float) -> float | None:
        """Return the share of the peak that a step's three passes take; None where the peak is not known."""
        flops = 3 * self.spec.model.executed_flops_per_token(self.spec.train.seq_len, pruned_share)
        return None if self._peak is None else tokens_per_s * flops / self._peak

    def _anomaly(self, report: StepReport) -> None:
        documents, start = self._sampler.rows(report.step - 1, 0, 1)
        kind = KINDS[report.verdict]
        if self.world.is_main:
            row = {
                "step": report.step,
                "kind": kind,
                "loss": report.loss,
                "grad_norm": report.grad_norm,
                "documents": [int(d) for d in documents],
                "first_token": int(start),
            }
            with open(self.folder.anomalies_file, "a") as file:
                file.write(line(row, self.spec.run_id))
        if self.execution.on_bad_step == "stop":
            raise AnomalyError(
                f"step {report.step} is {kind} (loss {report.loss}, gradient norm {report.grad_norm}) and was not applied; its "
                f"documents are in {self.folder.anomalies_file}. `--on-bad-step skip` goes on without such steps."
            )
