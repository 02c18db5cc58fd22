"""State that a model keeps between two calls of cached decoding: per layer, a few named tensors."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

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
            if self.room is not None and name in layer:
                _write(layer[name], _map(torch.Tensor.detach, value), f"{name} of layer {layer_idx}")
            else:
                layer[name] = _map(torch.Tensor.detach, value)
        return layer

    def append(self, layer_idx: int, window: int | None = None, **new: Tensor) -> tuple[Tensor, ...]:
        """Extend sequences (B, T, ...) by new tokens along T and return the whole sequences, in the order given. With a
        `window`, that many tokens are kept between two calls, and the new ones are returned with all that they can see."""
        layer = self.layers.setdefault(layer_idx, {})
        if window is not None:
            return tuple(_slide(layer, name, value, window) for name, value in new.items())
        return tuple(_append(layer, name, value, self.seq_len) for name, value in new.items())

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

    def place(self, layer_idx: int, **new: Tensor) -> tuple[Tensor, ...]:
        """Write new tokens of sequences (B, T, ...) at their positions in a cache with room. Return the sequences up to them,
        in the order given; for a single token after others all of `room`, of which `length` hold tokens and the rest zeros."""
        layer = self.layers.setdefault(layer_idx, {})
        return tuple(self._place(layer, name, value.detach()) for name, value in new.items())

    def _place(self, layer: State, name: str, new: Tensor) -> Tensor:
        assert self.room is not None and self.position is not None
        if name not in layer:
            layer[name] = _sequences(new, self.room, torch.zeros)
        buffer, total = layer[name], self.seq_len + new.shape[1]
        if self.one_by_one(new.shape[1]):
            return buffer.index_copy_(1, self.position, new)
        buffer[:, self.seq_len : total] = new
        return new if self.seq_len == 0 else buffer[:, :total]

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
        return sum(_nbytes(layer) for layer in self.layers.values())

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
                kept = _map(lambda tensor: tensor[beam_idx.to(tensor.device)], value)  # keeps the strides' order
                if self.room is None:
                    layer[name] = kept
                else:
                    _write(value, kept, name)
        self.rows = len(beam_idx)
        if self.seq_start is not None:
            self.begin_at(self.seq_start[beam_idx.to(self.seq_start.device)])


def _append(layer: State, name: str, new: Tensor, seq_len: int) -> Tensor:
    total = seq_len + new.shape[1]
    buffer = layer.get(name)
    sealed = buffer is not None and buffer.is_inference() and not torch.is_inference_mode_enabled()  # may not be written to
    if buffer is None or buffer.shape[1] < total or sealed:
        room = BLOCK * (-(-total // BLOCK) + 1)
        grown = _sequences(new, room, torch.empty)
        if buffer is not None:
            grown[:, :seq_len] = buffer[:, :seq_len]
        layer[name] = buffer = grown
    buffer[:, seq_len:total] = new.detach()
    return new if seq_len == 0 else buffer[:, :total]


def _sequences(like: Tensor, room: int, make: Callable[..., Tensor]) -> Tensor:
    """Allocate sequences (B, room, ...) for tokens like these (B, T, ...)."""
    how: dict[str, Any] = dict(dtype=like.dtype, device=like.device)
    if like.dim() == 3:  # one number per head: those of a head are contiguous, as decoding reads them
        return make(like.shape[0], like.shape[2], room, **how).transpose(1, 2)
    return make(like.shape[0], room, *like.shape[2:], **how)


def _write(place: Any, value: Any, what: str) -> None:
    """Copy a state, of tensors in tuples, lists or dicts, over an earlier one of the same sizes."""
    if isinstance(place, Tensor):
        if not isinstance(value, Tensor) or (value.shape, value.dtype) != (place.shape, place.dtype):
            now = f"{tuple(value.shape)} {value.dtype}" if isinstance(value, Tensor) else repr(value)
            held = f"{tuple(place.shape)} {place.dtype}"
            raise ValueError(f"{what} was {held} and is {now}: it cannot be updated in place; give a cache without room")
        place.copy_(value)
    elif isinstance(place, dict):
        for name, part in place.items():
            _write(part, value[name], what)
    elif isinstance(place, (tuple, list)):
        for part, new in zip(place, value, strict=True):
            _write(part, new, what)


def _slide(layer: State, name: str, new: Tensor, window: int) -> Tensor:
    past = layer.get(name)
    if past is None:
        layer[name] = new[:, -window:].detach().clone()  # a view would keep the whole prompt
        return new
    whole = torch.cat([past[:, max(0, past.shape[1] + 1 - window) :], new], 1)
    layer[name] = whole.detach() if whole.shape[1] <= window else whole[:, -window:].detach().clone()
    return whole


def _nbytes(value: Any) -> int:
    if isinstance(value, Tensor):
        return value.nbytes
    parts = value.values() if isinstance(value, dict) else value if isinstance(value, (tuple, list)) else ()
    return sum(map(_nbytes, parts))


def _map(function: Callable[[Tensor], Tensor], value: Any) -> Any:
    if isinstance(value, (tuple, list)):
        return type(value)(_map(function, item) for item in value)
    if isinstance(value, dict):
        return {name: _map(function, item) for name, item in value.items()}
    return function(value) if isinstance(value, Tensor) else value
