"""Small parts of adopting, collecting, comparing and rendering at their edges, by hand."""

import io
from collections import Counter
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pandas as pd
import pytest
from rich.console import Console

from analysis.study import Line
from data.recall import RecallTask
from data.spec import DataSpec
from experiments import __main__ as command
from experiments import adopt, artefact, collect, compare, facts, pages, render
from experiments.recipes import NAMES, Recipe, model_spec
from experiments.scales import SCALES
from tests import synthetic
from training import manifest

TINY = SCALES["tiny"]


FIG2 = "fig2_per_token_loss"


def said(width: int = 500) -> tuple[Console, io.StringIO]:
    told = io.StringIO()
    return Console(file=told, width=width, highlight=False), told


def test_a_narrow_terminal_cuts_no_name_and_no_number():
    """A table's column that is too narrow would lose letters, and the last ones whole."""
    console, told = said(40)
    run = "x" * 60
    compare.print_bands([compare.Compared(run, "per_token_loss-0123abcd", "loss", 2.125, None)], console)
    assert f"{run}  per_token_loss-0123abcd, loss  2.1250" in told.getvalue()
    one = compare.Training("a", {"data.fingerprint": run}, pd.DataFrame({"step": [1], "loss": [2.0]}), [])
    compare.print_parting(one, replace(one, spec={"data.fingerprint": run[1:]}), console)
    assert f"data.fingerprint  {run}  {run[1:]}" in told.getvalue()


@pytest.mark.parametrize("scale", SCALES.values(), ids=SCALES)
def test_every_recipe_is_told_from_every_other_when_it_is_adopted(scale):
    """Its windows, positions and constant gates, too, by which some differ alone."""
    plain = {name: model_spec(name, scale, 512) for name in NAMES}
    for name, spec in plain.items():
        assert [other for other in NAMES if not adopt.apart(spec, plain[other])] == [name]
    for name, changes in (
        ("fox_llama", {"use_rope": True}), ("transformer_swa", {"window_size": 7}), ("alibi", {"decay_time_min": 3.0}),
        ("alibi", {"decay_time_max": 1e4}), ("stick_breaking", {"stick_remainder": True}), ("samba", {"window_size": 7}),
    ):  # fmt: skip
        (field,), (value,) = changes, changes.values()
        told = f"{field} {value!r}, not {getattr(plain[name], field)!r}"
        assert adopt.apart(model_spec(name, scale, 512, changes), plain[name]) == told


PLAIN = Recipe("fox_pro", "fox_pro", "tiny")


def text(fingerprint: str) -> DataSpec:
    """A corpus at tiny."""
    return DataSpec(source="text", tokenizer="bpe-512", vocab_size=512, bos_id=511, document_len=1024, fingerprint=fingerprint)


@pytest.mark.parametrize(("recipe", "found"), [
    (PLAIN, True), (replace(PLAIN, label="another label"), True), (replace(PLAIN, model={"qk_norm": False}), False),
    (replace(PLAIN, train={"peak_lr": 1.0}), False), (replace(PLAIN, seed=1), False),
    (replace(PLAIN, task=RecallTask(num_keys=4, num_assignments=1, num_queries=1, num_symbols=8)), False),
    (replace(PLAIN, name="mamba2"), False), (replace(PLAIN, scale="mini"), False), (replace(PLAIN, name="fox"), False),
])  # fmt: skip
def test_an_adopted_run_stands_for_the_unchanged_recipe_of_its_name(monkeypatch, tmp_path, recipe, found):
    (tmp_path / "tiny" / "fox_pro-1").mkdir(parents=True)
    (tmp_path / "tiny" / "fox_pro-1" / "adopted.json").touch()
    (tmp_path / "tiny" / "fox_pro-2").mkdir()
    spec = SimpleNamespace(weights="w", data=text("f"))
    monkeypatch.setattr(adopt.RunFolder, "open", lambda path: SimpleNamespace(read_spec=lambda: spec))
    assert adopt.adopted_run(tmp_path, recipe, text("f")) is (spec if found else None)


@pytest.mark.parametrize(("own", "asked", "weights", "count", "refused"), [
    ("f", "f", "w", 1, None), ("f", "absent", "w", 1, None), ("absent", "f", "w", 1, None),
    ("f", "g", "w", 1, "fox_pro-0 was adopted for another corpus (text, f; this is g): adopt it for this one into another"),
    ("f", "f", None, 1, "does not belong here: run 0 was not adopted; delete the file."),
    ("f", "f", "w", 2, "several checkpoints are adopted as fox_pro at tiny (fox_pro-0, fox_pro-1): remove all but one."),
])  # fmt: skip
def test_what_was_adopted_is_one_and_for_this_corpus(monkeypatch, tmp_path, own, asked, weights, count, refused):
    specs = {}
    for number in range(count):
        (tmp_path / "tiny" / f"fox_pro-{number}").mkdir(parents=True)
        (tmp_path / "tiny" / f"fox_pro-{number}" / "adopted.json").touch()
        specs[f"fox_pro-{number}"] = SimpleNamespace(
            weights=weights, data=text(own), run_id=str(number), folder_name=f"fox_pro-{number}"
        )
    monkeypatch.setattr(adopt.RunFolder, "open", lambda path: SimpleNamespace(read_spec=lambda: specs[path.name]))
    if refused is None:
        assert adopt.adopted_run(tmp_path, PLAIN, text(asked)) is specs["fox_pro-0"]
        return
    with pytest.raises(ValueError) as met:  # noqa: PT011
        adopt.adopted_run(tmp_path, PLAIN, text(asked))
    assert refused in str(met.value)


def test_a_checkpoint_is_known_by_its_weights_and_its_tokeniser(tmp_path):
    """Names and contents of every file of both count, others do not."""
    with pytest.raises(ValueError, match=r"holds no model.safetensors: convert its weights first"):
        adopt._digest(tmp_path)
    weights = tmp_path / "model.safetensors"
    weights.write_text("one")
    bare = adopt._digest(tmp_path)
    assert bare == manifest.weights_digest({weights.name: manifest.digest(weights)}) and len(bare) == 16
    (tmp_path / "README.md").touch()
    assert adopt._digest(tmp_path) == bare
    found = [bare]
    for name in ("tokenizer.json", "vocab.txt", "merges.txt", "kind.json"):
        (tmp_path / name).write_text("a")
        found.append(adopt._digest(tmp_path))
        (tmp_path / name).write_text("b")
        found.append(adopt._digest(tmp_path))
    weights.write_text("two")
    found.append(adopt._digest(tmp_path))
    (tmp_path / "vocab.txt").rename(tmp_path / "vocab.bpe")
    found.append(adopt._digest(tmp_path))
    assert len(set(found)) == len(found) and all(len(each) == 16 for each in found)


def test_claims_have_ids_of_their_own(monkeypatch):
    one, other, same = (SimpleNamespace(id=name) for name in ("a", "b", "a"))
    known = {"s": SimpleNamespace(stem="s", claims=(one, other)), "t": SimpleNamespace(stem="t", claims=())}
    monkeypatch.setattr(artefact, "artefacts", lambda: known)
    assert artefact.claims() == {"a": one, "b": other}
    known["t"].claims = (same,)
    with pytest.raises(ValueError, match="claim a of t is declared twice; give it an id of its own"):
        artefact.claims()


@pytest.mark.parametrize(("recipes", "refused"), [
    ([], None), ([("a", "fox_pro", {}), ("a", "mamba2", {})], None), ([("a", "fox_pro", {"gate": "x"})], None),
    ([("a", "fox_pro", {"gate": "y"})], "its line 'a' of fox_pro: it has gate = 'y', but the figure knows x, None."),
    ([("a", "fox_pro", {"gate": "x", "size": "1"})], "it has size = '1', but the figure knows int | None."),
    ([("a", "fox_pro", {"size": 1})], None), ([("a", "fox_pro", {"needed": None})], None),
    ([("a", "fox_pro", {"other": 1})], "it has other = 1, but the figure knows no such axis."),
    ([("a", "fox_pro", {}), ("b", "fox_pro", {})], "line 'b' of fox_pro: 'a' has the same axes. Give it others in runs in"),
    ([("a", "fox_pro", {}), ("a", "fox_pro", {"size": 1})], "s has several lines 'a' of fox_pro. Name each its own way"),
])  # fmt: skip
def test_lines_that_a_figure_can_draw_and_tell_apart(recipes, refused):
    axes = {"gate": ("x", None), "size": int | None}
    axes |= {"needed": (None, 1)} if any("needed" in more for *_, more in recipes) else {}
    own = artefact.Artefact("s", "fox", "t", "p", "w", *[None] * 4, axes=axes)  # type: ignore[arg-type]
    found = [Recipe(label, name, "tiny", axes=more) for label, name, more in recipes]
    if refused is None:
        own.check(found)
        return
    with pytest.raises(ValueError) as met:  # noqa: PT011
        own.check(found)
    assert refused in str(met.value) and "experiments/fox/s.py" in str(met.value)


def test_an_axis_without_none_is_one_that_every_line_has():
    own = artefact.Artefact("s", "fox", "t", "p", "w", *[None] * 4, axes={"gate": ("x",)})  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="it has no gate, but the figure knows x"):
        own.check([PLAIN])


def spec_of(tmp_path: Path, **more: Any) -> collect.DrawSpec:
    line = Line("a", {}, "fox_pro", 0, "tiny", "r")
    return collect.DrawSpec(
        "s", "tiny", tmp_path / "results", (collect.LineSpec(line, tmp_path / "run", ("k-1", "k-2")),), **more
    )


def test_a_line_without_finished_evaluations_keeps_nothing(monkeypatch, tmp_path):
    spec, collected = spec_of(tmp_path), collect.Collected("s")
    monkeypatch.setattr(collect, "RunFolder", lambda path: SimpleNamespace(evaluation_fault=lambda eval_id: "missing"))
    monkeypatch.setattr(collect.store, "run_file", lambda *given: pytest.fail("nothing is to be looked up"))
    assert collect._keep_line(spec.lines[0], spec, collected) is None


@pytest.mark.parametrize(("how", "far", "weights", "stored", "draw_these", "kept", "here", "recorded"), [
    ("same", "", "w" * 16, (), False, {"k-1": "", "k-2": ""}, "", True),
    ("same", "", "w" * 16, ("k-1", "k-2"), False, {"k-1": "", "k-2": ""}, "", False),
    ("other", "far", "w" * 16, ("k-1",), False, {"k-1": "w" * 8, "k-2": "w" * 8}, "w" * 8, True),
    ("other", "far", "w" * 16, ("k-1",), True, {"k-1": "w" * 8, "k-2": "w" * 8}, "w" * 8, True),
    ("rounded", "", "w" * 16, ("k-1",), False, {"k-1": "", "k-2": "w" * 8}, "w" * 8, True),
    ("rounded", "", "w" * 16, ("k-1",), True, {"k-1": "w" * 8, "k-2": "w" * 8}, "w" * 8, True),
    ("other", "", None, ("k-1",), False, {"k-1": ""}, "", False), ("other", "", None, (), False, {}, None, False),
])  # fmt: skip
def test_rows_are_kept_by_the_training_that_they_are_of(
    monkeypatch, tmp_path, how, far, weights, stored, draw_these, kept, here, recorded
):
    """Those of a run's first training by no name, others by their weights, and what rounding alone tells apart beside what it
    is compared with; where weights are not known, only what can be compared."""
    spec, collected = spec_of(tmp_path, draw_these=draw_these), collect.Collected("s")
    folder = SimpleNamespace(
        evaluation_fault=lambda eval_id: None, weights=weights, path=tmp_path / "run", record=lambda: "record"
    )
    monkeypatch.setattr(collect, "RunFolder", lambda path: folder)
    monkeypatch.setattr(collect, "relation", lambda known, folder: (how, far))
    monkeypatch.setattr(collect, "_stored_at", lambda wanted, each, results, training="": Path(each + training))
    monkeypatch.setattr(collect.store, "fault_of", lambda path: None if path.name in stored else "missing")
    monkeypatch.setattr(collect.store, "run_file", lambda *given: tmp_path / "record.json")
    monkeypatch.setattr(collect.store, "read_run", lambda path: {})
    records, rows = [], {}
    monkeypatch.setattr(collect.store, "record_run", lambda results, record: records.append(record))
    monkeypatch.setattr(collect, "_keep", lambda wanted, eval_id, place, name, *rest, rounded: rows.update({eval_id: name}))
    (tmp_path / "record.json").touch()
    assert collect._keep_line(spec.lines[0], spec, collected) == here and rows == kept
    assert collected.parted == ({tmp_path / "run": "far"} if far and not draw_these else {})
    assert records == ["record"] * recorded
    (tmp_path / "record.json").unlink()
    collect._keep_line(spec.lines[0], spec, collected)
    assert len(records) == recorded + 1, "a record that was lost is written again"


@pytest.mark.parametrize(("eval_id", "difference", "far", "told"), [
    ("k-1", None, "", {}), ("k-1", 0.0, "", {"reproduced": {"k-1 of a"}}), ("k-1", 1e-4, "", {"reproduced": {"k-1 of a"}}),
    ("k-1", 2e-4, "", {"differing": {"k-1 of a": 2e-4}}), ("k-1", 2e-4, "far", {"beyond": {"k-1 of a": "far"}}),
    ("throughput-1", 9.0, "far", {}), ("attention_speed-1", 9.0, "", {}),
])  # fmt: skip
def test_how_rows_that_are_there_differ(monkeypatch, tmp_path, eval_id, difference, far, told):
    """Times differ from time to time."""
    (wanted,), collected, asked = spec_of(tmp_path).lines, collect.Collected("s"), []
    run = SimpleNamespace(train=SimpleNamespace(seq_len=64))
    monkeypatch.setattr(collect, "RunFolder", lambda path: SimpleNamespace(evals=tmp_path, path=path, read_spec=lambda: run))
    wanted = SimpleNamespace(line=wanted.line, run=tmp_path / "a")
    place = collect.store.rows_file(tmp_path, "tiny", "r", eval_id, "w")
    keep = lambda *given, **named: asked.append((given, named)) or (Path("stored"), difference)  # noqa: E731
    monkeypatch.setattr(collect.store, "keep", keep)
    monkeypatch.setattr(collect, "_beyond", lambda *given: asked.append(given) or far)
    collect._keep(wanted, eval_id, place, "w", tmp_path, collected, rounded=False)
    source = tmp_path / f"{eval_id}.parquet"
    assert asked[0] == ((source, tmp_path), {"but": collect.SPEEDS, "weights": "w"})
    assert asked[1:] == [(source, Path("stored"), 64)] * (difference == 2e-4)
    assert collected == replace(collect.Collected("s"), **told)
    collect._keep(wanted, eval_id, place, "w", tmp_path, other := collect.Collected("s"), rounded=True)
    apart = {tmp_path / "a": "k-1, far"} if "beyond" in told else {}
    assert other == replace(collected, beyond={}, parted=apart), "of another CPU's training seeds judge it"
    asked.clear()
    collect._keep(wanted, eval_id, tmp_path / "elsewhere", "w", tmp_path, collected, rounded=True)
    assert collected.left_out == [f"{eval_id} of a"] and not asked


@pytest.mark.parametrize(("stem", "makes"), [("mqar", 5), ("fig2_per_token_loss", 7)])
def test_a_command_asks_for_models_besides_and_counts_them(stem, makes):
    asked = artefact.artefacts()[stem]
    lines = [
        SimpleNamespace(model=model, series=(model, "x"), axes={}, seed=seed)
        for model in ("mamba3", "alibi")
        for seed in (0, 1)
    ]
    study = SimpleNamespace(lines=lines)
    assert render._also(asked, "tiny", study) == " --also mamba3 --also alibi"
    assert render._makes(asked, "tiny", study) == 2 * (makes + 2)


def test_what_is_collected_is_read_or_not_there(monkeypatch, tmp_path):
    spec = spec_of(tmp_path)
    line, seen = spec.lines[0].line, []
    for lines, whole, found in (([line], True, True), ([line], False, False), ([], True, False), (ValueError("x"), True, False),
                                ([replace(line, seed=1)], True, False),
                                ([line, replace(line, seed=1)], True, True)):  # fmt: skip

        def read(*given: Any, lines: Any = lines) -> list[Line]:
            seen.append(given)
            if isinstance(lines, ValueError):
                raise lines
            return lines

        monkeypatch.setattr(collect, "read_lines", read)
        monkeypatch.setattr(collect, "_is_collected", lambda wanted, line, folder, whole=whole: whole)
        assert collect.is_collected(spec) is found
        assert not collect.is_collected(replace(spec, draw_these=True))
    assert set(seen) == {(tmp_path / "results", "tiny", "s")}


def test_evaluations_of_a_folder_are_compared_as_it_names_them(monkeypatch, tmp_path):
    """Finished ones, measured on trained weights: with what is stored of all but these weights."""
    (tmp_path / "run" / "evals").mkdir(parents=True)
    for name in ("k-1", "k-2", "parameters-3", "bad-4"):
        (tmp_path / "run" / "evals" / f"{name}.parquet").touch()
    spec = SimpleNamespace(to_json=lambda: '{"model": {"kind": "m"}}', scale="tiny")
    spec.train = SimpleNamespace(seq_len=64, train_tokens=7)
    folder = SimpleNamespace(path=tmp_path / "run", evals=tmp_path / "run" / "evals", read_spec=lambda: spec,
                             evaluation_fault=lambda name: "bad" if name == "bad-4" else None)  # fmt: skip
    weights, asked = {"k-1": "w", "k-2": None}, []
    metas = lambda path: {"kind": "k", "weights": weights[path.stem]}  # noqa: E731
    monkeypatch.setattr(compare, "is_fresh", lambda name: name.startswith("parameters"))
    monkeypatch.setattr(compare, "read_rows", lambda path, types: (path.stem, metas(path)) if types is compare.META else None)
    monkeypatch.setattr(
        compare, "numbers", lambda kind, rows, seq_len: {"loss": 2.0, "new": 3.0} if rows[0] == "k" else {"loss": 1.0}
    )
    monkeypatch.setattr(compare, "_stored", lambda *given: asked.append(given[2:]) or ["s", "t"])
    monkeypatch.setattr(compare, "repeats_for", lambda *given: given)
    monkeypatch.setattr(compare, "family_of", lambda model: model["kind"])
    monkeypatch.setattr(compare, "predict", lambda *given: given)
    ours = frozenset({"w", "v"})
    found = list(compare.compared(folder, tmp_path, ours))
    assert asked == [("k-1", ours), ("k-2", ours)]
    for each, name in zip(found[::2], ("k-1", "k-2"), strict=True):
        predicted = ("loss", "k", (1.0, 1.0), (tmp_path, "tiny", "k", ours), "tiny", "m", 7)
        assert each == compare.Compared("run", name, "loss", 2.0, predicted)
    assert [(each.evaluation, each.name, each.value, each.predicted) for each in found[1::2]] == [
        ("k-1", "new", 3.0, None), ("k-2", "new", 3.0, None)]  # fmt: skip


def test_stored_rows_are_of_all_seeds_and_trainings_but_ones_own(monkeypatch, tmp_path):
    rows = tmp_path / "tiny" / "rows" / "k"
    rows.mkdir(parents=True)
    weights = {"a-1": "w", "b-1": "v", "b-1-vvvv": None, "b-1-bad": "bad", "c-1": "u", "b-2": "t"}
    for name in weights:
        (rows / f"{name}.parquet").touch()
    monkeypatch.setattr(compare, "_series", lambda folder, same: ("a", "b") if same == '{"model": 1}' else ())
    monkeypatch.setattr(compare, "fault_of", lambda path: "bad" if "bad" in path.stem else None)
    monkeypatch.setattr(compare, "read_rows", lambda path, types: (path.stem, {"weights": weights[path.stem]}))
    spec = SimpleNamespace(scale="tiny", to_json=lambda: '{"seed": 3, "model": 1}')
    whole = {"": ["a-1", "b-1-vvvv", "b-1"], "w": ["b-1-vvvv", "b-1"], "v": ["a-1", "b-1-vvvv"], "wv": ["b-1-vvvv"]}
    for ours, found in whole.items():
        assert list(compare._stored(tmp_path, spec, "k-1", frozenset(ours))) == found


@pytest.mark.parametrize(("lines", "declared", "told"), [
    ([], 3, ""), ([("a", 0)], 1, "1 line, 1 seed"), ([("a", 0), ("a", 1)], 1, "1 line, 2 seeds"),
    ([("a", 0), ("b", 0)], 3, "2 of 3 lines, 1 seed"), ([("a", 0), ("a", 1), ("b", 0)], 2, "2 lines, 1 to 2 seeds"),
    ([("a", 0), ("a", 0)], 2, "1 of 2 lines, 1 seed"), ([("x", 0)], 1, "1 of 2 lines, 1 seed"), (None, 1, "damaged"),
])  # fmt: skip
def test_a_cell_of_the_page_of_what_is_stored(monkeypatch, lines, declared, told):
    def read(*given: Any) -> list[Any]:
        if lines is None:
            raise ValueError
        return [SimpleNamespace(series=series, seed=seed) for series, seed in lines]

    monkeypatch.setattr(render, "read_lines", read)
    runs = lambda scale, seeds: [SimpleNamespace(series=name) for name in "abc"[:declared] for _ in seeds * 2]  # noqa: E731
    assert render._cell(SimpleNamespace(stem="s", runs=runs), TINY, Path()) == told


@pytest.mark.parametrize(("trainings", "weights", "told"), [
    ([("w", [60.0])], "w", "1 trainings, 1 minutes on A."),
    ([("w", [60.0]), ("v", [120.0, 60.0])], "v", "1 trainings, 3 minutes on B."),
    ([("w", [60.0]), ("v", [120.0])], None, "1 trainings, 1 minutes on A."),
    ([("w", [60.0, None])], "x", "1 trainings, 1 minutes on A."),
    ([], None, "No training."),
])  # fmt: skip
def test_what_trainings_took(monkeypatch, trainings, weights, told):
    """Those that lines are drawn from: the first where nothing tells which."""
    known = [{"weights": name, "ends": ends, "device": "AB"[at]} for at, (name, ends) in enumerate(trainings)]
    monkeypatch.setattr(facts, "trainings_of", lambda run: known)
    monkeypatch.setattr(facts, "starts_of", lambda run, training: [
        {"end": None if wall is None else {"wall_s": wall}, "device": training["device"]}
        for wall in training["ends"]])  # fmt: skip
    line = SimpleNamespace(is_trained=True, run_id="r", weights=weights)
    fresh = SimpleNamespace(is_trained=False, run_id="f", weights=None)
    study = SimpleNamespace(lines=[line, fresh], runs={"r": 1, "f": 2})
    assert render._took(study, 1) == told
    assert render._took(study, 5) == told.replace("1 trainings", "1 of the 5 trainings that it makes")
    two = SimpleNamespace(lines=[line, SimpleNamespace(is_trained=True, run_id="t", weights=weights)], runs={"r": 1, "t": 1})
    if trainings == [("w", [60.0])]:
        monkeypatch.setattr(facts, "starts_of", lambda run, training: [{"end": {}, "device": name} for name in "ZAM"])
        assert render._took(two, 2) == "2 trainings, 0 minutes on A and M and Z."


@pytest.mark.parametrize(("first_steps", "counted"), [
    ([0], 1), ([0, 5], 3), ([0, 0], 2), ([0, 5, 0], 4), ([0, 0, 5, 9], 14), ([None, None], 3), ([5, 9], 3),
])  # fmt: skip
def test_a_training_that_was_repeated_counts_once(monkeypatch, first_steps, counted):
    """Minutes 1, 2, 4, 8 of the starts of one run: those before the last start from step 0 are of another training."""
    starts = [{"date": str(at), "device": "A", "end": {"wall_s": 60.0 * 2**at}} | ({} if step is None else {"first_step": step})
              for at, step in enumerate(first_steps)]  # fmt: skip
    line = SimpleNamespace(is_trained=True, run_id="r", weights=None)
    study = SimpleNamespace(lines=[line], runs={"r": {"starts": starts, "final_loss": 3.0}})
    assert render._took(study, 1) == f"1 trainings, {counted} minutes on A."


OWN = pages.ROOT / "results"


@pytest.mark.parametrize(("scale", "sources", "seeds", "also", "folder", "command"), [
    ("tiny", {"text"}, (0,), (), OWN, f"run {FIG2} --scale tiny`"),
    ("tiny", {"text"}, (1, 0), (), Path("results"), f"run {FIG2} --scale tiny --seeds 0,1`"),
    ("760m-16b", {"longcrawl64"}, (0,), (), OWN, f"run {FIG2} --scale 760m-16b --data text:FILES`"),
    ("760m-16b", {"recall"}, (2,), (), OWN, f"run {FIG2} --scale 760m-16b --seeds 2`"),
    ("760m-16b", {"recall", "text"}, (0,), (), OWN, f"run {FIG2} --scale 760m-16b --data text:FILES`"),
    ("tiny", {"text"}, (0, 1), ("alibi", "samba"), OWN / "a", f"run {FIG2} --scale tiny --seeds 0,1 --also alibi --also samba"
     " --results-dir results/a`"),
    ("tiny", {"text"}, (0,), (), Path("mine"), f"run {FIG2} --scale tiny --results-dir mine`"),
    ("tiny", {"text"}, (0,), (), Path("/mine"), f"run {FIG2} --scale tiny --results-dir /mine`"),
])  # fmt: skip
def test_the_command_of_a_figure_and_where_it_was_last_seen(monkeypatch, scale, sources, seeds, also, folder, command):
    monkeypatch.setattr(render, "_took", lambda study, makes: "Took.")
    made = {"device": "GPU", "git_sha": "0123456789abcdef", "git_dirty": False}
    metas = [{"created": f"2026-01-0{day}T00:00", "eval_id": name, "provenance": made | {"device": name}}
             for day, name in ((1, "z"), (2, "a"), (2, "b"))]  # fmt: skip
    models = ["fox_pro", *also]
    lines = [SimpleNamespace(seed=seed, run_id=source, axes={}, model=model, series=((), model, scale))
             for seed in seeds for source in sorted(sources) for model in models]  # fmt: skip
    study = SimpleNamespace(lines=lines, spec=lambda run_id: {"data": {"source": run_id}}, all_metas=metas, corpora="C",
                            results_dir=folder)  # fmt: skip
    told = render._how(artefact.artefacts()[FIG2], scale, study)
    assert told == f"`python -m experiments {command}\n\nTook. Last seen 2026-01-02 on b, commit 0123456789; corpus C."


@pytest.mark.parametrize(("stem", "scale", "folder", "options"), [
    (FIG2, "tiny", OWN / "a", ""), (FIG2, "mini", OWN / "a", " --data text:FILES"), ("mqar", "mini", OWN / "a b", ""),
    (FIG2, "360m-7.5b", OWN, " --data text:FILES"), ("mqar", "360m-7.5b", OWN, ""), ("mqar", "tiny", Path("/mine"), ""),
])  # fmt: skip
def test_the_commands_of_a_figure_of_which_nothing_is_stored(stem, scale, folder, options):
    section = render._section(artefact.artefacts()[stem], scale, folder, None)
    shown = {OWN: "", OWN / "a": " --results-dir results/a", OWN / "a b": " --results-dir 'results/a b'"}
    where = shown.get(folder, " --results-dir /mine")
    assert section.run == f"python -m experiments run {stem} --scale {scale}{options}{where}"
    assert section.why == f"python -m experiments why {stem} --scale {scale}{where}" and section.study is None


def test_a_figure_without_sizes_for_a_scale_has_a_command():
    def runs(scale, seeds):
        raise ValueError("SIZES has nothing for this scale")

    section = render._section(replace(artefact.artefacts()[FIG2], runs=runs), "mini", OWN / "a", None)
    assert section.run == f"python -m experiments run {FIG2} --scale mini --data text:FILES --results-dir results/a"


def test_the_report_has_the_command_of_the_page_of_claims(tmp_path):
    store = synthetic.Store(tmp_path, "mini", 128)
    store.add(FIG2, "fox_pro", [("per_token_loss", synthetic.loss_rows(np.full(512, 3.0)))], seed=1)
    study = store.study(FIG2)
    section = render._section(artefact.artefacts()[FIG2], "mini", tmp_path, study)
    assert section.run.endswith(f" --scale mini --data text:FILES --seeds 1 --results-dir {tmp_path}")
    assert f"`{section.run}`" in render._how(artefact.artefacts()[FIG2], "mini", study)


def test_pages_are_written_where_they_change(tmp_path):
    page = tmp_path / "a.md"
    pages.write_changed(page, "one")
    before = page.stat().st_ino
    pages.write_changed(page, "one")
    assert page.stat().st_ino == before
    pages.write_changed(page, "two")
    assert page.read_text() == "two"
    assert [pages.words(count) for count in (0, 12, 13, 1200)] == ["no", "twelve", "13", "1,200"]
    assert pages.millions(1_234_567) == "1.23M"
    assert pages.when("so", True) == "so"
    with pytest.raises(ValueError, match="the rows do not support 'so': rewrite that sentence of the template"):
        pages.when("so", False)


@pytest.mark.parametrize(("words", "did"), [
    (["prepare", "a"], ["plan cpu", "corpora", "fetch"]), (["prepare", "a", "--corpora-only"], ["plan cpu", "corpora"]),
    (["plan", "a", "--mfu", "0.5"], ["plan cpu machine True", "print 0.5"]),
    (["run", "a", "--slots", "3"], ["plan cpu machine False", "execute 3"]),
    (["render"], ["render ['all of tiny'] tiny"]), (["render", "a", "--scale", "mini"], ["render ['a'] mini"]),
    (["why", "a"], ["why a tiny"]), (["list"], ["list"]),
    (["draw", "f.json"], ["draw f.json"]),
])  # fmt: skip
def test_commands_hand_on_what_they_were_given(monkeypatch, words, did):
    done = []
    monkeypatch.delenv("SLURM_JOB_ID", raising=False)
    monkeypatch.setattr("training.command_line.signal.signal", lambda *given: None)
    monkeypatch.setattr(command.plan, "make_plan", lambda request, **how: done.append(
        " ".join(map(str, ("plan", request.device, *how.values())))))  # fmt: skip
    monkeypatch.setattr(command, "machine_name", lambda device: "machine")
    monkeypatch.setattr(command.execute, "prepare_corpora", lambda *given: done.append("corpora"))
    monkeypatch.setattr(command.execute, "fetch", lambda *given: done.append("fetch"))
    monkeypatch.setattr(command.execute, "execute", lambda made, slots, *_: done.append(f"execute {slots}") or 3)
    monkeypatch.setattr(command.overview, "print_plan", lambda made, mfu, console: done.append(f"print {mfu}"))
    monkeypatch.setattr(command.overview, "print_overview", lambda console, folder: done.append("list"))
    monkeypatch.setattr(command.overview, "print_ancestry", lambda stem, scale, *given: done.append(f"why {stem} {scale}"))
    monkeypatch.setattr(command.artefact, "chosen", lambda names: dict.fromkeys(names))
    monkeypatch.setattr(command.render, "stored", lambda scale, folder: [f"all of {scale}"])
    monkeypatch.setattr(
        command.render, "render_all", lambda stems, scale, *given: done.append(f"render {list(stems)} {scale}") or [1]
    )
    monkeypatch.setattr(command.DrawSpec, "read", lambda file: file)
    monkeypatch.setattr(command.execute, "draw", lambda specs, console: done.append(f"draw {specs[0]}") or 0)
    assert command.main(words) == {"run": 3, "render": 1}.get(words[0], 0) and done == did


@pytest.mark.parametrize(
    ("code", "ended"), [(0, 0), (1, 2), (3, 0), (2, "f: nothing to draw, none of its evaluations is finished.")]
)
def test_how_a_job_that_draws_ends(monkeypatch, code, ended):
    monkeypatch.setattr(command.DrawSpec, "read", lambda file: file)
    monkeypatch.setattr(command.execute, "draw", lambda specs, console: code)
    draw = command.Draw(Path("f.json"))
    if isinstance(ended, int):
        assert draw.run(Console(quiet=True)) == ended
    else:
        with pytest.raises(ValueError, match=f"^{ended}"):
            draw.run(Console(quiet=True))


def test_folders_that_are_compared(monkeypatch, tmp_path):
    """Those that are named, or all of a scale that hold a run."""
    monkeypatch.setattr(command.compare, "compare", lambda folders, results, console, named: (folders, named))
    asked = command.Compare(runs_dir=tmp_path, results_dir=tmp_path)
    with pytest.raises(ValueError, match=f"{tmp_path}/tiny holds no runs: make some with `run`, or name run folders"):
        asked.run(Console(quiet=True))
    for name in ("b", "a", "plans"):
        (tmp_path / "tiny" / name).mkdir(parents=True)
        if name != "plans":
            (tmp_path / "tiny" / name / "spec.json").touch()
    assert asked.run(Console(quiet=True)) == ([tmp_path / "tiny" / "a", tmp_path / "tiny" / "b"], False)
    assert replace(asked, folders=(Path("x"),)).run(Console(quiet=True)) == ((Path("x"),), True)


@pytest.mark.parametrize(("count", "named", "finished", "stored", "said", "code"), [
    (2, True, True, False, ["part"], 0), (2, False, True, True, ["bands 2"], 3), (1, True, True, True, ["bands 1", "part"], 3),
    (1, True, True, False, ["bands 1"], 3), (1, True, False, True, ["part"], 0), (3, True, True, True, ["bands 3"], 3),
])  # fmt: skip
def test_what_is_compared_with_what(monkeypatch, count, named, finished, stored, said, code):
    done = []
    monkeypatch.setattr(compare.RunFolder, "open", lambda path: path)
    monkeypatch.setattr(compare, "weights_of", lambda folders: len(list(folders)))
    monkeypatch.setattr(compare, "compared", lambda folder, results, ours: [1] * (finished and ours == count))
    monkeypatch.setattr(compare, "print_bands", lambda found, console: done.append(f"bands {len(found)}"))
    monkeypatch.setattr(compare, "training_of", lambda folder: folder)
    monkeypatch.setattr(compare, "stored_training", lambda folder, results: "stored" if stored else None)
    monkeypatch.setattr(compare, "print_parting", lambda one, other, console: done.append("part"))
    console, told = globals()["said"]()
    assert compare.compare([Path(str(n)) for n in range(count)], Path(), console, named=named) == code and done == said
    nothing = "no evaluation of these runs is finished: `run` evaluates them"
    assert told.getvalue() == f"{nothing}\n" * (not finished)
    assert Counter(done)["part"] <= 1
    monkeypatch.setattr(compare, "compared", lambda folder, results, ours: [])
    monkeypatch.setattr(compare, "stored_training", lambda folder, results: None)
    if not (named and count == 2):
        with pytest.raises(ValueError, match=f"nothing was compared: {nothing}"):
            compare.compare([Path(str(n)) for n in range(count)], Path(), console, named=named)
