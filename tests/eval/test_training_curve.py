"""Training curves: from metrics.jsonl as it is, of finished runs only."""

import subprocess
import sys
from pathlib import Path

import pytest

from eval.__main__ import main as eval_main
from eval.training_curve import spec as training_curve
from results.store import read_rows
from training.lines import line

SPEC = training_curve.Spec()


def write_metrics(run: Path, steps: range) -> None:
    """As training writes them."""
    with open(run / "metrics.jsonl", "a") as file:
        for s in steps:
            row = {"step": s, "tokens": 2048 * s, "loss": 7 - s / 4, "grad_norm": 1.0, "lr": 1e-3, "tokens_per_s": 5e3}
            file.write(line({**row, "wall_s": 0.4 * s, "mfu": None, "mfu_dense": 0.25}))


def test_rows_are_the_metrics(make_run, capsys):
    run = make_run()
    write_metrics(run, range(1, 11))
    assert eval_main(["training_curve", "--model", str(run)]) == 0
    (file,) = (run / "evals").glob("*.parquet")
    rows, meta = read_rows(file)
    assert rows["step"].tolist() == list(range(1, 11))
    assert rows["tokens"].iloc[-1] == 20480
    assert rows["loss"].tolist() == [7 - s / 4 for s in range(1, 11)]
    assert rows["mfu"].isna().all()
    assert (rows["mfu_dense"] == 0.25).all()
    assert meta["kind"] == "training_curve"
    assert "10 steps, 20,480 tokens; last loss 4.5000 nats per token" in capsys.readouterr().out


def test_a_plan_needs_no_torch_for_it(make_run):
    run = make_run()
    write_metrics(run, range(1, 11))
    code = "import sys; from eval.__main__ import main; code = main(); sys.exit(code or 3 * ('torch' in sys.modules))"
    root = Path(training_curve.__file__).parents[2]
    command = [sys.executable, "-c", code, "training_curve", "--model", str(run)]
    done = subprocess.run(command, cwd=root, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    ("steps", "message"),
    [
        (range(1, 10), "does not hold each of the run's 10 steps once (9 li"),
        (range(2, 12), "does not hold"),
        (range(0), "does not hold"),
    ],
)
def test_missing_steps_are_refused(steps, message, make_run, capsys):
    run = make_run()
    write_metrics(run, steps)
    assert eval_main(["training_curve", "--model", str(run)]) == 2
    assert message in capsys.readouterr().err


def test_unfinished_and_adopted_runs(make_run, make_spec, capsys):
    run = make_run()
    write_metrics(run, range(1, 11))
    (run / "export").rename(run / "export.partial")
    assert eval_main(["training_curve", "--model", str(run)]) == 2
    assert "not finished" in capsys.readouterr().err
    adopted = make_run(weights="0123")
    assert eval_main(["training_curve", "--model", str(adopted)]) == 2
    assert "the run was trained elsewhere" in capsys.readouterr().err
    SPEC.check(make_spec(), None)
    with pytest.raises(ValueError, match="was trained elsewhere"):
        SPEC.check(make_spec(weights="0123"), None)
