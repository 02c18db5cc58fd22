"""Attention of the newest token over a cache, against the float64 oracle."""

import pytest
import torch
from torch import Tensor

from kernels.forgetting_attention import (
    forgetting_attention,
    forgetting_attention_cached,
    forgetting_attention_listed,
    gates_of_sums,
    sum_log_gates,
)
from tests.kernels.forgetting_attention.oracle import attend, cumulative, log_gates, make_case

LIMITS = (
    {},
    {"seq_start": torch.tensor([7, 700])},
    {"window_size": 177},
    {"seq_start": torch.tensor([650, 0]), "window_size": 90},
)


def expected(case: list[Tensor], threshold: float | Tensor | None, seq_start: Tensor | None, window: int | None) -> Tensor:
    """The oracle, head by head; what a threshold leaves out is put into `seq_start`."""
    q, k, v, log_fgate = (x.double() for x in case)
    B, _, H = log_fgate.shape
    cum = cumulative(log_fgate)
    limit = -torch.inf if threshold is None else torch.as_tensor(threshold).double().expand(B, H)[..., None]
    first_BH = (cum[..., -1:] - cum < limit).sum(-1)
    if seq_start is not None:
        first_BH = torch.maximum(first_BH, seq_start[:, None])
    heads = []
    for head in range(H):
        group = head // (H // k.shape[2])
        one = q[:, :, head, None], k[:, :, group, None], v[:, :, group, None], log_fgate[..., head, None]
        heads.append(attend(*one, seq_start=first_BH[:, head], window_size=window))
    return torch.cat(heads, 2)


def compare_with_oracle(backend: str, dtype: torch.dtype, tolerance: float, device: str = "cpu") -> None:
    """All kinds of gates, limits and thresholds; grouped queries; a head that is pruned away and one that is not beside it."""
    for gates, T, H, key_heads, D in (
        ("near_zero", 700, 2, 1, 32),
        ("one", 700, 2, 2, 16),
        ("twenty", 700, 4, 2, 16),
        ("mixture", 700, 2, 2, 64),
        ("cuts", 700, 2, 1, 128),
        ("single_cliff", 700, 2, 2, 32),
        ("zero", 1, 2, 2, 16),
    ):
        case = [x.to(dtype) for x in make_case(gates, 2, 1, T, H, key_heads, D, torch.float32)[:3]]
        log_fgate = make_case(gates, 2, 1, T, H, key_heads, D, torch.float32).log_fgate
        log_fgate = torch.cat([log_fgate[..., :1], 0.03 * log_fgate[..., 1:].clamp(min=-3.0)], -1)
        sums = sum_log_gates(log_fgate)
        for threshold in (None, -0.2, torch.tensor([-3.0, -0.1]).repeat(H // 2)):
            for limits in LIMITS if T > 1 else LIMITS[:1]:
                wanted = expected([*case, log_fgate], threshold, limits.get("seq_start"), limits.get("window_size"))
                padded_BT = torch.arange(T) < limits.get("seq_start", torch.zeros(2))[:, None]  # these may hold anything
                held = [x.masked_fill(padded_BT[..., None, None], torch.nan) for x in case[1:]]
                given = {name: x.to(device) if isinstance(x, Tensor) else x for name, x in limits.items()}
                level = threshold.to(device) if isinstance(threshold, Tensor) else threshold
                moved = [x.to(device) for x in (case[0], *held, sums)]
                found = forgetting_attention_cached(*moved, adaptive_threshold=level, backend=backend, **given)
                assert found.dtype == dtype
                error = (found.cpu().double() - wanted).abs().max().item()
                assert error <= tolerance * max(1.0, wanted.abs().max().item()), (gates, threshold, limits, error)
                if "window_size" in limits:
                    continue
                length = torch.tensor([T], dtype=torch.int32, device=device)
                free = lambda x: x.new_full((x.shape[0], 300, *x.shape[2:]), torch.nan)  # noqa: E731
                roomy = [moved[0], *(torch.cat([x, free(x)], 1) for x in moved[1:])]
                same = forgetting_attention_cached(*roomy, adaptive_threshold=level, length=length, backend=backend, **given)
                error = (same.cpu().double() - wanted).abs().max().item()
                assert error <= tolerance * max(1.0, wanted.abs().max().item()), (gates, threshold, limits, error, "room")


def compare_lists(backend: str, dtype: torch.dtype, tolerance: float, device: str = "cpu") -> None:
    """Heads of which each has a segment of one list: each gets what it gets over its own keys. Places between the segments and
    behind the last hold what is no number."""
    lengths, gaps = (700, 1, 130, 16, 257), (0, 5, 0, 300, 40)
    for gates, D in (("near_zero", 32), ("mixture", 64), ("cuts", 16)):
        cases = [make_case(gates, 1, 1, length, 1, 1, D, torch.float32) for length in lengths]
        cases = [case._replace(log_fgate=0.03 * case.log_fgate.clamp(min=-9.0)) for case in cases]
        q = torch.cat([case.q[:, 0, 0] for case in cases]).to(dtype)
        sums = [sum_log_gates(case.log_fgate) for case in cases]
        first, places = list[int](), list[tuple[Tensor, Tensor, Tensor]]()
        for case, total, gap in zip(cases, sums, gaps, strict=True):
            first.append(sum(len(values[0]) for values in places))
            for count, own in ((0, (case.k[0, :, 0].to(dtype), case.v[0, :, 0].to(dtype), total[0, :, 0])), (gap, None)):
                nothing = [torch.full((count, *size), torch.nan) for size in ((D,), (D,), ())]
                places.append(own or (nothing[0].to(dtype), nothing[1].to(dtype), nothing[2].double()))  # type: ignore[arg-type]
        held = [torch.cat([values[at] for values in places]).to(device) for at in range(3)]
        where = [torch.tensor(values, dtype=torch.int32, device=device) for values in (first, lengths)]
        for threshold in (None, torch.tensor([-0.2, -9.0, -3.0, -0.1, -30.0])):
            level = None if threshold is None else threshold.to(device)
            how = dict(adaptive_threshold=level, backend=backend)
            found = forgetting_attention_listed(q.to(device), *held, *where, 700, **how)  # type: ignore[arg-type]
            assert found.dtype == dtype and found.shape == q.shape
            for row, case in enumerate(cases):
                own = [x.to(dtype) for x in case[:3]]
                wanted = expected([*own, case.log_fgate], None if threshold is None else threshold[row], None, None)
                error = (found[row].cpu().double() - wanted[0, 0, 0]).abs().max().item()
                assert error <= tolerance * max(1.0, wanted.abs().max().item()), (gates, threshold, row, error)


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float64, 1e-12), (torch.float32, 2e-6), (torch.bfloat16, 4e-3)])
def test_a_list_equals_the_oracle(dtype: torch.dtype, tolerance: float) -> None:
    compare_lists("chunked", dtype, tolerance)


@pytest.mark.gpu
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 2e-6), (torch.float16, 1e-3), (torch.bfloat16, 4e-3)])
def test_the_kernel_over_a_list_equals_the_oracle(dtype: torch.dtype, tolerance: float) -> None:
    compare_lists("triton", dtype, tolerance, "cuda")


def of(*numbers: int) -> Tensor:
    return torch.tensor(numbers, dtype=torch.int32)


@pytest.mark.parametrize(("changes", "words"), [
    (dict(q=torch.zeros(2, 9)), "head dimension 9"), (dict(v=torch.zeros(8, 16)), "v has shape"),
    (dict(gate_sum=torch.zeros(9)), r"gate_sum is \(9,\) torch.float32 on cpu; it must be \(9,\) torch.float64"),
    (dict(first=torch.zeros(3, dtype=torch.int32)), r"first is \(3,\) torch.int32 on cpu; it must be \(2,\) torch.int32"),
    (dict(length=torch.ones(2)), "length is"), (dict(length=torch.ones(2, dtype=torch.int32, device="meta")), "on meta"),
    (dict(adaptive_threshold=torch.zeros(2).double()), "adaptive_threshold is"), (dict(backend="fast"), "backend"),
    (dict(first=[0, 4]), "first is of type list; it must be a torch.Tensor"), (dict(scale=torch.inf), "scale is inf"),
    (dict(most=10), r"most is 10; it must be in 1\.\.9"), (dict(most=0), "most is 0"),
    (dict(first=of(4, 0)), r"first is \[4, 0\] and length \[3, 5\]; segments of 1\.\.5 keys must follow .* the 9 entries"),
    (dict(length=of(0, 5)), r"length \[0, 5\]"), (dict(length=of(3, 6), most=9), r"length \[3, 6\]"),
    (dict(first=of(-1, 4)), r"first is \[-1, 4\]"), (dict(first=of(0, 2)), r"first is \[0, 2\]"),
    (dict(most=4), r"1\.\.4 keys"),
    (dict(adaptive_threshold=torch.tensor([-1.0, 0.5])), r"adaptive_threshold reaches 0\.5"),
    (dict(adaptive_threshold=torch.full((2,), torch.nan)), "adaptive_threshold reaches inf"),
])  # fmt: skip
def test_mistakes_of_a_list_are_named(changes: dict[str, object], words: str) -> None:
    given = dict(q=torch.zeros(2, 16), k=torch.zeros(9, 16), v=torch.zeros(9, 16), gate_sum=torch.zeros(9).double(), most=5)
    given |= dict(first=of(0, 4), length=of(3, 5))
    forgetting_attention_listed(**given)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=words):
        forgetting_attention_listed(**{**given, **changes})  # type: ignore[arg-type]


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float64, 1e-12), (torch.float32, 2e-6), (torch.bfloat16, 4e-3)])
def test_equals_the_oracle(dtype: torch.dtype, tolerance: float) -> None:
    compare_with_oracle("chunked", dtype, tolerance)


@pytest.mark.gpu
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 2e-6), (torch.float16, 1e-3), (torch.bfloat16, 4e-3)])
def test_the_kernel_equals_the_oracle(dtype: torch.dtype, tolerance: float) -> None:
    compare_with_oracle("triton", dtype, tolerance, "cuda")


@pytest.mark.gpu
@pytest.mark.parametrize("B", [1, 12])  # a few rows, and as many as fill a GPU
def test_the_kernel_repeats_its_bits_over_a_long_cache(B: int) -> None:
    """And nothing is used that PyTorch calls not deterministic."""
    q, k, v, log_fgate, _ = make_case("near_zero", B, 1, 20_000, 12, 12, 64, torch.bfloat16, "cuda")
    torch.use_deterministic_algorithms(True)
    try:
        sums = sum_log_gates(log_fgate)
        found = [forgetting_attention_cached(q, k, v, sums, adaptive_threshold=-5.0) for _ in range(3)]
    finally:
        torch.use_deterministic_algorithms(False)
    torch.testing.assert_close(sums.cpu(), log_fgate.cpu().double().cumsum(1), atol=1e-9, rtol=0)
    assert torch.equal(found[0], found[1]) and torch.equal(found[0], found[2])
    plain = forgetting_attention_cached(*(x[:1] for x in (q, k, v, sums)), adaptive_threshold=-5.0, backend="chunked")
    torch.testing.assert_close(found[0][:1], plain, atol=4e-3, rtol=1e-2)


@pytest.mark.parametrize("kind", ["mixture", "cuts"])
def test_sums_go_on_and_give_the_gates_back(kind: str) -> None:
    gates = log_gates(kind, (2, 300, 3), torch.Generator().manual_seed(0))
    whole = sum_log_gates(gates)
    torch.testing.assert_close(whole, gates.double().clamp(min=-4000).cumsum(1), atol=1e-9, rtol=0)
    assert whole.stride(1) == 1
    pieces = [sum_log_gates(gates[:, :200])]
    for piece in (gates[:, 200:201], gates[:, 201:]):
        pieces.append(sum_log_gates(piece, pieces[-1][:, -1:]))
    torch.testing.assert_close(torch.cat(pieces, 1), whole, atol=1e-9, rtol=0)
    back = gates_of_sums(whole)
    assert back.dtype == torch.float32 and not back[:, 0].any()
    torch.testing.assert_close(back[:, 1:], gates[:, 1:].clamp(min=-4000), atol=1e-9, rtol=1e-6)


def test_a_sum_above_the_one_before_is_an_open_gate() -> None:
    """Sums are added tile by tile, so that after an open gate one may exceed the sum before it by its last digit."""
    sums = torch.tensor([-1000.0, -1000.0 + 2.0**-43, -1000.5], dtype=torch.float64).view(1, 3, 1)
    assert sums[0, 1] > sums[0, 0]
    gates = gates_of_sums(sums)
    assert gates.flatten().tolist() == [0.0, 0.0, -0.5]
    forgetting_attention(*torch.ones(3, 1, 3, 1, 16), gates)  # takes no positive gate


def test_digits_are_kept_far_into_a_sequence() -> None:
    """After a sum of 1e6, two gates of 1e-4 are still told apart."""
    q, k, v, log_fgate, _ = make_case("zero", 1, 1, 50, 1, 1, 16, torch.float64)
    log_fgate -= 1e-4 * torch.rand(1, 50, 1, dtype=torch.float64)
    near, far = (sum_log_gates(log_fgate, torch.full((1, 1, 1), start, dtype=torch.float64)) for start in (0.0, -1e6))
    torch.testing.assert_close(
        forgetting_attention_cached(q, k, v, far), forgetting_attention_cached(q, k, v, near), atol=1e-9, rtol=0
    )


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"q": torch.zeros(2, 2, 4, 16)}, "2 positions"),
        ({"gate_sum": torch.zeros(2, 9, 4)}, "torch.float64"),
        ({"gate_sum": torch.zeros(2, 4, 9, dtype=torch.float64)}, r"\(2, 9, 4\)"),
        ({"adaptive_threshold": "auto"}, "'auto'"),
        ({"adaptive_threshold": 1.0}, "<= 0"),
        ({"adaptive_threshold": torch.zeros(3)}, "broadcast"),
        ({"seq_start": torch.zeros(3, dtype=torch.int32)}, "seq_start"),
        ({"window_size": 0}, "window_size"),
        ({"length": torch.ones(1, dtype=torch.int64)}, r"length is \(1,\) torch.int64 on cpu; it must be \(1,\) torch.int32"),
        ({"length": torch.ones(2, dtype=torch.int32)}, r"length is \(2,\)"),
        ({"length": torch.ones(1, dtype=torch.int32, device="meta")}, "on meta"),
        ({"length": torch.zeros(1, dtype=torch.int32)}, r"length is 0; it must be in 1\.\.9"),
        ({"length": torch.full((1,), 10, dtype=torch.int32)}, r"length is 10; it must be in 1\.\.9"),
        ({"length": torch.ones(1, dtype=torch.int32), "window_size": 3}, "either `length` or a window"),
        ({"backend": "fast"}, "backend"),
        ({"gate_sum": [0.0]}, "gate_sum is of type list; it must be a torch.Tensor"),
        ({"length": [3]}, "length is of type list"),
        ({"scale": float("nan")}, "scale is nan"),
    ],
)
def test_mistakes_are_named(changes: dict[str, object], words: str) -> None:
    given = {"q": torch.zeros(2, 1, 4, 16), "k": torch.zeros(2, 9, 2, 16), "v": torch.zeros(2, 9, 2, 16)}
    given["gate_sum"] = torch.zeros(2, 9, 4, dtype=torch.float64)
    with pytest.raises(ValueError, match=words):
        forgetting_attention_cached(**{**given, **changes})  # type: ignore[arg-type]
