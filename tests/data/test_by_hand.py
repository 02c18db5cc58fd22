"""Texts, tokenisers and corpora of others, worked out by hand: the hub, odd files, full disks and what is said of them."""

import errno
import gzip
import json
import lzma
import os
import zlib
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from data import pack, prepare, split, text_files
from data import tokenizer as tokenizers
from data.corpus import Corpus, longcrawl64_counts
from data.hf_tokenizer import JSONTokenizer
from data.plan import CorpusPlan, resolve
from data.source import HubSource, LongCrawl64Source, first_line, parse_source
from data.spec import DataSpec
from data.split import Split
from data.text_files import FileDigests, TextSource, read_documents
from data.tokenizer import BOS, TokenizerChoice, parse_tokenizer, train_bpe

BYTES = parse_tokenizer("bytes").load()


@pytest.mark.parametrize(("name", "body", "found"), [
    ("a.txt.gz", gzip.compress(b"", mtime=0)[:10] + b"\xff" * 20, zlib.error),
    ("a.txt.gz", gzip.compress(b"x" * 99, mtime=0)[:-9], EOFError), ("a.txt.gz", b"no such format", OSError),
    ("a.txt.xz", b"no such format", lzma.LZMAError), ("a.txt", None, OSError),
    ("a.parquet", b"PAR1 and more PAR1", OSError), ("a.txt.zst", b"no such format", OSError),
])  # fmt: skip
def test_files_that_cannot_be_read_are_named(name, body, found, tmp_path):
    """Whatever the library of their compression raises."""
    path = tmp_path / name
    if body is not None:
        path.write_bytes(body)
    if name.endswith((".gz", ".xz")):
        with pytest.raises(found):
            {"z": gzip.open, "x": lzma.open}[name[-1] if name.endswith("gz") else "x"](path).read()
    with pytest.raises(ValueError, match=rf"cannot read {path} \(.*\): is the file whole, and its suffix right\?$"):
        list(read_documents(path))


def test_lines_and_columns_of_texts(tmp_path):
    """Empty lines are none, blank ones neither; a `text` must be a string; a folder is no file, whatever its name."""
    path = tmp_path / "a.jsonl"
    path.write_text('{"text": "a"}\n \t\n\n{"text": ""}\n{"text": 3}\n')
    read = read_documents(path)
    assert [next(read), next(read)] == ["a", ""]
    with pytest.raises(ValueError, match="line 5 has no `text` field holding a string"):
        next(read)
    path.write_bytes(b'{"text": "\xff"}')
    with pytest.raises(ValueError, match=r"a\.jsonl, line 1 is not UTF-8 text \(byte 10\): convert the file"):
        list(read_documents(path))
    path.unlink()
    for kind in (pa.string_view(), pa.large_string()):
        pq.write_table(pa.table({"text": pa.array(["a", None, ""], kind)}), tmp_path / "a.parquet")
        assert list(read_documents(tmp_path / "a.parquet")) == ["a", ""]
    (tmp_path / "folder.txt").mkdir()
    (tmp_path / "folder.txt" / "b.TXT").write_text("b")
    assert list(TextSource(str(tmp_path)).documents()) == ["a", "", "b"]
    for name in (f"{tmp_path}/a.*,{tmp_path}/folder.txt", f" {tmp_path}/a.parquet , {tmp_path}/folder.txt"):
        assert list(TextSource(name).documents()) == ["a", "", "b"]


def test_places_of_the_user(tmp_path, monkeypatch):
    """A tilde is a home, for texts, corpora and vocabularies."""
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / "a,b.txt").write_text("a")
    for name in ("train.zarr", "heldout.zarr"):
        with pytest.raises(ValueError, match=rf"{name} does not exist: name a folder with both arrays"):
            parse_source("longcrawl64:~")
        (tmp_path / name).mkdir()
    assert parse_source("longcrawl64:~").folder == tmp_path
    for name in ("~", "~/a,b.txt", "~/*.txt"):
        assert parse_source(f"text:{name}").files == [tmp_path / "a,b.txt"]
    assert parse_tokenizer("gpt2:~/x").folder == tmp_path / "x" and parse_tokenizer("gpt2").folder is None
    for wrong in ("bytes:x", "bpe-300:x", "bpe-0300", "bpe-", "bpe-1e3"):
        with pytest.raises(ValueError, match="is none of"):
            parse_tokenizer(wrong)
    source = parse_source("hf:some/name:own.part@refs/pr/1")
    assert (source.name, source.config, source.revision) == ("some/name", "own.part", "refs/pr/1")


def test_digests_of_small_files_are_not_kept_and_no_memory_is_no_error(tmp_path):
    """From a MiB on, by the whole path; where they cannot be kept, they are made again."""
    memory, sizes = tmp_path / "memory.json", {}
    for name, size in (("small", (1 << 20) - 1), ("large", 1 << 20)):
        (tmp_path / name).mkdir()
        (tmp_path / name / "a.txt").write_bytes(b"x" * size)
        sizes[name] = FileDigests(memory).sha256(tmp_path / name / "a.txt")
        assert memory.is_file() == (name == "large")
    assert list(FileDigests(memory)._known) == [str(tmp_path / "large" / "a.txt")] and len(set(sizes.values())) == 2
    (tmp_path / "in the way").write_text("")
    for nowhere in (tmp_path / "in the way" / "memory.json", tmp_path / "small"):
        assert FileDigests(nowhere).sha256(tmp_path / "large" / "a.txt") == sizes["large"]
    file = tmp_path / "large" / "a.txt"
    digests = FileDigests(memory)
    path, (*stamp, _) = next(iter(digests._known.items()))
    for changed in range(3):
        digests._known[path] = [value + (place == changed) for place, value in enumerate(stamp)] + ["another"]
        assert digests.sha256(file) == sizes["large"], "of another size, or from another time"


def test_the_hub_is_asked_for_what_is_named(monkeypatch):
    """Within seconds; what its client raises is said, a mistake of the user's in its own words."""
    asked = []

    def info(api, name, **how):
        asked.append((name, how))
        return SimpleNamespace(sha="b" * 40)

    monkeypatch.setattr("huggingface_hub.HfApi.dataset_info", info)
    source = HubSource("some/name", "part", "main")
    unused = FileDigests(Path("unused"))
    others = (("some/name", "part", "c" * 40), ("some/name", None, "b" * 40), ("other/name", "part", "b" * 40))
    assert len({source.digest(unused), *(HubSource(*other).digest(unused) for other in others)}) == 4
    assert asked == [("some/name", {"revision": "main", "timeout": 20})]
    rows = [{"text": "a"}, {"text": ""}, {"text": None}]
    monkeypatch.setattr("datasets.load_dataset", lambda *given, **how: iter(rows))
    read = source.documents()
    assert [next(read), next(read)] == ["a", ""]
    with pytest.raises(ValueError, match="'hf:some/name' has no `text` column, only text: choose another"):
        next(read)
    for error, why in (
        (RuntimeError("odd\nand more"), r"reading from the hub failed \(odd\); run it again"),
        (ValueError("own words"), "^own words$"),
    ):
        monkeypatch.setattr("datasets.load_dataset", lambda *given, error=error, **how: (_ for _ in ()).throw(error))
        with pytest.raises(ValueError, match=why):
            list(source.documents())
    monkeypatch.setattr("huggingface_hub.HfApi.dataset_info", lambda *given, **how: (_ for _ in ()).throw(RuntimeError("")))
    with pytest.raises(ValueError, match=r"the hub is unreachable or has no such data set \(RuntimeError\); check the name"):
        HubSource("some/name", None, None).digest(unused)
    assert first_line(RuntimeError("x" * 300)) == "x" * 200 and first_line(KeyError()) == "KeyError"
    assert first_line(RuntimeError("\n one \n two")) == "one "


@pytest.mark.parametrize(("cached", "online", "why"), [
    (True, True, None), (False, True, None),
    (False, False, r"available from openai-community/gpt2 \(RuntimeError\): name a folder"),
])  # fmt: skip
def test_gpt2_is_looked_for_in_the_cache_first(cached, online, why, monkeypatch):
    """The hub is tried for ten seconds before downloads would retry for minutes."""
    asked = []

    def download(name, file, local_files_only=False):
        asked.append((name, file, local_files_only))
        if local_files_only and not cached:
            raise OSError("not in the cache")
        return f"there/{file}"

    def info(api, name, timeout):
        asked.append((name, timeout))
        if not online:
            raise RuntimeError("no network")

    monkeypatch.setattr("huggingface_hub.hf_hub_download", download)
    monkeypatch.setattr("huggingface_hub.HfApi.model_info", info)
    hub = "openai-community/gpt2"
    if why is None:
        assert tokenizers._find_gpt2(None) == (Path("there/vocab.json"), Path("there/merges.txt"))
    else:
        with pytest.raises(ValueError, match=why):
            tokenizers._find_gpt2(None)
    files = ["vocab.json", "merges.txt"]
    looked = [(hub, file, True) for file in files[: None if cached else 1]]
    assert asked == looked + ([] if cached else [(hub, 10), *((hub, file, False) for file in files if online)])


@pytest.mark.parametrize(("size", "bos", "merges", "fits"), [
    (50257, 50256, 50000, True), (50258, 50256, 50000, False), (50257, 0, 50000, False), (50257, 50256, 49999, False),
])  # fmt: skip
def test_vocabularies_of_another_size_are_not_gpt2s(size, bos, merges, fits, monkeypatch, tmp_path):
    vocab = {str(number): number for number in range(size - 1)} | {BOS: bos}
    for name in ("vocab.json", "merges.txt"):
        with pytest.raises(ValueError, match=f"has no {name.replace('.', '[.]')}; it must hold"):
            tokenizers._find_gpt2(tmp_path)
        (tmp_path / name).touch()
    monkeypatch.setattr("tokenizers.models.BPE.read_file", lambda *paths: (vocab, [("a", "b")] * merges))
    if fits:
        assert tokenizers._read_gpt2(tmp_path)[0] is vocab
        kinds = {TokenizerChoice(kind, tmp_path).digest() for kind in ("gpt2", "gpt2-json")}
        vocab["0"], vocab["1"] = 1, 0
        kinds.add(TokenizerChoice("gpt2", tmp_path).digest())
        assert len(kinds) == 3
    else:
        with pytest.raises(ValueError, match=f"holds {size} tokens and {merges} merges: GPT-2 has 50257 and 50000"):
            tokenizers._read_gpt2(tmp_path)


def test_saved_tokenisers_and_odd_texts(tmp_path):
    """A lone surrogate becomes the sign for what cannot be shown; long texts without a place to cut stay whole."""
    with pytest.raises(ValueError, match=r"no saved tokenizer in .* \(Not a directory\): name another folder"):
        tokenizers.Tokenizer.load(Path(__file__))
    made = train_bpe(["a\ud83eb " * 99], 300)
    assert made.decode(made.encode("a\ud83eb")) == "a\ufffdb" == BYTES.decode(BYTES.encode("a\ud83eb"))
    assert list(tokenizers._pieces("x" * 200_000)) == ["x" * 200_000] and list(tokenizers._pieces("")) == [""]
    made.save(tmp_path)
    assert json.loads((tmp_path / "kind.json").read_text()) == {"kind": "bpe-300", "vocab_size": 300, "bos_id": 299}
    hf = made.to_hf()
    assert hf.pad_token_id == hf.eos_token_id == 299 and hf.encode(BOS, add_special_tokens=False) == made.encode(BOS)
    assert hf.encode("a", "b") == [299, *made.encode("a"), *made.encode("b")]


def test_pairs_and_parts_are_escaped_like_texts(gpt2_folder):
    ours = parse_tokenizer(f"gpt2-json:{gpt2_folder}").load()
    hf = ours.to_hf()
    assert isinstance(hf, JSONTokenizer)
    assert hf("a\n", "b\n").input_ids == [ours.bos_id, *ours.encode("a\n"), *ours.encode("b\n")]
    assert hf([("a\n", "b\n")]).input_ids == [[ours.bos_id, *ours.encode("a\n"), *ours.encode("b\n")]]
    assert hf(["a\n", "b"]).input_ids == [[ours.bos_id, *ours.encode(text)] for text in ("a\n", "b")]
    assert hf.tokenize("a", add_special_tokens=True) == [BOS, *hf.tokenize("a")]


def plan_of(tmp_path, **given):
    spec = DataSpec(source="text", tokenizer="bytes", vocab_size=257, bos_id=256, document_len=8, fingerprint="aa")
    return replace(CorpusPlan(None, TokenizerChoice("bytes"), spec, tmp_path, heldout_fraction=0.5), **given)


@pytest.mark.parametrize(("most", "kept"), [(None, 9), (5, 5), (20, 5), (21, 9)])
def test_texts_are_packed_until_there_are_enough_tokens(most, kept, tmp_path, monkeypatch):
    """By batches; the first ones are what a BPE is trained on."""
    monkeypatch.setattr(pack, "_BATCH_CHARS", 12)
    monkeypatch.setattr(pack, "ROWS_PER_WRITE", 2)
    texts = [(False, "abc")] * 9 + [(True, " \n"), (False, "\n")]
    plan = plan_of(tmp_path, heldout="own", max_tokens=most)
    own = lambda: iter([(True, "h" * 9), *texts])  # noqa: E731
    said, made = [], []
    pack.build_packed(plan, own, tmp_path, said.append)
    corpus = Corpus.open(tmp_path)
    assert (corpus.counts.train_documents, corpus.counts.heldout_documents) == (kept, 1)
    assert corpus.heldout.read(slice(None)).tolist() == [[256, *b"hhhhhhh"]] and corpus.counts.heldout_rows == 1
    assert corpus.counts.dropped_tokens == 2 + 4 * corpus.counts.train_documents - 8 * corpus.counts.train_rows
    assert said[0].startswith("packed ") and said[-1] == corpus.counts.summary
    monkeypatch.setattr(pack, "BPE_CHARS", 4)
    monkeypatch.setattr(pack, "tokenizer_of", lambda plan, texts, report: made.extend(texts) or BYTES)
    pack.build_packed(plan, own, tmp_path / "again", said.append)
    assert made == ["abc", "abc"]


def test_a_packed_text_is_held_out_by_its_own_digest(tmp_path):
    """Also one that UTF-8 cannot carry; a row that is just full is written."""
    texts = [f"{number:07}" for number in range(40)] + ["\ud83e" + "x" * 6]
    pack.build_packed(plan_of(tmp_path), lambda: iter([(False, text) for text in texts]), tmp_path, lambda said: None)
    counts = Corpus.open(tmp_path).counts
    assert counts.documents == 41 and counts.train_rows + counts.heldout_rows >= 40 and 9 < counts.heldout_documents < 31
    with pytest.raises(ValueError, match="the held-out documents have 0 tokens in all, less than one row of 8: give more text"):
        pack.build_packed(plan_of(tmp_path, heldout="own"), lambda: iter([(False, "x" * 9)]), tmp_path / "b", lambda said: None)


@pytest.mark.parametrize(("number", "told"), [
    (errno.ENOSPC, "no space left in"), (errno.EDQUOT, "no space left in"), (errno.EFBIG, "no space left in"),
    (errno.EROFS, "cannot write"),
    (None, r"cannot write the tokenised corpus to .* \(odd\): make room"),
])  # fmt: skip
def test_whatever_a_disk_lacks_is_told(number, told, text_folder, tmp_path, monkeypatch):
    """And nothing is left but the lock."""
    plan = resolve(f"text:{text_folder}", tokenizer="bytes", document_len=64, cache_dir=tmp_path / "cache")
    error = OSError("odd") if number is None else OSError(number, os.strerror(number))
    monkeypatch.setattr(prepare, "_build", lambda *given: (_ for _ in ()).throw(error))
    with pytest.raises(ValueError, match=told):
        prepare.prepare(plan)
    assert [path.suffix for path in (tmp_path / "cache").iterdir() if "digests" not in path.name] == [".lock"]


def test_what_others_left_or_made_meanwhile(text_folder, tmp_path, monkeypatch):
    """A folder of another corpus of that name is none; what was made while this process waited is taken."""
    plan = resolve(f"text:{text_folder}", tokenizer="bytes", document_len=64, cache_dir=tmp_path / "cache")
    corpus = prepare.prepare(plan)
    other = replace(plan, spec=replace(plan.spec, fingerprint="other"))
    assert prepare._whole(plan) and not prepare._whole(other) and not prepare._whole(replace(plan, folder=tmp_path / "gone"))
    opened, built = [ValueError("damaged"), corpus, corpus], []
    monkeypatch.setattr(
        prepare.Corpus, "open", lambda folder: (_ for _ in ()).throw(opened.pop(0)) if len(opened) == 3 else opened.pop(0)
    )
    monkeypatch.setattr(prepare, "_build", lambda *given: built.append(given))
    said = []
    assert prepare.prepare(plan, progress=said.append) is corpus and not built
    assert said == [f"{plan.folder} is damaged, or of another version: making it again"]
    monkeypatch.undo()
    partial = plan.folder.with_name(f".{plan.folder.name}.partial")
    for left in (partial, plan.folder):
        left.mkdir(exist_ok=True)
        (left / "left").touch()
    (plan.folder / "corpus.json").unlink()
    assert sorted(path.name for path in prepare.prepare(plan).folder.iterdir()) == sorted(
        ["corpus.json", "heldout-sources.json", "heldout.zarr", "tokenizer", "train.zarr"]
    )  # fmt: skip
    assert not partial.exists()


def test_counts_of_a_corpus_by_hand(tmp_path):
    """Eleven documents of 0 to 199 bytes in rows of 64, of which two are equal and one is blank."""
    texts = [*("x" * size for size in (10, 63, 64, 100, 128, 199)), "y" * 600, "x" * 100, " \n"]
    (tmp_path / "a.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    held = tmp_path / "held.txt"
    held.write_text("z" * 150)
    how = dict(tokenizer="bytes", document_len=64, cache_dir=tmp_path / "cache")
    corpus = prepare.prepare(resolve(f"text:{tmp_path}/a.jsonl", heldout=str(held), **how))
    assert vars(corpus.counts) == dict(
        documents=9, train_documents=5, heldout_documents=1, train_rows=1 + 1 + 2 + 3 + 9, heldout_rows=2,
        duplicates=1, too_short=2,
        dropped_tokens=10 + 63 + 0 + 36 + 0 + 7 + 24 + 22,
    )  # fmt: skip
    few = prepare.prepare(resolve(f"text:{tmp_path}/a.jsonl", heldout=str(held), max_documents=3, **how))
    assert (few.counts.documents, few.counts.train_rows) == (4, 1)
    short = tmp_path / "short.txt"
    short.write_text("z" * 63)
    with pytest.raises(ValueError, match="no held-out document has 64 tokens, the longest has 63: give more or longer"):
        prepare.prepare(resolve(f"text:{tmp_path}/a.jsonl", heldout=str(short), **how))


def test_what_a_plan_knows_of_its_corpus(tmp_path, gpt2_folder, monkeypatch):
    """Every part of its identity, the name of its folder, and what it warns of."""
    (tmp_path / "a.txt").write_text("a")
    base = dict(cache_dir=tmp_path / "cache", tokenizer="bytes", document_len=64)
    of = lambda source=f"text:{tmp_path}/a.txt", **given: resolve(source, **base | given)  # noqa: E731
    plans = [of(), of(tokenizer="bpe-300"), of(document_len=65), of(heldout_fraction=0.06), of(max_documents=2),
             of(packed=True), of(packed=True, max_tokens=9), of(heldout=str(tmp_path / "a.txt")),
             of(f"hf:some/name@{'0' * 40}")]  # fmt: skip
    assert len({plan.spec.fingerprint for plan in plans}) == len(plans)
    names = [plan.folder.name.removesuffix(f"-{plan.spec.fingerprint}") for plan in plans]
    assert names == ["text-bytes-64", "text-bpe-300-64", "text-bytes-65", *["text-bytes-64"] * 2, *["text-packed-bytes-64"] * 2,
                     "text-bytes-64", "hf-some-name-bytes-64"]  # fmt: skip
    assert all(plan.notice is None and not plan.ready and plan.counts() is None for plan in plans)
    assert of(tokenizer=None).tokenizer.kind == "bpe-1024"
    monkeypatch.setattr(tokenizers, "_find_gpt2", lambda folder: (gpt2_folder / "vocab.json", gpt2_folder / "merges.txt"))
    assert of(f"hf:some/name@{'0' * 40}", tokenizer=None).tokenizer.kind == "gpt2-json"
    for source in ("packages", f"hf:some/name@{'0' * 40}"):
        with pytest.raises(ValueError, match="only data text:PATH takes one"):
            of(source, heldout="x.txt")


def test_longcrawl64_is_read_as_it_is_asked_for(longcrawl64, write_zarr, tmp_path, gpt2_folder):
    """With the vocabulary that is named, as long as is asked for, in documents of one length."""
    source = LongCrawl64Source(longcrawl64)
    how = dict(cache_dir=tmp_path, tokenizer=f"gpt2-json:{gpt2_folder}")
    plan = resolve(source, document_len=512, **how)
    assert plan.ready and plan.counts() == longcrawl64_counts(longcrawl64)
    counts = plan.counts()
    assert (counts.documents, counts.train_documents, counts.heldout_documents) == (42, 37, 5)
    corpus = prepare.prepare(plan)
    assert corpus.train.shape == (37, 512) and corpus.tokenizer.bos_id == 50256 and corpus.spec == plan.spec
    assert corpus.heldout_sources is None and corpus.counts is None
    assert resolve(source, document_len=1024, **how).spec.document_len == 1024 == resolve(source, **how).spec.document_len
    for name in ("gpt2", "bpe-300", "bytes"):
        with pytest.raises(ValueError, match="LongCrawl64 is tokenised already, with gpt2-json"):
            resolve(source, cache_dir=tmp_path, tokenizer=name)
    for short, other in (("train", "heldout"), ("heldout", "train")):
        folder = tmp_path / short
        for name, length in ((short, 64), (other, 96)):
            write_zarr(folder / f"{name}.zarr", np.ones((3, length), np.uint16))
        with pytest.raises(ValueError, match="tokens: give the shorter as document_len"):
            Corpus.open(folder)
        assert Corpus.open(folder, document_len=64).heldout.shape == (3, 64)


def test_reading_stays_within_its_bounds(tmp_path, write_zarr, monkeypatch):
    """Rows, tokens and memory have them: of the blocks that are kept the one that was not read for longest goes."""
    tokens = (1 + np.arange(6 * 16)).astype(np.uint16).reshape(6, 16)
    write_zarr(tmp_path / "a.zarr", tokens, chunks=(2, 8))
    for size, why in ((97, None), (96, "document 5 holds token 96, outside the vocabulary of 96")):
        if why is None:
            Split(tmp_path / "a.zarr", vocab_size=size).read(slice(None))
        else:
            with pytest.raises(ValueError, match=why):
                Split(tmp_path / "a.zarr", vocab_size=size).read(slice(None))
    opened = Split(tmp_path / "a.zarr", vocab_size=97, document_len=16)
    assert opened.read(np.array([], int)).shape == (0, 16)
    for rows in ([-1], [6], [0, 6], [-1, 0]):
        with pytest.raises(IndexError, match=f"documents {min(rows)} to {max(rows)} of 6"):
            opened.read(np.array(rows))
    decoded, decode = [], opened._decode
    monkeypatch.setattr(opened, "_decode", lambda rows, cols: decoded.append(rows.start) or decode(rows, cols))
    monkeypatch.setattr(split, "CACHED_BYTES", 2 * 64)  # two blocks of two whole rows
    for row in (0, 2, 0, 4, 0, 2):
        opened.read(slice(row, row + 1))
    assert decoded == [0, 2, 4, 2]
    monkeypatch.setattr(split, "CACHED_BYTES", 64)
    opened._blocks.clear()
    decoded.clear()
    opened.read(slice(1, 2))
    assert decoded == [0] and len(opened._blocks) == 1, "one that just fits is kept"


@pytest.mark.parametrize(("zeros", "width", "refused"), [(1024, 1024, True), (1023, 1023, False), (2048, 1024, True)])
def test_so_many_zeros_are_no_text(zeros, width, refused, tmp_path, write_zarr):
    tokens = np.ones((2, 2048), np.uint16)
    tokens[1, :zeros] = 0
    write_zarr(tmp_path / "a.zarr", tokens)
    opened = Split(tmp_path / "a.zarr", vocab_size=9)
    if refused:
        with pytest.raises(ValueError, match="document 1 is all zeros"):
            opened.read(slice(0, 2), 0, width)
    else:
        assert not opened.read(slice(1, 2), 0, width).any()


def test_chunks_of_corpora_are_checked_where_they_have_a_list(tmp_path, write_zarr):
    """Those of others have none; each is looked at before it is read, and the array before all."""
    write_zarr(tmp_path / "a.zarr", np.ones((2, 16), np.uint16), chunks=(2, 8))
    seen = []
    opened = Split(tmp_path / "a.zarr", vocab_size=9, check=lambda path: seen.append(path.name))
    assert seen == [".zarray"]
    opened.read(slice(0, 1), 8, 16)
    assert seen == [".zarray", "0.1"]
    spec = DataSpec(source="text", tokenizer="bytes", vocab_size=257, bos_id=256, document_len=16, fingerprint="aa")
    (tmp_path / "a.zarr").rename(tmp_path / "train.zarr")
    write_zarr(tmp_path / "heldout.zarr", np.ones((2, 16), np.uint16))
    Corpus(tmp_path, spec).train.read(slice(None))
    for header, size, fault in ((0, 15, "cut short"), (0, 16, None), (17, 16, "cut short"), (17, 17, None)):
        chunk = tmp_path / "chunk"
        chunk.write_bytes((bytes(12) + header.to_bytes(4, "little") + bytes(9))[:size])
        found = split._fault(chunk, blosc=True)
        assert (found is None) == (fault is None) and (fault or "") in (found or "")
    chunk.write_bytes(b"")
    assert "is cut short" in split._fault(chunk, blosc=False)
    chunk.write_bytes(b"x")
    assert split._fault(chunk, blosc=False) is None


def test_files_ahead_are_closed_where_reading_ends(tmp_path, monkeypatch):
    for number in range(3):
        (tmp_path / f"{number}.txt").write_text(str(number))
    closed = []

    class Blocks:
        def __init__(self, path):
            self.path = path

        def __iter__(self):
            return iter([self.path.read_bytes()])

        def close(self):
            closed.append(self.path.name)

    monkeypatch.setattr(text_files, "_blocks", Blocks)
    documents = TextSource(str(tmp_path)).documents()
    assert next(documents) == "0" and not closed
    documents.close()
    assert sorted(closed) == ["0.txt", "1.txt", "2.txt"]
