"""RULER's single needles: examples, the task files by which the harness reads them, and its scores as rows."""

import json
import re
import tempfile
import tomllib
from collections.abc import Iterator
from itertools import product
from pathlib import Path
from typing import Any
from uuid import UUID

import numpy as np
import pandas as pd

from beyond.eval.ruler.spec import CHOICES, TASKS, VERSION, Spec
from eval.lm_eval.measure import results_of, value_of
from eval.lm_eval.spec import Spec as HarnessSpec
from eval.lm_eval.task_files import write_task
from eval.needle.haystack import haystack_ids, haystack_texts
from eval.runner.context import Context
from eval.runner.loading import Loaded
from eval.runner.text import TextCodec

TEXTS = tomllib.loads(Path(__file__).with_name("texts.toml").read_text(encoding="utf-8"))
DEPTHS = np.linspace(0, 1, 40)


class Examples:
    """Maker of examples, which depend only on tokeniser, text, task, length and number."""

    def __init__(self, spec: Spec, codec: TextCodec, texts: Iterator[str]):
        self.spec, self.codec = spec, codec
        words = (" ".join(text.split()) + " " for text in texts)  # collapsed before it is cut to a length, not after
        self.hay = haystack_ids(codec, words, max(spec.lengths)) if set(spec.tasks) & set(TASKS[1:]) else []

    def make(self, task: str, length: int, number: int) -> dict[str, Any]:
        """Make one example. ValueError for a length into which the frame does not fit."""
        draw = np.random.default_rng([TASKS.index(task), length, number])
        kind = "uuid" if task == TASKS[2] else "number"
        key = f"{draw.choice(TEXTS['adjectives'])}-{draw.choice(TEXTS['nouns'])}"
        values = [
            str(UUID(bytes=draw.bytes(16), version=4) if kind == "uuid" else draw.integers(10**6, 10**7))
            for _ in range(CHOICES)
        ]
        needle = TEXTS["needle"].format(kind=kind, key=key, value=values[0])
        depth = float(draw.choice(DEPTHS))
        answer = max(len(self.codec.encode(f" {value}")) for value in values) + 1
        room = length - 1 - (self.spec.max_new_tokens if self.spec.answers == "generate" else answer)
        size = room - len(self.codec.encode(TEXTS["frame"].format(kind=kind, key=key, text=needle)))
        place = self._repeated if task == TASKS[0] else self._hidden
        found: dict[int, tuple[int, str]] = {}
        while size > 0 and size not in found:
            prompt = TEXTS["frame"].format(kind=kind, key=key, text=place(needle, size, depth))
            found[size] = len(self.codec.encode(prompt)), prompt
            size += room - found[size][0]
        fitting = [each for each in found.values() if each[0] <= room]
        if not fitting:
            raise ValueError(f"{task} does not fit into {length} tokens of this tokeniser: ask for longer --lengths")
        order = draw.permutation(CHOICES)
        choices = {"choices": [f" {values[i]}" for i in order], "answer": int(order.argmin())}
        return {"input": max(fitting)[1], "outputs": values[:1], **choices}

    def _repeated(self, needle: str, size: int, depth: float) -> str:
        lines = [TEXTS["repeated"]] * (size // len(self.codec.encode(f"{TEXTS['repeated']}\n")))
        lines.insert(round(depth * len(lines)), needle)
        return "\n".join(lines)

    def _hidden(self, needle: str, size: int, depth: float) -> str:
        """Return the text with the needle after one of its sentences, or at its beginning or end."""
        text = self.codec.decode(self.hay[:size]).strip()
        ends = [0, *(found.end() for found in re.finditer(r"[.!?] ", text)), len(text)]
        at = ends[round(depth * (len(ends) - 1))]
        return " ".join(filter(None, (text[:at].strip(), needle, text[at:].strip())))


def evaluate(loaded: Loaded, spec: Spec, context: Context) -> pd.DataFrame:
    """Return a row per task and length. ValueError if a length is too short, or haystack or version are not the spec's."""
    if spec.version != VERSION:
        raise ValueError(f"version {spec.version}: this suite makes examples of version {VERSION}; plan it again")
    examples = Examples(spec, loaded.tokenizer, haystack_texts(spec.text, context))
    names = {f"{task}_{length}": (task, length) for task, length in product(spec.tasks, spec.lengths)}
    harness = HarnessSpec(tasks=tuple(names), max_length=max(spec.lengths), precision=spec.precision)
    with tempfile.TemporaryDirectory(prefix="ruler-tasks-") as scratch:
        folder = Path(scratch)
        for name, (task, length) in names.items():
            made = [examples.make(task, length, number) for number in range(spec.samples)]
            write_task(folder, name, made, "test", _form(spec))
        results = results_of(tuple(names), folder, loaded, harness, context)
    metric = "score,none" if spec.answers == "generate" else "acc,none"
    values = {place: value_of(results["results"][name], metric, 100.0) for name, place in names.items()}
    return pd.DataFrame(
        {"task": task, "length": length, **value, "num_examples": spec.samples} for (task, length), value in values.items()
    )


def _form(spec: Spec) -> list[str]:
    """Return the lines of a task file that say how a model is asked and how its answers are scored."""
    lines = [f"include: {json.dumps(str(Path(__file__).with_name(f'{spec.answers}.yaml')))}"]
    if spec.answers == "generate":
        limits = {"do_sample": False, "max_gen_toks": spec.max_new_tokens, "until": []}
        lines.append(f"generation_kwargs: {json.dumps(limits)}")
    return lines
