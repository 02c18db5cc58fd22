"""LLM judge behind any OpenAI-compatible endpoint, with retries and a cache of replies."""

import hashlib
import json
import os
import re
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import openai

from data.source import first_line
from eval.runner.context import Context
from results.atomic import write_atomic

_NO_COMPLETION = "(not a chat completion)"


@dataclass
class Judge:
    """Judge that scores texts with `model`; every reply with a score is cached on disk under the digest of model and prompt.
    The key is never stored.

    `retries`: retries after rate limits (429), server errors and time-outs, with the client library's back-off (which honours
    Retry-After). `reasks`: retries after a reply without a score."""

    model: str
    url: str
    key: str
    cache: Path
    timeout: float = 60.0
    retries: int = 6
    reasks: int = 3
    parallel: int = 8

    def __post_init__(self) -> None:
        self._client = openai.OpenAI(base_url=self.url, api_key=self.key, timeout=self.timeout, max_retries=self.retries)

    @classmethod
    def of(cls, model: str, context: Context) -> "Judge":
        """Make a judge from the command line's options. ValueError if the address or the key is missing."""
        sources = context.sources
        if sources.judge_url is None:
            raise ValueError(f"judge {model!r} needs the address of its endpoint: --judge-url")
        key = os.environ.get(sources.judge_key_env)
        if not key:
            raise ValueError(f"judge {model!r} needs a key in the environment variable {sources.judge_key_env}")
        return cls(model, sources.judge_url, key, sources.judge_cache or context.folder / "judge_cache")

    def score_all(self, prompts: list[str]) -> list[int]:
        """Return the score of each prompt, several in parallel. Equal prompts are sent once. Raises ValueError as `score` does;
        scores received before that are in the cache."""
        unique = list(dict.fromkeys(prompts))
        with ThreadPoolExecutor(self.parallel) as pool:
            scores = dict(zip(unique, pool.map(self.score, unique), strict=True))  # waiting prompts are dropped after an error
        return [scores[prompt] for prompt in prompts]

    def score(self, prompt: str) -> int:
        """Score one text. ValueError if the endpoint refuses, is unreachable, or gives no score 1-10 after `reasks` retries."""
        name = hashlib.sha256(json.dumps([self.model, prompt]).encode()).hexdigest()
        path = self.cache / f"{name}.json"
        with suppress(OSError, ValueError, KeyError, TypeError, RecursionError):  # not asked yet, or a damaged file
            return int(json.loads(path.read_text(encoding="utf-8"))["score"])
        tries = 1 + self.reasks
        for _ in range(tries):
            reply = self._ask(prompt)
            if (score := parse_score(reply)) is not None:
                write_atomic(path, json.dumps({"model": self.model, "prompt": prompt, "score": score, "reply": reply}))
                return score
        raise ValueError(f"judge {self.model!r} gave no score from [[1]] to [[10]] in {tries} replies, the last {reply[:80]!r}")

    def _ask(self, prompt: str) -> str:
        try:
            answer = self._client.chat.completions.create(
                model=self.model, temperature=0, messages=[{"role": "user", "content": prompt}]
            )
        except (openai.APIResponseValidationError, json.JSONDecodeError):
            return _NO_COMPLETION
        except openai.OpenAIError as error:
            what = f"judge {self.model!r} at {self.url}: {first_line(error)}"
            raise ValueError(f"{what}. Answers judged so far are kept; start again later.") from error
        return (answer.choices[0].message.content or "") if getattr(answer, "choices", None) else _NO_COMPLETION


def parse_score(reply: str) -> int | None:
    """Return the last double-bracketed whole number, if it is from 1 to 10."""
    found = re.findall(r"\[\[\s*(\d+)\s*\]\]", reply)
    return int(found[-1]) if found and 1 <= int(found[-1]) <= 10 else None
