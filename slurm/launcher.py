"""Start of every process of a job: `python -m slurm.launcher RECORD ENTRY` sets torchrun's variables from SLURM's and then
becomes `python -m MODULE ARGS`.

The module runs in this process, so that signals reach it directly: on SIGUSR2 and SIGTERM, trainings and evaluations save and
exit with 75, and the batch script requeues the job (slurm/epilogue.py)."""

import os
import runpy
import signal
import sys
import traceback
from pathlib import Path

from experiments import restarts
from experiments.forks import say_to
from slurm.epilogue import Start, fruitless_starts, note_start


def meet() -> None:
    """Set RANK, WORLD_SIZE, LOCAL_RANK, MASTER_ADDR and MASTER_PORT as torchrun would; does nothing for a job of one task."""
    if int(os.environ.get("SLURM_NTASKS", 1)) > 1:
        from submitit.helpers import TorchDistributedEnvironment

        os.environ["SUBMITIT_EXECUTOR"] = "slurm"  # whose variables it reads
        TorchDistributedEnvironment().export(set_cuda_visible_devices=False, overwrite=True)


def _redirect(rank: int, start: Start) -> None:
    """Send this process's output to the run folder."""
    log = start.job.log.with_suffix(f".rank{rank}.log" if rank else ".log")
    log.parent.mkdir(parents=True, exist_ok=True)
    say_to(log)
    node = os.environ.get("SLURMD_NODENAME", "?")
    print(f"--- job {start.id} on {node}, restart {start.restart}, {sys.executable}", file=sys.stderr, flush=True)


def _no_gpu() -> bool:
    """Tell whether this node lacks a GPU; False for a torch without CUDA, which never sees one."""
    import torch  # only after the task, which sets variables that torch reads on import

    return torch.backends.cuda.is_built() and not torch.cuda.is_available()


def main() -> None:
    for number in (signal.SIGTERM, signal.SIGUSR2):
        signal.signal(number, lambda *_: sys.exit(restarts.REQUEUE))
    start = Start.own(Path(sys.argv[1]), int(sys.argv[2]))
    rank = int(os.environ.get("SLURM_PROCID", 0))
    _redirect(rank, start)
    if rank == 0:
        mark = restarts.progress_mark(start.job.folder)
        fruitless = fruitless_starts(start, mark)
        note_start(start, mark)
        if fruitless > start.max_restarts:  # starts that were cut off: their epilogue never ran
            print(f"error: {fruitless} starts without progress; given up", file=sys.stderr)
            sys.exit(restarts.GIVEN_UP)
    if start.withdrawn:
        print("error: this job's submission was withdrawn, or has another job for it", file=sys.stderr)
        sys.exit(restarts.GIVEN_UP)
    sys.argv = [start.job.module, *start.job.args]
    try:
        meet()
        runpy.run_module(start.job.module, run_name="__main__", alter_sys=True)
    except SystemExit as left:
        if left.code == restarts.ERROR and start.job.kind == "train" and start.job.resources.gpus and _no_gpu():
            print("error: this node: no GPU, though the job asked for some", file=sys.stderr)
            sys.exit(restarts.BROKEN_NODE)
        raise
    except ModuleNotFoundError as error:  # fails on every node, so it is not retried
        traceback.print_exc()
        remedy = "select the right python by `python` or `setup` in the cluster file"
        print(f"error: {sys.executable} has {str(error)[0].lower()}{str(error)[1:]}: {remedy}", file=sys.stderr)
        sys.exit(restarts.ERROR)


if __name__ == "__main__":
    try:
        main()
    finally:  # as soon as one process has ended, srun ends the others; their exit codes must survive Python's shutdown
        for number in (signal.SIGTERM, signal.SIGUSR2):
            signal.signal(number, signal.SIG_IGN)
