"""LongBench: prompts, greedy answers and their scores.

Prompt templates and metrics are those of the pinned lm-eval package's LongBench tasks, read from its files. `TEMPLATE_FIXES`
corrects the ends of templates that differ from the public benchmark (NarrativeQA's keeps a typing error, "asconcisely", which
the benchmark corrected in September 2024); `score` lists the metrics' differences and what is corrected."""

import functools
import importlib
import json
import sys
import warnings
import zipfile
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

import kernels.hf_guard  # noqa: F401  # isort: skip  (before transformers)
import pandas as pd

from eval.longbench.spec import TABLE, Spec, hub_archive, hub_name, task_file
from eval.runner.context import Context
from eval.runner.generation import answered
from eval.runner.loading import Loaded
from eval.runner.sources import checked
from eval.runner.stand_ins import StandIns, fingerprint_in
from eval.runner.text import TextCodec

FEW_SHOT = ("trec", "triviaqa", "samsum")
# The public templates have an empty line between examples and question, and a line break at the end where code follows.
_QUESTION = ("{{context}}\n{{question}}", "{{context}}\n\n{{question}}")
_CODE = ("Next line of code:", "Next line of code:\n")
TEMPLATE_FIXES = {"triviaqa": _QUESTION, "samsum": _QUESTION, "lcc": _CODE, "repobench-p": _CODE}
"""End of the harness's template (lm-eval 0.4.13), and of the public benchmark's, for data in the public format."""

FIELDS = ("input", "context", "answers", "all_classes")

Example = dict[str, Any]


def template_of(task: str) -> str:
    """Return a task's prompt template (jinja) from the harness's file, corrected by TEMPLATE_FIXES."""
    import lm_eval.tasks
    from lm_eval.tasks._yaml_loader import load_yaml

    name = hub_name(task)
    path = Path(lm_eval.tasks.__file__).parent / "longbench" / f"{name}.yaml"
    template = load_yaml(path, resolve_func=False)["doc_to_text"]
    wrong, right = TEMPLATE_FIXES.get(name, ("", ""))
    assert template.endswith(wrong), f"lm-eval's template of {name} has changed: look again at TEMPLATE_FIXES"
    return template.removesuffix(wrong) + right


@functools.cache
def _metrics() -> ModuleType:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # fuzzywuzzy recommends another matcher, with which scores would differ
        return importlib.import_module("lm_eval.tasks.longbench.metrics")


def first_line(prediction: str) -> str:
    """Return the first line, ignoring leading line breaks."""
    return prediction.lstrip("\n").partition("\n")[0]


def score(task: str, prediction: str, example: Example) -> float:
    """Return the best score over the references, 0 to 100, by the harness's functions, corrected where they differ from the
    benchmark: the harness strips predictions; its code metric skips blank lines, which the benchmark scores. Beyond the
    benchmark, ROUGE is computed for sentences of about 1,000 words, too, for which both give 0, because the package behind it
    exceeds Python's recursion limit."""
    metrics = _metrics()
    function = {
        "qa_f1": metrics.qa_f1_score,
        "rouge_l": metrics.rouge_score,
        "classification": metrics.classification_score,
        "code_edit_similarity": _code_similarity,
    }[TABLE[task]["metric"]]
    limit = sys.getrecursionlimit()
    sys.setrecursionlimit(max(limit, 20_000))
    try:
        scores = [function(prediction, truth, all_classes=example["all_classes"]) for truth in example["answers"]]
    finally:
        sys.setrecursionlimit(limit)
    return 100.0 * max([0.0, *map(float, scores)])


def _code_similarity(prediction: str, truth: str, **unused: object) -> float:
    """Return the fuzzy edit ratio of the first line without a backtick, # or //; if there is none, of an empty line."""
    lines = prediction.lstrip("\n").split("\n")
    line = next((line for line in lines if not any(mark in line for mark in ("`", "#", "//"))), "")
    return _metrics().fuzz.ratio(line, truth) / 100


def load_examples(names: Sequence[str], spec: Spec, context: Context) -> dict[str, list[Example]]:
    """Load the examples of each task from the spec's data set. ValueError if they are missing or lack LongBench's fields."""
    corpus = fingerprint_in(spec.dataset)
    if corpus is not None:
        stand_ins = StandIns(context.heldout(corpus))
        found = {name: stand_ins.longbench(name) for name in names}
    elif spec.dataset == "hub":
        archive = hub_archive()
        context.extras["dataset_commit"] = archive.parent.name  # the snapshot's folder
        with zipfile.ZipFile(archive) as file:
            found = {name: _parsed(file.read(f"data/{hub_name(name)}.jsonl"), f"{archive}/{name}") for name in names}
    else:
        folder = checked("dataset", spec.dataset, context.sources.longbench, "--longbench")
        paths = {name: task_file(folder, name) for name in names}
        found = {name: _parsed(path.read_bytes(), str(path)) for name, path in paths.items()}
    return {name: examples[: spec.max_examples] for name, examples in found.items()}


def _parsed(body: bytes, where: str) -> list[Example]:
    try:
        examples = [json.loads(line) for line in body.decode("utf-8").split("\n") if line.strip()]
        missing = sorted({name for example in examples for name in FIELDS if name not in example})
    except (ValueError, TypeError) as error:
        raise ValueError(f"{where} cannot be read as LongBench data ({error}): fetch it again") from None
    if missing or not examples:
        raise ValueError(f"{where} lacks the LongBench fields {', '.join(missing)}" if missing else f"{where} has no examples")
    return examples


def prompt_ids(template: str, example: Example, codec: TextCodec, max_tokens: int) -> list[int]:
    """Return the ids of the prompt, BOS first. A prompt over max_tokens keeps the text of its first and last max_tokens / 2
    tokens (with BOS), decoded separately and encoded again, so that its length may differ a little."""
    from lm_eval.utils import apply_template

    text = apply_template(template, {**example, "question": example["input"]})
    ids = [codec.bos_id, *codec.encode(text)]
    half = max_tokens // 2
    cut = len(ids) > max_tokens
    return [codec.bos_id, *codec.encode(codec.decode(ids[:half]) + codec.decode(ids[-half:]))] if cut else ids


def evaluate(loaded: Loaded, spec: Spec, context: Context) -> pd.DataFrame:
    """Return a row per example; the paper's value of a task is the mean score. Generation is greedy, without a stop string. The
    whole prediction is stored; its first line is scored (with `original_cut` only in few-shot tasks)."""
    examples = load_examples(spec.tasks, spec, context)
    rows = []
    for task in spec.tasks:
        template, metric, limit = template_of(task), TABLE[task]["metric"], int(TABLE[task]["max_new_tokens"])
        prompts = {
            f"{task}/{number}": prompt_ids(template, example, loaded.tokenizer, spec.max_prompt_tokens)
            for number, example in enumerate(examples[task])
        }
        limit = min(limit, spec.max_new_tokens or limit)
        found = answered(f"LongBench ({task})", prompts, loaded, context, spec.precision, limit)
        for number, (key, example) in enumerate(zip(prompts, examples[task], strict=True)):
            prediction = found[key]["prediction"]
            cut = first_line(prediction) if not spec.original_cut or task in FEW_SHOT else prediction
            rows.append((task, metric, number, score(task, cut, example), prediction))
    return pd.DataFrame(rows, columns=list(spec.SCHEMA.columns))
