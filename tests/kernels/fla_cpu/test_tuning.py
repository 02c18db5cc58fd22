from unittest.mock import Mock

import fla.ops.gated_delta_rule.wy_fast as gated_wy
import fla.ops.gla.chunk as gla
import pytest
import torch
from triton import Config
from triton.runtime.autotuner import Autotuner
from triton.runtime.errors import OutOfResources

from kernels.fla_cpu.tuning import CANDIDATES, _spread, fix_tuning, lift_limit, limit_tuning

HEADS = [(16, 16), (64, 64), (64, 128), (128, 128), (256, 512)]


def tuners():
    for value in vars(gla).values():
        while value is not None and not isinstance(value, Autotuner):
            value = getattr(value, "fn", None)
        if value is not None:
            yield value


@pytest.fixture
def lifted():
    """Begin and end without a limit; a training in this process, by an earlier test, has set one."""
    lift_limit()
    yield
    lift_limit()


@pytest.mark.parametrize("candidates", [1, CANDIDATES])
@pytest.mark.parametrize(("K", "V"), HEADS)
@pytest.mark.parametrize("hopper", [False, True])
def test_a_few_candidates_are_left_of_those_that_each_kernel_allows(monkeypatch, lifted, hopper, K, V, candidates):
    """Among the blocks of fla's backward pass of gated linear attention, heads of 64 allow on Hopper only such as are neither
    the widest nor with four warps: HGRN2 with such heads could not be trained."""
    monkeypatch.setattr(gla, "IS_NVIDIA_HOPPER", hopper)
    monkeypatch.setattr(gla, "TRITON_ABOVE_3_6_0", True)
    monkeypatch.setattr(gla, "TRITON_ABOVE_3_8_0", False)
    arguments = {"K": K, "V": V, "STATE_V_FIRST": True}
    allowed = {}
    for tuner in tuners():
        tuner.nargs = {}
        allowed[tuner] = tuner.prune_configs(arguments)
    assert any(len(configs) > CANDIDATES for configs in allowed.values())
    limit_tuning()
    limit_tuning(candidates)  # the last counts
    for tuner, configs in allowed.items():
        left = tuner.prune_configs(arguments)
        assert len(left) == min(candidates, len(configs)) > 0 and all(config in configs for config in left)


def test_what_was_tuned_is_forgotten_with_the_limit(lifted):
    limit_tuning()
    limited = [tuner for tuner in tuners() if "prune_configs" in vars(tuner)]
    assert limited
    for change in (lambda: limit_tuning(1), fix_tuning, lift_limit):
        for tuner in limited:
            tuner.cache["a shape"] = tuner.configs[0]
        change()
        assert not any(tuner.cache for tuner in limited)
    assert not any({"prune_configs", "do_bench"} & set(vars(tuner)) for tuner in limited)


def test_without_timing_the_first_candidate_that_fits_is_taken(lifted, monkeypatch):
    """The widest blocks of gated linear attention need more shared memory than a GPU may have."""
    monkeypatch.setattr(gla, "TRITON_ABOVE_3_8_0", False)
    fix_tuning()
    tuner, tried = next(tuner for tuner in tuners() if len(tuner.configs) > 3), []
    in_order = _spread(tuner.configs)
    monkeypatch.setattr(tuner, "nargs", {}, raising=False)
    for name in ("pre_hook", "post_hook"):
        monkeypatch.setattr(tuner, name, lambda *_, **__: None)

    def run(*_, **given):
        tried.append({name: given[name] for name in in_order[0].kwargs} | {"num_warps": given["num_warps"]})
        if len(tried) % 3:  # two are too wide, the third fits
            raise OutOfResources(300_000, 232_448, "shared memory")

    monkeypatch.setattr(tuner, "fn", Mock(run=run))
    for _shape in range(2):
        tried.clear()
        left = tuner.prune_configs({"K": 64, "V": 64, "STATE_V_FIRST": True})
        times = [tuner._bench(config=config)[0] for config in left]
        assert left == [config for config in in_order if config in left] and len(left) > 3
        assert tried == [config.kwargs | {"num_warps": config.num_warps} for config in left[:3]]
        assert times == [float("inf")] * 2 + [0.0] + [float("inf")] * (len(left) - 3)


@pytest.mark.parametrize(("capability", "warps"), [(None, {2, 4}), ((8, 0), {2, 4}), ((9, 0), {2})])
def test_a_kernel_that_is_miscompiled_for_hopper_gets_two_warps_there(lifted, monkeypatch, capability, warps):
    """fla allows it two and four; DeltaNet's, of the same name, it restricts itself."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: capability is not None)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda: capability)
    tuner = gated_wy.prepare_wy_repr_bwd_kernel
    while not isinstance(tuner, Autotuner):
        tuner = tuner.fn
    monkeypatch.setattr(tuner, "nargs", {}, raising=False)
    limit_tuning()
    assert {config.num_warps for config in tuner.prune_configs({})} == warps
    fix_tuning()
    assert {config.num_warps for config in tuner.prune_configs({})} == warps


def test_blocks_come_before_warps_and_the_likeliest_first():
    configs = [Config({"BK": b}, num_warps=w, num_stages=s) for b in (16, 64) for w in (1, 4, 8) for s in (2, 3)]
    kept = [(c.kwargs["BK"], c.num_warps, c.num_stages) for c in _spread(configs)[:CANDIDATES]]
    assert kept == [(64, 4, 3), (16, 4, 3), (64, 4, 2), (16, 4, 2)]
