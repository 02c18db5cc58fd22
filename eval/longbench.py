"""LongBench: the 14 English tasks with the released evaluation's rules (Table 2).

Prompt templates and metrics are those of the pinned lm-eval package's LongBench tasks, read from its files; `TEMPLATE_FIXES`
and `_score` say where they depart from the public benchmark and are put right.
"""

import csv
import functools
import importlib
import sys
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import kernels.hf_guard  # noqa: F401  # isort: skip  (before transformers)
import pandas as pd
from transformers import PreTrainedModel

from eval.context import Context
from eval.generation import generate
from eval.progress import Progress
from eval.spec import LongBenchSpec
from eval.text import TextCodec

HUB_NAME = "THUDM/LongBench"
FEW_SHOT = ("trec", "triviaqa", "samsum")
TEMPLATE_FIXES = {
    # The public templates separate examples and question by an empty line.
    "triviaqa": ("{{context}}\n{{question}}", "{{context}}\n\n{{question}}"),
    "samsum": ("{{context}}\n{{question}}", "{{context}}\n\n{{question}}"),
    # The public templates end with a line break, after which the code begins.
    "lcc": ("Next line of code:", "Next line of code:\n"),
    "repobench-p": ("Next line of code:", "Next line of code:\n"),
}
"""Template of the harness (lm-eval 0.4.13) -> of the public benchmark, for data in the public format."""


@dataclass(frozen=True)
class Task:
    """One task: its names here and at the hub, prompt template (jinja), metric, and limit on new tokens."""

    name: str
    hub_name: str
    template: str
    metric: str
    max_new_tokens: int


def tasks(names: Sequence[str]) -> list[Task]:
    """Limits and metrics from longbench_tasks.csv, templates from the harness."""
    with open(Path(__file__).with_name("longbench_tasks.csv"), newline="") as file:
        table = {line["task"]: line for line in csv.DictReader(file)}
    found = []
    for name in names:
        hub_name = "repobench-p" if name == "repobench_p" else name
        limit = int(table[name]["max_new_tokens"])
        found.append(Task(name, hub_name, _template(hub_name), table[name]["metric"], limit))
    return found


def _template(hub_name: str) -> str:
    import lm_eval.tasks
    from lm_eval.tasks._yaml_loader import load_yaml

    path = Path(lm_eval.tasks.__file__).parent / "longbench" / f"{hub_name}.yaml"
    template = load_yaml(path, resolve_func=False)["doc_to_text"]
    if hub_name in TEMPLATE_FIXES:
        wrong, right = TEMPLATE_FIXES[hub_name]
        assert template.endswith(wrong), f"lm-eval's template of {hub_name} has changed: look again at TEMPLATE_FIXES"
        template = template.removesuffix(wrong) + right
    return template


@functools.cache
def _metrics() -> ModuleType:
    """The harness's metric functions."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # fuzzywuzzy recommends another matcher, with which scores would differ
        return importlib.import_module("lm_eval.tasks.longbench.metrics")


def first_line(prediction: str) -> str:
    """Leading line breaks dropped, then everything up to the next one."""
    return prediction.lstrip("\n").split("\n")[0]


def score(task: Task, prediction: str, example: dict[str, Any]) -> float:
    """0-100: the best over the references. `prediction` is scored as it is (cut it before).

    The harness's functions, but for two of its faults: its code metric passes over lines of blanks, which the
    benchmark takes as the prediction; its ROUGE gives 0 for long sentences, where the recursion of the package behind it fails.
    """
    metrics = _metrics()
    if task.metric == "code_edit_similarity":
        return 100.0 * max(_code_similarity(prediction, truth) for truth in example["answers"])
    function = {
        "qa_f1": metrics.get_qa_f1_score,
        "rouge_l": metrics.get_rouge_score,
        "classification": metrics.get_classification_score,
    }[task.metric]
    with _deep_recursion():
        (value,) = function(example, [prediction]).values()
    return 100.0 * float(value)


def _code_similarity(prediction: str, truth: str) -> float:
    """Fuzzy edit ratio of the first line without a backtick, # or //; no such line counts as empty."""
    lines = prediction.lstrip("\n").split("\n")
    line = next((line for line in lines if not any(mark in line for mark in ("`", "#", "//"))), "")
    return _metrics().fuzz.ratio(line, truth) / 100


@contextmanager
def _deep_recursion() -> Iterator[None]:
    limit = sys.getrecursionlimit()
    sys.setrecursionlimit(max(limit, 20_000))
    try:
        yield
    finally:
        sys.setrecursionlimit(limit)


def load_examples(task: Task, folder: Path | None, limit: int | None) -> list[dict[str, Any]]:
    """Examples of the test split, from TASK.jsonl in `folder` or from the hub's data.zip, through `datasets`.

    Raises ValueError if they are not there, or lack LongBench's fields.
    """
    import datasets

    datasets.disable_progress_bars()
    if folder is not None:
        path = folder / f"{task.hub_name}.jsonl"
        if not path.is_file():
            raise ValueError(f"{folder} has no {path.name}; it must hold one TASK.jsonl per LongBench task asked for")
        source = str(path)
    else:
        source = f"zip://data/{task.hub_name}.jsonl::{_hub_archive()}"
    try:
        rows = datasets.load_dataset("json", data_files={"test": source}, split="test")
    except Exception as error:  # datasets raises many types
        raise ValueError(f"{source} cannot be read as LongBench data: {str(error).splitlines()[0][:160]}") from error
    missing = {"input", "context", "answers", "all_classes"} - set(rows.column_names)
    if missing:
        raise ValueError(f"{source} lacks the LongBench fields {', '.join(sorted(missing))}")
    return list(rows.select(range(min(limit or len(rows), len(rows)))))


@functools.cache
def _hub_archive() -> str:
    from huggingface_hub import hf_hub_download

    try:
        return hf_hub_download(HUB_NAME, "data.zip", repo_type="dataset")
    except Exception as error:  # the hub client raises many types
        raise ValueError(
            f"LongBench ({HUB_NAME}) is neither in the local cache nor to be had from the hub ({type(error).__name__}).\n"
            "On a machine without internet name a folder with its TASK.jsonl files with --longbench."
        ) from error


def prompt_ids(task: Task, example: dict[str, Any], codec: TextCodec, max_tokens: int) -> list[int]:
    """Token ids of the prompt, BOS first. A longer one keeps the text of its first and its last max_tokens / 2 tokens (BOS
    counts among the first), decoded separately and encoded again, so that the length may differ a little."""
    from lm_eval.utils import apply_template

    text = apply_template(task.template, {**example, "question": example["input"]})
    ids = [codec.bos_id, *codec.encode(text)]
    if len(ids) <= max_tokens:
        return ids
    half = max_tokens // 2
    return [codec.bos_id, *codec.encode(codec.decode(ids[:half]) + codec.decode(ids[-half:]))]


def evaluate(model: PreTrainedModel, tokenizer: TextCodec, spec: LongBenchSpec, context: Context) -> pd.DataFrame:
    """Rows (task, metric, example, score, prediction), one per example; the paper's value of a task is the mean score.

    Greedy generation without a stop string; the prediction is stored whole and scored after the cut to its first line (all
    tasks, or the few-shot ones with `original_cut`).
    """
    folder = context.local_tasks / "longbench" if context.local_tasks is not None else context.longbench
    chosen = tasks(spec.tasks)
    examples = {task.name: load_examples(task, folder, spec.max_examples) for task in chosen}
    done = context.partial.records
    total = sum(map(len, examples.values()))
    with Progress("LongBench", total, len(done)) as progress:
        for task in chosen:
            _predict(model, tokenizer, task, examples[task.name], spec, context, progress)
    rows = []
    for task in chosen:
        for number, example in enumerate(examples[task.name]):
            prediction = done[f"{task.name}/{number}"]["prediction"]
            cut = first_line(prediction) if not spec.original_cut or task.name in FEW_SHOT else prediction
            rows.append(
                {
                    "task": task.name,
                    "metric": task.metric,
                    "example": number,
                    "score": score(task, cut, example),
                    "prediction": prediction,
                }
            )
    context.extras["num_examples"] = {name: len(rows) for name, rows in examples.items()}
    return pd.DataFrame(rows)


def _predict(
    model: PreTrainedModel,
    codec: TextCodec,
    task: Task,
    examples: Sequence[dict[str, Any]],
    spec: LongBenchSpec,
    context: Context,
    progress: Progress,
) -> None:
    todo = [i for i in range(len(examples)) if f"{task.name}/{i}" not in context.partial.records]
    limit = min(task.max_new_tokens, spec.max_new_tokens or task.max_new_tokens)

    def keep(index: int, new_ids: list[int]) -> None:
        context.partial.add(f"{task.name}/{todo[index]}", {"prediction": codec.decode(new_ids)})
        progress.advance()

    generate(
        model,
        [prompt_ids(task, examples[i], codec, spec.max_prompt_tokens) for i in todo],
        max_new_tokens=limit,
        device=context.device,
        stop_ids=() if codec.eos_id is None else (codec.eos_id,),
        batch_tokens=context.batch_tokens,
        on_done=keep,
    )
