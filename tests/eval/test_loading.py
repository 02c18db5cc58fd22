"""Models of all origins: which weights and which tokeniser are evaluated, and which corpora fit them."""

import json
import shutil
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F
import zarr
from tokenizers import pre_tokenizers
from transformers import PreTrainedTokenizerFast

from data.tokenizer import train_bpe
from eval.__main__ import main as eval_main
from eval.runner.loading import Loaded, Subject, load_tokenizer
from models.build import build_model
from models.convert import save_authors
from models.weight_files import tokenizer_files
from tests.eval.oracles import llama
from training import manifest
from training.run_folder import RunFolder

TEXT = 'He said: "no".\nThe café\tcloses. '
LOSS = ["--context-len", "64", "--num-documents", "1"]
NEEDLE = ["--mode", "easy", "--lengths", "400", "--depths", "50", "--reserve", "150", "--max-new-tokens", "2"]


@pytest.fixture(scope="module")
def authors(tiny_fox, tmp_path_factory) -> Path:
    """A folder as they publish it, with GPT-2's vocabulary in form and size, and with a plain tokenizer.json beside it."""
    folder = tmp_path_factory.mktemp("authors") / "fox-pro"
    torch.manual_seed(0)
    save_authors(build_model(tiny_fox(50257, hidden_size=32, num_layers=1)), folder)
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    merges = [(a, b) for a in alphabet for b in alphabet][:50000]
    vocab = {token: i for i, token in enumerate([*alphabet, *(a + b for a, b in merges), "<|endoftext|>"])}
    (folder / "vocab.json").write_text(json.dumps(vocab))
    (folder / "merges.txt").write_text("#version: 0.2\n" + "".join(f"{a} {b}\n" for a, b in merges))
    PreTrainedTokenizerFast(tokenizer_object=train_bpe([TEXT], 300)._backend, bos_token="<|endoftext|>").save_pretrained(folder)
    config = json.loads((folder / "tokenizer_config.json").read_text())
    (folder / "tokenizer_config.json").write_text(json.dumps({**config, "tokenizer_class": "JSONGPT2Tokenizer"}))
    return folder


@pytest.fixture(scope="module")
def longcrawl64(authors, tmp_path_factory) -> Path:
    """A corpus as LongCrawl64 lies on disk, of made-up sentences."""
    folder = tmp_path_factory.mktemp("longcrawl64")
    ids = load_tokenizer(str(authors)).encode("The river was quiet. He wrote a letter in the morning.\n" * 200)
    tokens = np.array(ids[: 4 * 1024], np.uint16).reshape(4, 1024)
    for name, rows in (("train", tokens[:2]), ("heldout", tokens[2:])):
        zarr.create_array(store=folder / f"{name}.zarr", data=rows, zarr_format=2)
    return folder


def test_the_authors_folders_are_read_as_they_are(authors, tiny_fox):
    codec, vocab = load_tokenizer(str(authors)), json.loads((authors / "vocab.json").read_text())
    assert codec.bos_id == codec.eos_id == 50256 and codec.decode(codec.encode(TEXT)) == TEXT
    assert codec.encode("\n") == [vocab["\\"], vocab["n"]]
    model = Loaded(Subject.find(str(authors)), "cpu").model
    torch.manual_seed(0)
    expected = build_model(tiny_fox(50257, hidden_size=32, num_layers=1))
    assert all(torch.equal(a, b) for a, b in zip(model.parameters(), expected.parameters(), strict=True))


def test_the_authors_models_go_through_evaluations_of_longcrawl64(authors, longcrawl64, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    source = ["--model", str(authors), "--corpus", str(longcrawl64)]
    assert eval_main(["per_token_loss", *source, *LOSS]) == 0
    assert eval_main(["needle", *source, *NEEDLE]) == 2  # its text needs GPT-2's vocabulary, which the hub would have
    assert "gpt2-json:FOLDER" in capsys.readouterr().err
    assert eval_main(["needle", *source, *NEEDLE, "--tokenizer", f"gpt2-json:{authors}"]) == 0
    assert len(list(tmp_path.glob("fox-pro-*.parquet"))) == 2


def test_a_model_is_its_files_wherever_they_lie(authors, tmp_path):
    """Config, weights and tokeniser."""
    copy = Path(shutil.copytree(authors, tmp_path / "copy"))
    first, named = Subject.find(str(authors)).run_id, Subject.find(str(authors), f"gpt2-json:{authors}").run_id
    assert Subject.find(str(copy)).run_id == first != named == Subject.find(str(copy), f"gpt2-json:{copy}").run_id
    ids = {first, named, *(Subject.find(str(authors), name).run_id for name in ("gpt2-json", "bytes"))}
    for file in ("config.json", "model.safetensors", "tokenizer.json", "vocab.json", "merges.txt", "tokenizer_config.json"):
        body = (copy / file).read_bytes()
        (copy / file).write_bytes(body + b" ")
        ids.add(Subject.find(str(copy)).run_id)
        (copy / file).write_bytes(body)
    (copy / "README.md").write_text("of no account")
    assert len(ids) == 4 + 6 and Subject.find(str(copy)).run_id == first


def test_tokenisers_that_are_not_what_they_say_are_refused(authors, tmp_path):
    """Code of a checkpoint is never replaced by something else; what transformers makes of a folder without a vocabulary gives
    every text no ids."""
    for file in ("tokenizer.json", "vocab.json", "merges.txt"):
        (tmp_path / file).write_bytes((authors / file).read_bytes())
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": "SomebodysTokenizer"}))
    with pytest.raises(ValueError, match="SomebodysTokenizer is code"):
        load_tokenizer(str(tmp_path))
    for kind in ("gpt2", "llama"):
        folder = tmp_path / kind
        folder.mkdir()
        (folder / "config.json").write_text(json.dumps({"model_type": kind}))
        with pytest.raises(ValueError, match="no usable tokeniser"):
            load_tokenizer(str(folder))
    for name in ("/gone/folder", "./gone", "a/b/c", "bpe-300"):
        with pytest.raises(ValueError, match=name):
            load_tokenizer(name)


def test_a_tokeniser_that_does_not_belong_to_the_corpus_is_refused(corpus, tmp_path, monkeypatch, capsys):
    """Per-token loss reads token ids: what these mean must be known, and be the same. Text is read by any."""
    monkeypatch.chdir(tmp_path)
    train_bpe(["the river was quiet in the morning"], 400).save(tmp_path / "other")
    for name, size in (("llama", 512), ("small", 511), ("smaller", 100)):
        llama(vocab_size=size).save_pretrained(tmp_path / name)
    of = lambda model, *given: eval_main([given[0], "--model", model, "--corpus", str(corpus.folder), *given[1:]])  # noqa: E731
    own = str(corpus.folder / "tokenizer")
    for model, *given, code, told in (
        ("llama", "per_token_loss", *LOSS, 2, "name one with --tokenizer"),
        ("llama", "per_token_loss", *LOSS, "--tokenizer", "other", 2, "other ids than the corpus has"),
        ("llama", "per_token_loss", *LOSS, "--tokenizer", own, 0, ""),
        ("small", "needle", *NEEDLE, "--tokenizer", own, 2, "vocabulary is 511"),
        ("smaller", "per_token_loss", *LOSS, 2, "vocabulary is 100"),
    ):
        assert of(model, *given) == code
        assert told in capsys.readouterr().err
    corpus.tokenizer.to_hf().save_pretrained(tmp_path / "llama")
    assert of("llama", "per_token_loss", *LOSS) == 0 == of("llama", "needle", *NEEDLE)


def test_an_adopted_model_reads_a_corpus_by_its_own_tokeniser(make_run, corpus):
    """The corpus of its run is what whoever adopted it said; without a tokeniser nothing else is known."""
    adopted = RunFolder(make_run(weights="0123"))
    loaded = lambda: Loaded(Subject.find(str(adopted.path)), "cpu")  # noqa: E731
    loaded().check_token_ids(corpus)
    train_bpe(["the river was quiet in the morning"], 400).to_hf().save_pretrained(adopted.export)
    manifest.seal(adopted.export, run_id=adopted.run_id)
    with pytest.raises(ValueError, match="other ids than the corpus has"):
        loaded().check_token_ids(corpus)
    for path in tokenizer_files(adopted.export):
        path.unlink()
    manifest.seal(adopted.export, run_id=adopted.run_id)
    loaded().check_token_ids(corpus)
    with pytest.raises(ValueError, match="adopted without a tokeniser"):
        _ = loaded().tokenizer


def test_a_run_is_timed_with_fresh_weights_and_need_not_be_trained(make_run, tiny_fox):
    run = make_run(tiny_fox(num_layers=1))
    (run / "export").rename(run / "export.partial")
    model = Loaded(Subject.find(str(run)), "cpu").fresh()
    torch.manual_seed(0)
    expected = build_model(tiny_fox(num_layers=1))
    assert all(torch.equal(a, b) for a, b in zip(model.parameters(), expected.parameters(), strict=True))


@pytest.fixture
def gla(corpus, tmp_path, monkeypatch) -> Path:
    """flash-linear-attention's GLA, saved by its own means; its kernels, which need a GPU, replaced by PyTorch."""
    import fla.layers.gla
    import fla.modules.mlp
    from fla.models import GLAConfig, GLAForCausalLM

    from kernels.fla_cpu import recurrences
    from kernels.fla_cpu.install import install

    def chunk(q, k, v, g, initial_state=None, output_final_state=False, state_v_first=False, cu_seqlens=None):
        def one(part: slice, n: int | slice):
            state = None if initial_state is None else initial_state[n]
            rest = dict(initial_state=state, output_final_state=output_final_state, state_v_first=state_v_first)
            return recurrences.chunk_gla(*(x[:, part] for x in (q, k, v, g)), **rest)

        if cu_seqlens is None:
            return one(slice(None), slice(None))
        parts = [one(slice(a, b), slice(n, n + 1)) for n, (a, b) in enumerate(pairwise(cu_seqlens.tolist()))]
        states = torch.cat([state for _, state in parts]) if output_final_state else None
        return torch.cat([o for o, _ in parts], 1), states

    install()
    monkeypatch.setattr(fla.layers.gla, "chunk_gla", chunk)
    monkeypatch.setattr(fla.layers.gla, "fused_recurrent_gla", lambda q, k, v, gk, **rest: chunk(q, k, v, gk, **rest))
    monkeypatch.setattr(fla.modules.mlp, "swiglu", lambda gate, up: F.silu(gate) * up)
    torch.manual_seed(0)
    plain = {"use_output_gate": False, "fuse_norm": False, "fuse_swiglu": False, "fuse_cross_entropy": False}
    size = {"hidden_size": 64, "num_hidden_layers": 1, "num_heads": 2, "intermediate_size": 128, "vocab_size": 512}
    GLAForCausalLM(GLAConfig(**size, **plain)).save_pretrained(tmp_path / "gla")
    corpus.tokenizer.to_hf().save_pretrained(tmp_path / "gla")
    return tmp_path / "gla"


def test_flas_models_go_through_evaluations(gla, corpus, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    source = ["--model", str(gla), "--corpus", str(corpus.folder)]
    timed = ["--model", str(gla), "--seq-len", "16", "--warmup", "0", "--repeats", "1"]
    for arguments in (
        ["per_token_loss", *source, *LOSS],
        ["needle", *source, *NEEDLE, "--depths", "0", "100"],
        ["lm_eval", *source, "--include", "local", "--tasks", "copa", "lambada_openai", "--limit", "2"],
        ["throughput", *timed],
        ["throughput", *timed, "--mode", "generate", "--new-tokens", "10"],
    ):
        assert eval_main(arguments) == 0, capsys.readouterr().err
    assert eval_main(["gate_maps", *source, "--seq-len", "64", "--distance", "8"]) == 2
    assert "has no forget gates" in capsys.readouterr().err
