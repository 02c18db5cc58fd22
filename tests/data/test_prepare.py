"""From text to zarr: contents, fingerprint, split, order, and what interruptions, neighbours and full disks leave behind."""

import hashlib
import json
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import data.pack
from data.corpus import Corpus
from data.plan import HUB_MAX_DOCUMENTS, CorpusPlan, resolve
from data.prepare import interleave, prepare
from data.source import HubSource
from tests.texts import sentences

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
def test_every_whole_row_is_stored_once(text_folder, gpt2_folder, kind):
    """Train and held-out together hold the consecutive rows of all documents, and a document is in one of them only. BOS is
    not stored; a second call tokenises nothing."""
    (text_folder / "04.txt").write_bytes(b"<|endoftext|> and more " + (text_folder / "04.txt").read_bytes())
    how = f"{kind}:{gpt2_folder}" if kind.startswith("gpt2") else kind
    corpus = prepare(plan_for(text_folder, how))
    assert (corpus.spec.tokenizer, corpus.spec.source, corpus.spec.document_len) == (kind, "text", LENGTH)
    assert (corpus.tokenizer.vocab_size, corpus.tokenizer.bos_id) == (corpus.spec.vocab_size, corpus.spec.bos_id)
    wanted = rows_of(text_folder, corpus)
    train, heldout = ([wanted[row.tobytes()] for row in split.read(slice(None))] for split in (corpus.train, corpus.heldout))
    assert sorted(train + heldout) == sorted(wanted.values())
    assert {name for name, _ in train}.isdisjoint(name for name, _ in heldout)
    assert len({name for name, _ in train + heldout}) == 12 and 0 < len(heldout) < 0.3 * len(wanted)
    files = sorted({name for name, _ in heldout})
    assert corpus.heldout_sources == [files.index(name) for name, _ in heldout]
    assert not any((split.read(slice(None)) == corpus.spec.bos_id).any() for split in (corpus.train, corpus.heldout))
    tokens = sum(len(corpus.tokenizer.encode(path.read_bytes().decode())) for path in text_folder.iterdir())
    again = plan_for(text_folder, how)
    made = (corpus.folder / "corpus.json").stat().st_mtime_ns
    assert again.ready and prepare(again).spec == corpus.spec and (corpus.folder / "corpus.json").stat().st_mtime_ns == made
    counts = again.counts()
    assert counts is not None and counts == corpus.counts
    assert (counts.documents, counts.duplicates, counts.too_short, counts.train_documents) == (12, 0, 0, 12 - len(files))
    assert (counts.train_rows, counts.heldout_rows) == (len(train), len(heldout))
    assert counts.dropped_tokens == tokens - LENGTH * len(wanted)


# Fingerprint, and digests of the train and held-out tokens: equal fingerprints mean equal tokens, whatever the code becomes.
TOKENS = {
    "bytes": ({}, "52ee45cff1ba1be8 ba032f219b1a 8085257ee005"),
    "bpe": (dict(tokenizer="bpe-300"), "8be15b88a9c83630 7d4bd3a7a9cc e07b4ed07a68"),
    "half": (dict(heldout_fraction=0.5, document_len=200), "a62fe249d9f367bb 5bf1842b3d1a 87dd0697d3f2"),
    "packed": (dict(packed=True, heldout_fraction=0.4), "6c1aa537c79493f6 054cbf669ee4 b3e8061746c7"),
    "packed bpe": (
        dict(packed=True, tokenizer="bpe-300", heldout_fraction=0.4, max_tokens=900),
        "35c8f35fb02afb81 f2be6e5ce636 b97fa2be6420",
    ),
}


@pytest.mark.parametrize("name", TOKENS)
def test_equal_fingerprints_mean_equal_tokens(tmp_path, name):
    (tmp_path / "texts").mkdir()
    for number in range(9):
        (tmp_path / "texts" / f"{number}.txt").write_text(sentences(number, 3 + 7 * (number * 5 % 9)))
    (tmp_path / "texts" / "same.txt").write_text(sentences(3, 3 + 7 * 6))
    lines = [json.dumps({"text": text}) for text in ("short", "ünï \ud800 " * 90, "short", sentences(11, 40), " \n")]
    (tmp_path / "texts" / "z.jsonl").write_text("\n".join(lines))
    changes, expected = TOKENS[name]
    corpus = prepare(plan_for(tmp_path / "texts", **changes))
    digests = [hashlib.sha256(split.read(slice(None)).tobytes()).hexdigest()[:12] for split in (corpus.train, corpus.heldout)]
    assert " ".join([corpus.spec.fingerprint, *digests]) == expected


def test_a_fingerprint_follows_what_decides_the_tokens(text_folder, gpt2_folder, tmp_path):
    first = plan_for(text_folder).spec.fingerprint
    moved = shutil.copytree(text_folder, tmp_path / "far" / "away")
    vocabulary = shutil.copytree(gpt2_folder, tmp_path / "vocabulary")
    assert plan_for(moved).spec.fingerprint == plan_for(moved, cache_dir=tmp_path / "other").spec.fingerprint == first
    gpt2 = plan_for(text_folder, f"gpt2:{gpt2_folder}").spec.fingerprint
    assert plan_for(text_folder, f"gpt2:{vocabulary}").spec.fingerprint == gpt2
    merges = (vocabulary / "merges.txt").read_text().split("\n")
    merges[7], merges[8] = merges[8], merges[7]
    (vocabulary / "merges.txt").write_text("\n".join(merges))
    held = str(text_folder / "02.txt")
    plans = [
        *(plan_for(text_folder, kind) for kind in ("bpe-300", "bpe-301", f"gpt2:{vocabulary}", f"gpt2-json:{gpt2_folder}")),
        plan_for(text_folder, document_len=LENGTH // 2), plan_for(text_folder, heldout_fraction=0.1),
        plan_for(text_folder, max_documents=5), plan_for(text_folder, packed=True),
        plan_for(text_folder, packed=True, max_tokens=500), plan_for(text_folder, heldout=held),
        plan_for(text_folder, heldout=held, packed=True), plan_for(text_folder, heldout=str(text_folder / "03.txt")),
    ]  # fmt: skip
    with (moved / "03.txt").open("a") as file:
        file.write("!")
    plans.append(plan_for(moved))
    assert len({first, gpt2, *(plan.spec.fingerprint for plan in plans)}) == 2 + len(plans)
    assert len({plan.folder for plan in plans}) == len(plans)


def test_held_out_documents_do_not_depend_on_names_or_order(text_folder, tmp_path):
    first = prepare(plan_for(text_folder))
    turned = tmp_path / "turned"
    turned.mkdir()
    for i, path in enumerate(sorted(text_folder.iterdir(), reverse=True)):
        shutil.copy(path, turned / f"{i:02}.txt")
    second = prepare(plan_for(turned))
    assert second.spec.fingerprint != first.spec.fingerprint
    assert {r.tobytes() for r in first.heldout.read(slice(None))} == {r.tobytes() for r in second.heldout.read(slice(None))}


def test_counts_of_a_corpus_by_hand(tmp_path):
    """Documents of 0 to 600 bytes in rows of 64, of which two are equal and one is blank, and a held-out text."""
    texts = [*("x" * size for size in (10, 63, 64, 100, 128, 199)), "y" * 600, "x" * 100, " \n"]
    (tmp_path / "a.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    (tmp_path / "held.txt").write_text("z" * 150)
    how = dict(cache_dir=tmp_path / "cache", document_len=64, heldout=str(tmp_path / "held.txt"))
    assert vars(prepare(plan_for(tmp_path / "a.jsonl", **how)).counts) == dict(
        documents=9, train_documents=5, heldout_documents=1, train_rows=1 + 1 + 2 + 3 + 9, heldout_rows=2, duplicates=1,
        too_short=2, dropped_tokens=10 + 63 + 0 + 36 + 0 + 7 + 24 + 22,
    )  # fmt: skip


def test_a_held_out_text_of_its_own(text_folder, tmp_path, monkeypatch):
    """All of its documents are held out and none is trained on, also where both texts hold it, and by a BPE neither."""
    held, seen = tmp_path / "heldout", list[str]()
    held.mkdir()
    for name in ("02.txt", "07.txt"):
        shutil.copy(text_folder / name, held / name)
    train_bpe = data.pack.train_bpe
    monkeypatch.setattr(data.pack, "train_bpe", lambda texts, size: train_bpe((seen.append(t) or t for t in texts), size))
    corpus = prepare(plan_for(text_folder, "bpe-300", heldout=f"{held}/02.txt,{held}/07.txt"))
    assert corpus.counts is not None and (corpus.counts.documents, corpus.counts.duplicates) == (14, 2)
    assert (corpus.counts.train_documents, corpus.counts.heldout_documents) == (10, 2)
    rows = rows_of(text_folder, corpus)
    assert {rows[row.tobytes()][0] for row in corpus.heldout.read(slice(None))} == {"02.txt", "07.txt"}
    wanted = {path.name for path in text_folder.iterdir()} - {"02.txt", "07.txt"}
    assert {rows[row.tobytes()][0] for row in corpus.train.read(slice(None))} == wanted
    assert sorted(seen) == sorted((text_folder / name).read_bytes().decode() for name in wanted)


@given(st.lists(st.integers(0, 12), min_size=1, max_size=30).filter(any))
def test_interleaving(counts):
    rows = np.array(counts)
    order = interleave(np.cumsum(rows) - rows, rows)
    assert sorted(order) == list(range(rows.sum()))
    document = np.searchsorted(np.cumsum(rows), order, side="right")
    for d in np.flatnonzero(rows):
        places = np.flatnonzero(document == d)
        assert (np.diff(order[places]) == 1).all()  # a document's rows keep their order
        for share in (0.25, 0.5, 0.75):  # and every stretch of the corpus holds its fair share of them, give or take
            most = 2 + 0.5 * np.count_nonzero(rows) * rows[d] / len(order)
            assert abs((places < share * len(order)).sum() - share * rows[d]) <= most
    assert interleave(np.arange(5), np.ones(5, int)).tolist() == [0, 1, 2, 3, 4]
    assert interleave(np.array([0, 3, 6]), np.array([3, 3, 3])).tolist() == [0, 3, 6, 1, 4, 7, 2, 5, 8]


PREPARING = """
import os, resource, signal, sys
sys.path[:0] = {path!r}
from pathlib import Path
from data.plan import resolve
from data.prepare import prepare
plan = resolve("text:{folder}", tokenizer="bpe-300", cache_dir=Path({cache!r}), document_len={length}, heldout_fraction=0.2)
resource.setrlimit(resource.RLIMIT_FSIZE, ({limit}, {limit}))
reports = []
def report(message):
    reports.append(message)
    if len(reports) == {last}:
        os.kill(os.getpid(), signal.SIGKILL)
try:
    prepare(plan, progress=report)
except ValueError as error:
    print(error)
print(*reports, sep="\\n")
assert 'torch' not in sys.modules and 'transformers' not in sys.modules
"""


def preparing(folder: Path, cache: Path, last: int = 0, limit: int = -1) -> subprocess.Popen[str]:
    code = PREPARING.format(path=sys.path, folder=folder, cache=str(cache), length=LENGTH, last=last, limit=limit)
    return subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def tree_bytes(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_killed_at_every_stage_and_started_again(text_folder, tmp_path):
    undisturbed = prepare(plan_for(text_folder, "bpe-300", cache_dir=tmp_path / "calm"))
    cache = tmp_path / "cache"
    for last in (1, 4, 5):  # after scanning, before the second array, after the last file
        process = preparing(text_folder, cache, last)
        assert process.wait() == -signal.SIGKILL, process.communicate()
        assert not plan_for(text_folder, "bpe-300").ready
    corpus = prepare(plan_for(text_folder, "bpe-300"))
    assert tree_bytes(corpus.folder) == tree_bytes(undisturbed.folder)
    assert [path.name for path in cache.iterdir() if path.is_dir()] == [corpus.folder.name]


def test_two_processes_make_it_once(text_folder, tmp_path):
    processes = [preparing(text_folder, tmp_path / "cache") for _ in range(2)]
    outputs = [process.communicate(timeout=60) for process in processes]
    assert [process.returncode for process in processes] == [0, 0], outputs
    assert sum("writing train.zarr" in out for out, _ in outputs) == 1
    assert len([path for path in (tmp_path / "cache").iterdir() if path.is_dir()]) == 1


def test_files_that_cannot_grow_stand_for_a_full_disk(text_folder, tmp_path):
    out, err = preparing(text_folder, tmp_path / "cache", limit=20_000).communicate()
    assert "no space left" in out and "another --corpora-dir" in out, err
    assert not any(path.is_dir() for path in (tmp_path / "cache").iterdir())


@pytest.mark.parametrize("damage", ["cut off", "of another version", "gone"])
def test_a_damaged_corpus_is_made_again(text_folder, damage):
    plan = plan_for(text_folder)
    corpus = prepare(plan)
    about = corpus.folder / "corpus.json"
    whole = about.read_text()
    about.write_text({"cut off": whole[:-10], "of another version": "{}", "gone": ""}[damage])
    if damage == "gone":
        about.unlink()
    else:
        with pytest.raises(ValueError, match=r"corpus\.json .*: delete .*made again"):
            Corpus.open(corpus.folder)
    assert not plan.ready and plan.counts() is None
    assert prepare(plan).counts == corpus.counts == plan.counts() and about.read_text() == whole


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("heldout", [False, True])
def test_text_that_changes_after_it_was_planned(tmp_path, packed, heldout):
    """In the data or in the held-out text, of sizes whose digests are remembered: nothing stays under the old name."""
    texts = [folder / "a.jsonl" for folder in (tmp_path / "texts", tmp_path / "held")]
    for name, path in enumerate(texts):
        path.parent.mkdir()
        path.write_text("".join(json.dumps({"text": f"text {name} {i} " * 30_000}) + "\n" for i in range(6)))
    how: dict = dict(packed=packed, heldout=str(texts[1]))
    plan = plan_for(texts[0].parent, **how)
    with texts[heldout].open("a") as file:
        file.write(json.dumps({"text": "one more " * 99}) + "\n")
    with pytest.raises(ValueError, match="the text changed while it was prepared"):
        prepare(plan)
    assert not plan.ready and not any(path.is_dir() for path in plan.folder.parent.iterdir())
    again = plan_for(texts[0].parent, **how)
    assert again.spec.fingerprint != plan.spec.fingerprint and prepare(again).counts.documents == 13


@pytest.mark.parametrize("texts", [[], [""], ["one " * 999], ["one " * 999, "one " * 999], ["one", "two"]])
@pytest.mark.parametrize("packed", [False, True])
def test_too_little_text_is_refused(tmp_path, texts, packed):
    (tmp_path / "all.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    (tmp_path / "blank.txt").write_text(" \n")
    how = dict(cache_dir=tmp_path / "cache", packed=packed, document_len=LENGTH)
    for heldout in (None, str(tmp_path / "blank.txt"), str(tmp_path / "all.jsonl")):
        with pytest.raises(ValueError, match="data 'text'"):
            prepare(plan_for(tmp_path / "all.jsonl", heldout=heldout, **how))
    assert not any(path.is_dir() for path in (tmp_path / "cache").iterdir())


def test_hub_documents_are_fetched_once(tmp_path, monkeypatch):
    """Up to a number that is kept on disk until they are split; packed ones are not kept."""
    fetched = []

    def documents(self: HubSource):
        for i in range(1000):
            fetched.append(i)
            yield f"document {i} \ud83e of the hub " * 50

    monkeypatch.setattr(HubSource, "documents", documents)
    source, how = HubSource("some/name", None, "0" * 40), dict(tokenizer="bpe-300", cache_dir=tmp_path, document_len=LENGTH)
    corpus = prepare(resolve(source, max_documents=20, **how))
    assert fetched in (list(range(20)), list(range(21)))
    assert corpus.counts is not None and (corpus.counts.documents, corpus.spec.source) == (20, "hf:some/name")
    assert not list(tmp_path.rglob("documents.jsonl"))
    assert resolve(source, **how).max_documents == HUB_MAX_DOCUMENTS
    assert resolve(source, packed=True, **how).max_documents is None
