"""LM evaluation harness (the package `lm_eval`), with an explicit BOS policy (Tables 1, 7, 8)."""

import re
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Literal, Self

import pandas as pd
import tyro

from data.corpus import Counts
from eval.lm_eval.tasks import TABLE, TASKS
from eval.runner.sources import UserData, check_choice, checked, digest
from eval.runner.spec import AtLeastTwo, EvalSpec, Once, PrecisionOption, Setting
from eval.runner.stand_ins import EXAMPLES, check_stand_ins, fingerprint_in, stand_ins_of
from models.spec_parts import PositiveInt, strict
from results.schema import Schema, integer, number, text
from training.spec import RunSpec

SHARES = ("acc", "exact_match", "f1")
"""Prefixes of the metrics that are given in percent."""
IN_PERCENT = ("squadv2",)
"""Tasks of the harness whose scores are in percent already."""


@strict
class Spec(EvalSpec):
    """Zero-shot tasks of the LM evaluation harness, with an explicit BOS policy (Tables 1, 7, 8)."""

    kind: Literal["lm_eval"] = "lm_eval"
    tasks: Annotated[tuple[str, ...], Once] = TASKS
    include: str = "harness"
    """harness: its own tasks with data from the hub (or the folder given with --include-path, by its digest); local: stand-ins
    made from the held-out text (their version and corpus are filled in)."""
    max_length: AtLeastTwo = 16384
    """Limit on the tokens of a prompt with its answer; longer ones lose their beginning."""
    batch_size: PositiveInt = 16
    """Requests per batch."""
    add_bos: bool = True
    """Put BOS before every context (once)."""
    scores_bos: Annotated[bool, tyro.conf.Suppress] = False
    """Begin whole texts (rolling perplexity) with a BOS that is scored, as `add_bos_token` does in the harness's own class.
    Filled in from `add_bos`; rows of earlier versions lack that term."""
    limit: PositiveInt | None = None
    """Examples per task; default: all."""
    keep_scores: bool = False
    """Keep the scores of each example beside the rows (extras["scores"]), for comparing two models in pairs."""
    precision: PrecisionOption = None

    SCHEMA = Schema(
        {
            "task": text(),
            "metric": text(),
            "value": number(),  # percent for accuracies, plain for perplexities
            "stderr": number(0, nullable=True),  # in the same unit, NaN if unknown
            "num_examples": integer(1),
            "task_version": text(),
            "harness_version": text(),
            "batch_size": integer(1),
            "add_bos": integer(0, 1),
        },
        key=("task", "metric"),
    )

    def __post_init__(self) -> None:
        unknown = ", ".join(sorted(set(self.tasks) - set(TASKS)))
        if unknown and self.include.startswith("local"):
            raise ValueError(f"there is no stand-in for task {unknown}; choose from {', '.join(TASKS)}")

    def reads(self) -> tuple[str, ...]:
        if self.include == "harness":
            return ("hub",)
        return ("corpus",) if self.include.startswith("local") else ("include_path", "hub")

    def bound(self, setting: Setting) -> Self:
        include = self.include
        check_choice("--include", include, "harness", "local")
        if include == "local":
            include = stand_ins_of(setting.corpus)
        else:
            check_names(self.tasks, setting.sources.include_path)
            if include == "harness" and setting.sources.include_path is not None:
                include = digest(setting.sources.include_path)
        return replace(super().bound(setting), include=include, scores_bos=self.add_bos)

    def folder(self, sources: UserData) -> Path | None:
        """Return the folder of task files; None: the harness's own."""
        return None if self.include == "harness" else checked("include", self.include, sources.include_path, "--include-path")

    def fetch(self, sources: UserData) -> None:
        from eval.lm_eval.task_files import load_tasks, quiet

        with quiet():
            load_tasks(self.tasks, self.folder(sources))

    def check(self, run: RunSpec, counts: Counts | None) -> None:
        check_stand_ins(self.include, counts)

    def tokens_read(self) -> list[tuple[int, int]]:
        tokens, made = 0, EXAMPLES if fingerprint_in(self.include) is not None else None
        for known in (TABLE.get(task, {"examples": 1000, "tokens": 200}) for task in self.tasks):
            there = made or int(known["examples"])
            tokens += min(there, self.limit or there) * int(known["tokens"])
        return [(tokens, min(self.max_length, 512))]

    def summary(self, rows: pd.DataFrame) -> list[str]:
        return [
            f"  {row.task} {row.metric}: {row.value:.2f} +- {row.stderr:.2f}{_scale(str(row.metric))}"
            for row in rows.itertuples()
        ]


def _scale(metric: str) -> str:
    """Return the words for a metric's scale, which follow its value; "" if the scale is not known."""
    return " (1 is perfect)" if "perplexity" in metric else " of 100" if metric.startswith(SHARES) else ""


def check_names(names: tuple[str, ...], folder: Path | None) -> None:
    """Raise ValueError for a task that the folder (or, if there is none, the harness) does not have."""
    if folder is not None:
        texts = [path.read_text(encoding="utf-8") for path in folder.rglob("*.yaml")]
        found = {name for text in texts for name in re.findall(r"^(?:task|group|tag): *[\"']?([\w.-]+)", text, re.MULTILINE)}
        if missing := ", ".join(sorted(set(names) - found)):
            raise ValueError(f"--include-path {folder} has no task file (*.yaml with `task:`) for {missing}")
    elif unusual := set(names) - set(TASKS):  # only for these: indexing the harness's thousands of files takes seconds
        from eval.lm_eval import task_files

        if unknown := ", ".join(sorted(unusual - set(task_files.harness_tasks().task_index))):
            what = f"task {unknown} is not known to lm-eval {task_files.HARNESS_VERSION}"
            raise ValueError(f"{what}: give a task file of your own with --include-path")
