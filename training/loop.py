"""The training of one run, from its spec to its exported model. Read this file from `train` downwards."""

import json
import sys
from contextlib import nullcontext
from pathlib import Path

import torch
from torch import nn

from data.corpus import Corpus
from data.prefetch import Prefetcher
from data.sampler import Sampler, load_batch
from data.tokenizer import parse_tokenizer
from models.build import build_model
from models.loss import TokenLoss
from training.checkpoint import Checkpoints, State
from training.distributed import World, device_label, join_world, layers_of, spread
from training.export import export_model
from training.guard import KINDS, Guard
from training.hardware import peak_flops
from training.metrics import MetricsWriter, PendingReport, Speed, StepReport
from training.optimizer import allocate_state, build_optimizer, named_state
from training.progress import RunProgress
from training.provenance import provenance
from training.run_folder import RunFolder
from training.schedule import learning_rate
from training.signals import EXIT_FINISHED, EXIT_REQUEUE, StopRequest
from training.spec import Execution, RunSpec, micro_batch_size
from training.step import Stepper
from training.watchdog import Watchdog

Batch = tuple[torch.Tensor, torch.Tensor]


class AnomalyError(RuntimeError):
    """A step that was not applied, in a run that was told to stop there."""


def train(run_dir: Path, corpus_dir: Path, execution: Execution, *, tokenizer: str | None = None, quiet: bool = False) -> int:
    """Train the run in `run_dir` to its end, going on from its newest whole checkpoint.

    `tokenizer` says where GPT-2's vocabulary lies ("gpt2-json:FOLDER") for a LongCrawl64 `corpus_dir`.
    Returns an exit code of training.signals: finished, interrupted, or saved and to be started again. Raises ValueError
    for what the user can mend (nothing has been computed then) and OSError for a full disk (checkpoints stay whole).
    """
    folder = RunFolder.open(run_dir)
    spec = folder.read_spec()
    if folder.finished:
        return EXIT_FINISHED
    torch.manual_seed(spec.seed)
    stop = StopRequest(execution.max_hours)
    with join_world(execution.device, execution.hang_minutes) as world, folder.lock() if world.is_main else nullcontext():
        corpus = open_corpus(corpus_dir, tokenizer, spec)
        return _train(folder, spec, corpus, execution, world, stop, quiet or not world.is_main)


def open_corpus(corpus_dir: Path, tokenizer: str | None, spec: RunSpec) -> Corpus:
    """The corpus the spec names, its tokeniser loaded now rather than after training; ValueError if it is another."""
    choice = None if tokenizer is None else parse_tokenizer(tokenizer)
    corpus = Corpus.open(corpus_dir, document_len=spec.data.document_len, tokenizer=choice)
    assert corpus.tokenizer.vocab_size == spec.data.vocab_size
    if corpus.spec.fingerprint != spec.data.fingerprint:
        raise ValueError(
            f"{corpus_dir} holds corpus {corpus.spec.fingerprint[:12]}, but the run was made for {spec.data.fingerprint[:12]}: "
            "give the corpus it was made for, or plan a new run for this one."
        )
    return corpus


def _train(
    folder: RunFolder,
    spec: RunSpec,
    corpus: Corpus,
    execution: Execution,
    world: World,
    stop: StopRequest,
    quiet: bool,
) -> int:
    sampler = Sampler(len(corpus.train), spec.data.document_len, spec.train.seq_len, spec.train.batch_size)
    micro_batch = micro_batch_size(spec.train, world.size, execution.micro_batch_tokens)
    model: nn.Module = build_model(spec.model)
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
    guard = Guard(spec.train, world)
    checkpoints = Checkpoints(folder.checkpoints, world, execution.keep_checkpoints, execution.async_checkpoint)
    state = _state(model, optimizer, guard)
    first_step = checkpoints.newest_whole() or 0
    if first_step:
        checkpoints.load(first_step, state)
    stepper = Stepper(wrapped, optimizer, guard, spec.train, world, micro_batch)

    def read(step: int) -> Batch:
        inputs, targets = load_batch(corpus.train, sampler, step, world.rank, world.size, bos_id=spec.data.bos_id)
        return (inputs.pin_memory(), targets.pin_memory()) if world.device.type == "cuda" else (inputs, targets)

    run = _Run(folder, spec, execution, world, stop, checkpoints, sampler, quiet)
    with (
        Prefetcher(read, range(first_step, spec.train.num_steps), depth=3) as batches,
        Watchdog(execution.hang_minutes) as watchdog,
    ):
        exit_code = run.steps(first_step, stepper, batches, state, watchdog)
    if exit_code == EXIT_FINISHED:
        export_model(model, corpus, spec, folder, world)
    return exit_code


def _state(model: nn.Module, optimizer: torch.optim.AdamW, guard: Guard) -> State:
    """Everything a run needs to go on: weights and buffers, moments, the guard's running mean."""
    weights = {f"model.{name}": tensor for name, tensor in model.state_dict().items()}
    return {**weights, **named_state(model, optimizer), **guard.state()}


class _Run:
    """The loop over steps and what surrounds each: reports, checkpoints, stopping."""

    def __init__(
        self,
        folder: RunFolder,
        spec: RunSpec,
        execution: Execution,
        world: World,
        stop: StopRequest,
        checkpoints: Checkpoints,
        sampler: Sampler,
        quiet: bool,
    ):
        self.folder, self.spec, self.world, self.stop = folder, spec, world, stop
        self.checkpoints, self.sampler, self.quiet = checkpoints, sampler, quiet
        every = execution.checkpoint_every_tokens or spec.train.train_tokens // 20
        self.checkpoint_every = max(1, every // spec.train.batch_tokens)
        self.flops_per_token = 3 * spec.model.flops_per_token(spec.train.seq_len)
        peak = peak_flops(world.device)
        self.peak = None if peak is None else peak * world.size
        self.speed = Speed(spec.train.batch_tokens)
        self.writer: MetricsWriter | None = None
        self.progress: RunProgress | None = None

    def steps(
        self, first_step: int, stepper: Stepper, batches: Prefetcher[int, Batch], state: State, watchdog: Watchdog
    ) -> int:
        """Run the steps that are left; returns an exit code. A step's report is read while the next one computes."""
        self._open(first_step)
        pending: PendingReport | None = None
        last_step = self.spec.train.num_steps
        try:
            self.speed.resume()
            for steps_before, (inputs, targets) in batches:
                step = steps_before + 1
                lr = learning_rate(steps_before * self.spec.train.batch_tokens, self.spec.train)
                inputs = inputs.to(self.world.device, non_blocking=True)
                targets = targets.to(self.world.device, non_blocking=True)
                loss, grad_norm, verdict = stepper.run(inputs, targets, lr)
                stopping = torch.tensor(float(self.stop.requested), device=self.world.device)
                values = torch.stack([loss, grad_norm, verdict, self.world.sum(stopping)])
                earlier, pending = pending, PendingReport(step, values)
                stop_now = earlier is not None and self._record(earlier.wait())
                watchdog.alive()
                if stop_now or step % self.checkpoint_every == 0 or step == last_step:
                    stop_now = self._record(pending.wait()) or stop_now
                    pending = None
                    self.checkpoints.save(step, state)
                    self.speed.resume()
                if stop_now and step < last_step:
                    self.checkpoints.wait()
                    self._say(f"{self.spec.name}: stopped by {self.stop.reason or 'another process'}, saved at step {step}")
                    return EXIT_REQUEUE if self.stop.exit_code is None else self.stop.exit_code
            self.checkpoints.wait()
            return EXIT_FINISHED
        finally:
            self._close()

    def _open(self, first_step: int) -> None:
        if not self.world.is_main:
            return
        self.folder.truncate(first_step)
        with open(self.folder.provenance_file, "a") as file:
            line = provenance(device_label(self.world.device), self.world.size)
            line |= {"first_step": first_step, "params": self.spec.model.num_params}
            file.write(json.dumps(line) + "\n")
        if first_step:
            self._say(f"{self.spec.name}: going on from step {first_step}")
        self.writer = MetricsWriter(self.folder.metrics_file, self.folder.path / "tensorboard", first_step)
        self.progress = RunProgress(self.spec.name, self.spec.train.num_steps, first_step, self.quiet)

    def _close(self) -> None:
        if self.writer is not None:
            self.writer.close()
        if self.progress is not None:
            self.progress.close()

    def _record(self, report: StepReport) -> bool:
        """Write a finished step down. Returns whether some process was asked to stop; raises AnomalyError."""
        tokens_per_s = self.speed.tick()
        row = {
            "step": report.step,
            "tokens": report.step * self.spec.train.batch_tokens,
            "loss": report.loss,
            "grad_norm": report.grad_norm,
            "lr": learning_rate((report.step - 1) * self.spec.train.batch_tokens, self.spec.train),
            "tokens_per_s": tokens_per_s,
            "mfu": None if self.peak is None else tokens_per_s * self.flops_per_token / self.peak,
        }
        if self.writer is not None and self.progress is not None:
            self.writer.write(row)
            self.progress.update(row)
        if report.verdict:
            self._anomaly(report)
        return report.stop

    def _anomaly(self, report: StepReport) -> None:
        documents, start = self.sampler.rows(report.step - 1, 0, 1)
        kind = KINDS[report.verdict]
        if self.world.is_main:
            line = {
                "step": report.step,
                "kind": kind,
                "loss": report.loss,
                "grad_norm": report.grad_norm,
                "documents": [int(d) for d in documents],
                "first_token": int(start),
            }
            with open(self.folder.anomalies_file, "a") as file:
                file.write(json.dumps(line) + "\n")
        if self.spec.train.on_anomaly == "stop":
            raise AnomalyError(
                f"step {report.step} is {kind} (loss {report.loss}, gradient norm {report.grad_norm}) and was not applied; its "
                f"documents are in {self.folder.anomalies_file}. A spec with on_anomaly 'skip' goes on without such steps."
            )

    def _say(self, text: str) -> None:
        if self.world.is_main:
            print(text, file=sys.stderr, flush=True)
