"""Comparison of your runs with the stored ones, and of two run folders with each other. Torch-free.

The rows of a run folder are compared with stored rows of trainings that differ from it only in the seed: does each number lie
where one more seed would (analysis/prediction.py)? Stored rows of the weights in the compared folders do not count: a seed that
is trained for the first time has nothing to be compared with."""

import json
from collections.abc import Container, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from analysis.prediction import Predicted, numbers, predict
from analysis.seeds import family_of, repeats_for
from analysis.statistics import LEVEL
from experiments.collect import trained_on_cpu
from experiments.overview import uncut
from results.provenance import commit_name
from results.store import META, fault_of, is_fresh, read_rows, read_run, run_file, without_seed
from training.run_folder import RunFolder
from training.signals import EXIT_FINISHED, EXIT_NOT_REPRODUCED
from training.spec import RunSpec


@dataclass(frozen=True)
class Compared:
    """One number of an evaluation in a run folder; `predicted` is None if nothing is stored for any seed of the run."""

    run: str
    evaluation: str
    name: str
    value: float
    predicted: Predicted | None

    @property
    def outside(self) -> bool:
        return self.predicted is not None and self.predicted.p(self.value) < 1 - LEVEL


def compared(folder: RunFolder, results_dir: Path, ours: frozenset[str]) -> Iterator[Compared]:
    """Compare every finished evaluation of trained weights in a run folder with stored rows of weights not in `ours`."""
    spec = folder.read_spec()
    family = family_of(json.loads(spec.to_json())["model"])
    for path in sorted(folder.evals.glob("*.parquet")):
        if is_fresh(path.stem) or folder.evaluation_fault(path.stem) is not None:
            continue
        rows, meta = read_rows(path, META)
        kind = meta["kind"]
        stored = [numbers(kind, each, spec.train.seq_len) for each in _stored(results_dir, spec, path.stem, ours)]
        for name, value in numbers(kind, rows, spec.train.seq_len).items():
            values = tuple(each[name] for each in stored if name in each)
            predicted = None
            if values:
                repeats = repeats_for(results_dir, spec.scale, kind, ours)
                predicted = predict(name, kind, values, repeats, spec.scale, family, spec.train.train_tokens)
            yield Compared(folder.path.name, path.stem, name, value, predicted)


def by_seeds(runs: Iterable[Path], parted: Container[Path], results_dir: Path) -> list[Compared]:
    """Compare each finished run that was trained on a GPU or is in `parted` with what is stored."""
    folders = [
        folder
        for folder in map(RunFolder, dict.fromkeys(runs))
        if folder.spec_file.is_file()
        and folder.finished
        and (folder.path in parted or not trained_on_cpu(folder.read_starts()))
    ]
    ours = weights_of(folders)
    return [each for folder in folders for each in compared(folder, results_dir, ours)]


def weights_of(folders: Iterable[RunFolder]) -> frozenset[str]:
    """Digests of the weights in run folders."""
    return frozenset(folder.weights for folder in folders if folder.weights is not None)


def _stored(results_dir: Path, spec: RunSpec, eval_id: str, ours: frozenset[str]) -> Iterator[pd.DataFrame]:
    """Yield the stored rows of one evaluation for every seed and training of a run, except those of weights in `ours`."""
    kind, _, digest = eval_id.rpartition("-")
    rows = results_dir / spec.scale / "rows" / kind
    for run_id in _series(results_dir / spec.scale / "runs", without_seed(json.loads(spec.to_json()))):
        for path in sorted([*rows.glob(f"{run_id}-{digest}.parquet"), *rows.glob(f"{run_id}-{digest}-*.parquet")]):
            if fault_of(path) is None:
                found, meta = read_rows(path, META)
                if meta.get("weights") not in ours:
                    yield found


@lru_cache(maxsize=256)
def _series(records: Path, same: str) -> tuple[str, ...]:
    """Ids of the stored runs whose spec without the seed is `same`."""
    found = {path.stem: read_run(path)["spec"] for path in sorted(records.glob("*.json"))}
    return tuple(run_id for run_id, spec in found.items() if without_seed(spec) == same)


def print_bands(found: Sequence[Compared], console: Console, *, whole: bool = True) -> bool:
    """Print the band of each number, or (`whole` False) of those outside. Returns whether all fit together (Bonferroni)."""
    table = Table("run", "evaluation, number", "here", "stored", "band of one more seed (95%)", "", box=None, pad_edge=False)
    for each in found:
        if whole or each.outside:
            table.add_row(escape(each.run), f"{each.evaluation}, {each.name}", f"{each.value:.4f}", *_cells(each))
    if table.row_count:
        uncut(console).print(table)
    chances = [each.predicted.p(each.value) for each in found if each.predicted and each.predicted.noise is not None]
    outside, nothing = sum(each.outside for each in found), sum(each.predicted is None for each in found)
    told = [f"{len(chances) - outside} of {len(chances)} numbers lie in the band that the stored seeds predict for one more"]
    if unknown := len(found) - len(chances) - nothing:
        told.append(f"the band of {unknown} is not known: nothing comparable was repeated with other seeds")
    if nothing:
        told.append(f"for {nothing} no other training is stored to compare with")
    fits = min(chances, default=1.0) * len(chances) >= 1 - LEVEL or not chances
    by_chance = f"by chance {(1 - LEVEL) * len(chances):.1f} would lie outside"
    if outside and fits:
        told.append(f"{by_chance}, and none lies further out than chance explains")
    elif outside:
        told.append(f"[red]not reproduced[/]: {by_chance}, but none as far out as one does here")
    console.print("; ".join(told))
    return fits


def _cells(each: Compared) -> tuple[str, str, str]:
    predicted = each.predicted
    if predicted is None:
        return "-", "-", "no other training stored"
    count = len(predicted.stored)
    stored = f"{predicted.mean:.4f} ({count} training{'s' * (count > 1)})"
    if predicted.noise is None or predicted.band is None:  # both are None together
        return stored, "unknown", "no seeds repeated"
    low, high = predicted.band
    df = f"{predicted.noise.df:.0f} df{', ' * bool(predicted.noise.where)}{predicted.noise.where}"
    return stored, f"{low:.4f} to {high:.4f} ({df})", "outside" if each.outside else "inside"


@dataclass(frozen=True, eq=False)
class Training:
    """A training to be compared step by step: its spec, a row per step, all its starts."""

    name: str
    spec: dict[str, Any]
    steps: pd.DataFrame
    starts: Sequence[dict[str, Any]]

    def told(self) -> dict[Any, Any]:
        """Return a flat dict of the spec and of the first start's code and machine (a CPU's name includes its threads)."""
        first = self.starts[0] if self.starts else {}
        kept = ("python", "versions", "device", "world_size", "deterministic", "parallel", "micro_batch_tokens")
        values = {**self.spec, "starts": len(self.starts), **{name: first[name] for name in kept if name in first}}
        return pd.json_normalize({**values, "commit": commit_name(first)}).to_dict("records")[0]


def training_of(folder: RunFolder) -> Training:
    """Read a run folder, finished or not. ValueError if it has no steps yet."""
    rows = folder.read_metrics() if folder.metrics_file.is_file() else []
    if not rows:
        raise ValueError(f"{folder.path} has no steps to compare: train it first.")
    return Training(str(folder.path), json.loads(folder.read_spec().to_json()), pd.DataFrame(rows), folder.read_starts())


def stored_training(folder: RunFolder, results_dir: Path) -> Training | None:
    """Return the stored curve of a folder's run; None if there is none, or only the folder's own."""
    spec = folder.read_spec()
    record = run_file(results_dir, spec.scale, spec.run_id)
    for path in sorted((results_dir / spec.scale / "rows" / "training_curve").glob(f"{spec.run_id}-*.parquet")):
        if record.is_file() and fault_of(path) is None:
            rows, meta = read_rows(path, META)
            if meta.get("weights") is None or meta.get("weights") != folder.weights:
                known = read_run(record)
                return Training(f"the stored run {spec.run_id}", known["spec"], rows, known["starts"])
    return None


def print_parting(one: Training, other: Training, console: Console) -> None:
    """Print the step at which two trainings part, and every difference between their specs and provenance."""
    console.print(f"a: {one.name}\nb: {other.name}", markup=False)
    a, b = one.told(), other.told()
    table = Table("", "a", "b", box=None, pad_edge=False)
    for name in {**a, **b}:
        if a.get(name) != b.get(name):
            table.add_row(name, *(escape(str(each.get(name, "-"))) for each in (a, b)))
    uncut(console).print(table if table.row_count else "spec, commit, machine and versions are the same")
    both = one.steps.merge(other.steps, on="step", suffixes=("_a", "_b"))
    if both.empty:
        console.print("they have no step in common")
        return
    pairs = both[["loss_a", "loss_b"]].to_numpy(float)
    same = (pairs[:, 0] == pairs[:, 1]) | np.isnan(pairs).all(axis=1)
    if same.all():
        console.print(f"the losses of all {len(both)} common steps are equal to the bit")
        return
    apart = np.nan_to_num(np.abs(pairs[:, 0] - pairs[:, 1]), nan=np.inf) * ~same
    for what, index in (("they part", same.argmin()), ("furthest apart", apart.argmax()), ("at the end", len(both) - 1)):
        step, (a_loss, b_loss) = both["step"].iloc[index], pairs[index]
        console.print(f"{what} at step {step:.0f}: loss {a_loss:.6g} and {b_loss:.6g}, by {abs(a_loss - b_loss):.2g}")


def compare(folders: Sequence[Path], results_dir: Path, console: Console, *, named: bool) -> int:
    """Compare run folders with what is stored, or two that are `named` with each other. Returns the exit code. ValueError if
    there is nothing to compare."""
    opened = [RunFolder.open(path) for path in folders]
    if named and len(opened) == 2:
        print_parting(training_of(opened[0]), training_of(opened[1]), console)
        return EXIT_FINISHED
    found = [each for folder in opened for each in compared(folder, results_dir, weights_of(opened))]
    fits = print_bands(found, console) if found else True
    stored = stored_training(opened[0], results_dir) if named and len(opened) == 1 else None
    if not found:
        nothing = "no evaluation of these runs is finished: `run` evaluates them"
        if stored is None:
            raise ValueError(f"nothing was compared: {nothing}.")
        console.print(nothing)
    if stored is not None:
        print_parting(training_of(opened[0]), stored, console)
    return EXIT_FINISHED if fits else EXIT_NOT_REPRODUCED
