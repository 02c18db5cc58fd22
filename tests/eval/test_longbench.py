"""LongBench: data in the real format through `datasets`, scores worked out by hand, prompts, truncation, bad input."""

import importlib
import json
import sys
import warnings
from pathlib import Path

import pytest

from eval.longbench import measure
from eval.longbench import spec as longbench
from eval.longbench.measure import first_line, load_examples, prompt_ids, score, template_of
from eval.longbench.spec import TABLE, TASKS, Spec
from eval.shell import generation
from eval.shell.context import Context
from eval.shell.partial import Partial
from eval.shell.sources import Sources
from eval.shell.text import TextCodec

QA, ROUGE, CLASS, CODE = "hotpotqa", "gov_report", "trec", "lcc"


def example(*answers: str, classes: list[str] | None = None, **fields: str) -> dict:
    return {"input": "", "context": "", "answers": list(answers), "all_classes": classes, **fields}


@pytest.mark.parametrize(
    ("task", "prediction", "asked", "expected"),
    [
        (QA, "The Paris city.", example("Paris, France"), 50.0),  # {paris, city} and {paris, france}: one common word
        (QA, "an apple a day", example("Apple"), 200 / 3),  # articles go: {apple, day}, P 1/2, R 1
        (QA, "", example("x"), 0.0),
        (QA, "London", example("Paris", "london"), 100.0),  # the best reference counts
        (ROUGE, "the cat sat", example("the cat sat on the mat"), 75.0),  # LCS 3; 3 and 5 different words: P 1, R 3/5
        (ROUGE, "a dog", example("the cat"), 0.0),
        (ROUGE, "", example("the cat"), 0.0),
        # Not stripped: the blank behind the full stop is a second, empty sentence. 2 of 3 and of 2 words: P 2/3, R 1.
        (ROUGE, "the cat. ", example("the cat"), 80.0),
        (CLASS, "It is a Location", example("Location", classes=["Person", "Location"]), 100.0),
        (CLASS, "Person or Location", example("Location", classes=["Person", "Location"]), 50.0),
        (CLASS, "Person", example("Location", classes=["Person", "Location"]), 0.0),
        (CODE, "return x", example("return y"), 88.0),  # 7 of 8 characters: 14/16
        (CODE, "# note\nreturn y", example("return y"), 100.0),
        (CODE, "`x`", example("return y"), 0.0),
        (CODE, "    ", example("    return x"), 50.0),  # a line of blanks is the prediction: 8/16
    ],
)
def test_scores_by_hand(task, prediction, asked, expected):
    assert score(task, prediction, asked) == pytest.approx(expected, abs=1e-4)


def test_faults_of_the_harness_metrics_that_are_put_right():
    """If one of these fails, the pinned harness was changed: look again at `score`."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        metrics = importlib.import_module("lm_eval.tasks.longbench.metrics")
    shared = [f"s{n}" for n in range(100)]
    mine = " ".join([*shared, *(f"p{n}" for n in range(500))])
    theirs = " ".join([*shared, *(f"r{n}" for n in range(950))])
    limit = sys.getrecursionlimit()
    try:
        sys.setrecursionlimit(1000)  # Python's own; some libraries raise it
        assert metrics.get_rouge_score(example(theirs), [mine]) == {"rouge_score": 0.0}
    finally:
        sys.setrecursionlimit(limit)
    assert score(ROUGE, mine, example(theirs)) == pytest.approx(100 * 200 / 1650, abs=1e-4)  # 100 of 600 and of 1050 words
    assert metrics.get_code_sim_score(example("    return x"), ["    "]) == {"code_sim_score": 0.0}


def test_first_line():
    assert first_line("\n\nParis\nLondon") == "Paris"
    assert first_line("  Paris") == "  Paris"
    assert first_line("\n") == first_line("") == ""


def test_table_of_tasks():
    """Names, metrics and limits of the released setup."""
    assert [int(TABLE[task]["max_new_tokens"]) for task in TASKS] == [
        128,
        128,
        64,
        32,
        32,
        32,
        512,
        512,
        512,
        64,
        32,
        128,
        64,
        64,
    ]
    metrics = [TABLE[task]["metric"] for task in TASKS]
    assert metrics.count("qa_f1") == 7
    assert longbench.hub_name(TASKS[-1]) == "repobench-p"
    assert metrics.count("code_edit_similarity") == 2


@pytest.mark.parametrize("name", TASKS)
def test_prompts_hold_context_and_question_where_the_public_templates_have_them(name, corpus):
    codec = TextCodec(corpus.tokenizer)
    fields = {"context": "CONTEXT-TEXT", "input": "QUESTION-TEXT"}
    ids = prompt_ids(template_of(name), example("x", **fields), codec, 15500)
    text = codec.decode(ids)
    assert ids[0] == codec.bos_id
    assert text.count("CONTEXT-TEXT") == 1
    asks = name not in ("gov_report", "multi_news", "lcc")
    assert text.count("QUESTION-TEXT") == asks
    ending = {
        "trec": "CONTEXT-TEXT\nQUESTION-TEXT",
        "triviaqa": "CONTEXT-TEXT\n\nQUESTION-TEXT",
        "samsum": "CONTEXT-TEXT\n\nQUESTION-TEXT",
        "lcc": "CONTEXT-TEXTNext line of code:\n",
        "repobench_p": "CONTEXT-TEXTQUESTION-TEXTNext line of code:\n",
        "gov_report": "\n\nSummary:",
        "multi_news": "\n\nSummary:",
    }.get(name, "\nAnswer:")
    assert text.endswith(ending)
    assert "{{" not in text


def test_middle_truncation_keeps_both_ends(corpus):
    codec = TextCodec(corpus.tokenizer)
    context = " ".join(f"river{n}" for n in range(300))
    template = template_of(QA)
    whole = prompt_ids(template, example("x", context=context, input="WHO?"), codec, 10**6)
    cut = prompt_ids(template, example("x", context=context, input="WHO?"), codec, 200)
    assert len(whole) > 400
    assert abs(len(cut) - 200) <= 3
    assert cut[:95] == whole[:95]
    assert cut[-95:] == whole[-95:]
    expected = codec.decode(whole[:100]) + codec.decode(whole[-100:])  # BOS is one of the first hundred
    assert codec.decode(cut) == expected
    assert prompt_ids(template, example("x", context=context, input="WHO?"), codec, len(whole)) == whole


def write_task(folder: Path, hub_name: str, *examples: dict) -> None:
    folder.mkdir(exist_ok=True)
    lines = [
        json.dumps({**e, "length": 3, "dataset": hub_name, "language": "en", "_id": str(i)}) for i, e in enumerate(examples)
    ]
    (folder / f"{hub_name}.jsonl").write_text("\n".join(lines) + "\n")


@pytest.fixture
def fixture_folder(tmp_path) -> Path:
    folder = tmp_path / "longbench"
    write_task(
        folder, "hotpotqa",
        example("Paris, France", context="Paris lies in France.", input="Where?"),
        example("London", context="London.", input="Which?"),
    )  # fmt: skip
    write_task(folder, "repobench-p", example("return y", context="def f(y):\n", input="    # go\n"))
    write_task(
        folder, "trec", example("Location", classes=["Person", "Location"], context="...", input="Question: Where?\nType:")
    )
    return folder


PREDICTIONS = {
    "Where?\nAnswer:": "\nThe Paris city\nParis, France",
    "Which?\nAnswer:": "no idea\nLondon",
    "code:\n": "return x\nmore",
    "Type:": " Location\nPerson",
}


def scripted(codec: TextCodec, calls: list[str]):
    def run(prompts):
        for prompt in prompts:
            text = codec.decode(prompt)
            calls.append(text)
            (prediction,) = (answer for ending, answer in PREDICTIONS.items() if text.endswith(ending))
            yield codec.encode(prediction)

    return lambda model, compute, max_new_tokens, stop_ids: run


@pytest.mark.parametrize(
    ("original_cut", "expected"), [(False, [50.0, 0.0, 88.0, 100.0]), (True, [200 / 3, 50.0, 88.0, 100.0])]
)
def test_fixture_in_the_real_format_gives_the_scores_worked_out_by_hand(
    original_cut, expected, fixture_folder, corpus, bind, in_memory, monkeypatch
):
    """Cut everywhere: "The Paris city" 1/2, "no idea" 0. Cut where the benchmark cuts: {paris x 2, city, france} P 2/4, R 2/2;
    {no, idea, london} P 1/3, R 1; code looks at its first line anyway; trec is cut in both."""
    codec = TextCodec(corpus.tokenizer)
    monkeypatch.setattr(generation, "greedy", scripted(codec, []))
    spec = bind(Spec(tasks=("hotpotqa", "repobench_p", "trec"), original_cut=original_cut), longbench=fixture_folder)
    rows = measure.evaluate(in_memory(None, codec), spec, Context(sources=Sources(longbench=fixture_folder)))
    assert rows["task"].tolist() == ["hotpotqa", "hotpotqa", "repobench_p", "trec"]
    assert rows["metric"].tolist() == ["qa_f1", "qa_f1", "code_edit_similarity", "classification"]
    assert rows["score"].tolist() == pytest.approx(expected)
    assert rows["prediction"][0] == "\nThe Paris city\nParis, France"
    assert spec.summary(rows)[0] == f"  hotpotqa: {sum(expected[:2]) / 2:.2f} of 100"


def test_resumed_midway_gives_identical_rows(fixture_folder, corpus, bind, in_memory, tmp_path, monkeypatch):
    codec, calls = TextCodec(corpus.tokenizer), []
    monkeypatch.setattr(generation, "greedy", scripted(codec, calls))
    spec = bind(Spec(tasks=("hotpotqa", "trec")), longbench=fixture_folder)
    loaded, sources = in_memory(None, codec), Sources(longbench=fixture_folder)
    whole = measure.evaluate(loaded, spec, Context(sources=sources))
    path = tmp_path / "p.partial.jsonl"
    measure.evaluate(loaded, spec, Context(sources=sources, partial=Partial(path, "x")))
    lines = path.read_text().splitlines()
    path.write_text("\n".join(lines[:2]) + "\n" + lines[2][:10])
    calls.clear()
    rows = measure.evaluate(loaded, spec, Context(sources=sources, partial=Partial(path, "x")))
    assert len(calls) == 2
    assert rows.equals(whole)


def test_all_tasks_on_a_real_model_with_local_stand_ins(corpus, make_run, bind, in_memory, context):
    from models.build import load_model

    model = load_model(make_run() / "export")
    spec = bind(Spec(dataset="local", max_prompt_tokens=300, max_new_tokens=6, max_examples=1))
    assert spec.dataset == f"local-v1:{corpus.spec.fingerprint}"
    rows = measure.evaluate(in_memory(model, TextCodec(corpus.tokenizer)), spec, context)
    assert rows["task"].tolist() == list(TASKS)
    assert rows["score"].between(0, 100).all()


def test_bad_data(fixture_folder, bind):
    def load(name: str, spec: Spec) -> object:
        return load_examples([name], spec, Context(sources=Sources(longbench=fixture_folder)))

    for tasks in (("lcc",), ("lcc", "trec"), ("trec", "lcc"), ("trec", "lcc", "hotpotqa")):
        with pytest.raises(ValueError, match=r"has no lcc\.jsonl"):
            bind(Spec(tasks=tasks), longbench=fixture_folder)
    for content, message in (
        ('{"context": "x"}\n', "lacks the LongBench fields all_classes, answers, input"),
        ("not json\n", "cannot be read as LongBench data"),
        ("3\n", "cannot be read as LongBench data"),
        ("\n", "has no examples"),
    ):
        (fixture_folder / "lcc.jsonl").write_text(content)
        with pytest.raises(ValueError, match=message):
            load("lcc", bind(Spec(tasks=("lcc",)), longbench=fixture_folder))
    spec = bind(Spec(tasks=("trec",)), longbench=fixture_folder)
    (fixture_folder / "trec.jsonl").write_text("{}\n")
    with pytest.raises(ValueError, match="the spec asks for dataset"):
        load("trec", spec)
    with pytest.raises(ValueError, match="--longbench"):
        load_examples(["trec"], bind(Spec()), Context())  # tests run offline
    with pytest.raises(ValueError, match="this version makes local-v1"):
        load_examples(["trec"], bind(Spec(dataset="local-v0:0123")), Context())
    assert Spec(tasks=("repobench-p",)) == Spec(tasks=("repobench_p",))
    with pytest.raises(ValueError, match="unknown LongBench task hotpot"):
        Spec(tasks=("hotpot",))
