"""Needle in a haystack: one sentence in a long text, asked for at the end, over a grid of lengths and depths (Fig. 4)."""

import tomllib
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import kernels.hf_guard  # noqa: F401  # isort: skip  (before transformers)
import numpy as np
import pandas as pd
from transformers import PreTrainedModel

from eval.context import Context
from eval.generation import generate
from eval.haystack import document, folder_text, full_stops, haystack_ids, heldout_texts
from eval.match import exact_match, fuzzy_match, match_score
from eval.passkey import passkey
from eval.progress import Progress
from eval.spec import NeedleSpec
from eval.text import TextCodec

DEFAULT_WORDING = Path(__file__).with_name("needle_prompts.toml")
PASSKEY_SEED = 20250302


@dataclass(frozen=True)
class Wording:
    """The texts of the test; see needle_prompts.toml."""

    needle: str
    question: str
    answer_marker: str
    answer_start: str
    instruction: str
    judge: str

    @classmethod
    def read(cls, path: Path) -> "Wording":
        """Raises ValueError for a file that is not TOML, lacks a text, has one too many, or whose answer_start is not
        the beginning of the needle."""
        try:
            texts = tomllib.loads(path.read_text(encoding="utf-8"))
        except (OSError, tomllib.TOMLDecodeError) as error:
            raise ValueError(f"{path} cannot be read as TOML: {error}") from error
        names = {field.name for field in fields(cls)}
        if set(texts) != names or not all(isinstance(text, str) for text in texts.values()):
            raise ValueError(
                f"{path} must hold exactly the texts {', '.join(sorted(names))}; it holds {', '.join(sorted(texts))}"
            )
        wording = cls(**texts)
        if not wording.needle.startswith(wording.answer_start) or wording.needle == wording.answer_start:
            raise ValueError(f"{path}: answer_start must be the beginning of needle, and leave something to say")
        return wording

    @property
    def expected(self) -> str:
        """What a perfect model goes on with."""
        return self.needle[len(self.answer_start) :].strip()

    def hidden(self, mode: str) -> str:
        """What is inserted into the haystack, on a line of its own; in easy mode the very string that the query repeats."""
        return f"\n{self.needle}\n" if mode == "standard" else f"\n{self.question} {self.answer_marker} {self.needle}\n"

    def prompt(self, text: str) -> str:
        return f"{text}\n\n{self.instruction} {self.question} {self.answer_marker} {self.answer_start}"

    def judge_prompt(self, prediction: str) -> str:
        return self.judge.format(question=self.question, reference=self.needle, answer=prediction)


@dataclass(frozen=True)
class Cell:
    """One prompt (ids with BOS) and the text that should follow."""

    length: int
    depth: float
    sample: int
    prompt: list[int]
    expected: str

    @property
    def key(self) -> str:
        return f"{self.length}/{self.depth}/{self.sample}"


def build_cells(codec: TextCodec, spec: NeedleSpec, context: Context, wording: Wording) -> list[Cell]:
    """All prompts of the grid. Sample 0 is the paper's cell; further samples start further on in the haystack."""
    longest = max(spec.lengths)
    texts = (
        heldout_texts(context.need_corpus())
        if context.haystack is None
        else iter([folder_text(context.haystack, in_order=context.haystack_sorted)])
    )
    ids = haystack_ids(codec, texts, (longest + 64) * spec.samples_per_cell)
    stops = full_stops(codec)
    cells = []
    for length in spec.lengths:
        for depth in spec.depths:
            for sample in range(spec.samples_per_cell):
                if spec.mode == "passkey":
                    rng = np.random.default_rng([PASSKEY_SEED, length, round(depth * 1000), sample])
                    item = passkey(codec, ids, length=length, depth=depth, num_keys=spec.num_keys, rng=rng)
                    cells.append(Cell(length, depth, sample, item.prompt, item.value))
                    continue
                start = sample * (longest + 64)
                hay = ids[start : start + length + 64]
                text = document(codec, hay, wording.hidden(spec.mode), length - spec.reserve, depth, stops)
                cells.append(Cell(length, depth, sample, [codec.bos_id, *codec.encode(wording.prompt(text))], wording.expected))
    return cells


def evaluate(model: PreTrainedModel, tokenizer: TextCodec, spec: NeedleSpec, context: Context) -> pd.DataFrame:
    """Rows (mode, length, depth, sample, score, exact, fuzzy, scored_by, prediction), one per prompt.

    Documents of easy and standard cells have exactly length - reserve tokens as the model reads them, BOS and query
    not counted; pass-key prompts have exactly `length` tokens, everything counted. Generation is greedy.
    `context.extras` gets prompt_tokens: {length: longest prompt, BOS and query included}.
    """
    wording = Wording.read(context.prompts or DEFAULT_WORDING)
    cells = build_cells(tokenizer, spec, context, wording)
    done = context.partial.records
    todo = [cell for cell in cells if cell.key not in done]
    limit = spec.max_new_tokens if spec.mode != "passkey" else min(spec.max_new_tokens, 12)
    with Progress(f"needle ({spec.mode})", len(cells), len(cells) - len(todo)) as progress:

        def keep(index: int, new_ids: list[int]) -> None:
            context.partial.add(todo[index].key, {"prediction": tokenizer.decode(new_ids)})
            progress.advance()

        generate(
            model,
            [cell.prompt for cell in todo],
            max_new_tokens=limit,
            device=context.device,
            stop_ids=() if tokenizer.eos_id is None else (tokenizer.eos_id,),
            batch_tokens=context.batch_tokens,
            on_done=keep,
        )
    longest = {length: max(len(c.prompt) for c in cells if c.length == length) for length in spec.lengths}
    context.extras["prompt_tokens"] = {str(length): tokens for length, tokens in longest.items()}
    rows = [_row(cell, spec, done[cell.key]["prediction"]) for cell in cells]
    if spec.judge is not None:
        _judged(rows, spec.judge, context, wording)
    return pd.DataFrame(rows)


def _row(cell: Cell, spec: NeedleSpec, prediction: str) -> dict[str, Any]:
    if spec.mode == "passkey":
        given = prediction.strip()[: len(cell.expected)]  # what follows does not count, as in the other modes
        exact = given == cell.expected
        fuzzy = sum(a == b for a, b in zip(given, cell.expected, strict=False)) / len(cell.expected)
    else:
        exact, fuzzy = exact_match(prediction, cell.expected), fuzzy_match(prediction, cell.expected)
    return {
        "mode": spec.mode,
        "length": cell.length,
        "depth": cell.depth,
        "sample": cell.sample,
        "score": match_score(exact, fuzzy),
        "exact": float(exact),
        "fuzzy": fuzzy,
        "scored_by": "match",
        "prediction": prediction,
    }


def _judged(rows: list[dict[str, Any]], model: str, context: Context, wording: Wording) -> None:
    """Replace the match scores by the judge's; an empty answer gets the lowest score without being sent."""
    from eval.judge import Judge

    assert context.judge is not None
    asked = [row for row in rows if row["prediction"].strip()]
    verdicts = Judge(model, context.judge).score_all([wording.judge_prompt(row["prediction"]) for row in asked])
    for row in rows:
        row["scored_by"], row["score"] = model, 1.0
    for row, verdict in zip(asked, verdicts, strict=True):
        row["score"] = float(verdict.score)
