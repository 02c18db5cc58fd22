"""Numbers taken of curves, of losses by context and of needles, and the same of what was repeated, worked out by hand."""

import itertools
import math
from dataclasses import replace
from functools import partial

import numpy as np
import pandas as pd
import pytest

from analysis import panels
from analysis.curves import (
    ContextLosses,
    LossCurve,
    compare,
    compare_contexts,
    difference,
    sum_contexts,
)
from analysis.names import LineStyle
from analysis.needles import Needles
from analysis.seeds import Repeated
from analysis.style import plt
from tests import synthetic

OF = dict(label="a", axes={}, model="a", scale="tiny")
LOSSES_SN = np.array([[9.0, 7, 6, 6, 5, 3, 4, 4], [9.0, 9, 8, 8, 7, 5, 6, 4]])
BANDS_DK = np.array([[8.0, 6, 5, 4], [9.0, 8, 4, 5], [10.0, 7, 3, 3]])


def curve(noise=lambda functional: None, **given) -> LossCurve:
    """Two seeds of eight tokens, four of them inside the training context; three documents in bands of two tokens."""
    parts = dict(losses_SN=LOSSES_SN, bands_DK=BANDS_DK, ends_K=np.array([2, 4, 6, 8]), seeds=(0, 1), run_ids=("r", "s"))
    return LossCurve(**OF, train_len=4, noise=noise, num_documents=3, **parts | given)


def test_numbers_of_a_curve():
    of = curve()
    assert of.inside == (9 + 8 + 7 + 7) / 4 and of.length == 8 and of.mean_N.tolist() == [9, 8, 7, 7, 6, 4, 5, 4]
    for length, means in ((1, [9, 9]), (2, [8, 9]), (4, [7, 8.5]), (8, [5.5, 7])):
        assert of.log_p(length).tolist() == means
    other = curve(losses_SN=np.zeros((2, 8)), bands_DK=np.zeros((3, 4)))
    assert difference(of, other).effect == of.inside and difference(of, other, 3).effect == 7
    assert difference(of, other, 5, 8).effect == (6 + 4 + 5 + 4) / 4 and difference(of, other, last=2).effect == 8.5
    assert compare((0.5, of, 1, 4), (-2.0, of, 5, 8)).effect == 0.5 * 7.75 - 2 * 4.75


@pytest.mark.parametrize(("asked", "taken"), [
    ((1, 1), (1, 2)), ((2, 2), (1, 2)), ((3, 3), (3, 4)), ((8, 8), (7, 8)), ((1, 2), (1, 2)), ((2, 3), (2, 3)),
    ((2, 8), (2, 8)),
])  # fmt: skip
def test_whole_bands_of_a_curve(asked, taken):
    """A stretch shorter than a band is widened to the bands that it lies in; one as long as a band stays."""
    assert curve().whole(*asked) == taken


def test_noise_of_a_curve_is_of_the_documents_in_proportion():
    term = curve().term(2.0, 2, 4)  # a third of it lies in the first band, two thirds in the second
    means = BANDS_DK[:, 0] / 3 + 2 * BANDS_DK[:, 1] / 3
    assert term.influence == pytest.approx(means - means.mean()) and term.coefficient == 2.0
    assert term.seeds == pytest.approx([19 / 3, 25 / 3])


def taken_of(made, repeated: Repeated):
    """Return what an estimate takes of runs that were repeated: `noise` gets the functional."""
    return made(lambda functional: functional(repeated))


def losses_of(*values: float) -> pd.DataFrame:
    """With a document's own losses, which count nothing."""
    rows = synthetic.loss_rows(np.array(values), np.full((2, 2), 99.0))
    return rows.sample(frac=1, random_state=0)


def test_the_same_stretches_of_a_repeated_curve():
    """Its training context is twice as long: token 1 is tokens 1 and 2, tokens 3 and 4 are tokens 5 to 8."""
    other = Repeated("tiny", "a", 8, (losses_of(*range(1, 17)), losses_of(*range(11, 27), 5, 5)))
    for stretches, found in (
        ([(1.0, 1, 1)], [1.5, 11.5]), ([(1.0, 3, 4)], [6.5, 16.5]), ([(1.0, 1, 4), (-0.5, 3, 4)], [1.25, 6.25]),
        ([(1.0, 1, 8)], [8.5, 18.5]), ([(1.0, 1, 9)], None),
    ):  # fmt: skip
        taken = taken_of(lambda noise, of=stretches: curve(noise).seed_noise(of), other)
        assert (taken is None) if found is None else taken.tolist() == found


CONTEXTS = (1, 2, 4, 6, 7, 8)


def contexts(noise=lambda functional: None, sources=None, seeds: int = 2) -> ContextLosses:
    """Four documents at two places, of which the second has no 8 tokens before it; two targets, and a context of 8 tokens."""
    seed, document, place, context = np.indices((seeds, 4, 2, len(CONTEXTS)))
    losses = np.array(CONTEXTS)[context] + 100.0 * seed + 10 * document + place
    losses[:, :, 1, -1] = np.nan
    parts = dict(losses_SDPC=losses, contexts_C=np.array(CONTEXTS), targets=2, sources_D=sources)
    return ContextLosses(**OF, train_len=8, noise=noise, **parts)


def test_losses_by_context():
    of = contexts()
    assert of.inside == [1, 2, 4, 6], "the targets lie inside the training context, too"
    assert of.at(4)[1, 2].tolist() == [124.0, 125.0]
    assert compare_contexts((1.0, of, 4)).effect == 4 + 50 + 15 + 0.5
    assert compare_contexts((1.0, of, 4), (-1.0, of, 8)).effect == 4 - 8, "at the places that both have"
    assert compare_contexts((1.0, contexts(seeds=1), 8)).effect == 8 + 15
    assert sum_contexts([(1.0, of, 4)], [(1.0, of, 8), (-1.0, of, 6)]).effect == 4 + 50 + 15 + 0.5 + 8 - 6, "each at its own"
    assert (of.everywhere, of.fits_P(7).tolist(), of.fits_P(8).tolist()) == (7, [True, True], [True, False])


def test_documents_of_one_source_are_one_draw_at_any_context():
    for sources, count in ((None, 4), (np.array([0, 0, 1, 1]), 2)):
        estimate = compare_contexts((1.0, contexts(sources=sources), 4))
        (part,) = [part for part in estimate.parts if part.what != "seeds"]
        assert part.count == count


def test_the_same_contexts_of_a_repeated_model():
    """Its training context is half as long: 4 tokens are 2 of its own, and 1 token is none."""
    rows = pd.DataFrame([{"document": d, "place": p, "context": c, "loss": 10.0 * c + d + p}
                         for d in (0, 1) for p in (4, 8) for c in (1, 2, 3) if c < p - 1])  # fmt: skip
    other = Repeated("tiny", "a", 4, (rows, rows.assign(loss=rows["loss"] + 1)))
    for asked, found in (([[(1.0, 4)]], [26.5, 27.5]), ([[(1.0, 6), (-2.0, 2)]], [10 * (3 - 2) - 8.5, 10 * (3 - 2) - 9.5]),
                         ([[(1.0, 4)], [(1.0, 6), (-1.0, 4)]], [26.5 + 10, 27.5 + 10]), ([[(1.0, 4)], [(1.0, 1)]], None),
                         ([[(1.0, 1)]], None), ([[(1.0, 8)]], None)):  # fmt: skip
        taken = taken_of(lambda noise, asked=asked: contexts(noise).seed_noise(*asked), other)
        assert (taken is None) if found is None else taken.tolist() == found


def needles(kind: str, columns: dict[str, list[float]], noise=lambda functional: None) -> Needles:
    """Two samples each of two depths at one length and of one depth at another."""
    places = {"mode": "easy", "length": [100, 100, 100, 100, 200, 200], "depth": [0.0, 0, 50, 50, 0, 0], "sample": [0, 1] * 3}
    rows = pd.DataFrame({"label": "a", "model": "a", "seed": 0, "run_id": "r", **places, **columns})
    return Needles(rows, kind, {"r": noise})


@pytest.mark.parametrize(("kind", "floor", "value", "unit"), [
    ("needle", True, 1.99, "points"), ("needle", False, 2.0, "points"), ("needle_choice", True, 19.9, "percent"),
    ("needle_choice", False, 20.0, "percent"), ("needle_recall", False, 0.0, "nats"),
])  # fmt: skip
def test_the_floor_of_needles(kind, floor, value, unit):
    """It is two points of ten, two needles of ten that are chosen rightly, and no recall is too little to be one."""
    found = needles(kind, {"value": [value] * 6})
    assert found.at_floor is floor and found.unit == unit


def test_needles_at_places():
    """Both ends belong to what is asked for; the mean is that of the cells, and its noise that within them, summed by sample:
    of the first -1, -2 and -1 away from the means of the cells, of the second as much the other way."""
    found = needles("needle", {"value": [1.0, 3, 5, 9, 6, 8]})
    for low, high, values in ((0, 100, [1.0, 3, 5, 9]), (100, 199, [1.0, 3, 5, 9]), (101, 200, [6.0, 8]), (201, math.inf, [])):
        assert found.of(model="a", mode="easy", low=low, high=high)["value"].tolist() == values
    estimate = found.mean_of(found.of(label="a", mode="easy"))
    assert estimate.effect == (2 + 7 + 7) / 3
    (part,) = [part for part in estimate.parts if part.what == "sentences that are hidden"]
    assert (part.variance, part.df, part.count) == (pytest.approx(2 / 1 * (16 + 16) / 36), 1.0, 2)
    once = needles("needle", {"value": [1.0, 3, 5, 9, 6, 8], "depth": [0.0, 10, 20, 30, 40, 50]})  # each its own cell
    for of in (found, once):
        again = of.mean_of(pd.concat([of.rows, of.rows.assign(run_id="s", seed=1)]))
        assert again.parts[-1] == of.mean_of(of.rows).parts[-1], "two seeds that agree on each needle"


def test_choices_are_shares_and_scores_are_not():
    """Both samples find one of three: of two of six z = 161.45 / 6 = 26.91, so that the ends are (33.3 + 50 z +- root(z (33.3 x
    66.7 + 2500 z))) / (1 + z). A model beside itself is not the same for sure."""
    values = {"value": [100.0, 0, 0, 100, 0, 0]}
    found, scores = needles("needle_choice", values), needles("needle", values)
    rows = found.rows
    assert (found.unit_apart, scores.unit_apart) == ("percentage points", "points")
    assert found.mean_of(rows).interval == pytest.approx((0.40, 98.40), abs=0.01)
    assert found.difference(rows, rows.assign(label="b")).interval == (-100.0, 100.0)
    assert scores.mean_of(rows).counted == 0 and scores.difference(rows, rows.assign(label="b")).interval == (0.0, 0.0)


def test_the_same_cells_of_repeated_needles():
    """Those of the length that is asked for, each cell as much as another."""
    rows = pd.DataFrame({"mode": "easy", "length": [100] * 4 + [200, 300], "depth": [0.0, 50, 50, 50, 0, 0],
                         "score": [1.0, 2, 3, 4, 9, 99]})  # fmt: skip
    other = Repeated("tiny", "a", 4, (rows, rows.assign(score=rows["score"] + 1)))
    made = partial(needles, "needle", {"value": [1.0] * 6})
    for high, found in ((100, [2.0, 3.0]), (200, [13 / 3, 16 / 3])):
        own = made().of(model="a", mode="easy", high=high)
        assert taken_of(lambda noise, own=own: made(noise)._seed_noise(own), other) == pytest.approx(found)
    there = Repeated("tiny", "a", 4, (rows[rows["length"] == 100],))
    assert taken_of(lambda noise: made(noise)._seed_noise(made().rows), there) is None


def test_drawn_curves():
    """Bins stand at the geometric mean of their ends; smoothed positions go from the first that is drawn to the last."""
    loss = np.arange(1.0, 257)
    of = curve(losses_SN=np.stack([loss, loss + 1]), bands_DK=np.empty((0, 0)), ends_K=np.empty(0))
    drawn = panels.binned(of, LineStyle("a", "b"), 4, 16)
    edges = np.array([4, 5, 6, 7, 8, 10, 11, 13, 16])
    assert drawn.x == pytest.approx(np.sqrt(edges[:-1] * edges[1:]))
    wanted = [loss[low:high].mean() for low, high in itertools.pairwise(edges)]
    assert drawn.values_SX == pytest.approx(np.array([wanted, np.add(wanted, 1)]))
    smoothed = panels.smoothed(replace(of, train_len=64), LineStyle("a", "b"), 9)
    assert smoothed.x.tolist() == [*range(4, 257)] and smoothed.values_SX[1, :6].tolist() == [5.5, 6, 7, 8, 9, 10]
    assert smoothed.values_SX[0, -1] == loss[-5:].mean()


def test_a_cell_of_needles_is_the_mean_of_its_samples():
    cells = pd.DataFrame({"length": [100, 100, 100, 200], "depth": [0.0, 0, 50, 50], "value": [1.0, 4, 5, 7]})
    figure, axes = plt.subplots()
    panels.needle_panel(axes, cells, panels.ColourScale("RdYlGn", 1, 10, "score"), 150)
    (mesh,) = axes.collections
    assert mesh.get_array().filled(-1).tolist() == [[2.5, -1.0], [5.0, 7.0]]
    assert axes.lines[0].get_xdata()[0] == 1.0, "the training length lies half way between the two lengths' middles"
    plt.close(figure)
