"""Models and tokenisers of others: the authors' folders, flash-linear-attention's models, tokenisers that do not belong."""

import json
import shutil
import sys
from contextlib import nullcontext
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F
import zarr
from tokenizers import pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from data.tokenizer import train_bpe
from eval.__main__ import main as eval_main
from eval.shell.loading import Loaded, Subject, _know_foreign, load_tokenizer
from models.build import build_model
from models.convert import save_authors
from models.weight_files import tokenizer_files
from results.store import read_rows
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


def test_the_authors_folders_are_read_as_they_are(authors):
    codec = load_tokenizer(str(authors))
    assert codec.bos_id == codec.eos_id == 50256
    assert codec.decode(codec.encode(TEXT)) == TEXT
    vocab = json.loads((authors / "vocab.json").read_text())
    assert codec.encode("\n") == [vocab["\\"], vocab["n"]]
    (authors / "merges.txt").rename(authors / "merges.txt.away")
    try:
        with pytest.raises(ValueError, match=r"has no merges\.txt"):
            load_tokenizer(str(authors))
    finally:
        (authors / "merges.txt.away").rename(authors / "merges.txt")


def test_a_model_is_the_same_wherever_its_tokeniser_lies(authors, tmp_path):
    copy = tmp_path / "copy"
    copy.mkdir()
    for file in ("vocab.json", "merges.txt"):
        (copy / file).write_bytes((authors / file).read_bytes())
    found = {Subject.find(str(authors), f"gpt2-json:{folder}").run_id for folder in (authors, copy)}
    assert len(found) == 1 and found.isdisjoint({Subject.find(str(authors), name).run_id for name in ("gpt2-json", "bytes")})


def test_the_authors_models_go_through_evaluations_of_longcrawl64(authors, longcrawl64, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    source = ["--model", str(authors), "--corpus", str(longcrawl64)]
    assert eval_main(["per_token_loss", *source, *LOSS]) == 0
    assert eval_main(["needle", *source, *NEEDLE]) == 2  # its text needs GPT-2's vocabulary, which the hub would have
    assert "gpt2-json:FOLDER" in capsys.readouterr().err
    assert eval_main(["needle", *source, *NEEDLE, "--tokenizer", f"gpt2-json:{authors}"]) == 0
    assert len(list(tmp_path.glob("fox-pro-*.parquet"))) == 2


def test_code_of_a_checkpoint_is_never_replaced_by_something_else(authors, tmp_path):
    for file in ("tokenizer.json", "vocab.json", "merges.txt"):
        (tmp_path / file).write_bytes((authors / file).read_bytes())
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": "SomebodysTokenizer"}))
    with pytest.raises(ValueError, match="SomebodysTokenizer is code that would come with the checkpoint"):
        load_tokenizer(str(tmp_path))
    (tmp_path / "tokenizer_config.json").write_text("{")
    with pytest.raises(ValueError, match="tokenizer_config"):
        load_tokenizer(str(tmp_path))


def llama(folder: Path, vocab_size: int = 512) -> None:
    torch.manual_seed(0)
    size = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 1, "num_attention_heads": 2}
    LlamaForCausalLM(LlamaConfig(vocab_size=vocab_size, **size)).save_pretrained(folder)


def test_a_tokeniser_that_does_not_belong_to_the_corpus_is_refused(corpus, tmp_path, monkeypatch, capsys):
    """Per-token loss and gate maps read token ids: what these mean must be known, and be the same."""
    monkeypatch.chdir(tmp_path)
    llama(tmp_path / "llama")
    source = ["--model", str(tmp_path / "llama"), "--corpus", str(corpus.folder)]
    assert eval_main(["per_token_loss", *source, *LOSS]) == 2
    assert "name one with --tokenizer" in capsys.readouterr().err
    other = train_bpe(["the river was quiet in the morning"], 400)
    other.save(tmp_path / "other")
    assert eval_main(["per_token_loss", *source, *LOSS, "--tokenizer", str(tmp_path / "other")]) == 2
    remedy = "name a corpus of its own tokeniser, which can only be gpt2, gpt2-json, bytes, or a BPE of this suite"
    assert f"other ids than the corpus has ({corpus.spec.tokenizer}): {remedy}" in capsys.readouterr().err
    assert eval_main(["per_token_loss", *source, *LOSS, "--tokenizer", str(corpus.folder / "tokenizer")]) == 0
    corpus.tokenizer.to_hf().save_pretrained(tmp_path / "llama")
    assert eval_main(["per_token_loss", *source, *LOSS]) == 0
    assert eval_main(["needle", *source, *NEEDLE]) == 0
    llama(tmp_path / "small", vocab_size=511)
    corpus.tokenizer.to_hf().save_pretrained(tmp_path / "small")
    assert eval_main(["needle", "--model", str(tmp_path / "small"), *source[2:], *NEEDLE]) == 2
    assert "the tokeniser has ids up to 511, the model's vocabulary is 511: name its own" in capsys.readouterr().err
    shutil.rmtree(tmp_path / "small")
    llama(tmp_path / "small", vocab_size=100)
    assert eval_main(["per_token_loss", "--model", str(tmp_path / "small"), *source[2:], *LOSS]) == 2
    assert "the model's vocabulary is 100" in capsys.readouterr().err


def test_an_adopted_model_reads_a_corpus_by_its_own_tokeniser(make_run, corpus):
    """The corpus of its run is what whoever adopted it said; without a tokeniser nothing else is known."""
    adopted = RunFolder(make_run(weights="0123"))
    loaded = lambda: Loaded(Subject.find(str(adopted.path)), "cpu")  # noqa: E731
    loaded().check_token_ids(corpus)
    train_bpe(["the river was quiet in the morning"], 400).to_hf().save_pretrained(adopted.export)
    manifest.seal(adopted.export, run_id=adopted.run_id)
    with pytest.raises(ValueError, match=r"tokeniser of fox_pro gives held-out text other ids than the corpus has \(bpe-512\)"):
        loaded().check_token_ids(corpus)
    for path in tokenizer_files(adopted.export):
        path.unlink()
    manifest.seal(adopted.export, run_id=adopted.run_id)
    loaded().check_token_ids(corpus)
    with pytest.raises(ValueError, match=r"was adopted without a tokeniser: put its files beside .* and adopt that again"):
        _ = loaded().tokenizer


def test_a_model_folder_is_read_against_its_own_manifest(make_run, corpus, tmp_path, capsys):
    """Weights and tokeniser alike; without a manifest nothing is known of them."""
    folder = Path(shutil.copytree(make_run() / "export", tmp_path / "copy"))
    command = ["per_token_loss", "--model", str(folder), "--corpus", str(corpus.folder), *LOSS]
    out = ["--out", str(tmp_path / "rows.parquet")]
    for name in ("model.safetensors", "tokenizer.json"):
        whole = (folder / name).read_bytes()
        (folder / name).write_bytes(whole[:-40] + b"0" * 40)
        assert eval_main([*command, *out]) == 2
        assert f"{folder} is damaged: {name} was altered (its SHA-256 differs). Copy it again;" in capsys.readouterr().err
        (folder / name).write_bytes(whole)
    assert not (tmp_path / "rows.parquet").exists()
    assert eval_main([*command, *out]) == 0
    weights = (folder / "model.safetensors").read_bytes()
    (folder / "model.safetensors").write_bytes(weights[:-4] + b"0" * 4)
    (folder / "manifest.json").unlink()
    assert eval_main([*command, "--out", str(tmp_path / "other.parquet")]) == 0


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
        bounds = cu_seqlens.tolist()
        parts = [one(slice(a, b), slice(n, n + 1)) for n, (a, b) in enumerate(pairwise(bounds))]
        states = torch.cat([state for _, state in parts]) if output_final_state else None
        return torch.cat([o for o, _ in parts], 1), states

    install()
    monkeypatch.setattr(fla.layers.gla, "chunk_gla", chunk)
    monkeypatch.setattr(fla.layers.gla, "fused_recurrent_gla", lambda q, k, v, gk, **rest: chunk(q, k, v, gk, **rest))
    monkeypatch.setattr(fla.modules.mlp, "swiglu", lambda gate, up: F.silu(gate) * up)
    torch.manual_seed(0)
    plain = {"use_output_gate": False, "fuse_norm": False, "fuse_swiglu": False, "fuse_cross_entropy": False}
    size = {"hidden_size": 64, "num_hidden_layers": 1, "num_heads": 2, "intermediate_size": 128, "vocab_size": 512}
    folder = tmp_path / "gla"
    GLAForCausalLM(GLAConfig(**size, **plain)).save_pretrained(folder)
    corpus.tokenizer.to_hf().save_pretrained(folder)
    return folder


RECALL = ["--lengths", "260", "--depths", "50", "--reserve", "80", "--samples-per-cell", "2"]


def test_flas_models_go_through_every_evaluation(gla, corpus, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    for name, *options in (
        ("per_token_loss", *LOSS),
        ("needle", *NEEDLE, "--depths", "0", "100"),
        ("needle_recall", *RECALL),
        ("longbench", "--dataset", "local", "--max-prompt-tokens", "200", "--max-examples", "1", "--max-new-tokens", "3"),
        ("lm_eval", "--include", "local", "--tasks", "copa", "lambada_openai", "--limit", "2"),
        ("throughput", "--mode", "generate", "--seq-len", "16", "--new-tokens", "10", "--warmup", "0", "--repeats", "1"),
        ("throughput", "--seq-len", "16", "--warmup", "0", "--repeats", "1"),
    ):
        corpus_option = [] if name == "throughput" else ["--corpus", str(corpus.folder)]
        assert eval_main([name, "--model", str(gla), *corpus_option, *options]) == 0, capsys.readouterr().err
    source = ["--model", str(gla), "--corpus", str(corpus.folder)]
    assert eval_main(["gate_maps", *source, "--seq-len", "64", "--distance", "8"]) == 2
    assert "GLAForCausalLM has no forget gates: choose a FoX" in capsys.readouterr().err
    assert len(list(tmp_path.glob("gla-*.parquet"))) == 7


def test_flas_models_are_looked_for_where_transformers_knows_none(tmp_path, monkeypatch):
    """Without them a folder of theirs is "not recognised"; nothing else waits for their import. What has a version for a CPU
    gets it before."""
    installed: list[int] = []
    monkeypatch.setattr("kernels.fla_cpu.install.install", lambda: installed.append(1))
    monkeypatch.setitem(sys.modules, "fla.models", None)
    for model_type, looked_for in (("nobody-knows-it", True), ("llama", False), ("fox-project_fox", False)):
        (tmp_path / "config.json").write_text(json.dumps({"model_type": model_type}))
        with pytest.raises(ImportError) if looked_for else nullcontext():
            _know_foreign(tmp_path)
        assert len(installed) == 1


def test_the_authors_weights_are_those_that_are_evaluated(authors, tiny_fox):
    model = Loaded(Subject.find(str(authors)), "cpu").model
    torch.manual_seed(0)
    expected = build_model(tiny_fox(50257, hidden_size=32, num_layers=1))
    assert all(torch.equal(a, b) for a, b in zip(model.parameters(), expected.parameters(), strict=True))


def test_summaries_say_the_scale(make_run, corpus, capsys):
    """A number that is alone on the terminal tells nobody whether it is good."""
    run = make_run()
    source = ["--model", str(run), "--corpus", str(corpus.folder)]
    assert eval_main(["needle", *source, *NEEDLE]) == 0
    assert "mean score 1.00 (1 to 10), the floor" in capsys.readouterr().out
    assert eval_main(["gate_maps", *source, "--seq-len", "64", "--distance", "8"]) == 0
    assert "pruned_share: median over heads" in (out := capsys.readouterr().out)
    assert "(0 to 1)" in out
    (file,) = (run / "evals").glob("gate_maps-*.parquet")
    assert read_rows(file)[1]["spec"]["precision"] == "fp32"


@pytest.mark.parametrize("name", ["/gone/folder", "./gone", "~/gone", "a/b/c", "gone/"])
def test_a_tokeniser_that_is_nowhere(name):
    with pytest.raises(ValueError, match=f"tokenizer '{name}' is neither a folder nor a hub name"):
        load_tokenizer(name)


@pytest.mark.parametrize("kind", ["gpt2", "llama", "gpt_neox"])
@pytest.mark.parametrize("about", [{}, {"tokenizer_class": "GPT2Tokenizer"}, {"tokenizer_class": "LlamaTokenizer"}])
def test_a_folder_without_a_vocabulary_has_no_tokeniser(kind, about, tmp_path):
    """The one that transformers makes of the model's kind gives every text no ids, and prompts would be BOS alone."""
    (tmp_path / "config.json").write_text(json.dumps({"model_type": kind}))
    if about:
        (tmp_path / "tokenizer_config.json").write_text(json.dumps(about))
    with pytest.raises(ValueError, match=r"has no usable tokeniser \(.*; name one with --tokenizer"):
        load_tokenizer(str(tmp_path))
