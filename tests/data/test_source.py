"""What `--data` may name, every suffix, and an error for everything else."""

import gzip
import json
import lzma
import os
import shutil
import sysconfig
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from data.file_digests import FileDigests
from data.source import HubSource, StdlibSource, parse_source
from data.text_files import TextSource, read_documents

TEXTS = ["first\nline", 'second "é" 🦊', "third"]


def zstd(content: bytes) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.CompressedOutputStream(sink, "zstd") as stream:
        stream.write(content)
    return sink.getvalue().to_pybytes()


COMPRESS = {"": bytes, ".xz": lzma.compress, ".gz": gzip.compress, ".zst": zstd}


def content_of(form: str) -> bytes:
    if form == ".txt":
        return TEXTS[0].encode()
    if form == ".jsonl":
        return b"\n".join(json.dumps({"id": i, "text": text}).encode() for i, text in enumerate(TEXTS)) + b"\n\n"
    sink = pa.BufferOutputStream()
    pq.write_table(pa.table({"id": [0, 1, 2], "text": TEXTS}), sink)
    return sink.getvalue().to_pybytes()


@pytest.mark.parametrize("compression", COMPRESS)
@pytest.mark.parametrize("form", [".txt", ".jsonl", ".parquet"])
def test_every_suffix(tmp_path: Path, form: str, compression: str) -> None:
    path = tmp_path / f"some.file{form}{compression}"
    path.write_bytes(COMPRESS[compression](content_of(form)))
    assert list(read_documents(path)) == (TEXTS[:1] if form == ".txt" else TEXTS)
    assert list(TextSource(str(tmp_path)).documents()) == list(read_documents(path))


@pytest.mark.parametrize("compression", [".xz", ".gz", ".zst"])
def test_files_of_several_compressed_parts(tmp_path: Path, compression: str) -> None:
    path = tmp_path / f"a.txt{compression}"
    path.write_bytes(COMPRESS[compression](b"one ") + COMPRESS[compression](b"two"))
    assert list(read_documents(path)) == ["one two"]


@pytest.mark.parametrize("compression", [".xz", ".gz", ".zst"])
@pytest.mark.parametrize("damage", ["cut", "other"])
def test_damaged_files(tmp_path: Path, compression: str, damage: str) -> None:
    path = tmp_path / f"a.jsonl{compression}"
    whole = COMPRESS[compression](os.urandom(2000).hex().encode())
    path.write_bytes(whole[:-100] if damage == "cut" else b"no such format, but long enough to be read")
    with pytest.raises(ValueError, match=rf"cannot read .*a\.jsonl{compression} .*is the file whole"):
        list(read_documents(path))


def test_damaged_parquet(tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    path.write_bytes(content_of(".parquet")[:-20])
    with pytest.raises(ValueError, match=r"cannot read .*a\.parquet"):
        list(read_documents(path))


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ('{"content": "a"}', r"line 2 has no `text` field"),
        ('{"text": null}', r"line 2 has no `text` field"),
        ('["text"]', r"line 2 has no `text` field"),
        ('{"text": "a"', r"line 2 is not JSON"),
        ("plain", r"line 2 is not JSON"),
    ],
)
def test_wrong_jsonl_lines(tmp_path: Path, line: str, message: str) -> None:
    (tmp_path / "a.jsonl").write_text('{"text": "fine"}\n' + line + "\n")
    with pytest.raises(ValueError, match=rf"a\.jsonl, {message}"):
        list(read_documents(tmp_path / "a.jsonl"))


def test_parquet_without_text_column(tmp_path: Path) -> None:
    pq.write_table(pa.table({"content": ["a"]}), tmp_path / "a.parquet")
    with pytest.raises(ValueError, match=r"a\.parquet has no `text` column, only content"):
        list(read_documents(tmp_path / "a.parquet"))


@pytest.mark.parametrize("name", ["a.txt", "a.jsonl"])
def test_other_encodings(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_bytes('{"text": "é"}'.encode("latin-1"))
    with pytest.raises(ValueError, match=rf"{name} is not UTF-8"):
        list(read_documents(tmp_path / name))


def test_files_keep_their_line_ends_and_lose_a_byte_order_mark(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_bytes(b"\xef\xbb\xbfa\r\nb\rc")
    (tmp_path / "b.jsonl").write_bytes(
        json.dumps({"text": "a\u2028b\rc"}, ensure_ascii=False).encode()
    )  # no line ends in JSON lines
    assert list(TextSource(str(tmp_path)).documents()) == ["a\r\nb\rc", "a\u2028b\rc"]


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    for name in ("b.txt", "a.txt", "deep/c.txt.gz", "README.md", "with,comma.txt"):
        path = tmp_path / "tree" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(gzip.compress(b"c") if name.endswith("gz") else name[:1].encode())
    return tmp_path / "tree"


@pytest.mark.parametrize(
    ("patterns", "texts"),
    [
        ("{}", ["a", "b", "c", "w"]),
        ("{}/*.txt", ["a", "b", "w"]),
        ("{}/b.txt,{}/a.txt", ["b", "a"]),
        ("{0}/b.txt,{0}", ["b", "a", "c", "w"]),
        ("{}/**/*.gz", ["c"]),
        ("{}/*", ["a", "b", "c", "w"]),
        ("{}/with,comma.txt", ["w"]),
    ],
)
def test_folders_globs_and_lists(tree: Path, patterns: str, texts: list[str]) -> None:
    source = parse_source("text:" + patterns.replace("{}", "{0}").format(tree))
    assert isinstance(source, TextSource)
    assert list(source.documents()) == texts


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ("", "'' is none of stdlib, text:PATH"),
        ("books", "'books' is none of"),
        ("stdlib:x", "'stdlib:x' is none of"),
        ("hf:", "'hf:' is none of"),
        ("hf:a/b/c", "'hf:a/b/c' is none of"),
        ("longcrawl64:", "'longcrawl64:' is none of"),
        ("text:", "names no path"),
        ("text:{}/none.txt", r"none\.txt' does not exist or matches nothing"),
        ("text:{}/*.parquet", "matches nothing"),
        ("text:{}/README.md", r"README\.md' has an unknown suffix: give .*\.jsonl"),
        ("text:{}/empty", "holds no text file"),
        ("longcrawl64:{}", r"train\.zarr does not exist"),
    ],
)
def test_wrong_values(tree: Path, value: str, message: str) -> None:
    (tree / "empty").mkdir()
    with pytest.raises(ValueError, match=message):
        parse_source(value.format(tree))


def test_digest_is_of_content_form_and_order_not_of_names(tree: Path, tmp_path: Path) -> None:
    digests = FileDigests(tmp_path / "digests.json")
    digest = TextSource(str(tree)).digest(digests)
    moved = shutil.copytree(tree, tmp_path / "moved")
    (moved / "a.txt").rename(moved / "aa.txt")
    assert TextSource(str(moved)).digest(digests) == digest
    assert TextSource(f"{tree}/b.txt,{tree}").digest(digests) != digest
    (moved / "b.txt").write_text("B")
    assert TextSource(str(moved)).digest(digests) != digest


def test_digests_are_remembered_until_the_file_changes(tmp_path: Path) -> None:
    big = tmp_path / "big.txt"
    big.write_bytes(b"x" * (2 << 20))
    memory = tmp_path / "cache" / "digests.json"
    first = FileDigests(memory).sha256(big)
    assert str(big) in memory.read_text()
    memory.write_text(memory.read_text().replace(first, "remembered"))
    assert FileDigests(memory).sha256(big) == "remembered"
    big.write_bytes(b"y" * (2 << 20))
    assert FileDigests(memory).sha256(big) not in ("remembered", first)
    memory.write_text("damaged")
    assert FileDigests(memory).sha256(big)
    with pytest.raises(ValueError, match=r"cannot read .*gone\.txt"):
        FileDigests(memory).sha256(tmp_path / "gone.txt")


def test_stdlib_is_long_documents_of_code_without_tests() -> None:
    source = parse_source("stdlib")
    assert isinstance(source, StdlibSource)
    documents = list(source.documents())
    assert sum(map(len, documents)) > 1_000_000
    assert sorted(map(len, documents))[-5] > 100_000
    names = [path.relative_to(source.root).parts for group in source.groups for path in group]
    assert ("json", "decoder.py") in names
    assert not any({"test", "tests", "site-packages", "idle_test"} & set(parts) for parts in names)
    assert len(names) == len(set(names))
    email = next(text for text in documents if "class EmailMessage" in text and "class Message" in text)
    assert "class Generator" in email  # a package is one document
    memory = FileDigests(Path("unused"))
    assert source.digest(memory) == StdlibSource().digest(memory)


def test_stdlib_without_sources(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(sysconfig, "get_path", lambda name: str(tmp_path))
    with pytest.raises(ValueError, match=r"no \.py files .* text:PATH"):
        parse_source("stdlib")


def test_hub_names() -> None:
    source = parse_source("hf:cerebras/SlimPajama-627B")
    assert isinstance(source, HubSource)
    assert (source.name, source.config, source.revision, source.kind) == (
        "cerebras/SlimPajama-627B",
        None,
        None,
        "hf:cerebras/SlimPajama-627B",
    )
    source = parse_source(f"hf:wikitext:wikitext-103-raw-v1@{'0' * 40}")
    assert isinstance(source, HubSource)
    assert (source.name, source.config, source.revision) == ("wikitext", "wikitext-103-raw-v1", "0" * 40)
    other = parse_source(f"hf:wikitext@{'0' * 40}")
    assert isinstance(other, HubSource)
    memory = FileDigests(Path("unused"))
    assert source.digest(memory) != other.digest(memory)


def test_hub_is_streamed_at_the_pinned_commit(monkeypatch: pytest.MonkeyPatch) -> None:
    import datasets

    asked: list[tuple] = []

    def load(*args: object, **kwargs: object) -> Iterator[dict]:
        asked.append((args, kwargs))
        return iter(datasets.Dataset.from_dict({"text": TEXTS}).to_iterable_dataset())

    monkeypatch.setattr(datasets, "load_dataset", load)
    commit = "1" * 40
    assert list(HubSource("some/name", "part", commit).documents()) == TEXTS
    assert asked == [(("some/name", "part"), {"revision": commit, "split": "train", "streaming": True})]
    monkeypatch.setattr(datasets, "load_dataset", lambda *args, **kwargs: iter([{"content": "a"}]))
    with pytest.raises(ValueError, match="'hf:some/name' has no `text` column, only content"):
        list(HubSource("some/name", None, commit).documents())


def test_hub_out_of_reach(monkeypatch: pytest.MonkeyPatch) -> None:
    import huggingface_hub

    def unreachable(*args: object, **kwargs: object) -> None:
        raise ConnectionError("no network")

    monkeypatch.setattr(huggingface_hub.HfApi, "dataset_info", unreachable)
    with pytest.raises(ValueError, match=r"hf:some/name.*no network.*NAME@COMMIT"):
        HubSource("some/name", None, None).digest(FileDigests(Path("unused")))
