"""ACP, Figure 1: Tiles that pruning skips.

Tiles of the logits that the kernel computes, without and with pruning. For each block of queries, the skipped tiles are a
prefix of the keys whose end never moves back. The paper draws a sketch; these are heads of a trained model on real text."""

import numpy as np
import pandas as pd
from matplotlib.colors import ListedColormap

from analysis.pruning import Skipped, skipped, tile_note
from analysis.study import Study
from analysis.style import WIDTH, Files, plt, publish, tokens
from experiments.acp import acp_pruned_share
from experiments.acp.acp_pruned_share import AXES, summary  # noqa: F401
from experiments.evaluations import skipped as evals  # noqa: F401

HEADS = 3
COMPUTED, SKIPPED, OUTSIDE = 2, 1, 0
COLOURS = ListedColormap(["#FFFFFF", "#E3E3E3", "#D55E00"])


def runs(scale, seeds):
    return list(acp_pruned_share.runs(scale, seeds[:1]))[-1:]


def chosen(each: Skipped) -> list[tuple[int, int]]:
    """Return the head that skips least, the median one, and the one that skips most."""
    order = each.by_head.sort_values("tiles_pruned", kind="stable").index.to_list()
    return [order[place * (len(order) - 1) // (HEADS - 1)] for place in range(HEADS)]


def grid(first_M: np.ndarray) -> np.ndarray:
    """Return (M, M), the state of every tile (COMPUTED and so on), from the first key tile that each query tile computes."""
    query, key = np.indices((len(first_M), len(first_M)))
    return np.where(key > query, OUTSIDE, np.where(key < first_M[:, None], SKIPPED, COMPUTED))


def draw(study: Study) -> Files:
    each = skipped(study)[-1]
    size = len(next(iter(each.first.values())))
    panels = {"without pruning": np.zeros(size)}
    for layer, head in chosen(each):
        share = each.by_head["tiles_pruned"][layer, head]
        panels[f"layer {layer + 1}, head {head + 1}: {share:.0%} skipped"] = each.first[layer, head]
    figure, row = plt.subplots(1, len(panels), figsize=(WIDTH, 2.2), sharey=True)
    frames = []
    for axes, (name, first_M) in zip(row, panels.items(), strict=True):
        axes.pcolormesh(grid(first_M), cmap=COLOURS, vmin=0, vmax=2, edgecolors="white", linewidth=min(0.4, 12 / size))
        axes.set(aspect="equal", ylim=(size, 0), xlabel="key tile")
        axes.set_title(name, fontsize=7)
        axes.grid(False)
        frames.append(pd.DataFrame({"panel": name, "query_tile": np.arange(size), "first_key_tile": first_M}))
    row[0].set_ylabel("query tile")
    what, colours = f"context {tokens(each.context)}, {tile_note((each,))}", "orange: computed, grey: skipped"
    of = "heads that skip least, in the middle, and most; shares are means over documents, tiles those of one"
    return publish(study, figure, frames, what, colours, of)
