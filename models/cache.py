"""State that a model keeps between two calls of cached decoding: per layer, a few named tensors."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

BLOCK = 256
"""Tokens by which a cached sequence grows, so that one more token is written in place instead of copying all."""

State = dict[str, Any]


class DecodingCache:
    """State of every layer after `seq_len` tokens (left padding included), without gradients. A recurrent layer replaces its
    state with `update`, as fla's layers do with fla's own cache; an attention layer extends its sequences with `append`.

    `longest`: tokens that the text will have at most. Given it, a FoX with QK-norm lets go for good of every key that no query
    of such a text can see: of these a query loses less than e^-10 of its probability in all."""

    is_compileable = False  # generate asks: the sequences grow

    def __init__(self, longest: int | None = None) -> None:
        self.longest = longest
        self.layers: dict[int, State] = {}
        self.seq_len = 0

    def __len__(self) -> int:
        return len(self.layers)

    def __getitem__(self, layer_idx: int) -> State:
        return self.layers[layer_idx]

    def get_seq_length(self, layer_idx: int = 0) -> int:
        """Number of tokens seen, as Hugging Face's generate asks for it."""
        return self.seq_len

    def update(self, layer_idx: int, offset: int = 0, **state: Any) -> State:
        """Replace the named entries of a layer. `offset`, the number of new tokens, is the model's business."""
        layer = self.layers.setdefault(layer_idx, {})
        layer.update({name: _map(torch.Tensor.detach, value) for name, value in state.items()})
        return layer

    def append(self, layer_idx: int, window: int | None = None, **new: Tensor) -> tuple[Tensor, ...]:
        """Extend sequences (B, T, ...) by new tokens along T and return them whole, in the order given. With a `window`, that
        many tokens are kept between two calls, and returned are the new ones and the earlier ones that they can see."""
        layer = self.layers.setdefault(layer_idx, {})
        if window is not None:
            return tuple(_slide(layer, name, value, window) for name, value in new.items())
        return tuple(_append(layer, name, value, self.seq_len) for name, value in new.items())

    def newest(self, layer_idx: int, name: str) -> Tensor | None:
        """Return the last token's part (B, 1, ...) of a sequence, None where there is none yet."""
        sequence = self.layers.get(layer_idx, {}).get(name)
        if sequence is None or self.seq_len == 0:
            return None
        last = min(self.seq_len, sequence.shape[1])  # a window holds fewer, a buffer more
        return sequence[:, last - 1 : last]

    def reorder_cache(self, beam_idx: Tensor) -> None:
        """Keep, in this order, these rows of the batch."""
        if self.longest is not None:
            raise ValueError("beams need a cache without `longest`")
        for layer in self.layers.values():
            for name, value in layer.items():
                layer[name] = _map(lambda tensor: tensor[beam_idx.to(tensor.device)], value)  # keeps what lies side by side


def _append(layer: State, name: str, new: Tensor, seq_len: int) -> Tensor:
    total = seq_len + new.shape[1]
    buffer = layer.get(name)
    if buffer is None or buffer.shape[1] < total:
        room = BLOCK * (-(-total // BLOCK) + 1)
        if new.dim() == 3:  # one number a head: decoding reads those of a head side by side
            grown = new.new_empty(new.shape[0], new.shape[2], room).transpose(1, 2)
        else:
            grown = new.new_empty(new.shape[0], room, *new.shape[2:])
        if buffer is not None:
            grown[:, :seq_len] = buffer[:, :seq_len]
        layer[name] = buffer = grown
    buffer[:, seq_len:total] = new.detach()
    return new if seq_len == 0 else buffer[:, :total]


def _slide(layer: State, name: str, new: Tensor, window: int) -> Tensor:
    past = layer.get(name)
    if past is None:
        layer[name] = new[:, -window:].detach().clone()  # a view would keep the whole prompt
        return new
    whole = torch.cat([past[:, max(0, past.shape[1] + 1 - window) :], new], 1)
    layer[name] = whole.detach() if whole.shape[1] <= window else whole[:, -window:].detach().clone()
    return whole


def _map(function: Callable[[Tensor], Tensor], value: Any) -> Any:
    if isinstance(value, (tuple, list)):
        return type(value)(_map(function, item) for item in value)
    if isinstance(value, dict):
        return {name: _map(function, item) for name, item in value.items()}
    return function(value) if isinstance(value, Tensor) else value
