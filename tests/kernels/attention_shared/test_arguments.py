"""Arguments that attention refuses, each with its words, and values on a GPU, which are looked at on request alone."""

import contextlib

import pytest
import torch
from torch import Tensor

from kernels.attention_shared.arguments import check_limits, check_tensors
from kernels.forgetting_attention import validation

HALF = torch.bfloat16


def shaped(*shape: int, dtype: torch.dtype = torch.float32, device: str = "cpu") -> Tensor:
    return torch.empty(shape, dtype=dtype, device=device)


@pytest.mark.parametrize(("q", "k", "v", "words"), [
    ((2, 3, 16), (2, 4, 2, 16), (2, 4, 2, 16), "q has shape (2, 3, 16); it must be (B, Q, H, D)."),
    ((2, 3, 4, 16), (2, 4, 16), (2, 4, 2, 16), "k has shape (2, 4, 16); it must be (B, T, Hkv, D)."),
    ((2, 3, 4, 16), (2, 4, 2, 16), (2, 4, 32), "v has shape (2, 4, 32); it must be (B, T, Hkv, D)."),
    ((2, 0, 4, 16), (2, 4, 2, 16), None, "q has shape (2, 0, 4, 16) and k (2, 4, 2, 16); no dimension may be empty."),
    ((2, 3, 4, 16), (2, 4, 0, 16), None, "and k (2, 4, 0, 16); no dimension may be empty."),
    ((2, 3, 4, 24), (2, 4, 2, 24), None, "q has head dimension 24; allowed are (16, 32, 64, 128)."),
    ((2, 3, 4, 16), (1, 4, 2, 16), None, "k has shape (1, 4, 2, 16); with q (2, 3, 4, 16) it must be (2, T, Hkv, 16)."),
    ((2, 3, 4, 16), (2, 4, 2, 32), None, "k has shape (2, 4, 2, 32); with q (2, 3, 4, 16) it must be (2, T, Hkv, 16)."),
    ((2, 3, 4, 16), (2, 4, 2, 16), (2, 4, 4, 16), "v has shape (2, 4, 4, 16); it must be k's, (2, 4, 2, 16)."),
    ((2, 5, 4, 16), (2, 4, 2, 16), None, "q has 5 positions and k 4; queries are the last positions"),
    ((2, 3, 3, 16), (2, 4, 2, 16), None, "q has 3 heads and k 2; q's must be a multiple of k's."),
])  # fmt: skip
def test_shapes_that_are_refused(q, k, v, words):
    with pytest.raises(ValueError) as met:  # noqa: PT011
        check_tensors(shaped(*q), shaped(*k), shaped(*(v or k)))
    assert words in str(met.value)


def test_tensors_that_do_not_match_are_refused():
    q = shaped(1, 2, 1, 16)
    check_tensors(q, q, q)
    for name, place in (("k", 1), ("v", 2)):
        for changes, words in (({"dtype": HALF}, f"{name} has dtype torch.bfloat16; it must be q's, torch.float32"),
                               ({"device": "meta"}, f"{name} is on meta; it must be on q's device, cpu")):  # fmt: skip
            given = [q, q, q]
            given[place] = shaped(*q.shape, **changes)
            with pytest.raises(ValueError, match=words):
                check_tensors(*given)


NUMBERS = {
    name: torch.tensor(values) for name, values in {"two": [0, 4], "one": [0], "rows": [[0, 4]], "batch": [0, 1]}.items()
}


@pytest.mark.parametrize(("batch", "queries", "given", "words"), [
    (2, 4, (NUMBERS["batch"].int(), None, None), None), (1, 4, (None, NUMBERS["two"].int(), None), None),
    (2, 4, ("batch", None, 1), None), (1, 4, (None, "two", None), None), (2, 3, ("batch", None, None), None),
    (1, 4, ("batch", None, None), r"seq_start is (2,) torch.int64; it must be (1,) int32 or int64"),
    (2, 4, (NUMBERS["batch"].float(), None, None), "seq_start is (2,) torch.float32; it must be (2,) int32"),
    (1, 4, (None, "rows", None), "cu_seqlens is (1, 2) torch.int64; it must be (documents + 1,), int32 or int64."),
    (1, 4, (None, "one", None), "cu_seqlens is (1,) torch.int64; it must be"),
    (1, 4, (None, NUMBERS["two"].float(), None), "cu_seqlens is (2,) torch.float32"),
    (2, 4, (None, "two", None), "cu_seqlens needs one packed sequence with Q == T; got batch 2, Q = 4, T = 4."),
    (1, 3, (None, "two", None), "got batch 1, Q = 3, T = 4."),
    (2, 4, (NUMBERS["batch"].to("meta"), None, None), "seq_start is on meta; it must be on q's device, cpu"),
    (1, 4, (None, NUMBERS["two"].to("meta"), None), "cu_seqlens is on meta; it must be on q's device, cpu"),
    (2, 4, (None, None, 0), "window_size is 0; it must be None or an integer >= 1."),
    (2, 4, (None, None, 2.0), "window_size is 2.0"),
])  # fmt: skip
def test_limits_that_are_refused(batch, queries, given, words):
    q, k = shaped(batch, queries, 1, 16), shaped(batch, 4, 1, 16)
    given = [NUMBERS[each] if isinstance(each, str) else each for each in given]
    if words is None:
        check_limits(q, k, *given)
        return
    with pytest.raises(ValueError) as met:  # noqa: PT011
        check_limits(q, k, *given)
    assert words in str(met.value)


@pytest.mark.parametrize("asked", [None, "0", "1"])
def test_values_on_a_gpu_are_looked_at_on_request(monkeypatch, asked):
    """A look at the meta device, which holds none, is an error."""
    monkeypatch.delenv(validation.CHECK_VALUES_VARIABLE, raising=False)
    if asked is not None:
        monkeypatch.setenv(validation.CHECK_VALUES_VARIABLE, asked)
    empty = torch.empty(1, 4, 1, device="meta")
    for look in (lambda: validation.check_values(empty, None, None), lambda: validation.check_threshold(empty)):
        with pytest.raises(RuntimeError) if asked == "1" else contextlib.nullcontext():
            look()
    for value in (0.5, float("nan")):
        with pytest.raises(ValueError, match="log gates must be <= 0"):
            validation.check_values(torch.full((1, 4, 1), value), None, None)


@pytest.mark.parametrize(("gates", "queries", "refused"), [
    (torch.float32, torch.float32, False), (torch.float64, torch.float64, False), (torch.float32, torch.float64, False),
    (torch.float32, HALF, False), (torch.float64, torch.float32, True), (HALF, HALF, True), (HALF, torch.float64, True),
])  # fmt: skip
def test_dtypes_of_gates(gates, queries, refused):
    q, k = shaped(1, 2, 3, 16, dtype=queries), shaped(1, 4, 3, 16, dtype=queries)
    words = f"log_fgate has dtype {gates}; it must be torch.float32"
    with pytest.raises(ValueError, match=words) if refused else contextlib.nullcontext():
        validation.check_gates(q, k, shaped(1, 4, 3, dtype=gates))
    for shape in ((1, 2, 3), (1, 4, 1), (4, 3)):
        with pytest.raises(ValueError, match=r"it must be \(B, T, H\) = \(1, 4, 3\)"):
            validation.check_gates(q, k, shaped(*shape, dtype=gates))
