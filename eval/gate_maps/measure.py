"""Gate maps: one forward pass of a document, from whose queries, keys and gates statistics and maps are computed.

Suffixes: T tokens, H heads, D head dimension, G cells of the display grid."""

import math

import kernels.hf_guard  # noqa: F401  # isort: skip  (before transformers)
import numpy as np
import pandas as pd
import torch
from torch import Tensor, nn

from data.sampler import bos_roll
from eval.gate_maps.spec import Spec
from eval.runner.context import Context
from eval.runner.heldout import open_heldout
from eval.runner.loading import Loaded
from kernels.forgetting_attention import pruned_tile_share
from models.forgetting_transformer.module import ForgettingAttention, gated_layers, watched

Head = tuple[int, int]


def evaluate(loaded: Loaded, spec: Spec, context: Context) -> pd.DataFrame:
    """Return statistics and matrices. `context.extras` gets seq_len, cell, distance, document. ValueError for a model without
    forget gates, token ids that are not the model's, and for layers, heads or documents that do not exist."""
    corpus = open_heldout(spec, loaded, context)
    document = slice(spec.document, spec.document + 1)
    inputs_BT = bos_roll(corpus.heldout.read(document, 0, spec.seq_len), corpus.spec.bos_id)[0].to(context.device)
    model, compute = loaded.model, context.compute(spec.precision)
    layers = gated_layers(model)
    num_heads = next(iter(layers.values())).spec.num_heads
    spec.check_heads(len(layers), num_heads)
    chosen = [(layer, head) for layer in spec.layers or layers for head in spec.heads or range(num_heads)]
    rows: list[tuple] = []
    statistics: dict[Head, dict[str, float]] = {}
    taken: dict[int, tuple[Tensor, Tensor, Tensor]] = {}

    def take(layer: ForgettingAttention, q: Tensor, k: Tensor, v: Tensor, log_fgate_BTH: Tensor) -> None:
        taken[layer.layer_idx] = q, k, log_fgate_BTH

    with compute.inference():
        with watched(layers, take):  # no logits are needed, so only the last position's are computed
            model(input_ids=inputs_BT, use_cache=False, logits_to_keep=1)
        for place, (q, k, log_fgate_BTH) in taken.items():
            threshold = layers[place].threshold(q, k, spec.log_tolerance)
            assert threshold is not None
            share_H = pruned_tile_share(log_fgate_BTH, threshold)[0]
            for head in range(num_heads):
                decay_T = log_fgate_BTH[0, :, head].double().cumsum(0)
                statistics[place, head] = {
                    "half_life_tokens": half_life(decay_T),
                    "median_F": math.exp(median_decay(decay_T, spec.distance)),
                    "pruned_share": float(share_H[head]),
                }
        shown, count = sorted(set(chosen), key=lambda head: (statistics[head]["median_F"], head)), spec.num_maps
        if len(shown) > count:  # the most local and most global heads; one more local head if odd
            shown = shown[: -(-count // 2)] + shown[len(shown) - count // 2 :]
        for place, head in shown:
            q, k, log_fgate_BTH = taken[place]
            drawn = maps(q[0, :, head], k[0, :, head], log_fgate_BTH[0, :, head], spec.grid)
            for quantity, matrix_GG in zip("FA", drawn, strict=True):
                lower = zip(*np.tril_indices(len(matrix_GG)), strict=True)
                rows.extend((place, head, quantity, row, col, matrix_GG[row, col]) for row, col in lower)
    for which, values in statistics.items():
        rows += [(*which, quantity, -1, -1, value) for quantity, value in values.items()]
    context.extras |= {name: getattr(spec, name) for name in ("seq_len", "distance", "document")}
    context.extras["cell"] = -(-spec.seq_len // spec.grid)
    return pd.DataFrame(rows, columns=list(spec.SCHEMA.columns))


def median_decay(decay_T: Tensor, distance: int) -> float:
    """Return the median over queries i of D_{i, i - distance}; `decay_T` is the cumulative log gate."""
    return float((decay_T[distance:] - decay_T[:-distance]).median())


def half_life(decay_T: Tensor) -> float:
    """Return the distance in tokens, interpolated, at which the median of D over queries reaches -log 2. Beyond half the text,
    where few queries are left, it is extrapolated at the mean rate of decay."""
    target = -math.log(2)
    low, high = 0, len(decay_T) // 2
    at_high = median_decay(decay_T, high)
    if at_high > target:
        return high * target / at_high if at_high < 0 else math.inf
    at_low = 0.0
    while high - low > 1:
        middle = (low + high) // 2
        value = median_decay(decay_T, middle)
        if value > target:
            low, at_low = middle, value
        else:
            high, at_high = middle, value
    return low + (target - at_low) / (at_high - at_low)


def maps(q_TD: Tensor, k_TD: Tensor, log_fgate_T: Tensor, grid: int) -> tuple[np.ndarray, np.ndarray]:
    """Return F (mean) and A (maximum) over cells of ceil(T / grid) tokens squared, (G, G), NaN above the diagonal. Queries are
    processed in blocks, so that memory is (cell, T)."""
    T, D = q_TD.shape
    cell = -(-T // grid)
    size = -(-T // cell)
    decay_T = log_fgate_T.double().cumsum(0)
    keys_T = torch.arange(T, device=q_TD.device)
    forget_GG, attend_GG = np.full((size, size), np.nan), np.full((size, size), np.nan)
    for block in range(size):
        queries = slice(block * cell, min(T, (block + 1) * cell))
        last = queries.stop
        causal = keys_T[None, :last] <= keys_T[queries, None]
        decay = (decay_T[queries, None] - decay_T[None, :last]).float()
        forget = decay.exp().masked_fill(~causal, 0.0)
        logits = q_TD[queries].float() @ k_TD[:last].float().T / math.sqrt(D) + decay
        attend = logits.masked_fill(~causal, -math.inf).softmax(-1)
        cells, pad = block + 1, (0, (block + 1) * cell - last)
        pairs, total, most = (nn.functional.pad(x, pad).unflatten(1, (cells, cell)) for x in (causal, forget, attend))
        forget_GG[block, :cells] = (total.sum((0, 2)) / pairs.sum((0, 2))).cpu().numpy()
        attend_GG[block, :cells] = most.amax((0, 2)).cpu().numpy()
    return forget_GG, attend_GG
