"""Processes and devices: this process's rank and device, and a model distributed over processes (DDP or FSDP2)."""

import datetime
import gc
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Literal

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.nn.parallel import DistributedDataParallel

from training import hardware
from training.spec import Parallel

DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16}


@dataclass(frozen=True)
class World:
    """Rank of this process, the number of processes, and the device that this one uses."""

    rank: int
    size: int
    device: torch.device

    @property
    def is_main(self) -> bool:
        return self.rank == 0

    def barrier(self) -> None:
        if self.size > 1:
            dist.barrier()

    def broadcast(self, value: object) -> object:
        """Return the main process's picklable `value`, in every process."""
        if self.size == 1:
            return value
        box = [value]
        dist.broadcast_object_list(box, src=0)
        return box[0]

    def sum(self, tensor: torch.Tensor) -> torch.Tensor:
        """Sum over processes, in place."""
        if self.size > 1:
            dist.all_reduce(tensor)
        return tensor

    def gather(self, tensor: torch.Tensor) -> list[torch.Tensor]:
        """Return every process's tensor, by rank."""
        if self.size == 1:
            return [tensor]
        tensors = [torch.empty_like(tensor) for _ in range(self.size)]
        dist.all_gather(tensors, tensor)
        return tensors


def pick_device(name: Literal["auto", "cpu", "cuda"], local_rank: int = 0) -> torch.device:
    """Return the device of a name. Raises ValueError if CUDA is asked for but not available."""
    if name != "cpu" and torch.cuda.is_available():
        return torch.device("cuda", local_rank % torch.cuda.device_count())
    if name == "cuda" and not torch.backends.cuda.is_built():
        torch_of = f"torch {torch.__version__} of {sys.executable}"
        raise ValueError(f"--device cuda: {torch_of} is built without CUDA; use --device cpu, or a torch with CUDA.")
    if name == "cuda":
        remedy = "use --device cpu, or check the driver and CUDA_VISIBLE_DEVICES"
        raise ValueError(f"--device cuda: torch sees no CUDA device here; {remedy}.")
    return torch.device("cpu")


@contextmanager
def join_world(device_name: Literal["auto", "cpu", "cuda"], timeout_minutes: float) -> Iterator[World]:
    """Join the processes that torchrun or SLURM started (RANK, WORLD_SIZE, LOCAL_RANK), if there are any."""
    rank, size = int(os.environ.get("RANK", 0)), int(os.environ.get("WORLD_SIZE", 1))
    device = pick_device(device_name, int(os.environ.get("LOCAL_RANK", 0)))
    if device.type == "cuda":
        torch.cuda.set_device(device)
    if size > 1:
        backend = "cpu:gloo,cuda:nccl" if device.type == "cuda" else "gloo"
        timeout = datetime.timedelta(minutes=timeout_minutes)
        dist.init_process_group(backend, timeout=timeout, device_id=device if device.type == "cuda" else None)
    try:
        yield World(rank, size, device)
    finally:
        if size > 1:
            gc.collect()  # a DDP wrapper freed after its process group can wait for gloo's threads for ever
            dist.destroy_process_group()


def device_label(device: torch.device) -> str:
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    threads = torch.get_num_threads()
    return f"{hardware.processor()} ({threads} thread{'s' if threads > 1 else ''}, {torch.backends.cpu.get_cpu_capability()})"


def spread(
    module: nn.Module, layers: list[nn.Module], world: World, parallel: Parallel, grad_reduce: str, in_pairs: bool = False
) -> nn.Module:
    """Wrap `module` for several processes; a single process gets it back unchanged. FSDP2 shards each of `layers`
    and the rest as separate units, over all processes (fsdp) or within each node, with a replica per node (hsdp). Parameters
    stay fp32 (autocast casts activations); gradients are reduced in `grad_reduce` (fp32, bf16). `in_pairs`: 4, 8, ... DDP
    processes add fp32 gradients in a binary tree, one all-reduce per level. Raises ValueError for nodes of unequal size."""
    if world.size == 1:
        return module
    if parallel != "ddp":
        mesh, policy = _mesh(world, parallel), MixedPrecisionPolicy(reduce_dtype=DTYPES[grad_reduce])
        for unit in (*layers, module):
            fully_shard(unit, mesh=mesh, mp_policy=policy)
        return module
    devices = [world.device] if world.device.type == "cuda" else None
    wrapped = DistributedDataParallel(module, device_ids=devices, gradient_as_bucket_view=True, broadcast_buffers=False)
    if grad_reduce == "bf16":
        wrapped.register_comm_hook(None, _reduce_in_bf16)
    elif in_pairs and world.size > 2 and world.size.bit_count() == 1:  # the order of two terms does not matter
        wrapped.register_comm_hook(Pairs(world), Pairs.average)
    return wrapped


def _mesh(world: World, parallel: Parallel) -> DeviceMesh:
    if parallel == "fsdp":
        return init_device_mesh(world.device.type, (world.size,))
    local = int(os.environ.get("LOCAL_WORLD_SIZE", world.size))
    if world.size % local:
        remedy = "give every node the same number, or use fsdp"
        raise ValueError(f"--parallel hsdp: {world.size} processes, {local} on this node; {remedy}.")
    return init_device_mesh(world.device.type, (world.size // local, local), mesh_dim_names=("nodes", "gpus"))


class Pairs:
    """Averages gradients over 2^n processes in the order of `tree_sum`, two at a time: neighbours first, then neighbouring
    pairs. On a GPU this runs in its own stream, parallel to the backward pass."""

    def __init__(self, world: World) -> None:
        mesh = init_device_mesh(world.device.type, (2,) * (world.size.bit_length() - 1))
        self._groups = [mesh.get_group(level) for level in reversed(range(mesh.ndim))]
        self._on_cuda, self._world = world.device.type == "cuda", world
        self._stream = torch.cuda.Stream(world.device) if self._on_cuda else None

    def average(self, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:
        gradients = bucket.buffer()
        done: torch.futures.Future[torch.Tensor] = torch.futures.Future(devices=[self._world.device] if self._on_cuda else None)
        if self._stream is not None:
            self._stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(self._stream):  # without a stream this does nothing
            gradients.div_(self._world.size)
            for pair in self._groups:
                dist.all_reduce(gradients, group=pair)
            done.set_result(gradients)
        return done


def _reduce_in_bf16(_: None, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:
    """Average a bucket over processes, summed in bf16. (torch's own hook does not support the CPU.)"""
    gradients = bucket.buffer()
    halved = gradients.to(torch.bfloat16).div_(dist.get_world_size())
    return dist.all_reduce(halved, async_op=True).get_future().then(lambda done: gradients.copy_(done.value()[0]))


@contextmanager
def gradient_sync(module: nn.Module, enabled: bool) -> Iterator[None]:
    """Communicate gradients in this backward pass only if `enabled` (the last micro-batch of a step)."""
    if isinstance(module, DistributedDataParallel) and not enabled:
        with module.no_sync():
            yield
        return
    if hasattr(module, "set_requires_gradient_sync"):
        module.set_requires_gradient_sync(enabled)  # type: ignore[operator]
    yield
