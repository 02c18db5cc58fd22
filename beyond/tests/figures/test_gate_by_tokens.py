"""The forget gate's worth by training tokens: the law on numbers worked out by hand, runs that are other figures', too, and
what is said of rows that were made to say it."""

import math

import numpy as np
import pandas as pd
import pytest
from scipy import stats

from analysis.power_law import Law, law_of
from analysis.statistics import Estimate
from beyond.figures import gate_by_tokens
from beyond.figures.gate_by_tokens import BLOCKS
from experiments.artefact import artefacts
from experiments.scales import SCALES, get_scale
from tests import synthetic
from tests.experiments.conftest import data_at

PRO, LLAMA = BLOCKS
T5 = 2.570581835636314
"""The 97.5% quantile of Student's t with five degrees of freedom, from a table."""


def worth(value, error, df=5.0, **how):
    return Estimate(value, error, df, **how)


def test_an_exact_law_is_recovered():
    law = law_of({count: worth(3.0 * count**-0.4, 0.01 * place) for place, count in enumerate((7, 20, 90, 400), 1)})
    assert law.exponent.effect == pytest.approx(0.4, rel=1e-12)
    assert law.at(7.5e9)[0] == pytest.approx(3.0 * 7.5e9**-0.4, rel=1e-12)


def test_of_two_worths_the_errors_are_those_worked_out_by_hand():
    """At 4 times the tokens of the second the log is 2 y2 - y1; errors of the logs are 0.1 and 0.05. Of two equal variances
    with 9 and 5 degrees of freedom Satterthwaite has 4 / (1/9 + 1/5)."""
    law = law_of({1: worth(0.4, 0.04, 9.0), 4: worth(0.2, 0.01, 5.0)})
    assert law.exponent.effect == pytest.approx(0.5, rel=1e-12)
    assert law.exponent.error == pytest.approx(math.hypot(0.1, 0.05) / math.log(4), rel=1e-12)
    error = math.hypot(2 * 0.05, 0.1)
    half = float(stats.t.ppf(0.975, 4 / (1 / 9 + 1 / 5))) * error
    assert law.at(16) == pytest.approx((0.1, 0.1 * math.exp(-half), 0.1 * math.exp(half)), rel=1e-6)
    assert law.at(4) == pytest.approx((0.2, 0.2 * math.exp(-T5 * 0.05), 0.2 * math.exp(T5 * 0.05)), rel=1e-9)


def test_errors_of_uneven_worths_are_those_of_numpys_weighted_line():
    x, y, errors = np.log([10, 30, 70, 500]), np.log([0.5, 0.31, 0.22, 0.09]), np.array([0.05, 0.02, 0.08, 0.1])
    worths = {round(np.exp(at)): worth(np.exp(log), error * np.exp(log)) for at, log, error in zip(x, y, errors, strict=True)}
    law, (line, covariance) = law_of(worths), np.polyfit(x, y, 1, w=1 / errors, cov="unscaled")
    missed = float((((y - np.polyval(line, x)) / errors) ** 2).sum())
    assert missed < 2, "otherwise all errors are wider"
    far = np.array([math.log(7.5e9), 1.0])
    assert (-law.exponent.effect, law.log_at(7.5e9).effect) == pytest.approx((line[0], far @ line), rel=1e-9)
    assert law.exponent.error**2 == pytest.approx(covariance[0, 0], rel=1e-9)
    assert law.log_at(7.5e9).error ** 2 == pytest.approx(far @ covariance @ far, rel=1e-9)


@pytest.mark.parametrize(("off", "wider"), [(0.3, 6**0.5), (0.1, 1.0)])
def test_worths_off_the_law_widen_it_and_worths_on_it_do_not_narrow_it(off, wider):
    """Logs 0, `off` and 0 at 1, 2 and 4: a flat line at a third of `off`, and a chi^2 of 2 / 3 (off / 0.1)^2."""
    law = law_of({count: worth(math.exp(log), 0.1 * math.exp(log)) for count, log in ((1, 0.0), (2, off), (4, 0.0))})
    assert (law.chi2, law.df) == (pytest.approx(2 / 3 * (off / 0.1) ** 2), 1)
    middle = law.log_at(2)  # the mean of the logs of the tokens
    assert (middle.effect, law.exponent.effect) == pytest.approx((off / 3, 0.0), abs=1e-12)
    assert middle.error == pytest.approx(wider * 0.1 / 3**0.5, rel=1e-9)
    assert law.exponent.error == pytest.approx(wider * 0.1 / (2**0.5 * math.log(2)), rel=1e-9)


def test_a_law_is_held_to_the_noise_of_its_worths_known_from_few_seeds():
    """F of one degree of freedom over five is the square of Student's t."""
    law = law_of({count: worth(math.exp(log), 0.1 * math.exp(log)) for count, log in ((1, 0.0), (2, 0.3), (4, 0.0))})
    assert law.p == pytest.approx(2 * stats.t.sf(6**0.5, 5), rel=1e-9) and not law.refuted
    assert law.fit == "F(1, 5) = 6.0, p 0.06", "what p is of, which is no chi^2's"
    assert law_of({count: worth(value, 0.02) for count, value in ((1, 0.4), (2, 0.4), (4, 0.2), (8, 0.1))}).refuted
    two = law_of({1: worth(0.4, 0.04), 4: worth(0.2, 0.01)})
    assert (two.p, two.fit) == (1, "")


@pytest.mark.parametrize("other", [worth(-0.1, 0.01), worth(0.0, 0.01), worth(0.1, None), worth(0.1, 0.01, seeds_known=False),
                                   worth(math.nan, None)])  # fmt: skip
def test_there_is_no_law_where_a_worth_is_not_above_0_or_its_noise_is_not_known(other):
    sound = {1: worth(0.4, 0.04), 2: worth(0.3, 0.04)}
    assert isinstance(law_of(sound), Law)
    assert law_of(sound | {4: other}) is None
    assert law_of({1: worth(0.4, 0.04)}) is None and law_of({}) is None


def test_an_interval_too_wide_for_a_number_is_infinite():
    assert law_of({1: worth(1e-9, 1.0), 2: worth(1e-9, 1.0)}).at(4)[1:] == (0.0, math.inf)


def runs_of(stem, scale):
    """Return the scale, which says where a run is stored, and the id of the first seed's runs by model and label."""
    found = list(artefacts()[stem].runs(SCALES[scale], (0,)))
    return {(each.name, each.label): (each.scale, each.run_spec(data_at(scale)).run_id) for each in found}


def test_half_of_minis_tokens_are_the_runs_of_table_3_and_all_of_them_those_of_figure_2():
    own, table3, fig2 = (runs_of(stem, "mini") for stem in ("gate_by_tokens", "table3_ablation", "fig2_per_token_loss"))
    whole = {model: fig2[model, model] for pair in BLOCKS for model in pair}
    half = {
        "fox_pro": table3["fox_pro", "FoX (Pro)"], "fox_llama": table3["fox_llama", "FoX (LLaMA)"],
        "transformer_pro": table3["fox_pro", "FoX (Pro) - forget gate + RoPE"],
        "transformer_llama": table3["transformer_llama", "Transformer (LLaMA)"],
    }  # fmt: skip
    assert {model: own[model, "168M tokens"] for model in whole} == whole
    assert {model: own[model, "83.9M tokens"] for model in half} == half
    assert {label for _, label in own} == {"41.9M tokens", "83.9M tokens", "168M tokens", "336M tokens"}
    assert len(set(own.values())) == len(own) == 16


@pytest.mark.parametrize("scale", ["tiny", "760m-48b"])
def test_all_of_a_scales_tokens_are_the_runs_of_figure_2(scale):
    own, fig2 = (set(runs_of(stem, scale).values()) for stem in ("gate_by_tokens", "fig2_per_token_loss"))
    assert len(own & fig2) == 4 and len(own) == 12


@pytest.mark.parametrize("scale", SCALES)
def test_tokens_and_warm_up_are_shares_of_the_scales_own_in_whole_batches(scale):
    """All models are of the scale's width, whatever scale they are trained at."""
    at, trained = get_scale(scale), set()
    for recipe in gate_by_tokens.runs(at, (0,)):
        spec = recipe.run_spec(data_at(scale))
        share = spec.train.train_tokens / at.train_tokens
        assert recipe.axes == {"train_tokens": spec.train.train_tokens}
        assert spec.train.warmup_tokens == share * at.warmup_tokens
        assert not spec.train.train_tokens % at.batch_tokens and not spec.train.warmup_tokens % at.batch_tokens
        assert spec.model.hidden_size == at.hidden_size
        trained.add(share)
    assert trained == {0.25, 0.5, 1} | ({2} if scale.startswith("mini") else set())


def study(folder, worths, noise=1e-3, seeds=1):
    """Return a study of what the gate is worth by pair and millions of tokens."""
    store, rng = synthetic.Store(folder, train_len=64), np.random.default_rng(0)
    for pair, own in worths.items():
        for place, (millions, gap) in enumerate(own.items()):
            for model, seed in [(model, seed) for model in pair for seed in range(seeds)]:
                loss = np.full(128, 3.0 + gap * (model == pair[1]))
                mean, bands = synthetic.documents_of(loss, rng, np.zeros((16, 16)), noise=noise)
                axes, kinds = {"train_tokens": millions * 10**6}, [("per_token_loss", synthetic.loss_rows(mean, bands))]
                name = f"{model}{'.' * place}"
                store.add(
                    "gate_by_tokens", f"{millions}M tokens", kinds, model=model, seed=seed, name=name, train=axes, axes=axes
                )
    return store.study("gate_by_tokens")


HALVED = {PRO: {40: 0.4, 80: 0.2, 160: 0.1}, LLAMA: {40: 0.6, 80: 0.3}}


def test_the_table_has_what_was_measured_and_what_fewer_tokens_had_foretold(tmp_path):
    table = gate_by_tokens.summary(study(tmp_path / "a", HALVED, seeds=2))
    assert [column.key for column in table.columns] == ["pro", "llama", "pro_law", "llama_law", "seeds"]
    one, two, four, paper = table.rows.values()
    assert list(table.rows) == ["40M tokens", "80M tokens", "160M tokens", "the paper, 360M, 7.5B tokens"]
    assert (one[0], two[0], four[0], one[1], two[1]) == pytest.approx((0.4, 0.2, 0.1, 0.6, 0.3), abs=1e-3)
    foretold = two[0] ** 2 / one[0], two[1] ** 2 / one[1], two[1] * (two[1] / one[1]) ** math.log2(7500 / 80)
    assert (four[2], four[3], paper[3]) == pytest.approx(foretold)
    assert paper[2] == pytest.approx(0.1 * 160 / 7500, rel=0.1)
    assert paper[:2] == pytest.approx([0.0298, 0.0326], abs=1e-4)
    assert all(math.isnan(cell) for cell in (*one[2:4], *two[2:4], four[1]))
    assert [row[4] for row in table.rows.values()] == [2, 2, 2, None]
    known = ["".join("x-"[ends is None] for ends in row) for row in table.ranges.values()]
    assert known == ["xx---", "xx---", "x-xx-", "--xx-"]
    low, high = table.ranges["160M tokens"][2]
    assert low < four[2] < high and math.sqrt(low * high) == pytest.approx(four[2])


def test_of_a_law_that_is_refuted_nothing_is_drawn_or_printed(tmp_path, pictures_of_a_dot):
    drawn_from = study(tmp_path, {PRO: HALVED[PRO], LLAMA: {40: 0.4, 80: 0.4, 160: 0.1}})
    drawn = pd.read_csv(gate_by_tokens.draw(drawn_from)[2])
    assert set(drawn.loc[drawn["block"] == "Pro", "what"]) == {"measured", "law", "paper"}
    assert set(drawn.loc[drawn["block"] == "LLaMA", "what"]) == {"measured", "paper"}
    table = gate_by_tokens.summary(drawn_from)
    (*_, paper), (*_, ends) = table.rows.values(), table.ranges.values()
    assert paper[2] > 0 and math.isnan(paper[3]) and ends[3] is None
    assert "; no power law fits the LLaMA block (F(1, " in table.note


def test_a_study_without_a_pair_is_refused(tmp_path):
    store = synthetic.Store(tmp_path, train_len=64)
    for model, length in (("fox_pro", 128), ("transformer_pro", 63)):  # one of them not to the end of the training context
        rows = [("per_token_loss", synthetic.loss_rows(np.full(length, 3.0)))]
        store.add("gate_by_tokens", "4M tokens", rows, model=model, name=model, axes={"train_tokens": 4_000_000})
    with pytest.raises(ValueError, match="no pair of runs with and without a forget gate is stored"):
        gate_by_tokens.summary(store.study("gate_by_tokens"))


@pytest.mark.parametrize(("own", "noise", "said"), [
    ({40: 0.4, 80: 0.2, 160: 0.1}, 1e-3, [
        "at 40M and +0.1", "at 160M training tokens; it falls (as tokens^-b, b +1.00 [",
        "At 320M tokens this law has +0.05", ", at 7.5B +0.002", "lies above this",
        "at 160M; measured is the same within noise",
    ]),
    ({40: 0.1, 80: 0.2, 160: 0.4}, 1e-3, ["it rises (as", "b \N{MINUS SIGN}1.00 [", "lies below this"]),
    ({40: 0.04, 80: 0.041, 160: 0.04}, 0.05, ["it neither falls nor rises by more than noise", "lies in this interval"]),
    ({40: 0.4, 80: 0.2, 160: 0.15}, 1e-3, ["training tokens; no power law fits (", "at 160M; measured is more"]),
    ({40: 0.4, 80: 0.4, 160: 0.05}, 1e-3, ["From 40M to 80M it neither falls nor rises by more than noise, from 80M to 160M it "
                                           "falls.", "at 160M; measured is less"]),
])  # fmt: skip
def test_the_sentence_says_what_the_rows_say(tmp_path, own, noise, said):
    (sentence,) = gate_by_tokens.findings(study(tmp_path, {PRO: own}, noise))
    assert sentence.startswith("Pro block: the gate is worth +0.") and sentence.endswith(".")
    assert all(words in sentence for words in said), sentence
    assert ("7.5B" in sentence) is ("no power law" not in sentence)


def test_without_a_law_or_fewer_tokens_nothing_is_foretold(tmp_path):
    pro, llama = gate_by_tokens.findings(study(tmp_path, {PRO: {40: 0.4, 80: -0.2}, LLAMA: {40: 0.4, 80: 0.2}}))
    assert "at 80M training tokens; no law is fitted, which takes two" in pro and "7.5B" not in pro
    assert "it falls (as" in llama and "From fewer tokens" not in llama
    (once,) = gate_by_tokens.findings(study(tmp_path / "once", {LLAMA: {40: 0.4}}))
    assert once.startswith("LLaMA block: the gate is worth +0.") and "at 40M training tokens; no law" in once
