from dataclasses import replace

import numpy as np
import pytest

from analysis import seeds
from analysis.curves import compare, difference, loss_curves
from analysis.seeds import sources_of
from analysis.study import Study
from tests import synthetic

LENGTH, TRAIN_LEN = 256, 64


def store_of(folder, scale="tiny"):
    return synthetic.Store(folder, scale, TRAIN_LEN)


def add(store, stem, label, level, *, model=None, seed=0, **how):
    """A flat curve; its second half of the training context lies `tilt` lower."""
    loss = np.full(LENGTH, float(level))
    loss[TRAIN_LEN // 2 :] -= how.pop("tilt", 0.0)
    bands = np.repeat(loss.reshape(16, -1).mean(axis=1)[None], 4, axis=0)
    store.add(
        stem,
        label,
        [("per_token_loss", synthetic.loss_rows(loss, bands))],
        model=model or label,
        seed=seed,
        spec={"name": label},
        **how,
    )


def repeated(folder, scale, levels, **how):
    """Runs of another artefact, which differ in the seed alone."""
    store = store_of(folder, scale)
    for seed, level in enumerate(levels):
        add(store, "other", "repeated", level, seed=seed, scale=scale, **how)
    store.study("other")


def single(folder, scale="tiny-short"):
    store = store_of(folder, scale)
    for model, level in (("fox_pro", 2.0), ("transformer_pro", 2.1)):
        add(store, "fig", model, level)
    return store.study("fig")


def test_one_seed_has_the_noise_of_what_was_repeated(tmp_path):
    repeated(tmp_path, "tiny-short", [3.0, 3.1, 3.2, 3.3, 3.4])
    one, two = loss_curves(single(tmp_path))
    estimate = difference(two, one)
    assert estimate.error == pytest.approx((2 * np.var([3.0, 3.1, 3.2, 3.3, 3.4], ddof=1)) ** 0.5)
    assert estimate.df == pytest.approx(4.0) and estimate.seeds_known
    assert estimate.where == ("attention without a forget gate at tiny-short",)


def test_each_takes_the_same_functional(tmp_path):
    """Seeds shift a whole curve: what is compared inside one run does not vary from seed to seed."""
    repeated(tmp_path, "tiny-short", [3.0, 3.5, 4.0, 2.0, 2.5])
    one, _ = loss_curves(single(tmp_path))
    assert compare((1.0, one, 33, 64), (-1.0, one, 1, 32)).error == pytest.approx(0.0, abs=1e-12)
    assert compare((1.0, one, 33, 64)).error > 0.5


def test_places_are_relative_to_the_training_context(tmp_path):
    """Half of a context of 64 is half of one of 32."""
    store = synthetic.Store(tmp_path, "tiny-short", 32)
    for seed in range(5):
        loss = np.full(LENGTH, 3.0)
        loss[:16] += 0.1 * seed
        rows = synthetic.loss_rows(loss, np.ones((2, 16)))
        store.add("other", "repeated", [("per_token_loss", rows)], seed=seed)
    store.study("other")
    one, _ = loss_curves(single(tmp_path))
    assert one.seed_noise([(1.0, 1, 32)]).variance == pytest.approx(0.025)
    assert one.seed_noise([(1.0, 33, 64)]).variance == pytest.approx(0.0)


def test_scales_of_one_size_lend_their_repeats_and_others_do_not(tmp_path):
    repeated(tmp_path, "mini", [3.0, 4.0, 5.0])
    one, two = loss_curves(single(tmp_path))
    assert not difference(one, two).seeds_known
    repeated(tmp_path, "tiny", [3.0, 3.1, 3.2])
    one, two = loss_curves(single(tmp_path))
    assert difference(one, two).where == ("all models at any tiny scale",)
    (tmp_path / "pools.json").unlink()
    one, two = loss_curves(Study(tmp_path, "tiny-short", "fig"))
    assert not difference(one, two).seeds_known, "scales are of one size by what pools.json says, not by their names"


def test_modes_of_an_evaluation_are_repeated_each_for_itself(tmp_path):
    store, rows = store_of(tmp_path), synthetic.loss_rows(np.full(LENGTH, 2.0), np.full((4, 16), 2.0))
    for seed in range(2):
        for mode, before in (("easy", []), ("standard", [("other", rows)])):  # one more, for an id of its own
            given = [*before, ("per_token_loss", rows)]
            store.add(mode, "fox_pro", given, seed=seed, evaluation={"mode": mode}, spec={"name": "fox_pro"})
    found = seeds.repeats_for([tmp_path], "tiny", "per_token_loss")
    assert [len(each.rows) for each in found] == [2, 2]


def test_the_narrowest_group_with_enough_is_taken():
    def group(scale, family, values):
        return seeds.Repeated(scale, family, 64, (values,))

    recurrent = [group("mini", "recurrent", [0.0, 1.0, 2.0]) for _ in range(2)]
    gated = group("mini", "attention with a forget gate", [0.0, 10.0, 20.0])
    sister = group("mini-short", "attention with a forget gate", [0.0, 2.0, 4.0])
    pool = (*recurrent, gated, sister)

    def noise(family, only=lambda each: True):
        return seeds.noise_of(pool, "mini", "mini", family, 0, lambda each: np.array(each.rows[0]) if only(each) else None)

    assert noise("recurrent") == seeds.Noise(1.0, 4, "recurrent at mini")
    assert noise("attention with a forget gate") == seeds.Noise(52.0, 4, "attention with a forget gate at any mini scale")
    assert noise("samba") == seeds.Noise(34.0, 6, "all models at mini")
    assert noise("recurrent", lambda each: each is gated) == seeds.Noise(100.0, 2, "all models at any mini scale")
    assert noise("recurrent", lambda each: False) is None
    pool = (*recurrent, group("mini", "recurrent", [9.0, np.nan, 9.0]))
    assert noise("recurrent") == seeds.Noise(1.0, 4, "recurrent at mini"), "one that diverged"
    pool = [group("mini", "recurrent", [0.0, 2.0])] * 4
    assert noise("recurrent") == seeds.Noise(2.0, 4, "recurrent at mini"), "pairs"
    shorter = replace(group("mini", "recurrent", [0.0, 9.0, 18.0]), train_tokens=7)
    pool = [*recurrent, shorter, shorter]
    assert noise("recurrent") == seeds.Noise(1.0, 4, "recurrent at mini, trained as long")
    pool = [recurrent[0], shorter]
    assert noise("recurrent") == seeds.Noise(41.0, 4, "recurrent at mini"), "too few were trained as long"


def test_sources_of_documents_are_what_the_evaluation_recorded():
    assert sources_of({"extras": {"sources": [5, 6, 6]}}, 2).tolist() == [5, 6]
    assert sources_of({"extras": {"sources": [5]}}, 2) is None and sources_of({"extras": {}}, 1) is None
