import fla.ops.gla.chunk as gla
from triton import Config
from triton.runtime.autotuner import Autotuner

from kernels.fla_cpu.tuning import CANDIDATES, _spread, lift_limit, limit_tuning


def test_every_tuned_kernel_keeps_a_few_of_its_own_candidates(monkeypatch):
    before = {}
    for name, value in vars(gla).items():
        while value is not None and not isinstance(value, Autotuner):
            value = getattr(value, "fn", None)
        if value is not None:
            before[name] = (value, list(value.configs))
            monkeypatch.setattr(value, "configs", list(value.configs))
    limit_tuning()
    assert any(len(configs) > CANDIDATES for _, configs in before.values())
    for tuner, configs in before.values():
        assert 0 < len(tuner.configs) <= CANDIDATES
        assert all(config in configs for config in tuner.configs)
        tuner.cache["a shape"] = tuner.configs[0]
    lift_limit()
    for tuner, configs in before.values():
        assert tuner.configs == configs
        assert len(configs) <= CANDIDATES or not tuner.cache
        tuner.cache.clear()


def test_blocks_come_before_warps_and_the_likeliest_first():
    configs = [Config({"BK": b}, num_warps=w, num_stages=s) for b in (16, 64) for w in (1, 4, 8) for s in (2, 3)]
    kept = [(c.kwargs["BK"], c.num_warps, c.num_stages) for c in _spread(configs)[:CANDIDATES]]
    assert kept == [(64, 4, 3), (16, 4, 3), (64, 4, 2), (16, 4, 2)]
