"""Paths that attention takes and what it hands on, losses of models that are not ours, and errors of loading, by hand."""

import contextlib
import copy
import json
import math
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from pydantic import TypeAdapter, ValidationError
from safetensors import SafetensorError
from torch import nn

from models import build, loss
from models.backbone import RMSNorm
from models.build import build_model
from models.forgetting_transformer import module as attention
from models.forgetting_transformer.module import ForgettingAttention, HeadNorm, _softmax_attention
from models.spec import ForgettingTransformerSpec

SIZES: dict[str, Any] = dict(vocab_size=16, hidden_size=64, num_layers=1, num_heads=2)
TIMES = dict(decay_time_min=2.0, decay_time_max=64.0)


def layer(**given: Any) -> ForgettingAttention:
    return ForgettingAttention(ForgettingTransformerSpec(**SIZES | given), 0)


class OnGpu(torch.Tensor):
    """A tensor that says that it is on a GPU."""

    is_cuda = property(lambda self: True)  # type: ignore[assignment]


@pytest.mark.parametrize(("given", "cuda", "grad", "repeats", "start", "softmax"), [
    ({}, False, True, True, False, True), ({}, True, True, False, False, True), ({}, True, True, True, False, False),
    ({}, True, False, True, False, True), ({}, False, True, False, True, False),
    ({"window_size": 3}, False, True, False, False, False),
])  # fmt: skip
def test_attention_without_gates(monkeypatch, given, cuda, grad, repeats, start, softmax):
    """Plain, but for padding, windows and gradients that are to repeat on a GPU: these have gates of 1."""
    found = []
    monkeypatch.setattr(attention, "_softmax_attention", lambda *qkv: found.append(qkv) or "softmax")
    monkeypatch.setattr(attention, "forgetting_attention", lambda *qkvg, **how: found.append((qkvg, how)) or "kernel")
    monkeypatch.setattr(torch, "are_deterministic_algorithms_enabled", lambda: repeats)
    q, k, v = (torch.randn(1, 4, 2, 32, dtype=torch.bfloat16).as_subclass(OnGpu if cuda else torch.Tensor) for _ in range(3))
    seq_start = torch.tensor([1]) if start else None
    with torch.set_grad_enabled(grad):
        way = layer(forget_gate="none", **given).attend(q, k, v, None, seq_start)
    assert way == ("softmax" if softmax else "kernel")
    if not softmax:
        (((*qkv, gates), how),) = found
        assert all(x is y for x, y in zip(qkv, (q, k, v), strict=True)) and how["seq_start"] is seq_start
        assert gates.shape == (1, 4, 2) and gates.dtype == torch.float32 and not gates.any()
        assert (how["window_size"], how["adaptive_threshold"]) == (given.get("window_size"), None)


@pytest.mark.parametrize("remainder", [False, True])
def test_what_a_stick_leaves_is_a_tokens_own_value(monkeypatch, remainder):
    asked = []
    o, left = torch.ones(1, 2, 2, 32, dtype=torch.bfloat16), torch.full((1, 2, 2), 0.5)
    monkeypatch.setattr(attention, "stick_breaking_attention", lambda *qkv, **how: asked.append((qkv, how)) or (o, left))
    q, k, v = (torch.randn(1, n, 2, 32, dtype=torch.bfloat16) for n in (2, 5, 5))
    own = layer(attention="stick_breaking", forget_gate="none", stick_remainder=remainder)
    found = own.attend(q, k, v, None, seq_start := torch.tensor([1]))
    assert asked[0][0] == (q, k, v) and asked[0][1]["seq_start"] is seq_start and found.dtype == torch.bfloat16
    assert torch.equal(found, o + (0.5 * v[:, -2:].float()).bfloat16() if remainder else o)


@pytest.mark.parametrize(("queries", "keys"), [(1, 5), (3, 5), (5, 5), (1, 1)])
def test_softmax_attention_of_the_last_queries(queries, keys):
    q, k, v = (torch.randn(2, n, 2, 4, generator=torch.Generator().manual_seed(n)) for n in (queries, keys, keys))
    logits = torch.einsum("bihd,bjhd->bhij", q, k) / 2
    hidden = torch.ones(queries, keys).tril(keys - queries) == 0
    wanted = torch.einsum("bhij,bjhd->bihd", logits.masked_fill(hidden, -math.inf).softmax(-1), v)
    torch.testing.assert_close(_softmax_attention(q, k, v), wanted)


@pytest.mark.parametrize(("given", "rule"), [
    ({}, None), ({"prune_log_tolerance": -5.0, "prune_tightly": True}, "tight"), ({"prune_log_tolerance": -5.0}, "norms"),
    ({"prune_log_tolerance": -5.0, "qk_norm": True}, "scales"),
    ({"prune_log_tolerance": -5.0, "qk_norm": True, "use_rope": True}, "rotated scales"),
])  # fmt: skip
def test_the_rule_of_pruning_is_the_specs(monkeypatch, given, rule):
    """By all norms, or by the scales of QK-norm, rounded once, with RoPE twice; of a single query never tightly."""
    asked = []
    own = layer(**given)
    if "qk_norm" in given:
        nn.init.constant_(own.q_norm.weight, 2.0)
        nn.init.constant_(own.k_norm.weight, 3.0)
    q, k, g = torch.randn(1, 4, 2, 32), torch.randn(1, 6, 2, 32), torch.zeros(1, 6, 2)
    monkeypatch.setattr(attention, "skipped_tiles", lambda *qkg, **how: asked.append((qkg, how)))
    options = own.pruning(q, k, own.spec.prune_log_tolerance)
    by_norms = -2 * q.norm(dim=-1).amax(1) * k.norm(dim=-1).amax(1) / 32**0.5 - math.log(6) - 5
    eps = torch.finfo(torch.float32).eps
    if rule is None:
        assert options == {"adaptive_threshold": None}
        return
    threshold = own.threshold(q, k, -5.0)
    if "scales" in rule:
        bound = 6 * 32**0.5 * (1 + eps / 2) ** (4 if "rotated" in rule else 2)
        assert float(threshold) == pytest.approx(-2 * bound - math.log(6) - 5, rel=1e-6)
    else:
        torch.testing.assert_close(threshold, by_norms)
    if rule == "tight":
        assert options == {"adaptive_threshold": "tight", "log_tolerance": -5.0}
    else:
        assert list(options) == ["adaptive_threshold"] and torch.equal(options["adaptive_threshold"], threshold)
    handed = []
    monkeypatch.setattr(attention, "forgetting_attention", lambda *qkvg, **how: handed.append((qkvg, how)))
    own.attend(q, k, k, g, None)
    assert str(handed[0][1]) == str(dict(seq_start=None, window_size=None, **options))
    assert all(x is y for x, y in zip(handed[0][0], (q, k, k, g), strict=True))
    for queries, name in ((q, "pruning"), (q[:, :1], "threshold")):
        own.pruned_tiles(queries, k, g, -5.0, 8)
        given_q, given_k, given_g = asked[-1][0]
        assert given_q is queries and given_k is k and given_g is g and asked[-1][1].pop("tile") == 8
        wanted = own.pruning(queries, k, -5.0) if name == "pruning" else {"adaptive_threshold": own.threshold(queries, k, -5.0)}
        found = asked[-1][1]
        assert found.keys() == wanted.keys() and str(found) == str(wanted)


def test_a_head_is_normed_with_its_own_epsilon():
    norm, x = HeadNorm(8, 0.5), torch.randn(1, 3, 2, 8)
    nn.init.uniform_(norm.weight)
    torch.testing.assert_close(norm(x), x / (x.square().mean(-1, keepdim=True) + 0.5).sqrt() * norm.weight)
    own = layer(qk_norm=True, use_output_norm=True, norm_eps=0.25)
    assert (own.q_norm.eps, own.k_norm.eps, own.output_norm.eps) == (1e-5, 1e-5, 0.25)
    assert own.q_norm.weight.shape == (32,) and own.output_norm.weight.shape == (64,)
    assert layer(qk_norm=True, qk_norm_share_param_across_head=False).k_norm.weight.shape == (64,)


def test_a_norm_rounds_no_double_and_needs_no_memory():
    norm, x = RMSNorm(8, 1e-5), torch.randn(3, 8)
    double = x.double() / (x.double().square().mean(-1, keepdim=True) + 1e-5).sqrt()
    assert torch.allclose(copy.deepcopy(norm).double()(x.double()), double, rtol=0, atol=1e-14)
    assert norm.to("meta")(x.to("meta")).shape == (3, 8), "where there is no autocast"


@pytest.mark.parametrize("gate", ["fixed", "bias_only", "full"])
def test_a_fixed_gate_alone_keeps_its_digits(gate):
    own = layer(forget_gate=gate, **(TIMES if gate != "full" else {})).to(torch.bfloat16)
    dtype = (own.fgate_proj.bias if gate == "full" else own.fgate_bias).dtype
    assert dtype == (torch.float32 if gate == "fixed" else torch.bfloat16)
    assert own.to("meta").o_proj.weight.is_meta and (gate != "fixed" or own.fgate_bias.dtype == torch.float32)


@pytest.mark.parametrize(("tokens", "tile"), [(8, 1), (16, 1), (40, 2), (2048, 128), (4096, 128)])
def test_a_measured_sequence_has_sixteen_tiles_or_the_kernels_own(monkeypatch, tokens, tile):
    model = build_model(ForgettingTransformerSpec(**SIZES | {"num_layers": 2}, prune_log_tolerance=-5.0)).model
    asked = []
    monkeypatch.setattr(ForgettingAttention, "pruned_tiles", lambda self, *given: asked.append(given[3:]) or "count")
    monkeypatch.setattr(attention, "share_of_tiles", lambda *given: asked.append(given) or torch.tensor([[0.25, 0.75]]))
    q = torch.zeros(1, tokens, 2, 32)
    monkeypatch.setattr(ForgettingAttention, "project", lambda self, *given: (q, q, q, None))
    monkeypatch.setattr(ForgettingAttention, "forward", lambda self, x, *given: x)
    with model.measuring() as found, torch.no_grad():
        model(torch.zeros(1, 4, dtype=torch.long))
    assert asked == [(-5.0, tile), ("count", tokens, tokens, tile)] * 2 and [float(x) for x in found["pruned_share"]] == [
        0.5,
        0.5,
    ]


class Other(nn.Module):
    """A model of somebody else's: hidden states, a head, and what it makes of its logits."""

    def __init__(self, *, bias: bool = False, cap: float | None = None, inner: bool = True) -> None:
        super().__init__()
        self.embed, self.head, self.cap, self.inner, self.asked = nn.Embedding(9, 4), nn.Linear(4, 9, bias=bias), cap, inner, []

    @property
    def base_model(self) -> Any:
        return (lambda **given: SimpleNamespace(last_hidden_state=self._hidden(**given))) if self.inner else self

    def get_output_embeddings(self) -> nn.Module:
        return self.head

    def _hidden(self, input_ids: torch.Tensor, use_cache: bool = True) -> torch.Tensor:
        self.asked.append((use_cache, self.training))
        return self.embed(input_ids)

    def forward(self, **given: Any) -> SimpleNamespace:
        logits = self.head(self._hidden(**given))
        return SimpleNamespace(logits=logits if self.cap is None else self.cap * torch.tanh(logits / self.cap))


@pytest.mark.parametrize(("given", "linear", "probed"), [
    ({}, True, True), ({"bias": True}, False, False), ({"cap": 0.1}, False, True), ({"inner": False}, False, False),
])  # fmt: skip
@pytest.mark.parametrize("training", [True, False])
def test_losses_of_any_model(monkeypatch, given, linear, probed, training):
    """Logits that are more than a linear map of the hidden states are formed; models are asked once, in evaluation mode."""
    model, ids, targets = Other(**given).train(training), torch.arange(8).view(2, 4), torch.arange(1, 9).view(2, 4)
    used = []
    plain = loss.linear_cross_entropy
    monkeypatch.setattr(loss, "linear_cross_entropy", lambda *inputs: used.append(len(inputs)) or plain(*inputs))
    wanted = nn.functional.cross_entropy(model(input_ids=ids).logits.mT, targets, reduction="none")
    model.asked.clear()
    for count in (1, 2):
        found = loss.token_losses(model, ids, targets)
        torch.testing.assert_close(found, wanted)
        assert found.shape == (2, 4) and len(used) == count * linear and model.training is training
    assert model.asked == [(False, False)] * 2 * probed + [(False, training)] * 2


def invalid() -> ValidationError:
    with pytest.raises(ValidationError) as met:
        TypeAdapter(ForgettingTransformerSpec).validate_json(json.dumps(SIZES | {"hidden_size": 0}))
    return met.value


@pytest.mark.parametrize(("error", "told"), [
    (lambda: invalid(), "config.json: hidden_size Input should be greater than 0"),
    (lambda: SafetensorError("HeaderTooLarge"), "its safetensors are damaged or incomplete (HeaderTooLarge)"),
    (lambda: OSError("gone"), "gone"), (lambda: ValueError("a\n  b"), "a b"), (lambda: KeyError("x"), "KeyError 'x'"),
    (lambda: ValueError("y" * 999), "y" * 600),
])  # fmt: skip
def test_an_error_of_loading_in_one_line(error, told):
    assert build._in_one_line(error()) == told


@pytest.mark.parametrize(("missing", "unexpected", "misshapen", "words"), [
    ("", "", (), None), ("cab", "", (), "missing: a, b, c"), ("dcabe", "", (), "missing: a, b, c and 2 more"),
    ("", "x", (), "unexpected: x"), ("", "", (("a", [1, 2], [2, 1]),), r"of another shape: a \(1, 2\), not \(2, 1\)"),
    ("a", "b", (), "missing: a; unexpected: b"),
])  # fmt: skip
def test_tensors_that_do_not_fit(missing, unexpected, misshapen, words):
    shaped = {(name, torch.Size(found), torch.Size(wanted)) for name, found, wanted in misshapen}
    told = f"^the weights do not fit config.json: tensors {words}$"
    with pytest.raises(ValueError, match=told) if words else contextlib.nullcontext():
        build._refuse_misfits(set(missing), set(unexpected), shaped)
