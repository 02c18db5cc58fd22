import time

import numpy as np
import pandas as pd
import pytest
import synthetic
from PIL import Image

from analysis import fig2_per_token_loss, fig3_forget_gates, fig4_needle
from analysis.fig2_per_token_loss import PAPER_LOSS_RANGE
from analysis.rows import perplexity, smooth
from analysis.style import scale_note, tokens


def small_loss_rows(**changed):
    return synthetic.loss_rows("tiny", **{"train_len": 128, "length": 512, "documents": 8, "floor": 3.0} | changed)


def test_figure_2_writes_png_pdf_and_the_numbers_drawn(tmp_path):
    rows, meta = small_loss_rows(models=("fox_pro", "transformer_pro"))
    paths = fig2_per_token_loss.render(rows, meta, tmp_path)
    assert [path.name for path in paths] == [f"fig2_per_token_loss.{ending}" for ending in ("png", "pdf", "csv")]
    assert {path.parent for path in paths} == {tmp_path / "figures"}
    assert Image.open(paths[0]).width > 1000
    table = pd.read_csv(paths[2])
    assert table["position"].iloc[0] == 8
    assert table["position"].iloc[-1] == 512
    curve = synthetic.curve("transformer_pro", 128, 512, floor=3.0)
    at = table["position"] - 1
    np.testing.assert_allclose(table["transformer_pro_loss_smoothed"], smooth(curve, 17)[at], rtol=1e-5)
    np.testing.assert_allclose(table["transformer_pro_perplexity"], perplexity(curve)[at], rtol=1e-5)


@pytest.mark.parametrize(
    ("module", "made"),
    [
        (fig2_per_token_loss, small_loss_rows(models=("fox_pro", "hgrn2"))),
        (fig3_forget_gates, synthetic.gate_rows(models=("fox_pro",), layers=2, heads=2, size=16)),
        (
            fig4_needle,
            synthetic.needle_rows("tiny", models=("fox_pro",), lengths=(100, 200), depths=(0.0, 50.0), train_len=128),
        ),
    ],
)
def test_equal_rows_give_equal_bytes(module, made, tmp_path):
    one, two = module.render(*made, tmp_path / "a"), module.render(*made, tmp_path / "b")
    assert len(one) == 3
    assert [path.read_bytes() for path in one] == [path.read_bytes() for path in two]


def test_figure_2_at_the_papers_size_is_fast_and_small(tmp_path):
    rows, meta = synthetic.loss_rows(noise=0.004)
    start = time.process_time()
    _, pdf, csv = fig2_per_token_loss.render(rows, meta, tmp_path)
    assert time.process_time() - start < 6  # about 1.3 s on an idle core
    assert pdf.stat().st_size < 500_000
    assert csv.stat().st_size < 500_000
    positions = set(pd.read_csv(csv)["position"])
    assert {128, 16_384, 65_536} <= positions


def test_y_limits_are_the_papers_only_where_they_fit():
    positions = np.arange(1, 65_537)
    curves = {model: synthetic.curve(model, 16_384, 65_536) for model in synthetic.SEVEN}
    assert fig2_per_token_loss._limits(positions, curves, 16_384, "760m-48b", PAPER_LOSS_RANGE) == PAPER_LOSS_RANGE
    other = fig2_per_token_loss._limits(positions, curves, 16_384, "760m-16b", PAPER_LOSS_RANGE)
    assert other != PAPER_LOSS_RANGE
    shifted = {model: curve + 2 for model, curve in curves.items()}
    low, high = fig2_per_token_loss._limits(positions, shifted, 16_384, "760m-48b", PAPER_LOSS_RANGE)
    assert 3.4 < low < 3.5 < 3.6 < high < 4


def test_an_exploding_curve_does_not_flatten_the_rest():
    positions = np.arange(1, 2049)
    curves = {"fox_pro": np.linspace(3.2, 3.0, 2048), "transformer_llama": np.linspace(3.3, 3.1, 2048)}
    calm = fig2_per_token_loss._limits(positions, curves, 512, "tiny", PAPER_LOSS_RANGE)
    curves["transformer_llama"] = np.where(positions > 520, 1e6, curves["transformer_llama"])
    curves["transformer_llama"][2000:] = np.nan
    assert fig2_per_token_loss._limits(positions, curves, 512, "tiny", PAPER_LOSS_RANGE) == pytest.approx(calm, abs=1e-3)
    assert calm[0] < 3.0, "what falls on beyond the training context stays visible"


def test_figure_2_draws_models_the_suite_does_not_know(tmp_path):
    rows, meta = small_loss_rows(models=("fox_pro",))
    rows["model"] = "some-org/some-model"
    assert len(fig2_per_token_loss.render(rows, meta, tmp_path)) == 3


def test_every_figure_states_its_scale():
    assert "not the paper's main setting" in scale_note("tiny")
    assert "tiny" in scale_note("tiny")
    assert "not" not in scale_note("760m-48b")
    assert [tokens(count) for count in (512, 1024, 16_384, 65_536)] == ["512", "1k", "16k", "64k"]


def test_summary_of_figure_2_has_losses_perplexities_and_the_unigram_entropy():
    rows, meta = small_loss_rows(models=("fox_pro", "mamba2"))
    table = fig2_per_token_loss.summary(rows, meta)
    assert [column.key for column in table.columns] == ["mean_loss", "below_unigram", "ppl_32", "ppl_128", "ppl_256", "ppl_512"]
    curve = synthetic.curve("mamba2", 128, 512, floor=3.0)
    mean = curve[:128].mean()
    assert table.rows["mamba2"][:2] == pytest.approx([mean, 7.0 - mean])
    assert table.rows["mamba2"][3] == pytest.approx(np.exp(mean))
    assert "7.000 nats" in table.note


def test_figure_3_picks_the_most_local_and_the_most_global_head():
    rows, _ = synthetic.gate_rows(models=("fox_pro",), layers=2, heads=3, size=8)
    statistics = fig3_forget_gates.head_statistics(rows)["median_F"]
    assert fig3_forget_gates.two_heads(rows) == [statistics.idxmin(), statistics.idxmax()]
    with pytest.raises(ValueError, match="no F matrices"):
        fig3_forget_gates.two_heads(rows[rows["row"] < 0])


def test_figure_3_draws_a_head_that_never_forgets(tmp_path):
    rows, meta = synthetic.gate_rows(models=("fox_pro",), layers=1, heads=2, size=4)
    rows.loc[(rows["quantity"] == "half_life_tokens") & (rows["head"] == 1), "value"] = np.inf
    with fig3_forget_gates.figure_style():
        figure = fig3_forget_gates._draw(rows, meta)
        drawn = next(axes for axes in figure.axes if axes.get_ylabel() == "half-life (tokens)").lines[0].get_ydata()
        fig3_forget_gates.plt.close(figure)
    assert max(drawn) == 10 * 512


def test_figure_3_shows_one_run_per_model(tmp_path):
    rows, meta = synthetic.gate_rows(models=("fox_pro",), layers=1, heads=1, size=4)
    with pytest.raises(ValueError, match="one run"):
        fig3_forget_gates.render(pd.concat([rows, rows.assign(run_id="other")]), meta, tmp_path)


def test_figure_4_draws_what_is_there_and_averages_samples(tmp_path):
    rows, meta = synthetic.needle_rows(
        "tiny", models=("fox_pro", "mamba2"), lengths=(100, 200), depths=(0.0, 50.0), train_len=128
    )
    rows = pd.concat([rows, rows.assign(sample=1, score=1.0)])
    rows = rows[(rows["model"] != "mamba2") | (rows["mode"] == "easy")]  # one panel has nothing to show
    csv = fig4_needle.render(rows, meta, tmp_path)[2]
    cells = pd.read_csv(csv)
    fox = cells[(cells["model"] == "fox_pro") & (cells["length"] == 100)]
    assert fox["score"].tolist() == [5.5] * 4
    summary = fig4_needle.summary(rows, meta)
    assert [column.key for column in summary.columns] == ["easy_inside", "easy_beyond", "standard_inside", "standard_beyond"]
    assert summary.rows["fox_pro"][0] == 5.5
    assert np.isnan(summary.rows["mamba2"][2])
    assert "2 samples per cell" in summary.note


def test_figure_4_marks_the_training_length_where_the_paper_does():
    rows, _ = synthetic.needle_rows(models=("fox_pro",), modes=("easy",))
    with fig4_needle.figure_style():
        figure = fig4_needle._draw(rows, "760m-48b", 16_384)
        axes = figure.axes[0]
        drawn = [line.get_xdata()[0] for line in axes.lines]
        assert axes.get_ylim() == (11, 0)
        fig4_needle.plt.close(figure)
    assert drawn == [pytest.approx(5.5, abs=0.05)]  # the middle of the sixth column, 16,500
