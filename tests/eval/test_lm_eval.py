"""The harness as a library: scores worked out by hand, BOS policy, agreement with its own model class, local stand-ins."""

import json
import math
from pathlib import Path

import pytest
from lm_eval.api.instance import Instance
from lm_eval.models.huggingface import HFLM
from transformers import GPT2Config, GPT2LMHeadModel

from eval.lm_eval import measure
from eval.lm_eval.measure import HarnessModel
from eval.lm_eval.spec import TASKS, Spec
from eval.longbench.spec import TASKS as LONGBENCH_TASKS
from eval.runner import stand_ins
from eval.runner.context import Context
from eval.runner.sources import Sources
from eval.runner.stand_ins import StandIns
from eval.runner.text import TextCodec
from models.build import load_model
from tests.eval.oracles import VOCAB, Uniform, llama, logp, token_logps

CHOICES = {  # question: choices, the first of which is right
    "garden": ["the river was quiet and small", "of"],
    "river house": ["the", "the river was quiet and small"],
    "window": ["a", "winter morning in the village"],
}


@pytest.fixture
def codec(corpus) -> TextCodec:
    return TextCodec(corpus.tokenizer)


@pytest.fixture
def tasks(tmp_path: Path) -> Path:
    """A multiple-choice, a perplexity and a generation task as a user would write them."""
    folder = tmp_path / "tasks"
    folder.mkdir()
    asked = [{"q": question, "choices": choices, "answer": 0} for question, choices in CHOICES.items()]
    (folder / "pick.jsonl").write_text("".join(json.dumps(each) + "\n" for each in asked))
    (folder / "read.jsonl").write_text(json.dumps({"page": "the river was quiet in the morning"}) + "\n")
    common = "dataset_path: json\nmetadata:\n  version: 3.5\ntest_split: test\n"
    picked = f"{common}dataset_kwargs:\n  data_files:\n    test: pick.jsonl\ndoc_to_text: '{{{{q}}}}'\n"
    (folder / "pick.yaml").write_text(
        f"task: pick\n{picked}output_type: multiple_choice\ndoc_to_choice: '{{{{choices}}}}'\ndoc_to_target: answer\n"
        "metric_list:\n  - metric: acc\n  - metric: acc_norm\n"
    )
    (folder / "read.yaml").write_text(
        f"task: read\n{common}dataset_kwargs:\n  data_files:\n    test: {folder}/read.jsonl\n"
        "output_type: loglikelihood_rolling\ndoc_to_text: ''\ndoc_to_target: '{{page}}'\n"
        "metric_list:\n  - metric: word_perplexity\n"
    )
    filters = "".join(
        f"  - {{name: {name}, filter: [{{function: regex, regex_pattern: '{pattern}'}}, {{function: take_first}}]}}\n"
        for name, pattern in (("strict", "= ([0-9])"), ("flexible", "([0-9])"))
    )
    (folder / "ask.yaml").write_text(
        f"task: ask\n{picked}output_type: generate_until\ndoc_to_target: '{{{{answer}}}}'\nfilter_list:\n{filters}"
        "metric_list:\n  - metric: exact_match\n"
    )
    return folder


@pytest.mark.parametrize("limit", [None, 2])
def test_scores_of_a_uniform_model(limit, codec, bind, in_memory, tasks, monkeypatch):
    """The shortest choice wins by log-probability: wrong, right, right; acc_norm goes by log-probability per character. Paths
    in task files start at their folder."""
    monkeypatch.chdir(tasks.parent)
    source = dict(include_path=Path("tasks"))
    spec = bind(Spec(tasks=("pick", "read"), max_length=256, batch_size=2, limit=limit, keep_scores=limit is None), **source)
    context = Context(sources=Sources(**source))
    rows = measure.evaluate(in_memory(Uniform(), codec), spec, context)
    value = rows.set_index(["task", "metric"])["value"]
    right, count = (2, 3) if limit is None else (1, 2)
    assert value["pick", "acc"] == pytest.approx(100 * right / count)
    tokens = 1 + len(codec.encode("the river was quiet in the morning"))  # BOS is scored
    assert value["read", "word_perplexity"] == pytest.approx(VOCAB ** (tokens / 7), rel=1e-6)
    by_character = [[len(codec.encode(f" {choice}")) / len(choice) for choice in choices] for choices in CHOICES.values()]
    assert value["pick", "acc_norm"] == pytest.approx(100 * sum(one < other for one, other in by_character[:limit]) / count)
    pick = rows[rows["task"] == "pick"].iloc[0]
    share = right / count
    assert pick["stderr"] == pytest.approx(100 * math.sqrt(share * (1 - share) / (count - 1)))
    assert (pick["num_examples"], pick["task_version"], pick["batch_size"], pick["add_bos"]) == (count, "3.5", 2, 1)
    assert math.isnan(rows[rows["task"] == "read"].iloc[0]["stderr"])
    if spec.keep_scores:
        assert [each["acc"] for each in context.extras["scores"]["pick"]] == [0.0, 1.0, 1.0]
    assert spec.summary(rows)[0].startswith(f"  pick acc: {100 * share:.2f} +- {pick['stderr']:.2f} of 100")


def test_a_task_with_several_filters_has_a_row_for_each(codec, bind, in_memory, tasks, monkeypatch):
    """GSM8K has them: the same answers, read strictly and not."""
    said = iter([" = 0", " so 0", " none"])
    monkeypatch.setattr(HarnessModel, "_generated", lambda self, request: next(said))
    spec = bind(Spec(tasks=("ask",)), include_path=tasks)
    rows = measure.evaluate(in_memory(Uniform(), codec), spec, Context(sources=Sources(include_path=tasks)))
    assert [*zip(rows["metric"], rows["value"].round(2), rows["stderr"].round(2), strict=True)] == [
        ("exact_match,strict", 33.33, 33.33), ("exact_match,flexible", 66.67, 33.33)
    ]  # fmt: skip


def test_which_metrics_are_in_percent():
    """Shares are, perplexities and others are not, nor what the harness gives in percent already; only those of the table."""
    scores = {
        "lambada_openai": {"acc,none": 0.25, "acc_stderr,none": 0.01, "perplexity,none": 12.5, "perplexity_stderr,none": 0.5},
        "wikitext": {"word_perplexity,none": 23.0, "word_perplexity_stderr,none": "N/A", "bits_per_byte,none": 1.0},
        "hellaswag": {"acc,none": 0.5, "acc_stderr,none": 0.02, "acc_norm,none": 0.75, "acc_norm_stderr,none": 0.03},
        "own": {"exact_match,none": 0.125, "f1,none": 0.5, "f1_stderr,none": 0.25, "bleu,none": 30.0},
        "squadv2": {"f1,none": 40.5},
    }
    results = {
        "results": scores,
        "n-samples": {task: {"effective": 7} for task in scores},
        "versions": dict.fromkeys(scores, 1),
    }
    rows = [row for task in scores for row in measure._rows(task, results, Spec(add_bos=False))]
    nan = pytest.approx(math.nan, nan_ok=True)
    assert {(row["task"], row["metric"]): (row["value"], row["stderr"]) for row in rows} == {
        ("lambada_openai", "perplexity"): (12.5, 0.5), ("lambada_openai", "acc"): (25.0, 1.0),
        ("wikitext", "word_perplexity"): (23.0, nan), ("hellaswag", "acc_norm"): (75.0, 3.0),
        ("own", "exact_match"): (12.5, nan), ("own", "f1"): (50.0, 25.0), ("own", "bleu"): (30.0, nan),
        ("squadv2", "f1"): (40.5, nan),
    }  # fmt: skip
    assert {row["add_bos"] for row in rows} == {0}


@pytest.mark.parametrize("task", ["pick", "read"])
def test_a_model_without_probabilities_has_no_scores(task, codec, bind, in_memory, tasks):
    """The harness takes the first of choices that are all NaN: with the right one in front, 100%. Nor has one that cannot
    read so much."""
    broken = llama()
    broken.lm_head.weight.data.fill_(math.nan)
    short = GPT2LMHeadModel(GPT2Config(vocab_size=VOCAB, n_embd=32, n_layer=1, n_head=2, n_positions=4)).eval()
    spec, context = bind(Spec(tasks=(task,), max_length=256), include_path=tasks), Context(sources=Sources(include_path=tasks))
    for model, told in ((broken, "NaN"), (short, "positions")):
        with pytest.raises(ValueError, match=told):
            measure.evaluate(in_memory(model, codec), spec, context)


@pytest.mark.parametrize("scores_bos", [True, False])
def test_rolling_windows_score_every_token_once_after_one_bos(scores_bos, codec, in_memory):
    model, text = llama(), "the river was quiet in the morning and the captain wrote a letter"
    ids = [codec.bos_id] * scores_bos + codec.encode(text)
    for length in (4, 7, 1000):
        lm = HarnessModel(in_memory(model, codec), Spec(max_length=length, scores_bos=scores_bos, precision="fp32"), Context())
        (got,) = lm.loglikelihood_rolling([Instance("loglikelihood_rolling", {}, (text,), 0)])
        expected = 0.0
        for start in range(0, len(ids), length):
            stop = min(start + length, len(ids))
            first = 0 if start == 0 else max(0, stop - length)  # the last window is as long, and scores what is left
            window = [codec.bos_id if first == 0 else ids[first - 1], *ids[first:stop]]
            expected += float(token_logps(model, window)[start - first :].sum())
        assert got == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize("add_bos", [True, False])
def test_agrees_with_the_harness_own_model_class(add_bos, corpus, codec, bind, in_memory):
    model = llama()
    theirs = HFLM(pretrained=model, tokenizer=corpus.tokenizer.to_hf(), add_bos_token=add_bos, max_length=64, batch_size=3)
    spec = bind(Spec(include="local", max_length=64, batch_size=3, add_bos=add_bos, precision="fp32"))
    ours = HarnessModel(in_memory(model, codec), spec, Context())
    pairs = [
        ("the river was", " quiet"), ("the river was", " small and quiet"), ("", "a letter"), ("window ", "winter silver"),
        ("market village " * 40, "the captain"),
    ]  # fmt: skip
    requests = [Instance("loglikelihood", {}, pair, i) for i, pair in enumerate(pairs)]
    found = ours.loglikelihood(requests)
    for got, expected in zip(found, theirs.loglikelihood(requests, disable_tqdm=True), strict=True):
        assert got == (pytest.approx(expected[0], rel=1e-5), expected[1])
    bos = [codec.bos_id] * add_bos
    assert found[0][0] == pytest.approx(logp(model, [*bos, *codec.encode("the river was")], codec.encode(" quiet")), rel=1e-5)
    texts = ["the river was quiet", "market village " * 60]  # one window, and several
    wholes = [Instance("loglikelihood_rolling", {}, (text,), i) for i, text in enumerate(texts)]
    expected = theirs.loglikelihood_rolling(wholes, disable_tqdm=True)
    assert ours.loglikelihood_rolling(wholes) == pytest.approx(expected, rel=1e-5)
    for prompt, until in (("the river was", ["e"]), ("market village " * 30 + "the river was", [])):  # its end is what is kept
        options = {"until": until, "max_gen_toks": 20, "do_sample": False}
        asked = Instance("generate_until", {}, (prompt, options), 0)
        assert ours.generate_until([asked]) == theirs.generate_until([asked], disable_tqdm=True)


def test_the_papers_tasks_run_on_local_stand_ins(make_run, codec, bind, in_memory, context):
    """All eleven tasks through the harness's own task files and templates."""
    spec = bind(Spec(include="local", max_length=1024, limit=2))
    rows = measure.evaluate(in_memory(load_model(make_run() / "export"), codec), spec, context)
    assert rows["task"].drop_duplicates().tolist() == list(TASKS) and len(rows) == 12
    assert set(rows["task_version"]) == {"local-1"} and set(rows["num_examples"]) == {2}
    assert rows.loc[rows["metric"].str.startswith("acc"), "value"].between(0, 100).all()


def test_stand_ins_are_a_function_of_the_corpus(corpus):
    one, two = StandIns(corpus), StandIns(corpus)
    for name in TASKS:
        assert one.lm_eval(name) == two.lm_eval(name) and len(one.lm_eval(name)) == (5 if name == "wikitext" else 20)
    for name in LONGBENCH_TASKS:
        assert one.longbench(name) == two.longbench(name)
    assert one.longbench("qasper") != one.longbench("hotpotqa")


@pytest.mark.parametrize(("task", "count", "same"), [(task, *how) for task, how in stand_ins._CHOICES.items()])
def test_wrong_answers_are_of_the_same_text_or_of_others_and_the_right_one_anywhere(task, count, same):
    """Documents of one letter each, twenty words long."""
    draw, places = stand_ins._Draw([[letter * n for n in range(3, 23)] for letter in "abc"], 0, task), set()
    for _ in range(30):
        context, options, answer = draw.choices(count, same)
        letters = [option[0] for option in options]
        assert len(set(options)) == count and letters[answer] == context[0]
        assert len(options[answer]) == len(context.split("\n")[-1]) + 1, "it goes on with the text"
        assert {letter == context[0] for place, letter in enumerate(letters) if place != answer} == {same}
        places.add(answer)
    assert places == set(range(count))


def test_what_cannot_be_scored_is_refused(codec, bind, in_memory, tasks):
    loaded, source = in_memory(Uniform(), codec), dict(include_path=tasks)
    for spec, told in (
        (Spec(tasks=("pick", "piqa")), "has no task file .* for piqa"),
        (Spec(tasks=("pick",), max_length=5), "max_length 5"),
        (Spec(tasks=("ask",), max_length=200), "max_length 200"),
    ):
        with pytest.raises(ValueError, match=told):
            measure.evaluate(loaded, bind(spec, **source), Context(sources=Sources(**source)))
    with pytest.raises(ValueError, match="--include-path"):  # tests run offline
        measure.evaluate(loaded, bind(Spec(tasks=("piqa",))), Context())
    spec = bind(Spec(tasks=("pick",)), **source)
    (tasks / "pick.jsonl").write_text("")
    with pytest.raises(ValueError, match="the spec asks for include"):
        measure.evaluate(loaded, spec, Context(sources=Sources(**source)))
