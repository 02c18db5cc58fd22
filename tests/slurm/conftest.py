"""A running SLURM, a checkout with a scale of a few seconds, and a corpus for it."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.checkout import copy_code
from tests.slurm.daemons import PLAIN, Site, Slurm, Unavailable, install
from tests.slurm.graphs import Graph, Suite
from tests.texts import write_texts


@contextmanager
def running(site: Site) -> Iterator[Slurm]:
    """SLURM on this machine. Where it cannot be had: a failure in CI, elsewhere a skip that says why."""
    daemons = None
    try:
        install(site.accounting)
        daemons = Slurm(site)
        daemons.start()
    except (Unavailable, TimeoutError) as error:
        if daemons is not None:
            error.args = (f"{error}\n{daemons.logs()}",)
            daemons.stop()
        if os.environ.get("CI") == "true":
            pytest.fail(f"the SLURM tests need a SLURM, and there is none: {error}")
        pytest.skip(f"no SLURM: {error}")
    before = os.environ.get("SLURM_CONF")
    os.environ["SLURM_CONF"] = daemons.environment["SLURM_CONF"]
    try:
        yield daemons
    finally:
        daemons.stop()
        os.environ.pop("SLURM_CONF")
        if before is not None:
            os.environ["SLURM_CONF"] = before


@pytest.fixture(scope="session")
def slurm_daemons() -> Iterator[Slurm]:
    with running(PLAIN) as daemons:
        yield daemons


@pytest.fixture(scope="session")
def checkout(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the code that has one scale more, so that everything else of it is used as it is."""
    return copy_code(tmp_path_factory.mktemp("checkout"))


@pytest.fixture(scope="session")
def texts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_texts(tmp_path_factory.mktemp("texts"), documents=12)


@pytest.fixture(scope="session")
def suite(slurm_daemons: Slurm, checkout: Path, texts: Path, tmp_path_factory: pytest.TempPathFactory) -> Suite:
    return Suite(slurm_daemons, checkout, texts, tmp_path_factory.mktemp("suite"))


@pytest.fixture(scope="session")
def local(suite: Suite) -> Graph:
    """Figure 2 of two models by the local launcher: what comes of SLURM's jobs must equal it, and graphs that need no corpus of
    their own use this one's."""
    graph = suite.graph("local")
    done = graph.call(graph.local_command())
    assert done.returncode == 0, done.stdout + done.stderr
    return graph
