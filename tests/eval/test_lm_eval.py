"""The harness as a library: scores worked out by hand, BOS policy, agreement with its own model class, local stand-ins."""

import json
import math
import tempfile
from pathlib import Path

import datasets
import pytest
import torch
from lm_eval.api.instance import Instance
from lm_eval.tasks import TaskManager
from transformers import GPT2Config, GPT2LMHeadModel, LlamaConfig, LlamaForCausalLM
from transformers.modeling_outputs import CausalLMOutputWithPast

from eval.lm_eval import measure, task_files
from eval.lm_eval.measure import HarnessModel
from eval.lm_eval.spec import TASKS, Spec
from eval.longbench.spec import TASKS as LONGBENCH_TASKS
from eval.shell import stand_ins
from eval.shell.context import Context
from eval.shell.partial import Partial
from eval.shell.sources import Sources
from eval.shell.stand_ins import StandIns
from eval.shell.text import TextCodec
from models.build import build_model
from models.loss import token_losses
from training.progress import Progress

VOCAB = 512


class Uniform(torch.nn.Module):
    """Every token is equally likely; remembers what it was shown."""

    def __init__(self) -> None:
        super().__init__()
        self.shown: list[list[int]] = []

    def get_output_embeddings(self) -> None:
        return None

    def forward(self, input_ids, use_cache=False, logits_to_keep=0):
        self.shown += input_ids.tolist()
        return CausalLMOutputWithPast(logits=torch.zeros(len(input_ids), logits_to_keep or input_ids.shape[1], VOCAB))


def llama() -> LlamaForCausalLM:
    torch.manual_seed(0)
    return LlamaForCausalLM(
        LlamaConfig(vocab_size=VOCAB, hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=2)
    ).eval()


@pytest.fixture
def tasks(tmp_path: Path) -> Path:
    """A multiple-choice and a perplexity task as a user would write them."""
    folder = tmp_path / "tasks"
    folder.mkdir()
    questions = [
        {"q": "river house", "choices": ["the", "the river was quiet and small"], "answer": 0},
        {"q": "garden", "choices": ["the river was quiet and small", "of"], "answer": 0},
        {"q": "window", "choices": ["a", "winter morning in the village"], "answer": 0},
    ]
    (folder / "pick.jsonl").write_text("".join(json.dumps(q) + "\n" for q in questions))
    (folder / "read.jsonl").write_text(json.dumps({"page": "the river was quiet in the morning"}) + "\n")
    common = "dataset_path: json\nmetadata:\n  version: 3.5\n"
    (folder / "pick.yaml").write_text(
        f"task: pick\n{common}dataset_kwargs:\n  data_files:\n    test: {folder}/pick.jsonl\noutput_type: multiple_choice\n"
        'test_split: test\ndoc_to_text: "{{q}}"\ndoc_to_choice: "{{choices}}"\ndoc_to_target: answer\n'
        "metric_list:\n  - metric: acc\n  - metric: acc_norm\n"
    )
    (folder / "read.yaml").write_text(
        f"task: read\n{common}dataset_kwargs:\n  data_files:\n    test: {folder}/read.jsonl\n"
        'output_type: loglikelihood_rolling\ntest_split: test\ndoc_to_text: ""\ndoc_to_target: "{{page}}"\n'
        "metric_list:\n  - metric: word_perplexity\n"
    )
    return folder


def test_scores_of_a_uniform_model_by_hand(corpus, bind, in_memory, tasks):
    """The shortest choice wins by log-probability: right, wrong, right; acc_norm goes by log-probability per character."""
    codec = TextCodec(corpus.tokenizer)
    spec = bind(Spec(tasks=("pick", "read"), max_length=256, batch_size=2), include_path=tasks)
    rows = measure.evaluate(in_memory(Uniform(), codec), spec, Context(sources=Sources(include_path=tasks)))
    assert spec.summary(rows)[0].startswith("  pick acc: 66.67 +- 33.33 of 100")
    value = rows.set_index(["task", "metric"])["value"]
    assert value["pick", "acc"] == pytest.approx(200 / 3)
    tokens = 1 + len(codec.encode("the river was quiet in the morning"))  # BOS is scored
    assert value["read", "word_perplexity"] == pytest.approx(VOCAB ** (tokens / 7), rel=1e-6)
    per_char = {
        c: len(codec.encode(" " + c)) / len(c)
        for c in ("the", "the river was quiet and small", "of", "a", "winter morning in the village")
    }
    right = [
        per_char["the"] < per_char["the river was quiet and small"],
        per_char["the river was quiet and small"] < per_char["of"],
        per_char["a"] < per_char["winter morning in the village"],
    ]
    assert value["pick", "acc_norm"] == pytest.approx(100 * sum(right) / 3)
    pick = rows[rows["task"] == "pick"].iloc[0]
    assert pick["stderr"] == pytest.approx(100 * math.sqrt(2 / 3 * 1 / 3 / 2))  # sqrt(p (1 - p) / (n - 1))
    assert (pick["num_examples"], pick["task_version"], pick["harness_version"]) == (3, "3.5", "0.4.13")
    assert (pick["batch_size"], pick["add_bos"]) == (2, 1)
    assert math.isnan(rows[rows["task"] == "read"].iloc[0]["stderr"])


class NotANumber(Uniform):
    def forward(self, **given):
        outputs = super().forward(**given)
        return CausalLMOutputWithPast(logits=outputs.logits * math.nan)


@pytest.mark.parametrize("task", ["pick", "read"])
def test_a_model_without_probabilities_has_no_scores(task, corpus, bind, in_memory, tasks):
    """The harness takes the first of choices that are all NaN: with the right one in front, 100%."""
    codec = TextCodec(corpus.tokenizer)
    spec, loaded = bind(Spec(tasks=(task,), max_length=256, batch_size=2), include_path=tasks), in_memory(NotANumber(), codec)
    with pytest.raises(ValueError, match=r"NaN.*: look at the training, or evaluate in fp32"):
        measure.evaluate(loaded, spec, Context(sources=Sources(include_path=tasks)))


def test_a_task_with_several_filters_has_a_row_for_each(corpus, bind, in_memory, tasks, monkeypatch):
    """GSM8K has them: the same answers, read strictly and not."""
    asked = (tasks / "pick.yaml").read_text().replace("task: pick", "task: ask").partition("doc_to_choice")[0]
    asked = asked.replace("multiple_choice", "generate_until")
    filters = "".join(
        f"  - {{name: {name}, filter: [{{function: regex, regex_pattern: '{pattern}'}}, {{function: take_first}}]}}\n"
        for name, pattern in (("strict", "= ([0-9])"), ("flexible", "([0-9])"))
    )
    kept = f"doc_to_target: '{{{{answer}}}}'\nfilter_list:\n{filters}metric_list:\n  - metric: exact_match\n"
    (tasks / "ask.yaml").write_text(asked + kept)
    said = iter([" = 0", " so 0", " none"])
    monkeypatch.setattr(HarnessModel, "_generated", lambda self, request: next(said))
    spec = bind(Spec(tasks=("ask",)), include_path=tasks)
    rows = measure.evaluate(
        in_memory(Uniform(), TextCodec(corpus.tokenizer)), spec, Context(sources=Sources(include_path=tasks))
    )
    assert [*zip(rows["metric"], rows["value"].round(2), rows["stderr"].round(2), strict=True)] == [
        ("exact_match,strict", 33.33, 33.33), ("exact_match,flexible", 66.67, 33.33)
    ]  # fmt: skip


@pytest.mark.parametrize("changes", [
    ("{folder}/pick.jsonl", "{folder}/../other.jsonl"), ("{folder}/pick.jsonl", "file://{outside}"),
    ("data_files:\n    test: {folder}/pick.jsonl", "data_dir: {outside}"), ("dataset_path: json", "dataset_path: {outside}"),
    ("task: pick", "include: {outside}\ntask: pick"),
])  # fmt: skip
def test_what_a_task_reads_outside_its_folder_is_refused(changes, bind, tasks, tmp_path):
    """The evaluation's identity holds the folder's content: other data would get old scores."""
    outside = tmp_path / "other.jsonl"
    outside.write_text("{}")
    old, new = (text.format(folder=tasks, outside=outside) for text in changes)
    file = tasks / "pick.yaml"
    assert old in file.read_text()
    file.write_text(file.read_text().replace(old, new))
    with pytest.raises(
        ValueError, match=r"pick\.yaml names .*other\.jsonl, outside --include-path .*: put it into that folder"
    ):
        bind(Spec(tasks=("read",)), include_path=tasks)
    (tasks / "linked.jsonl").symlink_to(outside)
    file.write_text(file.read_text().replace(new, old).replace(f"{tasks}/pick.jsonl", "linked.jsonl"))
    (tasks / "hub.yaml").write_text("task: hub\ndataset_path: a/b\ndataset_kwargs: {data_files: https://a.org/b.jsonl}")
    (tasks / "broken.yaml").write_text("task: [")
    bind(Spec(tasks=("pick",)), include_path=tasks)


def test_relative_paths_of_a_task_start_at_its_folder(corpus, bind, in_memory, tasks, monkeypatch):
    monkeypatch.chdir(tasks.parent)
    (tasks / "read.yaml").write_text((tasks / "read.yaml").read_text().replace(f"{tasks}/", ""))
    spec = bind(Spec(tasks=("read",), max_length=256), include_path=Path("tasks"))
    context = Context(sources=Sources(include_path=Path("tasks")))
    assert len(measure.evaluate(in_memory(Uniform(), TextCodec(corpus.tokenizer)), spec, context)) == 1
    assert Path.cwd() == tasks.parent


@pytest.mark.parametrize("add_bos", [True, False])
def test_bos_stands_once_in_front_of_a_context(add_bos, corpus, bind, in_memory, tasks):
    codec, model = TextCodec(corpus.tokenizer), Uniform()
    common = {"batch_size": 1, "add_bos": add_bos}
    context = Context(sources=Sources(include_path=tasks))
    spec = bind(Spec(tasks=("pick", "read"), max_length=5, **common), include_path=tasks)
    with pytest.raises(ValueError, match="max_length 5"):
        measure.evaluate(in_memory(model, codec), spec, context)
    model.shown.clear()
    measure.evaluate(in_memory(model, codec), bind(Spec(tasks=("pick",), max_length=64, **common), include_path=tasks), context)
    assert model.shown
    for ids in model.shown:
        assert (ids[0] == codec.bos_id) == add_bos
        assert codec.bos_id not in ids[1:]


@pytest.mark.parametrize("scores_bos", [True, False])
def test_rolling_windows_score_every_token_once_after_one_bos(scores_bos, corpus):
    codec, model = TextCodec(corpus.tokenizer), llama()
    text = "the river was quiet in the morning and the captain wrote a letter"
    ids = [codec.bos_id] * scores_bos + codec.encode(text)
    for length in (4, 7, 1000):
        spec = Spec(max_length=length, scores_bos=scores_bos, precision="fp32")
        lm = HarnessModel(model, codec, spec, Context(), Progress("", 0))
        (got,) = lm.loglikelihood_rolling([Instance("loglikelihood_rolling", {}, (text,), 0)])
        expected, start = 0.0, 0
        while start < len(ids):
            stop = min(start + length, len(ids))
            # The last window is as long as the others and scores what is left.
            first = 0 if start == 0 else max(0, stop - length)
            before = [codec.bos_id] if first == 0 else [ids[first - 1]]
            window = torch.tensor([before + ids[first:stop]])
            losses = token_losses(model, window[:, :-1], window[:, 1:])[0]
            expected -= float(losses[start - first :].detach().double().sum())
            start = stop
        assert got == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize("add_bos", [True, False])
def test_agrees_with_the_harness_own_model_class(add_bos, corpus, bind):
    from lm_eval.models.huggingface import HFLM

    codec, model = TextCodec(corpus.tokenizer), llama()
    theirs = HFLM(pretrained=model, tokenizer=corpus.tokenizer.to_hf(), add_bos_token=add_bos, max_length=64, batch_size=3)
    spec = bind(Spec(include="local", max_length=64, batch_size=3, add_bos=add_bos, precision="fp32"))
    ours = HarnessModel(model, codec, spec, Context(), Progress("", 0))
    pairs = [
        ("the river was", " quiet"), ("the river was", " small and quiet"), ("", "a letter"), ("window ", "winter silver"),
        ("market village " * 40, "the captain"),
    ]  # fmt: skip
    requests = [Instance("loglikelihood", {}, pair, i) for i, pair in enumerate(pairs)]
    for got, expected in zip(ours.loglikelihood(requests), theirs.loglikelihood(requests, disable_tqdm=True), strict=True):
        assert got[0] == pytest.approx(expected[0], rel=1e-5)
        assert got[1] == expected[1]
    texts = ["the river was quiet", "market village " * 60]  # one window, and several
    wholes = [Instance("loglikelihood_rolling", {}, (text,), i) for i, text in enumerate(texts)]
    expected = theirs.loglikelihood_rolling(wholes, disable_tqdm=True)
    assert ours.loglikelihood_rolling(wholes) == pytest.approx(expected, rel=1e-5)
    stop = Instance("generate_until", {}, ("the river was", {"until": ["e"], "max_gen_toks": 20, "do_sample": False}), 0)
    assert ours.generate_until([stop]) == theirs.generate_until([stop], disable_tqdm=True)
    asked = {"until": [], "max_gen_toks": 20, "do_sample": False}
    long = Instance("generate_until", {}, ("market village " * 30 + "the river was", asked), 0)
    assert ours.generate_until([long]) == theirs.generate_until([long], disable_tqdm=True), "its end is what is kept"


def test_answers_are_kept_and_not_asked_again(corpus, bind, in_memory, tasks, tmp_path):
    codec, sources, path = TextCodec(corpus.tokenizer), Sources(include_path=tasks), tmp_path / "p.partial.jsonl"
    spec = bind(Spec(tasks=("pick", "read"), max_length=256), include_path=tasks)
    whole = measure.evaluate(in_memory(Uniform(), codec), spec, Context(sources=sources, partial=Partial(path, "x")))
    lines = path.read_text().splitlines()
    assert len(lines) == 1 + 6 + 1
    path.write_text("\n".join(lines[:4]) + "\n" + lines[4][:20])
    model = Uniform()
    rows = measure.evaluate(in_memory(model, codec), spec, Context(sources=sources, partial=Partial(path, "x")))
    assert len(model.shown) == 3 + 1
    assert rows.equals(whole)


def test_the_papers_tasks_run_on_local_stand_ins_and_training_shows(corpus, tiny_fox, bind, in_memory):
    """All eleven tasks through the harness's own task files, on a model before and after a little training."""
    codec = TextCodec(corpus.tokenizer)
    torch.manual_seed(0)
    model = build_model(tiny_fox())
    spec = bind(Spec(include="local", max_length=1024, limit=8))
    assert spec.include == f"local-v1:{corpus.spec.fingerprint}"
    before = measure.evaluate(in_memory(model.eval(), codec), spec, Context(corpus=corpus))
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    tokens = torch.from_numpy(corpus.train.read(slice(0, 8))[:, :1920].astype("int64")).reshape(-1, 128)
    model.train()
    for step in range(30):
        targets = tokens[(8 * step) % 112 : (8 * step) % 112 + 8]
        inputs = targets.roll(1, 1)
        inputs[:, 0] = codec.bos_id
        token_losses(model, inputs, targets).mean().backward()
        optimizer.step()
        optimizer.zero_grad()
    after = measure.evaluate(in_memory(model.eval(), codec), spec, Context(corpus=corpus))
    for rows in (before, after):
        assert rows["task"].drop_duplicates().tolist() == list(TASKS)
        assert len(rows) == 12
        assert set(rows["task_version"]) == {"local-1"}
        assert rows.loc[rows["metric"].str.startswith("acc"), "value"].between(0, 100).all()
        assert rows["stderr"].notna().sum() == 11  # none for the word perplexity of whole texts
    perplexity = {
        name: rows.set_index(["task", "metric"])["value"]["wikitext", "word_perplexity"]
        for name, rows in (("before", before), ("after", after))
    }
    assert perplexity["after"] < 0.3 * perplexity["before"]


def test_stand_ins_are_a_function_of_the_corpus(corpus):
    one, two = StandIns(corpus), StandIns(corpus)
    for name in TASKS:
        assert one.lm_eval(name) == two.lm_eval(name)
        assert len(one.lm_eval(name)) == (5 if name == "wikitext" else 20)
    for name in LONGBENCH_TASKS:
        assert one.longbench(name) == two.longbench(name)
    assert one.longbench("qasper") != one.longbench("hotpotqa")


@pytest.mark.parametrize(("task", "count", "same"), [(task, *how) for task, how in stand_ins._CHOICES.items()])
def test_wrong_answers_are_of_the_same_text_or_of_others(task, count, same):
    """Documents of one letter each, twenty words long."""
    draw = stand_ins._Draw([[letter * n for n in range(3, 23)] for letter in "abc"], 0, task)
    for _ in range(20):
        context, options, answer = draw.choices(count, same)
        letters = [option[0] for option in options]
        assert len(set(options)) == count and letters[answer] == context[0]
        assert {letter == context[0] for place, letter in enumerate(letters) if place != answer} == {same}


def test_stand_ins_leave_nothing_behind(corpus, bind, in_memory, context, tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    cache = Path(datasets.config.HF_DATASETS_CACHE)
    before = set(cache.rglob("*")) if cache.exists() else set()
    spec = bind(Spec(include="local", tasks=("copa",), max_length=1024, limit=1))
    measure.evaluate(in_memory(Uniform(), TextCodec(corpus.tokenizer)), spec, context)
    assert list(tmp_path.iterdir()) == []
    assert (set(cache.rglob("*")) if cache.exists() else set()) == before


def test_a_model_with_too_few_positions_is_refused(corpus, bind, in_memory, context):
    short = GPT2LMHeadModel(GPT2Config(vocab_size=VOCAB, n_embd=32, n_layer=1, n_head=2, n_positions=16)).eval()
    for task in ("copa", "wikitext"):
        spec = bind(Spec(include="local", tasks=(task,), max_length=1024, limit=1))
        with pytest.raises(ValueError, match="the 16 positions that the model has learned"):
            measure.evaluate(in_memory(short, TextCodec(corpus.tokenizer)), spec, context)


def test_unknown_tasks_and_missing_data(corpus, bind, in_memory, tasks, monkeypatch):
    few = Path(task_files.harness_file("piqa")).parent  # reading all takes seconds
    few = TaskManager(include_path=few, include_defaults=False)
    monkeypatch.setattr(task_files, "harness_tasks", lambda: few)
    with pytest.raises(ValueError, match=r"task no_such_task is not known to lm-eval 0\.4\.13"):
        bind(Spec(tasks=("no_such_task",)))
    with pytest.raises(ValueError, match="has no task file for piqa"):
        bind(Spec(tasks=("pick", "piqa")), include_path=tasks)
    for name in ("nowhere", "pick.yaml"):
        with pytest.raises(ValueError, match=rf"--include-path {tasks}/{name}: there is no such folder"):
            bind(Spec(tasks=("pick",)), include_path=tasks / name)
    with pytest.raises(ValueError, match="no stand-in for task pick"):
        Spec(tasks=("pick",), include="local")
    loaded = in_memory(Uniform(), TextCodec(corpus.tokenizer))
    with pytest.raises(ValueError, match="--include-path"):  # tests run offline
        measure.evaluate(loaded, bind(Spec(tasks=("piqa",))), Context())
    spec = bind(Spec(tasks=("pick",)), include_path=tasks)
    (tasks / "pick.jsonl").write_text("")
    with pytest.raises(ValueError, match="the spec asks for include"):
        measure.evaluate(loaded, spec, Context(sources=Sources(include_path=tasks)))
