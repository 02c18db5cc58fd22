"""LongBench: scores worked out by hand, prompts as the public templates have them, truncation, data in the real format."""

import importlib
import json
import sys
import warnings
from pathlib import Path

import pytest

from eval.longbench import measure
from eval.longbench.measure import first_line, prompt_ids, score, template_of
from eval.longbench.spec import TABLE, TASKS, Spec
from eval.runner import generation
from eval.runner.context import Context
from eval.runner.sources import Sources
from eval.runner.text import TextCodec
from models.build import load_model

QA, ROUGE, CLASS, CODE = "hotpotqa", "gov_report", "trec", "lcc"


def example(*answers: str, classes: list[str] | None = None, **fields: str) -> dict:
    return {"input": "", "context": "", "answers": list(answers), "all_classes": classes, **fields}


@pytest.mark.parametrize(("task", "prediction", "asked", "expected"), [
    (QA, "The Paris city.", example("Paris, France"), 50.0),  # {paris, city} and {paris, france}: one common word
    (QA, "an apple a day", example("Apple"), 200 / 3),  # articles go: {apple, day}, P 1/2, R 1
    (QA, "b b c", example("b b x"), 200 / 3),  # words count as often as they come
    (QA, "", example("x"), 0.0),
    (QA, "London", example("Paris", "london"), 100.0), (QA, "London", example("london", "Paris"), 100.0),  # the best reference
    (ROUGE, "the cat sat", example("the cat sat on the mat"), 75.0),  # LCS 3; 3 and 5 different words: P 1, R 3/5
    (ROUGE, "a dog", example("the cat"), 0.0), (ROUGE, "", example("the cat"), 0.0),
    # Not stripped: the blank behind the full stop is a second, empty sentence. 2 of 3 and of 2 words: P 2/3, R 1.
    (ROUGE, "the cat. ", example("the cat"), 80.0),
    (CLASS, "It is a Location", example("Location", classes=["Person", "Location"]), 100.0),
    (CLASS, "Person or Location", example("Location", classes=["Person", "Location"]), 50.0),
    (CLASS, "Person", example("Location", classes=["Person", "Location"]), 0.0),
    (CODE, "return x", example("return y"), 88.0),  # 7 of 8 characters: 14/16
    (CODE, "# note\nreturn y", example("return y"), 100.0), (CODE, "// note\n`a`\n\nreturn y", example(""), 100.0),
    (CODE, "`x`", example("return y"), 0.0),
    (CODE, "    ", example("    return x"), 50.0),  # a line of blanks is the prediction: 8/16
])  # fmt: skip
def test_scores(task, prediction, asked, expected):
    assert score(task, prediction, asked) == pytest.approx(expected, abs=1e-4)


def test_faults_of_the_harness_metrics_that_are_put_right():
    """If one of these fails, the pinned harness was changed: look again at `score`."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        metrics = importlib.import_module("lm_eval.tasks.longbench.metrics")
    shared = [f"s{n}" for n in range(100)]
    mine, theirs = (" ".join([*shared, *(f"{name}{n}" for n in range(count))]) for name, count in (("p", 500), ("r", 950)))
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


def test_limits_and_metrics_are_those_of_the_released_setup():
    assert [int(TABLE[task]["max_new_tokens"]) for task in TASKS] == [
        *(128, 128, 64), *(32, 32, 32), *(512, 512, 512), *(64, 32, 128), *(64, 64)
    ]  # fmt: skip
    assert [TABLE[task]["metric"] for task in TASKS] == [
        *["qa_f1"] * 6, *["rouge_l"] * 3, "classification", "qa_f1", "rouge_l", *["code_edit_similarity"] * 2
    ]  # fmt: skip


@pytest.mark.parametrize("name", TASKS)
def test_prompts_hold_context_and_question_where_the_public_templates_have_them(name, corpus):
    codec = TextCodec(corpus.tokenizer)
    ids = prompt_ids(template_of(name), example("x", context="CONTEXT-TEXT", input="QUESTION-TEXT"), codec, 15500)
    text = codec.decode(ids)
    assert ids[0] == codec.bos_id and text.count("CONTEXT-TEXT") == 1 and "{{" not in text
    assert text.count("QUESTION-TEXT") == (name not in ("gov_report", "multi_news", "lcc"))
    assert text.endswith({
        "trec": "CONTEXT-TEXT\nQUESTION-TEXT", "triviaqa": "CONTEXT-TEXT\n\nQUESTION-TEXT",
        "samsum": "CONTEXT-TEXT\n\nQUESTION-TEXT", "lcc": "CONTEXT-TEXTNext line of code:\n",
        "repobench_p": "CONTEXT-TEXTQUESTION-TEXTNext line of code:\n",
        "gov_report": "\n\nSummary:", "multi_news": "\n\nSummary:",
    }.get(name, "\nAnswer:"))  # fmt: skip


def test_middle_truncation_keeps_both_ends(corpus):
    codec, template = TextCodec(corpus.tokenizer), template_of(QA)
    asked = example("x", context=" ".join(f"river{n}" for n in range(300)), input="WHO?")
    whole, cut = (prompt_ids(template, asked, codec, limit) for limit in (10**6, 200))
    assert len(whole) > 400 and abs(len(cut) - 200) <= 3
    assert codec.decode(cut) == codec.decode(whole[:100]) + codec.decode(whole[-100:])  # BOS is one of the first hundred
    assert prompt_ids(template, asked, codec, len(whole)) == whole


@pytest.fixture
def folder(tmp_path) -> Path:
    """Data in the public format."""
    data = {
        "hotpotqa": [example("Paris, France", context="Paris lies in France.", input="Where?"),
                     example("London", context="London.", input="Which?")],
        "repobench-p": [example("return y", context="def f(y):\n", input="    # go\n")],
        "trec": [example("Location", classes=["Person", "Location"], context="...", input="Question: Where?\nType:")],
    }  # fmt: skip
    for name, examples in data.items():
        public = ({**each, "length": 3, "dataset": name, "language": "en", "_id": "0"} for each in examples)
        (tmp_path / f"{name}.jsonl").write_text("".join(json.dumps(each) + "\n" for each in public))
    return tmp_path


SAID = {
    "Where?\nAnswer:": "\nThe Paris city\nParis, France", "Which?\nAnswer:": "no idea\nLondon", "code:\n": "return x\nmore",
    "Type:": " Location\nPerson",
}  # fmt: skip


@pytest.mark.parametrize(("cut", "expected"), [(False, [50.0, 0.0, 88.0, 100.0]), (True, [200 / 3, 50.0, 88.0, 100.0])])
def test_answers_to_public_data_are_scored_by_hand(cut, expected, folder, corpus, bind, in_memory, monkeypatch):
    """Cut everywhere: "The Paris city" 1/2, "no idea" 0. Cut where the benchmark cuts: {paris x 2, city, france} P 2/4, R 2/2;
    {no, idea, london} P 1/3, R 1; code looks at its first line anyway; trec is cut in both."""
    codec = TextCodec(corpus.tokenizer)
    said = lambda ids: next(answer for end, answer in SAID.items() if codec.decode(ids).endswith(end))  # noqa: E731
    monkeypatch.setattr(generation, "greedy", lambda *given: lambda prompts: [codec.encode(said(ids)) for ids in prompts])
    spec = bind(Spec(tasks=("hotpotqa", "repobench-p", "trec"), original_cut=cut), longbench=folder)
    rows = measure.evaluate(in_memory(None, codec), spec, Context(sources=Sources(longbench=folder)))
    assert rows["task"].tolist() == ["hotpotqa", "hotpotqa", "repobench_p", "trec"]
    assert rows["score"].tolist() == pytest.approx(expected)
    assert rows["prediction"][0] == "\nThe Paris city\nParis, France"


def test_all_tasks_on_a_real_model_with_local_stand_ins(corpus, make_run, bind, in_memory, context):
    spec = bind(Spec(dataset="local", max_prompt_tokens=300, max_new_tokens=6, max_examples=1))
    rows = measure.evaluate(in_memory(load_model(make_run() / "export"), TextCodec(corpus.tokenizer)), spec, context)
    assert rows["task"].tolist() == list(TASKS) and rows["score"].between(0, 100).all()


@pytest.mark.parametrize("content", ['{"context": "x"}\n', "not json\n", "3\n", "\n", None])
def test_bad_data_are_refused(content, folder, bind):
    context = Context(sources=Sources(longbench=folder))
    spec = bind(Spec(tasks=("trec",)), longbench=folder)
    (folder / "trec.jsonl").unlink()
    if content is not None:
        (folder / "trec.jsonl").write_text(content)
        with pytest.raises(ValueError, match="the spec asks for dataset"):
            measure.load_examples(["trec"], spec, context)
    with pytest.raises(ValueError, match="trec"):
        measure.load_examples(["trec"], bind(Spec(tasks=("trec",)), longbench=folder), context)
    for spec in (bind(Spec()), bind(Spec(dataset="local-v0:0123"))):  # tests run offline
        with pytest.raises(ValueError, match=r"--longbench|local-v1"):
            measure.load_examples(["trec"], spec, Context())
