"""The small corpus, models and specs of the core's evaluations."""

from tests.conftest import pytest_collection_modifyitems  # noqa: F401
from tests.eval.conftest import (  # noqa: F401
    bind,
    context,
    corpus,
    in_memory,
    make_run,
    make_spec,
    texts_folder,
    tiny_fox,
)
