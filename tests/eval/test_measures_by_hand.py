"""Measures of every evaluation with models and texts played: what they read, hand on, keep and refuse."""

import itertools
import json
import logging
import math
import os
import sys
import zipfile
from contextlib import contextmanager, nullcontext, suppress
from pathlib import Path
from types import SimpleNamespace
from typing import ClassVar

import datasets
import numpy as np
import pytest
import torch
from torch import nn

from data.recall import RecallTask
from eval.attention_speed import measure as attention_speed
from eval.cache_eviction import measure as cache_eviction
from eval.context_use import measure as context_use
from eval.equal_logits import measure as equal_logits
from eval.gate_maps import measure as gate_maps
from eval.kinds import KINDS
from eval.last_words import measure as last_words
from eval.lm_eval import measure as lm_eval
from eval.lm_eval import task_files
from eval.lm_eval.spec import check_names
from eval.lm_eval.tasks import TABLE
from eval.longbench import measure as longbench
from eval.longbench import spec as longbench_spec
from eval.per_token_loss import measure as per_token_loss
from eval.pruning import measure as pruning
from eval.recall import measure as recall
from eval.ruler import measure as ruler
from eval.shell import stand_ins
from eval.shell.context import Compute, Context
from eval.shell.partial import Partial
from eval.shell.sources import Sources, UserData, digest
from eval.shell.spec import Setting
from eval.throughput import measure as throughput
from eval.training_curve import measure as training_curve


class Split:
    """Documents of a corpus: token t of document d is 10 d + t, modulo 7."""

    shape = (9, 64)

    def read(self, rows, start=0, stop=None):
        return ((10 * np.arange(9)[rows, None] + np.arange(start, stop)) % 7).astype(np.uint16)

    def __len__(self):
        return 9


CORPUS = SimpleNamespace(
    heldout=Split(), heldout_sources=[*range(9)], spec=SimpleNamespace(bos_id=6, fingerprint="aa"), folder="f"
)
LOADED = SimpleNamespace(model=nn.Linear(1, 1), tokenizer=None, subject=SimpleNamespace(model="m"))


@pytest.fixture
def opened(monkeypatch):
    """The corpus above, in every evaluation; and bars, which count."""
    told = []

    def bar(*counts):
        told.append(counts)
        return nullcontext(SimpleNamespace(advance=lambda steps=1: told.append(steps)))

    for module in (per_token_loss, pruning, cache_eviction, context_use, gate_maps, attention_speed):
        monkeypatch.setattr(module, "open_heldout", lambda *given: CORPUS)
    for module in (per_token_loss, pruning, cache_eviction, gate_maps, recall, throughput, lm_eval):
        monkeypatch.setattr(module, "Progress", bar)
    return told


def of(kind, **given):
    return KINDS[kind](**dict(corpus="aa", precision="bf16") | given)


@pytest.mark.parametrize(("documents", "done"), [(4, 0), (4, 1), (2, 1), (1, 0)])
def test_losses_are_summed_saved_and_timed(documents, done, opened, monkeypatch, tmp_path):
    """Sums are kept at an interrupt, and every so many seconds since they were kept; the first document's time is no time."""
    spec, checked, saves = of("per_token_loss", context_len=8, num_documents=documents), [], []
    monkeypatch.setattr(per_token_loss, "check_positions", lambda model, *given: checked.append(given))
    monkeypatch.setattr(per_token_loss, "vocab_size", lambda model: 7)
    clock, ticks = iter([0, 21, 21, 30, 42, 42]), itertools.count()
    monkeypatch.setattr(
        per_token_loss, "time", SimpleNamespace(monotonic=lambda: next(clock), perf_counter=lambda: float(next(ticks)))
    )

    def losses(model, target_T, bos_id, compute, document):
        assert (bos_id, compute) == (6, Compute("cuda:1", "bf16"))
        assert target_T.tolist() == Split().read(slice(document, document + 1), 0, 8)[0].tolist()
        if document == 3 and stop:
            raise KeyboardInterrupt
        return np.full(8, float(document))

    monkeypatch.setattr(per_token_loss, "document_losses", losses)
    context = Context(device="cuda:1", train_seq_len=5, partial=Partial(tmp_path / "a.jsonl", "me"))
    save = per_token_loss._Sums.save
    monkeypatch.setattr(per_token_loss._Sums, "save", lambda self: saves.append(self.done) or save(self))
    stop = documents == 4
    if done:
        before = per_token_loss._Sums(spec, context, 7)
        before.add(Split().read(slice(0, 1), 0, 8)[0], np.zeros(8))
        save(before)
    if stop:
        with pytest.raises(KeyboardInterrupt):
            per_token_loss.evaluate(LOADED, spec, context)
        assert saves == ([1, 3, 3] if not done else [2, 3]) and opened[0] == ("per-token loss", 4, done)
        stop, clock = False, iter([0, 0, 0])
    rows = per_token_loss.evaluate(LOADED, spec, context)
    assert rows["loss"][0] == (documents - 1) / 2 and checked[-1] == (8, "lower --context-len")
    assert context.extras.pop("unigram_entropy") > 0
    assert context.extras.pop("seconds_per_document", 1.0) == 1.0
    assert context.extras == dict(train_seq_len=5, context_len=8, sources=[*range(documents)])


def test_the_time_of_a_document_is_the_median_of_the_later_ones(opened, monkeypatch):
    monkeypatch.setattr(per_token_loss, "vocab_size", lambda model: 7)
    ticks = iter([0.0, 9.0, 0.0, 1.0, 0.0, 2.0, 0.0, 7.0])
    monkeypatch.setattr(per_token_loss, "time", SimpleNamespace(monotonic=lambda: 0, perf_counter=lambda: next(ticks)))
    monkeypatch.setattr(per_token_loss, "document_losses", lambda *given: np.ones(8))
    context = Context()
    per_token_loss.evaluate(LOADED, of("per_token_loss", context_len=8, num_documents=4), context)
    assert context.extras["seconds_per_document"] == 2.0


@pytest.mark.parametrize(("losses", "why"), [
    ([1.0, math.inf, math.nan], "document 5: the loss of token 2 is inf"),
    ([1.0, 2.0, -math.inf], "the loss of token 3 is -inf"),
    (torch.OutOfMemoryError, "out of memory on cpu with one document of 3 tokens; lower --context-len"),
])  # fmt: skip
def test_losses_that_are_none_are_refused(losses, why, monkeypatch):
    def given(*_):
        if losses is torch.OutOfMemoryError:
            raise losses
        return torch.tensor([losses])

    monkeypatch.setattr(per_token_loss, "token_losses", given)
    with pytest.raises(ValueError, match=why):
        per_token_loss.document_losses(None, np.array([1, 2, 3]), 0, Compute(), 5)


class Layer:
    """Attention that notes what it is asked for."""

    spec = SimpleNamespace(num_heads=2)

    def __init__(self, place=0):
        self.layer_idx, self.asked = place, []

    def pruned_tiles(self, q, k, log_fgate, tolerance, tile):
        self.asked.append(("tiles", tolerance, tile))
        return torch.ones(1, 2, 2, dtype=torch.int32)

    def pruning(self, q, k, tolerance):
        self.asked.append(("pruning", tolerance))
        return {"adaptive_threshold": "own"}

    def threshold(self, q, k, tolerance):
        self.asked.append(("threshold", tolerance))
        return torch.tensor(-1.0)


TENSORS = (torch.zeros(1, 8, 2, 4), torch.zeros(1, 8, 2, 4), torch.zeros(1, 8, 2, 6, dtype=torch.float16), torch.zeros(1, 8, 2))


@pytest.mark.parametrize("tile", [pruning.TILE, 4])
def test_pruned_attention_is_that_of_the_tolerance_and_the_tile(tile, monkeypatch):
    """The kernels' own where the tile is theirs."""
    seen, layer = [], Layer()
    monkeypatch.setattr(pruning, "forgetting_attention", lambda *tensors, **how: seen.append(how))
    monkeypatch.setattr(pruning, "attention_without_tiles", lambda *given: seen.append(given[4:]) or [None])
    pruning.Pruned(of("pruning", context_len=8, decoded_tokens=2, tile=tile, log_tolerance=-3.0)).attend(layer, *TENSORS)
    if tile == 4:
        assert layer.asked == [("tiles", -3.0, 4)] and seen[0][1] == 4
    else:
        assert layer.asked == [("tiles", -3.0, 128), ("pruning", -3.0)] and seen == [{"adaptive_threshold": "own"}]


def test_layers_attend_as_before_afterwards():
    """Whatever came between."""
    layer = Layer()
    own = dict(vars(layer))
    with suppress(KeyError), pruning.attending({0: layer}, lambda *given: given):
        assert layer.attend(1, 2, 3, 4, 5) == (layer, 1, 2, 3, 4)
        raise KeyError
    assert vars(layer) == own


def test_every_document_is_read_whole_and_pruned(opened, monkeypatch):
    layers, read = {0: Layer(0)}, []
    monkeypatch.setattr(pruning, "gated_layers", lambda model: layers)
    monkeypatch.setattr(pruning, "attending", lambda layers, attend: nullcontext())

    def dropped(model, layers, target_T, bos_id, compute, skip, tile):
        read.append((target_T[0], compute, tile, skip(layers[0], *TENSORS[:3]).shape))
        return {(0, 1): 0.5}

    monkeypatch.setattr(pruning, "most_dropped", dropped)
    monkeypatch.setattr(
        pruning, "document_losses", lambda model, target_T, *given: read.append(target_T[0]) or np.ones(8) * target_T[0]
    )
    monkeypatch.setattr(pruning, "_decoded", lambda model, target_T, bos_id, count, compute: 100 * count + target_T[0])
    context = Context()
    spec = of("pruning", context_len=8, num_documents=2, decoded_tokens=3, tile=4, log_tolerance=-3.0)
    rows = pruning.evaluate(LOADED, spec, context)
    assert read == [(0, Compute("cpu", "bf16"), 4, (1, 2, 2)), 0, 0, 3, 3] and layers[0].asked == [("tiles", -3.0, 4)]
    assert context.extras == dict(context_len=8, tile=4, decoded_tokens=3, log_tolerance=-3.0)
    found = [(row.quantity, row.document, row.layer, row.head, row.value) for row in rows.itertuples()]
    assert found == [("dropped", 0, 0, 1, 0.5), *(
        (f"{name}{ending}", document, -1, -1, value + first)
        for document, first in ((0, 0), (1, 3)) for ending in ("", "_pruned")
        for name, value in (("loss", 0.0), ("decoded_loss", 300.0))
    )]  # fmt: skip


def test_no_loss_is_less_than_none_and_sums_are_in_fp64(monkeypatch):
    """A query that loses nothing may seem to gain by rounding."""
    seen = []

    def attended(q, k, v, log_fgate, *how):
        seen.append([x.dtype for x in (q, k, v)])
        return v, torch.full((1, 2, 8), 1e-3 * len(how))

    monkeypatch.setattr(pruning, "attention_without_tiles", attended)
    monkeypatch.setattr(pruning, "_inputs", lambda *given: None)
    layer = Layer(3)

    def model(**given):
        layer.attend(*TENSORS, None)

    found = pruning.most_dropped(model, {3: layer}, None, 0, Compute(), lambda *given: None, 4)
    assert found == {(3, 0): 0.0, (3, 1): 0.0} and seen == [[torch.float64] * 3] * 2


def test_bytes_of_a_key_are_those_of_key_value_and_gate(monkeypatch):
    """Each in its own width and precision; keys that remain after a position are those that its own query has."""
    evicting = cache_eviction.Evicting(of("cache_eviction", context_len=8, depths=2, log_tolerance=-3.0))
    gone = torch.arange(16).reshape(1, 2, 8) // 3
    monkeypatch.setattr(cache_eviction, "skipped_tiles", lambda q, k, log_fgate, tile, adaptive_threshold: gone)
    monkeypatch.setattr(cache_eviction, "attention_without_tiles", lambda *given, tile: ["o"])
    layer = Layer()
    assert evicting.attend(layer, *TENSORS) == "o" and layer.asked == [("threshold", -3.0)]
    assert (evicting.whole_bytes, evicting.key_bytes) == (4 * 4 + 6 * 2, 4 * 4 + 6 * 2 + 4)
    assert evicting.keys[0].tolist() == [[4 - 1, 8 - 2], [4 - 3, 8 - 5]]


def test_of_eviction_the_first_document_tells_what_is_dropped(opened, monkeypatch):
    monkeypatch.setattr(cache_eviction, "gated_layers", lambda model: {0: Layer()})
    monkeypatch.setattr(cache_eviction, "attending", lambda layers, attend: nullcontext())
    monkeypatch.setattr(cache_eviction, "skipped_tiles", lambda *given, **how: how)
    monkeypatch.setattr(cache_eviction, "_counts", lambda evicting, layers: [])
    read = []

    def dropped(model, layers, target_T, bos_id, compute, skip, tile):
        read.append((target_T[0], tile, skip(layers[0], *TENSORS[:3])))
        return {(0, 1): 0.5}

    monkeypatch.setattr(cache_eviction, "most_dropped", dropped)
    monkeypatch.setattr(cache_eviction, "document_losses", lambda model, target_T, *given: np.ones(8) * given[-1])
    context = Context()
    rows = cache_eviction.evaluate(
        LOADED, of("cache_eviction", context_len=8, num_documents=2, depths=2, log_tolerance=-3.0), context
    )
    assert read == [(0, 1, {"tile": 1, "adaptive_threshold": torch.tensor(-1.0)})]
    assert rows["quantity"].tolist() == ["dropped", *["loss", "loss_evicted"] * 2] and rows["value"].tolist() == [
        0.5,
        0,
        0,
        1,
        1,
    ]
    assert context.extras == dict(context_len=8, log_tolerance=-3.0, sources=[0, 1])


def test_windows_of_a_document_are_told_apart_and_fit_into_the_positions(opened, monkeypatch):
    """Also where two places have the same contexts; a loss that is not finite is none."""
    checked, asked = [], []
    monkeypatch.setattr(context_use, "check_positions", lambda model, *given: checked.append(given))
    monkeypatch.setattr(context_use, "token_losses", lambda model, inputs, targets: targets.float() + added[0])
    spec = of("context_use", contexts=(4, 8), places=(40, 20), targets=2, num_documents=2)

    def recorded(what, lengths, context, compute, run):
        asked.append((what, lengths, compute))
        return {key: run([key])[0] for key in lengths}

    monkeypatch.setattr(context_use, "recorded", recorded)
    added, context = [0.0], Context()
    rows = context_use.evaluate(LOADED, spec, context)
    tokens = Split().read(slice(0, 2), 0, 40)
    assert rows["loss"].tolist() == [tokens[row.document, row.place - 2 : row.place].mean() for row in rows.itertuples()]
    ((what, lengths, compute),) = asked
    assert (what, len(lengths), set(lengths.values()), compute) == ("context use", 8, {6, 10}, Compute("cpu", "bf16"))
    assert checked == [(10, "ask for shorter --contexts")] and context.extras == {"sources": [0, 1]}
    for added[0] in (math.inf, math.nan):
        with pytest.raises(ValueError, match="held-out document 0: the mean loss of the targets before 40, given 4 tokens, is"):
            context_use.evaluate(LOADED, spec, Context())


@pytest.mark.parametrize(("layers", "heads", "count", "shown"), [
    ((), (), 9, [(0, 1), (1, 1), (0, 0), (1, 0)]), ((1, 1), (), 2, [(1, 1), (1, 0)]), ((), (0, 0), 2, [(0, 0), (1, 0)]),
    ((), (), 3, [(0, 1), (1, 1), (1, 0)]), ((), (), 1, [(0, 1)]),
])  # fmt: skip
def test_maps_are_of_the_heads_that_are_asked_for(layers, heads, count, shown, opened, monkeypatch):
    """Each once; of gates that forget within 2 and 8 tokens, the same in both layers."""
    own, passes = {0: Layer(0), 1: Layer(1)}, []
    decay = -torch.log(torch.tensor(2.0)) / torch.tensor([8.0, 2.0])

    def forward(model, chosen, inputs_BT, compute, visit):
        passes.append((list(chosen), inputs_BT[0].tolist(), compute))
        for layer in chosen.values():
            visit(layer, *TENSORS[:3], decay.expand(1, 10, 2))

    monkeypatch.setattr(gate_maps, "_forward", forward)
    monkeypatch.setattr(gate_maps, "gated_layers", lambda model: own)
    monkeypatch.setattr(gate_maps, "pruned_tile_share", lambda log_fgate, threshold: torch.tensor([[0.25, 0.75]]))
    monkeypatch.setattr(gate_maps, "maps", lambda *given: (np.ones((2, 2)), np.ones((2, 2))))
    context = Context()
    spec = of(
        "gate_maps", seq_len=10, document=3, layers=layers, heads=heads, num_maps=count, grid=4, distance=2, log_tolerance=-3.0
    )
    rows = gate_maps.evaluate(LOADED, spec, context)
    document = [6, *Split().read(slice(3, 4), 0, 9)[0].tolist()]
    places = list(dict.fromkeys(layer for layer, _ in shown))
    assert passes == [(chosen, document, Compute("cpu", "bf16")) for chosen in ([0, 1], places)]
    assert own[0].asked == [("threshold", -3.0)]
    drawn = rows[rows["row"] >= 0]
    assert sorted(set(zip(drawn["layer"], drawn["head"], strict=True))) == sorted(shown) and len(drawn) == 6 * len(shown)
    of_layer = rows[(rows["row"] < 0) & (rows["layer"] == 1)].pivot(index="head", columns="quantity", values="value")
    assert of_layer["median_F"].tolist() == pytest.approx([2 ** (-2 / 8), 0.5]) and of_layer["pruned_share"].tolist() == [
        0.25,
        0.75,
    ]
    assert of_layer["half_life_tokens"].tolist() == pytest.approx([8.0, 2.0])
    assert context.extras == dict(seq_len=10, distance=2, document=3, cell=3)
    with pytest.raises(ValueError, match="layer 2 does not exist"):
        gate_maps.evaluate(LOADED, of("gate_maps", seq_len=10, distance=2, layers=(2,)), Context())


@pytest.mark.parametrize(("end", "asked"), [(".", 1), ("!", 1), ("?", 1), (",", 0), (";", 0), ("", 0)])
@pytest.mark.parametrize(("word", "long"), [("salt", 1), ("sal", 0)])
def test_last_words_end_sentences_and_have_four_letters(end, asked, word, long):
    """The first that can be asked for has just so many words before it."""
    spec = of("last_words", num_documents=1, words=4, near=2, common=1)
    text = f"{word} a a b {word}{end} a a"
    found = list(last_words._candidates(0, text, {"a"}, spec))
    assert [(item.word, item.passage, item.near) for item in found] == [(word, f"{word} a a b", "a b")] * (asked * long)
    assert not list(last_words._candidates(0, f"{word} a b {word}{end} a a", {"a"}, spec)), "three words are too few"


def test_passages_are_of_the_documents_that_are_asked_for(monkeypatch):
    seen, context = [], Context(corpus=CORPUS)
    monkeypatch.setattr(last_words, "heldout_texts", lambda corpus: iter("abcdefghi"))
    monkeypatch.setattr(last_words, "items", lambda texts, spec: seen.append(texts) or [last_words.Item(1, "w", "pas", "s")])
    ends = lambda *given: seen.append(given) or {key: {"logp": -1.0, "right": 100.0} for key in given[1]}  # noqa: E731
    monkeypatch.setattr(last_words, "recorded_ends", ends)
    codec = SimpleNamespace(bos_id=9, encode=lambda text: [len(text)], answer=lambda text, word: [7, 7])
    loaded = SimpleNamespace(tokenizer=codec)
    rows = last_words.evaluate(loaded, of("last_words", num_documents=3, words=8), context)
    assert seen[0] == ["a", "b", "c"] and context.extras == {"sources": [0, 1, 2]}
    assert seen[1][1] == {"0/passage": ([9, 3, 7, 7], 2), "0/near": ([9, 1, 7, 7], 2)} and seen[1][4] == "bf16"
    assert rows.to_dict("records") == [
        {"item": 0, "document": 1, "logp": -1.0, "right": 100.0, "logp_near": -1.0, "right_near": 100.0, "num_tokens": 2}
    ]
    with pytest.raises(ValueError, match="10 documents exceed"):
        last_words.evaluate(loaded, of("last_words", num_documents=10, words=8), context)


class Harness:
    """The harness's model with everything below it played."""

    def __init__(self, monkeypatch, eos=2, **given):
        self.read, self.asked, self.told = [], [], []
        self.codec = SimpleNamespace(bos_id=1, eos_id=eos, encode=lambda text: [ord(sign) for sign in text],
                                     decode=lambda ids: "".join(map(chr, ids)))  # fmt: skip
        spec = KINDS["lm_eval"](**dict(max_length=8, batch_size=2, precision="fp32") | given)
        bar = SimpleNamespace(
            expect=lambda steps: self.told.append(("expect", steps)), advance=lambda steps=1: self.told.append(steps)
        )
        self.lm = lm_eval.HarnessModel("model", self.codec, spec, Context(), bar)
        monkeypatch.setattr(lm_eval, "at_ends", lambda model, rows, compute: self.read.append(rows) or [None] * len(rows))
        monkeypatch.setattr(lm_eval, "score", lambda row, logits: (-float(len(row[0])), len(row[0]) == 3))
        monkeypatch.setattr(lm_eval, "generate", self.generate)
        monkeypatch.setattr(lm_eval, "check_positions", lambda model, *given: self.asked.append(given))

    def generate(self, model, prompts, compute, **how):
        stop = how.pop("stop")
        self.asked.append((prompts, how, [text for text in ("a", "a.", "a\n") if stop([ord(sign) for sign in text])]))
        return [[ord(sign) for sign in "a.b\nc"]]

    def generated(self, prompt, **options):
        return self.lm.generate_until([SimpleNamespace(args=(prompt, options), task_name="t")])[0]


def test_likelihoods_are_asked_for_once_the_longest_first(monkeypatch):
    """A row has max_length tokens and one more, of which the last is not read; equal requests are one."""
    harness = Harness(monkeypatch)
    asked = [(("a", "b"), [1], [2]), (("c", "d"), [1, 2], [3]), (("a", "b"), [1], [2]), (("e", "f"), [*range(9)], [9, 9])]
    found = harness.lm._loglikelihood_tokens(asked)
    assert harness.read == [[([*range(2, 9), 9, 9], 2), ([1, 2, 3], 1)], [([1, 2], 1)]]
    assert found == [(-2.0, False), (-3.0, True), (-2.0, False), (-9.0, False)] and harness.told == [("expect", 3), 2, 1]
    assert harness.lm._loglikelihood_tokens([(("g", "h"), [], [0] * 8)]) == [(-8.0, False)]
    for continuation in ([], [0] * 9):
        with pytest.raises(ValueError, match=f"a continuation has {len(continuation)} tokens, over max_length 8: raise it"):
            harness.lm._loglikelihood_tokens([(("i", str(continuation)), [1], continuation)])
    assert lm_eval._key("a", ("b", "c")) != lm_eval._key("a", ("bc", "")) != lm_eval._key("ab", ("c", ""))
    assert len(lm_eval._key("a", ("\ud800",))) == 24


@pytest.mark.parametrize("eos", [2, None])
def test_answers_are_generated_up_to_a_stop(eos, monkeypatch):
    """A string or several; none that is empty. What is asked alike is asked once, with other options again."""
    harness = Harness(monkeypatch, eos)
    assert harness.lm.eot_token_id == (eos or 1) and harness.lm.prefix_token_id == 1 and harness.lm.max_length == 8
    assert harness.generated("prompt", max_gen_toks=3, until="\n") == "a.b"
    assert harness.asked[-1] == ([[ord(sign) for sign in "rompt"]], dict(max_new_tokens=3, stop_ids=(eos or 1,)), ["a\n"])
    assert harness.generated("pro", max_gen_toks=3, until=["", "\n", "."]) == "a"
    assert harness.asked[-1][0] == [[1, *map(ord, "pro")]] and harness.asked[-1][2] == ["a.", "a\n"]
    assert harness.generated("pro", max_gen_toks=3, until="bc") == "a.b\nc", "one string, no two signs"
    assert harness.generated("pro", max_gen_toks=3) == "a.b\nc" and harness.asked[-1][2] == []
    count = len(harness.asked)
    assert harness.generated("pro", max_gen_toks=3) == "a.b\nc" and len(harness.asked) == count
    assert harness.told == [("expect", 1), 1] * 4 + [("expect", 0)]
    with pytest.raises(ValueError, match="task t samples; only greedy generation is offered"):
        harness.generated("x", do_sample=True)
    longer = Harness(monkeypatch, max_length=300)
    longer.generated("x" * 99)
    assert longer.asked[-1][1]["max_new_tokens"] == 256 and len(longer.asked[-1][0][0]) == 44


def test_shares_are_in_percent_and_other_metrics_plain():
    """All that a task of one's own has, in the harness's order; errors alike."""
    names = ("acc", "acc_norm", "exact_match", "f1", "word_perplexity", "brier_score")
    scores = {"alias": "x"} | {name: 0.5 for key in names for name in (f"{key},none", f"{key}_stderr,none")}
    results = {
        "results": {"own": scores | {"f1_stderr,none": "N/A"}},
        "n-samples": {"own": {"effective": 3}},
        "versions": {"own": 2},
    }
    rows = list(lm_eval._rows("own", results, of_harness(add_bos=True, batch_size=5)))
    assert [(row["metric"], row["value"]) for row in rows] == [
        *((name, 50.0) for name in names[:4]),
        *((name, 0.5) for name in names[4:]),
    ]
    assert [row["stderr"] for row in rows if row["metric"] != "f1"] == [50.0] * 3 + [0.5] * 2 and math.isnan(rows[3]["stderr"])
    assert {(row["add_bos"], row["batch_size"], row["num_examples"], row["task_version"]) for row in rows} == {(1, 5, 3, "2")}


@pytest.mark.parametrize(("changes", "scored"), [({"add_bos": True}, True), ({"add_bos": False}, False)])
def test_whole_texts_have_a_bos_of_their_own_where_contexts_have(changes, scored):
    setting = SimpleNamespace(corpus=None, precision="fp32", sources=SimpleNamespace(include_path=None))
    bound = of_harness(include="harness", precision=None, **changes).bound(setting)
    assert (bound.scores_bos, bound.precision, bound.include) == (scored, "fp32", "harness")


@pytest.mark.parametrize(("limit", "examples"), [(None, None), (7, 7), (10**9, None)])
def test_tokens_of_the_harness_are_those_of_the_examples_that_are_read(limit, examples):
    known = TABLE["piqa"]
    count = int(known["examples"]) if examples is None else examples
    for longest, window in ((511, 511), (2048, 512)):
        spec = of_harness(include="harness", limit=limit, max_length=longest)
        assert spec.tokens_read() == [(count * int(known["tokens"]), window)]


def of_harness(**given):
    return KINDS["lm_eval"](**{"tasks": ("piqa",), "include": "harness", "precision": "bf16"} | given)


def test_whole_texts_are_read_within_the_positions(monkeypatch):
    harness = Harness(monkeypatch)
    monkeypatch.setattr(lm_eval, "token_losses", lambda model, inputs, targets: targets.float())
    assert harness.lm._window([1, 5], [2, 3]) == -5.0
    assert harness.asked == [(3, "lower --max-length")]


def test_the_harness_is_called_with_the_specs_settings(monkeypatch, tmp_path):
    """It is one process; and what is said of BOS and of errors."""
    called = []
    results = {"results": {"own": {"acc,none": 0.5, "acc_stderr,none": 1, "alias": "x"}},
               "n-samples": {"own": {"effective": 3, "original": 9}},
               "versions": {"own": 2}}  # fmt: skip
    monkeypatch.setattr(lm_eval.evaluator, "evaluate", lambda **how: called.append(how) or results)
    monkeypatch.setattr(lm_eval, "load_tasks", lambda names, folder: called.append((names, folder)) or {"tasks": {"own": 1}})
    monkeypatch.setattr(lm_eval, "check_names", lambda *given: called.append(given))
    monkeypatch.delenv("DISABLE_MULTIPROC", raising=False)
    (tmp_path / "own.yaml").write_text("task: own")
    context = Context(sources=Sources(include_path=tmp_path))
    for bos, scored, said in ((True, True, "one BOS before every context; whole texts begin with a second one, scored"),
                              (True, False, "one BOS before every context"),
                              (False, False, "BOS only where there is no context")):  # fmt: skip
        spec = KINDS["lm_eval"](
            tasks=("own",), include=digest(tmp_path), limit=7, add_bos=bos, scores_bos=scored, precision="bf16"
        )
        (row,) = lm_eval.evaluate(LOADED, spec, context).to_dict("records")
        assert (row["value"], row["stderr"], row["num_examples"], row["task_version"]) == (50.0, 100.0, 3, "2")
        assert context.extras == {"bos_policy": said, "bootstrap_iterations": 1000}
        names, loaded, how = called[-3:]
        assert names == loaded == (("own",), tmp_path) and os.environ["DISABLE_MULTIPROC"] == "1"
        lm = how.pop("lm")
        assert (lm.model, lm._compute.precision) == (LOADED.model, "bf16")
        assert how == dict(task_dict={"tasks": {"own": 1}}, limit=7, bootstrap_iters=1000, log_samples=False)
    with pytest.raises(ValueError, match="the spec asks for include 0123"):
        lm_eval.evaluate(LOADED, KINDS["lm_eval"](tasks=("own",), include="0123"), context)


@pytest.mark.parametrize(("text", "name"), [
    ("task: own", "own"), ("group: own", "own"), ("tag: own", "own"), ('task: "own-1.x"', "own-1.x"), ("task:   'own'", "own"),
    ("include: a.yaml\ntask: own", "own"), ("  task: own", None), ("atask: own", None),
])  # fmt: skip
def test_names_of_task_files(text, name, tmp_path):
    (tmp_path / "below").mkdir()
    (tmp_path / "below" / "x.yaml").write_text(text)
    if name is None:
        with pytest.raises(ValueError, match="holds no lm-eval task file"):
            check_names(("own",), tmp_path)
    else:
        check_names((name,), tmp_path)
        with pytest.raises(ValueError, match=r"has no task file for other$"):
            check_names((name, "other"), tmp_path)


def test_tasks_of_the_harness_that_are_none_of_the_papers(monkeypatch):
    """Only then are all of its files read; what is filled in where they are named."""
    monkeypatch.setattr(task_files, "harness_tasks", lambda: SimpleNamespace(task_index={"mmlu": 1, "gsm8k": 2}))
    check_names(("mmlu", "piqa", "gsm8k"), None)
    with pytest.raises(ValueError, match="task odd is not known to lm-eval"):
        check_names(("mmlu", "piqa", "odd"), None)
    setting = Setting(SimpleNamespace(fingerprint="aa"), UserData(), "bf16", "m")
    with pytest.raises(ValueError, match="task odd is not known"):
        KINDS["lm_eval"](tasks=("odd",)).bound(setting)
    assert KINDS["lm_eval"](tasks=("mmlu",)).bound(setting).include == "harness"


def test_what_a_folder_of_tasks_is_bound_to(tmp_path):
    (tmp_path / "own.yaml").write_text("task: own")
    setting = Setting(SimpleNamespace(fingerprint="aa"), UserData(include_path=tmp_path), "bf16", "m")
    assert KINDS["lm_eval"](tasks=("own",)).bound(setting).include == digest(tmp_path)
    assert KINDS["lm_eval"](tasks=("own",), include="0123").bound(setting).include == "0123", "what is bound stays"
    assert KINDS["lm_eval"](include="local").bound(setting).include == "local-v1:aa"
    with pytest.raises(ValueError, match="no stand-in for task own"):
        KINDS["lm_eval"](tasks=("own",), include="local-v1:aa")
    reads = lambda **given: KINDS["lm_eval"](tasks=("piqa", "copa"), **given).tokens_read()  # noqa: E731
    assert reads(include="local-v1:aa", limit=3) == [(3 * 80 + 3 * 40, 512)] and reads(max_length=99)[0][1] == 99


class Manager:
    """The harness's manager of tasks, which notes how it is made and asked."""

    made: ClassVar[list] = []

    def __init__(self, include_path=None, include_defaults=True):
        self.made.append((include_path, include_defaults))

    def load(self, names):
        self.made.append(names)
        if isinstance(self.fails, Exception):
            raise self.fails
        return {"tasks": {"own": SimpleNamespace(set_config=lambda **how: self.made.append(how),
                                                 set_fewshot_seed=lambda **how: self.made.append(how))}}  # fmt: skip


def test_tasks_are_loaded_without_examples_from_where_they_are(monkeypatch, tmp_path):
    monkeypatch.setattr(task_files, "TaskManager", Manager)
    task_files.harness_tasks.cache_clear()
    fewshot = [dict(key="num_fewshot", value=0), dict(seed=0)]
    Manager.fails, Manager.made = None, []
    for names, folder, made in (
        (("piqa",), None, [(None, False), [task_files.harness_file("piqa")]]),
        (("piqa", "own"), None, [(None, True), ["piqa", "own"]]),
        (("piqa",), tmp_path, [(tmp_path, False), ["piqa"]]),
    ):  # fmt: skip
        Manager.made.clear()
        task_files.load_tasks(names, folder)
        assert Manager.made == made + fewshot
    Manager.fails = ValueError("its own words")
    with pytest.raises(ValueError, match=r"^its own words$"):
        task_files.load_tasks(("piqa",), None)
    Manager.fails = RuntimeError("odd\nand more")
    with pytest.raises(ValueError, match=r"the data of piqa are neither local nor to be had: odd\nName local"):
        task_files.load_tasks(("piqa",), None)
    task_files.harness_tasks.cache_clear()
    asked = []
    monkeypatch.setattr(task_files, "load_tasks", lambda *given: asked.append(given))
    (tmp_path / "a.yaml").write_text("task: piqa")
    KINDS["lm_eval"](tasks=("piqa",), include=digest(tmp_path)).fetch(UserData(include_path=tmp_path))
    KINDS["lm_eval"](tasks=("piqa",)).fetch(UserData(include_path=tmp_path))
    assert asked == [(("piqa",), tmp_path), (("piqa",), None)]


def test_task_files_and_silence(tmp_path, capsys):
    """Only the split that is scored is named; bars, words and warnings of the harness are not shown meanwhile."""
    made = SimpleNamespace(lm_eval=lambda name: [{"x": "ä"}])
    task_files.write_stand_ins(made, ("piqa", "copa"), tmp_path)
    assert (tmp_path / "copa.jsonl").read_text() == '{"x": "\\u00e4"}\n'
    lines = (tmp_path / "piqa.yaml").read_text().splitlines()
    files = {"cache_dir": str(tmp_path / "cache"), "data_files": {"validation": str(tmp_path / "piqa.jsonl")}}
    assert lines == [
        "task: piqa", "dataset_path: json", f"dataset_kwargs: {json.dumps(files)}",
        f"include: {json.dumps(task_files.harness_file('piqa'))}", "dataset_name: null", "training_split: null",
        "validation_split: validation", "test_split: null", "should_decontaminate: false", "metadata:", "  version: local-1",
    ]  # fmt: skip
    logger = logging.getLogger("lm_eval")
    before = logger.level
    datasets.enable_progress_bars()
    with suppress(KeyError), task_files.quiet():
        print("out")
        print("error", file=sys.stderr)
        assert logger.level == logging.ERROR and datasets.are_progress_bars_disabled()
        raise KeyError
    assert logger.level == before and capsys.readouterr() == ("", "")


TREC = {"input": "", "context": "c", "answers": ["x"], "all_classes": ["x", "y"]}


def test_longbench_is_read_from_the_hubs_archive(monkeypatch, tmp_path):
    """Examples of each task are the first so many; its commit is the folder's name."""
    (tmp_path / "commit").mkdir()
    archive = tmp_path / "commit" / "data.zip"
    lines = "".join(f"{json.dumps(TREC | {'n': number})}\n \n\n" for number in range(3))
    with zipfile.ZipFile(archive, "w") as file:
        for name in ("repobench-p", "trec"):
            file.writestr(f"data/{name}.jsonl", lines)
    monkeypatch.setattr(longbench, "hub_archive", lambda: archive)
    context = Context()
    found = longbench.load_examples(["repobench_p", "trec"], KINDS["longbench"](max_examples=2), context)
    assert {name: [each["n"] for each in own] for name, own in found.items()} == {"repobench_p": [0, 1], "trec": [0, 1]}
    assert context.extras == {"dataset_commit": "commit"}
    assert len(longbench.load_examples(["trec"], KINDS["longbench"](), context)["trec"]) == 3
    for body, why in ((b"[" * 100_000, "cannot be read as LongBench data"), (b"\xff", "cannot be read"),
                      (b"3", "cannot be read"),
                      (b"\n \n", "has no examples"),
                      *((json.dumps({k: v for k, v in TREC.items() if k != name}).encode(),
                         f"lacks the LongBench fields {name}$")
                        for name in longbench.FIELDS)):  # fmt: skip
        with pytest.raises(ValueError, match=why):
            longbench._parsed(body, "where")


def test_the_hub_is_asked_for_the_data_set(monkeypatch):
    asked = []
    longbench_spec.hub_archive.cache_clear()
    fetched = lambda *given, **how: asked.append((given, how)) or "there/data.zip"  # noqa: E731
    monkeypatch.setattr("huggingface_hub.hf_hub_download", fetched)
    KINDS["longbench"]().fetch(UserData())
    assert asked == [(("THUDM/LongBench", "data.zip"), {"repo_type": "dataset"})] and longbench_spec.hub_archive() == Path(
        "there/data.zip"
    )
    longbench_spec.hub_archive.cache_clear()
    monkeypatch.setattr("huggingface_hub.hf_hub_download", lambda *given, **how: (_ for _ in ()).throw(KeyError("odd")))
    with pytest.raises(ValueError, match=r"neither in the local cache nor to be had from the hub \(KeyError\)"):
        longbench_spec.hub_archive()
    assert [longbench_spec.hub_name(name) for name in ("multi_news", "multifieldqa_en")] == ["multi_news", "multifieldqa_en"]


def test_longbench_is_bound_to_a_folder_that_has_the_tasks(tmp_path):
    (tmp_path / "trec.jsonl").write_text("{}")
    setting = Setting(SimpleNamespace(fingerprint="aa"), UserData(longbench=tmp_path), "bf16", "m")
    assert KINDS["longbench"](tasks=("trec",)).bound(setting).dataset == digest(tmp_path)
    assert KINDS["longbench"](tasks=("trec",), dataset="0123").bound(setting).dataset == "0123", "what is bound stays"
    with pytest.raises(ValueError, match=r"has no lcc\.jsonl"):
        KINDS["longbench"](tasks=("trec", "lcc")).bound(setting)
    read = lambda **given: KINDS["longbench"](tasks=("trec",), max_prompt_tokens=9, **given).tokens_read()  # noqa: E731
    assert read(max_examples=3, max_new_tokens=5) == [(3 * 14, 9)] and read(max_examples=999, max_new_tokens=99) == [
        (200 * 73, 9)
    ]


def test_scores_leave_the_depth_of_recursion_as_it_is(monkeypatch):
    """It is raised to 20,000, never lowered; without a reference there is no score."""
    seen = []
    monkeypatch.setattr(longbench, "_metrics", lambda: SimpleNamespace(
        qa_f1_score=None, classification_score=None,
        rouge_score=lambda *given, **how: seen.append(sys.getrecursionlimit()) or 0.5,
    ))  # fmt: skip
    limit = sys.getrecursionlimit()
    try:
        for own, raised in ((limit, max(limit, 20_000)), (30_000, 30_000)):
            sys.setrecursionlimit(own)
            assert longbench.score("gov_report", "p", TREC) == 50.0
            assert seen.pop() == raised and sys.getrecursionlimit() == own
    finally:
        sys.setrecursionlimit(limit)
    assert longbench.score("gov_report", "p", TREC | {"answers": []}) == 0.0


def test_prompts_of_longbench_are_cut_in_their_middle_and_answers_short(monkeypatch):
    codec = SimpleNamespace(
        bos_id=0, encode=lambda text: [ord(sign) for sign in text], decode=lambda ids: "".join(map(chr, filter(None, ids)))
    )
    whole = [0, *map(ord, "abcdefg")]
    for most, ids in ((8, whole), (7, [0, *map(ord, "abefg")]), (6, [0, *map(ord, "abefg")]), (4, [0, *map(ord, "afg")])):
        assert longbench.prompt_ids("abcdefg", TREC, codec, most) == ids
    assert len(longbench.prompt_ids("abcdefgh", TREC, codec, 9)) == 9
    asked = []
    monkeypatch.setattr(longbench, "load_examples", lambda names, spec, context: {name: [TREC] * 2 for name in names})
    monkeypatch.setattr(longbench, "template_of", lambda task: "{{context}}ab")

    def answered(what, prompts, loaded, context, precision, limit):
        asked.append((what, prompts, precision, limit))
        return {key: {"prediction": "\nx\ny"} for key in prompts}

    monkeypatch.setattr(longbench, "answered", answered)
    monkeypatch.setattr(longbench, "score", lambda task, cut, example: len(cut))
    for most, limits in ((None, [64, 512]), (100, [64, 100]), (9, [9, 9])):
        for original, scores in ((False, [1, 1, 1, 1]), (True, [1, 1, 4, 4])):
            asked.clear()
            context = Context()
            spec = KINDS["longbench"](
                tasks=("trec", "gov_report"), max_new_tokens=most, original_cut=original, precision="bf16", max_prompt_tokens=2
            )
            rows = longbench.evaluate(SimpleNamespace(tokenizer=codec), spec, context)
            assert [limit for *_, limit in asked] == limits and rows["score"].tolist() == scores
            assert asked[0] == ("LongBench (trec)", {"trec/0": [0, ord("b")], "trec/1": [0, ord("b")]}, "bf16", limits[0])
            assert context.extras == {"num_examples": {"trec": 2, "gov_report": 2}}


def test_a_template_that_changed_is_noticed(monkeypatch):
    monkeypatch.setattr("lm_eval.tasks._yaml_loader.load_yaml", lambda path, resolve_func: {"doc_to_text": f"of {path.stem}"})
    assert longbench.template_of("trec") == "of trec"
    with pytest.raises(AssertionError, match="template of repobench-p has changed"):
        longbench.template_of("repobench_p")


def test_examples_of_ruler_are_written_as_tasks_and_scored(opened, monkeypatch, tmp_path):
    """By the metric of the way of asking; only versions of this maker are made."""
    written, seen = [], []
    monkeypatch.setattr(ruler, "haystack_texts", lambda name, context: seen.append(name) or iter(["text"]))
    made = SimpleNamespace(make=lambda *place: place)
    monkeypatch.setattr(ruler, "Examples", lambda spec, codec, texts: made)
    monkeypatch.setattr(
        ruler, "write_task", lambda folder, name, rows, split, lines: written.append((name, rows, split, lines))
    )
    monkeypatch.setattr(ruler, "load_tasks", lambda names, folder: names)
    results = {
        "results": {f"niah_single_1_{n}": {"acc,none": 0.25, "score,none": 0.5, "score_stderr,none": 0.125} for n in (64, 96)}
    }
    monkeypatch.setattr(ruler, "results_of", lambda tasks, loaded, spec, *given: seen.append((tasks, spec)) or results)
    given = dict(
        tasks=("niah_single_1",), lengths=(96, 64), samples=2, text="heldout:aa", version=2, precision="bf16", max_new_tokens=9
    )
    for answers, value in (("generate", 50.0), ("choose", 25.0)):
        written.clear()
        rows = ruler.evaluate(LOADED, KINDS["ruler"](**given, answers=answers), Context())
        assert [(row.task, row.length, row.value, row.num_examples) for row in rows.itertuples()] == [
            ("niah_single_1", 96, value, 2), ("niah_single_1", 64, value, 2)
        ]  # fmt: skip
        assert [each[:3] for each in written] == [
            (f"niah_single_1_{length}", [("niah_single_1", length, 0), ("niah_single_1", length, 1)], "test")
            for length in (96, 64)
        ]  # fmt: skip
        include, *rest = written[0][3]
        assert include.endswith(f'/{answers}.yaml"')
        limits = {"do_sample": False, "max_gen_toks": 9, "until": []}
        assert rest == ([f"generation_kwargs: {json.dumps(limits)}"] if answers == "generate" else [])
        tasks, spec = seen[-1]
        assert (tasks, spec.max_length, spec.precision) == (("niah_single_1_96", "niah_single_1_64"), 96, "bf16")
    for version in (1, 3):
        with pytest.raises(ValueError, match=f"version {version}: this suite makes examples of version 2"):
            ruler.evaluate(LOADED, KINDS["ruler"](**given | {"version": version}), Context())


def test_ruler_reads_text_where_a_task_hides_in_it(monkeypatch):
    asked = []
    monkeypatch.setattr(ruler, "haystack_ids", lambda codec, texts, count: asked.append((list(texts), count)) or [1])
    for tasks, read in (((0,), 0), ((1,), 1), ((0, 2), 1)):
        spec = KINDS["ruler"](tasks=tuple(ruler.TASKS[number] for number in tasks), lengths=(64, 128, 96))
        assert ruler.Examples(spec, None, iter([" a\n\n b ", "c"])).hay == [1] * read
    assert asked == [(["a b ", "c "], 128)] * 2


def test_recall_is_asked_in_batches_and_of_runs_of_the_task(opened, monkeypatch):
    """No logit may be other than finite."""
    task = RecallTask(num_keys=2, num_assignments=1, num_queries=1, num_symbols=4)
    data = SimpleNamespace(recall=task, fingerprint="aa")
    sizes, odd = [], [None]

    def model(input_ids, use_cache):
        sizes.append(len(input_ids))
        logits = torch.nn.functional.one_hot(input_ids.roll(-1, 1), 9).float()
        if odd[0] is not None:
            logits[0, 1, 3] = odd[0]
        return SimpleNamespace(logits=logits)

    loaded = SimpleNamespace(model=model, subject=SimpleNamespace(run=SimpleNamespace(data=data), model="m"))
    monkeypatch.setattr(recall, "BATCH_TOKENS", 20)
    rows = recall.evaluate(loaded, of("recall", num_sequences=5), Context())
    assert sizes == [3, 2] or (sizes == [2, 2, 1] and len(rows) == 5)
    assert opened == [("recall", 5), *sizes] and rows["num_queries"].tolist() == [2] * 5
    for odd[0] in (math.nan, math.inf):
        with pytest.raises(ValueError, match="a logit of m is not finite"):
            recall.evaluate(loaded, of("recall", num_sequences=5), Context())
    for run in (None, SimpleNamespace(data=SimpleNamespace(recall=None, fingerprint="aa")),
                SimpleNamespace(data=SimpleNamespace(recall=task, fingerprint="bb"))):  # fmt: skip
        loaded.subject.run = run
        with pytest.raises(ValueError, match="the evaluation is of recall task aa, which m was not trained on"):
            recall.evaluate(loaded, of("recall", num_sequences=5), Context())


def test_equal_logits_are_of_attention():
    loaded = SimpleNamespace(fresh=lambda: nn.Linear(1, 1), subject=SimpleNamespace(model="mamba"))
    with pytest.raises(ValueError, match="mamba is no attention model"):
        equal_logits.evaluate(loaded, KINDS["equal_logits"](), Context())


def test_a_training_curve_is_of_a_finished_run_of_ours():
    row = dict.fromkeys(KINDS["training_curve"].SCHEMA.columns, 1) | {"mfu": None, "mfu_dense": None, "pruned_share": None}
    folder = SimpleNamespace(finished=True, path="p", read_metrics=lambda: [row | {"wall_s": 3}])
    loaded = SimpleNamespace(subject=SimpleNamespace(run_folder=folder))
    found = training_curve.evaluate(loaded, KINDS["training_curve"](), None)
    assert list(found) == list(row) and all(found[name].dtype == float for name in ("mfu", "mfu_dense", "pruned_share"))
    folder.read_metrics = list
    with pytest.raises(ValueError, match="the run was trained elsewhere"):
        training_curve.evaluate(loaded, KINDS["training_curve"](), None)
    folder.finished = False
    with pytest.raises(ValueError, match="the run is not finished"):
        training_curve.evaluate(loaded, KINDS["training_curve"](), None)


@pytest.mark.parametrize("device", ["cpu", "cuda:1"])
def test_repeats_are_timed_in_turn_and_waited_for(device, opened, monkeypatch):
    """On a GPU before each and behind each; those of the warm-up do not count."""
    events = []
    monkeypatch.setattr("torch.cuda.synchronize", lambda device: events.append(device))
    clock = iter(range(100))
    monkeypatch.setattr(throughput.time, "perf_counter", lambda: events.append("t") or float(next(clock)))
    spec = KINDS["throughput"](warmup=1, repeats=2)
    found = throughput.seconds_of("what", [lambda: events.append("a"), lambda: events.append("b")], spec, Compute(device))
    wait = [device] * (device != "cpu")
    timed = lambda name, *end: [*wait, "t", name, *wait, *end]  # noqa: E731
    assert events == timed("a") + timed("b") + (timed("a", "t") + timed("b", "t")) * 2
    assert found.tolist() == [[1.0, 1.0], [1.0, 1.0]] and opened == [("what", 6)] + [1] * 6


@pytest.mark.parametrize("mode", ["train", "generate"])
def test_what_is_timed_fits_into_the_positions(mode, monkeypatch):
    """Prompts and new tokens, where there are any; peak and memory are the device's."""
    checked = []
    monkeypatch.setattr(throughput, "check_machine", lambda wanted, device: f"{wanted} on {device}")
    monkeypatch.setattr(throughput, "check_positions", lambda model, *given: checked.append(given))
    monkeypatch.setattr(throughput, "lift_limit", lambda: checked.append("lifted"))
    monkeypatch.setattr(throughput, "num_params", lambda model: 5)
    monkeypatch.setattr(throughput, "_own_spec", lambda model: None)
    monkeypatch.setattr(throughput, "peak_flops", lambda device: checked.append(str(device)))
    monkeypatch.setattr(throughput, "peak_memory_gib", lambda device: {"cuda:1": 3.0}[device])
    monkeypatch.setattr(throughput, "_time_steps", lambda *given: (np.ones((2, 1)), 3.0))
    monkeypatch.setattr(throughput, "_time_generation", lambda *given: (1.0, np.array([1.0, 1.0])))
    spec = KINDS["throughput"](mode=mode, seq_len=16, new_tokens=5, batch_size=2, machine="m", precision="fp32")
    (row,) = throughput.evaluate(SimpleNamespace(fresh=lambda: "model"), spec, Context(device="cuda:1")).to_dict("records")
    assert checked == [(21 if mode == "generate" else 16, "lower --seq-len"), "lifted", "cuda:1"]
    assert (row["peak_memory_gib"], row["fwd_flops_per_token"], row["machine"]) == (3.0, 10.0, "m on cuda:1") and math.isnan(
        row["mfu"]
    )
    assert row["tokens_per_s"] == (32.0 if mode == "train" else 2 * 4 / 1e-9)


@pytest.mark.parametrize("fails", [False, True])
def test_a_timed_step_is_the_specs_and_leaves_the_model_as_it_was(fails, monkeypatch):
    """Out of memory is said with the micro-batches."""
    model, seen = nn.Linear(2, 2).train(), []
    model.gradient_checkpointing_disable = lambda: seen.append("no checkpoints")
    model.weight.grad = torch.ones(2, 2)

    @contextmanager
    def step(model, ids, train, execution, world):
        seen.append(
            (
                train.precision,
                train.batch_tokens,
                execution.activation_checkpointing,
                execution.micro_batch_tokens,
                str(world.device),
            )
        )
        torch.use_deterministic_algorithms(not before)
        model.eval()
        if fails:
            raise torch.OutOfMemoryError
        yield "step"

    monkeypatch.setattr(throughput, "repeated_step", step)
    monkeypatch.setattr(throughput, "_own_spec", lambda model: None)
    before = torch.are_deterministic_algorithms_enabled()
    for micro, recompute in ((None, False), (8, True)):
        spec = KINDS["throughput"](seq_len=8, micro_batch_tokens=micro, activation_checkpointing=recompute)
        said = (
            pytest.raises(ValueError, match=f"out of memory on cpu with micro-batches of {micro or 16} tokens; lower")
            if fails
            else nullcontext()
        )
        with said, throughput.training_step(model, torch.zeros(2, 8, dtype=torch.long), spec, Compute("cpu", "bf16")) as made:
            assert made == "step" and not model.training
        assert model.training and model.weight.grad is None and torch.are_deterministic_algorithms_enabled() == before
        assert seen == [("bf16", 16, recompute, micro, "cpu"), *["no checkpoints"] * recompute]
        seen.clear()


def test_steps_are_compiled_where_a_spec_says_so(monkeypatch):
    asked = []
    monkeypatch.setattr(
        throughput, "fitted", lambda execution, model, train, device, **how: asked.append((device, how)) or execution
    )
    monkeypatch.setattr(throughput, "repeated_step", lambda *given: nullcontext("step"))
    monkeypatch.setattr(throughput, "_own_spec", lambda model: None)
    for compiled in (True, False):
        spec = KINDS["throughput"](seq_len=8, compile=compiled, micro_batch_tokens=8)
        with throughput.training_step(nn.Linear(1, 1), torch.zeros(2, 8), spec, Compute("cuda:1")):
            pass
    assert asked == [("cuda:1", dict(micro_batch_tokens=8, compile=compiled)) for compiled in (True, False)]


@pytest.mark.parametrize("beside", [False, True])
def test_steps_are_tuned_first_and_memory_is_of_the_model_alone(beside, tiny_fox, monkeypatch):
    events = []
    other = tiny_fox(64)
    monkeypatch.setattr(
        throughput, "training_step", lambda model, ids, spec, compute: nullcontext(lambda: events.append(model))
    )
    monkeypatch.setattr(throughput, "vocab_size", lambda model: 64)
    monkeypatch.setattr(throughput, "peak_memory_gib", lambda device: events.append(f"memory of {device}") or 3.0)
    monkeypatch.setattr(throughput, "build_model", lambda spec, device: events.append((spec, device)) or "other")
    monkeypatch.setattr(throughput, "seconds_of", lambda what, steps, spec, compute: [step() for step in steps] and what)
    spec = KINDS["throughput"](seq_len=8, beside=other if beside else None)
    assert throughput._time_steps("model", spec, Compute("cuda:1")) == ("throughput (train)", 3.0)
    assert events == [
        "model",
        "model",
        "memory of cuda:1",
        *([(other, "cuda:1")] if beside else []),
        "model",
        *["other"] * beside,
    ]


def test_generation_is_timed_in_one_batch(monkeypatch):
    """To the first token, and to the last."""
    asked, given = [], []
    monkeypatch.setattr(throughput, "vocab_size", lambda model: 64)
    monkeypatch.setattr(
        throughput, "generate", lambda model, prompts, compute, **how: asked.append((len(prompts), len(prompts[0]), how))
    )

    def timed(what, actions, spec, compute):
        actions[0]()
        given.append(what)
        return np.array([[1.0], [2.0], [9.0]])

    monkeypatch.setattr(throughput, "seconds_of", timed)
    prefill, whole = throughput._time_generation("model", KINDS["throughput"](seq_len=8, batch_size=3, new_tokens=5), Compute())
    assert (prefill, whole.tolist(), given) == (2.0, [1.0, 2.0, 9.0], ["throughput (prefill)", "throughput (generate)"])
    assert asked == [(3, 8, dict(batch_tokens=39, max_new_tokens=new)) for new in (1, 5)]
    assert (
        throughput._random_ids("model", KINDS["throughput"](seq_len=8)).tolist()
        == throughput._random_ids("model", KINDS["throughput"](seq_len=8)).tolist()
    )


def test_attention_is_timed_as_the_spec_says(opened, monkeypatch):
    """Documents are the first ones, with gradients where they are asked for; nothing of what was given is kept."""
    layers = {0: SimpleNamespace(spec=None, pruning=lambda q, k, tolerance: {"tolerance": tolerance})}
    seen, timings = [], []
    monkeypatch.setattr(attention_speed, "check_machine", lambda wanted, device: f"{wanted} on {device}")
    monkeypatch.setattr(attention_speed, "gated_layers", lambda model: {})
    monkeypatch.setattr(attention_speed, "watched", lambda layers, visit: nullcontext())
    monkeypatch.setattr(attention_speed, "_attention", lambda given, tolerance, timing, compute, backward: timings.append(
        (tolerance, timing.warmup, timing.repeats, timing.batch_size, timing.seq_len, timing.compile, backward)
    ) or np.array([1.0]))  # fmt: skip
    monkeypatch.setattr(
        attention_speed, "training_step", lambda model, ids, timing, compute: seen.append(ids) or nullcontext("step")
    )
    monkeypatch.setattr(attention_speed, "seconds_of", lambda what, actions, timing, compute: np.array([2.0]))
    spec = of("attention_speed", seq_len=8, batch_size=2, warmup=3, repeats=4, log_tolerance=-3.0, machine="m")
    loaded = SimpleNamespace(model=lambda **how: seen.append(how["input_ids"]))
    rows = attention_speed.evaluate(loaded, spec, Context())
    assert all(ids.tolist() == Split().read(slice(0, 2), 0, 8).tolist() for ids in seen) and len(seen) == 3
    assert timings == [(tolerance, 3, 4, 2, 8, True, backward) for tolerance in (None, -3.0) for backward in (False, True)]
    assert set(rows["tokens"]) == {16} and set(rows["machine"]) == {"m on cpu"} and len(rows) == 6
    monkeypatch.undo()
    how = []

    def attention(q, k, v, log_fgate, tolerance):
        how.append((tolerance, torch.is_grad_enabled(), q.requires_grad))
        return q + k + v + log_fgate

    gradients = []
    real = torch.autograd.grad
    monkeypatch.setattr(torch.autograd, "grad", lambda *given: gradients.append(1) or real(*given))
    monkeypatch.setattr(attention_speed, "forgetting_attention", attention)
    monkeypatch.setattr(attention_speed, "seconds_of", lambda what, actions, timing, compute: actions[0]())
    for backward in (True, False):
        attention_speed._attention([(layers[0], *(torch.ones(2) for _ in range(4)))], -3.0, None, Compute(), backward)
    assert how == [(-3.0, True, True), (-3.0, False, False)] and gradients == [1]


UNIT = "The cat sat there."


@pytest.mark.parametrize(("texts", "found"), [
    (["\n".join([UNIT] * 20)] * 2, [20, 20]), (["\n".join([UNIT] * 20), "\n".join([UNIT] * 19)], None), ([UNIT * 20] * 2, None),
    ([" ".join([UNIT] * 20)] * 3, [20] * 3), (["! ".join(["The cat sat"] * 20) + "!"] * 2, [20, 20]),
    (["\n".join([f"  {UNIT}  "] * 20)] * 2, [20, 20]), (["\n".join(["The cat sat"] * 20)] * 2, None),  # eleven letters
    (["\n".join(["Cats sat now"] * 20)] * 2, [20, 20]), (["\n".join(["Cats satagain"] * 20)] * 2, None),  # two words
    (["\n".join(["a b " + "c" * 156] * 20)] * 2, [20, 20]), (["\n".join(["a b " + "c" * 157] * 20)] * 2, None),
    (["\n".join([UNIT] * 20)] * 99, [20] * 64),
])  # fmt: skip
def test_units_of_stand_ins(texts, found, monkeypatch):
    """Sentences or lines of 12 to 160 letters and three words or more, of documents that have twenty."""
    monkeypatch.setattr(stand_ins, "heldout_texts", lambda corpus: iter(texts))
    if found is None:
        with pytest.raises(ValueError, match="two held-out documents of 20 sentences or lines"):
            stand_ins._units(None)
    else:
        assert [len(units) for units in stand_ins._units(None)] == found


def test_texts_that_repeat_themselves_make_no_stand_ins(monkeypatch):
    """The names of stand-ins tell their maker and their corpus."""
    monkeypatch.setattr(stand_ins, "_TRIES", 99)
    draw = stand_ins._Draw([["same words here"] * 20] * 2, 0, "piqa")
    with pytest.raises(ValueError, match="repeats itself too much"):
        draw.choices(2, same=True)
    with pytest.raises(ValueError, match="repeats itself too much"):
        draw.others(2, 0, "another unit", same=True)
    assert draw.others(1, 0, "another unit", same=True) == ["same words here"]
    lost = stand_ins._Draw([[f"w{n}a w{n}b w{n}c" for n in range(20)]] * 2, 0, "lambada_openai")
    with pytest.raises(ValueError, match="repeats no words"):
        stand_ins._lambada(lost)
    assert [stand_ins.fingerprint_in(name) for name in ("hub", "harness", "0123", "local-v1:aa:b")] == [
        None,
        None,
        None,
        "aa:b",
    ]
    for name in ("local-v0:aa", "local-v10:aa", "local-v1x:aa"):
        with pytest.raises(ValueError, match="this version makes local-v1: plan it again"):
            stand_ins.fingerprint_in(name)
    counts = SimpleNamespace(heldout_rows=1)
    for name, given in (("local-v1:aa", None), ("hub", counts), ("local-v1:aa", SimpleNamespace(heldout_rows=2))):
        stand_ins.check_stand_ins(name, given)
    with pytest.raises(ValueError, match="at least two held-out documents"):
        stand_ins.check_stand_ins("local-v1:aa", counts)
    made = [
        stand_ins._Draw([["a b c"] * 20] * 2, seed, task).rng.integers(10**9) for seed in (0, 1) for task in ("piqa", "copa")
    ]
    assert len(set(made)) == 4


@pytest.mark.parametrize(("prediction", "line"), [
    ("x = 1\ny", "x = 1"), ("# a\nx", "x"), ("// a\nx", "x"), ("```\nx", "x"), ("a # b\na // b\n`a`\nx\ny", "x"),
    ("\n\nx", "x"), ("# a", ""), ("a / b\nx", "a / b"),
])  # fmt: skip
def test_the_line_of_code_that_is_compared(prediction, line, monkeypatch):
    compared = []
    fuzz = SimpleNamespace(ratio=lambda *given: compared.append(given) or 40)
    monkeypatch.setattr(longbench, "_metrics", lambda: SimpleNamespace(fuzz=fuzz))
    assert longbench._code_similarity(prediction, "truth", all_classes=None) == 0.4 and compared == [(line, "truth")]


def test_data_of_longbench_have_all_fields():
    whole = {name: [] for name in ("input", "context", "answers", "all_classes")}
    assert longbench._parsed(json.dumps(whole).encode() + b"\n\n", "f") == [whole]
    for name in whole:
        line = json.dumps({key: value for key, value in whole.items() if key != name})
        with pytest.raises(ValueError, match=f"f lacks the LongBench fields {name}$"):
            longbench._parsed(f"{json.dumps(whole)}\n{line}".encode(), "f")
    for body, told in ((b"", "f has no examples"), (b"\xff", "cannot be read as LongBench data"), (b"3", "cannot be read"),
                       (b"{", r"cannot be read as LongBench data .*: fetch it again")):  # fmt: skip
        with pytest.raises(ValueError, match=told):
            longbench._parsed(body, "f")


def test_examples_of_ruler_differ_by_task_length_and_number():
    """Each is drawn anew: its key is of the three together."""
    codec = SimpleNamespace(encode=lambda text: text.split(), decode=" ".join)
    spec = SimpleNamespace(lengths=(512,), tasks=ruler.TASKS, answers="choose", max_new_tokens=0)
    examples = ruler.Examples(spec, codec, itertools.repeat("A word. " * 9))
    made = {place: examples.make(*place)["outputs"] for place in itertools.product(ruler.TASKS[:2], (256, 512), (0, 1))}
    assert len({value for (value,) in made.values()}) == 8
    for task in ruler.TASKS:  # the longest that fits: one token is for the answer's end, and one for BOS
        one = examples.make(task, 256, 0)
        assert 256 - 40 < len(one["input"].split()) <= 256 - 1 - 2


def test_units_of_a_document_end_where_sentences_do(monkeypatch):
    sentence = "{} of the books were read by then{}"
    sentences = " ".join(sentence.format(name, end) for name in ("All", "None", "Some") for end in ".!?")
    text = sentences + "\nA short line\ntoo few\n" * 12
    monkeypatch.setattr(stand_ins, "heldout_texts", lambda corpus: [text, text])
    (units, again) = stand_ins._units(None)
    assert units == again and units[:3] == [sentence.format("All", end) for end in ".!?"]
    assert units[9:] == ["A short line"] * 12
