"""Groups that the benchmark measures, the order in which they are kept, and what is drawn and written of them."""

import math
from pathlib import Path

import pandas as pd
import pytest
import torch

from kernels.benchmark import __main__ as command
from kernels.benchmark import decode, errors, model, operators, times
from kernels.benchmark.__main__ import Options
from kernels.benchmark.rows import BASELINE, PASSES, TOO_SLOW, decoding_table, draw, error_table, table


@pytest.fixture
def asked(monkeypatch) -> list[tuple]:
    """Calls of what measures and keeps, in order."""
    calls: list[tuple] = []
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(times, "measure", lambda operator, *given: ("times", operator.kind, *given))
    monkeypatch.setattr(errors, "measure_errors", lambda *given: ("errors", *given))
    monkeypatch.setattr(decode, "measure_decoding", lambda *given: ("decode", *given))
    monkeypatch.setattr(model, "measure_model", lambda *given: ("model", *given))
    monkeypatch.setattr(times, "keep", lambda *given: calls.append(given))
    monkeypatch.setattr(operators, "tiles_left", lambda shape: (shape[0] / 10, shape[1] / 100))
    return calls


def test_all_is_measured_group_by_group(asked, capsys):
    given = Options(only=("ours",), limit_s=7, code="c", rows=Path("folder"))
    command.measured(given)
    shapes = [(kind, shape) for kind, operator in command.timed_operators().items() for shape in operator.shapes]
    count = len(shapes) + 3
    wanted = [
        (kind, ("times", kind, shape, ("ours",), 7), f"{n} of {count}: {kind} {shape}")
        for n, (kind, shape) in enumerate(shapes, 1)
    ]
    wanted += [("errors_by_regime", ("errors", ("ours",)), f"{count - 2} of {count}: errors by regime"),
               ("decoding", ("decode", (), ("ours",), 7), f"{count - 1} of {count}: decoding"),
               ("fla_model", ("model", ()), f"{count} of {count}: training steps of fla's FoX")]  # fmt: skip
    assert asked == [(*each, "c", Path("folder")) for each in wanted] and not capsys.readouterr().out


def test_a_part_is_measured(asked, capsys):
    shapes = ((1, 2, 3, 16), (4, 5, 6, 16))
    command.measured(Options(modes=("times", "tiles"), operators=("stick_breaking",), shape=shapes))
    assert [each[:2] for each in asked] == [("stick_breaking", ("times", "stick_breaking", shape, (), 240)) for shape in shapes]
    assert capsys.readouterr().out == (
        "| B, T, H, D | kept by ACP's rule (%) | kept by the tight rule (%) |\n| --- | --- | --- |\n"
        "| 1, 2, 3, 16 | 10.0 | 2.0 |\n| 4, 5, 6, 16 | 40.0 | 5.0 |\n"
    )
    asked.clear()
    command.measured(Options(modes=("decode",), shape=shapes))
    assert [each[1] for each in asked] == [("decode", shapes, (), 240)]


def test_tiles_need_no_gpu(asked, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    command.measured(Options(modes=("tiles",), shape=((1, 2, 3, 16),)))
    with pytest.raises(ValueError, match="needs a GPU"):
        command.measured(Options(modes=("tiles", "decode")))
    assert asked == []


SHAPE = {"batch": 2, "seq_len": 64, "num_heads": 3, "head_dim": 16}
ROW = {"gpu": "g", "triton": "3.6.0", "date": "d", "provider": BASELINE, "operation": "forward", "gates": "local to global",
       "dtype": "bfloat16", **SHAPE, "ms_q50": 2.0}  # fmt: skip


def test_what_is_shown_of_what_is_there(tmp_path, monkeypatch, capsys):
    """Modes that are asked for are shown; pages are written where all kinds are there."""
    drawn: list[tuple] = []
    kinds = ("forgetting_attention", "stick_breaking", "errors_by_regime", "decoding", "fla_model")
    monkeypatch.setattr(command, "read", lambda kind, folder: (kind, folder))
    monkeypatch.setattr(command, "draw", lambda *given: drawn.append(given))
    monkeypatch.setattr(command, "tables", lambda there: " ".join(there))
    with pytest.raises(ValueError, match="holds no measurements; measure first"):
        command.show(Options(rows=tmp_path))
    for kind in kinds[:-2]:
        (tmp_path / kind).mkdir()
        (tmp_path / kind / "a.parquet").write_bytes(b"")
    for modes, found in (
        (("times",), kinds[:2]),
        (("decode", "errors"), kinds[2:3]),
        (("times", "errors", "decode"), kinds[:3]),
    ):
        command.show(Options(rows=tmp_path, modes=modes))
        assert capsys.readouterr().out.split() == list(found)
    command.show(Options(rows=tmp_path, modes=("times",), operators=("stick_breaking",)))
    assert capsys.readouterr().out.split() == ["stick_breaking"] and not (tmp_path / "README.md").exists()
    assert drawn[-1] == (("stick_breaking", tmp_path), tmp_path / "stick_breaking.png", *command.DRAWN["stick_breaking"][1:])
    for kind in kinds[-2:]:
        assert not (tmp_path / "README.md").exists()
        (tmp_path / kind).mkdir()
        (tmp_path / kind / "a.parquet").write_bytes(b"")
    command.show(Options(rows=tmp_path))
    assert (tmp_path / "README.md").read_text().split() == list(kinds)
    capsys.readouterr()
    command.show(Options(rows=tmp_path, modes=("tiles",)))
    assert capsys.readouterr().out == ""


def test_the_stored_rows_are_the_same_by_whatever_path(tmp_path, monkeypatch):
    """Nothing is drawn into their folder, which the default spelt relatively is, too."""
    rows, pictures, places = tmp_path / "results" / "measurements", tmp_path / "pictures", []
    (rows / "stick_breaking").mkdir(parents=True)
    (rows / "stick_breaking" / "a.parquet").write_bytes(b"")
    (tmp_path / "link").symlink_to(rows)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(command, "FOLDER", rows)
    monkeypatch.setattr(command, "PICTURES", pictures)
    monkeypatch.setattr(command, "read", lambda kind, folder: kind)
    monkeypatch.setattr(command, "tables", " ".join)
    monkeypatch.setattr(command, "draw", lambda rows, path, *given: places.append(path))
    for spelt in (rows, Path("results/measurements"), tmp_path / "link", Path("results/../results/measurements")):
        command.show(Options(rows=spelt))
    assert places == [pictures / "stick_breaking.png"] * 4


@pytest.mark.parametrize(("words", "said"), [
    (["--only", "nonsense"], "--show does not use --only; leave it out"),
    (["--shape", "1", "2", "3", "16", "--code", "c"], "--show does not use --shape, --code; leave it out"),
    (["--limit-s", "9"], "--show does not use --limit-s; leave it out"),
    (["times", "tiles"], "tiles has no stored rows to show; run it without --show (it needs no GPU)"),
])  # fmt: skip
def test_what_show_cannot_read_is_refused(monkeypatch, capsys, words, said):
    monkeypatch.setattr("sys.argv", ["benchmark", *words, "--show"])
    monkeypatch.setattr(command, "show", None)
    assert command.main() == 2 and capsys.readouterr().err == f"error: {said}\n"


def test_models_are_shown_and_tiles_are_computed(asked, monkeypatch, capsys):
    shown = []
    monkeypatch.setattr(command, "show", shown.append)
    for words in (["model", "--show"], ["tiles", "--shape", "1", "2", "3", "16"]):
        monkeypatch.setattr("sys.argv", ["benchmark", *words])
        assert command.main() == 0
    assert [options.modes for options in shown] == [("model",), ("tiles",)] and "1, 2, 3, 16" in capsys.readouterr().out


def test_tables_by_hand():
    """Newest rows, one line a shape; what was not measured is empty, and what took too long says so."""
    ours = {**ROW, "provider": "ours", "ms_q50": 1.0}
    slow = {**ours, "provider": "fla", "ms_q50": float("nan")}
    other = {**ROW, "operation": "forward+backward", "ms_q50": 8.0, "gpu": "h"}
    newer = [{**row, "triton": "3.7.1", "date": "e", "ms_q50": row["ms_q50"] / 2} for row in (ROW, ours)]
    rows = [ROW, {**ROW, "seq_len": 128}, ours, slow, other, *newer, {**ours, "operation": "decode"}]
    assert "cuDNN" in table(pd.DataFrame(rows)).splitlines()[0] != table(pd.DataFrame([ours])).splitlines()[0]
    lines = table(pd.DataFrame(rows)).splitlines()
    assert lines[2:] == [
        "| GPU | Triton | B, T, H, D | pass | regime | softmax cuDNN | fla | ours |",
        "| --- | --- | --- | --- | --- | --- | --- | --- |",
        "| g | 3.6.0 | 2, 64, 3, 16 | forward | local to global | 2.000 ms | too slow to compile | 2.00 |",
        "| g | 3.6.0 | 2, 128, 3, 16 | forward | local to global | 2.000 ms |  |  |",
        "| g | 3.7.1 | 2, 64, 3, 16 | forward | local to global | 1.000 ms |  | 2.00 |",
        "| h | 3.6.0 | 2, 64, 3, 16 | forward+backward | local to global | 8.000 ms |  |  |",
    ]  # fmt: skip
    decoding = pd.DataFrame([{**ours, "ms_q50": 9.0}, {**ours, "ms_q50": 0.0125}, slow, {**ROW, "provider": "memory limit"}])
    assert decoding_table(decoding).splitlines()[5:] == [
        "| GPU | Triton | B, T, H, D | fla | ours | memory limit |", "| --- | --- | --- | --- | --- | --- |",
        "| g | 3.6.0 | 2, 64, 3, 16 |  | 12.5 | 2000.0 |",
    ]  # fmt: skip
    errors_of = {"gpu": "g", "triton": "3.6.0",
                 "provider": "ours", "head_dim": 64, "logit": 1.0, "gates": "open", "o": 1.0, "dq": 2.0, "dk": 3.0,
                 "dv": 4.0, "dlog_fgate": 5.0}  # fmt: skip
    rows = [errors_of, {**errors_of, "head_dim": 128, "dk": 9.0}, {**errors_of, "gates": "local"}, {**errors_of, "dv": 1.0}]
    assert error_table(pd.DataFrame(rows)).splitlines()[5:] == [
        "| g | 3.6.0 | local | ours | 1.0e+00 | 2.0e+00 | 3.0e+00 | 4.0e+00 | 5.0e+00 |",
        "| g | 3.6.0 | open | ours | 1.0e+00 | 2.0e+00 | 9.0e+00 | 4.0e+00 | 5.0e+00 |",
    ]


def test_bars_by_hand(tmp_path, monkeypatch):
    """A panel a pass and a group a shape, the shorter first; a bar is as high as the ratio, of the regime or of any, and
    words where there is no time."""
    from matplotlib import pyplot

    figures = []
    monkeypatch.setattr(pyplot, "close", figures.append)
    rows = [{**ROW, "operation": operation, "seq_len": seq_len, "provider": provider, "ms_q50": ms, "gates": gates}
            for operation in PASSES[::-1] for seq_len in (128, 64)
            for provider, ms, gates in ((BASELINE, 2.0, "any"), ("ours", 1.0, "long"), ("fla", 4.0, "short"),
                                        ("authors", math.nan, "long"))]  # fmt: skip
    newest = [{**row, "triton": "3.10.0"} for row in rows]
    others = [{**newest[0], "gpu": "f"}, *({**row, "triton": "3.9.1", "gpu": "h"} for row in rows)]
    draw(pd.DataFrame([*others, *newest, {**newest[1], "operation": "decode"}]), tmp_path / "new" / "a.png", "long", "title")
    (figure,) = figures
    assert (tmp_path / "new" / "a.png").is_file() and figure.get_suptitle() == "g, Triton 3.10.0, bf16, title"
    assert [axis.get_title(loc="left") for axis in figure.axes] == ["forward", "forward + backward"]
    for axis in figure.axes:
        assert [text.get_text() for text in axis.get_xticklabels()] == ["B2  T 64  H3  D16", "B2  T 128  H3  D16"]
        bars = sorted((round(bar.get_x() + bar.get_width() / 2, 3), bar.get_height()) for bar in axis.patches)
        assert bars == [(-0.11, 1.0), (0.11, 2.0), (0.89, 1.0), (1.11, 2.0)]
        assert [text.get_text() for text in axis.texts] == ["1.00", TOO_SLOW, "2.00"] * 2
        assert axis.lines[0].get_ydata() == [1.0, 1.0]
    assert [text.get_text() for text in figure.legends[0].get_texts()] == [BASELINE, "authors", "ours"]
    monkeypatch.undo()
    pyplot.close("all")
