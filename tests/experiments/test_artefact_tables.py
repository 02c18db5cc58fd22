import csv
import io
import re

import numpy as np
import pytest

from analysis.harness import ACCURACIES, PERPLEXITIES
from analysis.paper import paper_scores
from analysis.tables import MARKED, Column, Table, over_seeds, to_csv, to_html, to_latex, to_markdown
from experiments.artefact import artefacts
from experiments.beyond import acp_tight, gate_worth
from experiments.fox import (
    table1_lm_eval,
    table2_longbench,
    table3_ablation,
    table4_settings,
    table6_throughput,
    table_lr_grid,
)
from tests import synthetic

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


def lm_eval(tmp_path, scale="760m-48b", include="harness", change=None, seeds=1):
    store = synthetic.Store(tmp_path, scale)
    for model, line in paper_scores("table1_lm_eval", "760m-48b").items():
        for seed in range(seeds):
            shifted = {column: value + 2 * seed for column, value in line.items()}
            rows = synthetic.lm_eval_rows(shifted, PERPLEXITIES | ACCURACIES)
            rows = rows if change is None else change(rows)
            store.add("table1_lm_eval", model, [("lm_eval", rows)], seed=seed, evaluation={"include": include})
    return store.study("table1_lm_eval")


def test_table_1_from_the_papers_numbers_is_the_papers_table(tmp_path):
    paths = artefacts()["table1_lm_eval"].draw(lm_eval(tmp_path))
    folder = tmp_path / "760m-48b" / "tables"
    assert paths == [folder / f"table1_lm_eval.{ending}" for ending in ("md", "tex", "csv")]
    first = paths[0].read_text().splitlines()[2]
    assert first.startswith("| FoX (Pro) | 23.04 (23.04) | 14.91 (14.91) | 42.75 (42.75) |")
    assert first.endswith("| 46.57 (46.57) | 50.88 (50.88) |")


@pytest.mark.parametrize(("scale", "include", "beside"), [
    ("760m-48b", "harness", 50.88), ("760m-16b", "harness", None), ("360m-7.5b", "harness", None),
    ("tiny", "local:12ab", None), ("760m-48b", "local:12ab", None),
])  # fmt: skip
def test_the_papers_values_stand_beside_ours_only_at_its_scales_and_tasks(tmp_path, scale, include, beside):
    table = table1_lm_eval.summary(lm_eval(tmp_path, scale, include))
    assert scale in table.note
    assert ("stand-ins" in table.note) == include.startswith("local")
    if beside is None:
        assert not table.paper
    else:
        assert table.paper["fox_pro"][-1] == beside


def test_tables_8_and_9_have_the_papers_values_by_the_scale_of_their_runs(tmp_path):
    store = synthetic.Store(tmp_path, "760m-48b")
    short, long = paper_scores("table8_lm_eval", "760m-16b"), paper_scores("table9_longbench", "760m-16b")
    rows = {"table8_lm_eval": ("lm_eval", synthetic.lm_eval_rows(short["samba"], PERPLEXITIES | ACCURACIES)),
            "table9_longbench": ("longbench", synthetic.longbench_rows(long["samba"]))}  # fmt: skip
    for stem, own in rows.items():
        store.add(stem, "samba", [own], scale="760m-16b", evaluation={"include": "harness", "dataset": "hub"})
    tables = [table1_lm_eval.summary(store.study("table8_lm_eval")), table2_longbench.summary(store.study("table9_longbench"))]
    assert [table.paper["samba"][0] for table in tables] == [31.71, 6.33]
    assert tables[0].paper["samba"][-1] == 48.12


def test_table_1_shows_unknown_tasks_and_no_average_without_all_ten(tmp_path):
    def change(rows):
        rows = rows[rows["task"] != "copa"]
        return rows.assign(task=rows["task"].replace({"piqa": "local_cloze", "wikitext": "local_text"}))

    table = table1_lm_eval.summary(lm_eval(tmp_path / "local", "tiny", "local", change))
    assert {column.better for column in table.columns} == {""}  # stand-ins are not ranked
    table = table1_lm_eval.summary(lm_eval(tmp_path / "public", "tiny", change=change))
    keys = [column.key for column in table.columns]
    assert "local_cloze_acc" in keys
    assert "local_text_word_perplexity" in keys
    assert "avg_acc" not in keys
    assert "No average" in table.note
    lower = next(column for column in table.columns if column.key == "local_text_word_perplexity")
    assert lower.better == "lower"


def test_table_1_is_the_mean_over_seeds(tmp_path):
    table = table1_lm_eval.summary(lm_eval(tmp_path, seeds=2))
    assert table.rows["fox_pro"][-1] == pytest.approx(51.88, abs=0.01)
    assert table.spreads["fox_pro"][-1] == pytest.approx(2**0.5)


def longbench(tmp_path, evaluation):
    store = synthetic.Store(tmp_path, "760m-48b")
    for model, line in paper_scores("table2_longbench", "760m-48b").items():
        rows = synthetic.longbench_rows({task: value + 1 for task, value in line.items()}, np.random.default_rng(0), 3)
        store.add("table2_longbench", model, [("longbench", rows)], evaluation=evaluation)
    return store.study("table2_longbench")


def test_table_2_means_and_paper_values(tmp_path):
    table = table2_longbench.summary(longbench(tmp_path / "a", {"dataset": "hub"}))
    assert [column.key for column in table.columns][-2:] == ["mean12", "mean14"]
    assert table.rows["fox_pro"][-1] == pytest.approx(22.445, abs=0.01)
    assert table.paper["fox_pro"][-1] == pytest.approx(21.445, abs=0.01)
    assert "3 examples per task" in table.note
    assert "first line" not in table.note
    table = table2_longbench.summary(longbench(tmp_path / "b", {"dataset": "local:1f", "original_cut": True}))
    assert "original benchmark's rule" in table.note
    assert not table.paper


def ablation(tmp_path, scale="360m-7.5b", runs_at=None, labels=None):
    store = synthetic.Store(tmp_path, scale, 64)
    for label, line in table3_ablation.PRINTED.items():
        if labels is not None and label not in labels:
            continue
        spec = {
            "use_rope": bool(line["rope"]), "forget_gate": "full" if line["forget_gate"] else "none",
            "qk_norm": bool(line["qk_norm"]), "use_output_gate": bool(line["output_gate"]),
            "use_output_norm": bool(line["output_norm"]), "use_k_shift": bool(line["kv_shift"]),
        }  # fmt: skip
        rows = synthetic.loss_rows(np.repeat([np.log(2 * line["ppl"]), 9.0], [64, 192]))
        store.add("table3_ablation", label, [("per_token_loss", rows)], model="fox_pro", spec=spec, scale=runs_at)
    return store.study("table3_ablation")


def test_table_3_has_the_papers_lines_marks_and_numbers(tmp_path):
    table = table3_ablation.summary(ablation(tmp_path))
    assert list(table.rows) == list(table3_ablation.PRINTED)
    for label, line in table3_ablation.PRINTED.items():
        assert table.rows[label][:6] == [line[column.key] for column in table.columns[:6]]
        assert table.rows[label][6] == pytest.approx(2 * line["ppl"])
        assert table.paper[label][6] == line["ppl"]
        assert table.rows[label][7] == pytest.approx(100 * (line["ppl"] / 6.62 - 1))
        assert table.rows[label][8] == pytest.approx(table.rows[label][7]), "the paper's differences, in percent of FoX (Pro)"
    assert "Of 104 pairs of lines 104 are in the paper's order (Kendall's τ 1.00)." in table.note
    text = to_markdown(table)
    assert "| FoX (LLaMA) + RoPE | ✓ | ✓ |  |  |  |  | 14.38 (7.19) | +8.6 | +8.6 |" in text


def test_table_3_at_other_scales_keeps_the_papers_differences_and_leaves_its_perplexities(tmp_path):
    table = table3_ablation.summary(ablation(tmp_path / "a", "tiny"))
    assert not table.paper
    assert table.rows["FoX (Pro) - QK-norm"][8] == pytest.approx(100 * (6.79 / 6.62 - 1))
    table = table3_ablation.summary(ablation(tmp_path / "b", "760m-48b", runs_at="360m-7.5b"))
    assert table.paper["FoX (Pro)"][6] == 6.62, "its runs are of the paper's scale"
    assert "runs at 360m-7.5b" in table.note
    table = table3_ablation.summary(ablation(tmp_path / "c", "tiny", labels=["FoX (LLaMA)", "Transformer (LLaMA)"]))
    assert table.rows["FoX (LLaMA)"][7] is None
    assert "Kendall" not in table.note


def throughput(tmp_path, scale="760m-48b", machines=("GPU",)):
    store = synthetic.Store(tmp_path, scale, 16_384)
    for place, model in enumerate(synthetic.SEVEN):
        kinds = [
            (
                "throughput",
                synthetic.throughput_row(757_632_576 + place, 50_000.0 + 2000 * place, machine=machine, beside=56_000.0),
            )
            for machine in machines[: 1 + (place == 0)]
        ]
        store.add("table6_throughput", model, kinds, evaluation={"mode": "train"}, final_loss=None)
    return store.study("table6_throughput")


def test_table_6_is_relative_to_the_transformer_and_truncates_like_the_paper(tmp_path):
    table = table6_throughput.summary(throughput(tmp_path))
    assert table.rows["fox_pro"][:4] == pytest.approx([757, 2.72, 50_000, 50 / 56])
    assert table.paper["fox_pro"][:4] == pytest.approx([759, 2.72, 27_000, 27 / 38])
    assert table.ranges["fox_pro"][2:4] == [pytest.approx((49_500, 50_500)), pytest.approx((49.5 / 56, 50.5 / 56))]
    assert [column.key for column in table.columns][4:] == ["mfu_percent", "peak_memory_gib"], "nothing is pruned"
    assert "only ratios" in table.note
    elsewhere = table6_throughput.summary(throughput(tmp_path / "tiny", "tiny")).paper
    assert elsewhere["fox_pro"] == [None, None, None, pytest.approx(27 / 38), None, None], "only ratios"


def test_table_6_shows_both_mfus_where_work_is_pruned_and_none_without_a_peak(tmp_path):
    for place, (change, keys) in enumerate((
        ({"mfu_dense": 0.9}, ["mfu_percent", "mfu_dense_percent", "peak_memory_gib"]),
        ({"mfu": np.nan, "mfu_dense": np.nan, "peak_memory_gib": np.nan}, []),
        ({"relative": np.nan, "mfu": np.nan, "mfu_dense": np.nan}, ["peak_memory_gib"]),
    )):  # fmt: skip
        store = synthetic.Store(tmp_path / str(place))
        rows = synthetic.throughput_row().assign(**change)
        store.add("table6_throughput", "fox_pro", [("throughput", rows)], evaluation={"mode": "train"})
        table = table6_throughput.summary(store.study("table6_throughput"))
        beside = [] if "relative" in change else ["relative"]
        assert [column.key for column in table.columns][3:] == beside + keys


def test_table_6_ranks_only_speeds_of_steps_that_alternated_and_whose_ranges_do_not_overlap(tmp_path):
    def marks(spread, **change):
        store = synthetic.Store(tmp_path / f"{spread}{change}")
        for model, speed in (("fox_pro", 36_000.0), ("transformer_pro", 40_000.0), ("hgrn2", 41_000.0)):
            row = synthetic.throughput_row(speed=speed, spread=spread).assign(**change)
            store.add("table6_throughput", model, [("throughput", row)], evaluation={"mode": "train"})
        table = table6_throughput.summary(store.study("table6_throughput"))
        keys = [column.key for column in table.columns]
        return [dict(zip(keys, marks, strict=True)) for marks in table.marks().values()], keys

    ranked, _ = marks(0.001)
    assert [each["relative"] for each in ranked] == ["", "second", "best"]
    assert {each["tokens_per_s"] for each in ranked} == {""}
    assert [each["relative"] for each in marks(0.02)[0]] == ["", "", ""]
    assert "relative" not in marks(0.001, relative=np.nan)[1]


def test_table_6_draws_the_machine_that_most_models_were_timed_on(tmp_path):
    table = table6_throughput.summary(throughput(tmp_path, machines=("GPU", "CPU")))
    assert len(table.rows) == 7
    assert "Measured on GPU" in table.note
    store = synthetic.Store(tmp_path / "none")
    store.add("table6_throughput", "fox_pro", [])
    with pytest.raises(ValueError, match="no training speeds are stored"):
        table6_throughput.summary(store.study("table6_throughput"))


def grid(tmp_path, evaluated):
    store = synthetic.Store(tmp_path, train_len=64)
    for model, best in (("fox_pro", 2e-3), ("transformer_pro", 1e-3)):
        for rate in (1e-3, 2e-3, 4e-3):
            loss = 3.0 + abs(np.log2(rate / best))
            kinds = [("per_token_loss", synthetic.loss_rows(np.full(256, loss - 1)))] if evaluated(model, rate) else []
            axes = {"peak_lr": rate}
            label = f"{model}, LR {rate:g}"
            store.add("table_lr_grid", label, kinds, model=model, axes=axes, train=axes, final_loss=loss)
    return store.study("table_lr_grid")


def test_learning_rates_by_held_out_perplexity_if_all_runs_have_it_else_by_training_loss(tmp_path):
    table = table_lr_grid.summary(grid(tmp_path / "a", lambda *_: True))
    assert table.caption == "Learning rates: held-out perplexity P(64)"
    assert table.rows["LR 0.002"] == pytest.approx([np.exp(2), np.exp(3)])
    assert table.columns[0].better == "lower" and not any(map(any, table.marks().values())), "one seed"
    assert "bold" not in to_markdown(table).lower(), "what is marked is said only where something is"
    assert "Best at the edge of the grid: Transformer (Pro)." in table.note
    table = table_lr_grid.summary(grid(tmp_path / "b", lambda model, rate: rate < 3e-3))
    assert table.caption == "Learning rates: final training loss (nats)"
    assert table.rows["LR 0.004"] == pytest.approx([4.0, 5.0])
    assert [path.suffix for path in artefacts()["table_lr_grid"].draw(grid(tmp_path / "c", lambda *_: False))] == [
        ".md",
        ".tex",
        ".csv",
    ]


def test_the_gates_worth_is_the_difference_of_each_pair_and_each_models_best_rate_counts(tmp_path):
    """Losses rise by 1 nat a doubling of the rate from the best; one pair is whole, of the other the Transformer is missing."""
    store, rng = synthetic.Store(tmp_path / "a", train_len=64), np.random.default_rng(0)
    for model, best in (("fox_pro", 2e-3), ("transformer_pro", 1e-3), ("fox_llama", 2e-3)):
        tried = [("1M tokens, LR 0.001", 1e-3), ("1M tokens, LR 0.002", 2e-3), ("4M tokens", None)]
        alone = [("1M tokens, LR 0.0005", 5e-4)] if model == "fox_pro" else []  # no line of its own: nothing to compare
        for label, rate in tried + alone:
            axes = {"train_tokens": 4_000_000} if rate is None else {"train_tokens": 1_000_000, "peak_lr": rate}
            loss = 3.0 + abs(np.log2((rate or best) / best)) + 0.25 * (model == "transformer_pro")
            mean, bands = synthetic.documents_of(np.full(128, loss), rng, np.zeros((16, 16)), noise=0.01)
            kinds = [("per_token_loss", synthetic.loss_rows(mean, bands))]
            store.add("gate_worth", label, kinds, model=model, name=f"{model} {label}", axes=axes)
    table = gate_worth.summary(store.study("gate_worth"))
    assert list(table.rows)[:3] == ["1M tokens, LR 0.001", "1M tokens, LR 0.002", "1M tokens, each at its best LR"]
    assert [row[0] for row in table.rows.values()] == pytest.approx([-0.75, 1.25, 0.25, 0.25, 0.0297], abs=0.02)
    assert [row[1] for row in table.rows.values()] == [None] * 4 + [pytest.approx(0.0326, abs=1e-3)]
    low, high = table.ranges["4M tokens"][0]
    assert 0.2 < low < 0.26 and 0.24 < high < 0.3
    assert [path.suffix for path in artefacts()["gate_worth"].draw(store.study("gate_worth"))] == [".md", ".tex", ".csv"]
    alone = synthetic.Store(tmp_path / "b", train_len=64)
    kinds = [("per_token_loss", synthetic.loss_rows(np.full(128, 3.0)))]
    alone.add("gate_worth", "4M tokens", kinds, model="fox_pro", axes={"train_tokens": 4_000_000})
    with pytest.raises(ValueError, match="no pair of runs with and without a forget gate is stored"):
        gate_worth.summary(alone.study("gate_worth"))


def test_tight_pruning_is_set_beside_acps_own(tmp_path):
    """Context by context; a run whose times were not taken has its other numbers."""
    store = synthetic.Store(tmp_path, train_len=128)
    for context in (1024, 512):
        for name, share, ratio in (("pruned", 0.5, 0.4), ("tightly pruned", 0.6, 0.3)):
            skipped = synthetic.pruning_rows([share, share], context=context, dropped=np.exp(-12.0), change=2e-6)
            skipped.loc[skipped["quantity"] == "loss_pruned", "value"] += np.tile([-1e-6, 1e-6], 4)
            rows = [("pruning", skipped)]
            rows.append(("per_token_loss", synthetic.loss_rows(np.full(128, 3.0 + share))))
            if context == 512 or name == "pruned":
                rows.append(
                    ("attention_speed", synthetic.speed_rows({"attention_forward": 0.5, "attention": ratio, "step": 0.8}))
                )
            spec = {"context_len": context, "tile": 32, "log_tolerance": -10.0}
            label = f"{name}, context {context}"
            axes = {"pruning": name, "context": context}
            store.add("acp_tight", label, rows, model="fox_pro", evaluation=spec, train={"seq_len": 128}, axes=axes)
    table = acp_tight.summary(store.study("acp_tight"))
    assert list(table.rows) == ["pruned, context 512", "tightly pruned, context 512", "pruned, context 1024",
                                "tightly pruned, context 1024"]  # fmt: skip
    assert table.rows["tightly pruned, context 512"] == pytest.approx([60.0, 3.6, 2.0, 7**-0.5, np.exp(-2.0), 30.0, 80.0])
    assert table.rows["pruned, context 512"][5] == pytest.approx(40.0)
    assert table.rows["tightly pruned, context 1024"][5:] == [None, None]
    assert table.note.endswith("Times on Synthetic GPU. One seed.")


def test_both_rules_are_told_of_each_model_beside_the_one_trained_without(tmp_path):
    """The model's own rule first; the loss is compared with the unpruned training of the same context alone."""
    store = synthetic.Store(tmp_path, train_len=128)
    for context, kinds in ((512, ("pruned", "unpruned")), (1024, ("pruned",))):
        for name in kinds:
            rows = [("per_token_loss", synthetic.loss_rows(np.full(128, 3.0 + 0.5 * (name == "pruned"))))]
            for rule, share, ratio in (({}, 0.5, 0.4), ({"rule": "tight"}, 0.6, 0.3)):
                skipped = synthetic.pruning_rows([share, share], context=context, dropped=np.exp(-12.0), change=2e-6)
                times = synthetic.speed_rows({"attention_forward": 0.5, "attention": ratio, "step": 2 * ratio})
                rows += [("pruning", skipped, rule), ("attention_speed", times, rule)]
            spec, axes = {"context_len": context, "tile": 32, "log_tolerance": -10.0}, {"pruning": name, "context": context}
            label, train = f"{name}, context {context}", {"seq_len": 128}
            store.add("acp_tight", label, rows, model="fox_pro", evaluation=spec, train=train, axes=axes)
    table = acp_tight.summary(store.study("acp_tight"))
    keys = [column.key for column in table.columns]
    cells = {label: dict(zip(keys, row, strict=True)) for label, row in table.rows.items()}
    assert [keys[7], *keys[8:]] == ["above", *(f"{key}_tightly" for key in keys[:7] if key != "loss")]
    for label in ("pruned, context 512", "unpruned, context 512", "pruned, context 1024"):
        assert [cells[label][key] for key in ("tiles_pruned", "attention", "step")] == pytest.approx([50, 40, 80])
        assert [cells[label][f"{key}_tightly"] for key in ("tiles_pruned", "attention", "step")] == pytest.approx([60, 30, 60])
    assert cells["pruned, context 512"]["above"] == pytest.approx(0.5)
    assert cells["unpruned, context 512"]["above"] is None and cells["pruned, context 1024"]["above"] is None
    assert "Models trained without pruning are pruned by ACP's rule." in table.note and "different" not in table.note
    rows = [
        ("pruning", synthetic.pruning_rows([0.5], context=2048)),
        ("attention_speed", synthetic.speed_rows({"attention": 0.5, "step": 0.8})),
    ]
    spec = {"context_len": 2048, "tile": 32, "log_tolerance": -10.0}
    axes = {"pruning": "pruned", "context": 2048}
    store.add("acp_tight", "pruned, context 2048", rows, model="fox_pro", evaluation=spec, git_sha="d00d" * 10, axes=axes)
    note = acp_tight.summary(store.study("acp_tight")).note
    assert re.search(r"code: attention without pruning takes .* \(0123456789\+\); [\d.]+ at 2k \(d00dd00dd0\+\) \(ms\)", note)


def test_table_4_reads_sizes_off_the_spec_and_the_model(tmp_path):
    store = synthetic.Store(tmp_path)
    names = {"embeddings.weight": "9 x 8", "layers.0.mlp.down_proj.weight": "8 x 30", "lm_head.weight": "9 x 8"}
    spec = {"num_layers": 2, "hidden_size": 8, "num_heads": 4}
    train = {"batch_tokens": 512, "warmup_tokens": 2_000_000}
    for model, heads in (("fox_pro", spec), ("hgrn2", {**spec, "num_heads": None, "expand_ratio": 4})):
        store.add("table4_settings", model, [("parameters", synthetic.parameter_rows(names))], spec=heads, train=train)
    table = table4_settings.summary(store.study("table4_settings"))
    titles = [column.key for column in table.columns]
    fox, hgrn2 = (dict(zip(titles, table.rows[model], strict=True)) for model in ("fox_pro", "hgrn2"))
    assert fox["params_millions"] == (240 + 72) / 1e6  # without the input embedding, with the head
    assert (fox["head_dim"], hgrn2["head_dim"], fox["mlp_width"]) == (2, 4, 30)
    assert (fox["batch_tokens"], fox["warmup_tokens_millions"]) == (512, 2.0)
