"""Parts of figures, and the notes above them: what stands on the axes, read back from matplotlib and worked out by hand."""

import math
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
from matplotlib.colors import to_hex

from analysis import panels, style
from analysis.names import MODELS, LineStyle, missing_of, ordered, pairs_in, rank, style_of, title
from analysis.needles import Needles, _rounded_up, longest_inside
from analysis.panels import ColourScale, Drawn, band_note
from analysis.pruning import tile_note
from analysis.style import plt, tokens
from analysis.training_curves import Training, summary

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
    assert line([1, 2], [3, 6]).frame(label="x").to_dict("list") == {
        "label": ["x", "x"], "position": [1, 2], "loss_smoothed": [2.0, 4.0]}  # fmt: skip


@pytest.mark.parametrize(("seeds", "note"), [
    ([1, 1], "one seed"), ([2, 4], "mean of 2 to 4 seeds, bands: min to max"),
    ([1, 3], "mean of 1 to 3 seeds, bands: min to max"),
    ([5, 5], "mean of 5 seeds, bands: standard deviation"), ([1, 5], "mean of 1 to 5 seeds, bands: standard deviation"),
    ([4, 5], "mean of 4 to 5 seeds, bands: min to max or standard deviation"),
])  # fmt: skip
def test_the_note_on_bands(seeds, note):
    assert band_note(seeds) == note


def test_lines_stand_above_bands_and_the_first_on_top(axes):
    panels.draw_lines(axes, [line([1, 2], [3, 4]), line([5, 6], style=BLUE)])
    first, second = axes.lines
    assert first.get_ydata().tolist() == [2, 3] and second.get_ydata().tolist() == [5, 6]
    assert (first.get_color(), second.get_color(), first.get_label()) == ("#FF0000", "#0000FF", "a")
    assert first.is_dashed() and not second.is_dashed()
    (band,) = axes.collections
    assert first.get_zorder() > second.get_zorder() > band.get_zorder() and to_hex(band.get_facecolor()[0]) == "#ff0000"
    ends = band.get_paths()[0].vertices[:, 1]
    assert (ends.min(), ends.max()) == (1, 4)


def test_an_axis_of_positions(axes):
    panels.position_axis(axes, 4096, 16_384, ylabel="loss")
    assert axes.get_xlim() == (0, 16_384) and axes.get_ylabel() == "loss"
    assert [text.get_text() for text in axes.get_xticklabels()] == [tokens(2048 * n) if n else "0" for n in range(9)]
    assert axes.lines[0].get_xdata() == [4096, 4096]


@pytest.mark.parametrize(("longest", "pieces", "ticks"), [
    (64, 8, range(0, 65, 8)), (65, 8, range(0, 66, 16)), (64, 4, range(0, 65, 16)), (4, 8, range(5)),
    (65_536, 8, range(0, 65_537, 8192)),
])  # fmt: skip
def test_ticks_are_steps_of_a_power_of_two(axes, longest, pieces, ticks):
    style.token_ticks(axes, longest, pieces)
    assert axes.get_xticks().tolist() == list(ticks)
    labels = [text.get_text() for text in axes.get_xticklabels()]
    assert labels[-1] == ("64k" if longest == 65_536 else str(ticks[-1]))


def test_an_axis_of_doublings(axes):
    panels.doublings_axis(axes, [256, 1024, 4096], fontsize=5)
    assert axes.get_xscale() == "log" and axes.get_xticks().tolist() == [256, 1024, 4096]
    assert [text.get_text() for text in axes.get_xticklabels()] == ["256", "1k", "4k"]
    assert axes.xaxis.get_transform().base == 2 and not len(axes.get_xticks(minor=True))


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


def test_smoothed_curves_have_few_points_and_the_last_one():
    of = SimpleNamespace(length=100_000, train_len=16_384, losses_SN=np.arange(1.0, 100_001)[None])
    drawn = panels.smoothed(of, RED, 101)
    assert drawn.x[0] == 128 and set(np.diff(drawn.x)[:-1]) == {49} and drawn.x[-1] == 100_000  # 100,000 in 2,048
    assert drawn.values_SX[0, :-2].tolist() == drawn.x[:-2].tolist() and drawn.values_SX[0, -1] == 100_000 - 25
    near = panels.smoothed(of, RED, 101, 1000)
    assert set(np.diff(near.x)[:-1]) == {12} and near.x[-1] == 1000
    assert panels.smoothed(of, RED, 1, 140).x.tolist() == list(range(128, 141))


def test_legends(axes):
    panels.legend_of(axes.figure, [RED, BLUE])
    panels.legend_of(axes.figure, [RED, BLUE] * 3, columns=3, markers=True)
    first, second = axes.figure.legends
    assert [text.get_text() for text in first.get_texts()] == ["a", "b"] and (first._ncols, second._ncols) == (2, 3)
    assert [handle.get_marker() for handle in first.legend_handles] == ["None", "None"]
    assert [handle.get_marker() for handle in second.legend_handles[:2]] == ["s", "o"]


def test_heatmaps_of_needles(axes):
    rows = [{"length": n, "depth": d, "value": n / 1000 + d} for n in (1000, 2000, 4000) for d in (0.0, 50.0, 100.0)]
    panels.needle_panel(axes, pd.DataFrame(rows), ColourScale("RdYlGn", 1.0, 10.0, "score"), 3000)
    (mesh,) = axes.collections
    assert mesh.get_array().tolist() == [[1, 2, 4], [51, 52, 54], [101, 102, 104]] and mesh.get_clim() == (1, 10)
    assert axes.get_ylim() == (3, 0) and [text.get_text() for text in axes.get_xticklabels()] == ["1000", "2000", "4000"]
    assert [text.get_text() for text in axes.get_yticklabels()] == ["0%", "50%", "100%"]
    assert axes.get_xticks().tolist() == axes.get_yticks().tolist() == [0.5, 1.5, 2.5] and axes.lines[0].get_xdata() == [2, 2]
    for train_len, lines in ((999, 1), (1000, 2), (4000, 3), (4001, 3)):
        panels.needle_panel(axes, pd.DataFrame(rows), ColourScale("RdYlGn", 1.0, 10.0, "score"), train_len)
        assert len(axes.lines) == lines
    panels.needle_panel(axes, pd.DataFrame(), ColourScale("RdYlGn", 1, 10, "score"), 3000)
    assert axes.texts[0].get_text() == "not evaluated" and not len(axes.get_xticks())
    panels.colour_bar(axes.figure, [axes], ColourScale("RdYlGn", 1.0, 10.0, "score"))
    bar = axes.figure.axes[-1]
    assert bar.get_ylim() == (1, 10) and bar.get_ylabel() == "score"


@pytest.mark.parametrize(("lengths", "labels"), [
    ([1024, 2048, 4352], ["1k", "2k", "4.25k"]), ([1000, 4100, 7200, 16_500], ["1k", "4.1k", "7.2k", "16.5k"]),
    ([256, 512], ["256", "512"]), ([100, 7999], ["100", "7999"]), ([100, 8000], ["0.1k", "8k"]), ([512, 1024], ["512", "1k"]),
])  # fmt: skip
def test_labels_of_lengths(lengths, labels):
    assert panels._length_labels(np.array(lengths)) == labels


@pytest.mark.parametrize(("lengths", "shown"), [
    (range(1000, 7000, 1000), 6), (range(1000, 9000, 1000), 4), (range(10_100, 16_200, 1000), 4), (range(256, 1024, 128), 6),
])  # fmt: skip
def test_as_many_lengths_are_labelled_as_stand_side_by_side(axes, lengths, shown):
    """Six, or as many as have 26 letters."""
    cells = pd.DataFrame([{"length": length, "depth": 0.0, "value": 1.0} for length in lengths])
    panels.needle_panel(axes, cells, ColourScale("RdYlGn", 1.0, 10.0, "score"), 1)
    assert len(axes.get_xticks()) == shown


def test_places_that_are_labelled():
    assert [panels._every(count, most).tolist() for count, most in ((6, 6), (7, 6), (13, 6), (1, 6))] == [
        [0, 1, 2, 3, 4, 5], [0, 2, 4, 6], [0, 3, 6, 9, 12], [0]]  # fmt: skip


def test_colours_of_needles():
    """Recall is white at 0; the largest mean of a cell is rounded up, below 0 only by more than a twentieth of it."""

    def scale(kind, *values):
        rows = pd.DataFrame({"label": "a", "model": "a", "run_id": "r", "mode": "easy", "length": 100, "sample": 0,
                             "depth": np.repeat(np.arange(len(values) // 2), 2), "value": values})  # fmt: skip
        rows["scored_by"] = "match"
        return Needles(rows, kind, {})

    for kind, found in (("needle", ("RdYlGn", 1, 10, "score")), ("needle_choice", ("RdYlGn", 10, 100, "right (%)"))):
        assert scale(kind, 5.0, 5.0).colours == ColourScale(*found)
    for values, limits in (((3.0, 4.0, 0.0, 0.0), (0, 5)), ((3, 5, -0.3, -0.1), (0, 5)), ((3, 5, -1, -3), (-2, 5)),
                           ((0.0, 0.0), (0, 1e-3)), ((-3.0, -3.0), (-5, 5))):  # fmt: skip
        colours = scale("needle_recall", *values).colours
        assert (colours.low, colours.high) == pytest.approx(limits) and colours.title == "recall (nats)"
        assert np.allclose(colours.colours(-colours.low / (colours.high - colours.low))[:3], 0.97, atol=0.03), "white at 0"
    assert [_rounded_up(value) for value in (1.0, 1.01, 2.0, 3.0, 5.1, 0.03, 47.0)] == pytest.approx([1, 2, 2, 5, 10, 0.05, 50])
    assert scale("needle_choice", 1, 1, 1, 1).note.startswith("share of 2 needles a cell whose word is the likeliest of ten")
    assert scale("needle", 1.0, 1.0).note == (
        "scores 1 (red) to 10 (green) by match of the answer; no model finds it: all scores are at the floor")  # fmt: skip
    judged = scale("needle", 5.0, 5.0)
    judged.rows["scored_by"] = ["b", "a"]
    assert judged.note == "scores 1 (red) to 10 (green) by a and b"
    assert "recall is drawn" in scale("needle_recall", 1.0, 1.0).note and longest_inside(16_384) == 13_400


def study(scale="tiny", scales=("tiny",), changed=0, runs=3):
    lines = [SimpleNamespace(run_id=f"r{n}", is_trained=n < runs) for n in (*range(runs), 0, 9)]
    return SimpleNamespace(scale=scale, scales=list(scales), corpora="books, bytes", lines=lines, starts=lambda line: [],
                           is_from_changed_code=lambda line: int(line.run_id[1:]) < changed)  # fmt: skip


@pytest.mark.parametrize(("of", "note", "above"), [
    (study(), "scale: tiny (not the paper's main setting, 760m-48b)", "scale: tiny (not the paper's)"),
    (study("760m-48b", ["760m-48b"]), "scale: 760m-48b (the paper's main setting)", "scale: 760m-48b (the paper's)"),
    (study(scales=["tiny", "mini"]), "scale: tiny (not the paper's main setting, 760m-48b; runs at tiny, mini)",
     "scale: tiny (not the paper's; with mini)"),
    (study(scales=["mini", "m"]), "scale: tiny (not the paper's main setting, 760m-48b; runs at mini, m)",
     "scale: tiny (not the paper's; runs at mini, m)"),
])  # fmt: skip
def test_notes_on_the_scale(of, note, above, axes):
    assert style.scale_note(of) == note
    assert style.about(of) == f"S{note[1:]}. Corpus: books, bytes." and style.about(of, corpus=False) == f"S{note[1:]}."
    style.set_note(axes.figure, of, "one seed", "")
    assert axes.figure.get_suptitle().replace("\n", " ") == f"{above} · corpus: books, bytes · one seed"


def test_notes_on_changed_code(axes):
    assert [style.changed_note(study(changed=count)) for count in (0, 1, 3)] == [
        "", "1 of 3 runs of uncommitted code", "3 of 3 runs of uncommitted code"]  # fmt: skip
    style.set_note(axes.figure, study(changed=2))
    assert axes.figure.get_suptitle().endswith("books, bytes · 2 of 3 runs of uncommitted code")
    for inches, width in ((7.0, 147), (3.5, 74)):
        axes.figure.set_figwidth(inches)
        style.set_note(axes.figure, study(), "word " * 99)
        longest = max(map(len, axes.figure.get_suptitle().split("\n")))
        assert width - 4 <= longest <= width


def test_names_of_tokens():
    assert [tokens(count) for count in (1, 512, 1023, 1024, 1536, 16_384, 100_000)] == [
        "1", "512", "1023", "1k", "1.5k", "16k", "97.66k"]  # fmt: skip


def test_files_of_a_figure(axes, tmp_path, monkeypatch):
    """A picture, its print and its numbers; those of a part beside them."""
    monkeypatch.setattr(style, "save", lambda figure, stem: [stem])
    own = study()
    own.folder, own.stem = tmp_path, "fig"
    table = pd.DataFrame({"a": [1.23456789, 2.0]})
    for part, stem in (("", "fig"), ("more", "fig-more")):
        picture, csv = style.publish(own, axes.figure, [table, table], "note", part=part)
        assert picture == tmp_path / "figures" / stem and csv == picture.with_name(f"{stem}.csv")
        assert csv.read_text() == "a\n1.23457\n2\n1.23457\n2\n"
    assert axes.figure.get_suptitle().endswith("· note")


def test_tiles_are_the_kernels_own_or_smaller():
    each = lambda *sizes: tuple(SimpleNamespace(tile=size) for size in sizes)  # noqa: E731
    assert tile_note(each(128, 128)) == "counted in tiles of 128 tokens (the kernels' own)"
    assert tile_note(each(64, 16, 64)) == "counted in tiles of 16, 64 tokens, where the kernels' own of 128 would be too few"
    assert tile_note(each(128, 64)).startswith("counted in tiles of 64, 128 tokens, where")


def test_order_and_names_of_models():
    assert ordered(["x", "mamba2", "fox_pro", "b", "mamba2"]) == ["fox_pro", "mamba2", "b", "x"]
    assert rank("fox_pro") == 0 and rank("transformer_pro") == 1 and rank("x") == len(MODELS)
    assert [title(label) for label in ("fox_pro", "x")] == ["FoX (Pro)", "x"]
    assert missing_of(["fox_pro", "x", "mamba2", "x"], ["mamba2"]) == ["FoX (Pro)", "x"]
    pairs = (("fox_pro", "transformer_pro"), ("fox_llama", "x"))
    assert pairs_in({"fox_pro", "transformer_pro", "x"}, pairs) == ([pairs[0]], ["FoX (LLaMA) with x"])
    assert style_of("fox_pro") == style_of("fox_pro", "fox_pro") == MODELS["fox_pro"]
    assert style_of("fox_pro", "mine") == replace(MODELS["fox_pro"], label="mine") and style_of("x").label == "x"
    assert RED.line == {"color": "#FF0000", "label": "a", "dashes": (2.0, 1.0)} and BLUE.line["dashes"] == (None, None)


def test_the_table_of_trainings(monkeypatch):
    """The last fiftieth of the steps, and the fastest seed; utilisation only where it is known."""
    loss = np.stack([np.arange(200.0), np.arange(200.0) + 4])
    loss[0, -1] = np.nan
    of = dict(label="fox_pro", axes={}, model="fox_pro", scale="tiny", train_len=4, noise=None, tokens=np.arange(200))
    found = [Training(**of, loss_SN=loss, tokens_per_s=np.array([100.0, 300.0]), mfu=np.array([0.25, 0.5]))]
    assert found[0].smoothed_SN[1, -1] == 203 - 1.5 and found[0].smoothed_SN.shape == (2, 200)
    unknown = replace(found[0], label="mamba2", mfu=np.array([np.nan, 0.5]))
    for own, columns in (([found[0], unknown], 3), ([unknown], 2)):
        monkeypatch.setattr("analysis.training_curves.trainings", lambda study, own=own: own)
        table = summary(study())
        assert len(table.columns) == columns
        assert table.rows["mamba2"][:2] == [(197 + 201.5) / 2, 300.0]
        assert table.spreads["mamba2"][0] == pytest.approx(4.5 / math.sqrt(2))
        assert table.note.endswith("standard deviation over 2 seeds."), "and not 1 to 2 for the speed of the fastest"
    assert found[0].shown(0.5).tolist() == list(range(100, 200))
    monkeypatch.setattr("analysis.training_curves.trainings", lambda study: found)
    assert summary(study()).rows["fox_pro"][2] == 50.0
    found[0] = replace(found[0], tokens=np.arange(20), loss_SN=loss[1:, :20])
    assert summary(study()).rows["fox_pro"][0] == 23.0, "of few steps the last alone"
