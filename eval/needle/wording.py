"""Texts of the needle tests: the hidden sentence, the question, and the beginning of the answer. Torch-free."""

import re
import tomllib
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

DEFAULT_WORDING, FACTS, CHOICES = (Path(__file__).with_name(f"{name}.toml") for name in ("prompts", "facts", "choices"))


def words(text: str) -> list[str]:
    """Return the words by which an answer is matched: of letters a to z and digits, in lower case."""
    return re.findall(r"[a-z0-9]+", text.lower())


@dataclass(frozen=True)
class Wording:
    """Texts of the test; see prompts.toml."""

    needle: str
    question: str
    answer_marker: str
    answer_start: str
    instruction: str = ""
    judge: str = ""

    def __post_init__(self) -> None:
        if not self.needle.startswith(self.answer_start) or self.needle == self.answer_start:
            raise ValueError("answer_start must be the beginning of needle, and leave something to say")
        try:
            self.judge_prompt("")
        except (KeyError, IndexError, ValueError) as error:
            raise ValueError(f"judge may hold {{question}}, {{reference}} and {{answer}} in braces, not {error}") from None
        if self.judge and "{answer}" not in self.judge:
            raise ValueError("judge must hold {answer}, where the answer to be judged goes")

    @classmethod
    def read(cls, path: Path) -> "Wording":
        """Read a file of texts. ValueError if it is not TOML, lacks a text, or has an unknown or an invalid one."""
        texts = _toml(path)
        names = {field.name for field in fields(cls)}
        if set(texts) != names or not all(isinstance(text, str) for text in texts.values()):
            held = f"it holds {', '.join(sorted(texts))}"
            raise ValueError(f"{path} must hold exactly the texts {', '.join(sorted(names))}; {held}")
        try:
            return cls(**texts)
        except ValueError as error:
            raise ValueError(f"{path}: {error}") from None

    @property
    def expected(self) -> str:
        """Text with which a perfect model continues the prompt."""
        return self.needle[len(self.answer_start) :].strip()

    @property
    def query(self) -> str:
        """Text after the document."""
        return "\n\n" + " ".join(filter(None, (self.instruction, self.question, self.answer_marker, self.answer_start)))

    def hidden(self, mode: str) -> str:
        """Return the text to hide, on a line of its own; in easy mode it contains the question as the query asks it."""
        return f"\n{self.needle}\n" if mode == "standard" else f"\n{self.question} {self.answer_marker} {self.needle}\n"

    def judge_prompt(self, prediction: str) -> str:
        return self.judge.format(question=self.question, reference=self.needle, answer=prediction)


def read_facts() -> list[Wording]:
    """Read the needles of `needle_recall`, in order."""
    texts = _toml(FACTS)
    return [Wording(answer_marker=texts["answer_marker"], **fact) for fact in texts["fact"]]


@dataclass(frozen=True)
class Choices:
    """Needles of `needle_choice`: sentences that give a holder's secret word."""

    holders: list[str]
    words: list[str]
    question: str
    answer_marker: str
    answer_start: str

    @classmethod
    def read(cls) -> "Choices":
        return cls(**_toml(CHOICES))

    def wording(self, holder: str, word: str) -> Wording:
        """Return the needle that says that `word` is the secret word of `holder`."""
        start = self.answer_start.format(holder=holder)
        return Wording(f"{start} {word}.", self.question.format(holder=holder), self.answer_marker, start)


def _toml(path: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:  # ValueError: not UTF-8, or not TOML
        raise ValueError(f"{path} cannot be read as TOML: {error}") from error
