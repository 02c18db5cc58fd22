"""Files of a model folder that decide what it computes: weights, those that loading opens and no others, and tokeniser.
Torch-free."""

import json
from pathlib import Path

INDEX = "model.safetensors.index.json"
TOKENIZER_FILES = tuple("tokenizer* kind.json vocab.* merges.txt *.model special_tokens_map.json added_tokens.json".split())


def weight_files(folder: Path) -> list[Path]:
    """Return the files that hold a folder's weights, there or not. ValueError for a name that leads out of the folder or is no
    safetensors file (a pickle could run code, so none is ever loaded)."""
    index = folder / INDEX
    try:
        names = set(json.loads(index.read_text())["weight_map"].values()) if index.is_file() else {"model.safetensors"}
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise ValueError(f"{index} cannot be read ({type(error).__name__}: {error}): copy the model again") from None
    for name in names:
        if not isinstance(name, str) or Path(name).name != name or not name.endswith(".safetensors"):
            raise ValueError(f"{index} names {name!r}: weights must be .safetensors files beside it")
    return [folder / name for name in sorted(names)]
