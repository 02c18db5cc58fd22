"""`python -m experiments.benchmark`: tokens per second, MFU, memory and the time by part of real training steps.

Steps go through the same code as training (Stepper, fused AdamW, DDP or FSDP2 under torchrun), on random tokens. Rows are
appended to results/training/benchmark.csv.
"""

import sys
from dataclasses import replace

import torch
import tyro
from rich.console import Console
from rich.table import Table

from experiments.benchmark.measure import Arguments, measure
from experiments.benchmark.rows import append_row, show
from experiments.scales import ALL_MODELS
from training.distributed import join_world
from training.signals import EXIT_ERROR


def main() -> int:
    arguments = tyro.cli(Arguments, prog="python -m experiments.benchmark", description=__doc__)
    try:
        if arguments.show:
            show(arguments.out)
            return 0
        for name in arguments.models:
            if name not in ALL_MODELS:
                raise ValueError(f"{name}: no such model; choose from {', '.join(ALL_MODELS)}")
        with join_world(arguments.device, timeout_minutes=10) as world:
            table = Table(
                "model", "gates", "pruned", "tokens/s", "MFU", "GiB", "step ms", "first step s", "by part (ms)", box=None
            )
            for name in arguments.models:
                prune = arguments.prune and name.startswith("fox")
                row = measure(name, replace(arguments, prune=prune), world)
                if world.is_main:
                    append_row(arguments.out, row)
                parts = ", ".join(
                    f"{k.removesuffix('_ms')} {row[k]}" for k in row if k.endswith("_ms") and k != "step_ms" and row[k] != ""
                )
                table.add_row(name, str(row["gates"]), str(prune), f"{row['tokens_per_s']:,}", str(row["mfu"]),
                              str(row["peak_memory_gib"]), str(row["step_ms"]), str(row["first_step_s"]), parts)  # fmt: skip
                if world.device.type == "cuda":
                    torch._dynamo.reset()
                    torch.cuda.empty_cache()
            if world.is_main:
                Console(soft_wrap=True).print(table)
    except ValueError as error:
        print(f"error: {error}", file=sys.stderr)
        return EXIT_ERROR
    return 0


if __name__ == "__main__":
    sys.exit(main())
