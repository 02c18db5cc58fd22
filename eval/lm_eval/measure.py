"""LM evaluation harness: its tasks, run on a model and turned into rows."""

import math
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pandas as pd

from eval.lm_eval.harness import BOOTSTRAP_ITERATIONS, results_of
from eval.lm_eval.spec import Spec, check_names
from eval.lm_eval.task_files import HARNESS_VERSION, load_tasks, quiet, write_stand_ins
from eval.lm_eval.tasks import TABLE
from eval.shell.context import Context
from eval.shell.loading import Loaded
from eval.shell.stand_ins import StandIns, fingerprint_in
from training.progress import Progress


def evaluate(loaded: Loaded, spec: Spec, context: Context) -> pd.DataFrame:
    """Return accuracies in percent, perplexities plain, standard errors alike (NaN where the harness has none).

    ValueError for unknown tasks, and for data that are neither local nor to be had from the hub.
    """
    scratch = tempfile.TemporaryDirectory(prefix="lm-eval-tasks-")
    with Progress("lm-eval (requests)", 0) as progress, scratch, quiet():
        corpus = fingerprint_in(spec.include)
        if corpus is not None:
            folder: Path | None = write_stand_ins(StandIns(context.heldout(corpus)), spec.tasks, Path(scratch.name))
        else:
            folder = spec.folder(context.sources)
        check_names(spec.tasks, folder)
        found = load_tasks(spec.tasks, folder)
        results = results_of(found, loaded, spec, context, progress)
    policy = "one BOS before every context" if spec.add_bos else "BOS only where there is no context"
    context.extras["bos_policy"] = f"{policy}; whole texts begin with a second one, scored" if spec.scores_bos else policy
    context.extras["bootstrap_iterations"] = BOOTSTRAP_ITERATIONS
    return pd.DataFrame([row for task in found["tasks"] for row in _rows(task, results, spec)])


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
            "harness_version": HARNESS_VERSION,
            "batch_size": spec.batch_size,
            "add_bos": int(spec.add_bos),
        }
