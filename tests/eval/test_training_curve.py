"""Training curves: from metrics.jsonl as it is, of finished runs only, without torch."""

import subprocess
import sys
from pathlib import Path

import pytest

from eval.__main__ import main as eval_main
from eval.training_curve import spec as training_curve
from results.lines import to_lines
from results.store import read_rows


@pytest.fixture
def write(make_run):
    """Runs with the metrics of these steps, as training writes them."""

    def make(steps: range, **changes: object) -> Path:
        run = make_run(**changes)
        with open(run / "metrics.jsonl", "w") as file:
            for s in steps:
                row = {"step": s, "tokens": 2048 * s, "loss": 7 - s / 4, "grad_norm": 1.0, "lr": 1e-3, "tokens_per_s": 5e3}
                file.write(to_lines([{**row, "wall_s": 0.4 * s, "mfu": None, "mfu_dense": 0.25}]))
        return run

    return make


def test_rows_are_the_metrics_and_need_no_torch(write):
    run = write(range(1, 11))
    code = "import sys; from eval.__main__ import main; code = main(); sys.exit(code or 3 * ('torch' in sys.modules))"
    command = [sys.executable, "-c", code, "training_curve", "--model", str(run)]
    root = Path(training_curve.__file__).parents[2]
    done = subprocess.run(command, cwd=root, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "10 steps, 20,480 tokens; last loss 4.5000 nats per token" in done.stdout
    (file,) = (run / "evals").glob("*.parquet")
    rows, meta = read_rows(file)
    assert rows["step"].tolist() == list(range(1, 11)) and rows["tokens"].iloc[-1] == 20480
    assert rows["loss"].tolist() == [7 - s / 4 for s in range(1, 11)] and meta["kind"] == "training_curve"
    assert rows["mfu"].isna().all() and (rows["mfu_dense"] == 0.25).all()


def test_curves_with_gaps_and_of_runs_that_have_none_are_refused(write, make_spec, capsys):
    unfinished = write(range(1, 11))
    (unfinished / "export").rename(unfinished / "export.partial")
    gaps = [write(steps) for steps in (range(1, 10), range(2, 12), range(0))]
    for run, told in (
        (unfinished, "not finished"),
        (write(range(0), weights="0123"), "was trained elsewhere"),
        *((run, "does not hold each of the run's 10 steps") for run in gaps),
    ):
        assert eval_main(["training_curve", "--model", str(run)]) == 2 and told in capsys.readouterr().err
    training_curve.Spec().check(make_spec(), None)
    with pytest.raises(ValueError, match="was trained elsewhere"):
        training_curve.Spec().check(make_spec(weights="0123"), None)
