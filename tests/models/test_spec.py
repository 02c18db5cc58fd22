"""Specs that no model can have."""

from dataclasses import replace
from typing import Any

import pytest

from tests.models.conftest import DECAY, SPECS

REFUSED: dict[str, list[dict[str, Any]]] = {
    "fox_pro": [
        dict(num_heads=3), dict(num_heads=8), dict(hidden_size="64"), dict(hidden_size=64.0), dict(num_layers=True),
        dict(num_layers=0), dict(norm_eps=0.0), dict(norm_eps=float("nan")), dict(mlp_ratio=-1.0), dict(use_rope=1),
        dict(decay_time_min=2.0), dict(forget_gate="fixed"), dict(forget_gate="none", **DECAY), dict(forget_gate="linear"),
        dict(forget_gate="fixed", decay_time_min=9.0, decay_time_max=2.0), dict(attention="stick_breaking"),
        dict(forget_gate="none", attention="stick_breaking", window_size=4), dict(stick_remainder=True),
        dict(forget_gate="none", prune_log_tolerance=-1.0), dict(prune_log_tolerance=0.0), dict(prune_tightly=True),
        dict(use_output_gate=False, output_gate_activation="silu"), dict(window_size=0),
    ],
    "mamba2": [dict(head_dim=48)], "hgrn2": [dict(expand_ratio=48)], "delta_net": [dict(head_dim=48)],
    "samba": [dict(num_layers=3), dict(num_heads=3)],
}  # fmt: skip


@pytest.mark.parametrize(("key", "changes"), [(key, each) for key, refused in REFUSED.items() for each in refused], ids=str)
def test_a_spec_that_no_model_can_have_is_refused(key, changes):
    with pytest.raises(ValueError, match="|".join(changes)):
        replace(SPECS[key], **changes)
