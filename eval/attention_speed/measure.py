"""Attention speed: the layers' inputs are recorded in one pass, then attention alone is timed, then whole training steps."""

import kernels.hf_guard  # noqa: F401  # isort: skip  (before transformers)
import numpy as np
import pandas as pd
import torch
from torch import Tensor
from transformers import PreTrainedModel

from eval.attention_speed.spec import Spec
from eval.runner.context import Compute, Context
from eval.runner.heldout import open_heldout
from eval.runner.loading import Loaded
from eval.runner.machine import check_machine
from eval.throughput.measure import QUANTILES, seconds_of, training_step
from eval.throughput.spec import Spec as Timing
from kernels.forgetting_attention import forgetting_attention
from models.forgetting_transformer.module import ForgettingAttention, gated_layers, pruning, watched

Given = tuple[ForgettingAttention, Tensor, Tensor, Tensor, Tensor]


def evaluate(loaded: Loaded, spec: Spec, context: Context) -> pd.DataFrame:
    """Return times with and without pruning. The weights are not changed. ValueError on another machine than the spec's, for a
    model without forget gates, and if memory runs out."""
    machine = check_machine(spec.machine, context.device)
    corpus = open_heldout(spec, loaded, context)
    model, compute = loaded.model, context.compute(spec.precision)
    layers = gated_layers(model)
    ids = corpus.heldout.read(slice(0, spec.batch_size), 0, spec.seq_len).astype(np.int64)
    ids_BT = torch.from_numpy(ids).to(context.device)
    found = _times(model, layers, ids_BT, spec, compute)
    rows = [(*key, *milliseconds(seconds), ids_BT.numel(), machine) for key, seconds in found.items()]
    return pd.DataFrame(rows, columns=list(spec.SCHEMA.columns))


def _times(
    model: PreTrainedModel, layers: dict[int, ForgettingAttention], ids_BT: Tensor, spec: Spec, compute: Compute
) -> dict[tuple[str, int], np.ndarray]:
    """Return the seconds of every repeat by (quantity, 0 without pruning or 1 with it)."""
    timing = Timing(seq_len=spec.seq_len, batch_size=spec.batch_size, warmup=spec.warmup, repeats=spec.repeats, compile=True)
    given: list[Given] = []
    with compute.inference(), watched(layers, lambda *what: given.append(what)):  # type: ignore[arg-type]
        model(input_ids=ids_BT, use_cache=False, logits_to_keep=1)
    found: dict[tuple[str, int], np.ndarray] = {}
    for is_pruned, tolerance in enumerate((None, spec.log_tolerance)):
        with pruning(layers.values(), tolerance, spec.rule):
            found["attention_forward", is_pruned] = _attention(given, tolerance, timing, compute, backward=False)
            found["attention", is_pruned] = _attention(given, tolerance, timing, compute, backward=True)
    given.clear()
    for is_pruned, tolerance in enumerate((None, spec.log_tolerance)):
        with (
            pruning(layers.values(), tolerance, spec.rule),
            training_step(model, ids_BT.cpu(), timing, compute) as step,
        ):
            found["step", is_pruned] = seconds_of("training steps", [step], timing, compute)
    return found


def milliseconds(seconds: np.ndarray) -> tuple[float, float, float]:
    """Return the median, the low and the high quantile in milliseconds."""
    low, median, high = 1000 * np.quantile(seconds, QUANTILES)
    return median, low, high


def _attention(given: list[Given], log_tolerance: float | None, timing: Timing, compute: Compute, backward: bool) -> np.ndarray:
    """Return the seconds of each repeat of all layers' attention, including the computation of the threshold."""
    inputs = [(layer, [x.clone().requires_grad_(backward) for x in tensors]) for layer, *tensors in given]

    def attend() -> None:
        for layer, (q, k, v, log_fgate) in inputs:
            with torch.set_grad_enabled(backward):
                o = forgetting_attention(q, k, v, log_fgate, **layer.pruning(q, k, log_tolerance))
            if backward:
                torch.autograd.grad(o, (q, k, v, log_fgate), o)

    return seconds_of("attention", [attend], timing, compute)
