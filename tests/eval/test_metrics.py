"""Numbers that evaluations and trainings report, against ones that were worked out by hand."""

import math

import numpy as np
import pandas as pd
import pytest

from analysis.curves import log_perplexity, perplexity, smooth
from analysis.training_curves import smooth_backwards
from eval.attention_speed.measure import milliseconds
from eval.kinds import KINDS
from eval.needle.measure import scores
from eval.recall.measure import judged
from training.journal import Speed


@pytest.mark.parametrize(("prediction", "expected", "exact", "fuzzy", "score"), [
    ("eat a sandwich", "eat a sandwich", 1, 1.0, 10.0),
    (" Eat a SANDWICH! And then", "eat a sandwich.", 1, 1.0, 10.0),
    ("eat sandwich", "eat a sandwich", 0, 2 / 3, 5.5),  # 1 + 9 * (2/3 - 1/3) / (2/3)
    ("a", "eat a sandwich", 0, 1 / 3, 1.0),
    ("sandwich a eat", "eat a sandwich", 0, 1 / 3, 1.0),  # in order
    ("x x x eat a sandwich", "eat a sandwich", 0, 1.0, 10.0),  # within six words
    ("x x x x eat a sandwich", "eat a sandwich", 0, 2 / 3, 5.5),  # the seventh does not count
    ("", "eat a sandwich", 0, 0.0, 1.0),
    ("one two three four", "one two three four five six seven eight", 0, 0.5, 3.25),
])  # fmt: skip
def test_scores_of_needles(prediction, expected, exact, fuzzy, score):
    assert scores(prediction, expected) == pytest.approx({"exact": exact, "fuzzy": fuzzy, "score": score})


def test_perplexities():
    losses = np.log([[2.0, 8.0, 4.0], [1.0, 1.0, 8.0]])
    np.testing.assert_allclose(np.exp(log_perplexity(losses)), [[2, 4, 4], [1, 1, 2]])
    np.testing.assert_allclose(perplexity(losses), [[2, 4, 4], [1, 1, 2]])
    np.testing.assert_allclose(smooth(np.array([1.0, 2, 6, 4]), 3), [1.5, 3, 4, 5])
    np.testing.assert_allclose(smooth_backwards(np.array([1.0, 3, math.nan, 5, 7]), 2), [1, 2, 3, 5, 6])


def test_recall_tells_stale_answers_from_right_ones():
    """a 5, b 6, a 7, a?, b?, a? with answers: right, and a value that a had, that b had, and none."""
    tokens = np.array([[0, 5, 1, 6, 0, 7, 0, 7, 1, 6, 0, 7]] * 4)
    answers = np.array([[9, 9, 9, 7, 6, 7], [9, 9, 9, 5, 6, 5], [9, 9, 9, 6, 5, 6], [5, 6, 7, 9, 7, 9]])
    correct, stale = judged(tokens, answers)
    assert correct[:, 3:].tolist() == [[True] * 3, [False, True, False], [False] * 3, [False] * 3]
    assert stale[:, 3:].tolist() == [[False] * 3, [True, False, True], [False] * 3, [False] * 3]
    assert correct[3, :3].all() and not stale[3, :3].any(), "the value itself is not an earlier one"
    assert judged(np.array([[0, 5, 0, 6]]), np.array([[9, 5]]))[1].tolist() == [[False, True]], "that of the pair before"


def test_times():
    assert milliseconds(np.array([1.0, 2, 3, 4, 5, 6])) == (3500.0, 2000.0, 5000.0)


def test_a_trainings_speed_is_of_its_last_steps(monkeypatch):
    clock = iter([0.0, 1.0, 3.0, 10.0, 14.0, 16.0])
    monkeypatch.setattr("training.journal.time.perf_counter", lambda: next(clock))
    speed = Speed(100, window=2)
    assert speed.tick() == 100.0 and speed.tick() == 200 / 3
    speed.resume()  # at 10: what came between is no step's time
    assert speed.tick() == 200 / 6 and speed.tick() == 200 / 6


SUMMARIES = {
    "needle_recall": (
        {"length": [300, 300, 400, 400], "recall_nats": [1.0, 2.0, -1.0, 0.5], "logp_without": [-4.0, -5.0, -6.0, -8.0]},
        [("1.50", "4.50"), ("-0.25", "7.00")],
    ),
    "needle_choice": ({"length": [300, 300, 400, 400], "right": [100.0, 0.0, 100.0, 100.0]}, [("50%",), ("100%",)]),
    "recall": ({"num_queries": [600, 600], "num_correct": [300, 150], "num_stale": [60, 0]}, [("0.3750", "0.0500")]),
    "longbench": ({"task": ["trec", "qasper", "qasper"], "score": [50.0, 10.0, 20.0]}, [("50.00",), ("15.00",), ("32.50",)]),
    "gate_maps": (
        {"quantity": ["median_F"] * 3 + ["F"], "row": [-1] * 3 + [0], "value": [0.25, 0.5, 0.75, 0.1]}, [("heads 0.5 ",)],
    ),
}  # fmt: skip


@pytest.mark.parametrize("kind", SUMMARIES)
def test_what_a_terminal_shows_is_the_mean_of_the_rows(kind):
    columns, lines = SUMMARIES[kind]
    said = KINDS[kind]().summary(pd.DataFrame(columns))
    assert all(number in line for line, numbers in zip(said, lines, strict=True) for number in numbers)
