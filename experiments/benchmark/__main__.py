"""`python -m experiments.benchmark`: tokens per second, MFU, memory and the time by part of real training steps.

Steps go through the same code as training (Stepper, fused AdamW, DDP or FSDP2 under torchrun), on random tokens. The rows are
added to results/measurements/training_steps.
"""

import sys
from dataclasses import replace
from pathlib import Path

import torch

from experiments.benchmark.measure import Arguments, measure
from experiments.recipes import check_name
from results.measured import add, read
from results.store import read_rows
from training.command_line import guarded, parse
from training.distributed import device_label, join_world
from training.signals import EXIT_FINISHED

SHOWN = ("created", "commit", "gpu", "gpus", "parallel", "model", "scale", "seq_len", "sequences_per_gpu", "micro_batches",
         "gates", "prune", "compile", "tokens_per_s", "mfu", "tflops_per_gpu", "peak_memory_gib", "step_ms",
         "first_step_s")  # fmt: skip


def main() -> int:
    arguments = parse(Arguments, None, "python -m experiments.benchmark", __doc__)
    return guarded(lambda: show(arguments.rows) if arguments.show else time_steps(arguments))


def time_steps(arguments: Arguments) -> int:
    for name in arguments.models:
        check_name(name)
    if arguments.tight and not arguments.prune:
        raise ValueError("--tight says how to prune; give --prune too")
    with join_world(arguments.device, timeout_minutes=10) as world:
        for name in arguments.models:
            prune = arguments.prune and name.startswith("fox")
            row = measure(name, replace(arguments, prune=prune, tight=prune and arguments.tight), world)
            if world.is_main:  # kept at once: the next model may not fit
                path = add("training_steps", [row], device_label(world.device), code=arguments.code, folder=arguments.rows)
                print(f"{read_rows(path)[0].iloc[0].dropna().to_string()}\n", flush=True)
            if world.device.type == "cuda":
                torch._dynamo.reset()
                torch.cuda.empty_cache()
    return EXIT_FINISHED


def show(folder: Path) -> int:
    rows = read("training_steps", folder)
    print(rows[list(SHOWN)].assign(created=rows.created.str[:10]).to_string(index=False, na_rep=""))
    return EXIT_FINISHED


if __name__ == "__main__":
    sys.exit(main())
