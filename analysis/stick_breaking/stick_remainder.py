"""The remainder term: perplexity of stick-breaking without and with it."""

from pathlib import Path

import numpy as np

from analysis.curves import LossCurve, log_perplexity, loss_curves
from analysis.study import Study
from analysis.style import scale_note, tokens
from analysis.tables import Column, Table, over_seeds, write_table

WITH = "with remainder"


def pair(study: Study) -> tuple[LossCurve | None, LossCurve | None]:
    """The curves without and with the term."""
    curves = {curve.label: curve for curve in loss_curves(study)}
    return curves.get("stick_breaking"), curves.get(WITH)


def summary(study: Study) -> Table:
    """Perplexity at the training length and at the end of the evaluation."""
    curves = [curve for curve in pair(study) if curve is not None]
    if not curves:
        raise ValueError(f"{study.stem}: no per-token losses are stored; run its experiment first")
    lengths = sorted({study.train_len, curves[0].length})
    columns = [Column(f"ppl_{length}", f"P({tokens(length)})", 3, "lower") for length in lengths]
    values = {curve.label: [np.exp(log_perplexity(curve.losses_SN)[:, length - 1]) for length in lengths] for curve in curves}
    note = f"{scale_note(study).capitalize()}. Corpus: {study.corpora}. Training length {tokens(study.train_len)}."
    return over_seeds("Remainder term of stick-breaking attention", columns, values, note)


def draw(study: Study) -> list[Path]:
    """Write tables/STEM.{md,tex,csv}."""
    return write_table(summary(study), study.folder / "tables" / study.stem)
