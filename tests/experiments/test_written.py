"""Nothing that a plan becomes, and nothing that is said of it, changes unnoticed: tasks, costs, ancestries and reports of what
was reproduced are written down for made-up runs. What is new need not be there yet."""

import io
import itertools
import json
import math
import os
import re
from collections.abc import Iterator
from dataclasses import asdict, replace
from itertools import product
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
from rich.console import Console

from analysis.prediction import Predicted
from analysis.statistics import Noise
from eval.shell.sources import UserData
from experiments import __main__ as command
from experiments import compare, execute, graph, local, overview, render, restarts
from experiments.artefact import chosen
from experiments.collect import Collected, _joined, collect, is_collected, relation, trained_on_cpu
from experiments.graph import Planned
from experiments.plan import Plan, make_plan
from experiments.request import Request
from tests.experiments.finished import finish
from training.lines import line
from training.spec import Execution

WRITTEN = Path(__file__).with_suffix(".txt")
FIG2 = "fig2_per_token_loss"
pytestmark = pytest.mark.usefixtures("pictures_of_a_dot")


def said(width: int = 250) -> tuple[Console, io.StringIO]:
    told = io.StringIO()
    return Console(file=told, width=width, highlight=False, soft_wrap=True), told


def requests(asked: Request, texts: Path) -> Iterator[tuple[str, Request]]:
    where = dict(runs_dir=asked.runs_dir, results_dir=asked.results_dir, corpora_dir=asked.corpora_dir)
    pair = dict(only=("fox_pro", "mamba2"), artefacts=(FIG2, "table6_throughput"))
    yield "plain", replace(asked, **pair)
    how = Execution(device="cuda", micro_batch_tokens=512, async_checkpoint=True, max_hours=2.0, on_bad_step="skip")
    yield "cuda", replace(asked, **pair, execution=how, tokenizer="bytes", heldout=str(texts / "text-00.txt"))
    yield "seeds", replace(asked, artefacts=("fig5_tokens_and_lr",), seeds=(0, 3), line=("*LR*",))
    yield "recall", replace(asked, artefacts=("stick_recall",), only=("stick_breaking",))
    user = UserData(haystack=texts, haystack_unsorted=True)
    yield "needles", replace(asked, artefacts=("fig4_needle",), only=("fox_pro",), user_data=user)
    for scale in ("mini", "760m-16b"):
        yield scale, Request(**{**where, **pair, "scale": scale, "data": "longcrawl64:/nowhere"}).on("cuda")


def plans(asked: Request, texts: Path) -> Iterator[str]:
    """Tasks of plans of which nothing is there, and the tables of their costs."""
    for name, request in requests(asked, texts):
        try:
            plan = make_plan(request, machine="machine", rehearsal=True)
        except ValueError as error:
            yield f"{name}: {error}"
            continue
        for task in graph.tasks(plan, processes=1):
            told = {key: value for key, value in asdict(replace(task, run=None)).items() if key != "run"}
            work = f"{overview.task_flops(task):.5g} {local._imports(task)}"
            yield f"{name}: {json.dumps(told, default=str, sort_keys=True)} {work}"
        console, out = said()
        overview.print_plan(plan, 0.4, console)
        yield from (f"{name}: {' '.join(each.split())}" for each in out.getvalue().splitlines())


def made(asked: Request) -> Plan:
    plan = make_plan(replace(asked, artefacts=(FIG2, "appendix_seeds"), only=("fox_pro", "mamba2"), seeds=(0, 1)))
    for index, run in enumerate(plan.runs.values()):
        run.folder.create(run.folder.path, run.spec)
        if index < 3:
            finish(run, evaluations=index < 2, loss=2.0 + index / 10, weights=b"w" * index, final_loss=3.0 + index)
    return plan


def halfway(asked: Request) -> Iterator[str]:
    """Tasks, costs and ancestry where two runs are done, one is trained and one is not."""
    plan = made(asked)
    run = list(plan.runs.values())[3]
    run.folder.metrics_file.write_text(line({"step": 7, "tokens": 700, "loss": 2.5, "wall_s": 1.0}, run.spec.run_id))
    yield f"collected {[is_collected(spec) for spec in plan.drawings.values()]}"
    for spec in plan.drawings.values():
        yield f"collected {collect(spec)} {is_collected(spec)}"
    yield from (f"left: {task.key} {task.needs} {len(task.makes)}" for task in graph.tasks(plan))
    promised = frozenset(run.eval_file(spec) for run in plan.runs.values() for spec in run.evals)
    yield from (f"promised: {task.key}" for task in graph.tasks(plan, promised))
    for stored in (False, True):
        again = make_plan(replace(plan.request, reuse_stored=stored, runs_dir=asked.runs_dir.with_name("elsewhere")))
        yield f"elsewhere, stored {stored}: {sorted(task.kind for task in graph.tasks(again))}"
        yield f"they train: {[run.trains for run in again.runs.values()]}"
    console, out = said()
    overview.print_plan(plan, 2e-9, console)  # so many hours that their digits show
    overview.print_ancestry(FIG2, "tiny", asked.results_dir, console)
    folders = [each.folder.path for each in plan.runs.values()]
    yield f"exit code {compare.compare(folders, asked.results_dir, console, named=False)}"
    yield f"exit code {compare.compare(folders[1:2], asked.results_dir, console, named=True)}"
    compare.compare(folders[:2], asked.results_dir, console, named=True)
    yield f"exit code {execute.draw([*plan.drawings.values()], console)}"
    yield f"exit code {execute.draw([*plan.drawings.values()], console)}"
    overview.print_overview(console, asked.results_dir)
    yield from (" ".join(each.split()) for each in out.getvalue().splitlines())
    for page in (render.status_page(asked.results_dir), (asked.results_dir / "tiny" / "claims.md").read_text()):
        page = page.replace(os.path.relpath(render.ROOT, asked.results_dir.resolve()), "CHECKOUT")
        yield from (each for each in page.splitlines() if FIG2 in each or "Last seen" in each or "| `appendix_seeds" in each)


def partings() -> Iterator[str]:
    """Places where two trainings part, and what bands say of numbers inside, outside and unknown."""
    nan = math.nan
    for one, other in (([3, 2, 1], [3, 2, 1]), ([3, 2, 1], [3, 2.5, 1.125]), ([3, nan, 1], [3, nan, 1]),
         ([3, nan, 1], [3, 2, 1]), ([3, 2], [1]),
                       ([nan, 2, 2], [3, 2, 4])):  # fmt: skip
        steps = [
            pd.DataFrame({"step": np.arange(1, 1 + len(loss)) + 5 * (len(loss) == 1), "loss": loss}) for loss in (one, other)
        ]
        starts = [
            {"python": "3.11", "device": "d", "git_sha": "abcdef", "git_dirty": dirty, "date": "x"} for dirty in (False, True)
        ]
        console, out = said()
        a, b = (compare.Training(name, {"seed": n, "train": {"peak_lr": 1 + n}}, rows, starts[n : n + 1 + n])
                for n, (name, rows) in enumerate(zip("ab", steps, strict=True)))  # fmt: skip
        compare.print_parting(a, b, console)
        compare.print_parting(a, a, console)
        yield from (f"{one} {other}: {' '.join(each.split())}" for each in out.getvalue().splitlines())
    known = Predicted((3.0, 3.1), Noise(1e-4, 5.0, "here"))
    for values, whole in itertools.product(([3.05], [3.05, 9.0], [9.0] * 3, [3.05] * 30 + [3.09], []), (True, False)):
        found = [compare.Compared("r", "e", f"n{n}", value, known) for n, value in enumerate(values)]
        found += [
            compare.Compared("r", "e", "alone", 1.0, Predicted((1.0,), None)),
            compare.Compared("r", "e", "none", 1.0, None),
        ]
        console, out = said()
        yield f"{values[-2:]} {whole}: {compare.print_bands(found, console, whole=whole)}"
        yield from (f"{values[-2:]} {whole}: {' '.join(each.split())}" for each in out.getvalue().splitlines()[-6:])


def reports() -> Iterator[str]:
    """Words on what was reproduced of what is stored."""
    for differing, beyond, left, beside, reproduced in (
        ({}, {}, [], [], 0), ({}, {}, [], [], 3), ({"a": 0.5, "b": math.inf, "c": 1e-3}, {}, ["x", "y", "x"], [], 2),
        ({}, {"d": "far"}, [], ["one", "two", "one"], 0), ({str(n): n / 10 for n in range(9)}, {"d": "far"}, ["x"],
        list("abcdefg"), 1),
        ({}, {}, [], list("abcde"), 1),
    ):  # fmt: skip
        console, out = said()
        first = Collected("s", 2, {*map(str, range(reproduced))}, differing, beyond, left_out=left, beside=beside)
        both = [first, Collected("t", 1, {f"of t: {n}" for n in range(reproduced)}, left_out=["x"] if left else [])]
        yield f"all reproduced: {execute._report_reproduced(both, {}, console)}"
        yield from out.getvalue().splitlines()


def small_things() -> Iterator[str]:
    for number in (0, 1, 999, 1000, 999_999, 1e6, 168e6, 1e9, 48e9):
        yield f"{number}: {overview.count(number)}"
    for code in (-9, -15, 0, 1, 76, 127, 128, 130, 137, 143, 200):
        yield f"{code}: {restarts.exit_reason(code)}"
    for devices in ([], ["AMD (1 thread, AVX2)"], ["AMD (2 threads, AVX2)", "NVIDIA H100"], ["a thread"], [None], ["(GPU)"]):
        yield f"{devices}: {trained_on_cpu([{'device': device} for device in devices])}"
    for names in ((), ("fig2",), ("table1_lm_eval", "fig4"), ("acp_s",), ("fig2_",), ("table1_",)):
        try:
            yield f"{names}: {list(chosen(names))}"
        except ValueError as error:
            yield f"{names}: {error}"
    places = {name: SimpleNamespace(place=name, new=new) for name, new in (("a", 0), ("b", 0), ("c", 0), ("d", 0))}
    for new, old in product(("", "x", "ax", "xb", "bxa", "xyd", "axby"), ("", "abc", "dcba")):
        found = _joined([SimpleNamespace(place=name, new=1) for name in new], [places[name] for name in old])
        yield f"{new} into {old}: {' '.join(f'{each.place}{each.new}' for each in found)}"


def related() -> Iterator[str]:
    """Relations of a folder's training to the first that is stored, by weights, ends and machines."""
    cpu, gpu = "AMD (1 thread, AVX2)", "NVIDIA H100"
    for mine, theirs, (device, other), (loss, before), adopted in product(
        ("w", None), ("w", "v", None), ((cpu, cpu), (cpu, gpu), (gpu, gpu)),
        ((3.0, 3.0), (3.009, 3.0), (3.011, 3.0), (None, 3.0)), (None, "z")
    ):  # fmt: skip
        start, first = ({"date": day, "device": where, "git_sha": day, "git_dirty": False}
                        for day, where in (("2026-01-02", device), ("2026-01-01", other)))  # fmt: skip
        known = {"starts": [first], "trainings": [{"weights": theirs, "starts": [first["date"]], "final_loss": before}]}
        record = {"starts": [start], "trainings": [{"weights": mine, "starts": [start["date"]], "final_loss": loss}]}
        spec = SimpleNamespace(weights=adopted)
        folder = SimpleNamespace(weights=mine, record=lambda record=record: record, read_spec=lambda spec=spec: spec)
        yield f"{mine} {theirs} {device[:3]} {other[:3]} {loss} {adopted}: {relation(known, folder)}"  # type: ignore[arg-type]
    none = SimpleNamespace(
        weights=None, record=lambda: {"starts": [], "trainings": []}, read_spec=lambda: SimpleNamespace(weights=None)
    )
    yield f"{relation(None, none)} {relation(known, none)}"  # type: ignore[arg-type]


def words(folder: Path) -> Iterator[str]:
    """The line of a log that says what was wrong."""
    for text in (None, "", "\n \n", "one\ntwo\n", "error: bad\nmore\n", "x\nValueError: y\nz",
         "srun: error: q\nreal\n--- job 3\n", "real\nslurmstepd: *** q",
                 "e" * 500, "error: old\n" + "x\n" * 3000 + "last"):  # fmt: skip
        log = folder / "a.log"
        log.unlink(missing_ok=True)
        if text is not None:
            log.write_text(text)
        yield f"{(text or '')[:30]!r}: {restarts.last_words(log)}"


@pytest.fixture
def stated(asked, texts, tmp_path) -> list[str]:
    (tmp_path / "logs").mkdir()
    parts = (
        plans(asked, texts),
        halfway(asked),
        partings(),
        reports(),
        small_things(),
        related(),
        words(tmp_path / "logs"),
    )
    found = [each.replace(str(tmp_path), "DIR").replace(str(texts), "TEXTS") for part in parts for each in part]
    return list(dict.fromkeys(re.sub(r"(plans/\w+-|draw:\w+:)[0-9a-f]{8}", r"\1x", each).rstrip() for each in found))


def test_all_that_a_plan_becomes_is_the_same_that_is_written_down(stated, tmp_path):
    (tmp_path / WRITTEN.name).write_text("\n".join(stated) + "\n")
    gone = set(WRITTEN.read_text().splitlines()) - set(stated)
    assert not gone, f"where that is meant: cp {tmp_path}/{WRITTEN.name} {WRITTEN}"


@pytest.mark.parametrize(("collected", "broken", "fits", "reproduced", "code"), [
    ([None, None], [], True, True, 2), ([1, None], [], True, True, 0), ([1, 2], ["x"], True, True, 1),
    ([1], [], False, True, 3),
    ([1], [], True, False, 3), ([1], ["x"], False, False, 1),
])  # fmt: skip
def test_how_drawing_ends(monkeypatch, tmp_path, collected, broken, fits, reproduced, code):
    specs = [SimpleNamespace(stem=f"s{n}", scale="tiny", results_dir=tmp_path, lines=()) for n in range(len(collected))]
    answers, drawn = iter(collected), []
    monkeypatch.setattr(execute, "collect", lambda spec: None if (each := next(answers)) is None else Collected(f"s{each}"))
    monkeypatch.setattr(execute, "render_all", lambda *given: drawn.append(given[:3]) or broken)
    monkeypatch.setattr(
        execute, "by_seeds", lambda runs, parted, folder: [compare.Compared("run", "loss-1", "mean", 2.0, None)]
    )
    monkeypatch.setattr(execute, "print_bands", lambda found, console, whole: fits)
    monkeypatch.setattr(execute, "_report_reproduced", lambda found, alone, console: reproduced)
    assert execute.draw(specs, Console(quiet=True)) == code
    stems = [f"s{each}" for each in collected if each is not None]
    assert drawn == ([(stems, "tiny", tmp_path)] if stems else [])


def test_what_is_evaluated_comes_before_what_is_trained_and_the_most_work_first(asked, monkeypatch):
    plan = made(asked)
    begun = []
    monkeypatch.setattr(execute, "prepare_corpora", lambda plan, console: None)
    monkeypatch.setattr(execute, "run_tasks", lambda tasks, *how: begun.extend((tasks, *how[:3])) or tasks[:2])
    monkeypatch.setattr(execute, "draw", lambda specs, console: 3)
    console, out = said()
    assert execute.execute(plan, 2, 1, console) == 1 and begun[1:] == [2, 1, "cpu"]
    kinds, work = [task.kind for task in begun[0]], [overview.task_flops(task) for task in begun[0]]
    assert kinds == sorted(kinds, key="train".__eq__) and kinds[0] == "prepare" and "draw" not in kinds
    assert all(one >= two for (a, one), (b, two) in itertools.pairwise(zip(kinds, work, strict=True)) if a == b != "prepare")
    assert (
        f"2 of {len(kinds)} tasks failed or could not start; fix the errors above, then repeat the command to try them again"
        in out.getvalue()
    )
    assert all(run.spec_file(spec).is_file() for run in plan.runs.values() for spec in run.missing_evals)
    monkeypatch.setattr(execute, "run_tasks", lambda *given: [])
    assert execute.execute(plan, None, 1, console) == 3
    with pytest.raises(ValueError, match=r"^--slots 0: give at least 1\.$"):
        execute.execute(plan, 0, 1, console)
    for share in (0.0, -0.1, 1.01):
        with pytest.raises(ValueError, match=f"^--mfu {share}: give a share between 0 and 1"):
            overview.print_plan(plan, share, console)
    overview.print_plan(plan, 1.0, console)


@pytest.mark.parametrize(("job", "node", "refused"), [("7", None, True), ("7", "n1", False), (None, None, False)])
def test_a_login_node_trains_nothing(monkeypatch, job, node, refused):
    for name, value in (("SLURM_JOB_ID", job), ("SLURMD_NODENAME", node)):
        monkeypatch.delenv(name, raising=False)
        if value is not None:
            monkeypatch.setenv(name, value)
    monkeypatch.setattr(execute, "execute", lambda plan, *how: (plan, how[:2]))
    monkeypatch.setattr(command, "_planned", lambda request: "plan")
    run = command.Run(slots=3, processes=2)
    if refused:
        with pytest.raises(
            ValueError, match="this shell belongs to SLURM's job 7, but may be on a login node: begin the command with"
        ):
            run.run(Console(quiet=True))
    else:
        assert run.run(Console(quiet=True)) == ("plan", (3, 2))


@pytest.mark.parametrize(("device", "scale", "there", "settled"), [
    ("auto", "tiny", True, "cpu"), ("auto", "mini", True, "cuda"), ("auto", "mini", False, "cpu"),
    ("cuda", "tiny", True, "cuda"),
    ("cpu", "mini", True, "cpu"),
])  # fmt: skip
def test_the_device_of_a_request(monkeypatch, device, scale, there, settled):
    monkeypatch.setattr("torch.cuda.is_available", lambda: there)
    monkeypatch.setattr("torch.cuda.device_count", lambda: 1)
    request = Request(scale=scale, execution=Execution(device=device, max_hours=2.0), tokenizer="bytes")
    assert request.settled().execution == Execution(device=settled, max_hours=2.0) and request.sources.tokenizer == "bytes"
    assert request.device == ("cpu" if device == "auto" else device)


def test_a_timing_has_the_machine_for_itself(monkeypatch):
    """It waits for all that runs, and for all that could run beside it."""
    monkeypatch.setattr(local.forks, "preload", lambda modules: None)
    here = Path()
    timing, other = (Planned(f"time:{name}", "m", (), (), (), here, alone=alone) for name, alone in (("a", True), ("b", False)))
    pool = local._Pool([timing, other], 3, 1, "cpu", Console(quiet=True))
    assert pool.free == [""] * 3 and pool.forked and pool.open == {"time:a", "time:b"} and pool.total == 2
    for running, waiting, room in (([], [timing], True), ([], [timing, other], False), ([1], [timing], False), ([], [], True)):
        pool.running, pool.waiting = running, waiting  # type: ignore[assignment]
        assert pool._has_room(timing) is room and pool._has_room(other)
    chosen = local._Pool([], None, 1, "cpu", Console(quiet=True))
    assert len(chosen.free) == local._cores() and chosen.environment["CUDA_VISIBLE_DEVICES"] == ""


@pytest.mark.parametrize(("visible", "names"), [("0,3", ["0", "3"]), ("", []), ("GPU-1", ["GPU-1"]), (None, ["0", "1"])])
def test_the_gpus_of_this_shell(monkeypatch, visible, names):
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    if visible is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    monkeypatch.setattr("torch.cuda.device_count", lambda: 2)
    assert local.gpus() == names


@pytest.mark.parametrize(("kind", "row", "told"), [
    ("train", {"step": 5, "tokens": 400, "tokens_per_s": 5.0, "loss": 2.0, "mfu": None, "mfu_dense": None},
    "train a  step 5/10  loss 2.000  5 tokens/s  2.0 min left"),
    ("train", None, "train a  7 s"), ("evaluate", {}, "evaluate a  7 s"),
])  # fmt: skip
def test_the_progress_of_a_task(monkeypatch, kind, row, told):
    train = SimpleNamespace(train_tokens=1000, num_steps=10)
    run = SimpleNamespace(folder=SimpleNamespace(last_row=lambda: row), spec=SimpleNamespace(train=train))
    running = local._Running(Planned(f"{kind}:a", "m", (), (), (), Path(), run), [], [], started=100.0)  # type: ignore[arg-type]
    monkeypatch.setattr(local.time, "monotonic", lambda: 107.0)
    assert running.progress() == told
