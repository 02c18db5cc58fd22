"""The kernel benchmarks' rows: the newest wins, ratios compare within one measuring, and they are drawn without a GPU."""

import math
import os
import subprocess
import sys
from functools import partial
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import get_args

import pandas as pd
import pytest
import torch
import triton
from torch.nn import functional as F
from torch.nn.attention import SDPBackend

from kernels.benchmark import __main__ as command
from kernels.benchmark import decode, operators, times
from kernels.benchmark.__main__ import DRAWN, PACKAGES, TABLES, Kind, page, tables
from kernels.benchmark.channels import channels_attention
from kernels.benchmark.flash4 import flash4_forgetting_attention
from kernels.benchmark.flex import flex_forgetting_attention
from kernels.benchmark.rows import (
    BASELINE,
    MEMORY_LIMIT,
    PICTURES,
    ROPE_BASELINE,
    compared,
    decoding_table,
    draw,
    error_table,
    table,
)
from kernels.forgetting_attention import forgetting_attention
from results.measured import read
from tests.kernels.forgetting_attention.oracle import attend, make_case, output_and_gradients

OPERATORS = command.timed_operators()
ROOT = Path(__file__).parents[3]
ROW = {
    "gpu": "some GPU", "triton": "3.6.0", "date": "2026-01-01T00:00:00+00:00", "provider": BASELINE, "operation": "forward",
    "gates": "local to global", "dtype": "bfloat16", "batch": 2, "seq_len": 16_384, "num_heads": 24, "head_dim": 64,
    "ms_q20": 1.0, "ms_q50": 2.0, "ms_q80": 3.0, "effective_tflops": 450.0, "max_error": 1e-3,
}  # fmt: skip


def test_ratio_is_within_one_measuring():
    later = {**ROW, "date": "2026-01-02T00:00:00+00:00", "ms_q50": 1.0}
    ours = {**later, "provider": "ours", "ms_q50": 0.5}
    rows = pd.DataFrame([ROW, later, ours, {**ours, "seq_len": 7, "max_error": float("nan")}])
    newest = compared(rows)
    assert list(newest.provider) == [BASELINE, "ours", "ours"] and list(newest.date.unique()) == [later["date"]]
    assert list(newest.ratio[:2]) == [1.0, 2.0] and pd.isna(newest.ratio.iloc[2])
    assert "| pass | regime | softmax cuDNN | ours |" in table(rows)
    assert "| 2, 16384, 24, 64 | forward | local to global | 1.000 ms | 2.00 |" in table(rows)
    assert "| 2, 7, 24, 64 | forward | local to global |  | 0.500 ms |" in table(rows)  # nothing to compare with
    others = rows.assign(operation="decode")
    assert table(pd.concat([rows, others])) == table(rows)


def test_stick_breaking_is_compared_with_softmax_that_knows_positions(tmp_path):
    softmax = {**ROW, "provider": ROPE_BASELINE, "gates": "any"}
    rows = pd.DataFrame([softmax, {**softmax, "provider": "ours", "gates": "long", "ms_q50": 4.0}])
    assert list(compared(rows).ratio) == [1.0, 0.5]
    draw(rows, tmp_path / "rows.png", "long", "logits")
    assert (tmp_path / "rows.png").stat().st_size > 1000
    draw(rows[1:], tmp_path / "none.png", "long", "logits")
    assert not (tmp_path / "none.png").exists()


def test_a_provider_that_took_too_long_has_a_line_and_hides_no_earlier_time():
    late = {**ROW, "provider": "fla", "ms_q20": math.nan, "ms_q50": math.nan, "ms_q80": math.nan, "effective_tflops": 0.0}
    assert "| 2.000 ms | too slow to compile |" in table(pd.DataFrame([ROW, late]))
    again = pd.DataFrame([ROW, {**late, "ms_q50": 4.0}, {**late, "date": "later"}])
    assert list(compared(again).query("provider == 'fla'").ratio) == [0.5]


@pytest.fixture
def _no_gpu(monkeypatch):
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda: "some GPU")
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)


@pytest.mark.usefixtures("_no_gpu")
def test_rows_are_kept_where_measuring_is_cut_short(tmp_path):
    def cut():
        yield {name: value for name, value in ROW.items() if name not in ("gpu", "triton")}
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        times.keep("forgetting_attention", cut(), "label", "some code", tmp_path)
    assert list(read("forgetting_attention", tmp_path).ms_q50) == [2.0]


def test_a_provider_is_left_at_its_limit_with_what_it_reached(monkeypatch):
    """Also in a backward pass, and it is left where it fails."""

    def forever(grad):
        while True:
            pass

    x = torch.ones((), requires_grad=True) * 1
    x.register_hook(forever)
    bench = lambda run, **_: run() or [1.0, 2.0, 3.0]  # noqa: E731
    monkeypatch.setattr(times, "triton", SimpleNamespace(testing=SimpleNamespace(do_bench=bench)))
    rows = partial(times.timed, "fla", "open", (1, 2, 3, 4), date="today", limit_s=1)
    found = rows({"forward": lambda: None, "forward+backward": x.backward}, lambda: 1e-3)
    assert [row["operation"] for row in found] == ["forward", "forward+backward"]
    assert found[0]["ms_q50"] == 2.0 and math.isnan(found[1]["ms_q50"]) and found[1]["max_error"] == 1e-3

    def wrong():
        raise RuntimeError("o is off")

    assert not rows({"forward": lambda: None}, wrong)


def test_the_committed_rows_are_shown_without_a_gpu():
    """And the committed pictures are what is drawn from them."""
    drawn = [ROOT / "results" / "kernels" / name for name in ("attention.png", "stick_breaking.png")]
    before = [path.read_bytes() for path in drawn]
    shown = subprocess.run(
        [sys.executable, "-m", "kernels.benchmark", "--show"], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert "NVIDIA H200" in shown.stdout
    assert [path.read_bytes() for path in drawn] == before


def test_the_tight_rule_leaves_fewer_tiles():
    by_head, by_tile = operators.tiles_left((2, 2048, 4, 64))
    assert 0.1 < by_tile < by_head - 0.02 < 0.9


def test_what_is_installed_is_measured(monkeypatch):
    """flash-linear-attention's path is the one that the provider is named after."""
    cute, fla = ModuleType("flash_attn.cute"), ModuleType("fla.ops.forgetting_attn.parallel")
    cute.flash_attn_func = lambda q, k, v, causal: (("flash-4", causal), None)
    fla.parallel_forgetting_attn = lambda *_: (os.environ["FLA_TILELANG"], None)
    installed = {"flash_attn": ModuleType("flash_attn"), "flash_attn.cute": cute, "fla.ops.forgetting_attn.parallel": fla}
    for there in (True, False):
        for name, module in installed.items():
            monkeypatch.setitem(sys.modules, name, module if there else None)
        monkeypatch.setattr(operators, "find_spec", lambda name, there=there: there and name == "tilelang")
        found = operators.providers.__wrapped__()
        assert (
            {"softmax flash-4", "fla", "fla, TileLang"} <= set(found) if there else not {"softmax flash-4", "fla"} & set(found)
        )
        if there:
            monkeypatch.setenv("FLA_TILELANG", "as it was")
            outputs = {name: found[name](*"qkvg") for name in ("fla, TileLang", "fla", "softmax flash-4")}
            assert outputs == {"fla, TileLang": "1", "fla": "0", "softmax flash-4": ("flash-4", True)}


@pytest.mark.parametrize("gates", ["mixture", "near_zero"])
def test_flex_attention_equals_the_oracle_in_values_and_gradients(gates, monkeypatch):
    """PyTorch refuses gradients on a CPU, though the eager computation has them."""
    monkeypatch.setattr("torch.nn.attention.flex_attention._validate_device", lambda *tensors: None)
    case = make_case(gates, 1, 150, 150, 2, 2, 16, torch.float64)
    found = output_and_gradients(flex_forgetting_attention, case)
    torch.testing.assert_close(found, output_and_gradients(attend, case), rtol=1e-10, atol=1e-11)
    ours = output_and_gradients(
        partial(forgetting_attention, backend="reference"), case._replace(log_fgate=case.log_fgate.float())
    )
    torch.testing.assert_close(found, ours, rtol=1e-6, atol=1e-6, check_dtype=False)


def softmax_with_a_bias(q, k, v, sums_BHT, scale):
    """Softmax attention whose bias gets no gradient; a further channel of its keys is zero."""
    assert not sums_BHT.requires_grad and not k[..., 16:].any() and q.shape[-1] == k.shape[-1] == 24
    bias = sums_BHT[..., None] - sums_BHT[..., None, :] + torch.full((150, 150), -torch.inf).triu(1)
    q, k, v = (x.transpose(1, 2) for x in (q, k, v))
    return F.scaled_dot_product_attention(q, k, v, bias.to(q.dtype), scale=scale).transpose(1, 2)


IN_CHANNELS = partial(channels_attention, softmax=partial(operators._attend, SDPBackend.MATH))
AS_A_BIAS = partial(flash4_forgetting_attention, softmax=softmax_with_a_bias)


@pytest.mark.parametrize("gates", ["local", "global"])
@pytest.mark.parametrize(("dtype", "most"), [(torch.float64, 1e-12), (torch.float32, 1e-5), (torch.bfloat16, 3e-2)])
@pytest.mark.parametrize("attention", [IN_CHANNELS, AS_A_BIAS], ids=["channels", "bias"])
def test_gates_in_softmax_attention_equal_the_oracle_in_values_and_gradients(gates, dtype, most, attention):
    """But for gates of 0, whose sums are infinite."""
    case = make_case(gates, 1, 150, 150, 2, 2, 16, torch.float64)
    case = case._replace(log_fgate=case.log_fgate.clamp(min=-5))
    low = case._replace(**{name: getattr(case, name).to(dtype) for name in ("q", "k", "v")})
    for found, expected in zip(output_and_gradients(attention, low), output_and_gradients(attend, case), strict=True):
        assert (found.double() - expected).norm() < most * expected.norm()


def test_every_operator_is_timed_in_its_regimes(monkeypatch):
    """The baseline once, in the measuring that it is compared in; providers that were not asked for not at all."""
    said: dict[str, list] = {kind: [] for kind in OPERATORS}
    for kind, operator in OPERATORS.items():
        softmax = BASELINE if kind == "forgetting_attention" else ROPE_BASELINE
        named = dict.fromkeys(("ours", softmax, "fla"), print)
        small = operator._replace(inputs=lambda *_: [torch.zeros(1)] * 4, providers=lambda shape, named=named: named)
        monkeypatch.setattr(times, "timed", lambda name, gates, *_, kind=kind: said[kind].append((name, gates)) or [])
        list(times.measure(small, operator.shapes[0], ("ours",), 60))
    assert said["forgetting_attention"] == [("ours", "local to global"), (BASELINE, "local to global"), ("ours", "open")]
    assert said["stick_breaking"] == [("ours", "long"), (ROPE_BASELINE, "any"), ("ours", "short")]
    assert said["mamba2_recurrence"] == said["short_convolution"] == [("ours", "any"), (ROPE_BASELINE, "any")]


@pytest.mark.parametrize("kind", OPERATORS)
def test_a_provider_that_is_wrong_is_not_timed(kind):
    operator = OPERATORS[kind]
    cpu = operator._replace(inputs=partial(operator.inputs, device="cpu"))
    exact = operator.exact("ours")
    assert times.check(cpu, "ours", lambda *x: exact(*(y.float() for y in x)), 16, operator.regimes[0]) < 1e-2
    with pytest.raises(RuntimeError, match="o is off by"):
        times.check(cpu, "ours", lambda *x: 1.1 * exact(*(y.float() for y in x)), 16, operator.regimes[0])


@pytest.mark.usefixtures("_no_gpu")
def test_decoding_is_checked_timed_and_shown(monkeypatch, tmp_path):
    """Caches in turn; what a machine lacks or gets wrong has no row."""
    read_keys, softmax = [], decode._softmax
    monkeypatch.setattr(decode, "_softmax", lambda *given: read_keys.append(given[2].data_ptr()) or softmax(*given))

    def bench(run, quantiles):
        read_keys.append([])
        outputs = [run() for _ in range(3)]
        assert all(torch.equal(output, outputs[0]) for output in outputs)
        return [0.001, 0.002, 0.003]

    testing = SimpleNamespace(do_bench_cudagraph=bench, get_dram_gbps=lambda: 1.0)
    for module in (times, decode):
        monkeypatch.setattr(module, "triton", SimpleNamespace(testing=testing))
    shape, size = (1, 300, 2, 16), 2 * 2 * 300 * 2 * 16
    monkeypatch.setattr(decode, "ALL_CACHES", size)
    times.keep("decoding", decode.measure_decoding((shape,), (), 60, "cpu"), "label", "some code", tmp_path)
    rows = read("decoding", tmp_path)
    assert list(rows.provider) == ["softmax flash-2", "ours", "ours, pruned", MEMORY_LIMIT]  # no cuDNN on a CPU
    assert list(rows.ms_q50) == [0.002, 0.002, 0.002, round(size * 1e-6, 5)] and bool((rows.max_error[:3] < 1e-2).all())
    first, second, third = read_keys[2:5]  # behind those of the check
    assert first == third != second
    assert f"| some GPU | {triton.__version__} | 1, 300, 2, 16 | 2.0 | 2.0 | 2.0 | 38.4 |" in decoding_table(
        pd.concat([rows.assign(ms_q50=9.0), rows])
    )
    monkeypatch.setattr(decode, "decoders", lambda *_: {"ours": lambda q, k, v, sums: 1.1 * v[:, -1:]})
    with pytest.raises(RuntimeError, match="o is off by"):
        decode.check("ours", shape, "cpu")


def test_the_error_table_has_the_largest_of_the_newest():
    regime = {"gpu": "some GPU", "triton": "3.6.0", "provider": "ours", "head_dim": 64, "logit": 1.0, "gates": "open"}
    errors = dict.fromkeys(("o", "dq", "dk", "dv", "dlog_fgate"), 1e-3)
    rows = [{**regime, **errors, "o": 9.0}, {**regime, **errors}, {**regime, **errors, "logit": 3.0, "dq": 2e-3}]
    assert "| some GPU | 3.6.0 | open | ours | 1.0e-03 | 2.0e-03 | 1.0e-03 | 1.0e-03 | 1.0e-03 |" in error_table(
        pd.DataFrame(rows)
    )


def test_the_committed_tables_are_those_of_the_committed_rows():
    kinds = get_args(Kind) + tuple(TABLES)
    measured = {kind: read(kind) for kind in kinds}
    assert (PICTURES / "README.md").read_text() == tables(measured)
    for kind in DRAWN:
        assert (PACKAGES / kind / "README.md").read_text() == page(kind, measured)


def test_a_machine_without_a_gpu_is_told_so(monkeypatch, capsys, tmp_path):
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    for words in ([], ["times"], ["tiles", "errors"], ["decode"]):
        monkeypatch.setattr(sys, "argv", ["benchmark", *words, "--rows", str(tmp_path)])
        assert command.main() == 2
        assert capsys.readouterr().err == (
            "error: every mode but tiles needs a GPU, and torch finds none; --show prints the stored rows\n"
        )
