"""Needle in a haystack: the construction to the token and to the sentence, a model that copies, a random one, resuming."""

import itertools
import re
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer as Backend
from tokenizers import decoders, models, normalizers, pre_tokenizers, trainers
from transformers import (
    GenerationMixin,
    LlamaConfig,
    LlamaForCausalLM,
    PreTrainedConfig,
    PreTrainedModel,
    PreTrainedTokenizerFast,
)
from transformers.modeling_outputs import CausalLMOutputWithPast

from data.json_escape import json_escape
from data.tokenizer import Tokenizer, train_bpe
from eval.kinds import eval_id
from eval.needle import haystack, measure
from eval.needle.haystack import CellBuilder, document, folder_text, full_stops, haystack_ids, insertion_point
from eval.needle.measure import build_cells, exact_match, fuzzy_match, match_score, passkey
from eval.needle.spec import Spec
from eval.needle.wording import DEFAULT_WORDING, Wording
from eval.shell.context import Context
from eval.shell.partial import Partial
from eval.shell.sources import Sources, UserData
from eval.shell.spec import Setting
from eval.shell.text import TextCodec, heldout_texts
from tests.eval.passkey_training import training_batch

WORDING = Wording.read(DEFAULT_WORDING)


@pytest.fixture(scope="module")
def codecs(corpus) -> dict[str, TextCodec]:
    """The corpus's BPE, and one of the same kind with the JSON quirk, each as ours and as a Hugging Face tokeniser."""
    escaped = train_bpe([json_escape(text) for text in heldout_texts(corpus)], 512)
    quirk = Tokenizer("gpt2-json", escaped._backend, 512, escaped.bos_id)
    return {
        "plain": TextCodec(corpus.tokenizer),
        "plain-hf": TextCodec(corpus.tokenizer.to_hf()),
        "json": TextCodec(quirk),
        "json-hf": TextCodec(quirk.to_hf()),
    }


def test_codecs_agree_and_add_nothing(codecs):
    text = 'He said: "no".\nThe café\tcloses.'
    for ours, theirs in (("plain", "plain-hf"), ("json", "json-hf")):
        ids = codecs[ours].encode(text)
        assert codecs[theirs].encode(text) == ids
        assert codecs[ours].decode([codecs[ours].bos_id, *ids]) == codecs[theirs].decode(ids) == text
        assert codecs[ours].bos_id == codecs[theirs].bos_id == 511
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
    codec = codecs[name]
    hay = haystack_ids(codec, heldout_texts(corpus), 1000)
    stops = full_stops(codec)
    hidden = WORDING.hidden(mode)
    size = len(codec.encode(hidden))
    text = document(codec, hay, hidden, length, depth, stops)
    assert len(codec.encode(text)) == length
    assert text.count(hidden) == 1
    before, after = text.split(hidden)
    original = codec.decode(hay)
    start = original.index(before + after)
    assert start <= 12  # rarely, the first token or two are left out to meet the count
    assert length - 4 <= len(codec.encode(before + after)) + size <= length + 4
    if depth == 100:
        assert after == ""
        return
    # As in the text itself: right behind a full stop, and none between it and the depth (up to a token at each seam).
    kept = codec.encode(before + after)
    place = len(codec.encode(before))
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


@pytest.mark.parametrize(("tokens", "depth", "found"), [
    (19, 50, "aaaa.+++bbbb.cccc.d"), (20, 50, "aaaa.+++bbbb.cccc.d"), (20, 100, "aaaa.bbbb.cccc.d+++"),
    (20, 0, "+++aaaa.bbbb.cccc.d"), (21, 50, "aaaa.+++bbbb.cccc.ddd"),
])  # fmt: skip
def test_where_no_document_has_the_asked_tokens_the_closest_shorter_one_is_taken(tokens, depth, found):
    """One that is a token too long is tried first."""
    hay = [ord(sign) for sign in "aaaa.bbbb.cccc.dddd.eeee.ffff."]
    assert document(Odd(), hay, "+++", tokens, depth, {ord(".")}) == found


def test_haystack_order_repetition_and_samples(codecs, corpus, bind, tmp_path):
    (tmp_path / "b.txt").write_text("Second. ")
    (tmp_path / "a.txt").write_text("First. ")
    (tmp_path / "c.bin").write_text("no text")
    assert folder_text(tmp_path) == "First. Second. "
    import os

    listed = [entry.name for entry in os.scandir(tmp_path) if entry.name.endswith(".txt")]
    assert folder_text(tmp_path, in_order=False) == "".join({"a.txt": "First. ", "b.txt": "Second. "}[n] for n in listed)
    assert folder_text(tmp_path / "a.txt", in_order=False) == "First. "
    (tmp_path / "below").mkdir()
    (tmp_path / "below" / "c.txt").write_text("Third.")
    with pytest.raises(ValueError, match="holds texts in subfolders, which --haystack-unsorted does not order"):
        folder_text(tmp_path, in_order=False)
    codec = codecs["plain"]
    once = codec.encode("First. Second. ")
    assert haystack_ids(codec, iter(["First. Second. "]), 3 * len(once) - 1) == once * 3
    spec = bind(Spec(mode="easy", lengths=(400, 500), depths=(50.0,), samples_per_cell=3))
    cells = build_cells(codec, spec, Context(corpus=corpus), WORDING)
    assert len({tuple(cell.prompt) for cell in cells}) == 6
    single = bind(Spec(mode="easy", lengths=(400, 500), depths=(50.0,)))
    firsts = [cell.prompt for cell in cells if cell.sample == 0]
    assert [cell.prompt for cell in build_cells(codec, single, Context(corpus=corpus), WORDING)] == firsts
    assert all(cell.prompt[0] == codec.bos_id and codec.bos_id not in cell.prompt[1:] for cell in cells)


def test_samples_of_a_cell_share_no_text(codecs, corpus, bind, monkeypatch):
    """In a haystack of tokens that all differ."""
    monkeypatch.setattr(haystack, "haystack_ids", lambda codec, texts, count: list(range(count)))
    monkeypatch.setattr(haystack, "full_stops", lambda codec: frozenset(range(9999)))
    spec = bind(Spec(mode="easy", lengths=(600, 900, 400), depths=(50.0,), samples_per_cell=3))
    cells = list(CellBuilder(codecs["plain"], spec, Context(corpus=corpus)).cells_of_ids([replace(WORDING, question="")]))
    hays = {cell.sample: set[int]() for cell in cells}
    for cell in cells:
        middle = [token for token, after in itertools.pairwise(cell.prompt) if after == token + 1]
        assert len(middle) > cell.length - 300
        hays[cell.sample] |= set(middle)
    assert all(one.isdisjoint(other) for one, other in itertools.combinations(hays.values(), 2))


def test_prompt_ends_with_the_answers_first_words(codecs, corpus, bind):
    for mode in ("easy", "standard"):
        spec = bind(Spec(mode=mode, lengths=(600,), depths=(30.0,)))
        (cell,) = build_cells(codecs["plain"], spec, Context(corpus=corpus), WORDING)
        text = codecs["plain"].decode(cell.prompt)
        asked = f"{WORDING.question} {WORDING.answer_marker} {WORDING.answer_start}"
        assert text.endswith(f"{WORDING.instruction} {asked}")
        assert text.count(WORDING.needle) == 1
        assert (text.count(asked) == 2) == (mode == "easy")
        assert len(codecs["plain"].encode(text[: text.index("\n\n" + WORDING.instruction)])) == 400
        assert cell.expected == "eat a sandwich and sit in Dolores Park on a sunny day."


class CopyConfig(PreTrainedConfig):
    model_type = "copy-stub"


class CopyModel(PreTrainedModel, GenerationMixin):
    """Goes on as the text went on after the longest earlier occurrence of its last tokens: attention to the needle."""

    config_class = CopyConfig

    def __init__(self, config: CopyConfig) -> None:
        super().__init__(config)
        self.embedding = torch.nn.Embedding(config.vocab_size, 1)

    @classmethod
    def _supports_default_dynamic_cache(cls) -> bool:
        return False

    def get_input_embeddings(self) -> torch.nn.Module:
        return self.embedding

    def prepare_inputs_for_generation(self, input_ids: torch.Tensor, **kwargs: object) -> dict:
        return {"input_ids": input_ids}

    def forward(
        self, input_ids: torch.Tensor, attention_mask: torch.Tensor | None = None, **kwargs: object
    ) -> CausalLMOutputWithPast:
        logits = torch.zeros(*input_ids.shape, self.config.vocab_size)
        for row, ids in zip(logits, input_ids.tolist(), strict=True):
            row[-1, self._next(ids)] = 1.0
        return CausalLMOutputWithPast(logits=logits)

    @staticmethod
    def _next(ids: list[int]) -> int:
        for size in range(min(16, len(ids) - 1), 0, -1):
            for start in range(len(ids) - size - 1, -1, -1):
                if ids[start : start + size] == ids[-size:]:
                    return ids[start + size]
        return 0


@pytest.mark.parametrize("mode", ["easy", "standard"])
def test_a_model_that_copies_scores_10_and_a_random_one_1(mode, corpus, bind, in_memory):
    codec = TextCodec(corpus.tokenizer)
    spec = bind(Spec(mode=mode, lengths=(400, 500), depths=(0.0, 35.0, 100.0), max_new_tokens=48))
    copy = CopyModel(CopyConfig(vocab_size=512))
    rows = measure.evaluate(in_memory(copy, codec), spec, Context(corpus=corpus))
    assert len(rows) == 6
    assert (rows["score"] == 10).all()
    assert (rows["exact"] == 1).all()
    assert set(rows["scored_by"]) == {"match"}
    torch.manual_seed(0)
    config = LlamaConfig(vocab_size=512, hidden_size=32, intermediate_size=64, num_hidden_layers=1, num_attention_heads=2)
    rows = measure.evaluate(in_memory(LlamaForCausalLM(config).eval(), codec), spec, Context(corpus=corpus))
    assert (rows["score"] == 1).all()
    assert Spec().summary(rows)[0].endswith("mean score 1.00 (1 to 10), the floor")


def test_resumed_midway_gives_identical_rows(corpus, bind, in_memory, tmp_path, monkeypatch):
    spec = bind(Spec(mode="easy", lengths=(360, 400), depths=(0.0, 100.0), max_new_tokens=8))
    copy = CopyModel(CopyConfig(vocab_size=512))
    loaded = in_memory(copy, TextCodec(corpus.tokenizer))
    whole = measure.evaluate(loaded, spec, Context(corpus=corpus))
    path = tmp_path / "n.partial.jsonl"
    calls = []
    real = copy.generate

    def interrupted(**arguments):
        calls.append(1)
        if len(calls) == 3:
            raise KeyboardInterrupt
        return real(**arguments)

    one_by_one = {"corpus": corpus, "sources": Sources(batch_tokens=1)}
    monkeypatch.setattr(copy, "generate", interrupted)
    with pytest.raises(KeyboardInterrupt):
        measure.evaluate(loaded, spec, Context(partial=Partial(path, "x"), **one_by_one))
    with open(path, "a") as file:
        file.write('{"key": "360/0.0')
    resumed = measure.evaluate(loaded, spec, Context(partial=Partial(path, "x"), **one_by_one))
    assert len(calls) == 3 + 2
    assert resumed.equals(whole)
    assert Partial(path, "another").records == {}


def test_match_scores():
    expected = "eat a sandwich and sit in Dolores Park on a sunny day."
    assert exact_match(" eat a sandwich, and sit in dolores park on a sunny day and then", expected)
    assert not exact_match("to eat a sandwich and sit in Dolores Park on a sunny day.", expected)
    assert fuzzy_match("to eat a sandwich and sit in Dolores Park on a sunny day.", expected) == 1.0
    assert fuzzy_match("eat a sandwich", expected) == 3 / 12
    assert fuzzy_match("", expected) == 0.0
    assert match_score(True, 1.0) == 10.0
    assert match_score(False, 0.0) == match_score(False, 1 / 3) == 1.0
    assert match_score(False, 2 / 3) == pytest.approx(5.5)


def test_judge_replaces_scores_and_sees_question_reference_and_answer(corpus, bind, in_memory, tmp_path, monkeypatch):
    from eval.needle import judge

    asked: list[str] = []

    class Scripted(judge.Judge):
        def _ask(self, prompt: str) -> str:
            asked.append(prompt)
            return "[[8]]"

    monkeypatch.setattr(judge, "Judge", Scripted)
    monkeypatch.setenv("OPENAI_API_KEY", "k")
    spec = bind(
        Spec(mode="easy", lengths=(360,), depths=(0.0, 100.0), max_new_tokens=48, judge="judge-1"),
        judge_url="http://127.0.0.1:9",
    )
    context = Context(corpus=corpus, sources=Sources(judge_url="http://127.0.0.1:9"), folder=tmp_path)
    context.partial.add("360/100.0/0", {"prediction": " \n"})
    loaded = in_memory(CopyModel(CopyConfig(vocab_size=512)), TextCodec(corpus.tokenizer))
    rows = measure.evaluate(loaded, spec, context)
    assert rows["score"].tolist() == [8.0, 1.0]  # an empty answer gets the lowest score, unasked
    assert rows["exact"].tolist() == [1.0, 0.0]
    assert set(rows["scored_by"]) == {"judge-1"}
    (prompt,) = asked
    for text in (WORDING.question, f"Reference: {WORDING.needle}", f"Answer of the model: {rows['prediction'][0]}"):
        assert text in prompt


def test_wording_files(tmp_path):
    path = tmp_path / "w.toml"
    good = DEFAULT_WORDING.read_text()
    for text, message in (
        ("needle = ", "TOML"),
        (good.replace("answer_start", "answer_begin"), "exactly the texts"),
        (good.replace('answer_start = "The best', 'answer_start = "A best'), "beginning of needle"),
        (good.replace("{answer}", "{anser}"), "braces"),
        (good.replace("{answer}", "it"), "judge must hold {answer}"),
    ):
        path.write_text(text)
        with pytest.raises(ValueError, match=message):
            Wording.read(path)
    setting = Setting(None, UserData(prompts=path, judge_url="u"), "fp32", "m")
    path.write_text(good[: good.index("judge =")] + 'judge = ""\n')
    with pytest.raises(ValueError, match="judge is empty: give the text that asks 'j' for a score"):
        Spec(judge="j", text="0123").bound(setting)
    assert Spec(text="0123").bound(setting).wording
    path.write_text(
        good.replace(
            "is eat a sandwich and sit in Dolores Park on a sunny day.", "is \u0441\u044d\u043d\u0434\u0432\u0438\u0447."
        )
    )
    with pytest.raises(ValueError, match="no letter from a to z and no digit, by which answers are matched"):
        Spec(text="0123").bound(setting)
    assert Spec(judge="j", text="0123").bound(setting).wording
    path.write_text(good.replace("San Francisco", "Lisbon"))
    assert "Lisbon" in Wording.read(path).hidden("easy")


@pytest.mark.parametrize("num_keys", [1, 4])
def test_passkeys_have_exact_lengths_and_depths(codecs, num_keys):
    filler = codecs["plain"].encode("the river was quiet and the morning early. " * 40)
    for length, depth in ((200, 0.0), (301, 40.0), (400, 100.0)):
        rng = np.random.default_rng(3)
        prompt, value = passkey(codecs["plain"], filler, length=length, depth=depth, num_keys=num_keys, rng=rng)
        assert len(prompt) == length
        text = codecs["plain"].decode(prompt)
        name = text.rsplit("The pass key of ", 1)[1].removesuffix(" is")
        assert text.count("The pass key of ") == num_keys + 1
        assert f"The pass key of {name} is {value}.\n" in text
        assert len(set(value)) == len(value) == 4
        if num_keys == 1:
            line = codecs["plain"].encode(f"\nThe pass key of {name} is {value}.\n")
            query = codecs["plain"].encode(f"\nThe pass key of {name} is")
            room = length - 1 - len(line) - len(query)
            at = 1 + round(room * depth / 100)
            assert prompt[at : at + len(line)] == line
    with pytest.raises(ValueError, match="too short"):
        passkey(codecs["plain"], filler, length=20, depth=0.0, num_keys=1, rng=np.random.default_rng(0))


def test_passkey_training_batches_are_a_function_of_seed_and_step(codecs):
    codec = codecs["plain"]
    filler = codec.encode("the river was quiet. " * 40)
    make = lambda **c: training_batch(codec, filler, **{"seq_len": 160, "batch_size": 3, "seed": 1, "step": 5, **c})  # noqa: E731
    inputs, targets, mask = make()
    assert all((a == b).all() for a, b in zip(make(), (inputs, targets, mask), strict=True))
    assert not (make(step=6)[1] == targets).all()
    assert (inputs[:, 0] == codec.bos_id).all()
    assert (inputs[:, 1:] == targets[:, :-1]).all()
    for target, marked in zip(targets, mask, strict=True):
        value = codec.decode(target.tolist()).split(" is ")[1][:4]
        answers = codec.decode(target[marked].tolist()).split()
        assert answers
        assert set(answers) == {value}


def test_passkey_scores(corpus, bind):
    codec = TextCodec(corpus.tokenizer)
    spec = bind(Spec(mode="passkey", lengths=(150,), depths=(50.0,)))
    (cell,) = build_cells(codec, spec, Context(corpus=corpus), WORDING)
    value = cell.expected
    wrong = "".join(str((int(d) + 1) % 10) for d in value)
    for prediction, exact, score in (
        (f" {value}. More", 1.0, 10.0),
        (f" {value}7", 1.0, 10.0),
        (f" {value[:3]}.", 0.0, 1 + 9 * (3 / 4 - 1 / 3) * 1.5),
        (f" {wrong}", 0.0, 1.0),
        ("", 0.0, 1.0),
    ):
        row = measure._row(cell, prediction)
        assert row["exact"] == exact
        assert row["score"] == pytest.approx(score)


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
        backend.pre_tokenizer = pre_tokenizers.Metaspace()
        backend.decoder = decoders.Metaspace()
        trainer = trainers.UnigramTrainer(
            vocab_size=400, special_tokens=["<unk>", "<s>"], unk_token="<unk>", show_progress=False
        )
    backend.train_from_iterator(texts, trainer)
    return TextCodec(PreTrainedTokenizerFast(tokenizer_object=backend, bos_token="<s>"))


@pytest.mark.parametrize("kind", ["wordpiece", "metaspace"])
@pytest.mark.parametrize("mode", ["easy", "standard"])
def test_foreign_tokenisers(kind, mode, corpus, bind):
    texts = [*heldout_texts(corpus), WORDING.hidden("easy"), WORDING.query]
    codec = foreign(kind, texts)
    spec = bind(Spec(mode=mode, lengths=(400, 600), depths=(0.0, 40.0, 100.0)))
    for cell in build_cells(codec, spec, Context(corpus=corpus), WORDING):
        text = codec.decode(cell.prompt).replace("\n", " ")
        needle_text = codec.decode(codec.encode(WORDING.needle))
        assert text.count(needle_text) == 1
        assert text.rstrip().endswith(codec.decode(codec.encode(WORDING.answer_start)).strip())
        before, _ = text.split(needle_text)
        document_len = len(cell.prompt) - 1 - len(codec.encode(WORDING.query))
        assert cell.length - 200 - 10 <= document_len <= cell.length - 200 + 2
        share = len(codec.encode(before)) / (cell.length - 200)
        assert share <= cell.depth / 100 + 0.35 if cell.depth < 100 else share > 0.3
    broken = foreign(kind, ["no sentence ends here"])
    with pytest.raises(ValueError, match="no token for a full stop"):
        full_stops(broken)


def test_what_cannot_be_a_cell_is_refused(codecs, corpus, bind):
    for changes, message in (
        ({"reserve": 20}, "need a reserve of"),
        ({"lengths": (240,), "reserve": 150}, "leaves .* tokens of haystack around the needle"),
    ):
        spec = bind(Spec(**{"mode": "easy", "lengths": (400,), "depths": (0.0,), **changes}))
        with pytest.raises(ValueError, match=message) as refused:
            build_cells(codecs["plain"], spec, Context(corpus=corpus), WORDING)
        if advised := re.search(r"a reserve of (\d+), not 20", str(refused.value)):
            build_cells(codecs["plain"], replace(spec, reserve=int(advised[1])), Context(corpus=corpus), WORDING)
    for mode in ("easy", "standard"):
        with pytest.raises(ValueError, match="length 200 leaves nothing after the 200 reserved tokens"):
            Spec(mode=mode, lengths=(200, 400), reserve=200)


def test_every_sample_of_passkeys_has_keys_of_its_own(corpus, bind):
    """Those of a length, a depth and a sample are the same ones each time."""
    spec = bind(Spec(mode="passkey", lengths=(150, 160), depths=(0.0, 50.0), samples_per_cell=3))
    cells = build_cells(TextCodec(corpus.tokenizer), spec, Context(corpus=corpus), None)
    again = build_cells(TextCodec(corpus.tokenizer), spec, Context(corpus=corpus), None)
    assert len({cell.expected for cell in cells}) >= 11 and cells == again and len({cell.key for cell in cells}) == 12


@pytest.mark.parametrize(("asked", "limit"), [(5, 5), (12, 12), (48, 12)])
def test_an_answer_to_a_passkey_is_short(asked, limit, corpus, bind, in_memory, monkeypatch):
    limits = []
    monkeypatch.setattr(measure, "answered", lambda what, prompts, *given: limits.append(given[-1]) or {
        key: {"prediction": ""} for key in prompts
    })  # fmt: skip
    spec = bind(Spec(mode="passkey", lengths=(150,), depths=(50.0,), max_new_tokens=asked))
    measure.evaluate(in_memory(None, TextCodec(corpus.tokenizer)), spec, Context(corpus=corpus))
    assert limits == [limit]


def test_what_can_be_known_before_training(make_spec):
    run = make_spec()
    Spec(mode="easy", lengths=(600,), reserve=140).check(run, None)
    for changes, message in (
        ({"reserve": 60}, "more than the 60 reserved: prompts would be longer than their cell"),
        ({"lengths": (250,), "reserve": 200}, "length 250 may leave as few as 0 tokens of haystack; the shortest"),
    ):
        with pytest.raises(ValueError, match=message):
            Spec(**{"mode": "easy", "lengths": (600,), "reserve": 140, **changes}).check(run, None)
    Spec(mode="passkey", lengths=(100,)).check(run, None)  # counts its lines exactly


def test_estimates_are_from_above(codecs):
    """`check` knows no tokeniser: what it lets pass must fit."""
    shortest = next(n for n in range(1, 1000) if fits(n, "bpe-512"))
    assert shortest >= 1 + len(codecs["plain"].encode(WORDING.query))
    assert shortest >= 1 + len(codecs["json"].encode(WORDING.query))


def fits(reserve: int, tokenizer: str) -> bool:
    try:
        Spec(lengths=(10_000,), reserve=reserve).check_cells([WORDING], tokenizer)
    except ValueError:
        return False
    return True


def test_another_text_or_wording_than_the_specs_is_refused(corpus, texts_folder, bind, in_memory, tmp_path):
    loaded = in_memory(CopyModel(CopyConfig(vocab_size=512)), TextCodec(corpus.tokenizer))
    spec = bind(Spec(mode="easy", lengths=(400,), depths=(0.0,)))
    assert spec.text == f"heldout:{corpus.spec.fingerprint}"
    with pytest.raises(ValueError, match="is of corpus 0123"):
        measure.evaluate(loaded, replace(spec, text="heldout:0123"), Context(corpus=corpus))
    own = tmp_path / "own.toml"
    own.write_text(DEFAULT_WORDING.read_text().replace("San Francisco", "Lisbon"))
    with pytest.raises(ValueError, match="the spec asks for wording"):
        measure.evaluate(loaded, spec, Context(corpus=corpus, sources=Sources(prompts=own)))
    lisbon = bind(Spec(mode="easy", lengths=(400,), depths=(0.0,)), prompts=own, haystack=texts_folder)
    assert len({eval_id(spec), eval_id(lisbon), eval_id(replace(lisbon, wording=spec.wording))}) == 3
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "a.txt").write_text("Another text.")
    sources = Sources(prompts=own, haystack=tmp_path / "folder")
    with pytest.raises(ValueError, match="the spec asks for text"):
        measure.evaluate(loaded, lisbon, Context(corpus=corpus, sources=sources))
