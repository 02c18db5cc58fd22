"""Each predicate holds on curves with the paper's shapes and is seen to fail on curves without them."""

import math

import numpy as np
import pytest

from analysis.curves import LossCurve
from analysis.verdict import Status, judge
from experiments.artefact import claims
from experiments.fox import fig2_per_token_loss
from experiments.fox.fig2_per_token_loss import c1, c2, c5, c6, grid_beyond, grid_inside
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
                label=model,
                axes={},
                model=model,
                scale="x",
                train_len=TRAIN_LEN,
                seeds=seeds,
                run_ids=tuple(map(str, seeds)),
                losses_SN=losses_SN,
                bands_DK=bands,
                ends_K=ends,
                num_documents=documents,
                noise=lambda _: None,
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
    assert [claim.id for claim, _ in judged] == ["C1", "C2", "C5", "C6"]
    assert {verdict.status for _, verdict in judged} == {Status.HOLDS}
    assert all(verdict.judged == 4 and verdict.decisive.estimate.interval for _, verdict in judged)
    assert all(claims()[claim.id] is claim for claim, _ in judged)


def test_c1_fails_if_fox_loses_at_short_lengths_only(made, curves):
    curves["fox_llama"][: TRAIN_LEN // 4] += 0.1
    verdict = c1(made(curves))
    assert verdict.status is Status.FAILS
    assert "FoX (LLaMA) below Transformer (LLaMA) in 1 of 3, least clearly in P(512) (" in verdict.sentence
    assert verdict.decisive.name == "P(512), FoX (LLaMA) against Transformer (LLaMA)", "bands have 512 tokens"
    assert verdict.decisive.estimate.effect == pytest.approx(0.1 - 0.033, abs=0.01)


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


def test_c2_is_judged_by_the_tokens_beyond_the_training_context_alone(made, curves):
    """FoX has the lower perplexity to the end, as it had it before, but not the lower loss."""
    after = np.where(np.arange(LENGTH) < TRAIN_LEN, curves["fox_pro"] + 1.0, curves["fox_pro"] - 1e-3)
    verdict = c2(made({**curves, "transformer_pro": after}))
    assert verdict.status is Status.FAILS
    assert str(verdict.decisive).startswith("loss from 3k to 4k, FoX (Pro) minus Transformer (Pro): P(4k) \N{MINUS SIGN}")


def test_c2_a_transformer_that_overflows_has_lost_and_a_fox_that_does_has_not_won(made, curves):
    beyond = np.arange(LENGTH) > 2 * TRAIN_LEN
    assert c2(made({**curves, "transformer_pro": np.where(beyond, np.inf, curves["transformer_pro"])})).status is Status.HOLDS
    assert c2(made({**curves, "fox_pro": np.where(beyond, np.inf, curves["fox_pro"])})).status is Status.FAILS


def test_c2_is_not_applicable_within_the_training_context(made, curves):
    assert c2(made(curves, length=TRAIN_LEN)).status is Status.NOT_APPLICABLE
    assert c1(made(curves, length=TRAIN_LEN)).status is Status.HOLDS
    assert c1(made(curves, length=TRAIN_LEN // 2)).status is Status.NOT_MEASURED


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
    assert verdict.decisive.estimate.detectable > 0.01


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
