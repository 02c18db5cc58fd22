"""A cluster file for plans that need no GPU."""

from pathlib import Path

import pytest


@pytest.fixture
def cluster_file(tmp_path: Path) -> Path:
    lines = ('partition = "main"', "time_limit_hours = 0.2", "signal_seconds = 60", f'scratch = "{tmp_path}/scratch"')
    (tmp_path / "cluster.toml").write_text("\n".join(lines) + "\n")
    return tmp_path / "cluster.toml"
