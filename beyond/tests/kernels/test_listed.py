"""Attention of the newest token over segments of one list of keys, against the float64 oracle."""

import pytest
import torch

from kernels.forgetting_attention import forgetting_attention_listed, sum_log_gates
from tests.kernels.exact import on_both
from tests.kernels.forgetting_attention.oracle import make_case
from tests.kernels.forgetting_attention.test_cached import assert_near, expected


def compare_lists(backend: str, dtype: torch.dtype, tolerance: float, device: str = "cpu") -> None:
    """Heads with segments of one list get what they get over their own keys; what lies between them is no number."""
    lengths, firsts = (700, 1, 130, 16, 257), (0, 705, 706, 836, 1152)
    for gates, D in (("near_zero", 32), ("mixture", 64), ("cuts", 16)):
        k, v, sums = torch.full((1500, D), torch.nan), torch.full((1500, D), torch.nan), torch.full((1500,), torch.nan).double()
        cases = []
        for first, length in zip(firsts, lengths, strict=True):
            case = make_case(gates, 1, 1, length, 1, 1, D, torch.float32)
            case = case._replace(log_fgate=0.03 * case.log_fgate.clamp(min=-9.0))
            where = slice(first, first + length)
            k[where], v[where], sums[where] = case.k[0, :, 0], case.v[0, :, 0], sum_log_gates(case.log_fgate)[0, :, 0]
            cases.append(case)
        q = torch.cat([case.q[:, 0, 0] for case in cases])
        given = [*(x.to(device, dtype) for x in (q, k, v)), sums.to(device)]
        given += [torch.tensor(values, dtype=torch.int32, device=device) for values in (firsts, lengths)]
        for threshold in (None, torch.tensor([-0.2, -9.0, -3.0, -0.1, -30.0])):
            level = None if threshold is None else threshold.to(device)
            found = forgetting_attention_listed(*given, 700, adaptive_threshold=level, backend=backend, scale=0.3)
            for row, case in enumerate(cases):
                own = [*(x.to(dtype) for x in case[:3]), case.log_fgate]
                wanted = expected(own, 0.3, None if threshold is None else threshold[row], None, None)
                assert_near(found[row], wanted[0, 0, 0], tolerance, gates, threshold, row)


@pytest.mark.parametrize(("device", "backend", "dtype", "tolerance"), on_both(
    [("chunked", torch.float64, 1e-12), ("chunked", torch.bfloat16, 4e-3)],
    [("triton", torch.float32, 2e-6), ("triton", torch.bfloat16, 4e-3)],
))  # fmt: skip
def test_a_list_equals_the_oracle(device: str, backend: str, dtype: torch.dtype, tolerance: float) -> None:
    compare_lists(backend, dtype, tolerance, device)


def test_segments_out_of_order_are_named() -> None:
    first, length = torch.tensor([4, 0], dtype=torch.int32), torch.tensor([3, 3], dtype=torch.int32)
    with pytest.raises(ValueError, match="must follow each other"):
        forgetting_attention_listed(*(torch.zeros(n, 16) for n in (2, 9, 9)), torch.zeros(9).double(), first, length, 5)
