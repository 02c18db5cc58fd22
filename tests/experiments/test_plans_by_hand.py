"""Small parts of planning and of carrying a plan out at their edges, by hand."""

import fcntl
import io
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from rich.console import Console

from data.plan import resolve
from experiments import execute, forks, graph, local, overview, plan, recipes, render, restarts, scales
from experiments.artefact import Artefact
from experiments.recipes import Recipe
from experiments.request import Corpora, Request, _numbers
from experiments.scales import SCALES
from experiments.task import Task
from tests.texts import write_texts

TINY = SCALES["tiny"]


def said(width: int = 500) -> tuple[Console, io.StringIO]:
    told = io.StringIO()
    return Console(file=told, width=width, highlight=False), told


PLAIN = Recipe("fox_pro", "fox_pro", "tiny")


@pytest.mark.parametrize(("ready", "known"), [(False, False), (True, False), (False, True)])
def test_corpora_are_prepared_once_and_checked(monkeypatch, ready, known):
    done = []
    kind = plan.KnownCorpus if known else plan.CorpusPlan
    corpus = object.__new__(kind)
    about = dict(folder=Path("c"), spec=SimpleNamespace(source="text", tokenizer="bytes"), source=None)
    for name, value in about.items():
        object.__setattr__(corpus, name, value)
    monkeypatch.setattr(kind, "ready", ready, raising=False)
    monkeypatch.setattr(execute, "prepare", lambda corpus, progress, say: done.append("prepared"))
    monkeypatch.setattr(execute, "check", lambda plan: done.append("checked"))
    console, told = said()
    execute.prepare_corpora(SimpleNamespace(corpora=[corpus]), console)
    prepared = not ready and not known
    assert done == ["prepared"] * prepared + ["checked"]
    wanted = ["preparing the corpus (text, bytes) ...", "done  corpus in c  (0 s)"] if prepared else []
    assert told.getvalue().splitlines() == wanted


def test_what_a_preparation_warns_of_is_printed(monkeypatch, tmp_path):
    """Also where there is no terminal; that the text is another one every time, and once."""
    monkeypatch.setattr("data.source.FOLDERS", ("series", "sets"))
    monkeypatch.setattr(execute, "check", lambda plan: None)
    corpus = resolve("packages", tokenizer="bytes", cache_dir=tmp_path / "[a]", document_len=512)
    flock, held = fcntl.flock, [True]

    def busy(file, how):
        if how & fcntl.LOCK_NB and held and held.pop():
            raise BlockingIOError
        flock(file, how)

    monkeypatch.setattr(fcntl, "flock", busy)
    for again in (False, True):
        console, told = said(2000)
        execute.prepare_corpora(SimpleNamespace(corpora=[corpus]), console)
        assert corpus.ready and "numbers cannot equal committed ones" in corpus.notice
        preparing = ["preparing the corpus (packages, bytes) ...", "another process is preparing this corpus: waiting for it"]
        assert told.getvalue().splitlines()[: 1 if again else 3] == [corpus.notice, *([] if again else preparing)]
        assert told.getvalue().count("\n") == (1 if again else 4)


def test_a_damaged_corpus_is_made_again(monkeypatch, tmp_path):
    monkeypatch.setattr(execute, "check", lambda plan: None)
    corpus = resolve(f"text:{write_texts(tmp_path / 'texts', 4)}", tokenizer="bytes", cache_dir=tmp_path, document_len=512)
    asked, files = SimpleNamespace(corpora=[corpus]), []
    for again in (False, True):
        console, told = said()
        execute.prepare_corpora(asked, console)
        about = corpus.folder / "corpus.json"
        assert corpus.ready and ("is damaged, or of another version: making it again" in told.getvalue()) == again
        files.append(about.read_text())
        about.write_text("{")
    assert files[0] == files[1]


def test_tokenisers_that_are_trained_here_are_fetched_from_nowhere(monkeypatch):
    loaded, fetched = [], []
    choices = [
        SimpleNamespace(trained=trained, load=lambda trained=trained: loaded.append(trained)) for trained in (True, False)
    ]
    corpora = []
    for choice in (*choices, choices[1]):
        corpora.append(object.__new__(plan.CorpusPlan))
        object.__setattr__(
            corpora[-1], "tokenizer", type("Choice", (), {**vars(choice), "load": lambda self: loaded.append(self.trained)})()
        )
    spec = type(
        "Spec", (), {"kind": "lm_eval", "reads": lambda self: ["hub"], "fetch": lambda self, sources: fetched.append(sources)}
    )()
    monkeypatch.setattr(execute, "go_offline_if_unreachable", lambda: None)
    console, told = said()
    runs = {"a": SimpleNamespace(missing_evals=[spec])}
    execute.fetch(SimpleNamespace(corpora=corpora, runs=runs, request=SimpleNamespace(sources="s")), console)
    assert loaded == [False, False] and fetched == ["s"] and told.getvalue() == "done  data of lm_eval\n"


def test_all_is_there_already_is_said(monkeypatch):
    for name in ("check_writable", "prepare_corpora", "write_specs"):
        monkeypatch.setattr(execute, name, lambda *given: None)
    monkeypatch.setattr(execute.graph, "tasks", lambda plan, **how: [SimpleNamespace(kind="draw")])
    monkeypatch.setattr(execute, "run_tasks", lambda *given: pytest.fail("nothing is left to run"))
    monkeypatch.setattr(execute, "draw", lambda specs, console: len(specs))
    console, told = said()
    runs = dict.fromkeys("ab", SimpleNamespace(trains=False))
    plan = SimpleNamespace(runs=runs, drawings={"a": 1, "b": 2, "c": 3}, request=Request(), idle=[], unread=[])
    assert execute.execute(plan, 1, 1, console) == 3
    assert told.getvalue() == "all 2 runs and their evaluations exist already\n"


def task(key: str = "train:a", **more: Any) -> graph.Planned:
    return graph.Planned(key, more.pop("module", "training"), (), (), (), more.pop("folder", Path()), **more)


@pytest.mark.parametrize(("kind", "of_a_run", "log"), [
    ("prepare", False, "prepare-a-b"), ("train", True, "train"), ("evaluate", True, "evaluate"), ("time", True, "time"),
    ("draw", False, "draw-a-b"),
])  # fmt: skip
def test_a_task_by_its_key(kind, of_a_run, log):
    made = Task(f"{kind}:a:b", "m", (), (), (), Path("f"))
    assert (made.kind, made.about, made.name, made.of_a_run) == (kind, "a", f"{kind} a", of_a_run)
    assert (made.log, made.journal) == (Path(f"f/logs/{log}.log"), Path(f"f/starts/{log}.jsonl"))


def test_the_modules_of_tasks_are_imported_once_before_they_are_forked(monkeypatch):
    """In the environment of the tasks, which see no GPU, have one thread and know of no torchrun."""
    done = []
    of = lambda name: SimpleNamespace(spec=SimpleNamespace(model=type("Spec", (), {"__module__": f"models.{name}.spec"})()))  # noqa: E731
    monkeypatch.setattr(local.forks, "preload", lambda modules: done.append((modules, dict(local.os.environ))))
    monkeypatch.setenv("RANK", "3")
    monkeypatch.setenv("OMP_NUM_THREADS", "7")
    tasks = [
        task(run=of("samba")),
        task("evaluate:a", module="eval.job", run=of("samba")),
        task("prepare:a", module="experiments"),
    ]
    pool = local._Pool(tasks, 2, 1, "cpu", Console(quiet=True))
    (modules, environment), = done  # fmt: skip
    train, job = local.IMPORTS["training"], local.IMPORTS["eval.job"]
    assert modules == list(dict.fromkeys([*train, "models.samba.module", *job]))
    assert environment == pool.environment and "RANK" not in environment
    assert (environment["OMP_NUM_THREADS"], environment["CUDA_VISIBLE_DEVICES"], environment["PYTHONUNBUFFERED"]) == (
        "1",
        "",
        "1",
    )
    assert local.os.environ["RANK"] == "3" and local.os.environ["OMP_NUM_THREADS"] == "7"
    monkeypatch.setattr(local, "gpus", lambda: ["0", "1"])
    on_gpus = local._Pool(tasks, None, 1, "cuda", Console(quiet=True))
    assert len(done) == 1 and "OMP_NUM_THREADS" not in on_gpus.environment and on_gpus.free == ["0", "1"]


def test_what_runs_is_told_every_half_minute_where_there_is_no_terminal(monkeypatch):
    monkeypatch.setattr(local.forks, "preload", lambda modules: None)
    clock = [100.0]
    monkeypatch.setattr(local.time, "monotonic", lambda: clock[0])
    console, told = said()
    pool = local._Pool([], 1, 1, "cpu", console)
    pool.running = [SimpleNamespace(progress=lambda: "[a] at work")]
    for seconds, lines in ((0, 0), (local.LINE_EVERY_S, 0), (0.1, 1), (0.1, 1), (local.LINE_EVERY_S, 2)):
        clock[0] += seconds
        pool._show(None)
        assert told.getvalue() == "[a] at work\n" * lines
    shown = []
    pool.console = SimpleNamespace(is_terminal=True)
    pool.total, pool.done = 5, 2
    pool._show(SimpleNamespace(update=lambda text: shown.append(text.plain)))
    assert shown == ["[a] at work\n2 of 5 tasks done"]


@pytest.mark.parametrize(("action", "reason", "lines"), [
    ("done", "", ["done  train a  (3 s)"]), ("again", "killed by SIGKILL", ["again  train a: killed by SIGKILL  (3 s)"]),
    ("failed", "", ["failed  train a: exit code 2; log: LOG", *(f"    line {number}" for number in range(4, 9))]),
    ("failed", "interrupted", ["failed  train a: interrupted; log: LOG", *(f"    line {number}" for number in range(4, 9))]),
])  # fmt: skip
def test_what_is_said_of_a_task_that_has_ended(monkeypatch, tmp_path, action, reason, lines):
    """A failed one ends with the last five lines of its log; one that is begun again comes first."""
    monkeypatch.setattr(local.forks, "preload", lambda modules: None)
    asked = []
    monkeypatch.setattr(local.restarts, "note_end", lambda *given: asked.append(given) or (action, reason))
    console, told = said()
    own, other = task(folder=tmp_path), task("train:b")
    own.log.parent.mkdir()
    own.log.write_bytes(b"\xff" + "\n".join(f"line {number}" for number in range(9)).encode())
    pool = local._Pool([own, other], 1, 1, "cpu", console)
    pool.waiting.popleft()
    pool.free.clear()
    running = SimpleNamespace(task=own, gpus=[""], seconds=3.0, log=own.log, before={})
    pool.running = [running]
    pool._ended(running, 2)
    assert asked == [(own.journal, pool.job, tmp_path, 2)] and pool.free == [""] and pool.running == []
    assert told.getvalue().replace(str(own.log), "LOG").splitlines() == lines
    assert list(pool.waiting) == [own, other] if action == "again" else [other]
    assert pool.open == ({"train:a", "train:b"} if action == "again" else {"train:b"})
    assert (pool.done, pool.failed) == (action == "done", [own] if action == "failed" else [])


@pytest.mark.parametrize(("log", "free", "named"), [("", 0, True), ("", 1, False), ("why", 0, False), (None, 0, False)])
def test_a_full_disk_is_named_where_the_log_could_not_be_written(monkeypatch, tmp_path, log, free, named):
    monkeypatch.setattr(local.forks, "preload", lambda modules: None)
    monkeypatch.setattr(local.restarts, "note_end", lambda *given: ("failed", ""))
    monkeypatch.setattr(local.shutil, "disk_usage", lambda path: SimpleNamespace(free=free))
    console, told = said()
    own = task(folder=tmp_path)
    if log is not None:
        own.log.parent.mkdir()
        own.log.write_text(log)
    pool = local._Pool([own], 1, 1, "cpu", console)
    running = SimpleNamespace(task=own, gpus=[""], seconds=3.0, log=own.log, before={})
    pool.running = [running]
    pool._ended(running, 2)
    assert ("no space left on the log's disk" in told.getvalue()) == named


def test_a_log_of_other_letters_is_read_and_a_journal_that_is_not_there_is_empty(tmp_path):
    (tmp_path / "log").write_bytes(b"\xff\xfe\nerror: caf\xe9\n")
    assert restarts.last_words(tmp_path / "log") == "error: caf\ufffd"
    assert restarts.read(tmp_path / "none") == [] and not restarts.has_ended(tmp_path / "none", "1")
    restarts.note_start(tmp_path / "deep" / "journal", "5", tmp_path)
    (start,) = restarts.read(tmp_path / "deep" / "journal")
    assert (start["event"], start["job"], start["mark"], start["node"]) == (
        "start", "5", "step-0, 0 bytes of evaluations", restarts.os.uname().nodename)  # fmt: skip
    (tmp_path / "evals").mkdir()
    (tmp_path / "evals" / "a").write_text("123")
    assert restarts.note_end(tmp_path / "deep" / "journal", "5", tmp_path, 75) == ("again", "saved, to go on")
    assert restarts.read(tmp_path / "deep" / "journal")[1] | {"date": ""} == {
        "event": "end", "date": "", "job": "5", "mark": "step-0, 3 bytes of evaluations", "code": 75, "action": "again",
        "reason": "saved, to go on"}  # fmt: skip


def test_work_is_forked_a_core_at_a_time_and_done_here_where_a_fork_failed(monkeypatch):
    monkeypatch.setattr(forks.os, "cpu_count", lambda: 2)
    here, alive, most = forks.os.getpid(), [], []
    context = forks.multiprocessing.get_context("fork")
    start = context.Process.start

    def counted(self: Any) -> None:
        start(self)
        alive.append(self)
        most.append(sum(each.is_alive() for each in alive))

    monkeypatch.setattr(context.Process, "start", counted)

    def work(number: int) -> int:
        if number == 1 and forks.os.getpid() != here:
            raise KeyboardInterrupt
        return number * 10

    waiting = forks.begin([lambda number=number: work(number) for number in range(4)])
    assert [wait() for wait in waiting] == [0, 10, 20, 30] and max(most) <= 2 and all(each.daemon for each in alive)


@pytest.mark.parametrize(("lines", "told"), [
    ([("s", "fox_pro", "fox_pro", 0)], "s"), ([("s", "a label", "fox_pro", 0)], "s: a label"),
    ([("s", "fox_pro", "fox_pro", 3)], "s, seed 3"),
    ([("s", "a", "fox_pro", 1), ("s", "b", "fox_pro", 1), ("t", "c", "fox_pro", 1)], "s: a, seed 1, and 2 more"),
])  # fmt: skip
def test_who_wants_a_run(lines, told):
    drawings: dict[str, Any] = {}
    for stem, label, model, seed in lines:
        own = drawings.setdefault(stem, SimpleNamespace(stem=stem, lines=[]))
        own.lines.append(SimpleNamespace(line=SimpleNamespace(label=label, model=model, seed=seed, run_id="r")))
        own.lines.append(SimpleNamespace(line=SimpleNamespace(label="x", model="y", seed=0, run_id="another")))
    run = SimpleNamespace(spec=SimpleNamespace(run_id="r"))
    assert overview._wanted_by(SimpleNamespace(drawings=drawings), run) == told


@pytest.mark.parametrize(("weights", "finished", "row", "told"), [
    ("w", True, None, "adopted, 1/3"), (None, True, {"step": 5}, "trained, 1/3"), (None, False, {"step": 5}, "step 5, 1/3"),
    (None, False, None, "nothing, 1/3"),
])  # fmt: skip
def test_what_exists_of_a_run(weights, finished, row, told):
    folder = SimpleNamespace(last_row=lambda: row, finished=finished)
    run = SimpleNamespace(folder=folder, spec=SimpleNamespace(weights=weights), evals=[1, 2, 3], missing_evals=[1, 2])
    assert overview._state(run) == told


def test_who_made_something_is_one_line():
    full = dict(
        date="today",
        git_sha="0123456789abcdef",
        git_dirty=True,
        device="GPU",
        python="3.12",
        versions={"torch": "2", "fla": None},
    )
    assert overview._made(full) == "today 0123456789+ on GPU, python 3.12, torch 2"
    assert overview._made({"versions": None, "git_sha": "0123456789abcdef", "git_dirty": False}).startswith(
        " 0123456789 on None, python None"
    )


def test_work_of_tasks():
    """Three forward passes; none for weights from elsewhere. What waits for a training counts with it; a corpus comes first."""
    model = SimpleNamespace(flops_per_token=lambda length: 10.0 * length)
    spec = SimpleNamespace(train=SimpleNamespace(seq_len=2, train_tokens=5), model=model, weights=None)
    evals = [SimpleNamespace(flops=lambda model, n=n: n) for n in (7.0, 8.0)]
    run = SimpleNamespace(spec=spec, missing_evals=evals)
    assert overview.train_flops(run) == 300.0 and overview.eval_flops(run, evals[:1]) == 7.0
    assert [overview.task_flops(task(f"{kind}:a", run=run)) for kind in ("train", "evaluate")] == [315.0, 15.0]
    assert overview.task_flops(task("prepare:a")) == float("inf")
    spec.weights = "w"
    assert overview.train_flops(run) == 0.0


@pytest.mark.parametrize(("seeds", "valid"), [
    ((0,), True), ((0, 2**63 - 1), True), ((), False), ((0, 0), False), ((-1,), False), ((2**63,), False), ((1, 2, 1), False),
])  # fmt: skip
def test_seeds_of_a_request(seeds, valid):
    request = Request(seeds=seeds)
    if valid:
        plan._check_names(request)
        return
    with pytest.raises(ValueError, match=r"--seeds .*: give different numbers from 0 on, below 2\^63"):
        plan._check_names(request)


def test_names_and_numbers_of_a_request():
    for more, flag in (({"only": ("fox",)}, "--only "), ({"also": ("fox_pro", "fox")}, "--also ")):
        with pytest.raises(ValueError, match=f"^{flag}fox: no such model; choose from fox_pro, "):
            plan._check_names(Request(**more))
    assert _numbers(["0,1,20"]) == (0, 1, 20)
    with pytest.raises(ValueError, match=r"^0,,1: give numbers separated by commas, such as 0,1,2"):
        _numbers(["0,,1"])


SHORT = replace(TINY, short_documents=True, default_data="hf:short", default_tokenizer="gpt2")


@pytest.mark.parametrize(("scale", "data", "tokenizer", "found"), [
    (TINY, None, None, (TINY.default_data, TINY.default_tokenizer)), (TINY, "text:a", None, ("text:a", TINY.default_tokenizer)),
    (TINY, "text:a", "bytes", ("text:a", "bytes")), (TINY, "longcrawl64:f", None, ("longcrawl64:f", None)),
    (TINY, "longcrawl64:f", "gpt2-json:v", ("longcrawl64:f", "gpt2-json:v")), (SHORT, None, None, ("hf:short", "gpt2")),
    (SHORT, "longcrawl64:f", "gpt2-json:v", ("hf:short", "gpt2")), (SHORT, "text:a", "bytes", ("text:a", "bytes")),
    (replace(TINY, default_data=None), None, None, (None, TINY.default_tokenizer)),
])  # fmt: skip
def test_data_and_tokeniser_of_a_scale(scale, data, tokenizer, found):
    assert plan._data(Corpora(data=data, tokenizer=tokenizer), scale) == found


@pytest.mark.parametrize(("short", "heldout", "data", "asked"), [
    (False, None, None, None), (False, "h", None, "h"), (True, "h", "longcrawl64:f", None), (True, "h", "text:a", "h"),
])  # fmt: skip
def test_what_is_asked_of_a_corpus(monkeypatch, short, heldout, data, asked):
    """The texts to evaluate on are beside the data that they were given with."""
    found = {}
    monkeypatch.setattr(plan, "resolve", lambda source, **named: found.update(source=source, **named) or "corpus")
    scale = SHORT if short else TINY
    request = Corpora(data=data, heldout=heldout, corpora_dir=Path("c"))
    assert plan.corpus_at(request, scale, rehearsal=False) == "corpus"
    source, tokenizer = plan._data(request, scale)
    assert found == dict(source=source, tokenizer=tokenizer, document_len=scale.document_len, cache_dir=Path("c"),
                         heldout=asked, heldout_fraction=scale.heldout_fraction, packed=short,
                         max_tokens=scale.train_tokens if short else None)  # fmt: skip
    with pytest.raises(ValueError, match=r"--scale tiny needs --data: longcrawl64:FOLDER"):
        plan.corpus_at(Corpora(), replace(TINY, default_data=None))


PAPER = replace(TINY, default_data=None, default_tokenizer="gpt2-json")


@pytest.mark.parametrize(("scale", "data", "found"), [
    (TINY, None, None), (PAPER, None, ("longcrawl64", "FOLDER", "LongCrawl64 is not here")), (PAPER, "longcrawl64:/", None),
    (PAPER, "longcrawl64:/nowhere", ("longcrawl64", "/nowhere", "LongCrawl64 is not here")), (PAPER, "text:a", None),
    (SHORT, None, ("hf:short", "hf:short", "not asked of the hub")), (SHORT, "hf:other", ("hf:other", "hf:other", "not asked")),
    (SHORT, "hf:other@main", None), (SHORT, "text:a", None), (TINY, "hf:other", None), (TINY, "longcrawl64:/nowhere", None),
])  # fmt: skip
def test_corpora_that_a_rehearsal_does_without(scale, data, found):
    absent = plan._absent(Corpora(data=data), scale)
    if found is None:
        assert absent is None
        return
    assert (absent.spec.source, str(absent.folder)) == found[:2] and absent.note.startswith(found[2])
    assert absent.note.endswith(", so the ids of the runs are provisional") and absent.spec.fingerprint == "absent"
    assert absent.spec.bos_id == absent.spec.vocab_size - 1 and absent.spec.document_len == scale.document_len
    assert absent.ready and absent.counts() is None


def test_models_are_added_where_all_lines_are_models():
    """At every scale and seed of them; one that is there already is not there twice."""
    names = ("mamba2", "fox_pro")

    def of(*found: Recipe, more: Any = None, seeds: tuple[int, ...] = ()) -> list[Recipe]:
        return Artefact.recipes(SimpleNamespace(runs=lambda scale, seeds: found, more=more), TINY, seeds, names)

    two = [replace(PLAIN, seed=seed) for seed in (0, 1)]
    assert of(*two) == [*two, *(Recipe("mamba2", "mamba2", "tiny", seed) for seed in (0, 1))]
    changed = replace(PLAIN, label="other", train={"peak_lr": 1.0})
    assert of(*two, changed) == [*two, changed]
    assert of() == []
    own = lambda scale, seeds, models: [replace(changed, name=model, seed=seed) for model in models for seed in seeds]  # noqa: E731
    besides = [replace(changed, name="mamba2"), replace(changed, name="fox_pro")]
    assert of(changed, more=own, seeds=(changed.seed,)) == [changed, *(each for each in besides if each != changed)]


@pytest.mark.parametrize(("only", "line", "asked"), [
    ((), (), True), (("fox_pro",), (), True), (("mamba2",), (), False), (("mamba2", "fox_pro"), (), True),
    ((), ("a*",), True), ((), ("A*",), False), ((), ("b", "a b"), True), (("mamba2",), ("a*",), False),
    (("fox_pro",), ("b",), False),
])  # fmt: skip
def test_lines_that_are_asked_for(only, line, asked):
    assert plan._is_asked_for(replace(PLAIN, label="a b"), Request(only=only, line=line)) is asked


@pytest.mark.parametrize(("weights", "missing", "finished", "trains"), [
    (None, ["rows"], False, True), (None, ["spec"], False, False), (None, [], False, False),
    (None, ["spec", "rows"], False, True),
    (None, ["rows"], True, False), ("w", ["rows"], False, False),
])  # fmt: skip
def test_a_run_trains_where_something_needs_it(monkeypatch, weights, missing, finished, trains):
    monkeypatch.setattr(plan.Run, "missing_evals", tuple(SimpleNamespace(NEEDS=needs) for needs in missing))
    run = plan.Run(SimpleNamespace(weights=weights), SimpleNamespace(finished=finished), None, ())  # type: ignore[arg-type]
    assert run.trains is trains


def test_kimi_delta_attention_has_the_heads_that_are_asked_for():
    scale = SCALES["tiny"]
    for changes, head_dim in (({}, scale.linear_head_dim), ({"head_dim": 96}, 96)):
        found = recipes._kimi_delta_attention(scale, changes)
        assert found == {"head_dim": head_dim, "mlp_width": recipes._narrower(scale, changes, 4 * head_dim / 3)}


def test_a_scale_of_the_paper_says_what_it_has_otherwise():
    given = ("n", "about", 512, 4, 64, 2**30, 1e-3, 2**16)
    assert scales._paper(*given).seq_len == 16384
    assert scales._paper(*given, seq_len=32768, compile=False).seq_len == 32768
    assert not scales._paper(*given, compile=False).compile


def test_claims_of_an_artefact_that_cannot_be_read_are_not_judged(monkeypatch, tmp_path):
    """Whatever its rows end in: its own report says so."""

    def broken(*given):
        raise KeyError("loss")

    monkeypatch.setattr(render, "Study", broken)
    page = render.write_claims("tiny", tmp_path, {}).read_text()
    assert "C1 (`fig2_per_token_loss`)" in page
