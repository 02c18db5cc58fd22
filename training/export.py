"""Export of the trained model and its tokeniser as a folder for `from_pretrained`. A complete one marks a run as finished."""

import os
import re
import shutil
import sys
from pathlib import Path

from safetensors import SafetensorError
from torch import nn
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict

from data.corpus import Corpus
from results.atomic import write_atomic
from training import manifest
from training.distributed import World
from training.run_folder import RunFolder
from training.spec import RunSpec

ASIDE = "export.damaged"
README = Path(__file__).with_name("export_readme.md")


def export_model(model: nn.Module, corpus: Corpus | None, spec: RunSpec, folder: RunFolder, world: World) -> None:
    """Write export/ atomically, then delete the checkpoints, which are three times its size and no longer needed."""
    whole = StateDictOptions(full_state_dict=True, cpu_offload=True)
    weights = get_model_state_dict(model, options=whole) if world.size > 1 else model.state_dict()
    if world.is_main:
        partial = folder.path / "export.partial"
        shutil.rmtree(partial, ignore_errors=True)
        import kernels.hf_guard  # noqa: F401  # isort: skip  (before transformers)
        from transformers.utils.logging import disable_progress_bar  # the model has loaded transformers by now

        disable_progress_bar()
        try:
            model.save_pretrained(partial, state_dict=weights)  # type: ignore[operator]
        except SafetensorError as error:  # for a full disk, for example
            number = re.search(r"os error (\d+)", str(error))
            raise OSError(int(number[1]), os.strerror(int(number[1])), str(partial)) if number else error from None
        if corpus is not None:
            corpus.tokenizer.to_hf().save_pretrained(partial)
        write_atomic(partial / "run_spec.json", spec.to_json())
        write_atomic(partial / "README.md", README.read_text())
        curve = {"metrics": manifest.digest(folder.metrics_file)} if folder.metrics_file.is_file() else {}
        manifest.seal(partial, run_id=spec.run_id, **curve)
        os.rename(partial, folder.export)
        _drop_checkpoints(folder)
    world.barrier()


def _drop_checkpoints(folder: RunFolder) -> None:
    for rest in (folder.checkpoints, folder.path / ASIDE):
        shutil.rmtree(rest, ignore_errors=True)


def already_exported(folder: RunFolder, spec: RunSpec, world: World) -> bool:
    """Tell whether the run is finished (all processes agree). A damaged export is moved aside, so that it is made again; if the
    export is intact, checkpoints that a killed process left are deleted. Raises ValueError for damaged weights that were
    trained elsewhere, since training cannot make them again."""
    if not world.is_main:
        return bool(world.broadcast(None))
    fault = folder.export_fault(digests=True)
    damaged = f"{folder.export} is damaged: {fault}."
    if fault is not None and spec.weights is not None:
        raise ValueError(f"{damaged} These weights were trained elsewhere: adopt them again.")
    if fault is not None and folder.export.exists():
        aside = folder.path / ASIDE
        shutil.rmtree(aside, ignore_errors=True)
        os.rename(folder.export, aside)
        then = "the run resumes from its newest checkpoint, or is trained again if there is none"
        print(f"{damaged} It was renamed to {ASIDE}; {then}.", file=sys.stderr)
    if fault is None:
        _drop_checkpoints(folder)
    return bool(world.broadcast(fault is None))
