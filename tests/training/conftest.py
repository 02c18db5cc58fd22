"""A small corpus and small runs for the training tests."""

import random
from collections.abc import Callable
from pathlib import Path

import pytest

from data.plan import resolve
from data.prepare import prepare
from models.forgetting_transformer.spec import ForgettingTransformerSpec
from tests.training.runs import Outcome
from training.run_folder import RunFolder
from training.spec import Execution, RunSpec, TrainSpec

WORDS = "the gate forgets what came before it and keeps token of long text in memory".split()


@pytest.fixture(scope="session")
def corpus(tmp_path_factory: pytest.TempPathFactory):
    """24 documents of random words, as bytes, in rows of 256 tokens."""
    folder = tmp_path_factory.mktemp("texts")
    words = random.Random(0)
    for index in range(24):
        (folder / f"{index:02d}.txt").write_text(" ".join(words.choices(WORDS, k=600)))
    return prepare(resolve(f"text:{folder}", tokenizer="bytes", document_len=256, cache_dir=tmp_path_factory.mktemp("corpora")))


@pytest.fixture
def make_run(corpus, tmp_path: Path) -> Callable[..., RunFolder]:
    """make_run("name", steps=..., **train settings) -> run folder of a two-layer FoX (LLaMA)."""

    def make(name: str = "run", steps: int = 12, seed: int = 0, prune: float | None = None, **changes) -> RunFolder:
        model = ForgettingTransformerSpec(
            vocab_size=257,
            hidden_size=32,
            num_layers=2,
            num_heads=2,
            mlp_width=64,
            prune_log_tolerance=prune,
        )
        settings = dict(seq_len=64, batch_tokens=256, train_tokens=256 * steps, warmup_tokens=512, peak_lr=3e-3)
        spec = TrainSpec(**{**settings, "precision": "fp32", **changes})
        run = RunSpec(name=name, scale="test", model=model, data=corpus.spec, train=spec, seed=seed)
        return RunFolder.create(tmp_path / f"{name}-{run.run_id}", run)

    return make


@pytest.fixture
def start(corpus) -> Callable[..., Outcome]:
    """start(run, world_size=1, before=None, **execution) -> Outcome; `before` runs in each process first."""

    def begin(run: RunFolder, world_size: int = 1, before: Callable[[], None] | None = None, **execution) -> Outcome:
        return Outcome(run, corpus.folder, Execution(device="cpu", **execution), world_size, before)

    return begin
