"""The operator's GPU kernels on a CPU; run in a process of its own by `test_without_gpu`, as pytest."""

from functools import partial

import pytest
import torch

from kernels.attention_shared.tiles import table
from kernels.stick_breaking import reference_attention, stick_breaking_attention
from kernels.stick_breaking.autograd import attend
from kernels.stick_breaking.portable import backward, tiles
from kernels.stick_breaking.portable.tiles import TILES, Plan
from tests.kernels import quick_interpreter
from tests.kernels.exact import in_nan
from tests.kernels.stick_breaking.oracle import assert_right, make_case, make_nearly_used_up

quick_interpreter.prepare()
attention = partial(stick_breaking_attention, backend="triton")
HALF, WHOLE = torch.float16, torch.float32


@pytest.mark.parametrize(("case", "options"), [
    (("random", 1, 1, 1, 1, 1, 16, WHOLE), {}),
    (("random", 1, 65, 65, 1, 1, 16, WHOLE), {"attend_current": True}),
    (("sinks", 1, 70, 200, 2, 1, 16, WHOLE), {"scale": 0.1}),
    (("huge", 1, 70, 70, 1, 1, 16, WHOLE), {}),
    (("long", 1, 150, 160, 2, 1, 16, HALF), {"scale": 0.3}),
    (("even", 1, 129, 129, 1, 1, 32, HALF), {"attend_current": True}),
    (("sinks", 1, 200, 200, 1, 1, 16, HALF), {}),
    (("huge", 1, 100, 100, 1, 1, 64, HALF), {}),
    (("long", 2, 70, 130, 1, 1, 16, HALF), {"seq_start": torch.tensor([40, 100])}),
    (("long", 1, 100, 100, 1, 1, 16, WHOLE), {"cu_seqlens": torch.tensor([0, 40, 41, 100])}),
], ids=str)  # fmt: skip
def test_equals_the_oracle(case, options):
    assert_right(in_nan(attention), make_case(*case), **options)


def test_a_stick_is_not_used_up_too_soon():
    case = make_nearly_used_up(WHOLE, 20)
    exact = reference_attention(*case.to(torch.float64)[:3])[0]
    torch.testing.assert_close(attention(*case[:3])[0].double(), exact, rtol=2e-5, atol=0)


def test_queries_that_stop_early_among_others(monkeypatch):
    """All in one step of the tiles that Hopper has for large heads; heads in groups that share a small workspace."""
    plan = Plan(*(table(TILES)["sm_90"][f"{kernel}_128"] for kernel in Plan._fields))
    monkeypatch.setattr(tiles, "plan_for", lambda *_: plan)
    case = make_case("random", 1, 330, 330, 2, 2, 16, HALF)
    case.k[..., 0], case.q[..., 0] = 1.0, 8.0
    case.q[:, 192:256, :, 0] = -40.0
    oldest = attend(*case[:3], None, None, 0.25, False, "triton")[2][1][0, 0]
    assert oldest[4] > 0 and oldest[6] == 0 and oldest[8] > 64, oldest
    monkeypatch.setattr(backward, "WORKSPACE_BYTES", 1)
    assert_right(attention, case)
