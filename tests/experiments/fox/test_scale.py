"""C24, C25, C25b and C31 on made-up rows."""

import math
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest

from analysis.names import SEVEN
from analysis.verdict import Status
from experiments.fox import fig6_scale
from experiments.fox.fig5_tokens_and_lr import c24, with_more_tokens
from experiments.fox.fig6_scale import c25, c25b, panels_of
from experiments.fox.table_lr_grid import _spikes, c31, rates_of, rates_tried
from experiments.scales import get_scale
from tests import synthetic
from tests.experiments.conftest import data_at


def add(store, stem, label, model, loss, rng, *, axes, train=None, kinds=(), noise=1e-3):
    mean, bands = synthetic.documents_of(np.asarray(loss, float), rng, np.zeros((32, 16)), noise=noise)
    rows = synthetic.loss_rows(mean, bands)
    store.add(stem, label, [("per_token_loss", rows), *kinds], model=model, train=train, name=f"{model}/{label}", axes=axes)


def tokens_study(tmp_path, runs, recall=None):
    """Figure 5: (tokens, loss inside, loss beyond) of FoX (Pro)."""
    store, rng = synthetic.Store(tmp_path, train_len=64), np.random.default_rng(0)
    for place, (count, inside, beyond) in enumerate(runs):
        loss = np.repeat([inside, beyond], [64, 192])
        how = dict(train_len=64, lengths=(32, 96, 128), modes=("easy",))
        kinds = [] if recall is None else [("needle_recall", synthetic.recall_rows(rng, recall[place], **how))]
        train = {"train_tokens": count, "peak_lr": 1e-3}
        add(store, "fig5_tokens_and_lr", f"{count} tokens", "fox_pro", loss, rng, axes=train, train=train, kinds=kinds)
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
    assert said("d", (1_000_000, 3.0, 3.2)).startswith("Unknown: at no rate")
    easy = with_more_tokens(tokens_study(tmp_path / "e", [(1_000_000, 3.0, 3.2), (2_000_000, 2.9, 3.1)], recall=(3.0, 9.0)))
    assert " Easy needles beyond it change by +1.7" in easy and "Easy" not in text


def scale_study(tmp_path, leads, panel, noise=1e-3, sequences=8, piece_len=None):
    """Figure 6: FoX's lead by value of a panel. `sequences`: of a step; None: as many as 1,024 tokens have, cut from pieces of
    `piece_len`."""
    store, rng = synthetic.Store(tmp_path), np.random.default_rng(0)
    for place, (value, gap) in enumerate(leads.items()):
        train_len = 64 * 2**place if panel == "context" else 64
        for model in ("fox_pro", "transformer_pro"):
            loss = np.full(4 * train_len, 3.0 + (gap if model == "transformer_pro" else 0.0))
            loss[: train_len // 2] -= 5 * place * (model == "transformer_pro")  # only the last quarter counts
            how = dict(
                axes={"varied": panel, "value": value},
                train={"seq_len": train_len, "batch_tokens": sequences * train_len if sequences else 1024}
                | ({"piece_len": piece_len} if piece_len and train_len < piece_len else {}),
                noise=noise,
            )
            add(store, "fig6_scale", f"{panel} {value}", model, loss, rng, **how)
    return store.study("fig6_scale")


@pytest.mark.parametrize(
    ("panel", "values", "printed"),
    [("context", (512, 16_384), ["512", "16k"]), ("tokens", (83_886_080, 262_144), ["83.9M", "0.262M"])],
)
def test_what_is_varied_is_printed_as_axes_and_pages_print_it(tmp_path, panel, values, printed):
    assert list(panels_of(scale_study(tmp_path, dict.fromkeys(values, 0.1), panel))[panel]) == printed


def test_c25_asks_for_a_lead_that_grows_with_every_context(tmp_path):
    assert c25(scale_study(tmp_path / "a", {"1k": 0.02, "4k": 0.04, "16k": 0.06}, "context")).status is Status.HOLDS
    assert c25(scale_study(tmp_path / "b", {"1k": 0.02, "4k": 0.06, "16k": 0.04}, "context")).status is Status.FAILS
    assert c25(scale_study(tmp_path / "c", {"1k": 0.02, "4k": 0.02}, "context")).status is Status.WITHIN_NOISE
    assert c25(scale_study(tmp_path / "d", {"1k": 0.02}, "context")).status is Status.NOT_MEASURED


def test_c25_cannot_tell_context_from_sequences_a_step(tmp_path):
    leads = {"1k": 0.02, "4k": 0.04, "16k": 0.06}
    verdict = c25(scale_study(tmp_path / "a", leads, "context", sequences=None))
    assert verdict.status is Status.UNDECIDED
    assert "Steps have 16, 8, 4 sequences" in verdict.sentence
    cut = c25(scale_study(tmp_path / "c", leads, "context", sequences=None, piece_len=256))
    assert cut.status is Status.HOLDS, "the same text in every step"
    shrinking = {"1k": 0.06, "4k": 0.04}
    assert c25(scale_study(tmp_path / "b", shrinking, "context", sequences=None)).status is Status.FAILS


def test_contexts_are_trained_on_the_same_text_in_every_step():
    found = {(recipe.name, recipe.axes["value"]): recipe for recipe in fig6_scale.runs(get_scale("mini"), (0,))
             if recipe.axes["varied"] == "context"}  # fmt: skip
    assert {value for _, value in found} == {1024, 4096, 16384} and len(found) == 6
    for (_, value), recipe in found.items():
        train = recipe.run_spec(data_at("mini")).train
        assert (train.seq_len, train.piece, train.batch_tokens) == (value, 16384, 2**17)
        assert (train.piece_len is None) == (value == 16384), "the longest is the run that other figures have"


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
            axes = {"peak_lr": rate}
            store.add(
                "table_lr_grid", f"{model}, LR {rate:g}", kinds, model=model, train=axes | {"warmup_tokens": 200}, axes=axes
            )
    return store.study("table_lr_grid")


def test_recurrent_models_are_tried_at_as_many_rates_as_fox():
    for scale in (get_scale("tiny"), get_scale("mini"), get_scale("760m-48b")):
        tried = {model: len(rates_of(scale, model)) for model in SEVEN}
        assert min(tried[model] for model in SEVEN[4:]) >= max(tried["fox_pro"], tried["fox_llama"]), scale.name


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
    assert "FoX (Pro) at 0.002 of 0.00025 to 0.004; Transformer (Pro) at 0.001" in text and "at the edge" not in text
    assert "FoX (LLaMA) 9.4% at 0.004, 0.0% at 0.001 (unstable)" in text
    assert "FoX (Pro) 0.0% at 0.004, 0.0% at 0.002 (not unstable)" in text
    text = rates_tried(tried(tmp_path / "b", TABLE_5 | {"fox_pro": 4e-3, "fox_llama": 2.5e-4}))
    assert (
        "(cannot be told from" not in text
        and "a better rate may lie beyond it: FoX (Pro) (highest), FoX (LLaMA) (lowest)." in text
    )
    unknown = "Transformer (Pro) at 0.004, FoX (LLaMA) at 0.004, Transformer (LLaMA) at 0.004"
    assert f"not stored for {unknown}: whether training was unstable there is unknown" in text
    assert "(cannot be told from 0" in rates_tried(tried(tmp_path / "c", TABLE_5, noise=2.0))


def test_unstable_steps_are_those_after_warm_up_that_are_not_finite_or_four_times_the_median():
    """Ten steps of ten tokens, of which two warm up; the worst seed counts."""
    rows = pd.DataFrame({"tokens": range(10, 110, 10), "grad_norm": [99.0, 99, 1, 1, 4.01, 1, math.nan, 1, 3.99, 1]})
    calm = rows.assign(grad_norm=1.0)
    specs = {"r": {"train": {"warmup_tokens": 20, "peak_lr": 1e-3}}, "s": {"train": {"warmup_tokens": 20, "peak_lr": 2e-3}}}
    runs = (("r", rows), ("r", calm), ("s", calm))
    found = [(SimpleNamespace(model="fox_pro", run_id=run_id), own, {}) for run_id, own in runs]
    study = SimpleNamespace(evaluations=lambda kind: found, spec=specs.__getitem__)
    assert _spikes(study) == {("fox_pro", 1e-3): 2 / 8, ("fox_pro", 2e-3): 0.0}
