"""Zero-shot tasks of the LM evaluation harness (the package `lm_eval`), with its BOS policy in the open (Tables 1, 7, 8)."""

import csv
import re
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
from eval.shell.stand_ins import EXAMPLES, check_stand_ins, fingerprint_in, stand_ins_of
from models.spec import STRICT, ModelSpec, PositiveInt
from results.schema import Schema, integer, number, text
from training.spec import RunSpec

with open(Path(__file__).with_name("tasks.csv"), newline="") as _file:
    TABLE = {line["task"]: line for line in csv.DictReader(_file)}
"""Of each of the paper's tasks: the harness's file, the split scored, and the metrics in the paper's tables; for the cost in a
plan the number of examples, and about how many tokens each has in all its requests."""
TASKS = tuple(TABLE)


@dataclass(frozen=True, kw_only=True, config=STRICT)
class Spec:
    """Zero-shot tasks of the LM evaluation harness (Tables 1, 7, 8).

    `include`: "harness" (the harness's own tasks, data from the hub; the digest of the folder, if --include-path names one), or
    "local" (stand-ins made from the held-out text; `bound` adds of which version and corpus). `add_bos`: put BOS before every
    context (once); `limit`: examples per task.
    """

    kind: Literal["lm_eval"] = "lm_eval"
    tasks: tuple[str, ...] = TASKS
    include: str = "harness"
    max_length: PositiveInt = 16384
    batch_size: PositiveInt = 16
    add_bos: bool = True
    limit: PositiveInt | None = None
    precision: Precision | None = None

    @model_validator(mode="after")
    def _check(self) -> "Spec":
        if not self.tasks:
            raise ValueError("name at least one lm-eval task")
        if self.max_length < 2:
            raise ValueError(f"max_length {self.max_length} must be at least 2")
        unknown = sorted(set(self.tasks) - set(TASKS)) if self.include.startswith("local") else []
        if unknown:
            raise ValueError(f"there is no stand-in for task {', '.join(unknown)}; choose from {', '.join(TASKS)}")
        return self


SCHEMA = Schema(
    {
        "task": text(),
        "metric": text(),
        "value": number(),  # percent for accuracies, plain for perplexities
        "stderr": number(0, nullable=True),  # in the same unit, NaN where unknown
        "num_examples": integer(1),
        "task_version": text(),
        "harness_version": text(),
        "batch_size": integer(1),
        "add_bos": integer(0, 1),
    },
    key=("task", "metric"),
)
NEEDS: Needs = "weights"


def reads(spec: Spec) -> tuple[str, ...]:
    if spec.include == "harness":
        return ("hub",)
    return ("corpus",) if spec.include.startswith("local") else ("include_path", "hub")


def bound(spec: Spec, corpus: DataSpec | None, sources: Sources, precision: Precision, machine: str) -> Spec:
    include = spec.include
    if include == "local":
        include = stand_ins_of(corpus)
    else:
        check_names(spec.tasks, sources.include_path)
        if include == "harness" and sources.include_path is not None:
            include = digest(sources.include_path)
    return replace(spec, include=include, precision=spec.precision or precision)


def fetch(spec: Spec, sources: Sources) -> None:
    from eval.lm_eval import measure

    measure.fetch(spec, sources)


def check_names(names: tuple[str, ...], folder: Path | None) -> None:
    """ValueError for a task that the folder (or, if there is none, the harness) does not have. The harness is asked only about
    unusual names: reading its thousands of files takes seconds."""
    if folder is not None:
        missing = sorted(set(names) - _tasks_in(folder))
        if missing:
            raise ValueError(f"--include-path {folder} has no task file for {', '.join(missing)}")
    elif not set(names) <= set(TASKS):
        from eval.lm_eval import task_files

        unknown = sorted(set(names) - set(task_files.harness_tasks().task_index))
        if unknown:
            raise ValueError(
                f"task {', '.join(unknown)} is not known to lm-eval {task_files.HARNESS_VERSION}; a local task file goes in "
                "with --include-path"
            )


def _tasks_in(folder: Path) -> set[str]:
    """Names of the tasks and groups that YAML files of a folder define. ValueError where there are none."""
    found: set[str] = set()
    for path in folder.rglob("*.yaml"):
        found |= set(re.findall(r"^(?:task|group|tag): *[\"']?([\w.-]+)", path.read_text(encoding="utf-8"), re.MULTILINE))
    if not found:
        raise ValueError(f"--include-path {folder} holds no lm-eval task file (*.yaml with `task:`)")
    return found


def check(spec: Spec, run: RunSpec, counts: Counts | None) -> None:
    check_stand_ins(spec.include, counts)


def flops(spec: Spec, model: ModelSpec) -> float:
    tokens = 0
    for task in spec.tasks:
        known = TABLE.get(task, {"examples": 1000, "tokens": 200})
        there = EXAMPLES if fingerprint_in(spec.include) is not None else int(known["examples"])
        tokens += min(there, spec.limit or there) * int(known["tokens"])
    return tokens * model.flops_per_token(min(spec.max_length, 512))


def summary(rows: pd.DataFrame) -> list[str]:
    lines = []
    for row in rows.itertuples():
        scale = "(1 is perfect)" if "perplexity" in str(row.metric) else "of 100"
        lines.append(f"  {row.task} {row.metric}: {row.value:.2f} +- {row.stderr:.2f} {scale}")
    return lines
