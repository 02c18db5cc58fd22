"""Training curve, read from a run folder."""

import pandas as pd

from eval.runner.context import Context
from eval.runner.loading import Loaded
from eval.training_curve.spec import Spec


def evaluate(loaded: Loaded, spec: Spec, context: Context) -> pd.DataFrame:
    """Return one row per step. ValueError if the run is not finished or was trained elsewhere, or its metrics are damaged."""
    folder = loaded.subject.run_folder
    if not folder.finished:
        raise ValueError(f"{folder.path}: the run is not finished (it has no export/); train it to the end first")
    if folder.read_spec().weights is not None:
        raise ValueError(f"{folder.path}: the run was trained elsewhere: it has no metrics of its training")
    rows = folder.read_curve()
    found = pd.DataFrame(rows, columns=list(spec.SCHEMA.columns))
    return found.astype({"mfu": float, "mfu_dense": float, "pruned_share": float})
