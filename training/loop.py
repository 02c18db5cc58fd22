"""Training of one run, from its spec to its exported model. Read this file from `train` downwards."""

import sys
from collections.abc import Callable
from contextlib import nullcontext
from functools import partial
from pathlib import Path

import torch

from data.corpus import Corpus
from data.recall import RecallSampler
from data.sampler import Sampler, load_batch
from data.tokenizer import parse_tokenizer
from models.build import build_model
from training.checkpoint import Checkpoints
from training.distributed import World, join_world, pick_device
from training.export import already_exported, export_model
from training.journal import Journal
from training.optimizer import learning_rate, named_state
from training.run_folder import RunFolder
from training.signals import EXIT_FINISHED, EXIT_REQUEUE, StopRequest, Watchdog
from training.spec import Execution, RunSpec, check_capability, check_device
from training.step import Batch, Meter, batches_on, build_stepper


def train(
    run_dir: Path, corpus_dir: Path | None, execution: Execution, *, tokenizer: str | None = None, quiet: bool = False
) -> int:
    """Train the run in `run_dir` to its last step, resuming from its newest undamaged checkpoint. Returns an exit code of
    training.signals: finished, interrupted, or saved and to be restarted.

    `tokenizer`: GPT-2's vocabulary ("gpt2-json:FOLDER") for a LongCrawl64 `corpus_dir`. Raises ValueError for a mistake of
    the user's, before anything is computed, or AnomalyError for a bad step; OSError for a full disk (checkpoints stay intact).
    """
    folder = RunFolder.open(run_dir)
    spec = folder.read_spec()
    check_read(spec, corpus_dir, tokenizer)
    device = pick_device(execution.device)
    check_device(spec, device.type)
    if device.type == "cuda":
        check_capability(spec, torch.cuda.get_device_capability(device))
    torch.manual_seed(spec.seed)
    stop = StopRequest(execution.max_hours)
    with join_world(execution.device, execution.hang_minutes) as world, folder.lock() if world.is_main else nullcontext():
        if already_exported(folder, spec, world):
            if world.is_main and not quiet:
                print(f"{folder.path} is trained to its last step already: nothing to do", file=sys.stderr)
            return EXIT_FINISHED
        corpus = None if spec.data.recall is not None else open_corpus(corpus_dir, tokenizer, spec)
        return _train(folder, spec, corpus, execution, world, stop, quiet or not world.is_main)


def check_read(spec: RunSpec, corpus_dir: Path | None, tokenizer: str | None) -> None:
    """Raise ValueError for a corpus or a tokeniser that the run does not use."""
    if corpus_dir is not None and spec.data.recall is not None:
        raise ValueError(f"--corpus-dir {corpus_dir}: {spec.name} makes its own sequences; leave it out.")
    if tokenizer is not None and spec.data.source != "longcrawl64":
        reason = f"only LongCrawl64 comes without a tokeniser, and {spec.name} is trained on {spec.data.source}"
        raise ValueError(f"--tokenizer {tokenizer}: {reason}; leave it out.")


def open_corpus(corpus_dir: Path | None, tokenizer: str | None, spec: RunSpec) -> Corpus:
    """Open the spec's corpus and load its tokeniser now, not after training. ValueError: another corpus, or none."""
    if corpus_dir is None:
        raise ValueError(f"{spec.name} is trained on text: name the folder of its prepared corpus with --corpus-dir.")
    choice = None if tokenizer is None else parse_tokenizer(tokenizer)
    corpus = Corpus.open(corpus_dir, document_len=spec.data.document_len, tokenizer=choice)
    if corpus.spec.fingerprint != spec.data.fingerprint:
        found, wanted = corpus.spec.fingerprint[:12], spec.data.fingerprint[:12]
        remedy = "give the corpus it was made for, or plan a new run for this one"
        raise ValueError(f"{corpus_dir} holds corpus {found}, but the run was made for {wanted}: {remedy}.")
    assert corpus.tokenizer.vocab_size == spec.data.vocab_size
    return corpus


def batches_of(spec: RunSpec, corpus: Corpus | None, world: World) -> tuple[Sampler | RecallSampler, Callable[[int], Batch]]:
    """Return the sampler of a run, and a function from a step to this process's batch: both without state to save."""
    train = spec.train
    if corpus is None:
        assert spec.data.recall is not None
        made = RecallSampler(spec.data.recall, train.batch_size, spec.seed)
        return made, partial(made.batch, rank=world.rank, world_size=world.size)
    sampler = Sampler(len(corpus.train), spec.data.document_len, train.piece, train.num_pieces, train.order_seed)
    how = dict(rank=world.rank, world_size=world.size, bos_id=spec.data.bos_id, cut=train.seq_len)
    return sampler, lambda step: load_batch(corpus.train, sampler, step, **how)


def _train(
    folder: RunFolder, spec: RunSpec, corpus: Corpus | None, execution: Execution, world: World, stop: StopRequest, quiet: bool
) -> int:
    """Run the training loop. Everything that a step needs is a pure function of the spec or part of `state`."""
    train = spec.train
    sampler, load = batches_of(spec, corpus, world)
    model = build_model(spec.model)
    stepper = build_stepper(model, train, execution, world)
    meter = Meter(model, stepper, execution.compiles)
    weights = {f"model.{name}": tensor for name, tensor in model.state_dict().items()}
    state = {**weights, **named_state(model, stepper.optimizer), **stepper.guard.state()}
    how = (execution.keep_checkpoints, execution.async_checkpoint, execution.checkpoint_minutes)
    checkpoints = Checkpoints(folder.checkpoints, spec.run_id, world, *how)
    first_step = checkpoints.load_newest(state)
    journal = Journal(folder, spec, execution, world, stop, quiet)
    exit_code = EXIT_FINISHED
    with journal.start(first_step, sampler) as end:
        steps = range(first_step, train.num_steps)
        with batches_on(world.device, load, steps) as batches, Watchdog(execution.hang_minutes) as watchdog:
            for steps_before, inputs, targets in batches:
                step = steps_before + 1
                outcome = stepper.run(inputs, targets, learning_rate(steps_before * train.batch_tokens, train))
                # Filled on the device: a tensor made of a list would wait for the GPU.
                wishes = [torch.full((1,), float(wish), device=world.device) for wish in (stop.requested, checkpoints.due)]
                measured = meter.values(step, inputs, targets)
                journal.add(step, torch.cat([outcome, world.sum(torch.cat(wishes)), measured]))
                watchdog.alive()
                if journal.stop or journal.save or execution.checkpoint_minutes == 0 or step == train.num_steps:
                    journal.catch_up()
                    checkpoints.save(step, state)
                    journal.resume()
                if journal.stop and step < train.num_steps:
                    exit_code = EXIT_REQUEUE if stop.exit_code is None else stop.exit_code
                    break
            checkpoints.wait()
        if exit_code == EXIT_FINISHED:
            export_model(model, corpus, spec, folder, world)
            end["weights"] = folder.weights
        else:
            journal.say(f"{spec.name}: stopped by {stop.reason or 'another process'}, saved at step {step}")
        end["exit_code"] = exit_code
    return exit_code
