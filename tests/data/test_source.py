"""Tests of what `--data` may name, every suffix, and an error for everything else."""

import gzip
import json
import lzma
import os
import re
import shutil
import threading
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import data.source
import data.text_files
from data.plan import HUB_MAX_DOCUMENTS, resolve
from data.source import CONTENT, PACKAGE, VERSION, HubSource, PackagesSource, parse_source
from data.text_files import FileDigests, TextSource, files_below, read_documents
from results.sealed import read_sealed, write_sealed

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
        ('{"text": ' + "[" * 100_000, r"line 2 is not JSON"),
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


@pytest.mark.parametrize("texts", [[b"\xff", b"a"], [1, 2], [["a"], ["b"]], [{"a": "b"}], [1.5], [True]])
def test_parquet_whose_text_is_none(tmp_path: Path, texts: list) -> None:
    pq.write_table(pa.table({"text": texts}), tmp_path / "a.parquet")
    with pytest.raises(ValueError, match=r"a\.parquet has a `text` column of .*, not of strings"):
        list(read_documents(tmp_path / "a.parquet"))
    for kind in (pa.string(), pa.large_string(), pa.dictionary(pa.int32(), pa.string())):
        pq.write_table(pa.table({"text": pa.array(["a", None, ""], kind)}), tmp_path / "a.parquet")
        assert list(read_documents(tmp_path / "a.parquet")) == ["a", ""]


@pytest.mark.parametrize(
    ("name", "said"), [("a.txt", " is not UTF-8 text (byte 26)"), ("a.jsonl", ", line 2 is not UTF-8 text (byte 10)")]
)
def test_other_encodings(tmp_path: Path, name: str, said: str) -> None:
    (tmp_path / name).write_bytes('{"text": "a"}  \n{"text": "é"}'.encode("latin-1"))
    with pytest.raises(ValueError, match=re.escape(name + said)):
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
        ("{}/b.txt,", ["b"]),
        (" ,{}/b.txt,, {}/a.txt , ", ["b", "a"]),
    ],
)
def test_folders_globs_and_lists(tree: Path, patterns: str, texts: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tree)  # whose texts no empty name may take in
    source = parse_source("text:" + patterns.replace("{}", "{0}").format(tree))
    assert isinstance(source, TextSource)
    assert list(source.documents()) == texts


def test_links_to_folders_are_followed(tree: Path, tmp_path: Path) -> None:
    """Each folder once, also where links lead in a circle; what lies in the folder itself keeps its place."""
    far = tmp_path / "far"
    (far / "below").mkdir(parents=True)
    for name in ("x.txt", "below/y.txt"):
        (far / name).write_text(name)
    before = files_below(tree)
    for link, target in (("a-self", tree), ("deep/up", tree), ("a-deep", tree / "deep")):
        (tree / link).symlink_to(target)
    assert files_below(tree) == before == sorted(path for path in tree.rglob("*") if path.is_file())
    (tree / "deep" / "more").symlink_to(far)
    (tree / "more").symlink_to(far)
    (far / "below" / "back").symlink_to(tree)
    (far / "below" / "gone").symlink_to(tmp_path / "gone")
    assert files_below(tree) == sorted([*before, tree / "deep/more/x.txt", tree / "deep/more/below/y.txt"])
    assert list(TextSource(str(tree)).documents()) == ["a", "b", "c", "below/y.txt", "x.txt", "w"]


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ("", "'' is none of packages, text:PATH"),
        ("books", "'books' is none of"),
        ("packages:x", "'packages:x' is none of"),
        ("hf:", "'hf:' is none of"),
        ("hf:a/b/c", "'hf:a/b/c' is none of"),
        ("longcrawl64:", "'longcrawl64:' is none of"),
        ("text:", "'text:' names no path"),
        ("text: , ", "'text: , ' names no path"),
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


def test_the_same_bytes_in_another_form_are_another_text(tmp_path: Path) -> None:
    names = ("a.txt", "a.jsonl", "a.parquet", "a.txt.gz", "a.jsonl.gz", "a.txt.xz", "a.jsonl.zst")
    for name in (*names, "b.jsonl.gz", "C.TXT"):
        (tmp_path / name).write_bytes(b"the same")
    digests = FileDigests(tmp_path / "d.json")
    found = {path.name: TextSource(str(path)).digest(digests) for path in sorted(tmp_path.iterdir())}
    assert len(set(found.values())) == len(names)
    assert found["b.jsonl.gz"] == found["a.jsonl.gz"] and found["C.TXT"] == found["a.txt"]


def test_digests_are_remembered_until_the_file_changes(tmp_path: Path) -> None:
    big = tmp_path / "big.txt"
    big.write_bytes(b"x" * (2 << 20))
    memory = tmp_path / "cache" / "digests.json"
    first = FileDigests(memory).sha256(big)
    assert str(big) in memory.read_text()
    whole = read_sealed(memory, "")
    memory.write_text(memory.read_text().replace(first, "0" * 64))
    assert FileDigests(memory).sha256(big) == first, "the memory was changed by somebody: it counts for nothing"
    write_sealed(memory, {name: [*stamp[:-1], "remembered"] for name, stamp in whole.items()})
    assert FileDigests(memory).sha256(big) == "remembered"
    before = big.stat()
    big.write_bytes(b"y" * (2 << 20))
    os.utime(big, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert big.stat().st_size == before.st_size and big.stat().st_mtime_ns == before.st_mtime_ns
    assert FileDigests(memory).sha256(big) not in ("remembered", first)
    for damaged in ("damaged", "[]", "{}", "[" * 100_000):
        memory.write_text(damaged)
        assert FileDigests(memory).sha256(big)
    with pytest.raises(ValueError, match=r"cannot read .*gone\.txt"):
        FileDigests(memory).sha256(tmp_path / "gone.txt")


def test_files_read_ahead_come_in_order_and_fail_in_their_place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """More files than are opened ahead, in small blocks; the threads end with the reading."""
    monkeypatch.setattr(data.text_files, "_BLOCK_BYTES", 1000)
    monkeypatch.setattr(data.text_files, "_BLOCKS_AHEAD", 2)
    texts = [f"{number} " * 2000 for number in range(12)]
    for number, text in enumerate(texts):
        suffix, compress = list(COMPRESS.items())[number % 4]
        (tmp_path / f"{number:02}.txt{suffix}").write_bytes(compress(text.encode()))
    source = TextSource(str(tmp_path))
    assert list(source.documents()) == texts
    assert next(source.documents()) == texts[0]  # not read to the end
    path = tmp_path / "05.txt.xz"
    path.write_bytes(path.read_bytes()[:-20])
    read = []
    with pytest.raises(ValueError, match=r"cannot read .*05\.txt\.xz"):
        read.extend(source.documents())
    documents = source.documents()
    assert [next(documents) for _ in range(5)] == texts[:5]
    with pytest.raises(ValueError, match=r"cannot read .*05\.txt\.xz"):
        next(documents)
    assert not [thread for thread in threading.enumerate() if thread.name == "prefetch"]


def test_packages_are_the_text_that_is_named_in_the_code() -> None:
    source = parse_source("packages")
    assert isinstance(source, PackagesSource)
    documents = list(source.documents())
    assert len(documents) > 60
    assert sum(map(len, documents)) > 6_000_000
    assert min(map(len, documents)) > 30_000
    assert len({line for text in documents for line in text.split("\n") if line.startswith("def test_")}) < 20
    assert not any("DO NOT EDIT" in text for text in documents)
    assert (source.notice is None) == (source.version == VERSION)
    assert (source.digest(FileDigests(Path("unused"))) == CONTENT) == (source.version == VERSION)
    assert f"{PACKAGE}=={VERSION}\n" in (Path(__file__).parents[2] / "requirements.txt").read_text()


def test_another_text_in_packages_is_said(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(data.source, "FOLDERS", ("core", "sets"))
    files = {"core/b.py": "b" * 70_000, "core/a.py": "a", "core/c.py": "c", "sets/x.py": "x"}
    for name, content in (files | {"core/tests/t.py": "t", "core/facts_generated.py": "g"}).items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content)
    source = PackagesSource()
    source.root, source.version = tmp_path, "9.9"
    assert list(source.documents()) == ["\n".join(["a", "b" * 70_000, "c"]), "x"]
    assert source.notice is not None
    assert re.search(rf"found sympy 9\.9 \(text .{{8}}\), expected {VERSION} \(text {CONTENT[:8]}\)", source.notice)
    assert f"pip install sympy=={VERSION}" in source.notice
    monkeypatch.setattr(data.source, "PACKAGE", "no_such_package")
    with pytest.raises(ValueError, match=r"no_such_package is not installed.*text:PATH"):
        parse_source("packages")


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


@pytest.mark.parametrize("revision", [None, "main", "abcdef0", "a" * 39, "a" * 41, "A" * 40, "g" * 40])
def test_what_is_no_full_commit_is_asked_of_the_hub_once(revision: str | None, monkeypatch: pytest.MonkeyPatch) -> None:
    """A branch may have a name of hexadecimal digits."""
    import huggingface_hub

    asked = []
    known = lambda api, name, **how: asked.append((name, how["revision"])) or SimpleNamespace(sha="a" * 40)  # noqa: E731
    monkeypatch.setattr(huggingface_hub.HfApi, "dataset_info", known)
    source = HubSource("some/name", None, revision)
    digests = {source.digest(FileDigests(Path("unused"))) for _ in range(2)}
    assert digests == {HubSource("some/name", None, "a" * 40).digest(FileDigests(Path("unused")))}
    assert asked == [("some/name", revision)]


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("given", [None, 9])
@pytest.mark.parametrize("name", ["text", "hf"])
def test_how_many_documents_are_read(name: str, given: int | None, packed: bool, tmp_path: Path) -> None:
    """Documents of the hub are kept on disk until they are split, so many at most; packed ones are not kept."""
    (tmp_path / "a.txt").write_text("a")
    source = f"text:{tmp_path}/a.txt" if name == "text" else f"hf:some/name@{'0' * 40}"
    how = dict(cache_dir=tmp_path, tokenizer="bytes", document_len=64, packed=packed)
    plan = resolve(source, max_documents=given, **how)
    assert plan.max_documents == (HUB_MAX_DOCUMENTS if (name, given, packed) == ("hf", None, False) else given)


def test_a_file_by_two_names_is_read_once(tree: Path) -> None:
    (tree.parent / "other.txt").symlink_to(tree / "a.txt")
    for patterns in (f"{tree}/a.txt,{tree.parent}/other.txt", f"{tree}/a.txt,{tree}/deep/../a.txt", f"{tree}/a.txt,{tree}/a.*"):
        assert list(TextSource(patterns).documents()) == ["a"]
