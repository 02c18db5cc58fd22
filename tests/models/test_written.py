"""Nothing that a model counts, refuses or computes changes unnoticed: sizes, FLOPs, states, words and logits of small ones are
written down. What is new need not be there yet."""

import itertools
import json
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from models.build import build_model
from models.cache import DecodingCache
from models.loss import token_losses
from models.spec import ForgettingTransformerSpec, ModelSpec
from models.spec_parts import mlp_params, swiglu_width
from tests.models.conftest import COMMON, SPECS
from training.command_line import short

WRITTEN = Path(__file__).with_suffix(".txt")
LOGITS = Path(__file__).with_suffix(".json")
COUNTS = ("num_params", "layer_params", "mixer_params", "intermediate_size", "num_heads", "head_dim", "inner_size", "convolved",
          "conv_params", "dt_rank", "mamba_intermediate_size", "compiles", "prunes", "measured", "norm_eps")  # fmt: skip
MORE: dict[str, dict[str, Any]] = {
    "fox_pro": dict(window_size=24, prune_log_tolerance=-10.0, qk_norm_share_param_across_head=False, prune_tightly=True),
    "fox_llama": dict(mlp_width=None, mlp_ratio=3.5, num_heads=4), "transformer_llama": dict(window_size=100),
    "stick_breaking_pro": dict(use_v_shift=False), "mamba2": dict(expand=3, num_layers=3, conv_size=3),
         "hgrn2": dict(num_layers=3, output_norm_eps=1e-5),
    "samba": dict(num_layers=4, ssm_state_size=8, mlp_width=None, mamba_mlp_width=None), "delta_net": dict(conv_size=3),
    "fox_hybrid": dict(num_layers=6, fox_every=3, fox_mlp_width=None), "mamba3": dict(num_layers=3),
         "path_fox": dict(num_layers=3),
}  # fmt: skip
REFUSED: dict[str, list[dict[str, Any]]] = {
    "fox_pro": [
        dict(num_heads=3), dict(num_heads=8), dict(decay_time_min=2.0), dict(forget_gate="fixed"),
             dict(attention="stick_breaking"),
        dict(forget_gate="fixed", decay_time_min=9.0, decay_time_max=2.0), dict(stick_remainder=True), dict(prune_tightly=True),
        dict(forget_gate="none", prune_log_tolerance=-1.0), dict(prune_log_tolerance=0.0), dict(window_size=0),
             dict(norm_eps=0.0),
        dict(forget_gate="none", attention="stick_breaking", window_size=4), dict(mlp_ratio=-1.0), dict(vocab_size=0),
    ],
    "mamba2": [dict(head_dim=48)], "samba": [dict(num_layers=3), dict(num_heads=3)], "delta_net": [dict(head_dim=48)],
    "gated_delta_net": [dict(head_dim=64)], "fox_hybrid": [dict(fox_every=1), dict(num_layers=3), dict(head_dim=64),
         dict(num_heads=3)],
    "hgrn2": [dict(expand_ratio=48)], "mamba3": [dict(head_dim=48)], "path_fox": [dict(num_heads=3)],
         "wall_attention": [dict(num_heads=3)],
}  # fmt: skip


def variants() -> Iterator[tuple[str, ModelSpec]]:
    for name, spec in SPECS.items():
        yield name, spec
        if name in MORE:
            yield f"{name} of others", replace(spec, **MORE[name])
    decay = dict(decay_time_min=2.0, decay_time_max=256.0)
    for gate in ("bias_only", "fixed"):
        yield gate, ForgettingTransformerSpec(**COMMON, num_heads=2, forget_gate=gate, **decay)


def counted(spec: ModelSpec) -> Iterator[tuple[str, Any]]:
    for name in COUNTS:
        with suppress(NotImplementedError, AttributeError):
            yield name, getattr(spec, name)


def stated() -> Iterator[str]:
    for name, spec in variants():
        counts = dict(counted(spec))
        sizes = [
            (length, spec.flops_per_token(length), spec.mixing_flops(length), spec.state_size(length))
            for length in (1, 24, 150, 4096)
        ]
        yield f"{name}: {counts} {sizes}"
        for share in (0.0, 0.25, 1.0, 1.5, -0.1):
            try:
                yield f"{name}, {share}: {spec.executed_flops_per_token(150, share)}"
            except ValueError as error:
                yield f"{name}, {share}: {error}"
    for name, changes in ((name, changes) for name, refused in REFUSED.items() for changes in refused):
        try:
            yield f"{name} {changes}: {replace(SPECS[name], **changes)}"
        except ValueError as error:
            yield f"{name} {changes}: {short(error)}"
    for d, ratio in itertools.product((64, 96, 192, 1536), (1.0, 3.5, 4.0)):
        yield f"{d} {ratio}: {swiglu_width(d, ratio)} {mlp_params(d, 8)}"


def test_all_that_specs_count_and_refuse_is_the_same_that_is_written_down(tmp_path):
    found = list(stated())
    (tmp_path / WRITTEN.name).write_text("\n".join(found) + "\n")
    gone = set(WRITTEN.read_text().splitlines()) - set(found)
    assert not gone, f"where that is meant: cp {tmp_path}/{WRITTEN.name} {WRITTEN}"


def computed(spec: ModelSpec) -> list[float]:
    """Size and two places of the logits of fresh weights, and of the gradient; losses; one more token by a cache."""
    torch.manual_seed(0)
    model = build_model(spec).eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if parameter.ndim == 2 and "embeddings" not in name:
                parameter.mul_(3.0)
    tokens = torch.randint(spec.vocab_size, (2, 40), generator=torch.Generator().manual_seed(1))
    losses = token_losses(model, tokens, tokens.roll(-1, 1))
    losses.mean().backward()
    grads = torch.stack([p.grad.norm() for p in model.parameters() if p.grad is not None])
    with torch.no_grad():
        cache = DecodingCache()
        mask = torch.ones_like(tokens)
        mask[1, :7] = 0
        logits = model(tokens[:, :-1], mask[:, :-1], past_key_values=cache, use_cache=True).logits
        last = model(tokens[:, -1:], mask, past_key_values=cache, use_cache=True).logits
    values = [losses[0, 3], losses[1, -2], losses.mean(), logits[0].std(), logits[0, 5, 3], logits[1, -1, 7], last.std(),
         last[1, 0, 9],
              grads.norm(), grads.log().mean()]  # fmt: skip
    return [value.item() for value in values]


def test_what_models_compute_is_the_same_that_is_written_down(tmp_path):
    """To a part in a thousand, which other processors keep to."""
    found = {name: computed(spec) for name, spec in variants()}
    (tmp_path / LOGITS.name).write_text(json.dumps(found, indent=0) + "\n")
    for name, values in json.loads(LOGITS.read_text()).items():
        assert found[name] == pytest.approx(values, rel=1e-3, abs=1e-4), (
            f"{name}; where meant: cp {tmp_path}/{LOGITS.name} {LOGITS}"
        )
