"""`python -m training RUN_DIR --corpus-dir DIR`: train one run, or resume it (also under torchrun)."""

import training.interrupted  # noqa: F401  # isort: skip  (before the slow imports)
import os
import sys
from dataclasses import field
from pathlib import Path
from typing import Annotated

import tyro
from pydantic.dataclasses import dataclass

from models.spec_parts import PositiveInt
from training.command_line import guarded, parse
from training.hardware import equal_bits
from training.spec import Execution


@dataclass(frozen=True)
class Arguments:
    """Train the run in RUN_DIR to its last step, resuming from its newest undamaged checkpoint.

    Exit codes: 0 finished, 2 an error to fix, 130 interrupted (saved),
    75 saved and to be restarted (SIGTERM, SIGUSR2, --max-hours)."""

    run_dir: tyro.conf.Positional[Path]
    """Run folder with the spec.json that `python -m experiments run` wrote. Do not edit that file: for your own settings, add a
    line to a figure's file (CONTRIBUTING.md, "A figure or table")."""
    corpus_dir: Path | None = None
    """Folder of the prepared corpus; a synthetic task needs none."""
    tokenizer: str | None = None
    """Only for LongCrawl64: gpt2-json:FOLDER, with vocab.json and merges.txt (default: from the hub)."""
    threads: PositiveInt = 1
    """CPU threads of this process; 1 makes results independent of the machine's number of cores."""
    quiet: bool = False
    """Print no progress (metrics.jsonl has every step)."""
    execution: Annotated[Execution, tyro.conf.arg(name="")] = field(default_factory=Execution)


def run(arguments: Arguments) -> int:
    from training.run_folder import RunFolder

    RunFolder.open(arguments.run_dir)  # reports a wrong folder before the seconds of importing torch
    os.environ.update(equal_bits(arguments.threads, os.environ))
    import torch

    torch.set_num_threads(arguments.threads)
    from training.loop import train

    how = arguments.execution
    return train(arguments.run_dir, arguments.corpus_dir, how, tokenizer=arguments.tokenizer, quiet=arguments.quiet)


def main(arguments: list[str] | None = None) -> int:
    parsed = parse(Arguments, arguments, "python -m training", None)
    return guarded(lambda: run(parsed))


if __name__ == "__main__":
    sys.exit(main())
