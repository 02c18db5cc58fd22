"""Cost of stick-breaking: its kernels against softmax with RoPE, and a training step of the models."""

import math
from pathlib import Path

import numpy as np
import pandas as pd
from matplotlib.axes import Axes

from analysis.names import rank, style_of, title
from analysis.paper import read as read_paper
from analysis.statistics import Estimate
from analysis.study import Study
from analysis.style import WIDTH, plt, publish, scale_note, tokens
from analysis.tables import Column, Table
from analysis.throughput import measured
from analysis.verdict import RATIO, Claim, Comparison, Verdict, decide, not_measured
from experiments.evaluations import step_times as evals  # noqa: F401
from experiments.recipes import recipes
from results.measured import FOLDER, read

TITLE = "Cost of stick-breaking attention"
PAPER = "Stick-breaking: kernel timing"
SHOWS = (
    "Left: forward and backward of the operators, as `python -m kernels.benchmark times` measured them, relative to "
    "softmax with rotary embedding. Right: a training step at this scale. The paper's kernel is reported 1.2 to 1.3 times as "
    "slow as FlashAttention with RoPE."
)


def runs(scale, seeds):
    return recipes(scale, ("stick_breaking", "transformer_llama", "fox_llama"), seeds[:1])


KIND = "stick_breaking"
BASELINE = "softmax cuDNN + RoPE"
OPERATION = "forward+backward"
PROVIDERS = {"softmax flash-2 + RoPE": "#C4C4C4", "ours": style_of("stick_breaking").colour, "fla": "#999933"}
SETTING = ["gpu", "logits", "batch", "seq_len", "num_heads", "head_dim"]


def kernel_times(study: Study) -> pd.DataFrame:
    """The newest row of every provider, shape, kind of logits and GPU, forward and backward, with `relative`: its time as a
    multiple of cuDNN's softmax with rotary embedding in the same run. Empty where none are stored."""
    folder = study.results_dir / FOLDER.name
    if not any((folder / KIND).glob("*.parquet")):
        return pd.DataFrame(columns=[*SETTING, "provider", "ms_q50", "relative"])
    rows = read(KIND, folder).rename(columns={"gates": "logits"})
    rows = rows[(rows["operation"] == OPERATION) & rows["ms_q50"].notna()]
    run = ["date", "gpu", "batch", "seq_len", "num_heads", "head_dim"]
    base = rows[rows["provider"] == BASELINE].drop_duplicates(run, keep="last")
    rows = rows.merge(base[[*run, "ms_q50"]], on=run, suffixes=("", "_base"))
    rows = rows.assign(relative=rows["ms_q50"] / rows["ms_q50_base"])
    return rows.drop_duplicates([*SETTING, "provider"], keep="last", ignore_index=True)


def draw(study: Study) -> list[Path]:
    """Write figures/STEM.{png,pdf,csv}."""
    steps, kernels = measured(study, "stick_breaking"), kernel_times(study)
    if kernels.empty:
        figure, right = plt.subplots(figsize=(WIDTH / 2, 2.7))
    else:
        figure, (left, right) = plt.subplots(1, 2, figsize=(WIDTH, 3.0), width_ratios=(2, 1))
        _kernel_bars(left, kernels)
    _step_bars(right, steps)
    gpus = ", ".join(sorted(set(kernels["gpu"])))
    machine = str(steps["machine"].iloc[0])
    return publish(
        study,
        figure,
        kernels,
        f"left: {gpus}, bfloat16, forward + backward, longer is slower" if gpus else "no kernel times are stored",
        f"tokens/s: {machine}, context {tokens(steps['seq_len'].iloc[0])}, lines: 20% to 80% of the repetitions",
    )


def _kernel_bars(axes: Axes, rows: pd.DataFrame) -> None:
    axes.set_ylabel("time / cuDNN softmax + RoPE")
    shown = rows[rows["provider"].isin(list(PROVIDERS))]
    shapes = sorted({tuple(shape) for shape in shown[["seq_len", "batch", "num_heads", "head_dim"]].to_numpy()})
    bars = [("softmax flash-2 + RoPE", "any"), ("ours", "short"), ("ours", "long"), ("fla", "short"), ("fla", "long")]
    for place, (provider, logits) in enumerate(bars):
        own = shown[(shown["provider"] == provider) & (shown["logits"] == logits)]
        where = [shapes.index(tuple(shape)) for shape in own[["seq_len", "batch", "num_heads", "head_dim"]].to_numpy()]
        label = provider if logits == "any" else f"{provider}, {logits} reach"
        axes.bar(np.array(where) + 0.16 * (place - 2), own["relative"], 0.14, color=PROVIDERS[provider],
                 alpha=0.55 if logits == "short" else 1.0, label=label)  # fmt: skip
    flash = shown[shown["provider"] == bars[0][0]]
    low, high = read_paper("stick_breaking.csv")["kernel_time"].values()
    at_ours = [shapes.index(tuple(shape)) + 0.08 for shape in flash[["seq_len", "batch", "num_heads", "head_dim"]].to_numpy()]
    axes.bar(at_ours, (high - low) * flash["relative"], 0.33, bottom=low * flash["relative"], fill=False, hatch="//////",
             linewidth=0.7, label=f"the paper: {low} to {high} times flash-2")  # fmt: skip
    axes.axhline(1.0, color="black", linewidth=0.6)
    axes.set_xticks(range(len(shapes)), [f"T {tokens(length)}\nB{b} H{h} D{d}" for length, b, h, d in shapes])
    axes.figure.legend(*axes.get_legend_handles_labels(), loc="outside lower center", ncols=3, fontsize=7)


def _step_bars(axes: Axes, steps: pd.DataFrame) -> None:
    models = sorted(steps["model"], key=rank)
    by_model = steps.set_index("model")
    for place, model in enumerate(models):
        row = by_model.loc[model]
        speed, low, high = (row[name] / 1000 for name in ("tokens_per_s", "tokens_per_s_low", "tokens_per_s_high"))
        spread = [[speed - low], [high - speed]]
        axes.bar(place, speed, 0.7, color=style_of(model).colour, yerr=spread, error_kw={"linewidth": 0.9})
    axes.set_xticks(range(len(models)), [title(model).replace(" (", "\n(") for model in models], fontsize=6.5)
    axes.set_ylabel("training, k tokens/s")


def summary(study: Study) -> Table:
    """Training speed, a line per model, and kernel times relative to cuDNN's softmax with rotary embedding, one per shape."""
    rows = kernel_times(study)
    shown = sorted(set(zip(rows["provider"], rows["logits"], strict=True)))
    shown = [each for each in shown if each[0] != BASELINE]
    columns = [Column("tokens_per_s", "training (tokens/s)", 0)]
    columns += [Column(f"{p}_{z}", p if z == "any" else f"{p}, {z} reach", 2) for p, z in shown]
    steps = measured(study, "stick_breaking")
    values: dict[str, list[float | None]] = {
        row["model"]: [row["tokens_per_s"], *(None for _ in shown)] for row in steps.to_dict("records")
    }
    for (gpu, length, batch, heads, dim), own in rows.groupby(["gpu", "seq_len", "batch", "num_heads", "head_dim"]):
        times = own.set_index(["provider", "logits"])["relative"].to_dict()
        values[f"{gpu}, B{batch} T{length} H{heads} D{dim}"] = [None, *(times.get(each) for each in shown)]
    note = f"{scale_note(study).capitalize()}. Training on {steps['machine'].iloc[0]}. Time of forward and backward as a"
    note += " multiple of softmax with rotary embedding by"
    note += " cuDNN in the same run." if len(rows) else " cuDNN: not measured."
    return Table("Cost of stick-breaking attention", columns, values, note)


STICK, SOFTMAX = "stick_breaking", "transformer_llama"
S5_FACTOR = 1.4
SHAPE = ("batch", "seq_len", "num_heads", "head_dim")


def s5(study: Study) -> Verdict:
    """Forward and backward take at most 1.4 times as long as FlashAttention with RoPE, at 4,096 to 16,384 tokens."""
    rows = kernel_times(study)
    setting = ["gpu", *SHAPE]
    flash = rows[rows["provider"] == "softmax flash-2 + RoPE"].set_index(setting)["relative"]
    ours = rows[(rows["provider"] == "ours") & rows["seq_len"].between(4096, 16384)]
    comparisons = []
    for row in ours.to_dict("records"):
        place = tuple(row[name] for name in setting)
        if place in flash.index:
            spread = math.log(row["ms_q80"] / row["ms_q20"]) / (2 * 0.8416)
            ratio = Estimate(math.log(row["relative"] / flash[place]), spread)
            name = f"time over FlashAttention-2 + RoPE's, T {row['seq_len']}, D {row['head_dim']}, {row['logits']} reach"
            bound = math.log(S5_FACTOR)
            comparisons.append(Comparison(name, ratio, bound, below=True, strict=False, unit=RATIO, paper="1.2 to 1.3"))
    if not comparisons:
        return not_measured("No kernel times of both are stored; `python -m kernels.benchmark times` measures them.")
    factors = [math.exp(each.estimate.effect) for each in comparisons]
    sentence = (
        f"Forward and backward take {min(factors):.2f} to {max(factors):.2f} times as long as FlashAttention-2 with RoPE."
    )
    return decide(sentence, comparisons, 0)


def by_reach(study: Study) -> str:
    """The kernel's time by how far the sticks reach, and what whole training steps take."""
    rows = kernel_times(study)
    flash = rows[rows["provider"] == "softmax flash-2 + RoPE"].set_index(["gpu", *SHAPE])["relative"]
    parts = []
    for reach, what in (("short", "soon used up"), ("long", "never used up")):
        own = rows[(rows["provider"] == "ours") & (rows["logits"] == reach)]
        shapes = list(own[["gpu", *SHAPE]].itertuples(index=False, name=None))
        ratios = {at: value / flash[at] for at, value in zip(shapes, own["relative"], strict=True) if at in flash.index}
        if ratios:
            _, _, length, _, dim = max(ratios, key=lambda at: ratios[at])
            parts.append(
                f"where sticks are {what}, {min(ratios.values()):.2f} to {max(ratios.values()):.2f} times FlashAttention-2's "
                f"time, most at {tokens(length)} tokens and head size {dim}"
            )
    steps = measured(study, "stick_breaking").set_index("model")["tokens_per_s"]
    text = f"Forward and backward take, {'; '.join(parts)}." if parts else "No kernel times are stored."
    if {STICK, SOFTMAX} <= set(steps.index):
        text += (
            f" Whole training steps with fresh weights, as {title(STICK)} begins: {steps[STICK] / steps[SOFTMAX]:.2f} times "
            f"the tokens/s of {title(SOFTMAX)}."
        )
    return text


CLAIMS = (Claim("S5", "A fused kernel makes it trainable at moderate cost", s5),)
LOOKS = {"S5": by_reach}
