"""The training of one run, from its spec to its exported model. Read this file from `train` downwards."""

import math
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import torch
from torch import nn

from data.corpus import Corpus
from data.prefetch import Prefetcher
from data.recall import RecallSampler
from data.sampler import Sampler, load_batch
from data.tokenizer import parse_tokenizer
from models.build import build_model
from models.loss import TokenLoss
from results.provenance import provenance
from training.average import WeightMean
from training.checkpoint import Checkpoints, State
from training.distributed import World, device_label, join_world, layers_of, pick_device, spread
from training.export import already_exported, export_model
from training.guard import KINDS, Guard
from training.hardware import peak_flops, peak_memory_bytes, repeat_bits
from training.lines import Row, line
from training.metrics import MetricsWriter, PendingReport, Speed, StepReport
from training.optimizer import allocate_state, build_optimizer, named_state
from training.progress import Progress, numbers
from training.pruning import PruningMeter
from training.run_folder import RunFolder
from training.schedule import learning_rate
from training.signals import EXIT_ERROR, EXIT_FINISHED, EXIT_REQUEUE, StopRequest
from training.spec import Execution, RunSpec, check_device, micro_batch_size
from training.step import Stepper
from training.watchdog import Watchdog

Batch = tuple[torch.Tensor, torch.Tensor]


class AnomalyError(ValueError):
    """A step that was not applied, in a run that was told to stop there."""


def train(
    run_dir: Path, corpus_dir: Path | None, execution: Execution, *, tokenizer: str | None = None, quiet: bool = False
) -> int:
    """Train the run in `run_dir` to its end, going on from its newest whole checkpoint.

    `tokenizer` says where GPT-2's vocabulary lies ("gpt2-json:FOLDER") for a LongCrawl64 `corpus_dir`.
    Returns an exit code of training.signals: finished, interrupted, or saved and to be started again. Raises ValueError
    for what the user can mend (nothing has been computed then) and OSError for a full disk (checkpoints stay whole).
    """
    folder = RunFolder.open(run_dir)
    spec = folder.read_spec()
    check_device(spec, pick_device(execution.device).type)
    torch.manual_seed(spec.seed)
    stop = StopRequest(execution.max_hours)
    with (
        join_world(execution.device, execution.hang_minutes) as world,
        folder.lock() if world.is_main else nullcontext(),
    ):
        if already_exported(folder, spec, world):
            return EXIT_FINISHED
        corpus = None if spec.data.recall is not None else open_corpus(corpus_dir, tokenizer, spec)
        return _train(folder, spec, corpus, execution, world, stop, quiet or not world.is_main)


def open_corpus(corpus_dir: Path | None, tokenizer: str | None, spec: RunSpec) -> Corpus:
    """The corpus the spec names, its tokeniser loaded now rather than after training; ValueError if it is another, or none."""
    if corpus_dir is None:
        raise ValueError(f"{spec.name} is trained on text: name the folder of its prepared corpus with --corpus-dir.")
    choice = None if tokenizer is None else parse_tokenizer(tokenizer)
    corpus = Corpus.open(corpus_dir, document_len=spec.data.document_len, tokenizer=choice)
    if corpus.spec.fingerprint != spec.data.fingerprint:
        raise ValueError(
            f"{corpus_dir} holds corpus {corpus.spec.fingerprint[:12]}, but the run was made for {spec.data.fingerprint[:12]}: "
            "give the corpus it was made for, or plan a new run for this one."
        )
    assert corpus.tokenizer.vocab_size == spec.data.vocab_size
    return corpus


def batches_of(spec: RunSpec, corpus: Corpus | None) -> tuple[Sampler | RecallSampler, Callable[[int, int, int], Batch]]:
    """Where a run's batches come from, and the batch of (step, rank, world size): pure functions, nothing to save."""
    size = spec.train.batch_size
    if corpus is None:
        assert spec.data.recall is not None
        made = RecallSampler(spec.data.recall, size, spec.seed)
        return made, made.batch
    sampler = Sampler(len(corpus.train), spec.data.document_len, spec.train.seq_len, size)
    return sampler, partial(load_batch, corpus.train, sampler, bos_id=spec.data.bos_id)


def _train(
    folder: RunFolder,
    spec: RunSpec,
    corpus: Corpus | None,
    execution: Execution,
    world: World,
    stop: StopRequest,
    quiet: bool,
) -> int:
    sampler, load = batches_of(spec, corpus)
    micro_batch = micro_batch_size(spec.train, world.size, execution.micro_batch_tokens)
    model: nn.Module = build_model(spec.model)
    if execution.deterministic:
        repeat_bits()
    if execution.activation_checkpointing:
        model.gradient_checkpointing_enable()  # type: ignore[operator]
    model.to(world.device)
    token_loss = TokenLoss(model)
    layers = layers_of(model)
    if execution.compile:
        for layer in layers:
            layer.compile()
    wrapped = spread(token_loss, layers, world, execution.parallel, spec.train.grad_reduce)
    optimizer = build_optimizer(token_loss, spec.train)
    allocate_state(optimizer)
    guard = Guard(execution.spike_factor, world)
    checkpoints = Checkpoints(folder.checkpoints, world, execution.keep_checkpoints, execution.async_checkpoint)
    mean = WeightMean(model, spec.train)
    state = _state(model, optimizer, guard, mean)
    first_step = checkpoints.newest_whole() or 0
    if first_step:
        checkpoints.load(first_step, state)
    stepper = Stepper(wrapped, optimizer, guard, spec.train, world, micro_batch)

    def read(step: int) -> Batch:
        inputs, targets = load(step, world.rank, world.size)
        return (inputs.pin_memory(), targets.pin_memory()) if world.device.type == "cuda" else (inputs, targets)

    run = _Run(folder, spec, execution, world, stop, checkpoints, sampler, quiet)
    with run.start(first_step) as end:
        with (
            Prefetcher(read, range(first_step, spec.train.num_steps), depth=3) as batches,
            Watchdog(execution.hang_minutes) as watchdog,
        ):
            meter = PruningMeter(wrapped, spec, execution.compile)
            exit_code = run.steps(stepper, mean, meter, batches, state, watchdog)
        if exit_code == EXIT_FINISHED:
            mean.put_into_model()
            export_model(model, corpus, spec, folder, world)
        end["exit_code"] = exit_code
    return exit_code


def _state(model: nn.Module, optimizer: torch.optim.AdamW, guard: Guard, mean: WeightMean) -> State:
    """Everything a run needs to go on: weights and buffers, moments, the guard's running mean, the weights' mean."""
    weights = {f"model.{name}": tensor for name, tensor in model.state_dict().items()}
    return {**weights, **named_state(model, optimizer), **guard.state(), **mean.state()}


@dataclass
class _Run:
    """The loop over steps and what surrounds each: reports, checkpoints, stopping."""

    folder: RunFolder
    spec: RunSpec
    execution: Execution
    world: World
    stop: StopRequest
    checkpoints: Checkpoints
    sampler: Sampler | RecallSampler
    quiet: bool
    last_step: int = 0
    saved_at: float = 0.0
    writer: MetricsWriter | None = None
    progress: Progress | None = None

    def __post_init__(self) -> None:
        self.pruned = getattr(self.spec.model, "prune_log_tolerance", None) is not None
        self.flops_per_token = 3 * self.spec.model.flops_per_token(self.spec.train.seq_len)
        peak = peak_flops(self.world.device)
        self.peak = None if peak is None else peak * self.world.size
        self.speed = Speed(self.spec.train.batch_tokens)

    def steps(
        self, stepper: Stepper, mean: WeightMean, meter: PruningMeter, batches: Prefetcher[int, Batch], state: State,
        watchdog: Watchdog,
    ) -> int:  # fmt: skip
        """Run the steps that are left; returns an exit code. A step's report is read while the next one computes."""
        pending: PendingReport | None = None
        num_steps = self.spec.train.num_steps
        self.saved_at = time.monotonic()
        self.speed.resume()
        for steps_before, (inputs, targets) in batches:
            step = steps_before + 1
            lr = learning_rate(steps_before * self.spec.train.batch_tokens, self.spec.train)
            inputs = inputs.to(self.world.device, non_blocking=True)
            targets = targets.to(self.world.device, non_blocking=True)
            loss, grad_norm, verdict = stepper.run(inputs, targets, lr)
            mean.add(step)
            wishes = torch.tensor([self.stop.requested, self._save_due], dtype=torch.float32, device=self.world.device)
            share = meter.share(step, inputs, targets, stepper.autocast())
            values = torch.cat([torch.stack([loss, grad_norm, verdict]), self.world.sum(wishes), share[None]])
            earlier, pending = pending, PendingReport(step, values)
            report = None if earlier is None else self._record(earlier.wait())
            watchdog.alive()
            stop = report is not None and report.stop
            if stop or (report is not None and report.save) or self.execution.checkpoint_minutes == 0 or step == num_steps:
                stop = self._record(pending.wait()).stop or stop
                pending = None
                self._save(step, state)
            if stop and step < num_steps:
                self.checkpoints.wait()
                self._say(f"{self.spec.name}: stopped by {self.stop.reason or 'another process'}, saved at step {step}")
                return EXIT_REQUEUE if self.stop.exit_code is None else self.stop.exit_code
        self.checkpoints.wait()
        return EXIT_FINISHED

    @property
    def _save_due(self) -> bool:
        """Clocks differ: the main process decides, and what each wishes is summed so that all know."""
        return self.world.is_main and time.monotonic() - self.saved_at >= 60 * self.execution.checkpoint_minutes

    def _save(self, step: int, state: State) -> None:
        if self.writer is not None:
            self.writer.sync()
        self.checkpoints.save(step, state)
        self.saved_at = time.monotonic()
        self.speed.resume()

    @contextmanager
    def start(self, first_step: int) -> Iterator[Row]:
        """Write down this start and, when it is left, how it ended; an `exit_code` put into what is yielded is added."""
        end: Row = {"exit_code": EXIT_ERROR}
        if not self.world.is_main:
            yield end
            return
        train = self.spec.train
        epochs = self.sampler.epochs(train.num_steps)
        start = provenance(device_label(self.world.device), self.world.size)
        start |= {"first_step": first_step, "params": self.spec.model.num_params, "epochs": epochs}
        start |= {"deterministic": self.execution.deterministic, "end": None}
        if self.folder.begin_start(start):
            self._say(f"{self.folder.provenance_file}: a line was damaged; what it told of an earlier start is lost")
        if not self.folder.truncate(first_step):
            self._say(f"{self.folder.metrics_file}: steps before {first_step + 1} are damaged or missing; the curve has a gap")
        if first_step:
            self._say(f"{self.spec.name}: going on from step {first_step}")
        if epochs > 1:
            self._say(f"{self.spec.name}: the corpus is smaller than the training: its tokens are seen {epochs:.2f} times")
        self.last_step = first_step
        self.writer = MetricsWriter(self.folder.metrics_file, self.folder.path / "tensorboard", first_step)
        self.progress = Progress(self.spec.name, train.num_steps, first_step, self.quiet)
        try:
            with self.progress:
                yield end
        finally:
            self.writer.close()
            end["tokens"] = (self.last_step - first_step) * train.batch_tokens
            end |= {"wall_s": self.stop.wall_s, "peak_memory_bytes": peak_memory_bytes(self.world.device)}
            with suppress(OSError):  # a full disk has been reported
                self.folder.end_start(start, end)

    def _record(self, report: StepReport) -> StepReport:
        """Write a finished step down. Raises AnomalyError."""
        tokens_per_s = self.speed.tick()
        mfu = None if self.peak is None else tokens_per_s * self.flops_per_token / self.peak
        row = {
            "step": report.step,
            "tokens": report.step * self.spec.train.batch_tokens,
            "loss": report.loss,
            "grad_norm": report.grad_norm,
            "lr": learning_rate((report.step - 1) * self.spec.train.batch_tokens, self.spec.train),
            "wall_s": round(self.stop.wall_s, 3),
            "tokens_per_s": tokens_per_s,
            # What pruning skips is not known here: its utilisation is that of a dense computation of the same speed.
            "mfu": None if self.pruned else mfu,
            "mfu_dense": mfu,
        }
        if not math.isnan(report.pruned_share):
            row["pruned_share"] = report.pruned_share
        if self.writer is not None and self.progress is not None:
            self.writer.write(row)
            self.progress.advance(numbers=numbers(row))
        self.last_step = report.step
        if report.verdict:
            self._anomaly(report)
        return report

    def _anomaly(self, report: StepReport) -> None:
        documents, start = self.sampler.rows(report.step - 1, 0, 1)
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
                file.write(line(row))
        if self.execution.on_bad_step == "stop":
            raise AnomalyError(
                f"step {report.step} is {kind} (loss {report.loss}, gradient norm {report.grad_norm}) and was not applied; its "
                f"documents are in {self.folder.anomalies_file}. `--on-bad-step skip` goes on without such steps."
            )

    def _say(self, text: str) -> None:
        if self.world.is_main:
            print(text, file=sys.stderr, flush=True)
