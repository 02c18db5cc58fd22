"""A1 to A8: on the paper's numbers where it prints them, on made-up rows with known effects elsewhere."""

import math
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest

from analysis.harness import ACCURACIES, PERPLEXITIES
from analysis.paper import paper_scores
from analysis.pruning import skipped
from analysis.verdict import Status, judge
from experiments.acp import acp_pruned_share, acp_speed
from experiments.acp.acp_pruned_share import a1, a7, a8
from experiments.acp.acp_quality import LOSS_MARGIN, a6
from experiments.acp.acp_speed import a3, a4, a5, share_of_the_step, time_and_tiles
from experiments.acp.acp_tiles import chosen, grid
from tests import synthetic

CONTEXTS = (4096, 8192, 16384)
SPREAD = [0.95] * 4 + [0.7] * 4 + [0.2] * 2
"""Shares of ten heads: 70% in all."""


def shares(tmp_path, by_context=None, speeds=None, machine="Synthetic GPU", **how):
    """Return what is skipped at every context (the same at all, but for `by_context`), and times."""
    store = synthetic.Store(tmp_path, "760m-16b", 16_384)
    for place, context in enumerate(CONTEXTS):
        own = (by_context or {}).get(context, [share - 0.03 * (2 - place) for share in SPREAD])
        kinds = [("pruning", synthetic.pruning_rows(own, **{"noise": 0.01} | how))]
        times = (speeds or {}).get(context, {"attention_forward": 0.4, "attention": 0.45 - 0.05 * place, "step": 0.8})
        kinds.append(("attention_speed", synthetic.speed_rows(times, machine=machine)))
        spec = {"context_len": context, "tile": 128, "log_tolerance": -10.0}
        axes = {"pruning": "pruned", "context": context}
        store.add(
            "acp", f"pruned, context {context}", kinds, model="fox_pro", train={"seq_len": context}, evaluation=spec, axes=axes
        )
    return store.study("acp")


def test_all_hold_with_the_effects_of_the_paper(tmp_path):
    study = shares(tmp_path, by_context={16384: [*SPREAD] * 10})
    found = judge((*acp_pruned_share.CLAIMS, *acp_speed.CLAIMS), study)
    statuses = {claim.id: verdict.status for claim, verdict in found}
    assert statuses == {f"A{n}": Status.HOLDS for n in (1, 3, 4, 5, 8)} | {"A7": Status.BY_CONSTRUCTION}


@pytest.mark.parametrize(("check", "change"), [
    (a1, dict(by_context={4096: [0.3] * 10})),
    (a3, dict(speeds={8192: {"attention_forward": 1.0, "attention": 0.8, "step": 0.9}})),
    (a4, dict(speeds={8192: {"attention_forward": 1.0, "attention": 0.8, "step": 0.99}})),
    (a5, dict(by_context={16384: [0.6] * 10})),
    (a5, dict(speeds={16384: {"attention_forward": 0.4, "attention": 0.49, "step": 0.8}})),
    (a7, dict(dropped=1e-4)),
    (a8, dict(by_context={16384: [0.7] * 20})),
])  # fmt: skip
def test_each_fails_where_it_is_spoilt(tmp_path, check, change):
    assert check(shares(tmp_path, **change)).status is Status.FAILS


def test_more_than_the_paper_says_exceeds(tmp_path):
    assert a1(shares(tmp_path / "a", by_context={16384: [0.95] * 10})).status is Status.EXCEEDS
    times = {"attention_forward": 0.2, "attention": 0.2, "step": 0.5}
    fast = shares(tmp_path / "b", speeds={16384: times})
    assert a3(fast).status is a4(fast).status is Status.EXCEEDS
    slow = {"attention_forward": 1.0, "attention": 0.8, "step": 0.99}
    both = shares(tmp_path / "c", speeds={8192: slow, 16384: times})
    assert a3(both).status is a4(both).status is Status.FAILS


def test_a_line_of_the_table_by_hand(monkeypatch):
    """Four heads, two documents, two seeds."""
    losses = {"loss": [3.0, 3.0], "loss_pruned": [3 + 2e-6, 3 + 4e-6], "decoded_loss": [2.9, 2.9]}
    each = SimpleNamespace(
        context=200, mean_H=np.array([0.95, 0.9, 0.5, 0.05]), share_SD=np.array([[0.5, 0.7], [0.2, 0.2]]),
        losses=pd.DataFrame(losses | {"decoded_loss_pruned": [2.9 - 1e-6, 2.9 - 3e-6]}), log_tolerance=math.log(4e-6),
        by_head=pd.DataFrame({"keys_read": [10.0, 20.0, 30.0, 20.0], "dropped": [1e-6, 2e-6, 0.0, 1e-6]}),
    )  # fmt: skip
    for name, found in (("skipped", [each]), ("about", ""), ("tile_note", "")):
        monkeypatch.setattr(acp_pruned_share, name, lambda given, found=found: found)
    monkeypatch.setattr(acp_pruned_share, "over_seeds", lambda title, columns, values, note: values)
    share, *rest = acp_pruned_share.summary(None)["context 200"]
    assert share.tolist() == pytest.approx([60, 20]) and rest == pytest.approx([25, 25, 10, 3, -2, 0.5])


def test_a_few_heads_are_no_share_of_heads(tmp_path):
    assert a8(shares(tmp_path)).status is Status.WITHIN_NOISE


def test_a_share_of_heads_has_wilsons_interval():
    """None of four heads: z^2 / (n + z^2) = 3.8415 / 7.8415."""
    none = acp_pruned_share._share_of(np.zeros(4, bool), 1)
    assert none.interval == pytest.approx((0, 0.4899), abs=1e-4) and none.seeds == 1


def test_times_of_a_cpu_say_nothing_of_the_kernels(tmp_path):
    study = shares(tmp_path, machine="Some CPU, 2 cores")
    assert a3(study).status is a4(study).status is Status.NOT_APPLICABLE
    verdict = a5(study)
    assert verdict.status is Status.NOT_MEASURED and "times on a GPU" in verdict.sentence


def test_noise_between_documents_is_noise(tmp_path):
    quiet, loud = (shares(tmp_path / name, noise=noise) for name, noise in (("a", 0.01), ("b", 0.3)))
    assert a1(quiet).status is Status.HOLDS
    assert a1(loud).status is Status.WITHIN_NOISE


def quality(tmp_path, scores=None, loss_change=0.0, noise=0.01, scale="760m-16b", include="harness"):
    """The paper's table, with equal losses but for `loss_change` of the pruned ones."""
    store, rng = synthetic.Store(tmp_path, scale, 16_384), np.random.default_rng(0)
    columns = PERPLEXITIES | ACCURACIES
    for label, line in (scores or paper_scores("acp_quality", "760m-16b")).items():
        length = 1024
        loss = synthetic.curve("fox_pro", length, length) + (0.0 if label.startswith("un") else loss_change)
        mean, bands = synthetic.documents_of(loss, rng, np.zeros((64, 16)), noise=noise)
        kinds = [("per_token_loss", synthetic.loss_rows(mean, bands)), ("lm_eval", synthetic.lm_eval_rows(line, columns))]
        rule, context = label.split(", context ")
        axes = {"pruning": rule, "context": int(context)}
        store.add(
            "acp_quality", label, kinds, model="fox_pro", train={"seq_len": length}, evaluation={"include": include}, axes=axes
        )
    return store.study("acp_quality")


def test_a6_holds_on_the_papers_numbers(tmp_path):
    verdict = a6(quality(tmp_path))
    assert verdict.status is Status.HOLDS
    assert len(verdict.comparisons) == 2 * 3 * 3  # loss, Wikitext and average at three contexts, on both sides


@pytest.mark.parametrize(("loss_change", "noise", "status"), [
    (1.5 * LOSS_MARGIN, 0.01, Status.FAILS), (-1.5 * LOSS_MARGIN, 0.01, Status.FAILS), (0.0, 0.5, Status.WITHIN_NOISE),
])  # fmt: skip
def test_a6_is_an_equivalence(tmp_path, loss_change, noise, status):
    """A difference that cannot be seen is not a proof of none."""
    assert a6(quality(tmp_path, loss_change=loss_change, noise=noise)).status is status


def test_a6_fails_on_other_scores_and_is_not_measured_on_stand_ins(tmp_path):
    scores = {label: dict(line) for label, line in paper_scores("acp_quality", "760m-16b").items()}
    scores["pruned, context 8192"]["wikitext_ppl"] += 0.6
    assert a6(quality(tmp_path / "a", scores)).status is Status.FAILS
    verdict = a6(quality(tmp_path / "b", include="local-1 feed"))
    assert verdict.status is Status.NOT_MEASURED and "stand-ins" in verdict.sentence


def test_tiles_are_computed_from_the_first_one_on(tmp_path):
    assert grid(np.array([0, 0, 1, 1])).tolist() == [[2, 0, 0, 0], [2, 2, 0, 0], [1, 2, 2, 0], [1, 2, 2, 2]]
    each = skipped(shares(tmp_path, noise=0.0))[-1]
    least, middle, most = (each.by_head["tiles_pruned"][head] for head in chosen(each))
    assert (least, middle, most) == pytest.approx((0.2, 0.7, 0.95))
    assert each.by_head["keys_read"].iloc[0] == pytest.approx(512 * 0.05) and math.isclose(each.share.effect, 0.7)


def timed(tmp_path, kept, attention, whole=(10.0, 100.0, 1000.0), step=None):
    """Shares of tiles and of attention's time by context, of times without pruning; `step`: (its own, with pruning)."""
    store = synthetic.Store(tmp_path, "760m-16b", 16_384)
    for place, context in enumerate(CONTEXTS):
        rows = synthetic.speed_rows({"attention_forward": 0.4, "attention": attention[place], "step": 0.8})
        rows.loc[rows["quantity"] == "attention", ["milliseconds"]] *= whole[place] / 100
        for pruned, value in enumerate((step or {}).get(place, ())):
            rows.loc[(rows["quantity"] == "step") & (rows["pruned"] == pruned), ["milliseconds"]] = value
        kinds = [("pruning", synthetic.pruning_rows([1 - kept[place]] * 4)), ("attention_speed", rows)]
        spec = {"context_len": context, "tile": 128, "log_tolerance": -10.0}
        axes = {"pruning": "pruned", "context": context}
        store.add("acp_speed", f"pruned, context {context}", kinds, model="fox_pro", evaluation=spec, axes=axes)
    return store.study("acp_speed")


def test_the_look_into_a3_tells_a_cost_per_call_from_a_cost_per_tile(tmp_path):
    per_call = time_and_tiles(timed(tmp_path / "a", (0.25, 0.25, 0.2), (0.75, 0.3, 0.205)))  # 5 ms on top
    assert "4k 0.25 and 0.75, 8k 0.25 and 0.30, 16k 0.20 and 0.20" in per_call
    assert "5.0, 5.0, 5.0 ms, while attention's work grows 100.0 times" in per_call
    assert "time follows the tiles apart from what looks like a constant cost per call, which is too large at 4k." in per_call
    assert per_call.endswith("At 16k more is skipped than the claim allows for.")
    per_tile = time_and_tiles(timed(tmp_path / "b", (0.4, 0.4, 0.4), (0.75, 0.75, 0.75)))
    assert "time does not follow the tiles" in per_tile and "more is skipped" not in per_tile
    for folder, last, follows in (("c", 0.245, True), ("d", 0.255, False)):  # 5 and 5 ms, then 45 or 55: ten times is the root
        told = time_and_tiles(timed(tmp_path / folder, (0.25, 0.25, 0.2), (0.75, 0.3, last)))
        assert ("time follows the tiles" in told) is follows, told


def test_the_look_into_a4_sets_what_attention_saves_beside_the_steps_gain(tmp_path):
    whole, attention = (40.0, 40.0, 80.0), (0.5, 0.5, 0.1)
    text = share_of_the_step(timed(tmp_path / "a", (0.3,) * 3, attention, whole, {0: (100, 80), 1: (100, 60), 2: (100, 28)}))
    assert "4k 40%, 1.25 to 1.39, 1.25, 1.25; 8k 40%, 1.25 to 1.39, 1.25, 1.67; 16k 80%, 1.67 to 2.27, 3.57, 3.57." in text
    assert "Attention's savings explain it except at 8k. At 16k attention's share is so large that 1.4 is exceeded." in text
    text = share_of_the_step(timed(tmp_path / "b", (0.3,) * 3, (0.5,) * 3, whole, dict.fromkeys(range(3), (100, 100))))
    assert text.endswith("Attention's savings do not explain the throughput.")
