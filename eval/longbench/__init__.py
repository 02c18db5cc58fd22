"""LongBench: the 14 English tasks with the released evaluation's rules (Table 2)."""

import csv
from dataclasses import replace
from pathlib import Path
from typing import Literal

import pandas as pd
from pydantic import model_validator
from pydantic.dataclasses import dataclass

from data.corpus import Counts
from data.spec import DataSpec
from eval.shell.kind import Needs, Precision
from eval.shell.sources import Sources, digest
from eval.shell.stand_ins import LONGBENCH_EXAMPLES, check_stand_ins, fingerprint_in, stand_ins_of
from models.spec import STRICT, ModelSpec, PositiveInt
from results.schema import Schema, integer, number, text
from training.spec import RunSpec

with open(Path(__file__).with_name("tasks.csv"), newline="") as _file:
    TABLE = {line["task"]: line for line in csv.DictReader(_file)}
"""Of each task: group, metric, max_new_tokens, and the number of examples in the public benchmark."""
TASKS = tuple(TABLE)


@dataclass(frozen=True, kw_only=True, config=STRICT)
class Spec:
    """LongBench tasks with middle truncation to `max_prompt_tokens` and greedy generation (Table 2).

    `dataset`: "hub" (THUDM/LongBench; the digest of the folder, if --longbench names one), or "local" (stand-ins made from the
    held-out text; `bound` adds of which version and corpus).
    `original_cut`: cut predictions to their first line only where the benchmark does (few-shot tasks), not everywhere.
    `max_examples`: only the first so many of each task. `max_new_tokens`: a cap on the tasks' own limits.
    """

    kind: Literal["longbench"] = "longbench"
    tasks: tuple[str, ...] = TASKS
    dataset: str = "hub"
    max_prompt_tokens: PositiveInt = 15500
    original_cut: bool = False
    max_examples: PositiveInt | None = None
    max_new_tokens: PositiveInt | None = None
    precision: Precision | None = None

    @model_validator(mode="after")
    def _check(self) -> "Spec":
        unknown = sorted(set(self.tasks) - set(TASKS))
        if unknown or not self.tasks:
            raise ValueError(f"unknown LongBench task {', '.join(unknown)}; choose from {', '.join(TASKS)}")
        if self.max_prompt_tokens < 2:
            raise ValueError(f"max_prompt_tokens {self.max_prompt_tokens} must be at least 2 (a head and a tail)")
        return self


SCHEMA = Schema(
    {
        "task": text(),
        "metric": text(),
        "example": integer(0),
        "score": number(0, 100),  # best over the references, of the prediction's first line unless the spec says otherwise
        "prediction": text(empty=True),
    },
    key=("task", "example"),
)
NEEDS: Needs = "weights"


def reads(spec: Spec) -> tuple[str, ...]:
    if spec.dataset == "hub":
        return ("hub",)
    return ("corpus",) if spec.dataset.startswith("local") else ("longbench",)


def bound(spec: Spec, corpus: DataSpec | None, sources: Sources, precision: Precision, machine: str) -> Spec:
    dataset = spec.dataset
    if dataset == "local":
        dataset = stand_ins_of(corpus)
    elif dataset == "hub" and sources.longbench is not None:
        dataset = digest(sources.longbench)
        for task in spec.tasks:
            task_file(sources.longbench, task)
    return replace(spec, dataset=dataset, precision=spec.precision or precision)


def hub_name(task: str) -> str:
    """LongBench's own name of a task of the paper's table."""
    return "repobench-p" if task == "repobench_p" else task


def task_file(folder: Path, task: str) -> Path:
    """ValueError where the folder lacks it."""
    path = folder / f"{hub_name(task)}.jsonl"
    if not path.is_file():
        raise ValueError(f"{folder} has no {path.name}; it must hold one TASK.jsonl per LongBench task asked for")
    return path


def fetch(spec: Spec, sources: Sources) -> None:
    from eval.longbench import measure

    measure.hub_archive()


def check(spec: Spec, run: RunSpec, counts: Counts | None) -> None:
    check_stand_ins(spec.dataset, counts)


def flops(spec: Spec, model: ModelSpec) -> float:
    total = 0.0
    for task in spec.tasks:
        there = LONGBENCH_EXAMPLES if fingerprint_in(spec.dataset) is not None else int(TABLE[task]["num_examples"])
        new = min(int(TABLE[task]["max_new_tokens"]), spec.max_new_tokens or 2**30)
        tokens = min(there, spec.max_examples or there) * (spec.max_prompt_tokens + new)
        total += tokens * model.flops_per_token(spec.max_prompt_tokens)
    return total


def summary(rows: pd.DataFrame) -> list[str]:
    table = rows.groupby("task", sort=False)["score"].mean().round(2)
    return [f"  {task}: {score:.2f} of 100" for task, score in table.items()] + [f"  mean of tasks: {table.mean():.2f} of 100"]
