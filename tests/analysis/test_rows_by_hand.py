"""Rows that are drawn where there are several, and how tables print them, worked out by hand."""

import math
import shutil
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest

from analysis import seeds
from analysis.prediction import predict
from analysis.seeds import Repeated, repeats_for
from analysis.statistics import Estimate, Noise
from analysis.study import Line
from analysis.tables import MARKED, Column, Table, count_range, over_seeds, read_off, to_csv, to_latex, to_markdown
from analysis.training_curves import measured
from results.sealed import read_sealed, write_sealed
from tests import synthetic


def timed(label, speed, machine="m", seq_len=64, step="stepper", created="2025-01-01", mode="train"):
    line = SimpleNamespace(label=label, model=label, run_id=f"{label}{speed}")
    rows = pd.DataFrame({"machine": [machine], "seq_len": [seq_len], "tokens_per_s": [speed]})
    spec = {"mode": mode, "step": step, "seq_len": seq_len, "machine": machine}
    own = {"created": created, "provenance": {"versions": {"triton": f"3.{speed:.0f}"}}}
    return line, rows, {"spec": spec, "eval_id": f"throughput-{machine}{seq_len}{step}", **own}


def speeds_of(*found):
    def chosen(kind, **wanted):
        assert kind == "throughput"
        return [each for each in found if all(each[2]["spec"][name] == value for name, value in wanted.items())]

    def stored(kind, what, **wanted):
        assert what == "training speeds"
        return pd.concat(
            [
                rows.assign(label=line.label, run_id=line.run_id, eval_id=meta["eval_id"])
                for line, rows, meta in chosen(kind, **wanted)
            ]
        )

    return SimpleNamespace(evaluations=chosen, stored=stored)


@pytest.mark.parametrize(("found", "speeds"), [
    ([timed("a", 1.0), timed("b", 2.0), timed("b", 9.0)], [1, 2]),  # of two seeds the first
    ([timed("a", 1.0), timed("b", 2.0, "n"), timed("a", 3.0, "n")], [2, 3]),  # the machine of most
    ([timed("a", 1.0), timed("b", 2.0, seq_len=9), timed("a", 3.0, seq_len=9)], [2, 3]),  # the length of most
    ([timed("a", 1.0, created="2025-01-02"), timed("a", 2.0, "n")], [1]),  # of equals the newest
    ([timed("a", 1.0), timed("a", 2.0, "n", created="2025-01-02")], [2]),
    ([timed("a", 1.0), timed("b", 2.0, step=None), timed("a", 3.0, step=None)], [1]),  # the step of trainings
    ([timed("b", 1.0), timed("b", 2.0, "n", step=None), timed("a", 3.0, "n", step=None)], [2, 3]),  # not of the subject
    ([timed("a", 1.0), timed("a", 2.0, mode="generate", created="2026")], [1]),
])  # fmt: skip
def test_speeds_are_of_one_machine_and_length(found, speeds):
    rows = measured(speeds_of(*found), "a")
    assert rows["tokens_per_s"].tolist() == speeds and rows["triton"].tolist() == [f"3.{speed}" for speed in speeds]


COLUMNS = [Column("a", "A", 1, "higher"), Column("b", "B_x", 2, "lower", "signed"), Column("c", "C", 0, "", "check")]


def test_tables_over_seeds():
    """Mean and deviation of seeds, the interval of an estimate, plain numbers, and what is not there."""
    values = {"fox_pro": [np.array([1.0, 3.0]), Estimate(-0.5, 0.1), 1.0], "b": [np.array([5.0]), None, 0.0]}
    table = over_seeds("Cap", COLUMNS, values, "Note.", {"b": [4.0, None, None]})
    assert table.rows == {"fox_pro": [2.0, -0.5, 1.0], "b": [5.0, None, 0.0]}
    assert table.spreads == {"fox_pro": [pytest.approx(math.sqrt(2)), None, None], "b": [None, None, None]}
    low, high = table.ranges["fox_pro"][1]
    assert (low, high) == pytest.approx((-0.696, -0.304), abs=1e-3) and table.ranges["b"] == [None] * 3
    assert table.note == "Note. Mean ± standard deviation over 1 to 2 seeds." and table.paper == {"b": [4.0, None, None]}
    assert to_markdown(table).splitlines() == [
        "| | A | B_x | C |", "|---|---:|---:|---:|", "| FoX (Pro) | 2.0 ± 1.4 | −0.50 [−0.70, −0.30] | ✓ |",
        "| b | 5.0 (4.0) | – |  |", "",
        "Cap. Note. Mean ± standard deviation over 1 to 2 seeds. In brackets: the paper's value.",
    ]  # fmt: skip
    lines = to_csv(table).splitlines()
    assert lines[0] == "label,a,b,c,a_sd,b_low,b_high,a_paper" and lines[2] == "b,5,,0,,,,4"
    assert [float(text) for text in lines[1].split(",")[1:-1]] == pytest.approx([2, -0.5, 1, math.sqrt(2), low, high])
    for cells, note in (([np.array([1.0])], "One seed."), ([1.0], ""), ([Estimate(1.0)], ""), ([np.ones(3)], None)):
        found = over_seeds("", COLUMNS[:1], {"a": cells}).note
        assert found == ("Mean ± standard deviation over 3 seeds." if note is None else note)


@pytest.mark.parametrize(("column", "values", "marks"), [
    (Column("x", "x", 2, "lower"), [[1.0, 1.01], [2.0, 2.01], [math.nan] * 2], ["best", "second", ""]),
    (Column("x", "x", 2, "lower"), [[1.0, 1.01], [2.0, 2.01], [3.0, math.inf]], ["best", "second", ""]),
    (Column("x", "x", 2, "lower"), [[1.0, 1.01], [2.0, 2.01], [3.0]], ["", "", ""]),
    (Column("x", "x", 2, "lower", "signed"), [[1e-4, 2e-4], [4e-4, 5e-4], [0.2, 0.2]], ["best", "second", ""]),
])  # fmt: skip
def test_what_seeds_tell_apart_is_marked(column, values, marks):
    """Also beside a model that diverged, but not beside one of one seed."""
    table = over_seeds("t", [column], {label: [np.array(own)] for label, own in zip("abc", values, strict=True)})
    assert [table.marks()[label] for label in "abc"] == [[mark] for mark in marks]


def test_latex_by_hand():
    assert r"\caption{of e\textasciicircum{}-10, \{a\}\textasciitilde{}b.}" in to_latex(Table("of e^-10, {a}~b", [], {}))
    spreads = {"x_1": [0.1, 0.01], "y": [0.2, 0.01]}
    table = Table("A_b", COLUMNS[:2], {"x_1": [1.0, -2.0], "y": [3.0, 4.0]}, "", {"y": [5.0, math.nan]}, spreads)
    assert to_latex(table).splitlines() == [
        r"\begin{table}", r"\centering", rf"\caption{{A\_b. In brackets: the paper's value.{MARKED}}}", r"\small",
        r"\begin{tabular}{lrr}", r"\toprule", r"Model & A & B\_x \\", r"\midrule",
        r"x\_1 & \underline{1.0 $\pm$ 0.1} & \textbf{$-$2.00 $\pm$ 0.01} \\",
        r"y & \textbf{3.0 $\pm$ 0.2} {\scriptsize (5.0)} & \underline{+4.00 $\pm$ 0.01} \\",
        r"\bottomrule", r"\end{tabular}", r"\end{table}",
    ]  # fmt: skip
    wide = Table("", [Column(str(n), str(n)) for n in range(11)], {"a": [1.0] * 11})
    assert r"\resizebox{\textwidth}{!}{%" in to_latex(wide) and r"\end{tabular}}" in to_latex(wide)
    assert "resizebox" not in to_latex(Table("", wide.columns[:10], {"a": [1.0] * 10}))


@pytest.mark.parametrize(("value", "column", "text"), [
    (None, COLUMNS[0], "–"), (math.nan, COLUMNS[0], "–"), (9999.94, COLUMNS[0], "9,999.9"), (10_000.4, COLUMNS[0], "10,000"),
    (-10_000.4, COLUMNS[0], "−10,000"), (0.0, COLUMNS[1], "+0.00"), (-1.0, COLUMNS[1], "−1.00"), (1.0, COLUMNS[2], "✓"),
    (0.0, COLUMNS[2], ""),
])  # fmt: skip
def test_numbers_of_a_column(value, column, text):
    assert column.text(value) == text


def test_ranges_that_touch_overlap():
    columns = [Column("a", "a", 1, "higher")]
    for end, marks in ((3.0, ["", ""]), (2.99, ["best", "second"])):
        table = Table("", columns, {"x": [4.0], "y": [2.0]}, ranges={"x": [(3.0, 5.0)], "y": [(1.0, end)]})
        assert [mark for (mark,) in table.marks().values()] == marks
    equal = Table("", columns, {"x": [4.0], "y": [4.0]}, ranges={"x": [(3.0, 5.0)], "y": [(3.0, 5.0)]})
    assert [mark for (mark,) in equal.marks().values()] == ["", ""], "all are equal"
    one = Table("", columns, {"x": [4.0], "y": [None]})
    assert one.marks() == {"x": [""], "y": [""]}


def test_counts_of_a_note():
    assert [count_range(counts, "x") for counts in ([2, 2], [1500, 200], {7})] == ["2 x", "200 to 1,500 x", "7 x"]


def test_curves_are_read_off_at_places(tmp_path):
    """Halved from the end on where positions are drawn, equal parts elsewhere; nothing before the first drawn point."""
    file = tmp_path / "a.csv"
    pd.DataFrame({"label": ["fox_pro", "fox_pro", "b", "b"], "position": [16, 2, 4, 16], "loss": [3.0, 1.0, 8.0, 2.0],
                  "loss_low": [0.0] * 4}).to_csv(file)  # fmt: skip
    frame = pd.read_csv(file).drop(columns="Unnamed: 0")
    frame.to_csv(file, index=False)
    table = read_off(file)
    assert table.caption == "Loss by token index" and [column.title for column in table.columns] == ["2", "4", "8", "16"]
    assert table.rows["FoX (Pro)"] == pytest.approx([1, 1 + 2 / 7, 1 + 6 / 7, 3])
    assert table.rows["b"] == pytest.approx([math.nan, 8, 6, 2], nan_ok=True)
    pd.DataFrame({"tokens": np.array([0, 8e6]), "loss": [0.0, 8.0], "speed": [8.0, 0.0]}).to_csv(file, index=False)
    table = read_off(file)
    assert table.caption == "By training tokens" and [column.title for column in table.columns][:2] == ["1M", "2M"]
    assert table.rows == {"loss": pytest.approx([*range(1, 9)]), "speed": pytest.approx([*range(7, -1, -1)])}
    pd.DataFrame({"share_of_training": [0.5, 1.0], "a": ["x", "x"], "loss": [1.0, 2.0]}).to_csv(file, index=False)
    assert [column.title for column in read_off(file).columns] == ["50%", "62%", "75%", "88%", "100%"]
    pd.DataFrame({"other": [1], "loss": [2]}).to_csv(file, index=False)
    assert read_off(file) is None


def test_a_study_by_hand(tmp_path):
    """Rows in the order of the lines, or of the paper's models; the documents' sources, the noise, the corpora."""
    store = synthetic.Store(tmp_path)
    rows = pd.DataFrame({"value": [1.0]})
    for place, label in enumerate(("mamba2", "fox_pro")):
        store.add("fig", label, [("needle", rows + place)], axes={"gate": label})
    study = store.study("fig")
    assert study.rows("needle")["label"].tolist() == ["mamba2", "fox_pro"]
    assert study.stored("needle", "needles")["label"].tolist() == ["fox_pro", "mamba2"]
    assert study.rows("needle")["gate"].tolist() == ["mamba2", "fox_pro"] and len(study.by_series("needle")) == 2
    with pytest.raises(ValueError, match="fig: no words are stored; run its experiment first"):
        study.stored("longbench", "words")
    assert study.rows("longbench").empty and study.metas("longbench") == []
    line, _, meta = study.evaluations("needle")[1]
    of = study.measured(line, {**meta, "extras": {"sources": [4, 4, 5]}}, 2)
    assert (of["label"], of["model"], of["scale"], of["axes"]) == ("fox_pro", "fox_pro", "tiny", {"gate": "fox_pro"})
    assert of["train_len"] == 256 and of["sources_D"].tolist() == [4, 4]
    store.add("other", "fox_pro", [("needle", rows)], axes={"value": 1})
    with pytest.raises(ValueError, match="the axis value is a column of needle, too"):
        store.study("other").rows("needle")


@pytest.mark.parametrize(("files", "trained", "training", "weights"), [
    (["t/rows/needle/r-a.parquet"], True, "", "weights w"), (["t/rows/throughput/r-a.parquet"], False, "", "fresh weights"),
    (["t/rows/throughput/r-a.parquet", "t/rows/needle/r-b-01234567.parquet"], True, "01234567", "weights w"),
    ([], False, "", "fresh weights"),
])  # fmt: skip
def test_lines_of_trained_and_fresh_models(files, trained, training, weights):
    line = Line("a", {"y": 1, "x": 2}, "fox_pro", 3, "tiny", "r", dict.fromkeys(files, "d"), "w")
    assert (line.is_trained, line.training, line.trained_weights) == (trained, training, weights)
    assert line.series == ((("x", 2), ("y", 1)), "fox_pro", "tiny") and line.place == (line.series, 3)


def test_repeats_are_of_seeds_alone(tmp_path):
    """Two or more, of one spec, way and mode; none whose record is gone, or whose weights are to be judged."""

    def add(name, seed, value, kind="needle", **how):
        store.add("fig", name, [(kind, pd.DataFrame({"value": [value]}))], seed=seed, model="fox_pro", **how)
        line = store.lines["fig"][-1]
        path = tmp_path / next(iter(line.files))
        return line.run_id, path.with_name(path.name.replace(".parquet", ".meta.json"))

    def found(without=frozenset(), scale="tiny", kind="needle"):
        taken = repeats_for(tmp_path, scale, kind, without)
        return [(each.scale, each.train_len, sorted(rows["value"][0] for rows in each.rows)) for each in taken]

    store = synthetic.Store(tmp_path)
    add("a", 0, 1.0)
    assert found() == []
    second_id, second = add("a", 1, 2.0)
    assert found() == [("tiny", 256, [1.0, 2.0])] and found(kind="other") == found(scale="mini") == []
    add("b", 5, 9.0, train={"peak_lr": 9.0})
    assert found() == found(scale="tiny-short") == [("tiny", 256, [1.0, 2.0])], "another learning rate is another series"
    run_id, third = add("a", 2, 3.0)
    for path, weights in ((second, "v"), (third, "w")):
        meta = read_sealed(path, "")
        write_sealed(path, {**meta, "weights": weights})
    seeds._repeats.cache_clear()
    assert [found(frozenset(without))[0][2] for without in ((), ("w",), ("x",))] == [[1, 2, 3], [1, 2], [1, 2, 3]]
    assert found(frozenset(("v", "w"))) == []
    again = second.with_name(second.name.replace(".meta.json", "-0a0a0a0a.meta.json"))  # another training of the second
    write_sealed(again, {**read_sealed(third, ""), "run_id": second_id})
    shutil.copy(
        third.with_name(third.name.replace(".meta.json", ".parquet")),
        again.with_name(again.name.replace(".meta.json", ".parquet")),
    )
    assert found()[0][2] == [1, 2, 3], "the first training"
    again.unlink()
    (tmp_path / "tiny" / "runs" / f"{run_id}.json").unlink()
    seeds._repeats.cache_clear()
    assert found() == [("tiny", 256, [1.0, 2.0])]
    for seed in (0, 1):
        add("m", seed, 10.0 + seed, evaluation={"mode": "easy"}, train={"seq_len": 64})
    assert found() == [("tiny", 256, [1.0, 2.0]), ("tiny", 64, [10.0, 11.0])]


def test_what_is_predicted_rests_on_trainings_that_are_alike():
    """A series' own spread from three seeds on, unless it is none; else that of its family at its scale, by the same number."""

    def rows(*found):
        return tuple(pd.DataFrame({"num_correct": [each], "num_queries": [100]}) for each in found)

    pool = [Repeated("tiny", "a", 64, rows(1, 2, 3, 4, 5)), Repeated("tiny", "b", 64, rows(10, 20, 30, 40, 50)),
            Repeated("tiny-short", "c", 64, rows(0, 100, 0, 100, 0))]  # fmt: skip

    def noise(stored, scale, family, name="found (%)"):
        return predict(name, "recall", stored, pool, scale, family, 0).noise

    assert noise((1.0,), "tiny", "a") == Noise(2.5, 4, "a at tiny")
    assert noise((1.0, 9.0), "tiny", "b") == Noise(250.0, 4, "b at tiny")
    assert noise((1.0,), "tiny-short", "b") == Noise(250.0, 4, "b at any tiny scale")
    assert noise((1.0, 2.0, 3.0), "tiny", "a") == Noise(1.0, 2.0) and noise((2.0,) * 3, "tiny", "a").where == "a at tiny"
    assert noise((1.0,), "mini", "d").where == "all models at any mini scale" and noise((1.0,), "tiny", "a", "other") is None
