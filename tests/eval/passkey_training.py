"""Documents from which a model learns the pass-key task, made of the lines that the evaluation asks for."""

from collections.abc import Sequence

import numpy as np

from eval.needle.measure import draw_keys, key_line, query_line, take
from eval.shell.text import TextCodec


def training_batch(
    codec: TextCodec,
    filler: Sequence[int],
    *,
    seq_len: int,
    batch_size: int,
    seed: int,
    step: int,
    num_keys: int = 1,
    max_queries: int = 8,
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Documents to learn the task from: a pure function of (seed, step).

    Key lines and up to `max_queries` answered queries stand at random places of the filler, so that distances of
    all sizes occur. Returns inputs and targets (batch_size, seq_len), int64, aligned (BOS is the first input), and a mask
    that is true where the target belongs to an answer. Raises ValueError if key lines and one query do not fit.
    """
    rng = np.random.default_rng([seed, step])
    inputs = np.empty((batch_size, seq_len), np.int64)
    targets = np.empty((batch_size, seq_len), np.int64)
    mask = np.zeros((batch_size, seq_len), bool)
    for row in range(batch_size):
        ids, answers = _training_document(codec, filler, seq_len, num_keys, int(rng.integers(1, max_queries + 1)), rng)
        inputs[row] = [codec.bos_id, *ids[:-1]]
        targets[row] = ids
        for start, stop in answers:
            mask[row, start:stop] = True
    return inputs, targets, mask


def _training_document(
    codec: TextCodec, filler: Sequence[int], length: int, num_keys: int, num_queries: int, rng: np.random.Generator
) -> tuple[list[int], list[tuple[int, int]]]:
    """`length` ids and the spans of the answers among them: key lines first, then queries, filler between all of them."""
    keys = draw_keys(num_keys, rng)
    pieces = [codec.encode(key_line(name, value)) for name, value in keys]
    starts = []
    used = sum(map(len, pieces))
    for n in range(num_queries):
        name, value = keys[int(rng.integers(0, num_keys))]
        query = codec.encode(query_line(name))
        whole = codec.encode(key_line(name, value))
        if used + len(whole) > length:
            if n == 0:
                raise ValueError(
                    f"seq_len {length} is too short for {num_keys} key lines and a query: at least {used + len(whole)}"
                )
            break
        pieces.append(whole)
        starts.append(len(query))
        used += len(whole)
    gaps = np.sort(rng.integers(0, length - used + 1, len(pieces)))
    ids: list[int] = []
    spans: list[tuple[int, int]] = []
    hay = take(filler, length - used, rng)
    before = 0
    for number, (gap, piece) in enumerate(zip(gaps.tolist(), pieces, strict=True)):
        ids += hay[before:gap]
        before = gap
        if number >= num_keys:
            begin = len(ids) + starts[number - num_keys]
            spans.append((begin, begin + len(codec.encode(f" {keys[0][1]}"))))
        ids += piece
    return ids + hay[before:], spans
