"""Copies of the code that a test may add to, as one adds to a checkout."""

import shutil
from pathlib import Path

from slurm.snapshot import code_files

ROOT = Path(__file__).parent.parent
POCKET = """
from dataclasses import replace as _replace

SCALES["pocket"] = _replace(
    TINY, name="pocket", hidden_size=64, linear_head_dim=64, seq_len=64, document_len=256, batch_tokens=128,
    train_tokens=128 * 200, warmup_tokens=128 * 20, heldout_documents=8, default_data=None, default_tokenizer="bytes",
)
SCALES["brief"] = _replace(
    TINY_SHORT, name="brief", train_tokens=1024 * 64, warmup_tokens=1024 * 16, heldout_documents=24,
)
"""
"""A scale of a few seconds, and one that differs from a real one in its length alone."""


def copy_code(folder: Path, steps: int = 200) -> Path:
    """The packages without stored results, and two scales more; `steps`: of the smaller one's trainings."""
    for path in code_files(ROOT):
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(ROOT / path, folder / path)
    with open(folder / "experiments" / "scales.py", "a") as file:
        file.write(POCKET.replace("128 * 200", f"128 * {steps}"))
    return folder
