"""An artefact and the rows it is drawn from: results/SCALE/STEM.json, and the stored evaluations that it names. Torch-free.

A line is one run of a figure. Its axes are the settings in which it differs from the model's recipe, and figures group by them;
its label is how the figure prints them. Lines with equal axes, model and scale are one series: repetitions with other seeds.

    {"stem", "scale", "lines": [{"label", "axes", "model", "seed", "scale", "run_id",
     "files": {"tiny/rows/per_token_loss/RUN-EVAL.parquet": sha256 of the rows}, "weights": digest of the training's weights}]}

A line is drawn from one training of its run. `weights` is left out if the rows are older than digests of weights."""

import json
from collections import Counter, defaultdict
from dataclasses import asdict, field
from functools import cache, cached_property, partial
from pathlib import Path
from typing import Annotated, Any

import pandas as pd
from pydantic import AfterValidator, ConfigDict, TypeAdapter, ValidationError
from pydantic.dataclasses import dataclass

from analysis.names import rank
from analysis.seeds import Functional, family_of, noise_of, repeats_for, sources_of
from analysis.statistics import Noise
from results.sealed import read_sealed, write_sealed
from results.store import Meta, is_fresh, read_evaluation, read_run, run_file, training_in_name, trainings_of


def _plain(value: Any) -> Any:
    if not isinstance(value, str | int | float):
        raise ValueError(f"{value!r} is not a text, a number, True or False")
    return value


Axes = dict[str, Annotated[Any, AfterValidator(_plain)]]
Series = tuple[tuple[tuple[str, Any], ...], str, str]
"""Axes in the order of their names, model and scale, which repetitions share."""
Place = tuple[Series, int]
"""Series and seed: a line's place in an artefact."""

REMEDY = "restore it from version control, or delete it: `run` of this artefact with --reuse-stored writes it again"

_OF_LINE = ("label", "model", "seed", "scale", "run_id")


@dataclass(frozen=True, config=ConfigDict(strict=True, extra="forbid"))
class Line:
    """One run in an artefact. `axes`: empty for the recipe itself. `model`: the recipe's name, which gives colour and order.
    `files`: path below the results folder -> SHA-256 of its rows."""

    label: str
    axes: Axes
    model: str
    seed: int
    scale: str
    run_id: str
    files: dict[str, str] = field(default_factory=dict)
    weights: str | None = None

    @property
    def is_trained(self) -> bool:
        """True if rows of the line were measured on trained weights."""
        return not all(map(is_fresh, self.files))

    @property
    def training(self) -> str:
        """First digits of the weights' digest in the names of the line's rows; empty for the run's first training."""
        return max((training_in_name(Path(name)) for name in self.files), default="")

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


_LINES = TypeAdapter(list[Line])


def study_file(results_dir: Path, scale: str, stem: str) -> Path:
    return results_dir / scale / f"{stem}.json"


def read_lines(results_dir: Path, scale: str, stem: str) -> list[Line]:
    """Return the lines an artefact was drawn from; none if it never was. ValueError for a damaged file."""
    path = study_file(results_dir, scale, stem)
    if not path.is_file():
        return []
    values = read_sealed(path, REMEDY)
    if (values.get("stem"), values.get("scale")) != (stem, scale):
        raise ValueError(f"{path} does not belong here: it is {values.get('stem')} at {values.get('scale')}; {REMEDY}")
    try:
        return _LINES.validate_json(json.dumps(values.get("lines")))
    except ValidationError:
        raise ValueError(f"{path} is of another version: {REMEDY}") from None


def write_lines(results_dir: Path, scale: str, stem: str, lines: list[Line]) -> Path:
    """Write which rows an artefact is drawn from; the file is not touched if nothing changed."""
    path = study_file(results_dir, scale, stem)
    # Weights are left out if they are not recorded.
    as_json = [{name: value for name, value in asdict(line).items() if (name, value) != ("weights", None)} for line in lines]
    values = {"stem": stem, "scale": scale, "lines": as_json}
    try:
        unchanged = read_sealed(path, REMEDY) == values
    except ValueError:
        unchanged = False
    if not unchanged:
        write_sealed(path, values, compact=True)
    return path


Evaluation = tuple[Line, pd.DataFrame, Meta]


class NothingStored(ValueError):
    """Error for rows that a claim or a figure needs and that are not stored; those that are stored are sound."""


class Study:
    """An artefact's lines with their rows, for drawing and judging. Everything is read on first use."""

    def __init__(self, results_dir: Path, scale: str, stem: str):
        self.results_dir, self.scale, self.stem = results_dir, scale, stem
        self.folder = results_dir / scale
        """The folder of figures/ and tables/."""
        self.lines = read_lines(results_dir, scale, stem)
        if not self.lines:
            raise ValueError(f"{study_file(results_dir, scale, stem)}: nothing is stored for {stem}; run its experiment first")
        self.scales = list(dict.fromkeys(line.scale for line in self.lines))
        """The scales of the lines, in their order: an artefact may draw runs of other scales than its own."""
        self.seed_counts = dict(Counter(line.series for line in self.lines))
        self.num_seeds = max(self.seed_counts.values())
        """The largest number of seeds that one series has."""
        self._repeats = cache(partial(repeats_for, results_dir))

    @cached_property
    def _evaluations(self) -> list[Evaluation]:
        found = []
        for line in self.lines:
            for name, digest in line.files.items():
                path = self.results_dir / name
                rows, meta = read_evaluation(path, line.run_id)
                if meta["rows_sha256"] != digest:
                    raise ValueError(f"{path} holds other rows than {self.stem}.json was drawn from: {REMEDY}")
                found.append((line, rows, meta))
        self._check_trainings(found)
        return found

    def _check_trainings(self, found: list[Evaluation]) -> None:
        """Raise ValueError if a run's rows are of several trainings."""
        places: dict[str, set[str]] = defaultdict(set)
        digests: dict[str, set[str]] = defaultdict(set)
        for line, _, meta in found:
            if not is_fresh(meta["eval_id"]):
                digests[line.run_id] |= {weights for weights in (line.weights, meta.get("weights")) if weights}
                places[line.run_id] |= {training_in_name(Path(name)) for name in line.files if not is_fresh(name)}
        for run_id in places:
            if len(digests[run_id]) > 1 or len(places[run_id]) > 1:
                weights = ", ".join(sorted(digests[run_id])) or "not recorded"
                raise ValueError(
                    f"{self.stem} at {self.scale} mixes trainings of run {run_id} (weights {weights}). `python -m experiments "
                    f"run {self.stem} --scale {self.scale} --draw-these-trainings` draws each line from the training in its "
                    "run folder"
                )

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
            series, train_tokens = self._repeats(line.scale, kind), int(spec["train"]["train_tokens"])
            return noise_of(series, line.scale, family_of(spec["model"]), train_tokens, functional)

        names = {name: getattr(line, name) for name in ("label", "axes", "model", "scale")}
        sources_D = sources_of(self.results_dir, meta, documents)
        return {**names, "train_len": int(spec["train"]["seq_len"]), "noise": noise, "sources_D": sources_D}

    def stored(self, kind: str, what: str, **wanted: Any) -> pd.DataFrame:
        """Return `rows` in the paper's order of models. ValueError, which calls them `what`, if there are none."""
        self.evaluations(kind, what, **wanted)
        rows = self.rows(kind, **wanted)
        return rows.sort_values("model", key=lambda models: models.map(rank), kind="stable", ignore_index=True)

    def metas(self, kind: str) -> list[Meta]:
        """The metas of a kind of evaluation, one per line and file."""
        return [meta for _, _, meta in self.evaluations(kind)]

    @property
    def all_metas(self) -> list[Meta]:
        """The metas of all stored evaluations of the lines, drawn or not."""
        return [meta for _, _, meta in self._evaluations]

    @cached_property
    def runs(self) -> dict[str, dict[str, Any]]:
        """Records of the runs (results/SCALE/runs/ID.json) by id."""
        return {line.run_id: read_run(run_file(self.results_dir, line.scale, line.run_id)) for line in self.lines}

    def final_loss(self, line: Line) -> float | None:
        """Return the final loss of the training that a line is drawn from; None if it is not known."""
        return (self._training(line) or self.runs[line.run_id]).get("final_loss")

    def _training(self, line: Line) -> dict[str, Any] | None:
        """Return the training that a line is drawn from; None if its rows name no weights."""
        found = trainings_of(self.runs[line.run_id]) if line.weights else []
        return next((each for each in found if each["weights"] == line.weights), None)

    def is_adopted(self, line: Line) -> bool:
        """Return whether the weights of a line's run were trained elsewhere and adopted, so that their seed is not known."""
        return self.spec(line.run_id).get("weights") is not None

    def is_from_changed_code(self, line: Line) -> bool:
        """Return whether files differed from their commit when the training that a line is drawn from was started."""
        return any(start.get("git_dirty") for start in self.starts(line))

    def starts(self, line: Line) -> list[dict[str, Any]]:
        """Return the starts of the training that a line is drawn from, or of all trainings of its run if that is not known;
        none for fresh weights."""
        training = self._training(line)
        own = [each for each in self.runs[line.run_id]["starts"] if training is None or each["date"] in training["starts"]]
        return own if line.is_trained else []

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
