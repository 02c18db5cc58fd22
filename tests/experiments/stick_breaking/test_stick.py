"""S1 to S8: each on made-up rows that meet it, and on rows that break it; the figures are drawn."""

import numpy as np
import pandas as pd
import pytest
from PIL import Image

from analysis.verdict import Status
from experiments.artefact import artefacts, claims
from experiments.stick_breaking import stick_cost, stick_extrapolation, stick_recall, stick_remainder
from experiments.stick_breaking.stick_cost import by_reach, s5
from experiments.stick_breaking.stick_extrapolation import s1, s2, s3, s4, s6
from experiments.stick_breaking.stick_recall import s7
from experiments.stick_breaking.stick_remainder import s8
from results import measured
from results.store import read_run, record_run, run_file
from tests import synthetic

MODELS = ("stick_breaking", "transformer_llama", "fox_llama", "alibi")


def weight_rows(model, heads=2, length=32):
    distance = np.tile(np.arange(length), heads)
    weight = np.where(distance > 0, 0.5 ** distance.astype(float), 0.0) if model == "stick_breaking" else 1 / length
    return pd.DataFrame({"head": np.repeat(np.arange(heads), length), "distance": distance, "weight": weight})


def extrapolation(tmp_path, rises=None, offsets=None, models=MODELS, length=16 * 64, weights=weight_rows, noise=2e-3):
    """Flat losses up to the training length of 64 tokens, and from there on by `rises` higher."""
    store, rng = synthetic.Store(tmp_path, train_len=64), np.random.default_rng(0)
    shared = 0.3 * rng.normal(size=(48, 16))
    for model in models:
        loss = np.full(length, 3.0 + (offsets or {}).get(model, 0.0))
        loss[64:] += (rises or {"stick_breaking": -0.1, "transformer_llama": 0.5}).get(model, 0.0)
        mean, bands = synthetic.documents_of(loss, rng, shared, noise=noise)
        kinds = [("per_token_loss", synthetic.loss_rows(mean, bands)), ("equal_logits", weights(model))]
        store.add("stick_extrapolation", model, kinds)
    return store.study("stick_extrapolation")


def test_s1_is_not_measured(tmp_path):
    assert s1(extrapolation(tmp_path)).status is Status.NOT_MEASURED


def test_s2_to_s4_and_s6_hold_where_the_rows_meet_them(tmp_path):
    study = extrapolation(tmp_path)
    verdicts = [check(study) for check in (s2, s3, s4, s6)]
    assert [verdict.status for verdict in verdicts] == [Status.HOLDS] * 3 + [Status.BY_CONSTRUCTION]
    assert verdicts[0].decisive.estimate.effect == pytest.approx(-0.1 * 7 / 8, abs=5e-3)
    assert "From 64 to 512 tokens" in verdicts[0].sentence


@pytest.mark.parametrize(("check", "how"), [
    (s2, {"rises": {"stick_breaking": 0.1}}),
    (s3, {"rises": {"transformer_llama": -0.1}}),
    (s4, {"offsets": {"stick_breaking": 0.3}}),
    (s6, {"weights": lambda model: weight_rows("softmax")}),
])  # fmt: skip
def test_each_fails_where_it_is_spoilt(tmp_path, check, how):
    assert check(extrapolation(tmp_path, **how)).status is Status.FAILS


def test_what_is_missing_is_said(tmp_path):
    study = extrapolation(tmp_path / "a", models=("fox_llama",))
    for check in (s2, s3, s4, s6):
        assert check(study).status is Status.NOT_MEASURED
    short = extrapolation(tmp_path / "b", length=256)
    assert [check(short).status for check in (s2, s3)] == [Status.NOT_APPLICABLE] * 2


def recalled(tmp_path, accuracies, seeds=2):
    """accuracies[num_keys, model]: share of the queries of 200 sequences."""
    store, rng = synthetic.Store(tmp_path), np.random.default_rng(1)
    for (num_keys, model), share in accuracies.items():
        for seed in range(seeds):
            correct = rng.binomial(num_keys, share, size=200)
            rows = pd.DataFrame({"sequence": np.arange(200), "num_queries": num_keys, "num_correct": correct,
                                 "num_stale": (num_keys - correct) // 2})  # fmt: skip
            axes, name = {"num_keys": num_keys}, f"{num_keys} {model}"
            store.add("stick_recall", f"{num_keys} keys", [("recall", rows)], model=model, seed=seed, name=name, axes=axes)
    study = store.study("stick_recall")
    for record in study.runs.values():
        record["spec"]["data"]["recall"] = {"num_keys": 4, "num_assignments": 2, "num_queries": 2, "num_symbols": 16}
    return study


def test_s7_needs_every_size(tmp_path):
    good = {
        (4, "stick_breaking"): 0.95,
        (4, "transformer_llama"): 0.7,
        (8, "stick_breaking"): 0.9,
        (8, "transformer_llama"): 0.6,
    }
    verdict = s7(recalled(tmp_path / "a", good))
    assert verdict.status is Status.HOLDS and "4 keys 9" in verdict.sentence
    assert s7(recalled(tmp_path / "b", good | {(8, "stick_breaking"): 0.1})).status is Status.FAILS
    assert s7(recalled(tmp_path / "c", good | {(8, "stick_breaking"): 0.6})).status is Status.WITHIN_NOISE
    guessing = s7(recalled(tmp_path / "e", good | {(8, "transformer_llama"): 0.1}))
    assert guessing.status is Status.UNDECIDED and "has not learned the task with 8 keys" in guessing.sentence
    del good[8, "transformer_llama"]
    assert s7(recalled(tmp_path / "d", good)).status is Status.NOT_MEASURED


def test_each_model_is_told_of_at_its_best_rate(tmp_path):
    """The best rate differs by model and number of keys; of rates that answer as much the lowest is taken."""
    store = synthetic.Store(tmp_path)
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
    assert best["peak_lr"].to_dict() == {("stick_breaking", 4): 3e-4, ("stick_breaking", 8): 1e-3,
                                         ("transformer_llama", 4): 3e-3, ("transformer_llama", 8): 3e-4}  # fmt: skip
    assert best["correct"].tolist() == [1.0, 1.0, 0.75, 0.625]
    table = stick_recall.summary(study)
    assert [values[::2] for values in table.rows.values()] == [[75.0, 62.5], [100.0, 100.0]]
    said = "Each at the best of learning rates 0.0003, 0.001, 0.003: "
    assert f" {said}Transformer (LLaMA) 0.003, 0.0003; Stick-breaking 0.0003, 0.001." in table.note
    assert "best of" not in stick_recall.summary(recalled(tmp_path / "one", {(4, "stick_breaking"): 0.9})).note


def remainders(tmp_path, above):
    store, rng = synthetic.Store(tmp_path, train_len=64), np.random.default_rng(2)
    shared = 0.3 * rng.normal(size=(48, 16))
    for label, axes, loss in (("stick_breaking", {}, 3.0), (stick_remainder.WITH, {"stick_remainder": True}, 3.0 + above)):
        mean, bands = synthetic.documents_of(np.full(1024, loss), rng, shared, noise=2e-3)
        kinds = [("per_token_loss", synthetic.loss_rows(mean, bands))]
        store.add("stick_remainder", label, kinds, model="stick_breaking", axes=axes)
    return store.study("stick_remainder")


def test_s8_is_about_the_term(tmp_path):
    verdict = s8(remainders(tmp_path / "a", 0.1))
    assert verdict.status is Status.HOLDS and "at 64 tokens by +10.5%." in verdict.sentence  # e^0.1
    assert s8(remainders(tmp_path / "b", -0.1)).status is Status.FAILS
    assert s8(remainders(tmp_path / "c", 0.0)).status is Status.WITHIN_NOISE


def cost(tmp_path, factor=None):
    """Training steps, and kernel rows where `factor` is given: ours against FlashAttention-2, itself 1.5 times cuDNN; heads of
    64 take a tenth longer where sticks reach far."""
    store = synthetic.Store(tmp_path)
    for model in MODELS[:3]:
        row = synthetic.throughput_row(params=461_440, speed=9_000.0)
        store.add("stick_cost", model, [("throughput", row)], evaluation={"mode": "train"}, final_loss=None)
    if factor is not None:
        shapes = ((4, 4096, 12, 128), (2, 16384, 24, 64))
        times = {
            ("softmax cuDNN + RoPE", "any"): 1.0, ("softmax flash-2 + RoPE", "any"): 1.5, ("ours", "short"): 0.7 * factor,
            ("ours", "long"): 1.5 * factor, ("fla", "long"): 3.0,
        }  # fmt: skip
        rows = [
            dict(zip(measured.SCHEMAS["stick_breaking"].columns, ("today", provider, "forward+backward", logits, "bfloat16",
                                                                  *shape, ms, ms, ms, 1.0, 0.0), strict=True))
            for shape in shapes
            for (provider, logits), one in times.items()
            for ms in (1.1 * one if (shape[3], logits) == (64, "long") else one,)
        ]  # fmt: skip
        measured.add("stick_breaking", rows, "GPU", folder=tmp_path / measured.FOLDER.name)
    return store.study("stick_cost")


def test_times_of_two_gpus_are_not_mixed(tmp_path):
    """Those of the GPU with more rows are taken."""
    study, folder = cost(tmp_path, factor=1.2), tmp_path / measured.FOLDER.name
    rows = measured.read("stick_breaking", folder).drop(columns=["created", "commit", "gpu", "torch", "triton"])
    slower = rows[rows["provider"] != "fla"].assign(date="tomorrow", ms_q50=lambda rows: 9 * rows["ms_q50"] ** 2)
    measured.add("stick_breaking", slower.to_dict("records"), "another GPU", folder=folder)
    taken = stick_cost.kernel_times(study)
    assert set(taken["gpu"]) == {"GPU"} and set(taken["date"]) == {"today"} and len(taken) == len(rows)


def test_s5_reads_the_stored_kernel_times(tmp_path):
    assert s5(cost(tmp_path / "a")).status is Status.NOT_MEASURED
    verdict = s5(cost(tmp_path / "b", factor=1.2))
    assert verdict.status is Status.HOLDS and "to 1.32 times" in verdict.sentence
    assert "RoPE's, GPU, T 16384, D 64, long reach" in verdict.decisive.name, "which GPU, whatever else was timed at this scale"
    assert s5(cost(tmp_path / "c", factor=1.6)).status is Status.FAILS


def test_the_look_at_the_cost_tells_the_reaches_apart(tmp_path):
    text = by_reach(cost(tmp_path / "a", factor=1.6))
    assert "soon used up, 0.75 to 0.75 times FlashAttention-2's time" in text
    assert "never used up, 1.60 to 1.76 times FlashAttention-2's time, most at 16k tokens and head size 64." in text
    assert "1.00 times the tokens/s of Transformer (LLaMA)" in text
    assert by_reach(cost(tmp_path / "b")).startswith("No kernel times are stored.")


def test_speeds_of_untrained_weights_are_called_so_and_stand_beside_those_of_whole_trainings(tmp_path):
    """Softmax took 100 s in two starts for 1000 tokens with each seed; the third seed's sticks were on another device."""
    study = cost(tmp_path)
    assert "untrained weights" in stick_cost.summary(study).note and "Whole trainings" not in stick_cost.summary(study).note
    assert stick_cost.whole_trainings(study) == "" and "with untrained weights, as Stick-breaking begins" in by_reach(study)
    store, seconds = synthetic.Store(tmp_path), {("stick_breaking", seed): wall for seed, wall in enumerate((80, 125, 1))}
    seconds |= {("transformer_llama", seed): 100 for seed in range(3)} | {("fox_llama", 3): 1}
    for (model, seed), wall in seconds.items():
        store.add("stick_extrapolation", model, [("per_token_loss", synthetic.loss_rows(np.ones(256)))], seed=seed, name=model)
        line = store.study("stick_extrapolation").lines[-1]
        record = read_run(run_file(tmp_path, line.scale, line.run_id))
        halves = [{"tokens": 500, "wall_s": wall / 4}, {"tokens": 500, "wall_s": wall * 3 / 4}, None]
        place = "B" if (model, seed) == ("stick_breaking", 2) else "A"
        starts = [{**record["starts"][0], "device": place, "end": end, "date": str(at)} for at, end in enumerate(halves)]
        record_run(tmp_path, {**record, "starts": starts})
    said = stick_cost.whole_trainings(study)
    assert said == ("Whole trainings at tiny, which may have shared the device: Stick-breaking has 0.80 to 1.25 times the "
                    "tokens/s of Transformer (LLaMA), over 2 seeds")  # fmt: skip
    assert f" {said}. " in stick_cost.summary(study).note and by_reach(study).endswith(f" {said}.")


def test_every_claim_is_listed():
    assert sorted(claim for claim in claims() if claim.startswith("S")) == [f"S{number}" for number in range(1, 9)]


@pytest.mark.parametrize(("drawing", "make"), [
    (stick_extrapolation, extrapolation),
    (stick_recall, lambda path: recalled(path, {(n, m): 0.9 for n in (4, 8) for m in MODELS[:3]})),
    (stick_cost, lambda path: cost(path, 1.2)),
    (stick_cost, cost),
])  # fmt: skip
def test_figures_are_drawn(tmp_path, drawing, make):
    study = make(tmp_path)
    paths = drawing.draw(study)
    assert {path.suffix for path in paths} == {".png", ".pdf", ".csv"}
    with Image.open(next(path for path in paths if path.suffix == ".png")) as image:
        assert image.width > 700 and "scale: tiny" in image.info["Description"]
    assert drawing.summary(study).caption


def test_tables_are_drawn(tmp_path):
    study = remainders(tmp_path, 0.1)
    assert {path.suffix for path in artefacts()["stick_remainder"].draw(study)} == {".md", ".tex", ".csv"}
    rows = stick_remainder.summary(study).rows
    assert rows["with remainder"][0] > rows["stick_breaking"][0]
