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
from data.tokenizer import Tokenizer, parse_tokenizer, train_bpe

SAMPLES = [
    "", " ", "a\nb", 'say "x"\t\\', "\\n is not \n", "naïve 日本 🦊", "C:\\new\\u0041", "<|endoftext|>", "\x00\x7f\u2028",
    "  two  \n\n",
]  # fmt: skip
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


@given(st.text(), st.text())
@example('\\\\"\\u0041', "🦊\x7f/")
def test_escaping_is_jsons_and_unescaping_reverses_it(a, b):
    escaped = json_escape(a + b)
    assert escaped.isascii() and json_unescape(escaped) == a + b
    assert escaped == json_escape(a) + json_escape(b) == json.dumps(a + b)[1:-1].replace("\x7f", "\\u007f")


@given(st.text(alphabet=st.one_of(st.sampled_from('\\u0d8"n'), st.characters())))
@example("a\\")  # cut inside an escape
def test_unescape_always_gives_text_that_can_be_written(escaped):
    json_unescape(escaped).encode("utf-8")
    assert json_unescape("a\\u00") == "a" and json_unescape('"\\ud83e\\udd8a"\n\\d') == '"🦊"\n\\d'


@given(text=st.text())
def test_round_trip_of_any_text(tokenizer, text):
    for each in (text, *SAMPLES):
        ids = tokenizer.encode(each)
        assert tokenizer.decode([tokenizer.bos_id, *ids, tokenizer.bos_id]) == each
        assert tokenizer.bos_id not in ids and max(ids, default=0) < tokenizer.vocab_size
    odd = [tokenizer.encode("a\ud83eb"), *np.random.default_rng(len(text)).integers(0, tokenizer.vocab_size, (5, 20)).tolist()]
    assert all(tokenizer.decode(ids).encode("utf-8") for ids in odd)
    assert tokenizer.kind != "bytes" or tokenizer.encode("aé\n") == list("aé\n".encode())


def test_the_corpus_form_is_escaped_before_bpe(gpt2_folder):
    """Trap 3: with the quirk a newline is a backslash and an n, and non-ASCII characters are ASCII escapes."""
    quirk, plain = (parse_tokenizer(f"{kind}:{gpt2_folder}").load() for kind in ("gpt2-json", "gpt2"))
    for text in SAMPLES:
        assert quirk.encode(text) == plain.encode(json.dumps(text)[1:-1])
    assert quirk.encode("a\nb") != plain.encode("a\nb")
    assert (quirk.vocab_size, quirk.bos_id, len(quirk.to_hf())) == (50257, 50256, 50257)


@given(st.lists(st.sampled_from(PARTS), max_size=60), st.integers(1, 20))
def test_cutting_long_texts_does_not_change_ids(small_bpe, parts, size):
    with pytest.MonkeyPatch.context() as patch:
        whole = small_bpe.encode("".join(parts))
        patch.setattr("data.tokenizer._PIECE_CHARS", size)
        assert small_bpe.encode("".join(parts)) == whole


def test_trained_bpe_is_the_same_in_another_process(tmp_path):
    train_bpe(TRAINING, 400).save(tmp_path / "here")
    code = f"import sys; sys.path[:0] = {sys.path!r}\nfrom pathlib import Path\nfrom data.tokenizer import train_bpe\n"
    code += f"train_bpe({TRAINING!r}, 400).save(Path({str(tmp_path / 'there')!r}))"
    subprocess.run([sys.executable, "-c", code], check=True)
    for name in ("tokenizer.json", "kind.json"):
        assert (tmp_path / "here" / name).read_bytes() == (tmp_path / "there" / name).read_bytes()
    loaded = Tokenizer.load(tmp_path / "here")
    assert loaded.bos_id == 399 and len(loaded.encode("the forgetting transformer")) < 10
    assert len(train_bpe(TRAINING, 280).to_hf()) == 280, "merges fill what 256 bytes and BOS leave"
    assert (loaded.encode("naïve\n"), loaded.kind) == (train_bpe(TRAINING, 400).encode("naïve\n"), "bpe-400")


def test_hugging_face_class_agrees_also_after_saving(tokenizer, tmp_path):
    made = tokenizer.to_hf()
    made.save_pretrained(tmp_path)
    for hf in (made, type(made).from_pretrained(tmp_path)):
        assert hf.bos_token_id == hf.eos_token_id == hf.pad_token_id == tokenizer.bos_id
        for text in SAMPLES:
            ids = tokenizer.encode(text)
            assert hf.encode(text, add_special_tokens=False) == ids
            assert hf.encode(text) == hf(text).input_ids == [tokenizer.bos_id, *ids]
            assert hf.encode(text, "b\n") == hf([(text, "b\n")]).input_ids[0]
            assert hf.encode(text, "b\n") == [*hf.encode(text), *tokenizer.encode("b\n")]
            assert hf.decode(hf.encode(text), skip_special_tokens=True) == text
        batch = hf(SAMPLES, padding=True, return_tensors="np")
        assert hf.batch_decode(batch.input_ids, skip_special_tokens=True) == SAMPLES
        assert (batch.attention_mask[:, -1] == 1).all(), "the models here take padding on the left alone"
        assert hf.convert_tokens_to_string(hf.tokenize("a\n é")) == "a\n é"


@pytest.mark.long
def test_saved_folder_works_outside_the_suite(gpt2_folder, tmp_path):
    """The quirk travels with the folder: AutoTokenizer either has it or refuses, and never encodes without it."""
    tokenizer = parse_tokenizer(f"gpt2-json:{gpt2_folder}").load()
    tokenizer.to_hf().save_pretrained(tmp_path / "exported")
    code = """
import sys
from transformers import AutoTokenizer
print(AutoTokenizer.from_pretrained(sys.argv[1], trust_remote_code=True).encode('é\\n"', add_special_tokens=False))
AutoTokenizer.from_pretrained(sys.argv[1], trust_remote_code=False)
"""
    command = [sys.executable, "-c", code, str(tmp_path / "exported")]
    environment = {"HF_HOME": str(tmp_path / "hf"), "HF_HUB_OFFLINE": "1", "PATH": ""}
    ran = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
    assert ran.stdout.strip() == str(tokenizer.encode('é\n"')), ran.stderr
    assert "ValueError" in ran.stderr and "trust_remote_code" in ran.stderr


@pytest.mark.parametrize("name", ["gpt3", "bpe-0", "bpe-256", "bpe-70000", "bpe-0300", "bytes:x"])
def test_unknown_names(name):
    with pytest.raises(ValueError, match=name):
        parse_tokenizer(name)
