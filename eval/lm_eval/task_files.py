"""Task files of the harness: its own, those of a folder, and those that put our data under its tasks."""

import contextlib
import functools
import importlib.metadata
import json
import logging
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import kernels.hf_guard  # noqa: F401  # isort: skip  (before lm_eval)
import lm_eval.tasks
from lm_eval.tasks import TaskManager

from data.source import first_line
from eval.lm_eval.tasks import TABLE, TASKS
from eval.shell.stand_ins import VERSION, StandIns

HARNESS_VERSION = importlib.metadata.version("lm_eval")


def harness_file(name: str) -> str:
    """Return the path of the harness's own file of one of the paper's tasks."""
    return str(Path(lm_eval.tasks.__file__).parent / TABLE[name]["file"])


@functools.cache
def harness_tasks() -> TaskManager:
    """Index the harness's own tasks; reading its thousands of files takes seconds."""
    return TaskManager()


def load_tasks(names: Sequence[str], folder: Path | None) -> Any:
    """Load tasks with their data, which leaves these in the local cache. `folder`: of their files; None: the harness's own.
    ValueError for data that are neither local nor to be had from the hub."""
    own = folder is None and set(names) <= set(TASKS)
    manager = harness_tasks() if folder is None and not own else TaskManager(include_path=folder, include_defaults=False)
    try:
        loaded = manager.load([harness_file(name) if own else name for name in names])
    except ValueError:
        raise
    except Exception as error:  # datasets and the hub client raise many types when data cannot be had
        what = f"the data of {', '.join(names)} are neither local nor to be had: {first_line(error)}"
        raise ValueError(f"{what}\nName local task files with --include-path, or fill the cache first, online.") from error
    for task in loaded["tasks"].values():
        task.set_config(key="num_fewshot", value=0)
        task.set_fewshot_seed(seed=0)
    return loaded


def write_task(folder: Path, name: str, rows: list[dict[str, Any]], split: str, lines: Sequence[str]) -> None:
    """Write NAME.jsonl with the rows, and NAME.yaml: a task on them as `split`, with further lines."""
    data = folder / f"{name}.jsonl"
    data.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    files = {"cache_dir": str(folder / "cache"), "data_files": {split: str(data)}}
    common = [f"task: {name}", "dataset_path: json", f"dataset_kwargs: {json.dumps(files)}"]
    (folder / f"{name}.yaml").write_text("\n".join([*common, *lines]) + "\n")


def write_stand_ins(stand_ins: StandIns, names: tuple[str, ...], folder: Path) -> Path:
    """Write the harness's own tasks, templates and metrics on stand-in data."""
    for name in names:
        split = TABLE[name]["split"]
        lines = [
            f"include: {json.dumps(harness_file(name))}",
            "dataset_name: null",
            *(f"{each}_split: {each if each == split else 'null'}" for each in ("training", "validation", "test")),
            "should_decontaminate: false",
            f"metadata:\n  version: local-{VERSION}",
        ]
        write_task(folder, name, stand_ins.lm_eval(name), split, lines)
    return folder


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Silence the harness, which reports to stdout and its logger, and the bars of datasets; we have our own progress."""
    import datasets

    logger = logging.getLogger("lm_eval")
    level = logger.level
    logger.setLevel(logging.ERROR)
    datasets.disable_progress_bars()
    try:
        with open(os.devnull, "w") as nowhere, contextlib.redirect_stdout(nowhere), contextlib.redirect_stderr(nowhere):
            yield
    finally:
        logger.setLevel(level)
