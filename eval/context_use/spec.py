"""Use of context: the loss of the same tokens with more and more text before them.

Targets are the last `targets` tokens before each of `places` in a held-out document. For every context c one forward pass reads
BOS, the c tokens before the targets, and the targets. In differences between two contexts, or between two models, the
difficulty of the text cancels."""

from typing import Annotated, Literal

import pandas as pd

from eval.runner.heldout import HeldoutSpec
from eval.runner.spec import Once
from models.spec_parts import PositiveInt, strict
from results.schema import Schema, integer, number


@strict
class Spec(HeldoutSpec):
    """Loss of the same tokens of held-out documents, given more and more of the text before them."""

    kind: Literal["context_use"] = "context_use"
    contexts: Annotated[tuple[PositiveInt, ...], Once]
    """Tokens before the targets; each place is measured with the contexts that fit before its targets."""
    places: Annotated[tuple[PositiveInt, ...], Once]
    """Positions in the document at which the targets end."""
    targets: PositiveInt = 512
    """Number of tokens whose loss is averaged."""
    num_documents: PositiveInt
    """Number of documents, the first of the held-out split."""

    SCHEMA = Schema(
        {"document": integer(0), "place": integer(1), "context": integer(1), "loss": number(0)},  # nats per token
        key=("document", "place", "context"),
    )

    def __post_init__(self) -> None:
        shortest, longest = min(self.contexts) + self.targets, max(self.contexts) + self.targets
        if min(self.places) < shortest or max(self.places) < longest:
            raise ValueError(
                f"places {self.places}: {self.targets} targets after contexts of {min(self.contexts)} to {max(self.contexts)} "
                f"tokens need all places at {shortest} or beyond, and one at {longest} or beyond"
            )

    @property
    def extent(self) -> tuple[int, int]:
        return self.num_documents, max(self.places)

    def places_of(self, context: int) -> tuple[int, ...]:
        """Return the places that are preceded by enough tokens for this context and the targets."""
        return tuple(place for place in self.places if context + self.targets <= place)

    def tokens_read(self) -> list[tuple[int, int]]:
        windows = [context + self.targets for context in self.contexts for _ in self.places_of(context)]
        return [(self.num_documents * length, length) for length in windows]

    def summary(self, rows: pd.DataFrame) -> list[str]:
        whole = rows[rows["place"] == rows["place"].max()]
        means = whole.groupby("context")["loss"].mean()
        return [f"  given {context} tokens: loss {loss:.4f} nats per token (0 is perfect)" for context, loss in means.items()]
