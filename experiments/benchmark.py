"""Times of training steps, launched one by one and as one CUDA graph: `python -m experiments.benchmark [MODEL ...]`, on a GPU.

Each setting is timed twice: steps in a row on one batch, and the steps of a training, by the wall clock of its metrics."""

import gc
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Any

import torch
from tyro.conf import Positional

from analysis.names import SEVEN
from data.corpus import Corpus
from data.plan import resolve
from data.prepare import prepare
from experiments.recipes import Recipe, model_spec
from experiments.scales import Scale, get_scale
from models.build import build_model
from models.spec_parts import PositiveInt
from results.measured import OWN, add
from training.command_line import guarded, parse
from training.distributed import World
from training.loop import train
from training.run_folder import RunFolder
from training.spec import Execution, RunSpec, fitted
from training.step import EAGER_STEPS, repeated_step

WARM = EAGER_STEPS + 5


@dataclass(frozen=True)
class Options:
    """Time training steps with and without the CUDA graph."""

    models: Positional[tuple[str, ...]] = SEVEN
    scale: str = "mini"
    batch_tokens: tuple[PositiveInt, ...] = (2**14, 2**15, 2**17)
    """Tokens per step."""
    steps: PositiveInt = 25
    """Timed steps."""
    rows: Path = OWN
    """Folder that the rows are added to."""
    code: str = ""
    """Version of the measured code (a commit), if it is not run from a checkout."""


def main(arguments: list[str] | None = None) -> int:
    options = parse(Options, arguments, "python -m experiments.benchmark", __doc__)
    return guarded(lambda: run(options))


def run(options: Options) -> int:
    if not torch.cuda.is_available():
        raise ValueError("training steps are timed on a GPU, and torch finds none")
    scale, rows = get_scale(options.scale), list[dict[str, Any]]()
    with tempfile.TemporaryDirectory() as folder:
        corpus = random_corpus(Path(folder), scale, max(options.batch_tokens) * options.steps)
        try:
            for row in measured(options, scale, corpus, Path(folder)):
                rows.append(row)
                print(*(f"{value:,.4g}" if isinstance(value, float) else value for value in row.values()), flush=True)
        finally:
            if rows:
                add("steps", rows, torch.cuda.get_device_name(), code=options.code, folder=options.rows)
    return 0


def random_corpus(folder: Path, scale: Scale, tokens: int) -> Corpus:
    """Prepare a corpus of random letters, a token each, from a long and a short document."""
    (folder / "texts").mkdir()
    generator = torch.Generator().manual_seed(0)
    for name, length in (("long", tokens + scale.document_len), ("short", 9 * scale.document_len)):
        letters = torch.randint(97, 123, (length,), dtype=torch.uint8, generator=generator)
        (folder / "texts" / f"{name}.txt").write_bytes(letters.numpy().tobytes())
    return prepare(resolve(f"text:{folder / 'texts'}", tokenizer="bytes", document_len=scale.document_len, cache_dir=folder))


def measured(options: Options, scale: Scale, corpus: Corpus, folder: Path) -> Iterator[dict[str, Any]]:
    """Yield a row per model, tokens of a step, and way of launching it."""
    for model in options.models:
        for tokens in options.batch_tokens:
            torch._dynamo.reset()  # else layers would be compiled anew for any batch size
            for graph in (False, True):
                total = tokens * (WARM + options.steps)
                recipe = Recipe(model, model, scale.name, train=dict(batch_tokens=tokens, train_tokens=total, warmup_tokens=0))
                spec = replace(recipe.run_spec(corpus.spec), model=model_spec(model, scale, 2**14))
                execution = fitted(Execution(cuda_graph=graph), spec.model, spec.train, "cuda",
                                   micro_batch_tokens=scale.micro_batch_tokens, compile=scale.compile)  # fmt: skip
                about: dict[str, Any] = dict(model=model, scale=scale.name, batch_tokens=tokens, graph=graph)
                in_a_row = steps_in_a_row(spec, execution, options.steps)
                name = f"{model}-{tokens}-{graph}"
                yield about | in_a_row | {"train_ms": training(spec, execution, corpus, folder / name)}


def steps_in_a_row(spec: RunSpec, execution: Execution, count: int) -> dict[str, float]:
    """Return the milliseconds of a step, and of its kernels alone (launched one by one), their number, and GiB reserved."""
    gc.collect()
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    model, device = build_model(spec.model, "cuda"), torch.device("cuda", 0)
    ids = torch.randint(spec.model.vocab_size, (spec.train.batch_size, spec.train.seq_len))
    with repeated_step(model, ids, spec.train, execution, World(0, 1, device)) as step:
        for _ in range(WARM):
            step()
        torch.cuda.synchronize()
        start = time.perf_counter()
        for _ in range(count):
            step()
        torch.cuda.synchronize()
        step_ms = 1e3 * (time.perf_counter() - start) / count
        with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA], acc_events=True) as profile:
            step()
            torch.cuda.synchronize()
    kernels = [event for event in profile.events() if event.device_type == torch.autograd.DeviceType.CUDA]
    busy = sum(event.device_time for event in kernels) / 1e3
    gib = torch.cuda.max_memory_reserved() / 2**30
    return dict(step_ms=step_ms, busy_ms=busy, kernels=len(kernels), reserved_gib=gib)


def training(spec: RunSpec, execution: Execution, corpus: Corpus, folder: Path) -> float:
    """Train a run to its end in this process. Returns the median milliseconds between steps after the first."""
    run = RunFolder.create(folder / spec.folder_name, spec)
    train(run.path, corpus.folder, execution, quiet=True)
    ends = [row["wall_s"] for row in run.read_metrics()][WARM:]
    return 1e3 * median(later - earlier for earlier, later in pairwise(ends))


if __name__ == "__main__":
    sys.exit(main())
