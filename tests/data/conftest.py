"""Small corpora: a stand-in for GPT-2's vocabulary, a LongCrawl64 whose tokens tell where they lie, folders of text."""

import json
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numcodecs
import numpy as np
import pytest
import zarr
from tokenizers import pre_tokenizers


@pytest.fixture(scope="session")
def gpt2_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """vocab.json and merges.txt of GPT-2's form and sizes: all bytes, and merges of 50,000 pairs of them."""
    folder = tmp_path_factory.mktemp("gpt2")
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    merges = [(a, b) for a in alphabet for b in alphabet][:50000]
    vocab = {token: i for i, token in enumerate([*alphabet, *(a + b for a, b in merges), "<|endoftext|>"])}
    (folder / "vocab.json").write_text(json.dumps(vocab), encoding="utf-8")
    (folder / "merges.txt").write_text("#version: 0.2\n" + "".join(f"{a} {b}\n" for a, b in merges), encoding="utf-8")
    return folder


ZarrWriter = Callable[..., None]
LONGCRAWL64S = numcodecs.Blosc(cname="lz4", clevel=5, shuffle=numcodecs.Blosc.SHUFFLE)


@pytest.fixture
def write_zarr() -> ZarrWriter:
    def write(path: Path, tokens: np.ndarray, chunks: tuple[int, ...] = (8, 256), compressor: Any = LONGCRAWL64S) -> None:
        """In the layout of LongCrawl64, with the attribute its authors set."""
        array = zarr.create_array(
            store=path,
            shape=tokens.shape,
            chunks=chunks[: tokens.ndim],
            dtype=tokens.dtype,
            compressors=compressor,
            zarr_format=2,
            attributes={"tokenizer": "tiktoken gpt2"},
        )
        array[...] = tokens

    return write


@pytest.fixture
def longcrawl64(tmp_path: Path, write_zarr: ZarrWriter) -> Path:
    """37 train and 5 held-out documents of 1024 tokens; token = 1 + 1024 * document + position, held out counted from 37."""
    folder = tmp_path / "longcrawl64"
    folder.mkdir()
    tokens = (1 + np.arange(42 * 1024)).astype(np.uint16).reshape(42, 1024)
    write_zarr(folder / "train.zarr", tokens[:37])
    write_zarr(folder / "heldout.zarr", tokens[37:])
    return folder


def make_text(seed: int, num_words: int) -> str:
    """Words, quotes, tabs, newlines and characters beyond ASCII; no two seeds share a line."""
    generator = random.Random(seed)
    words = ["the", "forget", "gate", "naïve", '"quoted"', "tab\there", "x\n", "\\slash", "日本", "🦊", "123"]
    return f"document {seed}: " + " ".join(generator.choice(words) + str(generator.randrange(50)) for _ in range(num_words))


@pytest.fixture
def text_folder(tmp_path: Path) -> Path:
    """Twelve documents of very different lengths, one per file."""
    folder = tmp_path / "texts"
    folder.mkdir()
    for i in range(12):
        (folder / f"{i:02}.txt").write_bytes(make_text(i, 400 * (1 + i % 4)).encode())
    return folder
