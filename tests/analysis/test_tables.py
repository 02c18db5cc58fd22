import csv
import io

import pytest
import synthetic

from analysis import table1_lm_eval, table2_longbench, table6_throughput
from analysis.paper import paper_scores
from analysis.table1_lm_eval import ACCURACIES, PERPLEXITIES
from analysis.tables import Column, Table, to_csv, to_html, to_latex, to_markdown

TABLE = Table(
    "A <caption>",
    (Column("loss_ppl", "Wiki. ppl", 2, "lower"), Column("acc", "ARC-e", 1, "higher"), Column("n", "count", 0)),
    {
        "fox_pro": [10.001, 50.0, 1200.0],
        "mamba2": [10.004, 40.0, None],
        "hgrn2": [12.0, 45.04, 3.0],
        "delta_net": [13.0, 45.0, 3.0],
    },
    "50% of it.",
    {"fox_pro": [9.5, None, None]},
)


def test_best_and_second_are_of_the_printed_values_and_ties_share():
    marks = TABLE.marks()
    assert [marks[model][0] for model in TABLE.rows] == ["best", "best", "", ""]  # 10.00 twice: nobody is second
    assert [marks[model][1] for model in TABLE.rows] == ["best", "", "second", "second"]
    assert [marks[model][2] for model in TABLE.rows] == [""] * 4


def test_markdown():
    lines = to_markdown(TABLE).splitlines()
    assert lines[0] == "| | Wiki. ppl | ARC-e | count |"
    assert lines[2] == "| FoX (Pro) | **10.00** (9.50) | **50.0** | 1,200 |"
    assert lines[3] == "| Mamba-2 | **10.00** | 40.0 | – |"
    assert lines[4] == "| HGRN2 | 12.00 | <u>45.0</u> | 3 |"
    assert lines[-1] == "A <caption>. 50% of it. In brackets: the paper's value."


def test_latex():
    text = to_latex(TABLE)
    assert r"FoX (Pro) & \textbf{10.00} {\scriptsize (9.50)} & \textbf{50.0} & 1,200 \\" in text
    assert r"HGRN2 & 12.00 & \underline{45.0} & 3 \\" in text
    assert r"50\% of it" in text
    assert text.count("{") == text.count("}")


def test_csv_is_unrounded_with_the_papers_columns_last():
    rows = list(csv.DictReader(io.StringIO(to_csv(TABLE))))
    assert list(rows[0]) == ["model", "loss_ppl", "acc", "n", "loss_ppl_paper", "acc_paper", "n_paper"]
    assert rows[0]["loss_ppl"] == "10.001"
    assert rows[0]["loss_ppl_paper"] == "9.5"
    assert rows[1]["n"] == rows[1]["loss_ppl_paper"] == ""


def test_html_is_escaped():
    assert "A &lt;caption&gt;" in to_html(TABLE)
    assert "<span class='second'>45.0</span>" in to_html(TABLE)


def lm_eval(scale, include="harness"):
    rows = synthetic.scores_to_lm_eval(paper_scores("table1_lm_eval", "760m-48b"), scale, PERPLEXITIES | ACCURACIES)
    meta = synthetic.meta_for("table1_lm_eval", "lm_eval", scale, synthetic.SEVEN, 512)
    next(iter(meta["evals"].values()))["spec"]["include"] = include
    return rows, meta


def test_table_1_from_the_papers_numbers_is_the_papers_table(tmp_path):
    paths = table1_lm_eval.render(*lm_eval("760m-48b"), tmp_path)
    assert [path.name for path in paths] == ["table1_lm_eval.md", "table1_lm_eval.tex", "table1_lm_eval.csv"]
    first = paths[0].read_text().splitlines()[2]
    assert first.startswith("| FoX (Pro) | **23.04** (23.04) | **14.91** (14.91) | **42.75** (42.75) |")
    assert first.endswith("| 46.57 (46.57) | **50.88** (50.88) |")


@pytest.mark.parametrize(("scale", "include", "beside"), [
    ("760m-48b", "harness", 50.88), ("760m-16b", "harness", 48.33), ("360m-7.5b", "harness", None),
    ("tiny", "local", None), ("760m-48b", "local", None),
])  # fmt: skip
def test_the_papers_values_stand_beside_ours_only_at_its_scales_and_tasks(scale, include, beside):
    table = table1_lm_eval.summary(*lm_eval(scale, include))
    assert scale in table.note
    assert ("stand-ins" in table.note) == (include == "local")
    if beside is None:
        assert not table.paper
    else:
        assert table.paper["fox_pro"][-1] == beside


def test_table_1_shows_unknown_tasks_and_no_average_without_all_ten():
    rows, meta = lm_eval("tiny", "local")
    rows = rows[rows["task"] != "copa"]
    rows = rows.assign(task=rows["task"].replace({"piqa": "local_cloze", "wikitext": "local_text"}))
    table = table1_lm_eval.summary(rows, meta)
    keys = [column.key for column in table.columns]
    assert "local_cloze_acc" in keys
    assert "local_text_word_perplexity" in keys
    assert "avg_acc" not in keys
    assert "No average" in table.note
    lower = next(column for column in table.columns if column.key == "local_text_word_perplexity")
    assert lower.better == "lower"


def test_table_2_means_and_paper_values():
    printed = paper_scores("table2_longbench", "760m-48b")
    ours = {model: {task: value + 1 for task, value in line.items()} for model, line in printed.items()}
    rows = synthetic.scores_to_longbench(ours, "760m-48b")
    meta = synthetic.meta_for("table2_longbench", "longbench", "760m-48b", synthetic.SEVEN, 16_384)
    table = table2_longbench.summary(rows, meta)
    assert [column.key for column in table.columns][-2:] == ["mean12", "mean14"]
    assert table.rows["fox_pro"][-1] == pytest.approx(22.445, abs=0.01)
    assert table.paper["fox_pro"][-1] == pytest.approx(21.445, abs=0.01)
    assert "first line" not in table.note
    next(iter(meta["evals"].values()))["spec"]["original_cut"] = True
    assert "original benchmark's rule" in table2_longbench.summary(rows, meta).note


def test_table_6_is_relative_to_the_transformer_and_truncates_like_the_paper():
    rows, meta = synthetic.throughput_rows("760m-48b")
    table = table6_throughput.summary(rows, meta)
    assert table.rows["fox_pro"][:4] == pytest.approx([757, 2.72, 50_000, 50 / 56])
    assert table.paper["fox_pro"][:4] == pytest.approx([759, 2.72, 27_000, 27 / 38])
    assert not table6_throughput.summary(*synthetic.throughput_rows("tiny")).paper
    with pytest.raises(ValueError, match="several settings"):
        table6_throughput.summary(rows.assign(seq_len=range(1, len(rows) + 1)), meta)
    with pytest.raises(ValueError, match="no rows of mode 'train'"):
        table6_throughput.summary(rows[rows["mode"] == "generate"], meta)
