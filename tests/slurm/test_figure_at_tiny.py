"""The whole of Figure 2 at `tiny` as one submission. Seven trainings take longer than the other tests together, so it runs on
request: `pytest -m long tests/slurm`."""

from pathlib import Path

import pandas as pd
import pytest

from analysis.names import SEVEN
from analysis.study import Study

pytestmark = [pytest.mark.slurm, pytest.mark.long, pytest.mark.timeout(7200)]


def test_seven_models_are_trained_evaluated_and_drawn_by_the_last_job(suite):
    graph = suite.graph("tiny-seven", models=(), cluster="time_limit_hours = 2", scale="tiny")
    submitted = graph.submit()
    assert submitted.returncode == 0 and "submitted 16 jobs" in submitted.stdout, submitted.stdout + submitted.stderr
    states = graph.until_drawn(7000)
    assert all(state.restarts == 0 for state in states.values())
    rows = Study(graph.results, "tiny", "fig2_per_token_loss").rows("per_token_loss")
    assert set(rows["model"]) == set(SEVEN) and rows["loss"].notna().all()
    committed = Study(Path(__file__).parents[2] / "results", "tiny", "fig2_per_token_loss").rows(
        "per_token_loss"
    )  # of the local launcher
    ours, theirs = (table.groupby("model")["loss"].mean() for table in (rows, committed))
    pd.testing.assert_series_equal(ours, theirs, rtol=0.01)  # to the last bit on equal machines
    print(graph.slurm("status").stdout)
