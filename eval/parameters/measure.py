"""Parameters, read off the modules."""

import pandas as pd

from eval.parameters.spec import Spec
from eval.shell.context import Context
from eval.shell.loading import Loaded


def evaluate(loaded: Loaded, spec: Spec, context: Context) -> pd.DataFrame:
    """Return a row per parameter; names are without the head's prefix for the backbone."""
    model = loaded.fresh()
    rows = []
    for path, module in model.named_modules():
        for name, parameter in module.named_parameters(recurse=False):
            whole = f"{path}.{name}".removeprefix(f"{model.base_model_prefix}.")
            shape = " x ".join(map(str, parameter.shape))
            rows.append({"name": whole, "module": type(module).__name__, "shape": shape, "count": parameter.numel()})
    return pd.DataFrame(rows)
