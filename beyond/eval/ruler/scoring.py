"""Score of generated answers, which beyond/eval/ruler/generate.yaml names."""

from typing import Any

import kernels.hf_guard  # noqa: F401  # isort: skip  (before lm_eval)
from lm_eval.tasks.ruler.common_utils import postprocess_pred, string_match_all


def score(doc: dict[str, Any], results: list[str]) -> dict[str, float]:
    """Return whether the generated answer contains the value, by the harness's own rule."""
    return {"score": string_match_all(postprocess_pred(results), [doc["outputs"]])}
