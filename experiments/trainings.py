"""Trainings told apart: is a run folder's the one whose rows are stored? Torch-free.

A GPU does not repeat bits: a run that is trained again has other weights. Its rows are another training's and kept beside the
first's. A CPU repeats them on a processor of its kind; on others it rounds otherwise, and training carries that on.
"""

from collections.abc import Sequence
from enum import StrEnum
from typing import Any

from results.provenance import commit_name
from results.store import is_training, trainings_of
from training.run_folder import RunFolder

LARGEST = 0.009
"""The largest difference of mean losses ever seen between trainings of a run on two CPUs (nats)."""
BOUND = 0.01
"""Nats by which the losses of a training on another CPU may differ: a little more than `LARGEST`."""


class Relation(StrEnum):
    """Relation of a folder's training to the first that is stored of its run."""

    SAME = "same"
    ROUNDED = "rounded"
    """The same up to another processor's rounding."""
    BEYOND = "beyond"
    """Another one, though both are of CPUs: other code, most likely."""
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
    if None in losses or not (_on_cpu(known, first) and _on_cpu(record, mine)):
        return Relation.OTHER
    return Relation.ROUNDED if abs(losses[0] - losses[1]) <= BOUND else Relation.BEYOND


def apart(known: dict[str, Any], folder: RunFolder) -> str:
    """Say how far a folder's training ended from the first that is stored, and of which commits they are."""
    record = folder.record()
    ends = [
        (training["final_loss"], next(start for start in reversed(of["starts"]) if start["date"] in training["starts"]))
        for of, training in ((known, trainings_of(known)[0]), (record, record["trainings"][0]))
    ]
    return apart_by(*ends)


def apart_by(stored: tuple[float, dict[str, Any]], here: tuple[float, dict[str, Any]]) -> str:
    """Say how far two losses are apart, each with the provenance of who found it."""
    return (
        f"{here[0]:.4f} nats by commit {commit_name(here[1])} on {here[1].get('device')}, {stored[0]:.4f} stored, by "
        f"{commit_name(stored[1])} on {stored[1].get('device')}"
    )


def _on_cpu(record: dict[str, Any], training: dict[str, Any]) -> bool:
    return trained_on_cpu([start for start in record["starts"] if start["date"] in training["starts"]])


def trained_on_cpu(starts: Sequence[dict[str, Any]]) -> bool:
    """Tell whether all starts of a training were on CPUs, whose labels end with their threads."""
    devices = [str(start.get("device")) for start in starts]
    return bool(devices) and all(device.endswith(")") and " thread" in device for device in devices)
