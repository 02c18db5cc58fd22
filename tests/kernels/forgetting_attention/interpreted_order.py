"""In which order the Hopper backward pass adds, on a CPU: fixed, whatever the pace of its programs. Run in a process of its own
by `test_without_gpu`, as pytest."""

import random
import threading
import time
from typing import Any

import pytest
import torch
from torch import Tensor
from triton.runtime import interpreter
from triton.runtime.interpreter import InterpreterBuilder

from kernels.forgetting_attention.hopper import backward, backward_steps, forward
from kernels.forgetting_attention.portable.prepare import Prepared, prepare
from kernels.forgetting_attention.visibility import TILE
from tests.kernels.forgetting_attention.gluon_interpreter import as_python, interpreted_gluon, program
from tests.kernels.forgetting_attention.interpreted_regimes import _ExactBuilder

H = 2


@pytest.fixture(autouse=True, scope="module")
def _interpreter() -> Any:
    interpreter.interpreter_builder.__class__ = _ExactBuilder
    yield
    interpreter.interpreter_builder.__class__ = InterpreterBuilder


def adders(prepared: Prepared, Q: int, T: int) -> dict[tuple[int, int], list[int]]:
    """By head and step of queries, the key tiles that add to it, in their order."""
    found = {}
    for head in range(H):
        for m in range(0, Q, backward.BLOCK_M):
            last = (min(m + backward.BLOCK_M, Q) - 1 + T - Q) // TILE
            found[head, m] = list(range(int(prepared.start[0, head, m // TILE]), last + 1))
    return found


def run(inputs: list[Tensor], prepared: Prepared, at_once: int, monkeypatch: pytest.MonkeyPatch) -> tuple[Any, dict]:
    """Gradients, and who added to what in which order, with `at_once` programs side by side that stop now and then."""
    pause = random.Random(at_once)
    order: dict[tuple[int, int], list[int]] = {}
    lock, real = threading.Lock(), as_python(backward_steps._add_dq)

    def recorded(dq_ptr: Any, dq_MD: Tensor, places: Tensor, m: Any, WARPS: int) -> None:
        time.sleep(pause.choice((0.0, 0.01)) if at_once > 1 else 0.0)
        tile, head = divmod(int(program.id), H)  # all heads side by side
        with lock:
            order.setdefault((head, int(m)), []).append(tile)
            real(dq_ptr, dq_MD, places, m, WARPS)

    with monkeypatch.context() as patch, interpreted_gluon(at_once):
        patch.setattr(backward_steps, "_add_dq", recorded)
        return backward.hopper_backward(*inputs, prepared, 0.125, True), order


@pytest.mark.parametrize(
    ("D", "Q", "T", "gate", "threshold"),
    [(64, 500, 500, -0.01, None), (128, 300, 440, -0.01, None), (64, 640, 640, -0.1, -20.0)],
    ids=["whole", "fewer queries than keys", "pruned"],
)
def test_sums_have_one_order(
    D: int, Q: int, T: int, gate: float, threshold: float | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    generator = torch.Generator().manual_seed(4)
    q, do = (torch.randn(1, Q, H, D, generator=generator).bfloat16() for _ in range(2))
    k, v = (torch.randn(1, T, H, D, generator=generator).bfloat16() for _ in range(2))
    limit = None if threshold is None else torch.full((1, H), threshold)
    prepared = prepare(torch.full((1, T, H), gate), Q, limit, None, None, None, exact=False)
    with interpreted_gluon():
        o, lse, _ = forward.hopper_forward(q, k, v, prepared, 0.125)
    expected, expected_order = None, adders(prepared, Q, T)
    assert threshold is None or max(map(len, expected_order.values())) == 3
    for at_once in (1, 3, 8):
        gradients, order = run([do, q, k, v, o, lse], prepared, at_once, monkeypatch)
        assert order == expected_order
        expected = expected or gradients
        assert all(torch.equal(x, y) for x, y in zip(gradients, expected, strict=True))
