import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from training.optimizer import learning_rate
from training.spec import TrainSpec

PAPER = TrainSpec(seq_len=16384, batch_tokens=2**19, train_tokens=45 * 2**30, warmup_tokens=256 * 2**20, peak_lr=2e-3)


def test_first_step_runs_at_zero_and_last_slightly_above():
    assert learning_rate(0, PAPER) == 0.0
    assert PAPER.num_steps == 92160
    last = learning_rate((PAPER.num_steps - 1) * PAPER.batch_tokens, PAPER)
    assert 0 < last < 1e-11


def test_warm_up_takes_512_steps_of_the_paper():
    rates = [learning_rate(step * PAPER.batch_tokens, PAPER) for step in range(514)]
    assert rates[512] == PAPER.peak_lr
    assert rates[511] == pytest.approx(2e-3 * 511 / 512) and rates[513] < rates[512]


def test_cosine_spans_what_is_left_after_the_warm_up():
    middle = PAPER.warmup_tokens + (PAPER.train_tokens - PAPER.warmup_tokens) // 2
    assert learning_rate(middle, PAPER) == pytest.approx(1e-3)
    quarter = PAPER.warmup_tokens + (PAPER.train_tokens - PAPER.warmup_tokens) // 4
    assert learning_rate(quarter, PAPER) == pytest.approx(2e-3 * (1 + math.sqrt(0.5)) / 2)


@given(st.integers(0, PAPER.num_steps - 2))
def test_rises_through_the_warm_up_and_falls_after(step):
    now, later = (learning_rate(s * PAPER.batch_tokens, PAPER) for s in (step, step + 1))
    assert (later > now) == (step < 512)
