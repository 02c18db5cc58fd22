"""Lines of progress where there is no terminal: the time that is left, by the clock, and what stands in them."""

import contextlib
import io

import pytest

from training import progress
from training.progress import Progress


@pytest.mark.parametrize(("done", "left"), [(0, "about 45 s left"), (50, "about 20 s left"), (80, "about 5 s left")])
def test_the_time_left_is_that_of_the_steps_since_the_start(done, left, monkeypatch, capsys):
    """Ten steps take five seconds, however many were done before."""
    clock = [0.0]
    monkeypatch.setattr(progress.time, "monotonic", lambda: clock[0])
    monkeypatch.setattr(progress, "LINE_EVERY_S", 4.0)
    with Progress("run", 100, done) as shown:
        shown.advance(3, "early")
        clock[0] = 5.0
        shown.advance(7, "loss 2")
        assert capsys.readouterr().err == f"run: {done + 10}/100, loss 2, {left}\n"
        clock[0] = 6.0
        shown.advance(1, "soon after")
        assert capsys.readouterr().err == ""
        shown.expect(done - 89)
    assert capsys.readouterr().err == f"run: {done + 11}/{11 + done}, soon after, 6.0 s\n"


def test_a_quiet_one_says_nothing(capsys):
    with Progress("run", 2, quiet=True) as shown:
        shown.advance(2)
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize(("terminal", "quiet", "met", "line"), [
    (True, False, None, True), (True, False, KeyError, False), (True, True, None, False),
    (False, False, None, True), (False, False, KeyError, True), (False, True, KeyError, False),
])  # fmt: skip
def test_a_terminal_has_a_bar_and_a_last_line_where_all_went_well(monkeypatch, terminal, quiet, met, line):
    stream = io.StringIO()
    stream.isatty = lambda: terminal
    monkeypatch.setattr(progress.sys, "stderr", stream)
    with contextlib.suppress(KeyError), Progress("run", 10, 3, quiet) as shown:
        bar = shown._bar
        (task,) = bar.tasks
        assert (task.total, task.completed, task.description, task.fields) == (10, 3, "run", {"numbers": ""})
        shown.expect(5)
        shown.advance(2, "loss 2")
        assert (task.total, task.completed, task.fields) == (15, 5, {"numbers": "loss 2"})
        if met is not None:
            raise met
    columns = "TextColumn BarColumn MofNCompleteColumn TextColumn TimeElapsedColumn TimeRemainingColumn"
    assert [type(column).__name__ for column in bar.columns] == columns.split() and bar.console.file is stream
    assert (bar.disable, bar.live.transient) == (quiet or not terminal, True)
    assert stream.getvalue().endswith("run: 5/15, loss 2, about 0 s left\n") is line


@pytest.mark.parametrize(("dense", "executed", "said"), [
    (None, None, ""), (0.4, 0.4, "  MFU 40%"), (0.4, None, "  MFU 40% (dense-equivalent)"),
    (0.4, 0.25, "  MFU 40% (dense-equivalent; executed 25%)"),
])  # fmt: skip
def test_numbers_for_a_person(dense, executed, said):
    row = {"loss": 2.34567, "tokens_per_s": 12345.6, "mfu_dense": dense, "mfu": executed}
    assert progress.numbers(row) == f"loss 2.346  12,346 tokens/s{said}"
