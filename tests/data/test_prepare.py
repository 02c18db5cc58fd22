"""From text to zarr: contents, fingerprint, split, order, and what interruptions, neighbours and full disks leave behind."""

import errno
import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import zarr
from hypothesis import given
from hypothesis import strategies as st

import data.corpus
import data.pack
import data.prepare
import data.source
from data.corpus import Corpus
from data.plan import CorpusPlan, resolve
from data.prepare import _choose_heldout, _Document, interleave, prepare
from data.source import HubSource
from results.sealed import write_sealed

LENGTH = 128


def plan_for(folder: Path, tokenizer: str = "bytes", **changes: object) -> CorpusPlan:
    settings = {"cache_dir": folder.parent / "cache", "document_len": LENGTH, "heldout_fraction": 0.2} | changes
    return resolve(f"text:{folder}", tokenizer=tokenizer, **settings)  # type: ignore[arg-type]


def rows_of(text_folder: Path, corpus: Corpus) -> dict[bytes, tuple[str, int]]:
    """File and number of every row that the corpus's documents must give."""
    rows = {}
    for path in sorted(text_folder.iterdir()):
        ids = np.array(corpus.tokenizer.encode(path.read_bytes().decode()), np.uint16)
        for i in range(len(ids) // LENGTH):
            rows[ids[i * LENGTH : (i + 1) * LENGTH].tobytes()] = (path.name, i)
    return rows


@pytest.mark.parametrize("kind", ["bytes", "gpt2", "gpt2-json", "bpe-300"])
def test_every_whole_row_is_stored_once(text_folder: Path, gpt2_folder: Path, kind: str) -> None:
    """Train and held-out together hold the consecutive rows of all documents, and a document is in one of them only."""
    corpus = prepare(plan_for(text_folder, f"{kind}:{gpt2_folder}" if kind.startswith("gpt2") else kind))
    assert (corpus.spec.tokenizer, corpus.spec.source, corpus.spec.document_len) == (kind, "text", LENGTH)
    assert (corpus.tokenizer.vocab_size, corpus.tokenizer.bos_id) == (corpus.spec.vocab_size, corpus.spec.bos_id)
    wanted = rows_of(text_folder, corpus)
    train, heldout = ([wanted[row.tobytes()] for row in split.read(slice(None))] for split in (corpus.train, corpus.heldout))
    assert sorted(train + heldout) == sorted(wanted.values())
    assert {name for name, _ in train}.isdisjoint(name for name, _ in heldout)
    assert len({name for name, _ in train + heldout}) == 12
    assert 0 < len(heldout) < 0.3 * len(wanted)
    files = sorted({name for name, _ in heldout})
    assert corpus.heldout_sources == [files.index(name) for name, _ in heldout]
    counts = corpus.counts
    assert counts is not None
    assert (counts.documents, counts.duplicates, counts.too_short) == (12, 0, 0)
    assert (counts.train_rows, counts.heldout_rows) == (len(train), len(heldout))
    tokens = sum(len(corpus.tokenizer.encode(path.read_bytes().decode())) for path in text_folder.iterdir())
    assert counts.dropped_tokens == tokens - LENGTH * len(wanted)


def test_quirk_reaches_the_corpus(text_folder: Path, gpt2_folder: Path) -> None:
    """Trap 3: no stored token of the quirk's corpus decodes to a raw newline, tab or non-ASCII character."""
    quirk, plain = (prepare(plan_for(text_folder, f"{kind}:{gpt2_folder}")) for kind in ("gpt2-json", "gpt2"))
    for corpus, escaped in ((quirk, True), (plain, False)):
        text = plain.tokenizer.decode(corpus.train.read(slice(None)).reshape(-1).tolist())  # without unescaping
        assert ("\\n" in text) == escaped
        assert ("\n" in text) != escaped
        assert text.isascii() == escaped
    assert "\n" in quirk.tokenizer.decode(quirk.train.read(slice(0, 20)).reshape(-1).tolist())


def test_no_bos_is_stored(text_folder: Path, gpt2_folder: Path) -> None:
    (text_folder / "00.txt").write_text("<|endoftext|> and more " * 200)
    for tokenizer in ("bytes", "bpe-300", f"gpt2-json:{gpt2_folder}"):
        corpus = prepare(plan_for(text_folder, tokenizer))
        for split in (corpus.train, corpus.heldout):
            assert not (split.read(slice(None)) == corpus.spec.bos_id).any()


def test_layout_is_that_of_longcrawl64(text_folder: Path) -> None:
    corpus = prepare(plan_for(text_folder))
    about = json.loads((corpus.folder / "train.zarr" / ".zarray").read_text())
    assert about["zarr_format"] == 2
    assert about["dtype"] == "<u2"
    assert about["shape"] == [len(corpus.train), LENGTH]
    assert {key: about["compressor"][key] for key in ("id", "cname", "clevel", "shuffle")} == {
        "id": "blosc",
        "cname": "lz4",
        "clevel": 5,
        "shuffle": 1,
    }
    array = zarr.open_array(corpus.folder / "heldout.zarr", mode="r")
    assert array.chunks[0] <= array.shape[0]
    assert array.chunks[1] <= array.shape[1]
    assert sorted(path.name for path in corpus.folder.iterdir()) == [
        "corpus.json",
        "heldout-sources.json",
        "heldout.zarr",
        "tokenizer",
        "train.zarr",
    ]


def test_a_second_call_tokenises_nothing(text_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plan = plan_for(text_folder)
    assert not plan.ready
    first = prepare(plan)
    assert plan.ready
    monkeypatch.setattr(data.prepare, "_build", lambda *args: pytest.fail("tokenised again"))
    again = plan_for(text_folder)
    assert again.ready
    assert again.spec == first.spec
    assert (prepare(again).train.read(slice(None)) == first.train.read(slice(None))).all()


def test_fingerprint_follows_what_decides_the_tokens(text_folder: Path, gpt2_folder: Path, tmp_path: Path) -> None:
    first = plan_for(text_folder).spec.fingerprint
    moved = shutil.copytree(text_folder, tmp_path / "far" / "away")
    assert plan_for(moved).spec.fingerprint == first
    assert plan_for(moved, cache_dir=tmp_path / "other").spec.fingerprint == first
    gpt2_moved = shutil.copytree(gpt2_folder, tmp_path / "vocabulary")
    by_tokenizer = {kind: plan_for(text_folder, kind).spec.fingerprint for kind in ("bpe-300", "bpe-301")}
    by_folder = [plan_for(text_folder, f"gpt2:{folder}").spec.fingerprint for folder in (gpt2_folder, gpt2_moved)]
    assert by_folder[0] == by_folder[1]
    quirk = plan_for(text_folder, f"gpt2-json:{gpt2_folder}").spec.fingerprint
    merges = (gpt2_moved / "merges.txt").read_text().split("\n")
    merges[7], merges[8] = merges[8], merges[7]
    (gpt2_moved / "merges.txt").write_text("\n".join(merges))
    others = [
        *by_tokenizer.values(),
        by_folder[0],
        quirk,
        plan_for(text_folder, f"gpt2:{gpt2_moved}").spec.fingerprint,
        plan_for(text_folder, document_len=LENGTH // 2).spec.fingerprint,
        plan_for(text_folder, heldout_fraction=0.1).spec.fingerprint,
        plan_for(text_folder, max_documents=5).spec.fingerprint,
    ]
    with (moved / "03.txt").open("a") as file:
        file.write("!")
    others.append(plan_for(moved).spec.fingerprint)
    assert len({first, *others}) == 1 + len(others)


def test_held_out_documents_do_not_depend_on_names_or_order(text_folder: Path, tmp_path: Path) -> None:
    first = prepare(plan_for(text_folder))
    turned = tmp_path / "turned"
    turned.mkdir()
    for i, path in enumerate(sorted(text_folder.iterdir(), reverse=True)):
        shutil.copy(path, turned / f"{i:02}.txt")
    second = prepare(plan_for(turned))
    assert second.spec.fingerprint != first.spec.fingerprint
    assert {r.tobytes() for r in first.heldout.read(slice(None))} == {r.tobytes() for r in second.heldout.read(slice(None))}


def test_held_out_documents_surely_give_rows(tmp_path: Path) -> None:
    """Those below eight bytes a token of a row are not chosen while there are others."""
    folder = tmp_path / "texts"
    folder.mkdir()
    for number in range(20):
        (folder / f"{number:02}.txt").write_text(f"{number:02}" * (4 * LENGTH if number < 3 else 4 * LENGTH - 1))
    corpus = prepare(plan_for(folder, heldout_fraction=0.5))
    assert corpus.counts is not None
    assert corpus.counts.heldout_documents in (1, 2, 3)
    assert corpus.counts.heldout_rows == 8 * corpus.counts.heldout_documents


def test_duplicates_count_once(text_folder: Path) -> None:
    alone = prepare(plan_for(text_folder))
    shutil.copy(text_folder / "03.txt", text_folder / "zz.txt")
    (text_folder / "blank.txt").write_text(" \n")
    corpus = prepare(plan_for(text_folder))
    assert corpus.counts is not None
    assert (corpus.counts.documents, corpus.counts.duplicates) == (13, 1)
    assert (corpus.train.read(slice(None)) == alone.train.read(slice(None))).all()


def test_bpe_never_sees_held_out_text(text_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[str] = []
    train_bpe = data.pack.train_bpe
    monkeypatch.setattr(data.pack, "train_bpe", lambda texts, size: train_bpe((seen.append(t) or t for t in texts), size))
    corpus = prepare(plan_for(text_folder, "bpe-300"))
    rows = rows_of(text_folder, corpus)
    names = {rows[row.tobytes()][0] for row in corpus.heldout.read(slice(None))}
    heldout = {(text_folder / name).read_bytes().decode() for name in names}
    assert heldout
    assert len(seen) == 12 - len(heldout)
    assert heldout.isdisjoint(seen)


@given(st.lists(st.integers(0, 12), min_size=1, max_size=30).filter(any))
def test_interleaving(counts: list[int]) -> None:
    rows = np.array(counts)
    firsts = np.cumsum(rows) - rows
    order = interleave(firsts, rows)
    assert sorted(order) == list(range(rows.sum()))
    document = np.searchsorted(np.cumsum(rows), order, side="right")
    for d in np.flatnonzero(rows):
        places = np.flatnonzero(document == d)
        assert (np.diff(order[places]) == 1).all()  # a document's rows keep their order
        for share in (0.25, 0.5, 0.75):  # and every stretch of the corpus holds its fair share of them, give or take
            assert abs((places < share * len(order)).sum() - share * rows[d]) <= 2 + 0.5 * np.count_nonzero(rows) * rows[
                d
            ] / len(order)


def test_interleaving_keeps_the_order_of_short_documents_and_mixes_books() -> None:
    assert interleave(np.arange(5), np.ones(5, int)).tolist() == [0, 1, 2, 3, 4]
    assert interleave(np.array([0, 3, 6]), np.array([3, 3, 3])).tolist() == [0, 3, 6, 1, 4, 7, 2, 5, 8]
    document = np.repeat([0, 1], [90, 10])[interleave(np.array([0, 90]), np.array([90, 10]))]
    assert max(np.diff(np.flatnonzero(document == 1))) <= 11


KILLER = """
import os, signal, sys
sys.path[:0] = {path!r}
from pathlib import Path
from data.plan import resolve
from data.prepare import prepare
plan = resolve("text:{folder}", tokenizer="bpe-300", cache_dir=Path({cache!r}), document_len={length}, heldout_fraction=0.2)
reports = []
def report(message):
    reports.append(message)
    if len(reports) == {last}:
        os.kill(os.getpid(), signal.SIGKILL)
prepare(plan, progress=report)
print(*reports, sep="\\n")
"""


def run_killer(folder: Path, cache: Path, last: int) -> list[str]:
    code = KILLER.format(path=sys.path, folder=folder, cache=str(cache), length=LENGTH, last=last)
    return [sys.executable, "-c", code]


def tree_bytes(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_killed_at_every_stage_and_started_again(text_folder: Path, tmp_path: Path) -> None:
    undisturbed = prepare(plan_for(text_folder, "bpe-300", cache_dir=tmp_path / "calm"))
    cache = tmp_path / "cache"
    for last in range(1, 6):  # after scanning, before training the BPE, before each array, after the last file
        ran = subprocess.run(run_killer(text_folder, cache, last), check=False, capture_output=True)
        assert ran.returncode == -signal.SIGKILL, ran.stderr.decode()
        assert not plan_for(text_folder, "bpe-300").ready
    corpus = prepare(plan_for(text_folder, "bpe-300"))
    assert tree_bytes(corpus.folder) == tree_bytes(undisturbed.folder)
    assert [path.name for path in cache.iterdir() if path.is_dir()] == [corpus.folder.name]


def test_two_processes_make_it_once(text_folder: Path, tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    processes = [
        subprocess.Popen(run_killer(text_folder, cache, 0), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        for _ in range(2)
    ]
    outputs = [process.communicate(timeout=60) for process in processes]
    assert [process.returncode for process in processes] == [0, 0], outputs
    assert sum("writing train.zarr" in out for out, _ in outputs) == 1
    assert len([path for path in cache.iterdir() if path.is_dir()]) == 1


FULL_DISK = """
import resource, sys
sys.path[:0] = {path!r}
from pathlib import Path
from data.plan import resolve
from data.prepare import prepare
plan = resolve("text:{folder}", tokenizer="bytes", cache_dir=Path({cache!r}), document_len={length})
resource.setrlimit(resource.RLIMIT_FSIZE, ({limit}, {limit}))
try:
    prepare(plan)
except ValueError as error:
    print(error)
"""


def test_files_that_cannot_grow_stand_for_a_full_disk(text_folder: Path, tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    code = FULL_DISK.format(path=sys.path, folder=text_folder, cache=str(cache), length=LENGTH, limit=20_000)
    ran = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert "no space left" in ran.stdout, ran
    assert "another --corpora-dir" in ran.stdout
    assert not any(path.is_dir() for path in cache.iterdir())


@pytest.mark.parametrize("stage", ["train.zarr", "tokenizer", "corpus.json"])
def test_disk_that_fills_up_late_leaves_nothing(text_folder: Path, stage: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*args: object, **kwargs: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    plan = plan_for(text_folder)
    with monkeypatch.context() as patch:
        if stage == "train.zarr":
            patch.setattr(zarr.Array, "__setitem__", full)
        elif stage == "tokenizer":
            patch.setattr(data.prepare.Tokenizer, "save", full)
        else:
            patch.setattr(data.corpus, "write_sealed", full)
        with pytest.raises(ValueError, match=r"no space left in .*cache"):
            prepare(plan)
    assert not plan.ready
    assert not any(path.is_dir() for path in plan.folder.parent.iterdir())
    assert len(prepare(plan).train)


def test_cache_that_cannot_be_written(text_folder: Path, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(ValueError, match=r"cannot write the tokenised corpus to .*file"):
        prepare(plan_for(text_folder, cache_dir=tmp_path / "file" / "cache"))


@pytest.mark.parametrize("damage", ["changed", "cut off", "of another version", "gone"])
def test_damaged_corpus_file(text_folder: Path, damage: str) -> None:
    plan = plan_for(text_folder)
    corpus = prepare(plan)
    about = corpus.folder / "corpus.json"
    whole = about.read_text()
    if damage == "changed":
        about.write_text(whole.replace('"documents": 12', '"documents": 13'))
    elif damage == "cut off":
        about.write_text(whole[:-10])
    elif damage == "of another version":
        write_sealed(about, {"spec": {"source": "text"}})
    else:
        about.unlink()
    if damage != "gone":
        with pytest.raises(ValueError, match=r"corpus\.json (was changed|cannot be read|is of another).*: delete .*made again"):
            Corpus.open(corpus.folder)
    assert not plan.ready and plan.counts() is None
    reports: list[str] = []
    again = prepare(plan, progress=reports.append)
    assert any("making it again" in report for report in reports) == (damage != "gone")
    assert about.read_text() == whole
    assert plan.counts() == again.counts == corpus.counts


def test_counts_are_known_without_reading_tokens(text_folder: Path) -> None:
    plan = plan_for(text_folder)
    assert plan.counts() is None
    corpus = prepare(plan)
    counts = plan_for(text_folder).counts()
    assert counts == corpus.counts
    assert counts is not None
    assert (counts.train_rows, counts.heldout_rows) == (len(corpus.train), len(corpus.heldout))


def test_a_held_out_text_of_its_own(text_folder: Path, tmp_path: Path) -> None:
    """All of its documents are held out and none of them is trained on, not even where both texts hold it."""
    heldout = tmp_path / "heldout"
    heldout.mkdir()
    for name in ("02.txt", "07.txt"):
        shutil.copy(text_folder / name, heldout / name)
    (text_folder / "07.txt").unlink()
    plan = plan_for(text_folder, heldout=f"{heldout}/02.txt,{heldout}/07.txt")
    corpus = prepare(plan)
    assert corpus.counts is not None
    assert (corpus.counts.documents, corpus.counts.duplicates) == (13, 1)
    assert (corpus.counts.train_documents, corpus.counts.heldout_documents) == (10, 2)
    shutil.copy(heldout / "07.txt", text_folder / "07.txt")
    rows = rows_of(text_folder, corpus)
    assert {rows[row.tobytes()][0] for row in corpus.heldout.read(slice(None))} == {"02.txt", "07.txt"}
    (text_folder / "07.txt").unlink()
    trained_on = {rows[row.tobytes()][0] for row in corpus.train.read(slice(None))}
    assert trained_on == {path.name for path in text_folder.iterdir()} - {"02.txt"}
    assert plan_for(text_folder, heldout=f"{heldout}/*", max_documents=3).counts() is None
    few = prepare(plan_for(text_folder, heldout=f"{heldout}/07.txt", max_documents=3))
    assert few.counts is not None
    assert (few.counts.train_documents, few.counts.heldout_documents) == (3, 1)
    before = plan_for(text_folder, heldout=f"{heldout}/*")
    assert before.spec.fingerprint == plan.spec.fingerprint, "the same texts by another name"
    with (heldout / "07.txt").open("a") as file:
        file.write("!")
    changed = plan_for(text_folder, heldout=f"{heldout}/*")
    fewer = plan_for(text_folder, heldout=f"{heldout}/02.txt")
    assert len({p.spec.fingerprint for p in (plan, changed, fewer, plan_for(text_folder))}) == 4


def test_held_out_text_that_cannot_be_one(text_folder: Path, tmp_path: Path) -> None:
    (tmp_path / "blank.txt").write_text(" \n")
    with pytest.raises(ValueError, match="the held-out text has no text in it"):
        prepare(plan_for(text_folder, heldout=str(tmp_path / "blank.txt")))
    with pytest.raises(ValueError, match="the held-out text has all the text that there is to train on"):
        prepare(plan_for(text_folder, heldout=str(text_folder)))
    with pytest.raises(ValueError, match=r"none\.txt' does not exist"):
        plan_for(text_folder, heldout=str(tmp_path / "none.txt"))
    with pytest.raises(ValueError, match=r"held-out text 'x.txt': only data text:PATH takes one, not 'packages'"):
        resolve("packages", cache_dir=tmp_path, document_len=LENGTH, heldout="x.txt")


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("heldout", [False, True])
@pytest.mark.parametrize("large", [False, True])
def test_text_that_changes_after_it_was_planned(tmp_path: Path, packed: bool, heldout: bool, large: bool) -> None:
    """In the data or in the held-out text, of a size whose digest is remembered or not: nothing stays under the old name."""
    texts = [folder / "a.jsonl" for folder in (tmp_path / "texts", tmp_path / "held")]
    for name, path in enumerate(texts):
        path.parent.mkdir()
        path.write_text("".join(json.dumps({"text": f"text {name} {i} " * (30_000 if large else 99)}) + "\n" for i in range(6)))
    how: dict = dict(packed=packed, heldout=str(texts[1]))
    plan = plan_for(texts[0].parent, **how)
    assert ((plan.folder.parent / "file-digests.json").exists(), texts[heldout].stat().st_size > 1 << 20) == (large, large)
    with texts[heldout].open("a") as file:
        file.write(json.dumps({"text": "one more " * 99}) + "\n")
    with pytest.raises(ValueError, match="data 'text': the text changed while it was prepared: run it again"):
        prepare(plan)
    assert not plan.ready and not any(path.is_dir() for path in plan.folder.parent.iterdir())
    again = plan_for(texts[0].parent, **how)
    assert again.spec.fingerprint != plan.spec.fingerprint and prepare(again).counts.documents == 13


def test_text_that_is_cut_between_two_passes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "texts" / "a.jsonl"
    path.parent.mkdir()
    lines = [json.dumps({"text": f"text {i} " * 99}) + "\n" for i in range(9)]
    path.write_text("".join(lines))
    choose = data.prepare.tokenizer_of
    monkeypatch.setattr(data.prepare, "tokenizer_of", lambda *given: path.write_text("".join(lines[:5])) and choose(*given))
    with pytest.raises(ValueError, match="the text changed while it was prepared: run it again"):
        prepare(plan_for(path.parent))
    assert len(prepare(plan_for(path.parent)).train)


@pytest.mark.parametrize("before", [None, "false"])
def test_preparing_uses_all_cores(text_folder: Path, monkeypatch: pytest.MonkeyPatch, before: str | None) -> None:
    if before is None:
        monkeypatch.delenv("TOKENIZERS_PARALLELISM", raising=False)
    else:
        monkeypatch.setenv("TOKENIZERS_PARALLELISM", before)
    seen = []
    encode_batch = data.prepare.Tokenizer.encode_batch
    monkeypatch.setattr(
        data.prepare.Tokenizer,
        "encode_batch",
        lambda self, texts: seen.append(os.environ["TOKENIZERS_PARALLELISM"]) or encode_batch(self, texts),
    )
    prepare(plan_for(text_folder))
    assert set(seen) == {"true"}
    assert os.environ.get("TOKENIZERS_PARALLELISM") == before


def test_documents_that_are_all_too_short(text_folder: Path) -> None:
    longest = max(len(path.read_bytes()) for path in text_folder.iterdir())
    plan = plan_for(text_folder, document_len=10 * longest)
    with pytest.raises(ValueError, match=rf"has {10 * longest} tokens, the longest has {longest}: .*smaller document_len"):
        prepare(plan)
    assert not any(path.is_dir() for path in plan.folder.parent.iterdir())


@pytest.mark.parametrize("texts", [[], [""], ["one " * 999], ["one " * 999, "one " * 999]])
def test_fewer_than_two_documents(tmp_path: Path, texts: list[str]) -> None:
    folder = tmp_path / "texts"
    folder.mkdir()
    (folder / "all.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    distinct = len({text for text in texts if text})
    with pytest.raises(
        ValueError, match=rf"has {distinct} distinct documents with text: at least 2 are needed, .* \.txt file is one"
    ):
        prepare(plan_for(folder))


@pytest.mark.parametrize("count", [2, 3])
def test_few_documents_give_one_for_each_side(tmp_path: Path, count: int) -> None:
    folder = tmp_path / "texts"
    folder.mkdir()
    for i in range(count):
        (folder / f"{i}.txt").write_text(f"text {i} " * 300)
    corpus = prepare(plan_for(folder, heldout_fraction=0.01))
    assert corpus.counts is not None
    assert (corpus.counts.train_documents, corpus.counts.heldout_documents) == (count - 1, 1)


def test_hub_documents_are_fetched_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fetched = []

    def documents(self: HubSource):
        for i in range(1000):
            fetched.append(i)
            yield f"document {i} \ud83e of the hub " * 50

    monkeypatch.setattr(HubSource, "documents", documents)
    plan = resolve(
        HubSource("some/name", None, "0" * 40), tokenizer="bpe-300", cache_dir=tmp_path, document_len=LENGTH, max_documents=20
    )
    assert plan.spec.source == "hf:some/name"
    corpus = prepare(plan)
    assert fetched in (list(range(20)), list(range(21)))
    assert corpus.counts is not None
    assert corpus.counts.documents == 20
    assert not list(tmp_path.rglob("documents.jsonl"))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"document_len": None}, "'text' needs document_len"),
        ({"document_len": 1}, "document_len 1"),
        ({"heldout_fraction": 0.0}, "heldout_fraction 0.0"),
        ({"heldout_fraction": 1.0}, "heldout_fraction 1.0"),
        ({"max_documents": 1}, "max_documents 1"),
    ],
)
def test_wrong_arguments(text_folder: Path, changes: dict, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        plan_for(text_folder, **changes)


def test_planning_and_preparing_need_no_torch(text_folder: Path, tmp_path: Path) -> None:
    code = KILLER.format(path=sys.path, folder=text_folder, cache=str(tmp_path), length=LENGTH, last=0)
    code += "\nassert 'torch' not in sys.modules and 'transformers' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True, capture_output=True)


def test_packages_at_tiny(tmp_path: Path) -> None:
    plan = resolve("packages", tokenizer="bpe-512", cache_dir=tmp_path, document_len=1024, heldout_fraction=0.12)
    corpus = prepare(plan)
    assert (corpus.spec.source, corpus.spec.tokenizer, corpus.spec.vocab_size) == ("packages", "bpe-512", 512)
    assert len(corpus.train) > 2000
    assert len(corpus.heldout) >= 300
    assert "self" in corpus.tokenizer.decode(corpus.heldout.read(slice(0, 8)).reshape(-1).tolist())


@pytest.mark.parametrize(("documents", "fraction", "chosen"), [
    # Bytes and digest of each: by digest, as many as fit into the fraction of all bytes; 80 bytes are surely long enough.
    ([(100, b"d"), (100, b"a"), (100, b"c"), (100, b"b")], 0.5, {1, 3}), ([(100, b"b"), (100, b"a")], 0.5, {1}),
    ([(80, b"b"), (90, b"d"), (400, b"c")], 0.5, {0, 1}), ([(79, b"a"), (90, b"d"), (400, b"c")], 0.5, {1}),
    ([(100, b"b"), (120, b"a")], 0.1, {0}), ([(10, b"a"), (20, b"b"), (30, b"c")], 0.9, {1}),
    ([(10, b"a"), (20, b"b"), (30, b"c")], 0.1, {1}), ([(10, b"a"), (20, b"b"), (300, b"c")], 0.5, {1}),
])  # fmt: skip
def test_held_out_documents_by_hand(documents, fraction, chosen):
    found = [_Document(size, digest, place, False) for place, (size, digest) in enumerate(documents)]
    plan = SimpleNamespace(heldout=None, heldout_fraction=fraction, spec=SimpleNamespace(document_len=10, source="text"))
    assert _choose_heldout(found, plan) == chosen
    with pytest.raises(ValueError, match="has 1 distinct documents with text: at least 2"):
        _choose_heldout(found[:1], plan)
    plan.heldout = "a text of its own"
    for own, why in ((set(), "no text in it"), (set(range(len(found))), "all the text that there is")):
        with pytest.raises(ValueError, match=why):
            _choose_heldout([each._replace(heldout=each.place in own) for each in found], plan)
    assert _choose_heldout([each._replace(heldout=each.place == 1) for each in found], plan) == {1}
