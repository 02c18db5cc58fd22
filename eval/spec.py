"""What an evaluation is, without torch: one frozen, validated dataclass each, with an identity of its own.

A spec holds what changes the rows, and no paths: where texts and data sets lie is said when an evaluation is started
(eval/context.py), and a spec names them by content ("heldout", "local", a hub name, or a digest).
"""

import hashlib
import json
from typing import Annotated, Literal

from pydantic import Field, TypeAdapter, model_validator
from pydantic.dataclasses import dataclass

from models.spec import STRICT, PositiveInt

NonNegativeInt = Annotated[int, Field(ge=0)]
Depth = Annotated[float, Field(ge=0, le=100, strict=False)]

LONGBENCH_TASKS = (
    "narrativeqa", "qasper", "multifieldqa_en", "hotpotqa", "2wikimqa", "musique", "gov_report", "qmsum", "multi_news",
    "trec", "triviaqa", "samsum", "lcc", "repobench_p",
)  # fmt: skip
LM_EVAL_TASKS = (
    "wikitext", "lambada_openai", "piqa", "hellaswag", "winogrande", "arc_easy", "arc_challenge", "copa", "openbookqa",
    "sciq", "boolq",
)  # fmt: skip
PAPER_NEEDLE_LENGTHS = tuple(range(1000, 32001, 3100))
PAPER_NEEDLE_DEPTHS = tuple(float(depth) for depth in range(0, 101, 10))


@dataclass(frozen=True, kw_only=True, config=STRICT)
class PerTokenLossSpec:
    """L(i) over the first `num_documents` held-out documents at `context_len` tokens, one forward pass each (Fig. 2)."""

    kind: Literal["per_token_loss"] = "per_token_loss"
    context_len: PositiveInt
    num_documents: PositiveInt


@dataclass(frozen=True, kw_only=True, config=STRICT)
class NeedleSpec:
    """Needle in a haystack over a grid of lengths (tokens) and depths (percent), greedy generation (Fig. 4).

    `mode`: "standard" hides one sentence, "easy" hides question, answer marker and sentence, "passkey" hides
    `num_keys` key-value lines in the suite's own format, which small models can learn.
    `reserve`: tokens of each length kept free for the query (passkey counts its query exactly and ignores it).
    `text`: "heldout", or the digest of the folder given with --haystack. `wording`: "default", or the digest of the file given
    with --prompts.
    `judge`: model name of an LLM judge; None scores by exact and fuzzy match.
    """

    kind: Literal["needle"] = "needle"
    mode: Literal["easy", "standard", "passkey"] = "standard"
    lengths: tuple[PositiveInt, ...] = PAPER_NEEDLE_LENGTHS
    depths: tuple[Depth, ...] = PAPER_NEEDLE_DEPTHS
    samples_per_cell: PositiveInt = 1
    max_new_tokens: PositiveInt = 1024
    reserve: NonNegativeInt = 200
    num_keys: PositiveInt = 1
    text: str = "heldout"
    wording: str = "default"
    judge: str | None = None

    @model_validator(mode="after")
    def _check(self) -> "NeedleSpec":
        if not self.lengths or not self.depths:
            raise ValueError("a needle grid needs at least one length and one depth")
        if self.mode != "passkey" and min(self.lengths) <= self.reserve:
            raise ValueError(
                f"length {min(self.lengths)} leaves nothing after the {self.reserve} reserved tokens; "
                "choose longer lengths or a smaller reserve"
            )
        if self.num_keys > 1 and self.mode != "passkey":
            raise ValueError(f"num_keys {self.num_keys} applies to mode 'passkey' only, not to {self.mode!r}")
        if self.judge is not None and self.mode == "passkey":
            raise ValueError("mode 'passkey' is scored by match; leave the judge out")
        return self


@dataclass(frozen=True, kw_only=True, config=STRICT)
class LongBenchSpec:
    """LongBench tasks with middle truncation to `max_prompt_tokens` and greedy generation (Table 2).

    `dataset`: "hub" (THUDM/LongBench), "local" (stand-ins made from the held-out text), or the digest of a folder.
    `original_cut`: cut predictions to their first line only where the benchmark does (few-shot tasks), not everywhere.
    `max_examples`: only the first so many of each task. `max_new_tokens`: a cap on the tasks' own limits.
    """

    kind: Literal["longbench"] = "longbench"
    tasks: tuple[str, ...] = LONGBENCH_TASKS
    dataset: str = "hub"
    max_prompt_tokens: PositiveInt = 15500
    original_cut: bool = False
    max_examples: PositiveInt | None = None
    max_new_tokens: PositiveInt | None = None

    @model_validator(mode="after")
    def _check(self) -> "LongBenchSpec":
        unknown = sorted(set(self.tasks) - set(LONGBENCH_TASKS))
        if unknown or not self.tasks:
            raise ValueError(f"unknown LongBench task {', '.join(unknown)}; choose from {', '.join(LONGBENCH_TASKS)}")
        if self.max_prompt_tokens < 2:
            raise ValueError(f"max_prompt_tokens {self.max_prompt_tokens} must be at least 2 (a head and a tail)")
        return self


@dataclass(frozen=True, kw_only=True, config=STRICT)
class LmEvalSpec:
    """Zero-shot tasks of the LM evaluation harness (Tables 1, 7, 8).

    `include`: "harness" (the harness's own tasks, data from the hub), "local" (stand-ins made from the held-out text),
    or the digest of a folder of task files. `add_bos`: put BOS before every context (once); `limit`: examples per task.
    """

    kind: Literal["lm_eval"] = "lm_eval"
    tasks: tuple[str, ...] = LM_EVAL_TASKS
    include: str = "harness"
    max_length: PositiveInt = 16384
    batch_size: PositiveInt = 16
    add_bos: bool = True
    limit: PositiveInt | None = None

    @model_validator(mode="after")
    def _check(self) -> "LmEvalSpec":
        if not self.tasks:
            raise ValueError("name at least one lm-eval task")
        if self.max_length < 2:
            raise ValueError(f"max_length {self.max_length} must be at least 2")
        return self


@dataclass(frozen=True, kw_only=True, config=STRICT)
class GateMapsSpec:
    """Forget-gate matrix F and attention matrix A of chosen heads on one held-out document, statistics of all (Fig. 3).

    `layers` and `heads` are 0-based, () means every one; of these the `num_maps` most local and most global heads (half
    each, by median F) are stored as matrices of side `grid`, downsampled. `distance`: offset in tokens at which F is
    taken for that median (1024 in the suggested criterion). `log_tolerance`: log(eps) of adaptive computation pruning.
    """

    kind: Literal["gate_maps"] = "gate_maps"
    seq_len: PositiveInt = 16384
    document: NonNegativeInt = 0
    layers: tuple[NonNegativeInt, ...] = ()
    heads: tuple[NonNegativeInt, ...] = ()
    num_maps: PositiveInt = 4
    grid: PositiveInt = 256
    distance: PositiveInt = 1024
    log_tolerance: float = -10.0

    @model_validator(mode="after")
    def _check(self) -> "GateMapsSpec":
        if self.distance >= self.seq_len:
            raise ValueError(f"distance {self.distance} must be below seq_len {self.seq_len}")
        return self


@dataclass(frozen=True, kw_only=True, config=STRICT)
class ThroughputSpec:
    """Tokens per second, peak memory and model FLOP utilisation of a training step or of generation (Table 6).

    "train": forward, backward and optimiser step on `batch_size` sequences of `seq_len`. "generate": prefill of
    `batch_size` prompts of `seq_len` tokens, then `new_tokens` decoding steps. Random token ids; medians over `repeats`.
    """

    kind: Literal["throughput"] = "throughput"
    mode: Literal["train", "generate"] = "train"
    seq_len: PositiveInt = 16384
    batch_size: PositiveInt = 1
    new_tokens: PositiveInt = 64
    warmup: NonNegativeInt = 2
    repeats: PositiveInt = 5
    activation_checkpointing: bool = False

    @model_validator(mode="after")
    def _check(self) -> "ThroughputSpec":
        if self.mode == "generate" and self.new_tokens < 2:
            raise ValueError(f"new_tokens {self.new_tokens}: timing the decoding needs at least 2")
        return self


EvalSpec = Annotated[
    PerTokenLossSpec | NeedleSpec | LongBenchSpec | LmEvalSpec | GateMapsSpec | ThroughputSpec,
    Field(discriminator="kind"),
]
EVAL_SPEC: TypeAdapter[EvalSpec] = TypeAdapter(EvalSpec)


def eval_id(spec: EvalSpec) -> str:
    """`kind-xxxxxxxx`: the kind and the first 8 hex digits of the SHA-256 of the spec."""
    text = json.dumps(EVAL_SPEC.dump_python(spec, mode="json"), sort_keys=True)
    return f"{spec.kind}-{hashlib.sha256(text.encode()).hexdigest()[:8]}"
