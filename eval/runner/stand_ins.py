"""Stand-ins for the public benchmarks, made from held-out text: same fields and code path, other content.

They are for machines without internet and for models too small for the real tasks. Every example asks how the held-out text
continues, and depends on the corpus alone. Scores are comparable between models, never with published numbers."""

import re
from itertools import islice
from typing import Any

import numpy as np

from data.corpus import Corpus, Counts
from data.spec import DataSpec
from eval.runner.sources import fingerprint
from eval.runner.text import heldout_texts

VERSION = 1
"""Version of the examples: raise it with every change of one."""
EXAMPLES = 20
DOCUMENTS = 64
LONGBENCH_EXAMPLES = 2
CONTEXT_CHARS = 160
LONG_CONTEXT_CHARS = 1200
_TRIES = 10_000
_CHOICES = {"piqa": (2, False), "hellaswag": (4, True), "arc_easy": (4, False), "arc_challenge": (4, True), "copa": (2, True),
            "openbookqa": (4, False)}  # fmt: skip
"""Number of continuations that a task chooses among, and whether the wrong ones are from the same document."""

Row = dict[str, Any]


def stand_ins_of(corpus: DataSpec | None) -> str:
    """Return the name of a corpus's stand-ins in a spec: "local-v1:FINGERPRINT". ValueError without a corpus."""
    return f"local-v{VERSION}:{fingerprint(corpus)}"


def fingerprint_in(name: str) -> str | None:
    """Return the fingerprint of the corpus that stand-ins are made from; None if `name` means other data. ValueError for
    stand-ins of another version."""
    version, _, corpus = name.partition(":")
    if not version.startswith("local-"):
        return None
    if version != f"local-v{VERSION}":
        raise ValueError(f"the spec asks for stand-in tasks {version}; this version makes local-v{VERSION}: plan it again")
    return corpus


def check_stand_ins(name: str, counts: Counts | None) -> None:
    """Raise ValueError if a spec names stand-ins that a corpus of these counts cannot give."""
    if counts is not None and fingerprint_in(name) is not None and counts.heldout_rows < 2:
        raise ValueError("stand-in tasks need at least two held-out documents; prepare a corpus with more text")


class StandIns:
    """Maker of the examples of each task from a corpus. ValueError for too little held-out text."""

    def __init__(self, corpus: Corpus):
        self._units = _units(corpus)
        self._seed = int(corpus.spec.fingerprint[:8], 16)

    def lm_eval(self, task: str) -> list[Row]:
        draw = _Draw(self._units, self._seed, task)
        return [_lm_eval(draw, task) for _ in range(EXAMPLES // 4 if task == "wikitext" else EXAMPLES)]

    def longbench(self, task: str) -> list[Row]:
        draw = _Draw(self._units, self._seed, task)
        return [_longbench(draw, task) for _ in range(LONGBENCH_EXAMPLES)]


def _units(corpus: Corpus) -> list[list[str]]:
    """Split each held-out document into sentences or short lines of at least three words, in order."""
    documents = []
    for text in islice(heldout_texts(corpus), DOCUMENTS):
        parts = [part for line in text.split("\n") for part in re.split(r"(?<=[.!?]) +", line.strip())]
        units = [part for part in parts if len(part.split()) >= 3 and 12 <= len(part) <= 160]
        if len(units) >= 20:
            documents.append(units)
    if len(documents) < 2:
        few = "stand-in tasks need at least two held-out documents of 20 sentences or lines"
        raise ValueError(f"{few}; prepare a corpus with more text")
    return documents


class _Draw:
    """Random source of one task's examples: places in documents, with the text before and after them."""

    def __init__(self, units: list[list[str]], seed: int, task: str):
        self.rng = np.random.default_rng([VERSION, seed, *task.encode()])
        self.units = units

    def place(self, chars: int = CONTEXT_CHARS) -> tuple[int, str, str]:
        """Draw (document, about `chars` characters of context, the unit that follows)."""
        document = int(self.rng.integers(0, len(self.units)))
        units = self.units[document]
        at = int(self.rng.integers(len(units) // 4, len(units)))
        start, size = at, 0
        while start > 0 and (size < chars or start == at):
            start -= 1
            size += len(units[start]) + 1
        return document, "\n".join(units[start:at]), units[at]

    def others(self, count: int, document: int, not_these: str, same: bool) -> list[str]:
        """Draw units from elsewhere in the document (`same`) or from other documents, none equal to `not_these`."""
        found: list[str] = []
        for _ in range(_TRIES):
            if len(found) == count:
                return found
            other = document if same else int(self.rng.integers(0, len(self.units)))
            unit = str(self.rng.choice(self.units[other]))
            if (same or other != document) and unit != not_these and unit not in found:
                found.append(unit)
        raise ValueError("the held-out text repeats itself too much: prepare a corpus with more text for stand-in tasks")

    def choices(self, count: int, same: bool) -> tuple[str, list[str], int]:
        """Draw (context, shuffled continuations, index of the true one)."""
        document, context, truth = self.place()
        options = [truth, *self.others(count - 1, document, truth, same)]
        order = self.rng.permutation(count)
        return context, [options[i] for i in order], int(np.flatnonzero(order == 0)[0])


def _lambada(draw: _Draw) -> Row:
    """Make a text whose last word has occurred before in it, so that it can be inferred."""
    for _ in range(1000):
        _, context, unit = draw.place(chars=2 * CONTEXT_CHARS)
        words = unit.split()
        seen = set(context.split())
        for at in range(len(words) - 1, 0, -1):
            if len(words[at]) >= 4 and words[at] in seen:
                return {"text": " ".join([*context.split(), *words[: at + 1]])}
    raise ValueError("the held-out text repeats no words: prepare a corpus with more text for stand-in tasks")


def _winogrande(draw: _Draw) -> Row:
    document, context, unit = draw.place()
    words = unit.split()
    at = int(draw.rng.integers(0, len(words) - 1))
    wrong = next((w for w in draw.others(1, document, unit, same=True)[0].split() if w != words[at]), words[at - 1])
    answer = int(draw.rng.integers(1, 3))
    options = [words[at], wrong] if answer == 1 else [wrong, words[at]]
    sentence = f"{context} {' '.join([*words[:at], '_', *words[at + 1 :]])}".replace("_", " ", context.count("_"))
    return {"sentence": sentence, "option1": options[0], "option2": options[1], "answer": str(answer)}


def _lm_eval(draw: _Draw, task: str) -> Row:
    """Make one example in the fields of the task's own data set."""
    if task in _CHOICES:
        count, same = _CHOICES[task]
        context, options, answer = draw.choices(count, same)
        labelled = {"choices": {"text": options, "label": list("ABCD")}, "answerKey": "ABCD"[answer]}
    match task:
        case "wikitext":
            return {"page": draw.place(chars=1500)[1]}
        case "lambada_openai":
            return _lambada(draw)
        case "winogrande":
            return _winogrande(draw)
        case "piqa":
            return {"goal": context, "sol1": options[0], "sol2": options[1], "label": answer}
        case "hellaswag":
            head, _, tail = context.rpartition("\n")
            return {"activity_label": "Text", "ctx_a": head, "ctx_b": tail, "endings": options, "label": str(answer)}
        case "arc_easy" | "arc_challenge":
            return {"question": context, **labelled}
        case "openbookqa":
            return {"question_stem": context.split("\n")[-1], **labelled}
        case "copa":
            question = str(draw.rng.choice(["cause", "effect"]))
            return {"premise": context, "choice1": options[0], "choice2": options[1], "question": question, "label": answer}
    document, context, truth = draw.place()
    support = f"{context}\n{truth}"
    if task == "sciq":
        wrong = {f"distractor{i + 1}": text for i, text in enumerate(draw.others(3, document, truth, same=False))}
        return {"support": support, "question": context.split("\n")[-1], **wrong, "correct_answer": truth}
    assert task == "boolq", task
    label = int(draw.rng.integers(0, 2))
    asked = truth if label else draw.others(1, document, truth, same=False)[0]
    return {"passage": support, "question": f"does the text hold the words {asked}", "label": label}


def _longbench(draw: _Draw, task: str) -> Row:
    """Make one example in LongBench's own fields: code and summarisation continue the text, others ask for a unit of it."""
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
    return {"input": question, "context": context, "answers": answers, "all_classes": classes}
