"""Names and styles of the models, in every figure and table.

Pairs share a hue (FoX warm, Transformer blue) and differ in lightness and line: Pro is dark and solid, LLaMA light and
dashed. Colours are those of Okabe and Ito, distinguishable with the common colour-vision deficiencies and in grey."""

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Any


@dataclass(frozen=True)
class LineStyle:
    """`dashes`: matplotlib dash pattern in line widths, None for solid."""

    label: str
    colour: str
    dashes: tuple[float, ...] | None = None
    marker: str = "o"

    @property
    def line(self) -> dict[str, Any]:
        """Colour, label and dashes as keyword arguments of a matplotlib line."""
        return {"color": self.colour, "label": self.label, "dashes": self.dashes or (None, None)}


DASHED = (2.2, 0.9)
DASH_DOT = (3.4, 0.8, 0.9, 0.8)
DOTTED = (0.9, 0.7)

MODELS: dict[str, LineStyle] = {
    "fox_pro": LineStyle("FoX (Pro)", "#D55E00"),
    "transformer_pro": LineStyle("Transformer (Pro)", "#0072B2", marker="s"),
    "fox_llama": LineStyle("FoX (LLaMA)", "#E69F00", DASHED),
    "transformer_llama": LineStyle("Transformer (LLaMA)", "#56B4E9", DASHED, "s"),
    "mamba2": LineStyle("Mamba-2", "#009E73", DASH_DOT, "^"),
    "hgrn2": LineStyle("HGRN2", "#CC79A7", DASH_DOT, "v"),
    "delta_net": LineStyle("DeltaNet", "#4D4D4D", DOTTED, "D"),
    "samba": LineStyle("Samba", "#8C6D1F", DASH_DOT, "P"),
    "transformer_swa": LineStyle("Transformer-SWA (LLaMA)", "#6A51A3", DASHED, "X"),
    "stick_breaking": LineStyle("Stick-breaking", "#004D40", DASHED, "*"),
    "alibi": LineStyle("ALiBi (LLaMA)", "#B9835F", DASH_DOT, "P"),
    "alibi_pro": LineStyle("ALiBi (Pro)", "#8C2D04", marker="P"),
    "gated_delta_net": LineStyle("Gated DeltaNet", "#1B7837", DOTTED, "h"),
    "kimi_delta_attention": LineStyle("Kimi Delta Attention", "#762A83", DOTTED, "p"),
    "gated_linear_attention": LineStyle("Gated linear attention", "#17808F", DOTTED, "d"),
    "fox_hybrid": LineStyle("FoX hybrid", "#DD1C77", marker="<"),
    "path_fox": LineStyle("PaTH-FoX", "#CB181D", DASHED, ">"),
    "wall_attention": LineStyle("Wall attention", "#7570B3", DASHED, "H"),
    "mamba3": LineStyle("Mamba-3", "#66A61E", marker="X"),
    "stick_breaking_pro": LineStyle("Stick-breaking (Pro)", "#004D40", marker="*"),
    "fixed_pro": LineStyle("Fixed gates (Pro)", "#A6761D", DASH_DOT, "8"),
    "learned_pro": LineStyle("Learned constant gates (Pro)", "#E7298A", DASH_DOT, "8"),
}

SEVEN = ("fox_pro", "transformer_pro", "fox_llama", "transformer_llama", "mamba2", "hgrn2", "delta_net")
"""The models of the paper's main experiments."""
RECURRENT = ("mamba2", "hgrn2", "delta_net")
PAIRS = (("fox_pro", "transformer_pro"), ("fox_llama", "transformer_llama"))
"""FoX and the Transformer of the same architecture."""
FAMILIES = (("fox_pro", "fox_llama"), ("transformer_pro", "transformer_llama"))
"""Pro and LLaMA of the same attention."""

# From dark to light, for the members of one family; distinguishable in grey, too.
FOX_SHADES = ("#7F2704", "#D55E00", "#FDAE6B", "#FDD0A2")
TRANSFORMER_SHADES = ("#08306B", "#0072B2", "#6BAED6", "#C6DBEF")
SHADES = ("#440154", "#31688E", "#35B779", "#B5A500", "#8C510A", "#E7298A")
"""A sequence of up to six unrelated settings."""


def style_of(model: str, label: str | None = None) -> LineStyle:
    """Return a model's style, with another label if given; a model that the suite does not know is grey, named by its key."""
    style = MODELS.get(model, LineStyle(model, "#8A8A8A", DOTTED, "."))
    return style if label is None or label == model else replace(style, label=label)


def title(label: str) -> str:
    """Return a label as it is printed: a model's key becomes its name, other labels are unchanged."""
    return MODELS[label].label if label in MODELS else label


@cache
def rank(model: str) -> int:
    """Place in the paper's order; models that the suite does not know come last."""
    return list(MODELS).index(model) if model in MODELS else len(MODELS)


def ordered(models: Iterable[str]) -> list[str]:
    """The given models, each once, in the paper's order; unknown ones last, by name."""
    return sorted(set(models), key=lambda model: (rank(model), model))


def missing_of(models: Iterable[str], there: Collection[str]) -> list[str]:
    """Names of the models that are not there, each once."""
    return [title(model) for model in dict.fromkeys(models) if model not in there]


def pairs_in(there: Collection[str], pairs: Sequence[tuple[str, str]] = PAIRS) -> tuple[list[tuple[str, str]], list[str]]:
    """Return the pairs whose models are both there, and the names of the other pairs."""
    found = [pair for pair in pairs if set(pair) <= set(there)]
    return found, [f"{title(one)} with {title(other)}" for one, other in pairs if (one, other) not in found]
