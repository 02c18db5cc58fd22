"""Tasks of a plan, the same for the local launcher and for SLURM. Standard library only: on clusters with containers the end of
a job runs on the host's python3."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Task:
    """`python -m MODULE ARGS`, known by `key` in every plan. Done when every file of `makes` exists; `needs` are keys. `folder`
    is where its progress shows, its log and its journal lie."""

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
        """The run's folder, or the corpus or artefact."""
        return self.key.split(":")[1]

    @property
    def name(self) -> str:
        """For people: kind and what it is about."""
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
