"""Times of an operator's providers on this GPU: each is checked against float64 first, then timed. Every provider has a time
limit, and rows are stored group by group, so that an interruption loses none.

Effective TFLOP/s of attention include skipped work: 4 B H T^2 D / 2 forward, and 3.5 times that forward + backward."""

import math
import signal
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

import torch
import triton
from torch import Tensor

from kernels.benchmark.operators import DTYPE, Attention, Operator, Shape
from kernels.benchmark.rows import BASELINE, ROPE_BASELINE, SHAPE
from results.measured import add

Row = dict[str, Any]
FACTORS = {"forward": 1.0, "forward+backward": 3.5, "decode": 0.0}  # decoding is memory-bound: FLOPs are not counted
_began = time.monotonic()


class TooLong(Exception):
    """Raised at the time limit; unlike TimeoutError it is no OSError, which compilers and caches catch."""


@contextmanager
def limited(seconds: int) -> Iterator[None]:
    """Raise TooLong after `seconds`, as soon as Python runs again, in the calling thread; autograd runs in it, too."""

    def stop(*_: object) -> None:
        raise TooLong(f"more than {seconds} s to compile, tune and time")

    before = signal.signal(signal.SIGALRM, stop)
    signal.alarm(seconds)
    try:
        with torch.autograd.set_multithreading_enabled(False):
            yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


def keep(kind: str, rows: Iterable[Row], label: str, code: str, folder: Path) -> None:
    """Store rows as one measurement; after an error, Ctrl-C or SIGTERM, the rows that there are."""
    terminated = signal.signal(signal.SIGTERM, signal.default_int_handler)
    found = []
    try:
        for row in rows:
            found.append(row)
    finally:
        signal.signal(signal.SIGTERM, terminated)
        if found:
            add(kind, found, torch.cuda.get_device_name(), code=code, folder=folder)
        print(f"[{time.monotonic() - _began:.0f} s] {label}: {len(found)} rows kept", flush=True)


def measure(operator: Operator, shape: Shape, only: tuple[str, ...], limit_s: int) -> Iterator[Row]:
    """Time forward and forward + backward of every provider (those in `only` and cuDNN's, or all) at one shape, in one run."""
    date = datetime.now(UTC).isoformat(timespec="seconds")  # common to rows that are compared with each other
    for regime in operator.regimes:
        *inputs, do = operator.inputs(shape, regime)
        detached = [x.detach() for x in inputs]
        for name, attention in operator.providers(shape).items():
            gates = operator.label(name, regime)
            if not gates or (only and name not in (*only, BASELINE, ROPE_BASELINE)):
                continue
            wanted = inputs[:3] if name.startswith("softmax") else inputs
            runs: dict[str, Callable[[], object]] = {"forward": partial(attention, *detached)}
            runs["forward+backward"] = partial(_both, attention, inputs, wanted, do)
            error = partial(check, operator, name, attention, shape[3], regime)
            yield from timed(name, gates, shape, runs, error, date, limit_s, operator.work(shape))


def _both(attention: Attention, inputs: list[Tensor], wanted: list[Tensor], do: Tensor) -> object:
    return torch.autograd.grad(attention(*inputs), wanted, do)


def check(operator: Operator, name: str, attention: Attention, head_dim: int, regime: str) -> float:
    """Compute the largest error of o against float64 at 1,024 tokens, NaN without a reference. Raises RuntimeError if an output
    or gradient is more than a few bf16 ulp off."""
    exact = operator.exact(name)
    if exact is None:
        return math.nan
    *inputs, do = operator.inputs((1, 1024, 4, head_dim), regime)
    doubles = [x.detach().double().requires_grad_() for x in inputs]
    o, expected = attention(*inputs), exact(*doubles)
    wanted = [expected, *torch.autograd.grad(expected, doubles[:3], do.double())]
    found = [o, *torch.autograd.grad(o, inputs[:3], do)]
    for what, x, y in zip(("o", "dq", "dk", "dv"), found, wanted, strict=True):
        error = ((x.double() - y).norm() / y.norm()).item()
        if not error < 2e-2:
            raise RuntimeError(f"{what} is off by {error:.1e} of its norm")
    return (o.double() - expected).abs().max().item()


def timed(
    provider: str, gates: str, shape: Shape, runs: dict[str, Callable[[], object]], check: Callable[[], float], date: str,
    limit_s: int, work: float = 0.0,
) -> list[Row]:  # fmt: skip
    """Return a row for each operation: none if `check` or an operation raises, rows without times if the limit was reached
    first. `work` is a forward pass's FLOPs, 0 if they are not counted."""
    dtype, label = str(DTYPE).removeprefix("torch."), f"{shape} {gates} {provider}"
    about = {"date": date, "provider": provider, "gates": gates, "dtype": dtype, **dict(zip(SHAPE, shape, strict=True))}
    names, error = ("ms_q20", "ms_q50", "ms_q80", "effective_tflops"), math.nan
    times: dict[str, tuple[float, ...]] = dict.fromkeys(runs, (math.nan, math.nan, math.nan, 0.0))
    try:
        with limited(limit_s):
            error = check()
            for operation, run in runs.items():
                if operation == "decode":
                    ms = triton.testing.do_bench_cudagraph(run, quantiles=[0.2, 0.5, 0.8])
                else:
                    ms = triton.testing.do_bench(run, warmup=50, rep=200, quantiles=[0.2, 0.5, 0.8])
                tflops = FACTORS[operation] * work / ms[1] * 1e-9
                times[operation] = (*(round(t, 5) for t in ms), round(tflops, 2))
                print(f"{label}: {operation} {ms[1]:.4f} ms, {tflops:.0f} TFLOP/s", flush=True)
    except TooLong as problem:
        print(f"{label}: {problem}", flush=True)
    except Exception as problem:  # other projects' compilers may raise anything
        print(f"{label}: not measured ({type(problem).__name__}: {problem})", flush=True)
        return []
    found = {"max_error": float(f"{error:.3g}")}
    return [{**about, "operation": name, **dict(zip(names, row, strict=True)), **found} for name, row in times.items()]
