"""Seconds and memory of evaluations of fresh weights: `python -m experiments.benchmark.evaluations fox_pro --data text:BOOKS`.

The needle test with its answers cut short, and the per-token loss of a few documents; their rows go nowhere. What they took is
added to results/measurements/evaluations.
"""

import sys
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Literal

from tyro.conf import Positional

from data.plan import CorpusPlan
from data.prepare import prepare
from eval.kinds import eval_id, kind_of
from eval.shell.machine import machine_name, use
from eval.shell.sources import Sources
from experiments.evaluations import loss, needles
from experiments.plan import corpus_at
from experiments.recipes import Recipe
from experiments.request import Request
from experiments.scales import get_scale
from results.measured import FOLDER, add
from results.store import read_rows
from training.command_line import guarded, parse
from training.run_folder import RunFolder
from training.signals import EXIT_FINISHED


@dataclass(frozen=True)
class Arguments:
    """Time evaluations of a model that was not trained."""

    model: Positional[str] = "fox_pro"
    scale: str = "760m-48b"
    data: str | None = None
    """As of `python -m experiments`; default: that of the scale."""
    tokenizer: str | None = None
    documents: int = 1
    """Documents of the per-token loss."""
    new_tokens: int = 64
    """Of every answer in the needle test."""
    device: Literal["cpu", "cuda"] = "cuda"
    rows: Path = FOLDER
    """Folder that the rows are added to."""
    code: str = ""
    """Which code is measured, where no checkout tells (a commit, a word)."""


def measure(arguments: Arguments, folder: Path) -> list[dict[str, object]]:
    """One row per evaluation; `folder` is for a corpus and a run folder."""
    device, scale = use(arguments.device, threads=1), get_scale(arguments.scale)
    import torch

    from eval.shell.context import make_context
    from eval.shell.loading import Loaded, Subject
    from eval.shell.run import run
    from models.build import build_model
    from training.distributed import World
    from training.export import export_model

    corpus = corpus_at(Request(data=arguments.data, tokenizer=arguments.tokenizer, corpora_dir=folder), scale)
    if isinstance(corpus, CorpusPlan) and not corpus.ready:
        prepare(corpus)
    spec = Recipe(arguments.model, arguments.model, scale.name).run_spec(corpus.spec)
    made = RunFolder.create(folder / spec.folder_name, spec)
    sources = Sources(corpus=corpus.folder, tokenizer=arguments.tokenizer)
    context = make_context(sources, device, made.evals, spec.data)
    assert context.corpus is not None
    export_model(build_model(spec.model), context.corpus, spec, made, World(0, 1, torch.device("cpu")))
    loaded = Loaded(Subject.find(str(made.path)), device)
    needle = replace(needles(scale, modes=("standard",))[0], max_new_tokens=arguments.new_tokens)  # type: ignore[type-var]
    rows: list[dict[str, object]] = []
    for asked in (needle, replace(loss(scale)[0], num_documents=arguments.documents)):  # type: ignore[type-var]
        kind = kind_of(asked)
        bound = kind.bound(asked, spec.data, sources, spec.train.precision, machine_name(device))
        out = made.evals / f"{eval_id(bound)}.parquet"
        run(kind, loaded, bound, context, out)
        took = read_rows(out)[1]["extras"]
        what = ", ".join(f"{name} {value}" for name, value in vars(asked).items() if name != "kind" and value is not None)
        about = {"evaluation": asked.kind, "model": arguments.model, "scale": scale.name, "what": what}
        rows.append({**about, "seconds": took["seconds"], "peak_memory_gib": took["peak_memory_gib"]})
    return rows


def main(arguments: list[str] | None = None) -> int:
    asked = parse(Arguments, arguments, "python -m experiments.benchmark.evaluations", __doc__)

    def action() -> int:
        with TemporaryDirectory() as folder:
            rows = measure(asked, Path(folder))
        path = add("evaluations", rows, machine_name(asked.device), code=asked.code, folder=asked.rows)
        print(read_rows(path)[0].T.to_string(header=False))
        return EXIT_FINISHED

    return guarded(action)


if __name__ == "__main__":
    sys.exit(main())
