"""A request on short made-up texts, in folders of its own."""

from pathlib import Path

import pytest

from data.spec import DataSpec
from experiments.request import Request
from experiments.scales import get_scale
from tests.synthetic import no_waiting_for_the_disk, pictures_of_a_dot, seeds_that_do_not_differ
from tests.texts import write_texts

__all__ = ["asked", "data_at", "no_waiting_for_the_disk", "pictures_of_a_dot", "seeds_that_do_not_differ", "texts"]


def data_at(scale: str) -> DataSpec:
    """Return a corpus as a scale's runs read it."""
    length = get_scale(scale).document_len
    return DataSpec(source="text", tokenizer="bytes", vocab_size=257, bos_id=256, document_len=length, fingerprint="f")


@pytest.fixture(scope="session")
def texts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_texts(tmp_path_factory.mktemp("texts"))


@pytest.fixture
def asked(tmp_path: Path, texts: Path) -> Request:
    """Everything at tiny."""
    return Request(
        artefacts=("all",), scale="tiny", data=f"text:{texts}",
        results_dir=tmp_path / "results", corpora_dir=tmp_path / "corpora",
    )  # fmt: skip
