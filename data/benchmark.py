"""How long reading takes: `python -m data.benchmark [--world-size R] [--steps S]`.

Writes a piece of LongCrawl64's layout (chunks of 2048 x 2048, Blosc LZ4) to a temporary folder and reads the paper's batches of
32 x 16,384 tokens from it in order, as one rank of R does.
"""

import argparse
import tempfile
import time
from pathlib import Path

import numpy as np

from data.corpus import Split
from data.sampler import Sampler, load_batch

VOCAB_SIZE, BOS_ID, SEQ_LEN, BATCH_SIZE = 50257, 50256, 16384, 32


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--world-size", type=int, default=8)
    parser.add_argument("--steps", type=int, default=128)
    parser.add_argument("--folder", type=Path, default=None, help="where to write; default: the system's temporary folder")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=options.folder) as folder:
        path = Path(folder) / "train.zarr"
        write_zipf_zarr(path, options.steps * BATCH_SIZE, SEQ_LEN)
        for world_size in sorted({1, options.world_size}):
            seconds = time_batches(path, options.steps, world_size)
            mean, median, longest = 1e3 * seconds.mean(), 1e3 * np.median(seconds), 1e3 * seconds.max()
            print(f"rank 0 of {world_size}: mean {mean:.2f} ms a step, median {median:.2f}, longest {longest:.0f}")


def time_batches(path: Path, steps: int, world_size: int) -> np.ndarray:
    """Seconds of each of the first `steps` batches of rank 0, without prefetching."""
    import torch  # noqa: F401  (importing it is no part of the first step)

    split = Split(path, vocab_size=VOCAB_SIZE)
    sampler = Sampler(len(split), split.document_len, SEQ_LEN, BATCH_SIZE)
    times = [time.perf_counter()]
    for step in range(steps):
        load_batch(split, sampler, step, 0, world_size, bos_id=BOS_ID)
        times.append(time.perf_counter())
    return np.diff(times)


def write_zipf_zarr(path: Path, num_documents: int, document_len: int) -> None:
    """Tokens drawn from Zipf's law over GPT-2's vocabulary: they compress about as badly as text does."""
    import numcodecs
    import zarr

    compressor = numcodecs.Blosc(cname="lz4", clevel=5, shuffle=numcodecs.Blosc.SHUFFLE)
    array = zarr.create_array(
        store=path,
        shape=(num_documents, document_len),
        chunks=(2048, 2048),
        dtype="uint16",
        compressors=compressor,
        zarr_format=2,
    )
    generator = np.random.default_rng(0)
    weights = np.cumsum(1 / np.arange(1, VOCAB_SIZE + 1))
    for start in range(0, num_documents, 2048):
        rows = min(2048, num_documents - start)
        uniform = generator.random((rows, document_len), dtype=np.float32)
        array[start : start + rows] = np.searchsorted(weights, uniform * weights[-1]).clip(0, VOCAB_SIZE - 1).astype(np.uint16)


if __name__ == "__main__":
    main()
