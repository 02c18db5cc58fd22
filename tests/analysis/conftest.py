import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))  # for `import synthetic`


@pytest.fixture(autouse=True)
def no_waiting_for_the_disk(monkeypatch):
    """Made-up results need not survive a power cut, and there are thousands of files."""
    monkeypatch.setattr("results.atomic.os.fsync", lambda handle: None)
