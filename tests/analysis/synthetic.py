"""Made-up rows for tests, in the real schemas. Never written to results/."""

from typing import Any

import numpy as np
import pandas as pd

SEVEN = ("fox_pro", "transformer_pro", "fox_llama", "transformer_llama", "mamba2", "hgrn2", "delta_net")
OFFSET = dict(zip(SEVEN, (0.0, 0.028, 0.045, 0.078, 0.06, 0.085, 0.10), strict=True))


def run_id(model: str) -> str:
    return f"{sum(map(ord, model)):010x}"


def curve(model: str, train_len: int, length: int, *, floor: float = 1.49) -> np.ndarray:
    """A noiseless L(i) with the shapes the paper describes."""
    i = np.arange(1, length + 1)
    x = i / train_len
    useful = np.minimum(x, 0.45) if model in SEVEN[4:] else np.minimum(x, 1.4)
    loss = floor + OFFSET[model] - 0.030 * np.log(useful) + 0.1 / np.sqrt(i)
    beyond = np.maximum(x - 1.02, 0)
    growth = {"transformer_pro": 3.0, "transformer_llama": 9.0, "fox_pro": 0.02, "fox_llama": 0.015}.get(model, 0.0)
    return loss + growth * beyond


def loss_rows(
    scale: str = "760m-48b",
    *,
    models: tuple[str, ...] = SEVEN,
    train_len: int = 16_384,
    length: int = 65_536,
    noise: float = 0.0,
    documents: int = 32_768,
    floor: float = 1.49,
) -> tuple[pd.DataFrame, dict[str, Any]]:
    rng = np.random.default_rng(0)
    shared = rng.normal(size=length) * noise
    frames = []
    for model in models:
        loss = curve(model, train_len, length, floor=floor) + shared + rng.normal(size=length) * noise / 8
        frames.append(
            pd.DataFrame(
                {
                    "scale": scale,
                    "model": model,
                    "run_id": run_id(model),
                    "eval_id": "per_token_loss-0badc0de",
                    "position": np.arange(1, length + 1),
                    "loss": np.maximum(loss, 0),
                    "num_documents": documents,
                }
            )
        )
    extras = {"unigram_entropy": floor + 4.0}
    return pd.concat(frames, ignore_index=True), meta_for(
        "fig2_per_token_loss", "per_token_loss", scale, models, train_len, extras
    )


def meta_for(
    artefact: str, kind: str, scale: str, models: tuple[str, ...], train_len: int, extras: dict[str, Any] | None = None
) -> dict[str, Any]:
    provenance = {
        "git_sha": "0123456789abcdef0123456789abcdef01234567",
        "git_dirty": True,
        "device": "Synthetic device",
        "python": "3.11.7",
        "versions": {"torch": "0.0", "triton": "0.0"},
    }
    runs = {}
    for index, model in enumerate(models):
        runs[run_id(model)] = {
            "model": model,
            "spec": {"train": {"seq_len": train_len, "train_tokens": 64 * train_len, "peak_lr": 1e-3}, "seed": 0},
            "provenance": provenance,
            "final_loss": 3.1 + index / 10,
            "params": 1_000_000 + index,
        }
    made = {
        run_id(model): {"created": "2025-01-02T03:04:05Z", "provenance": provenance, "extras": extras or {}} for model in models
    }
    return {
        "artefact": artefact,
        "kind": kind,
        "scale": scale,
        "created": "2025-01-02T03:04:05Z",
        "runs": runs,
        "evals": {f"{kind}-0badc0de": {"spec": {"kind": kind}, "runs": made}},
    }


def _source(scale: str, model: str, kind: str) -> dict[str, str]:
    return {"scale": scale, "model": model, "run_id": run_id(model), "eval_id": f"{kind}-0badc0de"}


def needle_rows(
    scale: str = "760m-48b",
    *,
    models: tuple[str, ...] = SEVEN,
    modes: tuple[str, ...] = ("easy", "standard"),
    lengths: tuple[int, ...] = tuple(range(1000, 32001, 3100)),
    depths: tuple[float, ...] = tuple(float(depth) for depth in range(0, 101, 10)),
    train_len: int = 16_384,
) -> tuple[pd.DataFrame, dict[str, Any]]:
    rng = np.random.default_rng(1)
    lines = []
    for model in models:
        recurrent = model in SEVEN[4:]
        for mode in modes:
            for length in lengths:
                for depth in depths:
                    if recurrent:
                        score = 10.0 if depth > 92 else float(rng.choice([1, 1, 1, 3, 5]))
                    elif length <= train_len * 1.05:
                        score = 10.0 if mode == "easy" or model.startswith("fox") else float(rng.choice([10, 10, 10, 5]))
                    else:
                        score = 1.0 if model == "transformer_llama" else float(rng.choice([1, 3, 7, 10]))
                    lines.append(
                        {
                            **_source(scale, model, f"needle-{mode}"), "mode": mode, "length": length, "depth": depth,
                            "sample": 0, "score": score, "exact": float(score == 10), "fuzzy": score / 10,
                            "scored_by": "match", "prediction": "eat a sandwich",
                        }
                    )  # fmt: skip
    meta = meta_for("fig4_needle", "needle", scale, models, train_len)
    return pd.DataFrame(lines), meta


def gate_rows(
    scale: str = "tiny",
    *,
    models: tuple[str, ...] = ("fox_pro", "fox_llama"),
    layers: int = 4,
    heads: int = 4,
    seq_len: int = 512,
    size: int = 128,
) -> tuple[pd.DataFrame, dict[str, Any]]:
    rng = np.random.default_rng(2)
    frames = []
    cell = seq_len // size
    row, col = np.tril_indices(size)
    for model in models:
        for layer in range(layers):
            for head in range(heads):
                half_life = float(2 ** rng.uniform(0, 10))
                stats = {"half_life_tokens": half_life, "median_F": 0.5 ** (seq_len / 16 / half_life), "pruned_share": 0.3}
                base = {**_source(scale, model, "gate_maps"), "layer": layer, "head": head}
                frames.append(
                    pd.DataFrame([{**base, "quantity": q, "row": -1, "col": -1, "value": v} for q, v in stats.items()])
                )
                forget = 0.5 ** ((row - col) * cell / half_life)
                attention = np.where(rng.random(len(row)) < 0.01, 0.8, 0.01) * forget
                for quantity, value in (("F", forget), ("A", attention)):
                    frames.append(pd.DataFrame({**base, "quantity": quantity, "row": row, "col": col, "value": value}))
    extras = {"seq_len": seq_len, "cell": cell, "distance": seq_len // 16, "document": 0}
    return pd.concat(frames, ignore_index=True), meta_for("fig3_forget_gates", "gate_maps", scale, models, seq_len, extras)


def scores_to_lm_eval(table: dict[str, dict[str, float]], scale: str, columns: dict[str, tuple[str, str, str]]) -> pd.DataFrame:
    """Rows that have the given values: column -> (task, metric, title)."""
    return pd.DataFrame(
        [
            {
                **_source(scale, model, "lm_eval"), "task": task, "metric": metric, "value": table[model][column],
                "stderr": np.nan, "num_examples": 100, "task_version": "1.0", "harness_version": "0.4.4",
                "batch_size": 16, "add_bos": 1,
            }
            for model in table
            for column, (task, metric, _) in columns.items()
        ]
    )  # fmt: skip


def scores_to_longbench(table: dict[str, dict[str, float]], scale: str) -> pd.DataFrame:
    """Two examples per task, one above and one below the given mean."""
    return pd.DataFrame(
        [
            {
                **_source(scale, model, "longbench"), "task": task, "metric": "qa_f1", "example": example,
                "score": value + (1.0 if example else -1.0), "prediction": "",
            }
            for model, line in table.items()
            for task, value in line.items()
            for example in (0, 1)
        ]
    )  # fmt: skip


def throughput_rows(
    scale: str, models: tuple[str, ...] = SEVEN, gpu: str = "Synthetic GPU"
) -> tuple[pd.DataFrame, dict[str, Any]]:
    lines = [
        {
            **_source(scale, model, "throughput"), "mode": mode, "seq_len": 16_384, "tokens_per_s": 50_000.0 + 2000 * index,
            "mfu": 0.5, "peak_memory_gib": 60.0, "params": 757_632_576 + index, "fwd_flops_per_token": 2.727e9, "gpu": gpu,
        }
        for index, model in enumerate(models)
        for mode in ("train", "generate")
    ]  # fmt: skip
    return pd.DataFrame(lines), meta_for("table6_throughput", "throughput", scale, models, 16_384)
