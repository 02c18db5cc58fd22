"""Commands of evaluations, their texts and their needles, worked out by hand: nothing is computed by a model."""

import datetime
import json
import threading
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import openai
import pandas as pd
import pytest

from data.tokenizer import parse_tokenizer
from eval import __main__ as command
from eval import job
from eval.job import read_spec
from eval.kinds import KINDS, eval_id
from eval.needle import haystack
from eval.needle.haystack import Cell, CellBuilder
from eval.needle.judge import Judge, parse_score
from eval.needle.measure import build_cells, passkey, take
from eval.needle.spec import Grid
from eval.needle.wording import DEFAULT_WORDING, Choices, Wording
from eval.needle_choice import measure as choice
from eval.shell.context import Context
from eval.shell.sources import Sources, UserData, digest
from eval.shell.spec import EvalSpec, Setting
from eval.shell.text import TextCodec, heldout_texts

BYTES = TextCodec(parse_tokenizer("bytes").load())
LOSS = KINDS["per_token_loss"](context_len=4, num_documents=1, corpus="aa", precision="fp32")
TIMING = KINDS["throughput"](machine="m", precision="fp32", step="stepper")


def subject(**given):
    """A run whose weights have a digest."""
    train = SimpleNamespace(seq_len=7)
    return SimpleNamespace(**dict(run=SimpleNamespace(train=train), scale="s", model="m", run_id="r", weights="w") | given)


@pytest.mark.parametrize(("spec", "weights"), [(LOSS, "w"), (TIMING, None), (KINDS["training_curve"](), "w")])
@pytest.mark.parametrize("run", [True, False])
def test_an_evaluation_is_written_with_who_made_it(spec, weights, run, monkeypatch, tmp_path):
    """Samples of this model, evaluation and training lie beside it until it is written."""
    of, called, seen = subject() if run else subject(run=None), [], []
    out = tmp_path / "x.parquet"

    def evaluate(loaded, asked, context):
        assert (loaded.subject, asked) == (of, spec)
        seen.append((context.partial.path, context.partial.identity, dict(context.extras), context.train_seq_len))
        context.partial.add("key", {})
        context.extras["found"] = 3
        return "rows"

    def written(path, rows, meta, schema):
        assert (path, rows, schema) == (out, "rows", spec.SCHEMA) and (tmp_path / "x.partial.jsonl").exists()
        called.append(meta)

    ticks = iter([1.0, 3.23456])
    monkeypatch.setattr(job, "import_module", lambda name: SimpleNamespace(evaluate=evaluate) if spec.kind in name else None)
    monkeypatch.setattr(job, "write_rows", written)
    monkeypatch.setattr(job.time, "perf_counter", lambda: next(ticks))
    monkeypatch.setattr(job, "reset_peak_memory", called.append)
    monkeypatch.setattr(job, "peak_memory_gib", lambda device: f"GiB of {device}")
    monkeypatch.setattr(job, "machine_name", lambda device: f"name of {device}")
    monkeypatch.setattr(job, "provenance", lambda device: f"made on {device}")
    assert job.run(SimpleNamespace(subject=of), spec, Context(device="cuda:1", extras={"old": 1}), out)
    name = eval_id(spec)
    assert seen == [(tmp_path / "x.partial.jsonl", f"r/{name}/w" if weights else f"r/{name}", {}, 7 if run else None)]
    device, meta = called
    created = datetime.datetime.fromisoformat(meta.pop("created"))
    assert created.utcoffset() == datetime.timedelta(0) and created.microsecond == 0 and device == "cuda:1"
    assert meta.pop("spec")["kind"] == spec.kind
    assert meta == dict(kind=spec.kind, scale="s", model="m", run_id="r", eval_id=name, weights=weights,
                        provenance="made on name of cuda:1",
                        extras={"found": 3, "seconds": 2.23, "peak_memory_gib": "GiB of cuda:1"})  # fmt: skip
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(("spec", "stored", "own", "found"), [
    (LOSS, ("r", None, "w"), "w", True), (LOSS, ("r", None, None), "w", True), (LOSS, ("r", None, "w"), None, True),
    (LOSS, ("r", None, "v"), "w", False), (TIMING, ("r", None, "v"), "w", True), (LOSS, ("q", None, "w"), "w", "holds"),
    (LOSS, ("r", "other-1", "w"), "w", "holds other-1 of n"),
])  # fmt: skip
def test_stored_rows_are_taken_where_they_are_of_this_very_evaluation(spec, stored, own, found, monkeypatch, tmp_path, capsys):
    out = tmp_path / "x.parquet"
    run_id, name, weights = stored
    meta = {"run_id": run_id, "eval_id": name or eval_id(spec), "model": "n", "weights": weights}
    monkeypatch.setattr(job, "read_rows", lambda path: (None, meta))
    monkeypatch.setattr(job, "fault_of", lambda path: None)
    assert job.exists(out, subject(weights=own), spec) is False
    out.touch()
    if isinstance(found, str):
        with pytest.raises(ValueError, match=f"{found}.*not {eval_id(spec)} of m \\(r\\): delete it, or name another"):
            job.exists(out, subject(weights=own), spec)
    else:
        assert job.exists(out, subject(weights=own), spec) is found
    assert ("was measured on weights v, the model has w" in capsys.readouterr().err) == (found is False)
    monkeypatch.setattr(job, "fault_of", lambda path: "torn")
    assert job.exists(out, subject(weights=own), spec) is False and "is damaged: evaluating again" in capsys.readouterr().err


class Played:
    """Both commands with all that they call noted."""

    def __init__(self, monkeypatch, run, fails=()):
        self.used, self.asked, self.made, self.ran = [], [], [], []
        self.subject = subject(
            path=Path("runs/a"), run=run, data="corpus", precision=lambda device: {"cuda:1": "bf16", "cpu": "fp32"}[device]
        )
        for module in (job, command):
            monkeypatch.setattr(module, "use", lambda *given: self.used.append(given) or given[0])
            monkeypatch.setattr(module.Subject, "find", lambda *given: self.asked.append(given) or self.subject)
            monkeypatch.setattr(module, "make_context", self.context)
            monkeypatch.setattr(module, "Loaded", lambda *given: given)
            monkeypatch.setattr(module, "machine_name", lambda device: f"name of {device}")
            monkeypatch.setattr(module, "go_offline_if_unreachable", lambda: self.used.append("looked"))
        self.fails = dict(fails)
        monkeypatch.setattr(job, "run", self.run)
        monkeypatch.setattr(command, "run", self.run)

    def context(self, sources, device, folder, data=None):
        self.made.append((sources, device, folder, data))
        return Context(device=device, folder=folder)

    def run(self, loaded, spec, context, out):
        self.ran.append((spec.kind, str(out), str(context.folder)))
        if spec.kind in self.fails:
            raise self.fails[spec.kind]
        assert loaded == (self.subject, "cuda:1")
        return spec.kind == "throughput"


@pytest.mark.parametrize("run", ["a run", None])
@pytest.mark.parametrize("out", [None, Path("there/b.parquet")])
def test_one_evaluation_of_one_model(run, out, monkeypatch, capsys):
    """Its device, threads, tokeniser and place, and the precision and the machine that it is bound to."""
    played, rows = Played(monkeypatch, run), pd.DataFrame({"task": ["t"], "length": [9], "value": [1.0], "stderr": [2.0]})
    meta = {"eval_id": "e", "model": "m", "scale": "s", "run_id": "r"}
    monkeypatch.setattr(command, "read_rows", lambda path: (rows, meta))
    bound = []
    monkeypatch.setattr(KINDS["throughput"], "bound", lambda self, setting: bound.append(setting) or TIMING)
    monkeypatch.setattr(KINDS["throughput"], "summary", lambda self, found: [f"of {len(found)} row"])
    sources = Sources(tokenizer="named")
    asked = SimpleNamespace(device="cuda:1", threads=3, sources=sources, model=".", out=out, spec=KINDS["throughput"]())
    assert command.run_command(asked) == 0
    name = f"{eval_id(TIMING)}.parquet"
    place = str(out) if out else f"runs/a/evals/{name}" if run else f"m-r-{name}"
    assert played.used == [("cuda:1", 3)] and played.asked == [(".", "named")]
    assert played.made == [(sources, "cuda:1", Path(), "corpus")]
    assert played.ran == [("throughput", place, str(Path(place).parent))]
    assert bound == [Setting(None, sources, "bf16", "name of cuda:1")]
    said = capsys.readouterr()
    assert said.out == f"e of m (s, r): {place}\nof 1 row\n" and not said.err
    for end in ("b.csv", "parquet", "b.parquet.gz"):
        with pytest.raises(ValueError, match=r"must end in \.parquet"):
            command.run_command(SimpleNamespace(**vars(asked) | {"out": Path(end)}))


def test_several_evaluations_of_one_run(monkeypatch, capsys):
    """Fresh models first; what exists is said to; an error of ours has its trace, a mistake does not, and both end with 2."""
    specs = {"a": LOSS, "b": TIMING, "c": KINDS["parameters"]()}
    monkeypatch.setattr(job, "read_spec", specs.__getitem__)
    played = Played(monkeypatch, "a run")
    asked = job.Job(run=Path("runs/a"), spec=tuple(specs), device="cuda:1", threads=3,
                    sources=Sources(tokenizer="named", judge_url="u"))  # fmt: skip
    assert job.run_job(asked) == 0
    evals = str(Path("runs/a/evals"))
    order = [(each.kind, f"{evals}/{eval_id(each)}.parquet", evals) for each in (TIMING, specs["c"], LOSS)]
    assert played.ran == order and played.used == [("cuda:1", 3)] and played.asked == [("runs/a", "named")]
    assert {each[1:] for each in played.made} == {("cuda:1", Path(evals), "corpus")}
    said = capsys.readouterr()
    assert not said.out and said.err.splitlines() == [
        "--judge-url: none of these evaluations reads it", f"{eval_id(TIMING)}: written to {order[0][1]}",
        *(f"{eval_id(each)}: exists, skipped" for each in (specs["c"], LOSS)),
    ]  # fmt: skip
    for fault, trace in ((ValueError("a mistake"), False), (KeyError("odd"), True)):
        played = Played(monkeypatch, "a run", {"throughput": fault})
        assert job.run_job(asked) == 2 and len(played.ran) == 3
        assert ("Traceback" in (said := capsys.readouterr().err)) == trace and ("a mistake" in said) != trace
    Played(monkeypatch, "a run", {"throughput": OSError(28, "full")})
    with pytest.raises(OSError, match="full"):
        job.run_job(asked)
    with pytest.raises(ValueError, match=r"gone\.json: there is no such spec file"):
        read_spec(Path("gone.json"))


def test_an_evaluation_is_known_by_its_class():
    class Other(EvalSpec):
        kind = "needle"

    with pytest.raises(ValueError, match="no evaluation is listed as 'needle'"):
        eval_id(Other())


class Letters:
    """A number a letter; `joined` are one token, and `lost` is no token."""

    bos_id, answer = 0, TextCodec.answer

    def __init__(self, joined=(), lost=""):
        self.joined, self.lost = joined, lost

    def encode(self, text):
        for number, each in enumerate(self.joined):
            text = text.replace(each, chr(1000 + number))
        return [ord(sign) for sign in text if sign not in self.lost]

    def decode(self, ids):
        return "".join(self.joined[i - 1000] if i >= 1000 else chr(i) for i in ids)


def test_texts_are_read_until_there_are_enough_tokens():
    codec = Letters()
    later = lambda: (_ for _ in ()).throw(AssertionError("read on"))  # noqa: E731
    texts = lambda: (text() for text in (lambda: "ab", lambda: "cd", later))  # noqa: E731
    assert haystack.haystack_ids(codec, texts(), 4) == codec.encode("abcd")
    assert haystack.haystack_ids(codec, texts(), 3) == codec.encode("abcd")
    for count, found in ((4, "abab"), (5, "ababab"), (2, "ab")):
        assert haystack.haystack_ids(codec, iter(["ab"]), count) == codec.encode(found)
    for nothing in ([], [""]):
        with pytest.raises(ValueError, match="the haystack has no text"):
            haystack.haystack_ids(codec, iter(nothing), 3)


def test_a_full_stop_is_one_alone_and_one_behind_a_word():
    """A token of a blank and a stop is one, a letter and a stop is none."""
    stop = ord(".")
    for codec, found in (
        (Letters(), {stop}),
        (Letters(("d.",)), {stop}),
        (Letters((" .", "end")), {stop}),
        (Letters(lost="."), None),
    ):
        if found is None:
            with pytest.raises(ValueError, match="no token for a full stop"):
                haystack.full_stops(codec)
        else:
            assert haystack.full_stops(codec) == found
    codec = Letters()
    codec.encode = {".": [7], "end.": [1, 8]}.__getitem__
    codec.decode = {(7,): ".", (8,): " . "}.__getitem__
    codec.decode = lambda ids, told={7: ".", 8: " . "}: told[ids[0]]
    assert haystack.full_stops(codec) == {7, 8}
    codec.encode = {".": [], "end.": [1, 8]}.__getitem__
    assert haystack.full_stops(codec) == {8}


class Few(Letters):
    """Text of which twenty letters are one token more or less than they should be, or which is never long enough."""

    def encode(self, text):
        return super().encode(text)[: max(0, len(text) - 20)]


def test_documents_that_cannot_be_cut_are_refused():
    hay = [ord(sign) for sign in "aaaa. " * 20]
    with pytest.raises(ValueError, match="a needle of 9 tokens does not fit into a document of 9"):
        haystack.document(Letters(), hay, "n" * 9, 9, 50, {ord(".")})
    assert haystack.document(Letters(), hay, "n" * 8, 9, 100, {ord(".")}) == "a" + "n" * 8
    assert len(haystack.document(Few(), hay, "++", 60, 50, {ord(".")})) == 80
    with pytest.raises(ValueError, match="no document of 110 tokens could be cut at depth 50: name another haystack"):
        haystack.document(Few(), hay, "++", 110, 50, {ord(".")})


def grid(**given):
    kind = given.pop("kind", "needle_recall")
    return KINDS[kind](
        **dict(lengths=(400, 300), depths=(0.0, 100.0), samples_per_cell=2, reserve=90, text="heldout:aa") | given
    )


def wording(letters, query=20):
    return Wording("n" * letters, "q" * (query - 6), "a", "n")


@pytest.fixture
def build(monkeypatch):
    """Cells of a text of the letters of 0 to 9 and full stops."""
    text = "".join(f"{number % 10}." for number in range(4000))
    monkeypatch.setattr(haystack, "haystack_texts", lambda name, context: iter([text]))
    return lambda **given: CellBuilder(Letters(), grid(**given), None)


def test_cells_have_a_haystack_and_fit_into_their_length(build):
    """On both sides of each limit, and what is advised is enough."""
    builder = build(lengths=(300,), reserve=90)
    hidden = 300 - 90 - haystack.LEAST_HAYSTACK
    for made in (builder.cells, builder.cells_of_ids):
        assert len(list(made([wording(hidden - 2)]))) == 4
        with pytest.raises(ValueError, match=r"leaves 63 tokens of haystack around the needle; .* must be at least 301$"):
            list(made([wording(hidden - 1)]))
        with pytest.raises(ValueError, match=r"leaves 0 tokens of haystack around the needle; .* must be at least 464$"):
            list(made([wording(hidden + 162)]))
        assert all(len(cell.prompt) == 300 for cell in made([wording(9, 89)])), "BOS, and a query of 89"
        with pytest.raises(
            ValueError, match="the prompt of length 300 has 301 tokens: BOS and the query need a reserve of 91, not 90"
        ):
            list(made([wording(9, 90)]))


def test_cells_of_a_grid_hide_needle_after_needle(build):
    """Each place of ids has its own, of texts each sample; without its needle a cell ends as that at the very end does."""
    builder, three = build(), [wording(9), replace(wording(9), needle="nb"), replace(wording(9), needle="nc")]
    places = [(length, depth, sample) for length in (400, 300) for depth in (0.0, 100.0) for sample in (0, 1)]
    assert list(builder.places()) == places and len(builder.ids) >= 2 * (400 + haystack.SPARE)
    for made, needles in ((builder.cells, [0, 1] * 4), (builder.cells_of_ids, [0, 1, 2, 0, 1, 2, 0, 1])):
        cells = list(made(three))
        assert [(cell.length, cell.depth, cell.sample) for cell in cells] == places
        assert [cell.expected for cell in cells] == [three[number].expected for number in needles]
        assert [cell.key for cell in cells[:3]] == ["400/0.0/0", "400/0.0/1", "400/100.0/0"]
        texts = [Letters().decode(cell.prompt[1:]) for cell in cells]
        assert [text.index("\nn") == 0 for text in texts] == [cell.depth == 0 for cell in cells]
    assert Cell("easy", 9, 12.5, 0, [], "").key == "9/12.5/0"
    without = Letters().decode(builder.without_needle(three[0], 300, 1)[1:])
    hay = Letters().decode(builder.ids[400 + haystack.SPARE :][: 300 - 90])
    assert without == hay + three[0].query


def test_the_haystack_of_a_spec(monkeypatch, tmp_path):
    """Held-out text by its fingerprint, or a folder by its content, in the order that was asked for."""
    (tmp_path / "a.txt").write_text("text")
    content, orders = digest(tmp_path), []
    monkeypatch.setattr(haystack, "heldout_texts", lambda corpus: iter([corpus]))
    monkeypatch.setattr(haystack, "folder_text", lambda folder, in_order: orders.append((folder, in_order)) or "joined")
    context = Context(
        sources=Sources(haystack=tmp_path), corpus=SimpleNamespace(spec=SimpleNamespace(fingerprint="aa"), folder="f")
    )
    assert list(haystack.haystack_texts("heldout:aa", context)) == [context.corpus]
    for name in (content, f"{content}-unsorted"):
        assert list(haystack.haystack_texts(name, context)) == ["joined"]
    assert orders == [(tmp_path, True), (tmp_path, False)]
    for name in ("0123", "0123-unsorted"):
        with pytest.raises(ValueError, match="the spec asks for text 0123: name that with --haystack"):
            haystack.haystack_texts(name, context)


def test_held_out_texts_are_all_documents_in_order():
    rows = np.arange(6).reshape(3, 2)
    split = type("Rows", (), {"__len__": lambda self: 3, "read": lambda self, part: rows[part]})()
    corpus = SimpleNamespace(heldout=split, tokenizer=SimpleNamespace(decode=str))
    assert list(heldout_texts(corpus)) == ["[0, 1]", "[2, 3]", "[4, 5]"]
    assert BYTES.eos_id == BYTES.bos_id == 256 and BYTES.kind == "bytes" and BYTES.decode([256, 65, 256]) == "A"


def test_lines_of_pass_keys_lie_where_they_are_asked_for(build):
    """The shortest text holds the lines and the query alone; others go on from a random place of the filler, wrapping round."""
    line, query = (len(text) for text in ("\nThe pass key of amber is 0123.\n", "\nThe pass key of amber is"))
    for short in (0, 1):
        rng = np.random.default_rng(0)
        if short:
            with pytest.raises(
                ValueError, match=f"too short for 2 key lines and a query: at least {1 + query + 2 * line} tokens"
            ):
                passkey(Letters(), [65], length=query + 2 * line, depth=0.0, num_keys=2, rng=rng)
        else:
            prompt, value = passkey(Letters(), [65], length=1 + query + 2 * line, depth=0.0, num_keys=2, rng=rng)
            assert Letters().decode(prompt).count("pass key") == 3 and f"is {value}." in Letters().decode(prompt)
    rng = SimpleNamespace(integers=lambda low, high, *size: np.full(size, high - 1) if size else 2,
                          permutation=np.arange)  # fmt: skip
    assert take([1, 2, 3], 5, rng) == [3, 1, 2, 3, 1]
    prompt, value = passkey(Letters(), [65], length=1 + query + 2 * line + 7, depth=50.0, num_keys=2, rng=rng)
    text = Letters().decode(prompt[1:])
    assert (value, text.index("\n"), text.rindex("0123.\n\nThe")) == ("0123", 4, 4 + line + 3 + line - 6), (
        "the other last of all"
    )
    builder = build(kind="needle", mode="passkey", lengths=(150,), depths=(0.0, 0.4), samples_per_cell=1, num_keys=2)
    assert builder.spec.num_keys == 2


def test_every_depth_has_keys_of_its_own(build, monkeypatch):
    spec = KINDS["needle"](mode="passkey", lengths=(250,), depths=(0.0, 0.2, 0.4), num_keys=3, text="heldout:aa")
    cells = build_cells(Letters(), spec, None, None)
    assert len({cell.expected for cell in cells}) == 3
    assert [Letters().decode(cell.prompt).count("pass key") for cell in cells] == [4] * 3


class Said:
    """An endpoint that gives one answer after the other, or raises it."""

    def __init__(self, *answers):
        self.answers = iter(answers)
        self.chat = SimpleNamespace(completions=SimpleNamespace(create=self.create))

    def create(self, **asked):
        answer = next(self.answers)
        if isinstance(answer, Exception):
            raise answer
        choices = [SimpleNamespace(message=SimpleNamespace(content=answer))] if answer != "no choices" else []
        return SimpleNamespace(choices=choices)


def test_whatever_is_no_completion_is_asked_again(tmp_path):
    judge = Judge("j", "http://127.0.0.1:9", "k", tmp_path, timeout=7.0, retries=5)
    assert (judge._client.timeout, judge._client.max_retries, judge._client.api_key) == (7.0, 5, "k")
    broken = openai.APIResponseValidationError.__new__(openai.APIResponseValidationError)
    judge._client = Said(broken, json.JSONDecodeError("no JSON", "", 0), None, "[[7]]")
    assert judge.score("x") == 7
    judge._client = Said("no choices", "[[10]]")
    assert judge.score("y") == 10
    judge._client = Said(openai.OpenAIError("refused\nfor good"))
    with pytest.raises(ValueError, match=r"judge 'j' at http://127\.0\.0\.1:9: refused\. Answers judged so far are kept"):
        judge.score("z")
    judge._client = Said(*["x" * 99] * 4)
    with pytest.raises(ValueError, match=r"in 4 replies, the last 'x{80}'$"):
        judge.score("z")
    assert [parse_score(text) for text in ("[[1]] [[0]]", "[[0]] [[1]]", "[[ 10 ]]", "[[1.5]]", "[[-3]]")] == [
        None,
        1,
        10,
        None,
        None,
    ]


@pytest.mark.parametrize("kept", ["{}", "3", "[]", "null", '{"score": null}', '{"score": "x"}', "[" * 100_000, "", OSError])
def test_what_was_judged_is_read_where_it_can_be(kept, tmp_path, monkeypatch):
    judge = Judge("j", "http://127.0.0.1:9", "k", tmp_path)
    judge._client = Said("[[7]]", "[[3]]")
    assert judge.score("x") == 7
    (file,) = tmp_path.iterdir()
    if kept is OSError:
        monkeypatch.setattr(Path, "read_text", lambda *given, **how: (_ for _ in ()).throw(PermissionError(13, "denied")))
    else:
        file.write_text(kept)
    assert judge.score("x") == 3
    monkeypatch.undo()
    assert judge.score("x") == 3


def test_who_judges(monkeypatch, tmp_path):
    """By the key in the variable that is named, and with a folder beside the results where none is."""
    monkeypatch.setenv("OWN_KEY", "own")
    monkeypatch.setenv("OPENAI_API_KEY", "")
    for cache, place in ((None, tmp_path / "judge_cache"), (tmp_path / "own", tmp_path / "own")):
        sources = Sources(judge_url="http://u", judge_key_env="OWN_KEY", judge_cache=cache)
        judge = Judge.of("j", Context(sources=sources, folder=tmp_path))
        assert (judge.model, judge.url, judge.key, judge.cache) == ("j", "http://u", "own", place)
    for given, why in ((dict(judge_url="http://u"), "OPENAI_API_KEY$"), (dict(judge_key_env="OWN_KEY"), "--judge-url$"),
                       (dict(judge_url="http://u", judge_key_env="GONE"), "GONE$")):  # fmt: skip
        with pytest.raises(ValueError, match=why):
            Judge.of("j", Context(sources=Sources(**given)))


TEXTS = {
    "needle": "The key is blue.", "question": "Which?", "answer_marker": "A:", "answer_start": "The key", "instruction": "Say.",
    "judge": "{question} {reference} {answer} {{}}",
}  # fmt: skip


@pytest.mark.parametrize(("changes", "why"), [
    ({}, None), ({"judge": ""}, None), ({"needle": "The key"}, "leave something to say"),
    ({"needle": "A key"}, "must be the beginning"),
    ({"judge": "{answer!r}"}, "not 'answer'"), ({"judge": "{answer:>9}"}, "not 'answer'"), ({"judge": "{}"}, "not ''"),
    ({"judge": "{0}"}, "not '0'"), ({"judge": "{needle}"}, "not 'needle'"), ({"judge": "{answer"}, "in braces"),
    ({"judge": "}"}, "in braces"),
    ({"needle": 3}, "exactly the texts"), ({"extra": "text"}, "it holds .*extra"), ({"judge": None}, "it holds answer_marker"),
    ("[" * 100_000, "cannot be read as TOML"), (b"\xff", "cannot be read as TOML"), (OSError, "cannot be read as TOML"),
])  # fmt: skip
def test_texts_of_a_needle(changes, why, tmp_path):
    path = tmp_path / "w.toml"
    if isinstance(changes, dict):
        texts = {name: text for name, text in (TEXTS | changes).items() if text is not None}
        path.write_text("".join(f"{name} = {json.dumps(text)}\n" for name, text in texts.items()))
    elif changes is not OSError:
        path.write_bytes(changes if isinstance(changes, bytes) else b"a = " + changes.encode())
    if why is None:
        read = Wording.read(path)
        assert read.judge_prompt("it is") == ("Which? The key is blue. it is {}" if read.judge else "")
        assert read.expected == "is blue." and read.query == "\n\nSay. Which? A: The key"
        assert (read.hidden("standard"), read.hidden("easy")) == ("\nThe key is blue.\n", "\nWhich? A: The key is blue.\n")
    else:
        with pytest.raises(ValueError, match=why) as refused:
            Wording.read(path)
        assert str(refused.value).startswith(str(path))


CORPUS = SimpleNamespace(fingerprint="aa", vocab_size=9, document_len=64)


@pytest.mark.parametrize(("kind", "field", "choices"), [
    ("lm_eval", "include", "harness or local"), ("longbench", "dataset", "hub or local"), ("ruler", "text", "heldout"),
])  # fmt: skip
def test_what_is_neither_a_choice_nor_a_digest_is_refused_before_a_model_is_loaded(kind, field, choices):
    setting, needed = Setting(CORPUS, UserData(), "bf16", "m"), {"lengths": (512,)} if kind == "ruler" else {}
    for typed in ("loacl", "Hub", "held-out", "", "heldout:", "0123x"):
        with pytest.raises(ValueError, match=rf"--{field} {typed}: choose {choices}$"):
            KINDS[kind](**{field: typed}, **needed).bound(setting)
    bound = KINDS[kind](**needed).bound(setting)
    assert bound.bound(setting) == bound and getattr(replace(bound, **{field: "0123"}).bound(setting), field) == "0123"


def test_what_a_needle_is_bound_to(tmp_path):
    """The words of the file that is named, or none of them for pass keys, and the text of the folder, sorted or as it lies."""
    own, folder = tmp_path / "w.toml", tmp_path / "texts"
    folder.mkdir()
    (folder / "a.txt").write_text("text")
    own.write_text("".join(f"{name} = {json.dumps(text)}\n" for name, text in TEXTS.items()))
    bound = lambda spec, **sources: spec.bound(Setting(CORPUS, UserData(**sources), "bf16", "m"))  # noqa: E731
    needle = KINDS["needle"]()
    assert (bound(needle).text, bound(needle).wording, bound(needle).precision) == (
        "heldout:aa",
        digest(DEFAULT_WORDING),
        "bf16",
    )
    assert bound(needle, prompts=own).wording == digest(own)
    assert bound(KINDS["needle"](mode="passkey"), prompts=own).wording == "passkey"
    assert bound(needle, haystack=folder).text == digest(folder)
    assert bound(needle, haystack=folder, haystack_unsorted=True).text == f"{digest(folder)}-unsorted"
    assert bound(needle, haystack_unsorted=True).text == "heldout:aa"
    assert bound(bound(needle), haystack=folder).text == "heldout:aa", "what is bound stays"
    with pytest.raises(ValueError, match="judge 'j' needs the address"):
        bound(KINDS["needle"](judge="j"))
    assert bound(KINDS["needle"](judge="j"), judge_url="u").judge == "j"
    own.write_text("needle = 3")
    for mode in ("easy", "passkey"):
        with pytest.raises(ValueError, match="exactly the texts"):
            bound(KINDS["needle"](mode=mode), prompts=own)
    for kind in ("needle_recall", "needle_choice"):
        spec = bound(KINDS[kind]())
        assert spec.wording == digest(KINDS[kind].SENTENCES)
        spec.check_sentences()
        with pytest.raises(ValueError, match="asks for sentences 0123; this version has"):
            replace(spec, wording="0123").check_sentences()


@pytest.mark.parametrize(("tokenizer", "per_token"), [
    ("bytes", 1.0), ("bpe-300", 1.5), ("bpe-8191", 1.5), ("bpe-8192", 3.0), ("gpt2", 3.0), ("gpt2-json", 3.0),
])  # fmt: skip
def test_estimates_of_tokens_go_by_the_vocabulary(tokenizer, per_token):
    """Bytes count, of the longest texts and the shortest cell."""
    texts = [Wording("nnn", "q" * 20 + "ä" * 30, "a", "n"), Wording("n" * 150, "q", "a", "n")]
    query = int((2 + 80 + 1 + 1 + 1 + 1) / per_token) + 1
    needle = int((150 + 2) / per_token) + 1
    shortest = query + 1 + needle + 64
    fits = Grid(lengths=(9999, shortest), reserve=query + 1)
    fits.check_cells(texts, tokenizer)
    with pytest.raises(
        ValueError, match=f"the query and BOS have up to {query + 1} tokens \\({tokenizer}\\), more than the {query}"
    ):
        replace(fits, reserve=query).check_cells(texts, tokenizer)
    wrong = f"length {shortest - 1} may leave as few as 63 tokens of haystack; the shortest for .* is {shortest}$"
    with pytest.raises(ValueError, match=wrong):
        replace(fits, lengths=(shortest - 1, 9999)).check_cells(texts, tokenizer)


RUN = SimpleNamespace(data=SimpleNamespace(tokenizer="bytes"))


def test_plans_look_at_the_words_that_they_know(tmp_path):
    """Those of a file of the user's are not there when a plan is checked, and pass keys have none."""
    short = dict(lengths=(300,), reserve=299)
    known = digest(DEFAULT_WORDING)
    for given, refused in ((dict(wording=None), True), (dict(wording=known), True), (dict(wording="0123"), False),
                           (dict(wording=known, mode="passkey"), False)):  # fmt: skip
        spec = KINDS["needle"](**short | given)
        if refused:
            with pytest.raises(ValueError, match="length 300 may leave as few as 0 tokens"):
                spec.check(RUN, None)
        else:
            spec.check(RUN, None)
    made = Choices.read()
    longest = max(len(made.wording(holder, word).hidden("standard")) for holder in made.holders for word in made.words)
    lengths = (500 + longest + 1 + 64,)
    KINDS["needle_choice"](lengths=lengths, reserve=500).check(RUN, None)
    with pytest.raises(ValueError, match="the shortest for"):
        KINDS["needle_choice"](lengths=(lengths[0] - 1,), reserve=500).check(RUN, None)
    with pytest.raises(ValueError, match="at least one length and one depth"):
        Grid(lengths=())
    with pytest.raises(ValueError, match="at least one length and one depth"):
        Grid(depths=())
    with pytest.raises(ValueError, match="num_keys 2 applies to mode 'passkey' only"):
        KINDS["needle"](num_keys=2)


def test_words_that_are_offered_are_alike_and_ties_are_no_answer(monkeypatch):
    """They have as few tokens as ten of them have; where several passes give the same, the true one is not right."""
    made = Choices(
        ["a", "b"],
        [*(f"w{n}" for n in range(9)), "long0", "longer1", *(f"mid{n}" for n in range(10))],
        "Q{holder}",
        "A",
        "{holder}",
    )
    assert {len(ids) for ids in choice._alike(Letters(), made, "a").values()} == {5} and len(
        choice._alike(Letters(), made, "a")
    ) == 10
    monkeypatch.setattr(Choices, "read", classmethod(lambda cls: made))
    drawn = choice.needles(Letters(), 9)
    assert {len(set(map(tuple, words))) for _, words in drawn} == {10}
    assert [wording.question for wording, _ in drawn] == ["Qa", "Qb"] * 4 + ["Qa"]
    assert len({wording.needle for wording, _ in drawn[::2]}) > 1
    cell = SimpleNamespace(prompt=[9, 9], key="k", place={"mode": "easy"})
    monkeypatch.setattr(choice, "needles", lambda codec, count: [(None, [[1, 2], [1, 3], [4, 2]])])
    builder = SimpleNamespace(places=lambda: [0], cells_of_ids=lambda wordings: [cell])
    monkeypatch.setattr(choice, "CellBuilder", lambda *given: builder)
    for first, right in (([-1.0, -2.0], 100.0), ([-1.0, -1.0], 0.0), ([-3.0, -4.0], 0.0)):
        kept = {"k/0": {"logp": first}, "k/1": {"logp": [-1.5]}}
        seen = []
        monkeypatch.setattr(choice, "recorded_ends", lambda *given, kept=kept, seen=seen: seen.append(given) or kept)
        spec = SimpleNamespace(check_sentences=lambda: None, mode="easy", precision="bf16")
        (row,) = choice.evaluate(SimpleNamespace(tokenizer=None), spec, None).to_dict("records")
        others = max(first[1], -1.5)
        assert row == {"mode": "easy", "right": right, "logp": first[0], "logp_others": others, "num_tokens": 2}
        assert seen[0][1] == {"k/0": ([9, 9, 1, 2], 2), "k/1": ([9, 9, 4, 2], 2)} and seen[0][4] == "bf16"


def test_texts_are_judged_at_the_same_time(tmp_path, monkeypatch):
    """As many as is said: here each waits for the other."""
    both = threading.Barrier(2, timeout=20)
    monkeypatch.setattr(Judge, "_ask", lambda self, prompt: "78"[both.wait() > 9])
    monkeypatch.setattr("eval.needle.judge.parse_score", int)
    assert Judge("j", "http://127.0.0.1:9", "k", tmp_path, parallel=2).score_all(["a", "b", "a"]) == [7, 7, 7]
