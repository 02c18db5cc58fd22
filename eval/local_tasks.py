"""Stand-ins for the public benchmarks, made from held-out text: same files, fields and code path, other content.

For machines without internet and for models too small for the real tasks. Every example asks how the held-out text goes
on. A function of the corpus alone. Scores on them are comparable between models, never with published numbers.
"""

import json
import os
import re
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from data.corpus import Corpus
from eval.haystack import heldout_texts
from eval.spec import LM_EVAL_TASKS, LONGBENCH_TASKS

VERSION = 1
EXAMPLES = 20
DOCUMENTS = 64
LONGBENCH_EXAMPLES = 2
CONTEXT_CHARS = 160
LONG_CONTEXT_CHARS = 1200

Example = dict[str, Any]
Row = dict[str, Any]


def write_local_tasks(corpus: Corpus, parent: Path) -> Path:
    """`parent`/v1-FINGERPRINT/ with longbench/TASK.jsonl and lm_eval/TASK.yaml + TASK.jsonl; made only if it is not there.

    Several processes may ask at once: each makes its own and one is renamed into place.
    """
    folder = parent / f"v{VERSION}-{corpus.spec.fingerprint}"
    if folder.is_dir():
        return folder
    parent.mkdir(parents=True, exist_ok=True)
    temporary = Path(tempfile.mkdtemp(dir=parent, prefix=".making-"))
    try:
        units = _units(corpus)
        for name in LM_EVAL_TASKS:
            _write_jsonl(temporary / "lm_eval" / f"{name}.jsonl", _lm_eval_examples(name, units, corpus))
        for name in LONGBENCH_TASKS:
            _write_jsonl(temporary / "longbench" / f"{_hub_name(name)}.jsonl", _longbench_examples(name, units, corpus))
        temporary.chmod(0o755)
        try:
            os.rename(temporary, folder)
        except OSError:
            if not folder.is_dir():  # made by another process meanwhile
                raise
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
    return folder


def write_task_files(data: Path, folder: Path) -> Path:
    """lm-eval task files (YAML) for the TASK.jsonl in `data`: the harness's own tasks, templates and metrics, on these data.

    They name absolute paths (of the harness and of the data), so they are written where and when they are used.
    """
    for name, (_, split) in HARNESS_FILES.items():
        lines = [
            f"include: {json.dumps(str(harness_file(name)))}",
            f"task: {name}",
            "dataset_path: json",
            "dataset_name: null",
            "dataset_kwargs:",
            "  data_files:",
            f"    {split}: {json.dumps(str(data / f'{name}.jsonl'))}",
            "training_split: null",
            f"validation_split: {'validation' if split == 'validation' else 'null'}",
            f"test_split: {'test' if split == 'test' else 'null'}",
            "should_decontaminate: false",
            "metadata:",
            f"  version: local-{VERSION}",
        ]
        folder.mkdir(parents=True, exist_ok=True)
        (folder / f"{name}.yaml").write_text("\n".join(lines) + "\n")
    return folder


HARNESS_FILES = {
    "wikitext": ("wikitext/wikitext.yaml", "test"),
    "lambada_openai": ("lambada/lambada_openai.yaml", "test"),
    "piqa": ("piqa/piqa.yaml", "validation"),
    "hellaswag": ("hellaswag/hellaswag.yaml", "validation"),
    "winogrande": ("winogrande/default.yaml", "validation"),
    "arc_easy": ("arc/arc_easy.yaml", "test"),
    "arc_challenge": ("arc/arc_challenge.yaml", "test"),
    "copa": ("super_glue/copa/default.yaml", "validation"),
    "openbookqa": ("openbookqa/openbookqa.yaml", "test"),
    "sciq": ("sciq/sciq.yaml", "test"),
    "boolq": ("super_glue/boolq/default.yaml", "validation"),
}


def harness_file(name: str) -> Path:
    """The harness's own file of one of the paper's tasks."""
    import kernels.hf_guard  # noqa: F401  # isort: skip  (before lm_eval)
    import lm_eval.tasks

    return Path(lm_eval.tasks.__file__).parent / HARNESS_FILES[name][0]


def _hub_name(task: str) -> str:
    """LongBench's own name of a task of the paper's table."""
    return {"repobench_p": "repobench-p"}.get(task, task)


def _write_jsonl(path: Path, rows: list[Row]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")


def _units(corpus: Corpus) -> list[list[str]]:
    """Per held-out document, its sentences or short lines of at least three words, in order."""
    documents = []
    for _, text in zip(range(DOCUMENTS), heldout_texts(corpus), strict=False):
        parts = [part for line in text.split("\n") for part in re.split(r"(?<=[.!?]) +", line.strip())]
        units = [part for part in parts if len(part.split()) >= 3 and 12 <= len(part) <= 160]
        if len(units) >= 20:
            documents.append(units)
    if len(documents) < 2:
        raise ValueError(
            "stand-in tasks need at least two held-out documents of 20 sentences or lines; prepare a corpus with more text"
        )
    return documents


class _Draw:
    """One task's source of examples: positions in documents, with what stands before and after."""

    def __init__(self, units: list[list[str]], corpus: Corpus, task: str):
        seed = [VERSION, int(corpus.spec.fingerprint[:8], 16), *task.encode()]
        self.rng = np.random.default_rng(seed)
        self.units = units

    def place(self, chars: int = CONTEXT_CHARS) -> tuple[int, str, str]:
        """(document, about `chars` characters of context, the unit that follows)."""
        document = int(self.rng.integers(0, len(self.units)))
        units = self.units[document]
        at = int(self.rng.integers(len(units) // 4, len(units)))
        start, size = at, 0
        while start > 0 and (size < chars or start == at):
            start -= 1
            size += len(units[start]) + 1
        return document, "\n".join(units[start:at]), units[at]

    def others(self, count: int, document: int, not_these: str, same: bool) -> list[str]:
        """Units from elsewhere in the document (`same`) or from other documents, none equal to `not_these`."""
        found: list[str] = []
        while len(found) < count:
            other = document if same else int(self.rng.integers(0, len(self.units)))
            unit = str(self.rng.choice(self.units[other]))
            if (same or other != document) and unit != not_these and unit not in found:
                found.append(unit)
        return found

    def choices(self, count: int, same: bool) -> tuple[str, list[str], int]:
        """(context, shuffled continuations, index of the true one)."""
        document, context, truth = self.place()
        options = [truth, *self.others(count - 1, document, truth, same)]
        order = self.rng.permutation(count)
        return context, [options[i] for i in order], int(np.flatnonzero(order == 0)[0])


def _lm_eval_examples(task: str, units: list[list[str]], corpus: Corpus) -> list[Row]:
    draw = _Draw(units, corpus, task)
    make: dict[str, Callable[[_Draw], Row]] = {
        "wikitext": _wikitext,
        "lambada_openai": _lambada,
        "piqa": _piqa,
        "hellaswag": _hellaswag,
        "winogrande": _winogrande,
        "arc_easy": lambda d: _arc(d, same=False),
        "arc_challenge": lambda d: _arc(d, same=True),
        "copa": _copa,
        "openbookqa": _openbookqa,
        "sciq": _sciq,
        "boolq": _boolq,
    }
    count = EXAMPLES // 4 if task == "wikitext" else EXAMPLES
    return [make[task](draw) for _ in range(count)]


def _wikitext(draw: _Draw) -> Row:
    return {"page": draw.place(chars=1500)[1]}


def _lambada(draw: _Draw) -> Row:
    """Ends with a word that has occurred before, so that the context tells it."""
    for _ in range(1000):
        _, context, unit = draw.place(chars=2 * CONTEXT_CHARS)
        words = unit.split()
        seen = set(context.split())
        for at in range(len(words) - 1, 0, -1):
            if len(words[at]) >= 4 and words[at] in seen:
                return {"text": " ".join([*context.split(), *words[: at + 1]])}
    raise ValueError("the held-out text repeats no words; stand-in tasks cannot be made from it")


def _piqa(draw: _Draw) -> Row:
    context, options, answer = draw.choices(2, same=False)
    return {"goal": context, "sol1": options[0], "sol2": options[1], "label": answer}


def _hellaswag(draw: _Draw) -> Row:
    context, endings, answer = draw.choices(4, same=True)
    head, _, tail = context.rpartition("\n")
    return {"activity_label": "Text", "ctx_a": head, "ctx_b": tail, "endings": endings, "label": str(answer)}


def _winogrande(draw: _Draw) -> Row:
    document, context, unit = draw.place()
    words = unit.split()
    at = int(draw.rng.integers(0, len(words) - 1))
    wrong = next(w for w in str(draw.others(1, document, unit, same=True)[0]).split() if w != words[at])
    answer = int(draw.rng.integers(1, 3))
    options = [words[at], wrong] if answer == 1 else [wrong, words[at]]
    sentence = f"{context} {' '.join([*words[:at], '_', *words[at + 1 :]])}".replace("_", " ", context.count("_"))
    return {"sentence": sentence, "option1": options[0], "option2": options[1], "answer": str(answer)}


def _labelled(options: list[str]) -> Row:
    return {"text": options, "label": list("ABCD"[: len(options)])}


def _arc(draw: _Draw, same: bool) -> Row:
    context, options, answer = draw.choices(4, same)
    return {"question": context, "choices": _labelled(options), "answerKey": "ABCD"[answer]}


def _copa(draw: _Draw) -> Row:
    context, options, answer = draw.choices(2, same=True)
    question = str(draw.rng.choice(["cause", "effect"]))
    return {"premise": context, "choice1": options[0], "choice2": options[1], "question": question, "label": answer}


def _openbookqa(draw: _Draw) -> Row:
    context, options, answer = draw.choices(4, same=False)
    return {"question_stem": context.split("\n")[-1], "choices": _labelled(options), "answerKey": "ABCD"[answer]}


def _sciq(draw: _Draw) -> Row:
    document, context, truth = draw.place()
    wrong = draw.others(3, document, truth, same=False)
    names = {f"distractor{i + 1}": text for i, text in enumerate(wrong)}
    return {"support": f"{context}\n{truth}", "question": context.split("\n")[-1], **names, "correct_answer": truth}


def _boolq(draw: _Draw) -> Row:
    document, context, truth = draw.place()
    label = int(draw.rng.integers(0, 2))
    asked = truth if label else draw.others(1, document, truth, same=False)[0]
    return {"passage": f"{context}\n{truth}", "question": f"does the text hold the words {asked}", "label": label}


def _longbench_examples(task: str, units: list[list[str]], corpus: Corpus) -> list[Row]:
    draw = _Draw(units, corpus, task)
    return [_longbench(draw, task, i) for i in range(LONGBENCH_EXAMPLES)]


def _longbench(draw: _Draw, task: str, index: int) -> Row:
    """One example in LongBench's own fields. Code and summarisation go on with the text, the others ask for a unit of it."""
    _, context, follows = draw.place(chars=LONG_CONTEXT_CHARS)
    lines = context.split("\n")
    question, answers, classes = "", [follows], None
    if task == "trec":
        classes = ["first half", "second half"]
        at = int(draw.rng.integers(0, len(lines)))
        shots = [f"Question: {line}\nType: {classes[2 * i // len(lines)]}" for i, line in enumerate(lines)]
        context, question = "\n".join(shots[:at] + shots[at + 1 :]), f"Question: {lines[at]}\nType:"
        answers = [classes[2 * at // len(lines)]]
    elif task == "lcc":
        context += "\n"
    elif task == "repobench_p":
        context, question = "\n".join(lines[:-4]) + "\n", "\n".join(lines[-4:]) + "\n"
    elif task not in ("gov_report", "multi_news"):
        at = int(draw.rng.integers(0, len(lines) - 1))
        question, answers = lines[at], [lines[at + 1]]
        if task in ("triviaqa", "samsum"):
            question = f"{question}\n"
    return {
        "input": question,
        "context": context,
        "answers": answers,
        "length": len(context.split()),
        "dataset": _hub_name(task),
        "language": "en",
        "all_classes": classes,
        "_id": f"local-{task}-{index}",
    }
