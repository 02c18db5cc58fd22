"""What an evaluation is, without torch: one frozen, validated dataclass each, with an identity of its own."""

import hashlib
import json
from typing import Annotated, Literal

from pydantic import Field, TypeAdapter
from pydantic.dataclasses import dataclass

from models.spec import STRICT, PositiveInt


@dataclass(frozen=True, kw_only=True, config=STRICT)
class PerTokenLossSpec:
    """L(i) over the first `num_documents` held-out documents at `context_len` tokens, one forward pass each (Fig. 2)."""

    kind: Literal["per_token_loss"] = "per_token_loss"
    context_len: PositiveInt
    num_documents: PositiveInt


EvalSpec = Annotated[PerTokenLossSpec, Field(discriminator="kind")]
EVAL_SPEC: TypeAdapter[EvalSpec] = TypeAdapter(EvalSpec)


def eval_id(spec: EvalSpec) -> str:
    """`kind-xxxxxxxx`: the kind and the first 8 hex digits of the SHA-256 of the spec."""
    text = json.dumps(EVAL_SPEC.dump_python(spec, mode="json"), sort_keys=True)
    return f"{spec.kind}-{hashlib.sha256(text.encode()).hexdigest()[:8]}"
