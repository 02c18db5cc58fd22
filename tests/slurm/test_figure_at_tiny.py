"""The whole of Figure 2 at `tiny` as one submission. Seven trainings take longer than the other tests together, so it runs on
request: `pytest -m long tests/slurm`."""

import pandas as pd
import pytest

from experiments.scales import MODELS

pytestmark = [pytest.mark.slurm, pytest.mark.long, pytest.mark.timeout(1800)]


def test_seven_models_are_trained_evaluated_and_drawn_by_the_last_job(suite):
    graph = suite.graph("tiny", models=(), cluster="time_limit_hours = 1", scale="tiny")
    submitted = graph.submit()
    assert submitted.returncode == 0 and "submitted 16 jobs" in submitted.stdout, submitted.stdout + submitted.stderr
    graph.until(lambda: graph.states()["draw fig2_per_token_loss"].state in ("done", "failed", "cancelled"), 1700, "the figure")
    states = graph.states()
    assert {name: state.state for name, state in states.items()} == dict.fromkeys(states, "done")
    assert all(state.restarts == 0 for state in states.values())
    drawn = graph.results / "tiny"
    assert (drawn / "figures" / "fig2_per_token_loss.png").stat().st_size > 1000 and (drawn / "report.html").exists()
    rows = pd.read_parquet(drawn / "fig2_per_token_loss.parquet")
    assert set(rows["model"]) == set(MODELS) and rows["loss"].notna().all()
    assert "nothing to submit: all is done" in graph.submit().stdout
    print(graph.slurm("status").stdout)
