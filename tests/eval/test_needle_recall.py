"""Needle recall: what is scored, against plain log-probabilities, and that a model that copies recalls."""

import math
from dataclasses import replace

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from eval.needle.wording import read_facts
from eval.needle_recall import measure
from eval.needle_recall.spec import Spec
from eval.shell.context import Context
from eval.shell.partial import Partial
from eval.shell.text import TextCodec

FACTS = read_facts()
GRID = Spec(lengths=(200, 330), depths=(0.0, 50.0, 100.0), samples_per_cell=3, reserve=80)


def llama() -> LlamaForCausalLM:
    torch.manual_seed(0)
    config = LlamaConfig(vocab_size=512, hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=2)
    return LlamaForCausalLM(config).eval()


class Copying(torch.nn.Module):
    """Believes with probability 0.9 that the text goes on as it did after the last three tokens, where they stood before."""

    def forward(self, input_ids, use_cache=False):
        logits = torch.zeros(*input_ids.shape, 512)
        for row, ids in zip(logits, input_ids.tolist(), strict=True):
            seen: dict[tuple[int, ...], int] = {}
            for at in range(3, len(ids)):
                last = tuple(ids[at - 2 : at + 1])
                if last in seen:
                    row[at, seen[last]] = math.log(0.9 / 0.1 * 511)
                if at + 1 < len(ids):
                    seen[last] = ids[at + 1]
        return type("Output", (), {"logits": logits})


def test_the_sentences():
    """Different, each with an answer of its own; asked for in few words."""
    assert len(FACTS) >= 16
    assert len({fact.needle for fact in FACTS}) == len({fact.expected for fact in FACTS}) == len(FACTS)
    for fact in FACTS:
        assert fact.needle == f"{fact.answer_start} {fact.expected}"
        assert fact.query == f"\n\n{fact.question} Answer: {fact.answer_start}"
        assert fact.expected not in fact.query


@pytest.mark.parametrize("mode", ["easy", "standard"])
def test_a_model_that_copies_recalls_every_needle(mode, corpus, bind, in_memory):
    spec = bind(replace(GRID, mode=mode, lengths=(260,)))
    loaded = in_memory(Copying(), TextCodec(corpus.tokenizer))
    rows = measure.evaluate(loaded, spec, Context(corpus=corpus))
    assert len(rows) == 3 * 3
    share = rows["recall_nats"] / -rows["logp_without"]
    assert share.min() > 0.8
    first = rows[rows["sample"] == 0]  # in the others some three tokens stand more than once, and go on differently
    assert first["logp_with"].tolist() == pytest.approx((first["num_tokens"] * math.log(0.9)).tolist())


def test_equals_plain_log_probabilities(corpus, bind, in_memory):
    model, codec = llama(), TextCodec(corpus.tokenizer)
    spec = bind(GRID)
    seen: list[list[int]] = []
    watch = lambda module, args, kwargs: seen.extend(kwargs["input_ids"].tolist())  # noqa: E731
    hook = model.register_forward_pre_hook(watch, with_kwargs=True)
    rows = measure.evaluate(in_memory(model, codec), spec, Context(corpus=corpus))
    hook.remove()
    assert list(rows[["length", "depth", "sample"]].itertuples(index=False, name=None)) == [
        (length, depth, sample) for length in (200, 330) for depth in (0.0, 50.0, 100.0) for sample in range(3)
    ]
    assert len(seen) == 2 * 3 * (3 + 1)  # what stands without the needle is scored once for all depths
    texts = {codec.decode(ids).rstrip("!"): ids for ids in seen}  # "!" is token 0, the padding
    for row in rows.to_dict("records"):
        fact = FACTS[row["sample"]]
        asked = [text for text in texts if fact.query in text and abs(len(codec.encode(text)) - row["length"]) < 60]
        with_it = [text for text in asked if fact.needle in text.split(fact.query)[0]]
        assert len(asked) == 4
        assert len(with_it) == 3
        expected = [logprob(model, codec, text, fact.query, fact.expected) for text in (*with_it, *(set(asked) - set(with_it)))]
        assert any(row["logp_with"] == pytest.approx(value, rel=1e-5) for value in expected[:3])
        assert row["logp_without"] == pytest.approx(expected[3], rel=1e-5)
        assert row["recall_nats"] == pytest.approx(row["logp_with"] - row["logp_without"])
        assert row["num_tokens"] == len(codec.encode(f" {fact.expected}"))
        for text in asked:
            assert len(codec.encode(text.split(fact.query)[0])) == row["length"] - 80
    assert "nats (0 is none, " in GRID.summary(rows)[0]


def logprob(model, codec: TextCodec, text: str, query: str, answer: str) -> float:
    prompt = [codec.bos_id, *codec.encode(text.split(query)[0] + query)]
    target = codec.encode(f" {answer}")
    with torch.no_grad():
        logits = model(input_ids=torch.tensor([[*prompt, *target]])).logits[0, len(prompt) - 1 : -1].double()
    return float(logits.log_softmax(-1).gather(1, torch.tensor(target)[:, None]).sum())


def test_resumed_midway_gives_identical_rows(corpus, bind, in_memory, tmp_path):
    spec, loaded = bind(GRID), in_memory(llama(), TextCodec(corpus.tokenizer))
    path = tmp_path / "r.partial.jsonl"
    whole = measure.evaluate(loaded, spec, Context(corpus=corpus, partial=Partial(path, "x")))
    lines = path.read_text().splitlines()
    path.write_text("\n".join(lines[:8]) + "\n" + lines[8][:10])
    rows = measure.evaluate(loaded, spec, Context(corpus=corpus, partial=Partial(path, "x")))
    assert rows["recall_nats"].to_numpy() == pytest.approx(whole["recall_nats"].to_numpy(), abs=1e-5)
    assert len(path.read_text().splitlines()) == len(lines)


def test_what_does_not_fit_is_refused(make_spec, corpus, bind, in_memory):
    run = make_spec()
    replace(GRID, lengths=(300,)).check(run, None)
    with pytest.raises(ValueError, match="raise the reserve"):
        replace(GRID, reserve=20).check(run, None)
    with pytest.raises(ValueError, match="leaves nothing after the 80 reserved tokens"):
        replace(GRID, lengths=(80,))
    other = replace(bind(GRID), wording="0123")
    with pytest.raises(ValueError, match="plan it again"):
        measure.evaluate(in_memory(llama(), TextCodec(corpus.tokenizer)), other, Context(corpus=corpus))
