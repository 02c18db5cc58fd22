"""Beyond the papers: What stays in the cache.

The product of forget gates only falls along a text: once a head has forgotten a key, no later token can attend to it, and the
key can be evicted from the cache for good. Left: size of one sequence's cache (keys, values, gates) if every head evicts such
keys, compared with a Transformer and with a recurrent model. Right: keys that remain of a whole document, by head. The table
has the largest share of its probability that any query of a document loses, which is guaranteed to be less than e^-10, and
the change of the loss in nats. Not in the paper."""

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.collections import QuadMesh
from matplotlib.colors import LogNorm

from analysis.names import rank, style_of, title
from analysis.panels import legend_of, position_axis
from analysis.seeds import Measured
from analysis.statistics import Estimate, Term, contrast
from analysis.study import Evaluation, Study
from analysis.style import WIDTH, Files, about, plt, publish, tokens
from analysis.tables import Cell, Column, Table, count_range, over_seeds
from beyond.eval.cache_eviction.spec import Spec
from experiments.recipes import lines, model_spec
from experiments.scales import MINIS, PAPERS, TINIES, get_scale, sizes_at

SIZES = {TINIES: 64, MINIS: 8, PAPERS: 4}
"""Numbers of documents."""
KIND = "cache_eviction"
BESIDE = "mamba2"
STATE_BYTES = 4
"""Recurrent states are kept in fp32."""
LEAST = 1e-16
"""Smaller shares of probability, below the precision of fp64, count as this."""
runs = lines("fox_pro", "fox_llama")


def evals(scale):
    documents = min(sizes_at(scale, SIZES, __name__), scale.heldout_documents)
    return (Spec(context_len=scale.document_len, num_documents=documents),)


@dataclass(frozen=True, eq=False, kw_only=True)
class Remaining(Measured):
    """Rows of one model. `bytes_SDP`: size of the remaining cache at `positions`, for every seed and document; `whole_P`: size
    of the cache of a Transformer of the same shape. `heads`, by layer and head: `kept`, the mean share of a whole document's
    keys that remain, and `dropped`, the largest share of its probability that a query loses. `losses_SD`: by quantity."""

    positions: np.ndarray
    bytes_SDP: np.ndarray
    whole_P: np.ndarray
    heads: pd.DataFrame
    losses_SD: dict[str, np.ndarray]
    log_tolerance: float
    ahead: bool
    """True if the bound needs future tokens, as it does without QK-norm: a cache that decodes cannot know them."""

    @property
    def share(self) -> Estimate:
        """Size of the remaining cache after a whole document, in percent of the Transformer's."""
        return self._mean(100.0, self.bytes_SDP[..., -1] / self.whole_P[-1], _share)

    @property
    def change(self) -> Estimate:
        """Loss with the remaining keys minus loss with all keys, in nats."""
        return self._mean(1.0, self.losses_SD["loss_evicted"] - self.losses_SD["loss"], _change)

    def _mean(self, factor: float, values_SD: np.ndarray, of_rows: Callable[[pd.DataFrame], float]) -> Estimate:
        noise = self.noise(lambda other: np.array([factor * of_rows(rows) for rows in other.rows]))
        return contrast([Term.of(self, factor, values_SD, self.sources_D)], {self: noise})


def _share(rows: pd.DataFrame) -> float:
    """Return the size of the remaining cache after a whole document, as a share of that of all keys; mean over documents."""
    whole = rows[rows["position"] == rows["position"].max()]
    return _mean_of(whole, "bytes") / _mean_of(whole, "bytes_of_all")


def _change(rows: pd.DataFrame) -> float:
    return _mean_of(rows, "loss_evicted") - _mean_of(rows, "loss")


def _mean_of(rows: pd.DataFrame, quantity: str) -> float:
    return float(rows.loc[rows["quantity"] == quantity, "value"].mean())


def remaining(study: Study) -> dict[str, Remaining]:
    """Return the rows by model, in the paper's order. ValueError if nothing is stored."""
    groups = study.by_series(KIND, "evaluations of cache eviction")
    return {group[0][0].model: _remaining(study, group) for group in sorted(groups, key=lambda group: rank(group[0][0].model))}


def _remaining(study: Study, seeds: list[Evaluation]) -> Remaining:
    line, first, meta = seeds[0]

    def by(columns: str, quantity: str) -> np.ndarray:
        """Return the values of a quantity for every seed and document, by a column."""
        own = (rows[rows["quantity"] == quantity] for _, rows, _ in seeds)
        return np.stack([rows.pivot(index="document", columns=columns, values="value").to_numpy() for rows in own])

    whole = first[first["quantity"] == "bytes_of_all"].sort_values("position")
    positions = whole["position"].to_numpy()
    every = pd.concat([rows for _, rows, _ in seeds])
    every = every[every["position"].isin((-1, positions[-1]))]
    by_head = {name: every[every["quantity"] == name].groupby(["layer", "head"])["value"] for name in ("keys", "dropped")}
    sizes_SDP = by("position", "bytes")
    return Remaining(
        **study.measured(line, meta, sizes_SDP.shape[1]),
        positions=positions,
        bytes_SDP=sizes_SDP,
        whole_P=whole["value"].to_numpy(),
        heads=pd.DataFrame({"kept": by_head["keys"].mean() / positions[-1], "dropped": by_head["dropped"].max()}),
        losses_SD={name: by("quantity", name)[..., 0] for name in ("loss", "loss_evicted")},
        log_tolerance=float(meta["spec"]["log_tolerance"]),
        ahead=not getattr(model_spec(line.model, get_scale(study.scale), vocab_size=1), "qk_norm", False),
    )


def name_of(each: Remaining) -> str:
    """Name a model, and say if its bound knows the whole text beforehand."""
    return f"{title(each.model)}, text known" if each.ahead else title(each.model)


def state_bytes(each: Remaining) -> int:
    """Return the size in bytes of a recurrent model's state at the same scale; it does not grow with the text."""
    return STATE_BYTES * model_spec(BESIDE, get_scale(each.scale), vocab_size=1).state_size(int(each.positions[-1]))


def draw(study: Study) -> Files:
    found = remaining(study)
    first = next(iter(found.values()))
    names = "AB"[: len(found)]
    figure, panels = plt.subplot_mosaic([["left", *names]], figsize=(WIDTH, 3), width_ratios=(1.7, *(1 for _ in names)))
    _caches(panels["left"], found)
    least = 10 ** math.floor(math.log10(100 * min(each.heads["kept"].min() for each in found.values())))
    for name, each in zip(names, found.values(), strict=True):
        mesh = _heads(panels[name], each, LogNorm(least, 100))
    panels["A"].set_ylabel("heads of a layer, sorted")
    bar = figure.colorbar(mesh, ax=[panels[name] for name in names], aspect=14, pad=0.02, format="{x:g}")
    bar.set_label("keys that remain (%)")
    whole = style_of("transformer_pro", "Transformer (all keys)")
    evicting = [style_of(model, f"{name_of(each)}: {each.share.effect:.1f}%") for model, each in found.items()]
    legend_of(figure, [whole, *evicting, style_of(BESIDE)])
    counts = [len(each.bytes_SDP) for each in found.values()]
    known = "text known in advance: the bound covers future tokens, which no cache knows while decoding"
    notes = (
        f"{first.bytes_SDP.shape[1]} held-out documents of {tokens(first.positions[-1])} tokens, "
        + count_range(counts, "seeds" if max(counts) > 1 else "seed"),
        "left: mean, shaded: 80% of the documents, dashed vertical: training length",
        *([known] if any(each.ahead for each in found.values()) else []),
    )
    return publish(study, figure, pd.concat([_points(each) for each in found.values()], ignore_index=True), *notes)


def _points(each: Remaining) -> pd.DataFrame:
    """Return the size of the cache along the text, and what each head keeps and drops of a whole document."""
    low, high = np.quantile(each.bytes_SDP.mean(axis=0), (0.1, 0.9), axis=0)
    along = dict(position=each.positions, bytes=each.bytes_SDP.mean(axis=(0, 1)), low=low, high=high, of_all=each.whole_P)
    return pd.concat([pd.DataFrame(along), each.heads.reset_index()]).assign(model=each.model)


def _caches(axes: Axes, found: dict[str, Remaining]) -> None:
    """Draw sizes along the text: a Transformer's cache, the remaining cache, a recurrent state."""
    first = next(iter(found.values()))
    longest, top = int(first.positions[-1]), first.whole_P[-1]
    unit, size = ("GiB", 2**30) if top >= 2**30 else ("MiB", 2**20)
    axes.plot([0, longest], [0, top / size], **style_of("transformer_pro").line)
    axes.plot([0, longest], [state_bytes(first) / size] * 2, **style_of(BESIDE).line)
    for model, each in found.items():
        style, points = style_of(model), _points(each).dropna(subset="position")
        x, own = np.append(0, points["position"]), points[["bytes", "low", "high"]] / size
        axes.plot(x, np.append(0, own["bytes"]), **style.line, zorder=3)
        axes.fill_between(x, np.append(0, own["low"]), np.append(0, own["high"]), color=style.colour, alpha=0.2, linewidth=0)
    position_axis(axes, first.train_len, longest, pieces=4, xlabel="tokens read", ylabel=f"cache of one sequence ({unit})")
    axes.set(ylim=(0, 1.04 * top / size), title="memory to continue decoding")


def _heads(axes: Axes, each: Remaining, norm: LogNorm) -> QuadMesh:
    """Draw the share of keys that each head keeps, in one column per layer, with the most forgetful head at the bottom."""
    kept_LH = np.sort(each.heads["kept"].unstack().to_numpy(), axis=1)
    layers = len(kept_LH)
    axes.grid(False)
    axes.set(xticks=np.arange(0, layers, -(-layers // 6)) + 0.5, yticks=[], xlabel="layer", title=title(each.model))
    axes.set_xticklabels([str(int(at + 0.5)) for at in axes.get_xticks()])
    return axes.pcolormesh(100 * kept_LH.T, cmap="YlOrBr", norm=norm, edgecolors="white", linewidth=0.4)


def summary(study: Study) -> Table:
    """Tabulate the size of the remaining cache after a whole document, and the change of the loss, with 95% intervals."""
    found = remaining(study)
    first = next(iter(found.values()))
    columns = [
        Column("bytes", "remains (MiB)", 2),
        Column("share", "of the Transformer's (%)", 1),
        Column("loss", "loss (nats)", 4),
        Column("change", "change of the loss", 7, style="signed"),
        Column("log_dropped", "log of the most that a query loses", 1),
    ]
    values: dict[str, list[Cell]] = {}
    for model, each in found.items():
        values[model] = [float(each.bytes_SDP[..., -1].mean()) / 2**20, each.share, each.losses_SD["loss"].mean(axis=1),
                         each.change, float(np.log(max(each.heads["dropped"].max(), LEAST)))]  # fmt: skip
    note = (
        f"{about(study)} After {tokens(first.positions[-1])} tokens, for which a Transformer of the same shape keeps "
        f"{first.whole_P[-1] / 2**20:.2f} MiB. Guaranteed: a query loses less than e^{first.log_tolerance:g} of "
        "its probability; measured on all queries of one document. In square brackets: 95% intervals over "
        "documents by source and seeds (of fewer than three pooled over repeated trainings)."
    )
    if told := [title(model) for model, each in found.items() if each.ahead]:
        note += (
            f" {', '.join(told)} knows the whole text: without QK-norm the bound needs the norms of all queries and keys, also "
            "of future tokens, which a cache cannot know while it decodes."
        )
    return over_seeds("Cache of a FoX that evicts keys which no later token sees", columns, values, note)
