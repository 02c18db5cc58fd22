"""LongBench: the 14 English tasks with the released evaluation's rules (Table 2)."""

import csv
import functools
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Literal, Self

import pandas as pd
from pydantic import AfterValidator

from data.corpus import Counts
from eval.runner.sources import UserData, check_choice, digest
from eval.runner.spec import AtLeastTwo, EvalSpec, Once, PrecisionOption, Setting
from eval.runner.stand_ins import LONGBENCH_EXAMPLES, check_stand_ins, fingerprint_in, stand_ins_of
from models.spec_parts import PositiveInt, strict
from results.schema import Schema, integer, number, text
from training.spec import RunSpec

with open(Path(__file__).with_name("tasks.csv"), newline="") as _file:
    TABLE = {line["task"]: line for line in csv.DictReader(_file)}
"""By task: group, metric, max_new_tokens, and the number of examples in the public benchmark."""
TASKS = tuple(TABLE)
HUB_NAME = "THUDM/LongBench"


def _ours(tasks: tuple[str, ...]) -> tuple[str, ...]:
    """Return tasks by the names of the paper's table; LongBench's own names are accepted."""
    return tuple(task.replace("-", "_") for task in tasks)


@strict
class Spec(EvalSpec):
    """LongBench: the 14 English tasks with the released evaluation's rules (Table 2)."""

    kind: Literal["longbench"] = "longbench"
    tasks: Annotated[tuple[str, ...], AfterValidator(_ours), Once] = TASKS
    dataset: str = "hub"
    """hub: THUDM/LongBench (or the folder given with --longbench, by its digest); local: stand-ins made from the held-out text
    (their version and corpus are filled in)."""
    max_prompt_tokens: AtLeastTwo = 15500
    """Limit on the tokens of a prompt; longer prompts lose their middle."""
    original_cut: bool = False
    """Cut predictions to their first line only in few-shot tasks, as the benchmark does, not in all tasks."""
    max_examples: PositiveInt | None = None
    """Use only the first examples of each task; default: all."""
    max_new_tokens: PositiveInt | None = None
    """Upper bound on the tasks' own limits of new tokens."""
    precision: PrecisionOption = None

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

    def __post_init__(self) -> None:
        if unknown := sorted(set(self.tasks) - set(TASKS)):
            raise ValueError(f"unknown LongBench task {', '.join(unknown)}; choose from {', '.join(TASKS)}")

    def reads(self) -> tuple[str, ...]:
        if self.dataset == "hub":
            return ("hub",)
        return ("corpus",) if self.dataset.startswith("local") else ("longbench",)

    def bound(self, setting: Setting) -> Self:
        dataset, folder = self.dataset, setting.sources.longbench
        check_choice("--dataset", dataset, "hub", "local")
        if dataset == "local":
            dataset = stand_ins_of(setting.corpus)
        elif dataset == "hub" and folder is not None:
            dataset = digest(folder)
            for task in self.tasks:
                task_file(folder, task)
        return replace(super().bound(setting), dataset=dataset)

    def fetch(self, sources: UserData) -> None:
        hub_archive()

    def check(self, run: RunSpec, counts: Counts | None) -> None:
        check_stand_ins(self.dataset, counts)

    def tokens_read(self) -> list[tuple[int, int]]:
        tokens, made = 0, LONGBENCH_EXAMPLES if fingerprint_in(self.dataset) is not None else None
        for task in self.tasks:
            there, new = made or int(TABLE[task]["num_examples"]), int(TABLE[task]["max_new_tokens"])
            tokens += min(there, self.max_examples or there) * (self.max_prompt_tokens + min(new, self.max_new_tokens or new))
        return [(tokens, self.max_prompt_tokens)]

    def summary(self, rows: pd.DataFrame) -> list[str]:
        table = rows.groupby("task", sort=False)["score"].mean().round(2)
        lines = [f"  {task}: {score:.2f} of 100" for task, score in table.items()]
        return [*lines, f"  mean of tasks: {table.mean():.2f} of 100"]


def hub_name(task: str) -> str:
    """Return LongBench's own name of a task of the paper's table."""
    return "repobench-p" if task == "repobench_p" else task


def task_file(folder: Path, task: str) -> Path:
    """Return the path of a task's data. ValueError if the folder lacks it."""
    if not (path := folder / f"{hub_name(task)}.jsonl").is_file():
        raise ValueError(f"{folder} has no {path.name}; it must hold one TASK.jsonl per LongBench task asked for")
    return path


@functools.cache
def hub_archive() -> Path:
    """Return the path of the benchmark, from the local cache or fetched from the hub. ValueError if neither has it."""
    from huggingface_hub import hf_hub_download

    try:
        return Path(hf_hub_download(HUB_NAME, "data.zip", repo_type="dataset"))
    except Exception as error:  # the hub client raises many types
        what = f"LongBench ({HUB_NAME}) is neither in the local cache nor available from the hub ({type(error).__name__})"
        raise ValueError(f"{what}.\nWithout internet name a folder with its TASK.jsonl files with --longbench.") from error
