"""Tasks of a plan, shared by the local launcher and SLURM. Standard library only: jobs read it before they start their task."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Task:
    """The command `python -m MODULE ARGS`, with the same `key` in every plan. It is done when every file in `makes` exists.
    `needs`: keys of the tasks that come before it. `folder` contains its log, its journal and the files that show progress."""

    key: str
    module: str
    args: tuple[str, ...]
    needs: tuple[str, ...]
    makes: tuple[Path, ...]
    folder: Path

    @property
    def kind(self) -> str:
        """prepare, train, evaluate, time or draw."""
        return self.key.split(":")[0]

    @property
    def about(self) -> str:
        """Name of the run's folder, the corpus or the artefact."""
        return self.key.split(":")[1]

    @property
    def name(self) -> str:
        """Kind and subject of the task, for display."""
        return " ".join(self.key.split(":")[:2])

    @property
    def of_a_run(self) -> bool:
        return self.kind in ("train", "evaluate", "time")

    @property
    def log(self) -> Path:
        return self.folder / "logs" / f"{self._stem}.log"

    @property
    def journal(self) -> Path:
        return self.folder / "starts" / f"{self._stem}.jsonl"

    @property
    def _stem(self) -> str:
        return self.kind if self.of_a_run else self.key.replace(":", "-")
