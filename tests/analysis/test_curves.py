import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from analysis.curves import loss_curves, perplexity, smooth
from tests import synthetic


@given(st.lists(st.floats(0, 10), min_size=1, max_size=40), st.sampled_from([1, 3, 5, 101]))
def test_smoothing_is_the_mean_of_a_window_cut_at_the_ends(values, window):
    half = window // 2
    expected = [np.mean(values[max(0, i - half) : i + half + 1]) for i in range(len(values))]
    np.testing.assert_allclose(smooth(np.array(values), window), expected, atol=1e-9)
    for position in (1, len(values)):
        first, last = max(1, position - window // 2), min(len(values), position + window // 2)
        assert np.mean(values[first - 1 : last]) == pytest.approx(expected[position - 1])


def test_perplexity_is_that_of_the_running_mean():
    losses = np.array([2.0, 4.0, 0.0])
    np.testing.assert_allclose(perplexity(losses), np.exp([2, 3, 2]))
    np.testing.assert_allclose(perplexity(np.stack([losses, losses]))[1], np.exp([2, 3, 2]))


def curves_of(tmp_path, losses_by_seed, bands_by_seed=None):
    store = synthetic.Store(tmp_path, train_len=32)
    for seed, losses in enumerate(losses_by_seed):
        rows = synthetic.loss_rows(np.asarray(losses), None if bands_by_seed is None else bands_by_seed[seed])
        store.add("fig", "fox_pro", [("per_token_loss", rows)], seed=seed)
    return store.study("fig")


def test_seeds_of_a_label_make_one_curve(tmp_path):
    rng = np.random.default_rng(0)
    losses, bands = rng.random((3, 128)), rng.random((3, 5, 16))
    (curve,) = loss_curves(curves_of(tmp_path, losses, bands))
    np.testing.assert_allclose(curve.losses_SN, losses)
    np.testing.assert_allclose(curve.mean_N, losses.sum(axis=0) / 3)
    np.testing.assert_allclose(curve.bands_DK, bands.mean(axis=0))
    assert curve.ends_K.tolist() == [8 * (k + 1) for k in range(16)]
    assert (curve.seeds, curve.train_len, curve.num_documents, curve.length) == ((0, 1, 2), 32, 5, 128)


def test_gaps_and_seeds_that_differ_are_errors(tmp_path):
    losses = np.random.default_rng(0).random((2, 64))
    with pytest.raises(ValueError, match="different lengths or documents"):
        loss_curves(curves_of(tmp_path / "a", [losses[0], losses[1, :32]]))
    for place, drop in (("b", ("position", 5)), ("c", ("document", 1))):
        store = synthetic.Store(tmp_path / place)
        rows = synthetic.loss_rows(losses[0], np.ones((3, 16)))
        column, value = drop
        gone = (rows[column] == value) & ((rows["document"] == -1) if column == "position" else (rows["position"] == 8))
        store.add("fig", "fox_pro", [("per_token_loss", rows[~gone])])
        with pytest.raises(ValueError, match="gaps"):
            loss_curves(store.study("fig"))
