"""Last words: the rule on texts made by hand, the scores against plain log-probabilities, and what is refused."""

from dataclasses import replace

import pytest
import torch

from eval.kinds import eval_id
from eval.last_words import measure
from eval.last_words.spec import Spec
from eval.runner.batching import at_ends
from eval.runner.context import Context
from eval.runner.partial import Partial
from eval.runner.text import TextCodec, heldout_texts
from tests.eval.oracles import Copying, llama

RULE = Spec(num_documents=1, num_items=9, words=8, near=3, common=1)
TEXT = "the harbour was the calm the one the way to the harbour. They saw the."
ASKED = Spec(num_documents=3, num_items=12, words=40, near=10, common=5)


def asked(text: str, **changes: object) -> list[str]:
    return [item.word for item in measure.items([text], replace(RULE, **changes))]


def test_the_rule_by_hand():
    """Ten words before "harbour." reach back to the first; the last three are "way to the"."""
    assert asked(TEXT, words=10) == ["harbour"]
    (item,) = measure.items([TEXT], replace(RULE, words=10))
    assert item == measure.Item(0, "harbour", TEXT[: TEXT.index(" harbour.")].removeprefix("the "), "way to the")
    for changes, text in (
        (dict(words=8), TEXT),  # it stood too long ago
        (dict(words=10), TEXT.replace("harbour.", "harbour,")),  # the sentence goes on
        (dict(words=10), TEXT.replace(" harbour.", "-harbour.")),  # a part of a word
        (dict(words=10), TEXT.replace("harbour", "sea")),  # short
        (dict(words=10), TEXT.replace("way", "harbour")),  # one of the last words
        (dict(words=10, common=2), TEXT),  # among the most frequent
        (dict(words=10), f"{TEXT} {'HARBOUR ' * 5}"),  # however they are written
        (dict(words=10), TEXT.replace("harbour", "Harbour", 1)),  # another form
    ):
        with pytest.raises(ValueError, match="no word in 1 held-out documents has occurred"):
            asked(text, **changes)
    assert asked(TEXT.replace("harbour.", "harbour,"), words=10, anywhere=True) == ["harbour"]


def test_evenly_spaced_words_of_all_documents_are_taken():
    texts = [TEXT.replace("harbour", name) for name in ("harbour", "island", "valley", "river")]
    rule = replace(RULE, words=10)
    assert [(item.document, item.word) for item in measure.items(texts, replace(rule, num_items=2))] == [
        (0, "harbour"), (2, "valley"),
    ]  # fmt: skip
    assert len(measure.items(texts, rule)) == 4, "or as many as there are"


@pytest.fixture
def codec(corpus) -> TextCodec:
    return TextCodec(corpus.tokenizer)


def test_equals_plain_log_probabilities(codec, corpus, bind, in_memory, context):
    model = llama()
    rows = ASKED.SCHEMA.validate(measure.evaluate(in_memory(model, codec), bind(ASKED), context))
    texts = [text for _, text in zip(range(3), heldout_texts(corpus), strict=False)]
    items = measure.items(texts, ASKED)
    assert len(items) == len(rows) == 12
    assert rows["document"].tolist() == [item.document for item in items]
    for item, row in zip(items, rows.to_dict("records"), strict=True):
        assert f"{item.passage} {item.word}" in texts[item.document]
        assert item.passage.endswith(item.near)
        assert len(item.passage.split()) == 40 and len(item.near.split()) == 10
        assert item.word in item.passage.replace(".", "").split() and item.word not in item.near.replace(".", "").split()
        for text, end in ((item.passage, ""), (item.near, "_near")):
            prompt, target = [codec.bos_id, *codec.encode(text)], codec.encode(f"{text} {item.word}")[len(codec.encode(text)) :]
            with torch.no_grad():
                logits = model(input_ids=torch.tensor([[*prompt, *target]])).logits[0, len(prompt) - 1 : -1].double()
            logp = float(logits.log_softmax(-1).gather(1, torch.tensor(target)[:, None]).sum())
            assert row[f"logp{end}"] == pytest.approx(logp, rel=1e-5)
            assert row[f"right{end}"] == 100 * (logits.argmax(-1).tolist() == target)
    assert context.extras["sources"] == corpus.heldout_sources[:3]
    assert "given its last 10 words: 0.0% right, perplexity" in ASKED.summary(rows)[1]


def test_a_model_that_copies_gains_from_the_passage(codec, corpus, bind, in_memory, context):
    """It knows a word where the three tokens before it stood before it in the passage."""
    phrase = "and the grey stone lighthouse"
    text = f"{phrase}. {'so it went on from day to day. ' * 5}{phrase}."
    spec = replace(ASKED, words=49, common=7)
    (item,) = [item for item in measure.items([text], spec) if item.word == "lighthouse"]
    assert item.passage.startswith(phrase) and "lighthouse" not in item.near
    parts = [measure._row(codec, part, item.word) for part in (item.passage, item.near)]
    ends = zip(parts, at_ends(Copying(), parts, context.compute("fp32")), strict=True)
    (with_it, _), (without, _) = (measure.score(*each) for each in ends)
    assert with_it > without + 2


def test_resumed_midway_gives_identical_rows(codec, corpus, bind, in_memory, tmp_path):
    spec, loaded, path = bind(ASKED), in_memory(llama(), codec), tmp_path / "w.partial.jsonl"
    whole = measure.evaluate(loaded, spec, Context(corpus=corpus, partial=Partial(path, "x")))
    lines = path.read_text().splitlines()
    path.write_text("\n".join(lines[:8]) + "\n" + lines[8][:10])
    rows = measure.evaluate(loaded, spec, Context(corpus=corpus, partial=Partial(path, "x")))
    assert rows["logp"].to_numpy() == pytest.approx(whole["logp"].to_numpy(), abs=1e-5)


def test_what_does_not_fit_is_refused_and_every_field_is_part_of_the_identity(make_spec, corpus, bind):
    with pytest.raises(ValueError, match="999 documents exceed"):
        replace(ASKED, num_documents=999).check(make_spec(), corpus.counts)
    bound = bind(ASKED)
    others = (
        dict(num_documents=2), dict(num_items=3), dict(words=50), dict(near=5), dict(common=6), dict(anywhere=True),
        dict(precision="bf16"), dict(corpus="0123"),
    )  # fmt: skip
    assert len({eval_id(bound), *(eval_id(replace(bound, **other)) for other in others)}) == 1 + len(others)
