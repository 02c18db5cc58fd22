"""Task files of the harness: its own, those of a user's folder, and those that run its tasks on our data."""

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
import datasets
import lm_eval.tasks
from lm_eval.models.utils import normalize_gen_kwargs
from lm_eval.tasks import TaskManager

from data.source import first_line
from eval.lm_eval.tasks import TABLE, TASKS
from eval.runner.stand_ins import VERSION, StandIns

HARNESS_VERSION = importlib.metadata.version("lm_eval")


def harness_file(name: str) -> str:
    """Return the path of the harness's task file of one of the paper's tasks."""
    return str(Path(lm_eval.tasks.__file__).parent / TABLE[name]["file"])


@functools.cache
def harness_tasks() -> TaskManager:
    """Index the harness's own tasks; reading its thousands of files takes seconds."""
    return TaskManager()


def load_tasks(names: Sequence[str], folder: Path | None) -> Any:
    """Load tasks with their data, which are then in the local cache. `folder`: holds the task files, whose relative paths start
    there; None: the harness's own. ValueError for data that are neither local nor available from the hub, and for a task that
    samples."""
    own = folder is None and set(names) <= set(TASKS)
    folder = folder and folder.absolute()
    manager = harness_tasks() if folder is None and not own else TaskManager(include_path=folder, include_defaults=False)
    try:
        with contextlib.chdir(folder or Path()):
            loaded = manager.load([harness_file(name) if own else name for name in names])
    except ValueError:
        raise
    except Exception as error:  # datasets and the hub client raise many types when data cannot be had
        remedy = "Name local task files with --include-path, or fill the cache first, online."
        raise ValueError(f"tasks {', '.join(names)} or their data cannot be loaded: {first_line(error)}\n{remedy}") from error
    for name, task in loaded["tasks"].items():
        if task.OUTPUT_TYPE == "generate_until":
            answer_options(name, task.config.generation_kwargs or {})
        task.set_config(key="num_fewshot", value=0)
        task.set_fewshot_seed(seed=0)
    return loaded


def answer_options(task: str, options: dict[str, Any]) -> Any:
    """Return a task's `generation_kwargs` in the harness's normal form: `until` is a list, and `max_gen_toks` is set from any
    of its names (256 by default). ValueError for a task that samples."""
    read = normalize_gen_kwargs(options)
    if read["do_sample"]:
        raise ValueError(f"task {task} samples; only greedy generation is offered: leave it out")
    return read


def write_task(folder: Path, name: str, rows: list[dict[str, Any]], split: str, lines: Sequence[str]) -> None:
    """Write the rows to NAME.jsonl, and NAME.yaml: a task that reads them as its `split`, with further lines."""
    data = folder / f"{name}.jsonl"
    data.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    files = {"cache_dir": str(folder / "cache"), "data_files": {split: str(data)}}
    common = [f"task: {name}", "dataset_path: json", f"dataset_kwargs: {json.dumps(files)}"]
    (folder / f"{name}.yaml").write_text("\n".join([*common, *lines]) + "\n")


def write_stand_ins(stand_ins: StandIns, names: tuple[str, ...], folder: Path) -> Path:
    """Write task files with the harness's own templates and metrics on stand-in data."""
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
    """Silence the harness, which reports to stdout and its logger, and the progress bars of datasets; we show our own."""
    logging.getLogger("lm_eval").setLevel(logging.ERROR)
    datasets.disable_progress_bars()
    with open(os.devnull, "w") as nowhere, contextlib.redirect_stdout(nowhere), contextlib.redirect_stderr(nowhere):
        yield
