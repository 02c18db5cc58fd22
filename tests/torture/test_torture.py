"""A few of the faults of `python -m tests.torture`, in a process of its own because it forks from what it has imported."""

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_a_few_faults_are_detected_healed_or_refused(tmp_path):
    out = tmp_path / "table.md"
    counts = ("--kills", "1", "--flips", "5", "--damages", "1", "--disks", "1", "--pairs", "1", "--workers", "2")
    done = subprocess.run(
        [sys.executable, "-m", "tests.torture", *counts, "--out", str(out)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    said = out.read_text()
    assert "5 flipped bits, 1 files cut, emptied, removed or replaced, 1 full disks, 1 pairs of commands; 0 of 9 cases" in said
    assert said.count("| flip |") == 5 and "| kill | anything | equal | 1 |" in said
