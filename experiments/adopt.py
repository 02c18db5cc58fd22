"""Published checkpoints as runs: `python -m experiments adopt FOLDER --as fox_pro --scale 760m-48b --data ...`.

The run's identity holds the digest of the weights. Plans take an adopted run for the unchanged recipe of its name, scale and
seed 0, instead of training it.
"""

import datetime
import hashlib
import json
import os
import shutil
from dataclasses import replace
from pathlib import Path

from data.spec import DataSpec
from experiments.recipes import Recipe
from training.run_folder import RunFolder
from training.spec import RunSpec


def adopted_run(runs_dir: Path, recipe: Recipe) -> RunSpec | None:
    """The adopted run that stands for `recipe`, if there is one. ValueError if there are several."""
    if recipe.model or recipe.train or recipe.seed or recipe.task:
        return None
    found = []
    for path in sorted((runs_dir / recipe.scale).glob(f"{recipe.name}-*/adopted.json")):
        spec = RunFolder.open(path.parent).read_spec()
        if spec.weights is None:
            raise ValueError(f"{path} was put here from elsewhere: run {spec.run_id} was not adopted; delete the file.")
        found.append(spec)
    if len(found) > 1:
        names = ", ".join(spec.folder_name for spec in found)
        raise ValueError(f"several checkpoints are adopted as {recipe.name} at {recipe.scale} ({names}): remove all but one.")
    return found[0] if found else None


def adopt(folder: Path, recipe: Recipe, data: DataSpec, runs_dir: Path) -> RunFolder:
    """Make a finished run of the checkpoint in `folder` (ours or the authors' format).

    ValueError: no checkpoint there, weights that do not fit, a model that is not the recipe's.
    """
    from models.build import load_model, spec_of
    from training import manifest

    model = load_model(folder)
    plain = recipe.run_spec(data)
    found = spec_of(model)
    if type(found) is not type(plain.model) or (found.hidden_size, found.num_layers) != (
        plain.model.hidden_size, plain.model.num_layers,
    ):  # fmt: skip
        raise ValueError(
            f"{folder} holds a {found.kind} of width {found.hidden_size} and {found.num_layers} layers; {recipe.name} at "
            f"{recipe.scale} is a {plain.model.kind} of width {plain.model.hidden_size} and {plain.model.num_layers} layers."
        )
    spec = replace(plain, model=found, weights=_digest(folder))
    run = RunFolder.create(runs_dir / recipe.scale / spec.folder_name, spec)
    if not run.finished:
        partial = run.path / "export.partial"
        shutil.rmtree(partial, ignore_errors=True)
        shutil.copytree(folder, partial)
        manifest.seal(partial, run_id=spec.run_id)
        os.rename(partial, run.export)
    about = {"folder": folder.name, "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")}
    (run.path / "adopted.json").write_text(json.dumps(about) + "\n")
    return run


def _digest(folder: Path) -> str:
    """SHA-256 over the names and contents of the weight files."""
    whole = hashlib.sha256()
    for path in sorted(folder.glob("*.safetensors")):
        whole.update(path.name.encode())
        with open(path, "rb") as file:
            whole.update(hashlib.file_digest(file, "sha256").digest())
    return whole.hexdigest()[:16]
