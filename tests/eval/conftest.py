"""A small corpus of made-up English, a run folder with an untrained model, and any model in the place of a loaded one."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

from data.corpus import Corpus
from data.plan import resolve
from data.prepare import prepare
from eval.runner.context import Context
from eval.runner.machine import machine_name
from eval.runner.sources import Sources
from eval.runner.spec import EvalSpec, Setting
from eval.runner.text import TextCodec
from models.build import build_model
from models.forgetting_transformer.spec import ForgettingTransformerSpec
from training.distributed import World
from training.export import export_model
from training.run_folder import RunFolder
from training.spec import RunSpec, TrainSpec

WORDS = (
    "the a of and to in that it was his he with as for at by on not had but from they she which or we an there would "
    "their river house garden morning letter question doctor window captain winter silver music answer market village "
    "stone water light evening mother father brother quiet large small early heavy simple walked carried opened wrote "
    "thought believed remembered followed asked found crossed waited"
).split()


def sentences(rng: np.random.Generator, count: int) -> str:
    made = []
    for _ in range(count):
        chosen = [WORDS[i] for i in rng.integers(0, len(WORDS), int(rng.integers(5, 14)))]
        made.append(" ".join(chosen).capitalize() + ".")
    return " ".join(made) + "\n"


@pytest.fixture(scope="session")
def texts_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("texts")
    rng = np.random.default_rng(0)
    for i in range(12):
        (folder / f"essay{i:02}.txt").write_text("".join(sentences(rng, 12) for _ in range(60)))
    return folder


@pytest.fixture(scope="session")
def corpus(texts_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Corpus:
    plan = resolve(
        f"text:{texts_folder}", cache_dir=tmp_path_factory.mktemp("cache"), tokenizer="bpe-512", document_len=2048,
        heldout_fraction=0.2,
    )  # fmt: skip
    return prepare(plan)


@pytest.fixture
def context(corpus: Corpus) -> Context:
    return Context(device="cpu", corpus=corpus)


class InMemory:
    """Stands for eval.runner.loading.Loaded."""

    def __init__(self, model: object, tokenizer: TextCodec | None = None):
        self.model, self.tokenizer = model, tokenizer

    def fresh(self) -> object:
        return self.model

    def check_token_ids(self, corpus: Corpus) -> None:
        pass


@pytest.fixture(scope="session")
def in_memory() -> Callable[..., InMemory]:
    """A model (and tokeniser) in the place of a loaded one."""
    return InMemory


@pytest.fixture(scope="session")
def bind(corpus: Corpus) -> Callable[..., EvalSpec]:
    """The spec bound to what it will read; to the small corpus unless `sources` say otherwise."""

    def bound(spec: EvalSpec, **sources: object) -> EvalSpec:
        return spec.bound(Setting(corpus.spec, Sources(**sources), "fp32", machine_name("cpu")))

    return bound


def _tiny_fox(vocab_size: int = 512, **changes: object) -> ForgettingTransformerSpec:
    values: dict = {
        "vocab_size": vocab_size, "hidden_size": 64, "num_layers": 2, "num_heads": 2, "mlp_ratio": 3.5, "mlp_width": 128,
        "use_k_shift": True, "use_v_shift": True, "qk_norm": True, "use_output_gate": True, "use_output_norm": True,
    }  # fmt: skip
    return ForgettingTransformerSpec(**{**values, **changes})


@pytest.fixture(scope="session")
def tiny_fox() -> Callable[..., ForgettingTransformerSpec]:
    """FoX (Pro) with two narrow layers; keyword arguments change its spec."""
    return _tiny_fox


@pytest.fixture(scope="session")
def make_spec(corpus: Corpus) -> Callable[..., RunSpec]:
    """The spec of a run on the small corpus."""

    def make(model: object = None, **changes: object) -> RunSpec:
        train = TrainSpec(
            seq_len=512, batch_tokens=2048, train_tokens=20480, warmup_tokens=2048, peak_lr=1e-3, precision="fp32"
        )
        values: dict = {"name": "fox_pro", "scale": "tiny", "model": model or _tiny_fox(), "data": corpus.spec, "train": train}
        return RunSpec(**{**values, **changes})

    return make


@pytest.fixture(scope="session")
def make_run(corpus: Corpus, make_spec, tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Path]:
    """A folder of a finished run of `make_spec`."""

    def make(model: object = None, **changes: object) -> Path:
        run = make_spec(model, **changes)
        folder = RunFolder.create(tmp_path_factory.mktemp("runs") / run.folder_name, run)
        torch.manual_seed(0)
        export_model(build_model(run.model), corpus, run, folder, World(0, 1, torch.device("cpu")))
        return folder.path

    return make
