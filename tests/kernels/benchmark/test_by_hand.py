"""Numbers of the benchmarks that were worked out by hand: what a row says, what is drawn as input, who is measured where."""

import itertools
import math
import signal
import sys
from functools import partial
from types import SimpleNamespace

import pandas as pd
import pytest
import torch

from kernels import forgetting_attention as forgetting
from kernels.benchmark import __main__ as command
from kernels.benchmark import decode, errors, operators, times
from kernels.benchmark.rows import BASELINE, ROPE_BASELINE

FOX, STICK = operators.FORGETTING, operators.STICK_BREAKING
SHAPE = (2, 1000, 3, 64)


def test_a_row_of_each_operation(monkeypatch):
    """Work is 4 B H T^2 D / 2 forward, 3.5 times that with backward, none of decoding."""
    asked = []
    bench = lambda run, **how: asked.append(how) or run()  # noqa: E731
    graph = lambda run, **how: asked.append(how) or run()  # noqa: E731
    testing = SimpleNamespace(do_bench=bench, do_bench_cudagraph=graph)
    monkeypatch.setattr(times, "triton", SimpleNamespace(testing=testing))
    runs = {
        "forward": lambda: [0.1, 0.2, 0.300006],
        "forward+backward": lambda: [1.0, 2.0, 4.0],
        "decode": lambda: [7.0, 8.0, 9.0],
    }
    found = times.timed("ours", "open", SHAPE, runs, lambda: 0.0012345, "today", 9, operators.attention_flops(SHAPE))
    work = 4 * 2 * 3 * 1000**2 * 64 / 2
    about = {"date": "today", "provider": "ours", "gates": "open", "dtype": "bfloat16", "batch": 2, "seq_len": 1000,
             "num_heads": 3, "head_dim": 64, "max_error": 0.00123}  # fmt: skip
    wanted = {"forward": (0.1, 0.2, 0.30001, work / 0.2e-3 / 1e12), "forward+backward": (1, 2, 4, 3.5 * work / 2e-3 / 1e12),
              "decode": (7, 8, 9, 0)}  # fmt: skip
    for row, (operation, (low, middle, high, tflops)) in zip(found, wanted.items(), strict=True):
        numbers = {"ms_q20": low, "ms_q50": middle, "ms_q80": high, "effective_tflops": round(tflops, 2)}
        assert row == {**about, "operation": operation, **numbers}
    of_triton = {"warmup": 50, "rep": 200, "quantiles": [0.2, 0.5, 0.8]}
    assert asked == [of_triton, of_triton, {"quantiles": [0.2, 0.5, 0.8]}]


@pytest.mark.parametrize("what", ["o", "dq", "dk", "dv"])
def test_two_percent_of_a_norm_are_too_much(what):
    """The output and each gradient are held to it; what has no reference is not."""
    product = lambda q, k, v, g: (q + k) * (v + g[..., None]) + k  # noqa: E731
    cheap = FOX._replace(inputs=partial(FOX.inputs, device="cpu"), exact=lambda name: product)

    def stretched(x, factor):
        """The same value, with a gradient that is `factor` times as large."""
        return x.detach() + factor * (x - x.detach())

    def attention(factor, *inputs):
        *own, g = (x.float() for x in inputs)
        own = [stretched(x, factor if name == what else 1.0) for name, x in zip(("dq", "dk", "dv"), own, strict=True)]
        o = product(*own, g)
        return (o - (1 - factor) * o.detach() if what == "o" else o).bfloat16()

    assert 0 < times.check(cheap, "ours", partial(attention, 1.0), 16, "open") < 0.1
    times.check(cheap, "ours", partial(attention, 1.018), 16, "open")
    with pytest.raises(RuntimeError, match=f"^{what} is off by 3.0e-02 of its norm"):
        times.check(cheap, "ours", partial(attention, 1.03), 16, "open")
    with pytest.raises(RuntimeError, match=r"^o is off by nan of its norm"):
        times.check(cheap, "ours", partial(attention, math.nan), 16, "open")
    assert math.isnan(times.check(STICK, BASELINE, print, 16, "long"))


def test_inputs_of_each_regime():
    """Queries and keys have a root mean square of one; gates rise over the heads, or are open; equal words, equal draws."""
    q, k, v, log_fgate, do = FOX.inputs((2, 500, 4, 16), "local to global", "cpu")
    for x in (q, k):
        assert (x.float() ** 2).mean(-1).sub(1).abs().max() < 0.02
    assert not any(torch.equal(x, y) for x, y in itertools.combinations((q, k, v, do), 2))
    assert (v.float() ** 2).mean(-1).sub(1).abs().max() > 0.5
    logits = torch.logit(log_fgate.detach().double().exp())
    assert logits.mean((0, 1)).tolist() == pytest.approx([0, 3, 6, 9], abs=0.15) and logits.std((0, 1)).sub(1).abs().max() < 0.1
    assert [x.dtype for x in (q, k, v, log_fgate, do)] == [torch.bfloat16] * 3 + [torch.float32, torch.bfloat16]
    assert [x.requires_grad for x in (q, k, v, log_fgate, do)] == [True] * 4 + [False]
    draw = torch.Generator().manual_seed(0)
    drawn = [torch.randn(2, 500, 4, 16, generator=draw).bfloat16() for _ in range(4)]
    assert torch.equal(v, drawn[2]) and torch.equal(do, drawn[3])
    opened = FOX.inputs((2, 500, 4, 16), "open", "cpu")
    assert torch.equal(opened[0], q) and opened[3].unique().tolist() == [pytest.approx(-math.exp(-30))]
    for regime, mean in (("short", 0.0), ("long", -9.0)):
        q, k, v, do = (x.detach().float() for x in STICK.inputs((2, 200, 3, 64), regime, "cpu"))
        draw = torch.Generator().manual_seed(0)
        drawn = [torch.randn(2, 200, 3, 64, generator=draw) for _ in range(4)]
        assert torch.equal(v, drawn[2].bfloat16().float()) and torch.equal(do, drawn[3].bfloat16().float())
        logits = torch.einsum("bihd,bjhd->bhij", q, k) / 8
        assert (logits.mean().item(), logits.std().item()) == pytest.approx((mean, 1.0), abs=0.1)


def test_who_is_measured_where():
    """Open gates: ours, with and without pruning, alone. Stick-breaking: softmax once, of any logits."""
    for name in ("ours", "ours, pruned", "ours, tightly pruned", "ours, deterministic", "fla", BASELINE):
        assert FOX.label(name, "local to global") == "local to global"
        assert FOX.label(name, "open") == ("open" if name in ("ours", "ours, pruned", "ours, tightly pruned") else "")
    assert [STICK.label(name, logits) for name in ("ours", ROPE_BASELINE) for logits in ("long", "short")] == [
        "long", "short", "any", "",
    ]  # fmt: skip
    q, k, v, log_fgate = (x.detach().double() for x in FOX.inputs((1, 9, 2, 16), "local to global", "cpu")[:4])
    gated, plain = (FOX.exact(name)(q, k, v, log_fgate) for name in ("fla", "softmax flash-2"))
    causal = torch.nn.functional.scaled_dot_product_attention(*(x.transpose(1, 2) for x in (q, k, v)), is_causal=True)
    assert torch.allclose(plain, causal.transpose(1, 2)) and not torch.allclose(gated, plain, rtol=1e-2)
    assert STICK.exact("softmax flash-2 + RoPE") is None and STICK.exact("fla") is not None


def test_pruned_providers_are_given_the_threshold_of_their_length():
    """Norms of queries and keys are those of RMS-normalised heads: logits are at most sqrt(D)."""
    given = {}
    attention = lambda q, k, v, g, adaptive_threshold: given.update(threshold=adaptive_threshold)  # noqa: E731
    q = torch.zeros(2, 50, 3, 64)
    operators._pruned(attention)(q, q, q, q[..., 0])
    expected = -2 * 8 - math.log(50) - 10
    assert given["threshold"].shape == (2, 3) and given["threshold"].unique().tolist() == [pytest.approx(expected)]
    pruned = decode.decoders((2, 50, 3, 64), "cpu")["ours, pruned"].keywords["adaptive_threshold"]
    assert torch.equal(pruned, given["threshold"])


def test_softmax_knows_its_own_positions_only():
    """The baselines are causal softmax attention, of heads in their places; decoding sees the whole cache."""
    q, k, v, log_fgate = (x.detach().float() for x in FOX.inputs((1, 9, 2, 16), "local to global", "cpu")[:4])
    wanted = FOX.exact("softmax")(q, k, v, log_fgate)
    of = operators._softmax(torch.nn.attention.SDPBackend.MATH)
    assert torch.allclose(of(q, k, v, log_fgate), wanted, atol=1e-6)
    twice = operators._softmax(torch.nn.attention.SDPBackend.MATH, lambda x: 2 * x)(q, k, v, log_fgate)
    assert torch.allclose(twice, FOX.exact("softmax")(4 * q, k, v, log_fgate), atol=1e-6)
    last = decode._softmax(torch.nn.attention.SDPBackend.MATH, q[:, -1:], k, v, log_fgate)
    assert torch.allclose(last, wanted[:, -1:], atol=1e-6)


def test_a_regime_of_errors(monkeypatch):
    """Queries are as many times larger as logits, gates have the mean that is asked for, the reference is in float64."""
    monkeypatch.setattr(errors, "SHAPE", (2, 200, 4))
    small, large = (errors.make_regime(logit, "local", 16, device="cpu") for logit in (1.0, 3.0))
    assert torch.equal(large.inputs[0], 3.0 * small.inputs[0]) and torch.equal(large.inputs[1], small.inputs[1])
    q, k, v, log_fgate = (x.detach() for x in small.inputs)
    assert (q.dtype, log_fgate.dtype, small.exact[0].dtype, small.do.dtype) == (
        torch.bfloat16, torch.float32, torch.float64, torch.bfloat16)  # fmt: skip
    logits = torch.logit(log_fgate.double().exp())
    assert (logits.mean().item(), logits.std().item()) == pytest.approx((-6.0, 1.0), abs=0.1)
    assert [tuple(x.shape) for x in small.exact] == [(2, 200, 4, 16)] * 4 + [(2, 200, 4)]
    doubles = forgetting.reference_attention(*(x.double() for x in (q, k, v, log_fgate)))
    assert torch.equal(doubles, small.exact[0].detach())


def test_softmax_beside_stick_breaking_is_given_positions(monkeypatch):
    """Queries and keys are rotated by their places, at the base of 500,000; the table holds cosines, then sines."""
    arange, tables = torch.arange, []
    monkeypatch.setattr(operators.torch, "arange", lambda *given, device, **how: arange(*given, **how))
    monkeypatch.setattr(operators.Rotate, "apply", lambda x, table: tables.append(table) or 2 * x)
    math_alone = torch.nn.attention.SDPBackend.MATH
    monkeypatch.setattr(operators, "sdpa_kernel", lambda backend: torch.nn.attention.sdpa_kernel(math_alone))
    monkeypatch.setitem(sys.modules, "fla.ops.stickbreaking_attn", None)
    found = operators._stick_providers((1, 9, 2, 16))
    assert list(found) == ["ours", ROPE_BASELINE, "softmax flash-2 + RoPE"]
    q, k, v, log_fgate = (x.detach().float() for x in FOX.inputs((1, 9, 2, 16), "local to global", "cpu")[:4])
    wanted = FOX.exact("softmax")(4 * q, k, v, log_fgate)
    assert all(torch.allclose(found[name](q, k, v), wanted, atol=1e-5) for name in list(found)[1:3])
    angles = torch.outer(arange(9).double(), torch.tensor([5e5 ** (-n / 8) for n in range(8)]).double())
    installed = SimpleNamespace(parallel_stickbreaking_attn=lambda *given: ("o", "rest"))
    monkeypatch.setitem(sys.modules, "fla.ops.stickbreaking_attn", installed)
    assert operators._stick_providers((1, 9, 2, 16))["fla"](q, k, v) == "o"
    assert len(tables) == 4 and torch.allclose(tables[0].double(), torch.cat([angles.cos(), angles.sin()], 1), atol=1e-5)


def test_a_rotation_is_one_pass_and_backward_turns_back(monkeypatch):
    calls = []

    class Kernel:
        def __getitem__(self, grid):
            return lambda *given, **options: calls.append((grid, given, options))

    monkeypatch.setattr(operators, "_rotate_kernel", Kernel())
    x, table = torch.ones(2, 50, 3, 16, requires_grad=True), torch.ones(50, 16)
    operators.Rotate.apply(x, table).sum().backward()
    (grid, given, options), (back, returned, _) = calls
    assert grid == back == (5,) and options == {"HALF": 8, "ROWS": 64}, "300 rows"
    assert given[3:] == (300, 50, 3, 1.0) and given[1] is returned[1] is table and returned[3:] == (300, 50, 3, -1.0)


def test_a_pass_forward_and_backward_gives_the_gradients_that_are_wanted():
    q, gate = torch.tensor([2.0], requires_grad=True), torch.tensor([5.0], requires_grad=True)
    product = lambda *given: given[0] ** 2 * given[1]  # noqa: E731
    assert [x.item() for x in times._both(product, [q, gate], [q], torch.tensor([3.0]))] == [60.0]
    assert [x.item() for x in times._both(product, [q, gate], [q, gate], torch.tensor([3.0]))] == [60.0, 12.0]


def test_two_percent_are_too_much_of_a_decoded_token(monkeypatch):
    """Softmax attention is held to open gates; the error that is returned is the largest, not the share of the norm."""

    def decoded(factor, open_gates, q, k, v, sums):
        gates = 0.0 * sums if open_gates else forgetting.gates_of_sums(sums).double()
        return factor * forgetting.reference_attention(q.double(), k.double(), v.double(), gates)

    for name, open_gates in (("ours", False), ("softmax flash-2", True)):
        for factor in (1.018, 1.022, math.nan):
            own = partial(decoded, factor, open_gates)
            monkeypatch.setattr(decode, "decoders", lambda *given, name=name, own=own: {name: own})
            if factor < 1.02:
                wanted = decoded(1.0, open_gates, *decode.make_cache((1, 64, 4, 16), "cpu")).abs().max() * 0.018
                assert decode.check(name, (9, 64, 2, 16), "cpu") == pytest.approx(float(wanted), rel=1e-3)
            else:
                with pytest.raises(RuntimeError, match=r"o is off by (2\.2e-02|nan)"):
                    decode.check(name, (9, 64, 2, 16), "cpu")


def test_a_limit_is_of_its_own_work_alone(tmp_path, monkeypatch):
    """Signals mean afterwards what they meant before, and what was measured until then is kept."""
    handlers = [signal.getsignal(number) for number in (signal.SIGALRM, signal.SIGTERM)]
    with pytest.raises(times.TooLong, match="more than 60 s"), times.limited(60):
        signal.raise_signal(signal.SIGALRM)
    with times.limited(60):
        assert signal.alarm(0) in (59, 60)
        signal.alarm(60)
    assert signal.alarm(0) == 0
    kept = []
    monkeypatch.setattr(times, "add", lambda kind, rows, device, **how: kept.append((kind, rows, how)))
    monkeypatch.setattr(times.torch.cuda, "get_device_name", lambda: "GPU")
    times.keep("decoding", [{"a": 1}, {"a": 2}], "x", "code", tmp_path)
    times.keep("decoding", iter([]), "x", "", tmp_path)

    def stopped():
        yield {"a": 3}
        signal.raise_signal(signal.SIGTERM)

    with pytest.raises(KeyboardInterrupt):
        times.keep("decoding", stopped(), "x", "", tmp_path)
    own = {"code": "", "folder": tmp_path}
    assert kept == [("decoding", [{"a": 1}, {"a": 2}], own | {"code": "code"}), ("decoding", [{"a": 3}], own)]
    assert handlers == [signal.getsignal(number) for number in (signal.SIGALRM, signal.SIGTERM)]


def test_a_page_keeps_what_stands_around_its_tables(monkeypatch, tmp_path):
    text = "before <!-- table -->{} <!-- end --> between <!-- decoding -->{} <!-- end --> <!-- model -->{} <!-- end --> after\n"
    (tmp_path / "stick_breaking").mkdir()
    (tmp_path / "stick_breaking" / "README.md").write_text(text.format(" old", " older", " oldest"))
    drawers = {"table": lambda rows: f"T{len(rows)}", "decoding_table": lambda rows: "D", "model_table": lambda rows: "M"}
    for name, value in (("PACKAGES", tmp_path), *drawers.items()):
        monkeypatch.setattr(command, name, value)
    drawn = command.DRAWN["stick_breaking"][1]
    rows = pd.DataFrame({"operation": ["forward", *["forward+backward"] * 4], "gates": [drawn, drawn, "short", "any", "else"]})
    page = command.page("stick_breaking", {"stick_breaking": rows, "decoding": rows, "fla_model": rows})
    assert page.split() == text.format(" T3", " D", " M").split()
