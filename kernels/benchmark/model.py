"""Times of a training step of flash-linear-attention's FoX, with its own attention and with ours as its backend."""

import math
import os
import time
from collections.abc import Iterator
from datetime import UTC, datetime

import torch
from torch import nn

from kernels.benchmark.operators import DTYPE, Shape
from kernels.benchmark.rows import SHAPE
from kernels.benchmark.times import Row

KIND = "fla_model"
SHAPES: tuple[Shape, ...] = ((2, 16_384, 16, 64), (1, 16_384, 8, 128))
LAYERS, VOCAB_SIZE = 24, 32_000
"""Sizes of fla's smallest model: 340M parameters with 16 heads of 64."""
STEPS, SAMPLES = 4, 5
"""Steps per sample, without synchronisation in between, as in training. A first sample, for tuning, is dropped."""
BACKENDS = {"fla": "0", "fla, ours as backend": "1"}


def make_model(hidden_size: int, num_heads: int) -> nn.Module:
    """Build fla's FoX with fresh weights. Raises ImportError if fla is not installed."""
    import kernels.hf_guard  # isort: skip  (before fla)
    from fla.models import ForgettingTransformerConfig, ForgettingTransformerForCausalLM

    import kernels.forgetting_attention.fla  # noqa: F401

    config = ForgettingTransformerConfig(
        hidden_size=hidden_size, num_heads=num_heads, num_hidden_layers=LAYERS, vocab_size=VOCAB_SIZE
    )
    model = ForgettingTransformerForCausalLM(config)
    assert isinstance(model, nn.Module)
    return model


def measure_model(shapes: tuple[Shape, ...], device: str = "cuda") -> Iterator[Row]:
    """Yield a row per backend and shape: forward, backward and no optimiser, bf16 autocast, fp32 weights. Raises RuntimeError
    if the losses of the backends differ by more than a thousandth."""
    date = datetime.now(UTC).isoformat(timespec="seconds")
    for shape in shapes or SHAPES:
        B, T, H, D = shape
        torch.manual_seed(0)
        try:
            model = make_model(H * D, H).to(device)
        except ImportError as error:
            print(f"not measured: fla's FoX ({error})")
            return
        ids, losses = torch.randint(VOCAB_SIZE, (B, T), device=device), []
        for name, on in BACKENDS.items():
            os.environ["FLA_FORGETTING_ATTENTION"] = on  # fla reads it in each call
            samples = [_sample(model, ids) for _ in range(1 + SAMPLES)][1:]
            losses.append(samples[-1][1])
            low, middle, high = torch.tensor([ms for ms, _ in samples]).quantile(torch.tensor([0.2, 0.5, 0.8])).tolist()
            print(f"{shape} {name}: {middle:.1f} ms, {B * T / middle * 1e3:,.0f} tokens/s, loss {losses[-1]:.4f}", flush=True)
            about = {"date": date, "provider": name, "operation": "training step", "gates": "fresh weights",
                     "dtype": str(DTYPE).removeprefix("torch."), **dict(zip(SHAPE, shape, strict=True))}  # fmt: skip
            quantiles = {"ms_q20": round(low, 3), "ms_q50": round(middle, 3), "ms_q80": round(high, 3)}
            yield {**about, **quantiles, "effective_tflops": 0.0, "max_error": math.nan}
        if abs(losses[0] - losses[1]) > 1e-3 * losses[0]:
            raise RuntimeError(f"losses of {' and '.join(BACKENDS)} are {losses[0]:.4f} and {losses[1]:.4f}")


def _sample(model: nn.Module, ids: torch.Tensor) -> tuple[float, float]:
    """Run STEPS of forward and backward; return milliseconds per step, and the loss."""
    begin = time.perf_counter()
    for _ in range(STEPS):
        with torch.autocast(ids.device.type, DTYPE):
            loss = model(input_ids=ids, labels=ids).loss
        loss.backward()
        model.zero_grad(set_to_none=True)
    value = loss.item()
    if ids.is_cuda:
        torch.cuda.synchronize()
    return 1e3 * (time.perf_counter() - begin) / STEPS, value
