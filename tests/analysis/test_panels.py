"""Parts of figures: what stands on the axes, worked out by hand."""

import math
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest

from analysis import panels
from analysis.names import LineStyle
from analysis.needles import Needles
from analysis.panels import ColourScale, Drawn
from analysis.style import plt

RED = LineStyle("a", "#FF0000", (2.0, 1.0), "s")
BLUE = LineStyle("b", "#0000FF")


@pytest.fixture
def axes():
    figure, axes = plt.subplots()
    yield axes
    plt.close(figure)


def line(*seeds, style=RED, x=None) -> Drawn:
    values = np.array(seeds, float)
    return Drawn(style, np.arange(1, values.shape[1] + 1) if x is None else np.array(x), values)


def test_bands_of_seeds():
    """None of one, the ends of two to four, a standard deviation of more."""
    assert line([1, 2]).band is None
    low, high = line([1, 5], [3, 4], [2, 9], [2, 2]).band
    assert (low.tolist(), high.tolist()) == ([1, 2], [3, 9])
    low, high = line(*[[value, 0] for value in (1, 2, 3, 4, 5)]).band
    assert low.tolist() == [3 - math.sqrt(2.5), 0] and high.tolist() == [3 + math.sqrt(2.5), 0]
    assert line([1, 2], [3, 6], [8, 7]).frame(label="x").to_dict("list") == {
        "label": ["x", "x"], "position": [1, 2], "loss_smoothed": [4.0, 5.0]}  # fmt: skip


def test_what_sets_the_frame():
    """The last seven eighths of the training context set the top, everything the bottom."""
    x = [1, 2, 4, 8, 16, 32]
    drawn = line([99, 6, 5, 5, 4, 50], x=x)
    low, high = panels.core_limits([drawn], 16)
    assert (low, high) == pytest.approx((4 - 0.06 * 2, 6 + 0.30 * 2))
    assert panels.core_limits([drawn, line([99, 6, 5, 5, 3, 2], x=x)], 16) == pytest.approx((2 - 0.06 * 4, 6 + 0.30 * 4))
    assert panels.core_limits([line([np.nan, 9.0], x=[1, 99])], 16) == (0.0, 1.0)
    assert panels.core_limits([line([5.0, 5.0], x=[8, 16])], 16) == pytest.approx((5 - 0.06 * 0.005, 5 + 0.3 * 0.005))
    assert panels.cut_note([drawn], (0, 99)) == "" and panels.cut_note([drawn], (0, 98.9)) == "curves cut at the top continue"
    assert panels.cut_note([line([np.nan, 1])], (0, 2)) == "curves cut at the top continue"


def test_the_text_is_taken_out(axes):
    """The mean of the models whose losses stay in the frame; of all, if none does."""
    x = [1, 8, 16, 32]
    one, other, wild = (
        line([9, 5, 4, 4], x=x),
        line([7, 3, 4, 2], style=BLUE, x=x),
        line([7, 3, 4, 99], style=replace(RED, label="w"), x=x),
    )
    shown, text, left = panels.without_text([one, other, wild], 16)
    assert text.tolist() == [8, 4, 4, 3] and left == ["w"]
    assert [each.values_SX[0].tolist() for each in shown] == [[1, 1, 0, 1], [-1, -1, 0, -1], [-1, -1, 0, 96]]
    alone, text, left = panels.without_text([wild], 16)
    assert text.tolist() == [7, 3, 4, 99] and not left and not alone[0].values_SX.any()
    assert [panels.without_note(wild) for wild in ((), ("w",), ("w", "v"))] == [
        "", "mean without w", "mean without 2 that leave the frame"]  # fmt: skip
    note = panels.position_panel(axes, [one, wild], 16, ylabel="y")
    assert note == "curves cut at the top continue"
    assert axes.get_ylim() == panels.core_limits([one, wild], 16) and axes.get_xlim() == (0, 32)
    assert panels.position_panel(axes, [one], 16, (0.0, 9.0)) == "" and axes.get_ylim() == (0, 9)


def test_colours_of_needles():
    """Recall is white at 0; the largest mean of a cell is rounded up, below 0 only by more than a twentieth of it."""

    def scale(kind, *values):
        rows = pd.DataFrame({"label": "a", "model": "a", "run_id": "r", "mode": "easy", "length": 100, "sample": 0,
                             "depth": np.repeat(np.arange(len(values) // 2), 2), "value": values})  # fmt: skip
        return Needles(rows, kind, {}).colours

    for kind, found in (("needle", ("RdYlGn", 1, 10, "score")), ("needle_choice", ("RdYlGn", 10, 100, "right (%)"))):
        assert scale(kind, 5.0, 5.0) == ColourScale(*found)
    for values, limits in (((3.0, 4.0, 0.0, 0.0), (0, 5)), ((3, 5, -0.3, -0.1), (0, 5)), ((3, 5, -1, -3), (-2, 5)),
                           ((0.0, 0.0), (0, 1e-3)), ((-3.0, -3.0), (-5, 5))):  # fmt: skip
        colours = scale("needle_recall", *values)
        assert (colours.low, colours.high) == pytest.approx(limits)
        assert np.allclose(colours.colours(-colours.low / (colours.high - colours.low))[:3], 0.97, atol=0.03), "white at 0"
