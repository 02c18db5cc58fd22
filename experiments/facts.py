"""Facts of a results folder for the pages of prose, each computed from rows. Torch-free."""

import json
import math
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import replace
from datetime import datetime
from functools import cache
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

from analysis.curves import KIND, LossCurve, loss_curves
from analysis.seeds import family_of, scales_of
from analysis.study import Study, study_file
from analysis.style import place_of
from analysis.tables import to_markdown
from analysis.verdict import Claim, Status, Verdict, judge, not_measured
from experiments.acp.acp_speed import Timed, timed
from experiments.artefact import artefacts
from experiments.fox.table_lr_grid import best_of, by_rate
from experiments.scales import get_scale
from kernels.benchmark.rows import compared, drawn_place, times_here
from results.measured import FOLDER, read
from results.store import open_store
from training.hardware import DENSE_BF16_PEAK
from training.signals import EXIT_ERROR
from training.spec import RunSpec

MAIN = "fig2_per_token_loss"
OPEN_GATES = datetime.fromisoformat("2026-11-25T05:19:46+00:00")
"""Commit 942816dd: deterministic trainings of softmax attention use forgetting attention with open gates from then on."""


class Facts:
    """Rows, curves and verdicts of one results folder, each read when first used."""

    def __init__(self, results_dir: Path, studies: Iterable[Study] = ()):
        self.results_dir = results_dir
        self._studies = {(study.stem, study.scale): study for study in studies}
        self.claims = cache(self._claims)
        self.measured = cache(lambda kind: read(kind, results_dir / FOLDER.name))

    def other(self, folder: str) -> "Facts":
        """Return the facts of a results folder inside this one."""
        return Facts(self.results_dir / folder)

    def study(self, stem: str = MAIN, scale: str = "mini") -> Study:
        if (stem, scale) not in self._studies:
            self._studies[stem, scale] = Study(self.results_dir, scale, stem)
        return self._studies[stem, scale]

    def _claims(self, scale: str) -> dict[str, tuple[Claim, Verdict]]:
        """Return every claim with its verdict, by id."""
        found: list[tuple[Claim, Verdict]] = []
        nothing = not_measured("Nothing is stored for this artefact.")
        for stem, artefact in artefacts().items():
            there = study_file(self.results_dir, scale, stem).is_file()
            found += judge(artefact.claims, self.study(stem, scale)) if there else [(each, nothing) for each in artefact.claims]
        return {claim.id: (claim, verdict) for claim, verdict in found}

    def verdict(self, claim: str, scale: str = "mini") -> Verdict:
        return self.claims(scale)[claim][1]

    def by_status(self, scale: str = "mini") -> dict[str, list[str]]:
        """Ids of claims by verdict."""
        claims = self.claims(scale)
        return {status: [claim for claim in claims if claims[claim][1].status is status] for status in Status}

    def verdicts_apart(self, other: "Facts", scale: str = "mini") -> list[str]:
        """Ids of claims that both results folders measured, with different verdicts."""
        left = (Status.NOT_MEASURED, Status.NOT_APPLICABLE)
        pairs = {
            claim: (verdict.status, other.verdict(claim, scale).status) for claim, (_, verdict) in self.claims(scale).items()
        }
        return [claim for claim, pair in pairs.items() if pair[0] != pair[1] and not set(pair) & set(left)]

    def kept(self, name: str) -> dict[str, Any]:
        """Return the contents of a JSON file in the folder."""
        held: dict[str, Any] = json.loads((self.results_dir / name).read_text())
        return held

    def table(self, stem: str, scale: str = "mini") -> str:
        return to_markdown(artefacts()[stem].summary(self.study(stem, scale)))

    def findings(self, stem: str, scale: str = "mini") -> Sequence[str]:
        return artefacts()[stem].findings(self.study(stem, scale))

    def _records(self, size: str) -> list[dict[str, Any]]:
        """Return what is stored about each run of a size, with the starts of all its trainings."""
        stores = [open_store(self.results_dir, scale) for scale in scales_of(self.results_dir, size)]
        runs = [own for store in stores for own in store.runs.values()]
        return [own[0] | {"starts": [start for each in own for start in each["starts"]]} for own in runs]

    def spent(self, size: str, recall: bool | None = None) -> dict[str, Any]:
        """Totals over the runs of all scales of a size (on recall, on texts, or both): runs, those without a recorded start,
        starts with a recorded end, those that ended with an error, tokens and GPU-hours; fewest and most parameters; the most
        epochs of any run; and the number of starts on each GPU with each Triton, most first."""
        records = [each for each in self._records(size) if recall in (None, bool(each["spec"]["data"].get("recall")))]
        starts = [start for record in records for start in record["starts"] if start.get("end")]
        params = [start["params"] for start in starts]
        hours = sum(start.get("world_size", 1) * (start["end"].get("wall_s") or 0) for start in starts) / 3600
        read_most = max(start.get("epochs", 0.0) for start in starts)
        count = sum(start["end"].get("tokens") or 0 for start in starts)
        unstarted = sum(not record["starts"] for record in records)
        failed = sum(start["end"].get("exit_code") == EXIT_ERROR for start in starts)
        places = Counter(map(place_of, starts))
        how = {"runs": len(records), "unstarted": unstarted, "starts": len(starts), "failed": failed}
        sizes = {"fewest": min(params), "most": max(params)}
        spent = {"tokens": count, "hours": hours, "epochs": read_most, "places": dict(places.most_common())}
        return {**how, **spent, **sizes}

    def repeated(self, size: str) -> dict[str, int]:
        """Count the size's runs that were trained from the first step several times ("all"), those that always gave the "same"
        weights, of these the ones trained on several kinds of GPU ("anywhere"), and those of "one_place" that did not."""
        counts: Counter[str] = Counter({"all": 0, "same": 0, "anywhere": 0, "one_place": 0})
        for record in self._records(size):
            begun = [start for start in record["starts"] if not start.get("first_step")]
            whole = [start for start in begun if (start.get("end") or {}).get("weights")]
            same, moved = len({start["end"]["weights"] for start in whole}) == 1, len(set(map(place_of, whole))) > 1
            if len(whole) > 1:
                counts.update({"all": 1, "same": same, "anywhere": same and moved, "one_place": not same and not moved})
        return dict(counts)

    def with_softmax(self, scale: str) -> dict[str, list[int]]:
        """Seeds of the scale's runs with PyTorch's softmax attention, by model, as their starts are older than `OPEN_GATES`."""
        found: dict[str, list[int]] = {}
        for record, *_ in open_store(self.results_dir, scale).runs.values():
            spec, dates = record["spec"], [datetime.fromisoformat(start["date"]) for start in record["starts"]]
            if spec["model"].get("forget_gate") == "none" and min(dates) < OPEN_GATES:
                found.setdefault(record["name"], []).append(spec["seed"])
        return {model: sorted(found[model]) for model in sorted(found, reverse=True)}

    def size(self, scale: str) -> dict[str, float]:
        """Fewest and most parameters of the main models, median minutes of a drawn training, and the most epochs."""
        study = self.study(MAIN, scale)
        starts = [start for record in study.runs.values() for start in record["starts"]]
        params = [start["params"] for start in starts]
        minutes = median(map(minutes_of, drawn_starts(study).values()))
        epochs = max(start.get("epochs", 0.0) for start in starts)
        return {"fewest": min(params), "most": max(params), "minutes": minutes, "epochs": epochs}

    def _trained(self, scale: str) -> dict[str, Study]:
        """Studies of artefacts with trained lines, by the papers' names for them, or else by title."""
        there = [each for each in artefacts().values() if study_file(self.results_dir, scale, each.stem).is_file()]
        names = {each.stem: each.title if each.paper.startswith("Beyond") else each.paper for each in there}
        studies = {name: self.study(stem, scale) for stem, name in names.items()}
        return {name: study for name, study in studies.items() if any(line.is_trained for line in study.lines)}

    def seeds(self, scale: str = "mini") -> dict[str, list[str]]:
        """Names of artefacts by how many lines have several seeds: none ("one"), some, or all."""
        found: dict[str, list[str]] = {"one": [], "some": [], "all": []}
        for name, study in self._trained(scale).items():
            fewest, most = min(study.seed_counts.values()), max(study.seed_counts.values())
            found["one" if most == 1 else "some" if fewest == 1 else "all"].append(name)
        return found

    def gaps(self, seeds: int, scale: str = "mini") -> list[dict[str, Any]]:
        """Count what is missing of each artefact with repeated lines, if each of its lines is to have this many seeds: its
        `name`, lines by seed that are `wanted` and `missing`, and `bare` lines, without any."""
        found = []
        for name, study in self._trained(scale).items():
            stored = study.seed_counts
            declared = {recipe.series for recipe in artefacts()[study.stem].runs(get_scale(scale), (0,))} | stored.keys()
            short, wanted = sum(max(0, seeds - stored.get(each, 0)) for each in declared), seeds * len(declared)
            if short and study.num_seeds > 1:
                found.append({"name": name, "wanted": wanted, "missing": short, "bare": len(declared - stored.keys())})
        return sorted(found, key=lambda each: -each["missing"] / each["wanted"])

    def trainings(self, scale: str = "mini") -> dict[str, Any]:
        """Count the trainings that are drawn, those without a recorded digest of their weights, and those of uncommitted code;
        name the models of those that are not deterministic."""
        studies = self._trained(scale).values()
        lines = {line.run_id: (line, study.runs[line.run_id]) for study in studies for line in study.lines if line.is_trained}
        unnamed = sum(line.weights is None for line, _ in lines.values())
        changed = sum(any(start.get("git_dirty") for start in record["starts"]) for _, record in lines.values())
        free = (line.model for line, run in lines.values() if not all(start.get("deterministic") for start in run["starts"]))
        return {"all": len(lines), "unnamed": unnamed, "changed": changed, "varying": sorted(set(free))}

    def above_training(self, study: Study) -> dict[str, tuple[float, float]]:
        """Least and most excess of held-out over final training losses, for recurrent models and for others."""
        found: dict[str, list[float]] = {"recurrent": [], "others": []}
        for curve in loss_curves(study):
            trained = [study.final_loss(line) or math.nan for line in study.lines if line.run_id in curve.run_ids]
            is_recurrent = family_of(study.spec(curve.run_ids[0])["model"]) == "recurrent"
            held_out = float(curve.mean_N[: curve.train_len].mean())
            found["recurrent" if is_recurrent else "others"].append(held_out - float(np.mean(trained)))
        return {name: (min(gaps), max(gaps)) for name, gaps in found.items()}

    def at_half(self) -> dict[str, LossCurve]:
        """Curves of the models trained on half the tokens, each at its best peak learning rate."""
        return {model: rates[best_of(rates)] for model, rates in by_rate(self.study("table_lr_grid")).items()}

    def at_rate(self, model: str, rate: float) -> LossCurve:
        """Return a model's loss curve at another peak learning rate than the one that is drawn."""
        drawn, other = self.study(), Study(self.results_dir, "mini", MAIN)
        line = next(line for line in drawn.lines if line.model == model)
        spec = drawn.spec(line.run_id)
        wanted = {**spec, "train": {**spec["train"], "peak_lr": rate}, "seed": 0}
        other.lines = []
        for run_id, (record, *_) in sorted(open_store(self.results_dir, line.scale).runs.items()):
            if {**record["spec"], "seed": 0} == wanted:
                evals: dict[str, str | None] = {each: None for each in line.evals if each.startswith(KIND)}
                other.add(replace(line, seed=record["spec"]["seed"], run_id=run_id, evals=evals))
        (curve,) = loss_curves(other)
        return curve

    def mfu(self, each: Timed, skipped_share: float) -> tuple[float, float]:
        """MFU of a pruned training step, counting executed FLOPs only, and counting skipped ones, too."""
        study = self.study("acp_speed")
        line = next(line for line in study.lines if line.axes["context"] == each.context)
        model: Any = RunSpec.from_json(json.dumps(study.spec(line.run_id))).model
        peak = next(rate for gpu, rate in DENSE_BF16_PEAK.items() if gpu in timed(study)[0])
        rate = 3 * each.tokens / (each.times["step", 1][0] / 1000) / peak
        done = model.executed_flops_per_token(each.context, skipped_share)
        return rate * done, rate * model.flops_per_token(each.context)

    @property
    def place(self) -> tuple[str, str]:
        """GPU and Triton version of the plot of forgetting attention, to which sentences about its speed refer."""
        return drawn_place(compared(self.measured("forgetting_attention")))

    def speed(self, provider: str, operation: str, gates: str, narrowest: int = 0, triton: str = "") -> tuple[str, str]:
        """Least and most speed relative to cuDNN's softmax attention, over the shapes that were timed in 16 bits on the plot's
        GPU with the plot's version of Triton, or with `triton`."""
        rows, (gpu, drawn) = compared(self.measured("forgetting_attention")), self.place
        own = rows[(rows["provider"] == provider) & (rows["operation"] == operation) & (rows["gates"] == gates)]
        own = own[(own["head_dim"] >= narrowest) & (own["gpu"] == gpu) & (own["triton"] == (triton or drawn))]
        ratio = own["ratio"].dropna()
        return f"{ratio.min():.2f}", f"{ratio.max():.2f}"

    @property
    def kernel_times(self) -> str:
        """Table of forgetting attention's times, forward and backward, in the plot's place."""
        return times_here(self.measured("forgetting_attention"))


def drawn_starts(study: Study) -> dict[str, list[dict[str, Any]]]:
    """Return the starts of the trainings that the lines are drawn from, by run: of one that was repeated, the last time."""
    found = {}
    for line in study.lines:
        if starts := study.starts(line):
            begun = [index for index, start in enumerate(starts) if start.get("first_step") == 0]
            found[line.run_id] = starts[begun[-1] if begun else 0 :]
    return found


def minutes_of(starts: Iterable[dict[str, Any]]) -> float:
    """Sum of the minutes of these starts; a start without a recorded end counts as 0."""
    return sum((start.get("end") or {}).get("wall_s") or 0.0 for start in starts) / 60
