"""One training on every path of forgetting attention: `python -m experiments.benchmark.paths fox_llama --data text:BOOKS`.

fast: as `run` trains; deterministic: its `--deterministic`; reference: attention by PyTorch in blocks of queries, the rest as
fast. The loss of each step is added to results/measurements/path_curves when all are there; a training that was stopped goes on
by the same command. `--show` sets the paths' differences beside those between repeats and seeds.
"""

import itertools
import shutil
import sys
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Literal

import pandas as pd
from tyro.conf import Positional

from data.plan import CorpusPlan
from data.prepare import prepare
from eval.shell.machine import machine_name, use
from experiments.plan import corpus_at
from experiments.recipes import Recipe
from experiments.request import Request
from experiments.scales import get_scale
from results.measured import FOLDER, add, read
from training.command_line import guarded, parse
from training.run_folder import RunFolder
from training.signals import EXIT_FINISHED
from training.spec import Execution


@dataclass(frozen=True)
class Arguments:
    """Train a model for some steps on one path."""

    model: Positional[str] = "fox_llama"
    path: Literal["fast", "deterministic", "reference"] = "fast"
    scale: str = "mini-short"
    steps: int = 200
    """The learning rate rises over a fifth of them and has fallen to its end at the last."""
    seed: int = 0
    repeat: int = 0
    """Number of this repetition of the same training."""
    data: str | None = None
    """As of `python -m experiments`; default: that of the scale."""
    heldout: str | None = None
    corpora_dir: Path = Path("corpora")
    runs_dir: Path = Path("runs")
    """The run lies in its folder `paths` until its rows are kept."""
    device: Literal["cpu", "cuda"] = "cuda"
    rows: Path = FOLDER
    """Folder that the rows are added to or read from."""
    show: bool = False
    """Only print what the rows that are there say (needs no GPU)."""


def trained(arguments: Arguments) -> tuple[RunFolder, int]:
    """The run, and how its training ended (training.signals)."""
    scale = get_scale(arguments.scale)
    use(arguments.device, threads=1)
    request = Request(data=arguments.data, heldout=arguments.heldout, corpora_dir=arguments.corpora_dir)
    corpus = corpus_at(request, scale)
    if isinstance(corpus, CorpusPlan) and not corpus.ready:
        prepare(corpus)
    tokens = dict(train_tokens=scale.batch_tokens * arguments.steps, warmup_tokens=scale.batch_tokens * (arguments.steps // 5))
    spec = Recipe(arguments.model, arguments.model, scale.name, arguments.seed, train=tokens).run_spec(corpus.spec)
    which = f"{arguments.path}-{arguments.device}-{arguments.repeat}"
    made = RunFolder.create(arguments.runs_dir / "paths" / which / spec.folder_name, spec)
    execution = Execution(
        device=arguments.device,
        micro_batch_tokens=scale.micro_batch_tokens,
        compile=scale.compile and arguments.device == "cuda",
        deterministic=arguments.path == "deterministic",
        checkpoint_minutes=1.0,
    )
    from models.forgetting_transformer import module
    from training.loop import train

    if arguments.path == "reference":
        module.forgetting_attention = partial(module.forgetting_attention, backend="reference")
    return made, train(made.path, corpus.folder, execution)


def differences(rows: pd.DataFrame) -> pd.DataFrame:
    """Mean and largest difference of the loss between two trainings of one model, over all steps, by what differs: the path,
    the seed, the version of the code, or nothing."""
    found = []
    for model, of_model in rows.groupby("model"):
        steps = of_model.groupby("created").step.transform("max")
        keys = ["path", "seed", "commit", steps, "repeat", "created"]
        curves = {key: one.set_index("step").loss for key, one in of_model.groupby(keys)}
        for (one, first), (other, second) in itertools.combinations(curves.items(), 2):
            apart = [name for name, a, b in zip(("path", "seed", "code", "steps"), one[:4], other[:4], strict=True) if a != b]
            by = {
                ("path",): f"{one[0]} and {other[0]}",
                ("seed",): f"two seeds, {one[0]}",
                ("code",): f"two versions of the code, {one[0]}",
                (): f"repeated, {one[0]}",
            }.get(tuple(apart))
            if by is not None:
                gap = (first - second).abs()
                found.append({"model": model, "between": by, "mean": gap.mean(), "largest": gap.max(), "last": gap.iloc[-1]})
    table = pd.DataFrame(found, columns=["model", "between", "mean", "largest", "last"])
    return table.groupby(["model", "between"], sort=False).agg({"mean": "max", "largest": "max", "last": "max"})


def main(arguments: list[str] | None = None) -> int:
    asked = parse(Arguments, arguments, "python -m experiments.benchmark.paths", __doc__)

    def action() -> int:
        if not asked.show:
            made, ended = trained(asked)
            if ended != EXIT_FINISHED:
                return ended
            about = {name: getattr(asked, name) for name in ("model", "path", "seed", "repeat")}
            rows = [{**about, "step": row["step"], "loss": row["loss"]} for row in made.read_metrics()]
            add("path_curves", rows, machine_name(asked.device), folder=asked.rows)
            shutil.rmtree(made.path)
        print(differences(read("path_curves", asked.rows)).round(4).to_string())
        return EXIT_FINISHED

    return guarded(action)


if __name__ == "__main__":
    sys.exit(main())
