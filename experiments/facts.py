"""Numbers and verdicts of one results folder, as pages of prose ask for them. Torch-free."""

import json
from collections.abc import Iterable
from dataclasses import replace
from functools import cache
from pathlib import Path
from statistics import median
from typing import Any

import pandas as pd

from analysis.curves import KIND, LossCurve, loss_curves
from analysis.seeds import size_of
from analysis.study import Study, study_file
from analysis.tables import to_markdown
from analysis.verdict import Claim, Status, Verdict, judge, not_measured
from experiments.acp.acp_speed import Timed, timed
from experiments.artefact import PAPERS, artefacts
from experiments.fox.table_lr_grid import best_of, by_rate
from kernels.benchmark.rows import compared
from results.measured import FOLDER, read
from results.store import read_evaluation, read_run
from training.hardware import DENSE_BF16_PEAK
from training.spec import RunSpec

MAIN = "fig2_per_token_loss"


class Facts:
    """Rows, curves and verdicts of one results folder, each read when first asked for."""

    def __init__(self, results_dir: Path, studies: Iterable[Study] = ()):
        self.results_dir = results_dir
        self._studies = {(study.stem, study.scale): study for study in studies}
        self.claims = cache(self._claims)
        self.measured = cache(lambda kind: read(kind, results_dir / FOLDER.name))

    def study(self, stem: str = MAIN, scale: str = "mini") -> Study:
        if (stem, scale) not in self._studies:
            self._studies[stem, scale] = Study(self.results_dir, scale, stem)
        return self._studies[stem, scale]

    def _claims(self, scale: str) -> dict[str, tuple[Claim, Verdict]]:
        """Every claim with its verdict, artefact by artefact."""
        found: list[tuple[Claim, Verdict]] = []
        for stem, artefact in artefacts().items():
            if study_file(self.results_dir, scale, stem).is_file():
                found += judge(artefact.claims, self.study(stem, scale))
            else:
                found += [(claim, not_measured("Nothing is stored for this artefact.")) for claim in artefact.claims]
        return {claim.id: (claim, verdict) for claim, verdict in found}

    def verdict(self, claim: str, scale: str = "mini") -> Verdict:
        return self.claims(scale)[claim][1]

    def by_status(self, scale: str = "mini") -> dict[str, list[str]]:
        """Claims by verdict."""
        every = {claim: verdict.status for claim, (_, verdict) in self.claims(scale).items()}
        return {status: [claim for claim in every if every[claim] is status] for status in Status}

    def table(self, stem: str, scale: str = "mini") -> str:
        return to_markdown(artefacts()[stem].summary(self.study(stem, scale)))

    def spent(self, size: str) -> dict[str, float]:
        """Runs of all scales of a size, and their tokens and GPU-hours."""
        folders = [each for each in self.results_dir.iterdir() if size_of(each.name) == size]
        records = [read_run(path) for folder in folders for path in (folder / "runs").glob("*.json")]
        starts = [start for record in records for start in record["starts"] if start.get("end")]
        hours = sum(start.get("world_size", 1) * (start["end"].get("wall_s") or 0) for start in starts) / 3600
        return {"runs": len(records), "tokens": sum(start["end"].get("tokens") or 0 for start in starts), "hours": hours}

    def size(self, scale: str) -> dict[str, float]:
        """Parameters of the main models from fewest to most, median minutes of a training, and how often it read the text."""
        records = self.study(MAIN, scale).runs.values()
        params = [start["params"] for record in records for start in record["starts"]]
        walls = [(start.get("end") or {}).get("wall_s") or 0 for record in records for start in record["starts"]]
        epochs = [start.get("epochs", 0.0) for record in records for start in record["starts"]]
        return {"fewest": min(params), "most": max(params), "minutes": median(walls) / 60, "epochs": max(epochs)}

    def _trained(self, scale: str) -> dict[str, Study]:
        """Artefacts with trained lines, by what the papers call them."""
        there = [each for each in artefacts().values() if study_file(self.results_dir, scale, each.stem).is_file()]
        studies = {each.paper if each.folder in PAPERS else each.title: self.study(each.stem, scale) for each in there}
        return {name: study for name, study in studies.items() if any(line.is_trained for line in study.lines)}

    def seeds(self, scale: str = "mini") -> dict[str, list[str]]:
        """Artefacts of which each line has one seed, some have more, or all have."""
        found: dict[str, list[str]] = {"one": [], "some": [], "all": []}
        for name, study in self._trained(scale).items():
            fewest, most = min(study.seed_counts.values()), max(study.seed_counts.values())
            found["one" if most == 1 else "some" if fewest == 1 else "all"].append(name)
        return found

    def trainings(self, scale: str = "mini") -> dict[str, int]:
        """Count the trainings that are drawn, those whose weights nobody took down, and those of code that no commit has."""
        studies = self._trained(scale).values()
        lines = {line.run_id: (line, study.runs[line.run_id]) for study in studies for line in study.lines if line.is_trained}
        return {
            "all": len(lines),
            "unnamed": sum(line.weights is None for line, _ in lines.values()),
            "changed": sum(any(start.get("git_dirty") for start in record["starts"]) for _, record in lines.values()),
        }

    def at_half(self) -> dict[str, LossCurve]:
        """Models of half the training tokens, each at its best peak learning rate."""
        return {model: rates[best_of(rates)] for model, rates in by_rate(self.study("table_lr_grid")).items()}

    def at_rate(self, model: str, rate: float) -> LossCurve:
        """Losses of trainings at another peak learning rate than the one that is drawn."""
        drawn, other = self.study(), Study(self.results_dir, "mini", MAIN)
        line = next(line for line in drawn.lines if line.model == model)
        spec = drawn.spec(line.run_id)
        wanted: dict[str, Any] = {**spec, "train": {**spec["train"], "peak_lr": rate}}
        other.lines = []
        for path in sorted((self.results_dir / line.scale / "runs").glob("*.json")):
            record = read_run(path)
            if {**record["spec"], "seed": 0} == {**wanted, "seed": 0}:
                files = [name.replace(line.run_id, path.stem) for name in line.files if f"/{KIND}/" in name]
                own = {name: read_evaluation(self.results_dir / name, path.stem)[1]["rows_sha256"] for name in files}
                other.lines.append(replace(line, seed=record["spec"]["seed"], run_id=path.stem, files=own))
        (curve,) = loss_curves(other)
        return curve

    def mfu(self, each: Timed, skipped_share: float) -> tuple[float, float]:
        """Share of the GPU's peak at which a pruned step runs: FLOPs that are executed, and with skipped ones counted."""
        study = self.study("acp_speed")
        line = next(line for line in study.lines if line.axes["context"] == each.context)
        model: Any = RunSpec.from_json(json.dumps(study.spec(line.run_id))).model
        peak = next(rate for gpu, rate in DENSE_BF16_PEAK.items() if gpu in timed(study)[0])
        rate = 3 * each.tokens / (each.times["step", 1][0] / 1000) / peak
        done = model.executed_flops_per_token(each.context, skipped_share)
        return rate * done, rate * model.flops_per_token(each.context)

    def speed(self, provider: str, operation: str, gates: str, narrowest: int = 0) -> tuple[str, str]:
        """Least and most times as fast as cuDNN's softmax attention, over the shapes that were timed in 16 bits."""
        rows = compared(self.measured("forgetting_attention"))
        own = rows[(rows["provider"] == provider) & (rows["operation"] == operation) & (rows["gates"] == gates)]
        ratio = own[own["head_dim"] >= narrowest]["ratio"].dropna()
        return f"{ratio.min():.2f}", f"{ratio.max():.2f}"

    def errors(self, quantity: str) -> pd.Series:
        """Our largest error over that of flash-linear-attention, by regime."""
        same = ["gpu", "provider", "head_dim", "logit", "gates"]
        newest = self.measured("errors_by_regime").drop_duplicates(same, keep="last")
        by_provider = newest.pivot_table(index=["head_dim", "logit", "gates"], columns="provider", values=quantity)
        return by_provider["ours, deterministic"] / by_provider["fla"]
