"""Numbers of figures and tables, worked out by hand or the paper's own; test_committed draws them all from stored rows."""

import math
import shutil
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest

from analysis import study as studies
from analysis.curves import by_model, compare_contexts, context_losses
from analysis.harness import ACCURACIES, PERPLEXITIES
from analysis.needles import needles
from analysis.paper import FILES, paper_scores
from analysis.study import Study
from experiments.acp.acp_tiles import grid
from experiments.artefact import artefacts
from experiments.fox import (
    context_use,
    fig2_per_token_loss,
    fig3_forget_gates,
    fig4_needle,
    table1_lm_eval,
    table2_longbench,
    table3_ablation,
    table6_throughput,
    table_lr_grid,
)
from experiments.stick_breaking import stick_cost, stick_recall
from results import measured, schema
from tests import synthetic
from tests.experiments import test_claims as made
from tests.synthetic import SEVEN, Store

pytestmark = pytest.mark.usefixtures("pictures_of_a_dot")
STORED = Path(__file__).parents[2] / "results"


@pytest.fixture(scope="module")
def results(tmp_path_factory):
    """Copies of what is stored at tiny, without what was drawn from it."""
    copied = tmp_path_factory.mktemp("results")
    for folder in STORED.glob("tiny*"):
        shutil.copytree(folder, copied / folder.name, ignore=shutil.ignore_patterns("figures", "tables", "*.html"))
    return copied


@pytest.mark.parametrize("stem", artefacts())
def test_whatever_is_stored_first_is_drawn_or_said_to_be_too_little(stem, results, monkeypatch):
    """A part of a figure is trained, and the rest waits."""
    planned = studies.read_lines(results, "tiny", stem)
    for line in {line.series: line for line in (*planned.lines[:1], *planned.lines[-1:])}.values():
        part = replace(planned, lines=tuple(each for each in planned.lines if each.series == line.series))
        monkeypatch.setattr(studies, "read_lines", lambda *_, part=part: part)
        try:
            told = bool(artefacts()[stem].draw(Study(results, "tiny", stem)))
        except ValueError as error:
            told = str(error).startswith(f"{stem}: ")
        assert told, "neither drawn nor refused in words of its own"


@pytest.mark.parametrize("key", sorted(FILES))
def test_the_papers_tables_are_whole_and_their_averages_follow_from_their_cells(key):
    table = paper_scores(*key)
    by_label = {"table3_ablation": 15, "acp_quality": 6}
    assert set(SEVEN[:4]) <= set(table) or by_label.get(key[0]) == len(table)
    assert len({tuple(line) for line in table.values()}) == 1 and paper_scores(key[0], "tiny") == {}
    assert not any(math.isnan(value) for line in table.values() for value in line.values())
    for line in table.values():
        accuracies = [line[column] for column in ACCURACIES if column in line]
        assert not accuracies or np.mean(accuracies) == pytest.approx(line["avg_acc"], abs=0.0051)


def test_tables_1_and_2_of_the_papers_numbers_are_the_papers(tmp_path):
    """Its values stand beside ours only at its scales and tasks."""
    short = table1_lm_eval.summary(made.printed(tmp_path / "a", "table1_lm_eval"))
    long = table2_longbench.summary(made.printed(tmp_path / "b", "table2_longbench"))
    for table in (short, long):
        for model, cells in table.rows.items():
            assert cells == pytest.approx(table.paper[model], abs=0.0051)
    assert long.rows["fox_pro"][-1] == pytest.approx(21.445, abs=0.01)
    local = table1_lm_eval.summary(made.printed(tmp_path / "c", "table1_lm_eval", evaluation=made.LOCAL))
    assert not local.paper and {column.better for column in local.columns} == {""}, "stand-ins are not ranked"
    for stem, table, value in (("table8_lm_eval", table1_lm_eval, 31.71), ("table9_longbench", table2_longbench, 6.33)):
        found = table.summary(made.printed(tmp_path / stem, stem, "760m-16b"))
        assert found.rows["samba"][0] == pytest.approx(value) == found.paper["samba"][0]


def test_table_1_is_the_mean_over_seeds(tmp_path):
    """Of three, whose median is another; no average without all ten tasks."""
    store, columns = Store(tmp_path), PERPLEXITIES | ACCURACIES
    for seed, value in enumerate((50.0, 51.0, 55.0)):
        rows = synthetic.lm_eval_rows(dict.fromkeys(columns, value), columns)
        store.add("table1_lm_eval", "fox_pro", [("lm_eval", rows)], seed=seed, evaluation=made.PAPER)
        few = rows[rows["task"] != "copa"]
        store.add("table8_lm_eval", "fox_pro", [("lm_eval", few)], seed=seed, name="few", evaluation=made.PAPER)
    table = table1_lm_eval.summary(store.study("table1_lm_eval"))
    assert table.rows["fox_pro"][-1] == pytest.approx(52.0) and table.spreads["fox_pro"][-1] == pytest.approx(7**0.5)
    assert "avg_acc" not in [column.key for column in table1_lm_eval.summary(store.study("table8_lm_eval")).columns]


def test_table_3_of_the_papers_numbers_is_the_papers(tmp_path):
    store = Store(tmp_path, "360m-7.5b", 64)
    for label, line in table3_ablation.PRINTED.items():
        spec = {
            "use_rope": bool(line["rope"]), "forget_gate": "full" if line["forget_gate"] else "none",
            "qk_norm": bool(line["qk_norm"]), "use_output_gate": bool(line["output_gate"]),
            "use_output_norm": bool(line["output_norm"]), "use_k_shift": bool(line["kv_shift"]),
        }  # fmt: skip
        rows = synthetic.loss_rows(np.repeat([np.log(2 * line["ppl"]), 9.0], [64, 192]))
        store.add("table3_ablation", label, [("per_token_loss", rows)], model="fox_pro", spec=spec)
    table = table3_ablation.summary(store.study("table3_ablation"))
    for label, line in table3_ablation.PRINTED.items():
        relative = 100 * (line["ppl"] / 6.62 - 1)
        assert table.rows[label][:6] == [line[column.key] for column in table.columns[:6]]
        assert table.rows[label][6:9] == pytest.approx([2 * line["ppl"], relative, relative])
        assert table.paper[label][6] == line["ppl"]
    assert "Of 104 pairs of lines 104 are in the paper's order (Kendall's τ 1.00)." in table.note


def test_table_6_is_relative_to_the_transformer_and_ranks_only_ranges_that_do_not_overlap(tmp_path):
    table = table6_throughput.summary(made.steps(tmp_path / "a", spread=0.01))
    assert table.rows["fox_pro"][:4] == pytest.approx([759, 2.72, 27_000, 27 / 38]), "truncated as in the paper"
    assert table.paper["fox_pro"][:4] == pytest.approx([759, 2.72, 27_000, 27 / 38])
    assert table.ranges["fox_pro"][2] == pytest.approx((26_730, 27_270))
    for spread, marks in ((0.001, ["", "second", "best"]), (0.02, ["", "", ""])):
        store = Store(tmp_path / str(spread))
        for model, speed in (("fox_pro", 36_000.0), ("transformer_pro", 40_000.0), ("hgrn2", 41_000.0)):
            row = synthetic.throughput_row(speed=speed, spread=spread)
            store.add("table6_throughput", model, [("throughput", row)], evaluation={"mode": "train"})
        table = table6_throughput.summary(store.study("table6_throughput"))
        place = [column.key for column in table.columns].index("relative")
        assert [each[place] for each in table.marks().values()] == marks


def test_figure_2_has_losses_and_perplexities_of_seeds(tmp_path):
    """Three of which the median is another than the mean, and the mean of perplexities another than that of the mean loss."""
    study = synthetic.main_losses(Store(tmp_path, train_len=128), models=("hgrn2",), documents=8, seeds=3, seed_noise=0.3)
    table, means = fig2_per_token_loss.summary(study), by_model(study)["hgrn2"].losses_SN[:, :128].mean(axis=1)
    assert abs(np.median(means) - means.mean()) > 0.01
    assert table.rows["hgrn2"][:2] == pytest.approx([means.mean(), 7.0 - means.mean()])
    assert table.rows["hgrn2"][3] == pytest.approx(np.exp(means).mean())
    assert table.spreads["hgrn2"][0] == pytest.approx(means.std(ddof=1))


def test_grids_are_the_papers_at_its_training_length():
    k = 1024
    assert fig2_per_token_loss.grid_inside(16 * k) == [512, k, 2 * k, 4 * k, 8 * k, 16 * k]
    assert fig2_per_token_loss.grid_beyond(16 * k, 64 * k) == [20 * k, 24 * k, 32 * k, 48 * k, 64 * k]
    assert fig2_per_token_loss.grid_beyond(512, 2048) == [640, 768, 1024, 1536, 2048]


def test_figure_3_picks_the_most_local_and_the_most_global_head(tmp_path):
    store = Store(tmp_path)
    rows = synthetic.gate_rows(np.random.default_rng(2), layers=2, heads=3, size=16)
    store.add("fig3_forget_gates", "fox_pro", [("gate_maps", rows)])
    rows = store.study("fig3_forget_gates").rows("gate_maps")
    statistics = fig3_forget_gates.head_statistics(rows)["median_F"]
    assert fig3_forget_gates.two_heads(rows) == [statistics.idxmin(), statistics.idxmax()]


def needle_study(tmp_path, kinds):
    store, rng = Store(tmp_path, train_len=128), np.random.default_rng(1)
    for model, share in (("fox_pro", 0.8), ("mamba2", 0.15)):
        for seed in range(3):
            grid = dict(train_len=128, lengths=(64, 200), depths=(0.0, 50.0), samples=2)
            scores = synthetic.needle_rows(model, rng, **grid)
            rows = {"needle": scores.assign(score=rng.choice([1.0, 3.0, 10.0], len(scores)) if "needle" in kinds else 1.0),
                    "needle_choice": synthetic.choice_rows(rng, share, **grid)}  # fmt: skip
            store.add("fig4_needle", model, [("needle", rows["needle"]), ("needle_choice", rows["needle_choice"])], seed=seed)
    return store.study("fig4_needle")


@pytest.mark.parametrize(("kinds", "column"), [(("needle",), "score"), ((), "right")])
def test_figure_4_draws_means_of_samples_and_seeds_and_at_the_floor_choices(tmp_path, kinds, column):
    study = needle_study(tmp_path, kinds)
    kind = "needle" if kinds else "needle_choice"
    cells = pd.read_csv(fig4_needle.draw(study)[2])
    wanted = study.rows(kind).groupby(["model", "mode", "length", "depth"])[column].mean()
    drawn = cells.groupby(["label", "mode", "length", "depth"])[column].mean()
    assert drawn.to_numpy() == pytest.approx(wanted.to_numpy(), rel=1e-4) and needles(study).at_floor is False
    inside = study.rows(kind).query("model == 'fox_pro' and mode == 'easy' and length == 64")[column]
    assert fig4_needle.summary(study).rows["fox_pro"][0] == pytest.approx(inside.mean())


@pytest.mark.parametrize(("low", "high", "words"), [
    (1000, 7200, "easy mode, 1,000 to 7,200 tokens"), (7200, 7200, "easy mode, 7,200 tokens"),
])  # fmt: skip
def test_lengths_of_compared_needles(low, high, words):
    cells = [pd.DataFrame({"length": [low, high]})]
    assert fig4_needle._what(SimpleNamespace(measure="score"), "easy", cells) == f"score, {words}"


def test_what_context_is_worth_is_of_the_same_targets(tmp_path):
    """The longest context fits in front of the last place alone, which is like no other: no line jumps to its level."""
    store, rng = Store(tmp_path), np.random.default_rng(0)
    for model, use in (("fox_pro", 3e-3), ("transformer_pro", 1e-3)):
        rows = synthetic.context_rows(lambda context: 3.0 - 0.05 * np.clip((context - 32) / 192, 0, 1), rng)
        rows.loc[rows["place"] == 1024, "loss"] -= use * rows["context"]
        store.add("context_use", model, [("context_use", rows)], evaluation={"targets": 32})
    study = store.study("context_use")
    losses, drawn = context_losses(study), context_use.points(study).set_index(["panel", "model", "context"])["value"]
    rows = study.rows("context_use").query("model == 'fox_pro'")
    last, all_places = rows[rows["place"] == 1024].groupby("context")["loss"].mean(), rows.groupby("context")["loss"].mean()
    fox, other = losses["fox_pro"], losses["transformer_pro"]
    assert compare_contexts((1.0, fox, 992), (-1.0, fox, 8)).effect == pytest.approx(last[992] - last[8])
    assert compare_contexts((1.0, fox, 480), (-1.0, fox, 8)).effect == pytest.approx(all_places[480] - all_places[8])
    assert fox.inside == [8, 16, 32, 64, 128, 160, 224]
    for start, panel in ((8, "all"), (32, "late")):
        assert drawn[panel, "fox_pro", 480] == pytest.approx(context_use.change(fox, start, 480).effect)
        step = drawn[panel, "fox_pro", 992] - drawn[panel, "fox_pro", 480]
        assert step == pytest.approx(context_use.change(fox, 480, 992).effect)
    apart = context_use.change(other, 480, 992).effect - context_use.change(fox, 480, 992).effect
    assert drawn["lead", "fox_pro", 992] - drawn["lead", "fox_pro", 480] == pytest.approx(apart)


def test_recall_is_told_at_each_models_best_rate(tmp_path):
    """It differs by model and number of keys; of rates that answer as much the lowest is taken."""
    store = Store(tmp_path)
    correct = {("stick_breaking", 4): (4, 3, 4), ("stick_breaking", 8): (2, 8, 1),
               ("transformer_llama", 4): (1, 1, 3), ("transformer_llama", 8): (5, 0, 0)}  # fmt: skip
    for (model, num_keys), counts in correct.items():
        for rate, count in zip((3e-4, 1e-3, 3e-3), counts, strict=True):
            rows = pd.DataFrame({"sequence": np.arange(9), "num_queries": num_keys, "num_correct": count, "num_stale": 0})
            axes = {"num_keys": num_keys} | ({} if rate == 1e-3 else {"peak_lr": rate})
            store.add("stick_recall", f"{num_keys} keys, {rate}", [("recall", rows)], model=model, axes=axes,
                      name=f"{model} {num_keys} {rate}", train={"peak_lr": rate})  # fmt: skip
    study = store.study("stick_recall")
    best = stick_recall.answered(study).groupby(["model", "num_keys"])[["peak_lr", "correct"]].first()
    assert best["peak_lr"].tolist() == [3e-4, 1e-3, 3e-3, 3e-4] and best["correct"].tolist() == [1.0, 1.0, 0.75, 0.625]
    assert [values[::2] for values in stick_recall.summary(study).rows.values()] == [[75.0, 62.5], [100.0, 100.0]]


def test_times_of_two_gpus_are_not_mixed(tmp_path):
    """Those of the GPU with more rows are taken."""
    study, folder = made.kernels(tmp_path, factor=1.2), tmp_path / measured.FOLDER.name
    rows = measured.read("stick_breaking", folder).drop(columns=["created", "commit", "gpu", "torch", "triton"])
    slower = rows[rows["provider"] != "ours"].assign(date="tomorrow", ms_q50=9.0)
    measured.add("stick_breaking", slower.to_dict("records"), "another GPU", folder=folder)
    taken = stick_cost.kernel_times(study)
    assert set(taken["gpu"]) == {"GPU"} and set(taken["date"]) == {"today"} and len(taken) == len(rows)


def test_where_best_rates_lie_and_which_trainings_were_unstable(tmp_path):
    """Of ten steps of ten tokens two warm up; unstable are those that are not finite or above four times the median."""
    assert "edge" not in table_lr_grid.rates_tried(made.rates(tmp_path / "a"))
    text = table_lr_grid.rates_tried(made.rates(tmp_path / "b", {"fox_pro": 4e-3, "fox_llama": 2.5e-4}))
    assert "may lie beyond it: FoX (Pro) (highest), FoX (LLaMA) (lowest)." in text
    rows = pd.DataFrame({"tokens": range(10, 110, 10), "grad_norm": [99.0, 99, 1, 1, 4.01, 1, math.nan, 1, 3.99, 1]})
    specs = {"r": {"train": {"warmup_tokens": 20, "peak_lr": 1e-3}}}
    calm = rows.assign(grad_norm=1.0)
    found = [(SimpleNamespace(model="fox_pro", run_id="r"), own, {}) for own in (rows, calm)]
    study = SimpleNamespace(evaluations=lambda kind: found, spec=specs.__getitem__)
    assert table_lr_grid._spikes(study) == {("fox_pro", 1e-3): 2 / 8}, "of the worst seed"


def test_longer_contexts_are_compared_by_pairs_that_were_timed_at_both(tmp_path, monkeypatch):
    study = made.steps(tmp_path, models=("delta_net", "mamba2", "transformer_llama", "fox_llama"))
    setting = dict(scale="760m-48b", gpus=1, seq_len=65_536, sequences_per_gpu=1, micro_batches=1,
                   activation_checkpointing=False, prune=False)  # fmt: skip
    columns = dict.fromkeys(("model", "scale"), schema.text())
    columns |= dict.fromkeys(("activation_checkpointing", "prune"), schema.flag())
    columns |= dict.fromkeys(("gpus", "seq_len", "sequences_per_gpu", "micro_batches"), schema.integer(1))
    steps = schema.Schema({**columns, "tokens_per_s": schema.number(0)}, key=("model", "seq_len", "prune"))
    monkeypatch.setitem(measured.SCHEMAS, "training_steps", steps)
    speeds = {"hgrn2": 5.0, "mamba2": 4.0, "transformer_llama": 3.0, "fox_llama": 2.0}
    rows = [{**setting, "model": model, "tokens_per_s": 1000 * speed} for model, speed in speeds.items()]
    measured.add("training_steps", rows, "GPU", folder=tmp_path / measured.FOLDER.name)
    assert "2 pairs that were timed at both lengths, 2 are in the claimed order there, 2 at 16k tokens here." in (
        table6_throughput.at_longer_contexts(study)
    )


def test_tiles_are_computed_from_the_first_one_on():
    assert grid(np.array([0, 0, 1, 1])).tolist() == [[2, 0, 0, 0], [2, 2, 0, 0], [1, 2, 2, 0], [1, 2, 2, 2]]
