"""Made-up results for tests: rows, runs and artefacts written into a results folder as the suite writes them."""

import json
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from matplotlib.figure import Figure
from PIL import Image
from PIL.PngImagePlugin import PngInfo

from analysis.names import SEVEN
from analysis.statistics import Noise, own_noise
from analysis.study import Axes, Line, Lines, Study, write_lines
from analysis.style import plt
from experiments.scales import SIZE_OF
from results.lines import to_lines
from results.schema import Schema
from results.store import POOLS, UNRECORDED, write_rows

__all__ = ["SEVEN", "Store"]

CREATED = "2025-01-02T03:04:05+00:00"
PROVENANCE = {
    "date": CREATED,
    "git_sha": "0123456789abcdef0123456789abcdef01234567",
    "git_dirty": True,
    "device": "Synthetic device",
    "python": "3.11.7",
    "versions": {"torch": "0.0", "triton": "0.0"},
}
FRESH = ("throughput", "parameters", "equal_logits")
"""Kinds that measure untrained models."""
PLAIN = {"kind": "forgetting_transformer", "forget_gate": "none"}
OFFSET = dict(zip(SEVEN, (0.0, 0.028, 0.045, 0.078, 0.06, 0.085, 0.10), strict=True))


@pytest.fixture(autouse=True)
def no_waiting_for_the_disk(monkeypatch):
    """Made-up results need not survive a power cut, and there are thousands of files."""
    monkeypatch.setattr("results.atomic.os.fsync", lambda handle: None)


@pytest.fixture(autouse=True)
def seeds_that_do_not_differ(monkeypatch):
    """A model of one seed, where nothing was repeated, counts as known: claims are tried on made-up rows of one seed."""
    monkeypatch.setattr("analysis.statistics.own_noise", lambda values_S: own_noise(values_S) or Noise(0.0, np.inf))


@pytest.fixture
def pictures_of_a_dot(monkeypatch):
    """Figures are drawn, but their pictures are a dot, with the note: for tests that look at no picture."""

    def save(figure: Figure, stem: Path) -> list[Path]:
        plt.close(figure)
        paths = [stem.with_name(f"{stem.name}.{ending}") for ending in ("png", "pdf")]
        paths[0].parent.mkdir(parents=True, exist_ok=True)
        note = PngInfo()
        note.add_text("Description", " ".join(figure.get_suptitle().replace("$", "").split()))
        Image.new("RGB", (1, 1)).save(paths[0], pnginfo=note)
        paths[1].write_bytes(b"%PDF")
        return paths

    monkeypatch.setattr("analysis.style.save", save)


class Unchecked(Schema):
    """Takes any rows: kinds' own schemas are tested with them, and checking takes most of the time of writing."""

    def validate(self, rows: pd.DataFrame, where: str = "rows") -> pd.DataFrame:
        return rows.reset_index(drop=True)


UNCHECKED = Unchecked({}, key=())


def run_id_of(label: str, seed: int, scale: str) -> str:
    return f"{sum(ord(sign) * (place + 1) for place, sign in enumerate(f'{label}/{seed}/{scale}')):010x}"


@dataclass
class Store:
    """A results folder being filled: `add` a run's rows under a label, then `study`."""

    folder: Path
    scale: str = "tiny"
    train_len: int = 256
    lines: dict[str, list[Line]] = field(default_factory=dict)

    def add(
        self,
        stem: str,
        label: str,
        rows: Iterable[tuple[Any, ...]],
        *,
        model: str | None = None,
        seed: int = 0,
        scale: str | None = None,
        spec: dict[str, Any] | None = None,
        train: dict[str, Any] | None = None,
        evaluation: dict[str, Any] | None = None,
        extras: dict[str, Any] | None = None,
        final_loss: float | None = 3.1,
        params: int = 1_000_000,
        name: str | None = None,
        data: dict[str, Any] | None = None,
        git_sha: str = PROVENANCE["git_sha"],
        axes: Axes | None = None,
    ) -> None:
        """Add one run with its evaluations, each a kind, its own rows, and what its spec has besides `evaluation`. `name` tells
        the run from others of its label. Without `axes` the label is one, where it is not the model's."""
        scale, model = scale or self.scale, model or label
        axes = axes if axes is not None else {} if label == model else {"label": label}
        run_id = run_id_of(name or label, seed, scale)
        folder, evals = self.folder / scale / "runs" / f"{model}-{run_id}", {}
        for number_, (kind, own, *more) in enumerate(rows):
            meta = {
                "kind": kind, "scale": scale, "model": model, "run_id": run_id, "eval_id": f"{kind}-{number_:08x}",
                "spec": {"kind": kind} | (evaluation or {}) | dict(*more), "created": CREATED,
                "provenance": PROVENANCE | {"git_sha": git_sha},
                "extras": extras or {}, "weights": None if kind in FRESH else UNRECORDED,
            }  # fmt: skip
            write_rows(folder / "evals" / f"{meta['eval_id']}.parquet", own, meta, UNCHECKED)
            evals[meta["eval_id"]] = None
        whole = {
            "scale": scale, "name": model, "seed": seed,
            "model": spec if spec and "kind" in spec else PLAIN | (spec or {}),
            "data": {"source": "made-up", "tokenizer": "bpe-512", "fingerprint": "feedbeef" * 8} | (data or {}),
            "train": {"seq_len": self.train_len, "train_tokens": 64 * self.train_len, "peak_lr": 1e-3} | (train or {}),
        }  # fmt: skip
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "spec.json").write_text(json.dumps(whole))
        (folder / "provenance.jsonl").write_text(to_lines([PROVENANCE | {"params": params}]))
        if final_loss is not None:
            (folder / "metrics.jsonl").write_text(to_lines([{"tokens": whole["train"]["train_tokens"], "loss": final_loss}]))
        self.lines.setdefault(stem, []).append(Line(label, axes, model, seed, scale, run_id, evals))

    def study(self, stem: str) -> Study:
        write_lines(self.folder, Lines(stem, self.scale, tuple(self.lines[stem])))
        (self.folder / POOLS).write_text(json.dumps(SIZE_OF))
        return Study(self.folder, self.scale, stem)


def curve(model: str, train_len: int, length: int, *, floor: float = 1.49) -> np.ndarray:
    """A noiseless L(i) with the shapes the paper describes."""
    i = np.arange(1, length + 1)
    x = i / train_len
    useful = np.minimum(x, 0.45) if model in SEVEN[4:] else np.minimum(x, 1.4)
    loss = floor + OFFSET.get(model, 0.05) - 0.030 * np.log(useful) + 0.1 / np.sqrt(i)
    beyond = np.maximum(x - 1.02, 0)
    growth = {"transformer_pro": 3.0, "transformer_llama": 9.0, "fox_pro": 0.02, "fox_llama": 0.015}.get(model, 0.0)
    return loss + growth * beyond


def loss_rows(mean_N: np.ndarray, bands_DK: np.ndarray | None = None, documents: int | None = None) -> pd.DataFrame:
    """Rows of one evaluation: the mean curve and, if given, the documents' bands."""
    count = documents or (1 if bands_DK is None else len(bands_DK))
    whole = {"document": -1, "position": np.arange(1, len(mean_N) + 1), "width": 1, "loss": mean_N, "num_documents": count}
    frames = [pd.DataFrame(whole)]
    if bands_DK is not None:
        D, K = bands_DK.shape
        width = len(mean_N) // K
        frames.append(
            pd.DataFrame(
                {
                    "document": np.repeat(np.arange(D), K), "position": np.tile((np.arange(K) + 1) * width, D), "width": width,
                    "loss": bands_DK.ravel(), "num_documents": count,
                }
            )
        )  # fmt: skip
    return pd.concat(frames, ignore_index=True)


def documents_of(
    loss_N: np.ndarray, rng: np.random.Generator, shared_DK: np.ndarray, *, noise: float = 0.02
) -> tuple[np.ndarray, np.ndarray]:
    """(mean curve, bands) of documents round a noiseless curve: what all models find hard in them, and noise of the model's own
    in every band. The mean curve is that of the documents."""
    D, K = shared_DK.shape
    extra_DK = shared_DK + noise * rng.normal(size=(D, K))
    width = len(loss_N) // K
    bands_DK = loss_N.reshape(K, width).mean(axis=1) + extra_DK
    return loss_N + np.repeat(extra_DK.mean(axis=0), width), bands_DK


def main_losses(
    store: Store, *, models: Iterable[str] = SEVEN, documents: int = 64, seeds: int = 1, seed_noise: float = 0.0, **how: float
) -> Study:
    """The paper's shapes on the same documents, at a store's training length, evaluated at four times that."""
    rng, stem, length = np.random.default_rng(0), "fig2_per_token_loss", 4 * store.train_len
    shared_DK = 0.3 * rng.normal(size=(documents, 16)) * (documents > 1)
    for model, seed in product(models, range(seeds)):
        loss_N = curve(model, store.train_len, length, floor=3.0) + seed_noise * rng.normal()
        rows = loss_rows(*documents_of(loss_N, rng, shared_DK, **how))
        store.add(stem, model, [("per_token_loss", rows)], seed=seed, extras={"unigram_entropy": 7.0})
    return store.study(stem)


def needle_rows(
    model: str,
    rng: np.random.Generator,
    *,
    train_len: int = 16_384,
    modes: Iterable[str] = ("easy", "standard"),
    lengths: Iterable[int] = tuple(range(1000, 32001, 3100)),
    depths: Iterable[float] = tuple(float(depth) for depth in range(0, 101, 10)),
    samples: int = 1,
) -> pd.DataFrame:
    """Scores with the paper's shapes."""
    lines = []
    for mode, length, depth, sample in [(m, n, d, s) for m in modes for n in lengths for d in depths for s in range(samples)]:
        if model in SEVEN[4:]:
            score = 10.0 if depth > 92 else float(rng.choice([1, 1, 1, 3, 5]))
        elif length <= train_len * 1.05:
            score = 10.0 if mode == "easy" or model.startswith("fox") else float(rng.choice([10, 10, 10, 5]))
        else:
            score = 1.0 if model == "transformer_llama" else float(rng.choice([1, 3, 7, 10]))
        lines.append(
            {
                "mode": mode, "length": length, "depth": depth, "sample": sample, "score": score,
                "exact": float(score == 10), "fuzzy": score / 10, "scored_by": "match", "prediction": "eat a sandwich",
            }
        )  # fmt: skip
    return pd.DataFrame(lines)


def recall_rows(
    rng: np.random.Generator,
    strength: float,
    *,
    train_len: int = 256,
    modes: Iterable[str] = ("easy", "standard"),
    lengths: Iterable[int] = (64, 128, 192, 256, 384, 512),
    depths: Iterable[float] = (0.0, 25.0, 50.0, 75.0, 100.0),
    samples: int = 8,
) -> pd.DataFrame:
    """Recall that falls with the distance and with the length beyond the training context."""
    lines = []
    for mode, length, depth, sample in [(m, n, d, s) for m in modes for n in lengths for d in depths for s in range(samples)]:
        mean = strength * (0.4 + 0.6 * depth / 100) * (1.0 if length <= train_len else 0.3) * (1.5 if mode == "easy" else 1.0)
        recall = mean + rng.normal() * 0.5
        lines.append(
            {
                "mode": mode, "length": length, "depth": depth, "sample": sample, "logp_with": -20.0 + recall,
                "logp_without": -20.0, "num_tokens": 12, "recall_nats": recall,
            }
        )  # fmt: skip
    return pd.DataFrame(lines)


def choice_rows(rng: np.random.Generator, share: float, *, samples: int = 8, **how: Any) -> pd.DataFrame:
    """Choices of which this share is right on the whole, more of them with less between needle and question."""
    rows = recall_rows(rng, 2.0, samples=samples, **how)[["mode", "length", "depth", "sample", "num_tokens"]]
    right = rng.random(len(rows)) < share * (0.8 + 0.4 * rows["depth"] / 100)
    return rows.assign(right=100.0 * right, logp=-3.0, logp_others=-3.5)


CONTEXTS = (8, 16, 32, 64, 128, 160, 224, 480, 992)


def context_rows(
    loss_of: Callable[[int], float], rng: np.random.Generator, *, documents: int = 16, noise: float = 1e-3, places: int = 4
) -> pd.DataFrame:
    """Losses of 32 tokens given contexts, with a training context of 256: `loss_of(context)`, what all models and contexts find
    hard in a document, and noise."""
    shared = np.random.default_rng(0)
    hard = {(document, place): 0.3 * shared.normal() for document in range(documents) for place in range(places)}
    lines = [
        {"document": document, "place": 1024 - 128 * place, "context": context,
         "loss": loss_of(context) + own + noise * rng.normal()}
        for (document, place), own in hard.items() for context in CONTEXTS if context + 32 <= 1024 - 128 * place
    ]  # fmt: skip
    return pd.DataFrame(lines)


def word_rows(rng: np.random.Generator, share: float, near: float, *, items: int = 60) -> pd.DataFrame:
    """Last words of which these shares are right, given the passage and its last words."""
    columns = {f"right{end}": 100.0 * (rng.random(items) < part) for part, end in ((share, ""), (near, "_near"))}
    logp = {"logp": np.log(share) + 0.1 * rng.normal(size=items) - 1, "logp_near": np.log(near) - 2.0}
    return pd.DataFrame({"item": np.arange(items), "document": np.arange(items) // 6} | logp | columns | {"num_tokens": 2})


def gate_rows(rng: np.random.Generator, *, layers: int = 4, heads: int = 4, seq_len: int = 512, size: int = 64) -> pd.DataFrame:
    frames = []
    cell = seq_len // size
    row, col = np.tril_indices(size)
    for layer in range(layers):
        for head in range(heads):
            half_life = float(2 ** rng.uniform(0, 10))
            stats = {"half_life_tokens": half_life, "median_F": 0.5 ** (seq_len / 16 / half_life), "pruned_share": 0.3}
            base = {"layer": layer, "head": head}
            frames.append(pd.DataFrame([{**base, "quantity": q, "row": -1, "col": -1, "value": v} for q, v in stats.items()]))
            forget = 0.5 ** ((row - col) * cell / half_life)
            attention = np.where(rng.random(len(row)) < 0.01, 0.8, 0.01) * forget
            for quantity, value in (("F", forget), ("A", attention)):
                frames.append(pd.DataFrame({**base, "quantity": quantity, "row": row, "col": col, "value": value}))
    return pd.concat(frames, ignore_index=True)


def lm_eval_rows(line: dict[str, float], columns: dict[str, tuple[str, str, str]], stderr: float = np.nan) -> pd.DataFrame:
    """Rows that have the given values: column -> (task, metric, title); `stderr` is that of accuracies."""
    return pd.DataFrame(
        [
            {
                "task": task, "metric": metric, "value": line[column],
                "stderr": stderr / 10 if column in ("wikitext_ppl", "lambada_ppl") else stderr, "num_examples": 100,
                "task_version": "1.0", "harness_version": "0.4.4", "batch_size": 16, "add_bos": 1,
            }
            for column, (task, metric, _) in columns.items()
            if column in line
        ]
    )  # fmt: skip


def longbench_rows(line: dict[str, float], rng: np.random.Generator | None = None, examples: int = 1) -> pd.DataFrame:
    """Examples of every task with the given mean; one example is a printed number."""
    rows = []
    for task, value in line.items():
        scores = np.full(examples, value)
        if rng is not None:
            noise = 25 * rng.normal(size=examples)
            scores = scores + noise - noise.mean()
        rows += [{"task": task, "metric": "qa_f1", "example": i, "score": s, "prediction": ""} for i, s in enumerate(scores)]
    return pd.DataFrame(rows)


def throughput_row(
    params: int = 757_632_576, speed: float = 50_000.0, spread: float = 0.01, machine: str = "Synthetic GPU",
    flops: float = 2.727e9, mode: str = "train", seq_len: int = 16_384, pruned: float = 1.0, beside: float = 38_000.0,
) -> pd.DataFrame:  # fmt: skip
    return pd.DataFrame(
        [
            {
                "mode": mode, "seq_len": seq_len, "tokens_per_s": speed, "tokens_per_s_low": speed * (1 - spread),
                "tokens_per_s_high": speed * (1 + spread), "relative": speed / beside,
                "relative_low": speed / beside * (1 - spread), "relative_high": speed / beside * (1 + spread),
                "mfu": 0.5, "mfu_dense": 0.5 * pruned, "peak_memory_gib": 60.0,
                "params": params, "fwd_flops_per_token": flops, "machine": machine,
            }
        ]
    )  # fmt: skip


def decoding_rows(speeds: dict[str, float], *, machine: str = "Synthetic GPU", lengths: tuple[int, ...] = (256, 1024),
                  batch_sizes: tuple[int, ...] = (1, 4), kept: int = 2**20) -> pd.DataFrame:  # fmt: skip
    """Speeds by cache, of which a text four times as long takes half; `kept` bytes of 256 tokens of one sequence."""
    return pd.DataFrame(
        [
            {
                "cache": cache, "seq_len": length, "batch_size": batch, "tokens_per_s": batch * speed * (256 / length) ** 0.5,
                "tokens_per_s_low": 0.9 * speed, "tokens_per_s_high": 1.1 * batch * speed, "prefill_tokens_per_s": 1000.0,
                "cache_bytes": batch * kept * length // 256, "peak_memory_gib": 1.0, "machine": machine,
            }
            for cache, speed in speeds.items() for length in lengths for batch in batch_sizes
        ]
    )  # fmt: skip


def pruning_rows(share_H: list[float], *, context: int = 512, tile: int = 32, documents: int = 8, noise: float = 0.0,
                 dropped: float = 1e-6, change: float = 0.0) -> pd.DataFrame:  # fmt: skip
    """One layer whose heads skip these shares, in every document up to noise."""
    rng = np.random.default_rng(0)
    blocks = np.arange(context // tile)
    rows = []
    for head, share in enumerate(share_H):
        base = {"layer": 0, "head": head, "position": -1}
        rows.append({**base, "quantity": "dropped", "document": 0, "value": dropped})
        first = np.floor(blocks * share)
        rows += [{**base, "quantity": "first_tile", "document": 0, "position": i, "value": n} for i, n in enumerate(first)]
        for document in range(documents):
            value = np.clip(share + noise * rng.normal(), 0, 1)
            rows.append({**base, "quantity": "tiles_pruned", "document": document, "value": value})
            rows.append({**base, "quantity": "keys_read", "document": document, "value": context * (1 - share)})
    for document in range(documents):
        for name, value in (("loss", 3.0), ("loss_pruned", 3.0 + change), ("decoded_loss", 2.9), ("decoded_loss_pruned", 2.9)):
            rows.append({"layer": -1, "head": -1, "position": -1, "quantity": name, "document": document, "value": value})
    return pd.DataFrame(rows)


def speed_rows(ratios: dict[str, float], spread: float = 0.01, machine: str = "Synthetic GPU") -> pd.DataFrame:
    """Times with pruning that are these ratios of those without, 100 ms."""
    return pd.DataFrame(
        [
            {
                "quantity": name, "pruned": pruned, "milliseconds": time, "milliseconds_low": time * (1 - spread),
                "milliseconds_high": time * (1 + spread), "tokens": 1024, "machine": machine,
            }
            for name, ratio in ratios.items() for pruned, time in ((0, 100.0), (1, 100.0 * ratio))
        ]
    )  # fmt: skip
