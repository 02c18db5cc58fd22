"""Every default once: of requests, of how trainings are carried out, of specs, of cluster files, and every scale.

A default of a spec is for ever: it is part of the identity of all runs and evaluations that leave it out.
"""

import dataclasses
from pathlib import Path

from eval.kinds import KINDS
from eval.needle.judge import Judge
from eval.runner.context import Compute, Context
from eval.runner.sources import Sources
from experiments.collect import DrawSpec
from experiments.request import Request
from experiments.scales import SCALES
from models.spec import KINDS as MODELS
from slurm.cluster import Cluster, TrainSettings
from training.spec import Execution, RunSpec, TrainSpec

WRITTEN = Path(__file__).with_suffix(".txt")
CLASSES = (Request, Execution, Sources, Context, Compute, Judge, RunSpec, TrainSpec, *MODELS.values(), *KINDS.values(),
           TrainSettings, Cluster, DrawSpec)  # fmt: skip


def stated() -> list[str]:
    """Every field with its default by class, and every field of each scale; a line for each entry of a dictionary."""
    lines = []
    for cls in CLASSES:
        for item in dataclasses.fields(cls):
            if item.default is not dataclasses.MISSING:
                lines.append(f"{cls.__module__}.{cls.__name__}.{item.name} = {item.default!r}")
            elif item.default_factory is dataclasses.MISSING:
                lines.append(f"{cls.__module__}.{cls.__name__}.{item.name} must be given")
    for scale in SCALES.values():
        for name, value in vars(scale).items():
            entries = value.items() if isinstance(value, dict) else () if name == "about" else ((None, value),)
            lines += [f"{scale.name}.{name}{'' if key is None else f'[{key}]'} = {each!r}" for key, each in entries]
    return lines


def test_every_default_is_the_one_that_is_written_down(tmp_path):
    """Lines that are new need not be there yet."""
    found = stated()
    (tmp_path / WRITTEN.name).write_text("\n".join(found) + "\n")
    changed = set(WRITTEN.read_text().splitlines()) - set(found)
    assert not changed, f"where that is meant: cp {tmp_path}/{WRITTEN.name} {WRITTEN}"
