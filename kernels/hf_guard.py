"""Import this before transformers, fla, datasets, accelerate or lm_eval: `kernels` at our root is not Hugging Face's package.

Where that distribution is installed, transformers imports its names from the first `kernels` on sys.path, which is ours when
Python runs from the repository root. The suite uses no kernel from the hub, so the question asked first is answered: no. So is
that for scipy, which only losses of object detectors use: every import of a model would load it."""

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
