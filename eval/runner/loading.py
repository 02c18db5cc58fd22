"""Models to evaluate: from a run of ours, a checkpoint folder (ours or the authors'), or any Hugging Face causal LM."""

import gc
import hashlib
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from data.corpus import Corpus
from data.source import first_line
from data.spec import DataSpec
from data.tokenizer import Tokenizer, TokenizerChoice, parse_tokenizer
from eval.runner.spec import Precision
from eval.runner.text import TextCodec
from models.weight_files import INDEX, TOKENIZER_FILES, read_json, tokenizer_files, weight_files
from training import manifest
from training.run_folder import RunFolder
from training.spec import RunSpec

if TYPE_CHECKING:
    from transformers import PreTrainedModel

OUTSIDE_SCALE = "custom"  # scale in the rows of a model that is not a run of ours
_MODEL_FILES = ("config.json", *TOKENIZER_FILES)
_HUB_FILES = (*_MODEL_FILES, "*.safetensors", INDEX)
_SAMPLE_TOKENS = 4096
_CORPORA = "name a corpus of its own tokeniser, which can only be gpt2, gpt2-json, bytes, or a BPE of this suite"


@dataclass(frozen=True)
class Subject:
    """Model to evaluate, and the names that its rows carry. `folder` holds weights and tokeniser; `run` is the spec of a run of
    ours, whose folder is `path`."""

    path: Path
    folder: Path
    scale: str
    model: str
    run_id: str
    tokenizer_name: str | None
    run: RunSpec | None = None

    @classmethod
    def find(cls, path_or_name: str, tokenizer_name: str | None = None) -> "Subject":
        """Find a model. ValueError for a path that does not exist and a hub name that cannot be fetched."""
        path = Path(path_or_name)
        if (path / "spec.json").is_file():
            run = RunFolder.open(path)
            spec = run.read_spec()
            return cls(path, run.export, spec.scale, spec.name, spec.run_id, None, spec)
        if not path.is_dir():
            from huggingface_hub import snapshot_download

            try:
                path = Path(snapshot_download(path_or_name, allow_patterns=list(_HUB_FILES)))
            except Exception as error:  # the hub client raises many types
                there = f"{path_or_name} is neither a folder nor a model (owner/name) that can be fetched from the hub"
                raise ValueError(f"{there}: {first_line(error)}") from error
        if not (path / "config.json").is_file():
            raise ValueError(f"{path} is neither a run folder (spec.json) nor a model folder (config.json)")
        read_json(path / "config.json")  # a damaged one is found before anything is computed
        name = Path(path_or_name).resolve().name
        return cls(path, path, OUTSIDE_SCALE, name, _content_id(path, tokenizer_name), tokenizer_name)

    @cached_property
    def weights(self) -> str | None:
        """Digest of the weights; None if there are none yet."""
        if self.run is not None:
            return self.run_folder.weights
        there = [path for path in weight_files(self.folder) if path.is_file()]
        return manifest.weights_digest({path.name: manifest.digest(path) for path in there})

    def precision(self, device: str) -> Precision:
        """Return the run's precision; for other models bf16 on GPUs and fp32 on the CPU, as in the released evaluations."""
        if self.run is not None:
            return self.run.train.precision
        return "fp32" if device == "cpu" else "bf16"

    @property
    def data(self) -> DataSpec | None:
        """Corpus that a run of ours was trained on."""
        return None if self.run is None else self.run.data

    @property
    def run_folder(self) -> RunFolder:
        """Folder of a run of ours. ValueError for a model that was not trained here."""
        if self.run is None:
            raise ValueError(f"{self.path} is no run folder (it has no spec.json): only runs of this suite have metrics")
        return RunFolder.open(self.path)


def _content_id(folder: Path, tokenizer_name: str | None) -> str:
    """Return the first 10 hex digits of the SHA-256 over config, weights and tokeniser; their paths do not matter."""
    whole = hashlib.sha256()
    tokenizer = Path(tokenizer_name or folder)
    for place in (folder, tokenizer) if tokenizer_name is not None and tokenizer.is_dir() else (folder,):
        found = {path for pattern in _MODEL_FILES for path in place.glob(pattern)} | set(weight_files(place))
        for path in sorted(path for path in found if path.is_file()):
            whole.update(f"{path.name}\0{manifest.digest(path)}\n".encode())
    if tokenizer_name is not None and not tokenizer.is_dir():
        in_folder = ":" in tokenizer_name  # such as gpt2-json:FOLDER
        whole.update((parse_tokenizer(tokenizer_name).digest() if in_folder else tokenizer_name).encode())
    return whole.hexdigest()[:10]


class Loaded:
    """Model and tokeniser of a subject, each loaded on first use (a timing needs neither weights nor tokeniser)."""

    def __init__(self, subject: Subject, device: str):
        self.subject, self.device = subject, device

    @cached_property
    def model(self) -> "PreTrainedModel":
        """Model with fp32 weights, in evaluation mode. ValueError if none can be loaded, or the run is not finished."""
        from models.build import load_model

        _know_foreign(self.folder)
        return load_model(self.folder).to(self.device)  # type: ignore[arg-type]  # a decorator of transformers hides `self`

    def fresh(self) -> "PreTrainedModel":
        """Build a model of the run's spec with fresh weights (seed 0), and free `model`. Without a run, return `model`."""
        if self.subject.run is None:
            return self.model
        import torch

        from models.build import build_model

        self.__dict__.pop("model", None)
        gc.collect()
        torch.manual_seed(0)
        return build_model(self.subject.run.model, self.device).eval()

    @cached_property
    def tokenizer(self) -> TextCodec:
        """Tokeniser of the model. ValueError if there is none, or it has more ids than the model."""
        if self.subject.run is not None and not tokenizer_files(self.folder):
            remedy = "put its files beside the checkpoint's weights and adopt that again"
            raise ValueError(f"{self.subject.path} was adopted without a tokeniser: {remedy}")
        codec = load_tokenizer(self.subject.tokenizer_name or str(self.folder))
        if codec.highest_id >= (there := vocab_size(self.model)):
            highest = f"the tokeniser has ids up to {codec.highest_id}, the model's vocabulary is {there}"
            raise ValueError(f"{highest}: name its own with --tokenizer")
        return codec

    @cached_property
    def folder(self) -> Path:
        """Folder of weights and tokeniser. ValueError if the run is not finished, or a file does not match the manifest."""
        if self.subject.run is None:
            manifest.check(self.subject.folder)
        else:
            if not self.subject.folder.is_dir():
                raise ValueError(f"{self.subject.path}: the run is not finished (it has no export/); train it to the end first")
            RunFolder(self.subject.path).check_export()
        return self.subject.folder

    def check_token_ids(self, corpus: Corpus) -> None:
        """Raise ValueError unless the corpus's token ids are known to be the model's."""
        own, there = corpus.spec, vocab_size(self.model)
        named = not own.tokenizer.startswith("bpe-")  # BPEs trained on different corpora share a name
        if own.vocab_size > there:
            highest = f"the corpus has token ids up to {own.vocab_size - 1} ({own.tokenizer})"
            raise ValueError(f"{highest}, the model's vocabulary is {there}: {_CORPORA}")
        run = self.subject.run
        # The corpus of adopted weights is only what their user claimed: ask their tokeniser, if there is one.
        if run is not None and (run.weights is None or not tokenizer_files(self.subject.folder)):
            data = run.data
            if own.fingerprint == data.fingerprint or (named and own.tokenizer == data.tokenizer):
                return
            what = f"the corpus ({own.tokenizer}, {own.fingerprint}) has other tokens than run {self.subject.run_id}"
            trained = f"was trained on ({data.tokenizer}, {data.fingerprint})"
            raise ValueError(f"{what} {trained}: name the run's own corpus with --corpus")
        if named and self.tokenizer.kind == own.tokenizer:
            return
        text = corpus.tokenizer.decode(corpus.heldout.read(slice(0, 1))[0, :_SAMPLE_TOKENS].tolist())
        if (self.tokenizer.bos_id, self.tokenizer.encode(text)) != (own.bos_id, corpus.tokenizer.encode(text)):
            other = f"the tokeniser of {self.subject.model} gives held-out text other ids than the corpus has ({own.tokenizer})"
            raise ValueError(f"{other}: {_CORPORA}")


def vocab_size(model: "PreTrainedModel") -> int:
    """Return the number of rows of the input embedding."""
    return model.get_input_embeddings().weight.shape[0]  # type: ignore[index,union-attr,return-value]


def _know_foreign(folder: Path) -> None:
    """Register the models of flash-linear-attention (GLA, ...) with transformers if the checkpoint may be one of them."""
    kind = read_json(folder / "config.json").get("model_type")
    import kernels.hf_guard  # noqa: F401  # isort: skip  (before transformers)
    from transformers import CONFIG_MAPPING

    if kind is not None and kind not in CONFIG_MAPPING and not str(kind).endswith(("_suite", "-project_fox")):
        from kernels.fla_cpu.install import install

        install()  # CPU versions of its operators; one without raises an error that says so
        import fla.models  # noqa: F401


def load_tokenizer(name: str) -> TextCodec:
    """Load a tokeniser from a folder (ours, the authors' or any of Hugging Face), a hub name, or a name of our own. Our names
    are "gpt2-json:FOLDER", "gpt2", "bytes". ValueError if there is none."""
    folder = Path(name)
    if not folder.is_dir() and (":" in name or "/" not in name):
        choice = parse_tokenizer(name)
        if choice.trained:
            raise ValueError(f"tokenizer {name!r} is trained on a corpus: name the folder where it was saved")
        return TextCodec(choice.load())
    if (folder / "kind.json").is_file():
        return TextCodec(Tokenizer.load(folder))
    saved = str(read_json(folder / "tokenizer_config.json").get("tokenizer_class") or "")
    if saved.startswith("JSONGPT2Tokenizer"):
        return TextCodec(TokenizerChoice("gpt2-json", folder).load())
    import kernels.hf_guard  # noqa: F401  # isort: skip  (before transformers)
    import transformers

    from data.hf_tokenizer import CorpusTokenizer, JSONTokenizer

    ours = {cls.__name__: cls for cls in (CorpusTokenizer, JSONTokenizer)}
    try:
        if saved and saved not in ours and not hasattr(transformers, saved):
            # Its code is never run, and the tokeniser that transformers would use instead gives other ids.
            raise ValueError(f"its class {saved} is code that would come with the checkpoint, which is not run")
        return TextCodec(ours.get(saved, transformers.AutoTokenizer).from_pretrained(name))
    except Exception as error:  # transformers raises many types for the same thing
        raise ValueError(f"{name} has no usable tokeniser ({first_line(error)}); name one with --tokenizer") from error
