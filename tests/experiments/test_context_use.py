"""C3 and C4 on losses given more and more context: they hold on the shapes that they ask for, and fail on others."""

import numpy as np
import pandas as pd
import pytest

from analysis.curves import compare_contexts, context_losses
from analysis.names import RECURRENT
from analysis.verdict import Status, judge
from experiments.beyond import context_use
from experiments.beyond.context_use import CLAIMS, c3, c4, evals
from experiments.scales import SCALES, get_scale
from tests import synthetic

INSIDE = 224


def falling(by=0.05, start=3.0, until=INSIDE):
    """A loss that falls by so much from 32 to `until` tokens of context, evenly, and no further."""
    return lambda context: start - by * np.clip((context - 32) / (INSIDE - 32), 0, (until - 32) / (INSIDE - 32))


def make(tmp_path, losses, *, seeds=1, seed_noise=0.0, sources=None, **how):
    store, rng = synthetic.Store(tmp_path), np.random.default_rng(0)
    for model, loss_of in losses.items():
        for seed in range(seeds):
            shift = seed_noise * rng.normal()
            rows = synthetic.context_rows(lambda c, loss_of=loss_of, shift=shift: loss_of(c) + shift, rng, **how)
            extras = {} if sources is None else {"sources": sources}
            store.add("context_use", model, [("context_use", rows)], seed=seed, evaluation={"targets": 32}, extras=extras)
    return store.study("context_use")


def main(**others):
    return {"fox_pro": falling(), "fox_llama": falling(), **{model: falling(0.01) for model in RECURRENT}, **others}


def test_both_hold_on_the_papers_shapes(tmp_path):
    judged = judge(CLAIMS, make(tmp_path, main()))
    assert [(claim.id, verdict.status) for claim, verdict in judged] == [("C3", Status.HOLDS), ("C4", Status.HOLDS)]
    assert all(verdict.decisive.estimate.interval for _, verdict in judged)


def test_one_model_alone_is_drawn_without_a_lead(tmp_path):
    study = make(tmp_path, {"mamba2": falling()})
    assert all(path.is_file() for path in context_use.draw(study))
    assert set(context_use.points(study)["panel"]) == {"all", "late"}


@pytest.mark.parametrize(("rise", "status"), [(0.002, Status.HOLDS), (0.03, Status.FAILS)])
def test_c3_allows_a_rise_of_0003_between_contexts(tmp_path, rise, status):
    def with_a_bump(context):
        return 3.0 - {8: 0.0, 16: 0.0, 32: 0.0, 64: 0.02, 128: 0.02 - rise}.get(context, 0.05)

    assert c3(make(tmp_path, main(fox_llama=with_a_bump))).status is status


def test_c3_fails_where_the_second_half_of_the_context_is_worth_nothing(tmp_path):
    """No step rises by 0.003, and the end is below the beginning."""
    verdict = c3(
        make(tmp_path, main(fox_pro=lambda c: falling(0.05, until=128)(c) + (0.002 if c == INSIDE else 0)), noise=1e-5)
    )
    assert verdict.status is Status.FAILS
    assert verdict.decisive.name == "FoX (Pro): loss given 224 of context minus given 128"
    assert c3(make(tmp_path / "flat", main(fox_pro=lambda c: 3.0))).status is Status.WITHIN_NOISE


def test_c3_looks_at_the_training_context_only_and_needs_both(tmp_path):
    beyond = main(fox_pro=lambda c: falling()(c) + (5.0 if c > INSIDE else 0.0))
    assert c3(make(tmp_path / "a", beyond)).status is Status.HOLDS
    alone = {"fox_pro": falling()}
    assert c3(make(tmp_path / "b", alone)).status is Status.NOT_MEASURED


@pytest.mark.parametrize(("share", "status"), [(0.4, Status.HOLDS), (0.6, Status.FAILS)])
def test_c4_asks_for_less_than_half_of_what_fox_gains(tmp_path, share, status):
    assert c4(make(tmp_path, main(hgrn2=falling(0.05 * share)), noise=1e-5)).status is status


def test_c4_looks_at_the_last_three_eighths(tmp_path):
    """Given 160 to 224 tokens of a context of 256: what is gained before does not matter."""
    assert c4(make(tmp_path / "a", main(hgrn2=falling(0.5, until=160)))).status is Status.HOLDS
    assert c4(make(tmp_path / "b", main(hgrn2=falling(0.5)))).status is Status.FAILS


def test_c4_needs_fox_to_gain_and_all_recurrent_models(tmp_path):
    flat = make(tmp_path / "a", main(fox_pro=lambda c: 3.0, **{model: lambda c: 3.0 for model in RECURRENT}), noise=1e-3)
    verdict = c4(flat)
    assert verdict.status is Status.UNDECIDED
    assert "cannot be told from none" in verdict.sentence
    losses = main()
    del losses["hgrn2"]
    verdict = c4(make(tmp_path / "b", losses))
    assert verdict.status is Status.NOT_MEASURED
    assert "HGRN2" in verdict.sentence


def test_differences_are_of_the_same_targets(tmp_path):
    """The longest context fits in front of the last place alone: what other places are like does not enter."""
    study = make(tmp_path, {"fox_pro": falling()}, noise=0.0)
    (losses,) = context_losses(study).values()
    rows = study.rows("context_use")
    last = rows[rows["place"] == 1024].groupby("context")["loss"].mean()
    assert compare_contexts((1.0, losses, 992), (-1.0, losses, 8)).effect == pytest.approx(last[992] - last[8])
    assert losses.inside == [8, 16, 32, 64, 128, 160, 224]
    four = rows[rows["context"].isin((8, 480))].groupby("context")["loss"].mean()
    assert compare_contexts((1.0, losses, 480), (-1.0, losses, 8)).effect == pytest.approx(four[480] - four[8])


def test_segments_of_a_line_join_losses_of_the_same_targets(tmp_path):
    """The last place, which alone has the longest context, is like no other: no line jumps to its level."""
    store, rng = synthetic.Store(tmp_path), np.random.default_rng(0)
    for model, use in (("fox_pro", 3e-3), ("transformer_pro", 1e-3)):
        rows = synthetic.context_rows(falling(), rng)
        rows.loc[rows["place"] == 1024, "loss"] -= use * rows["context"]
        store.add("context_use", model, [("context_use", rows)], evaluation={"targets": 32})
    study = store.study("context_use")
    losses, drawn = context_losses(study), context_use.points(study).set_index(["panel", "model", "context"])["value"]
    for start, panel in ((8, "all"), (32, "late")):
        for model, own in losses.items():
            assert drawn[panel, model, 480] == pytest.approx(context_use.change(own, start, 480).effect)
            last = drawn[panel, model, 992] - drawn[panel, model, 480]
            assert last == pytest.approx(context_use.change(own, 480, 992).effect)
    fox, other = losses["fox_pro"], losses["transformer_pro"]
    apart = context_use.change(other, 480, 992).effect - context_use.change(fox, 480, 992).effect
    assert context_use.change(other, 480, 992, fox).effect == pytest.approx(apart)
    assert apart == pytest.approx(2e-3 * (992 - 480), abs=2e-3)
    assert drawn["lead", "fox_pro", 992] - drawn["lead", "fox_pro", 480] == pytest.approx(apart)
    assert drawn["lead", "fox_pro", 480] == pytest.approx(compare_contexts((1.0, other, 480), (-1.0, fox, 480)).effect)


def test_documents_of_one_source_and_seeds_are_the_noise(tmp_path):
    two = {"fox_pro": falling(), "transformer_pro": falling(start=3.1)}
    free = context_losses(make(tmp_path / "a", two, noise=0.02))
    clustered = context_losses(make(tmp_path / "b", two, noise=0.02, sources=[document // 4 for document in range(16)]))
    assert clustered["fox_pro"].sources_D.tolist() == [document // 4 for document in range(16)]
    (part,) = [each for each in context_use.lead(clustered["fox_pro"], clustered["transformer_pro"], 64).parts if each.df < 1e9]
    assert (part.what, part.count) == ("sources of the text", 4)
    (part,) = [each for each in context_use.lead(free["fox_pro"], free["transformer_pro"], 64).parts if each.df < 1e9]
    assert (part.what, part.count) == ("documents", 16)
    assert context_use.lead(free["fox_pro"], free["transformer_pro"], 64).error < 0.01, "what is hard in a document cancels"
    seeds = context_losses(make(tmp_path / "c", two, seeds=3, seed_noise=0.1, noise=1e-4))
    assert {part.what for part in context_use.lead(seeds["fox_pro"], seeds["transformer_pro"], 64).parts} >= {"seeds"}
    assert context_use.lead(seeds["fox_pro"], seeds["transformer_pro"], 64).error > 0.02
    assert context_use.change(seeds["fox_pro"], 32, 224).error < 0.01, "a seed's level cancels between contexts"


def test_noise_of_a_model_of_one_seed_is_that_of_others_that_were_repeated(tmp_path):
    store, rng = synthetic.Store(tmp_path), np.random.default_rng(0)
    for model, seeds in (("fox_pro", 1), ("fox_llama", 5)):
        for seed in range(seeds):
            shift = 0.1 * rng.normal()
            rows = synthetic.context_rows(lambda c, shift=shift: 3.0 + shift, rng)
            store.add("context_use", model, [("context_use", rows)], seed=seed, evaluation={"targets": 32},
                      spec={"forget_gate": "full", "name": model})  # fmt: skip
    losses = context_losses(store.study("context_use"))
    noise = losses["fox_pro"].seed_noise([(1.0, 64)])
    assert noise.df == 4
    assert noise.variance == pytest.approx(losses["fox_llama"].at(64).mean(axis=(1, 2)).var(ddof=1))
    assert losses["fox_pro"].seed_noise([(1.0, 65)]) is None


def test_models_that_were_evaluated_in_other_ways_do_not_meet(tmp_path):
    store, rng = synthetic.Store(tmp_path), np.random.default_rng(0)
    for model, documents in (("fox_pro", 16), ("fox_llama", 12)):
        rows = synthetic.context_rows(falling(), rng, documents=documents)
        store.add("context_use", model, [("context_use", rows)], evaluation={"targets": 32})
    with pytest.raises(ValueError, match="evaluated on different targets or contexts"):
        context_losses(store.study("context_use"))


def test_what_explodes_beyond_the_training_context_leaves_the_frame():
    """Room for -0.3 to 0.1: what falls there stays in it."""
    inside = pd.DataFrame({"value": [0.0, -0.1], "low": [-0.1, -0.2], "high": [0.1, 0.0]})
    beyond = pd.DataFrame({"value": [9.0, -0.3], "low": [8.0, -0.9], "high": [10.0, 0.2]})
    limits = context_use._limits(inside, pd.concat([inside, beyond]))
    assert limits == pytest.approx((-0.3 - 0.06 * 0.4, 0.1 + 0.15 * 0.4))


def test_the_contexts_of_a_scale_end_with_the_training_context_and_twice_and_four_times_it():
    (spec,) = evals(get_scale("mini"))
    assert spec.contexts == (64, 128, 256, 512, 1024, 2048, 2560, 3584, 7680, 15872)
    assert spec.places == (16384, 14336, 12288, 10240)
    assert (spec.targets, spec.num_documents) == (512, 128)
    assert all(spec.places_of(context) == spec.places for context in spec.contexts[:-1])
    assert evals(get_scale("tiny"))[0].contexts == synthetic.CONTEXTS
    for scale in SCALES.values():
        assert evals(scale), "every scale has contexts that fit"


def test_the_table_has_what_is_gained_from_part_to_part(tmp_path):
    table = context_use.summary(make(tmp_path, main(), noise=0.0))
    assert [column.key for column in table.columns] == ["shortest", "to_32", "to_128", "to_224", "to_992"]
    assert table.rows["fox_pro"][1:] == pytest.approx([0, -0.025, -0.025, 0])
    assert table.note.endswith(" seeds. From 224 to 992 at 1 of 4 places, 25% of the tokens.")
    drawn = pd.read_csv(context_use.draw(make(tmp_path / "again", main(transformer_pro=falling(start=3.2)), noise=0.0))[2])
    assert drawn[drawn["panel"] == "lead"]["value"].tolist() == pytest.approx([0.2] * 9, abs=0.2)


def test_models_beyond_the_papers_have_panels_of_their_own_beside_fox():
    assert context_use._rows_of(["fox_pro", "mamba2"]) == [["fox_pro", "mamba2"]]
    assert context_use._rows_of(["fox_pro", "mamba2", "alibi"]) == [["fox_pro", "mamba2"], ["fox_pro", "alibi"]]
    assert context_use._rows_of(["alibi"]) == [["alibi"]]
