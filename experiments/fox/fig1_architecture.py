"""Figure 1: the FoX block and its attention layer, drawn from the parameters of the model that the suite builds."""

from dataclasses import dataclass
from pathlib import Path

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.patches import FancyBboxPatch

from analysis.names import rank, title
from analysis.study import Study
from analysis.style import WIDTH, figure_style, plt, publish, scale_note
from analysis.tables import Column, Table
from experiments.evaluations import parts as evals  # noqa: F401
from experiments.recipes import recipes

TITLE = "The FoX block"
PAPER = "Figure 1"
SHOWS = (
    "Left: a FoX block. Right: an attention layer of FoX (Pro), and beside it that of FoX (LLaMA). Every RMSNorm of the layer "
    "is per head; ShiftLinear mixes the previous token's projection into keys and values. Drawn from the parameters that the "
    "models have as they are built here."
)


def runs(scale, seeds):
    return recipes(scale, ("fox_pro", "fox_llama"), seeds[:1])


KIND = "parameters"
LAYER = "layers.0."
PROJECTION, NORM, ATTENTION, PLAIN = "#D6E6F2", "#F6E3C5", "#F3C9B5", "#FFFFFF"
GATE_X, Q_X, K_X, V_X, OUT_X = 0.0, 1.0, 2.0, 3.0, 4.0
HALF_HEIGHT, HALF_WIDTH = 0.29, 0.46


@dataclass(frozen=True)
class Parts:
    """Parameters of the first block of a model: name -> (module's class, shape, count)."""

    found: dict[str, tuple[str, str, int]]
    use_rope: bool

    def size(self, prefix: str) -> str | None:
        """The shape of the matrix below a name, None if the model has none."""
        shapes = [shape for name, (_, shape, _) in self.found.items() if name.startswith(prefix) and not name.endswith("bias")]
        return shapes[0].replace("x", "\N{MULTIPLICATION SIGN}") if shapes else None


def parts_of(study: Study) -> dict[str, Parts]:
    """Return the parts by label, in the paper's order of models. ValueError if nothing is stored."""
    found = {}
    for line, rows, _ in sorted(study.evaluations(KIND), key=lambda each: rank(each[0].model)):
        own = rows[rows["name"].str.startswith(LAYER)]
        named = {
            row["name"].removeprefix(LAYER): (row["module"], row["shape"], int(row["count"])) for row in own.to_dict("records")
        }
        found[line.label] = Parts(named, bool(study.spec(line.run_id)["model"].get("use_rope")))
    if not found:
        raise ValueError(f"{study.stem}: no models are stored; run its experiment first")
    return found


@figure_style()
def draw(study: Study) -> list[Path]:
    """Write figures/STEM.{png,pdf,csv}."""
    parts = parts_of(study)
    ratios = [0.55, *([1.0] * len(parts))]
    figure, panels = plt.subplots(1, 1 + len(parts), figsize=(WIDTH, 4.6), gridspec_kw={"width_ratios": ratios})
    for axes in panels:
        axes.set_axis_off()
    _block(panels[0], next(iter(parts.values())))
    for axes, (label, own) in zip(panels[1:], parts.items(), strict=True):
        _layer(axes, own)
        axes.set_title(f"attention layer of {title(label)}", fontsize=8)
    panels[0].set_title("FoX block", fontsize=8)
    rows = [
        {"label": label, "name": name, "module": module, "shape": shape, "count": count}
        for label, own in parts.items()
        for name, (module, shape, count) in own.found.items()
    ]
    notes = ("sizes: outputs \N{MULTIPLICATION SIGN} inputs", "drawn from the models as they are built")
    return publish(study, figure, pd.DataFrame(rows), *notes)


def _box(axes: Axes, x: float, y: float, text: str, size: str | None, colour: str, half: float = HALF_WIDTH) -> None:
    place = (x - half, y - HALF_HEIGHT)
    shape = FancyBboxPatch(place, 2 * half, 2 * HALF_HEIGHT, "round,pad=0,rounding_size=0.09", fc=colour, ec="#555555", lw=0.7)
    axes.add_patch(shape)
    axes.text(x, y + (0.11 if size else 0), text, ha="center", va="center", fontsize=5.4 if half == HALF_WIDTH else 6.2)
    if size:
        axes.text(x, y - 0.14, size, ha="center", va="center", fontsize=4.8, color="#555555")


def _sum(axes: Axes, x: float, y: float, sign: str) -> None:
    axes.text(x, y, sign, ha="center", va="center", fontsize=7.5, bbox={"boxstyle": "circle,pad=0.12", "fc": PLAIN, "lw": 0.7})


def _arrow(axes: Axes, *points: tuple[float, float]) -> None:
    """A line through the points, with a head at the last."""
    if len(points) > 2:
        axes.plot(*zip(*points[:-1], strict=True), color="#333333", lw=0.8, solid_joinstyle="miter", zorder=0)
    arrow = {"arrowstyle": "-|>", "lw": 0.8, "color": "#333333", "mutation_scale": 6, "shrinkA": 0, "shrinkB": 0}
    axes.annotate("", points[-1], points[-2], arrowprops=arrow, zorder=0)


def _layer(axes: Axes, parts: Parts) -> None:
    """An attention layer, from its normalised input at the bottom to its output at the top."""
    axes.set(xlim=(-0.6, 4.6), ylim=(-0.6, 9.0))
    gates = bool(parts.size("attn.fgate"))
    top = {}
    if gates:
        _box(axes, GATE_X, 1.2, "Linear, $\\log\\sigma$", parts.size("attn.fgate_proj.weight"), PROJECTION)
    for x, name in ((Q_X, "q"), (K_X, "k"), (V_X, "v")):
        shifted = parts.size(f"attn.{name}_proj.shift_proj")
        size = parts.size(f"attn.{name}_proj.linear" if shifted else f"attn.{name}_proj")
        _box(axes, x, 1.2, "ShiftLinear" if shifted else "Linear", size, PROJECTION)
        top[x] = 1.2
        if parts.size(f"attn.{name}_norm"):
            _box(axes, x, 2.3, "RMSNorm", parts.size(f"attn.{name}_norm"), NORM)
            _arrow(axes, (x, top[x] + HALF_HEIGHT), (x, 2.3 - HALF_HEIGHT))
            top[x] = 2.3
        if parts.use_rope and name != "v":
            _box(axes, x, 3.3, "RoPE", None, PLAIN)
            _arrow(axes, (x, top[x] + HALF_HEIGHT), (x, 3.3 - HALF_HEIGHT))
            top[x] = 3.3
    inputs = [*([GATE_X] if gates else []), Q_X, K_X, V_X, *([OUT_X] if parts.size("attn.ogate_proj") else [])]
    axes.plot((inputs[0], inputs[-1]), (0.45, 0.45), color="#333333", lw=0.8, zorder=0)
    axes.text((Q_X + V_X) / 2, -0.35, "input $x_t$", ha="center", va="center", fontsize=6.5)
    axes.plot(((Q_X + V_X) / 2,) * 2, (-0.12, 0.45), color="#333333", lw=0.8, zorder=0)
    for x in inputs:
        _arrow(axes, (x, 0.45), (x, 1.2 - HALF_HEIGHT))
    middle = (inputs[0] + V_X) / 2
    _box(
        axes,
        middle,
        4.5,
        "Forgetting attention" if gates else "Softmax attention",
        None,
        ATTENTION,
        (V_X - inputs[0]) / 2 + HALF_WIDTH,
    )
    for x, name in ((Q_X, "q"), (K_X, "k"), (V_X, "v")):
        _arrow(axes, (x, top[x] + HALF_HEIGHT), (x, 4.5 - HALF_HEIGHT))
        axes.text(x + 0.08, 3.85, f"${name}_t$", va="center", fontsize=6.5)
    if gates:
        _arrow(axes, (GATE_X, 1.2 + HALF_HEIGHT), (GATE_X, 4.5 - HALF_HEIGHT))
        axes.text(GATE_X + 0.08, 3.85, "$\\log f_t$", va="center", fontsize=6.5)
    y = 4.5
    if parts.size("attn.output_norm"):
        _box(axes, middle, 5.6, "RMSNorm", parts.size("attn.output_norm"), NORM)
        _arrow(axes, (middle, y + HALF_HEIGHT), (middle, 5.6 - HALF_HEIGHT))
        y = 5.6
    if parts.size("attn.ogate_proj"):
        _box(axes, OUT_X, 1.2, "Linear, $\\sigma$", parts.size("attn.ogate_proj"), PROJECTION)
        _sum(axes, middle, 6.6, "\N{MULTIPLICATION SIGN}")
        _arrow(axes, (middle, y + HALF_HEIGHT), (middle, 6.42))
        _arrow(axes, (OUT_X, 1.2 + HALF_HEIGHT), (OUT_X, 6.6), (middle + 0.2, 6.6))
        y = 6.6 - 0.1
    _box(axes, middle, 7.6, "Linear", parts.size("attn.o_proj"), PROJECTION)
    _arrow(axes, (middle, y + HALF_HEIGHT), (middle, 7.6 - HALF_HEIGHT))
    _arrow(axes, (middle, 7.6 + HALF_HEIGHT), (middle, 8.5))
    axes.text(middle, 8.7, "output", ha="center", va="center", fontsize=6.5)


def _block(axes: Axes, parts: Parts) -> None:
    """A pre-norm residual block: attention, then SwiGLU."""
    axes.set(xlim=(-1.1, 1.1), ylim=(-0.6, 9.0))
    gate = parts.size("mlp.gate_proj") or ""
    stages = (
        (1.2, "RMSNorm", parts.size("attn_norm"), NORM),
        (2.3, "attention layer", None, ATTENTION),
        (5.0, "RMSNorm", parts.size("mlp_norm"), NORM),
        (6.1, "SwiGLU", f"{gate}, {parts.size('mlp.down_proj')}", PROJECTION),
    )
    for y, text, size, colour in stages:
        _box(axes, 0, y, text, size, colour, 0.78)
    for low, high, start in ((1.2, 3.5, -0.12), (5.0, 7.3, 3.68)):
        _arrow(axes, (0, start), (0, low - HALF_HEIGHT))
        _arrow(axes, (0, low + HALF_HEIGHT), (0, low + 1.1 - HALF_HEIGHT))
        _arrow(axes, (0, low + 1.1 + HALF_HEIGHT), (0, high - 0.18))
        _arrow(axes, (0, low - 0.6), (-0.98, low - 0.6), (-0.98, high), (-0.2, high))
        _sum(axes, 0, high, "+")
    _arrow(axes, (0, 7.48), (0, 8.5))
    axes.text(0, -0.35, "residual stream", ha="center", va="center", fontsize=6.5)


def summary(study: Study) -> Table:
    """Count the parameters of each part of a block."""
    found = parts_of(study)
    projections = ("q_proj", "k_proj.linear", "k_proj.weight", "v_proj.linear", "v_proj.weight", "o_proj")
    groups = {
        "q, k, v and output projections": projections,
        "forget gate": ("fgate",),
        "key and value shift": ("k_proj.shift", "v_proj.shift"),
        "QK-norm": ("q_norm", "k_norm"),
        "output norm": ("output_norm",),
        "output gate": ("ogate",),
    }
    rows: dict[str, list[float | None]] = {}
    for label, own in found.items():
        counts = {name.removeprefix("attn."): count for name, (_, _, count) in own.found.items() if name.startswith("attn.")}
        line = [float(sum(count for name, count in counts.items() if name.startswith(starts))) for starts in groups.values()]
        mlp = float(sum(count for name, (_, _, count) in own.found.items() if name.startswith("mlp.")))
        rows[label] = [*line, mlp, float(sum(count for _, _, count in own.found.values()))]
    columns = [Column(name.replace(" ", "_"), name, 0) for name in (*groups, "SwiGLU", "block with its norms")]
    return Table("Parameters of one block", columns, rows, f"{scale_note(study).capitalize()}.")
