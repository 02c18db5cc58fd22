"""Published checkpoints as runs: `python -m experiments adopt FOLDER --as fox_pro --scale 760m-48b --results-dir FOLDER`.

The run's identity includes the digest of the weights and the tokeniser. In its results folder a plan uses an adopted run for
the unchanged recipe of its name, scale and seed 0 instead of training one."""

import datetime
import hashlib
import json
import os
import shutil
from dataclasses import replace
from pathlib import Path

from data.corpus import Corpus
from data.spec import DataSpec
from eval.runner.loading import Loaded, Subject
from experiments.recipes import Recipe
from models.spec import ModelSpec
from models.weight_files import tokenizer_files, weight_files
from training import manifest
from training.run_folder import RunFolder
from training.spec import RunSpec

SWITCHES = (
    *("kind", "hidden_size", "num_layers", "attention", "forget_gate"),
    *("use_output_gate", "use_output_norm", "use_k_shift", "use_v_shift", "qk_norm"),
    *("window_size", "use_rope", "decay_time_min", "decay_time_max", "stick_remainder"),
)
"""Fields that distinguish recipes."""
PADDING = 1024
"""Limit to the padding of a vocabulary."""


def adopted_run(results_dir: Path, recipe: Recipe, data: DataSpec) -> RunSpec | None:
    """Return the adopted run that replaces training `recipe`, if there is one. ValueError if it was adopted for another corpus,
    and for other seeds, which must not be averaged with it."""
    if recipe.model or recipe.train or recipe.task or not (found := _adopted(results_dir, recipe)):
        return None
    spec = RunFolder.open(found[0].parent).read_spec()
    if recipe.seed:
        raise ValueError(f"{recipe.name} is adopted in {results_dir}, which is one training: leave out --seeds.")
    if spec.data.fingerprint not in (data.fingerprint, "absent") and data.fingerprint != "absent":
        other = f"{spec.data.source}, {spec.data.fingerprint}; this is {data.fingerprint}"
        raise ValueError(f"{spec.folder_name} was adopted for another corpus ({other}): adopt it into another --results-dir.")
    return spec


def adopt(folder: Path, recipe: Recipe, data: DataSpec, prepared: Path | None, results_dir: Path) -> RunFolder:
    """Make a finished run of the checkpoint in `folder` (our format or the authors'). ValueError if there is no checkpoint, if
    files differ from its manifest, if weights do not fit, if the model is not the recipe's, if the vocabulary's size or (if the
    corpus is `prepared` in a folder) the tokeniser differs from the corpus's, or if another checkpoint was adopted before."""
    from models.build import load_model, spec_of

    if not folder.is_dir():
        raise ValueError(f"{folder}: there is no such folder; name one with config.json and safetensors.")
    if (folder / "export").is_dir() and not (folder / "config.json").is_file():
        raise ValueError(f"{folder} is the folder of a run: name {folder / 'export'}, which contains its model.")
    manifest.check(folder)
    plain, found = recipe.run_spec(data), spec_of(load_model(folder))
    if said := apart(found, plain.model):
        remedy = "name its own model and scale with --as and --scale."
        raise ValueError(f"{folder} is no {recipe.name} at {recipe.scale}: {said}; {remedy}")
    if not data.vocab_size <= found.vocab_size < data.vocab_size + PADDING:
        sizes = f"{folder} has a vocabulary of {found.vocab_size}, {data.tokenizer} one of {data.vocab_size}"
        raise ValueError(f"{sizes}: name the tokeniser that it was trained with by --tokenizer.")
    if data.tokenizer.startswith("bpe-"):  # name and size are the same whatever text it was trained on
        if not tokenizer_files(folder):
            unknown = f"{folder} has no tokeniser to check against the corpus ({data.tokenizer})"
            raise ValueError(f"{unknown}: put its tokenizer.json beside the weights.")
        if prepared is not None:
            Loaded(Subject.find(str(folder)), "cpu").check_token_ids(Corpus.open(prepared))
    spec = replace(plain, model=found, weights=_digest(folder))
    runs = results_dir / recipe.scale / "runs"
    begun = [*_adopted(results_dir, recipe), *runs.glob(f"*-{plain.run_id}/provenance.jsonl")]
    for other in (path.parent for path in begun if path.parent.name != spec.folder_name):
        raise ValueError(f"{other} is {recipe.name} at {recipe.scale} already: adopt into another --results-dir.")
    run = RunFolder.create(runs / spec.folder_name, spec)
    if run.export_fault(digests=True) is not None:  # missing or damaged
        partial = run.path / "export.partial"
        shutil.rmtree(partial, ignore_errors=True)
        shutil.copytree(folder, partial)
        manifest.seal(partial, run_id=spec.run_id)
        shutil.rmtree(run.export, ignore_errors=True)
        os.rename(partial, run.export)
    about = {"folder": folder.name, "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")}
    (run.path / "adopted.json").write_text(json.dumps(about) + "\n")
    return run


def _adopted(results_dir: Path, recipe: Recipe) -> list[Path]:
    """Return the files that mark run folders as adopted, for this model at this scale."""
    return sorted((results_dir / recipe.scale / "runs").glob(f"{recipe.name}-*/adopted.json"))


def apart(found: ModelSpec, wanted: ModelSpec) -> str:
    """Say in which of SWITCHES a model differs from the one wanted; empty if in none."""
    mine, theirs = vars(found), vars(wanted)
    other = [name for name in SWITCHES if name in mine and name in theirs and mine[name] != theirs[name]]
    return ", ".join(f"{name} {mine[name]!r}, not {theirs[name]!r}" for name in other)


def _digest(folder: Path) -> str:
    """Digest of the weight files that are loaded, and of the tokeniser's files if there are any. ValueError without weights."""
    found = manifest.weights_digest({path.name: manifest.digest(path) for path in weight_files(folder) if path.is_file()})
    if found is None:
        raise ValueError(f"{folder} holds no model.safetensors: convert its weights first (no pickle is ever loaded).")
    tokenizer = tokenizer_files(folder)
    parts = [found, *(f"{path.name} {manifest.digest(path)}" for path in tokenizer)]
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()[:16] if tokenizer else found
