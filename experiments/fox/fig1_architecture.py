"""Figure 1: The FoX block.

Left: a FoX block. Right: the attention layers of FoX (Pro) and of FoX (LLaMA). Every RMSNorm inside an attention layer is per
head; ShiftLinear mixes the previous token's projection into keys and values. Drawn from the parameters of the models as built
here."""

from dataclasses import dataclass
from itertools import pairwise

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.patches import FancyBboxPatch

from analysis.names import rank, title
from analysis.study import Study
from analysis.style import WIDTH, Files, about, plt, publish
from analysis.tables import Column, Table
from experiments.evaluations import parts as evals  # noqa: F401
from experiments.recipes import lines

KIND = "parameters"
LAYER = "layers.0."
PROJECTION, NORM, ATTENTION, PLAIN = "#D6E6F2", "#F6E3C5", "#F3C9B5", "#FFFFFF"
GATE_X, Q_X, K_X, V_X, OUT_X = 0.0, 1.0, 2.0, 3.0, 4.0
HALF_HEIGHT, HALF_WIDTH = 0.29, 0.46
BUS_Y, ATTENTION_Y = 0.45, 4.5
"""Heights at which an attention layer's input branches, and of its attention."""
Stage = tuple[float, str, str | None, str]
"""A box: its height, text, size and colour."""
GROUPS = {
    "q, k, v and output projections": ("q_proj", "k_proj.linear", "k_proj.weight", "v_proj.linear", "v_proj.weight", "o_proj"),
    "forget gate": ("fgate",),
    "key and value shift": ("k_proj.shift", "v_proj.shift"),
    "QK-norm": ("q_norm", "k_norm"),
    "output norm": ("output_norm",),
    "output gate": ("ogate",),
}
"""Parts of an attention layer, with the prefixes of their parameters' names."""
runs = lines("fox_pro", "fox_llama", once=True)


@dataclass(frozen=True)
class Parts:
    """Parameters of the first block of a model: name, module (its class), shape and count."""

    rows: pd.DataFrame
    use_rope: bool

    def size(self, prefix: str) -> str | None:
        """Return the shape of the matrix whose name begins with `prefix`, None if the model has none."""
        names = self.rows["name"].str
        shapes = self.rows.loc[names.startswith(prefix) & ~names.endswith("bias"), "shape"]
        return shapes.iloc[0].replace("x", "\N{MULTIPLICATION SIGN}") if len(shapes) else None

    def count(self, *prefixes: str) -> float:
        return float(self.rows.loc[self.rows["name"].str.startswith(prefixes), "count"].sum())


def parts_of(study: Study) -> dict[str, Parts]:
    """Return the parts by label, in the paper's order of models. ValueError if nothing is stored."""
    found = {}
    for line, rows, _ in sorted(study.evaluations(KIND, "models"), key=lambda each: rank(each[0].model)):
        own = rows[rows["name"].str.startswith(LAYER)].assign(label=line.label)
        own = own.assign(name=own["name"].str.removeprefix(LAYER))[["label", "name", "module", "shape", "count"]]
        found[line.label] = Parts(own, bool(study.spec(line.run_id)["model"].get("use_rope")))
    return found


def draw(study: Study) -> Files:
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
    notes = ("sizes: outputs \N{MULTIPLICATION SIGN} inputs", "drawn from the models as they are built")
    return publish(study, figure, [own.rows for own in parts.values()], *notes)


def _box(axes: Axes, x: float, stage: Stage, half: float = HALF_WIDTH) -> None:
    y, text, size, colour = stage
    place = (x - half, y - HALF_HEIGHT)
    shape = FancyBboxPatch(place, 2 * half, 2 * HALF_HEIGHT, "round,pad=0,rounding_size=0.09", fc=colour, ec="#555555", lw=0.7)
    axes.add_patch(shape)
    axes.text(x, y + (0.11 if size else 0), text, ha="center", va="center", fontsize=5.4 if half == HALF_WIDTH else 6.2)
    if size:
        axes.text(x, y - 0.14, size, ha="center", va="center", fontsize=4.8, color="#555555")


def _sum(axes: Axes, x: float, y: float, sign: str) -> None:
    axes.text(x, y, sign, ha="center", va="center", fontsize=7.5, bbox={"boxstyle": "circle,pad=0.12", "fc": PLAIN, "lw": 0.7})


def _words(axes: Axes, x: float, y: float, text: str) -> None:
    axes.text(x, y, text, ha="center", va="center", fontsize=6.5)


def _arrow(axes: Axes, *points: tuple[float, float]) -> None:
    """Draw a line through the points, with an arrowhead at the last."""
    if len(points) > 2:
        axes.plot(*zip(*points[:-1], strict=True), color="#333333", lw=0.8, solid_joinstyle="miter", zorder=0)
    arrow = {"arrowstyle": "-|>", "lw": 0.8, "color": "#333333", "mutation_scale": 6, "shrinkA": 0, "shrinkB": 0}
    axes.annotate("", points[-1], points[-2], arrowprops=arrow, zorder=0)


def _up(axes: Axes, x: float, *heights: float) -> None:
    """Draw arrows from box to box."""
    for low, high in pairwise(heights):
        _arrow(axes, (x, low + HALF_HEIGHT), (x, high - HALF_HEIGHT))


def _layer(axes: Axes, parts: Parts) -> None:
    """Draw an attention layer, from its normalised input at the bottom to its output at the top."""
    axes.set(xlim=(-0.6, 4.6), ylim=(-0.6, 9.0))
    columns: dict[float, list[Stage]] = {}
    names = {Q_X: "q", K_X: "k", V_X: "v"}
    if gate := parts.size("attn.fgate_proj.weight"):
        columns[GATE_X] = [(1.2, "Linear, $\\log\\sigma$", gate, PROJECTION)]
    for x, name in names.items():
        shifted, norm = parts.size(f"attn.{name}_proj.shift_proj"), parts.size(f"attn.{name}_norm")
        size = parts.size(f"attn.{name}_proj.linear" if shifted else f"attn.{name}_proj")
        columns[x] = [(1.2, "ShiftLinear" if shifted else "Linear", size, PROJECTION)]
        columns[x] += [(2.3, "RMSNorm", norm, NORM)] if norm else []
        columns[x] += [(3.3, "RoPE", None, PLAIN)] if parts.use_rope and name != "v" else []
    for x, stages in columns.items():
        for stage in stages:
            _box(axes, x, stage)
        _up(axes, x, *(y for y, *_ in stages), ATTENTION_Y)
        axes.text(x + 0.08, 3.85, f"${names[x]}_t$" if x in names else "$\\log f_t$", va="center", fontsize=6.5)
    inputs = [*columns, *([OUT_X] if parts.size("attn.ogate_proj") else [])]
    axes.plot((inputs[0], inputs[-1]), (BUS_Y, BUS_Y), color="#333333", lw=0.8, zorder=0)
    _words(axes, (Q_X + V_X) / 2, -0.35, "input $x_t$")
    axes.plot(((Q_X + V_X) / 2,) * 2, (-0.12, BUS_Y), color="#333333", lw=0.8, zorder=0)
    for x in inputs:
        _arrow(axes, (x, BUS_Y), (x, 1.2 - HALF_HEIGHT))
    middle, y = (inputs[0] + V_X) / 2, ATTENTION_Y
    attention = "Forgetting attention" if gate else "Softmax attention"
    _box(axes, middle, (y, attention, None, ATTENTION), (V_X - inputs[0]) / 2 + HALF_WIDTH)
    if norm := parts.size("attn.output_norm"):
        _box(axes, middle, (5.6, "RMSNorm", norm, NORM))
        _up(axes, middle, y, 5.6)
        y = 5.6
    if size := parts.size("attn.ogate_proj"):
        _box(axes, OUT_X, (1.2, "Linear, $\\sigma$", size, PROJECTION))
        _sum(axes, middle, 6.6, "\N{MULTIPLICATION SIGN}")
        _arrow(axes, (middle, y + HALF_HEIGHT), (middle, 6.42))
        _arrow(axes, (OUT_X, 1.2 + HALF_HEIGHT), (OUT_X, 6.6), (middle + 0.2, 6.6))
        y = 6.6 - 0.1
    _box(axes, middle, (7.6, "Linear", parts.size("attn.o_proj"), PROJECTION))
    _up(axes, middle, y, 7.6)
    _arrow(axes, (middle, 7.6 + HALF_HEIGHT), (middle, 8.5))
    _words(axes, middle, 8.7, "output")


def _block(axes: Axes, parts: Parts) -> None:
    """Draw a pre-norm residual block: attention, then SwiGLU."""
    axes.set(xlim=(-1.1, 1.1), ylim=(-0.6, 9.0))
    swiglu = f"{parts.size('mlp.gate_proj') or ''}, {parts.size('mlp.down_proj')}"
    norms = [(y, "RMSNorm", parts.size(name), NORM) for y, name in ((1.2, "attn_norm"), (5.0, "mlp_norm"))]
    for stage in (norms[0], (2.3, "attention layer", None, ATTENTION), norms[1], (6.1, "SwiGLU", swiglu, PROJECTION)):
        _box(axes, 0, stage, 0.78)
    for low, high, start in ((1.2, 3.5, -0.12), (5.0, 7.3, 3.68)):
        _arrow(axes, (0, start), (0, low - HALF_HEIGHT))
        _up(axes, 0, low, low + 1.1)
        _arrow(axes, (0, low + 1.1 + HALF_HEIGHT), (0, high - 0.18))
        _arrow(axes, (0, low - 0.6), (-0.98, low - 0.6), (-0.98, high), (-0.2, high))
        _sum(axes, 0, high, "+")
    _arrow(axes, (0, 7.48), (0, 8.5))
    _words(axes, 0, -0.35, "residual stream")


def summary(study: Study) -> Table:
    """Count the parameters of each part of a block."""
    rows: dict[str, list[float | None]] = {}
    for label, own in parts_of(study).items():
        attention = [own.count(*(f"attn.{name}" for name in names)) for names in GROUPS.values()]
        rows[label] = [*attention, own.count("mlp."), own.count("")]
    columns = [Column(name.replace(" ", "_"), name, 0) for name in (*GROUPS, "SwiGLU", "block with its norms")]
    return Table("Parameters of one block", columns, rows, about(study, corpus=False))
