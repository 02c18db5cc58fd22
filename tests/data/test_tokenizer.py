"""The JSON quirk (trap 3), BOS that text cannot forge, and the Hugging Face classes that must agree with ours."""

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from data.json_escape import json_escape, json_unescape
from data.tokenizer import _PIECE_CHARS, Tokenizer, _pieces, parse_tokenizer, train_bpe

SAMPLES = [
    "",
    " ",
    "a\nb",
    'say "x"\t\\',
    "\\n is not \n",
    "naïve 日本 🦊",
    "C:\\new\\u0041",
    "<|endoftext|>",
    "\x00\x7f\u2028",
    "  two  \n\n",
]
PARTS = ["word", " ", "     ", "\n", "'s", "é", "1", ".", " a", "\\n"]
TRAINING = ["def f(x):\n    return x + 1\n" * 20, "the forgetting transformer forgets " * 20]


@pytest.fixture(scope="session", params=["gpt2-json", "gpt2", "bytes", "bpe-300"])
def tokenizer(request: pytest.FixtureRequest, gpt2_folder: Path) -> Tokenizer:
    if request.param == "bpe-300":
        return train_bpe(TRAINING, 300)
    name = request.param if request.param == "bytes" else f"{request.param}:{gpt2_folder}"
    return parse_tokenizer(name).load()


@pytest.fixture(scope="session")
def small_bpe() -> Tokenizer:
    return train_bpe([*TRAINING, "word a word a  \n's's 1. é " * 20, "if x:\n        y\n" * 20], 400)


@pytest.mark.parametrize(
    ("text", "escaped"),
    [
        ("\n", "\\n"),
        ('"', '\\"'),
        ("\t", "\\t"),
        ("\\", "\\\\"),
        ("é", "\\u00e9"),
        ("🦊", "\\ud83e\\udd8a"),
        ("a b", "a b"),
        ("\\n", "\\\\n"),
        ("\x7f/", "\\u007f/"),
    ],
)
def test_escape_by_hand(text: str, escaped: str) -> None:
    assert json_escape(text) == escaped
    assert json_unescape(escaped) == text


@given(st.text())
@example('\\\\"\\u0041')
def test_unescape_reverses_escape_and_escape_is_ascii(text: str) -> None:
    assert json_escape(text).isascii()
    assert json_unescape(json_escape(text)) == text


@given(st.text(), st.text())
def test_escape_goes_character_by_character(a: str, b: str) -> None:
    assert json_escape(a + b) == json_escape(a) + json_escape(b)


@pytest.mark.parametrize(
    ("escaped", "text"),
    [
        ("a\\", "a"),  # cut inside an escape
        ("a\\u00", "a"),
        ('he said "no"\\n', 'he said "no"\n'),  # a quote that no escaped text holds
        ("a\nb\\n", "a\nb\n"),  # a raw newline likewise
        ("\\d+", "\\d+"),
        ('"\\ud83e\\udd8a"', '"🦊"'),  # the lenient way joins surrogates too
        ("\\ud83e", ""),
        ('"\\ud83e', '"'),
    ],
)
def test_lenient_unescape(escaped: str, text: str) -> None:
    assert json_unescape(escaped) == text


@given(st.text(alphabet=st.one_of(st.sampled_from('\\u0d8"n'), st.characters())))
def test_unescape_always_gives_text_that_can_be_written(escaped: str) -> None:
    json_unescape(escaped).encode("utf-8")


@pytest.mark.parametrize("text", SAMPLES)
def test_round_trip(tokenizer: Tokenizer, text: str) -> None:
    ids = tokenizer.encode(text)
    assert tokenizer.decode(ids) == text
    assert tokenizer.bos_id not in ids
    assert max(ids, default=0) < tokenizer.vocab_size


@given(text=st.text())
def test_round_trip_of_any_text(tokenizer: Tokenizer, text: str) -> None:
    assert tokenizer.decode(tokenizer.encode(text)) == text


def test_the_corpus_form_is_escaped_before_bpe(gpt2_folder: Path) -> None:
    """Trap 3: with the quirk a newline is a backslash and an n, and non-ASCII characters are ASCII escapes."""
    quirk, plain = (parse_tokenizer(f"{kind}:{gpt2_folder}").load() for kind in ("gpt2-json", "gpt2"))
    for text in SAMPLES:
        assert quirk.encode(text) == plain.encode(json.dumps(text)[1:-1])
    assert quirk.encode("a\nb") != plain.encode("a\nb")


def test_decode_leaves_bos_out_and_bears_any_ids(tokenizer: Tokenizer) -> None:
    ids = tokenizer.encode("one two")
    assert tokenizer.decode([tokenizer.bos_id, *ids, tokenizer.bos_id]) == "one two"
    generator = np.random.default_rng(0)
    for _ in range(50):
        tokenizer.decode(generator.integers(0, tokenizer.vocab_size, 20).tolist()).encode("utf-8")


def test_lone_surrogates_do_not_stop_encoding(tokenizer: Tokenizer) -> None:
    tokenizer.decode(tokenizer.encode("a\ud83eb")).encode("utf-8")


def test_gpt2_ids(gpt2_folder: Path) -> None:
    tokenizer = parse_tokenizer(f"gpt2-json:{gpt2_folder}").load()
    assert (tokenizer.vocab_size, tokenizer.bos_id, tokenizer.kind) == (50257, 50256, "gpt2-json")


def test_bytes_ids() -> None:
    tokenizer = parse_tokenizer("bytes").load()
    assert (tokenizer.vocab_size, tokenizer.bos_id) == (257, 256)
    assert tokenizer.encode("aé\n") == list("aé\n".encode())
    assert tokenizer.to_hf().encode("aé\n") == [256, *"aé\n".encode()]


@given(st.lists(st.sampled_from(PARTS), max_size=60), st.integers(1, 20))
def test_cutting_long_texts_does_not_change_ids(small_bpe: Tokenizer, parts: list[str], size: int) -> None:
    text = "".join(parts)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("data.tokenizer._PIECE_CHARS", size)
        pieces = list(_pieces(text))
        cut = small_bpe.encode(text)
    assert "".join(pieces) == text
    assert cut == small_bpe._backend.encode(text).ids


def test_long_texts_are_cut() -> None:
    text = "some words of text " * 20_000
    assert len(list(_pieces(text))) == -(-len(text) // (_PIECE_CHARS + 10))
    assert train_bpe([text], 300).decode(train_bpe([text], 300).encode(text)) == text


def test_trained_bpe_is_the_same_in_another_process(tmp_path: Path) -> None:
    here = train_bpe(TRAINING, 400)
    here.save(tmp_path / "here")
    code = f"import sys; sys.path[:0] = {sys.path!r}\nfrom pathlib import Path\nfrom data.tokenizer import train_bpe\n"
    code += f"train_bpe({TRAINING!r}, 400).save(Path({str(tmp_path / 'there')!r}))"
    subprocess.run([sys.executable, "-c", code], check=True)
    for name in ("tokenizer.json", "kind.json"):
        assert (tmp_path / "here" / name).read_bytes() == (tmp_path / "there" / name).read_bytes()
    assert here.bos_id == 399
    assert train_bpe(TRAINING, 280)._backend.get_vocab_size() == 280, "merges fill what 256 bytes and BOS leave"
    assert len(here.encode("the forgetting transformer")) < 10


def test_saved_and_loaded(tokenizer: Tokenizer, tmp_path: Path) -> None:
    tokenizer.save(tmp_path)
    loaded = Tokenizer.load(tmp_path)
    assert (loaded.kind, loaded.vocab_size, loaded.bos_id) == (tokenizer.kind, tokenizer.vocab_size, tokenizer.bos_id)
    for text in SAMPLES:
        assert loaded.encode(text) == tokenizer.encode(text)
    with pytest.raises(ValueError, match=r"no saved tokenizer in .*elsewhere"):
        Tokenizer.load(tmp_path / "elsewhere")


def test_hugging_face_class_agrees_also_after_saving(tokenizer: Tokenizer, tmp_path: Path) -> None:
    made = tokenizer.to_hf()
    made.save_pretrained(tmp_path)
    for hf in (made, type(made).from_pretrained(tmp_path)):
        assert hf.bos_token_id == hf.eos_token_id == tokenizer.bos_id
        for text in SAMPLES:
            ids = tokenizer.encode(text)
            assert hf.encode(text, add_special_tokens=False) == ids
            assert hf.encode(text) == hf(text).input_ids == [tokenizer.bos_id, *ids]
            assert hf.decode(hf.encode(text), skip_special_tokens=True) == text
        batch = hf(SAMPLES, padding=True, return_tensors="np")
        assert batch.input_ids.shape == batch.attention_mask.shape
        assert hf.batch_decode(batch.input_ids, skip_special_tokens=True) == SAMPLES
        assert (batch.attention_mask[:, -1] == 1).all(), "the models here take padding on the left alone"
        assert hf.convert_tokens_to_string(hf.tokenize("a\n é")) == "a\n é"


def test_saved_folder_works_outside_the_suite(gpt2_folder: Path, tmp_path: Path) -> None:
    """The quirk travels with the folder: AutoTokenizer either has it or refuses, and never encodes without it."""
    tokenizer = parse_tokenizer(f"gpt2-json:{gpt2_folder}").load()
    folder = tmp_path / "exported"
    tokenizer.to_hf().save_pretrained(folder)
    code = """
import sys
from transformers import AutoTokenizer
print(AutoTokenizer.from_pretrained(sys.argv[1], trust_remote_code=True).encode('é\\n"', add_special_tokens=False))
AutoTokenizer.from_pretrained(sys.argv[1], trust_remote_code=False)
"""
    command = [sys.executable, "-c", code, str(folder)]
    environment = {"HF_HOME": str(tmp_path / "hf"), "HF_HUB_OFFLINE": "1", "PATH": ""}
    ran = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
    assert ran.stdout.strip() == str(tokenizer.encode('é\n"')), ran.stderr
    assert "ValueError" in ran.stderr
    assert "trust_remote_code" in ran.stderr


def test_hugging_face_gpt2_has_all_tokens(gpt2_folder: Path) -> None:
    assert len(parse_tokenizer(f"gpt2-json:{gpt2_folder}").load().to_hf()) == 50257


def test_offsets_are_refused(gpt2_folder: Path) -> None:
    with pytest.raises(ValueError, match="return_offsets_mapping"):
        parse_tokenizer(f"gpt2-json:{gpt2_folder}").load().to_hf()("a", return_offsets_mapping=True)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("gpt3", "'gpt3' is none of gpt2-json"),
        ("bpe-0", "'bpe-0' is none of"),
        ("bpe-256", "'bpe-256'.* 257 to 65536"),
        ("bpe-70000", "'bpe-70000'.* uint16 .* 65536"),
        ("bytes:x", "'bytes:x' is none of"),
    ],
)
def test_unknown_names(name: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        parse_tokenizer(name)


def test_gpt2_folders_that_are_none(gpt2_folder: Path, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"has no vocab\.json"):
        parse_tokenizer(f"gpt2-json:{tmp_path}").load()
    (tmp_path / "merges.txt").write_text((gpt2_folder / "merges.txt").read_text()[:3000])
    (tmp_path / "vocab.json").write_text((gpt2_folder / "vocab.json").read_text())
    with pytest.raises(ValueError, match=r"(cannot be read|GPT-2 has 50257 and 50000)"):
        parse_tokenizer(f"gpt2-json:{tmp_path}").load()
    (tmp_path / "vocab.json").write_text("{")
    with pytest.raises(ValueError, match="cannot be read"):
        parse_tokenizer(f"gpt2-json:{tmp_path}").digest()


def test_gpt2_without_folder_and_network(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    import huggingface_hub

    def unreachable(*args: object, **kwargs: object) -> None:
        raise ConnectionError("no network")

    monkeypatch.setattr(huggingface_hub, "hf_hub_download", unreachable)
    monkeypatch.setattr(huggingface_hub.HfApi, "model_info", unreachable)
    with pytest.raises(ValueError, match=r"neither in the local cache nor .* gpt2-json:FOLDER"):
        parse_tokenizer("gpt2-json").load()
