"""Stick-breaking: kernel timing: Cost of stick-breaking attention.

Left: time of the operators' forward and backward, measured by `python -m kernels.benchmark times`, relative to softmax
attention with rotary embedding. Right: speed of training steps with untrained weights at this scale: their sticks are soon
used up, and the kernel skips the rest, so that whole trainings need not be as fast. The paper reports that its kernel takes 1.2
to 1.3 times as long as FlashAttention with RoPE."""

import math
from collections import defaultdict
from contextlib import suppress
from functools import partial
from itertools import product
from typing import Any

import pandas as pd
from matplotlib.axes import Axes

from analysis.names import rank, style_of, title
from analysis.paper import read as read_paper
from analysis.statistics import TWENTY_TO_EIGHTY, Estimate
from analysis.study import Study
from analysis.style import WIDTH, Files, about, plt, publish, tokens
from analysis.tables import Column, Table
from analysis.training_curves import measured
from analysis.verdict import RATIO, Claim, Comparison, Verdict, decide, not_measured
from experiments.evaluations import step_times as evals  # noqa: F401
from experiments.recipes import lines
from kernels.benchmark.rows import PLACE
from results.measured import FOLDER, has, read

KIND = "stick_breaking"
STICK, SOFTMAX = "stick_breaking", "transformer_llama"
TRAINED = "stick_extrapolation"
"""A figure with whole trainings of both."""
BASELINE, FLASH = "softmax cuDNN + RoPE", "softmax flash-2 + RoPE"
PROVIDERS = {FLASH: "#C4C4C4", "ours": style_of(STICK).colour, "fla": "#999933"}
SHAPE = ["seq_len", "batch", "num_heads", "head_dim"]
S5_FACTOR = 1.4
UNTRAINED = "with untrained weights"
runs = lines("stick_breaking", "transformer_llama", "fox_llama", once=True)


def kernel_times(study: Study) -> pd.DataFrame:
    """Return the newest row of every provider, shape and kind of logits, for forward and backward. `relative`: its time as a
    multiple of cuDNN's softmax with rotary embedding in the same run. Only one GPU and version of Triton is returned: that with
    the most rows, or of equals the newest. Empty if no times are stored."""
    folder = study.results_dir / FOLDER.name
    if not has(KIND, folder):
        return pd.DataFrame(columns=["gpu", "logits", *SHAPE, "provider", "ms_q50", "relative"])
    rows = read(KIND, folder).rename(columns={"gates": "logits"})
    rows = rows[(rows["operation"] == "forward+backward") & rows["ms_q50"].notna()]
    run = [*PLACE, "date", *SHAPE]
    base = rows[rows["provider"] == BASELINE].drop_duplicates(run, keep="last")
    rows = rows.merge(base[[*run, "ms_q50"]], on=run, suffixes=("", "_base"))
    rows = rows.assign(relative=rows["ms_q50"] / rows["ms_q50_base"])
    rows = rows.drop_duplicates([*PLACE, "logits", *SHAPE, "provider"], keep="last")
    _, newest = max(rows.groupby(PLACE), key=lambda place: (len(place[1]), place[1]["date"].max()), default=(None, rows))
    return newest.reset_index(drop=True)


def beside_flash(study: Study) -> pd.DataFrame:
    """Return our rows for shapes at which FlashAttention-2 was timed, too. `ratio`: our time as a multiple of its time."""
    rows = kernel_times(study)
    flash = rows.loc[rows["provider"] == FLASH, ["gpu", *SHAPE, "relative"]]
    ours = rows[rows["provider"] == "ours"].merge(flash, on=["gpu", *SHAPE], suffixes=("", "_flash"))
    return ours.assign(ratio=ours["relative"] / ours["relative_flash"])


def whole_trainings(study: Study) -> str:
    """Say how fast another figure's trainings with stick-breaking were, from their tokens and seconds, relative to those with
    softmax of the same seed on the same device; empty if there are none."""
    rates: dict[tuple[Any, ...], dict[str, float]] = defaultdict(dict)
    with suppress(ValueError):  # nothing is stored, or drawing that figure reports the error
        other = Study(study.results_dir, study.scale, TRAINED)
        for line in other.lines:
            ends = [start["end"] for start in other.starts(line) if (start.get("end") or {}).get("wall_s")]
            devices = frozenset(start["device"] for start in other.starts(line))
            if line.is_trained and ends and not line.axes:
                rate = sum(end["tokens"] for end in ends) / sum(end["wall_s"] for end in ends)
                rates[line.scale, line.seed, devices][line.model] = rate
    ratios = [own[STICK] / own[SOFTMAX] for own in rates.values() if {STICK, SOFTMAX} <= own.keys()]
    if not ratios:
        return ""
    shown = dict.fromkeys(f"{ratio:.2f}" for ratio in (min(ratios), max(ratios)))
    scales = ", ".join(dict.fromkeys(scale for scale, _, _ in rates))
    seeds = f", over {len(ratios)} seeds" * (len(ratios) > 1)
    speed = f"{' to '.join(shown)} times the tokens/s of {title(SOFTMAX)}{seeds}"
    return f"Whole trainings at {scales}, which may have shared the device: {title(STICK)} has {speed}"


def draw(study: Study) -> Files:
    steps, kernels = measured(study, STICK), kernel_times(study)
    if kernels.empty:
        figure, right = plt.subplots(figsize=(WIDTH / 2, 2.7))
    else:
        figure, (left, right) = plt.subplots(1, 2, figsize=(WIDTH, 3.0), width_ratios=(2, 1))
        _kernel_bars(left, kernels)
    _step_bars(right, steps)
    gpus, machine = ", ".join(sorted(set(kernels["gpu"]))), steps["machine"].iloc[0]
    setting = f"{machine}, context {tokens(steps['seq_len'].iloc[0])}, lines: 20% to 80% of the repetitions"
    timed = f"left: {gpus}, bfloat16, forward + backward, longer is slower" if gpus else "no kernel times are stored"
    return publish(study, figure, kernels, timed, f"tokens/s: training steps {UNTRAINED}, {setting}", whole_trainings(study))


def _kernel_bars(axes: Axes, rows: pd.DataFrame) -> None:
    axes.set_ylabel("time / cuDNN softmax + RoPE")
    shown = rows[rows["provider"].isin(list(PROVIDERS))]
    shapes = sorted(set(shown[SHAPE].itertuples(index=False, name=None)))
    shown = shown.assign(place=[shapes.index(shape) for shape in shown[SHAPE].itertuples(index=False, name=None)])
    bars = [(FLASH, "any"), *product(("ours", "fla"), ("short", "long"))]
    for place, (provider, logits) in enumerate(bars):
        own = shown[(shown["provider"] == provider) & (shown["logits"] == logits)]
        label = provider if logits == "any" else f"{provider}, {logits} reach"
        axes.bar(own["place"] + 0.16 * (place - 2), own["relative"], 0.14, color=PROVIDERS[provider],
                 alpha=0.55 if logits == "short" else 1.0, label=label)  # fmt: skip
    flash, (low, high) = shown[shown["provider"] == FLASH], read_paper("stick_breaking.csv")["kernel_time"].values()
    axes.bar(flash["place"] + 0.08, (high - low) * flash["relative"], 0.33, bottom=low * flash["relative"], fill=False,
             hatch="//////", linewidth=0.7, label=f"the paper: {low} to {high} times flash-2")  # fmt: skip
    axes.axhline(1.0, color="black", linewidth=0.6)
    axes.set_xticks(range(len(shapes)), [f"T {tokens(length)}\nB{b} H{h} D{d}" for length, b, h, d in shapes])
    axes.figure.legend(*axes.get_legend_handles_labels(), loc="outside lower center", ncols=3, fontsize=7)


def _step_bars(axes: Axes, steps: pd.DataFrame) -> None:
    steps = steps.sort_values("model", key=lambda models: models.map(rank))
    for place, row in enumerate(steps.to_dict("records")):
        speed, low, high = (row[name] / 1000 for name in ("tokens_per_s", "tokens_per_s_low", "tokens_per_s_high"))
        spread = [[speed - low], [high - speed]]
        axes.bar(place, speed, 0.7, color=style_of(row["model"]).colour, yerr=spread, error_kw={"linewidth": 0.9})
    axes.set_xticks(range(len(steps)), [title(model).replace(" (", "\n(") for model in steps["model"]], fontsize=6.5)
    axes.set_ylabel("training steps with\nuntrained weights, k tokens/s", fontsize=8)


def summary(study: Study) -> Table:
    """Tabulate training speed, by model, and kernel times relative to cuDNN's softmax with rotary embedding, by shape."""
    rows, steps = kernel_times(study), measured(study, STICK)
    shown = [each for each in sorted(set(zip(rows["provider"], rows["logits"], strict=True))) if each[0] != BASELINE]
    columns = [Column("tokens_per_s", "training steps (tokens/s)", 0)]
    columns += [Column(f"{p}_{z}", p if z == "any" else f"{p}, {z} reach", 2) for p, z in shown]
    values: dict[str, list[float | None]] = {}
    for model, speed in zip(steps["model"], steps["tokens_per_s"], strict=True):
        values[model] = [speed, *(None for _ in shown)]
    for (gpu, length, batch, heads, dim), own in rows.groupby(["gpu", *SHAPE]):
        times = own.set_index(["provider", "logits"])["relative"].to_dict()
        values[f"{gpu}, B{batch} T{length} H{heads} D{dim}"] = [None, *(times.get(each) for each in shown)]
    note = f"{about(study, corpus=False)} Training steps on {steps['machine'].iloc[0]} {UNTRAINED}. "
    note += f"{f'{whole}. ' if (whole := whole_trainings(study)) else ''}Time of forward and backward as a multiple of softmax "
    note += f"with rotary embedding by cuDNN{' in the same run.' if len(rows) else ': not measured.'}"
    return Table("Cost of stick-breaking attention", columns, values, note)


def s5(study: Study) -> Verdict:
    """Forward and backward take at most 1.4 times as long as FlashAttention with RoPE, at 4,096 to 16,384 tokens."""
    bounded = partial(Comparison, bound=math.log(S5_FACTOR), below=True, strict=False, unit=RATIO, paper="1.2 to 1.3")
    rows, comparisons = beside_flash(study), []
    for row in rows[rows["seq_len"].between(4096, 16384)].to_dict("records"):
        spread = math.log(row["ms_q80"] / row["ms_q20"]) / TWENTY_TO_EIGHTY
        name = f"time over FlashAttention-2 + RoPE's, {row['gpu']}, T {row['seq_len']}, D {row['head_dim']}"
        comparisons.append(bounded(f"{name}, {row['logits']} reach", Estimate(math.log(row["ratio"]), spread)))
    if not comparisons:
        return not_measured("No kernel times of both are stored; `python -m kernels.benchmark times` measures them.")
    factors = [math.exp(each.estimate.effect) for each in comparisons]
    sentence = f"Forward and backward take {min(factors):.2f} to {max(factors):.2f} times as long as FlashAttention-2"
    return decide(f"{sentence} with RoPE.", comparisons)


def by_reach(study: Study) -> str:
    """Say how the kernel's time depends on how far sticks reach, and how fast whole training steps are."""
    rows, parts = beside_flash(study), []
    for reach, what in (("short", "soon used up"), ("long", "never used up")):
        own = rows[rows["logits"] == reach]
        if len(own):
            most = own.nlargest(1, "ratio").iloc[0]
            parts.append(
                f"where sticks are {what}, {own['ratio'].min():.2f} to {own['ratio'].max():.2f} times FlashAttention-2's time, "
                f"most at {tokens(most['seq_len'])} tokens and head size {most['head_dim']}"
            )
    steps = measured(study, STICK).set_index("model")["tokens_per_s"]
    text = f"Forward and backward take, {'; '.join(parts)}." if parts else "No kernel times are stored."
    if {STICK, SOFTMAX} <= set(steps.index):
        speeds = f"{steps[STICK] / steps[SOFTMAX]:.2f} times the tokens/s of {title(SOFTMAX)}"
        text += f" Training steps {UNTRAINED}, as {title(STICK)} begins: {speeds}."
    whole = whole_trainings(study)
    return f"{text} {whole}." if whole else text


CLAIMS = (Claim("S5", "A fused kernel makes it trainable at moderate cost", s5),)
LOOKS = {"S5": by_reach}
