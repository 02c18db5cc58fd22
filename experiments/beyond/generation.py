"""Beyond the papers: Speed and memory of generation.

Tokens per second of reading a prompt and of decoding after it, and peak memory, by the prompt's length, with fresh weights. Not
in the paper: it says only that FoX needs no more than softmax attention."""

from dataclasses import replace
from itertools import product

import pandas as pd

from analysis.names import rank, style_of
from analysis.panels import doublings_axis
from analysis.study import Study
from analysis.style import WIDTH, Files, about, plt, publish, tokens
from analysis.tables import Column, Table
from eval.throughput.spec import Spec
from experiments.recipes import lines
from experiments.scales import MINIS, PAPERS, TINIES, sizes_at

SIZES = {TINIES: (256, 1024), MINIS: (4096, 16384), PAPERS: (16384, 32768, 65536)}
"""Lengths of the prompts."""
KIND = "throughput"
TITLES = {"prefill": "reading the prompt (tokens/s)", "decode": "decoding (tokens/s)", "memory": "peak memory (GiB)"}
runs = lines("fox_pro", "transformer_pro", "transformer_llama", "mamba2", "delta_net", once=True)


def evals(scale):
    """Prefill and decoding of fresh weights."""
    lengths = sizes_at(scale, SIZES, __name__)
    return tuple(Spec(mode="generate", seq_len=length, new_tokens=32, warmup=1, repeats=3) for length in lengths)


def timed(study: Study) -> tuple[pd.DataFrame, list[str]]:
    """model, seq_len, prefill, decode, memory of the machine that most was timed on; and which of these are known (memory is
    not on a CPU). ValueError if nothing is stored."""
    study.evaluations(KIND, "times of generation", mode="generate")
    specs = [meta["spec"] for meta in study.all_metas if meta["kind"] == KIND]
    rows = []
    for length in sorted({spec["seq_len"] for spec in specs if spec["mode"] == "generate"}):
        for line, own, meta in study.evaluations(KIND, mode="generate", seq_len=length):
            row = own.iloc[0]
            speeds = {"prefill": meta["extras"]["prefill_tokens_per_s"], "decode": row["tokens_per_s"]}
            memory = {"memory": row["peak_memory_gib"], "machine": row["machine"]}
            rows.append({"model": line.model, "seq_len": length, **speeds, **memory})
    table = pd.DataFrame(rows)
    table = table[table["machine"] == table["machine"].mode().iloc[0]].sort_values("seq_len")
    table = table.sort_values("model", key=lambda models: models.map(rank), kind="stable")
    return table, [name for name in TITLES if table[name].notna().any()]


def draw(study: Study) -> Files:
    table, shown = timed(study)
    figure, panels = plt.subplots(1, len(shown), figsize=(WIDTH, 2.6))
    for axes, name in zip(panels, shown, strict=True):
        unit = 1000 if table[name].max() > 10_000 else 1
        for place, (model, own) in enumerate(table.groupby("model", sort=False)):
            style = style_of(str(model))
            how = dict(**style.line, marker=style.marker, markersize=4, zorder=3 - place / 100)
            axes.plot(own["seq_len"], own[name] / unit, **how)
        doublings_axis(axes, sorted(table["seq_len"].unique()))
        axes.set(xlabel="prompt (tokens)", title=TITLES[name].replace("(", "(thousand " if unit > 1 else "("))
        axes.set_ylim(0, 1.08 * table[name].max() / unit)
    figure.legend(*panels[0].get_legend_handles_labels(), loc="outside lower center", ncols=3)
    note = f"on {table['machine'].iloc[0]}, fresh weights, one sequence"
    return publish(study, figure, table[["model", "seq_len", *shown]], note)


def summary(study: Study) -> Table:
    table, shown = timed(study)
    keys = list(product(sorted(table["seq_len"].unique()), shown))
    columns = [Column(f"{name}_{length}", f"{tokens(length)}: {TITLES[name]}", 0, "higher") for length, name in keys]
    columns = [replace(each, decimals=1, better="lower") if each.key.startswith("memory") else each for each in columns]
    rows = {}
    for model, own in table.groupby("model", sort=False):
        cells = own.set_index("seq_len")
        rows[str(model)] = [float(cells[name][length]) if length in cells.index else None for length, name in keys]
    note = f"{about(study, corpus=False)} On {table['machine'].iloc[0]}, one sequence, fresh weights."
    return Table("Speed and memory of generation", columns, rows, note)
