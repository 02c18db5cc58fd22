"""The figure of FoX among its successors: ranks, what tells neighbours apart, and the numbers that each model keeps."""

import json

import numpy as np
import pandas as pd
import pytest
from pydantic import TypeAdapter

from analysis.statistics import Estimate
from beyond.figures import successors
from experiments.recipes import model_spec
from experiments.scales import get_scale
from models.spec import ModelSpec
from tests import synthetic

TINY = get_scale("tiny")
ABOVE = {"fox_pro": 0.0, "gated_delta_net": 0.1, "kimi_delta_attention": 0.1001, "mamba2": 0.2}


def spec_of(name, **changes):
    return json.loads(TypeAdapter(ModelSpec).dump_json(model_spec(name, TINY, 512, changes)))


def filled(folder, models=ABOVE, *, seeds=2, beyond=0.0, length=512, lines=True):
    """Models above FoX (Pro) by so much, and by `beyond` more beyond the training context."""
    store, rng = synthetic.Store(folder, train_len=128), np.random.default_rng(0)
    texts = rng.normal(0.0, 0.2, (8, 16))
    base = synthetic.curve("mamba2", 128, 512)[:length]

    def add(label, model, above, spec, axes):
        for seed in range(seeds):
            own = base + above + 0.002 * seed + (beyond if above else 0.0) * (np.arange(length) >= 128)
            mean, bands = synthetic.documents_of(own, rng, texts)
            kinds = [("per_token_loss", synthetic.loss_rows(mean, bands))]
            store.add("successors", label, kinds, model=model, seed=seed, spec=spec, axes=axes, name=f"{label} {model}")

    for model, above in models.items():
        add(model, model, above, spec_of(model), {})
    if lines:
        base_of = dict(rope_base=successors.LARGER_BASE)
        add("RoPE base 5e+06", "transformer_pro", 0.3, spec_of("transformer_pro", **base_of), base_of)
    return store


def study(tmp_path, models=ABOVE):
    return filled(tmp_path, models).study("successors")


def beside(store, stem, rows_of, *, seeds=2, name="{0} {0}", **how):
    """Add another figure's rows of models, of the trainings that are drawn or of others that are called otherwise."""
    for model, rows in rows_of.items():
        for seed in range(seeds):
            kind = {
                "fig4_needle": "needle_choice",
                "mqar": "recall",
                "table6_throughput": "throughput",
                "generation": "decoding",
            }
            own = [(kind.get(stem, stem), rows(seed) if callable(rows) else rows)]
            store.add(stem, model, own, model=model, seed=seed, spec=spec_of(model), name=name.format(model), **how)
    store.study(stem)  # writes its lines


def gains(gain):
    return synthetic.context_rows(lambda c: 3.0 - gain * np.log2(c), np.random.default_rng(0))


def chosen(share):
    return synthetic.choice_rows(np.random.default_rng(0), share, train_len=128, lengths=(64, 128, 256), modes=("easy",))


def said(share):
    return synthetic.word_rows(np.random.default_rng(0), share, 0.05)


KEYS, NEEDLE, WORDS = "Keys recalled by small models", "Easy needle, chosen of ten", "Last words ("
RULE = {"anywhere": False, "words": 200, "near": 20, "common": 500}


def recalled(store, share_of, keys=16):
    for model, share in share_of.items():
        rows = pd.DataFrame({"num_correct": [100 * share], "num_stale": 0, "num_queries": 100})
        task = {"recall": {"num_symbols": 16, "num_keys": keys, "pairs_first": True}}
        how = dict(data=task, axes={"num_keys": keys}, spec=spec_of(model, hidden_size=64), name=f"mqar {model}")
        store.add("mqar", f"{keys} keys", [("recall", rows)], model=model, **how)
    store.study("mqar")


def told(store):
    return successors.findings(store.study("successors"))


def one_of(sentences, word):
    (found,) = [each for each in sentences if word in each]
    return found


def test_models_are_ranked_and_neighbours_told_apart_only_where_they_can_be(tmp_path):
    table = successors.summary(study(tmp_path))
    assert list(table.rows) == [
        "FoX (Pro)",
        "Gated DeltaNet",
        "Kimi Delta Attention",
        "Mamba-2",
        "Transformer (Pro) with RoPE base 5e+06",
    ]
    for label, (model, above) in zip(list(table.rows)[1:4], list(ABOVE.items())[1:], strict=True):
        assert table.rows[label][1] == pytest.approx(above, abs=0.02), model
    assert table.rows["FoX (Pro)"][1:3] == [None, None]
    low, high = table.ranges["Kimi Delta Attention"][2]
    assert low < 0 < high
    assert table.ranges["Mamba-2"][2][0] > 0
    assert [row[3] for row in table.rows.values()] == [2] * 5


def test_numbers_kept_are_those_of_the_spec_that_was_trained(tmp_path):
    table = successors.summary(study(tmp_path))
    layers, d, T = TINY.num_layers, TINY.hidden_size, successors.DECODED
    assert table.rows["Gated DeltaNet"][4] * 1e6 == pytest.approx(layers * d * (64 + 2 * 4))
    assert table.rows["Kimi Delta Attention"][4] * 1e6 == pytest.approx(layers * d * (128 + 3 * 4))
    assert table.rows["Transformer (Pro) with RoPE base 5e+06"][4] * 1e6 > 2 * layers * d * T


def test_the_picture_holds_every_band_of_every_series(tmp_path):
    files, table = successors.draw(study(tmp_path)), successors.summary(study(tmp_path / "again"))
    drawn = pd.read_csv(files[2])
    assert set(drawn["series"]) == set(table.rows)
    assert drawn.groupby("series")["last"].max().eq(512).all()
    assert drawn[drawn["model"] == "fox_pro"]["behind"].eq(0).all()
    behind = drawn[drawn["model"] == "mamba2"]
    assert behind["behind"].mean() == pytest.approx(0.2, abs=0.02)
    assert (behind["low"] < behind["behind"]).all()


def test_without_fox_there_is_nothing_to_stand_beside(tmp_path):
    with pytest.raises(ValueError, match=r"FoX \(Pro\) is not among the stored runs"):
        successors.draw(study(tmp_path, {"mamba2": 0.2}))


@pytest.mark.parametrize(
    ("models", "words", "welcome"),
    [
        ({"fox_pro": 0.0, "mamba2": 0.2}, "no model can be told to be ahead of FoX (Pro); 1 is behind it, Mamba-2 by 0.", True),
        ({"fox_pro": 0.0, "mamba2": -0.2}, "ahead of FoX (Pro): Mamba-2 by 0.1", False),
        ({"fox_pro": 0.0, "mamba2": 0.2, "hgrn2": 0.4}, "2 are behind it, from Mamba-2 by 0.", True),
        ({"fox_pro": 0.0, "mamba2": 0.0001}, "none of 1 others can be told from FoX (Pro)", False),
        ({"fox_pro": 0.0, "mamba2": 0.0001, "hgrn2": 0.2}, "; cannot be told from it: Mamba-2; 1 is behind it, HGRN2", False),
        ({"fox_pro": 0.0, "mamba2": 0.0001, "hgrn2": -0.2}, "cannot be told from it: Mamba-2; none is behind it", False),
    ],
)  # fmt: skip
def test_who_is_ahead_level_and_behind_is_said_with_interval_and_seeds(tmp_path, models, words, welcome):
    sentences = told(filled(tmp_path, models, lines=False))
    own = one_of(sentences, "Loss within the training context (128 tokens; one learning rate each, none tuned here)")
    assert words in own
    assert ("(2 seeds)" in own) is ("none of" not in own) and ("to HGRN2 by 0." in own) is ("2 are behind it, from" in own)
    last = max(index for index, each in enumerate(sentences) if "was not measured" in each or "nothing was" in each)
    assert (sentences.index(own) > last) is welcome, "what FoX would rather not hear comes first"


def test_what_has_no_known_noise_is_told_from_nothing():
    assert [successors._side(Estimate(effect, 0.1)) for effect in (-1.0, 0.1, 1.0)] == [1, 0, -1]
    assert successors._side(Estimate(1.0)) == successors._side(Estimate(1.0, 0.1, seeds_known=False)) == 0
    assert "[not known]" in successors._by(Estimate(1.0))


def test_losses_beyond_the_context_are_a_sentence_of_their_own(tmp_path):
    models = {"fox_pro": 0.0, "mamba2": 0.1, "hgrn2": 0.3}
    own = one_of(told(filled(tmp_path / "a", models, beyond=-0.5, lines=False)), "beyond the training context")
    assert "up to 512 tokens: ahead of FoX (Pro): Mamba-2 by 0.39" in own and "HGRN2 by 0.2" in own
    own = one_of(told(filled(tmp_path / "b", models, beyond=0.5, lines=False)), "beyond the training context")
    assert "no model can be told to be ahead of FoX (Pro); 2 are behind it, from Mamba-2 by 0.6" in own
    short = told(filled(tmp_path / "c", models, length=128, lines=False))
    assert "Beyond the training context nothing was measured." in short


def test_more_context_helps_harms_or_cannot_be_told_to(tmp_path):
    store = filled(tmp_path, {"fox_pro": 0.0, "mamba2": 0.2, "hgrn2": 0.3}, lines=False)
    beside(
        store, "context_use", {"fox_pro": gains(0.1), "mamba2": gains(-0.1), "hgrn2": gains(0.0)}, evaluation={"targets": 32}
    )
    sentences = told(store)
    own = one_of(sentences, "More context")
    assert "is a gain with FoX (Pro), a loss with Mamba-2; for HGRN2 it cannot be told." in own
    assert "same tokens, 64 to 992 of context; FoX (Pro): \N{MINUS SIGN}0.39" in own
    table = successors.summary(store.study("successors"))
    assert [row[-1] is None for row in table.rows.values()] == [False] * 3
    assert table.rows["FoX (Pro)"][-1] == pytest.approx(-0.1 * np.log2(992 / 64), abs=0.01)
    unknown = ": for FoX (Pro) it cannot be told whether it is a gain or a loss."
    for gain, words in ((-0.1, " is a loss with FoX (Pro)."), (0.0, unknown)):
        store = filled(tmp_path / words, {"fox_pro": 0.0, "mamba2": 0.2}, lines=False)
        beside(store, "context_use", {"fox_pro": gains(gain)}, evaluation={"targets": 32})
        again = told(store)
        assert again.index(one_of(again, words)) < again.index(one_of(again, "within"))
    assert sentences.index(own) > sentences.index(one_of(sentences, "Not known"))


@pytest.mark.parametrize(
    ("models", "words"),
    [
        ({"mamba2": 0.2}, "Mamba-2, the best with a state of fixed size, 139k, is behind it by 0.2"),
        ({"mamba2": -0.2, "hgrn2": 0.2}, "is ahead of it by 0.1"),
        ({"mamba2": 0.0001}, "139k, cannot be told from it, apart by 0.0"),
        ({"mamba2": 0.2, "hgrn2": 0.3}, "all that keep fewer are behind it"),
        ({"mamba2": 0.0001, "hgrn2": 0.3}, "fewer, and not behind it: Mamba-2 (139k)"),
        ({"alibi_pro": -0.2}, "numbers; all that keep fewer are behind it"),
        ({"transformer_pro": 0.2}, "numbers; all that keep fewer are behind it"),
    ],
)
def test_what_a_small_state_costs_is_said(tmp_path, models, words):
    assert words in one_of(told(filled(tmp_path, {"fox_pro": 0.0} | models, lines=False)), "To decode 16,384 tokens")


@pytest.mark.parametrize(
    ("shares", "recall", "words", "welcome"),
    [
        (
            (0.8, 0.2),
            (1.0, 0.5),
            [
                "no model can be told to be ahead of FoX (Pro)",
                "FoX (Pro) 100.0% of 16; others that recall half of 16: Mamba-2 50.0%.",
            ],
            {KEYS, NEEDLE, WORDS},
        ),
        ((0.2, 0.8), (1.0, 0.5), ["ahead of FoX (Pro): Mamba-2 by ", "points ["], {KEYS}),
        ((0.5, 0.5), (1.0, 0.5), ["none of 1 others can be told from FoX (Pro)"], {KEYS}),
        ((0.8, 0.2), (0.5, 1.0), ["FoX (Pro) 50.0% of 16; others that recall half of 16: Mamba-2 100.0%."], {NEEDLE, WORDS}),
        ((0.8, 0.2), (0.1, 0.4), ["FoX (Pro) 10.0% of 16; others that recall half of 16: none."], {NEEDLE, WORDS}),
        ((0.8, 0.2), (0.1, 1.0), ["FoX (Pro) 10.0% of 16; others that recall half of 16: Mamba-2 100.0%."], {NEEDLE, WORDS}),
    ],
)
def test_retrieval_is_told_from_needles_last_words_and_recall(tmp_path, shares, recall, words, welcome):
    store, models = filled(tmp_path, {"fox_pro": 0.0, "mamba2": 0.2}, lines=False), ("fox_pro", "mamba2")
    beside(store, "fig4_needle", dict(zip(models, map(chosen, shares), strict=True)), evaluation={"mode": "easy"})
    beside(store, "last_words", dict(zip(models, map(said, shares), strict=True)), evaluation=RULE)
    recalled(store, dict(zip(models, recall, strict=True)))
    sentences = told(store)
    own = {opening: one_of(sentences, opening) for opening in (KEYS, NEEDLE, WORDS)}
    assert all(each in " ".join(own.values()) for each in words)
    limits = sentences.index(one_of(sentences, "Not known"))
    assert {opening for opening, each in own.items() if sentences.index(each) > limits} == welcome
    again = one_of(told(filled(tmp_path / "none", {"fox_pro": 0.0, "mamba2": 0.2}, lines=False)), "retrieval")
    assert again == "Of retrieval nothing was measured."


@pytest.mark.parametrize(("fox", "first"), [(0.1, KEYS), (0.6, "Loss within the training context")])
def test_what_others_learn_and_fox_does_not_comes_first_of_all(tmp_path, fox, first):
    store = filled(tmp_path, {"fox_pro": 0.0, "mamba2": -0.2}, lines=False)
    recalled(store, {"fox_pro": fox, "mamba2": 1.0})
    assert told(store)[0].startswith(first)


def test_a_dash_stands_where_nothing_was_measured_and_the_note_says_of_whom(tmp_path):
    store = filled(tmp_path, {"fox_pro": 0.0, "transformer_pro": 0.2, "hgrn2": 0.3}, seeds=3)
    beside(store, "last_words", {"fox_pro": said(0.5)}, seeds=3, evaluation=RULE)
    beside(store, "last_words", {"transformer_pro": said(0.4)}, seeds=2, evaluation=RULE)
    beside(store, "last_words", {"hgrn2": said(0.3)}, name="another training of {0}", evaluation=RULE)
    table = successors.summary(store.study("successors"))
    assert [column.key for column in table.columns][5:] == ["words"]
    assert {name: row[5] is None for name, row in table.rows.items()} == {
        "FoX (Pro)": False, "Transformer (Pro)": False, "HGRN2": True, "Transformer (Pro) with RoPE base 5e+06": True,
    }  # fmt: skip
    missing = "more context 4, needles 4, recall 4, training speed 4, decoding speed 4, last words 2"
    assert (
        f"(a dash or no column): {missing}." in table.note
        and "With fewer seeds: Transformer (Pro), last words (%), 2." in table.note
    )
    own = one_of(told(store), "Not known")
    assert own == (
        f"Not known: measurements missing, by number of models: {missing}. Each model is compared alone, at 95%: of twenty "
        "that are as good as FoX (Pro) one is told apart by chance."
    )
    once = one_of(told(filled(tmp_path / "once", {"fox_pro": 0.0, "mamba2": 0.2}, seeds=1, lines=False)), "Not known")
    assert "2 of 2 models have one seed" in once


def test_rows_that_the_other_figure_refuses_are_left_out(tmp_path):
    store = filled(tmp_path, {"fox_pro": 0.0, "mamba2": 0.2}, lines=False)
    rows = gains(0.1)
    both = {"fox_pro": rows, "mamba2": rows[rows["context"] != 8]}
    beside(store, "context_use", both, evaluation={"targets": 32})
    assert len(successors.summary(store.study("successors")).columns) == 5
    assert "More context" not in "".join(told(store))


def test_nothing_stands_beside_a_fox_of_another_training(tmp_path):
    store = filled(tmp_path, {"fox_pro": 0.0, "mamba2": 0.2}, lines=False)
    beside(store, "fig4_needle", {"fox_pro": chosen(0.5)}, name="another training of {0}", evaluation={"mode": "easy"})
    beside(store, "fig4_needle", {"mamba2": chosen(0.4)}, evaluation={"mode": "easy"})
    assert "Of retrieval nothing was measured." in told(store)
    assert {name: row[5] is None for name, row in successors.summary(store.study("successors")).rows.items()} == {
        "FoX (Pro)": True, "Mamba-2": False,
    }  # fmt: skip


def test_where_all_was_measured_of_all_that_is_said(tmp_path):
    store = filled(tmp_path, {"fox_pro": 0.0, "mamba2": 0.2}, lines=False)
    both = ("fox_pro", "mamba2")
    beside(store, "context_use", dict.fromkeys(both, gains(0.1)), evaluation={"targets": 32})
    beside(store, "fig4_needle", dict.fromkeys(both, chosen(0.5)), evaluation={"mode": "easy"})
    beside(store, "last_words", dict.fromkeys(both, said(0.5)), evaluation=RULE)
    recalled(store, dict.fromkeys(both, 1.0))
    speeds = {"fox_pro": synthetic.throughput_row(speed=50.0), "mamba2": synthetic.throughput_row(speed=80.0)}
    beside(store, "table6_throughput", speeds, seeds=1, name="fresh {0}", evaluation={"mode": "train", "step": "stepper"})
    speeds = {m: synthetic.decoding_rows({"whole": 256.0, "pruned": 999.0}) for m in both}
    beside(store, "generation", speeds, seeds=1, name="decoded {0}", evaluation={"new_tokens": 32})
    nothing = "Not known: nothing; all models have several seeds, and figures measured them all. Each model is compared alone"
    assert one_of(told(store), "Not known").startswith(nothing)
    table = successors.summary(store.study("successors"))
    assert "Not measured" not in table.note
    assert [column.key for column in table.columns][5:] == [
        "more_context",
        "needle_easy",
        "words",
        "keys_16",
        "steps",
        "decoding",
    ]
    assert table.rows["Mamba-2"][8:] == [100.0, 80.0, 128.0]
    needles = chosen(0.5)
    assert table.rows["Mamba-2"][6] == pytest.approx(needles[needles["length"] <= 128]["right"].mean())


@pytest.mark.parametrize(
    ("rates", "words"),
    [
        ({}, "(one each, none was tuned here): 0.001: FoX (Pro), Mamba-2."),
        ({"fox_pro": 2e-3}, "(not the same effort for all): 0.001: Mamba-2; 0.001, 0.002: FoX (Pro)."),
        ({"fox_pro": 2e-3, "mamba2": 4e-3}, "(the same effort for all): 0.001, 0.002: FoX (Pro); 0.001, 0.004: Mamba-2."),
    ],
)
def test_rates_tried_are_those_of_all_stored_runs_of_the_same_model(tmp_path, rates, words):
    store = filled(tmp_path, {"fox_pro": 0.0, "mamba2": 0.2}, lines=False)
    for model, rate in rates.items():
        store.add("grid", "rate", [], model=model, scale="tiny-short", spec=spec_of(model), train={"peak_lr": rate}, name=model)
    store.add("grid", "narrow", [], model="fox_pro", spec=spec_of("fox_pro", hidden_size=64), train={"peak_lr": 1.0}, name="n")
    assert words in successors.summary(store.study("successors")).note


def test_the_page_beside_the_picture_begins_with_the_sentences(tmp_path, pictures_of_a_dot):
    own = filled(tmp_path).study("successors")
    page = next(path for path in successors.draw(own) if path.suffix == ".md").read_text()
    assert page.startswith("".join(f"1. {sentence}\n" for sentence in successors.findings(own)))
    assert len(successors.findings(own)) == 5 and "| FoX (Pro) |" in page
