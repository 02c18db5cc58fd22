import numpy as np
import pandas as pd
import pytest
import synthetic
from hypothesis import given, settings
from hypothesis import strategies as st

from analysis.names import MODELS, SEVEN, ordered, style_of
from analysis.rows import corpus_names, first_plotted, loss_curves, perplexity, smooth, smoothing_window, train_seq_len


@settings(max_examples=50)
@given(st.lists(st.floats(0, 20), min_size=1, max_size=40), st.integers(0, 12))
def test_smoothing_is_the_centred_mean_truncated_at_the_ends(values, half):
    array = np.array(values)
    expected = [array[max(0, i - half) : i + half + 1].mean() for i in range(len(array))]
    np.testing.assert_allclose(smooth(array, 2 * half + 1), expected, atol=1e-9)


def test_smoothing_refuses_an_even_window():
    with pytest.raises(ValueError, match="100"):
        smooth(np.ones(5), 100)


def test_one_value_that_is_not_finite_does_not_spoil_the_rest():
    smoothed = smooth(np.array([1.0, 1.0, 1.0, np.nan, 1.0, 1.0, 1.0]), 3)
    np.testing.assert_array_equal(np.isnan(smoothed), [False, False, True, True, True, False, False])


def test_perplexity_is_that_of_the_running_mean():
    losses = np.array([2.0, 1.0, 3.0])
    np.testing.assert_allclose(perplexity(losses), np.exp([2.0, 1.5, 2.0]))
    assert perplexity(np.array([2000.0]))[0] == np.inf


def test_windows_are_the_papers_at_its_length_and_smaller_below():
    assert (smoothing_window(16_384), first_plotted(16_384)) == (101, 128)
    assert (smoothing_window(2_048), first_plotted(2_048)) == (101, 128)
    assert (smoothing_window(512), first_plotted(512)) == (65, 32)
    assert (smoothing_window(1), first_plotted(1)) == (1, 1)


def test_loss_curves_are_means_over_runs_in_the_papers_order():
    rows, _ = synthetic.loss_rows("tiny", models=("mamba2", "fox_pro"), train_len=16, length=64)
    second = rows.assign(run_id=rows["run_id"] + "b", loss=rows["loss"] + 0.5)
    curves = loss_curves(pd.concat([second, rows]).sample(frac=1, random_state=0))
    assert list(curves) == ["fox_pro", "mamba2"]
    np.testing.assert_allclose(curves["fox_pro"], synthetic.curve("fox_pro", 16, 64) + 0.25)


def test_loss_curves_refuse_gaps_several_lengths_and_two_evaluations():
    rows, _ = synthetic.loss_rows("tiny", models=("mamba2", "fox_pro"), train_len=16, length=64)
    with pytest.raises(ValueError, match="mamba2: per-token losses have gaps"):
        loss_curves(rows[(rows["model"] != "mamba2") | (rows["position"] != 7)])
    with pytest.raises(ValueError, match=r"several lengths.*'mamba2': 32"):
        loss_curves(rows[(rows["model"] != "mamba2") | (rows["position"] <= 32)])
    with pytest.raises(ValueError, match="several evaluations of the same thing"):
        loss_curves(pd.concat([rows, rows.assign(eval_id="per_token_loss-1")]))


def test_the_training_length_comes_from_the_runs_or_from_the_evaluation():
    meta = synthetic.meta_for("a", "k", "tiny", ("fox_pro", "mamba2"), 512)
    assert train_seq_len(meta) == 512
    for run in meta["runs"].values():
        run["spec"] = None  # a published checkpoint
    with pytest.raises(ValueError, match="none"):
        train_seq_len(meta)
    for made in meta["evals"]["k-0badc0de"]["runs"].values():
        made["extras"] = {"train_seq_len": 1024}
    assert train_seq_len(meta) == 1024
    next(iter(meta["runs"].values()))["spec"] = {"train": {"seq_len": 512}}
    with pytest.raises(ValueError, match="512, 1024"):
        train_seq_len(meta)


def test_the_corpus_comes_from_the_runs():
    def meta(*names: str) -> dict:
        return {"runs": {str(i): {"spec": {"data": {"source": n, "tokenizer": "bytes"}}} for i, n in enumerate(names)}}

    assert corpus_names(meta("stdlib", "stdlib")) == "stdlib, bytes"
    assert corpus_names(meta("text", "longcrawl64")) == "longcrawl64, bytes; text, bytes"
    assert corpus_names({"runs": {"a": {}}}) == corpus_names({}) == ""


def test_every_model_has_one_colour_and_label_of_its_own():
    assert len({style.colour for style in MODELS.values()}) == len({style.label for style in MODELS.values()}) == len(MODELS)
    assert set(SEVEN) <= set(MODELS)
    assert ordered(["mamba2", "someone/else", "fox_pro", "mamba2"]) == ["fox_pro", "mamba2", "someone/else"]
    assert style_of("someone/else").label == "someone/else"
