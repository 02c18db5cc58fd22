"""Task files of the harness: where its own lie, and those that put our stand-in data under its tasks."""

import functools
import importlib.metadata
import json
from pathlib import Path

import kernels.hf_guard  # noqa: F401  # isort: skip  (before lm_eval)
import lm_eval.tasks
from lm_eval.tasks import TaskManager

from eval.lm_eval import TABLE
from eval.shell.stand_ins import VERSION, StandIns

HARNESS_VERSION = importlib.metadata.version("lm_eval")


def harness_file(name: str) -> Path:
    """The harness's own file of one of the paper's tasks."""
    return Path(lm_eval.tasks.__file__).parent / TABLE[name]["file"]


@functools.cache
def harness_tasks() -> TaskManager:
    """The index of the harness's own tasks; reading its thousands of files takes seconds."""
    return TaskManager()


def write_stand_ins(stand_ins: StandIns, names: tuple[str, ...], folder: Path) -> Path:
    """TASK.yaml and TASK.jsonl in `folder`: the harness's own tasks, templates and metrics, on stand-in data."""
    for name in names:
        data, split = folder / f"{name}.jsonl", TABLE[name]["split"]
        data.write_text("".join(json.dumps(row) + "\n" for row in stand_ins.lm_eval(name)), encoding="utf-8")
        lines = [
            f"include: {json.dumps(str(harness_file(name)))}",
            f"task: {name}",
            "dataset_path: json",
            "dataset_name: null",
            "dataset_kwargs:",
            f"  cache_dir: {json.dumps(str(folder / 'cache'))}",
            "  data_files:",
            f"    {split}: {json.dumps(str(data))}",
            "training_split: null",
            f"validation_split: {'validation' if split == 'validation' else 'null'}",
            f"test_split: {'test' if split == 'test' else 'null'}",
            "should_decontaminate: false",
            "metadata:",
            f"  version: local-{VERSION}",
        ]
        (folder / f"{name}.yaml").write_text("\n".join(lines) + "\n")
    return folder
