"""C24, C25, C25b, C27 to C30: on the paper's numbers where it prints them, on made-up rows elsewhere."""

import numpy as np
import pandas as pd
import pytest
import synthetic

from analysis.fox import claims_scale
from analysis.fox.claims_scale import at_longer_contexts, c24, c25, c25b, c27, c28, c29, c30, c31, rates_tried, with_more_tokens
from analysis.paper import paper_scores
from analysis.verdict import Status
from results import measured

FLOPS = {
    "fox_pro": 2726843520.0, "transformer_pro": 2723309568.0, "fox_llama": 2723224704.0, "transformer_llama": 2721454080.0,
    "mamba2": 1654599168.0, "hgrn2": 1537234944.0, "delta_net": 1543581696.0,
}  # fmt: skip


def timed(tmp_path, changes=None, spread=0.0, models=synthetic.SEVEN):
    printed = paper_scores("table6_throughput", "760m-48b")
    store = synthetic.Store(tmp_path, "760m-48b", 16_384)
    for model in models:
        line = printed[model]
        how = dict(params=int(line["params_millions"] * 1e6), speed=line["throughput_tokens_per_s"], flops=FLOPS[model])
        row = synthetic.throughput_row(**how | (changes or {}).get(model, {}), spread=spread)
        store.add("table6_throughput", model, [("throughput", row)], evaluation={"mode": "train"}, final_loss=None)
    return store.study("table6_throughput")


def test_c27_to_c30_hold_on_the_papers_numbers(tmp_path):
    study = timed(tmp_path)
    verdicts = [claim.predicate(study) for claim in claims_scale.CLAIMS[3:7]]
    assert [claim.id for claim in claims_scale.CLAIMS[3:7]] == ["C27", "C28", "C29", "C30"]
    assert [verdict.status for verdict in verdicts] == [Status.HOLDS] * 4
    assert "FoX (Pro) has 0.26% more parameters than Transformer (Pro)" in verdicts[0].sentence
    assert "0.90 of Transformer (Pro)'s speed" in verdicts[3].sentence


@pytest.mark.parametrize(("check", "changes"), [
    (c27, {"fox_pro": {"params": 760_000_000}}),
    (c28, {"fox_llama": {"flops": 2.75e9}}),
    (c29, {"delta_net": {"speed": 45_000.0}}),
    (c29, {"fox_pro": {"speed": 31_000.0}}),
    (c30, {"fox_pro": {"speed": 25_000.0}}),
])  # fmt: skip
def test_each_fails_where_it_is_spoilt(tmp_path, check, changes):
    assert check(timed(tmp_path, changes)).status is Status.FAILS


def test_speeds_whose_ranges_cover_the_difference_are_not_ranked(tmp_path):
    assert c29(timed(tmp_path / "a", spread=0.005)).status is Status.HOLDS
    assert c29(timed(tmp_path / "b", spread=0.03)).status is Status.WITHIN_NOISE
    assert c30(timed(tmp_path / "c", spread=0.1)).status is Status.WITHIN_NOISE


def test_all_timed_models_are_needed(tmp_path):
    study = timed(tmp_path, models=("fox_pro", "transformer_pro"))
    assert [check(study).status for check in (c27, c28, c29)] == [Status.NOT_MEASURED] * 3
    assert c30(study).status is Status.HOLDS


def test_the_look_at_longer_contexts_counts_pairs_timed_at_both(tmp_path):
    study = timed(
        tmp_path, {"delta_net": {"speed": 20_000.0}}, models=("delta_net", "mamba2", "transformer_llama", "fox_llama")
    )
    assert "No steps with a longer context are stored" in at_longer_contexts(study)
    setting = dict(scale="760m-48b", gpus=1, seq_len=65_536, sequences_per_gpu=1, micro_batches=1, parallel="", compile=True,
                   activation_checkpointing=False, gates="fresh", prune=False)  # fmt: skip
    rest = dict.fromkeys(set(measured.SCHEMAS["training_steps"].columns) - set(setting) - {"model"}, 1.0)
    speeds = {"hgrn2": 5.0, "mamba2": 4.0, "transformer_llama": 3.0, "fox_llama": 2.0}
    rows = [{**rest, **setting, "model": model, "tokens_per_s": 1000 * speed} for model, speed in speeds.items()]
    rows += [{**row, "seq_len": 4096, "tokens_per_s": 99_000.0} for row in [*rows, rows[0] | {"model": "delta_net"}]]
    rows.append({**rows[0], "model": "fox_pro", "prune": True})
    measured.add("training_steps", rows, "GPU", folder=tmp_path / measured.FOLDER.name)
    text = at_longer_contexts(study)
    assert text.startswith("Steps of one sequence of 64k tokens at 760m-48b on GPU: HGRN2 5,000, Mamba-2 4,000, ")
    assert "FoX (LLaMA) 2,000 tokens/s" in text
    assert "Of the claim's 2 pairs that were timed at both, 2 are in its order there, 2 at 16k tokens here." in text
    slow = timed(tmp_path, {"mamba2": {"speed": 9_000.0}}, models=("delta_net", "mamba2", "transformer_llama", "fox_llama"))
    assert "2 are in its order there, 1 at 16k tokens here: the order comes with the context" in at_longer_contexts(slow)


def add(store, stem, label, model, loss, rng, *, train=None, kinds=(), noise=1e-3):
    mean, bands = synthetic.documents_of(np.asarray(loss, float), rng, np.zeros((32, 16)), noise=noise)
    rows = synthetic.loss_rows(mean, bands)
    store.add(stem, label, [("per_token_loss", rows), *kinds], model=model, train=train, name=f"{model}/{label}")


def tokens_study(tmp_path, runs, recall=None):
    """Figure 5: (tokens, loss inside, loss beyond) of FoX (Pro)."""
    store, rng = synthetic.Store(tmp_path, train_len=64), np.random.default_rng(0)
    for place, (count, inside, beyond) in enumerate(runs):
        loss = np.repeat([inside, beyond], [64, 192])
        how = dict(train_len=64, lengths=(32, 96, 128), modes=("easy",))
        kinds = [] if recall is None else [("needle_recall", synthetic.recall_rows(rng, recall[place], **how))]
        train = {"train_tokens": count, "peak_lr": 1e-3}
        add(store, "fig5_tokens_and_lr", f"{count} tokens", "fox_pro", loss, rng, train=train, kinds=kinds)
    return store.study("fig5_tokens_and_lr")


def test_c24_holds_if_more_tokens_help_inside_and_hurt_beyond(tmp_path):
    verdict = c24(tokens_study(tmp_path / "a", [(1000, 3.0, 3.0), (2000, 2.9, 3.1), (4000, 2.8, 2.9)]))
    assert verdict.status is Status.HOLDS
    assert verdict.decisive.name.startswith("2000 tokens minus 1000 tokens")
    assert c24(tokens_study(tmp_path / "b", [(1000, 3.0, 3.0), (2000, 2.9, 2.9)])).status is Status.FAILS
    assert c24(tokens_study(tmp_path / "c", [(1000, 3.0, 3.0), (2000, 3.1, 3.1)])).status is Status.FAILS
    assert c24(tokens_study(tmp_path / "d", [(1000, 3.0, 3.0)])).status is Status.NOT_MEASURED


def test_c24_takes_needles_that_are_lost_beyond_for_worse(tmp_path):
    runs = [(1000, 3.0, 3.0), (2000, 2.9, 2.9)]
    assert c24(tokens_study(tmp_path / "a", runs, recall=(9.0, 3.0))).status is Status.HOLDS
    assert c24(tokens_study(tmp_path / "b", runs, recall=(3.0, 9.0))).status is Status.FAILS


def test_the_look_into_c24_says_what_more_tokens_do_beyond(tmp_path):
    def said(name, *runs):
        return with_more_tokens(tokens_study(tmp_path / name, runs))

    text = said("a", (1_000_000, 3.0, 3.5), (2_000_000, 2.9, 3.2))
    assert (
        text.startswith("At LR 0.001, 2 times the tokens (2M) change the loss by −0.1")
        and "beyond it, which still falls" in text
    )
    assert "which rises with tokens" in said("b", (1_000_000, 3.0, 3.2), (2_000_000, 2.9, 3.5))
    assert "which does not clearly change" in said("c", (1_000_000, 3.0, 3.2), (2_000_000, 2.9, 3.2))
    assert said("d", (1_000_000, 3.0, 3.2)).startswith("Cannot be told")
    easy = with_more_tokens(tokens_study(tmp_path / "e", [(1_000_000, 3.0, 3.2), (2_000_000, 2.9, 3.1)], recall=(3.0, 9.0)))
    assert " Easy needles beyond it change by +1.7" in easy and "Easy" not in text


def scale_study(tmp_path, leads, panel, noise=1e-3):
    """Figure 6: FoX's lead by value of a panel."""
    store, rng = synthetic.Store(tmp_path), np.random.default_rng(0)
    for place, (value, gap) in enumerate(leads.items()):
        train_len = 64 * 2**place if panel == "context" else 64
        for model in ("fox_pro", "transformer_pro"):
            loss = np.full(4 * train_len, 3.0 + (gap if model == "transformer_pro" else 0.0))
            loss[: train_len // 2] -= 5 * place * (model == "transformer_pro")  # only the last quarter counts
            add(store, "fig6_scale", f"{panel} {value}", model, loss, rng, train={"seq_len": train_len}, noise=noise)
    return store.study("fig6_scale")


def test_c25_asks_for_a_lead_that_grows_with_every_context(tmp_path):
    assert c25(scale_study(tmp_path / "a", {"1k": 0.02, "4k": 0.04, "16k": 0.06}, "context")).status is Status.HOLDS
    assert c25(scale_study(tmp_path / "b", {"1k": 0.02, "4k": 0.06, "16k": 0.04}, "context")).status is Status.FAILS
    assert c25(scale_study(tmp_path / "c", {"1k": 0.02, "4k": 0.02}, "context")).status is Status.WITHIN_NOISE
    assert c25(scale_study(tmp_path / "d", {"1k": 0.02}, "context")).status is Status.NOT_MEASURED


def test_c25b_asks_for_a_lead_at_every_size(tmp_path):
    study = scale_study(tmp_path / "a", {"25M": 0.03, "50M": 0.02}, "size")
    assert c25b(study).status is Status.HOLDS
    assert c25(study).status is Status.NOT_MEASURED
    assert c25b(scale_study(tmp_path / "b", {"25M": 0.03, "50M": -0.02}, "size")).status is Status.FAILS
    assert c25b(scale_study(tmp_path / "c", {"25M": 0.03}, "size")).status is Status.NOT_MEASURED


def steps(spiky):
    """A training's curve of 200 steps: large gradients in warm-up, and in every tenth step after it where it is `spiky`."""
    norm = np.full(200, 0.2)
    norm[:20] = 5.0
    norm[30::10] = 2.0 if spiky else 0.25
    return pd.DataFrame({"step": np.arange(1, 201), "tokens": 10 * np.arange(1, 201), "loss": 3.0, "grad_norm": norm})


def tried(tmp_path, best, noise=0.01, models=("fox_pro", "transformer_pro", "fox_llama", "transformer_llama"), spiky=None):
    """Losses at five rates with the lowest at the best one of each model, 0.05 nats a step away; curves of the trainings if
    `spiky` says which (model, rate) have spikes."""
    store, rng = synthetic.Store(tmp_path), np.random.default_rng(0)
    rates = (2.5e-4, 5e-4, 1e-3, 2e-3, 4e-3)
    for model in models:
        for rate in rates:
            loss = synthetic.curve(model, 256, 256) + 0.05 * abs(np.log2(rate / best[model]))
            mean, bands = synthetic.documents_of(loss, rng, np.zeros((64, 16)), noise=noise)
            kinds = [("per_token_loss", synthetic.loss_rows(mean, bands))]
            kinds += [] if spiky is None else [("training_curve", steps((model, rate) in spiky))]
            train = {"peak_lr": rate, "warmup_tokens": 200}
            store.add("table_lr_grid", f"{model}, LR {rate:g}", kinds, model=model, train=train)
    return store.study("table_lr_grid")


TABLE_5 = {"fox_pro": 2e-3, "transformer_pro": 1e-3, "fox_llama": 1e-3, "transformer_llama": 5e-4}


def test_c31_holds_where_the_rates_of_table_5_are_best(tmp_path):
    verdict = c31(tried(tmp_path, TABLE_5))
    assert verdict.status is Status.HOLDS and len(verdict.comparisons) == 4
    assert "FoX (Pro) 0.002, Transformer (Pro) 0.001" in verdict.sentence


@pytest.mark.parametrize("change", [{"fox_pro": 1e-3}, {"transformer_pro": 2e-3}, {"fox_llama": 5e-4}])
def test_c31_fails_where_one_rate_is_not_twice_another(tmp_path, change):
    assert c31(tried(tmp_path, TABLE_5 | change)).status is Status.FAILS


def test_c31_needs_rates_on_both_sides_and_sees_noise(tmp_path):
    assert c31(tried(tmp_path / "a", TABLE_5, noise=1.0)).status is Status.WITHIN_NOISE
    verdict = c31(tried(tmp_path / "b", TABLE_5 | {"transformer_pro": 4e-3}, models=("fox_pro", "transformer_pro")))
    assert verdict.status is Status.NOT_MEASURED and "rates of 0.008 and more" in verdict.sentence


def test_the_look_into_c31_says_where_best_rates_lie_and_whether_high_ones_were_unstable(tmp_path):
    text = rates_tried(tried(tmp_path / "a", TABLE_5, spiky={("fox_llama", 4e-3)}))
    assert "FoX (Pro) at 0.002 of 0.00025 to 0.004; Transformer (Pro) at 0.001" in text and "At the edge" not in text
    assert "FoX (LLaMA) 9.4% at 0.004, 0.0% at 0.001 (unstable)" in text
    assert "FoX (Pro) 0.0% at 0.004, 0.0% at 0.002 (not unstable)" in text
    text = rates_tried(tried(tmp_path / "b", TABLE_5 | {"fox_pro": 4e-3, "fox_llama": 2.5e-4}))
    assert (
        "(cannot be told from" not in text and "a better one may lie beyond: FoX (Pro) (highest), FoX (LLaMA) (lowest)." in text
    )
    unknown = "Transformer (Pro) at 0.004, FoX (LLaMA) at 0.004, Transformer (LLaMA) at 0.004"
    assert f"not stored for {unknown}: whether these rates were unstable cannot be told" in text
    assert "(cannot be told from 0" in rates_tried(tried(tmp_path / "c", TABLE_5, noise=2.0))
