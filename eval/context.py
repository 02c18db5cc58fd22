"""What an evaluation needs besides model and spec: where texts and data lie, the device, and what is already done."""

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from eval.partial import Partial

if TYPE_CHECKING:
    from data.corpus import Corpus
    from eval.judge import JudgeSettings


@dataclass
class Context:
    """Where things are. Nothing here changes the rows of a given spec, apart from what the spec names by digest.

    `batch_tokens`: tokens (padding and new ones included) that one generation batch may hold; None chooses by device.
    `extras`: filled by the evaluation with facts for the meta file. `partial`: samples already finished.
    """

    device: str = "cpu"
    corpus: "Corpus | None" = None
    train_seq_len: int | None = None
    partial: Partial = field(default_factory=lambda: Partial(None, identity=""))
    batch_tokens: int | None = None
    haystack: Path | None = None
    haystack_sorted: bool = True
    prompts: Path | None = None
    longbench: Path | None = None
    include_path: Path | None = None
    local_tasks: Path | None = None
    judge: "JudgeSettings | None" = None
    extras: dict[str, Any] = field(default_factory=dict)

    def need_corpus(self) -> "Corpus":
        if self.corpus is None:
            raise ValueError("this evaluation reads held-out text: name the folder of a prepared corpus with --corpus")
        return self.corpus


@contextlib.contextmanager
def inference(device: str) -> Iterator[None]:
    """No gradients; bf16 autocast on GPUs, fp32 on the CPU (protocol of the released evaluations)."""
    import torch

    kind = torch.device(device).type
    with torch.inference_mode(), torch.autocast(kind, dtype=torch.bfloat16, enabled=kind != "cpu"):
        yield
