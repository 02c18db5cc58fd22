"""Numbers of figures that the papers do not have, worked out by hand; stored rows are drawn by tests/experiments."""

import json
import math

import numpy as np
import pandas as pd
import pytest
from pydantic import TypeAdapter
from scipy import stats

from analysis.power_law import law_of
from analysis.statistics import Estimate
from beyond.figures import (
    gate_by_tokens,
    last_words,
    mqar,
    mqar_gates,
    output_gates,
    successors,
    successors_lr,
)
from experiments.recipes import model_spec
from experiments.scales import SCALES, get_scale
from models.spec import ModelSpec
from tests import synthetic
from tests.experiments.conftest import data_at
from tests.synthetic import Store

pytestmark = pytest.mark.usefixtures("pictures_of_a_dot")


def losses(folder, stem, by_line, train_len=64, seeds=3, **how):
    """Three seeds of 16 documents with a mean loss by (model, axes, scale)."""
    store, rng = Store(folder, train_len=train_len), np.random.default_rng(0)
    for (model, axes, scale), level in by_line.items():
        for seed in range(seeds):
            mean, bands = synthetic.documents_of(np.full(2 * train_len, level), rng, np.zeros((16, 16)), noise=1e-3)
            name, own = f"{model} {axes} {scale}", dict(axes)
            rows = [("per_token_loss", synthetic.loss_rows(mean, bands))]
            train = {key: value for key, value in own.items() if key in ("train_tokens", "peak_lr")}
            store.add(stem, name, rows, model=model, name=name, axes=own, scale=scale, seed=seed, train=train, **how)
    return store


def close(cells, wanted):
    return all((a is None) == (b is None) and (b is None or a == pytest.approx(b, abs=3e-3))
               for a, b in zip(cells, wanted, strict=True))  # fmt: skip


def recalled(folder, stem, lines):
    """Right answers of `keys` queries by (model, keys, axes), of two sequences, the first all wrong."""
    store = Store(folder)
    for (model, keys, axes), correct in lines.items():
        rows = pd.DataFrame({"sequence": [0, 1], "num_queries": keys, "num_correct": [0, correct], "num_stale": 0})
        own = dict(axes)
        pairs = {"pairs_first": True} if own.pop("pairs_first", True) else {}
        how = dict(data={"recall": {"num_symbols": 16} | pairs}, axes={"num_keys": keys} | own, name=f"{model} {keys} {axes}")
        train = {key: value for key, value in own.items() if key == "peak_lr"}
        store.add(stem, how["name"], [("recall", rows)], model=model, train=train, **how)
    return store.study(stem)


def test_recall_is_of_one_layout_and_by_how_gates_start(tmp_path):
    both = {("fox_pro", 16, ()): 4, ("mamba2", 16, (("pairs_first", False),)): 8}
    assert set(mqar.shares(recalled(tmp_path / "a", "mqar", both)).index.get_level_values("model")) == {"fox_pro"}
    starts = {("transformer_pro", 16, ()): 16, ("fox_pro", 16, ()): 2, ("fox_pro", 16, (("start", "long"),)): 8}
    rows = mqar_gates.summary(recalled(tmp_path / "c", "mqar_gates", starts)).rows
    names = ["transformer_pro", *(f"FoX (Pro), {mqar_gates.STARTS[start]}" for start in (None, "long"))]
    assert {name: row[0] for name, row in rows.items()} == dict(zip(names, (50.0, 6.25, 25.0), strict=True))


@pytest.mark.parametrize("scale", SCALES.values(), ids=SCALES)
def test_tokens_and_warm_up_are_shares_of_the_scales_own_in_whole_batches(scale):
    for recipe in gate_by_tokens.runs(scale, (0,)):
        train = recipe.run_spec(data_at(scale.name)).train
        share = train.train_tokens / scale.train_tokens
        assert share in (0.25, 0.5, 1, 2) and train.warmup_tokens == share * scale.warmup_tokens
        assert not train.train_tokens % scale.batch_tokens and not train.warmup_tokens % scale.batch_tokens


def test_a_law_is_numpys_weighted_line_and_foretells_as_it_says(tmp_path):
    """What four worths had foretold, with the errors of a line in logs; worths off the law widen it, and refute it."""
    x, y, errors = np.log([10, 30, 70, 500]), np.log([0.5, 0.31, 0.22, 0.09]), np.array([0.05, 0.02, 0.08, 0.1])
    worths = {
        round(np.exp(at)): Estimate(np.exp(log), error * np.exp(log), 5.0) for at, log, error in zip(x, y, errors, strict=True)
    }
    law, (line, covariance) = law_of(worths), np.polyfit(x, y, 1, w=1 / errors, cov="unscaled")
    far = np.array([math.log(7.5e9), 1.0])
    assert (-law.exponent.effect, law.log_at(7.5e9).effect) == pytest.approx((line[0], far @ line), rel=1e-9)
    assert law.exponent.error**2 == pytest.approx(covariance[0, 0], rel=1e-9)
    assert law.log_at(7.5e9).error ** 2 == pytest.approx(far @ covariance @ far, rel=1e-9)
    off = law_of({count: Estimate(math.exp(log), 0.1 * math.exp(log), 5.0) for count, log in ((1, 0.0), (2, 0.3), (4, 0.0))})
    assert off.chi2 == pytest.approx(6) and off.log_at(2).error == pytest.approx(6**0.5 * 0.1 / 3**0.5, rel=1e-9)
    assert off.p == pytest.approx(2 * stats.t.sf(6**0.5, 5), rel=1e-9), "F of one degree over five is the square of t"
    assert law_of({1: Estimate(0.4, 0.04), 2: Estimate(-0.1, 0.01)}) is None
    pairs = {"fox_pro": 0.0, "transformer_pro": 1.0}
    by_line = {(model, (("train_tokens", count * 10**6),), "tiny"): 3 + gap * sign
               for count, gap in ((40, 0.4), (80, 0.2), (160, 0.1)) for model, sign in pairs.items()}  # fmt: skip
    table = gate_by_tokens.summary(losses(tmp_path, "gate_by_tokens", by_line).study("gate_by_tokens"))
    place = [column.key for column in table.columns].index("pro_law")
    one, two, four, paper = table.rows.values()
    assert four[place] == pytest.approx(two[0] ** 2 / one[0]) and paper[place] == pytest.approx(0.1 * 160 / 7500, rel=0.1)


def test_last_words_are_shares_perplexities_and_leads(tmp_path):
    """Four words of two documents: given the passage FoX has three right, the Transformer one; given its end each one."""
    store, rule = Store(tmp_path), {"anywhere": False, "words": 200, "near": 20, "common": 500}
    for model, right, logp in (("fox_pro", [100.0, 100, 100, 0], -1.0), ("transformer_pro", [0.0, 0, 0, 100], -2.0)):
        rows = pd.DataFrame({"item": range(4), "document": [0, 0, 1, 1], "right": right, "logp": [logp, 3 * logp] * 2,
                             "right_near": [100.0, 0, 0, 0], "logp_near": [2 * logp, 4 * logp] * 2})  # fmt: skip
        store.add("last_words", model, [("last_words", rows)], evaluation=rule)
    found = last_words.points(store.study("last_words")).set_index(["panel", "model", "given"])["value"].to_dict()
    assert found["lead", "fox_pro", "passage"] == 50
    table = last_words.summary(store.study("last_words"))
    assert table.rows["fox_pro"] == pytest.approx([75, math.e**2, 25, math.e**3])
    assert table.rows["transformer_pro"] == pytest.approx([25, math.e**4, 25, math.e**6])


def test_output_gates_and_rates_stand_beside_fox(tmp_path):
    gates = {("fox_pro", "sigmoid"): 3.0, ("fox_pro", "silu"): 2.9, ("transformer_pro", "sigmoid"): 3.5,
             ("transformer_pro", "silu"): 3.1, ("gated_delta_net", "silu"): 3.2}  # fmt: skip
    by_line = {(model, (("output_gate", gate),), "tiny-short"): level for (model, gate), level in gates.items()}
    rows = output_gates.summary(losses(tmp_path / "a", "output_gates", by_line).study("output_gates")).rows
    wanted = ([3.0, 2.9, -0.1, None, None], [3.5, 3.1, -0.4, 0.5, 0.2], [None, 3.2, None, None, 0.3])
    assert all(map(close, rows.values(), wanted)) and len(rows) == 3
    rates = {"fox_pro": {0.004: 3.0, 0.008: 3.2}, "mamba2": {0.004: 3.5, 0.008: 3.1}, "alibi": {0.004: 3.4}}
    by_line = {(model, (("peak_lr", rate),), "tiny"): level for model, own in rates.items() for rate, level in own.items()}
    rows = successors_lr.summary(losses(tmp_path / "c", "successors_lr", by_line).study("successors_lr")).rows
    wanted = {"FoX (Pro)": [3.0, 3.2, 0.004, None], "ALiBi (LLaMA)": [3.4, None, 0.004, 0.4], "Mamba-2": [3.5, 3.1, 0.008, 0.1]}
    assert all(close(rows[name], cells) for name, cells in wanted.items())


def test_successors_are_ranked_with_the_numbers_that_the_trained_spec_keeps(tmp_path):
    scale, store = get_scale("tiny"), None
    for model, level in {"mamba2": 3.2, "fox_pro": 3.0, "gated_delta_net": 3.1}.items():
        spec = json.loads(TypeAdapter(ModelSpec).dump_json(model_spec(model, scale, 512, {})))
        more = losses(tmp_path, "successors", {(model, (), "tiny"): level}, seeds=2, spec=spec)
        store = more if store is None else store
        store.lines["successors"] += more.lines["successors"] if more is not store else []
    table = successors.summary(store.study("successors"))
    assert list(table.rows) == ["FoX (Pro)", "Gated DeltaNet", "Mamba-2"]
    assert [row[1] for row in list(table.rows.values())[1:]] == pytest.approx([0.1, 0.2], abs=0.01)
    assert table.rows["Gated DeltaNet"][4] * 1e6 == pytest.approx(scale.num_layers * scale.hidden_size * (64 + 2 * 4))
    assert table.rows["FoX (Pro)"][4] * 1e6 > 2 * scale.num_layers * scale.hidden_size * successors.DECODED
