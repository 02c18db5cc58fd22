"""A model to evaluate, from a run of ours, a checkpoint folder (ours or the authors'), or any Hugging Face causal LM."""

import hashlib
import json
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from data.spec import DataSpec
from eval.text import TextCodec

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

OUTSIDE_SCALE = "custom"  # scale of the rows of a model that is no run of ours


@dataclass(frozen=True)
class Subject:
    """What is evaluated and under which names its rows go. `folder`: where weights and tokeniser are read from."""

    folder: str
    scale: str
    model: str
    run_id: str
    train_seq_len: int | None
    tokenizer_name: str | None
    data: DataSpec | None = None

    @classmethod
    def find(cls, path_or_name: str, tokenizer_name: str | None = None) -> "Subject":
        """Raises ValueError for a path that does not exist and for a run that is not finished."""
        path = Path(path_or_name)
        if (path / "spec.json").is_file():
            return cls._of_run(path, tokenizer_name)
        if path.is_dir():
            return cls._of_folder(path, tokenizer_name)
        if path.is_absolute() or path_or_name.startswith(".") or path_or_name.count("/") != 1:
            raise ValueError(f"{path_or_name} is neither a folder nor a hub name like 'owner/name'")
        run_id = hashlib.sha256(path_or_name.encode()).hexdigest()[:10]
        return cls(path_or_name, OUTSIDE_SCALE, path.name, run_id, None, tokenizer_name)

    def check_corpus(self, corpus: DataSpec) -> None:
        """Raises ValueError if the corpus has other token ids than those the run was trained on."""
        if self.data is None:
            return  # nothing is known about how the model was trained
        trained_on_it = self.data.tokenizer.startswith("bpe-")
        same = corpus.fingerprint == self.data.fingerprint if trained_on_it else corpus.tokenizer == self.data.tokenizer
        if not same:
            raise ValueError(
                f"the corpus ({corpus.tokenizer}, {corpus.fingerprint}) has other tokens than run {self.run_id} was trained on "
                f"({self.data.tokenizer}, {self.data.fingerprint}): name the run's own corpus with --corpus"
            )

    @classmethod
    def _of_run(cls, path: Path, tokenizer_name: str | None) -> "Subject":
        from training.run_folder import RunFolder

        run = RunFolder.open(path)
        spec = run.read_spec()
        if not run.finished:
            raise ValueError(f"{path}: the run is not finished (it has no export/); train it to the end first")
        return cls(str(run.export), spec.scale, spec.name, spec.run_id, spec.train.seq_len, tokenizer_name, spec.data)

    @classmethod
    def _of_folder(cls, path: Path, tokenizer_name: str | None) -> "Subject":
        config = path / "config.json"
        if not config.is_file():
            raise ValueError(f"{path} is neither a run folder (spec.json) nor a model folder (config.json)")
        weights = sorted((file.name, file.stat().st_size, file.stat().st_mtime_ns) for file in path.glob("*.safetensors"))
        digest = hashlib.sha256(config.read_bytes() + json.dumps(weights).encode()).hexdigest()[:10]
        return cls(str(path), OUTSIDE_SCALE, path.resolve().name, digest, None, tokenizer_name)


class Loaded:
    """Model and tokeniser of a subject, each read when first asked for (per-token loss needs no tokeniser)."""

    def __init__(self, subject: Subject, device: str):
        self.subject = subject
        self.device = device

    @cached_property
    def model(self) -> "PreTrainedModel":
        """fp32 weights, evaluation mode. Raises ValueError if there is no loadable model."""
        import kernels.hf_guard  # noqa: F401  # isort: skip  (before transformers)
        import torch
        import transformers

        from models.build import load_model

        transformers.utils.logging.disable_progress_bar()
        if torch.device(self.device).type == "cuda" and not torch.cuda.is_available():
            raise ValueError(f"device {self.device!r}: this machine has no usable CUDA GPU; choose --device cpu")
        try:
            model = load_model(self.subject.folder, dtype=torch.float32)
        except OSError as error:
            raise ValueError(f"cannot load a model from {self.subject.folder}: {_first_line(error)}") from error
        return model.to(self.device).eval()  # type: ignore[arg-type]  # a decorator of transformers hides `self`

    @cached_property
    def tokenizer(self) -> TextCodec:
        """Raises ValueError if the model comes without a tokeniser."""
        return load_tokenizer(self.subject.tokenizer_name or self.subject.folder)


def vocab_size(model: "PreTrainedModel") -> int:
    """Rows of the input embedding."""
    weight = model.get_input_embeddings().weight
    return int(weight.shape[0])  # type: ignore[index,union-attr,arg-type]


def load_tokenizer(name: str) -> TextCodec:
    """From a folder with a tokeniser (ours or any of Hugging Face), a hub name, or a name as in data preparation
    ("gpt2-json:FOLDER", "gpt2", "bytes"). Raises ValueError naming the remedy if there is none."""
    from data.tokenizer import Tokenizer, parse_tokenizer

    folder = Path(name)
    if not folder.is_dir() and "/" not in name.partition(":")[0]:
        choice = parse_tokenizer(name)
        if choice.trained:
            raise ValueError(f"tokenizer {name!r} is trained on a corpus: name the folder where it was saved")
        return TextCodec(choice.load())
    if (folder / "kind.json").is_file():
        return TextCodec(Tokenizer.load(folder))
    try:
        return TextCodec(_hf_tokenizer(name))
    except Exception as error:  # transformers raises many types for the same thing
        raise ValueError(f"{name} has no usable tokeniser ({_first_line(error)}); name one with --tokenizer") from error


def _hf_tokenizer(name: str) -> "PreTrainedTokenizerBase":
    """Tokenisers saved by this suite name their class; code that a checkpoint brings along is never run."""
    import kernels.hf_guard  # noqa: F401  # isort: skip  (before transformers)
    from transformers import AutoTokenizer

    from data.hf_tokenizer import CorpusTokenizer, JSONTokenizer

    config = Path(name) / "tokenizer_config.json"
    saved = json.loads(config.read_text()).get("tokenizer_class") if config.is_file() else None
    for own in (CorpusTokenizer, JSONTokenizer):
        if own.__name__ == saved:
            return own.from_pretrained(name)
    return AutoTokenizer.from_pretrained(name)


def _first_line(error: Exception) -> str:
    return (str(error).strip() or type(error).__name__).splitlines()[0][:200]
