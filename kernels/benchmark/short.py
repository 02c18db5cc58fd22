"""Wall time of short calls, where launches and checks take longer than the arithmetic: one after another as they are written,
and replayed in a CUDA graph. Short: one sequence of 1,024 tokens, and one query on 8,192 keys. A backward pass runs in a thread
of autograd's: what Python takes there, on another core, shows beside the same in one thread."""

import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from functools import partial
from itertools import product
from typing import Any

import torch
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention

from kernels.benchmark.keep import Row, limited
from kernels.benchmark.operators import DTYPE, Shape, make_inputs, providers
from kernels.benchmark.rows import BASELINE
from kernels.benchmark.rows import SHAPE as SHAPE_COLUMNS
from kernels.benchmark.times import now
from kernels.forgetting_attention import forgetting_attention

SHAPE = (1, 1024, 12, 64)
KEYS = (1, 8192, 12, 64)
BACKENDS = {BASELINE: SDPBackend.CUDNN_ATTENTION, "softmax flash-2": SDPBackend.FLASH_ATTENTION}
GATES = "local to global"
CALLS, BATCHES = 200, 7
ONE_THREAD = "forward+backward, one thread"


def measure_short(names: tuple[str, ...], limit_s: int) -> Iterator[Row]:
    """Time forward, forward + backward (with autograd's thread and without) and decoding of every provider (of `names`, and
    cuDNN's): first all as written, then all in graphs, so that a capture that fails spoils nothing else. Errors: see
    `times`, where the same functions are held to float64."""
    found = {name: f for name, f in providers().items() if not name.endswith("pruned")}
    found["ours, auto"] = partial(forgetting_attention, adaptive_threshold="auto")
    date = now()
    for graph, (name, attention) in product((False, True), found.items()):
        if names and name not in (*names, BASELINE):
            continue
        for operation, shape, call in _calls(name, attention):
            if graph and (operation == ONE_THREAD or not (name in BACKENDS or name.startswith("ours"))):
                continue  # a graph has no host's threads; the others tune themselves or synchronise at will
            backend = sdpa_kernel(BACKENDS[name]) if name in BACKENDS else nullcontext()
            try:
                with (
                    backend,
                    torch.autograd.set_multithreading_enabled(operation != ONE_THREAD),
                    torch.set_grad_enabled(operation.startswith("forward+backward")),
                ):
                    with limited(limit_s):
                        call()
                    us = wall_us(_captured(call) if graph else call)
            except Exception as problem:  # compilers of others raise whatever they like
                what = f"{shape} {name}: {operation}{' in a graph' * graph}"
                print(f"{what} not measured ({type(problem).__name__}: {problem})", flush=True)
                continue
            print(f"{shape} {name}: {operation}{' in a graph' * graph} {us['us_median']:.1f} us", flush=True)
            yield {
                "date": date,
                "provider": name,
                "operation": operation,
                "gates": GATES,
                "dtype": str(DTYPE).removeprefix("torch."),
                **dict(zip(SHAPE_COLUMNS, shape, strict=True)),
                "graph": graph,
                **us,
            }


def _calls(name: str, attention: Callable[..., Tensor]) -> Iterator[tuple[str, Shape, Callable[[], Any]]]:
    """Yield operation, shape (of the keys) and call; softmax without its transposes and the choice of its backend."""
    *inputs, do = make_inputs(SHAPE, GATES)
    k, v, log_fgate = (x.detach() for x in make_inputs(KEYS, GATES)[1:4])
    q = inputs[0].detach()[:, :1].contiguous()
    detached = [x.detach() for x in inputs]
    if name in BACKENDS:
        leaves = [x.detach().transpose(1, 2).requires_grad_() for x in inputs[:3]]
        heads, do = [x.detach() for x in leaves], do.transpose(1, 2)
        softmax: Callable[..., Tensor] = scaled_dot_product_attention
        yield "forward", SHAPE, partial(softmax, *heads, is_causal=True)
        for operation in ("forward+backward", ONE_THREAD):
            yield operation, SHAPE, lambda: torch.autograd.grad(softmax(*leaves, is_causal=True), leaves, do)
        yield "decode", KEYS, partial(softmax, *(x.transpose(1, 2) for x in (q, k, v)))
        return
    yield "forward", SHAPE, partial(attention, *detached)
    wanted = inputs[:3] if name.startswith("softmax") else inputs
    for operation in ("forward+backward", ONE_THREAD):
        yield operation, SHAPE, lambda: torch.autograd.grad(attention(*inputs), wanted, do)
    if name.startswith("ours"):  # the others have no kernel for it
        yield "decode", KEYS, partial(attention, q, k, v, log_fgate)


def wall_us(call: Callable[[], Any]) -> dict[str, float]:
    """Measure the microseconds of a call, `CALLS` without waiting: best, median and worst of `BATCHES`, and the median until
    the host is through with them."""
    for _ in range(20):
        call()
    whole, host = [], []
    for _ in range(BATCHES):
        torch.cuda.synchronize()
        began = time.perf_counter()
        for _ in range(CALLS):
            call()
        host.append(1e6 / CALLS * (time.perf_counter() - began))
        torch.cuda.synchronize()
        whole.append(1e6 / CALLS * (time.perf_counter() - began))
    found = {"best": min(whole), "median": statistics.median(whole), "worst": max(whole), "host": statistics.median(host)}
    return {f"us_{name}": round(us, 2) for name, us in found.items()}


def _captured(call: Callable[[], Any]) -> Callable[[], None]:
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        call()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        call()
    return graph.replay
