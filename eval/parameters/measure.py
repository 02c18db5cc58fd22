"""Parameters of a model, from its modules."""

import pandas as pd

from eval.parameters.spec import INPUT_EMBEDDING, Spec
from eval.runner.context import Context
from eval.runner.loading import Loaded


def evaluate(loaded: Loaded, spec: Spec, context: Context) -> pd.DataFrame:
    """Return a row per parameter; names omit the prefix of the backbone. The input embedding has the same name in every model.
    If it is tied to the output head, there is one row, the head's."""
    model = loaded.fresh()
    embedding, head = model.get_input_embeddings(), model.get_output_embeddings()
    tied = head is not None and head.weight is embedding.weight
    rows, seen = [], set()
    for path, module in model.named_modules():
        for name, parameter in module.named_parameters(recurse=False):
            if id(parameter) in seen or (tied and module is embedding):
                continue
            seen.add(id(parameter))
            whole = f"{path}.{name}".removeprefix(f"{model.base_model_prefix}.")
            whole = INPUT_EMBEDDING if module is embedding else whole
            shape = " x ".join(map(str, parameter.shape))
            rows.append({"name": whole, "module": type(module).__name__, "shape": shape, "count": parameter.numel()})
    return pd.DataFrame(rows)
