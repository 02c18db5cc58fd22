"""Cost: the kernels' stored times relative to softmax with rotary embedding, and training steps."""

from pathlib import Path

import numpy as np
import pandas as pd
from matplotlib.axes import Axes

from analysis.fox import table6_throughput
from analysis.names import rank, style_of, title
from analysis.study import Study
from analysis.style import WIDTH, figure_style, plt, publish, scale_note, tokens
from analysis.tables import Column, Table
from results.measured import FOLDER, read

KIND = "stick_breaking"
BASELINE = "softmax cuDNN + RoPE"
OPERATION = "forward+backward"
PROVIDERS = {"softmax flash-2 + RoPE": "#C4C4C4", "ours": style_of("stick_breaking").colour, "fla": "#0072B2"}
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


@figure_style()
def draw(study: Study) -> list[Path]:
    """Write figures/STEM.{png,pdf,csv}."""
    steps, kernels = table6_throughput.measured(study), kernel_times(study)
    if kernels.empty:
        figure, right = plt.subplots(figsize=(WIDTH / 2, 2.7))
    else:
        figure, (left, right) = plt.subplots(1, 2, figsize=(WIDTH, 2.7), width_ratios=(2, 1))
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
    axes.set_ylabel("time, cuDNN softmax + RoPE = 1")
    shown = rows[rows["provider"].isin(list(PROVIDERS))]
    shapes = sorted({tuple(shape) for shape in shown[["seq_len", "batch", "num_heads", "head_dim"]].to_numpy()})
    bars = [("softmax flash-2 + RoPE", "any"), ("ours", "short"), ("ours", "long"), ("fla", "short"), ("fla", "long")]
    for place, (provider, logits) in enumerate(bars):
        own = shown[(shown["provider"] == provider) & (shown["logits"] == logits)]
        where = [shapes.index(tuple(shape)) for shape in own[["seq_len", "batch", "num_heads", "head_dim"]].to_numpy()]
        label = provider if logits == "any" else f"{provider}, {logits} reach"
        axes.bar(np.array(where) + 0.16 * (place - 2), own["relative"], 0.14, color=PROVIDERS[provider],
                 alpha=0.55 if logits == "short" else 1.0, label=label)  # fmt: skip
    axes.axhline(1.0, color="black", linewidth=0.6)
    axes.set_xticks(range(len(shapes)), [f"T {tokens(length)}\nB{b} H{h} D{d}" for length, b, h, d in shapes])
    axes.figure.legend(*axes.get_legend_handles_labels(), loc="outside lower center", ncols=len(bars), fontsize=7)


def _step_bars(axes: Axes, steps: pd.DataFrame) -> None:
    models = sorted(steps["model"], key=rank)
    by_model = steps.set_index("model")
    for place, model in enumerate(models):
        row = by_model.loc[model]
        speed, low, high = (row[name] / 1000 for name in ("tokens_per_s", "tokens_per_s_low", "tokens_per_s_high"))
        spread = [[speed - low], [high - speed]]
        axes.bar(place, speed, 0.7, color=style_of(model).colour, yerr=spread, error_kw={"linewidth": 0.9})
    axes.set_xticks(range(len(models)), [title(model).replace(" (", "\n(") for model in models], fontsize=6.5)
    axes.set_ylabel("training, thousand tokens/s")


def summary(study: Study) -> Table:
    """Training speed, a line per model, and kernel times relative to cuDNN's softmax with rotary embedding, one per shape."""
    rows = kernel_times(study)
    shown = sorted(set(zip(rows["provider"], rows["logits"], strict=True)))
    shown = [each for each in shown if each[0] != BASELINE]
    columns = [Column("tokens_per_s", "training (tokens/s)", 0)]
    columns += [Column(f"{p}_{z}", p if z == "any" else f"{p}, {z} reach", 2) for p, z in shown]
    steps = table6_throughput.measured(study)
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
