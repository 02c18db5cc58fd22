"""Last words: the rule on texts made by hand, and the scores against plain log-probabilities."""

from dataclasses import replace
from itertools import islice

import pytest
import torch

from beyond.eval.last_words import measure
from beyond.eval.last_words.spec import Spec
from eval.runner.text import TextCodec, heldout_texts
from tests.eval.oracles import llama, logp

RULE = Spec(num_documents=1, num_items=9, words=10, near=3, common=1)
TEXT = "the harbour was the calm the one the way to the harbour. They saw the."
ASKED = Spec(num_documents=3, num_items=12, words=40, near=10, common=5)


@pytest.mark.parametrize(("changes", "old", "new"), [
    (dict(words=8), "", ""),  # it stood too long ago
    ({}, "harbour.", "harbour,"),  # the sentence goes on
    ({}, " harbour.", "-harbour."),  # a part of a word
    ({}, "harbour", "sea"),  # short
    ({}, "way", "harbour"),  # one of the last words
    (dict(common=2), "", ""),  # among the most frequent
    ({}, "They saw the.", "HARBOUR " * 5),  # however they are written
    ({}, "The harbour", "The Harbour"),
])  # fmt: skip
def test_the_rule(changes, old, new):
    """Ten words before "harbour." reach back to the first; the last three are "way to the"."""
    (item,) = measure.items([TEXT], RULE)
    assert item == measure.Item(0, "harbour", TEXT[: TEXT.index(" harbour.")].removeprefix("the "), "way to the")
    if changes or TEXT.replace(old, new) != TEXT:
        with pytest.raises(ValueError, match="no word in 1 held-out documents has occurred"):
            measure.items([TEXT.replace(old, new) if old else TEXT], replace(RULE, **changes))
    (found,) = measure.items([TEXT.replace("harbour.", "harbour,")], replace(RULE, anywhere=True))
    assert found.word == "harbour"


def test_evenly_spaced_words_of_all_documents_are_taken():
    texts = [TEXT.replace("harbour", name) for name in ("harbour", "island", "valley", "river")]
    found = measure.items(texts, replace(RULE, num_items=2))
    assert [(item.document, item.word) for item in found] == [(0, "harbour"), (2, "valley")]
    assert len(measure.items(texts, RULE)) == 4, "or as many as there are"


def test_equals_plain_log_probabilities(corpus, bind, in_memory, context):
    model, codec = llama(), TextCodec(corpus.tokenizer)
    rows = measure.evaluate(in_memory(model, codec), bind(ASKED), context)
    texts = list(islice(heldout_texts(corpus), 3))
    items = measure.items(texts, ASKED)
    assert len(items) == len(rows) == 12 and rows["document"].tolist() == [item.document for item in items]
    for item, row in zip(items, rows.to_dict("records"), strict=True):
        assert f"{item.passage} {item.word}" in texts[item.document] and item.passage.endswith(item.near)
        assert len(item.passage.split()) == 40 and len(item.near.split()) == 10
        assert item.word in item.passage.replace(".", "").split() and item.word not in item.near.replace(".", "").split()
        for text, end in ((item.passage, ""), (item.near, "_near")):
            prompt, target = [codec.bos_id, *codec.encode(text)], codec.encode(f"{text} {item.word}")[len(codec.encode(text)) :]
            assert row[f"logp{end}"] == pytest.approx(logp(model, prompt, target), rel=1e-5)
            with torch.no_grad():
                logits = model(input_ids=torch.tensor([[*prompt, *target]])).logits[0, len(prompt) - 1 : -1]
            assert row[f"right{end}"] == 100 * (logits.argmax(-1).tolist() == target)
    assert context.extras["sources"] == corpus.heldout_sources[:3]
