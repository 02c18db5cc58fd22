"""Each predicate holds on curves with the paper's shapes and is seen to fail on curves without them."""

import math

import numpy as np
import pytest

from analysis.curves import LossCurve
from analysis.names import RECURRENT
from analysis.verdict import Status, judge
from experiments.artefact import claims
from experiments.fox import fig2_per_token_loss
from experiments.fox.fig2_per_token_loss import c1, c2, c3, c4, c5, c6, grid_beyond, grid_inside
from tests import synthetic

TRAIN_LEN = 2_048
LENGTH = 4 * TRAIN_LEN


class Made:
    """A study of noiseless curves by model, all of one seed (or of those given), with documents that all behave alike."""

    def __init__(self, monkeypatch, curves, *, noise=1e-4, documents=32, length=None):
        rng = np.random.default_rng(0)
        shared = 0.3 * rng.normal(size=(documents, 1))  # what is hard in a document
        self.train_len = TRAIN_LEN
        self.curves = {}
        for model, losses in curves.items():
            losses_SN = np.atleast_2d(losses)[:, : length or LENGTH]
            bands = shared + noise * rng.normal(size=(documents, 16))
            ends = losses_SN.shape[1] * np.arange(1, 17) // 16
            seeds = tuple(range(len(losses_SN)))
            self.curves[model] = LossCurve(
                model, {}, model, "x", TRAIN_LEN, seeds, tuple(map(str, seeds)), losses_SN, bands, ends, documents
            )
        monkeypatch.setattr(fig2_per_token_loss, "by_model", lambda study: study.curves)


@pytest.fixture
def curves():
    return {model: synthetic.curve(model, TRAIN_LEN, LENGTH) for model in synthetic.SEVEN}


@pytest.fixture
def made(monkeypatch):
    return lambda curves, **how: Made(monkeypatch, curves, **how)


def test_grids_are_the_papers_at_its_training_length():
    k = 1024
    assert grid_inside(16 * k) == [512, k, 2 * k, 4 * k, 8 * k, 16 * k]
    assert grid_beyond(16 * k, 64 * k) == [20 * k, 24 * k, 32 * k, 48 * k, 64 * k]
    assert grid_beyond(16 * k, 32 * k) == [20 * k, 24 * k, 32 * k]
    assert grid_inside(512) == [16, 32, 64, 128, 256, 512]
    assert grid_beyond(512, 2048) == [640, 768, 1024, 1536, 2048]


def test_all_hold_on_the_papers_shapes(made, curves):
    judged = judge(fig2_per_token_loss.CLAIMS, made(curves))
    assert [claim.id for claim, _ in judged] == ["C1", "C2", "C3", "C4", "C5", "C6"]
    assert {verdict.status for _, verdict in judged} == {Status.HOLDS}
    assert all(verdict.judged == 6 and verdict.interval for _, verdict in judged)
    assert all(claims()[claim.id] is claim for claim, _ in judged)


def test_c1_fails_if_fox_loses_at_short_lengths_only(made, curves):
    curves["fox_llama"][: TRAIN_LEN // 4] += 0.1
    verdict = c1(made(curves))
    assert verdict.status is Status.FAILS
    assert "FoX (LLaMA) below Transformer (LLaMA) at 1 of 3 lengths" in verdict.sentence
    assert verdict.decisive.name == "log P(512), FoX (LLaMA) minus Transformer (LLaMA)", "bands have 512 tokens"
    assert verdict.effect == pytest.approx(0.1 - 0.033, abs=0.01)


@pytest.mark.parametrize("check", [c1, c2, c6])
def test_claims_on_two_pairs_need_both(made, curves, check):
    """Without FoX (Pro)'s rows only the LLaMA pair is left: no claim may hold then."""
    del curves["fox_pro"]
    verdict = check(made(curves))
    assert verdict.status is Status.NOT_MEASURED
    assert "Not measured: FoX (Pro)" in verdict.sentence
    for model in ("fox_llama", "transformer_pro"):
        curves[model] = curves[model] + 10
    assert check(made(curves)).status is Status.FAILS, "but one pair is enough to fail"
    assert check(made({})).status is Status.NOT_MEASURED


def test_equal_perplexities_are_no_win(made, curves):
    curves["transformer_pro"] = curves["fox_pro"]
    assert c1(made(curves)).status is not Status.HOLDS
    assert c1(made(curves, noise=0.0)).status is Status.FAILS


def test_c2_fails_if_the_transformer_extrapolates_as_well(made, curves):
    curves["transformer_pro"] = np.where(np.arange(LENGTH) < TRAIN_LEN, curves["transformer_pro"], 0.5)
    assert c2(made(curves)).status is Status.FAILS
    assert c1(made(curves)).status is Status.HOLDS


def test_c2_a_transformer_that_overflows_has_lost_and_a_fox_that_does_has_not_won(made, curves):
    beyond = np.arange(LENGTH) > 2 * TRAIN_LEN
    assert c2(made({**curves, "transformer_pro": np.where(beyond, np.inf, curves["transformer_pro"])})).status is Status.HOLDS
    assert c2(made({**curves, "fox_pro": np.where(beyond, np.inf, curves["fox_pro"])})).status is Status.FAILS


def test_c2_is_not_applicable_within_the_training_context(made, curves):
    assert c2(made(curves, length=TRAIN_LEN)).status is Status.NOT_APPLICABLE
    assert c1(made(curves, length=TRAIN_LEN)).status is Status.HOLDS
    assert c1(made(curves, length=TRAIN_LEN // 2)).status is Status.NOT_MEASURED


def falling(rise=0.0, at=TRAIN_LEN // 2 + TRAIN_LEN // 16):
    losses = 2.0 - 0.02 * np.arange(LENGTH) / TRAIN_LEN
    losses[at:] += rise
    return losses


@pytest.mark.parametrize(("rise", "status"), [(0.004, Status.HOLDS), (0.03, Status.FAILS)])
def test_c3_allows_a_rise_of_0003_between_points(made, rise, status):
    """The curve falls by 0.005 from band to band, and an eighth of it lies before the rise."""
    both = {"fox_pro": falling(rise), "fox_llama": falling()}
    assert c3(made(both, noise=1e-6)).status is status


def test_c3_fails_where_the_loss_ends_higher_than_it_began(made):
    """No step rises by 0.003, but all of them rise."""
    rising = {model: 2.0 + 0.010 * np.arange(LENGTH) / TRAIN_LEN for model in ("fox_pro", "fox_llama")}
    verdict = c3(made(rising, noise=1e-4))
    assert verdict.status is Status.FAILS
    assert "from tokens 1 to 512 to tokens 1,537 to 2k L changes by +0.0075" in verdict.sentence
    steps = [each for each in verdict.comparisons if each.bound == 0.003]
    assert len(steps) == 6
    assert [each.name.partition(": ")[2] for each in verdict.comparisons if each.bound == 0] == 2 * [
        "L over tokens 1,537 to 2k minus over tokens 1 to 512", "last quarter minus second quarter",
    ]  # fmt: skip
    assert all(each.p_holds < 0.5 for each in steps)


def test_c3_a_flat_curve_does_not_use_its_context(made):
    flat = {model: np.full(LENGTH, 2.0) for model in ("fox_pro", "fox_llama")}
    assert c3(made(flat, noise=1e-5)).status is Status.WITHIN_NOISE
    assert c3(made({"fox_pro": falling()}, noise=1e-6)).status is Status.NOT_MEASURED


def test_c4_fails_if_a_recurrent_model_gains_as_much(made, curves):
    curves["hgrn2"] = curves["fox_pro"] + 0.1
    verdict = c4(made(curves, noise=1e-6))
    assert verdict.status is Status.FAILS
    assert verdict.decisive.name == "gain of HGRN2 minus half of FoX (Pro)'s"


def test_c4_looks_at_the_last_three_eighths(made, curves):
    """10k to 16k of the paper's context: what is gained before does not matter."""

    def gained_by(eighths):
        return 0.5 * np.clip(1 - np.arange(LENGTH) / (TRAIN_LEN * eighths / 8), 0, None)

    assert c4(made({**curves, "hgrn2": curves["hgrn2"] + gained_by(2)})).status is Status.HOLDS
    assert c4(made({**curves, "hgrn2": curves["hgrn2"] + gained_by(8)})).status is Status.FAILS


@pytest.mark.parametrize(("share", "status"), [(0.4, Status.HOLDS), (0.6, Status.FAILS)])
def test_c4_asks_for_less_than_half_of_what_fox_gains(made, share, status):
    falling_by = {"fox_pro": 0.1} | dict.fromkeys(RECURRENT, 0.1 * share)
    curves = {model: 3.0 - fall * np.arange(LENGTH) / TRAIN_LEN for model, fall in falling_by.items()}
    assert c4(made(curves, noise=1e-6)).status is status


def test_c4_needs_fox_to_gain_and_all_recurrent_models(made, curves):
    curves["fox_pro"] = np.full(LENGTH, 1.5)
    for model in RECURRENT:
        curves[model] = 1.6 + np.linspace(0, 1, LENGTH)  # gets worse, so "less than half of FoX's" is true
    assert c4(made(curves)).status is not Status.HOLDS
    del curves["hgrn2"]
    verdict = c4(made(curves))
    assert verdict.status is Status.NOT_MEASURED
    assert "HGRN2" in verdict.sentence


def test_c5_fails_if_another_is_best_and_needs_all_seven(made, curves):
    verdict = c5(made({**curves, "mamba2": curves["fox_pro"] - 0.1}))
    assert verdict.status is Status.FAILS
    assert "best of the others, Mamba-2" in verdict.sentence
    del curves["delta_net"]
    verdict = c5(made(curves))
    assert verdict.status is Status.NOT_MEASURED
    assert "DeltaNet" in verdict.sentence


def test_c6_fails_if_llama_beats_pro_in_one_family(made, curves):
    curves["transformer_llama"], curves["transformer_pro"] = curves["transformer_pro"], curves["transformer_llama"]
    assert c6(made(curves)).status is Status.FAILS


@pytest.mark.parametrize("check", [c5, c6])
def test_c5_and_c6_are_about_the_training_context_length(made, curves, check):
    worse_beyond = np.where(np.arange(LENGTH) >= TRAIN_LEN, 50.0, 0.0)
    assert check(made({**curves, "fox_pro": curves["fox_pro"] + worse_beyond})).status is Status.HOLDS


def test_c6_holds_on_table_3s_numbers_and_says_that_they_have_no_spread(made):
    printed = {"fox_pro": 6.62, "fox_llama": 7.25, "transformer_pro": 6.82, "transformer_llama": 7.49}
    curves = {model: np.full(LENGTH, math.log(value)) for model, value in printed.items()}
    verdict = c6(made(curves, documents=1))
    assert verdict.status is Status.HOLDS
    assert "P(2k): FoX (Pro) 6.620, FoX (LLaMA) 7.250" in verdict.sentence
    assert "No spread is stored" in verdict.sentence


def test_documents_decide_whether_a_lead_is_noise(made, curves):
    small = {"transformer_pro": curves["fox_pro"] + 0.002, "fox_pro": curves["fox_pro"]}
    small |= {"fox_llama": curves["fox_llama"], "transformer_llama": curves["transformer_llama"]}
    assert c1(made(small, noise=1e-4)).status is Status.HOLDS
    verdict = c1(made(small, noise=0.1))
    assert verdict.status is Status.WITHIN_NOISE
    assert verdict.detectable > 0.01


def simulate(monkeypatch, rng, effect, *, seeds=3, seed_noise=0.02):
    """C6 on models whose seeds differ by `seed_noise` and Pro leads by `effect`."""
    curves = {}
    for model in ("fox_pro", "fox_llama", "transformer_pro", "transformer_llama"):
        lead = effect if model.endswith("pro") else 0.0
        curves[model] = np.full((seeds, 64), 2.0) - lead + seed_noise * rng.normal(size=(seeds, 1))
    study = Made(monkeypatch, {model: np.pad(own, ((0, 0), (0, LENGTH - 64)), mode="edge") for model, own in curves.items()})
    return c6(study).status


def test_seeds_are_the_outer_level(monkeypatch):
    """Without a lead three seeds give a wrong verdict in 5% at most, with one of five times the spread the right one."""
    rng = np.random.default_rng(0)
    none = [simulate(monkeypatch, rng, 0.0) for _ in range(200)]
    assert sum(status is not Status.WITHIN_NOISE for status in none) <= 14
    clear = [simulate(monkeypatch, rng, 0.1) for _ in range(60)]
    assert clear.count(Status.HOLDS) >= 48


def test_on_stored_rows_of_three_seeds(tmp_path):
    study = synthetic.main_losses(synthetic.Store(tmp_path), seeds=3, seed_noise=0.001, noise=0.005)
    verdicts = {claim.id: verdict for claim, verdict in judge(fig2_per_token_loss.CLAIMS, study)}
    assert verdicts["C1"].status is verdicts["C2"].status is verdicts["C5"].status is Status.HOLDS
    assert verdicts["C1"].seeds == 3
    assert "One seed" not in verdicts["C1"].sentence
