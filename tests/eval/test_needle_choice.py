"""The needle as a choice: what is offered and scored, against plain log-probabilities, and that a model that copies chooses."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch

from eval.kinds import eval_id
from eval.needle.wording import Choices
from eval.needle_choice import measure
from eval.needle_choice.spec import OFFERED, Spec
from eval.shell.context import Context
from eval.shell.partial import Partial
from eval.shell.text import TextCodec
from tests.eval.test_needle_recall import Copying, llama

GRID = Spec(lengths=(260, 330), depths=(0.0, 50.0, 100.0), samples_per_cell=3, reserve=80)


@pytest.fixture
def codec(corpus) -> TextCodec:
    return TextCodec(corpus.tokenizer)


def test_ten_words_of_one_length_are_offered_and_any_may_be_true(codec):
    made = Choices.read()
    assert len(set(made.words)) == len(made.words) >= 3 * OFFERED
    drawn = measure.needles(codec, 200)
    for wording, words in drawn:
        assert len(words) == OFFERED == len({tuple(word) for word in words})
        assert len({len(word) for word in words}) == 1
        assert codec.decode(words[0]).strip() + "." == wording.expected
        assert wording.expected not in wording.query
    assert len({wording.question for wording, _ in drawn}) == len(made.holders)
    assert measure.needles(codec, 6)[5] == drawn[5]
    # all alike: a model that takes one word for the likeliest, whatever the text says, is right in 10% of the cases
    favourite = drawn[0][1][0]
    offered = [words for _, words in drawn if favourite in words]
    assert np.mean([words[0] == favourite for words in offered]) == pytest.approx(0.1, abs=0.12)


@pytest.mark.parametrize("mode", ["easy", "standard"])
def test_a_model_that_copies_chooses_the_true_word(mode, codec, corpus, bind, in_memory):
    spec = bind(replace(GRID, mode=mode, lengths=(260,)))
    rows = spec.SCHEMA.validate(measure.evaluate(in_memory(Copying(), codec), spec, Context(corpus=corpus)))
    assert len(rows) == 3 * 3
    assert (rows["right"] == 100).all()
    first = rows[rows["sample"] == 0]
    assert first["logp"].tolist() == pytest.approx((first["num_tokens"] * math.log(0.9)).tolist())
    assert spec.summary(rows) == ["  length 260: 100% right (guessing: 10%)"]


def test_a_model_that_finds_all_words_alike_is_right_in_no_case(codec, corpus, bind, in_memory):
    class Uniform(torch.nn.Module):
        def forward(self, input_ids, use_cache=False):
            return type("Output", (), {"logits": torch.zeros(*input_ids.shape, 512)})

    rows = measure.evaluate(in_memory(Uniform(), codec), bind(GRID), Context(corpus=corpus))
    assert (rows["right"] == 0).all()
    assert rows["logp"].tolist() == pytest.approx((-math.log(512) * rows["num_tokens"]).tolist())


def test_equals_plain_log_probabilities_by_hand(codec, corpus, bind, in_memory):
    model, spec = llama(), bind(GRID)
    rows = measure.evaluate(in_memory(model, codec), spec, Context(corpus=corpus))
    needles = measure.needles(codec, 2 * 3 * 3)
    cells = list(measure.CellBuilder(codec, spec, Context(corpus=corpus)).cells_of_ids([wording for wording, _ in needles]))
    assert len({wording.expected for wording, _ in needles}) > 3, "every place draws its own word"
    for cell, (_, words), row in zip(cells, needles, rows.to_dict("records"), strict=True):
        assert (cell.length, cell.depth, cell.sample) == (row["length"], row["depth"], row["sample"])
        plain = []
        for word in words:
            with torch.no_grad():
                logits = model(input_ids=torch.tensor([[*cell.prompt, *word]])).logits[0, len(cell.prompt) - 1 : -1].double()
            plain.append(float(logits.log_softmax(-1).gather(1, torch.tensor(word)[:, None]).sum()))
        assert row["logp"] == pytest.approx(plain[0], rel=1e-5)
        assert row["logp_others"] == pytest.approx(max(plain[1:]), rel=1e-5)
        assert row["right"] == 100 * (plain[0] > max(plain[1:]))


def test_words_that_differ_in_their_last_token_take_one_pass(codec, corpus, bind):
    cell = next(measure.CellBuilder(codec, bind(GRID), Context(corpus=corpus)).cells_of_ids([measure.needles(codec, 1)[0][0]]))
    passes = measure.passes_of(cell, [[1, 2], [3, 4], [1, 5], [3, 6]])
    assert list(passes.values()) == [{0: [1, 2], 2: [1, 5]}, {1: [3, 4], 3: [3, 6]}]
    assert len(measure.passes_of(cell, [[1], [2], [3]])) == 1
    logits = torch.zeros(2, 8)
    logits[0, 1], logits[1, 5] = 1.0, 2.0
    first, second = 1 - math.log(math.e + 7), 2 - math.log(math.e**2 + 7)
    assert measure.log_probabilities(passes[f"{cell.key}/0"], logits) == pytest.approx([first + second - 2, first + second])


def test_prompts_of_ids_have_the_length_and_the_needle_in_its_place(codec, corpus, bind):
    spec = bind(GRID)
    wordings = [wording for wording, _ in measure.needles(codec, 3)]
    builder = measure.CellBuilder(codec, spec, Context(corpus=corpus))
    of_ids, of_text = list(builder.cells_of_ids(wordings)), list(builder.cells(wordings))
    for one, other in zip(of_ids, of_text, strict=True):
        wording, text = wordings[one.sample], codec.decode(one.prompt)
        document, _, query = text.rpartition(wording.query)
        assert (one.key, query) == (other.key, "")
        assert len(one.prompt) == 1 + (one.length - 80) + len(codec.encode(wording.query))
        hidden = codec.decode(other.prompt).index(wording.needle)
        assert abs(document.index(wording.needle) - hidden) < 80, "as the text has it, up to a sentence"


def test_resumed_midway_gives_identical_rows(codec, corpus, bind, in_memory, tmp_path):
    spec, loaded, path = bind(GRID), in_memory(llama(), codec), tmp_path / "c.partial.jsonl"
    whole = measure.evaluate(loaded, spec, Context(corpus=corpus, partial=Partial(path, "x")))
    lines = path.read_text().splitlines()
    path.write_text("\n".join(lines[:8]) + "\n" + lines[8][:10])
    rows = measure.evaluate(loaded, spec, Context(corpus=corpus, partial=Partial(path, "x")))
    assert rows["logp"].to_numpy() == pytest.approx(whole["logp"].to_numpy(), abs=1e-5)
    assert len(path.read_text().splitlines()) == len(lines)


def test_what_does_not_fit_is_refused(make_spec, codec, corpus, bind, in_memory):
    GRID.check(make_spec(), None)
    with pytest.raises(ValueError, match="raise the reserve"):
        replace(GRID, reserve=20).check(make_spec(), None)
    with pytest.raises(ValueError, match=r"leaves . tokens of haystack around the needle"):
        list(measure.CellBuilder(codec, bind(replace(GRID, lengths=(100,))), Context(corpus=corpus)).cells_of_ids(
            [measure.needles(codec, 1)[0][0]]
        ))  # fmt: skip
    with pytest.raises(ValueError, match="plan it again"):
        measure.evaluate(in_memory(llama(), codec), replace(bind(GRID), wording="0123"), Context(corpus=corpus))
    few = replace(Choices.read(), words=["river", "salt"])
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(measure.Choices, "read", classmethod(lambda cls: few))
        with pytest.raises(ValueError, match="does not encode 10 words"):
            measure.needles(codec, 1)


def test_the_number_of_needles_and_the_sentences_are_part_of_the_identity(bind):
    bound = bind(GRID)
    others = (dict(samples_per_cell=4), dict(mode="easy"), dict(depths=(0.0,)), dict(wording="0123"), dict(reserve=90))
    assert len({eval_id(bound), *(eval_id(replace(bound, **other)) for other in others)}) == 1 + len(others)
