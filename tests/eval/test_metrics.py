"""Every number that an evaluation or a training reports, against one that was worked out by hand."""

import math
from contextlib import nullcontext
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
import torch

from analysis.curves import log_perplexity, perplexity, smooth
from analysis.training_curves import smooth_backwards
from eval.attention_speed.measure import milliseconds
from eval.attention_speed.spec import Spec as AttentionSpec
from eval.gate_maps.measure import half_life, maps, median_decay
from eval.lm_eval import measure as lm_eval
from eval.lm_eval.spec import Spec as HarnessSpec
from eval.longbench.measure import score as longbench_score
from eval.needle.haystack import Cell
from eval.needle.measure import _judged, _row, exact_match, fuzzy_match, match_score
from eval.needle.wording import DEFAULT_WORDING, Wording
from eval.per_token_loss import measure as per_token_loss
from eval.per_token_loss.spec import Spec as LossSpec
from eval.pruning.measure import Pruned
from eval.pruning.spec import Spec as PruningSpec
from eval.recall.measure import judged
from eval.ruler.scoring import score as ruler_score
from eval.shell.context import Context
from eval.shell.partial import Partial
from eval.throughput import measure as throughput
from eval.throughput.spec import Spec as TimingSpec
from models.build import build_model
from training.journal import Speed


@pytest.mark.parametrize(("prediction", "expected", "exact", "fuzzy", "score"), [
    ("eat a sandwich", "eat a sandwich", True, 1.0, 10.0),
    ("Eat a SANDWICH! And then", "eat a sandwich.", True, 1.0, 10.0),
    ("eat sandwich", "eat a sandwich", False, 2 / 3, 5.5),  # 1 + 9 * (2/3 - 1/3) / (2/3)
    ("eat a pie", "eat a sandwich", False, 2 / 3, 5.5),
    ("a", "eat a sandwich", False, 1 / 3, 1.0),
    ("sandwich a eat", "eat a sandwich", False, 1 / 3, 1.0),  # in order
    ("x x x eat a sandwich", "eat a sandwich", False, 1.0, 10.0),  # within six words
    ("x x x x eat a sandwich", "eat a sandwich", False, 2 / 3, 5.5),  # the seventh does not count
    ("", "eat a sandwich", False, 0.0, 1.0),
    ("one two three four", "one two three four five six seven eight", False, 0.5, 3.25),
])  # fmt: skip
def test_scores_of_needles(prediction, expected, exact, fuzzy, score):
    assert exact_match(prediction, expected) is exact
    assert fuzzy_match(prediction, expected) == pytest.approx(fuzzy)
    assert match_score(exact, fuzzy) == pytest.approx(score)
    row = _row(Cell("standard", 100, 50.0, 1, [0], expected), prediction)
    assert row["score"] == pytest.approx(score) and row["exact"] == float(exact) and row["fuzzy"] == pytest.approx(fuzzy)
    assert (row["mode"], row["length"], row["depth"], row["sample"], row["scored_by"]) == ("standard", 100, 50.0, 1, "match")


@pytest.mark.parametrize(("prediction", "exact", "fuzzy", "score"), [
    ("4821", 1.0, 1.0, 10.0), (" 4821. The", 1.0, 1.0, 10.0), ("4820", 0.0, 0.75, 6.625), ("4128", 0.0, 0.5, 3.25),
    ("48", 0.0, 0.5, 3.25), ("", 0.0, 0.0, 1.0), ("is 4821", 0.0, 0.0, 1.0),
])  # fmt: skip
def test_scores_of_pass_keys_go_by_place(prediction, exact, fuzzy, score):
    row = _row(Cell("passkey", 100, 50.0, 0, [0], "4821"), prediction)
    assert (row["exact"], row["fuzzy"]) == (exact, fuzzy) and row["score"] == pytest.approx(score)


def test_a_judges_scores_take_the_place_of_the_match():
    rows = [{"prediction": text, "score": 5.5, "scored_by": "match"} for text in ("a", " \n", "b")]
    judge = SimpleNamespace(model="j", score_all=lambda prompts: [3 + 4 * n for n in range(len(prompts))])
    _judged(rows, judge, Wording.read(DEFAULT_WORDING))
    assert [(row["score"], row["scored_by"]) for row in rows] == [(3.0, "j"), (1.0, "j"), (7.0, "j")]


@pytest.mark.parametrize(("task", "prediction", "answers", "classes", "score"), [
    ("hotpotqa", "b", ["a", "b"], None, 100.0), ("hotpotqa", "b", ["b", "a"], None, 100.0),  # the best, wherever it stands
    ("hotpotqa", "b c d", ["b x"], None, 40.0),  # P 1/3, R 1/2
    ("hotpotqa", "b b c", ["b b x"], None, 200 / 3),  # words count as often as they come
    ("gov_report", "one two three four", ["one three"], None, 200 / 3),  # P 2/4, R 2/2
    ("trec", "A or B or C", ["C"], ["A", "B", "C"], 100 / 3), ("trec", "nothing", ["C"], ["A", "B", "C"], 0.0),
    ("lcc", "// note\nabc", ["abc"], None, 100.0), ("lcc", "abc // note", ["abc"], None, 0.0),
    ("lcc", "# note\nabc", ["abc"], None, 100.0), ("lcc", "`abc`\nabcd", ["abcx"], None, 75.0),  # 6 of 8
    ("lcc", "\n\nabc\nxyz", ["abc"], None, 100.0),
])  # fmt: skip
def test_scores_of_longbench(task, prediction, answers, classes, score):
    example = {"answers": answers, "all_classes": classes}
    assert longbench_score(task, prediction, example) == pytest.approx(score, abs=1e-4)


def test_rows_of_the_harness():
    """Accuracies in percent, perplexities plain, errors alike; only what the table of tasks names."""
    scores = {
        "lambada_openai": {"acc,none": 0.25, "acc_stderr,none": 0.01, "perplexity,none": 12.5, "perplexity_stderr,none": 0.5},
        "wikitext": {"word_perplexity,none": 23.0, "word_perplexity_stderr,none": "N/A", "bits_per_byte,none": 1.0},
        "hellaswag": {"acc,none": 0.5, "acc_stderr,none": 0.02, "acc_norm,none": 0.75, "acc_norm_stderr,none": 0.03},
        "own": {"acc,none": 0.5, "exact_match,none": 0.125, "f1,none": 0.5, "f1_stderr,none": 0.25, "bleu,none": 30.0},
    }
    results = {"results": scores, "n-samples": {task: {"effective": 7, "original": 9} for task in scores},
               "versions": dict.fromkeys(scores, 1.0)}  # fmt: skip
    rows = pd.DataFrame(
        [row for task in scores for row in lm_eval._rows(task, results, HarnessSpec(batch_size=3, add_bos=False))]
    )
    found = {(row.task, row.metric): (row.value, row.stderr) for row in rows.itertuples()}
    nan = pytest.approx(math.nan, nan_ok=True)
    assert found == {
        ("lambada_openai", "perplexity"): (12.5, 0.5), ("lambada_openai", "acc"): (25.0, 1.0),
        ("wikitext", "word_perplexity"): (23.0, nan),
        ("hellaswag", "acc_norm"): (75.0, 3.0), ("own", "acc"): (50.0, nan), ("own", "exact_match"): (12.5, nan),
        ("own", "f1"): (50.0, 25.0), ("own", "bleu"): (30.0, nan),
    }  # fmt: skip
    assert set(rows["num_examples"]) == {7} and set(rows["add_bos"]) == {0} and set(rows["batch_size"]) == {3}


def test_rulers_answers_hold_the_value():
    """The harness's own function: any case, anywhere in the answer, and no unprintable character counts."""
    said = {"it is 1234567.": 1.0, "1234567": 1.0, "\x00 1234567": 1.0, "123456": 0.0, "": 0.0, "12345678": 1.0}
    assert {text: ruler_score({"outputs": ["1234567"]}, [text])["score"] for text in said} == said


def test_losses_are_summed_by_position_and_band(tmp_path):
    spec = LossSpec(context_len=6, num_documents=2, corpus="c", precision="fp32")
    sums = per_token_loss._Sums(spec, Context(partial=Partial(None, "")), 5)
    sums.edges, sums.bands_NK = np.array([0, 2, 6]), np.zeros((2, 2))
    sums.add(np.array([0, 0, 1, 1, 1, 3]), np.array([1.0, 3.0, 1.0, 2.0, 3.0, 4.0]))
    sums.add(np.array([0, 0, 0, 0, 3, 3]), np.array([3.0, 5.0, 3.0, 2.0, 1.0, 0.0]))
    rows = sums.rows()
    whole, parts = rows[rows["document"] < 0], rows[rows["document"] >= 0]
    assert whole["loss"].tolist() == [2.0, 4.0, 2.0, 2.0, 2.0, 2.0] and whole["position"].tolist() == [1, 2, 3, 4, 5, 6]
    assert parts["loss"].tolist() == [2.0, 2.5, 4.0, 1.5] and parts["document"].tolist() == [0, 0, 1, 1]
    assert parts["position"].tolist() == [2, 6, 2, 6] and parts["width"].tolist() == [2, 4, 2, 4]
    assert set(whole["num_documents"]) == {2} and set(parts["num_documents"]) == {1}
    shares = (6 / 12, 3 / 12, 3 / 12)
    assert sums.unigram_entropy == pytest.approx(-sum(share * math.log(share) for share in shares))


def test_perplexities():
    losses = np.log([[2.0, 8.0, 4.0], [1.0, 1.0, 8.0]])
    np.testing.assert_allclose(np.exp(log_perplexity(losses)), [[2, 4, 4], [1, 1, 2]])
    np.testing.assert_allclose(perplexity(losses), [[2, 4, 4], [1, 1, 2]])
    np.testing.assert_allclose(smooth(np.array([1.0, 2, 6, 4]), 3), [1.5, 3, 4, 5])
    np.testing.assert_allclose(smooth_backwards(np.array([1.0, 3, math.nan, 5, 7]), 2), [1, 2, 3, 5, 6])


def test_recall_tells_stale_answers_from_right_ones():
    """a 5, b 6, a 7, a?, b?, a? with answers: right, and a value that a had, that b had, and none."""
    tokens = np.array([[0, 5, 1, 6, 0, 7, 0, 7, 1, 6, 0, 7]] * 4)
    answers = np.array([[9, 9, 9, 7, 6, 7], [9, 9, 9, 5, 6, 5], [9, 9, 9, 6, 5, 6], [5, 6, 7, 9, 7, 9]])
    correct, stale = judged(tokens, answers)
    assert correct[:, 3:].tolist() == [[True] * 3, [False, True, False], [False] * 3, [False] * 3]
    assert stale[:, 3:].tolist() == [[False] * 3, [True, False, True], [False] * 3, [False] * 3]
    assert correct[3, :3].all() and not stale[3, :3].any(), "the value itself is not an earlier one"
    assert judged(np.array([[0, 5, 0, 6]]), np.array([[9, 5]]))[1].tolist() == [[False, True]], "that of the pair before"


def test_shares_of_tiles_and_keys_read():
    pruned = Pruned(PruningSpec(context_len=8, tile=2, num_documents=1, decoded_tokens=2, corpus="c", precision="fp32"))
    pruned._count(3, np.array([[0, 0, 1, 2], [0, 1, 2, 3]]), 8, 8)  # of 1 + 2 + 3 + 4 tiles
    pruned._count(3, np.array([[0, 1]]), 4, 4)  # the prompt that is decoded on
    pruned._count(3, np.array([[0], [0]]), 2, 2)  # such a one of a single tile
    for keys, skipped in ((9, [[1], [4]]), (10, [[2], [4]])):
        pruned._count(3, np.array(skipped), 1, keys)
    pruned.end_document()
    found = {(row["quantity"], row["head"], row["position"]): row["value"] for row in pruned.rows}
    assert found["tiles_pruned", 0, -1] == 0.3 and found["tiles_pruned", 1, -1] == 0.6
    assert [found["first_tile", 1, position] for position in range(4)] == [0, 1, 2, 3]
    assert found["keys_read", 0, -1] == (7 + 6) / 2 and found["keys_read", 1, -1] == (1 + 2) / 2
    assert {(row["layer"], row["document"]) for row in pruned.rows} == {(3, 0)} and pruned.document == 1
    pruned._count(3, np.array([[0], [1]]), 1, 10)
    pruned.end_document()
    assert [(row["document"], row["value"]) for row in pruned.rows[-2:]] == [(1, 10.0), (1, 8.0)], "of the second alone"


def test_half_lives_and_maps_of_a_constant_gate():
    decay = -0.25 * torch.arange(1, 65, dtype=torch.float64)
    assert median_decay(decay, 4) == -1.0
    assert half_life(decay) == pytest.approx(4 * math.log(2))
    slow = decay / 100  # reaches a half at 277 tokens, beyond the text: its mean rate goes on
    assert half_life(slow) == pytest.approx(400 * math.log(2)) and half_life(0 * decay) == math.inf
    once = torch.cat([torch.zeros(40), -torch.ones(24)]).double()  # of queries 22 back 22 of 42 see it, 21 back 21 of 43
    assert half_life(once) == pytest.approx(21 + math.log(2))
    zeros = torch.zeros(4, 16)
    forget, attend = maps(zeros, zeros, torch.full((4,), math.log(0.5)), 2)
    assert forget[0, 0] == pytest.approx((1 + 0.5 + 1) / 3)  # of the pairs (0,0), (1,0), (1,1)
    assert forget[1, 0] == pytest.approx((0.25 + 0.5 + 0.125 + 0.25) / 4) and np.isnan(forget[0, 1])
    assert attend[0, 0] == 1.0 and attend[1, 0] == pytest.approx(0.5 / 1.75) and attend[1, 1] == pytest.approx(1 / 1.75)


@pytest.mark.parametrize("mode", ["train", "generate"])
@pytest.mark.parametrize("tolerance", [None, -10.0])
def test_speeds_and_utilisation(mode, tolerance, tiny_fox, monkeypatch):
    """Repeats of 1, 2, 3, 4 and 5 s, beside twice as long; 2 s of prefill."""
    model = build_model(tiny_fox(64, prune_log_tolerance=tolerance))
    seconds = np.array([1.0, 2, 3, 4, 5])
    monkeypatch.setattr(throughput, "_time_steps", lambda *_: (np.stack([seconds, 2 * seconds], axis=1), 7.0))
    monkeypatch.setattr(throughput, "_time_generation", lambda *_: (2.0, seconds))
    monkeypatch.setattr(throughput, "peak_flops", lambda device: 1e9)
    pruned_share = {"pruned_share": [torch.tensor(0.5), torch.tensor(1.0)]}
    monkeypatch.setattr(type(model.model), "measuring", lambda self: nullcontext(pruned_share))
    monkeypatch.setattr(
        type(model.config.to_spec()), "executed_flops_per_token",
        lambda own, seq_len, share: {0.75: 0.75}[share] * own.flops_per_token(seq_len),
    )  # fmt: skip
    monkeypatch.setattr(throughput, "check_machine", lambda wanted, device: "m")
    spec = TimingSpec(mode=mode, seq_len=128, batch_size=3, new_tokens=11, machine="m", precision="fp32",
                      beside=tiny_fox(64) if mode == "train" else None)  # fmt: skip
    context = Context()
    (row,) = throughput.evaluate(SimpleNamespace(fresh=lambda: model), spec, context).to_dict("records")
    tokens = 3 * 128 if mode == "train" else 3
    rates = np.quantile(tokens / seconds, (0.2, 0.5, 0.8))
    assert (row["tokens_per_s_low"], row["tokens_per_s"], row["tokens_per_s_high"]) == pytest.approx(rates)
    flops = model.config.to_spec().flops_per_token(128 if mode == "train" else 256)
    dense = (3 if mode == "train" else 1) * flops * tokens / 3 / 1e9
    assert row["mfu_dense"] == pytest.approx(dense) and row["fwd_flops_per_token"] == flops
    executed = 1.0 if tolerance is None else 0.75 if mode == "train" else math.nan
    assert row["mfu"] == pytest.approx(dense * executed, nan_ok=True)
    assert row["params"] == model.config.to_spec().num_params
    if mode == "train":
        assert (row["relative_low"], row["relative"], row["relative_high"]) == (2, 2, 2) and row["peak_memory_gib"] == 7.0
    else:
        assert context.extras["prefill_tokens_per_s"] == 3 * 128 / 2 and math.isnan(row["relative"])


def test_times_of_attention():
    assert milliseconds(np.array([1.0, 2, 3, 4, 5, 6])) == (3500.0, 2000.0, 5000.0)
    assert list(AttentionSpec.SCHEMA.columns)[2:5] == ["milliseconds", "milliseconds_low", "milliseconds_high"]


def test_a_trainings_speed_is_of_its_last_steps(monkeypatch):
    clock = iter([0.0, 1.0, 3.0, 10.0, 14.0, 16.0])
    monkeypatch.setattr("training.journal.time.perf_counter", lambda: next(clock))
    speed = Speed(100, window=2)
    assert speed.tick() == 100.0 and speed.tick() == 200 / 3
    speed.resume()  # at 10: what came between is no step's time
    assert speed.tick() == 200 / 6 and speed.tick() == 200 / 6
