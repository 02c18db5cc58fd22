"""An artefact and the rows that it is drawn from: RESULTS/SCALE/STEM.json and the stored evaluations that it names. Torch-free.

A line is one run of a figure. Its axes are the settings in which it differs from the model's recipe, and figures group by them;
its label is how the figure prints them. Lines with equal axes, model and scale are one series: repetitions with other seeds.

    {"stem", "scale", "beside": folder of more rows, "lines": [{"label", "axes", "model", "seed", "scale", "run_id",
     "evals": {"per_token_loss-1a2b3c4d": digest of the weights}}]}

`run` writes the lines that it plans, and a study has those of them that have rows. In published folders the digest of an
evaluation's weights tells two trainings of its run apart, and is null for fresh weights; in a user's folder all are null."""

import json
from collections import Counter, defaultdict
from collections.abc import Iterable
from dataclasses import asdict, field, replace
from functools import cache, cached_property, partial
from pathlib import Path
from typing import Annotated, Any

import pandas as pd
from pydantic import AfterValidator, ConfigDict, TypeAdapter, ValidationError
from pydantic.dataclasses import dataclass

from analysis.names import rank
from analysis.seeds import Functional, family_of, noise_of, repeats_for, size_of, sources_of
from analysis.statistics import Noise
from results.atomic import write_atomic
from results.store import UNRECORDED, Key, Meta, Store, open_store


def _plain(value: Any) -> Any:
    if not isinstance(value, str | int | float):
        raise ValueError(f"{value!r} is not a text, a number, True or False")
    return value


Axes = dict[str, Annotated[Any, AfterValidator(_plain)]]
Series = tuple[tuple[tuple[str, Any], ...], str, str]
"""Axes in the order of their names, model and scale, which repetitions share."""
Place = tuple[Series, int]
"""Series and seed: a line's place in an artefact."""

_OF_LINE = ("label", "model", "seed", "scale", "run_id")


@dataclass(frozen=True, config=ConfigDict(strict=True, extra="forbid"))
class Line:
    """One run in an artefact. `axes`: empty for the recipe itself. `model`: the recipe's name, which gives colour and order.
    `evals`: id of an evaluation -> digest of the weights that it measured."""

    label: str
    axes: Axes
    model: str
    seed: int
    scale: str
    run_id: str
    evals: dict[str, str | None] = field(default_factory=dict)

    @property
    def weights(self) -> str | None:
        """Digest of the weights that the line is drawn from; None if they are fresh or were not recorded."""
        known = {weights for weights in self.evals.values() if weights is not None}
        return known.pop() if len(known) == 1 and UNRECORDED not in known else None

    @property
    def is_trained(self) -> bool:
        """True if rows of the line were measured on trained weights."""
        return any(weights is not None for weights in self.evals.values())

    @property
    def trained_weights(self) -> str:
        """Weights that the line is drawn from, in words."""
        return (f"weights {self.weights}" if self.weights else "weights not recorded") if self.is_trained else "fresh weights"

    @property
    def series(self) -> Series:
        """Series of the line, the same for all its seeds."""
        return series_of(self.axes, self.model, self.scale)

    @property
    def place(self) -> Place:
        """Place in the artefact: a newer line replaces an older one at the same place."""
        return self.series, self.seed


def series_of(axes: Axes, model: str, scale: str) -> Series:
    return tuple(sorted(axes.items())), model, scale


@dataclass(frozen=True, config=ConfigDict(strict=True, extra="forbid"))
class Lines:
    """Contents of STEM.json. `beside`: another results folder, relative to this one, whose rows are drawn, too."""

    stem: str
    scale: str
    lines: tuple[Line, ...] = ()
    beside: str | None = None


_LINES = TypeAdapter(Lines)


def study_file(results_dir: Path, scale: str, stem: str) -> Path:
    return results_dir / scale / f"{stem}.json"


def read_lines(results_dir: Path, scale: str, stem: str) -> Lines:
    """Return the lines of an artefact; none if it was never planned. ValueError for a damaged file."""
    path = study_file(results_dir, scale, stem)
    if not path.is_file():
        return Lines(stem, scale)
    try:
        found = _LINES.validate_json(path.read_bytes())
    except ValidationError as error:
        why = "is damaged" if error.errors()[0]["type"] == "json_invalid" else "is of another version"
        raise ValueError(f"{path} {why}: restore it from version control, or delete it: `run` writes it again") from None
    if (found.stem, found.scale) != (stem, scale):
        raise ValueError(f"{path} does not belong here: it is {found.stem} at {found.scale}")
    return found


def write_lines(results_dir: Path, lines: Lines) -> None:
    """Write the lines of an artefact, one per line of text; the file is not touched if nothing changed."""
    path, values = study_file(results_dir, lines.scale, lines.stem), asdict(lines)
    items = ",\n".join("  " + json.dumps(line) for line in values.pop("lines"))
    head = "".join(f" {json.dumps(name)}: {json.dumps(value)},\n" for name, value in values.items() if value is not None)
    text = "{\n" + head + f' "lines": [\n{items}\n ]\n}}\n'
    if not path.is_file() or path.read_text() != text:
        write_atomic(path, text)


def joined(old: Iterable[Line], new: Iterable[Line]) -> tuple[Line, ...]:
    """Merge lines by place and run: old ones keep their order and their evaluations. A new place follows the line that is
    declared before it, or else precedes those that are declared after it."""
    lines = {(line.place, line.run_id): line for line in old}
    order, new = list(lines), list(new)
    names = [(line.place, line.run_id) for line in new]
    for index, (name, line) in enumerate(zip(names, new, strict=True)):
        if name not in lines:
            after = min((order.index(each) for each in names if each in order), default=len(order))
            order.insert(order.index(names[index - 1]) + 1 if index else after, name)
        lines[name] = replace(line, evals={**(lines[name].evals if name in lines else {}), **line.evals})
    return tuple(lines[name] for name in order)


Evaluation = tuple[Line, pd.DataFrame, Meta]


class NothingStored(ValueError):
    """Error for rows that a claim or a figure needs and that are not stored; those that are stored are sound."""


class Study:
    """An artefact's lines with their rows, for drawing and judging. Rows are read on first use."""

    def __init__(self, results_dir: Path, scale: str, stem: str):
        self.results_dir, self.scale, self.stem = results_dir, scale, stem
        self.folder = results_dir / scale
        """The folder of figures/ and tables/."""
        planned = read_lines(results_dir, scale, stem)
        self.sources = [results_dir, *([results_dir / planned.beside] if planned.beside else [])]
        """The folders of the rows, that of the study first."""
        self._found: dict[Place, dict[Key, Store]] = {}
        self.lines: list[Line] = []
        for line in planned.lines:
            self.add(line)
        if not self.lines:
            raise self.nothing("rows")
        self.scales = list(dict.fromkeys(line.scale for line in self.lines))
        """The scales of the lines, in their order: an artefact may draw runs of other scales than its own."""
        self.seed_counts = dict(Counter(line.series for line in self.lines))
        self.num_seeds = max(self.seed_counts.values())
        """The largest number of seeds that one series has."""
        self._repeats = cache(partial(repeats_for, self.sources))

    def add(self, line: Line) -> None:
        """Add a line if it has rows; it replaces an older one of its place."""
        if not (found := self._find(line)):
            return
        line = replace(line, evals={key.eval_id: key.weights for key in found})
        places = [each.place for each in self.lines]
        if line.place in places:
            self.lines[places.index(line.place)] = line
        else:
            self.lines.append(line)
        self._found[line.place] = found

    def _find(self, line: Line) -> dict[Key, Store]:
        """Return those of a line's evaluations that have rows, and where. Rows of trained weights all come from the first
        folder that has some. ValueError for damaged rows, and for rows of two trainings."""
        found: dict[Key, Store] = {}
        for store in (open_store(folder, line.scale) for folder in self.sources):
            keys = [key for each in line.evals.items() if (key := store.find(line.run_id, *each)) is not None]
            if faults := [store.faults[line.run_id, each] for each in line.evals if (line.run_id, each) in store.faults]:
                raise ValueError(f"{faults[0]}: `run` measures again")
            trained, named = any(key.weights for key in found), {key.eval_id for key in found}
            found |= {key: store for key in keys if key.eval_id not in named and not (trained and key.weights)}
        weights = {key.weights for key in found} - {None, UNRECORDED}
        if len(weights) > 1:
            apart = f"rows of run {line.run_id} are of several trainings ({', '.join(sorted(map(str, weights)))})"
            raise ValueError(f"{self.stem}, {line.label}: {apart}: `run` measures again")
        return found

    @cached_property
    def _evaluations(self) -> list[Evaluation]:
        found = [(line, key, store) for line in self.lines for key, store in self._found[line.place].items()]
        return [(line, store.rows(key), store.metas[key]) for line, key, store in found]

    def whole(self) -> "Study":
        """Read all rows and records, and return the study itself. ValueError if one is missing or damaged."""
        _ = self.all_metas, self.runs
        return self

    def evaluations(self, kind: str, what: str | None = None, /, **wanted: Any) -> list[Evaluation]:
        """Return the drawn evaluations of a kind, in the order of the lines: line, own rows, meta. `wanted`: only those whose
        spec has these values. If `what` is given and there are none, a ValueError names them by it. Storage only grows, so a
        line may have several evaluations of a kind (e.g. on more documents). For each line, and for each mode if the spec has
        modes, the evaluation that most lines share is returned; of equals, the newest."""
        found = [each for each in self._evaluations if each[2]["kind"] == kind]
        found = [each for each in found if all(each[2]["spec"].get(name) == value for name, value in wanted.items())]
        if what is not None and not found:
            raise self.nothing(what)
        shared = Counter(meta["eval_id"] for _, _, meta in found)
        best: dict[tuple[Any, ...], Evaluation] = {}
        for line, rows, meta in sorted(found, key=lambda each: (shared[each[2]["eval_id"]], each[2]["created"])):
            best[line.place, meta["spec"].get("mode")] = line, rows, meta
        order = {line.place: index for index, line in enumerate(self.lines)}
        return sorted(best.values(), key=lambda each: (order[each[0].place], str(each[2]["spec"].get("mode"))))

    def rows(self, kind: str, **wanted: Any) -> pd.DataFrame:
        """Return all rows of a kind of evaluation after columns label, model, seed, scale, run_id, eval_id and one per axis.
        Empty (without the kind's own columns) if there are none. ValueError for an axis that has the name of a column."""
        frames = []
        for line, rows, meta in self.evaluations(kind, **wanted):
            source = {name: getattr(line, name) for name in _OF_LINE} | {"eval_id": meta["eval_id"], **line.axes}
            if twice := source.keys() & set(rows.columns):
                raise ValueError(f"{self.stem}: the axis {', '.join(twice)} is a column of {kind}, too: give it another name")
            frames.append(pd.DataFrame({**source, **rows}))
        return pd.concat(frames, ignore_index=True) if frames else pd.DataFrame(columns=[*_OF_LINE, "eval_id"])

    def nothing(self, what: str) -> "NothingStored":
        """Return the error to raise if there are no rows, which it calls `what`."""
        return NothingStored(f"{self.stem}: no {what} are stored; run its experiment first")

    def by_series(self, kind: str, what: str | None = None, /, **wanted: Any) -> list[list[Evaluation]]:
        """Return `evaluations` grouped by series."""
        groups: dict[Series, list[Evaluation]] = defaultdict(list)
        for each in self.evaluations(kind, what, **wanted):
            groups[each[0].series].append(each)
        return list(groups.values())

    def measured(self, line: Line, meta: Meta, documents: int = 0) -> dict[str, Any]:
        """Return the fields of `Measured` (analysis/seeds.py) for a line's series, evaluated on this many documents."""
        spec, kind = self.spec(line.run_id), meta["kind"]

        def noise(functional: Functional) -> Noise | None:
            size, train_tokens = size_of(self.results_dir, line.scale), int(spec["train"]["train_tokens"])
            return noise_of(self._repeats(size, kind), line.scale, size, family_of(spec["model"]), train_tokens, functional)

        names = {name: getattr(line, name) for name in ("label", "axes", "model", "scale")}
        return {**names, "train_len": int(spec["train"]["seq_len"]), "noise": noise, "sources_D": sources_of(meta, documents)}

    def stored(self, kind: str, what: str, **wanted: Any) -> pd.DataFrame:
        """Return `rows` in the paper's order of models. ValueError, which calls them `what`, if there are none."""
        self.evaluations(kind, what, **wanted)
        rows = self.rows(kind, **wanted)
        return rows.sort_values("model", key=lambda models: models.map(rank), kind="stable", ignore_index=True)

    def metas(self, kind: str) -> list[Meta]:
        """The metas of a kind of evaluation, one per line and file."""
        return [meta for _, _, meta in self.evaluations(kind)]

    def metas_of(self, line: Line) -> list[Meta]:
        """The metas of a line's evaluations."""
        return [store.metas[key] for key, store in self._found[line.place].items()]

    @property
    def all_metas(self) -> list[Meta]:
        """The metas of all stored evaluations of the lines, drawn or not."""
        return [meta for _, _, meta in self._evaluations]

    @cached_property
    def runs(self) -> dict[str, dict[str, Any]]:
        """Records of the trainings that the lines are drawn from, by the ids of their runs."""
        found = {}
        for line in self.lines:
            key = max(self._found[line.place], key=lambda key: key.weights or "")
            record = self._found[line.place][key].run(line.run_id, line.weights)
            if record is None:
                raise ValueError(f"{self.stem}, {line.label}: the record of run {line.run_id} is missing or damaged")
            found[line.run_id] = record
        return found

    def final_loss(self, line: Line) -> float | None:
        """Return the final loss of the training that a line is drawn from; None if it is not known."""
        return self.runs[line.run_id]["final_loss"]

    def is_adopted(self, line: Line) -> bool:
        """Return whether the weights of a line's run were trained elsewhere and adopted, so that their seed is not known."""
        return self.spec(line.run_id).get("weights") is not None

    def is_from_changed_code(self, line: Line) -> bool:
        """Return whether files differed from their commit when the training that a line is drawn from was started."""
        return any(start.get("git_dirty") for start in self.starts(line))

    def starts(self, line: Line) -> list[dict[str, Any]]:
        """Return the starts of the training that a line is drawn from; none for fresh weights."""
        return self.runs[line.run_id]["starts"] if line.is_trained else []

    def spec(self, run_id: str) -> dict[str, Any]:
        """The RunSpec of a run, as JSON."""
        return self.runs[run_id]["spec"]

    @cached_property
    def train_len(self) -> int:
        """Training context length in tokens. ValueError if the runs have several."""
        lengths = sorted({int(self.spec(line.run_id)["train"]["seq_len"]) for line in self.lines})
        if len(lengths) != 1:
            raise ValueError(f"{self.stem}: one training context length is needed to draw this; the runs have {lengths}")
        return lengths[0]

    @property
    def corpora(self) -> str:
        """Corpora that the runs were trained on, such as "packages, bpe-512 (1a2b3c4d)"; several are joined."""
        names: dict[str, set[str]] = defaultdict(set)
        for line in self.lines:
            data = self.spec(line.run_id)["data"]
            names[f"{data['source']}, {data['tokenizer']}"].add(data["fingerprint"][:8])
        return "; ".join(f"{name} ({', '.join(sorted(names[name]))})" for name in sorted(names))

    @property
    def created(self) -> str:
        """Date of the newest evaluation; empty without evaluations."""
        return max((meta["created"] for _, _, meta in self._evaluations), default="")

    def extra(self, kind: str, run_id: str, name: str) -> Any:
        """Return what an evaluation recorded beyond its rows; None if it did not."""
        found = [meta["extras"] for line, _, meta in self.evaluations(kind) if line.run_id == run_id]
        return next((extras[name] for extras in found if name in extras), None)
