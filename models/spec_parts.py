"""Parts that the specs of all models share, without torch: strict fields, and the sizes of common layers."""

from importlib.util import find_spec
from typing import Annotated, ClassVar, Literal, TypeVar, dataclass_transform

from pydantic import ConfigDict, Field
from pydantic.dataclasses import dataclass

PositiveInt = Annotated[int, Field(gt=0)]
PositiveFloat = Annotated[float, Field(gt=0)]
NonNegativeInt = Annotated[int, Field(ge=0)]
OutputGate = Literal["sigmoid", "silu"]

Spec = TypeVar("Spec")


@dataclass_transform(kw_only_default=True, frozen_default=True, field_specifiers=(Field,))
def strict(cls: type[Spec]) -> type[Spec]:
    """Make a class a frozen dataclass of keyword arguments, which refuses missing, unknown, non-finite or wrong-typed ones."""
    config = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False)
    return dataclass(frozen=True, kw_only=True, config=config)(cls)  # type: ignore[return-value]


@strict
class ModelKind:
    """Base of every spec: the common fields, the quantities derived from them, and defaults that some kinds override."""

    kind: str
    vocab_size: PositiveInt
    hidden_size: PositiveInt
    num_layers: PositiveInt
    norm_eps: PositiveFloat = 1e-6

    compiles: ClassVar[bool] = False
    """True if torch.compile makes the layers faster. Layers that consist of fused kernels gain nothing."""
    fp32_refused: ClassVar[str] = ""
    """Words for an error message, if kernels cannot compute in fp32 on a GPU: "fla's DeltaNet kernels refuse"."""

    family: ClassVar[str] = "recurrent"
    """Architecture, by which seeds' noise is pooled: "recurrent", or "attention with a forget gate"."""

    @property
    def hopper_refused(self) -> str:
        """Words for an error message, if gradients of this size are wrong on Hopper GPUs."""
        return ""

    @property
    def is_built(self) -> bool:
        """Tell whether the kind has torch modules. Without them its stored runs can only be read."""
        return find_spec(f"{type(self).__module__.removesuffix('.spec')}.module") is not None

    @property
    def has_places(self) -> bool:
        """Tell whether a step of cached decoding can be replayed (`DecodingCache` with room): all states can stay at fixed
        addresses, and no layer reads the number of cached tokens on the host."""
        return True

    @property
    def layer_params(self) -> int:
        """Number of parameters of one layer."""
        raise NotImplementedError

    @property
    def num_params(self) -> int:
        """Count the parameters as the paper does: without the input embedding, with the output head."""
        return (self.vocab_size + 1) * self.hidden_size + self.num_layers * self.layer_params  # with the final norm

    def mixing_flops(self, seq_len: int) -> int:
        """Return the FLOPs of attention or recurrence in a forward pass per token, over all layers."""
        raise NotImplementedError

    def flops_per_token(self, seq_len: int) -> int:
        """Return the FLOPs of a forward pass per token at `seq_len`, nothing skipped (Table 6): two for each parameter, and
        `mixing_flops`. Training takes three times as many."""
        return 2 * self.num_params + self.mixing_flops(seq_len)

    def executed_flops_per_token(self, seq_len: int, pruned_share: float) -> int:
        """Return the FLOPs per token that are executed when `pruned_share` of the attention is skipped."""
        return self.flops_per_token(seq_len)

    def state_size(self, seq_len: int) -> int:
        """Count the numbers kept per sequence for decoding after `seq_len` tokens, over all layers, the inputs of convolutions
        included."""
        raise NotImplementedError

    @property
    def prunes(self) -> bool:
        """Tell whether a pass computes less than `flops_per_token`, by an amount that depends on the data."""
        return False

    @property
    def measured(self) -> tuple[str, ...]:
        """Names of the quantities measured during training (`Backbone.measuring`): columns of metrics.jsonl."""
        return ("pruned_share",) if self.prunes else ()


def swiglu_width(hidden_size: int, mlp_ratio: float) -> int:
    """Width m of a SwiGLU MLP: int(d * ratio * 2/3) rounded up to a multiple of 256 (section 3.1 of the released setup)."""
    return 256 * -(-int(hidden_size * mlp_ratio * 2 / 3) // 256)


def mlp_params(hidden_size: int, width: int) -> int:
    """Count the parameters of a SwiGLU MLP and both norms of its block."""
    return 3 * hidden_size * width + 2 * hidden_size


@strict
class WithMLP(ModelKind):
    """Base of the specs whose blocks end in a SwiGLU MLP, whose width is `mlp_width` or else follows from `mlp_ratio`."""

    mlp_ratio: PositiveFloat = 4.0
    mlp_width: PositiveInt | None = None

    @property
    def intermediate_size(self) -> int:
        return self.mlp_width or swiglu_width(self.hidden_size, self.mlp_ratio)

    @property
    def mixer_params(self) -> int:
        """Number of parameters of one layer's attention or recurrence."""
        raise NotImplementedError

    @property
    def layer_params(self) -> int:
        return mlp_params(self.hidden_size, self.intermediate_size) + self.mixer_params


@strict
class WithAttentionHeads(WithMLP):
    """Base of the specs of attention whose kernels support only a few head sizes."""

    num_heads: PositiveInt

    def __post_init__(self) -> None:
        if self.hidden_size % self.num_heads:
            raise ValueError(f"hidden_size {self.hidden_size} is not a multiple of num_heads {self.num_heads}")
        if self.head_dim not in (16, 32, 64, 128):
            raise ValueError(f"head_dim {self.head_dim} (hidden_size / num_heads) must be 16, 32, 64 or 128")

    @property
    def head_dim(self) -> int:
        return self.hidden_size // self.num_heads


@strict
class WithMatrixState(WithMLP):
    """Base of the specs of layers whose state is a matrix per head. A head has keys of `head_dim` channels and values of
    EXPAND_V times as many; values have hidden_size channels in all."""

    head_dim: PositiveInt = 128

    EXPAND_V: ClassVar[int] = 1

    def __post_init__(self) -> None:
        if self.hidden_size % (self.EXPAND_V * self.head_dim):
            times = "" if self.EXPAND_V == 1 else "twice the "
            raise ValueError(f"hidden_size {self.hidden_size} is not a multiple of {times}head_dim {self.head_dim}")

    @property
    def num_heads(self) -> int:
        return self.hidden_size // (self.EXPAND_V * self.head_dim)

    def state_size(self, seq_len: int) -> int:
        return self.num_layers * self.hidden_size * self.head_dim


@strict
class WithDeltaRule(WithMatrixState):
    """Base of the specs of layers with the delta rule and short convolutions."""

    conv_size: PositiveInt = 4

    @property
    def conv_params(self) -> int:
        """Number of parameters of the convolutions of queries, keys and values; decoding caches as many of their inputs."""
        return (self.hidden_size + 2 * self.hidden_size // self.EXPAND_V) * self.conv_size

    def mixing_flops(self, seq_len: int) -> int:
        return 6 * self.num_layers * self.hidden_size * self.head_dim  # 6 for each element of the state

    def state_size(self, seq_len: int) -> int:
        return super().state_size(seq_len) + self.num_layers * self.conv_params
