"""Losses of the same tokens given more and more context, as stored, and contrasts between them.

Suffixes: S seeds, D documents, P places of a document, C contexts.
"""

from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import pandas as pd

from analysis.names import ordered
from analysis.seeds import NOTHING, Repeated, Repeats, family_of, repeats_for
from analysis.sources import sources_of
from analysis.statistics import Estimate, Noise, Term, contrast
from analysis.study import Line, Study
from results.store import Meta

KIND = "context_use"


@dataclass(frozen=True, eq=False)
class ContextLosses:
    """Losses (nats per token) of one model. `losses_SDPC`: NaN where a context does not fit in front of a place. `contexts_C`:
    ascending. `targets`: tokens whose loss is taken. `sources_D`, `repeats`, `family`: as in analysis/curves.py."""

    model: str
    scale: str
    train_len: int
    targets: int
    losses_SDPC: np.ndarray
    contexts_C: np.ndarray
    sources_D: np.ndarray | None = None
    repeats: Repeats = NOTHING
    family: str = ""

    @property
    def num_seeds(self) -> int:
        return len(self.losses_SDPC)

    @property
    def inside(self) -> list[int]:
        """Contexts that lie within the training context together with the targets."""
        return [int(context) for context in self.contexts_C if context + self.targets <= self.train_len]

    def at(self, context: int) -> np.ndarray:
        """Losses (S, D, P) given a context."""
        return self.losses_SDPC[..., int(np.flatnonzero(self.contexts_C == context)[0])]

    def seed_noise(self, asked: list[tuple[float, int]]) -> Noise | None:
        """Return the noise between seeds of a sum of coefficient x mean loss given a context, read from what was repeated at
        the same contexts relative to the training context."""

        def functional(other: Repeated) -> np.ndarray | None:
            contexts = [context * other.train_len / self.train_len for _, context in asked]
            tables = _tables(other)
            if any(context not in table for table in tables for context in contexts):
                return None
            weights = [coefficient for coefficient, _ in asked]
            return np.array([table[contexts].dropna().to_numpy().mean(axis=0) @ weights for table in tables])

        return self.repeats.noise(self.scale, self.family, functional)


@lru_cache(maxsize=256)
def _tables(repeated: Repeated) -> list[pd.DataFrame]:
    return [_table(rows) for rows in repeated.rows]


def _table(rows: pd.DataFrame) -> pd.DataFrame:
    """Losses by (document, place) and context."""
    return rows.pivot_table(index=["document", "place"], columns="context", values="loss")


Part = tuple[float, ContextLosses, int]


def compare(*parts: Part) -> Estimate:
    """Sum of coefficient x mean loss given a context: (coefficient, losses, context) each, over the targets that all of these
    contexts fit in front of."""
    there_P = np.logical_and.reduce([np.isfinite(losses.at(context)).all(axis=(0, 1)) for _, losses, context in parts])
    terms: list[Term] = []
    asked: dict[ContextLosses, list[tuple[float, int]]] = {}
    for coefficient, losses, context in parts:
        loss_SD = losses.at(context)[..., there_P].mean(axis=2)
        loss_D = loss_SD.mean(axis=0)
        terms.append(Term(losses, coefficient, loss_SD.mean(axis=1), loss_D - loss_D.mean(), losses.sources_D))
        asked.setdefault(losses, []).append((coefficient, context))
    noises: dict[object, Noise | None] = {losses: losses.seed_noise(own) for losses, own in asked.items()}
    return contrast(terms, noises)


@lru_cache(maxsize=64)  # more than a scale has artefacts: `render` draws all, then reports on all
def context_losses(study: Study) -> dict[str, ContextLosses]:
    """Return the losses of an artefact that has one series per model, by model in the paper's order.

    ValueError: nothing is stored, or models or seeds were evaluated on other targets or contexts.
    """
    groups: dict[str, list[tuple[Line, pd.DataFrame, Meta]]] = {}
    for line, rows, meta in study.evaluations(KIND, "losses by context"):
        groups.setdefault(line.model, []).append((line, rows, meta))
    tables = {model: [_table(rows) for _, rows, _ in group] for model, group in groups.items()}
    first = next(iter(tables.values()))[0]
    if any(
        not (own.index.equals(first.index) and own.columns.equals(first.columns)) for each in tables.values() for own in each
    ):
        raise ValueError(f"{study.stem}: models or seeds were evaluated on other targets or contexts; evaluate all alike")
    return {model: _losses(study, groups[model], tables[model]) for model in ordered(groups)}


def _losses(study: Study, group: list[tuple[Line, pd.DataFrame, Meta]], tables: list[pd.DataFrame]) -> ContextLosses:
    line, _, meta = group[0]
    documents, places = (len(level) for level in tables[0].index.levels)  # type: ignore[attr-defined]
    return ContextLosses(
        model=line.model,
        scale=line.scale,
        train_len=study.train_len_of(line.run_id),
        targets=int(meta["spec"]["targets"]),
        losses_SDPC=np.stack([table.to_numpy().reshape(documents, places, -1) for table in tables]),
        contexts_C=tables[0].columns.to_numpy(),
        sources_D=sources_of(study.results_dir, meta, documents),
        repeats=repeats_for(study.results_dir, line.scale, KIND),
        family=family_of(study.spec(line.run_id)["model"]),
    )
