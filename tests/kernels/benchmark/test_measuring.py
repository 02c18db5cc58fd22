"""Options and inputs of each provider, regime and mode of the benchmark, with stand-ins for what takes a GPU."""

import contextlib
import math
import sys
from types import SimpleNamespace

import pandas as pd
import pytest
import torch
from torch.nn.attention import SDPBackend
from torch.nn.attention.flex_attention import flex_attention

from kernels.benchmark import __main__ as command
from kernels.benchmark import decode, errors, operators, times
from kernels.benchmark.channels import channels_attention
from kernels.benchmark.flex import flex_forgetting_attention
from kernels.benchmark.rows import BASELINE, CUDNN_GATE, FLEX, GATE_IN_CHANNELS, ROPE_BASELINE, compared, draw
from kernels.forgetting_attention import forgetting_attention

INSTALLED = ("flash_attn.cute", "forgetting_transformer", "fla.ops.forgetting_attn.parallel")


def test_every_provider_is_given_its_own_options(monkeypatch, capsys):
    """And what is not installed is said."""
    asked, compiled = [], torch.compile
    for name in INSTALLED:
        monkeypatch.setitem(sys.modules, name, None)
    monkeypatch.setattr(operators, "_softmax", lambda backend: backend)
    monkeypatch.setattr(operators, "_pruned", lambda attention: ("pruned", attention))
    monkeypatch.setattr(torch, "compile", lambda function: asked.append(function) or "compiled")
    found = operators.providers.__wrapped__()
    plain = {name: (each.func, each.keywords) for name, each in found.items() if hasattr(each, "func")}
    assert plain == {"ours": (forgetting_attention, {"deterministic": False}),
                     "ours, tightly pruned": (forgetting_attention, {"adaptive_threshold": "tight"}),
                     GATE_IN_CHANNELS: (channels_attention, {"softmax": found[GATE_IN_CHANNELS].keywords["softmax"]}),
                     CUDNN_GATE: (channels_attention, {"softmax": found[CUDNN_GATE].keywords["softmax"]}),
                     FLEX: (flex_forgetting_attention, {"flex": "compiled"})}  # fmt: skip
    assert found[GATE_IN_CHANNELS].keywords["softmax"].args == (SDPBackend.FLASH_ATTENTION,)
    assert found[CUDNN_GATE].keywords["softmax"].args == (SDPBackend.CUDNN_ATTENTION,)
    assert {name: each for name, each in found.items() if name not in plain} == {
        BASELINE: SDPBackend.CUDNN_ATTENTION, "ours, pruned": ("pruned", forgetting_attention),
        "ours, deterministic": forgetting_attention, "softmax flash-2": SDPBackend.FLASH_ATTENTION,
    }  # fmt: skip
    assert asked == [flex_attention] and torch.compile is not compiled
    told = capsys.readouterr().out.splitlines()
    begun = ("not measured: FlashAttention-4 (", "not measured: the authors' package (", "not measured: fla (")
    assert len(told) == 3 and all(line.startswith(each) for line, each in zip(told, begun, strict=True))
    monkeypatch.setitem(sys.modules, "flash_attn", SimpleNamespace())
    four = SimpleNamespace(flash_attn_func=lambda *given, causal: ((given, causal), "lse"))
    theirs, fla = (
        SimpleNamespace(forgetting_attention="theirs"),
        SimpleNamespace(parallel_forgetting_attn=lambda *given: (given,)),
    )
    for name, module in zip(INSTALLED, (four, theirs, fla), strict=True):
        monkeypatch.setitem(sys.modules, name, module)
    monkeypatch.setattr(operators, "first", lambda attention: lambda *given: attention(*given)[0])
    for tilelang in (True, False):
        monkeypatch.setattr(operators, "find_spec", lambda name, tilelang=tilelang: tilelang and name == "tilelang")
        monkeypatch.setenv("FLA_TILELANG", "as it was")
        found = operators.providers.__wrapped__()
        assert found["softmax flash-4"](*"qkvg") == (("q", "k", "v"), True) and found["fla"](*"qkvg") == ("q", "k", "v", "g")
        assert (found["authors"], found["authors, pruned"]) == ("theirs", ("pruned", "theirs"))
        assert ("fla, TileLang" in found) is tilelang
        lacks = "not measured: fla's TileLang path (no module named tilelang)\n"
        assert capsys.readouterr().out == ("" if tilelang else lacks)


@pytest.mark.parametrize("only", [(), ("ours",), ("fla", "softmax flash-2")])
def test_a_measuring_hands_each_regime_on(monkeypatch, only):
    """Inputs and what they are held to are of the regime; softmax attention has no gates to differentiate."""
    monkeypatch.setattr(
        times, "datetime", SimpleNamespace(now=lambda zone: SimpleNamespace(isoformat=lambda timespec: timespec))
    )
    names, rows, checked = ("ours", BASELINE, "fla", "softmax flash-2"), [], []
    attentions = {name: lambda *given: None for name in names}

    def inputs(shape: object, regime: str) -> list[torch.Tensor]:
        return [torch.full((1,), float(len(regime) + n), requires_grad=n < 4) for n in range(5)]

    operator = operators.FORGETTING._replace(
        inputs=inputs, providers=lambda shape: attentions, regimes=("a", "bcd"),
        label=lambda name, regime: "" if (name, regime) == ("ours", "bcd") else regime)  # fmt: skip
    monkeypatch.setattr(times, "check", lambda *given: checked.append(given) or 0.5)
    monkeypatch.setattr(times, "timed", lambda *given: rows.append(given) or [given[:2]])
    monkeypatch.setattr(times, "_both", lambda *given: ("both", *given))
    shape = (1, 2, 3, 64)
    found = list(times.measure(operator, shape, only, 9))
    wanted = [(name, regime) for regime in operator.regimes for name in names
              if (not only or name in (*only, BASELINE)) and (name, regime) != ("ours", "bcd")]  # fmt: skip
    assert found == wanted == [row[:2] for row in rows]
    for name, regime, given, runs, check, date, limit, work in rows:
        first = float(len(regime))
        assert (given, date, limit, work) == (shape, "seconds", 9, 2 * 1 * 3 * 2 * 2 * 64) and list(runs) == [
            "forward",
            "forward+backward",
        ]
        forward, (_, attention, own, differentiated, do) = runs["forward"], runs["forward+backward"]()
        assert forward.func == attention == attentions[name]
        assert [(x.item(), x.requires_grad) for x in forward.args] == [(first + n, False) for n in range(4)]
        assert [x.item() for x in own] == [first, first + 1, first + 2, first + 3] and do.item() == first + 4
        assert differentiated == own[: 3 if name.startswith("softmax") else 4]
        assert check() == 0.5 and checked[-1] == (operator, name, attentions[name], 64, regime)


def test_gradients_are_computed_in_the_thread_that_is_limited():
    assert torch._C._is_multithreading_enabled()
    with times.limited(60):
        assert not torch._C._is_multithreading_enabled()
    assert torch._C._is_multithreading_enabled()


@pytest.mark.parametrize(("only", "names"), [((), ["ours", "fla"]), (("fla", "ours, pruned"), ["fla"])])
def test_errors_are_of_what_computes_all_of_it(monkeypatch, only, names):
    """A row each of head size, logits and gates; what prunes or has no gates is another function."""
    every = ("ours", "ours, pruned", "ours, tightly pruned", "softmax flash-2", "fla")
    limited, seeds = [], []
    monkeypatch.setattr(errors, "providers", lambda: dict.fromkeys(every))
    monkeypatch.setattr(errors, "limit_tuning", lambda: limited.append(True))
    monkeypatch.setattr(errors, "make_regime", lambda *given: seeds.append(given) or given)
    monkeypatch.setattr(errors, "relative_errors", lambda attention, regime: [regime[0] * (n + 1.0) for n in range(5)])
    rows = list(errors.measure_errors(only, (3, 4), "device"))
    about = [(name, D, logit, gates) for D in (3, 4) for logit in errors.LOGITS for gates in errors.GATES for name in names]
    assert [tuple(row[key] for key in ("provider", "head_dim", "logit", "gates")) for row in rows] == about and limited == [
        True
    ]
    for row, (_, _, logit, _) in zip(rows, about, strict=True):
        assert [row[name] for name in errors.GRADIENTS] == [float(f"{logit * (n + 1):.2e}") for n in range(5)]
    assert [given[3] for given in seeds[: errors.DRAWS]] == list(range(errors.DRAWS)) and {given[4] for given in seeds} == {
        "device"
    }
    assert len(seeds) == errors.DRAWS * 2 * len(errors.LOGITS) * len(errors.GATES)


def test_decoding_without_any_provider_has_no_row_of_memory(monkeypatch):
    """And its caches are as many as a GPU's memory of what it read last cannot hold."""
    asked = []
    cache = [torch.zeros(1), torch.zeros(1, 4, 2, 8), torch.zeros(1, 4, 2, 8), torch.zeros(1)]
    monkeypatch.setattr(decode, "make_cache", lambda shape, device: cache)
    monkeypatch.setattr(decode, "ALL_CACHES", 3 * 2 * cache[1].nbytes)
    monkeypatch.setattr(decode, "triton", SimpleNamespace(testing=SimpleNamespace(get_dram_gbps=lambda: 2.0)))
    monkeypatch.setattr(decode, "decoders", lambda shape, device: {"ours": asked.append, "softmax flash-2": asked.append})
    monkeypatch.setattr(decode, "timed", lambda *given: [])
    assert list(decode.measure_decoding(((1, 4, 2, 8),), (), 9, "cpu")) == []
    runs = []
    monkeypatch.setattr(decode, "timed", lambda name, gates, shape, run, check, date, limit: (
        runs.append((name, gates, shape, run["decode"].args, check.args, limit)),
        [{"provider": name, "max_error": 1.0}])[1])  # fmt: skip
    rows = list(decode.measure_decoding(((1, 4, 2, 8),), ("ours",), 9, "cpu"))
    (name, gates, shape, (_, caches), checked, limit), = runs  # fmt: skip
    assert (name, gates, shape, checked, limit) == ("ours", decode.GATES, (1, 4, 2, 8), ("ours", (1, 4, 2, 8), "cpu"), 9)
    turns = [next(caches) for _ in range(5)]
    assert turns[0] is turns[4] is cache and len({id(each) for each in turns}) == 4
    assert all(x is not y for each in turns[1:4] for x, y in zip(each, cache, strict=True))
    ms = round(2 * cache[1].nbytes / 2 * 1e-6, 5)
    limit_row = {"provider": decode.MEMORY_LIMIT, "ms_q20": ms, "ms_q50": ms, "ms_q80": ms}
    assert (
        rows[0] == {"provider": "ours", "max_error": 1.0} and math.isnan(rows[1].pop("max_error")) and rows[1:] == [limit_row]
    )
    monkeypatch.setattr(decode, "SHAPES", ((1, 4, 2, 8),) * 2)
    assert len(list(decode.measure_decoding((), ("ours",), 9, "cpu"))) == 4


def test_shapes_of_tiles_are_those_of_forgetting_attention(monkeypatch, capsys):
    monkeypatch.setattr(operators, "tiles_left", lambda shape: (0.5, 0.25))
    command.measured(command.Options(modes=("tiles",)))
    lines = capsys.readouterr().out.splitlines()[2:]
    shapes = operators.FORGETTING.shapes
    assert lines == [f"| {', '.join(map(str, shape))} | 50.0 | 25.0 |" for shape in shapes]


@pytest.mark.parametrize(("words", "error", "did", "code"), [
    (["--show"], None, ["show"], 0), ([], None, ["measured", "show"], 0), (["--show"], ValueError("bad"), ["show"], 2),
    ([], KeyError("x"), ["measured", "show"], None),
])  # fmt: skip
def test_how_the_command_goes(monkeypatch, capsys, words, error, did, code):
    done = []

    def show(options: object) -> None:
        done.append("show")
        if error is not None:
            raise error

    monkeypatch.setattr(command, "measured", lambda options: done.append("measured"))
    monkeypatch.setattr(command, "show", show)
    monkeypatch.setattr(sys, "argv", ["benchmark", *words])
    with pytest.raises(KeyError) if code is None else contextlib.nullcontext():
        assert command.main() == code
    assert done == did and capsys.readouterr().err == ("error: bad\n" if code == 2 else "")


def test_the_pages_of_packages_are_written_with_the_whole_of_the_suites_own_rows(monkeypatch, tmp_path):
    written = []
    for kind in ("forgetting_attention", "stick_breaking", "errors_by_regime", "decoding", "fla_model"):
        (tmp_path / kind).mkdir()
        (tmp_path / kind / "a.parquet").touch()
    for name in ("read", "draw", "tables"):
        monkeypatch.setattr(command, name, lambda *given, name=name: name)
    monkeypatch.setattr(command, "page", lambda kind, there: f"page of {kind}")
    monkeypatch.setattr(command, "write_atomic", lambda path, text: written.append((path, text)))
    command.show(command.Options(rows=tmp_path))
    assert written == [(tmp_path / "README.md", "tables")]
    monkeypatch.setattr(command, "FOLDER", tmp_path)
    command.show(command.Options(rows=tmp_path))
    pages = [(command.PACKAGES / kind / "README.md", f"page of {kind}") for kind in command.DRAWN]
    assert written[1:] == [(command.PICTURES / "README.md", "tables"), *pages]
    command.show(command.Options(rows=tmp_path, modes=("times", "errors")))
    assert len(written) == 4


ROW = {"gpu": "g", "triton": "3.6.0", "date": "d", "provider": BASELINE, "operation": "forward", "gates": "any",
       "dtype": "bfloat16", "batch": 1, "seq_len": 64, "num_heads": 3, "head_dim": 16, "ms_q50": 2.0}  # fmt: skip


@pytest.mark.parametrize("name", sorted(ROW.keys() - {"provider", "gates", "ms_q50"}), ids="another {}".format)
def test_a_ratio_is_of_rows_that_are_alike_in_all(name):
    """The first of the baseline's of one measuring counts."""
    ours = {**ROW, "provider": "ours", "gates": "long", "ms_q50": 1.0}
    other = {**ROW, name: f"another {name}", "ms_q50": 100.0}
    assert compared(pd.DataFrame([other, ROW, {**ROW, "ms_q50": 8.0}, ours])).set_index("provider").ratio["ours"] == 2.0
    assert compared(pd.DataFrame([other, ours])).set_index("provider").ratio.isna()["ours"]
    assert len(compared(pd.DataFrame([ours, {**ours, name: f"another {name}"}]))) == (1 if name == "date" else 2)


def test_shapes_are_drawn_by_length_then_head_size_each_pass_in_its_panel(tmp_path, monkeypatch):
    from matplotlib import pyplot

    figures, shapes = [], [(9, 64, 1, 16), (1, 64, 1, 32), (1, 128, 1, 16), (2, 64, 1, 16)]
    monkeypatch.setattr(pyplot, "close", figures.append)
    rows = [{**ROW, "provider": provider, "operation": operation, "ms_q50": ms * (place + 1),
             **dict(zip(("batch", "seq_len", "num_heads", "head_dim"), shape, strict=True))}
            for place, shape in enumerate(shapes) for operation, factor in (("forward", 1), ("forward+backward", 2))
            for provider, ms in ((ROPE_BASELINE, 4.0), ("ours", 1.0 * factor))]  # fmt: skip
    draw(pd.DataFrame(rows), tmp_path / "a.png", "long", "title")
    (figure,) = figures
    names = ["B2  T 64  H1  D16", "B9  T 64  H1  D16", "B1  T 64  H1  D32", "B1  T 128  H1  D16"]
    for axis, ratio in zip(figure.axes, (4.0, 2.0), strict=True):
        assert [text.get_text() for text in axis.get_xticklabels()] == names
        assert sorted({bar.get_height() for bar in axis.patches}) == [1.0, ratio] and len(axis.patches) == 8
        assert axis.get_ylabel() == "speed, cuDNN softmax = 1" and not axis.spines["top"].get_visible()
        assert [(text.get_ha(), text.get_va()) for text in axis.texts] == [("center", "bottom")] * 8
    handles = figure.legends[0].legend_handles
    assert [handle.get_facecolor() for handle in handles] == [bar.get_facecolor() for bar in figure.axes[0].patches[:2]]
    monkeypatch.undo()
    pyplot.close("all")
