"""Crash-safe checkpoints: written to a temporary folder, hashed, then renamed; loaded only if every hash agrees.

Tensors go through torch.distributed.checkpoint into safetensors files (no pickle), so that a run resumes on any number of
processes. Without a manifest (training/manifest.py) of its own run and step, a folder is not a checkpoint."""

import errno
import os
import shutil
import sys
import time
import warnings
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.hf_storage import HuggingFaceStorageReader, HuggingFaceStorageWriter

from training import manifest
from training.distributed import World

State = dict[str, torch.Tensor]


class Checkpoints:
    """The checkpoints of one run, oldest first; the next one is due `minutes` after the last save."""

    def __init__(self, folder: Path, run_id: str, world: World, keep: int = 2, background: bool = False, minutes: float = 10.0):
        self.folder, self.run_id, self.world, self.keep = folder, run_id, world, keep
        self._background, self._minutes, self._saved_at = background, minutes, time.monotonic()
        self._damaged: set[int] = set()
        self._writer = ThreadPoolExecutor(1, "checkpoint-writer")
        self._pending: Future[None] | None = None
        self._group: dist.ProcessGroup | None = dist.new_group(backend="gloo") if background and world.size > 1 else None

    def steps(self) -> list[int]:
        return sorted(int(path.name.removeprefix("step-")) for path in self.folder.glob(f"step-{8 * '[0-9]'}"))

    def path(self, step: int) -> Path:
        return self.folder / f"step-{step:08d}"

    @property
    def due(self) -> bool:
        """Tell whether it is time to save. Clocks differ, so the main process decides: the others return False."""
        return self.world.is_main and time.monotonic() - self._saved_at >= 60 * self._minutes

    def save(self, step: int, state: State) -> None:
        """Write `state` as checkpoint `step`, in the background (after a copy to the host) if the constructor said so. Removes
        what killed processes left, then raises OSError, before anything is written, if the disk is too full. Existing
        checkpoints stay intact."""
        self.wait()
        self.folder.mkdir(parents=True, exist_ok=True)
        if self.world.is_main:
            for leftover in self.folder.glob("*.partial"):
                shutil.rmtree(leftover, ignore_errors=True)
            needed, free = sum(t.numel() * t.element_size() for t in state.values()), shutil.disk_usage(self.folder).free
            if free < needed * 1.05:
                sizes = f"{needed / 2**30:.2f} GiB needed, {free / 2**30:.2f} GiB free at {self.folder}"
                raise OSError(errno.ENOSPC, f"the disk is too full for a checkpoint: {sizes}")
        self.world.barrier()
        if self._background:
            held = {name: tensor.detach().to("cpu", copy=True) for name, tensor in state.items()}
            self._pending = self._writer.submit(self._write, step, held, self._group)
        else:
            self._write(step, state, None)
        self._saved_at = time.monotonic()

    def wait(self) -> None:
        """Wait for a background save; raises the error that it raised."""
        pending, self._pending = self._pending, None
        if pending is not None:
            pending.result()

    def _write(self, step: int, state: State, group: dist.ProcessGroup | None) -> None:
        partial = self.folder / f"step-{step:08d}.partial"
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            writer = HuggingFaceStorageWriter(str(partial), save_distributed=True)
            try:
                dcp.save(state, storage_writer=writer, process_group=group, no_dist=self.world.size == 1)
            except dcp.CheckpointException as error:  # holds the error of each process
                raise next((cause for cause, _ in error.failures.values() if isinstance(cause, OSError)), error) from None
        if self.world.is_main:
            self._publish(step, partial)
        if self.world.size > 1:
            dist.barrier(group=group)

    def _publish(self, step: int, partial: Path) -> None:
        manifest.seal(partial, run_id=self.run_id, step=step)
        if self.path(step).exists():  # damaged: the run resumed from an earlier checkpoint
            shutil.rmtree(self.path(step))
        os.rename(partial, self.path(step))
        self._damaged.discard(step)
        steps = self.steps()
        whole = [s for s in steps if s not in self._damaged and self._fault(s, digests=False) is None]
        for old in set(steps) - set(whole[-self.keep :]):
            shutil.rmtree(self.path(old), ignore_errors=True)

    def _fault(self, step: int, *, digests: bool) -> str | None:
        return manifest.fault(self.path(step), digests=digests, run_id=self.run_id, step=step)

    def newest_whole(self) -> int | None:
        """Return the step of the newest undamaged checkpoint, or None. Reports damaged ones on stderr."""
        for step in reversed(self.steps()):
            fault = self._fault(step, digests=True)
            if fault is None:
                return step
            self._damaged.add(step)
            print(f"{self.path(step)} is damaged: {fault}. Resuming from the checkpoint before it.", file=sys.stderr)
        return None

    def load_newest(self, state: State) -> int:
        """Load the newest undamaged checkpoint into the tensors of `state`, in place, whatever number of processes wrote it.
        Returns its step (0 without a checkpoint), the same in all processes."""
        step: int = self.world.broadcast(self.newest_whole() or 0 if self.world.is_main else 0)  # type: ignore[assignment]
        if step:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                dcp.load(state, storage_reader=HuggingFaceStorageReader(str(self.path(step))), no_dist=self.world.size == 1)
        self._saved_at = time.monotonic()
        return step
