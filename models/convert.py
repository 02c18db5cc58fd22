"""Checkpoints of the authors: `python -m models.convert SOURCE TARGET` translates a folder, in either direction.

A folder in their format needs no conversion to be used: `models.build.load_model` reads it directly."""

import json
import shutil
import sys
import tempfile
from pathlib import Path
from typing import Any

import tyro
from safetensors.torch import save_file
from tyro.conf import Positional

from models.authors import AUTHORS_SUFFIX, config_for_authors, name_for_authors
from models.build import load_model, spec_of
from models.causal_lm import CausalLM
from models.weight_files import tokenizer_files


def save_authors(model: CausalLM, folder: Path) -> None:
    """Write a model of this suite in the authors' format: config.json and model.safetensors."""
    spec = spec_of(model)
    config = config_for_authors(spec)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config, indent=2, sort_keys=True) + "\n")
    weights = {name_for_authors(spec, name): tensor.cpu().contiguous() for name, tensor in model.state_dict().items()}
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})


def convert(source: Positional[Path], target: Positional[Path]) -> str:
    """Translate SOURCE, a checkpoint folder in the authors' format or in this suite's, into TARGET, a folder in the other one.

    TARGET must not exist or be empty, and appears complete or not at all. Returns one line about what was written. Raises
    ValueError for anything a user can fix."""
    if target.exists() and (not target.is_dir() or any(target.iterdir())):
        raise ValueError(f"{target} exists and is not an empty folder; give another target")
    model: Any = load_model(source, dtype=None)  # anything that Hugging Face loads, which `spec_of` refuses
    model_type = json.loads((source / "config.json").read_text())["model_type"]
    theirs = model_type.endswith(AUTHORS_SUFFIX)
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=target.parent, prefix=f".{target.name}-") as scratch:
        made = Path(scratch) / "converted"
        if theirs:
            model.save_pretrained(made)
        else:
            save_authors(model, made)
        for file in made.glob("*.safetensors"):  # safetensors makes files that only the owner can read
            shutil.copymode(made / "config.json", file)
        for file in tokenizer_files(source):
            shutil.copy2(file, made / file.name)
        if target.exists():
            target.rmdir()
        made.rename(target)
    direction = "from the authors' format to this suite's" if theirs else "from this suite's format to the authors'"
    return f"{target}: {model_type} converted {direction}"


def main(arguments: list[str] | None = None) -> int:
    try:
        print(tyro.cli(convert, prog="python -m models.convert", args=arguments))
    except (ValueError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
