"""State that a model keeps between two calls of cached decoding: per layer, a few named tensors."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves, tree_map_only

BLOCK = 256
"""Tokens by which a cached sequence grows, so that most tokens are written in place instead of copying the sequence."""

State = dict[str, Any]


class DecodingCache:
    """State of every layer after `seq_len` tokens (left padding included), without gradients. A recurrent layer replaces its
    state with `update`, as fla's layers do with fla's own cache; an attention layer extends its sequences with `append`.

    `room`: maximum length of the text in tokens. With it, the memory of every sequence is allocated at the start, and all
    states stay at fixed addresses, so that a GPU can replay a step of one token as a CUDA graph (models/graphed.py)."""

    is_compileable = False  # read by generate: the sequences grow

    def __init__(self, room: int | None = None) -> None:
        self.room = room
        self.layers: dict[int, State] = {}
        self.seq_len = 0
        self.rows = 0
        """Sequences of the batch."""
        self.dtype: torch.dtype | None = None
        """Dtype that the layers compute in: that of the weights, or autocast's."""
        self.position: Tensor | None = None
        """Number of cached tokens, (1,) int64 on the model's device; None without room."""
        self.seq_start: Tensor | None = None
        """First real position of each sequence, (B,) int32; None without padding."""
        self.begun = True
        """False if there is room, and some sequence may be all padding so far."""
        self.graphed: Any = None
        """`GraphedStep` of this cache, from its first step of one token on a GPU on; only with room."""

    def __len__(self) -> int:
        return len(self.layers)

    def __getitem__(self, layer_idx: int) -> State:
        return self.layers[layer_idx]

    def __getstate__(self) -> dict[str, Any]:
        """Return the attributes of a copy, without the graph, which would write to this cache's states."""
        return self.__dict__ | {"graphed": None}

    def get_seq_length(self, layer_idx: int = 0) -> int:
        """Number of tokens seen, under the name that Hugging Face's generate uses."""
        return self.seq_len

    def update(self, layer_idx: int, offset: int = 0, **state: Any) -> State:
        """Replace the named entries of a layer. `offset`, the number of new tokens, is ignored: the model counts them."""
        layer = self.layers.setdefault(layer_idx, {})
        for name, value in state.items():
            value = tree_map_only(Tensor, Tensor.detach, value)
            if self.room is not None and name in layer:
                _write(layer[name], value, name)
            else:
                layer[name] = value
        return layer

    def append(self, layer_idx: int, window: int | None = None, **new: Tensor) -> tuple[Tensor, ...]:
        """Extend sequences (B, T, ...) by new tokens along T and return the whole sequences, in the order given. With a
        `window`, that many tokens are kept between two calls, and the new ones are returned with all that they can see. With
        room, a single token after others gets all of it: `length` entries hold tokens, the rest are zeros."""
        layer = self.layers.setdefault(layer_idx, {})
        if window is not None:
            return tuple(_slide(layer, name, value.detach(), window) for name, value in new.items())
        return tuple(self._append(layer, name, value.detach()) for name, value in new.items())

    def _append(self, layer: State, name: str, new: Tensor) -> Tensor:
        buffer, total = layer.get(name), self.seq_len + new.shape[1]
        if self.room is not None and buffer is None:
            layer[name] = buffer = _sequences(new, self.room, torch.zeros)
        sealed = buffer is not None and buffer.is_inference() and not torch.is_inference_mode_enabled()  # may not be written to
        if buffer is None or buffer.shape[1] < total or sealed:
            grown = _sequences(new, BLOCK * (-(-total // BLOCK) + 1), torch.empty)
            if buffer is not None:
                grown[:, : self.seq_len] = buffer[:, : self.seq_len]
            layer[name] = buffer = grown
        if self.one_by_one(new.shape[1]):
            assert self.position is not None
            return buffer.index_copy_(1, self.position, new)
        buffer[:, self.seq_len : total] = new
        return new if self.seq_len == 0 else buffer[:, :total]

    def begin(self, rows: int, new: int, device: torch.device, dtype: torch.dtype | None) -> None:
        """Prepare for `new` tokens in each of `rows` sequences, which layers compute in `dtype` (None: a graph has its own).
        Raises ValueError if the number of sequences or the dtype changes, if states to be updated in place were made in
        inference mode and it has ended, or if there is no room."""
        if self.seq_len and rows != self.rows:
            remedy = "reorder_cache(indices) keeps or repeats rows"
            raise ValueError(f"{rows} rows of tokens after a cache of {self.rows}: give as many; {remedy}")
        if self.seq_len and dtype not in (None, self.dtype):
            remedy = "continue with the weights and the autocast that it began with"
            raise ValueError(f"new tokens in {dtype} after a cache in {self.dtype}: {remedy}")
        if self.seq_len and self.position is not None and self.position.is_inference() > torch.is_inference_mode_enabled():
            given = f"a cache with room={self.room}, begun in inference mode, cannot be updated in place outside"
            raise ValueError(f"{given}: continue it in torch.inference_mode(), or begin it under torch.no_grad()")
        self.rows = rows
        if self.seq_len == 0:
            self.seq_start, self.begun, self.dtype = None, True, dtype
        if self.room is None:
            return
        if self.seq_len + new > self.room:
            raise ValueError(f"token {self.seq_len + new} is beyond room={self.room} of the cache")
        if self.position is None:
            self.position = torch.zeros(1, dtype=torch.int64, device=device)

    def begin_at(self, seq_start: Tensor) -> None:
        """Store the first real position of each sequence, (B,) int32."""
        if self.seq_start is None or self.room is None:
            self.seq_start = seq_start
        else:
            self.seq_start.copy_(seq_start)  # in place: a graph may read it

    def end(self, new: int) -> None:
        """Count `new` tokens as cached."""
        self.count(new)
        if self.position is not None:
            self.position += new

    def count(self, new: int) -> None:
        """Count `new` tokens on the host only, as a graph counts them on the GPU."""
        self.seq_len += new

    def one_by_one(self, new: int) -> bool:
        """Tell whether `new` tokens are a step that needs no number from the host: a single token after others, with
        room."""
        return self.room is not None and new == 1 and self.seq_len > 0

    @property
    def length(self) -> Tensor:
        """Number of tokens in the sequences during a step of one token, which is included: (1,) int32 on the model's device."""
        assert self.position is not None
        return (self.position + 1).int()

    def newest(self, layer_idx: int, name: str) -> Tensor | None:
        """Return the last token's entry (B, 1, ...) of a sequence, None if it is empty."""
        sequence = self.layers.get(layer_idx, {}).get(name)
        if sequence is None or self.seq_len == 0:
            return None
        if self.position is not None:
            return sequence.index_select(1, self.position - 1)
        last = min(self.seq_len, sequence.shape[1])  # a window holds fewer, a buffer more
        return sequence[:, last - 1 : last]

    @property
    def nbytes(self) -> int:
        """Bytes of all states, including the unused part of sequences."""
        return sum(x.nbytes for x in _tensors(self.layers))

    def reorder_cache(self, beam_idx: Tensor) -> None:
        """Keep the rows of the batch with these indices, in this order; with `room` their number must not change."""
        beam_idx = torch.as_tensor(beam_idx)
        if beam_idx.dim() != 1 or beam_idx.dtype not in (torch.int32, torch.int64):
            given = f"reorder_cache of shape {tuple(beam_idx.shape)} and {beam_idx.dtype}"
            raise ValueError(f"{given}: give indices of rows, for a mask mask.nonzero()[:, 0]")
        if self.room is not None and len(beam_idx) != self.rows:
            given = f"reorder_cache of {len(beam_idx)} rows, room={self.room} and {self.rows} rows"
            raise ValueError(f"{given}: with room their number is fixed; give a cache without room")
        for layer in self.layers.values():
            for name, value in layer.items():
                kept = tree_map_only(Tensor, lambda x: x[beam_idx.to(x.device)], value)  # keeps the strides' order
                if self.room is None:
                    layer[name] = kept
                else:
                    _write(value, kept, name)
        self.rows = len(beam_idx)
        if self.seq_start is not None:
            self.begin_at(self.seq_start[beam_idx.to(self.seq_start.device)])


def _sequences(like: Tensor, room: int, make: Callable[..., Tensor]) -> Tensor:
    """Allocate sequences (B, room, ...) for tokens like these (B, T, ...)."""
    how: dict[str, Any] = dict(dtype=like.dtype, device=like.device)
    if like.dim() == 3:  # one number per head: those of a head are contiguous, as decoding reads them
        return make(like.shape[0], like.shape[2], room, **how).transpose(1, 2)
    return make(like.shape[0], room, *like.shape[2:], **how)


def _tensors(state: Any) -> list[Tensor]:
    return [x for x in tree_leaves(state) if isinstance(x, Tensor)]


def _write(place: Any, value: Any, what: str) -> None:
    """Copy a state, of tensors in tuples, lists or dicts, over an earlier one of the same sizes."""
    pairs = list(zip(_tensors(place), _tensors(value), strict=True))
    if any((old.shape, old.dtype) != (new.shape, new.dtype) for old, new in pairs):
        raise ValueError(f"{what} has changed its size or dtype: it cannot be updated in place; give a cache without room")
    for old, new in pairs:
        old.copy_(new)


def _slide(layer: State, name: str, new: Tensor, window: int) -> Tensor:
    past = layer.get(name)
    if past is None:
        layer[name] = new[:, -window:].clone()  # a view would keep the whole prompt
        return new
    whole = torch.cat([past[:, max(0, past.shape[1] + 1 - window) :], new], 1)
    layer[name] = whole if whole.shape[1] <= window else whole[:, -window:].clone()
    return whole
