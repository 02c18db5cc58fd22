"""The committed rows of the kernel benchmark: append, read, print and draw. No torch, no GPU."""

import csv
import math
import os
import tempfile
from dataclasses import asdict, dataclass, fields
from pathlib import Path

RESULTS = Path(__file__).parents[2] / "results" / "kernels"
BASELINE = "softmax cuDNN"
# In the order of the bars: softmax attention in greys, forgetting attention in colours.
COLORS = {
    "softmax flash-2": "#C4C4C4",
    BASELINE: "#6E6E6E",
    "authors": "#009E73",
    "authors, pruned": "#7FD1B9",
    "fla": "#0072B2",
    "ours, deterministic": "#F6C69B",
    "ours": "#E69F00",
    "ours, pruned": "#D55E00",
}
BAR_WIDTH = 0.14
LABEL_BOX = {"facecolor": "white", "edgecolor": "none", "pad": 0.5}


@dataclass(frozen=True)
class Row:
    """One provider doing one operation at one shape on one GPU. Times in milliseconds, quantiles 20/50/80 of the
    repeats."""

    date: str
    version: str
    gpu: str
    torch: str
    triton: str
    provider: str
    operation: str
    gates: str
    dtype: str
    batch: int
    seq_len: int
    num_heads: int
    head_dim: int
    ms_q20: float
    ms_q50: float
    ms_q80: float
    effective_tflops: float
    max_error: float

    @property
    def shape(self) -> tuple[int, int, int, int]:
        """(B, T, H, D)."""
        return self.batch, self.seq_len, self.num_heads, self.head_dim


def read_rows(path: Path) -> list[Row]:
    """All rows of a file; none if it does not exist."""
    if not path.exists():
        return []
    types = {f.name: f.type for f in fields(Row)}
    with path.open(newline="") as file:
        return [
            Row(**{name: types[name](value) for name, value in record.items()})  # type: ignore[operator, arg-type]
            for record in csv.DictReader(file)
        ]


def append_rows(path: Path, rows: list[Row]) -> None:
    """Add rows: the file is replaced in one step, so that a reader or a crash never sees half of it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    everything = read_rows(path) + rows
    with tempfile.NamedTemporaryFile("w", dir=path.parent, suffix=".tmp", delete=False, newline="") as file:
        writer = csv.DictWriter(file, [f.name for f in fields(Row)])
        writer.writeheader()
        writer.writerows(asdict(row) for row in everything)
    os.replace(file.name, path)


def latest(rows: list[Row]) -> list[Row]:
    """The last row of every (GPU, provider, operation, gates, dtype, shape)."""
    newest = {(r.gpu, r.provider, r.operation, r.gates, r.dtype, r.shape): r for r in rows}
    return list(newest.values())


def ratio_to_baseline(row: Row, rows: list[Row]) -> float | None:
    """How many times faster than cuDNN's softmax attention in the same run (same date) at this shape; None without
    it."""
    for other in rows:
        same = (other.gpu, other.date, other.operation, other.dtype, other.shape)
        if other.provider == BASELINE and same == (row.gpu, row.date, row.operation, row.dtype, row.shape):
            return other.ms_q50 / row.ms_q50
    return None


def table(rows: list[Row]) -> str:
    """Markdown: one line per row, grouped by shape and operation."""
    lines = [
        "| GPU | B, T, H, D | operation | gates | provider | ms (q20-q80) | TFLOP/s | x cuDNN softmax | error |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for row in sorted(latest(rows), key=lambda r: (r.gpu, r.shape, r.operation, r.gates, r.ms_q50)):
        ratio = ratio_to_baseline(row, rows)
        shape = ", ".join(map(str, row.shape))
        lines.append(
            f"| {row.gpu} | {shape} | {row.operation} | {row.gates} | {row.provider} "
            f"| {row.ms_q50:.3f} ({row.ms_q20:.3f}-{row.ms_q80:.3f}) | {row.effective_tflops:.0f} "
            f"| {'' if ratio is None else f'{ratio:.2f}'} | {'' if math.isnan(row.max_error) else f'{row.max_error:.1e}'} |"
        )
    return "\n".join(lines)


def draw(rows: list[Row], path: Path) -> None:
    """Bars of speed relative to cuDNN's softmax attention, one panel per operation; shapes ordered by sequence length."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    shown = [r for r in latest(rows) if r.operation in ("forward", "forward+backward") and r.gates == "local to global"]
    operations = sorted({r.operation for r in shown})
    shapes = sorted({r.shape for r in shown}, key=lambda shape: (shape[1], shape[3], shape))
    size = (10, 0.8 + 3 * len(operations))
    figure, axes = pyplot.subplots(len(operations), 1, figsize=size, squeeze=False, layout="constrained")
    for axis, operation in zip(axes[:, 0], operations, strict=True):
        for group, shape in enumerate(shapes):
            found = {r.provider: ratio_to_baseline(r, rows) for r in shown if (r.operation, r.shape) == (operation, shape)}
            bars = [(provider, ratio) for provider in COLORS if (ratio := found.get(provider)) is not None]
            for i, (provider, ratio) in enumerate(bars):
                x = group + (i - (len(bars) - 1) / 2) * BAR_WIDTH
                axis.bar(x, ratio, 0.92 * BAR_WIDTH, color=COLORS[provider])
                axis.text(x, ratio, f"{ratio:.2f}", ha="center", va="bottom", fontsize=8, bbox=LABEL_BOX)
        axis.set_xticks(range(len(shapes)), [f"B{b}  T {t:,}  H{h}  D{d}" for b, t, h, d in shapes])
        axis.set_ylabel("speed, cuDNN softmax = 1")
        axis.set_title(operation.replace("+", " + "), loc="left", fontsize=11)
        axis.axhline(1.0, color="black", linewidth=0.6, zorder=0)
        axis.spines[["top", "right"]].set_visible(False)
        axis.margins(y=0.12)
    there = {r.provider for r in shown}
    handles = [pyplot.Rectangle((0, 0), 1, 1, color=color) for provider, color in COLORS.items() if provider in there]
    gpus = ", ".join(sorted({r.gpu for r in shown}))
    figure.legend(handles, [p for p in COLORS if p in there], loc="outside lower center", ncols=len(handles), frameon=False)
    figure.suptitle(f"{gpus}, bf16, forget gates from very local to global over the heads", fontsize=10)
    figure.savefig(path, dpi=120)
    pyplot.close(figure)
