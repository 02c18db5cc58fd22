"""What `--data` may name, every suffix, and an error for everything else."""

import gzip
import json
import lzma
import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from data.source import CONTENT, PACKAGE, VERSION, HubSource, PackagesSource, parse_source
from data.text_files import FileDigests, TextSource, read_documents

TEXTS = ["first\nline", 'second "é" 🦊\r\n\u2028\r', "third"]


def zstd(content: bytes) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.CompressedOutputStream(sink, "zstd") as stream:
        stream.write(content)
    return sink.getvalue().to_pybytes()


COMPRESS = {"": bytes, ".xz": lzma.compress, ".gz": gzip.compress, ".zst": zstd}


def content_of(form: str) -> bytes:
    if form == ".txt":
        return b"\xef\xbb\xbf" + TEXTS[1].encode()  # with a byte order mark, which is no text
    if form == ".jsonl":
        return b"\n \t\n".join(json.dumps({"id": 1, "text": text}, ensure_ascii=False).encode() for text in TEXTS) + b"\n\n"
    sink = pa.BufferOutputStream()
    pq.write_table(pa.table({"id": [0, 1, 2, 3], "text": [*TEXTS, None]}), sink)
    return sink.getvalue().to_pybytes()


@pytest.mark.parametrize("compression", COMPRESS)
@pytest.mark.parametrize("form", [".txt", ".jsonl", ".parquet"])
def test_every_suffix(tmp_path, form, compression):
    """Line ends within texts are kept; a damaged file, and one of another format, is named."""
    path = tmp_path / f"some.file{form}{compression}"
    whole = COMPRESS[compression](content_of(form))
    path.write_bytes(whole)
    assert list(read_documents(path)) == (TEXTS[1:2] if form == ".txt" else TEXTS)
    assert list(TextSource(str(tmp_path)).documents()) == list(read_documents(path))
    if compression and form == ".jsonl":  # files of several compressed parts
        path.write_bytes(whole + whole)
        assert list(read_documents(path)) == TEXTS + TEXTS
    for damage in (whole[:-10], b"no such format \xff, but long enough to be read"):
        path.write_bytes(damage)
        if form == ".txt" and not compression and damage == whole[:-10]:
            continue  # is a text like others
        with pytest.raises(ValueError, match=r"some\.file"):
            list(read_documents(path))


@pytest.mark.parametrize(
    "line",
    ['{"content": "a"}', '{"text": null}', '["text"]', '{"text": "a"', '{"text": ' + "[" * 100_000, '{"text": "\xe9"}'],
)
def test_wrong_lines(tmp_path, line):
    (tmp_path / "a.jsonl").write_bytes(b'{"text": "fine"}\n' + line.encode("latin-1") + b"\n")
    with pytest.raises(ValueError, match=r"a\.jsonl, line 2 "):
        list(read_documents(tmp_path / "a.jsonl"))


@pytest.mark.parametrize("texts", [[b"\xff", b"a"], [1, 2], [["a"], ["b"]], [{"a": "b"}], [True]])
def test_columns_that_are_no_text(tmp_path, texts):
    for name in ("text", "content"):
        pq.write_table(pa.table({name: texts}), tmp_path / "a.parquet")
        with pytest.raises(ValueError, match=r"a\.parquet has .*`text` column"):
            list(read_documents(tmp_path / "a.parquet"))
    for kind in (pa.string(), pa.large_string(), pa.string_view(), pa.dictionary(pa.int32(), pa.string())):
        pq.write_table(pa.table({"text": pa.array(["a", None, ""], kind)}), tmp_path / "a.parquet")
        assert list(read_documents(tmp_path / "a.parquet")) == ["a", ""]


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    for name in ("b.txt", "a.txt", "deep/c.txt.gz", "README.md", "with,comma.txt"):
        path = tmp_path / "tree" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(gzip.compress(b"c") if name.endswith("gz") else name[:1].encode())
    (tmp_path / "other.txt").symlink_to(tmp_path / "tree" / "a.txt")
    return tmp_path / "tree"


@pytest.mark.parametrize(
    ("patterns", "texts"),
    [
        ("{}", "abcw"), ("{}/*.txt", "abw"), ("{}/b.txt,{}/a.txt", "ba"), ("{}/b.txt,{}", "bacw"), ("{}/**/*.gz", "c"),
        ("{}/*", "abcw"), ("{}/loop,{}", "abcw"), ("{}/with,comma.txt", "w"), (" ,{}/b.txt,, {}/a.txt , ", "ba"),
        ("{}/a.txt,{}/../other.txt", "a"), ("~/tree/b.txt", "b"),
    ],
)  # fmt: skip
def test_folders_globs_and_lists(tree, patterns, texts, monkeypatch):
    """A file that has two names is read once."""
    monkeypatch.chdir(tree)  # whose texts no empty name may take in
    monkeypatch.setenv("HOME", str(tree.parent))
    (tree / "loop").symlink_to(tree)
    source = parse_source("text:" + patterns.replace("{}", str(tree)))
    assert isinstance(source, TextSource)
    assert "".join(source.documents()) == texts


@pytest.mark.parametrize("value", [
    "", "books", "packages:x", "hf:", "hf:a/b/c", "longcrawl64:", "text:", "text: , ", "text:{}/none.txt", "text:{}/*.parquet",
    "text:{}/README.md", "text:{}/empty", "longcrawl64:{}",
])  # fmt: skip
def test_wrong_values(tree, value):
    (tree / "empty").mkdir()
    with pytest.raises(ValueError, match=r": (give|name)|is none of"):
        parse_source(value.format(tree))


def test_a_digest_is_of_content_form_and_order_not_of_names(tree, tmp_path):
    digests = FileDigests(tmp_path / "digests.json")
    digest = TextSource(str(tree)).digest(digests)
    moved = shutil.copytree(tree, tmp_path / "moved")
    (moved / "a.txt").rename(moved / "aa.txt")
    assert TextSource(str(moved)).digest(digests) == digest
    (moved / "b.txt").write_text("B")
    others = {TextSource(f"{tree}/b.txt,{tree}").digest(digests), TextSource(str(moved)).digest(digests)}
    assert len({digest, *others}) == 3
    for name in ("a.txt", "a.jsonl", "a.parquet", "a.txt.gz", "a.jsonl.gz"):
        (tmp_path / name).write_bytes(b"the same")
        others.add(TextSource(f"{tmp_path}/{name}").digest(digests))
    assert len(others) == 7


def test_digests_are_remembered_until_the_file_changes(tmp_path):
    big, memory = tmp_path / "big.txt", tmp_path / "cache" / "digests.json"
    big.write_bytes(b"x" * (2 << 20))
    first = FileDigests(memory).sha256(big)
    assert first in memory.read_text() and FileDigests(memory).sha256(big) == first
    before = big.stat()
    big.write_bytes(b"y" * (2 << 20))
    os.utime(big, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert big.stat().st_mtime_ns == before.st_mtime_ns
    second = FileDigests(memory).sha256(big)
    for damaged in (memory.read_text()[:-10], "{}"):
        memory.write_text(damaged)
        assert FileDigests(memory).sha256(big) == second != first
    with pytest.raises(ValueError, match=r"cannot read .*gone\.txt"):
        FileDigests(memory).sha256(tmp_path / "gone.txt")


def test_packages_are_the_text_that_is_named_in_the_code():
    source = parse_source("packages")
    assert isinstance(source, PackagesSource)
    documents = list(source.documents())
    assert len(documents) > 60 and sum(map(len, documents)) > 6_000_000 and min(map(len, documents)) > 30_000
    assert (source.notice is None) == (source.digest(FileDigests(Path("unused"))) == CONTENT) == (source.version == VERSION)
    assert f"{PACKAGE}=={VERSION}\n" in (Path(__file__).parents[2] / "requirements.txt").read_text()


def test_the_hub_is_streamed_at_the_pinned_commit(monkeypatch):
    import datasets

    asked: list[tuple] = []

    def load(*args: object, **kwargs: object) -> Iterator[dict]:
        asked.append((args, kwargs))
        return iter(datasets.Dataset.from_dict({"text": TEXTS}).to_iterable_dataset())

    monkeypatch.setattr(datasets, "load_dataset", load)
    assert list(HubSource("some/name", "part", "1" * 40).documents()) == TEXTS
    assert asked == [(("some/name", "part"), {"revision": "1" * 40, "split": "train", "streaming": True})]
    monkeypatch.setattr(datasets, "load_dataset", lambda *args, **kwargs: iter([{"content": "a"}]))
    with pytest.raises(ValueError, match="'hf:some/name' has no `text` column"):
        list(HubSource("some/name", None, "1" * 40).documents())
