"""Needle in a haystack: the construction to the token and to the sentence, and models that copy or guess."""

import itertools
import re
from dataclasses import replace

import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer as Backend
from tokenizers import decoders, models, normalizers, pre_tokenizers, trainers
from transformers import GenerationMixin, PreTrainedConfig, PreTrainedModel, PreTrainedTokenizerFast

from data.json_escape import json_escape
from data.tokenizer import Tokenizer, train_bpe
from eval.kinds import eval_id
from eval.needle import measure
from eval.needle.haystack import Cell, CellBuilder, document, full_stops, haystack_ids, haystack_texts, insertion_point
from eval.needle.spec import Spec
from eval.needle.wording import DEFAULT_WORDING, Wording
from eval.runner.context import Context
from eval.runner.sources import Sources
from eval.runner.text import TextCodec, heldout_texts
from tests.eval.oracles import Copying, llama

WORDING = Wording.read(DEFAULT_WORDING)
SMALL = dict(mode="easy", lengths=(400,), depths=(0.0,))


def cells_of(codec: TextCodec, spec: Spec, corpus) -> list[Cell]:
    return list(CellBuilder(codec, spec, Context(corpus=corpus)).cells([WORDING]))


@pytest.fixture(scope="module")
def codecs(corpus) -> dict[str, TextCodec]:
    """The corpus's BPE, and one of the same kind with the JSON quirk, each as ours and as a Hugging Face tokeniser."""
    escaped = train_bpe([json_escape(text) for text in heldout_texts(corpus)], 512)
    quirk = Tokenizer("gpt2-json", escaped._backend, 512, escaped.bos_id)
    made = {"plain": corpus.tokenizer, "json": quirk}
    return {name: TextCodec(each) for name, each in made.items()} | {
        f"{name}-hf": TextCodec(each.to_hf()) for name, each in made.items()
    }


def test_codecs_agree_and_add_nothing(codecs):
    text = 'He said: "no".\nThe café\tcloses.'
    for name in ("plain", "json"):
        ours, theirs = codecs[name], codecs[f"{name}-hf"]
        ids = ours.encode(text)
        assert theirs.encode(text) == ids and ours.bos_id == theirs.bos_id == 511
        assert ours.decode([ours.bos_id, *ids]) == theirs.decode(ids) == text
    assert codecs["json"].encode("\n") == codecs["plain"].encode("\\n")


def test_the_papers_grid():
    spec = Spec()
    assert spec.lengths == (1000, 4100, 7200, 10300, 13400, 16500, 19600, 22700, 25800, 28900, 32000)
    assert spec.depths == tuple(10.0 * n for n in range(11))
    assert (spec.reserve, spec.samples_per_cell, spec.max_new_tokens) == (200, 1, 1024)


def test_a_needle_goes_behind_the_full_stop_before_its_depth():
    hay = [5, 0, 6, 7, 0, 8, 9, 9, 9, 9]  # 0 is the full stop
    assert [insertion_point(hay, depth, {0}) for depth in (30, 50, 90, 10, 0, 100)] == [2, 5, 5, 0, 0, 10]


@given(
    length=st.integers(120, 900),
    depth=st.sampled_from([0.0, 3.0, 25.0, 50.0, 77.7, 99.0, 100.0]),
    mode=st.sampled_from(["easy", "standard"]),
    name=st.sampled_from(["plain", "json", "plain-hf"]),
)
@example(length=751, depth=100.0, mode="easy", name="json")  # the cut falls into an escape
@settings(max_examples=60)
def test_documents_have_the_asked_tokens_and_the_needle_after_the_right_sentence(codecs, corpus, length, depth, mode, name):
    codec, hidden = codecs[name], WORDING.hidden(mode)
    hay, stops = haystack_ids(codec, heldout_texts(corpus), 1000), full_stops(codec)
    text = document(codec, hay, hidden, length, depth, stops)
    assert len(codec.encode(text)) == length and text.count(hidden) == 1
    before, after = text.split(hidden)
    assert codec.decode(hay).index(before + after) <= 12  # rarely, the first tokens are left out to meet the count
    if depth == 100:
        assert after == ""
        return
    # As in the text itself: right behind a full stop, and none between it and the depth (up to a token at each seam).
    kept, place = codec.encode(before + after), len(codec.encode(before))
    assert before == "" or before.endswith(".")
    assert place <= len(kept) * depth / 100 + 3
    target = max(place, int((len(kept) - 4) * depth / 100) - 1)
    assert not [token for token in kept[place:target] if token in stops]


class Odd:
    """A number a letter, and one more where that makes the count odd."""

    def encode(self, text):
        return [ord(sign) for sign in text] + [0] * (len(text) % 2 == 0)

    def decode(self, ids):
        return "".join(map(chr, ids))


def test_where_no_document_has_the_asked_tokens_the_closest_shorter_one_is_taken():
    hay = [ord(sign) for sign in "aaaa.bbbb.cccc.dddd.eeee.ffff."]
    for tokens, depth, found in (
        (19, 50, "aaaa.+++bbbb.cccc.d"),
        (20, 100, "aaaa.bbbb.cccc.d+++"),
        (20, 0, "+++aaaa.bbbb.cccc.d"),
    ):
        assert document(Odd(), hay, "+++", tokens, depth, {ord(".")}) == found


def test_the_haystacks_order_and_repetition(codecs, bind, tmp_path):
    for name, text in {"b.txt": "Second. ", "a.txt": "First. ", "c.bin": "no text"}.items():
        (tmp_path / name).write_text(text)
    spec = bind(Spec(**SMALL), haystack=tmp_path)
    texts = list(haystack_texts(spec.text, Context(sources=Sources(haystack=tmp_path))))
    assert texts == ["First. Second. "]
    once = codecs["plain"].encode(texts[0])
    for count, times in ((len(once), 1), (3 * len(once) - 1, 3)):
        assert haystack_ids(codecs["plain"], iter(texts), count) == once * times


def test_samples_of_a_cell_share_no_text_and_the_first_is_the_papers(codecs, corpus, bind):
    codec, spec = codecs["plain"], bind(Spec(**SMALL | dict(lengths=(700, 500)), samples_per_cell=3))
    cells = cells_of(codec, spec, corpus)
    single = cells_of(codec, bind(replace(spec, samples_per_cell=1)), corpus)
    assert [cell.prompt for cell in single] == [cell.prompt for cell in cells if cell.sample == 0]
    whole = codec.decode(haystack_ids(codec, heldout_texts(corpus), 3 * (700 + 64)))
    spans = {sample: [] for sample in range(3)}
    for cell in cells:
        text = codec.decode(cell.prompt).rpartition(f"{WORDING.needle}\n")[2].partition("\n\n")[0]
        start = whole.index(text)
        spans[cell.sample].append((start, start + len(text)))
    ends = [(min(a for a, _ in each), max(b for _, b in each)) for each in spans.values()]
    assert all(stop <= start for (_, stop), (start, _) in itertools.pairwise(ends))


def test_prompt_ends_with_the_answers_first_words(codecs, corpus, bind):
    codec = codecs["plain"]
    for mode in ("easy", "standard"):
        (cell,) = cells_of(codec, bind(Spec(mode=mode, lengths=(600,), depths=(30.0,))), corpus)
        text = codec.decode(cell.prompt)
        asked = f"{WORDING.question} {WORDING.answer_marker} {WORDING.answer_start}"
        assert text.endswith(f"{WORDING.instruction} {asked}") and text.count(asked) == 1 + (mode == "easy")
        assert text.count(WORDING.needle) == 1
        assert len(codec.encode(text[: text.index("\n\n" + WORDING.instruction)])) == 400
        assert cell.prompt[0] == codec.bos_id and codec.bos_id not in cell.prompt[1:]
        assert cell.expected == "eat a sandwich and sit in Dolores Park on a sunny day."


class CopyModel(PreTrainedModel, GenerationMixin):
    """Goes on as `Copying` does, through Hugging Face's `generate`."""

    config_class = type("CopyConfig", (PreTrainedConfig,), {"model_type": "copy-stub"})

    def __init__(self) -> None:
        super().__init__(self.config_class(vocab_size=512))
        self.copying, self.somewhere = Copying(), torch.nn.Embedding(1, 1)

    @classmethod
    def _supports_default_dynamic_cache(cls) -> bool:
        return False

    def prepare_inputs_for_generation(self, input_ids, **kwargs):
        return {"input_ids": input_ids}

    def forward(self, input_ids, attention_mask=None, **kwargs):
        return self.copying(input_ids)


@pytest.mark.parametrize("mode", ["easy", "standard"])
def test_a_model_that_copies_scores_10_and_a_random_one_1(mode, corpus, bind, in_memory):
    codec = TextCodec(corpus.tokenizer)
    spec = bind(Spec(mode=mode, lengths=(400, 500), depths=(0.0, 35.0, 100.0), max_new_tokens=48))
    rows = measure.evaluate(in_memory(CopyModel(), codec), spec, Context(corpus=corpus))
    assert len(rows) == 6 and set(rows["scored_by"]) == {"match"}
    assert rows["score"].eq(10).all() and rows["exact"].eq(1).all()
    rows = measure.evaluate(in_memory(llama(), codec), spec, Context(corpus=corpus))
    assert rows["exact"].eq(0).all() and rows["score"].mean() < 2
    assert f"mean score {rows[rows['length'] == 400]['score'].mean():.2f} " in Spec().summary(rows)[0]


def test_a_judge_replaces_scores_and_sees_question_reference_and_answer(corpus, bind, in_memory, tmp_path, monkeypatch):
    asked: list[str] = []
    monkeypatch.setattr("eval.needle.judge.Judge._ask", lambda self, prompt: asked.append(prompt) or "[[8]]")
    monkeypatch.setenv("OPENAI_API_KEY", "k")
    url = dict(judge_url="http://127.0.0.1:9")
    spec = bind(Spec(**SMALL | dict(depths=(0.0, 100.0)), max_new_tokens=48, judge="judge-1"), **url)
    context = Context(corpus=corpus, sources=Sources(**url), folder=tmp_path)
    context.partial.add("400/100.0/0", {"prediction": " \n"})
    rows = measure.evaluate(in_memory(CopyModel(), TextCodec(corpus.tokenizer)), spec, context)
    assert rows["score"].tolist() == [8.0, 1.0]  # an empty answer gets the lowest score, unasked
    assert rows["exact"].tolist() == [1.0, 0.0] and set(rows["scored_by"]) == {"judge-1"}
    (prompt,) = asked
    for text in (WORDING.question, f"Reference: {WORDING.needle}", f"Answer of the model: {rows['prediction'][0]}"):
        assert text in prompt


@pytest.mark.parametrize(("old", "new"), [
    ("needle = ", ""), ("answer_start", "answer_begin"), ('answer_start = "The best', 'answer_start = "A best'),
    ("{answer}", "{anser}"), ("{answer}", "it"),
])  # fmt: skip
def test_wordings_that_no_test_can_be_made_of_are_refused(old, new, tmp_path):
    path, good = tmp_path / "w.toml", DEFAULT_WORDING.read_text()
    path.write_text(good.replace(old, new))
    with pytest.raises(ValueError, match=str(path)):
        Wording.read(path)
    path.write_text(good.replace("San Francisco", "Lisbon"))
    assert "Lisbon" in Wording.read(path).hidden("easy")


def foreign(kind: str, texts: list[str]) -> TextCodec:
    """Tokenisers as other models have them: WordPiece lowers case and drops line breaks, Metaspace marks words by a bar."""
    if kind == "wordpiece":
        backend = Backend(models.WordPiece(unk_token="[UNK]"))
        backend.normalizer = normalizers.BertNormalizer(lowercase=True)
        backend.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
        backend.decoder = decoders.WordPiece()
        trainer: object = trainers.WordPieceTrainer(vocab_size=400, special_tokens=["[UNK]", "<s>"], show_progress=False)
    else:
        backend = Backend(models.Unigram())
        backend.pre_tokenizer, backend.decoder = pre_tokenizers.Metaspace(), decoders.Metaspace()
        special = dict(special_tokens=["<unk>", "<s>"], unk_token="<unk>")
        trainer = trainers.UnigramTrainer(vocab_size=400, show_progress=False, **special)
    backend.train_from_iterator(texts, trainer)
    return TextCodec(PreTrainedTokenizerFast(tokenizer_object=backend, bos_token="<s>"))


@pytest.mark.parametrize("kind", ["wordpiece", "metaspace"])
def test_foreign_tokenisers(kind, corpus, bind):
    codec = foreign(kind, [*heldout_texts(corpus), WORDING.hidden("easy"), WORDING.query])
    spec = bind(Spec(lengths=(400, 600), depths=(0.0, 40.0, 100.0)))
    for cell in cells_of(codec, spec, corpus):
        text = codec.decode(cell.prompt).replace("\n", " ")
        (before, _) = text.split(codec.decode(codec.encode(WORDING.needle)))
        assert text.rstrip().endswith(codec.decode(codec.encode(WORDING.answer_start)).strip())
        document_len = len(cell.prompt) - 1 - len(codec.encode(WORDING.query))
        assert cell.length - 200 - 10 <= document_len <= cell.length - 200 + 2
        share = len(codec.encode(before)) / (cell.length - 200)
        assert share <= cell.depth / 100 + 0.35 if cell.depth < 100 else share > 0.3
    with pytest.raises(ValueError, match="full stop"):
        full_stops(foreign(kind, ["no sentence ends here"]))


def test_what_cannot_be_a_cell_is_refused_and_the_advice_is_enough(codecs, corpus, bind, make_spec):
    """Also before a model is trained, when no tokeniser is known: what then passes must fit."""
    for changes in ({"reserve": 20}, {"lengths": (240,), "reserve": 150}):
        spec = bind(Spec(**SMALL | changes))
        with pytest.raises(ValueError, match="length") as refused:
            cells_of(codecs["plain"], spec, corpus)
        if advised := re.search(r"a reserve of (\d+), not 20", str(refused.value)):
            cells_of(codecs["plain"], replace(spec, reserve=int(advised[1])), corpus)
        with pytest.raises(ValueError, match="reserve"):
            spec.check(make_spec(), None)

    def passes(reserve: int) -> bool:
        try:
            return Spec(lengths=(10_000,), reserve=reserve).check(make_spec(), None) is None
        except ValueError:
            return False

    shortest = next(n for n in range(1, 1000) if passes(n))
    assert shortest > max(len(codecs[name].encode(WORDING.query)) for name in ("plain", "json"))


def test_another_text_or_wording_than_the_specs_is_refused(corpus, texts_folder, bind, in_memory, tmp_path):
    loaded, spec = in_memory(CopyModel(), TextCodec(corpus.tokenizer)), bind(Spec(**SMALL))
    own = tmp_path / "own.toml"
    own.write_text(DEFAULT_WORDING.read_text().replace("San Francisco", "Lisbon"))
    lisbon = bind(Spec(**SMALL), prompts=own, haystack=texts_folder)
    assert len({eval_id(spec), eval_id(lisbon), eval_id(replace(lisbon, wording=spec.wording))}) == 3
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "a.txt").write_text("Another text.")
    for asked, sources, told in (
        (replace(spec, text="heldout:0123"), Sources(), "is of corpus 0123"),
        (spec, Sources(prompts=own), "wording"),
        (lisbon, Sources(prompts=own, haystack=tmp_path / "folder"), "text"),
    ):
        with pytest.raises(ValueError, match=told):
            measure.evaluate(loaded, asked, Context(corpus=corpus, sources=sources))
