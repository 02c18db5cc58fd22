"""Shell of the evaluations, worked out by hand: machines, batches, ends of rows, what is finished already, and texts."""

import hashlib
import json
import math
import os
import re
import socket
import sys
import weakref
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from huggingface_hub.utils import filter_repo_objects
from torch import nn

from data.tokenizer import TokenizerChoice
from eval.parameters.measure import evaluate as parameters
from eval.parameters.spec import INPUT_EMBEDDING
from eval.shell import machine
from eval.shell.batching import MAX_BATCH, at_ends, batches, check_positions, in_batches, recorded, recorded_ends, score
from eval.shell.context import Compute, Context, make_context
from eval.shell.loading import Loaded, Subject, _know_foreign, load_tokenizer
from eval.shell.partial import Partial
from eval.shell.sources import Sources, UserData, checked, digest
from eval.shell.text import TextCodec
from models.weight_files import INDEX
from training import manifest


def test_what_a_gpu_had_of_its_memory(monkeypatch):
    called = []
    monkeypatch.setattr("torch.cuda.max_memory_allocated", lambda device: {"cuda:1": 3 * 2**29 + 2**20}[device])
    monkeypatch.setattr("torch.cuda.empty_cache", lambda: called.append("empty"))
    monkeypatch.setattr("torch.cuda.reset_peak_memory_stats", called.append)
    monkeypatch.setattr("torch.cuda.get_device_name", lambda device: f"some GPU {device}")
    assert machine.peak_memory_gib("cuda:1") == 1.5 and machine.peak_memory_gib("cpu") is None
    machine.reset_peak_memory("cpu")
    assert not called
    machine.reset_peak_memory("cuda:1")
    assert called == ["empty", "cuda:1"] and machine.machine_name("cuda:1") == "some GPU cuda:1"
    assert machine.check_machine("some GPU cuda:1", "cuda:1") == "some GPU cuda:1"
    for wanted in ("another", None):
        with pytest.raises(ValueError, match=f"timing on {wanted}; this is some GPU cuda:1"):
            machine.check_machine(wanted, "cuda:1")


@pytest.mark.parametrize(("name", "count", "refused"), [
    ("cpu", 0, None), ("cuda", 1, None), ("cuda:0", 1, None), ("cuda:1", 2, None), ("cuda:12", 13, None),
    ("cuda:1", 1, "has 1 CUDA GPUs"),
    ("cuda", 0, "no usable CUDA GPU"), ("cuda:", 1, "choose cpu, cuda or cuda:N"), ("tpu", 1, "choose"), ("xcpu", 1, "choose"),
])  # fmt: skip
def test_devices_that_are_there(monkeypatch, name, count, refused):
    monkeypatch.setattr("torch.cuda.is_available", lambda: count > 0)
    monkeypatch.setattr("torch.cuda.device_count", lambda: count)
    monkeypatch.setattr(
        machine.hardware, "equal_bits", lambda threads, given: {"THREADS": f"{threads} of {given is os.environ}"}
    )
    monkeypatch.setenv("THREADS", "")
    monkeypatch.setenv("OMP_NUM_THREADS", "7")
    chosen, threads = list[int](), list[int]()
    monkeypatch.setattr("torch.set_num_threads", threads.append)
    monkeypatch.setattr("torch.cuda.set_device", chosen.append)
    if refused is None:
        assert machine.use(name, 3) == name and os.environ["THREADS"] == "3 of True"
        assert chosen == ([] if name == "cpu" else [count - 1])
        assert os.environ["OMP_NUM_THREADS"] == "3" and threads == [3]
    else:
        with pytest.raises(ValueError, match=refused):
            machine.use(name, 1)
    with pytest.raises(ValueError, match="--threads 0"):
        machine.use("cpu", 0)


@pytest.mark.parametrize(("endpoint", "port"), [
    ("https://hub.test", 443), ("http://hub.test", 80), ("http://hub.test:99", 99), ("https://hub.test/x", 443)
])  # fmt: skip
def test_the_hub_is_looked_for_at_its_address(monkeypatch, capsys, endpoint, port):
    from huggingface_hub import constants

    asked, closed = [], []
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(constants, "ENDPOINT", endpoint)
    monkeypatch.setattr("urllib.request.getproxies", dict)
    monkeypatch.setenv("HF_HUB_OFFLINE", "0")

    def connect(address, timeout):
        asked.append((address, timeout))
        return SimpleNamespace(close=lambda: closed.append(1))

    monkeypatch.setattr(socket, "create_connection", connect)
    machine.go_offline_if_unreachable()
    assert asked == [(("hub.test", port), 5.0)] and closed and not constants.HF_HUB_OFFLINE
    monkeypatch.setattr("urllib.request.getproxies", lambda: {"http": "proxy"})
    machine.go_offline_if_unreachable()
    assert len(asked) == 1 and not capsys.readouterr().err, "a proxy is asked by the library itself"
    monkeypatch.setattr("urllib.request.getproxies", dict)
    for error in (socket.gaierror(-2, "unknown name"), TimeoutError("too late"), ConnectionRefusedError("refused")):
        monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
        monkeypatch.setenv("HF_HUB_OFFLINE", "0")
        monkeypatch.setattr(socket, "create_connection", lambda *address, error=error, **how: (_ for _ in ()).throw(error))
        machine.go_offline_if_unreachable()
        assert constants.HF_HUB_OFFLINE and os.environ["HF_HUB_OFFLINE"] == "1" and str(error) in capsys.readouterr().err
    machine.go_offline_if_unreachable()
    assert not capsys.readouterr().err, "it is said once"


def test_batches_are_bounded():
    lengths = [3, 5, 5, 1, 9]
    assert list(batches(lengths, 10)) == [[4], [1, 2], [0, 3]]
    assert list(batches(lengths, 9)) == [[4], [1], [2], [0, 3]] and list(batches(lengths, 1)) == [[4], [1], [2], [0], [3]]
    assert list(batches([], 9)) == [] and [len(each) for each in batches([1] * (MAX_BATCH + 1), 10**6)] == [MAX_BATCH, 1]
    for device, budget in (("cpu", 8192), ("cuda:0", 131_072)):
        seen: list[list[int]] = []
        run = lambda batch, seen=seen: seen.append(batch) or batch  # noqa: E731
        in_batches([budget // 2 + 1, budget // 2, budget // 2], Compute(device), run)
        assert seen == [[0], [1, 2]]


def test_a_batch_that_does_not_fit_is_halved():
    """Each that is done is told once, in order of the batches; another error is not taken for one of memory."""
    tried, told = [], []

    def run(batch):
        tried.append(list(batch))
        if len(batch) > 1:
            raise RuntimeError("can't allocate memory: 9 bytes")
        return [10 * i for i in batch]

    found = in_batches([2, 3, 1], Compute(), run, on_done=lambda *each: told.append(each))
    assert found == [0, 10, 20] and tried == [[1, 0, 2], [1], [0, 2], [0], [2]] and told == [(1, 10), (0, 0), (2, 20)]
    tried.clear()
    assert in_batches([2, 3, 1], Compute(), run, batch_tokens=6) == [0, 10, 20]
    assert tried == [[1, 0], [1], [0], [2]], "its halves come before what is shorter"
    with pytest.raises(ValueError, match="shorter"):  # of zip: a prompt without a result is no end
        in_batches([2, 3], Compute(), lambda batch: [0])
    with pytest.raises(RuntimeError, match="else"):
        in_batches([2, 3], Compute(), lambda batch: (_ for _ in ()).throw(RuntimeError("else")))
    with pytest.raises(ValueError, match=r"a prompt of 3 tokens .* of cpu"):
        in_batches([2, 3], Compute(), lambda batch: (_ for _ in ()).throw(torch.OutOfMemoryError))


def test_what_is_recorded_is_not_computed_again(tmp_path, monkeypatch):
    told = []
    bar = lambda *counts: told.append(counts) or nullcontext(SimpleNamespace(advance=lambda: told.append(1)))  # noqa: E731
    monkeypatch.setattr("eval.shell.batching.Progress", bar)
    context = Context(sources=Sources(batch_tokens=6), partial=Partial(tmp_path / "a.jsonl", "me"))
    context.partial.add("b", {"x": 0})
    asked = []
    run = lambda keys: asked.append(keys) or [{"x": len(key)} for key in keys]  # noqa: E731
    found = recorded("what", {"aa": 3, "b": 9, "ccc": 3, "d": 4}, context, Compute(), run)
    assert asked == [["d"], ["aa", "ccc"]] and found == {"b": {"x": 0}, "d": {"x": 1}, "aa": {"x": 2}, "ccc": {"x": 3}}
    assert told == [("what", 4, 1), 1, 1, 1]
    again = Partial(tmp_path / "a.jsonl", "me")
    assert again.records == found and Partial(tmp_path / "b.jsonl", "me").records == {}
    assert Partial(tmp_path / "a.jsonl", "another").records == {}, "of another model or spec"
    assert Partial(tmp_path / "a.jsonl", "me").records == {}, "whose samples are gone then"


def test_running_sums_are_of_one_evaluation(tmp_path):
    path = tmp_path / "a.partial.jsonl"
    own = Partial(path, "me")
    assert own.load_state() is None and Partial(None, "me").load_state() is None
    own.save_state({"sums": np.arange(3)})
    Partial(None, "me").save_state({"sums": np.arange(3)})
    assert {name: value.tolist() for name, value in own.load_state().items()} == {"sums": [0, 1, 2]}
    assert Partial(path, "another").load_state() is None and (tmp_path / "a.partial.npz").is_file()
    own.add("k", {})
    own.discard()
    Partial(None, "me").discard()
    assert not list(tmp_path.iterdir())
    path.with_suffix(".npz").write_bytes(b"damaged")
    assert own.load_state() is None


class Counting(nn.Module):
    """The logits of a token say its own number and the next one's; every token is worth the more the later it stands."""

    def forward(self, input_ids, use_cache, logits_to_keep=0):
        assert use_cache is False
        self.read = tuple(input_ids.shape), logits_to_keep
        self.how = torch.is_inference_mode_enabled(), torch.is_autocast_enabled("cpu")
        logits = nn.functional.one_hot(input_ids + 1, 9).double() * (1 + torch.arange(input_ids.shape[1])[:, None])
        return SimpleNamespace(logits=logits[:, -logits_to_keep:] if logits_to_keep else logits)


class Whole(Counting):
    """The same, of a model that gives all logits."""

    def forward(self, input_ids, use_cache):
        return super().forward(input_ids, use_cache)


@pytest.mark.parametrize("cls", [Counting, Whole])
def test_logits_of_the_ends_of_rows(cls):
    rows = [([1, 2, 3, 4, 5], 2), ([4, 5, 6], 1), ([3, 4], 1)]
    model = cls()
    found = [logits.tolist() for logits in at_ends(model, rows, Compute())]
    place = lambda token, at: [float(at if n == token else 0) for n in range(9)]  # noqa: E731
    assert found == [[place(4, 3), place(5, 4)], [place(6, 2)], [place(4, 1)]]
    assert model.read == ((3, 4), 4 if cls is Counting else 0) and model.how == (True, False)
    for dtype in {each.dtype for each in at_ends(model, rows, Compute())}:
        assert dtype == torch.float32
    list(at_ends(model, [([1, 2, 3, 4, 5], 1), ([1, 2, 3, 4], 1)], Compute()))
    assert model.read[1] == (2 if cls is Counting else 0), "no more logits than are looked at"
    model.wpe, model.config = nn.Embedding(4, 1), SimpleNamespace(max_position_embeddings=4)
    assert len(list(at_ends(model, rows, Compute()))) == 3, "the last token is not read"
    with pytest.raises(ValueError, match="5 tokens are more than the 4 positions"):
        list(at_ends(model, [([1, 2, 3, 4, 5, 6], 1)], Compute()))


@pytest.mark.parametrize(("bad", "refused"), [(math.nan, True), (math.inf, True), (-math.inf, False), (1e4, False)])
def test_logits_without_probabilities_are_refused(bad, refused):
    """Those that are looked at; -inf leaves a token out."""

    class Bad(Counting):
        def forward(self, input_ids, use_cache):
            logits = torch.zeros(*input_ids.shape, 9)
            logits[0, 2, 5] = bad
            return SimpleNamespace(logits=logits)

    assert len(list(at_ends(Bad(), [([1, 2, 3, 4, 5], 1), ([1, 2, 3], 2)], Compute()))) == 2
    told = "a prompt of 5 tokens: the logits of its last 2 have no probabilities .*: look at the training, or"
    with pytest.raises(ValueError, match=told) if refused else nullcontext():
        list(at_ends(Bad(), [([1, 2, 3, 4, 5], 2), ([1, 2, 3], 2)], Compute()))


def test_batches_of_ends_are_bounded_by_whole_rows():
    """Longest first, whatever is looked at of each; a row of n ids is read without its last."""
    rows = {"a": ([1, 2, 3], 2), "b": ([1, 2, 3, 4, 5], 1), "c": ([4, 5, 6], 1)}
    model, seen = Counting(), []
    model.register_forward_hook(lambda *unused: seen.append(model.read[0]))
    context = Context(sources=Sources(batch_tokens=6))
    read = lambda key, logits: {"looked at": f"{len(logits)} of {key}"}  # noqa: E731
    found = recorded_ends("what", rows, SimpleNamespace(model=model), context, "bf16", read)
    assert seen == [(1, 4), (2, 2)] and model.how == (True, True)
    assert found == {key: {"looked at": f"{rows[key][1]} of {key}"} for key in ("b", "a", "c")}


def test_scores_of_ends():
    logits = torch.log(torch.tensor([[0.5, 0.25, 0.25], [0.125, 0.125, 0.75]]))
    for ids, found in (([9, 0, 2], (0.5 * 0.75, True)), ([9, 1, 2], (0.25 * 0.75, False)), ([0, 0, 0], (0.5 * 0.125, False))):
        logp, greedy = score((ids, 2), logits)
        assert math.exp(logp) == pytest.approx(found[0]) and greedy is found[1]


@pytest.mark.parametrize(("name", "limit", "tokens", "refused"), [
    ("wpe", 4, 5, True), ("wpe", 4, 4, False), ("position_embeddings", 4, 5, True), ("tokens", 4, 5, False),
    ("wpe", None, 5, False),
])  # fmt: skip
def test_learned_positions_are_a_limit(name, limit, tokens, refused, capsys):
    model = nn.ModuleDict({name: nn.Embedding(9, 2)})
    model.config = SimpleNamespace(max_position_embeddings=limit)
    if refused:
        with pytest.raises(ValueError, match=r"5 tokens are more than the 4 positions .*; do this"):
            check_positions(model, tokens, "do this")
    else:
        check_positions(model, tokens, "do this")
    check_positions(nn.Embedding(9, 2), 99, "do this")
    capsys.readouterr()
    within = nn.ModuleDict({"composed": nn.ModuleDict({"tokens": nn.Embedding(9, 2)})})
    within.config = SimpleNamespace(max_position_embeddings=4)
    check_positions(within, 4, "do this")
    assert capsys.readouterr().err == ""
    check_positions(within, 99, "do this")
    within["composed"].register_buffer("inv_freq", torch.ones(2))
    check_positions(within, 99, "do this")
    assert re.findall(r"99 tokens are more than the 4 of .* extrapolates; to stay within, do this\n", capsys.readouterr().err)
    check_positions(within, 98, "do this")
    assert capsys.readouterr().err == "", "once a model"
    within["composed"].register_buffer("embed_positions", torch.ones(4, 2), persistent=False)  # of GPT-J
    with pytest.raises(ValueError, match=r"99 tokens are more than the 4 positions .*; do this"):
        check_positions(within, 99, "do this")


class Words:
    """A tokeniser of others: a number a letter."""

    vocab_size = 2

    def __init__(self, bos, eos):
        self.deprecation_warnings = {}
        self.bos_token_id, self.eos_token_id = bos, eos

    def encode(self, text, add_special_tokens):
        assert add_special_tokens is False
        return [ord(sign) for sign in text]

    def decode(self, ids, clean_up_tokenization_spaces):
        assert clean_up_tokenization_spaces is False
        return "".join(map(chr, ids))


def test_tokenisers_of_others():
    """BOS is EOS where there is none; neither is ever decoded."""
    for given, ids in (((1, 2), (1, 2)), ((None, 2), (2, 2)), ((1, None), (1, None)), ((0, 2), (0, 2))):
        others = Words(*given)
        codec = TextCodec(others)
        assert (codec.bos_id, codec.eos_id, codec.kind, codec.highest_id) == (*ids, None, max(1, ids[0]))
        assert list(others.deprecation_warnings.values()) == [True], "said already"
        assert codec.decode([ids[0], 65, *([] if ids[1] is None else [ids[1]]), 66]) == "AB"
        assert codec.answer("ab", "c") == codec.encode(" c") == [32, 99]
    with pytest.raises(ValueError, match="neither a BOS nor an EOS"):
        TextCodec(Words(None, None))
    codec._encode = lambda text: [1000 + ord(text[0]), *map(ord, text[1:])]  # another id where a text begins
    assert codec.answer("ab", "c") == [32, 99] and codec.encode(" c") == [1032, 99]
    codec._encode = lambda text: [len(text)]  # which joins everything: the answer stands for itself
    assert codec.answer("ab", "c") == [2]


def test_what_is_given_and_what_it_holds(tmp_path):
    given = UserData(prompts=tmp_path, haystack_unsorted=True).given()
    assert UserData().given() == [] and given == ["haystack_unsorted", "prompts"]
    file = tmp_path / "a.txt"
    file.write_text("text")
    assert checked("text", digest(file), file, "--haystack") == file
    whole = digest(tmp_path)
    (tmp_path / "__pycache__").mkdir()
    (tmp_path / "__pycache__" / "a.pyc").write_text("compiled")
    assert digest(tmp_path) == whole != digest(file)
    compiled = tmp_path / "__pycache__" / "a.pyc"
    assert digest(compiled) == hashlib.sha256(b"compiled").hexdigest()[:12], "one that is named is read"
    (tmp_path / "empty" / "none").mkdir(parents=True)
    with pytest.raises(ValueError, match="or it is empty"):
        digest(tmp_path / "empty")
    ids = {whole}
    for name, text in (
        ("b/c.txt", "text"),
        ("b/d.txt", "text"),
        ("e/d.txt", "text"),
        ("e/d.txt", "next"),
        ("e/d.txt", "longer"),
    ):
        for old in {*tmp_path.rglob("*.txt")} - {file}:
            old.unlink()
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
        ids.add(digest(tmp_path))
    assert len(ids) == 6, "names, folders and texts"
    linked = tmp_path / "linked"
    linked.mkdir()
    (linked / "b").symlink_to(tmp_path / "e")
    before = digest(linked)
    (tmp_path / "e" / "d.txt").write_text("another length")
    assert digest(linked) != before, "what lies behind a link is read, too"
    for path, wanted, why in ((None, "0123", "name its path with --haystack"),
                              (file, "0123", f"content {digest(file)}, the spec"),
                              (tmp_path / "none", "0123", "no such file or folder")):  # fmt: skip
        with pytest.raises(ValueError, match=why):
            checked("text", wanted, path, "--haystack")


def test_a_context_without_a_corpus(tmp_path):
    context = make_context(Sources(), "cuda:3", tmp_path)
    assert (context.device, context.folder, context.corpus, context.train_seq_len) == ("cuda:3", tmp_path, None, None)
    assert context.compute("bf16") == Compute("cuda:3", "bf16") and context.partial.path is None and context.extras == {}
    assert [Compute(device).on_cuda for device in ("cpu", "cuda", "cuda:1")] == [False, True, True]
    for precision, dtype in (("fp32", torch.float32), ("bf16", torch.bfloat16)):
        with Compute("cpu", precision).inference():
            product = torch.ones(2, 2) @ torch.ones(2, 2)
        assert product.dtype == dtype and product.is_inference()
    with pytest.raises(ValueError, match="name the folder of a prepared corpus with --corpus"):
        context.heldout("aa")
    context.corpus = SimpleNamespace(spec=SimpleNamespace(fingerprint="aa"), folder="there")
    assert context.heldout("aa") is context.corpus
    for wanted in ("bb", None):
        with pytest.raises(ValueError, match=f"of corpus {wanted}, but there holds aa: name the right one"):
            context.heldout(wanted)


@pytest.mark.parametrize("tokenizer", [None, "gpt2-json:folder", "gpt2", "folder"])
@pytest.mark.parametrize("trained_on", [None, 1, 2048])
def test_a_context_reads_as_much_of_documents_as_the_run(tmp_path, monkeypatch, trained_on, tokenizer):
    """And with the vocabulary that is named, where it is one for LongCrawl64."""
    monkeypatch.setattr("eval.shell.context.Corpus.open", lambda folder, **how: (folder, how))
    spec = None if trained_on is None else SimpleNamespace(document_len=trained_on)
    context = make_context(Sources(corpus=tmp_path, tokenizer=tokenizer), "cpu", tmp_path, spec)
    choice = TokenizerChoice("gpt2-json", Path("folder")) if tokenizer == "gpt2-json:folder" else None
    assert context.corpus == (tmp_path, {"document_len": trained_on, "tokenizer": choice})


IDENTITY = [
    "config.json", "tokenizer.json", "tokenizer_config.json", "tokenizer.model", "kind.json", "vocab.json", "vocab.txt",
    "merges.txt", "spiece.model", "special_tokens_map.json", "added_tokens.json", "model-00001-of-00002.safetensors",
    "model-00002-of-00002.safetensors",
]  # fmt: skip


def test_files_of_a_model_from_the_hub(tmp_path, monkeypatch):
    """All that a model is read from is fetched, its index too, and no code; all but the index is its identity."""
    offered = [*IDENTITY, INDEX, "pytorch_model.bin", "modeling_own.py", "README.md", "merges.bin"]

    def fetched(name, allow_patterns):
        assert name == "owner/name"
        for file in filter_repo_objects(offered, allow_patterns=allow_patterns):
            weight_map = {str(n): f"model-0000{n}-of-00002.safetensors" for n in (1, 2)}
            (tmp_path / file).write_text(json.dumps({"weight_map": weight_map}))
        return tmp_path

    monkeypatch.setattr("huggingface_hub.snapshot_download", fetched)
    first = Subject.find("owner/name")
    assert (first.folder, first.model, first.scale, first.run) == (tmp_path, "name", "custom", None)
    assert {path.name for path in tmp_path.iterdir()} == {*IDENTITY, INDEX}
    ids = {first.run_id}
    for file in IDENTITY:
        (tmp_path / file).write_text('{"altered": 1}')
        ids.add(Subject.find(str(tmp_path)).run_id)
    assert len(ids) == 1 + len(IDENTITY)


@pytest.mark.parametrize(("name", "why"), [
    ("/gone/model", "neither a folder"), ("./model", "neither a folder"), ("../owner/name", "neither a folder"),
    ("/owner", "neither a folder"), (".owner/name", "neither a folder"), ("name", "neither a folder"),
    ("a/b/c", "neither a folder"),
    ("owner/name", "cannot be fetched from the hub: no such model$"),
])  # fmt: skip
def test_only_names_of_the_hub_are_asked_for_there(name, why, monkeypatch, tmp_path):
    """Whatever its client raises is said in a line."""
    monkeypatch.chdir(tmp_path)
    asked = []

    def fetched(name, allow_patterns):
        asked.append(name)
        raise RuntimeError("no such model\nand more")

    monkeypatch.setattr("huggingface_hub.snapshot_download", fetched)
    with pytest.raises(ValueError, match=why):
        Subject.find(name)
    assert asked == [name] * ("hub" in why)


def test_the_identity_of_a_folder_is_of_its_files_and_its_tokeniser(tmp_path, monkeypatch):
    """By their names and contents, wherever they lie and in whatever order they are listed."""
    model, own, other = (tmp_path / name for name in ("model", "own", "other"))
    for folder in (model, own, other):
        folder.mkdir()
    (model / "config.json").write_text("{}")
    (model / "tokenizer.d").mkdir()  # a folder is no file
    (own / "kind.json").write_text("own")
    (other / "kind.json").write_text("other")
    find = lambda *given: Subject.find(*map(str, given)).run_id  # noqa: E731
    assert len({find(model), find(model, own), find(model, other), find(model, "owner/name"), find(model, "owner/else")}) == 5
    assert Subject.find(str(model), str(own)).tokenizer_name == str(own)
    (other / "kind.json").write_text("own")
    assert find(model, own) == find(model, other)
    (model / "kind.json").write_text("x")
    named = find(model)
    (model / "kind.json").rename(model / "merges.txt")
    assert find(model) != named
    monkeypatch.chdir(model)
    assert Subject.find(".").model == "model"
    (model / "config.json").write_text("{")
    with pytest.raises(ValueError, match=r"config\.json is no JSON"):
        find(model)


def test_the_identity_of_a_model_is_that_of_its_files(tmp_path):
    """In the order of their names, each once where the tokeniser is the model's own; a folder counts nothing."""
    texts = {"tokenizer.json": "t", "config.json": "{}", "model.safetensors": "w"}
    for name, text in texts.items():
        (tmp_path / name).write_text(text)
    (tmp_path / "spec.json").mkdir()
    lines = [f"{name}\0{hashlib.sha256(texts[name].encode()).hexdigest()}\n" for name in sorted(texts)]
    for tokenizer, more in ((None, ""), ("owner/name", "owner/name"), (str(tmp_path), "".join(lines))):
        found = Subject.find(str(tmp_path), tokenizer)
        assert found.run_id == hashlib.sha256(("".join(lines) + more).encode()).hexdigest()[:10]


def test_a_folder_of_a_tokeniser_may_be_called_like_one(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    for name in ("bytes", "a:b"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "kind.json").touch()
        monkeypatch.setattr("eval.shell.loading.Tokenizer", SimpleNamespace(load=lambda folder: f"saved in {folder}"))
        monkeypatch.setattr("eval.shell.loading.TextCodec", lambda tokenizer: tokenizer)
        assert load_tokenizer(name) == f"saved in {name}"


def test_a_run_has_its_own_tokeniser(tmp_path, monkeypatch):
    """And its own names."""
    spec = SimpleNamespace(scale="s", name="n", run_id="r")
    folder = SimpleNamespace(read_spec=lambda: spec, export=tmp_path / "export")
    monkeypatch.setattr("eval.shell.loading.RunFolder.open", {tmp_path: folder}.__getitem__)
    (tmp_path / "spec.json").touch()
    assert Subject.find(str(tmp_path), "another") == Subject(tmp_path, tmp_path / "export", "s", "n", "r", None, spec)


def test_weights_that_are_not_there_have_no_digest(tmp_path):
    (tmp_path / "config.json").write_text("{}")
    (tmp_path / INDEX).write_text(json.dumps({"weight_map": {"a": "a.safetensors", "b": "b.safetensors"}}))
    (tmp_path / "a.safetensors").write_text("a")
    found = Subject.find(str(tmp_path))
    assert found.weights == manifest.weights_digest({"a.safetensors": manifest.digest(tmp_path / "a.safetensors")})
    assert [found.precision(device) for device in ("cpu", "cuda", "cuda:1")] == ["fp32", "bf16", "bf16"]
    assert found.data is None and not found.run
    run = SimpleNamespace(data="corpus", train=SimpleNamespace(precision="fp32"))
    assert replace(found, run=run).precision("cuda") == "fp32" and replace(found, run=run).data == "corpus"


def subject(**given):
    """A model of others, or a run."""
    return SimpleNamespace(
        **dict(run=None, folder=Path("folder"), path=Path("path"), tokenizer_name=None, model="m", run_id="r") | given
    )


def test_what_is_loaded_is_put_where_it_is_asked_for(monkeypatch, tmp_path):
    loaded, moved = Loaded(subject(), "cuda:1"), []
    monkeypatch.setattr("eval.shell.loading._know_foreign", moved.append)
    monkeypatch.setattr("models.build.load_model", lambda folder: SimpleNamespace(to=lambda device: (folder, device)))
    assert loaded.model == (Path("folder"), "cuda:1") and moved == [Path("folder")]
    monkeypatch.setattr("eval.shell.loading.vocab_size", lambda model: 9)
    monkeypatch.setattr("eval.shell.loading.load_tokenizer", lambda name: SimpleNamespace(name=name, highest_id=len(name)))
    assert loaded.tokenizer.name == "folder" and Loaded(subject(tokenizer_name="named"), "cpu").tokenizer.name == "named"
    Loaded(subject(tokenizer_name="8 digits"), "cpu").tokenizer  # noqa: B018
    with pytest.raises(
        ValueError, match=r"^the tokeniser has ids up to 9, the model.s vocabulary is 9: name its own with --tok"
    ):
        Loaded(subject(tokenizer_name="ninedigit"), "cpu").tokenizer  # noqa: B018
    with pytest.raises(ValueError, match="run is not finished"):
        Loaded(subject(run=1, path=tmp_path, folder=tmp_path / "export"), "cpu").model  # noqa: B018
    (tmp_path / "export").mkdir()
    with pytest.raises(ValueError, match="export"):
        Loaded(subject(run=1, path=tmp_path, folder=tmp_path / "export"), "cpu").tokenizer  # noqa: B018


class Read:
    """A corpus of one document, which is read by `ids`."""

    def __init__(self, spec, length=5000, ids=(1, 2)):
        self.spec, self.tokenizer = (
            spec,
            SimpleNamespace(decode=lambda ids: f"{len(ids)} tokens", encode=lambda text: list(ids)),
        )
        self.heldout = SimpleNamespace(read=lambda rows: np.zeros((1, length), np.int64))


@pytest.mark.parametrize(("corpus", "run", "kind", "ids", "why"), [
    (("gpt2", 9, "aa"), ("gpt2", 9, "aa"), None, (), None), (("gpt2", 9, "aa"), ("gpt2", 9, "bb"), None, (), None),
    (("bpe-9", 9, "aa"), ("bpe-9", 9, "aa"), None, (), None),
    (("bpe-9", 9, "aa"), ("bpe-9", 9, "bb"), None, (), "other tokens than run r"),
    (("gpt2", 9, "aa"), ("bytes", 9, "bb"), None, (), "other tokens than run r"),
    (("gpt2", 10, "aa"), ("gpt2", 10, "aa"), None, (), r"ids up to 9 \(gpt2\), the model's vocabulary is 9"),
    (("gpt2", 9, "aa"), None, "gpt2", (7,), None), (("gpt2", 9, "aa"), None, "bytes", (7,), "other ids than the corpus has"),
    (("bpe-9", 9, "aa"), None, "bpe-9", (7,), "other ids than the corpus has"),
    (("bpe-9", 9, "aa"), None, "bpe-9", (1, 2), None),
    (("bpe-9", 9, "aa"), None, None, (1, 2), None),
])  # fmt: skip
@pytest.mark.parametrize("bos", [8, 7])
def test_ids_of_a_corpus_are_those_of_the_model(corpus, run, kind, ids, why, bos):
    """By name where it tells, else by a text of a few thousand tokens and by BOS. A run knows its corpus."""
    spec = lambda tokenizer, size, own: SimpleNamespace(tokenizer=tokenizer, vocab_size=size, fingerprint=own, bos_id=8)  # noqa: E731
    loaded = Loaded(subject(run=run and SimpleNamespace(weights=None, data=spec(*run))), "cpu")
    loaded.model = SimpleNamespace(get_input_embeddings=lambda: nn.Embedding(9, 1))
    texts = []
    loaded.tokenizer = SimpleNamespace(kind=kind, bos_id=bos, encode=lambda text: texts.append(text) or list(ids))
    compared = run is None and kind != "gpt2"
    if why is None and not (compared and bos == 7):
        loaded.check_token_ids(Read(spec(*corpus)))
    else:
        with pytest.raises(ValueError, match=why or "other ids"):
            loaded.check_token_ids(Read(spec(*corpus)))
    assert texts == ["4096 tokens"] * compared


@pytest.mark.parametrize(("config", "known"), [
    ({}, True), ({"model_type": "llama"}, True), ({"model_type": "fox_suite"}, True), ({"model_type": "a-project_fox"}, True),
    ({"model_type": "nobodys_suite"}, True), ({"model_type": "elsewhere"}, False),
])  # fmt: skip
def test_models_of_fla_are_looked_for_where_nobody_else_has_them(config, known, monkeypatch, tmp_path):
    (tmp_path / "config.json").write_text(json.dumps(config))
    installed = []
    monkeypatch.setattr("kernels.fla_cpu.install.install", lambda: installed.append(1))
    monkeypatch.setitem(sys.modules, "fla.models", None)
    with nullcontext() if known else pytest.raises(ImportError):
        _know_foreign(tmp_path)
    assert installed == [1] * (not known)


@pytest.mark.parametrize(("name", "config", "taken"), [
    ("bytes", None, "bytes"), ("gpt2-json:folder", None, "gpt2-json folder"), ("bpe-300", None, "is trained on a corpus"),
    ("owner/name", None, "AutoTokenizer owner/name"), ("owner/name.v-1", None, "AutoTokenizer owner/name.v-1"),
    ("./gone", None, "neither a folder"), (".owner/name", None, "neither a folder"), ("owner/name/", None, "neither a folder"),
    ("FOLDER", {}, "AutoTokenizer"), ("FOLDER", {"tokenizer_class": None}, "AutoTokenizer"),
    ("FOLDER", {"tokenizer_class": "PreTrainedTokenizerFast"}, "AutoTokenizer"),
    ("FOLDER", {"tokenizer_class": "JSONTokenizer"}, "JSONTokenizer"),
    ("FOLDER", {"tokenizer_class": "CorpusTokenizer"}, "CorpusTokenizer"),
    ("FOLDER", {"tokenizer_class": "JSONGPT2Tokenizer"}, "gpt2-json FOLDER"),
    ("FOLDER", {"tokenizer_class": "JSONGPT2TokenizerFast"}, "gpt2-json FOLDER"),
    ("FOLDER", {"tokenizer_class": "Own"}, "Own is code"),
])  # fmt: skip
def test_where_a_tokeniser_comes_from(name, config, taken, monkeypatch, tmp_path):
    """Whatever transformers raises, it is said."""
    folder = tmp_path / "folder"
    folder.mkdir()
    monkeypatch.chdir(tmp_path)
    if config is not None:
        (folder / "tokenizer_config.json").write_text(json.dumps(config))
    own = lambda cls: classmethod(lambda self, name: f"{cls} {name}")  # noqa: E731
    for cls in ("transformers.AutoTokenizer", "data.hf_tokenizer.CorpusTokenizer", "data.hf_tokenizer.JSONTokenizer"):
        monkeypatch.setattr(f"{cls}.from_pretrained", own(cls.rpartition(".")[2]))
    monkeypatch.setattr(TokenizerChoice, "load", lambda self: f"{self.kind} {self.folder or ''}".strip())
    monkeypatch.setattr("eval.shell.loading.TextCodec", lambda tokenizer: tokenizer)
    asked = str(folder) if name == "FOLDER" else name
    if " " in taken and not taken.startswith(("Auto", "gpt2")):
        with pytest.raises(ValueError, match=taken):
            load_tokenizer(asked)
    else:
        assert load_tokenizer(asked).replace(str(folder), "FOLDER").startswith(taken)
    broken = classmethod(lambda self, name: (_ for _ in ()).throw(RuntimeError("odd\nand more")))
    monkeypatch.setattr("transformers.AutoTokenizer.from_pretrained", broken)
    with pytest.raises(ValueError, match=r"owner/name has no usable tokeniser \(odd\); name one with --tokenizer"):
        load_tokenizer("owner/name")


def test_a_fresh_model_is_alone_in_memory(monkeypatch):
    loaded = Loaded(SimpleNamespace(run=SimpleNamespace(model="a spec")), "cpu")
    loaded.model = nn.Linear(1, 1)
    trained, alive = weakref.ref(loaded.model), []

    def build(spec, device):
        assert (spec, device) == ("a spec", "cpu")
        alive.append(trained())
        return nn.Linear(1, 1)

    monkeypatch.setattr("models.build.build_model", build)
    torch.manual_seed(1)
    first = loaded.fresh()
    assert not first.training and alive == [None] and torch.equal(loaded.fresh().weight, first.weight)
    other = Loaded(SimpleNamespace(run=None), "cpu")
    other.model = model = nn.Linear(1, 1)
    assert other.fresh() is other.model is model


@pytest.mark.parametrize(("head", "tied", "names"), [
    (True, False, ["model.embed", "layer.weight", "head.weight"]), (True, True, ["layer.weight", "head.weight"]),
    (False, False, ["model.embed", "layer.weight"]),
])  # fmt: skip
def test_parameters_stand_once_by_name(head, tied, names):
    """A model that has no head counts its embedding, and one that shares it counts the head."""
    model = nn.Module()
    model.base_model_prefix, model.model = "model", nn.Module()
    model.model.embed, model.model.layer = nn.Embedding(5, 3), nn.Linear(3, 2, bias=False)
    if head:
        model.head = nn.Linear(3, 5, bias=False)
        model.head.weight = model.model.embed.weight if tied else model.head.weight
    model.get_input_embeddings = lambda: model.model.embed
    model.get_output_embeddings = lambda: model.head if head else None
    rows = parameters(SimpleNamespace(fresh=lambda: model), None, None)
    found = {row["name"]: (row["module"], row["shape"], row["count"]) for row in rows.to_dict("records")}
    known = {"model.embed": (INPUT_EMBEDDING, ("Embedding", "5 x 3", 15)),
             "layer.weight": ("layer.weight", ("Linear", "2 x 3", 6)),
             "head.weight": ("head.weight", ("Linear", "5 x 3", 15))}  # fmt: skip
    assert found == dict(known[name] for name in names) and len(rows) == len(names)


def test_files_of_partial_samples_are_lines(tmp_path):
    own = Partial(tmp_path / "a.jsonl", "me")
    assert not own.path.exists()
    own.add("k", {"x": 1})
    with open(own.path, "a") as file:
        file.write('{"key": "cut')
    assert Partial(own.path, "me").records == {"k": {"x": 1}}
    assert len(own.path.read_text().splitlines()) == 2 and json.loads(own.path.read_text().splitlines()[0])
