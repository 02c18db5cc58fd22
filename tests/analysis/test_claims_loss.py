"""Each predicate holds on curves with the paper's shapes and is seen to fail on curves without them."""

import numpy as np
import pytest
import synthetic

from analysis import claims_loss
from analysis.claims import CLAIMS, Status, judge
from analysis.claims_loss import c1, c2, c3, c4, c5, c6, grid_beyond, grid_inside, loss_verdicts, scatter

TRAIN_LEN = 2_048


@pytest.fixture
def curves() -> dict[str, np.ndarray]:
    return {model: synthetic.curve(model, TRAIN_LEN, 4 * TRAIN_LEN) for model in synthetic.SEVEN}


def test_grids_are_the_papers_at_its_training_length():
    k = 1024
    assert grid_inside(16 * k) == [512, k, 2 * k, 4 * k, 8 * k, 16 * k]
    assert grid_beyond(16 * k, 64 * k) == [20 * k, 24 * k, 32 * k, 48 * k, 64 * k]
    assert grid_beyond(16 * k, 32 * k) == [20 * k, 24 * k, 32 * k]
    assert grid_inside(512) == [16, 32, 64, 128, 256, 512]
    assert grid_beyond(512, 2048) == [640, 768, 1024, 1536, 2048]


def test_all_hold_on_the_papers_shapes(curves):
    verdicts = loss_verdicts(curves, TRAIN_LEN)
    assert [verdict.claim for verdict in verdicts] == ["C1", "C2", "C3", "C4", "C5", "C6"]
    assert {verdict.status for verdict in verdicts} == {Status.HOLDS}
    assert all(verdict.numbers and verdict.sentence.endswith(".") for verdict in verdicts)


def test_c1_fails_if_fox_loses_at_one_short_length_only(curves):
    curves["fox_llama"] = curves["fox_llama"].copy()
    curves["fox_llama"][: TRAIN_LEN // 32] += 0.2
    assert c1(curves, TRAIN_LEN).status is Status.FAILS
    assert "FoX (LLaMA) below Transformer (LLaMA) at 3 of 6" in c1(curves, TRAIN_LEN).sentence


def test_c1_needs_one_pair_only(curves):
    pro = {model: curves[model] for model in ("fox_pro", "transformer_pro", "mamba2")}
    assert c1(pro, TRAIN_LEN).status is Status.HOLDS
    assert c1({"fox_pro": curves["fox_pro"]}, TRAIN_LEN).status is Status.NOT_APPLICABLE


def test_equal_perplexities_are_no_win(curves):
    curves["transformer_pro"] = curves["fox_pro"]
    assert c1(curves, TRAIN_LEN).status is Status.FAILS


def test_c2_fails_if_the_transformer_extrapolates_as_well(curves):
    curves["transformer_pro"] = np.where(np.arange(4 * TRAIN_LEN) < TRAIN_LEN, curves["transformer_pro"], 0.5)
    assert c2(curves, TRAIN_LEN).status is Status.FAILS
    assert c1(curves, TRAIN_LEN).status is Status.HOLDS


def test_c2_a_transformer_that_overflows_has_lost_and_a_fox_that_does_has_not_won(curves):
    beyond = np.arange(4 * TRAIN_LEN) > 2 * TRAIN_LEN
    broken = {**curves, "transformer_pro": np.where(beyond, np.nan, curves["transformer_pro"])}
    assert c2(broken, TRAIN_LEN).status is Status.HOLDS
    broken = {**curves, "fox_pro": np.where(beyond, np.nan, curves["fox_pro"])}
    assert c2(broken, TRAIN_LEN).status is Status.FAILS


def test_c2_is_not_applicable_within_the_training_context(curves):
    short = {model: curve[:TRAIN_LEN] for model, curve in curves.items()}
    assert c2(short, TRAIN_LEN).status is Status.NOT_APPLICABLE
    assert c1(short, TRAIN_LEN).status is Status.HOLDS


@pytest.mark.parametrize(("rise", "status"), [(0.002, Status.HOLDS), (0.02, Status.FAILS)])
def test_c3_allows_a_rise_of_0003(rise, status):
    flat = np.full(TRAIN_LEN, 2.0)
    flat[TRAIN_LEN // 2 + TRAIN_LEN // 16 :] += rise
    assert c3({"fox_pro": flat}, TRAIN_LEN).status is status


def test_c4_fails_if_a_recurrent_model_gains_as_much(curves):
    curves["hgrn2"] = curves["fox_pro"] + 0.1
    assert c4(curves, TRAIN_LEN).status is Status.FAILS
    assert "HGRN2" in c4(curves, TRAIN_LEN).sentence


def test_c4_needs_fox_to_gain(curves):
    curves["fox_pro"] = np.full(4 * TRAIN_LEN, 1.5)
    for model in claims_loss.RECURRENT:
        curves[model] = 1.6 + np.linspace(0, 1, 4 * TRAIN_LEN)  # gets worse, so "less than half of FoX's" is true
    assert c4(curves, TRAIN_LEN).status is Status.FAILS


def test_c5_fails_if_another_is_best_and_needs_all_seven(curves):
    verdict = c5({**curves, "mamba2": curves["fox_pro"] - 0.1}, TRAIN_LEN)
    assert verdict.status is Status.FAILS
    assert "best of the others is Mamba-2" in verdict.sentence
    del curves["delta_net"]
    verdict = c5(curves, TRAIN_LEN)
    assert verdict.status is Status.NOT_APPLICABLE
    assert "DeltaNet" in verdict.sentence


def test_c6_fails_if_llama_beats_pro_in_one_family(curves):
    curves["transformer_llama"], curves["transformer_pro"] = curves["transformer_pro"], curves["transformer_llama"]
    assert c6(curves, TRAIN_LEN).status is Status.FAILS


def test_a_miss_smaller_than_the_noise_of_the_difference_is_called_noise():
    rng = np.random.default_rng(0)
    base, shared = synthetic.curve("fox_pro", TRAIN_LEN, TRAIN_LEN), rng.normal(size=TRAIN_LEN)
    fox = base + shared + 0.02 * rng.normal(size=TRAIN_LEN)
    noisy = {"fox_pro": fox - fox.mean() + 2.0002, "transformer_pro": base + shared - (base + shared).mean() + 2.0}
    one_length = noisy["fox_pro"].mean() - noisy["transformer_pro"].mean()
    assert one_length == pytest.approx(0.0002)
    verdict = claims_loss._lower_everywhere("C1", noisy, [TRAIN_LEN])
    assert verdict.status is Status.WITHIN_NOISE
    clear = {**noisy, "fox_pro": noisy["fox_pro"] + 0.01}  # 0.01 is far beyond 2 * 0.02 / sqrt(2048)
    assert claims_loss._lower_everywhere("C1", clear, [TRAIN_LEN]).status is Status.FAILS


def test_scatter_recovers_the_noise_and_ignores_a_trend():
    noise = np.random.default_rng(0).normal(size=100_000) * 0.3
    assert scatter(noise + np.linspace(0, 50, 100_000)) == pytest.approx(0.3, rel=0.02)
    assert scatter(np.linspace(0, 1, 100)) == pytest.approx(0, abs=1e-12)


def test_nothing_applies_to_an_evaluation_shorter_than_the_training_context(curves):
    short = {model: curve[: TRAIN_LEN // 2] for model, curve in curves.items()}
    assert {verdict.status for verdict in loss_verdicts(short, TRAIN_LEN)} == {Status.NOT_APPLICABLE}


def test_judge_reads_rows_and_meta():
    rows, meta = synthetic.loss_rows("tiny", train_len=128, length=512)
    verdicts = judge("per_token_loss", rows, meta)
    assert [verdict.claim for verdict in verdicts] == ["C1", "C2", "C3", "C4", "C5", "C6"]
    assert all(verdict.claim in CLAIMS for verdict in verdicts)
    assert judge("throughput", rows, meta) == []
