"""pytest in a process that is forked from one that has imported, once, what takes long and has no mutants."""

import multiprocessing
import os
import signal
import sys
from contextlib import suppress
from pathlib import Path

import pytest

from experiments.forks import say_to
from training.hardware import equal_bits

ROOT = Path(__file__).parents[2]
SERVER = multiprocessing.get_context("forkserver")
SERVER.set_forkserver_preload(
    ["kernels.hf_guard", "transformers.modeling_utils", "pandera.pandas", "matplotlib.pyplot", "zarr", "datasets", "hypothesis"]
)
# No bytecode: a mutant of the same length, written within the same second, would not be read again.
ENVIRONMENT = {**equal_bits(1, {}), "PYTHONDONTWRITEBYTECODE": "1", "HF_HUB_OFFLINE": "1"}


def run_pytest(folder: Path, arguments: list[str], limit_s: float) -> tuple[int | None, str]:
    """Exit code (None: not within the limit) and what was said by `python -m pytest` in a copy of the checkout."""
    os.environ.update(ENVIRONMENT)
    said = folder / ".said"
    said.unlink(missing_ok=True)
    process = SERVER.Process(target=_within, args=(folder, arguments, said))
    process.start()
    assert process.pid is not None
    process.join(limit_s)
    code = process.exitcode
    with suppress(ProcessLookupError):
        os.killpg(process.pid, 9)  # also what a test left behind
    process.join()
    assert said.is_file(), "a process of tests did not begin"
    return code, said.read_text(errors="replace")


def _within(folder: Path, arguments: list[str], said: Path) -> None:
    os.setsid()
    signal.signal(signal.SIGINT, signal.default_int_handler)  # which a shell has ignored by what it starts in the background
    say_to(said)
    os.chdir(folder)
    os.environ.update(ENVIRONMENT)
    sys.dont_write_bytecode = True
    sys.argv[:] = ["pytest", *arguments]
    sys.path[:] = [str(folder), *(path for path in sys.path if path and Path(path) != ROOT)]
    for name in [name for name in sys.modules if (folder / name.partition(".")[0]).is_dir()]:
        del sys.modules[name]  # imported from the checkout; now from the copy
    code = int(pytest.main(arguments))
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)  # without waiting for threads that a test left behind
