"""Byte-level tokenisers: GPT-2's BPE with and without LongCrawl64's JSON quirk, bytes, and a BPE trained on a corpus.

BOS = EOS = <|endoftext|> (50256 in GPT-2). Encoding ordinary text never yields it, not even the text "<|endoftext|>"."""

import hashlib
import json
import re
from collections.abc import Iterable, Iterator, Sequence
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from pydantic.dataclasses import dataclass

from data.json_escape import json_escape, json_unescape
from data.spec import DataSpec

if TYPE_CHECKING:
    from tokenizers import Tokenizer as Backend

    from data.hf_tokenizer import CorpusTokenizer

BOS = "<|endoftext|>"
GPT2 = ("gpt2", "gpt2-json")
GPT2_VOCAB_SIZE = 50257
GPT2_HUB_NAME = "openai-community/gpt2"
MAX_VOCAB_SIZE = 2**16  # ids are stored as uint16
_PIECE_CHARS = 1 << 16
# Between two words of ASCII letters GPT-2's pre-tokeniser always cuts before the space, whatever stands further left or right.
_SAFE_CUT = re.compile(r"(?<=[A-Za-z])(?= [A-Za-z])")


@dataclass(frozen=True)
class TokenizerChoice:
    """Tokeniser as named on the command line. `folder`: holds GPT-2's vocab.json and merges.txt; None for the hub."""

    kind: str
    folder: Path | None = None

    @property
    def vocab_size(self) -> int:
        if self.kind in GPT2:
            return GPT2_VOCAB_SIZE
        return 257 if self.kind == "bytes" else int(self.kind.removeprefix("bpe-"))

    @property
    def trained(self) -> bool:
        return self.kind.startswith("bpe-")

    def digest(self) -> str:
        """Return the digest of everything that decides the ids of a text, apart from the corpus that a BPE is trained on."""
        content: list[object] = [self.kind]
        if self.kind in GPT2:
            vocab, merges = _read_gpt2(self.folder)
            content += [sorted(vocab.items()), merges]
        return hashlib.sha256(json.dumps(content).encode()).hexdigest()

    def spec_of(self, source: str, document_len: int, fingerprint: str) -> DataSpec:
        """Return the spec of a corpus in this tokeniser's ids, the last of which is BOS."""
        length, size = document_len, self.vocab_size
        return DataSpec(
            source=source, tokenizer=self.kind, vocab_size=size, bos_id=size - 1, document_len=length, fingerprint=fingerprint
        )

    def load(self) -> "Tokenizer":
        """Load the tokeniser, unless it is trained on the corpus, by `train_bpe`."""
        assert not self.trained
        vocab, merges = (_bytes_vocab(), []) if self.kind == "bytes" else _read_gpt2(self.folder)
        return Tokenizer(self.kind, _backend(vocab, merges), self.vocab_size, vocab[BOS])


def parse_tokenizer(text: str) -> TokenizerChoice:
    """Read "gpt2-json[:FOLDER]", "gpt2[:FOLDER]", "bytes" or "bpe-N". ValueError names the value and what is allowed."""
    kind, _, folder = text.partition(":")
    if kind in GPT2:
        return TokenizerChoice(kind, Path(folder).expanduser() if folder else None)
    if folder or not re.fullmatch(r"bytes|bpe-[1-9]\d*", kind):
        raise ValueError(f"tokenizer {text!r} is none of gpt2-json[:FOLDER], gpt2[:FOLDER], bytes, bpe-N")
    if kind != "bytes" and not 257 <= int(kind[4:]) <= MAX_VOCAB_SIZE:
        raise ValueError(f"tokenizer {text!r}: a byte-level BPE stored as uint16 has 257 to {MAX_VOCAB_SIZE} tokens")
    return TokenizerChoice(kind)


class Tokenizer:
    """Tokeniser from text to ids and back. `kind` as in `DataSpec.tokenizer`; `encode` adds no BOS."""

    def __init__(self, kind: str, backend: "Backend", vocab_size: int, bos_id: int) -> None:
        self.kind, self._backend, self.vocab_size, self.bos_id = kind, backend, vocab_size, bos_id

    def encode(self, text: str) -> list[int]:
        return self.encode_batch([text])[0].tolist()

    def encode_batch(self, texts: Sequence[str]) -> list[np.ndarray]:
        """Return one uint16 array of ids per text; long texts are cut where this changes no id and encoded on all cores."""
        if self.kind == "bytes":
            return [np.frombuffer(_valid(text).encode(), np.uint8).astype(np.uint16) for text in texts]
        pieces: list[str] = []
        bounds = [0]
        for text in texts:
            pieces.extend(_pieces(json_escape(text) if self.kind == "gpt2-json" else _valid(text)))
            bounds.append(len(pieces))
        encoded = [np.asarray(e.ids, np.uint16) for e in self._backend.encode_batch_fast(pieces, add_special_tokens=False)]
        return [np.concatenate([np.empty(0, np.uint16), *encoded[start:stop]]) for start, stop in pairwise(bounds)]

    def decode(self, ids: Iterable[int]) -> str:
        """Return the text of `ids` without BOS; never fails, even on ids that no text encodes to."""
        text = self._backend.decode([int(i) for i in ids if int(i) != self.bos_id], skip_special_tokens=False)
        return json_unescape(text) if self.kind == "gpt2-json" else text

    def save(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "tokenizer.json").write_text(self._backend.to_str(), encoding="utf-8")
        about = {"kind": self.kind, "vocab_size": self.vocab_size, "bos_id": self.bos_id}
        (folder / "kind.json").write_text(json.dumps(about), encoding="utf-8")

    @staticmethod
    def load(folder: Path) -> "Tokenizer":
        """Load a saved tokeniser. ValueError if the folder holds none."""
        from tokenizers import Tokenizer as Backend

        try:
            about = json.loads((folder / "kind.json").read_text(encoding="utf-8"))
            backend = Backend.from_str((folder / "tokenizer.json").read_text(encoding="utf-8"))
        except OSError as error:
            raise ValueError(f"no saved tokenizer in {folder} ({error.strerror}): name another folder") from None
        return Tokenizer(about["kind"], backend, about["vocab_size"], about["bos_id"])

    def to_hf(self) -> "CorpusTokenizer":
        """Return the same as a Hugging Face tokeniser (BOS in front when `add_special_tokens`), to save beside a model. It pads
        on the left, as `generate` needs."""
        import kernels.hf_guard  # noqa: F401  # isort: skip  (before transformers)
        from tokenizers import processors

        from data.hf_tokenizer import CorpusTokenizer, JSONTokenizer

        backend = type(self._backend).from_str(self._backend.to_str())
        backend.post_processor = processors.TemplateProcessing(
            single=f"{BOS} $A", pair=f"{BOS} $A $B", special_tokens=[(BOS, self.bos_id)]
        )
        cls = JSONTokenizer if self.kind == "gpt2-json" else CorpusTokenizer
        special = dict.fromkeys(("bos_token", "eos_token", "pad_token"), BOS)
        options = dict(split_special_tokens=True, clean_up_tokenization_spaces=False, padding_side="left")
        hf = cls(tokenizer_object=backend, **special, **options)
        assert len(hf) == backend.get_vocab_size()
        assert hf.bos_token_id == hf.eos_token_id == self.bos_id
        return hf


def train_bpe(texts: Iterable[str], vocab_size: int) -> Tokenizer:
    """Train a byte-level BPE of `vocab_size` ids, the last of them BOS. It depends only on the texts and their order."""
    from tokenizers import pre_tokenizers, trainers

    backend = _backend({}, [])
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=vocab_size - 1, initial_alphabet=alphabet, show_progress=False)
    backend.train_from_iterator((piece for text in texts for piece in _pieces(_valid(text))), trainer)
    model = json.loads(backend.to_str())["model"]
    # A small corpus may give fewer merges than asked for; the ids between them and BOS then stay unused.
    vocab = {**model["vocab"], BOS: vocab_size - 1}
    return Tokenizer(f"bpe-{vocab_size}", _backend(vocab, [tuple(m) for m in model["merges"]]), vocab_size, vocab_size - 1)


def _bytes_vocab() -> dict[str, int]:
    """Return a vocabulary of bytes: ids 0 to 255 are those of UTF-8 text, 256 is BOS. Names are GPT-2's: a printable byte is
    its own name."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in printable]
    return {chr(byte): byte for byte in printable} | {chr(256 + i): byte for i, byte in enumerate(others)} | {BOS: 256}


def _backend(vocab: dict[str, int], merges: list[tuple[str, str]]) -> "Backend":
    from tokenizers import Tokenizer as Backend
    from tokenizers import decoders, models, pre_tokenizers

    # The cache of words costs more than it saves: a quarter of the time on source code.
    backend = Backend(models.BPE(vocab=vocab, merges=merges, cache_capacity=0))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
    backend.decoder = decoders.ByteLevel()
    return backend


def _read_gpt2(folder: Path | None) -> tuple[dict[str, int], list[tuple[str, str]]]:
    """Read GPT-2's vocabulary and merges, from `folder` or, if that is None, from the hub (the local cache first)."""
    from tokenizers import models

    paths = _find_gpt2(folder)
    where = f"tokenizer folder {paths[0].parent}"
    try:
        vocab, merges = models.BPE.read_file(*map(str, paths))
    except Exception as error:  # the library's errors have no type of their own
        raise ValueError(f"{where}: vocab.json or merges.txt cannot be read ({error}): fetch them again") from None
    if (len(vocab), vocab.get(BOS), len(merges)) != (GPT2_VOCAB_SIZE, GPT2_VOCAB_SIZE - 1, 50000):
        wanted = f"GPT-2 has {GPT2_VOCAB_SIZE} and 50000, {BOS} last"
        raise ValueError(f"{where} holds {len(vocab)} tokens and {len(merges)} merges: {wanted}")
    return vocab, merges


def _find_gpt2(folder: Path | None) -> tuple[Path, Path]:
    names = ("vocab.json", "merges.txt")
    if folder is not None:
        for name in names:
            if not (folder / name).is_file():
                raise ValueError(f"tokenizer folder {folder} has no {name}; it must hold GPT-2's vocab.json and merges.txt")
        return folder / names[0], folder / names[1]
    from huggingface_hub import HfApi, hf_hub_download

    try:
        found = [hf_hub_download(GPT2_HUB_NAME, name, local_files_only=True) for name in names]
    except OSError:  # not in the local cache
        try:
            HfApi().model_info(GPT2_HUB_NAME, timeout=10)  # fails at once without a network, where downloads retry for minutes
            found = [hf_hub_download(GPT2_HUB_NAME, name) for name in names]
        except Exception as error:  # the hub client raises its own, its HTTP library's and the operating system's
            what = f"GPT-2's vocabulary is neither in the local cache nor available from {GPT2_HUB_NAME}"
            remedy = "name a folder with vocab.json and merges.txt, as in --tokenizer gpt2-json:FOLDER"
            raise ValueError(f"{what} ({type(error).__name__}): {remedy}, or choose bpe-1024 or bytes") from None
    return Path(found[0]), Path(found[1])


def _valid(text: str) -> str:
    """Replace lone surrogates, which UTF-8 cannot carry (JSON files may hold them)."""
    if text.isascii():
        return text
    return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")


def _pieces(text: str) -> Iterator[str]:
    """Cut a long text before spaces between two words, where the pre-tokeniser cuts as well, so that ids do not change."""
    start = 0
    while len(text) - start > _PIECE_CHARS:
        cut = _SAFE_CUT.search(text, start + _PIECE_CHARS)
        if cut is None:
            break
        yield text[start : cut.start()]
        start = cut.start()
    yield text[start:]
