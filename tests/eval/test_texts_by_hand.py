"""Own texts of evaluations: last words, stand-ins, examples of RULER."""

import itertools
from types import SimpleNamespace

import pytest

from eval.last_words import measure as last_words
from eval.ruler import measure as ruler
from eval.shell import stand_ins
from eval.shell.context import Context
from tests.eval.played import CORPUS, of


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
    rows = last_words.evaluate(loaded, of("last_words", num_documents=3, words=8, near=3), context)
    assert seen[0] == ["a", "b", "c"] and context.extras == {"sources": [0, 1, 2]}
    assert seen[1][1] == {"0/passage": ([9, 3, 7, 7], 2), "0/near": ([9, 1, 7, 7], 2)} and seen[1][4] == "bf16"
    assert rows.to_dict("records") == [
        {"item": 0, "document": 1, "logp": -1.0, "right": 100.0, "logp_near": -1.0, "right_near": 100.0, "num_tokens": 2}
    ]
    with pytest.raises(ValueError, match="10 documents exceed"):
        last_words.evaluate(loaded, of("last_words", num_documents=10, words=8, near=3), context)


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
