"""Specs and checkpoints that no model can have: every check on both sides, with its words."""

import contextlib
import dataclasses
import json
from typing import Any

import pytest
from pydantic import ValidationError

from models.authors import _FORMATS, config_for_authors, name_for_authors, spec_from_authors
from models.spec import KINDS

SIZES: dict[str, Any] = dict(vocab_size=64, hidden_size=128, num_layers=2)
HEADS = SIZES | dict(num_heads=4)
STICK = HEADS | dict(attention="stick_breaking", forget_gate="none")
TIMES = dict(decay_time_min=2.0, decay_time_max=2.0)
BOTH = "give both decay times with 'bias_only' and 'fixed', both or neither with 'full', and neither otherwise"
FOX = "forgetting_transformer"


@pytest.mark.parametrize(("kind", "values", "words"), [
    (FOX, HEADS, None), (FOX, HEADS | dict(num_heads=3), "hidden_size 128 is not a multiple of num_heads 3"),
    (FOX, HEADS | dict(num_heads=8), None), (FOX, HEADS | dict(num_heads=1), None),
    (FOX, HEADS | dict(num_heads=16), r"head_dim 8 \(hidden_size / num_heads\) must be 16, 32, 64 or 128"),
    *((FOX, HEADS | dict(forget_gate=gate) | TIMES, None) for gate in ("bias_only", "fixed", "full")),
    (FOX, HEADS | dict(forget_gate="none") | TIMES, BOTH),
    *((FOX, HEADS | dict(forget_gate=gate, **{name: 2.0}), BOTH) for gate in ("bias_only", "fixed", "full") for name in TIMES),
    *((FOX, HEADS | dict(forget_gate=gate), BOTH) for gate in ("bias_only", "fixed")),
    (FOX, HEADS | dict(forget_gate="none"), None),
    (FOX, HEADS | dict(forget_gate="fixed", decay_time_min=2.5, decay_time_max=2.0),
     "decay_time_min 2.5 is above decay_time_max 2.0"),
    (FOX, STICK, None), (FOX, STICK | dict(forget_gate="full"), "it has neither; give forget_gate 'none' and no window"),
    (FOX, STICK | dict(window_size=4), "attention 'stick_breaking' with forget_gate 'none' and window_size 4: it has neither"),
    (FOX, STICK | dict(stick_remainder=True), None),
    (FOX, HEADS | dict(stick_remainder=True), "stick_remainder needs attention 'stick_breaking'; attention is 'softmax'"),
    (FOX, HEADS | dict(prune_log_tolerance=-1.0), None),
    (FOX, HEADS | dict(prune_log_tolerance=-1.0, prune_tightly=True), None),
    (FOX, HEADS | dict(prune_log_tolerance=-1.0, forget_gate="none"),
     "prune_log_tolerance needs a forget gate; forget_gate is 'none'"),
    (FOX, HEADS | dict(prune_log_tolerance=0.0), "prune_log_tolerance 0.0: give the log of a share, below 0, e.g. -10"),
    (FOX, HEADS | dict(prune_tightly=True), "prune_tightly needs prune_log_tolerance"),
    *((kind, SIZES | dict(head_dim=64), None) for kind in ("delta_net", "kimi_delta_attention", "gated_delta_net",
                                                           "gated_linear_attention")),
    *((kind, SIZES | dict(head_dim=48), "hidden_size 128 is not a multiple of head_dim 48")
      for kind in ("delta_net", "kimi_delta_attention")),
    *((kind, SIZES | dict(head_dim=128), "hidden_size 128 is not a multiple of twice the head_dim 128")
      for kind in ("gated_delta_net", "gated_linear_attention")),
    ("hgrn2", SIZES | dict(expand_ratio=64), None),
    ("hgrn2", SIZES | dict(expand_ratio=48), "hidden_size 128 is not a multiple of expand_ratio 48"),
    ("mamba2", SIZES | dict(expand=3, head_dim=128), None),
    ("mamba2", SIZES | dict(expand=3, head_dim=256), r"expand \* hidden_size 384 is not a multiple of head_dim 256"),
    ("mamba3", SIZES | dict(head_dim=256), None), ("mamba3", SIZES | dict(head_dim=48), "256 is not a multiple of head_dim 48"),
    *((kind, HEADS, None) for kind in ("path_fox", "wall_attention")),
    *((kind, HEADS | dict(num_heads=3), "hidden_size 128 is not a multiple of num_heads 3")
      for kind in ("path_fox", "wall_attention")),
    ("path_fox", HEADS | dict(num_heads=16), r"head_dim 8 \(hidden_size / num_heads\) must be 16, 32, 64 or 128"),
    ("wall_attention", HEADS | dict(hidden_size=256, num_heads=1), None),
    ("wall_attention", HEADS | dict(hidden_size=512, num_heads=1),
     r"head_dim 512 \(hidden_size / num_heads\) must be 256 at most"),
    ("mamba3", SIZES | dict(ssm_state_size=4), None),
    ("mamba3", SIZES | dict(ssm_state_size=6), "ssm_state_size 6 is not a multiple of 4"),
    ("samba", HEADS | dict(window_size=8), None),
    ("samba", HEADS | dict(window_size=8, num_layers=3), "num_layers 3"),
    ("samba", HEADS | dict(window_size=8, num_heads=3), "hidden_size 128 is not a multiple of num_heads 3"),
    ("fox_hybrid", HEADS | dict(fox_every=2, head_dim=64), None),
    *(("fox_hybrid", HEADS | dict(fox_every=every, head_dim=64),
       f"fox_every {every} with num_layers 2: give a divisor of it above 1")
      for every in (1, 3, 4)),
    ("fox_hybrid", HEADS | dict(fox_every=2, head_dim=48), "is not a multiple of twice the head_dim 48"),
    ("fox_hybrid", HEADS | dict(fox_every=2, head_dim=64, num_heads=16), "head_dim 8"),
])  # fmt: skip
def test_specs_on_both_sides_of_every_check(kind, values, words):
    with pytest.raises(ValidationError, match=words) if words else contextlib.nullcontext():
        KINDS[kind](**values)


@pytest.mark.parametrize("changes", [
    dict(hidden_size=0), dict(hidden_size=-128), dict(hidden_size="128"), dict(hidden_size=128.0), dict(num_layers=True),
    dict(norm_eps=0.0), dict(norm_eps=float("nan")), dict(norm_eps=float("inf")), dict(norm_eps="1e-6"), dict(mlp_width=0),
    dict(mlp_ratio=0.0), dict(use_rope=1), dict(use_rope="yes"), dict(attention="linear"), dict(other=1), dict(kind="mamba2"),
    dict(window_size=0), dict(rope_base=0.0), dict(vocab_size=None),
], ids=str)  # fmt: skip
def test_fields_are_of_their_type_alone(changes):
    with pytest.raises(ValidationError) as met:
        KINDS[FOX](**HEADS | changes)
    assert met.value.errors()[0]["loc"][0] in changes
    with pytest.raises(dataclasses.FrozenInstanceError):
        KINDS[FOX](**HEADS).hidden_size = 64


AUTHORS = {
    FOX: HEADS | dict(forget_gate="none", use_k_shift=True), "transformer": HEADS | dict(forget_gate="none"), "mamba2": SIZES,
    "hgrn2": SIZES | dict(output_norm_eps=None), "delta_net": SIZES | dict(head_dim=32),
}  # fmt: skip


@pytest.mark.parametrize("name", AUTHORS)
def test_each_setting_that_is_built_in_and_each_key_that_is_needed(name):
    spec = KINDS[FOX if name == "transformer" else name](**AUTHORS[name])
    config, form = config_for_authors(spec), _FORMATS[f"{name}-project_fox"]
    assert config["model_type"] == f"{name}-project_fox" and spec_from_authors(config) == spec
    assert (config["architectures"], config["tie_word_embeddings"]) == ([form.architecture], False)
    for key in ("vocab_size", "hidden_size", "num_hidden_layers", *form.needed):
        rest = {other: value for other, value in config.items() if other != key}
        with pytest.raises(ValueError, match=f"the key '{key}' is missing"):
            spec_from_authors(rest)
    for key, value in {**form.fixed, "tie_word_embeddings": False}.items():
        words = f"{key} is 'other' in config.json; only {value!r} is supported for {name}-project_fox"
        with pytest.raises(ValueError, match=words):
            spec_from_authors({**config, key: "other"})
        assert spec_from_authors({other: value for other, value in config.items() if other != key}) == spec, (
            "it may be left out"
        )
    for key in set(form.keys.values()) - set(form.needed) - {"vocab_size", "hidden_size", "num_hidden_layers"}:
        assert spec_from_authors({**config, key: None}) == spec_from_authors({k: v for k, v in config.items() if k != key})


@pytest.mark.parametrize(("values", "config"), [
    (dict(forget_gate="none", decay_time_min=2.0, decay_time_max=3.0, prune_log_tolerance=-10.0), dict(forget_gate="none")),
    (dict(forget_gate="full", decay_time_min=2.0, decay_time_max=3.0, prune_log_tolerance=-10.0),
     dict(forget_gate="full", prune_log_tolerance=-10.0)),
    (dict(forget_gate="full", fgate_bias_init=True, decay_time_min=2.0, decay_time_max=3.0),
     dict(forget_gate="full", decay_time_min=2.0, decay_time_max=3.0)),
    (dict(forget_gate="fixed", decay_time_min=2.0, decay_time_max=3.0),
     dict(forget_gate="fixed", decay_time_min=2.0, decay_time_max=3.0)),
])  # fmt: skip
def test_what_is_of_no_use_to_a_gate_is_left_out(values, config):
    """The authors' configs hold decay times and tolerances of gates that do not have them."""
    made = config_for_authors(KINDS[FOX](**HEADS | dict(use_k_shift=True, forget_gate="none")))
    keys = {**_FORMATS[f"{FOX}-project_fox"].keys, "fgate_bias_init": "fgate_bias_init"}
    given = json.loads(json.dumps(made | {form: values[ours] for ours, form in keys.items() if ours in values}))
    assert spec_from_authors(given) == KINDS[FOX](**HEADS | dict(use_k_shift=True, **config))


@pytest.mark.parametrize(("heads", "refused"), [(None, False), (4, False), (2, True)])
def test_a_transformer_has_as_many_heads_of_keys_as_of_queries(heads, refused):
    config = config_for_authors(KINDS[FOX](**AUTHORS["transformer"])) | {"num_kv_heads": heads}
    words = "num_kv_heads is 2; only num_heads or null is supported"
    with pytest.raises(ValueError, match=words) if refused else contextlib.nullcontext():
        assert spec_from_authors(config).num_heads == 4
    config.pop("num_kv_heads")
    config.pop("use_rope")
    assert spec_from_authors(config).use_rope, "as the authors' Transformer has it"


def test_the_format_has_some_kinds_of_models_and_names_of_its_own_for_one():
    for kind in set(KINDS) - {FOX, "mamba2", "hgrn2", "delta_net"}:
        with pytest.raises(ValueError, match=f"the authors' format has no model of kind '{kind}'"):
            config_for_authors(dataclasses.make_dataclass("Other", [("kind", str, kind)])())
    fox, mamba = KINDS[FOX](**HEADS), KINDS["mamba2"](**SIZES)
    names = ("model.norm.weight", "model.layers.0.norm.weight", "lm_head.weight")
    assert [name_for_authors(fox, name) for name in names] == list(names)
    assert [name_for_authors(mamba, name) for name in names] == [
        "backbone.norm_f.weight",
        "backbone.layers.0.norm.weight",
        names[2],
    ]


def test_layers_of_two_kinds_have_the_sizes_that_the_whole_says():
    sizes = dict(vocab_size=64, hidden_size=256, norm_eps=0.5, mlp_ratio=3.0, mlp_width=48, head_dim=32, conv_size=3)
    hybrid = KINDS["fox_hybrid"](**sizes, num_layers=8, num_heads=4, fox_every=4, fox_mlp_ratio=2.0, fox_mlp_width=24)
    assert hybrid.recurrent == KINDS["gated_delta_net"](**sizes, num_layers=6)
    pro = dict.fromkeys(("use_k_shift", "use_v_shift", "qk_norm", "use_output_gate", "use_output_norm"), True)
    same = dict(vocab_size=64, hidden_size=256, norm_eps=0.5)
    assert hybrid.fox == KINDS[FOX](**same, num_layers=2, num_heads=4, mlp_ratio=2.0, mlp_width=24, **pro)
    same |= dict(num_heads=4, mlp_ratio=3.0, mlp_width=48, window_size=9)
    samba = KINDS["samba"](**same, num_layers=6, rope_base=1e4, mamba_mlp_width=16)
    assert samba.attention == KINDS[FOX](**same, num_layers=3, rope_base=1e4, forget_gate="none", use_rope=True)
    assert samba.mamba_intermediate_size == 16 and samba.attention.intermediate_size == 48
