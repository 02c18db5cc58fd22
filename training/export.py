"""The trained model and its tokeniser as a folder for `from_pretrained`; its presence marks a run as finished."""

import os
import shutil

from torch import nn
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict

from data.corpus import Corpus
from results.atomic import write_atomic
from training.distributed import World
from training.run_folder import RunFolder
from training.spec import RunSpec


def export_model(model: nn.Module, corpus: Corpus, spec: RunSpec, folder: RunFolder, world: World) -> None:
    """Write export/ whole or not at all, then drop the checkpoints, which the run no longer needs."""
    options = StateDictOptions(full_state_dict=True, cpu_offload=True)
    weights = get_model_state_dict(model, options=options) if world.size > 1 else model.state_dict()
    if world.is_main:
        partial = folder.path / "export.partial"
        shutil.rmtree(partial, ignore_errors=True)
        import kernels.hf_guard  # noqa: F401  # isort: skip  (before transformers)
        from transformers.utils.logging import disable_progress_bar  # the model has loaded transformers by now

        disable_progress_bar()
        model.save_pretrained(partial, state_dict=weights)  # type: ignore[operator]
        corpus.tokenizer.to_hf().save_pretrained(partial)
        write_atomic(partial / "run_spec.json", spec.to_json())
        os.rename(partial, folder.export)
        shutil.rmtree(folder.checkpoints, ignore_errors=True)
    world.barrier()
