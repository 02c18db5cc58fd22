"""`python -m training`: every mistake is one line and exit code 2."""

import signal
import subprocess
import sys

import pytest

from tests.checkout import ROOT
from tests.training.runs import FORK
from training.__main__ import main


@pytest.mark.parametrize(
    ("option", "words"),
    [
        ("--max-hours -1", "max_hours: Input should be greater than 0 (given: -1.0)"),
        ("--max-hours nan", "max_hours: Input should be a finite number"),
        ("--hang-minutes 1e300", "hang_minutes: Input should be less than or equal"),
        ("--checkpoint-minutes -0.1", "checkpoint_minutes: Input should be greater than or equal to 0"),
        ("--micro-batch-tokens 0", "micro_batch_tokens: Input should be greater than 0 (given: 0)"),
        ("--micro-batch-tokens nan", "--micro-batch-tokens: no type matching"),
        ("--keep-checkpoints 0", "keep_checkpoints: Input should be greater than 0"),
        ("--spike-factor 1", "spike_factor: Input should be greater than 1"),
        ("--threads -2", "threads Input should be greater than 0"),
        ("--on-bad-step ignore", "Expected one of ('stop', 'skip')"),
        ("--frobnicate", "--frobnicate"),
    ],
)
def test_wrong_options(capfd, tmp_path, option, words):
    with pytest.raises(SystemExit) as stop:
        main([str(tmp_path), "--corpus-dir", str(tmp_path), *option.split()])
    assert stop.value.code == 2
    error = capfd.readouterr().err
    assert error.startswith("error: ") and error.count("\n") == 1
    assert words in error and error.endswith("; see python -m training --help\n")


def test_the_help_says_what_a_run_folder_holds(capsys):
    with pytest.raises(SystemExit):
        main(["--help"])
    said = " ".join(capsys.readouterr().out.replace("│", " ").split())
    assert "with the spec.json that `python -m experiments run` wrote" in said and "for your own settings, add a line" in said


def test_letters_that_the_locale_lacks(capfd):
    """They would reach a JSON file as halves of letters, after the corpus is prepared."""
    with pytest.raises(SystemExit) as stop:
        main(["/data/\udcc3\udca9"])
    assert stop.value.code == 2
    assert capfd.readouterr().err.startswith("error: '/data/\\udcc3\\udca9': this shell's locale cannot decode it; set LC_ALL=")


def test_wrong_folders(capfd, tmp_path, make_run):
    """In a process of its own: a training takes over signals and threads."""
    run = make_run(steps=1000)
    for folder, words in ((tmp_path, "is not a run folder"), (run.path, "does not exist: a corpus folder holds train.zarr")):
        process = FORK.Process(target=lambda: exit(main([str(folder), "--corpus-dir", str(tmp_path), "--device", "cpu"])))  # noqa: B023
        process.start()
        process.join()
        assert process.exitcode == 2
        error = capfd.readouterr().err
        assert words in error and error.startswith("error: ") and error.count("\n") == 1


INTERRUPTED = """
import runpy, sys

class Interrupt:
    def find_spec(self, name, path, target=None):
        if name == "tyro":
            raise KeyboardInterrupt

sys.meta_path.insert(0, Interrupt())
runpy.run_module(sys.argv[1], run_name="__main__")
"""


@pytest.mark.parametrize("module", ["experiments", "eval", "slurm", "training"])
def test_an_interruption_of_imports_is_one_line(module):
    told = subprocess.run([sys.executable, "-c", INTERRUPTED, module], cwd=ROOT, capture_output=True, text=True, check=False)
    assert told.stderr == "interrupted; finished work is kept, and the same command resumes from there\n"
    assert told.returncode == -signal.SIGINT  # 130 in a shell
