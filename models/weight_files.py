"""Files of a model folder that determine its outputs: the weights that are loaded, and the tokeniser. Torch-free."""

import json
from pathlib import Path
from typing import Any

INDEX = "model.safetensors.index.json"
TOKENIZER_FILES = tuple("tokenizer* kind.json vocab.* merges.txt *.model special_tokens_map.json added_tokens.json".split())


def tokenizer_files(folder: Path) -> list[Path]:
    """Return the files of a folder's tokeniser, if any."""
    return sorted({path for pattern in TOKENIZER_FILES for path in folder.glob(pattern) if path.is_file()})


def read_json(path: Path) -> dict[str, Any]:
    """Read a JSON object, an empty one if the file is missing. Raises ValueError for anything else."""
    try:
        values = json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{path} is no JSON ({error}): copy the model again") from None
    if not isinstance(values, dict):
        raise ValueError(f"{path} is no JSON object: copy the model again")
    return values


def weight_files(folder: Path) -> list[Path]:
    """Return the paths of a folder's weight files, whether they exist or not. Raises ValueError for a name that leads out of
    the folder or is no safetensors file (a pickle could run code, so none is ever loaded)."""
    index = folder / INDEX
    try:
        names = set(json.loads(index.read_text())["weight_map"].values()) if index.is_file() else {"model.safetensors"}
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise ValueError(f"{index} cannot be read ({type(error).__name__}: {error}): copy the model again") from None
    for name in names:
        if not isinstance(name, str) or Path(name).name != name or not name.endswith(".safetensors"):
            raise ValueError(f"{index} names {name!r}: weights must be .safetensors files beside it")
    return [folder / name for name in sorted(names)]
