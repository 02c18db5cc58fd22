"""Loss of the last training step."""

import pandas as pd

from eval.last_loss.spec import Spec
from eval.runner.context import Context
from eval.runner.loading import Loaded


def evaluate(loaded: Loaded, spec: Spec, context: Context) -> pd.DataFrame:
    """Return one row."""
    return pd.DataFrame({"loss": [loaded.subject.run_folder.read_metrics()[-1]["loss"]]})
