"""What limits on fla's autotuning leave: candidates that each kernel allows, and those that are compiled rightly."""

import fla.ops.gated_delta_rule.wy_fast as gated_wy
import fla.ops.gla.chunk as gla
import pytest
import torch
from triton.runtime.autotuner import Autotuner

from kernels.fla_cpu.tuning import CANDIDATES, _tuner, fix_tuning, lift_limit, limit_tuning


@pytest.fixture(autouse=True)
def _lifted():
    """Begin and end without a limit; a training in this process, by an earlier test, has set one."""
    lift_limit()
    yield
    lift_limit()


@pytest.mark.parametrize("candidates", [1, CANDIDATES])
@pytest.mark.parametrize(("K", "V"), [(16, 16), (64, 64), (128, 128), (256, 512)])
def test_a_few_candidates_are_left_of_those_that_each_kernel_allows(monkeypatch, K, V, candidates):
    """Among the blocks of fla's backward pass of gated linear attention, heads of 64 allow on Hopper only such as are neither
    the widest nor with four warps: HGRN2 with such heads could not be trained."""
    monkeypatch.setattr(gla, "IS_NVIDIA_HOPPER", True)
    monkeypatch.setattr(gla, "TRITON_ABOVE_3_6_0", True)
    monkeypatch.setattr(gla, "TRITON_ABOVE_3_8_0", False)
    tuners: list[Autotuner] = [tuner for value in vars(gla).values() if (tuner := _tuner(value)) is not None]
    arguments = {"K": K, "V": V, "STATE_V_FIRST": True}
    allowed = {}
    for tuner in tuners:
        tuner.nargs = {}
        allowed[tuner] = tuner.prune_configs(arguments)
    assert any(len(configs) > CANDIDATES for configs in allowed.values())
    limit_tuning()
    limit_tuning(candidates)  # the last counts
    for tuner, configs in allowed.items():
        left = tuner.prune_configs(arguments)
        assert len(left) == min(candidates, len(configs)) > 0
        assert all(config in configs for config in left)


@pytest.mark.parametrize(("capability", "warps"), [(None, {2, 4}), ((8, 0), {2, 4}), ((9, 0), {2})])
def test_a_kernel_that_is_miscompiled_for_hopper_gets_two_warps_there(monkeypatch, capability, warps):
    """fla allows it two and four; DeltaNet's, of the same name, it restricts itself."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: capability is not None)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda: capability)
    tuner = _tuner(gated_wy.prepare_wy_repr_bwd_kernel)
    monkeypatch.setattr(tuner, "nargs", {}, raising=False)
    for change in (limit_tuning, fix_tuning):
        change()
        assert {config.num_warps for config in tuner.prune_configs({})} == warps
