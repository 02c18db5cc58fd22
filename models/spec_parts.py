"""Parts that the specs of all models share, without torch: strict fields, and the numbers of the parts they have in common."""

from typing import Annotated

from pydantic import ConfigDict, Field

STRICT = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False)
PositiveInt = Annotated[int, Field(gt=0)]
PositiveFloat = Annotated[float, Field(gt=0)]


class ModelKind:
    """Base of every spec: the fields that all have, and what only some kinds answer otherwise."""

    kind: str
    vocab_size: int
    hidden_size: int
    num_layers: int
    norm_eps: float

    def flops_per_token(self, seq_len: int) -> int:
        """Return the FLOPs of a forward pass per token at `seq_len`, nothing skipped."""
        raise NotImplementedError

    def executed_flops_per_token(self, seq_len: int, pruned_share: float) -> int:
        """Return those that are carried out when `pruned_share` of the attention is skipped."""
        return self.flops_per_token(seq_len)

    @property
    def prunes(self) -> bool:
        """Tell whether a pass computes less than `flops_per_token`, by an amount that the data decide."""
        return False

    @property
    def compiles(self) -> bool:
        """Tell whether torch.compile makes its layers faster. fla's launch fused kernels of their own and gain nothing."""
        return False

    @property
    def measured(self) -> tuple[str, ...]:
        """Name what is measured while the model trains (`Backbone.measuring`): columns of metrics.jsonl."""
        return ()


def swiglu_width(hidden_size: int, mlp_ratio: float) -> int:
    """Width m of a SwiGLU MLP: int(d * ratio * 2/3) rounded up to a multiple of 256 (section 3.1 of the released
    setup)."""
    return 256 * -(-int(hidden_size * mlp_ratio * 2 / 3) // 256)


class WithMLP(ModelKind):
    """Base of the specs whose blocks end in a SwiGLU MLP: as wide as `mlp_width`, or else as `mlp_ratio` makes it."""

    mlp_ratio: float
    mlp_width: int | None

    @property
    def intermediate_size(self) -> int:
        return self.mlp_width or swiglu_width(self.hidden_size, self.mlp_ratio)


def head_params(vocab_size: int, hidden_size: int) -> int:
    """The output head and the final norm. The paper's count has the head in it, but not the input embedding."""
    return vocab_size * hidden_size + hidden_size


def mlp_params(hidden_size: int, width: int) -> int:
    """A SwiGLU MLP and both norms of its block."""
    return 3 * hidden_size * width + 2 * hidden_size
