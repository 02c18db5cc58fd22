"""LM evaluation harness: its tasks, run on a model and turned into rows."""

import contextlib
import logging
import math
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pandas as pd

os.environ.setdefault("DISABLE_MULTIPROC", "1")  # the harness bootstraps standard errors in forked processes otherwise

import kernels.hf_guard  # noqa: F401  # isort: skip  (before lm_eval)
from lm_eval import evaluator
from lm_eval.tasks import TaskManager

from data.source import first_line
from eval.lm_eval import TABLE, TASKS, Spec, check_names, task_files
from eval.lm_eval.harness import HarnessModel
from eval.shell.context import Context
from eval.shell.loading import Loaded
from eval.shell.sources import Sources, checked
from eval.shell.stand_ins import StandIns, fingerprint_in
from training.progress import Progress

BOOTSTRAP_ITERATIONS = 1000


def evaluate(loaded: Loaded, spec: Spec, context: Context) -> pd.DataFrame:
    """Rows of SCHEMA: accuracies in percent, perplexities plain, standard errors alike (NaN where the harness has none).

    Raises ValueError for unknown tasks, and for data that are neither local nor to be had from the hub.
    """
    scratch = tempfile.TemporaryDirectory(prefix="lm-eval-tasks-")
    with Progress("lm-eval (requests)", 0) as progress, scratch, quiet():
        folder = None
        corpus = fingerprint_in(spec.include)
        if corpus is not None:
            folder = task_files.write_stand_ins(StandIns(context.heldout(corpus)), spec.tasks, Path(scratch.name))
        elif spec.include != "harness":
            folder = checked("include", spec.include, context.sources.include_path, "--include-path")
        found = _load_tasks(spec, folder)
        lm = HarnessModel(loaded.model, loaded.tokenizer, spec, context, progress)
        results = evaluator.evaluate(
            lm=lm, task_dict=found, limit=spec.limit, bootstrap_iters=BOOTSTRAP_ITERATIONS, log_samples=False
        )
    assert results is not None
    context.extras["bos_policy"] = "one BOS before every context" if spec.add_bos else "BOS only where there is no context"
    context.extras["bootstrap_iterations"] = BOOTSTRAP_ITERATIONS
    return pd.DataFrame([row for task in found["tasks"] for row in _rows(task, results, spec)])


def fetch(spec: Spec, sources: Sources) -> None:
    """Load the tasks' data once, which leaves them in the local cache."""
    folder = None if spec.include == "harness" else checked("include", spec.include, sources.include_path, "--include-path")
    with quiet():
        _load_tasks(spec, folder)


def _load_tasks(spec: Spec, folder: Path | None) -> Any:
    check_names(spec.tasks, folder)
    wanted = list(spec.tasks)
    if folder is not None:
        manager = TaskManager(include_path=folder, include_defaults=False)
    elif set(wanted) <= set(TASKS):
        manager = TaskManager(include_defaults=False)
        wanted = [str(task_files.harness_file(name)) for name in wanted]
    else:
        manager = task_files.harness_tasks()
    try:
        loaded = manager.load(wanted)
    except ValueError:
        raise
    except Exception as error:  # datasets and the hub client raise many types when data cannot be had
        raise ValueError(
            f"the data of {', '.join(spec.tasks)} are neither local nor to be had: {first_line(error)}\n"
            "On a machine without internet name local task files with --include-path, or fill the cache first."
        ) from error
    for task in loaded["tasks"].values():
        task.set_config(key="num_fewshot", value=0)
        task.set_fewshot_seed(seed=0)
    return loaded


def _rows(task: str, results: Any, spec: Spec) -> Iterator[dict[str, Any]]:
    scores = results["results"][task]
    every = [name.split(",")[0] for name in scores if "," in name and "_stderr," not in name]
    for metric in TABLE[task]["metrics"].split() if task in TABLE else every:
        (name,) = (key for key in scores if key.split(",")[0] == metric)
        value, error = scores[name], scores.get(name.replace(metric, f"{metric}_stderr", 1))
        factor = 100.0 if metric.startswith(("acc", "exact_match", "f1")) else 1.0
        yield {
            "task": task,
            "metric": metric,
            "value": factor * float(value),
            "stderr": factor * float(error) if isinstance(error, int | float) else math.nan,
            "num_examples": int(results["n-samples"][task]["effective"]),
            "task_version": str(results["versions"][task]),
            "harness_version": task_files.HARNESS_VERSION,
            "batch_size": spec.batch_size,
            "add_bos": int(spec.add_bos),
        }


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """The harness reports to stdout and its logger, datasets draws bars; this suite has its own progress on stderr."""
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
