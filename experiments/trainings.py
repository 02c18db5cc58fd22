"""Trainings told apart: is a run folder's the one whose rows are stored? Torch-free.

A GPU does not repeat bits: a run that is trained again has other weights. Its rows are another training's and kept beside the
first's. A CPU repeats them on a processor of its kind; on others it rounds otherwise, and training carries that on.
"""

from enum import StrEnum
from typing import Any

from results.store import is_training, trainings_of
from training.run_folder import RunFolder

BOUND = 0.01
"""Nats by which the final loss of a training on another CPU may differ; the largest difference ever seen is 0.009."""


class Relation(StrEnum):
    """Relation of a folder's training to the first that is stored of its run."""

    SAME = "same"
    ROUNDED = "rounded"
    """The same up to another processor's rounding."""
    OTHER = "other"


def relation(known: dict[str, Any] | None, folder: RunFolder) -> Relation:
    """Compare a folder's training with the first in the record `known` of its run. Where nothing tells them apart, they are the
    same. ValueError: what the folder knows of its training is damaged."""
    stored = trainings_of(known) if known is not None else []
    if known is None or not stored or folder.read_spec().weights is not None:
        return Relation.SAME
    first, weights = stored[0], folder.weights
    if weights is not None and weights == first["weights"]:
        return Relation.SAME
    record = folder.record()
    if not record["trainings"]:
        return Relation.SAME
    mine = record["trainings"][0]
    if is_training(first, mine):
        return Relation.SAME
    losses = first["final_loss"], mine["final_loss"]
    on_cpus = _on_cpu(known, first) and _on_cpu(record, mine)
    if on_cpus and None not in losses and abs(losses[0] - losses[1]) <= BOUND:
        return Relation.ROUNDED
    return Relation.OTHER


def _on_cpu(record: dict[str, Any], training: dict[str, Any]) -> bool:
    """Tell whether all starts of a training were on CPUs, whose labels end with their threads."""
    devices = [str(start.get("device")) for start in record["starts"] if start["date"] in training["starts"]]
    return bool(devices) and all(device.endswith(")") and " thread" in device for device in devices)
