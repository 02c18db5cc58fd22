"""Parts of collecting and drawing on rows of a few numbers, worked out by hand."""

from dataclasses import replace
from functools import partial
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
from matplotlib.colors import LogNorm
from rich.console import Console

from analysis.names import title
from analysis.study import Line
from analysis.style import plt
from experiments import collect, compare, execute, restarts
from experiments.beyond import cache_eviction, context_use, gate_worth, last_words
from experiments.fox import fig1_architecture, table4_settings, table6_throughput, table_lr_grid
from experiments.recipes import Recipe
from experiments.scales import SCALES
from experiments.stick_breaking import stick_cost
from results import measured


def test_heads_are_sorted_within_their_layer():
    """Two layers of three heads, from the most forgetful up."""
    index = pd.MultiIndex.from_product([(0, 1), (0, 1, 2)], names=["layer", "head"])
    each = SimpleNamespace(heads=pd.DataFrame({"kept": [0.5, 0.25, 1.0, 0.75, 0.5, 0.125]}, index=index), model="fox_pro")
    figure, axes = plt.subplots()
    mesh = cache_eviction._heads(axes, each, LogNorm(1, 100))
    assert mesh.get_array().reshape(3, 2).T.tolist() == [[25.0, 50.0, 100.0], [12.5, 50.0, 75.0]]
    assert [label.get_text() for label in axes.get_xticklabels()] == ["1", "2"]
    plt.close(figure)


OLD = {"tiny/rows/needle/r-aa-xx.parquet": "1", "tiny/rows/throughput/r-bb.parquet": "2"}
NEW = {"tiny/rows/needle/r-aa-yy.parquet": "3"}


@pytest.mark.parametrize(("draw_these", "here", "files", "told"), [
    (False, "xx", OLD, []), (False, "yy", OLD, ["a, seed 3 (yy; drawn: xx)"]), (False, None, OLD, []),
    (True, "yy", {"tiny/rows/throughput/r-bb.parquet": "2"} | NEW, []), (True, None, OLD, []),
])  # fmt: skip
def test_a_line_stays_with_its_training_and_keeps_rows_of_fresh_models(monkeypatch, tmp_path, draw_these, here, files, told):
    """Rows that it held of fresh models stay, also where it is drawn from another training than before."""
    (tmp_path / "spec.json").touch()
    for path in (tmp_path / name for name in (*OLD, *NEW)):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
        path.with_suffix(".meta.json").touch()
    monkeypatch.setattr(collect, "RunFolder", lambda run: SimpleNamespace(spec_file=tmp_path / "spec.json"))
    monkeypatch.setattr(collect, "_keep_line", lambda *given: here)
    monkeypatch.setattr(collect, "_files", lambda wanted, training, folder: NEW if training == "yy" else {})
    monkeypatch.setattr(collect.store, "read_meta", lambda path: {"weights": path.stem.split("-")[-1] * 4})
    line = Line("a", {}, "a", 3, "tiny", "r")
    old = Line("a", {}, "a", 3, "tiny", "r", OLD, "xxxxxxxx")
    collected = collect.Collected("fig")
    spec = SimpleNamespace(results_dir=tmp_path, draw_these=draw_these)
    found = collect._line(SimpleNamespace(line=line, run=tmp_path), old, spec, collected)
    assert found.files == files and list(found.files)[-1] == list(files)[-1] and collected.beside == told
    assert found.weights == ("y" if draw_these and here else "x") * 8


def test_a_kernels_time_is_the_newest_and_as_a_multiple_of_the_same_run(tmp_path):
    names = measured.SCHEMAS["stick_breaking"].columns
    rows = [
        dict(zip(names, (date, provider, operation, logits, "bfloat16", 4, 4096, 12, 64, ms, ms, ms, 1.0, 0.0), strict=True))
        for date, base, ours in (("2025-01-01", 1.0, 4.0), ("2025-01-02", 2.0, 6.0))
        for provider, logits, ms in ((stick_cost.BASELINE, "any", base), ("ours", "long", ours), ("ours", "short", 2 * ours))
        for operation in ("forward", "forward+backward")
    ]  # fmt: skip
    once = {**rows[3], "provider": stick_cost.FLASH}
    measured.add("stick_breaking", [*rows[:6], once], "GPU", folder=tmp_path / measured.FOLDER.name)
    measured.add("stick_breaking", rows[6:], "GPU", folder=tmp_path / measured.FOLDER.name)
    found = stick_cost.kernel_times(SimpleNamespace(results_dir=tmp_path)).set_index(["provider", "logits"])
    newest = {(stick_cost.BASELINE, "any"): 1.0, ("ours", "long"): 3.0, ("ours", "short"): 6.0}
    assert found["relative"].to_dict() == newest | {(stick_cost.FLASH, "long"): 4.0}
    assert found.loc[[*newest], "date"].unique().tolist() == ["2025-01-02"]
    assert np.isclose(found["ms_q50"].sum(), 2 + 6 + 12 + 4)


def event(kind: str, job: str = "5", mark: str = "a", **more: object) -> dict[str, object]:
    return {"event": kind, "job": job, "mark": mark, **more}


def test_starts_without_progress_are_the_latest_of_the_job_in_a_row():
    start, other, of_another = event("start"), event("start", mark="b"), event("start", "6")
    for events, count in (
        ([], 0), ([start], 1), ([start, start], 2), ([other, start], 1), ([start, other], 0), ([start, other, start], 1),
        ([start, event("end"), start], 2), ([start, of_another, start], 2), ([of_another], 0),
        ([start, event("start", "6", "b")], 1),
    ):  # fmt: skip
        assert restarts.fruitless_starts(events, "5", "a") == count, events


@pytest.mark.parametrize(("events", "ended"), [
    ([], False), ([event("start")], False), ([event("end", action="done")], True), ([event("end", action="failed")], True),
    ([event("end", action="again")], False), ([event("end", action="done"), event("start")], False),
    ([event("end", action="done"), event("start", "6")], True), ([event("end", "6", action="done")], False),
])  # fmt: skip
def test_a_job_has_ended_where_nothing_of_it_comes_after(events, ended, tmp_path):
    for each in events:
        restarts.append(tmp_path / "journal", each["event"], **{name: each[name] for name in each if name != "event"})
    with open(tmp_path / "journal", "a") as file:
        file.write('{"event": "st')  # cut off in the middle of a write
    assert restarts.has_ended(tmp_path / "journal", "5") is ended


@pytest.mark.parametrize(("code", "fruitless", "action", "why"), [
    (0, 9, "done", ""), (2, 0, "failed", ""), (3, 0, "failed", ""), (130, 0, "failed", "interrupted"),
    (75, 3, "again", "saved, to go on"), (75, 4, "failed", "given up after 4 starts without progress: saved, to go on"),
    (1, 3, "again", "exit code 1"), (-9, 0, "again", "killed by SIGKILL"), (137, 0, "again", "killed by SIGKILL"),
    (143, 4, "failed", "given up after 4 starts without progress: killed by SIGTERM"), (76, 0, "again", "this node failed"),
    (128, 0, "again", "exit code 128"), (255, 0, "again", "exit code 255"),
])  # fmt: skip
def test_what_becomes_of_a_task(code, fruitless, action, why):
    assert restarts.decide(code, fruitless) == (action, why)


@pytest.mark.parametrize(("log", "words"), [
    ("", "its log says nothing"), ("a\n\nb\n\n", "b"), ("error: one\nb\nerror: two\nc\n", "error: two"),
    ("ValueError: no\nb\n", "ValueError: no"), ("a\nsrun: error: task 0\n", "a"), ("a\n--- job 7 on n1\n", "a"),
    ("a\nslurmstepd: *** JOB 7 CANCELLED ***\n", "a"), ("error: early\n" + "x" * 4000, "x" * 300),
    ("error: " + "y" * 500, "error: " + "y" * 293),
])  # fmt: skip
def test_the_line_of_a_log_that_says_what_was_wrong(log, words, tmp_path):
    assert restarts.last_words(tmp_path / "a.log") == "no log was written"
    (tmp_path / "a.log").write_text(log)
    assert restarts.last_words(tmp_path / "a.log") == words


class Tried(SimpleNamespace):
    __hash__ = object.__hash__


@pytest.mark.parametrize(("runs", "found"), [
    # tokens in millions, rate, loss: the rates are those of the fewest tokens, and one of them is that of the most
    ([(1, 1e-3, 2.5), (1, 2e-3, 2.4), (1, 4e-3, 2.6), (4, 1e-3, 2.0)], (0, 3, 1, ("1M", "4M"), False)),
    ([(1, 1e-3, 2.5), (1, 2e-3, 2.6), (4, 2e-3, 2.0)], (1, 2, 0, ("1M", "4M"), True)),
    ([(1, 1e-3, 2.5), (1, 2e-3, 2.4), (4, 2e-3, 2.0)], (1, 2, 1, ("1M", "4M"), True)),
    ([(1, 1e-3, 2.5), (2, 4e-3, 2.0), (1, 2e-3, 2.4), (4, 2e-3, 2.0)], (2, 3, 2, ("1M", "4M"), True)),  # 2M: no rate tried
    ([(1, 1e-3, 2.5), (1, 2e-3, 2.4), (1, 4e-3, 2.1, "another model"), (4, 1e-3, 2.0)], (0, 3, 1, ("1M", "4M"), True)),
    ([(1, 1e-3, 2.5), (4, 1e-3, 2.0)], None), ([(1, 1e-3, 2.5), (1, 2e-3, 2.4), (4, 4e-3, 2.0)], None), ([], None),
    ([(1, 1e-3, 2.5), (1, 2e-3, 2.4)], None),
])  # fmt: skip
def test_what_was_tried_of_a_model(monkeypatch, runs, found):
    specs = {str(at): {"train": {"train_tokens": size * 10**6, "peak_lr": rate}, "model": more}
             for at, (size, rate, _, *more) in enumerate(runs)}  # fmt: skip
    curves = [Tried(run_ids=(str(at),), inside=run[2], model="fox_pro", length=64, train_len=64) for at, run in enumerate(runs)]
    others = [Tried(run_ids=("0",), inside=0.0, model="mamba2", length=64, train_len=64),
              Tried(run_ids=("0",), inside=0.0, model="fox_pro", length=63, train_len=64)]  # fmt: skip
    monkeypatch.setattr(gate_worth, "loss_curves", lambda study: [*curves, *(others if runs else [])])
    tried = gate_worth._tried(SimpleNamespace(spec=specs.get), "fox_pro")
    assert tried == (found and (*(curves[at] for at in found[:3]), *found[3:]))


@pytest.mark.parametrize(("sizes", "seq_len", "document_len", "contexts", "places"), [
    ((8, 32, 64), 64, 256, (8, 16, 32, 40, 96, 224), (256, 224, 192, 160)),
    ((24, 16, 9), 40, 80, (24, 25, 64), (80, 70, 60, 50)),
    ((8, 16, 5), 40, 40, (8, 16, 24), (40, 35, 30, 25)), ((8, 16, 5), 40, 41, (8, 16, 24, 25), (41, 36, 31, 26)),
    ((8, 16, 5), 64, 127, (8, 16, 32, 40, 48), (127, 112, 96, 80)),
])  # fmt: skip
def test_contexts_and_places_of_a_scale(monkeypatch, sizes, seq_len, document_len, contexts, places):
    """Doublings up to half of the training context, five eighths of it, and what ends with 1, 2 or 4 times it and fits."""
    monkeypatch.setattr(context_use, "sizes_at", lambda *given: sizes)
    (spec,) = context_use.evals(SimpleNamespace(seq_len=seq_len, document_len=document_len, heldout_documents=9))
    assert (spec.contexts, spec.places, spec.targets, spec.num_documents) == (contexts, places, sizes[1], min(sizes[2], 9))


def test_what_was_trained_on_gpus_or_parted_is_compared_once(monkeypatch):
    """Finished runs alone."""

    def folder(name: str) -> SimpleNamespace:
        spec_file = SimpleNamespace(is_file=lambda: name != "none")
        starts = name in ("cpu", "apart")
        found = dict(spec_file=spec_file, finished=name != "open", read_starts=lambda: starts)
        return SimpleNamespace(name=name, path=name, weights=None if name == "other" else f"weights of {name}", **found)

    folders = {name: folder(name) for name in ("gpu", "open", "cpu", "none", "other", "apart")}
    monkeypatch.setattr(compare, "RunFolder", folders.get)
    monkeypatch.setattr(compare, "trained_on_cpu", bool)
    monkeypatch.setattr(compare, "compared", lambda folder, results_dir, ours: [(folder.name, ours)])
    runs = ["gpu", "open", "other", "cpu", "none", "apart", "gpu"]
    ours = {"weights of gpu", "weights of apart"}
    assert compare.by_seeds(runs, ["apart", "open"], None) == [("gpu", ours), ("other", ours), ("apart", ours)]


@pytest.mark.parametrize(("stored", "own", "found"), [
    ({"r-aa": "own"}, "own", "nothing"), ({"r-aa": "other"}, "own", "other"), ({"r-aa": None}, "own", None),
    ({"r-aa": None}, None, None),
    ({"r-aa": "own", "r-bb": "other"}, "own", "other"), ({"r-aa": "damaged", "r-bb": "other"}, "own", "other"),
    ({"s-aa": "other"}, "own", "nothing"), ({}, "own", "nothing"), ({"r-aa": "other"}, None, "other"),
])  # fmt: skip
def test_the_stored_curve_of_a_run_is_of_another_training_or_of_weights_unknown(monkeypatch, tmp_path, stored, own, found):
    rows = tmp_path / "tiny" / "rows" / "training_curve"
    rows.mkdir(parents=True)
    for name in stored:
        (rows / f"{name}.parquet").touch()
    monkeypatch.setattr(compare, "fault_of", lambda path: "damaged" if stored[path.stem] == "damaged" else None)
    monkeypatch.setattr(compare, "read_rows", lambda path, types: (stored[path.stem], {"weights": stored[path.stem]}))
    monkeypatch.setattr(compare, "read_run", lambda path: {"spec": {"seed": 1}, "starts": [path.name]})
    folder = SimpleNamespace(read_spec=lambda: SimpleNamespace(scale="tiny", run_id="r"), weights=own)
    assert compare.stored_training(folder, tmp_path) is None, "without its record"
    (tmp_path / "tiny" / "runs").mkdir()
    (tmp_path / "tiny" / "runs" / "r.json").touch()
    told = compare.stored_training(folder, tmp_path)
    if found == "nothing":
        assert told is None
    else:
        assert (told.name, told.spec, told.steps, told.starts) == ("the stored run r", {"seed": 1}, found, ["r.json"])


def test_what_is_told_of_a_training():
    """All of its spec, flat, and of its first start what numbers can depend on."""
    first = dict(python="3.12", versions={"torch": "2"}, device="GPU", world_size=8, deterministic=True, parallel="ddp",
                 micro_batch_tokens=512)  # fmt: skip
    starts = [first | {"date": "a", "git_sha": "0123456789abcdef", "git_dirty": False}, first | {"world_size": 1}]
    told = compare.Training("a", {"seed": 3, "train": {"seq_len": 64}}, pd.DataFrame(), starts).told()
    own = {"seed": 3, "train.seq_len": 64, "starts": 2, "commit": "0123456789", "versions.torch": "2"}
    assert told == own | {name: value for name, value in first.items() if name != "versions"}
    assert compare.Training("a", {"seed": 3}, pd.DataFrame(), []).told() == {"seed": 3, "starts": 0, "commit": "unknown"}


BEST, HIGH, LIMIT = ("fox_pro", 2e-3), ("fox_pro", 4e-3), table_lr_grid.UNSTABLE


@pytest.mark.parametrize(("losses", "spikes", "told"), [
    ((2.5, 2.4, 2.6), {BEST: 0.0, HIGH: LIMIT}, "FoX (Pro) {high} at 0.004, 0.0% at 0.002 (not unstable)."),
    ((2.5, 2.4, 2.6), {BEST: 0.0, HIGH: 1.1 * LIMIT}, "FoX (Pro) {high} at 0.004, 0.0% at 0.002 (unstable)."),
    ((2.5, 2.4, 2.6), {BEST: 0.5, HIGH: 0.5}, "FoX (Pro) 50.0% at 0.004, 50.0% at 0.002 (not unstable)."),
    ((2.5, 2.4, 2.6), {BEST: 0.5, HIGH: 0.51}, "FoX (Pro) 51.0% at 0.004, 50.0% at 0.002 (unstable)."),
    ((2.5, 2.4, 2.6), {BEST: 0.0}, "Training curves are not stored for FoX (Pro) at 0.004: whether training was unstable"),
    ((2.5, 2.4, 2.6), {HIGH: 0.0}, "Training curves are not stored for FoX (Pro) at 0.004: whether training was unstable"),
    ((2.6, 2.5, 2.4), {}, "a better rate may lie beyond it: FoX (Pro) (highest)."),
    ((2.4, 2.5, 2.6), {("fox_pro", 1e-3): 0.0, HIGH: 0.0}, "a better rate may lie beyond it: FoX (Pro) (lowest). Steps"),
])  # fmt: skip
def test_what_is_said_of_the_rates_of_one_model(monkeypatch, losses, spikes, told):
    curves = {rate: Tried(inside=loss) for rate, loss in zip((1e-3, 2e-3, 4e-3), losses, strict=True)}
    monkeypatch.setattr(
        table_lr_grid, "by_rate", lambda study: {"fox_pro": curves, "transformer_pro": {1e-3: Tried(inside=1.0)}}
    )
    monkeypatch.setattr(table_lr_grid, "_spikes", lambda study: spikes)
    monkeypatch.setattr(table_lr_grid, "_as_good", lambda one, best: False)
    said = table_lr_grid.rates_tried(None)
    assert told.format(high=f"{spikes.get(HIGH, 0):.1%}") in said and "LLaMA" not in said
    assert ("edge" in said) is (losses[1] != 2.4) and ("Steps after warm-up" in said) is (len(spikes) == 2)


def test_longer_contexts_are_those_of_one_sequence_on_one_gpu_computed_whole(monkeypatch, tmp_path):
    """The newest step of each model at the longest context that both were timed at; rows of other kinds come after them."""
    one, other = table6_throughput.ORDER[0]
    (tmp_path / measured.FOLDER.name / "training_steps").mkdir(parents=True)
    plain = dict(scale="s", gpu="G", seq_len=256, gpus=1, sequences_per_gpu=1, micro_batches=1, prune=False,
                 activation_checkpointing=False)  # fmt: skip
    speeds = ((one, 1.0), (other, 2.0), (other, 1000.0), (one, 3000.0))
    rows = [plain | dict(model=model, tokens_per_s=speed) for model, speed in speeds]
    changes = [dict(gpus=2), dict(sequences_per_gpu=2), dict(micro_batches=2), dict(sequences_per_gpu=2, micro_batches=2),
               dict(prune=True), dict(activation_checkpointing=True), dict(seq_len=64), dict(seq_len=128), dict(model="samba"),
               dict(seq_len=512), dict(scale="t", seq_len=128), dict(gpu="H", model="samba")]  # fmt: skip
    rows += [dict(plain, model=other, tokens_per_s=9e6) | change for change in changes]
    rows += [dict(plain, model=one, tokens_per_s=9e6, seq_len=128)]
    study = SimpleNamespace(results_dir=tmp_path, train_len=64)
    assert table6_throughput.at_longer_contexts(study) == "No steps with a longer context are stored."
    (tmp_path / measured.FOLDER.name / "training_steps" / "a.parquet").touch()
    found = {"rows": rows, "here": {one: {"relative": 1.0}, other: {"relative": 2.0}}}
    monkeypatch.setattr(table6_throughput, "read", lambda kind, folder: pd.DataFrame(found["rows"]))
    monkeypatch.setattr(table6_throughput, "_paired", lambda study: found["here"])
    text = table6_throughput.at_longer_contexts(study)
    assert text == (
        f"Steps of one sequence of 256 tokens at s on G: {title(one)} 3,000, {title(other)} 1,000 tokens/s. "
        "Of the claim's 1 pairs that were timed at both lengths, 1 are in the claimed order there, 0 at 64 tokens here: "
        "the order appears in longer contexts, where attention's share of a step grows."
    )
    found["here"] = {one: {"relative": 2.0}, other: {"relative": 1.0}}
    assert table6_throughput.at_longer_contexts(study).endswith("1 are in the claimed order there, 1 at 64 tokens here.")
    found["rows"] = [dict(row, seq_len=64) for row in rows]
    assert table6_throughput.at_longer_contexts(study) == "No steps with a longer context are stored."


def test_evaluations_go_by_the_length_that_a_recipe_trains_at():
    for train, seq_len in (({}, SCALES["tiny"].seq_len), ({"seq_len": 32}, 32), ({"peak_lr": 1e-3}, SCALES["tiny"].seq_len)):
        assert Recipe("fox_pro", "fox_pro", "tiny", train=train).sizes == replace(SCALES["tiny"], seq_len=seq_len)


def test_sources_are_of_every_document_that_words_are_from(monkeypatch):
    asked = []
    rows = pd.DataFrame({"document": [0, 2, 5], **dict.fromkeys(("right", "right_near", "logp", "logp_near"), 1.0)})
    group = [(SimpleNamespace(model="fox_pro"), rows, {})]
    monkeypatch.setattr(last_words, "Words", lambda **parts: parts)
    study = SimpleNamespace(by_series=lambda kind, what: [group], measured=lambda line, meta, count: asked.append(count) or {})
    (found,) = last_words.by_line(study)
    assert asked == [6] and found["documents_I"].tolist() == [0, 2, 5]


class Hashed(SimpleNamespace):
    __hash__ = object.__hash__


@pytest.mark.parametrize(("reads", "asked", "fetched"), [
    ((), 0, []), ((("corpus",),), 0, []), ((("hub",),), 1, [0]), ((("corpus",), ("corpus", "hub"), ("hub",)), 1, [1, 2]),
])  # fmt: skip
def test_the_hub_is_looked_for_once_where_a_missing_evaluation_reads_it(monkeypatch, reads, asked, fetched):
    """Each is fetched once, however many runs miss it."""
    looked, had, sources = [], [], object()
    fetch = lambda n, given: had.append(n) if given is sources else None  # noqa: E731
    specs = [Hashed(kind="k", reads=partial(tuple, each), fetch=partial(fetch, n)) for n, each in enumerate(reads)]
    monkeypatch.setattr(execute, "go_offline_if_unreachable", lambda: looked.append(1))
    runs = {name: SimpleNamespace(missing_evals=specs) for name in "ab"}
    plan = SimpleNamespace(corpora=(), runs=runs, request=SimpleNamespace(sources=sources))
    execute.fetch(plan, Console(quiet=True))
    assert len(looked) == asked and had == fetched


def test_models_are_in_the_order_of_the_paper(monkeypatch):
    """As they are drawn and tabulated, wherever their rows lie."""
    labels = ["mine", "mamba2", "transformer_pro", "fox_pro"]
    rows = pd.DataFrame({"name": ["layers.0.a.weight"], "module": ["Linear"], "shape": ["2 x 3"], "count": [6], "document": [0],
                         **dict.fromkeys(("right", "right_near", "logp", "logp_near"), 1.0)})  # fmt: skip
    lines = [(SimpleNamespace(model=label, label=label, run_id="r"), rows, {}) for label in labels]
    spec = {"model": {"num_layers": 1, "hidden_size": 8, "head_dim": 4},
            "train": dict.fromkeys(("peak_lr", "train_tokens", "batch_tokens", "warmup_tokens"), 1)}  # fmt: skip
    study = SimpleNamespace(evaluations=lambda kind, what: lines, by_series=lambda kind, what: [[each] for each in lines],
                            spec=lambda run_id: spec, train_len=64,
                            measured=lambda line, meta, count: dict(model=line.model))  # fmt: skip
    monkeypatch.setattr(table4_settings, "about", lambda study, corpus: "")
    monkeypatch.setattr(cache_eviction, "_remaining", lambda study, group: group)
    monkeypatch.setattr(last_words, "Words", SimpleNamespace)
    found = (table4_settings.summary(study).rows, fig1_architecture.parts_of(study), cache_eviction.remaining(study),
             last_words.last_words(study))  # fmt: skip
    assert [list(each) for each in found] == [labels[::-1]] * 4
