"""Import this before transformers, fla, datasets, accelerate or lm_eval: `kernels` at our root is not Hugging Face's package.

If Hugging Face's package is installed, transformers imports names from the first `kernels` on sys.path, which is ours when
Python runs from the repository root. The suite uses no kernels from the hub, so transformers is told that the package is not
available. The same goes for scipy, which only object detection losses use, but which every import of a model would load."""

import importlib.util
from typing import Any


def _answer_no() -> None:
    if importlib.util.find_spec("transformers") is None:
        return
    from transformers.utils import import_utils

    ask = import_utils._is_package_available
    if getattr(ask, "knows_our_kernels", False):
        return

    def is_package_available(pkg_name: str, *args: Any, **kwargs: Any) -> Any:
        return ask("none of this name" if pkg_name in ("kernels", "scipy") else pkg_name, *args, **kwargs)

    is_package_available.knows_our_kernels = True  # type: ignore[attr-defined]
    import_utils._is_package_available = is_package_available
    import_utils.is_kernels_available.cache_clear()
    import_utils.is_scipy_available.cache_clear()


_answer_no()
