"""Per-token losses and contrasts between them: curves L(i) over positions, with documents' losses by band, from which their
noise follows, and losses of the same tokens given more and more context.

Suffixes: S seeds, N positions, D documents, K bands of a document, P places of a document, C contexts."""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache

import numpy as np
import pandas as pd

from analysis.names import ordered, rank
from analysis.seeds import Measured, Repeated
from analysis.statistics import Estimate, Noise, Term, contrast
from analysis.study import Evaluation, Study

KIND = "per_token_loss"


@dataclass(frozen=True, eq=False, kw_only=True)
class LossCurve(Measured):
    """Held-out losses (nats) of one series. `losses_SN`: L(i), i = 1..N at index i - 1, for every seed; `bands_DK`: mean over
    seeds of every document's mean loss over K bands of positions, which end at `ends_K` (D = 0 if not stored)."""

    seeds: tuple[int, ...]
    run_ids: tuple[str, ...]
    losses_SN: np.ndarray
    bands_DK: np.ndarray
    ends_K: np.ndarray
    num_documents: int

    @cached_property
    def mean_N(self) -> np.ndarray:
        """L(i), mean over seeds."""
        return self.losses_SN.mean(axis=0)

    @property
    def inside(self) -> float:
        """Mean loss within the training context, over all seeds."""
        return float(self.mean_N[: self.train_len].mean())

    def log_p(self, length: int) -> np.ndarray:
        """log P(length) of every seed."""
        return log_perplexity(self.losses_SN)[:, length - 1]

    @property
    def length(self) -> int:
        """Length of the evaluation in tokens."""
        return self.losses_SN.shape[1]

    def whole(self, first: int, last: int) -> tuple[int, int]:
        """Return positions first..last (1-based, inclusive), or, if they are fewer than a stored band has, the whole bands that
        contain them: the variation between documents is known only by band."""
        if len(self.bands_DK) < 2 or last - first + 1 >= self.ends_K[0]:
            return first, last
        starts = np.append(0, self.ends_K[:-1])
        return int(starts[starts < first].max()) + 1, int(self.ends_K[self.ends_K >= last].min())

    def term(self, coefficient: float, first: int, last: int) -> Term:
        """Return coefficient x mean of L over positions first..last, with the documents' influence in the bands it overlaps."""
        seeds = self.losses_SN[:, first - 1 : last].mean(axis=1)
        if len(self.bands_DK) < 2:
            return Term(self, coefficient, seeds, np.empty(0))
        inside_K = np.clip(np.minimum(self.ends_K, last) - np.maximum(np.append(0, self.ends_K[:-1]), first - 1), 0, None)
        used = inside_K > 0
        weights = inside_K[used] / (last - first + 1)
        influence = (self.bands_DK[:, used] - self.bands_DK[:, used].mean(axis=0)) @ weights
        return Term(self, coefficient, seeds, influence, self.sources_D)

    def seed_noise(self, stretches: list[tuple[float, int, int]]) -> Noise | None:
        """Return the noise between seeds of a sum of coefficient x mean of L over first..last, estimated on repeated series at
        the same positions relative to their training context."""

        def functional(other: Repeated) -> np.ndarray | None:
            losses_SN, share = _losses_SN(other), other.train_len / self.train_len
            places = [(k, round((first - 1) * share), max(1, round(last * share))) for k, first, last in stretches]
            if any(low >= high or high > losses_SN.shape[1] for _, low, high in places):
                return None
            return np.sum([k * losses_SN[:, low:high].mean(axis=1) for k, low, high in places], axis=0)

        return self.noise(functional)


@lru_cache(maxsize=256)
def _losses_SN(repeated: Repeated) -> np.ndarray:
    wholes = [rows[rows["document"] < 0].sort_values("position")["loss"].to_numpy() for rows in repeated.rows]
    return np.stack([whole[: min(map(len, wholes))] for whole in wholes])


def compare(*stretches: tuple[float, LossCurve, int, int]) -> Estimate:
    """Return the sum of coefficient x mean loss over positions first..last, for every (coefficient, curve, first, last).
    Stretches shorter than a band are widened (`LossCurve.whole`)."""
    terms: list[Term] = []
    of_curve: dict[LossCurve, list[tuple[float, int, int]]] = defaultdict(list)
    for coefficient, curve, *ends in stretches:
        first, last = curve.whole(*ends)
        terms.append(curve.term(coefficient, first, last))
        of_curve[curve].append((coefficient, first, last))
    return contrast(terms, {curve: curve.seed_noise(own) for curve, own in of_curve.items()})


def difference(one: LossCurve, other: LossCurve, first: int = 1, last: int | None = None) -> Estimate:
    """Return the mean loss of `one` minus that of `other` over positions first..last (None: the training context's last)."""
    return compare((1.0, one, first, last or one.train_len), (-1.0, other, first, last or other.train_len))


@lru_cache(maxsize=64)  # more than a scale has artefacts: `render` draws all, then reports on all
def loss_curves(study: Study) -> tuple[LossCurve, ...]:
    """Return the curves of an artefact, one per series, in the order of its lines. ValueError if positions are missing, or
    seeds were evaluated differently."""
    return tuple(_curve(study, group) for group in study.by_series(KIND))


def stored_curves(study: Study) -> tuple[LossCurve, ...]:
    """Return `loss_curves`. ValueError if there are none."""
    curves = loss_curves(study)
    if not curves:
        raise study.nothing("per-token losses")
    return curves


def _curve(study: Study, group: list[Evaluation]) -> LossCurve:
    line, _, meta = group[0]
    losses, bands, ends, counts = zip(*(_split(rows, line.label) for _, rows, _ in group), strict=True)
    if len({(len(each), own.shape, count) for each, own, count in zip(losses, bands, counts, strict=True)}) != 1:
        raise ValueError(f"{study.stem}: the seeds of {line.label} were evaluated on different lengths or documents")
    return LossCurve(
        **study.measured(line, meta, len(bands[0])),
        seeds=tuple(each.seed for each, _, _ in group),
        run_ids=tuple(each.run_id for each, _, _ in group),
        losses_SN=np.stack(losses),
        bands_DK=np.mean(bands, axis=0),
        ends_K=ends[0],
        num_documents=counts[0],
    )


def _split(rows: pd.DataFrame, label: str) -> tuple[np.ndarray, np.ndarray, np.ndarray, int]:
    """Return L(i), the documents' bands (D, K), the bands' ends (K,) and the number of documents of one evaluation."""
    whole = rows[rows["document"] < 0].sort_values("position")
    positions = whole["position"].to_numpy()
    if not len(positions) or (positions != np.arange(1, len(positions) + 1)).any():
        raise ValueError(f"{label}: per-token losses have gaps; every position from 1 on is needed")
    bands = rows[rows["document"] >= 0].sort_values(["document", "position"])
    ends = np.unique(bands["position"])
    documents = len(bands) // max(1, len(ends))
    if not np.array_equal(bands["position"], np.tile(ends, documents)):
        raise ValueError(f"{label}: the documents' losses have gaps; every band of every document is needed")
    bands_DK = bands["loss"].to_numpy().reshape(documents, len(ends))
    return whole["loss"].to_numpy(), bands_DK, ends, int(whole["num_documents"].iloc[0])


def by_model(study: Study) -> dict[str, LossCurve]:
    """Return the curves of an artefact that has one series per model, by model. ValueError for curves of several lengths."""
    curves = {curve.model: curve for curve in loss_curves(study)}
    lengths = {model: curve.length for model, curve in curves.items()}
    if len(set(lengths.values())) > 1:
        raise ValueError(f"{study.stem}: per-token losses have several lengths: {lengths}; evaluate all models at one length")
    return curves


def in_order(study: Study) -> dict[str, LossCurve]:
    """Return `by_model`, in the paper's order. ValueError if there are none."""
    stored_curves(study)
    found = by_model(study)
    return {model: found[model] for model in ordered(found)}


def smooth(values: np.ndarray, window: int) -> np.ndarray:
    """Centred moving average over `window` (odd) positions, truncated at both ends (section 4); NaN if it has a value that is
    not finite."""
    if window < 1 or window % 2 == 0:
        raise ValueError(f"window {window} must be odd and positive")
    finite = np.isfinite(values)
    sums = np.concatenate([[0.0], np.cumsum(np.where(finite, values, 0.0), dtype=np.float64)])
    broken = np.concatenate([[0], np.cumsum(~finite)])
    centre = np.arange(len(values))
    low = np.maximum(centre - window // 2, 0)
    high = np.minimum(centre + window // 2 + 1, len(values))
    return np.where(broken[high] > broken[low], np.nan, (sums[high] - sums[low]) / (high - low))


def log_perplexity(losses: np.ndarray) -> np.ndarray:
    """log P(l), the mean of L(1..l), at index l - 1 (section 4), along the last axis."""
    return np.cumsum(losses, axis=-1, dtype=np.float64) / np.arange(1, losses.shape[-1] + 1)


def perplexity(losses: np.ndarray) -> np.ndarray:
    with np.errstate(over="ignore"):
        return np.exp(log_perplexity(losses))


def smoothing_window(train_len: int, of_paper: int = 101) -> int:
    """Return the paper's window (101 tokens; 1001 in Figure 7), or less for a short training context: an eighth of it (101), or
    in proportion to the paper's 16,384 tokens (1001), rounded up to an odd number."""
    share = train_len // 8 if of_paper == 101 else train_len * of_paper // 16_384
    return min(of_paper, share | 1)


def first_plotted(train_len: int) -> int:
    """Return the first drawn position: 128 as in the paper, or a sixteenth of a training context below 2,048 tokens."""
    return max(1, min(128, train_len // 16))


@dataclass(frozen=True, eq=False, kw_only=True)
class ContextLosses(Measured):
    """Losses (nats per token) of one model. `losses_SDPC`: NaN if a context does not fit before a place. `contexts_C`:
    ascending. `targets`: number of tokens whose loss is averaged."""

    targets: int
    losses_SDPC: np.ndarray
    contexts_C: np.ndarray

    @property
    def inside(self) -> list[int]:
        """Contexts that, together with the targets, fit into the training context."""
        return [int(context) for context in self.contexts_C if context + self.targets <= self.train_len]

    @property
    def everywhere(self) -> int:
        """Longest context that fits before every place; 0 if none does."""
        return max((int(context) for context in self.contexts_C if self.fits_P(context).all()), default=0)

    def fits_P(self, context: int) -> np.ndarray:
        """Return for every place whether a context fits before it."""
        return np.isfinite(self.at(context)).all(axis=(0, 1))

    def at(self, context: int) -> np.ndarray:
        """Losses (S, D, P) given a context."""
        return self.losses_SDPC[..., int(np.flatnonzero(self.contexts_C == context)[0])]

    def seed_noise(self, *sums: list[tuple[float, int]]) -> Noise | None:
        """Return the noise between seeds of the total of sums of coefficient x mean loss given a context, estimated on repeated
        series at the same contexts relative to their training context."""

        def functional(other: Repeated) -> np.ndarray | None:
            tables, taken = _tables(other), []
            for asked in sums:
                contexts = [context * other.train_len / self.train_len for _, context in asked]
                if any(context not in table for table in tables for context in contexts):
                    return None
                weights = [coefficient for coefficient, _ in asked]
                taken.append([table[contexts].dropna().to_numpy().mean(axis=0) @ weights for table in tables])
            return np.sum(taken, axis=0)

        return self.noise(functional)


@lru_cache(maxsize=256)
def _tables(repeated: Repeated) -> list[pd.DataFrame]:
    return [_table(rows) for rows in repeated.rows]


def _table(rows: pd.DataFrame) -> pd.DataFrame:
    """Losses by (document, place) and context."""
    return rows.pivot_table(index=["document", "place"], columns="context", values="loss")


Given = tuple[float, ContextLosses, int]
"""(coefficient, losses, context): coefficient x mean of the losses given this context."""


def compare_contexts(*parts: Given) -> Estimate:
    """Return the sum of coefficient x mean loss given a context, over the places before which all of these contexts fit."""
    return sum_contexts(parts)


def sum_contexts(*sums: Sequence[Given]) -> Estimate:
    """Return the total of several sums as in `compare_contexts`, each over the places before which its own contexts fit."""
    terms: list[Term] = []
    asked: dict[ContextLosses, list[list[tuple[float, int]]]] = defaultdict(list)
    for parts in sums:
        there_P = np.logical_and.reduce([losses.fits_P(context) for _, losses, context in parts])
        own: dict[ContextLosses, list[tuple[float, int]]] = defaultdict(list)
        for coefficient, losses, context in parts:
            loss_SD = losses.at(context)[..., there_P].mean(axis=2)
            terms.append(Term.of(losses, coefficient, loss_SD, losses.sources_D))
            own[losses].append((coefficient, context))
        for losses, each in own.items():
            asked[losses].append(each)
    return contrast(terms, {losses: losses.seed_noise(*own) for losses, own in asked.items()})


@lru_cache(maxsize=64)  # more than a scale has artefacts: `render` draws all, then reports on all
def context_losses(study: Study) -> dict[str, ContextLosses]:
    """Return the losses of an artefact that has one series per model, by model in the paper's order. ValueError if nothing is
    stored, or models or seeds were evaluated on different targets or contexts."""
    groups = sorted(study.by_series("context_use", "losses by context"), key=lambda group: rank(group[0][0].model))
    tables = [[_table(rows) for _, rows, _ in group] for group in groups]
    first = tables[0][0]
    if not all(own.index.equals(first.index) and own.columns.equals(first.columns) for each in tables for own in each):
        raise ValueError(f"{study.stem}: models or seeds were evaluated on different targets or contexts; evaluate all alike")
    documents, places = (len(level) for level in first.index.levels)  # type: ignore[attr-defined]
    return {
        line.model: ContextLosses(
            **study.measured(line, meta, documents),
            targets=int(meta["spec"]["targets"]),
            losses_SDPC=np.stack([table.to_numpy().reshape(documents, places, -1) for table in own]),
            contexts_C=first.columns.to_numpy(),
        )
        for ((line, _, meta), *_), own in zip(groups, tables, strict=True)
    }
