"""Comparison of two results folders, number by number, or of two run folders, step by step. Torch-free.

An evaluation of one folder is compared with the same of the other: their rows are equal up to rounding, or each of their
numbers lies where that of one more seed would (analysis/prediction.py), judged by the other folder's trainings that differ from
this one in the seed alone. Rows of the same weights do not judge themselves."""

from collections import defaultdict
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pandas as pd
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from analysis.prediction import Predicted, numbers, predict
from analysis.seeds import family_of, repeats_for, scales_of, size_of
from analysis.statistics import LEVEL
from eval.kinds import TIMED
from experiments.overview import SHOWN, uncut
from results.lines import read_lines
from results.store import Key, Store, difference, open_store, read_record, without_seed
from training.signals import EXIT_FINISHED, EXIT_NOT_REPRODUCED

ROUNDING = 1e-4
"""Largest difference, relative to the largest number of a column, of rows that count as equal."""
OLDER = {"output_norm_eps": 1e-5, "output_gate_activation": "sigmoid"}
"""Fields of models that were added later, with the values that runs had before."""
SPEEDS = ["tokens_per_s", "mfu", "mfu_dense"]
"""Columns that are not compared: they differ each time."""


@dataclass(frozen=True)
class Compared:
    """One number of an evaluation that is not equal in both folders."""

    run: str
    evaluation: str
    name: str
    value: float
    predicted: Predicted

    @property
    def outside(self) -> bool:
        return self.predicted.p(self.value) < 1 - LEVEL


@dataclass
class Comparison:
    """`equal`, `others`: evaluations with equal rows in both folders, and with other rows; `alone`: those that the other folder
    has of no seed; `numbers`: of `others`; `devices`: of the trainings in this folder and in the other."""

    equal: int = 0
    others: int = 0
    alone: int = 0
    numbers: list[Compared] = field(default_factory=list)
    devices: tuple[set[str], set[str]] = field(default_factory=lambda: (set(), set()))


def compare_stores(mine: Store, theirs: Store, other_dir: Path, found: Comparison) -> None:
    """Compare the evaluations of trained weights at one scale; timings are never the same twice."""
    series: dict[tuple[str, str], list[Key]] = defaultdict(list)
    for key, meta in theirs.metas.items():
        if (record := theirs.run(key.run_id, key.weights)) is not None and meta["kind"] not in TIMED:
            series[_series(record["spec"]), key.eval_id].append(key)
    ours = frozenset(key.weights for key in mine.metas if key.weights)
    for key, meta in mine.metas.items():
        record, kind = mine.run(key.run_id, key.weights), meta["kind"]
        if record is None or key.weights is None or kind in TIMED:
            continue
        spec, rows = record["spec"], mine.rows(key)
        stored = series[_series(spec), key.eval_id]
        same = [each for each in stored if each.run_id == key.run_id]
        found.alone += not stored
        if any(_apart(rows, theirs.rows(each)) <= ROUNDING for each in same):
            found.equal += 1
            continue
        stored = [each for each in stored if each.weights not in ours]
        if not stored:
            continue
        found.others += 1
        train_len, tokens = int(spec["train"]["seq_len"]), int(spec["train"]["train_tokens"])
        size, family = size_of(other_dir, meta["scale"]), family_of(spec["model"])
        there = [numbers(kind, theirs.rows(each), train_len) for each in stored]
        for which, devices in ((record, found.devices[0]), *((theirs.run(*each[::2]), found.devices[1]) for each in stored)):
            devices |= {str(start["device"]) for start in (which or {}).get("starts", [])}
        for name, value in numbers(kind, rows, train_len).items():
            values = tuple(each[name] for each in there if name in each)
            repeats = repeats_for([other_dir], size, kind, ours)
            predicted = predict(name, kind, values, repeats, (meta["scale"], size), family, tokens)
            found.numbers.append(Compared(f"{record['name']}, seed {spec['seed']}", key.eval_id, name, value, predicted))


def _series(spec: dict[str, Any]) -> str:
    """Return `without_seed` without the fields that older runs lack, where they have the value that these had."""
    model = {name: value for name, value in spec["model"].items() if OLDER.get(name) != value}
    train = {name: value for name, value in spec["train"].items() if name != "order_seed"}
    return without_seed({**spec, "model": model, "train": train})


def _apart(one: pd.DataFrame, other: pd.DataFrame) -> float:
    return difference(*(rows.drop(columns=SPEEDS, errors="ignore") for rows in (one, other)))


def compare(one: Path, other: Path, scale: str, console: Console) -> int:
    """Compare two results folders, or two run folders. Returns the exit code. ValueError if there is nothing to compare."""
    if all((folder / "spec.json").is_file() for folder in (one, other)):
        print_parting(one, other, console)
        return EXIT_FINISHED
    for folder in (one, other):
        if not folder.is_dir():
            raise ValueError(f"{folder}: there is no such folder to compare")
    found = Comparison()
    for each in scales_of(one, size_of(other, scale)):
        compare_stores(open_store(one, each), open_store(other, each), other, found)
    if not found.equal + found.others:
        raise ValueError(f"nothing to compare: {other} has no run of {one} at {scale}, nor another seed of one")
    return print_comparison(found, one, other, console)


def print_comparison(found: Comparison, one: Path, other: Path, console: Console) -> int:
    """Print the numbers outside their bands and, in the last line, whether `one` reproduces `other`."""
    judged = [each for each in found.numbers if each.predicted.noise is not None]
    outside = sorted((each for each in judged if each.outside), key=lambda each: each.predicted.p(each.value))
    table = Table("run", "evaluation, number", "here", "there", "band of one more seed (95%)", box=None, pad_edge=False)
    for each in outside[: 4 * SHOWN]:
        table.add_row(escape(each.run), f"{each.evaluation}, {each.name}", f"{each.value:.4f}", *_cells(each.predicted))
    if outside:
        uncut(console).print(table)
    if found.others:
        here, there = (", ".join(sorted(devices)) or "unknown machines" for devices in found.devices)
        amplified = "other processors and libraries round differently, and training amplifies that"
        trained = f"trained on {here} ({one}) and {there} ({other})"
        console.print(f"other rows: {found.others} evaluations, {trained}: {amplified}", markup=False)
    if found.alone:
        console.print(f"not compared: {found.alone} evaluations, of which {other} has no seed", markup=False)
    # By Bonferroni: does one number lie further out than chance explains?
    fits = min((each.predicted.p(each.value) for each in judged), default=1.0) * len(judged) >= 1 - LEVEL or not judged
    told = [f"{found.equal} of {found.equal + found.others} evaluations are equal up to rounding"]
    if judged:
        inside = f"{len(judged) - len(outside)} of {len(judged)} other numbers lie where one more seed would"
        chance = f" (by chance {(1 - LEVEL) * len(judged):.1f} would not, and none lies further out than chance explains)"
        told.append(inside + (chance if outside and fits else ""))
    if unknown := len(found.numbers) - len(judged):
        told.append(f"{unknown} numbers cannot be judged, as nothing like them was repeated with other seeds")
    console.print(f"{'[green]reproduced[/]' if fits else '[red]not reproduced[/]'}: {'; '.join(told)}")
    return EXIT_FINISHED if fits else EXIT_NOT_REPRODUCED


def _cells(predicted: Predicted) -> tuple[str, str]:
    count, noise, band = len(predicted.stored), predicted.noise, predicted.band
    assert noise is not None and band is not None
    degrees = f"{noise.df:.0f} df{', ' * bool(noise.where)}{noise.where}"
    return f"{predicted.mean:.4f} ({count} training{'s' * (count > 1)})", f"{band[0]:.4f} to {band[1]:.4f} ({degrees})"


def print_parting(one: Path, other: Path, console: Console) -> None:
    """Print the step at which two trainings part, and every difference between their specs and machines."""
    told, steps = list[dict[Any, Any]](), list[pd.DataFrame]()
    for folder in (one, other):
        record = read_record(folder)
        start = (record["starts"] or [{}])[0]
        kept = {name: value for name, value in start.items() if name not in ("date", "end")}
        told.append(pd.json_normalize({**record["spec"], **kept}).to_dict("records")[0])
        steps.append(pd.DataFrame(read_lines(folder / "metrics.jsonl")[0], columns=["step", "loss"]))
    for name in {**told[0], **told[1]}:
        if told[0].get(name) != told[1].get(name):
            console.print(f"{name}: {told[0].get(name, '-')} and {told[1].get(name, '-')}", markup=False)
    both = steps[0].merge(steps[1], on="step").dropna()
    unequal = both[both["loss_x"] != both["loss_y"]]
    if both.empty:
        raise ValueError(f"{one} and {other} have no step in common")
    if unequal.empty:
        console.print(f"the losses of all {len(both)} common steps are equal to the bit")
        return
    for what, row in (("they part", unequal.iloc[0]), ("last", both.iloc[-1])):
        console.print(f"{what} at step {row['step']:.0f}: loss {row['loss_x']:.6g} and {row['loss_y']:.6g}")
