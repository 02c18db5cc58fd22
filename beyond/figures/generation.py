"""Beyond the papers: Speed and memory of generation.

Decoding speed (tokens per second) after held-out text, through Hugging Face's generate, by the length of the text, and memory
kept for one sequence. FoX is decoded in three ways: with its whole cache, skipping keys that its gates have forgotten (pruned),
and evicting such keys for good. Not in the paper, which only says that FoX needs no more than softmax attention."""

from itertools import product
from typing import Any

import pandas as pd

from analysis.names import DASHED, DOTTED, LineStyle, rank, style_of, title
from analysis.panels import doublings_axis
from analysis.study import Study
from analysis.style import WIDTH, Files, about, plt, publish, tokens
from analysis.tables import Column, Table
from beyond.eval.decoding.spec import CACHES, Spec
from experiments.recipes import lines
from experiments.scales import MINIS, PAPERS, TINIES, sizes_at
from results.provenance import commit_name

SIZES: dict[tuple[str, ...], dict[str, Any]] = {
    TINIES: dict(lengths=(256, 1024), batch_sizes=(1, 4), new_tokens=32),
    MINIS: dict(lengths=(4096, 16384), batch_sizes=(1, 16)),
    PAPERS: dict(lengths=(16384, 32768, 65536), batch_sizes=(1, 4)),
}
"""Lengths of the texts, and batch sizes."""
KIND = "decoding"
SOFTMAX = "A Transformer is decoded by FoX's kernel with open gates, whose sums its cache holds, too."
EVICTING = "Evicting is timed between two rebuilds of its lists of keys, which are not counted: its rate is an upper bound."
QUANTILES = "quantiles of 20% and 80% over the steps"
DASHES = {"whole": None, "pruned": DASHED, "evicting": DOTTED}
runs = lines("fox_pro", "transformer_pro", "mamba2", once=True)


def evals(scale):
    sizes = sizes_at(scale, SIZES, __name__)
    fits = tuple(length for length in sizes["lengths"] if length <= scale.document_len) or (scale.document_len,)
    return (Spec(**{**sizes, "lengths": fits}),)


def timed(study: Study) -> pd.DataFrame:
    """Return model, cache, seq_len, batch_size, tokens_per_s, prefill_tokens_per_s, mib of one sequence and commit, on the
    machine with the most rows, with models in the paper's order. ValueError if nothing is stored."""
    found = [
        own.assign(model=line.model, commit=commit_name(meta["provenance"]))
        for line, own, meta in study.evaluations(KIND, "times of generation")
    ]
    table = pd.concat(found, ignore_index=True)
    table = table[table["machine"] == table["machine"].mode().iloc[0]]
    table["mib"] = table["cache_bytes"] / table["batch_size"] / 2**20
    order = {"model": rank, "cache": CACHES.index, "seq_len": int, "batch_size": int}
    return table.sort_values(list(order), key=lambda column: column.map(order[column.name]), ignore_index=True)


def name_of(model: str, cache: str) -> str:
    """Name a line: the model, and its cache unless it is the whole one."""
    return title(model) if cache == "whole" else f"{title(model)}, {cache}"


def _style(model: str, cache: str) -> LineStyle:
    own = style_of(model, name_of(model, cache))
    return own if cache == "whole" else LineStyle(own.label, own.colour, DASHES[cache], own.marker)


def draw(study: Study) -> Files:
    table = timed(study)
    batches = sorted(table["batch_size"].unique())
    figure, panels = plt.subplots(1, len(batches) + 1, figsize=(WIDTH, 2.8))
    for axes, batch_size in zip(panels, (*batches, None), strict=True):
        of = table[table["batch_size"] == (batches[0] if batch_size is None else batch_size)]
        value = "mib" if batch_size is None else "tokens_per_s"
        for place, ((model, cache), own) in enumerate(of.groupby(["model", "cache"], sort=False)):
            style = _style(str(model), str(cache))
            axes.plot(own["seq_len"], own[value], **style.line, marker=style.marker, markersize=4, zorder=3 - place / 100)
        doublings_axis(axes, sorted(table["seq_len"].unique()))
        many = f"{batch_size} sequence{'s' if batch_size != 1 else ''} at a time (tokens/s)"
        axes.set(xlabel="text (tokens)", title="cache per sequence (MiB)" if batch_size is None else many)
        axes.set_ylim(0, 1.08 * of[value].max())
    figure.legend(*panels[0].get_legend_handles_labels(), loc="outside lower center", ncols=3)
    return publish(study, figure, table[["model", "cache", "seq_len", "batch_size", "tokens_per_s", "mib"]], *_notes(table))


def _notes(table: pd.DataFrame) -> tuple[str, ...]:
    more = tuple(each.removesuffix(".") for each in _limits(table))
    return (f"on {table['machine'].iloc[0]}, decoding through generate, one seed", *more)


def _limits(table: pd.DataFrame) -> list[str]:
    """Say what the times do not compare: models timed with the code of different commits, what evicting leaves out, and how
    softmax attention is decoded."""
    by_commit = table.groupby("commit", sort=False)["model"].unique()
    parts = [f"{', '.join(map(title, models))} ({commit})" for commit, models in by_commit.items()]
    apart = [f"Timed with different code: {'; '.join(parts)}. Compare within these."] if parts[1:] else []
    evicting = [EVICTING] if "evicting" in table["cache"].values else []
    return [*apart, *evicting, *([SOFTMAX] if any("transformer" in model for model in table["model"]) else [])]


def summary(study: Study) -> Table:
    table = timed(study)
    lengths, batches = sorted(table["seq_len"].unique()), sorted(table["batch_size"].unique())
    columns, rows, ranges = [], dict[str, list[float | None]](), {}
    for batch_size, length in product(batches, lengths):
        columns.append(Column(f"decode_{batch_size}_{length}", f"{tokens(length)} x {batch_size} (tokens/s)", 0))
    columns += [Column(f"kept_{length}", f"kept of {tokens(length)} (MiB)", 2) for length in lengths]
    for (model, cache), own in table.groupby(["model", "cache"], sort=False):
        cells: dict[Any, Any] = {(cell.batch_size, cell.seq_len): cell for cell in own.itertuples()}
        timings = [cells.get(key) for key in product(batches, lengths)]
        kept = [cells.get((batches[0], length)) for length in lengths]
        name = name_of(str(model), str(cache))
        rows[name] = [cell and cell.tokens_per_s for cell in timings] + [cell and cell.mib for cell in kept]
        ranges[name] = [cell and (cell.tokens_per_s_low, cell.tokens_per_s_high) for cell in timings] + [None] * len(kept)
    where = f"Decoding on {table['machine'].iloc[0]}, text x sequences at a time. One seed. In square brackets: {QUANTILES}."
    note = " ".join([about(study), where, *_limits(table)])
    return Table("Speed and memory of generation", columns, rows, note, ranges=ranges)
