"""How each model is called and drawn, in every figure and table.

Pairs share a hue (FoX warm, Transformer blue) and differ in lightness and line: Pro is dark and solid, LLaMA light and
dashed. Colours are those of Okabe and Ito, distinguishable with the common colour-vision deficiencies and in grey.
"""

from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True)
class ModelStyle:
    """`dashes`: matplotlib dash pattern in line widths, None for solid."""

    label: str
    colour: str
    dashes: tuple[float, ...] | None
    marker: str


_DASHED = (2.2, 0.9)
_DASH_DOT = (3.4, 0.8, 0.9, 0.8)
_DOTTED = (0.9, 0.7)

MODELS: dict[str, ModelStyle] = {
    "fox_pro": ModelStyle("FoX (Pro)", "#D55E00", None, "o"),
    "transformer_pro": ModelStyle("Transformer (Pro)", "#0072B2", None, "s"),
    "fox_llama": ModelStyle("FoX (LLaMA)", "#E69F00", _DASHED, "o"),
    "transformer_llama": ModelStyle("Transformer (LLaMA)", "#56B4E9", _DASHED, "s"),
    "mamba2": ModelStyle("Mamba-2", "#009E73", _DASH_DOT, "^"),
    "hgrn2": ModelStyle("HGRN2", "#CC79A7", _DASH_DOT, "v"),
    "delta_net": ModelStyle("DeltaNet", "#4D4D4D", _DOTTED, "D"),
    "samba": ModelStyle("Samba", "#8C6D1F", _DASH_DOT, "P"),
    "transformer_swa": ModelStyle("Transformer-SWA (LLaMA)", "#6A51A3", _DASHED, "X"),
    "stick_breaking": ModelStyle("Stick-breaking", "#004D40", _DOTTED, "*"),
}

SEVEN = ("fox_pro", "transformer_pro", "fox_llama", "transformer_llama", "mamba2", "hgrn2", "delta_net")
RECURRENT = ("mamba2", "hgrn2", "delta_net")


def style_of(model: str) -> ModelStyle:
    """Style of a model key; a model the suite does not know (any Hugging Face model) is called by its key, in grey."""
    return MODELS.get(model, ModelStyle(model, "#8A8A8A", _DOTTED, "."))


def label(model: str) -> str:
    return style_of(model).label


def ordered(models: Iterable[str]) -> list[str]:
    """The given models, each once, in the paper's order; unknown ones last, by name."""
    known = list(MODELS)
    return sorted(set(models), key=lambda model: (known.index(model) if model in MODELS else len(known), model))
