"""Tables as Markdown, LaTeX, CSV and HTML: what is marked, rounded and said of seeds."""

import csv
import io

import numpy as np

from analysis.tables import MARKED, Column, Table, over_seeds, to_csv, to_html, to_latex, to_markdown

MODELS = ("fox_pro", "mamba2", "hgrn2", "delta_net")
TABLE = Table(
    "A <caption>",
    (Column("loss_ppl", "Wiki. ppl", 2, "lower"), Column("acc", "ARC-e", 1, "higher"), Column("n", "count", 0)),
    {
        "fox_pro": [10.001, 50.0, 1200.0],
        "mamba2": [10.004, 40.0, None],
        "hgrn2": [12.0, 45.04, 3.0],
        "delta_net": [13.0, 43.0, 3.0],
    },
    "50% of it.",
    {"fox_pro": [9.5, None, None]},
    ranges={label: [None, (low, low + 1), None] for label, low in zip(MODELS, (49.5, 39.5, 44.5, 42.5), strict=True)},
)


def test_values_whose_ranges_overlap_or_are_not_known_are_not_marked():
    columns = [Column("speed", "speed", 0, "higher")]
    rows = {"a": [100.0], "b": [98.0], "c": [90.0], "d": [80.0]}

    def marks(spread):
        ranges = {label: [(value - spread, value + spread)] for label, [value] in rows.items()}
        return [mark for [mark] in Table("", columns, rows, ranges=ranges).marks().values()]

    assert marks(0.5) == ["best", "second", "", ""]
    assert marks(1.5) == ["", "", "", ""]
    beside = {label: [(value - 1, value + 1)] for label, [value] in rows.items() if label != "d"}
    assert Table("", columns, rows, ranges=beside).marks() == {label: [""] for label in rows}, "of d there is one seed"
    assert "| 100 [99, 101] |" in to_markdown(Table("", columns, {"a": [100.0]}, ranges={"a": [(99.0, 101.0)]}))


def test_markdown():
    lines = to_markdown(TABLE).splitlines()
    assert lines[0] == "| | Wiki. ppl | ARC-e | count |"
    assert lines[2] == "| FoX (Pro) | 10.00 (9.50) | **50.0 [49.5, 50.5]** | 1,200 |"
    assert lines[3] == "| Mamba-2 | 10.00 | 40.0 [39.5, 40.5] | – |"
    assert lines[4] == "| HGRN2 | 12.00 | <u>45.0 [44.5, 45.5]</u> | 3 |"
    assert lines[-1] == f"A <caption>. 50% of it. In brackets: the paper's value.{MARKED}"


def test_latex():
    text = to_latex(TABLE)
    assert r"FoX (Pro) & 10.00 {\scriptsize (9.50)} & \textbf{50.0 [49.5, 50.5]} & 1,200 \\" in text
    assert r"HGRN2 & 12.00 & \underline{45.0 [44.5, 45.5]} & 3 \\" in text
    assert r"50\% of it" in text
    assert text.count("{") == text.count("}")
    marks = Table("", [Column("a", "a", 0, style="check")], {"x": [1.0], "y": [0.0]}, "1 ± 2")
    assert r"x & \checkmark \\" in to_latex(marks)
    assert r"y &  \\" in to_latex(marks)
    assert r"1 $\pm$ 2" in to_latex(marks)


def test_csv_is_unrounded_with_the_papers_columns_last():
    rows = list(csv.DictReader(io.StringIO(to_csv(TABLE))))
    assert list(rows[0]) == ["label", "loss_ppl", "acc", "n", "acc_low", "acc_high", "loss_ppl_paper"]
    assert rows[0]["loss_ppl"] == "10.001"
    assert rows[0]["loss_ppl_paper"] == "9.5"
    assert rows[1]["n"] == rows[1]["loss_ppl_paper"] == ""
    table = Table("", TABLE.columns[:1], {"a, b": [1.0]}, spreads={"a, b": [0.5]}, ranges={"a, b": [(0.5, 1.5)]})
    assert to_csv(table) == 'label,loss_ppl,loss_ppl_sd,loss_ppl_low,loss_ppl_high\n"a, b",1,0.5,0.5,1.5\n'


def test_html_is_escaped():
    assert "A &lt;caption&gt;" in to_html(TABLE)
    assert "<span class='second'>45.0 [44.5, 45.5]</span>" in to_html(TABLE)
    narrow = Table("", [Column("a", "NarrativeQA"), Column("b", "RoPE")], {"x": [1.0, 1.0]})
    assert "<th>Narrative<wbr>QA</th><th>RoPE</th>" in to_html(narrow)


def test_seeds_are_mean_and_deviation_and_their_number_is_said():
    columns = [Column("a", "a", 2), Column("b", "b", 1, style="signed")]
    table = over_seeds("T", columns, {"fox_pro": [np.array([1.0, 2.0, 3.0]), -0.5], "mamba2": [np.array([4.0]), None]})
    assert table.note == "Mean ± standard deviation over 1 to 3 seeds."
    lines = to_markdown(table).splitlines()
    assert lines[2] == "| FoX (Pro) | 2.00 ± 1.00 | −0.5 |"
    assert lines[3] == "| Mamba-2 | 4.00 | – |"
    assert over_seeds("T", columns, {"fox_pro": [np.array([1.0]), None]}).note == "One seed."
