"""On the paper's own tables the predicates give the verdicts that the paper states; on spoilt tables they fail."""

import copy

import pandas as pd
import pytest
import synthetic

from analysis.claims import judge
from analysis.claims_tasks import COLUMNS, c17, c18, c19, c21, c22, c22b, c22c, longest_inside
from analysis.paper import FILES, paper_scores
from analysis.table1_lm_eval import ACCURACIES, PERPLEXITIES, scores
from analysis.table2_longbench import with_means
from analysis.verdict import Status

TRAIN_LEN = 16_384


@pytest.fixture
def table1():
    return copy.deepcopy(paper_scores("table1_lm_eval", "760m-48b"))


@pytest.fixture
def table8():
    return copy.deepcopy(paper_scores("table1_lm_eval", "760m-16b"))


def longbench(scale):
    return {model: with_means(line) for model, line in paper_scores("table2_longbench", scale).items()}


@pytest.mark.parametrize("key", sorted(FILES))
def test_the_papers_tables_are_whole(key):
    table = paper_scores(*key)
    assert {"fox_pro", "transformer_pro", "fox_llama", "transformer_llama"} <= set(table)
    assert len({tuple(line) for line in table.values()}) == 1
    assert all(value == value for line in table.values() for value in line.values())


def test_the_papers_averages_follow_from_its_cells(table1, table8):
    for table in (table1, table8):
        for line in table.values():
            assert sum(line[column] for column in ACCURACIES) / 10 == pytest.approx(line["avg_acc"], abs=0.0051)


def test_other_scales_have_nothing_to_compare_with():
    assert paper_scores("table1_lm_eval", "tiny") == {}


def test_c17_holds_in_table_1(table1):
    verdict = c17(table1)
    assert verdict.status is Status.HOLDS
    assert "50.88" in verdict.sentence
    assert "23.04" in verdict.sentence
    assert "14.91" in verdict.sentence


@pytest.mark.parametrize(("column", "value", "status"), [
    ("wikitext_ppl", 24.3, Status.WITHIN_NOISE),  # 24.12 is the best of the others; the floor is 0.3
    ("wikitext_ppl", 25.0, Status.FAILS),
    ("lambada_ppl", 16.9, Status.WITHIN_NOISE),
    ("lambada_ppl", 18.0, Status.FAILS),
    ("avg_acc", 49.6, Status.WITHIN_NOISE),
    ("avg_acc", 49.0, Status.FAILS),
])  # fmt: skip
def test_c17_fails_beyond_the_noise_floors(table1, column, value, status):
    table1["fox_pro"][column] = value
    assert c17(table1).status is status


def test_c18_counts_are_those_of_the_paper(table1):
    verdict = c18(table1)
    assert verdict.status is Status.HOLDS
    assert "FoX (Pro) ahead of Transformer (Pro) on 11 of 12 (not on: BoolQ accuracy)" in verdict.sentence
    assert "FoX (LLaMA) ahead of Transformer (LLaMA) on 10 of 12 (not on: OBQA accuracy, BoolQ accuracy)" in verdict.sentence


def test_c19_counts_are_those_of_the_paper(table1):
    verdict = c19(table1)
    assert verdict.status is Status.HOLDS
    assert "FoX (Pro) ahead of FoX (LLaMA) on 11 of 12" in verdict.sentence
    assert "Transformer (Pro) ahead of Transformer (LLaMA) on 10 of 12" in verdict.sentence


@pytest.mark.parametrize("check", [c18, c19])
def test_c18_and_c19_fail_on_clear_losses_and_not_on_losses_inside_the_noise(table1, check):
    other = "transformer_pro" if check is c18 else "fox_llama"
    for column in COLUMNS[:6]:
        table1["fox_pro"][column] = table1[other][column]  # ties
    assert check(table1).status is Status.WITHIN_NOISE
    for column in COLUMNS[:6]:
        table1["fox_pro"][column] += 100 if column in PERPLEXITIES else -30
    assert check(table1).status is Status.FAILS


def test_claims_on_table_1_need_its_columns(table1):
    for line in table1.values():
        del line["copa_acc"], line["avg_acc"]
    assert {check(table1).status for check in (c17, c18, c19)} == {Status.NOT_APPLICABLE}


@pytest.mark.parametrize(("scale", "means"), [("760m-48b", "21.45 21.16 18.33 17.18"), ("760m-16b", "16.99 17.38 13.09 12.71")])
def test_c21_holds_at_both_scales_with_the_papers_means(scale, means):
    verdict = c21(longbench(scale))
    assert verdict.status is Status.HOLDS
    for mean in means.split():
        assert mean in verdict.sentence


def test_c21_fails_if_they_are_far_apart_either_way():
    table = longbench("760m-48b")
    for far in (18.4, 24.0):
        table["fox_pro"]["mean14"] = far
        assert c21(table).status is Status.FAILS
    table["fox_pro"]["mean14"] = 21.16 + 2.4
    assert c21(table).status is Status.WITHIN_NOISE


def test_c22_holds_at_48b_with_the_papers_numbers_and_does_not_apply_without_recurrent_models():
    verdict = c22(longbench("760m-48b"))
    assert verdict.status is Status.HOLDS
    assert "18.19" in verdict.sentence
    assert "13.66" in verdict.sentence
    assert c22(longbench("760m-16b")).status is Status.NOT_APPLICABLE


def test_c22_fails_without_the_lead():
    table = longbench("760m-48b")
    table["hgrn2"]["mean12"] = 15.5
    assert c22(table).status is Status.WITHIN_NOISE
    table["hgrn2"]["mean12"] = 17.0
    assert c22(table).status is Status.FAILS


def test_the_codes_tasks_would_turn_c22_round():
    table = paper_scores("table2_longbench", "760m-48b")
    assert max(table, key=lambda model: table[model]["lcc"]) == "hgrn2"
    assert max(table, key=lambda model: table[model]["repobench_p"]) == "hgrn2"


def test_needle_grid_inside_is_the_papers():
    assert longest_inside(16_384) == 13_400


def test_c22b_and_c22c_hold_on_the_papers_shapes():
    rows, meta = synthetic.needle_rows()
    assert [verdict.status for verdict in judge("needle", rows, meta)] == [Status.HOLDS, Status.HOLDS]


def test_c22b_looks_at_easy_mode_inside_the_training_context_only():
    rows, _ = synthetic.needle_rows()
    elsewhere = (rows["mode"] == "standard") | (rows["length"] > 13_400)
    rows.loc[elsewhere & rows["model"].str.startswith("fox"), "score"] = 1.0
    assert c22b(rows, TRAIN_LEN).status is Status.HOLDS
    rows.loc[(rows["model"] == "fox_llama") & (rows["length"] == 1000), "score"] = 1.0
    assert c22b(rows, TRAIN_LEN).status is Status.FAILS


def test_c22b_fails_if_a_recurrent_model_is_as_good():
    rows, _ = synthetic.needle_rows()
    rows.loc[rows["model"] == "mamba2", "score"] = 9.0
    assert c22b(rows, TRAIN_LEN).status is Status.FAILS


def test_c22c_fails_if_fox_is_worse_in_standard_mode():
    rows, _ = synthetic.needle_rows()
    rows.loc[(rows["model"] == "fox_pro") & (rows["mode"] == "standard"), "score"] = 5.0
    assert c22c(rows, TRAIN_LEN).status is Status.FAILS
    assert c22b(rows, TRAIN_LEN).status is Status.HOLDS


def test_c22c_says_nothing_where_no_model_finds_the_needle():
    rows, _ = synthetic.needle_rows()
    rows["score"] = 1.0
    assert c22c(rows, TRAIN_LEN).status is Status.NOT_APPLICABLE


def test_c22c_one_unlucky_cell_is_noise():
    rows, _ = synthetic.needle_rows()
    rows["score"] = 10.0
    rows.loc[(rows["model"] == "fox_pro") & (rows["length"] == 1000) & (rows["depth"] == 0), "score"] = 7.0
    assert c22c(rows, TRAIN_LEN).status is Status.WITHIN_NOISE


def test_needle_claims_need_their_modes():
    rows, meta = synthetic.needle_rows("tiny", modes=("passkey",), lengths=(256, 1024), depths=(0.0, 50.0), train_len=512)
    assert {verdict.status for verdict in judge("needle", rows, meta)} == {Status.NOT_APPLICABLE}


def test_stand_in_tasks_get_no_verdict_on_public_benchmarks(table1):
    rows = synthetic.scores_to_lm_eval(table1, "tiny", PERPLEXITIES | ACCURACIES)
    meta = synthetic.meta_for("table1_lm_eval", "lm_eval", "tiny", synthetic.SEVEN, 512)
    assert {verdict.status for verdict in judge("lm_eval", rows, meta)} == {Status.HOLDS}
    next(iter(meta["evals"].values()))["spec"]["include"] = "local"
    assert {verdict.status for verdict in judge("lm_eval", rows, meta)} == {Status.NOT_APPLICABLE}


def test_scores_of_rows_are_means_over_runs_and_refuse_two_evaluations(table1):
    rows = synthetic.scores_to_lm_eval(table1, "760m-48b", PERPLEXITIES | ACCURACIES)
    second = rows.assign(run_id=rows["run_id"] + "b", value=rows["value"] + 2)
    both = scores(pd.concat([rows, second]))
    assert both["fox_pro"]["piqa_acc"] == pytest.approx(65.09)
    assert both["fox_pro"]["avg_acc"] == pytest.approx(51.88, abs=0.01)
    with pytest.raises(ValueError, match="several evaluations"):
        scores(pd.concat([rows, rows.assign(eval_id="lm_eval-other")]))
