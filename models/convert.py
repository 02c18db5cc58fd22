"""Checkpoints of the authors: `python -m models.convert SOURCE TARGET` translates a folder, in either direction.

A folder in their format needs no conversion to be used: `models.build.load_model` reads it directly.
"""

import argparse
import json
import shutil
import sys
import tempfile
from pathlib import Path
from typing import Any

from safetensors.torch import save_file

from models.authors import AUTHORS_SUFFIX, config_for_authors, name_for_authors
from models.build import load_model, spec_of
from models.causal_lm import CausalLM
from models.weight_files import TOKENIZER_FILES


def save_authors(model: CausalLM, folder: Path) -> None:
    """Write a model of this suite in the authors' format: config.json and model.safetensors."""
    spec = spec_of(model)
    config = config_for_authors(spec)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config, indent=2, sort_keys=True) + "\n")
    weights = {name_for_authors(spec, name): tensor.cpu().contiguous() for name, tensor in model.state_dict().items()}
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})


def convert(source: Path, target: Path) -> str:
    """Translate SOURCE (either format) into TARGET (the other one), which appears complete or not at all. Return one line about
    what was written. Raises ValueError for anything a user can put right."""
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
        for pattern in TOKENIZER_FILES:
            for file in source.glob(pattern):
                shutil.copy2(file, made / file.name)
        if target.exists():
            target.rmdir()
        made.rename(target)
    direction = "from the authors' format to this suite's" if theirs else "from this suite's format to the authors'"
    return f"{target}: {model_type} converted {direction}"


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m models.convert", description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("source", type=Path, help="checkpoint folder, in the authors' format or in ours")
    parser.add_argument("target", type=Path, help="folder to write, in the other format; must not exist or be empty")
    options = parser.parse_args(arguments)
    try:
        print(convert(options.source, options.target))
    except (ValueError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
