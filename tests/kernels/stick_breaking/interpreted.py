"""A small grid of the Triton kernels under Triton's interpreter; run in a process of its own by `test_without_gpu`."""

import torch

from kernels.attention_shared.tiles import table
from kernels.benchmark.operators import Rotate
from kernels.stick_breaking import reference_attention, stick_breaking_attention
from kernels.stick_breaking.autograd import attend
from kernels.stick_breaking.portable import backward as triton_backward
from kernels.stick_breaking.portable import tiles
from kernels.stick_breaking.portable.tiles import TILES, Plan
from kernels.stick_breaking.visibility import first_visible_key
from tests.kernels import quick_interpreter
from tests.kernels.stick_breaking.oracle import assert_right, make_case, make_nearly_used_up


def attention(*inputs: torch.Tensor, **options: object) -> tuple[torch.Tensor, torch.Tensor]:
    """The kernels, whatever the device."""
    return stick_breaking_attention(*inputs, backend="triton", **options)  # type: ignore[arg-type]


def compare_rotation() -> None:
    """The rotary embedding that the benchmark adds to softmax attention."""
    x, dy = torch.randn(2, 37, 3, 16, requires_grad=True), torch.randn(2, 37, 3, 16)
    angles = torch.arange(37)[:, None] * 0.7 ** torch.arange(8)
    y = Rotate.apply(x, torch.cat([angles.cos(), angles.sin()], -1))
    cos, sin, (first, second) = angles.cos()[:, None], angles.sin()[:, None], x.split(8, -1)
    expected = torch.cat([first * cos - second * sin, second * cos + first * sin], -1)
    torch.testing.assert_close(y, expected)
    torch.testing.assert_close(torch.autograd.grad(y, x, dy), torch.autograd.grad(expected, x, dy))


def main() -> None:
    """Raise at the first wrong result. (The interpreter multiplies bfloat16 wrongly: float16 stands for the 16-bit
    path.)"""
    quick_interpreter.remember()
    for regime, Q, T, H, key_heads, D, dtype, attend_current in (
        ("random", 1, 1, 1, 1, 16, torch.float32, False),
        ("random", 65, 65, 1, 1, 16, torch.float32, True),
        ("sinks", 70, 200, 2, 1, 16, torch.float32, False),
        ("huge", 70, 70, 1, 1, 16, torch.float32, False),
        ("long", 150, 160, 2, 1, 16, torch.float16, False),
        ("even", 129, 129, 1, 1, 32, torch.float16, True),
        ("sinks", 200, 200, 1, 1, 16, torch.float16, False),
        ("huge", 100, 100, 1, 1, 64, torch.float16, False),
    ):
        case = make_case(regime, 1, Q, T, H, key_heads, D, dtype)
        assert_right(lambda *x, c=attend_current: attention(*x, attend_current=c), case, attend_current=attend_current)  # type: ignore[misc]

    case = make_nearly_used_up(torch.float32, 20)
    exact = reference_attention(*case.to(torch.float64)[:3])[0]
    torch.testing.assert_close(attention(*case[:3])[0].double(), exact, rtol=2e-5, atol=0)

    case = make_case("long", 2, 70, 130, 1, 1, 16, torch.float16)
    seq_start = torch.tensor([40, 100])
    first_key = first_visible_key(2, 70, 130, seq_start, None)
    assert_right(lambda *x: attention(*x, seq_start=seq_start), case, first_key_BQ=first_key)
    case = make_case("long", 1, 100, 100, 1, 1, 16, torch.float32)
    boundaries = torch.tensor([0, 40, 41, 100])
    first_key = first_visible_key(1, 100, 100, None, boundaries)
    assert_right(lambda *x: attention(*x, cu_seqlens=boundaries), case, first_key_BQ=first_key)

    # Queries that stop early before and after some that do not, all in one step of the tiles that Hopper has for large
    # heads; heads in groups that share a small workspace.
    tiles.plan_for = lambda *_: Plan(*(table(TILES)["sm_90"][f"{kernel}_128"] for kernel in Plan._fields))  # type: ignore[assignment]
    case = make_case("random", 1, 330, 330, 2, 2, 16, torch.float16)
    case.k[..., 0], case.q[..., 0] = 1.0, 8.0
    case.q[:, 192:256, :, 0] = -40.0
    oldest = attend(*case[:3], None, None, 0.25, False, "triton")[2][1][0, 0]
    assert oldest[4] > 0 and oldest[6] == 0 and oldest[8] > 64, oldest
    triton_backward.WORKSPACE_BYTES = 1
    assert_right(attention, case)
    compare_rotation()


if __name__ == "__main__":
    main()
