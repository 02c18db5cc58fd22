"""Lines of progress where there is no terminal: the time that is left, by the clock, and what stands in them."""

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
