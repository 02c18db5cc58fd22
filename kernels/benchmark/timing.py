"""Timing of providers on this GPU: each is checked against float64 first. Rows are stored shape by shape, so that an
interruption loses none."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from results.measured import add

Row = dict[str, Any]
Shape = tuple[int, int, int, int]
"""B, T, H, D."""
Attention = Callable[..., Any]
DTYPE = torch.bfloat16


def keep(kind: str, rows: Iterable[Row], code: str, folder: Path) -> None:
    """Store rows as one measurement; after an error or Ctrl-C, the rows that there are."""
    found = []
    try:
        for row in rows:
            found.append(row)
    finally:
        if found:
            add(kind, found, torch.cuda.get_device_name(), code=code, folder=folder)
            print(f"{len(found)} rows kept", flush=True)


def timed(
    provider: str,
    gates: str,
    shape: Shape,
    date: str,
    check: Callable[[], float],
    runs: Mapping[str, Callable[[], list[float]]],
    forward_flops: float = 0.0,
) -> Iterator[Row]:
    """Yield a row per operation after `check` has returned the largest error of the output. `runs`: operation -> quantiles
    20, 50 and 80 in milliseconds. A provider that fails is named and has no further row."""
    label = f"{provider}, {gates}, {shape}"
    try:
        error = check()
        for operation, run in runs.items():
            ms = run()
            tflops = forward_flops * {"forward": 1.0, "forward+backward": 3.5}.get(operation, 0.0) / ms[1] * 1e-9
            print(f"{label}: {operation} {ms[1]:.4f} ms, {tflops:.0f} TFLOP/s", flush=True)
            yield {
                "date": date, "provider": provider, "operation": operation, "gates": gates,
                "dtype": str(DTYPE).removeprefix("torch."),
                **dict(zip(("batch", "seq_len", "num_heads", "head_dim"), shape, strict=True)),
                **dict(zip(("ms_q20", "ms_q50", "ms_q80"), (round(t, 5) for t in ms), strict=True)),
                "effective_tflops": round(tflops, 2), "max_error": float(f"{error:.3g}"),
            }  # fmt: skip
    except Exception as problem:  # other projects' compilers may raise anything
        print(f"{label}: not measured ({type(problem).__name__}: {problem})", flush=True)


def largest_error(found: list[Tensor], exact: list[Tensor]) -> float:
    """Return the largest error of the first tensor. Raises RuntimeError if one is more than a few bf16 ulp of its norm off."""
    for name, x, y in zip(("o", "dq", "dk", "dv"), found, exact, strict=False):
        error = ((x.double() - y).norm() / y.norm()).item()
        if not error < 2e-2:
            raise RuntimeError(f"{name} is off by {error:.1e} of its norm")
    return (found[0].double() - exact[0]).abs().max().item()
